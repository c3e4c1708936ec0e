//! The parts of a process that have no end of their own: which of them broke off, and which of them may not.
//!
//! Owns beginning anew what broke off, and what is known of it. Leaves to the daemon how it is told (a problem, its
//! health) and how it ends. Invariant: no part of a process is silently gone: it runs, it is named here, or the process
//! ends.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::clock::{self, Wall};
use crate::io::tasks::contained;

/// A part that broke is begun again after this; doubled each time it breaks at once, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a part that broke is begun again, and for how long one has to run to count as sound.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What became of the parts of one process. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Parts(Arc<Held>);

#[derive(Debug)]
struct Held {
    broken: Mutex<BTreeMap<&'static str, Broke>>,
    // Counts what broke, for whoever tells of it.
    changes: watch::Sender<u64>,
    over: watch::Sender<Option<&'static str>>,
}

#[derive(Clone, Copy, Debug)]
struct Broke {
    since: Wall,
    // When it was begun again; it is not while it waits, and never if the process ends for it.
    again: Option<Instant>,
}

/// A part that broke off and has not run long enough since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Its name, as the log has it.
    pub part: &'static str,
    /// When it broke off first.
    pub since: Wall,
}

impl Trouble {
    /// The code of the problem.
    pub const CODE: &'static str = "PART_BROKE";

    /// What is wrong and what to do, for people. `process`: "this edge".
    #[must_use]
    pub fn sentence(&self, process: &str) -> String {
        format!(
            "the part `{}` of {process} broke off by a defect of the program: its log says where; report that. It is begun \
             again, or {process} ends to be started anew; restart it if this stays",
            self.part
        )
    }
}

impl Default for Parts {
    fn default() -> Self {
        Self(Arc::new(Held {
            broken: Mutex::default(),
            changes: watch::Sender::new(0),
            over: watch::Sender::new(None),
        }))
    }
}

impl Parts {
    /// Runs a part that has no end of its own: one that panics is begun again after a pause. Returns when the part does.
    pub async fn kept<F: Future<Output = ()>>(self, part: &'static str, mut begin: impl FnMut() -> F) {
        let mut pause = FIRST_PAUSE;
        loop {
            let since = clock::now();
            // Made inside: also what only prepares it may break.
            let ended = contained(async { begin().await }).await;
            if ended.is_ok() {
                return;
            }
            if clock::now().saturating_duration_since(since) >= LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            self.broke(part);
            tracing::error!(
                part,
                again_in_ms = pause.as_millis(),
                "a part of this process broke off; it is begun again"
            );
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            if let Some(broke) = self.broken().get_mut(part) {
                broke.again = Some(clock::now());
            }
        }
    }

    /// Runs a part without which the process is of no use and that cannot be begun again. Its end is one only after
    /// `ends` was cancelled; any other ends the process: see [`Parts::over`].
    pub async fn vital(self, part: &'static str, ends: CancellationToken, work: impl Future<Output = ()>) {
        if contained(work).await.is_err() || !ends.is_cancelled() {
            self.ended(part);
        }
    }

    /// A part without which the process is of no use is gone.
    pub fn ended(&self, part: &'static str) {
        tracing::error!(part, "a part without which this process is of no use has ended");
        self.broke(part);
        self.0.over.send_if_modified(|over| {
            let first = over.is_none();
            over.get_or_insert(part);
            first
        });
    }

    /// Waits until the process has to end because a part of it did; its name.
    pub async fn over(&self) -> &'static str {
        let mut over = self.0.over.subscribe();
        let part = over.wait_for(Option::is_some).await.ok().and_then(|part| *part);
        match part {
            Some(part) => part,
            // The sender is held by this.
            None => std::future::pending().await,
        }
    }

    /// Parts that broke off and have not run for a minute since, by name.
    #[must_use]
    pub fn troubles(&self) -> Vec<Trouble> {
        let mut broken = self.broken();
        forget_mended(&mut broken);
        broken.iter().map(|(part, broke)| Trouble { part, since: broke.since }).collect()
    }

    /// Changes whenever a part breaks off.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    fn broke(&self, part: &'static str) {
        let since = Wall::now();
        let mut broken = self.broken();
        forget_mended(&mut broken);
        broken.entry(part).or_insert(Broke { since, again: None }).again = None;
        drop(broken);
        self.0.changes.send_modify(|count| *count += 1);
    }

    fn broken(&self) -> MutexGuard<'_, BTreeMap<&'static str, Broke>> {
        self.0.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has run for a while since it broke off is none of the troubles any more.
fn forget_mended(broken: &mut BTreeMap<&'static str, Broke>) {
    let now = clock::now();
    broken.retain(|_, broke| {
        broke.again.is_none_or(|again| now.saturating_duration_since(again) < LONGEST_PAUSE)
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::io::tasks::UnderWay;
    use std::sync::atomic::AtomicBool;

    fn names(parts: &Parts) -> Vec<&'static str> {
        parts.troubles().into_iter().map(|trouble| trouble.part).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_that_breaks_is_begun_again_named_and_its_mark_is_free() {
        let (parts, mark) = (Parts::default(), Arc::<AtomicBool>::default());
        let mut begun = 0;
        parts
            .clone()
            .kept("the part", || {
                begun += 1;
                let (turn, held) = (begun, UnderWay::take(&mark));
                let named = names(&parts);
                async move {
                    assert!(held.is_some(), "the one before has given it back");
                    assert_eq!(named.len(), usize::from(turn > 1), "it is named from its first break on");
                    if turn < 4 {
                        panic!("turn {turn}");
                    }
                }
            })
            .await;
        assert_eq!((begun, names(&parts)), (4, vec!["the part"]));
        assert!(parts.troubles()[0].sentence("this edge").contains("`the part` of this edge"));
        let held = UnderWay::take(&mark).unwrap();
        assert!(UnderWay::take(&mark).is_none());
        drop(held);
        assert!(UnderWay::take(&mark).is_some());
    }

    #[tokio::test]
    async fn a_part_that_may_not_end_ends_the_process_unless_it_was_asked_to() {
        let (parts, ends) = (Parts::default(), CancellationToken::new());
        let mut changes = parts.changes();
        ends.cancel();
        parts.clone().vital("asked", ends, async {}).await;
        assert!(names(&parts).is_empty() && !changes.has_changed().unwrap());
        parts.clone().vital("port", CancellationToken::new(), async {}).await;
        changes.changed().await.unwrap();
        // The first one is the reason.
        parts.clone().vital("thread", CancellationToken::new(), async { panic!("it breaks") }).await;
        assert_eq!(parts.over().await, "port");
        assert_eq!(names(&parts), ["port", "thread"]);
        // Also one that was asked to end and breaks off doing so.
        let (parts, ends) = (Parts::default(), CancellationToken::new());
        ends.cancel();
        parts.clone().vital("asked", ends, async { panic!("it breaks") }).await;
        assert_eq!(parts.over().await, "asked");
    }
}
