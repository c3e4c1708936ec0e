//! What an engine writes, for whoever follows it over its runs.
//!
//! Owns where a reader stands; leaves keeping lines to the holder and `core/tail`. Invariant: a reader who goes on from
//! where it was gets each line once, the last ones of a run that ended included, and is told of what it missed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use umbel_contracts::proto::node::EngineOutput;

use super::Engine;
use crate::shell::holder::Held;

/// Of a run's nonce so much stands in a cursor.
const RUN: usize = 16;

/// Engines that are gone and whose last lines are kept; each has at most 32 KiB.
const GONE: usize = 16;

/// Last lines of engines that this node has no more, the newest last.
#[derive(Debug, Default)]
pub(super) struct Gone(Mutex<VecDeque<(String, Last)>>);

impl Gone {
    /// An engine goes.
    pub(super) fn keep(&self, engine: &str, last: Last) {
        if last.lines.is_empty() {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(name, _)| name != engine);
        kept.push_back((engine.to_owned(), last));
        if kept.len() > GONE {
            kept.pop_front();
        }
    }

    /// At most `lines` of what it wrote last, after the cursor.
    pub(super) fn of(&self, engine: &str, cursor: &str, lines: usize) -> Option<EngineOutput> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, last) = kept.iter().find(|(name, _)| name == engine)?;
        let stands = Cursor::parse(cursor);
        let after = stands.filter(|stands| stands.run == run_of(&last.nonce)).map(|stands| stands.line);
        let mut told = last.since(after, lines);
        told.gap |= stands.is_some() && after.is_none();
        Some(told)
    }
}

/// The last lines of the run before.
#[derive(Debug, Clone, Default)]
pub(super) struct Last {
    pub(super) nonce: String,
    pub(super) lines: Vec<String>,
    /// The number of the line after them.
    pub(super) next: u64,
}

/// Where a reader stands: at a line of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cursor<'a> {
    run: &'a str,
    line: u64,
}

impl<'a> Cursor<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (run, line) = text.split_once(':')?;
        Some(Self { run, line: line.parse().ok()? })
    }

    fn text(nonce: &str, line: u64) -> String {
        format!("{}:{line}", run_of(nonce))
    }
}

fn run_of(nonce: &str) -> &str {
    nonce.get(..RUN).unwrap_or(nonce)
}

impl Last {
    /// At most `most` lines from number `after` on, or the last ones.
    fn since(&self, after: Option<u64>, most: usize) -> EngineOutput {
        let first = self.next.saturating_sub(self.lines.len() as u64);
        let from = after.unwrap_or_else(|| self.next.saturating_sub(most as u64)).clamp(first, self.next);
        let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
        let lines: Vec<String> = self.lines.iter().skip(skipped).take(most).cloned().collect();
        let next = from + lines.len() as u64;
        let gap = after.is_some_and(|after| after < first);
        EngineOutput { lines, cursor: Cursor::text(&self.nonce, next), gap }
    }
}

impl Engine {
    /// At most `lines` lines of what it wrote after the cursor; without one the last ones.
    pub(crate) async fn output(&self, cursor: &str, lines: usize) -> EngineOutput {
        let (run, last) = {
            let shared = self.lock();
            (shared.run.clone(), shared.last.clone())
        };
        let stands = Cursor::parse(cursor);
        let is_at =
            |nonce: &str| stands.filter(|stands| stands.run == run_of(nonce)).map(|stands| stands.line);
        let rest = is_at(&last.nonce).map(|line| last.since(Some(line), lines));
        match (run, rest) {
            // First what it has not seen of the run before.
            (Some(_), Some(rest)) if !rest.lines.is_empty() => rest,
            (Some((nonce, held)), rest) => {
                let after = is_at(&nonce);
                // Who comes from another run begins with the first line of this one.
                let from = after.or(stands.map(|_| 0));
                let mut told = of_held(&nonce, &held, from, lines).await;
                told.gap |= stands.is_some() && after.is_none() && rest.is_none();
                told
            }
            (None, Some(rest)) => rest,
            (None, None) => {
                let mut told = last.since(None, lines);
                told.gap = stands.is_some();
                told
            }
        }
    }
}

async fn of_held(nonce: &str, held: &Arc<Held>, after: Option<u64>, lines: usize) -> EngineOutput {
    match held.output(after, lines).await {
        Some(told) => {
            EngineOutput { lines: told.lines, cursor: Cursor::text(nonce, told.next), gap: told.gap }
        }
        // It ends just now: the reader stays where it was.
        None => {
            EngineOutput { lines: Vec::new(), cursor: Cursor::text(nonce, after.unwrap_or(0)), gap: false }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_that_are_gone_are_read_by_name_and_bounded() {
        let gone = Gone::default();
        let last = |n: usize| Last { nonce: format!("{n:020}"), lines: vec![format!("line {n}")], next: 1 };
        for n in 0..=GONE {
            gone.keep(&format!("e{n}"), last(n));
        }
        gone.keep("e1", last(99));
        gone.keep("e2", Last::default());
        assert!(gone.of("e0", "", 9).is_none(), "the oldest went");
        assert_eq!(gone.of("e1", "", 9).unwrap().lines, ["line 99"], "the newest run of a name");
        let told = gone.of("e2", "", 9).unwrap();
        assert_eq!((told.lines.len(), told.gap), (1, false), "one that never ran says nothing new");
        assert!(gone.of("e2", &told.cursor, 9).unwrap().lines.is_empty());
        assert!(gone.of("e2", "another:0", 9).unwrap().gap);
    }

    #[test]
    fn the_run_before_is_read_to_its_end() {
        let last =
            Last { nonce: "0123456789abcdef0123".into(), lines: vec!["b".into(), "c".into()], next: 3 };
        let told = last.since(Some(2), 9);
        assert_eq!(
            (told.lines, told.cursor.as_str(), told.gap),
            (vec!["c".to_owned()], "0123456789abcdef:3", false)
        );
        assert!(last.since(Some(3), 9).lines.is_empty() && last.since(Some(0), 9).gap);
        assert_eq!(last.since(None, 1).lines, ["c"]);
        assert_eq!(Cursor::parse("ab:7"), Some(Cursor { run: "ab", line: 7 }));
        assert_eq!((Cursor::parse(""), Cursor::parse("ab:x")), (None, None));
    }
}
