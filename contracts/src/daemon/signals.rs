//! SIGTERM and SIGINT: the first starts the drain, the second shortens or ends it.
//!
//! Leaves the drain to the daemon. Invariant: once taken, no signal ends the process by the system's default.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::StartError;

/// Running requests get so long when a part of the daemon itself has ended.
const BROKEN: Duration = Duration::from_secs(5);

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
    /// signal: settings may have changed it since the start. `over`: a part without which the daemon is of no use has
    /// ended; then the drain is short, so that who supervises it starts it anew soon.
    ///
    /// # Errors
    /// [`StartError::Failed`] that names the part.
    pub async fn drained<F: Future<Output = ()>>(
        mut self,
        over: impl Future<Output = &'static str>,
        grace: impl FnOnce() -> Duration,
        drain: impl FnOnce(Duration) -> F,
    ) -> Result<(), StartError> {
        let asked = tokio::select! {
            signal = self.next() => Ok(signal),
            part = over => Err(part),
        };
        let grace = match asked {
            Ok(_) => grace(),
            Err(_) => grace().min(BROKEN),
        };
        let drain = drain(grace);
        match asked {
            Ok(signal) => {
                tracing::info!("{signal}: draining for up to {grace:?}; a second signal ends at once")
            }
            Err(part) => {
                tracing::error!(part, "it has ended by a defect: draining for up to {grace:?}, then exit")
            }
        }
        tokio::select! {
            () = drain => {}
            signal = self.next() => tracing::warn!("{signal}: ending at once"),
        }
        asked.map(drop).map_err(|part| {
            StartError::Failed(format!(
                "the part `{part}` ended by a defect of the program: its log says where; report that, and start it again"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// A part without which the daemon is of no use has ended: it drains for a short time, and ends with an error that
    /// names it, so that it is started anew.
    #[tokio::test]
    async fn a_part_that_ended_ends_the_daemon() {
        let mut given = Vec::new();
        for grace in [Duration::from_secs(600), Duration::from_secs(1)] {
            let signals = Signals::take().unwrap();
            let drain = |grace| {
                given.push(grace);
                async {}
            };
            let error = signals.drained(async { "nodes' port" }, || grace, drain).await.unwrap_err();
            assert_eq!(error.exit_code(), 1);
            assert!(error.to_string().contains("`nodes' port` ended"), "{error}");
        }
        assert_eq!(given, [BROKEN, Duration::from_secs(1)]);
    }
}
