//! What a storage engine has to offer: ordered bytes in four spaces, and transactions.
//!
//! Owns the traits. Everything with a meaning (preconditions, positions, audit) is written once above
//! them, in [`crate::core`], so that every engine behaves the same.

/// A part of the file. Each has its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    /// Schema, owner, incarnation, marks.
    Meta,
    /// Table name, NUL, key -> position (8 bytes, big endian), value.
    Rows,
    /// Position (8 bytes, big endian) -> changed rows.
    Changes,
    /// Sequence (8 bytes, big endian) -> audit entry.
    Audit,
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

/// A storage engine, owned by the writer thread.
pub(crate) trait Backend: Send {
    /// Runs `work` and commits durably; on any failure nothing of it stays.
    fn write(&mut self, work: Work<'_>) -> Result<(), Failure>;
    /// Runs `look` on the last committed state.
    fn read(&mut self, look: Look<'_>) -> Result<(), Failure>;
    /// After a failure: opens anew, so that a disk with space again can be used.
    fn reopen(&mut self) -> Result<(), Failure>;
}
