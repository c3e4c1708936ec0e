//! Frames before the session: read one within a bound, write one, say farewell.
//!
//! Invariant: memory grows with what has arrived, never with what a length announces.

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::frame::{self, FrameError, PREFIX};
use crate::io::options;
use crate::io::socket::Socket;
use crate::limits;

/// Most that is read at once before the session.
const PIECE: usize = 4096;

/// Why there is no first frame.
#[derive(Debug)]
pub(crate) enum FirstError {
    /// Too long, or malformed.
    Frame(FrameError),
    /// The input ended or failed.
    Io(io::Error),
}

/// Reads one frame of at most `max` bytes: its body, and the bytes behind it.
pub(crate) async fn read_frame<T: AsyncRead + Unpin>(
    stream: &mut T,
    max: usize,
) -> Result<(Vec<u8>, Vec<u8>), FirstError> {
    let mut bytes = Vec::new();
    loop {
        match frame::split(&bytes, max) {
            Err(error) => return Err(FirstError::Frame(error)),
            Ok(Some((_, used))) => {
                let early = bytes.split_off(used);
                bytes.drain(..PREFIX);
                return Ok((bytes, early));
            }
            Ok(None) => {}
        }
        match read_piece(stream, |piece| bytes.extend_from_slice(piece)).await {
            Ok(0) => return Err(FirstError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) => return Err(FirstError::Io(error)),
        }
    }
}

/// Takes what has come, by way of the stack: a peer that is waited for costs no buffer. 0: the end.
async fn read_piece<T: AsyncRead + Unpin>(stream: &mut T, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut space = [MaybeUninit::uninit(); PIECE];
        let mut piece = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *stream).poll_read(cx, &mut piece))?;
        take(piece.filled());
        Poll::Ready(Ok(piece.filled().len()))
    })
    .await
}

/// Writes one frame.
pub(crate) async fn write_frame<T: AsyncWrite + Unpin>(stream: &mut T, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Writes a last frame, half-closes, and reads until the peer closes too: closing at once, with input unread, would
/// make the kernel send RST and the peer lose the reason. Takes up to 2 s for each half.
pub(crate) async fn farewell<T: AsyncRead + AsyncWrite + Unpin>(mut stream: T, bytes: &[u8]) {
    // Not flushed in between: the frame and the end of TLS go out together.
    let write = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    if !matches!(timeout(limits::FAREWELL, write).await, Ok(Ok(()))) {
        return;
    }
    let _ = timeout(limits::FAREWELL, drain(&mut stream)).await;
}

/// The same over TLS, in one write and one packet: nothing follows such an answer but the end, and a site that comes up
/// gives a thousand of them in a second.
pub(crate) async fn farewell_tls(mut stream: Box<TlsStream<Socket<TcpStream>>>, bytes: &[u8]) {
    options::last_write(stream.get_ref().0.transport());
    // What TLS takes waits in it until it is closed; a long frame's rest is written as usual.
    let taken = stream.get_mut().1.writer().write(bytes).unwrap_or_default();
    farewell(stream, bytes.get(taken..).unwrap_or_default()).await;
}

/// Reads and throws away, up to a bound.
pub(crate) async fn drain<T: AsyncRead + Unpin>(read: &mut T) {
    let mut left = limits::FAREWELL_BYTES;
    while let Ok(count @ 1..) = read_piece(read, |_| ()).await {
        left = left.saturating_sub(count);
        if left == 0 {
            return;
        }
    }
}

/// A future that must not take longer than one step of a handshake.
pub(crate) async fn step<R>(work: impl Future<Output = io::Result<R>>) -> io::Result<R> {
    within(limits::STEP_TIMEOUT, work).await
}

async fn within<R>(limit: Duration, work: impl Future<Output = io::Result<R>>) -> io::Result<R> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}
