//! The accepting side: listener, limits before hello, TLS, and the newcomer that the door judges.
//!
//! Invariant: a peer that has not said hello costs a bounded amount of memory and time, and its neighbours
//! nothing. Every refusal is told before the socket closes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ids::{Attempt, Generation, InstanceId, KeyHash};
use crate::io::dial::{Intervals, Purpose, Rejection};
use crate::io::handle::{BoxFuture, Connection, Handler};
use crate::limits;
use crate::peer::PeerCertificate;
use crate::tls::TlsServer;
use crate::version::VersionRange;

/// Judges newcomers: registry, tokens, slots.
pub trait Door: Send + Sync + 'static {
    /// Whether the registry holds this key in any state: decides how large the first frame may be.
    fn knows(&self, key: &KeyHash) -> bool;
    /// Must accept, answer or reject; a dropped newcomer is rejected with INTERNAL.
    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()>;
}

/// A HELLO as it was received.
#[derive(Clone)]
pub struct HelloIn {
    /// What it is for.
    pub purpose: Purpose,
    /// Versions the dialer speaks.
    pub versions: VersionRange,
    /// Random per start of its process.
    pub instance: InstanceId,
    /// Counts the dials of that process.
    pub attempt: Attempt,
    /// The typed message.
    pub payload: Bytes,
}

/// The WELCOME to send.
#[derive(Clone, Debug)]
pub struct WelcomeOut {
    /// Negotiated version.
    pub protocol: u32,
    /// Number of this connection.
    pub generation: Generation,
    /// Suggested intervals.
    pub intervals: Intervals,
    /// `max(200 ms, peers x 5 ms)`.
    pub reconnect_spread: Duration,
    /// Streams open at once in each direction.
    pub max_streams: u32,
    /// The typed message, at most 60 KiB.
    pub payload: Vec<u8>,
}

impl Default for WelcomeOut {
    fn default() -> Self {
        Self {
            protocol: 1,
            generation: Generation(0),
            intervals: Intervals::default(),
            reconnect_spread: Duration::from_millis(200),
            max_streams: limits::STREAMS_NODE,
            payload: Vec::new(),
        }
    }
}

/// A peer that said hello and waits for an answer. Dropping it rejects with INTERNAL.
pub struct Newcomer(());

impl Newcomer {
    /// Where it comes from. For this host's log only.
    pub fn address(&self) -> SocketAddr {
        unimplemented!()
    }

    /// Its certificate: proof that it holds the key, nothing more.
    pub fn certificate(&self) -> Option<&PeerCertificate> {
        unimplemented!()
    }

    /// What it said.
    pub fn hello(&self) -> &HelloIn {
        unimplemented!()
    }

    /// The handle the connection will have, to register it before WELCOME is sent.
    pub fn connection(&self) -> Connection {
        unimplemented!()
    }

    /// Sends WELCOME and starts the session.
    pub fn accept(self, welcome: WelcomeOut, handler: Arc<dyn Handler>) -> Connection {
        let _ = (welcome, handler);
        unimplemented!()
    }

    /// Sends WELCOME with a payload, then closes: the answer to an enrollment.
    pub fn answer(self, payload: Vec<u8>) {
        let _ = payload;
        unimplemented!()
    }

    /// Sends REJECT, then closes.
    pub fn reject(self, rejection: Rejection) {
        let _ = rejection;
        unimplemented!()
    }
}

/// Accepts until `shutdown` is cancelled. Sessions that were accepted live on.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<TlsServer>,
    door: Arc<dyn Door>,
    shutdown: CancellationToken,
) {
    let _ = (listener, tls, door, shutdown);
    unimplemented!()
}
