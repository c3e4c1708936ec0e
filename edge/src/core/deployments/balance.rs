//! One deployment nearer to what is wanted: what is placed, replaced, changed and taken away.
//!
//! Leaves one replica's steps to [`super::replica`] and [`super::ending`]. Invariants: a change takes an old replica down only
//! when a new one is ready, or its place is the only one; replicas begun are never above wanted and one, of those that are
//! not lost and not on a draining node; why fewer are there than wanted is always known.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umbel_contracts::deployment::ArtifactSpec;
use umbel_wire::NodeId;

use super::facts::{Place, Standing, Wanted};
use super::round::Round;
use super::rows::{DeploymentRow, ReplicaKey, ReplicaRow, ReplicaState};
use super::{Deployments, Unplaced};

/// What a replica held is told free within this time after its end: a report of GPUs or two.
const FREED: Duration = Duration::from_secs(15);

/// Why there are fewer than wanted.
enum Why {
    /// What goes has not gone yet: it comes by itself.
    Waits(String),
    Stays(String),
}

impl Round<'_> {
    /// Brings one deployment nearer to what is wanted.
    pub(super) fn balance(&mut self, row: &DeploymentRow) {
        let name = &row.spec.name;
        self.note_misplaced(row);
        if row.paused && !row.deleting {
            self.state.unplaced.remove(name);
            return;
        }
        for replica in self.of(name) {
            let outdated = self.outdates(row, &replica);
            if replica.state.goes() {
                continue;
            }
            if replica.leave_ms.is_some() {
                self.end(replica, "an operator wants it to go");
            } else if self.facts.draining(&replica.node) && replica.state != ReplicaState::Lost {
                self.end(replica, "its node is drained");
            } else if self.facts.draining(&replica.node)
                && self.facts.standing(&replica.node) == Standing::Here
            {
                // It lost its GPU, not its node: its engine is there still.
                self.unload(replica, "its node is drained");
            } else if outdated && !matches!(replica.state, ReplicaState::Ready | ReplicaState::Lost) {
                self.end(replica, "the deployment says something else now");
            }
        }
        self.drop_replaced(row);
        self.take_away(row);
        let missing = self.place_missing(row);
        let reason = missing.or_else(|| self.change(row).map(Why::Stays));
        self.note_unplaced(name, reason);
        if row.deleting && self.of(name).is_empty() {
            self.out.gone.push(name.clone());
            let message = format!("deployment {name} is gone, with all its replicas");
            self.tell("deployment_deleted", name.clone(), None, message, false);
        }
    }

    /// Lost replicas go once others do their work.
    fn drop_replaced(&mut self, row: &DeploymentRow) {
        let rows = self.of(&row.spec.name);
        if rows.iter().filter(|one| self.serves(one)).count() < wanted(row) {
            return;
        }
        for replica in rows {
            if !self.is_overdue(row, &replica) {
                continue;
            }
            self.end(replica, "others do its work");
        }
    }

    /// Replicas above what is wanted go; while a change brings one up, one more may be there.
    fn take_away(&mut self, row: &DeploymentRow) {
        let mut live = self.live(row);
        let changing = live.iter().any(|one| self.outdates(row, one))
            && live.iter().any(|one| !self.outdates(row, one) && !self.serves(one));
        let allowed = if wanted(row) == 0 { 0 } else { wanted(row) + usize::from(changing) };
        while live.len() > allowed {
            let known = |one: &ReplicaRow| (self.outdates(row, one), self.serves(one));
            let Some(index) = first_to_go(&live, known) else { return };
            let victim = live.swap_remove(index);
            let why =
                if wanted(row) == 0 { "the deployment is not wanted" } else { "there are more than wanted" };
            self.end(victim, why);
        }
    }

    /// Why some are missing still.
    fn place_missing(&mut self, row: &DeploymentRow) -> Option<Why> {
        let name = &row.spec.name;
        while self.live(row).len() < wanted(row) && !self.is_full() {
            if self.on_site(name) > wanted(row) {
                return Some(Why::Waits("a replica that goes has not ended yet".to_owned()));
            }
            let with_lost = self.of(name).iter().filter(|one| !one.state.goes()).count();
            if let Some(held) = self.state.guard.held().filter(|_| with_lost >= wanted(row)) {
                return Some(Why::Stays(held.sentence()));
            }
            match self.find(row, BTreeSet::new()) {
                Ok((number, place)) => self.begin(row, number, place),
                Err(why) => return Some(self.no_room(row, why)),
            }
        }
        None
    }

    /// Why there is no room: for good, or until what goes has gone.
    fn no_room(&mut self, row: &DeploymentRow, why: String) -> Why {
        let going: Vec<ReplicaRow> = self.work.values().filter(|one| one.state.goes()).cloned().collect();
        let own = going.iter().find(|one| one.deployment == row.spec.name);
        let all: BTreeSet<String> = going.iter().map(ReplicaRow::engine).collect();
        if let Some(one) = own {
            return Why::Waits(format!("it waits for {} to end", one.engine()));
        }
        // What has the GPUs of the place that it would get, else whatever goes on that node.
        let in_the_way = |place: &Place| {
            let there = || going.iter().filter(|one| one.node == place.node);
            there().find(|one| one.gpus.iter().any(|gpu| place.gpus.contains(gpu))).or_else(|| there().next())
        };
        if !all.is_empty()
            && let Ok((_, place)) = self.find(row, all)
            && let Some(one) = in_the_way(&place)
        {
            let node = self.facts.name(&one.node);
            return Why::Waits(format!("it waits for {} on {node} to end: {why}", one.engine()));
        }
        if self.waits_for_room() {
            return Why::Waits(format!("{why}; what has just ended may not be told free yet"));
        }
        Why::Stays(why)
    }

    fn note_unplaced(&mut self, name: &str, why: Option<Why>) {
        let Some(why) = why else {
            self.state.unplaced.remove(name);
            return;
        };
        let (reason, waits) = match why {
            Why::Waits(reason) => (reason, true),
            Why::Stays(reason) => (reason, false),
        };
        let before = self.state.unplaced.get(name);
        if before.is_some_and(|before| before.reason == reason && before.waits == waits) {
            return;
        }
        let since_unix_ms = before.map_or(self.wall, |before| before.since_unix_ms);
        if !waits && before.is_none_or(|before| before.waits) {
            let message = format!("{name} has fewer replicas than it wants: {reason}");
            self.tell("deployment_unplaced", name.to_owned(), None, message, false);
        }
        self.state.unplaced.insert(name.to_owned(), Unplaced { reason, waits, since_unix_ms });
    }

    /// The next step of a change: beside the old ones if there is room, else in the place of one of them. Why it waits.
    fn change(&mut self, row: &DeploymentRow) -> Option<String> {
        let name = &row.spec.name;
        let rows = self.of(name);
        let mut old: Vec<&ReplicaRow> = rows.iter().filter(|one| self.outdates(row, one)).collect();
        if old.iter().all(|one| one.state == ReplicaState::Lost) {
            self.state.one_by_one.remove(name);
            return None;
        }
        old.retain(|one| one.state == ReplicaState::Ready);
        let new = rows.iter().find(|one| !self.outdates(row, one) && !self.serves(one));
        if let Some(new) = new.filter(|new| new.state == ReplicaState::Failed) {
            return Some(format!("the change stands still: {} failed: {}", new.engine(), new.cause));
        }
        if let Some(new) = new.filter(|new| new.state == ReplicaState::Ready) {
            let node = self.facts.name(&new.node);
            let why = format!("{} is ready on {node}, which is not eligible for requests", new.engine());
            return Some(format!("the change stands still: {why}"));
        }
        let quiet = new.is_none() && !rows.iter().any(|one| one.state.goes());
        if !quiet || old.is_empty() || self.live(row).len() < wanted(row) || self.on_site(name) > wanted(row)
        {
            return None;
        }
        let no_room = match self.find(row, BTreeSet::new()) {
            Ok((number, place)) => {
                self.begin(row, number, place);
                return None;
            }
            Err(no_room) => no_room,
        };
        if self.waits_for_room() {
            return None;
        }
        let gives_way = old.iter().find(|one| self.find(row, BTreeSet::from([one.engine()])).is_ok());
        let Some(gives_way) = gives_way else { return Some(format!("the change waits: {no_room}")) };
        let victim = (*gives_way).clone();
        if self.state.one_by_one.insert(name.clone()) {
            let message = format!(
                "{name} changes one replica after the other, with one less meanwhile: beside them there is no room ({no_room})"
            );
            self.tell("deployment_one_by_one", name.clone(), None, message, true);
        }
        self.end(victim, "its place is needed for the change");
        None
    }

    /// A replica has just gone, and its room is not told free yet.
    fn waits_for_room(&self) -> bool {
        self.state.gone_at.is_some_and(|at| self.facts.now.saturating_duration_since(at) < FREED)
    }

    /// A number and a place for one more replica.
    fn find(&mut self, row: &DeploymentRow, displaces: BTreeSet<String>) -> Result<(u32, Place), String> {
        // Also what is left of replicas that no row has: a node may have an engine of another model under that name.
        let mut taken = self.facts.numbers(&row.spec.name);
        taken.extend(self.of(&row.spec.name).iter().map(|one| one.number));
        let number = (1..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX);
        let key = ReplicaKey { deployment: row.spec.name.clone(), number };
        let place = self.places.place(&self.wanted(row, &key, displaces, BTreeMap::new()))?;
        Ok((number, place))
    }

    /// A replica that looks for a place.
    pub(super) fn wanted<'a>(
        &self,
        row: &'a DeploymentRow,
        key: &ReplicaKey,
        displaces: BTreeSet<String>,
        avoid: BTreeMap<NodeId, String>,
    ) -> Wanted<'a> {
        let mut placed = BTreeMap::new();
        let others = self.of(&row.spec.name);
        // What goes, or is to be replaced, is not there in the end: who comes in its place may have its place.
        let stays = |one: &&ReplicaRow| !one.state.goes() && !self.outdates(row, one);
        for other in others.iter().filter(|one| one.number != key.number).filter(stays) {
            *placed.entry(other.node).or_insert(0) += 1;
        }
        Wanted { spec: &row.spec, engine: key.engine(), placed, avoid, displaces }
    }

    fn begin(&mut self, row: &DeploymentRow, number: u32, place: Place) {
        let key = ReplicaKey { deployment: row.spec.name.clone(), number };
        let wanted = self.wanted(row, &key, BTreeSet::new(), BTreeMap::new());
        self.places.take(&place, &wanted);
        let replica = ReplicaRow {
            deployment: row.spec.name.clone(),
            number,
            version: row.version,
            engine_digest: row.engine_digest.clone(),
            artifact: row.spec.artifact.as_ref().map(ArtifactSpec::digest).unwrap_or_default(),
            restarts: row.restarts,
            condemned: false,
            node: place.node,
            gpus: place.gpus,
            files_at: None,
            source: String::new(),
            state: ReplicaState::Acquiring,
            since_unix_ms: self.wall,
            cause: String::new(),
            job: None,
            failures: 0,
            retry_at_unix_ms: None,
            failed_job: None,
            cancelled_by: None,
            asked_at_unix_ms: None,
            avoid: Vec::new(),
            ruled_out: Vec::new(),
            causes: BTreeMap::new(),
            leave_ms: None,
            not_taken: None,
        };
        let message = format!("{} is placed on {}", replica.engine(), self.facts.name(&replica.node));
        self.tell("replica_placed", replica.engine(), Some(replica.node), message, true);
        self.bring_up(row, replica);
    }

    /// Whether a replica runs something else than its document says, or where that does not let it.
    fn outdates(&self, row: &DeploymentRow, one: &ReplicaRow) -> bool {
        row.outdates(one) || self.is_misplaced(row, one)
    }

    fn is_misplaced(&self, row: &DeploymentRow, one: &ReplicaRow) -> bool {
        one.state != ReplicaState::Lost && !self.places.selects(&row.spec, &one.node)
    }

    fn note_misplaced(&mut self, row: &DeploymentRow) {
        for one in self.of(&row.spec.name) {
            if !one.state.goes() && self.is_misplaced(row, &one) {
                self.state.misplaced.insert(one.key());
            } else {
                self.state.misplaced.remove(&one.key());
            }
        }
    }

    /// Whether requests may go to it.
    fn serves(&self, one: &ReplicaRow) -> bool {
        one.state == ReplicaState::Ready && self.facts.eligible(&one.node)
    }

    /// Those that count as what is wanted.
    fn live(&self, row: &DeploymentRow) -> Vec<ReplicaRow> {
        let mut rows = self.of(&row.spec.name);
        rows.retain(|one| !one.state.goes() && !self.is_overdue(row, one));
        rows
    }

    /// How many take room on nodes that can be counted on.
    fn on_site(&self, name: &str) -> usize {
        let rows = self.of(name);
        let here = |one: &&ReplicaRow| one.state != ReplicaState::Lost && !self.facts.draining(&one.node);
        rows.iter().filter(here).count()
    }

    /// Its node, or a GPU of its own, is lost for longer than it is waited for, and nothing holds its replacement up.
    fn is_overdue(&self, row: &DeploymentRow, one: &ReplicaRow) -> bool {
        let delay = Duration::from(row.spec.replace_delay);
        let long = match self.state.lost.get(&one.node) {
            Some(since) => self.facts.now.saturating_duration_since(*since) >= delay,
            // Of a node that is heard it lost a GPU.
            None => {
                let passed = self.wall.saturating_sub(one.since_unix_ms);
                self.facts.standing(&one.node) == Standing::Here
                    && u64::try_from(passed).is_ok_and(|passed| Duration::from_millis(passed) >= delay)
            }
        };
        one.state == ReplicaState::Lost && long
    }
}

/// Which of these goes first if fewer are wanted. `known`: whether one is outdated, and whether it takes requests.
fn first_to_go(live: &[ReplicaRow], known: impl Fn(&ReplicaRow) -> (bool, bool)) -> Option<usize> {
    let crowd = |node: NodeId| live.iter().filter(|one| one.node == node).count();
    let worth = |one: &ReplicaRow| {
        let by_state = match (one.state, known(one)) {
            (ReplicaState::Failed, _) if one.given_up() => 0,
            (ReplicaState::Failed, _) => 1,
            (ReplicaState::Lost, _) => 2,
            (ReplicaState::Stopped, _) => 3,
            (ReplicaState::Acquiring, _) => 4,
            (ReplicaState::Loading, _) => 5,
            (_, (true, _)) => 6,
            (_, (_, false)) => 7,
            _ => 8,
        };
        (by_state, std::cmp::Reverse(crowd(one.node)), std::cmp::Reverse(one.number))
    };
    (0..live.len()).min_by_key(|index| live.get(*index).map(worth))
}

impl Deployments {
    /// Of each deployment whose replicas are wanted the engines of these, in the order in which they would go if fewer were.
    pub(crate) fn stocks(&self) -> BTreeMap<String, Vec<String>> {
        let loaded = self.rows.values().filter(|row| row.wanted() > 0);
        let order = |row: &DeploymentRow| {
            let here = self.replicas_of(&row.spec.name).filter(|one| !one.state.goes());
            let mut live: Vec<ReplicaRow> = here.cloned().collect();
            let mut order = Vec::new();
            while let Some(at) = first_to_go(&live, |one| (row.outdates(one), self.serves(one))) {
                order.push(live.swap_remove(at).engine());
            }
            order
        };
        loaded.map(|row| (row.spec.name.clone(), order(row))).collect()
    }
}

fn wanted(row: &DeploymentRow) -> usize {
    usize::try_from(row.wanted()).unwrap_or(usize::MAX)
}
