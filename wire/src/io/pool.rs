//! Buffers that belong to the thread, so that an idle connection holds none.
//!
//! Invariant: at most `KEPT` of each kind are kept; more exist only while their connections hold them.

use std::cell::RefCell;

use crate::limits;

/// A read buffer, initialised once.
pub(crate) type Buffer = Box<[u8]>;

/// One thread reads and writes one connection at a time; a few more serve those whose write waits for the socket.
const KEPT: usize = 4;

thread_local! {
    static READ: RefCell<Vec<Buffer>> = const { RefCell::new(Vec::new()) };
    static BATCH: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A read buffer of `READ_BUFFER` bytes.
pub(crate) fn take() -> Buffer {
    READ.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; limits::READ_BUFFER].into_boxed_slice())
}

/// Gives a read buffer back.
pub(crate) fn give(buffer: Buffer) {
    READ.with_borrow_mut(|kept| {
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    });
}

/// An empty batch buffer.
pub(crate) fn take_batch() -> Vec<u8> {
    BATCH.with_borrow_mut(Vec::pop).unwrap_or_default()
}

/// Gives a batch buffer back.
pub(crate) fn give_batch(mut batch: Vec<u8>) {
    batch.clear();
    BATCH.with_borrow_mut(|kept| {
        if kept.len() < KEPT {
            kept.push(batch);
        }
    });
}
