//! How long durable transactions take, for metrics.
//!
//! Invariant: one is counted in exactly one bucket; reading never waits for writing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper ends of the buckets, in seconds: from a fast disk's sync to one that is in trouble.
pub const COMMIT_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

/// Durations of transactions so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitTimes {
    /// All of them together, in seconds.
    pub sum: f64,
    /// How many ended in each bucket, and at the end those that took longer. Not cumulative.
    pub counts: [u64; COMMIT_BUCKETS.len() + 1],
}

#[derive(Debug, Default)]
pub(crate) struct Times {
    nanoseconds: AtomicU64,
    counts: [AtomicU64; COMMIT_BUCKETS.len() + 1],
}

impl Times {
    pub(crate) fn took(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = COMMIT_BUCKETS.iter().position(|end| seconds <= *end).unwrap_or(COMMIT_BUCKETS.len());
        if let Some(count) = self.counts.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.nanoseconds.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> CommitTimes {
        let mut read = CommitTimes {
            sum: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64(),
            ..CommitTimes::default()
        };
        for (to, from) in read.counts.iter_mut().zip(&self.counts) {
            *to = from.load(Ordering::Relaxed);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_one_bucket() {
        let times = Times::default();
        for ms in [1, 3, 3, 60_000] {
            times.took(Duration::from_millis(ms));
        }
        let read = times.read();
        assert_eq!(read.counts, [1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert!((read.sum - 60.007).abs() < 1e-9, "{read:?}");
    }
}
