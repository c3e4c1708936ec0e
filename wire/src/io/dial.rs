//! The dialing side: one connection kept for ever, or one for a single exchange.
//!
//! Owns look-up, connecting, TLS, HELLO and the pauses between attempts. Persists nothing: what happened is told
//! to the role. Invariant: only WELCOME makes a connection; a finished TLS handshake means nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::close::CloseReason;
use crate::error::Error;
use crate::ids::{Attempt, Generation, InstanceId};
use crate::io::handle::{Connection, Handler};
use crate::version::{Verdict, VersionRange};

/// Where to dial. Asked for anew for each dial.
#[derive(Clone)]
pub struct DialTarget {
    /// `host:port` each; every address of every one is tried, IPv6 and IPv4.
    pub addresses: Vec<String>,
    /// The name the server's certificate must have, whatever address is dialed.
    pub server_name: String,
    /// Trust and identity.
    pub tls: Arc<rustls::ClientConfig>,
}

/// What a HELLO is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A session.
    Hello,
    /// One exchange that gives an identity.
    Enroll,
}

/// The HELLO to send. `attempt` is filled in by the dialer.
#[derive(Clone)]
pub struct HelloOut {
    /// What it is for.
    pub purpose: Purpose,
    /// Versions of the boundary's protocol this side speaks.
    pub versions: VersionRange,
    /// Random per process start.
    pub instance: InstanceId,
    /// The typed message, at most 60 KiB (16 KiB if the registry may not know the key).
    pub payload: Vec<u8>,
}

/// What the acceptor suggests for periodic messages; zero: its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Between heartbeats.
    pub heartbeat: Duration,
    /// Between telemetry events.
    pub telemetry: Duration,
    /// Between inventory events.
    pub inventory: Duration,
}

/// A WELCOME as it was received.
#[derive(Clone, Debug)]
pub struct Welcome {
    /// Negotiated version.
    pub protocol: u32,
    /// Number of this connection.
    pub generation: Generation,
    /// Suggested intervals.
    pub intervals: Intervals,
    /// The first redial after a loss is uniform in this time.
    pub reconnect_spread: Duration,
    /// The typed message.
    pub payload: Bytes,
}

/// How far a dial came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DialStep {
    /// Resolving the name.
    Lookup,
    /// TCP.
    Connect,
    /// TLS: trust, name, time, ALPN.
    Tls,
    /// HELLO and its answer.
    Hello,
}

/// Why a dial failed. `message` names what this host dialed and is for its own log and status.
#[derive(Clone, Debug)]
pub struct DialError {
    /// How far it came.
    pub step: DialStep,
    /// For people.
    pub message: String,
    /// What the acceptor said, if it said something.
    pub rejection: Option<Rejection>,
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DialError {}

/// A REJECT: the reason, and for versions both ranges. `yours` and `mine` are as the rejecting side sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Why, and when to try again.
    pub error: Error,
    /// Set if the versions are the reason.
    pub verdict: Option<Verdict>,
    /// The range of the dialer.
    pub yours: VersionRange,
    /// The range of the acceptor.
    pub mine: VersionRange,
}

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
    /// The connection was lost; the next dial is in `retry_in`.
    fn on_lost(&self, reason: &CloseReason, retry_in: Duration) {
        let _ = (reason, retry_in);
    }
}

/// Keeps one connection until `shutdown` is cancelled; then drains nothing by itself and closes with `Shutdown`.
pub async fn keep_connected(role: Arc<dyn DialRole>, shutdown: CancellationToken) {
    let _ = (role, shutdown);
    unimplemented!()
}

/// Dials once; `handler` looks at WELCOME and gives the connection its handler.
///
/// # Errors
/// What failed, at which step, and what the acceptor said.
pub async fn dial_once(
    target: DialTarget,
    hello: HelloOut,
    handler: impl FnOnce(&Connection, &Welcome) -> Result<Arc<dyn Handler>, Error> + Send,
) -> Result<(Connection, Welcome), DialError> {
    let _ = (target, hello, handler);
    unimplemented!()
}

/// A handler for connections that only send: everything the peer asks is unknown.
pub struct NoHandler;

impl Handler for NoHandler {}
