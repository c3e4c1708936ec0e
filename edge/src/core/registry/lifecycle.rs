//! Stored rows as they come into force, and what follows: which keys are known, who is cut off, and what a tombstone leaves behind.
//!
//! Owns the index of keys and the eviction of connections. Leaves closing them to the shell. Invariant: no connection
//! that was let in under a row which people have ended since owns its node.

use std::sync::Arc;

use umbel_store::Position;
use umbel_wire::liveness::State;
use umbel_wire::{Code, Error, NodeId};

use super::node::{Lifecycle, NAME_MAX, Node, NodeRow, ReportRow};
use super::problems::{
    CERTIFICATE_ENDS, CERTIFICATE_EXPIRED, CLOCK_AHEAD, CLOCK_BEHIND, CREDENTIAL_EXPIRED, DUPLICATE_IDENTITY,
};
use super::{Call, Registry, judge};

/// Problems that go with a host's state directory and clock.
const OF_THE_HOST: [&str; 6] = [
    DUPLICATE_IDENTITY,
    CLOCK_BEHIND,
    CLOCK_AHEAD,
    CERTIFICATE_EXPIRED,
    CERTIFICATE_ENDS,
    CREDENTIAL_EXPIRED,
];

impl<H: Clone> Registry<H> {
    /// A stored node, at start-up or just enrolled.
    pub(crate) fn insert(&mut self, id: NodeId, row: NodeRow, position: Position, report: ReportRow) {
        self.index_keys(id, &row);
        self.name_changed(None, &row);
        if row.lifecycle == Lifecycle::Decommissioned {
            // A report that was written in the same moment counts no more.
            let last_seen_at_unix_ms = report.last_seen_at_unix_ms;
            let report = ReportRow { last_seen_at_unix_ms, ..ReportRow::default() };
            self.nodes.insert(id, Arc::new(Node::new(id, row, position, report)));
            return self.touch(id);
        }
        let seen = report.last_seen_at_unix_ms > 0;
        let mut node = Node::new(id, row, position, report);
        self.liveness.insert(id, seen);
        node.liveness = self.liveness.state(&id).unwrap_or(State::Never);
        node.settings.desired = self.targets.of(&id);
        node.lacks_authority = self.lacks(&node.report.trusts);
        let gpus = node.inventory().map(judge::uuids).unwrap_or_default();
        let reported = node.report.inventory.as_ref().map_or(0, |kept| kept.received_at_unix_ms);
        self.nodes.insert(id, Arc::new(node));
        self.claim_gpus(id, gpus, reported);
        self.declared_before(id);
    }

    /// A committed change of a stored row.
    pub(crate) fn apply(&mut self, id: NodeId, row: NodeRow, position: Position) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        // Commits of one row are ordered by their preconditions; their answers may still arrive crossed.
        if position <= node.position {
            return;
        }
        Arc::make_mut(node).position = position;
        self.set_row(id, row);
    }

    /// A committed claim gave the node another host, which trusts what its token named. What was wrong with the old host
    /// is no news of the new one; what it will say of itself comes with its hello.
    pub(crate) fn moved_host(&mut self, id: NodeId, row: NodeRow, position: Position, trusts: Vec<String>) {
        self.apply(id, row, position);
        let lacks = self.lacks(&trusts);
        // The new host's GPUs are others: the old ones are not missing.
        let gpus =
            self.nodes.get(&id).and_then(|node| node.inventory()).map(judge::uuids).unwrap_or_default();
        self.release_gpus(id, gpus.iter());
        self.change(id, |node| {
            node.report.inventory = None;
            node.report.telemetry = None;
            node.report.absent.clear();
            node.clock_skew_ms = None;
            node.problems.retain(|(code, _), _| !OF_THE_HOST.contains(code));
            node.report.trusts = trusts;
            node.lacks_authority = lacks;
        });
        self.unsaved.insert(id);
    }

    /// A row that is in force from now on, on disk or in memory only.
    pub(super) fn set_row(&mut self, id: NodeId, row: NodeRow) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let old = std::mem::replace(&mut Arc::make_mut(node).row, row.clone());
        for key in old.keys().filter(|key| row.key(key).is_none()) {
            self.keys.remove(&key);
        }
        self.index_keys(id, &row);
        self.name_changed(Some(&old), &row);
        if row.ends_connections_of(&old) {
            self.evict(id);
        }
        if row.lifecycle == Lifecycle::Decommissioned && old.lifecycle != Lifecycle::Decommissioned {
            self.bury(id);
        }
        self.touch(id);
    }

    /// All keys of a node lead to it, so that each can be refused with its own reason.
    pub(super) fn index_keys(&mut self, id: NodeId, row: &NodeRow) {
        self.keys.extend(row.keys().map(|key| (key, id)));
    }

    /// Connections to be closed as revoked, those of the last changes.
    pub(crate) fn take_evicted(&mut self) -> Vec<H> {
        std::mem::take(&mut self.evicted)
    }

    /// Whether a node may be called so. Tombstones' names are free.
    ///
    /// # Errors
    /// CONFLICT `NAME_TAKEN`.
    pub(crate) fn name_free(&self, id: NodeId, name: &str) -> Result<(), Error> {
        if !self.is_taken(id, name) {
            return Ok(());
        }
        let message =
            format!("another node of this site is called {name}; names tell people which one is meant");
        Err(Error::new(Code::Conflict, "NAME_TAKEN", message))
    }

    /// Keeps a free name for one node, until [`Registry::release_name`].
    ///
    /// # Errors
    /// As [`Registry::name_free`].
    pub(crate) fn reserve_name(&mut self, id: NodeId, name: &str) -> Result<(), Error> {
        self.name_free(id, name)?;
        self.reserved_names.insert(name.to_owned());
        Ok(())
    }

    /// The name for a node that comes in: as it is if that is free, else with the first number that makes it so.
    pub(crate) fn free_name(&self, id: NodeId, like: &str) -> String {
        let numbered = (2_u32..).map(|number| {
            let number = format!("-{number}");
            let kept = like.chars().take(NAME_MAX.saturating_sub(number.len())).collect::<String>();
            kept + &number
        });
        let mut names = std::iter::once(like.to_owned()).chain(numbered);
        names.find(|name| !self.is_taken(id, name)).unwrap_or_else(|| like.to_owned())
    }

    /// Whether another node is called so, or will be.
    fn is_taken(&self, id: NodeId, name: &str) -> bool {
        let own = self.nodes.get(&id).is_some_and(|node| !node.is_tombstone() && node.row.name == name);
        let others = self.names.get(name).copied().unwrap_or(0) > u32::from(own);
        others || self.reserved_names.contains(name)
    }

    // Counts what nodes are called: a site of ten thousand is not searched for each that comes in.
    fn name_changed(&mut self, before: Option<&NodeRow>, after: &NodeRow) {
        let lives = |row: &&NodeRow| row.lifecycle != Lifecycle::Decommissioned;
        if let Some(before) = before.filter(lives)
            && let Some(count) = self.names.get_mut(&before.name)
        {
            *count -= 1;
            if *count == 0 {
                self.names.remove(&before.name);
            }
        }
        if lives(&after) {
            *self.names.entry(after.name.clone()).or_default() += 1;
        }
    }

    /// [`Registry::free_name`], kept until [`Registry::release_name`].
    pub(crate) fn reserve_like(&mut self, id: NodeId, like: &str) -> String {
        let name = self.free_name(id, like);
        self.reserved_names.insert(name.clone());
        name
    }

    /// The node is called so, or it came to nothing.
    pub(crate) fn release_name(&mut self, name: &str) {
        self.reserved_names.remove(name);
    }

    // Whoever owns the node owns it no longer; its leases end.
    fn evict(&mut self, id: NodeId) {
        let Some(owner) = self.slots.evict(&id) else { return };
        self.disconnected(id, "its credential or the node itself was ended by an operator");
        // Enabled again at once it is one that has yet to come, not one that is here.
        if let Some(state) = self.liveness.cut_off(&id) {
            self.change(id, |node| node.liveness = state);
        }
        self.calls.push(Call::Lost { node: id, generation: owner.generation });
        self.evicted.push(owner.handle);
    }

    // Nothing of a tombstone counts, serves or is judged any more. Its keys stay known, to be refused.
    fn bury(&mut self, id: NodeId) {
        self.declare(id, Vec::new());
        let gpus =
            self.nodes.get(&id).and_then(|node| node.inventory()).map(judge::uuids).unwrap_or_default();
        self.release_gpus(id, gpus.iter());
        self.liveness.remove(&id);
        self.change(id, |node| {
            let last_seen_at_unix_ms = node.report.last_seen_at_unix_ms;
            node.report = ReportRow { last_seen_at_unix_ms, ..ReportRow::default() };
            node.engines.clear();
            node.clock_skew_ms = None;
            node.problems.clear();
            node.reported.clear();
        });
        self.unsaved.remove(&id);
    }
}
