//! The only place where this crate reads a clock. Cores take the time as an argument.
//!
//! Invariant: what decides anything is monotonic (`std::time::Instant`); `Wall` is only for certificates and
//! records.

use std::ops::Add;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Reads the monotonic clock; the runtime's, so that a paused test clock is obeyed.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A point on the wall clock: milliseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wall(pub i64);

impl Wall {
    /// Reads the system's clock.
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub const fn unix_ms(self) -> i64 {
        self.0
    }
}

impl Add<Duration> for Wall {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
    }
}
