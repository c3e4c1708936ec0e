//! The handle of a connection and the traits its owner implements.
//!
//! Owns the public calls; what they mean is decided in `session`, and the bytes are moved by `driver`.
//! Invariant: no lock is held while a handler or a callback of the application runs.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::close::{CloseReason, Goaway, GoawayReason};
use crate::error::{Code, Error};
use crate::ids::Generation;
use crate::io::streams::{IncomingStream, OutgoingStream};

/// A cheap, cloneable handle of one connection. Everything may be called from any thread.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<()>);

/// What [`Connection::open`] sends.
#[derive(Clone, Default)]
pub struct Open {
    /// Number of the boundary's method.
    pub method: u32,
    /// The method's typed message, at most 32 KiB.
    pub message: Vec<u8>,
    /// The whole body or its first part. Up to 16 KiB travel inside OPEN, the rest follows as DATA under credit.
    pub body: Bytes,
    /// The body is complete; `send_body` may not be called.
    pub end: bool,
    /// The stream is reset after this time; zero means never.
    pub timeout: Duration,
}

/// How a stream that this side opened ended. Told exactly once.
#[derive(Clone, Debug)]
pub enum Terminal {
    /// The answering side's END.
    Ended {
        /// Absent: it succeeded.
        error: Option<Error>,
        /// Refused before any work was done.
        not_processed: bool,
        /// The method's typed end message, or nothing.
        payload: Bytes,
    },
    /// The connection was lost first.
    Lost(CloseReason),
}

/// Gauges and counters of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Streams this side opened that have no terminal yet.
    pub streams_out: usize,
    /// Streams the peer opened that this side has not ended.
    pub streams_in: usize,
    /// Requests of this side without an answer (cancelled ones included).
    pub requests_out: usize,
    /// Requests of the peer that are not answered.
    pub requests_in: usize,
    /// Bytes received and not yet taken by the application.
    pub received_waiting: usize,
    /// Bytes accepted from the application and not yet written.
    pub send_waiting: usize,
    /// Bytes that arrived on the socket.
    pub bytes_in: u64,
    /// Bytes the socket accepted.
    pub bytes_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames written.
    pub frames_out: u64,
    /// Batches written; `frames_out / batches_out` is the coalescing.
    pub batches_out: u64,
    /// Frames of kinds this build does not know, skipped.
    pub unknown_kinds: u64,
    /// Events the handler did not know.
    pub unknown_events: u64,
    /// Events missing in the peer's sequence.
    pub event_gaps: u64,
    /// Frames for streams or requests that were over, dropped.
    pub late_frames: u64,
    /// Round trip of the last PING.
    pub round_trip: Option<Duration>,
}

impl Connection {
    /// The acceptor's number of this connection; grows with each connection of the same identity.
    pub fn generation(&self) -> Generation {
        unimplemented!()
    }

    /// The negotiated version of the boundary's protocol.
    pub fn protocol(&self) -> u32 {
        unimplemented!()
    }

    /// Calls a method and waits for its one answer. Dropping the future cancels the call: an unwritten request
    /// is removed, a written one is followed by CANCEL.
    ///
    /// # Errors
    /// What the peer answered; `TOO_LARGE` (payload over 60 KiB) and `RESOURCE_EXHAUSTED` (256 in flight) before
    /// anything is sent; `DEADLINE_EXCEEDED`; `UNAVAILABLE` with reason `OUTCOME_UNKNOWN` on a lost connection.
    pub async fn request(&self, method: u32, payload: impl Into<Bytes>, timeout: Duration) -> Result<Bytes, Error> {
        let _ = (method, payload.into(), timeout);
        unimplemented!()
    }

    /// Sends an event. An unsent one of the same number and key is replaced.
    pub fn event(&self, event: u32, key: &str, payload: impl Into<Bytes>) {
        let _ = (event, key, payload.into());
        unimplemented!()
    }

    /// Opens a stream. `on_terminal` is called exactly once, by the reader or on connection loss, also if the
    /// stream was dropped long before; it must not block.
    ///
    /// # Errors
    /// Nothing was sent then, and `on_terminal` is not called: `UNAVAILABLE` (peer drains, connection closed),
    /// `RESOURCE_EXHAUSTED` (streams of this connection, receive budget of this process), `TOO_LARGE`.
    pub fn open(
        &self,
        open: Open,
        on_terminal: impl FnOnce(Terminal) + Send + 'static,
    ) -> Result<OutgoingStream, Error> {
        let _ = (open, on_terminal);
        unimplemented!()
    }

    /// Sends PING; true if any byte arrives within `limit`.
    pub async fn probe(&self, limit: Duration) -> bool {
        let _ = limit;
        unimplemented!()
    }

    /// Starts to drain: later streams of the peer are refused as `not_processed`, running ones go on.
    pub fn goaway(&self, reason: GoawayReason, message: &str, retry_after: Option<Duration>) {
        let _ = (reason, message, retry_after);
        unimplemented!()
    }

    /// Resolves once no stream and no request is open in either direction, or the connection is closed.
    pub async fn drained(&self) {
        unimplemented!()
    }

    /// Ends the connection: tells the peer why if that can be told, half-closes and closes within 2 s. Calls and
    /// streams fail at once. A second call changes nothing.
    pub fn close(&self, reason: CloseReason) {
        let _ = reason;
        unimplemented!()
    }

    /// Waits for the end.
    pub async fn closed(&self) -> CloseReason {
        unimplemented!()
    }

    /// Whether it has ended (or is about to: only the farewell is still written).
    pub fn is_closed(&self) -> bool {
        unimplemented!()
    }

    /// Gauges and counters.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

/// A call of the peer. Dropping it answers INTERNAL.
pub struct IncomingRequest {
    /// Number of the boundary's method.
    pub method: u32,
    /// The method's typed message.
    pub payload: Bytes,
    /// Time until the caller gives up; the session answers DEADLINE_EXCEEDED then by itself.
    pub timeout: Duration,
}

impl IncomingRequest {
    /// The one answer.
    pub fn respond(self, answer: Result<Vec<u8>, Error>) {
        let _ = answer;
        unimplemented!()
    }

    /// Resolves when the caller no longer waits: cancelled, past its deadline, or the connection is lost.
    pub async fn cancelled(&self) {
        unimplemented!()
    }
}

/// The owner's side of a connection. Called by the reader task: must not block, may spawn.
pub trait Handler: Send + Sync + 'static {
    /// The peer calls a method.
    fn on_request(&self, connection: &Connection, request: IncomingRequest) {
        let _ = connection;
        request.respond(Err(unknown_method()));
    }

    /// The peer sent an event; the result becomes its acknowledgement. Unknown events answer `Unimplemented`.
    ///
    /// # Errors
    /// What the acknowledgement shall say.
    fn on_event(&self, connection: &Connection, event: u32, key: &str, payload: &[u8]) -> Result<(), Error> {
        let _ = (connection, event, key, payload);
        Err(Error::new(Code::Unimplemented, "UNKNOWN_EVENT", "this side does not know the event"))
    }

    /// The peer acknowledged an event of this side.
    fn on_ack(&self, connection: &Connection, event: u32, key: &str, result: Result<(), Error>) {
        let _ = (connection, event, key, result);
    }

    /// The peer opened a stream.
    fn on_stream(&self, connection: &Connection, stream: IncomingStream) {
        let _ = connection;
        stream.fail(unknown_method(), true, &[]);
    }

    /// The peer drains (or closes; `on_closed` follows).
    fn on_goaway(&self, connection: &Connection, goaway: &Goaway) {
        let _ = (connection, goaway);
    }

    /// The connection has ended; called exactly once, last.
    fn on_closed(&self, connection: &Connection, reason: &CloseReason) {
        let _ = (connection, reason);
    }
}

fn unknown_method() -> Error {
    Error::new(Code::Unimplemented, "UNKNOWN_METHOD", "the peer does not know this method; it may be older")
}

/// A boxed future that can move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
