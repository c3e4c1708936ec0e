//! All deadlines of a session in one table, so that it has one next deadline.
//!
//! Invariant: an entry stands here exactly as long as its owner remembers the instant it was entered with.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::session::table::Key;

/// Whose deadline it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A request of this side.
    CallOut(Key),
    /// A request of the peer.
    CallIn(Key),
    /// A stream's own timeout.
    Stream(Key),
    /// Data of a stream that nobody takes.
    Slow(Key),
}

/// Deadlines in order.
#[derive(Debug, Default)]
pub(crate) struct Timers(BTreeSet<(Instant, Timer)>);

impl Timers {
    /// Enters a deadline.
    pub(crate) fn add(&mut self, at: Instant, timer: Timer) {
        self.0.insert((at, timer));
    }

    /// Takes a deadline out.
    pub(crate) fn remove(&mut self, at: Instant, timer: Timer) {
        self.0.remove(&(at, timer));
    }

    /// The earliest one.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.first().map(|(at, _)| *at)
    }

    /// Takes out one that has passed.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<Timer> {
        if self.next()? <= now { self.0.pop_first().map(|(_, timer)| timer) } else { None }
    }

    /// Takes out all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
