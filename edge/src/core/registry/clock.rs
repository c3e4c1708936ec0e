//! Whether a report's own time may be believed.
//!
//! Owns the rule: the receiver's clock decides, the sender's is compared and its error shown.

/// A node's clock may be so far in the future.
pub(crate) const SKEW_ALLOWED_MS: i64 = 5 * 60 * 1_000;

/// What a report's `observed_at` says of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Newer than the last good one, and not in the future.
    Good,
    /// Older than the last good one of its stream, by so many milliseconds.
    Behind(i64),
    /// In the future, by so many milliseconds.
    Ahead(i64),
}

/// Judges a report with a higher sequence. `last_good` is 0 before the first.
pub(crate) fn judge(observed_at: i64, last_good: i64, received_at: i64) -> Verdict {
    let ahead = observed_at.saturating_sub(received_at);
    if ahead > SKEW_ALLOWED_MS {
        Verdict::Ahead(ahead)
    } else if observed_at < last_good {
        Verdict::Behind(last_good.saturating_sub(observed_at))
    } else {
        Verdict::Good
    }
}
