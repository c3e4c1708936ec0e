//! Tasks that panic: what is left of them is told to whoever waits for it.
//!
//! A panic is a defect, and the hook has told where it was; here is what becomes of the state that the task held.
//! Owns catching it. Leaves what it means to the caller, and what must always run to [`crate::io::parts`]. Invariant: a
//! mark that says that something is under way never outlives it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::close::CloseReason;
use crate::error::{Code, Error};
use crate::io::handle::Connection;
use futures_util::FutureExt;

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
    #![allow(clippy::panic, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_outcome() {
        assert_eq!(contained(async { 7 }).await, Ok(7));
        assert_eq!(contained(async { panic!("it breaks") }).await, Err::<(), _>(Broken));
        assert_eq!(contained_now(|| -> u8 { panic!("at once") }), Err(Broken));
    }
}
