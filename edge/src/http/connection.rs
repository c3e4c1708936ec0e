//! One client connection: its HTTP driver and its clocks.
//!
//! Owns the times that hyper does not: slow heads, idle connections, clients that stop reading. Leaves bytes to
//! [`super::socket`] and requests to the service it is given. Invariant: a connection costs one task and one
//! timer, and its clocks are not touched by each request.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use umbel_wire::Patience;

use super::answer::{Answer, Answered};
use super::socket::{Socket, Watched};
use super::{Front, FrontOptions, ear};
use crate::core::keys::Shown;

/// hyper's buffer in either direction: a stalled stream holds little.
pub(super) const BUFFER: usize = 16 * 1024;
/// Of a request's line and headers: they must fit the buffer.
pub(super) const HEAD_BYTES_MAX: usize = BUFFER;
/// hyper's own limit.
pub(super) const HEADERS_MAX: usize = 100;

/// Who is at the other end.
#[derive(Debug)]
pub(super) struct Peer {
    /// On this host.
    pub(super) is_loopback: bool,
    /// The credential of its last request.
    pub(super) shown: Mutex<Option<Shown>>,
    /// Of its requests' waits for engines' heads: the timer of one is the next one's.
    patience: Mutex<Option<Patience>>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            is_loopback: address.ip().to_canonical().is_loopback(),
            shown: Mutex::default(),
            patience: Mutex::default(),
        }
    }

    /// A wait of a request begins, and may take `limit`.
    pub(super) fn patience(&self, now: Instant, limit: Duration) -> Patience {
        let kept = self.patience.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut patience = kept.unwrap_or_else(|| Patience::new(now, limit));
        patience.shortest(limit);
        patience.begin(now, limit);
        patience
    }

    /// The wait is over.
    pub(super) fn keep(&self, patience: Patience) {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner) = Some(patience);
    }
}

/// What the connection's parts know of each other.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Requests whose answer is not gone: 0 or 1, HTTP/1.1 has one at a time.
    pub(super) busy: AtomicU32,
    /// Requests so far.
    pub(super) requests: AtomicU64,
    /// The request's body is wanted, and not over.
    pub(super) uploading: AtomicBool,
    /// Counts reads and writes that moved bytes.
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    /// A write waits for the client.
    pub(super) blocked: AtomicBool,
    /// The connection must break, not end.
    pub(super) abort: Arc<AtomicBool>,
}

/// A request or its answer exists.
#[derive(Debug)]
pub(super) struct Busy {
    shared: Arc<Shared>,
    /// Only the connection's end tells the answer's.
    ends_with_connection: bool,
}

impl Busy {
    fn new(shared: &Arc<Shared>, version: Version) -> Self {
        shared.busy.fetch_add(1, Ordering::Relaxed);
        shared.requests.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(shared), ends_with_connection: version < Version::HTTP_11 }
    }

    /// Set it where an end of the connection would look like the answer's end.
    pub(super) fn abort(&self) -> Option<Arc<AtomicBool>> {
        self.ends_with_connection.then(|| Arc::clone(&self.shared.abort))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shared.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request's body. When it is dropped it is over, or nobody wants the rest.
pub(super) struct Upload {
    body: Incoming,
    shared: Arc<Shared>,
}

impl Upload {
    fn new(body: Incoming, shared: &Arc<Shared>) -> Self {
        shared.uploading.store(true, Ordering::Relaxed);
        Self { body, shared: Arc::clone(shared) }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let next = |body: &mut Incoming, cx: &mut Context<'_>| Pin::new(body).poll_frame(cx);
        ear::take(&mut self.body, cx, next, Body::is_end_stream)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.shared.uploading.store(false, Ordering::Relaxed);
    }
}

/// Gives each request to `answer` and marks the connection busy until the answer is gone.
struct Serve<F> {
    answer: F,
    shared: Arc<Shared>,
}

impl<F, A> Service<Request<Incoming>> for Serve<F>
where
    F: Fn(Request<Upload>) -> A,
    A: Future<Output = Answered>,
{
    type Response = http::Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = Answering<A>;

    fn call(&self, request: Request<Incoming>) -> Answering<A> {
        let busy = Busy::new(&self.shared, request.version());
        let request = request.map(|body| Upload::new(body, &self.shared));
        Answering { answer: Box::pin((self.answer)(request)), busy: Some(busy) }
    }
}

/// A request's future, with its mark.
struct Answering<A> {
    // Boxed once a request: hyper keeps the future inline in the connection, idle ones included.
    answer: Pin<Box<A>>,
    busy: Option<Busy>,
}

impl<A: Future<Output = Answered>> Future for Answering<A> {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let mut answered = ready!(self.answer.as_mut().poll(cx));
        if let (Ok(response), Some(busy)) = (&mut answered, self.busy.take()) {
            response.body_mut().keep_busy(busy);
        }
        Poll::Ready(answered)
    }
}

/// Serves a connection to its end.
pub(super) async fn drive<S, F, A>(socket: S, front: &Arc<Front>, shutdown: &CancellationToken, answer: F)
where
    S: Socket,
    F: Fn(Request<Upload>) -> A,
    A: Future<Output = Answered>,
{
    // Only times of the connection itself are used here; they do not change.
    let options = &*front.options.load_full();
    let shared = Arc::new(Shared::default());
    let watched = Watched::new(socket, &shared, front);
    let service = Serve { answer, shared: Arc::clone(&shared) };
    let mut http = http1::Builder::new();
    // Small events are cheaper copied into one buffer than written as three pieces.
    http.max_buf_size(BUFFER).writev(false).pipeline_flush(false);
    // hyper would keep a buffer to read into while a request waits, only to see the client's end: the socket sees it.
    http.half_close(true);
    let mut connection = pin!(http.serve_connection(TokioIo::new(watched), service));
    let mut clocks = Clocks::new(options, &shared);
    let mut timer = pin!(sleep_until(clocks.next));
    let mut cancelled = pin!(shutdown.cancelled());
    let mut draining = false;
    let mut waker = None;
    poll_fn(|cx| {
        let waker = match &mut waker {
            Some((task, waker)) if cx.waker().will_wake(task) => waker,
            other => &mut other.insert((cx.waker().clone(), ear::listening(cx.waker()))).1,
        };
        loop {
            if connection.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
                return Poll::Ready(());
            }
            if !draining && cancelled.as_mut().poll(cx).is_ready() {
                draining = true;
            }
            // hyper would mark the running answer as the connection's last; it is told between answers only.
            if draining && shared.busy.load(Ordering::Relaxed) == 0 && !clocks.told {
                clocks.told = true;
                connection.as_mut().graceful_shutdown();
                continue;
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if clocks.is_over(options, &shared) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(clocks.next);
        }
    })
    .await;
}

/// The connection's times, judged when the one timer fires.
struct Clocks {
    next: Instant,
    /// Since when nothing has changed in the state below.
    since: Instant,
    state: (bool, u64, u64, bool),
    /// Reads counted when the last request was over.
    reads_before: u64,
    told: bool,
}

impl Clocks {
    fn new(options: &FrontOptions, shared: &Shared) -> Self {
        let now = Instant::now();
        let state = Self::look(shared);
        Self { next: now + Self::period(options), since: now, state, reads_before: 0, told: false }
    }

    /// Twice a limit's accuracy is enough: a few looks in the shortest of them.
    fn period(options: &FrontOptions) -> Duration {
        options.header_timeout.min(options.idle_connection).min(options.write_stall) / 4
    }

    fn look(shared: &Shared) -> (bool, u64, u64, bool) {
        let busy = shared.busy.load(Ordering::Relaxed) > 0;
        let blocked = shared.blocked.load(Ordering::Relaxed);
        // While a head is read, bytes may trickle in: only requests and writes count as progress then.
        let reads = if busy { shared.reads.load(Ordering::Relaxed) } else { 0 };
        (busy, reads, shared.writes.load(Ordering::Relaxed), blocked)
    }

    fn is_over(&mut self, options: &FrontOptions, shared: &Shared) -> bool {
        let now = Instant::now();
        self.next = now + Self::period(options);
        let state = Self::look(shared);
        let reads = shared.reads.load(Ordering::Relaxed);
        if state != self.state {
            self.state = state;
            self.since = now;
            self.reads_before = reads;
            return false;
        }
        let (busy, _, _, blocked) = state;
        let limit = match (busy, blocked) {
            (_, true) => options.write_stall,
            (true, false) => return false,
            // Bytes came, but no request of them.
            (false, false) if reads > self.reads_before => options.header_timeout,
            (false, false) => options.idle_connection,
        };
        now.saturating_duration_since(self.since) >= limit
    }
}
