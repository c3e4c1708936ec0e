//! Lines of a log that say the same again and again: the first of a minute is told, with how many before it were not.
//!
//! Pure. Owns which lines are told. Leaves the words to whoever logs. Invariants: each line is told or counted in a
//! later one of its kind; what is remembered is bounded, whatever arrives.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

use crate::limits::{GUESS_WINDOW, GUESSERS_MAX};

/// What was told lately, by kind: for refusals where it came from and why.
#[derive(Debug)]
pub struct Repeats<K> {
    seen: HashMap<K, (u64, Instant)>,
    /// Of kinds that found no room.
    others: u64,
}

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        Self { seen: HashMap::new(), others: 0 }
    }
}

impl<K: Eq + Hash + Clone> Repeats<K> {
    /// Whether a line of this kind is to be told now, and how many like it were not since the last one.
    #[must_use]
    pub fn tell(&mut self, kind: K, now: Instant) -> Option<u64> {
        if let Some((untold, ends)) = self.seen.get_mut(&kind) {
            if *ends > now {
                *untold += 1;
                return None;
            }
            *ends = now + GUESS_WINDOW;
            return Some(std::mem::take(untold));
        }
        if self.seen.len() >= GUESSERS_MAX {
            let others = &mut self.others;
            self.seen.retain(|_, (untold, ends)| {
                if *ends <= now {
                    *others += *untold;
                }
                *ends > now
            });
        }
        if self.seen.len() >= GUESSERS_MAX {
            // More kinds than anybody could read in a minute.
            self.others += 1;
            return None;
        }
        self.seen.insert(kind, (0, now + GUESS_WINDOW));
        Some(std::mem::take(&mut self.others))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::*;

    /// Row 108: a line a minute of each kind, every other one is counted, and the kinds are bounded.
    #[test]
    fn row_108_repeats_are_told_once_a_minute_with_their_number() {
        let mut repeats = Repeats::default();
        let now = Instant::now();
        let told: Vec<_> = (0..1_000).filter_map(|_| repeats.tell("a", now)).collect();
        assert_eq!(told, [0]);
        assert_eq!(repeats.tell("b", now), Some(0), "another kind is told at once");
        assert_eq!(repeats.tell("a", now + GUESS_WINDOW), Some(999));

        let mut flood = Repeats::default();
        let number = |at: u64| now + Duration::from_millis(at / 1_000);
        let told: u64 =
            (0..100_000u64).filter_map(|at| flood.tell(at, number(at))).map(|more| more + 1).sum();
        assert!(flood.seen.len() <= GUESSERS_MAX && told == GUESSERS_MAX as u64);
        let rest = flood.tell(0, now + 2 * GUESS_WINDOW).unwrap()
            + flood.tell(u64::MAX, now + 2 * GUESS_WINDOW).unwrap();
        assert_eq!(told + rest, 100_000, "each is told or counted");
    }
}
