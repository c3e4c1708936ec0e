//! A server or site that does not answer while something is followed: part of what one follows, said once, tried again.
//!
//! Owns how long that may take and its one sentence. Leaves printing it to whoever follows. Invariants: a moment's silence is
//! not told; any other failure, and a silence without an end, ends the following.

use std::time::{Duration, Instant};

use crate::exit::{Exit, Failure, Outcome};

/// A server that is started anew is back before anybody wonders.
const MOMENT: Duration = Duration::from_secs(2);
/// Longer than an upgrade takes; a script that follows shall end at some time.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether those who are asked answer.
#[derive(Debug, Default)]
pub(crate) struct Away {
    since: Option<Instant>,
    told: bool,
}

impl Away {
    /// It answers.
    pub(crate) fn answers(&mut self) {
        *self = Self::default();
    }

    /// It was asked in vain. What is to be said of it now, if anything.
    ///
    /// # Errors
    /// A failure that another try does not mend, and this one when it has lasted too long.
    pub(crate) fn silent(&mut self, failure: Failure, now: Instant) -> Outcome<Option<String>> {
        let since = *self.since.get_or_insert(now);
        let lasts = now.saturating_duration_since(since);
        if !matches!(failure.exit(), Exit::Unreachable | Exit::TimedOut) || lasts > PATIENCE {
            return Err(failure);
        }
        let tell = lasts >= MOMENT && !std::mem::replace(&mut self.told, lasts >= MOMENT);
        Ok(tell.then(|| format!("-- no answer, trying again: {} --", failure.what())))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_silence_is_told_once_and_ends_the_following_at_last() {
        let (mut away, start) = (Away::default(), Instant::now());
        let gone = || Failure::new(Exit::Unreachable, "cp.sock: connection refused");
        assert_eq!(away.silent(gone(), start).unwrap(), None);
        let told = away.silent(gone(), start + MOMENT).unwrap().unwrap();
        assert_eq!(told, "-- no answer, trying again: cp.sock: connection refused --");
        assert_eq!(away.silent(gone(), start + MOMENT * 2).unwrap(), None);
        assert!(away.silent(gone(), start + PATIENCE + MOMENT).is_err());
        away.answers();
        assert_eq!(away.silent(gone(), start + PATIENCE).unwrap(), None, "another silence");
        assert!(away.silent(Failure::new(Exit::NotFound, "no such job"), start).is_err());
    }
}
