//! SIGTERM and SIGINT: the first starts the drain, the second shortens or ends it.
//!
//! Leaves the drain to the daemon. Invariant: once taken, no signal ends the process by the system's default.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::StartError;

/// Both signals, as one stream.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the two signals over from the system's default. Needs a runtime with I/O.
    ///
    /// # Errors
    /// [`StartError::Failed`] if the system gives no handler or descriptor for it.
    pub fn take() -> Result<Self, StartError> {
        let take =
            |kind| signal(kind).map_err(|error| StartError::Failed(format!("cannot take signals: {error}")));
        Ok(Self { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())? })
    }

    /// The next of either, by name. Waiting may be given up and begun again; no signal is lost by that.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Waits for the first signal, then for the drain, which is given up at the second signal. `grace` is asked at the
    /// signal: settings may have changed it since the start.
    pub async fn drained<F: Future<Output = ()>>(
        mut self,
        grace: impl FnOnce() -> Duration,
        drain: impl FnOnce(Duration) -> F,
    ) {
        let signal = self.next().await;
        let grace = grace();
        let drain = drain(grace);
        tracing::info!("{signal}: draining for up to {grace:?}; a second signal ends at once");
        tokio::select! {
            () = drain => {}
            signal = self.next() => tracing::warn!("{signal}: ending at once"),
        }
    }
}
