//! One direction of a stream: bytes, and the absolute limit up to which they may flow.
//!
//! Knows nothing of frames. Invariants: the sender's `sent` never passes `limit`; the receiver's
//! `received - consumed` never passes its window; limits never decrease.

use bytes::{Buf, Bytes};

use crate::limits;

/// The peer sent beyond what it was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

/// The receiving side: what arrived and was not taken yet.
#[derive(Debug)]
pub(crate) struct Receiving {
    waiting: Vec<u8>,
    received: u64,
    consumed: u64,
    granted: u64,
    window: usize,
}

impl Receiving {
    /// An empty direction whose peer may send `window` bytes.
    pub(crate) fn new(window: usize) -> Self {
        Self { waiting: Vec::new(), received: 0, consumed: 0, granted: window as u64, window }
    }

    /// Takes what arrived. Copied, since a kept slice would pin the whole read buffer.
    ///
    /// # Errors
    /// If it was not granted; nothing is kept then.
    pub(crate) fn arrived(&mut self, bytes: &[u8], keep: bool) -> Result<(), Overrun> {
        self.received += bytes.len() as u64;
        if self.received > self.granted {
            return Err(Overrun);
        }
        if keep {
            self.reserve(bytes.len());
            self.waiting.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Doubles like a vector, but never beyond the window: that is what a stalled stream may cost.
    fn reserve(&mut self, more: usize) {
        let needed = self.waiting.len() + more;
        if needed > self.waiting.capacity() {
            let target = needed.max((self.waiting.capacity() * 2).min(self.window));
            self.waiting.reserve_exact(target - self.waiting.len());
        }
    }

    /// Bytes waiting.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Gives the application everything that waits, and the new limit if half a window was taken since the last.
    pub(crate) fn take(&mut self) -> (Vec<u8>, Option<u64>) {
        let bytes = std::mem::take(&mut self.waiting);
        self.consumed += bytes.len() as u64;
        let limit = self.consumed + self.window as u64;
        let grant = limit - self.granted >= self.window as u64 / 2;
        if grant {
            self.granted = limit;
        }
        (bytes, grant.then_some(limit))
    }

    /// Throws away what waits; nothing more is granted.
    pub(crate) fn discard(&mut self) {
        self.waiting = Vec::new();
    }

    /// The newest limit given.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }
}

/// The sending side: what the application gave and what was not written yet.
#[derive(Debug)]
pub(crate) struct Sending {
    body: Bytes,
    buffer: Vec<u8>,
    start: usize,
    sent: u64,
    limit: u64,
}

/// A buffer larger than this is given back once it is empty: many quiet streams must not hold it.
const KEPT: usize = 4096;

impl Sending {
    /// A direction that starts with `body` and may send `window` bytes at first.
    pub(crate) fn new(window: usize, body: Bytes) -> Self {
        Self { body, buffer: Vec::new(), start: 0, sent: 0, limit: window as u64 }
    }

    /// Bytes not written yet.
    pub(crate) fn waiting(&self) -> usize {
        self.body.len() + self.buffer.len() - self.start
    }

    /// Bytes the application may add now.
    pub(crate) fn space(&self) -> usize {
        if self.body.is_empty() { limits::SEND_BUFFER.saturating_sub(self.waiting()) } else { 0 }
    }

    /// Adds as much of `bytes` as there is space for; returns how much.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.space());
        if self.start > 0 && self.buffer.len() + count > self.buffer.capacity() {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes.get(..count).unwrap_or_default());
        count
    }

    /// Takes a newer limit; an older one changes nothing.
    pub(crate) fn credit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Bytes that may be written now.
    pub(crate) fn sendable(&self) -> usize {
        let credit = usize::try_from(self.limit - self.sent).unwrap_or(usize::MAX);
        self.waiting().min(credit)
    }

    /// Gives up to `max` sendable bytes to `write`, in one piece; returns how many.
    pub(crate) fn drain(&mut self, max: usize, write: impl FnOnce(&[u8])) -> usize {
        self.drain_with(max, |piece, _| write(piece))
    }

    /// The same; `write` also hears whether nothing waits after this piece.
    pub(crate) fn drain_with(&mut self, max: usize, write: impl FnOnce(&[u8], bool)) -> usize {
        let want = self.sendable().min(max);
        let waiting = self.waiting();
        let count;
        if self.body.is_empty() {
            let piece = self.buffer.get(self.start..self.start + want).unwrap_or_default();
            count = piece.len();
            write(piece, count == waiting);
            self.start += count;
        } else {
            let piece = self.body.get(..want.min(self.body.len())).unwrap_or_default();
            count = piece.len();
            write(piece, count == waiting);
            self.body.advance(count);
            if self.body.is_empty() {
                self.body = Bytes::new();
            }
        }
        if self.start == self.buffer.len() {
            self.start = 0;
            if self.buffer.capacity() > KEPT {
                self.buffer = Vec::new();
            } else {
                self.buffer.clear();
            }
        }
        self.sent += count as u64;
        count
    }

    /// Bytes that go ahead inside HEAD.
    pub(crate) fn sent_inline(&mut self, count: usize) {
        self.sent += count as u64;
    }

    /// Throws away what was not written.
    pub(crate) fn discard(&mut self) {
        self.body = Bytes::new();
        self.buffer = Vec::new();
        self.start = 0;
    }

    /// Bytes written so far, inline body included.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_when_half_was_taken() {
        let mut side = Receiving::new(100);
        assert_eq!(side.arrived(&[1; 49], true), Ok(()));
        assert_eq!(side.take(), (vec![1; 49], None));
        assert_eq!(side.arrived(&[2; 1], true), Ok(()));
        assert_eq!(side.take(), (vec![2; 1], Some(150)));
        assert_eq!(side.arrived(&[3; 101], true), Err(Overrun));
    }

    #[test]
    fn a_stalled_stream_costs_its_window() {
        let mut side = Receiving::new(limits::RESPONSE_WINDOW);
        for _ in 0..limits::RESPONSE_WINDOW / 256 {
            assert_eq!(side.arrived(&[1; 256], true), Ok(()));
        }
        assert!(side.waiting.capacity() <= limits::RESPONSE_WINDOW);
    }

    #[test]
    fn sends_body_then_buffer_up_to_the_limit() {
        let mut side = Sending::new(10, Bytes::from_static(b"abcdef"));
        assert_eq!(side.push(b"x"), 0);
        let mut out = Vec::new();
        assert_eq!(side.drain(4, |bytes| out.extend_from_slice(bytes)), 4);
        assert_eq!(side.drain(4, |bytes| out.extend_from_slice(bytes)), 2);
        assert_eq!(side.push(b"ghijkl"), 6);
        assert_eq!(side.sendable(), 4);
        assert_eq!(side.drain(9, |bytes| out.extend_from_slice(bytes)), 4);
        assert_eq!(side.drain(9, |_| ()), 0);
        side.credit(5);
        assert_eq!(side.sendable(), 0);
        side.credit(12);
        assert_eq!(side.drain(9, |bytes| out.extend_from_slice(bytes)), 2);
        assert_eq!(out, b"abcdefghijkl");
        assert_eq!((side.waiting(), side.sent()), (0, 12));
    }
}
