//! One report stream of one node: which numbers count, and how many may come.
//!
//! Owns the account of what was refused and what never came. The cursor itself stands in the node's row, since it outlives
//! this process. Invariant: the cursor only grows; a number counts at most once; a gap is counted once.

use std::time::{Duration, Instant};

use umbel_wire::{Code, Error};

/// On the average one report a second and stream.
const INTERVAL: Duration = Duration::from_secs(1);
/// Two may come close together: the network bunches what was sent a second apart.
const AHEAD: Duration = Duration::from_secs(1);
/// Numbers above this are no counter's: JSON and every language's numbers hold what is below.
const HIGHEST: u64 = 1 << 53;

/// What arrived since this process started, but for the cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stream {
    /// The time that the reports so far have used up.
    used_until: Option<Instant>,
    /// Replayed, or too many.
    pub(crate) refused: u64,
    /// Numbers that never arrived.
    pub(crate) missed: u64,
}

impl Stream {
    /// A report with this number arrived. It moves the cursor also if it is one too many, so that it is not missed.
    ///
    /// # Errors
    /// CONFLICT `REPLAYED`; RESOURCE_EXHAUSTED `TOO_MANY_REPORTS`; INVALID_ARGUMENT for what is no counter.
    pub(crate) fn arrives(&mut self, cursor: &mut u64, sequence: u64, now: Instant) -> Result<(), Error> {
        if sequence > HIGHEST {
            self.refused += 1;
            let message = "a sequence above 2^53 is no counter's; the agent is broken";
            return Err(Error::new(Code::InvalidArgument, "SEQUENCE", message));
        }
        let stored = *cursor;
        if sequence <= stored {
            self.refused += 1;
            let message =
                format!("sequence {sequence} is not above {stored}, which was taken; go on above it");
            return Err(Error::new(Code::Conflict, "REPLAYED", message));
        }
        self.missed = self.missed.saturating_add(sequence - stored - 1);
        *cursor = sequence;
        let used = self.used_until.unwrap_or(now).max(now);
        if used > now + AHEAD {
            self.refused += 1;
            let message = "an edge takes one report a second of each kind; this one is dropped";
            return Err(Error::new(Code::ResourceExhausted, "TOO_MANY_REPORTS", message));
        }
        self.used_until = Some(used + INTERVAL);
        Ok(())
    }
}

/// A hello names its node's counters: what it may have sent in vain is not missed.
pub(crate) fn greet(cursor: &mut u64, sequence: u64) {
    *cursor = (*cursor).max(sequence.min(HIGHEST));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn reason(error: &Error) -> &str {
        &error.reason
    }

    /// Row 73: repeated and reordered numbers are refused and counted, a gap is counted once, the newest stands.
    #[test]
    fn numbers_count_once_and_gaps_are_counted_once() {
        let mut now = Instant::now();
        let (mut stream, mut cursor) = (Stream::default(), 0);
        greet(&mut cursor, 1_024);
        for (sequence, taken) in [(1_025, true), (1_025, false), (1_029, true), (1_027, false), (1_030, true)]
        {
            now += INTERVAL;
            let result = stream.arrives(&mut cursor, sequence, now);
            assert_eq!(result.is_ok(), taken, "{sequence}: {result:?}");
            if let Err(error) = result {
                assert_eq!((reason(&error), error.code), ("REPLAYED", Code::Conflict));
            }
        }
        assert_eq!((cursor, stream.refused, stream.missed), (1_030, 2, 3));
        // A node that lost its counter goes on above the answered cursor; its first report counts.
        greet(&mut cursor, 7);
        assert_eq!(cursor, 1_030);
        now += INTERVAL;
        stream.arrives(&mut cursor, 1_031, now).unwrap();
    }

    /// Row 16: what a paused agent replays in a burst is dropped but for what a second holds.
    #[test]
    fn one_report_a_second_is_taken() {
        let start = Instant::now();
        let (mut stream, mut cursor) = (Stream::default(), 0);
        let taken =
            (1..=120).filter(|sequence| stream.arrives(&mut cursor, *sequence, start).is_ok()).count();
        assert_eq!((taken, stream.refused, stream.missed, cursor), (2, 118, 0, 120));
        let mut now = start;
        let mut later = 0;
        for sequence in 121..=320 {
            now += Duration::from_millis(100);
            later += usize::from(stream.arrives(&mut cursor, sequence, now).is_ok());
        }
        assert!((19..=21).contains(&later), "{later} in twenty seconds");
        // One a second with jitter loses none.
        now += INTERVAL * 2;
        let before = stream.refused;
        for (step, sequence) in (321..=420).enumerate() {
            now += Duration::from_millis(if step % 2 == 0 { 700 } else { 1_300 });
            stream.arrives(&mut cursor, sequence, now).unwrap();
        }
        assert_eq!(stream.refused, before);
    }

    #[test]
    fn a_number_that_is_no_counter_leaves_the_cursor() {
        let (mut stream, mut cursor) = (Stream::default(), 5);
        let error = stream.arrives(&mut cursor, u64::MAX, Instant::now()).unwrap_err();
        assert_eq!((reason(&error), cursor, stream.missed), ("SEQUENCE", 5, 0));
    }
}
