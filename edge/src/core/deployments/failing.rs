//! What follows when a replica does not come up, or falls over.
//!
//! Owns how often, where and when it is tried again. Leaves whether a cause may be over by itself to whoever tells it.
//! Invariants: what may be over is tried again for ever, later each time, elsewhere first, and of the places where it failed
//! first where that is longest ago; what an operator cancelled stays so until somebody asks; what lasts is tried once on each node, on [`LASTING_MAX`] at most, and then stays failed
//! with its cause until somebody acts, or until it fits where it was not tried yet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umbel_wire::NodeId;

use super::facts::{EngineWord, JobFact, Place, Standing};
use super::round::Round;
use super::rows::{DeploymentRow, JobKind, ReplicaRow, ReplicaState};

/// Nodes on which a replica fails for what lasts before nobody looks for another one.
pub(super) const LASTING_MAX: usize = 5;
/// The first retry comes after this, each further one after three times as long.
pub(super) const RETRY_FIRST_MS: i64 = 10_000;
/// But at most after this.
pub(super) const RETRY_LAST_MS: i64 = 600_000;
/// For one that is ready for so long it no longer counts that it failed before.
const STEADY_MS: i64 = 600_000;
/// Without a place it is looked for one this often.
const LOOK: Duration = Duration::from_secs(60);
/// Nodes that are remembered as failed: more than [`LASTING_MAX`].
const REMEMBERED: usize = 8;

impl Round<'_> {
    /// One that is ready for long starts anew with its count. Looked at while it is ready: one that falls over is started by
    /// its node first, and fails as one that loads.
    pub(super) fn forgive(&self, row: &mut ReplicaRow) {
        let ready_for = self.wall.saturating_sub(row.since_unix_ms);
        if row.state == ReplicaState::Ready && row.failures > 0 && ready_for >= STEADY_MS {
            row.failures = 0;
            row.avoid.clear();
            row.ruled_out.clear();
            row.causes.clear();
        }
    }

    /// It did not come up, or fell over. `passes`: why may be over by itself.
    pub(super) fn fail(&mut self, mut row: ReplicaRow, why: &str, passes: bool) {
        let now = self.wall;
        row.failures = row.failures.saturating_add(1);
        remember(&mut row.avoid, row.node);
        if !passes {
            remember(&mut row.ruled_out, row.node);
        }
        let remembered: BTreeSet<String> = row.failed_at().iter().map(NodeId::to_string).collect();
        row.causes.retain(|node, _| remembered.contains(node));
        row.causes.insert(row.node.to_string(), why.to_owned());
        // What lasts is not worth a pause: it is tried somewhere else, or nowhere.
        let pause = if passes { pause_after(row.failures) } else { 0 };
        row.retry_at_unix_ms = (row.ruled_out.len() < LASTING_MAX).then(|| now.saturating_add(pause));
        let started = row.state != ReplicaState::Acquiring;
        row.not_taken = None;
        row.failed_job = row.job.take().map(|job| job.id);
        row.turn(ReplicaState::Failed, why, now);
        let message = format!("{} on {} has failed: {why}", row.engine(), self.facts.name(&row.node));
        self.tell("replica_failed", row.engine(), Some(row.node), message, true);
        if started && !self.is_only_asked(&row) {
            // Whatever is left of it there would be in the way.
            self.order_unload(&mut row);
        }
        if row.retry_at_unix_ms.is_none() {
            self.give_up(&row);
        }
        self.put(row);
    }

    /// An operator cancelled its job: nothing is begun for it until somebody asks, wherever else it would fit.
    pub(super) fn cancelled(&mut self, mut row: ReplicaRow, by: String) {
        let job = row.job.take();
        let what = if row.state == ReplicaState::Acquiring { "its download" } else { "its start" };
        let why = format!("{what} was cancelled by {by}");
        let started = row.state != ReplicaState::Acquiring;
        (row.not_taken, row.retry_at_unix_ms) = (None, None);
        (row.failed_job, row.cancelled_by) = (job.map(|job| job.id), Some(by));
        row.turn(ReplicaState::Failed, why.clone(), self.wall);
        let message = format!(
            "{} on {} is left alone: {why}; umbel ctl model load {} goes on",
            row.engine(),
            self.facts.name(&row.node),
            row.deployment
        );
        self.tell("replica_failed", row.engine(), Some(row.node), message, true);
        if started {
            self.order_unload(&mut row);
        }
        self.put(row);
    }

    /// Its job was cancelled, and somebody has asked for it since: what is left of it ends, and it is tried again at once.
    pub(super) fn asked_again(&mut self, mut row: ReplicaRow) {
        let started = row.state != ReplicaState::Acquiring;
        row.not_taken = None;
        row.failed_job = row.job.take().map(|job| job.id);
        row.retry_at_unix_ms = Some(self.wall);
        row.turn(ReplicaState::Failed, "it was cancelled, and is wanted again", self.wall);
        if started {
            self.order_unload(&mut row);
        }
        row.asked_at_unix_ms = None;
        self.put(row);
    }

    fn give_up(&mut self, row: &ReplicaRow) {
        let message = format!(
            "{} is given up: it would fail again where it was, and fits nowhere else; the cause is: {}",
            row.engine(),
            row.cause
        );
        self.tell("replica_given_up", row.engine(), Some(row.node), message, true);
    }

    pub(super) fn failed(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        if row.job.as_ref().is_some_and(|job| self.facts.pends(&job.id)) {
            return;
        }
        if self.is_back(deployment, &row) {
            (row.job, row.retry_at_unix_ms, row.failed_job) = (None, None, None);
            return self.watch(deployment, row);
        }
        // An end that failed is no end: while its node tells of the engine, that has what it had.
        let ended = row.job.as_ref().is_some_and(|job| *self.facts.job(&job.id) == JobFact::Done);
        let is_there = !ended && self.facts.engine(&row.node, &row.engine()).is_some();
        // Its place is free for others, and for itself, from the next round on: this one has read it as held.
        let job = row.job.take();
        let held = job.is_some() || !(is_there || row.gpus.is_empty());
        if let Some(job) = job.filter(|job| job.kind == JobKind::Unload) {
            // Asked again as an engine that nobody wants, if nobody does.
            self.state.strays.insert((row.node, row.engine()), (job.id, self.facts.now));
        }
        if !is_there {
            row.gpus.clear();
        }
        self.put(row.clone());
        if held {
            return;
        }
        let due = match row.retry_at_unix_ms {
            _ if row.cancelled_by.is_some() => false,
            Some(at) => self.is_due(at),
            None => row.ruled_out.len() < LASTING_MAX && self.looks_again(&row),
        };
        if due && !deployment.paused && !deployment.outdates(&row) && deployment.wanted() > 0 {
            self.retry(deployment, row);
        }
    }

    pub(super) fn is_only_asked(&self, row: &ReplicaRow) -> bool {
        self.state.rows.get(&row.deployment).is_some_and(DeploymentRow::is_only_asked)
    }

    /// Whether a server that nobody here starts answers again. It is left with its node, which asks it every 5 s as long as it
    /// has it: the pauses between starts are for what a start costs, and here they would only keep it from serving.
    fn is_back(&self, deployment: &DeploymentRow, row: &ReplicaRow) -> bool {
        let engine = self.facts.engine(&row.node, &row.engine());
        deployment.is_only_asked()
            && !deployment.outdates(row)
            && row.cancelled_by.is_none()
            && self.facts.standing(&row.node) == Standing::Here
            && engine.is_some_and(|engine| engine.state == EngineWord::Ready)
    }

    /// Whether a wait is over. What is stored farther ahead than anything waits was stored by a clock that was wrong.
    pub(super) fn is_due(&self, at_unix_ms: i64) -> bool {
        !(1..=RETRY_LAST_MS).contains(&at_unix_ms.saturating_sub(self.wall))
    }

    /// One that was given up: a node may have come that it was not tried on.
    fn looks_again(&mut self, row: &ReplicaRow) -> bool {
        let looked = self.state.looked.entry(row.key()).or_insert(self.facts.now);
        let due = self.facts.now.saturating_duration_since(*looked) >= LOOK;
        if due {
            *looked = self.facts.now;
        }
        due
    }

    /// Elsewhere if it fits there, else where it failed longest ago for what may be over.
    fn retry(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        let place = self.another_place(deployment, &row);
        self.note_nowhere(deployment, &row, place.is_some());
        match place {
            Some(place) => {
                (row.node, row.gpus) = (place.node, place.gpus);
                row.retry_at_unix_ms = None;
                row.restarts = deployment.restarts;
                self.bring_up(deployment, row);
            }
            None if row.ruled_out.is_empty() => {
                let look = i64::try_from(LOOK.as_millis()).unwrap_or(i64::MAX);
                row.retry_at_unix_ms = Some(self.wall.saturating_add(look));
                self.put(row);
            }
            None => {
                if row.retry_at_unix_ms.take().is_some() {
                    self.give_up(&row);
                }
                self.put(row);
            }
        }
    }

    /// Where it would not fit if it had never failed, that is what keeps it from coming up, and not what it failed for.
    fn note_nowhere(&mut self, deployment: &DeploymentRow, row: &ReplicaRow, has_place: bool) {
        let key = row.key();
        let anywhere = self.wanted(deployment, &key, BTreeSet::new(), BTreeMap::new());
        let why = if has_place { None } else { self.places.place(&anywhere).err() };
        match why {
            Some(why) => drop(self.state.nowhere.insert(key, why)),
            None => drop(self.state.nowhere.remove(&key)),
        }
    }

    fn another_place(&mut self, deployment: &DeploymentRow, row: &ReplicaRow) -> Option<Place> {
        let key = row.key();
        let mut failed: &[NodeId] = &row.avoid;
        loop {
            let told = |node: &NodeId| (*node, row.failed_on(node));
            let avoid: BTreeMap<NodeId, String> = failed.iter().chain(&row.ruled_out).map(told).collect();
            let wanted = self.wanted(deployment, &key, BTreeSet::new(), avoid);
            if let Ok(place) = self.places.place(&wanted) {
                self.places.take(&place, &wanted);
                return Some(place);
            }
            failed = failed.split_first()?.1;
        }
    }
}

/// The latest last.
fn remember(nodes: &mut Vec<NodeId>, node: NodeId) {
    nodes.retain(|known| *known != node);
    nodes.push(node);
    if nodes.len() > REMEMBERED {
        nodes.remove(0);
    }
}

pub(super) fn pause_after(failures: u32) -> i64 {
    let times = 3_i64.saturating_pow(failures.saturating_sub(1));
    RETRY_FIRST_MS.saturating_mul(times).min(RETRY_LAST_MS)
}
