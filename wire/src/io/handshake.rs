//! Frames before the session: read one within a bound, write one, say farewell.
//!
//! Invariant: memory grows with what has arrived, never with what a length announces.

use std::io::{self, Write as _};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::frame::{self, FrameError, PREFIX};
use crate::io::options;
use crate::io::socket::Socket;
use crate::limits;

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
    let mut piece = [0; 4096];
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
        match stream.read(&mut piece).await {
            Ok(0) => return Err(FirstError::Io(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => bytes.extend_from_slice(piece.get(..count).unwrap_or_default()),
            Err(error) => return Err(FirstError::Io(error)),
        }
    }
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
pub(crate) async fn farewell_tls(mut stream: TlsStream<Socket<TcpStream>>, bytes: &[u8]) {
    options::last_write(stream.get_ref().0.transport());
    // What TLS takes waits in it until it is closed; a long frame's rest is written as usual.
    let taken = stream.get_mut().1.writer().write(bytes).unwrap_or_default();
    farewell(stream, bytes.get(taken..).unwrap_or_default()).await;
}

/// Reads and throws away, up to a bound.
pub(crate) async fn drain<T: AsyncRead + Unpin>(read: &mut T) {
    let mut buffer = [0; 2048];
    let mut left = limits::FAREWELL_BYTES;
    while let Ok(count @ 1..) = read.read(&mut buffer).await {
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
