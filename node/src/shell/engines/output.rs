//! What an engine writes, for whoever follows it over its runs.
//!
//! Owns where a reader stands; leaves keeping lines to the holder and `core/tail`. Invariant: a reader who goes on from
//! where it was gets each line once, the last ones of a run that ended included, and is told of what it missed.

use std::sync::Arc;

use umbel_contracts::proto::node::EngineOutput;

use super::Engine;
use crate::shell::holder::Held;

/// Of a run's nonce so much stands in a cursor.
const RUN: usize = 16;

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
