//! Silence in an answer that flows: when a comment is due, when it is a stall, when it has lasted too long.
//!
//! Owns one timer an answer, which is touched when it fires and not with each piece, and the answer's own pace. Leaves what
//! is done then to [`super::relay`]. Invariant: an answer is told as standing still only if it was silent for much longer
//! than ever before, and of that silence once.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// How often a silent answer is looked at where comments are off.
const LOOK: Duration = Duration::from_secs(15);
/// Pieces after which an answer's pace is known.
const PACE_KNOWN: u32 = 8;
/// Silence of so many times the longest pause before it is a stall: a model that thinks, or whose request waits for memory,
/// pauses too.
const LONGER: u32 = 8;

/// What a silence has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// A comment keeps the client's connection alive.
    Comment,
    /// The answer stands still.
    Stall,
    /// It has lasted for the idle time.
    Idle,
}

/// How long nothing came.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// When the silence before this one began, and how many there were.
    last: Option<Instant>,
    pauses: u32,
    /// The longest time from the beginning of one to that of the next.
    longest: Duration,
    comments: u32,
    stalled: bool,
}

impl Quiet {
    /// A piece came. True if the answer stood still before.
    pub(super) fn ends(&mut self) -> bool {
        self.since = None;
        std::mem::take(&mut self.stalled)
    }

    fn began(&mut self) -> Instant {
        if let Some(since) = self.since {
            return since;
        }
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.longest = self.longest.max(now.duration_since(last));
        }
        self.pauses = self.pauses.saturating_add(1);
        self.comments = 0;
        *self.since.insert(now)
    }

    /// Silence of which length is a stall, where the pace is known; never less than `least`.
    fn patience(&self, least: Duration) -> Option<Duration> {
        (self.pauses > PACE_KNOWN && !self.stalled).then(|| least.max(self.longest.saturating_mul(LONGER)))
    }

    /// Resolves when the silence has come to something. `keepalive` is how often a comment is due; 0: never.
    pub(super) fn poll(
        &mut self,
        keepalive: Duration,
        stall: Duration,
        idle: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Due> {
        let since = self.began();
        let every = if keepalive.is_zero() { LOOK } else { keepalive };
        loop {
            let comment = every.saturating_mul(self.comments + 1);
            let patience = self.patience(stall);
            let next = comment.min(patience.unwrap_or(comment)).min(idle);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(since + next)));
            // One that is later than needed is of a silence that allowed more.
            if timer.deadline() > since + next {
                timer.as_mut().reset(since + next);
            }
            ready!(timer.as_mut().poll(cx));
            let quiet = Instant::now().duration_since(since);
            if quiet >= idle {
                return Poll::Ready(Due::Idle);
            }
            if patience.is_some_and(|patience| quiet >= patience) {
                self.stalled = true;
                return Poll::Ready(Due::Stall);
            }
            if quiet >= comment {
                self.comments += 1;
                let next = every.saturating_mul(self.comments + 1);
                timer.as_mut().reset(since + next.min(idle));
                if !keepalive.is_zero() {
                    return Poll::Ready(Due::Comment);
                }
            } else {
                // It was set in an earlier silence.
                timer.as_mut().reset(since + next);
            }
        }
    }
}
