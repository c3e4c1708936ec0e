//! A byte transport as the session wants it: counted, and read in large pieces under TLS.
//!
//! TLS asks for few bytes at a time, so one read of the socket serves several of its reads; the buffer belongs to
//! the thread and stays with a connection only while bytes wait in it. Invariant: what was read is given in order
//! before the socket is read again.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock;
use crate::io::pool::{self, Buffer};

/// When bytes last moved, as the socket saw it: TLS may still hold them back from the session.
#[derive(Debug)]
pub(crate) struct Traffic {
    origin: Instant,
    read_at: AtomicU64,
    written_at: AtomicU64,
}

impl Traffic {
    /// Starts now.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { origin: clock::now(), read_at: AtomicU64::new(0), written_at: AtomicU64::new(0) })
    }

    fn stamp(&self, cell: &AtomicU64) {
        let since = clock::now().saturating_duration_since(self.origin);
        cell.store(since.as_nanos() as u64, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn read_now(&self) {
        self.stamp(&self.read_at);
    }

    /// When bytes last arrived.
    pub(crate) fn read_at(&self) -> Instant {
        self.origin + Duration::from_nanos(self.read_at.load(Ordering::Relaxed))
    }

    /// When the socket last accepted bytes.
    pub(crate) fn written_at(&self) -> Instant {
        self.origin + Duration::from_nanos(self.written_at.load(Ordering::Relaxed))
    }
}

/// The transport under TLS.
pub(crate) struct Socket<T> {
    inner: T,
    traffic: Arc<Traffic>,
    waiting: Option<Waiting>,
}

/// Bytes read ahead.
struct Waiting {
    buffer: Buffer,
    start: usize,
    end: usize,
}

impl<T> Socket<T> {
    /// Wraps a transport.
    pub(crate) fn new(inner: T, traffic: Arc<Traffic>) -> Self {
        Self { inner, traffic, waiting: None }
    }

    /// What is under it.
    pub(crate) fn transport(&self) -> &T {
        &self.inner
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Socket<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut waiting = match this.waiting.take() {
            Some(waiting) => waiting,
            None => {
                let mut buffer = pool::take();
                let mut read = ReadBuf::new(&mut buffer);
                let result = Pin::new(&mut this.inner).poll_read(cx, &mut read);
                let end = read.filled().len();
                if !matches!(result, Poll::Ready(Ok(()))) || end == 0 {
                    pool::give(buffer);
                    return result;
                }
                this.traffic.stamp(&this.traffic.read_at);
                Waiting { buffer, start: 0, end }
            }
        };
        let count = out.remaining().min(waiting.end - waiting.start);
        out.put_slice(waiting.buffer.get(waiting.start..waiting.start + count).unwrap_or_default());
        waiting.start += count;
        if waiting.start == waiting.end {
            pool::give(waiting.buffer);
        } else {
            this.waiting = Some(waiting);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Socket<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write(cx, bytes))?;
        this.traffic.stamp(&this.traffic.written_at);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // TLS gives its one record so; the kernel takes it with less ado as plain bytes.
        if let [piece] = pieces {
            return self.poll_write(cx, piece);
        }
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, pieces))?;
        this.traffic.stamp(&this.traffic.written_at);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
