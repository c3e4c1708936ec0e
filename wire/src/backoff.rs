//! When to dial again: full jitter, a spread after a loss, and what a rejection asks for.
//!
//! Owns: the waiting time before each dial. Leaves to others: dialing, the clock, the random number (an
//! argument, so that a history can be replayed).
//! Invariant: a wait is never above [`LONGEST_HINTED`], and never below [`SHORTEST`] while dials keep failing, so a
//! peer that refuses at once is not dialed in a tight loop.

use std::time::Duration;

use crate::error::Code;

/// The lower end of every wait after a failed dial.
pub const SHORTEST: Duration = Duration::from_millis(200);
/// The upper end of the jitter after many failures: short enough that a site that returns is whole within half a minute.
pub const LONGEST: Duration = Duration::from_secs(30);
/// A connection that lived this long starts the next series from the beginning.
pub const HEALTHY: Duration = Duration::from_secs(60);
/// What a refusal that only a person can end waits: between this and three times as long.
pub const REFUSED: Duration = Duration::from_secs(60);
/// A peer's hint is followed up to here; a longer one would let a broken peer silence us.
pub const LONGEST_HINTED: Duration = Duration::from_secs(600);

/// The series of failures so far. One for each peer that is dialed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// A new series: the first failure waits at most twice [`SHORTEST`].
    #[must_use]
    pub const fn new() -> Self {
        Self { failures: 0 }
    }

    /// Failed attempts since the last healthy connection.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// A dial came to nothing (name, connect, TLS, or silence at hello): how long to wait.
    #[must_use = "the wait before the next dial"]
    pub fn failed(&mut self, random: u64) -> Duration {
        let ceiling = self.ceiling();
        self.failures = self.failures.saturating_add(1);
        between(SHORTEST, ceiling, random)
    }

    /// The peer answered with REJECT. Its hint is followed (with up to a quarter of jitter); without one, a refusal
    /// that only a person can end (revoked, disabled, unknown, decommissioned) waits minutes.
    #[must_use = "the wait before the next dial"]
    pub fn rejected(&mut self, code: Code, hint: Option<Duration>, random: u64) -> Duration {
        if let Some(hint) = hint.filter(|hint| !hint.is_zero()) {
            self.failures = self.failures.saturating_add(1);
            let hint = hint.clamp(SHORTEST, LONGEST_HINTED);
            return between(hint, hint + hint / 4, random).min(LONGEST_HINTED);
        }
        match code {
            Code::Unauthenticated | Code::PermissionDenied | Code::Gone => {
                self.failures = self.failures.saturating_add(1);
                between(REFUSED, REFUSED * 3, random)
            }
            _ => self.failed(random),
        }
    }

    /// A welcomed connection ended after `lived`. The first redial is uniform in `spread`, which the peer sizes by
    /// how many others lost it too. One that kept dying young goes on with its series, so that a peer that
    /// accepts and crashes is not hammered.
    #[must_use = "the wait before the next dial"]
    pub fn lost(&mut self, lived: Duration, spread: Duration, random: u64) -> Duration {
        if lived >= HEALTHY {
            self.failures = 0;
        }
        let ceiling = if self.failures == 0 { spread } else { spread.max(self.ceiling()) };
        self.failures = self.failures.saturating_add(1);
        between(Duration::ZERO, ceiling.min(LONGEST_HINTED), random)
    }

    /// The upper end of the next wait: doubles with each failure.
    fn ceiling(&self) -> Duration {
        let doublings = self.failures.saturating_add(1).min(16);
        SHORTEST.saturating_mul(1 << doublings).min(LONGEST)
    }
}

/// Uniform in `low..=high`.
fn between(low: Duration, high: Duration, random: u64) -> Duration {
    let width = high.saturating_sub(low);
    // Taking 32 random bits as a fraction keeps this exact enough for waits of minutes.
    low + width.mul_f64(f64::from((random >> 32) as u32) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    quickcheck::quickcheck! {
        fn a_wait_stays_in_its_bounds(randoms: Vec<u64>) -> bool {
            let mut backoff = Backoff::new();
            randoms.into_iter().all(|random| {
                let wait = backoff.failed(random);
                (SHORTEST..=LONGEST).contains(&wait)
            })
        }

        fn a_hint_is_never_undercut_nor_followed_for_ever(hint: Duration, random: u64) -> bool {
            let wait = Backoff::new().rejected(Code::Conflict, Some(hint), random);
            wait >= hint.min(LONGEST_HINTED).min(SHORTEST.max(hint)) && wait <= LONGEST_HINTED
        }

        fn the_first_redial_after_health_is_within_the_spread(spread_ms: u16, failures: u8, random: u64) -> bool {
            let mut backoff = Backoff::new();
            for _ in 0..failures {
                let _ = backoff.failed(random);
            }
            let spread = Duration::from_millis(u64::from(spread_ms));
            backoff.lost(HEALTHY, spread, random) <= spread && backoff.failures() == 1
        }
    }

    #[test]
    fn the_ceiling_grows_and_then_stands() {
        let mut backoff = Backoff::new();
        let waits: Vec<_> = (0..10).map(|_| backoff.failed(u64::MAX)).collect();
        assert_eq!(waits.first(), Some(&Duration::from_millis(400)));
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&LONGEST));
    }

    #[test]
    fn a_peer_that_accepts_and_crashes_is_dialed_ever_more_slowly() {
        let mut backoff = Backoff::new();
        let spread = Duration::from_millis(200);
        let first = backoff.lost(Duration::from_secs(1), spread, u64::MAX);
        let later = (0..10).map(|_| backoff.lost(Duration::from_secs(1), spread, u64::MAX)).last();
        assert_eq!((first, later), (spread, Some(LONGEST)));
    }

    #[test]
    fn what_only_a_person_can_end_waits_minutes() {
        for code in [Code::Unauthenticated, Code::PermissionDenied, Code::Gone] {
            assert!(Backoff::new().rejected(code, None, 0) >= REFUSED);
        }
        assert!(Backoff::new().rejected(Code::Unavailable, None, u64::MAX) < Duration::from_secs(1));
    }
}
