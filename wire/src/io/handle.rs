//! The handle of a connection and the traits its owner implements.
//!
//! Owns the public calls; what they mean is decided in `session`, and the bytes are moved by `driver`.
//! Invariant: no lock is held while a handler or a callback of the application runs.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::close::{CloseReason, Goaway, GoawayReason};
use crate::error::{Code, Error};
use crate::ids::Generation;
use crate::io::streams::{IncomingStream, OutgoingStream};
pub use crate::session::Stats;
pub use crate::session::opener::Open;
use crate::session::requests::RequestIn;
pub use crate::session::stream::Terminal;
use crate::session::table::Key;
use crate::session::{Session, Settings};

/// A cheap, cloneable handle of one connection. Everything may be called from any thread.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Shared>);

/// What all handles of a connection share.
pub(crate) struct Shared {
    session: Mutex<Session>,
    generation: AtomicU64,
    protocol: AtomicU32,
    /// Milliseconds.
    spread: AtomicU64,
    /// Told when the session closes or drains.
    notify: Notify,
    /// Told when it has nothing open any more, or closes. Apart, since every connection's keepers wait for its end, and
    /// a lone request after the other would wake them each time.
    idle: Notify,
    /// The socket is closed.
    pub(crate) gone: CancellationToken,
}

impl Connection {
    pub(crate) fn new(settings: Settings) -> Self {
        Self(Arc::new(Shared {
            session: Mutex::new(Session::new(settings, clock::now())),
            generation: AtomicU64::new(0),
            protocol: AtomicU32::new(0),
            spread: AtomicU64::new(0),
            notify: Notify::new(),
            idle: Notify::new(),
            gone: CancellationToken::new(),
        }))
    }

    pub(crate) fn welcomed(&self, generation: Generation, protocol: u32) {
        self.0.generation.store(generation.0, Ordering::Relaxed);
        self.0.protocol.store(protocol, Ordering::Relaxed);
    }

    /// Works on the session under its lock, then does what that calls for, without the lock.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Session) -> R) -> R {
        let mut session = self.0.session.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut session);
        let effects = &mut session.effects;
        if effects.is_empty() {
            return result;
        }
        let writer = effects.writer.take();
        let wakes = std::mem::take(&mut effects.wakes);
        let terminals = std::mem::take(&mut effects.terminals);
        let notify = std::mem::take(&mut effects.notify);
        let idle = std::mem::take(&mut effects.idle);
        drop(session);
        for (tell, terminal) in terminals {
            tell(terminal);
        }
        for waker in wakes {
            waker.wake();
        }
        if let Some(waker) = writer {
            waker.wake();
        }
        if notify {
            self.0.notify.notify_waiters();
        }
        if idle {
            self.0.idle.notify_waiters();
        }
        result
    }

    /// Waits until `look` finds something; it is asked again whenever it is told.
    async fn wait<R>(&self, told: &Notify, look: impl Fn(&Session) -> Option<R>) -> R {
        loop {
            let mut notified = std::pin::pin!(told.notified());
            notified.as_mut().enable();
            if let Some(result) = self.with(|session| look(session)) {
                return result;
            }
            notified.await;
        }
    }

    /// The acceptor's number of this connection; grows with each connection of the same identity. 0 before WELCOME.
    pub fn generation(&self) -> Generation {
        Generation(self.0.generation.load(Ordering::Relaxed))
    }

    /// The negotiated version of the boundary's protocol. 0 before WELCOME.
    pub fn protocol(&self) -> u32 {
        self.0.protocol.load(Ordering::Relaxed)
    }

    /// How far the first redials after a loss are spread, as the acceptor last said.
    pub fn reconnect_spread(&self) -> Duration {
        Duration::from_millis(self.0.spread.load(Ordering::Relaxed))
    }

    /// Notes a newer spread (a heartbeat's answer gives one); `keep_connected` follows it at the next loss.
    pub fn set_reconnect_spread(&self, spread: Duration) {
        // Minutes at most: a longer one fits too, and the back-off caps it.
        self.0.spread.store(u64::try_from(spread.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Calls a method and waits for its one answer. Dropping the future cancels the call: an unwritten request
    /// is removed, a written one is followed by CANCEL.
    ///
    /// # Errors
    /// What the peer answered; `TOO_LARGE` (payload over 60 KiB) and `RESOURCE_EXHAUSTED` (256 in flight) before
    /// anything is sent; `DEADLINE_EXCEEDED`; `UNAVAILABLE`, with reason `OUTCOME_UNKNOWN` if the connection was
    /// lost after the request was written.
    pub async fn request(
        &self,
        method: u32,
        payload: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<Bytes, Error> {
        let payload = payload.into();
        let now = clock::now();
        let key = self.with(|session| session.call(now, method, payload, timeout))?;
        let mut call = Call { connection: self, key: Some(key) };
        poll_fn(|cx| {
            let answer = self.with(|session| session.poll_call(key, cx));
            if answer.is_ready() {
                call.key = None;
            }
            answer
        })
        .await
    }

    /// Sends an event. An unsent one of the same number and key is replaced. At most 60 KiB, key at most 256
    /// bytes; larger ones are dropped and counted.
    pub fn event(&self, event: u32, key: &str, payload: impl Into<Bytes>) {
        let payload = payload.into();
        self.with(|session| session.event(event, key, payload));
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
        let now = clock::now();
        let key = self.with(|session| session.open(now, open, Box::new(on_terminal)))?;
        Ok(OutgoingStream::new(self.clone(), key))
    }

    /// Sends PING; true if any byte arrives within `limit`.
    pub async fn probe(&self, limit: Duration) -> bool {
        let mut before = None;
        let arrival = poll_fn(|cx| {
            self.with(|session| {
                let arrivals = session.arrivals();
                if session.closed().is_some() {
                    return Poll::Ready(false);
                }
                match before {
                    None => session.ping(),
                    Some(before) if before != arrivals => return Poll::Ready(true),
                    Some(_) => {}
                }
                before = Some(arrivals);
                session.await_arrival(cx.waker());
                Poll::Pending
            })
        });
        tokio::time::timeout(limit, arrival).await.unwrap_or(false)
    }

    /// Starts to drain: later streams of the peer are refused as `not_processed`, running ones and requests go on.
    pub fn goaway(&self, reason: GoawayReason, message: &str, retry_after: Option<Duration>) {
        let goaway = Goaway {
            closing: false,
            reason: reason.name().to_owned(),
            message: message.to_owned(),
            retry_after,
        };
        self.with(|session| session.goaway(goaway));
    }

    /// Resolves once no stream and no request is open in either direction, or the connection is closed.
    pub async fn drained(&self) {
        self.wait(&self.0.idle, |session| (session.is_idle() || session.closed().is_some()).then_some(()))
            .await;
    }

    /// Resolves once the peer drains, or the connection is closed (then with nothing).
    pub async fn peer_drains(&self) -> Option<Goaway> {
        self.wait(&self.0.notify, |session| match (session.closed(), session.peer_drains()) {
            (Some(_), _) => Some(None),
            (None, Some(goaway)) => Some(Some(goaway.clone())),
            (None, None) => None,
        })
        .await
    }

    /// Ends the connection: tells the peer why if that can be told, half-closes and closes within 2 s. Calls and
    /// streams fail at once. A second call changes nothing.
    pub fn close(&self, reason: CloseReason) {
        self.with(|session| session.close(reason));
    }

    /// Waits for the end of the session. The farewell may still be on its way; see [`Self::gone`].
    pub async fn closed(&self) -> CloseReason {
        self.wait(&self.0.notify, |session| session.closed().cloned()).await
    }

    /// Waits until the socket is closed too.
    pub async fn gone(&self) {
        self.0.gone.cancelled().await;
    }

    /// Whether it has ended (or is about to: only the farewell is still written).
    pub fn is_closed(&self) -> bool {
        self.with(|session| session.closed().is_some())
    }

    /// Gauges and counters.
    pub fn stats(&self) -> Stats {
        self.with(|session| session.stats())
    }
}

/// Cancels the call if its future is dropped.
struct Call<'a> {
    connection: &'a Connection,
    key: Option<Key>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.connection.with(|session| session.cancel_call(key));
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("generation", &self.generation()).finish_non_exhaustive()
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
    answer: Answer,
}

struct Answer {
    connection: Connection,
    key: Option<Key>,
}

impl IncomingRequest {
    pub(crate) fn new(connection: Connection, request: RequestIn) -> Self {
        Self {
            method: request.method,
            payload: request.payload,
            timeout: request.timeout,
            answer: Answer { connection, key: Some(request.key) },
        }
    }

    /// The one answer, at most 60 KiB.
    pub fn respond(mut self, answer: Result<Vec<u8>, Error>) {
        self.answer.give(answer);
    }

    /// Resolves when the caller no longer waits: cancelled, past its deadline, or the connection is lost.
    pub async fn cancelled(&self) {
        if let Some(key) = self.answer.key {
            poll_fn(|cx| self.answer.connection.with(|session| session.poll_cancelled(key, cx))).await;
        }
    }
}

impl Answer {
    fn give(&mut self, answer: Result<Vec<u8>, Error>) {
        if let Some(key) = self.key.take() {
            self.connection.with(|session| session.respond(key, answer));
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.give(Err(Error::internal()));
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
