//! What follows from a changed row: which keys are known, who is cut off, and what a tombstone leaves behind.
//!
//! Owns the index of keys and the eviction of connections. Leaves closing them to the shell. Invariant: no connection
//! that was let in under a row which people have ended since owns its node.

use std::sync::Arc;

use umbel_contracts::proto::node::NodeInventory;
use umbel_wire::{Code, Error, NodeId};

use super::node::{Lifecycle, Node, NodeRow};
use super::{Call, Registry, ReportRow};

impl<H: Clone> Registry<H> {
    /// A row that is in force from now on, on disk or in memory only.
    pub(super) fn set_row(&mut self, id: NodeId, row: NodeRow) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let old = std::mem::replace(&mut Arc::make_mut(node).row, row.clone());
        for key in old.keys().filter(|key| row.key(key).is_none()) {
            self.keys.remove(&key);
        }
        self.index_keys(id, &row);
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
        let taken = |node: &Arc<Node>| node.id != id && !node.is_tombstone() && node.row.name == name;
        if !self.reserved_names.contains(name) && !self.nodes.values().any(taken) {
            return Ok(());
        }
        let message =
            format!("another node of this site is called {name}; names tell people which one is meant");
        Err(Error::new(Code::Conflict, "NAME_TAKEN", message))
    }

    /// Keeps a free name for one rename, until [`Registry::release_name`].
    ///
    /// # Errors
    /// As [`Registry::name_free`].
    pub(crate) fn reserve_name(&mut self, id: NodeId, name: &str) -> Result<(), Error> {
        self.name_free(id, name)?;
        self.reserved_names.insert(name.to_owned());
        Ok(())
    }

    /// The rename is done, or came to nothing.
    pub(crate) fn release_name(&mut self, name: &str) {
        self.reserved_names.remove(name);
    }

    // Whoever owns the node owns it no longer; its leases end.
    fn evict(&mut self, id: NodeId) {
        let Some(owner) = self.slots.evict(&id) else { return };
        self.disconnected(id, "its credential or the node itself was ended by an operator");
        self.calls.push(Call::Lost { node: id, generation: owner.generation });
        self.evicted.push(owner.handle);
    }

    // Nothing of a tombstone counts, serves or is judged any more. Its keys stay known, to be refused.
    fn bury(&mut self, id: NodeId) {
        self.declare(id, Vec::new());
        self.judge_hardware(id, &NodeInventory::default(), 0);
        self.liveness.remove(&id);
        self.change(id, |node| {
            node.report = ReportRow::default();
            node.engines.clear();
            node.inventory = None;
            node.telemetry = None;
            node.problems.clear();
            node.reported.clear();
        });
        self.unsaved.remove(&id);
    }
}
