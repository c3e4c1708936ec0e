//! Changes of stored rows that took force while the store could not be written.
//!
//! Owns how many of a node's are not on disk yet. Leaves writing them, in their order, to the shell and the store.
//! Invariant: with none left, a row in memory is the one on disk.

use umbel_store::Position;
use umbel_wire::NodeId;

use super::Registry;
use super::node::NodeRow;

impl<H: Clone> Registry<H> {
    /// A change that could not be stored and takes force all the same; [`Registry::written`] follows. `false`: it is
    /// none, the row is so already.
    pub(crate) fn apply_in_memory(&mut self, id: NodeId, set: impl FnOnce(&mut NodeRow)) -> bool {
        let Some(mut row) = self.nodes.get(&id).map(|node| node.row.clone()) else { return false };
        set(&mut row);
        if self.nodes.get(&id).is_some_and(|node| node.row == row) {
            return false;
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            std::sync::Arc::make_mut(node).unwritten += 1;
        }
        self.set_row(id, row);
        true
    }

    /// A row as it stands on disk, read because a change met another one. With changes in memory only, memory is ahead.
    pub(crate) fn reread(&mut self, id: NodeId, row: NodeRow, position: Position) {
        if self.nodes.get(&id).is_some_and(|node| node.unwritten == 0) {
            self.apply(id, row, position);
        }
    }

    /// It will not be written: it holds until a restart.
    pub(crate) fn not_kept(&mut self, id: NodeId) {
        self.change(id, |node| node.unwritten = node.unwritten.saturating_sub(1));
    }

    /// One of the changes in memory is on disk, where the row stands so. With more of them to come, memory is ahead.
    pub(crate) fn written(&mut self, id: NodeId, row: NodeRow, position: Position) {
        self.not_kept(id);
        match self.nodes.get(&id).map(|node| node.unwritten) {
            Some(0) => self.apply(id, row, position),
            _ => self.change(id, |node| node.position = node.position.max(position)),
        }
    }
}
