//! The two tasks of a connection: bytes from the socket into the session, and batches from the session into the
//! socket.
//!
//! The reader waits only for the socket, the session's next deadline and the end. The writer waits only for work
//! and the socket; it has no timer: what arrives during a write is the next batch. Invariant: the handler hears
//! `on_closed` exactly once, after everything else; the socket closes within 2 s of that.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep, timeout, timeout_at};

use crate::clock;
use crate::close::CloseReason;
use crate::io::handle::{Connection, Handler, IncomingRequest};
use crate::io::handshake::drain;
use crate::io::pool;
use crate::io::socket::Traffic;
use crate::io::streams::IncomingStream;
use crate::io::tasks::contained_now;
use crate::limits;
use crate::session::incoming::Output;

/// A transport a session can run on.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Transport for T {}

/// Starts the tasks. `early` are bytes that came with the handshake.
pub(crate) fn start<T: Transport>(
    transport: T,
    traffic: Arc<Traffic>,
    early: Vec<u8>,
    connection: &Connection,
    handler: Arc<dyn Handler>,
) {
    let (read, write) = tokio::io::split(transport);
    let writer = tokio::spawn(write_loop(write, connection.clone()));
    let reader = Reader {
        read,
        traffic,
        fresh: !early.is_empty(),
        partial: early,
        sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
        connection: connection.clone(),
    };
    tokio::spawn(read_loop(reader, handler, writer));
}

struct Reader<T> {
    read: ReadHalf<T>,
    traffic: Arc<Traffic>,
    /// The beginning of a frame whose rest has not come.
    partial: Vec<u8>,
    /// `partial` may hold whole frames: it came with the handshake.
    fresh: bool,
    sleep: Pin<Box<Sleep>>,
    connection: Connection,
}

/// Why the reader looks up.
enum Turn {
    /// There are outputs.
    Outputs,
    /// The input ended, with the transport's reason if it has one.
    Ended(Option<String>),
    /// The session is closed.
    Closed,
}

async fn read_loop<T: Transport>(
    mut reader: Reader<T>,
    handler: Arc<dyn Handler>,
    mut writer: JoinHandle<()>,
) {
    let connection = reader.connection.clone();
    let mut outputs = Vec::new();
    loop {
        let turn = std::future::poll_fn(|cx| reader.poll_turn(cx, &mut outputs)).await;
        let taken = contained_now(|| {
            for output in outputs.drain(..) {
                dispatch(&connection, &*handler, output);
            }
        });
        if taken.is_err() {
            // What it should have taken is lost: the peer, which comes again, begins anew.
            connection.close(CloseReason::Broke);
        }
        // Outputs of a burst must not pin memory on a quiet connection.
        outputs.shrink_to(16);
        match turn {
            Turn::Outputs => {}
            Turn::Ended(what) => connection.with(|session| session.input_ended(what)),
            Turn::Closed => break,
        }
        if connection.is_closed() {
            break;
        }
    }
    let reason = connection.with(|session| session.closed().cloned()).unwrap_or(CloseReason::Truncated);
    // Whatever it does: the socket is closed below.
    let _ = contained_now(|| handler.on_closed(&connection, &reason));
    drop(handler);
    // Unread input at close would make the kernel send RST, and the peer lose the reason.
    let until = Instant::now() + limits::FAREWELL;
    let _ = timeout_at(until, drain(&mut reader.read)).await;
    if timeout_at(until, &mut writer).await.is_err() {
        writer.abort();
        let _ = timeout(limits::FAREWELL, writer).await;
    }
    drop(reader.read);
    connection.0.gone.cancel();
}

impl<T: AsyncRead + Unpin + AsyncWrite> Reader<T> {
    fn poll_turn(&mut self, cx: &mut Context<'_>, outputs: &mut Vec<Output>) -> Poll<Turn> {
        let mut buffer = pool::take();
        let turn = self.poll_with(cx, &mut buffer, outputs);
        pool::give(buffer);
        turn
    }

    fn poll_with(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        outputs: &mut Vec<Output>,
    ) -> Poll<Turn> {
        loop {
            let kept = self.partial.len();
            if let Some(front) = buffer.get_mut(..kept) {
                front.copy_from_slice(&self.partial);
            }
            let (filled, state) = self.read_into(cx, buffer, kept);
            if filled > kept || std::mem::take(&mut self.fresh) {
                let bytes = buffer.get(..filled).unwrap_or_default();
                let now = clock::now();
                let used = self.connection.with(|session| session.read(now, bytes, outputs));
                self.partial.clear();
                self.partial.extend_from_slice(bytes.get(used..).unwrap_or_default());
                if self.partial.is_empty() && self.partial.capacity() > 4096 {
                    self.partial = Vec::new();
                }
            }
            match state {
                Poll::Ready(Some(ended)) => return Poll::Ready(Turn::Ended(ended)),
                _ if !outputs.is_empty() => return Poll::Ready(Turn::Outputs),
                Poll::Ready(None) => {}
                Poll::Pending => return self.poll_idle(cx),
            }
        }
    }

    /// Reads until the buffer is nearly full or the transport would block. `Ready(None)`: full.
    fn read_into(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        mut filled: usize,
    ) -> (usize, Poll<Option<Option<String>>>) {
        // A TLS record is at most 16 KiB of plaintext: with less space the rest would wait inside TLS.
        while buffer.len() - filled >= 16 * 1024 {
            let Some(space) = buffer.get_mut(filled..) else { break };
            let mut read = ReadBuf::new(space);
            match Pin::new(&mut self.read).poll_read(cx, &mut read) {
                Poll::Pending => return (filled, Poll::Pending),
                Poll::Ready(Ok(())) if read.filled().is_empty() => return (filled, Poll::Ready(Some(None))),
                Poll::Ready(Ok(())) => filled += read.filled().len(),
                Poll::Ready(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return (filled, Poll::Ready(Some(None)));
                }
                Poll::Ready(Err(error)) => return (filled, Poll::Ready(Some(Some(error.to_string())))),
            }
        }
        (filled, Poll::Ready(None))
    }

    /// The socket has nothing: judge, and sleep until it has, or the next deadline, or the end.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        let (heard, accepted) = (self.traffic.read_at(), self.traffic.written_at());
        loop {
            let deadline = self.connection.with(|session| {
                session.heard(heard);
                session.accepted(accepted);
                session.closed().is_none().then(|| session.park_reader(cx.waker()))
            });
            let Some(deadline) = deadline else { return Poll::Ready(Turn::Closed) };
            let deadline = Instant::from_std(deadline);
            // An earlier deadline than needed costs one idle look; a later one would be missed.
            if self.sleep.is_elapsed() || deadline < self.sleep.deadline() {
                self.sleep.as_mut().reset(deadline);
            }
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let now = clock::now();
            self.connection.with(|session| session.tick(now));
        }
    }
}

fn dispatch(connection: &Connection, handler: &dyn Handler, output: Output) {
    match output {
        Output::Request(request) => {
            handler.on_request(connection, IncomingRequest::new(connection.clone(), request));
        }
        Output::Event { sequence, event, key, payload } => {
            let result = handler.on_event(connection, event, &key, &payload);
            connection.with(|session| session.acknowledge(sequence, result.err()));
        }
        Output::Ack { event, key, error } => {
            handler.on_ack(connection, event, &key, error.map_or(Ok(()), Err));
        }
        Output::Stream(stream) => {
            handler.on_stream(connection, IncomingStream::new(connection.clone(), stream))
        }
        Output::Goaway(goaway) => handler.on_goaway(connection, &goaway),
    }
}

/// Lets every task that is ready now run first. Unlike `yield_now` it does not make the runtime look at its sockets,
/// which would be a system call for each lone request.
async fn step_back() {
    let mut stepped = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut stepped, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A batch that follows the last one within this time waits until the runtime has looked at its sockets: what they
/// bring goes along. Shorter than any round trip, so that no lone request meets it.
const BUSY: Duration = Duration::from_micros(50);

async fn write_loop<T: Transport>(mut write: WriteHalf<T>, connection: Connection) {
    let mut busy = false;
    let mut last: Option<std::time::Instant> = None;
    loop {
        let (mut parked, mut alone) = (false, false);
        let more = std::future::poll_fn(|cx| {
            connection.with(|session| {
                if std::mem::take(&mut busy) {
                    session.written();
                }
                if session.has_output() {
                    alone = session.is_alone();
                    Poll::Ready(true)
                } else if session.closed().is_some() {
                    Poll::Ready(false)
                } else {
                    parked = true;
                    session.park_writer(cx.waker());
                    Poll::Pending
                }
            })
        })
        .await;
        if !more {
            break;
        }
        let mut now = clock::now();
        if parked && last.is_some_and(|last| now.saturating_duration_since(last) < BUSY) {
            tokio::task::yield_now().await;
            now = clock::now();
        } else if parked && !alone {
            // Whoever was woken together with this task adds to the same batch.
            step_back().await;
        }
        let mut batch = pool::take_batch();
        last = Some(now);
        connection.with(|session| session.fill(now, &mut batch));
        let result = async {
            write.write_all(&batch).await?;
            // TLS keeps the last record back until it is flushed.
            write.flush().await
        }
        .await;
        pool::give_batch(batch);
        busy = true;
        if let Err(error) = result {
            let until = clock::now() + limits::FAREWELL;
            connection.with(|session| session.failing(until, error.to_string()));
            return;
        }
    }
    let _ = write.shutdown().await;
}

#[cfg(test)]
mod tests;
