//! What streams see of an engine that its health route does not tell: that nothing comes, or that all of it fails.
//!
//! Owns the counts of one run and what they mean; leaves counting to the relay, and what follows to the supervisor.
//! Invariant: what a caller did wrong, or a client that left, says nothing against an engine.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// After so many failed answers in a row, with none between that was well, the engine is asked something itself.
const FAILURES: u32 = 5;

/// How an answer ended, as far as it says something about its engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It answered as it should.
    Well,
    /// It failed by its own fault.
    Failed,
    /// Nothing can be said.
    Open,
}

impl Verdict {
    /// Of a whole answer with this status.
    pub(crate) fn of_status(status: u16) -> Self {
        match status {
            200..=399 => Self::Well,
            // Too busy is no fault, and 501 is an honest answer.
            500 | 502 | 504..=599 => Self::Failed,
            _ => Self::Open,
        }
    }
}

/// The counts of one run of an engine.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Streams that wait for bytes of it now.
    waiting: AtomicU32,
    /// Reads that brought some.
    brought: AtomicU64,
    /// Failed answers since the last good one.
    failed: AtomicU32,
    suspected: Notify,
}

/// A stream that waits; dropped, it does not any more.
pub(crate) struct Waiting<'a>(&'a Traffic);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Traffic {
    /// A stream waits for its engine; not while it waits for its client.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self)
    }

    /// Bytes came.
    pub(crate) fn brought(&self) {
        self.brought.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer ended.
    pub(crate) fn ended(&self, verdict: Verdict) {
        match verdict {
            Verdict::Well => self.failed.store(0, Ordering::Relaxed),
            Verdict::Failed => {
                if self.failed.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
                    self.suspected.notify_one();
                }
            }
            Verdict::Open => {}
        }
    }

    /// Waits until the engine is to be asked; how many answers failed in a row.
    pub(crate) async fn suspected(&self) -> u32 {
        loop {
            self.suspected.notified().await;
            let failed = self.failed.load(Ordering::Relaxed);
            if failed >= FAILURES {
                return failed;
            }
        }
    }

    /// It was asked, and is well.
    pub(crate) fn acquitted(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }
}

/// Whether anything comes while something is waited for.
#[derive(Debug, Default)]
pub(crate) struct Stall {
    brought: u64,
    since: Option<Instant>,
}

impl Stall {
    /// A look at the counts, now and then; how long at least nothing has come to streams that wait.
    pub(crate) fn look(&mut self, now: Instant, traffic: &Traffic) -> Duration {
        let brought = traffic.brought.load(Ordering::Relaxed);
        let waits = traffic.waiting.load(Ordering::Relaxed) > 0;
        if !waits || brought != self.brought {
            (self.brought, self.since) = (brought, None);
        }
        if !waits {
            return Duration::ZERO;
        }
        now.saturating_duration_since(*self.since.get_or_insert(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 90: only failures in a row count, and callers' mistakes not at all.
    #[tokio::test]
    async fn row_90_failures_in_a_row_are_suspicious() {
        let traffic = Traffic::default();
        for status in [500, 502, 504, 599, 400, 429, 503, 500] {
            assert!(traffic.failed.load(Ordering::Relaxed) < FAILURES);
            traffic.ended(Verdict::of_status(status));
        }
        assert_eq!(traffic.suspected().await, FAILURES);
        traffic.acquitted();
        for status in [500, 500, 500, 500, 200, 500] {
            traffic.ended(Verdict::of_status(status));
        }
        let waited = tokio::time::timeout(Duration::from_millis(1), traffic.suspected()).await;
        assert!(waited.is_err(), "a good answer between");
    }

    #[test]
    fn a_stall_is_waiting_without_bytes() {
        let (traffic, mut stall, now) = (Traffic::default(), Stall::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(stall.look(at(0), &traffic), Duration::ZERO);
        let waiting = traffic.wait();
        assert_eq!(stall.look(at(5), &traffic), Duration::ZERO);
        assert_eq!(stall.look(at(15), &traffic), Duration::from_secs(10));
        traffic.brought();
        assert_eq!(stall.look(at(20), &traffic), Duration::ZERO);
        assert_eq!(stall.look(at(25), &traffic), Duration::from_secs(5));
        drop(waiting);
        assert_eq!(stall.look(at(30), &traffic), Duration::ZERO, "nobody waits");
        let _waiting = traffic.wait();
        assert_eq!(stall.look(at(90), &traffic), Duration::ZERO);
    }
}
