//! Whether a download gets on, for those who wait for it and know another source of the same files.
//!
//! Owns what counts as getting on, and for how long it may not; leaves who takes over to the shell. Invariant: what goes to its
//! place is left alone.

use std::time::{Duration, Instant};

use super::{Progress, Stage};

/// A download that brings nothing for so long makes way for another source: longer than a healthy one needs between two bytes (a
/// redirect to a store and a handshake are a few seconds), and far shorter than the minutes until all tries have failed. What came
/// is gone on with, so that making way too soon costs little.
pub(crate) const STANDSTILL: Duration = Duration::from_secs(10);

/// When a download got on last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Headway {
    bytes: u64,
    since: Instant,
    /// All is here.
    done: bool,
}

impl Headway {
    pub(crate) fn new(now: Instant) -> Self {
        Self { bytes: 0, since: now, done: false }
    }

    /// It is so far now.
    pub(crate) fn seen(&mut self, progress: &Progress, now: Instant) {
        // A file that begins anew has fewer: from there on more is more.
        if progress.bytes_done > self.bytes {
            self.since = now;
        }
        self.bytes = progress.bytes_done;
        self.done = progress.stage == Stage::Promoting;
    }

    /// When it has stood still for too long, unless it gets on.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        (!self.done).then(|| self.since + STANDSTILL)
    }

    /// Whether it has.
    pub(crate) fn stands_still(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| deadline <= now)
    }
}
