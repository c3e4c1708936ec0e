//! What a storage engine has to offer: ordered bytes in four spaces, transactions, and reads beside them.
//!
//! Owns the traits. Everything with a meaning (preconditions, positions, audit) is written once above
//! them, in [`crate::core`], so that every engine behaves the same.

use std::sync::Arc;

/// A part of the file. Each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    /// Schema, owner, incarnation, marks, the audit's two ends.
    Meta,
    /// Table name, NUL, key -> position (8 bytes, big endian), check (8 bytes), value.
    Rows,
    /// Position (8 bytes, big endian) -> changed rows.
    Changes,
    /// Sequence (8 bytes, big endian) -> audit entry.
    Audit,
}

impl Space {
    pub(crate) const ALL: [Self; 4] = [Self::Meta, Self::Rows, Self::Changes, Self::Audit];
}

/// Something that the engine could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) String);

/// A key and its value.
pub(crate) type Pair = (Vec<u8>, Vec<u8>);

/// Reads of one consistent state.
pub(crate) trait View {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure>;
    /// Pairs with `from <= key < to` in order; the last `limit` ones, newest first, if `newest_first`.
    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure>;
}

/// A transaction: reads see its own writes.
pub(crate) trait Transaction: View {
    fn put(&mut self, space: Space, key: &[u8], value: &[u8]) -> Result<(), Failure>;
    fn remove(&mut self, space: Space, key: &[u8]) -> Result<(), Failure>;
}

pub(crate) type Work<'a> = &'a mut dyn FnMut(&mut dyn Transaction) -> Result<(), Failure>;
pub(crate) type Look<'a> = &'a mut dyn FnMut(&dyn View) -> Result<(), Failure>;

/// Reads of the last committed state, from any thread, beside a write that is under way.
pub(crate) trait Reader: Send + Sync {
    fn read(&self, look: Look<'_>) -> Result<(), Failure>;
    /// Whether the engine may still be used: not after a panic inside it.
    fn is_sound(&self) -> bool {
        true
    }
}

/// A storage engine, owned by the writer thread.
pub(crate) trait Backend: Send {
    /// Runs `work` and commits durably; on any failure nothing of it stays.
    fn write(&mut self, work: Work<'_>) -> Result<(), Failure>;
    /// Reads of what is committed, for other threads.
    fn reader(&self) -> Arc<dyn Reader>;
    /// After a failed write: opens anew so that what is committed can be read, without writing anything.
    fn read_only(&mut self) -> Result<(), Failure>;
    /// After a failure: opens anew, so that a disk with space again can be used. What can be read stays readable.
    fn reopen(&mut self) -> Result<(), Failure>;
    /// Lets go of the file, after the reads under way.
    fn close(&mut self);
}
