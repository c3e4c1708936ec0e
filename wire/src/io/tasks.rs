//! Tasks that panic: what is left of them is told to whoever waits for it, and parts that must always run run again.
//!
//! A panic is a defect, and the hook has told where it was; here is what becomes of the state that the task held.
//! Owns catching it. Leaves what it means to the caller. Invariant: a part that keeps something for ever is never
//! silently gone, and a mark that says that something is under way never outlives it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;

use crate::clock;
use crate::close::CloseReason;
use crate::error::{Code, Error};
use crate::io::handle::Connection;

/// A part that broke is begun again after this; doubled each time it breaks at once, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause before a part that broke is begun again.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A task broke off in a panic: what it was about has no outcome, or one that nobody knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task of this process broke off; its log says where")]
pub struct Broken;

impl From<Broken> for Error {
    fn from(broken: Broken) -> Self {
        Self::new(Code::Internal, "INTERNAL", broken.to_string())
    }
}

/// Runs work to its end or to its panic. The caller settles what the work leaves behind: locks may be poisoned, and
/// changes half made are as they are.
///
/// # Errors
/// It panicked.
pub async fn contained<T>(work: impl Future<Output = T>) -> Result<T, Broken> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| Broken)
}

/// The same for work that waits for nothing.
///
/// # Errors
/// It panicked.
pub fn contained_now<T>(work: impl FnOnce() -> T) -> Result<T, Broken> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_| Broken)
}

/// Runs a part of the process that has no end of its own: one that panics is begun again after a pause. Returns when
/// the part does.
pub async fn kept<F: Future<Output = ()>>(part: &'static str, mut begin: impl FnMut() -> F) {
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
        tracing::error!(
            part,
            again_in_ms = pause.as_millis(),
            "a part of this process broke off; it is begun again"
        );
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Spawns what a connection needs as long as it lives: if it breaks off, the connection ends, and its dialer begins anew
/// with all of it.
pub fn attend(connection: &Connection, work: impl Future<Output = ()> + Send + 'static) {
    let connection = connection.clone();
    tokio::spawn(async move {
        if contained(work).await.is_err() {
            connection.close(CloseReason::Broke);
        }
    });
}

/// Something is under way that only one at a time may do; its end, however it comes, gives the mark back.
#[derive(Debug)]
pub struct UnderWay(Arc<AtomicBool>);

impl UnderWay {
    /// Takes the mark; `None` if it is taken.
    pub fn take(mark: &Arc<AtomicBool>) -> Option<Self> {
        (!mark.swap(true, Ordering::AcqRel)).then(|| Self(Arc::clone(mark)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_that_breaks_is_begun_again_and_its_mark_is_free() {
        let mark = Arc::<AtomicBool>::default();
        let mut begun = 0;
        kept("the part", || {
            begun += 1;
            let (turn, held) = (begun, UnderWay::take(&mark));
            async move {
                assert!(held.is_some(), "the one before has given it back");
                if turn < 4 {
                    panic!("turn {turn}");
                }
            }
        })
        .await;
        assert_eq!(begun, 4);
        let held = UnderWay::take(&mark).unwrap();
        assert!(UnderWay::take(&mark).is_none());
        drop(held);
        assert!(UnderWay::take(&mark).is_some());
        assert_eq!(contained(async { 7 }).await, Ok(7));
        assert_eq!(contained_now(|| -> u8 { panic!("at once") }), Err(Broken));
    }
}
