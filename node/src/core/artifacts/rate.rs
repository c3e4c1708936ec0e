//! How fast bytes came in the last seconds.
//!
//! Invariant: constant memory, and a figure that follows a change within [`SPAN`].

use std::time::{Duration, Instant};

/// What the figure looks back on.
const SPAN: Duration = Duration::from_secs(5);
/// Marks within it.
const MARKS: usize = 10;

/// Counts bytes and remembers a mark every half second.
#[derive(Debug)]
pub(crate) struct Rate {
    total: u64,
    marks: [(Option<Instant>, u64); MARKS],
    next: usize,
}

impl Rate {
    pub(crate) fn new(now: Instant) -> Self {
        let mut marks = [(None, 0); MARKS];
        if let Some(first) = marks.first_mut() {
            *first = (Some(now), 0);
        }
        Self { total: 0, marks, next: 1 }
    }

    /// So many bytes came.
    pub(crate) fn count(&mut self, bytes: u64, now: Instant) {
        self.total += bytes;
        let last = self.marks.get((self.next + MARKS - 1) % MARKS).and_then(|(at, _)| *at);
        let step = SPAN / MARKS as u32;
        if last.is_none_or(|at| now.saturating_duration_since(at) >= step)
            && let Some(mark) = self.marks.get_mut(self.next)
        {
            *mark = (Some(now), self.total);
            self.next = (self.next + 1) % MARKS;
        }
    }

    /// Bytes a second.
    pub(crate) fn per_second(&self, now: Instant) -> u64 {
        let recent = self.marks.iter().filter_map(|(at, total)| at.map(|at| (at, *total)));
        // The last span only; where all marks are older, nothing came since.
        let oldest = recent
            .filter(|(at, _)| now.saturating_duration_since(*at) <= SPAN + SPAN / MARKS as u32)
            .min_by_key(|(at, _)| *at);
        let Some((at, total)) = oldest else { return 0 };
        let millis = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX).max(1);
        (self.total - total).saturating_mul(1000) / millis
    }
}
