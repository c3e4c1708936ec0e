//! One connection to an engine: a request out, the answer in.
//!
//! Owns the socket and who waits for it: the runtime, or for a fast stream the clock. Leaves framing to `answer`.
//! Invariant: bytes come out in the order in which the kernel has them, whoever waits; a full buffer is followed by
//! another read at once.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use rustix::{io::Errno, net::RecvFlags};
use tokio::{
    io::{AsyncRead, Interest, ReadBuf},
    net::TcpStream,
    time::Instant,
};
use umbel_wire::Patience;

use super::{
    Part,
    ticks::{Flow, Ticks},
};

/// Behind the end of a connection: time for the reset that says that a request came after it. Of a host near by.
const RESET_WAIT: Duration = Duration::from_millis(50);

/// A read may take this where nobody said how long.
const UNSAID: Duration = Duration::from_secs(300);

/// One connection to an engine. Dropping it closes it, which is how a request is cancelled.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Socket,
    reused: bool,
    /// The request did not go out whole: what the engine thinks of the rest is not known.
    last: bool,
    flow: Flow,
    patience: Option<Patience>,
    /// How long a read may take now, and when the answer has begun.
    limits: (Duration, Duration),
}

#[derive(Debug)]
enum Socket {
    /// The runtime watches it.
    Watched(TcpStream),
    /// Nobody does: it is read at each tick, or at once if the last read left something.
    Timed { socket: std::net::TcpStream, more: bool },
    /// A change between them failed.
    Lost,
}

/// How a write of a request ended.
#[derive(Debug)]
pub(crate) enum Written {
    /// All of it went out.
    All,
    /// The engine answers or closes before it has all: what it says comes next.
    Early,
}

impl Link {
    pub(super) fn new(
        stream: TcpStream,
        patience: Option<Patience>,
        reused: bool,
        ticks: &Arc<Ticks>,
    ) -> Self {
        let (socket, flow, limits) = (Socket::Watched(stream), Flow::new(ticks), (UNSAID, UNSAID));
        Self { socket, reused, last: false, flow, patience, limits }
    }

    /// A read may take `limit`, and `later` from [`Self::begun`] on.
    pub(crate) fn may_take(&mut self, limit: Duration, later: Duration) {
        self.limits = (limit, later);
    }

    /// What was said so.
    pub(crate) fn limits(&self) -> (Duration, Duration) {
        self.limits
    }

    /// The answer has begun.
    pub(crate) fn begun(&mut self) {
        self.limits.0 = self.limits.1;
    }

    /// It carried a request before.
    pub(crate) fn is_reused(&self) -> bool {
        self.reused
    }

    /// It cannot carry another request.
    pub(crate) fn not_again(&mut self) {
        self.last = true;
    }

    /// What it becomes when its stream has been fast for long enough.
    #[cfg(test)]
    pub(super) fn hurry(&mut self) {
        let now = Instant::now();
        for _ in 0..100 {
            self.flow.begins(now);
        }
    }

    #[cfg(test)]
    pub(super) fn is_timed(&self) -> bool {
        matches!(self.socket, Socket::Timed { .. })
    }

    /// The connection, if it can carry another request.
    pub(super) fn into_kept(self) -> Option<(TcpStream, Option<Patience>)> {
        let stream = match self.socket {
            _ if self.last => None,
            Socket::Watched(stream) => Some(stream),
            Socket::Timed { socket, .. } => TcpStream::from_std(socket).ok(),
            Socket::Lost => None,
        };
        Some((stream?, self.patience))
    }

    fn watched(&self) -> io::Result<&TcpStream> {
        match &self.socket {
            Socket::Watched(stream) => Ok(stream),
            // Requests are written before their answers are read.
            Socket::Timed { .. } | Socket::Lost => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Writes bytes while watching for an early answer.
    ///
    /// # Errors
    /// The error and how many bytes the kernel had taken before it.
    pub(crate) async fn write(&self, bytes: &[u8]) -> Result<Written, (io::Error, usize)> {
        let mut done = 0;
        let stream = self.watched().map_err(|error| (error, done))?;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match stream.try_write(rest) {
                Ok(0) => return Err((io::ErrorKind::WriteZero.into(), done)),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // Apart: nearly every request goes out at once, and its stream shall be small.
                    match Box::pin(self.room(stream)).await {
                        Ok(Written::All) => {}
                        Ok(Written::Early) => return Ok(Written::Early),
                        Err(error) => return Err((error, done)),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((error, done)),
            }
        }
        Ok(Written::All)
    }

    /// Waits until the kernel takes more, or the engine does not want it.
    async fn room(&self, stream: &TcpStream) -> io::Result<Written> {
        tokio::select! {
            biased;
            ready = stream.writable() => ready.map(|()| Written::All),
            () = self.answers() => Ok(Written::Early),
        }
    }

    /// Resolves when the engine sent something, closed, or broke the connection.
    pub(crate) async fn answers(&self) {
        // What it is will be seen by the read that follows.
        if let Ok(stream) = self.watched() {
            let _ = stream.peek(&mut [0; 1]).await;
        }
    }

    /// The connection ended without a byte of an answer: whether the engine had closed it before all of the request came to
    /// it, so that it cannot have read all. Its end came first then, and behind it a reset, since there was nobody for what
    /// came. A reset alone says nothing: an engine may have read everything and break off so.
    pub(crate) async fn had_ended(&self) -> bool {
        let Ok(stream) = self.watched() else { return false };
        let told = tokio::time::timeout(RESET_WAIT, stream.ready(Interest::ERROR));
        told.await.is_ok() && matches!(stream.take_error(), Ok(Some(error)) if came_late(&error))
    }

    /// One read; an empty part is the end of the input.
    ///
    /// # Errors
    /// `TimedOut` when nothing came in time, else the socket's error.
    pub(crate) async fn read(&mut self) -> io::Result<Part> {
        let (now, (limit, later)) = (Instant::now(), self.limits);
        let shortest = limit.min(later);
        let patience = self.patience.get_or_insert_with(|| Patience::new(now, shortest));
        patience.shortest(shortest);
        patience.begin(now, limit);
        if let Socket::Watched(_) = &self.socket {
            self.flow.begins(now);
            if self.flow.is_timed() {
                self.socket = match std::mem::replace(&mut self.socket, Socket::Lost) {
                    Socket::Watched(stream) => Socket::Timed { socket: stream.into_std()?, more: false },
                    other => other,
                };
            }
        }
        std::future::poll_fn(|cx| self.poll_read(cx)).await
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Part>> {
        let mut part = Part::new();
        while let Socket::Timed { socket, more } = &mut self.socket {
            if !*more {
                ready!(self.flow.poll_tick(cx));
            }
            match rustix::net::recv(&*socket, part.space(), RecvFlags::DONTWAIT) {
                Ok((count, _)) => {
                    *more = count == part.space().len();
                    self.flow.brought(true);
                    return Poll::Ready(Ok(part.filled(count)));
                }
                Err(Errno::AGAIN | Errno::INTR) => *more = false,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            if self.flow.brought(false) {
                continue;
            }
            self.socket = match std::mem::replace(&mut self.socket, Socket::Lost) {
                Socket::Timed { socket, .. } => Socket::Watched(TcpStream::from_std(socket)?),
                other => other,
            };
        }
        let Socket::Watched(stream) = &mut self.socket else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        let mut target = ReadBuf::new(part.space());
        match Pin::new(stream).poll_read(cx, &mut target) {
            Poll::Ready(result) => {
                let count = target.filled().len();
                Poll::Ready(result.map(|()| part.filled(count)))
            }
            Poll::Pending => {
                let over = self.patience.as_mut().is_some_and(|patience| patience.poll(cx).is_ready());
                if over { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
            }
        }
    }
}

/// What a connection says that was reset after the other side had ended it: what was written came too late.
pub(crate) fn came_late(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::BrokenPipe
}
