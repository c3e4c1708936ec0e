//! The bytes of one read, in a buffer that belongs to the thread.
//!
//! Invariant: a connection that waits holds no buffer; at most [`KEPT`] unused ones are kept.

use std::cell::RefCell;

/// One read. Larger than any token; an answer without streaming needs a few.
const SIZE: usize = 16 * 1024;
/// One part is passed on at a time; more exist only while their streams wait for credit.
const KEPT: usize = 4;

thread_local! {
    static UNUSED: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// What one read gave; empty at the input's end. Dropping it gives the buffer back.
pub(crate) struct Part {
    buffer: Box<[u8]>,
    count: usize,
}

impl Part {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        let unused = UNUSED.with_borrow_mut(Vec::pop);
        Self { buffer: unused.unwrap_or_else(|| vec![0; SIZE].into_boxed_slice()), count: 0 }
    }

    /// All of the buffer.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// So many bytes are in it now.
    pub(super) fn filled(mut self, count: usize) -> Self {
        self.count = count.min(self.buffer.len());
        self
    }

    /// The input ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.buffer.get_mut(..self.count).unwrap_or_default()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        UNUSED.with_borrow_mut(|unused| {
            if unused.len() < KEPT {
                unused.push(buffer);
            }
        });
    }
}
