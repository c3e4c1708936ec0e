//! One client connection: its socket, its HTTP driver, and its clocks.
//!
//! Owns what hyper does not: slow heads, idle connections, clients that stop reading, an abort that cannot be
//! taken for an end, and words of our own where hyper refuses a head by itself. Leaves requests to the service
//! it is given. Invariant: a connection costs one task and one timer, and its clocks are not touched by each
//! request.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Request, Version};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::answer::{Answer, Answered};
use super::{Front, FrontOptions, unread};

/// hyper's buffer in either direction: a stalled stream holds little.
const BUFFER: usize = 16 * 1024;
/// Of a request's line and headers: they must fit the buffer.
pub(super) const HEAD_BYTES_MAX: usize = BUFFER;
/// hyper's own limit.
pub(super) const HEADERS_MAX: usize = 100;
/// Of the client's socket, for the same reason. The kernel doubles it.
const SEND_BUFFER: usize = 64 * 1024;
/// Input that is there when the connection ends by a refused head is read up to this: the socket's close would
/// throw the answer away otherwise.
const DISCARD_MAX: usize = 1 << 20;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// On this host.
    pub(super) is_loopback: bool,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self { is_loopback: address.ip().to_canonical().is_loopback() }
    }
}

/// What the connection's parts know of each other.
#[derive(Debug, Default)]
struct Shared {
    /// Requests whose answer is not gone: 0 or 1, HTTP/1.1 has one at a time.
    busy: AtomicU32,
    /// Requests so far.
    requests: AtomicU64,
    /// Counts reads and writes that moved bytes.
    reads: AtomicU64,
    writes: AtomicU64,
    /// A write waits for the client.
    blocked: AtomicBool,
    /// The connection must break, not end.
    abort: Arc<AtomicBool>,
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

/// A client's socket, plain or within TLS.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn tcp(&self) -> &TcpStream;
}

impl Socket for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Socket for tokio_rustls::server::TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Prepares an accepted socket. Failures only cost speed.
pub(super) fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = socket2::SockRef::from(socket).set_send_buffer_size(SEND_BUFFER);
}

/// hyper's view of the socket, with an eye on what moves.
struct Watched<S: Socket> {
    socket: S,
    shared: Arc<Shared>,
    front: Arc<Front>,
    /// Requests whose answers are written to the last byte.
    written: u64,
    /// What is left of our answer to a head that hyper refused.
    refusal: Option<Bytes>,
}

impl<S: Socket> Drop for Watched<S> {
    fn drop(&mut self) {
        if self.shared.abort.load(Ordering::Acquire) {
            // RST instead of FIN: where the end of the connection is the end of the answer, a clean one would
            // make a cut answer look whole.
            let _ = socket2::SockRef::from(self.socket.tcp()).set_linger(Some(Duration::ZERO));
        }
    }
}

impl<S: Socket> Watched<S> {
    fn wrote<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &result {
            Poll::Ready(Ok(_)) => {
                self.shared.writes.fetch_add(1, Ordering::Relaxed);
                self.shared.blocked.store(false, Ordering::Relaxed);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.shared.blocked.store(true, Ordering::Relaxed),
        }
        result
    }

    /// No request was given to the service since all answers were written: what hyper writes now is its own
    /// answer to a head that it could not read, and its last. Behind an answer that is still to be written
    /// hyper's bytes cannot be told from that answer's and stay as they are.
    fn is_between_requests(&self) -> bool {
        self.shared.busy.load(Ordering::Relaxed) == 0
            && self.shared.requests.load(Ordering::Relaxed) == self.written
    }

    /// Writes our refusal instead of hyper's bytes.
    fn poll_refuse(&mut self, cx: &mut Context<'_>, bare: &[u8]) -> Poll<io::Result<usize>> {
        let mut left = self.refusal.take().unwrap_or_else(|| unread::instead_of(bare, &self.front));
        while left.has_remaining() {
            let result = Pin::new(&mut self.socket).poll_write(cx, &left);
            match self.wrote(result) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => left.advance(written),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.refusal = Some(left);
                    return Poll::Pending;
                }
            }
        }
        self.refusal = Some(left);
        Poll::Ready(Ok(bare.len()))
    }

    /// Reads and forgets what has come, without waiting for more.
    fn discard(&mut self, cx: &mut Context<'_>) {
        let mut space = [0; 8 * 1024];
        for _ in 0..DISCARD_MAX / space.len() {
            let mut buffer = ReadBuf::new(&mut space);
            let read = Pin::new(&mut self.socket).poll_read(cx, &mut buffer);
            if !matches!(read, Poll::Ready(Ok(()))) || buffer.filled().is_empty() {
                return;
            }
        }
    }
}

impl<S: Socket> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            self.shared.reads.fetch_add(1, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Socket> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_between_requests() {
            return self.poll_refuse(cx, bytes);
        }
        let result = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.wrote(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes the socket only when it has nothing left to write.
        if self.shared.busy.load(Ordering::Relaxed) == 0 {
            self.written = self.shared.requests.load(Ordering::Relaxed);
        }
        let result = Pin::new(&mut self.socket).poll_flush(cx);
        match &result {
            // Within TLS it is the flush that waits for the client.
            Poll::Pending => self.shared.blocked.store(true, Ordering::Relaxed),
            // hyper flushes when there is nothing to flush, too: that is no progress.
            Poll::Ready(_) if self.shared.blocked.load(Ordering::Relaxed) => return self.wrote(result),
            Poll::Ready(_) => {}
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shared.abort.load(Ordering::Acquire) {
            // No FIN, no close_notify: the drop breaks the connection.
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
        if self.refusal.is_some() {
            self.discard(cx);
        }
        Poll::Ready(Ok(()))
    }
}

/// Gives each request to `answer` and marks the connection busy until the answer is gone.
struct Serve<F> {
    answer: F,
    shared: Arc<Shared>,
}

impl<F, A> Service<Request<Incoming>> for Serve<F>
where
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answered>,
{
    type Response = http::Response<Answer>;
    type Error = std::convert::Infallible;
    type Future = Answering<A>;

    fn call(&self, request: Request<Incoming>) -> Answering<A> {
        let busy = Busy::new(&self.shared, request.version());
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
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Answered>,
{
    let options = &front.options;
    let shared = Arc::new(Shared::default());
    let (shared_too, front) = (Arc::clone(&shared), Arc::clone(front));
    let watched = Watched { socket, shared: shared_too, front, written: 0, refusal: None };
    let service = Serve { answer, shared: Arc::clone(&shared) };
    let mut http = http1::Builder::new();
    // Small events are cheaper copied into one buffer than written as three pieces.
    http.max_buf_size(BUFFER).writev(false).pipeline_flush(false);
    let mut connection = pin!(http.serve_connection(TokioIo::new(watched), service));
    let mut clocks = Clocks::new(options, &shared);
    let mut timer = pin!(sleep_until(clocks.next));
    let mut cancelled = pin!(shutdown.cancelled());
    let mut draining = false;
    poll_fn(|cx| {
        loop {
            if connection.as_mut().poll(cx).is_ready() {
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
