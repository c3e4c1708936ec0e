//! Whether a node's own time may be believed.
//!
//! Owns the rule: the receiver's clock decides, the sender's is compared and its error shown. Invariant: a verdict
//! depends on three times and nothing else, so a clock that is right again is believed again at once.

use std::time::Duration;

/// A node's clock may be so far from this edge's, unless the site's settings say otherwise.
pub(crate) const SKEW_ALLOWED: Duration = Duration::from_secs(5 * 60);

/// What is wrong with a node's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// In the future, by more than is allowed.
    Ahead,
    /// Too far in the past.
    Late,
    /// Older than the last report that counted, by so many milliseconds.
    WentBack(i64),
}

/// What a message's `observed_at` says of its sender's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Its values replace the last good ones: it is not older than those and not from the future.
    pub(crate) good: bool,
    pub(crate) wrong: Option<Wrong>,
    /// Ahead of this edge, in milliseconds; behind: negative.
    pub(crate) skew_ms: i64,
}

/// Judges a message with a higher sequence. `last_good` is 0 before the first; `observed_at` is 0 if it tells no time.
pub(crate) fn judge(observed_at: i64, last_good: i64, received_at: i64, allowed: Duration) -> Judged {
    let allowed = i64::try_from(allowed.as_millis()).unwrap_or(i64::MAX);
    let skew_ms = observed_at.saturating_sub(received_at);
    let wrong = if skew_ms > allowed {
        Some(Wrong::Ahead)
    } else if observed_at < last_good {
        Some(Wrong::WentBack(last_good.saturating_sub(observed_at)))
    } else if observed_at != 0 && skew_ms < allowed.saturating_neg() {
        Some(Wrong::Late)
    } else {
        None
    };
    let good = matches!(wrong, None | Some(Wrong::Late));
    Judged { good, wrong, skew_ms }
}

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;

    quickcheck! {
        /// Row 17: what replaces the last good state is never older than it and never from the future.
        fn good_is_neither_older_nor_from_the_future(observed: i64, last: i64, received: i64, allowed: u32) -> bool {
            let allowed = Duration::from_millis(allowed.into());
            let judged = judge(observed, last, received, allowed);
            let limit = received.saturating_add(i64::try_from(allowed.as_millis()).unwrap_or(i64::MAX));
            !judged.good || (observed >= last && observed <= limit)
        }

        /// A right clock is believed whatever was before, unless the last good one was ahead of it.
        fn a_right_clock_is_believed(received: u32, back: u16, last: u32) -> bool {
            let received = i64::from(received) + 1_000_000;
            let observed = received - i64::from(back % 1_000);
            let judged = judge(observed, i64::from(last).min(observed), received, SKEW_ALLOWED);
            judged.good && judged.wrong.is_none()
        }
    }
}
