//! What the holder of one engine does about its engine's end, and the words between it and agents.
//!
//! Owns when SIGTERM and SIGKILL are due and when nothing is left; leaves processes, the socket and the record to
//! `shell/holder`. Invariant: once the end has begun it is gone on with, whether or not an agent is there, until nothing
//! of the engine is left.
//!
//! Holder and agent may be of different versions: to these words fields are only added.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::core::{process_tree::Born, supervisor::Exit, tail::Followed};

/// Between two rounds of SIGKILL: a process may have been born between the look and the kill.
const KILL_AGAIN: Duration = Duration::from_millis(500);
/// Nobody waits longer for an engine that was told to end.
const GRACE_MAX: Duration = Duration::from_secs(3600);
/// Longest line of either side. The longest is the instruction: an environment, and arguments.
pub(crate) const LINE_MAX: usize = 1024 * 1024;
/// Lines of output in one answer.
pub(crate) const LINES_MAX: usize = crate::core::tail::LINES;

/// What an agent asks of a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    /// How the engine stands. It is told unasked, too, whenever it changes.
    Standing,
    /// End the engine and all that descends from it: SIGTERM now, SIGKILL after the grace. Again with a shorter one: that
    /// one counts.
    End {
        /// Milliseconds from SIGTERM to SIGKILL; 0: SIGKILL now.
        grace_ms: u64,
    },
    /// Finished lines of output.
    Output {
        /// The number of the first one; the last ones if there is none.
        #[serde(default)]
        after: Option<u64>,
        /// At most so many.
        lines: usize,
    },
    /// Write the engine's record again, where none stands any more. Standing is told when that was tried.
    Record,
    /// The end was read: the holder may go.
    Release,
}

/// What a holder tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
pub(crate) enum Told {
    /// How the engine stands.
    Standing(Standing),
    /// Lines, without addresses.
    Output(Followed),
    /// There is no engine, and why.
    Refused {
        /// One sentence.
        why: String,
    },
}

/// How a held engine stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// The run that this is about.
    pub(crate) nonce: String,
    pub(crate) holder: Born,
    pub(crate) engine: Born,
    /// The engine's own process has ended.
    #[serde(default)]
    pub(crate) exit: Option<Exit>,
    /// Nothing that descends from it is left. The last lines of its output, at most 4 KiB.
    #[serde(default)]
    pub(crate) gone: Option<String>,
}

/// A signal to everything of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// How far the engine's end has come.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    exited: bool,
    gone: bool,
    terminated: bool,
    /// SIGKILL is due then.
    kill_at: Option<Instant>,
    killed_at: Option<Instant>,
}

impl Holding {
    /// Somebody wants its end.
    pub(crate) fn end(&mut self, now: Instant, grace: Duration) -> Option<Act> {
        if self.gone {
            return None;
        }
        let at = now + grace.min(GRACE_MAX);
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        match self.due(now) {
            None if !std::mem::replace(&mut self.terminated, true) => Some(Act::Terminate),
            act => act,
        }
    }

    /// Its own process has ended. What that left behind gets the rest of the grace if the end was asked for, and none if
    /// not: its parent is gone.
    pub(crate) fn exited(&mut self, now: Instant) -> Option<Act> {
        self.exited = true;
        self.kill_at.get_or_insert(now);
        self.due(now)
    }

    /// A look found so many processes of it.
    pub(crate) fn looked(&mut self, now: Instant, living: usize) -> Option<Act> {
        if living == 0 && self.exited {
            self.gone = true;
        }
        self.due(now)
    }

    fn due(&mut self, now: Instant) -> Option<Act> {
        let again = self.killed_at.is_none_or(|at| now.saturating_duration_since(at) >= KILL_AGAIN);
        if self.gone || !again || self.kill_at.is_none_or(|at| at > now) {
            return None;
        }
        self.killed_at = Some(now);
        Some(Act::Kill)
    }

    /// Its end has begun: it is looked for what is left.
    pub(crate) fn is_ending(&self) -> bool {
        self.kill_at.is_some() && !self.gone
    }

    /// Nothing of it is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::process_tree::{ProcessId, StartTime};

    const SECOND: Duration = Duration::from_secs(1);

    /// Row 82: SIGTERM, the grace, then SIGKILL again and again until nothing is left; only then is it gone.
    #[test]
    fn row_82_an_end_is_gone_on_with() {
        let (mut holding, now) = (Holding::default(), Instant::now());
        assert!(!holding.is_ending());
        assert_eq!(holding.end(now, 10 * SECOND), Some(Act::Terminate));
        assert_eq!(holding.end(now, 20 * SECOND), None, "SIGTERM once, and the shorter grace counts");
        assert_eq!(holding.exited(now + SECOND), None, "its children have the rest of the grace");
        assert_eq!(holding.looked(now + 9 * SECOND, 1), None);
        assert_eq!(holding.looked(now + 10 * SECOND, 1), Some(Act::Kill));
        assert_eq!(holding.looked(now + 10 * SECOND + KILL_AGAIN / 2, 1), None);
        assert_eq!(holding.looked(now + 11 * SECOND, 1), Some(Act::Kill));
        assert!(holding.is_ending());
        assert_eq!(holding.looked(now + 12 * SECOND, 0), None);
        assert!(holding.is_gone() && !holding.is_ending());
        assert_eq!(holding.end(now + 13 * SECOND, Duration::ZERO), None);
    }

    #[test]
    fn a_second_demand_shortens_the_grace() {
        let (mut holding, now) = (Holding::default(), Instant::now());
        assert_eq!(holding.end(now, 10 * SECOND), Some(Act::Terminate));
        assert_eq!(holding.end(now + SECOND, Duration::ZERO), Some(Act::Kill));
        // Everything is dead but the engine was not waited for yet.
        assert_eq!(holding.looked(now + SECOND, 0), None);
        assert!(!holding.is_gone());
        assert_eq!(holding.end(now, Duration::MAX), None, "a grace that no clock can hold");
    }

    /// What a crash leaves behind gets no grace.
    #[test]
    fn a_crash_takes_everything_along() {
        let (mut holding, now) = (Holding::default(), Instant::now());
        assert_eq!(holding.exited(now), Some(Act::Kill));
        assert_eq!(holding.looked(now, 2), None);
        assert_eq!(holding.looked(now + SECOND, 0), None);
        assert!(holding.is_gone());
    }

    /// An agent of another version may be at the other end: what it does not know it passes over.
    #[test]
    fn words_of_other_versions_are_read() {
        let born = Born { pid: ProcessId(7), start_time: StartTime(9) };
        let standing =
            Standing { nonce: "n".into(), holder: born, engine: born, exit: Some(Exit::Code(3)), gone: None };
        let line = serde_json::to_string(&Told::Standing(standing.clone())).unwrap();
        assert_eq!(
            line,
            r#"{"told":"standing","nonce":"n","holder":{"pid":7,"start_time":9},"engine":{"pid":7,"start_time":9},"exit":{"code":3},"gone":null}"#
        );
        let more = line.replace("\"exit\":{\"code\":3},\"gone\":null", "\"new\":[1]");
        assert_eq!(
            serde_json::from_str::<Told>(&more).unwrap(),
            Told::Standing(Standing { exit: None, ..standing })
        );
        assert_eq!(
            serde_json::from_str::<Ask>(r#"{"ask":"end","grace_ms":5}"#).unwrap(),
            Ask::End { grace_ms: 5 }
        );
    }
}
