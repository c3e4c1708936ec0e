//! A client's socket with what was read ahead and what is still to be written.
//!
//! Owns the bytes of a connection. Leaves their meaning to [`super::h1`] and their order to [`super::connection`].
//! Invariants: a connection that waits, for a request or for an engine, holds no buffer, only bytes that came and are not
//! understood yet; what is read ahead is bounded; a broken connection never looks like one that ended.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BufMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::io::poll_read_buf;

use super::connection::Shared;
use super::h1::{self, Head, Unread};

/// Of the socket: a stalled stream holds little. The kernel doubles it.
const SEND_BUFFER: usize = 64 * 1024;
/// What is read at once where nobody has said how much comes.
const READ_MAX: usize = 8 * 1024;
/// Input that is there when the connection ends is read up to this: the socket's close would throw the answer away
/// otherwise.
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

/// Reads once and shows what came, which is nothing at the input's end.
fn poll_glimpse<S: Socket, T>(
    socket: &mut S,
    cx: &mut Context<'_>,
    look: impl FnOnce(&[u8]) -> T,
) -> Poll<io::Result<T>> {
    // Not cleared: this is asked at each turn of a stream.
    let mut space = [MaybeUninit::uninit(); READ_MAX];
    let mut buffer = ReadBuf::uninit(&mut space);
    ready!(Pin::new(socket).poll_read(cx, &mut buffer))?;
    Poll::Ready(Ok(look(buffer.filled())))
}

/// The bytes of one connection.
pub(super) struct Io<'a, S: Socket> {
    socket: S,
    shared: &'a Shared,
    /// Input that came and was not taken yet.
    ahead: Vec<u8>,
    /// Up to here it is known to hold no whole head.
    looked: usize,
    /// What the client is owed, and how much of it is sent.
    out: Vec<u8>,
    sent: usize,
    /// Within TLS, what was written may still be on this side.
    flushed: bool,
}

impl<'a, S: Socket> Io<'a, S> {
    pub(super) fn new(socket: S, shared: &'a Shared) -> Self {
        let (ahead, out) = (Vec::new(), Vec::new());
        Self { socket, shared, ahead, looked: 0, out, sent: 0, flushed: true }
    }

    fn has_read(&self) {
        self.shared.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// The next request's head; `None` when the client has no more, or the edge takes no more.
    pub(super) fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Head>, Unread>> {
        if blank(&self.ahead) == self.ahead.len() {
            self.ahead = Vec::new();
        }
        loop {
            if !self.ahead.is_empty() && h1::may_be_whole(&self.ahead, self.looked) {
                if let Some((head, length)) = h1::read(&self.ahead)? {
                    self.take_off(length);
                    return Poll::Ready(Ok(Some(head)));
                }
                self.looked = self.ahead.len();
            }
            if self.ahead.is_empty() && self.shared.draining.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(None));
            }
            self.shared.partial.store(!self.ahead.is_empty(), Ordering::Relaxed);
            let (ahead, looked) = (&mut self.ahead, &mut self.looked);
            let came = ready!(poll_glimpse(&mut self.socket, cx, |read| {
                if read.is_empty() {
                    return Ok(Came::End);
                }
                if !ahead.is_empty() {
                    ahead.extend_from_slice(read);
                    return Ok(Came::Part);
                }
                // What old clients send behind a body begins no request.
                let read = read.get(blank(read)..).unwrap_or_default();
                if read.is_empty() {
                    return Ok(Came::Nothing);
                }
                // The usual request is here with its first byte, and is kept nowhere else.
                let whole = h1::read(read)?;
                let (head, length) = whole.map_or((None, 0), |(head, length)| (Some(head), length));
                *ahead = read.get(length..).unwrap_or_default().to_vec();
                *looked = if head.is_some() { 0 } else { ahead.len() };
                Ok(head.map_or(Came::Part, Came::Whole))
            }));
            match came {
                Ok(Ok(Came::Nothing)) => {}
                Ok(Ok(Came::Part)) => self.has_read(),
                Ok(Ok(Came::Whole(head))) => {
                    self.has_read();
                    return Poll::Ready(Ok(Some(head)));
                }
                Ok(Err(unread)) => return Poll::Ready(Err(unread)),
                Ok(Ok(Came::End)) | Err(_) => return Poll::Ready(Ok(None)),
            }
        }
    }

    fn take_off(&mut self, length: usize) {
        self.looked = 0;
        if length >= self.ahead.len() {
            self.ahead = Vec::new();
        } else {
            self.ahead.drain(..length);
        }
    }

    /// Whether there is input that was read and not taken.
    pub(super) fn has_ahead(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// Appends up to `most` bytes of input to `to`, and says how many; 0 at the input's end. What is read from the socket goes
    /// into the room that `to` has.
    pub(super) fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut Vec<u8>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let here = self.ahead.len().min(most);
        if here > 0 {
            // A buffer that has its room keeps it.
            if here == self.ahead.len() && to.capacity() == 0 {
                *to = std::mem::take(&mut self.ahead);
            } else {
                to.extend_from_slice(self.ahead.get(..here).unwrap_or_default());
                self.take_off(here);
            }
            return Poll::Ready(Ok(here));
        }
        let room = (to.capacity() - to.len()).clamp(1, most);
        let read = ready!(poll_read_buf(Pin::new(&mut self.socket), cx, &mut to.limit(room)))?;
        self.has_read();
        Poll::Ready(Ok(read))
    }

    /// Shows input to `take`, which says how much of it is taken; nothing at the input's end.
    pub(super) fn poll_input<T>(
        &mut self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&[u8]) -> (usize, T),
    ) -> Poll<io::Result<T>> {
        if !self.ahead.is_empty() {
            let (taken, result) = take(&self.ahead);
            self.take_off(taken);
            return Poll::Ready(Ok(result));
        }
        let ahead = &mut self.ahead;
        let result = ready!(poll_glimpse(&mut self.socket, cx, |read| {
            let (taken, result) = take(read);
            *ahead = read.get(taken..).unwrap_or_default().to_vec();
            result
        }))?;
        self.has_read();
        Poll::Ready(Ok(result))
    }

    /// Whether the client left while nobody reads of it. What it sends meanwhile is kept.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.ahead.len() <= AHEAD_MAX {
            let ahead = &mut self.ahead;
            let look = |read: &[u8]| {
                ahead.extend_from_slice(read);
                read.is_empty()
            };
            if ready!(poll_glimpse(&mut self.socket, cx, look)).unwrap_or(true) {
                return Poll::Ready(());
            }
        }
        Poll::Ready(())
    }

    /// What is to be written next.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// What is to be written and has not been taken by the socket.
    pub(super) fn owed(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Writes all that is owed. While it waits, nothing is to be added: what is sent is let go of only with the rest.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.owed() > 0 {
            self.flushed = false;
            let rest = self.out.get(self.sent..).unwrap_or_default();
            let result = Pin::new(&mut self.socket).poll_write(cx, rest);
            match ready!(self.watched(result))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.sent += written,
            }
        }
        self.out.clear();
        self.sent = 0;
        if !self.flushed {
            let result = Pin::new(&mut self.socket).poll_flush(cx);
            ready!(self.watched(result))?;
            self.flushed = true;
        }
        Poll::Ready(Ok(()))
    }

    fn watched<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
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

    /// Nothing is owed any more: the buffer that it was written in is not needed before the next answer.
    pub(super) fn rest(&mut self) {
        self.out = Vec::new();
        self.sent = 0;
    }

    /// Whether the connection breaks when it ends now, with a RST and not with a FIN: where its end is the end of an answer, a
    /// clean one would make a cut answer look whole. It is the kernel that does so, also when the process ends.
    pub(super) fn breaks(&self, breaks: bool) {
        let _ = socket2::SockRef::from(self.socket.tcp()).set_linger(breaks.then_some(Duration::ZERO));
    }

    /// Ends the connection so that what was written arrives.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if ready!(Pin::new(&mut self.socket).poll_shutdown(cx)).is_err() {
            return Poll::Ready(());
        }
        // Reads and forgets what has come, without waiting for more.
        for _ in 0..DISCARD_MAX / READ_MAX {
            let look = |read: &[u8]| read.is_empty();
            if !matches!(poll_glimpse(&mut self.socket, cx, look), Poll::Ready(Ok(false))) {
                break;
            }
        }
        Poll::Ready(())
    }
}

/// What a read brought of a head.
enum Came {
    Whole(Head),
    Part,
    Nothing,
    End,
}

/// How many bytes of line ends stand at the beginning.
fn blank(input: &[u8]) -> usize {
    input.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    /// Takes whatever is written, and never says that it is on its way.
    struct Unflushed(TcpStream);

    impl Socket for Unflushed {
        fn tcp(&self) -> &TcpStream {
            &self.0
        }
    }

    impl AsyncRead for Unflushed {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Unflushed {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn what_the_socket_took_is_not_kept() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = Unflushed(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
        let shared = Shared::default();
        let mut io = Io::new(socket, &shared);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        for _ in 0..3 {
            io.out().extend_from_slice(&[b'x'; 100]);
            assert!(io.poll_write(&mut cx).is_pending(), "it waits for the client");
            assert!(shared.blocked.load(Ordering::Relaxed) && io.out().is_empty());
        }
    }
}
