//! Keepers of the site's authority: they change it step by step, sometimes take a change back, sometimes leave nodes behind.
//!
//! They have chance of their own, so that the rest of a history hardly depends on them. Leaves judgement to `invariants`.

use std::collections::BTreeSet;
use std::time::Duration;

use umbel_contracts::operations::CaStep;
use umbel_edge::simulation::{AuthorityView, Operation, stored, token_names};

use super::luck::Luck;
use super::world::{Host, World};

/// Who they are, and what they know.
pub(crate) struct Keepers {
    pub(crate) next: Duration,
    luck: Luck,
    over: bool,
    unusable_until: Option<Duration>,
    /// Nodes that a refusal or a list named before a change ended all the same.
    pub(crate) left_behind: BTreeSet<String>,
    /// What was in force when it was last looked at.
    pub(crate) seen: Option<AuthorityView>,
    /// Taken back.
    pub(crate) aborted: BTreeSet<String>,
}

impl Keepers {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            next: Duration::from_secs(25),
            luck: Luck::new(seed ^ 0x00CA_00CA),
            over: false,
            unusable_until: None,
            left_behind: BTreeSet::new(),
            seen: None,
            aborted: BTreeSet::new(),
        }
    }

    /// Nothing new is begun; what was begun is brought to its end.
    pub(crate) fn rest(&mut self) {
        self.over = true;
    }

    /// The edge's store is an older one: it may go on from where that stood.
    pub(crate) fn restored(&mut self) {
        self.seen = None;
        self.aborted.clear();
    }
}

impl World {
    pub(crate) fn keepers_act(&mut self) {
        let wait = self.keepers.luck.between(1_000, 24_000);
        self.keepers.next = self.time + Duration::from_millis(wait);
        self.spoil_files();
        let Some(edge) = self.edge.process.as_ref().filter(|_| !self.edge.paused) else { return };
        let AuthorityView { phase, signing, .. } = edge.authority();
        let told = |host: &Host| {
            let node = host.process.as_ref()?;
            node.identity().filter(|_| node.trusts().contains(&signing))
        };
        let told: BTreeSet<_> = self.hosts.iter().filter_map(told).collect();
        self.keepers.left_behind.retain(|id| !told.contains(id));
        let over = self.keepers.over;
        let chance = self.keepers.luck.between(0, 12);
        let (step, leaves) = match (phase, chance) {
            ("settled", _) if over => return,
            (_, 0) if !over => {
                (*self.keepers.luck.pick(&[CaStep::Begin, CaStep::Finish, CaStep::Abort]), false)
            }
            ("settled", 1..=6) => (CaStep::Begin, false),
            ("begun", 1..=3) if !over => (CaStep::Abort, false),
            ("begun", _) => (CaStep::Switch, false),
            ("switched", 1) if !over => (CaStep::Finish, true),
            ("switched", _) => (CaStep::Finish, false),
            _ => return,
        };
        if over && step == CaStep::Finish {
            self.tidy_up(&signing);
        }
        self.ask(Operation::Authority(step, leaves), None);
    }

    // As the refusal says: tokens that name the old one are revoked; nodes that no host is any more are retired.
    fn tidy_up(&mut self, signing: &str) {
        let open: Vec<String> = stored(&mut self.edge.disk)
            .tokens
            .into_iter()
            .filter(|(_, claim, revoked)| claim.is_none() && !revoked)
            .map(|(id, ..)| id)
            .collect();
        for token in open {
            if token_names(&mut self.edge.disk, &token).is_some_and(|names| names != signing) {
                self.ask(Operation::RevokeToken(token), None);
            }
        }
        let lacking = self.edge.process.as_ref().map(|edge| edge.lacks_authority()).unwrap_or_default();
        for id in lacking {
            let is_there =
                |host: &Host| host.process.as_ref().and_then(|node| node.identity()).as_ref() == Some(&id);
            if !self.hosts.iter().filter(|host| !host.copy).any(is_there) {
                self.ask(Operation::Decommission(id), None);
            }
        }
    }

    /// A change ends although nodes lack the new one: the list of them was there to be read. It waits for none that is kept out,
    /// which a backup may let in again.
    pub(crate) fn leaves_behind(&mut self, operation: &Operation) {
        let (Operation::Authority(CaStep::Finish, leave), Some(edge)) = (operation, &self.edge.process)
        else {
            return;
        };
        self.keepers.left_behind.extend(edge.kept_out_lacks_authority());
        if *leave {
            self.keepers.left_behind.extend(edge.lacks_authority());
        }
    }

    // The directory of authorities cannot be used for a while.
    fn spoil_files(&mut self) {
        let now = self.time;
        let over = self.keepers.over || self.keepers.unusable_until.is_some_and(|until| until <= now);
        if over && self.keepers.unusable_until.take().is_some() {
            self.tell("the authorities' files can be used again");
            self.edge.authorities_unusable(false);
        }
        if !over && self.keepers.unusable_until.is_none() && self.keepers.luck.one_in(12) {
            let long = self.keepers.luck.between(100, 40_000);
            self.keepers.unusable_until = Some(now + Duration::from_millis(long));
            self.tell("the authorities' files cannot be used");
            self.edge.authorities_unusable(true);
        }
    }

    /// What of a change is not done yet, though nothing is broken.
    pub(crate) fn keepers_wait_for(&self) -> Option<String> {
        let view = self.edge.process.as_ref()?.authority();
        (view.phase != "settled").then(|| format!("a change of authority is {}", view.phase))
    }

    /// A node that trusts another one than the only one there is.
    pub(crate) fn trusts_too_many(&self) -> Option<String> {
        let view = self.edge.process.as_ref()?.authority();
        self.hosts.iter().enumerate().filter(|(_, host)| !host.copy).find_map(|(number, host)| {
            let trusts = host.process.as_ref()?.trusts();
            (trusts != view.trusted)
                .then(|| format!("node {number} trusts {trusts:?}, told is {:?}", view.trusted))
        })
    }
}
