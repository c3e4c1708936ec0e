//! One connection kept for ever: dial, stay, and dial again as the acceptor and the back-off say.
//!
//! Persists nothing: what happened is told to the role. Invariant: at most one dial at a time; an old connection
//! that the acceptor asked to leave goes on until its streams are done.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::clock;
use crate::close::{CloseReason, Goaway, GoawayReason};
use crate::error::Error;
use crate::ids::Attempt;
use crate::io::dial::{DialError, DialTarget, HelloOut, Welcome, dial, retry_hint};
use crate::io::handle::{BoxFuture, Connection, Handler};
use crate::limits;

/// The application's part of a kept connection. Calls must not block.
pub trait DialRole: Send + Sync + 'static {
    /// Where to dial; asked for each dial.
    fn target(&self) -> DialTarget;
    /// The HELLO; asked for each dial.
    fn hello(&self, attempt: Attempt) -> HelloOut;
    /// Looks at WELCOME and gives the connection its handler. Nothing is read before it returns.
    ///
    /// # Errors
    /// Closes the connection; counts as a failure.
    fn on_welcome(&self, connection: &Connection, welcome: &Welcome) -> Result<Arc<dyn Handler>, Error>;
    /// A dial failed; the next one is in `retry_in`.
    fn on_failure(&self, error: &DialError, retry_in: Duration) {
        let _ = (error, retry_in);
    }
    /// A dial failed, and there is another credential to come with: then the next dial follows at once. Asked before
    /// [`DialRole::on_failure`]; it must not be so for ever.
    fn again_at_once(&self, error: &DialError) -> bool {
        let _ = error;
        false
    }
    /// Resolves when the present connection is to be followed by a new one: a new credential has to be shown. The old
    /// one goes on until its successor is accepted, and then until its streams are done.
    fn wants_anew(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
    /// The connection was lost; the next dial is in `retry_in`.
    fn on_lost(&self, reason: &CloseReason, retry_in: Duration) {
        let _ = (reason, retry_in);
    }
}

/// Why a kept connection is left.
enum Left {
    Lost(CloseReason),
    Asked(Goaway),
    Anew,
    Shutdown,
}

/// Keeps one connection until `shutdown` is cancelled; then closes it with `Shutdown` and returns once the socket
/// is closed. Draining before that is the caller's.
pub async fn keep_connected(role: Arc<dyn DialRole>, shutdown: CancellationToken) {
    let (mut attempt, mut backoff, mut turn) = (0u64, Backoff::new(), 0usize);
    let sequence = Arc::default();
    // The connection the acceptor asked to leave, until its successor is there.
    let mut leaving: Option<Connection> = None;
    loop {
        attempt += 1;
        let mut target = role.target();
        let count = target.addresses.len();
        target.addresses.rotate_left(turn.checked_rem(count).unwrap_or_default());
        let hello = role.hello(Attempt(attempt));
        let welcomed = |connection: &Connection, welcome: &Welcome| role.on_welcome(connection, welcome);
        let dialed = tokio::select! {
            dialed = dial(target, hello, Attempt(attempt), Arc::clone(&sequence), welcomed) => dialed,
            () = shutdown.cancelled() => break,
        };
        let pause = match dialed {
            Err(error) => {
                turn += 1;
                let pause = match retry_hint(&error) {
                    _ if role.again_at_once(&error) => Duration::ZERO,
                    Some((code, hint)) => backoff.rejected(code, hint, random()),
                    None => backoff.failed(random()),
                };
                role.on_failure(&error, pause);
                pause
            }
            Ok((connection, _)) => {
                if let Some(old) = leaving.take() {
                    tokio::spawn(leave(old));
                }
                let since = clock::now();
                let left = stay(role.as_ref(), &connection, &shutdown).await;
                let lived = clock::now().saturating_duration_since(since);
                match left {
                    Left::Shutdown => {
                        leaving = Some(connection);
                        break;
                    }
                    Left::Lost(reason) => {
                        let pause = backoff.lost(lived, connection.reconnect_spread(), random());
                        let pause = pause.max(hinted(&reason));
                        role.on_lost(&reason, pause);
                        pause
                    }
                    Left::Anew => {
                        leaving = Some(connection);
                        Duration::ZERO
                    }
                    Left::Asked(goaway) => {
                        let spread = backoff.lost(lived, connection.reconnect_spread(), random());
                        leaving = Some(connection);
                        if goaway.reason == GoawayReason::Shutdown.name() {
                            // Another address first; this one only after the time it asked for.
                            turn += 1;
                            if count > 1 {
                                spread
                            } else {
                                spread.max(goaway.retry_after.unwrap_or_default())
                            }
                        } else {
                            spread
                        }
                    }
                }
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = shutdown.cancelled() => break,
        }
    }
    if let Some(connection) = leaving {
        connection.close(CloseReason::Shutdown);
        connection.gone().await;
    }
}

async fn stay(role: &dyn DialRole, connection: &Connection, shutdown: &CancellationToken) -> Left {
    tokio::select! {
        reason = connection.closed() => Left::Lost(reason),
        Some(goaway) = connection.peer_drains() => Left::Asked(goaway),
        () = role.wants_anew() => Left::Anew,
        () = shutdown.cancelled() => Left::Shutdown,
    }
}

/// Lets the old connection finish its streams.
async fn leave(old: Connection) {
    let _ = timeout(limits::DRAIN_STREAMS, old.drained()).await;
    old.close(CloseReason::Reconnect);
}

fn hinted(reason: &CloseReason) -> Duration {
    match reason {
        CloseReason::ByPeer(goaway) => goaway.retry_after.unwrap_or_default().min(Duration::from_secs(600)),
        _ => Duration::ZERO,
    }
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without a random source the jitter is lost, nothing else.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}
