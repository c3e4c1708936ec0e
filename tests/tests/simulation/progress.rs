//! Once nothing breaks any more, everybody gets on.

use std::time::Duration;

use super::history::Failure;
use super::world::World;

/// How long things go wrong.
const CHAOS: Duration = Duration::from_secs(220);
/// Longer than any pause before a dial: the longest hint with its jitter, a token's second try, and naming.
const REST: Duration = Duration::from_secs(1_800);

impl World {
    /// Things go wrong for a while.
    pub(crate) fn live(&mut self) -> Result<(), Box<Failure>> {
        self.run_until(CHAOS)
    }

    /// Everything is mended; all that was wanted has come about within the longest pause.
    pub(crate) fn settle_down(&mut self) -> Result<(), Box<Failure>> {
        self.tell("everything is mended");
        self.mend();
        self.people.rest();
        self.keepers.rest();
        self.crews.rest();
        let end = self.time + REST;
        while self.time < end {
            self.run_until((self.time + Duration::from_secs(30)).min(end))?;
            if self.waits_for().is_none() {
                break;
            }
        }
        self.allow_all();
        self.run_until(self.time + Duration::from_secs(60))?;
        if let Some(what) = self.waits_for() {
            return Err(self.history.failure("progress", what));
        }
        self.wishes_come_true()?;
        match self.trusts_too_many() {
            Some(what) => Err(self.history.failure("two authorities are trusted only in an overlap", what)),
            None => Ok(()),
        }
    }

    /// What is still not as it should be.
    fn waits_for(&self) -> Option<String> {
        let Some(edge) = &self.edge.process else { return Some("the edge does not run".to_owned()) };
        let view = edge.view(self.now(self.edge.clocks));
        for (number, host) in self.hosts.iter().enumerate().filter(|(_, host)| !host.copy) {
            let Some(node) = &host.process else { return Some(format!("node {number} does not run")) };
            let Some(id) = node.identity() else { return Some(format!("node {number} is nobody")) };
            let told = view.nodes.iter().find(|one| one.snapshot.node_id == id);
            let Some(told) = told else { return Some(format!("node {number} is unknown")) };
            if !told.snapshot.connected || told.state != "online" {
                return Some(format!(
                    "node {number} is {}, connected {}",
                    told.state, told.snapshot.connected
                ));
            }
            let config = told.snapshot.config.clone().unwrap_or_default();
            let has = config.desired_version == config.applied_version && !config.confirming;
            if !has && config.refused_version != config.desired_version {
                return Some(format!("node {number} lacks its settings: {config:?}"));
            }
            if node.generation() != told.owner {
                return Some(format!("node {number} believes in another generation"));
            }
        }
        if let Some(what) = self.keepers_wait_for().or_else(|| self.plane_waits_for()) {
            return Some(what);
        }
        if view.held.0 > 0 || !view.waiting.is_empty() {
            return Some(format!("{} leases held, {:?} wait", view.held.0, view.waiting));
        }
        (!self.people.is_idle()).then(|| "somebody waits for an answer".to_owned())
    }
}
