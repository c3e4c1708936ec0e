//! The time by which deployments wait.
//!
//! Owns that it goes on. Leaves reading clocks to the shell. Invariant: it never goes back, not behind what is stored either, and
//! passes at least as fast as the monotonic clock: a wall clock that was ahead for a while, and then stands still until it is
//! true again, holds nothing up.

use std::time::Instant;

/// Wall time that does not stand still.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    last: Option<(Instant, i64)>,
}

impl Clock {
    /// Milliseconds since 1970, from both clocks of the host; `stored`: the latest that is stored, asked for once.
    pub(super) fn read(&mut self, now: Instant, wall: i64, stored: impl FnOnce() -> i64) -> i64 {
        let goes_on = match self.last {
            None => stored(),
            Some((then, last)) => {
                let passed = now.saturating_duration_since(then).as_millis();
                last.saturating_add(i64::try_from(passed).unwrap_or(i64::MAX))
            }
        };
        let read = wall.max(goes_on);
        self.last = Some((now, read));
        read
    }
}
