//! A client's socket as hyper sees it.
//!
//! Owns what hyper's reading and writing alone would miss: an abort that cannot be taken for an end, words of our
//! own where hyper refuses a head by itself, and a client that leaves while hyper does not read. Leaves times to
//! [`super::connection`]. Invariant: bytes of requests and answers pass untouched.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::connection::Shared;
use super::{Front, unread};

/// Of the socket: a stalled stream holds little. The kernel doubles it.
const SEND_BUFFER: usize = 64 * 1024;
/// Input that is there when the connection ends by a refused head is read up to this: the socket's close would
/// throw the answer away otherwise.
const DISCARD_MAX: usize = 1 << 20;
/// Input behind a running request is read up to this. Behind more the client's end could not be seen, so with
/// more the connection is over.
const AHEAD_MAX: usize = 64 * 1024;

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
pub(super) struct Watched<S: Socket> {
    socket: S,
    shared: Arc<Shared>,
    front: Arc<Front>,
    /// Requests whose answers are written to the last byte.
    written: u64,
    /// What is left of our answer to a head that hyper refused.
    refusal: Option<Bytes>,
    /// hyper waits for input, and with it for the client's end.
    awaits_input: bool,
    /// Input behind the running request, read to see the client's end behind it.
    ahead: BytesMut,
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
    pub(super) fn new(socket: S, shared: &Arc<Shared>, front: &Arc<Front>) -> Self {
        let (shared, front) = (Arc::clone(shared), Arc::clone(front));
        let (written, refusal) = (0, None);
        let (awaits_input, ahead) = (false, BytesMut::new());
        Self { socket, shared, front, written, refusal, awaits_input, ahead }
    }

    /// Whether the client left while hyper does not look: it does not read while a request runs.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let busy = self.shared.busy.load(Ordering::Relaxed) > 0;
        if self.awaits_input || !busy || self.shared.uploading.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        // Not cleared: this is asked at each turn of a stream.
        let mut space = [MaybeUninit::uninit(); 8 * 1024];
        while self.ahead.len() <= AHEAD_MAX {
            let mut buffer = ReadBuf::uninit(&mut space);
            let read = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
            self.ahead.extend_from_slice(buffer.filled());
        }
        Poll::Ready(())
    }

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
        if !self.ahead.is_empty() {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead.split_to(length));
            self.awaits_input = false;
            self.shared.reads.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, buffer);
        self.awaits_input = read.is_pending();
        ready!(read)?;
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
        // And it does so at the end of each of its turns.
        if self.poll_left(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
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
