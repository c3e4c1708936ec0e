//! HTTP/1.1 towards an engine: kept connections, one request at a time on each, chunks taken apart in place.
//!
//! Owns kept connections and time limits, and in its parts writing a request, reading head and body; leaves what to
//! send and where the answer goes to `relay`. Invariant: a body that was cut short is an error, never an end, and a
//! connection that is in any doubt is not kept.
//!
//! It is not hyper because the relay wants bytes, not frames in tasks: this is the hot path of a node.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use rustix::net::RecvFlags;
use tokio::{net::TcpStream, time::Instant};
use umbel_wire::Patience;

use ticks::Ticks;

mod answer;
mod link;
mod part;
#[cfg(test)]
mod tests;
mod ticks;

pub(crate) use answer::{Answer, Bad, Head};
pub(crate) use link::{Link, Written, came_late};
pub(crate) use part::Part;

/// Unused connections are closed after this: below the 5 s after which uvicorn closes its end.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// An engine is on this host or near it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Unused connections kept to one engine: as many as streams of a connection to the edge would be waste.
const IDLE_MAX: usize = 64;
/// An engine that closes a connection behind its answer without having said so does it within this. Only connections that
/// have rested so long are used again, until one of them was found open.
const RESTED: Duration = Duration::from_millis(100);
/// One that is found closed within this was not closed for being unused.
const HASTY: Duration = Duration::from_secs(1);

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this host.
    Local(SocketAddr),
    /// `host:port` of the node's file.
    Named(String),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local(address) => address.fmt(f),
            Self::Named(name) => f.write_str(name),
        }
    }
}

/// The unused connections to one engine.
#[derive(Debug)]
pub(crate) struct Pool {
    place: Place,
    /// The same, as requests name it.
    host: String,
    idle: Mutex<Idle>,
    ticks: Arc<Ticks>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Since when each is unused; the newest one last.
    unused: Vec<Unused>,
    /// One that had rested was open: this engine keeps its connections, as far as is known.
    trusted: bool,
}

/// A connection, the timer of its reads, and since when it is unused.
type Unused = (TcpStream, Option<Patience>, Instant);

impl Idle {
    fn take(&mut self, now: Instant) -> Option<Unused> {
        if self.trusted {
            return self.unused.pop();
        }
        let rested = |(_, _, since): &Unused| now.duration_since(*since) >= RESTED;
        self.unused.iter().rposition(rested).map(|at| self.unused.remove(at))
    }
}

impl Pool {
    pub(crate) fn new(place: Place) -> Self {
        let host = place.to_string();
        Self { place, host, idle: Mutex::default(), ticks: Arc::default() }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The same, as requests name it.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    /// A kept connection that the engine has not closed. What the runtime has heard of the connection is believed if
    /// `believing`: a close since its last turn is not seen then, and the request may have to be sent once more.
    pub(crate) fn kept(&self, believing: bool) -> Option<Link> {
        let now = Instant::now();
        loop {
            let (stream, patience, since) = self.lock().take(now)?;
            let age = now.duration_since(since);
            let quiet = (believing && is_silent(&stream)) || is_quiet(&stream);
            if quiet && age < KEEP_ALIVE {
                if age >= RESTED {
                    self.lock().trusted = true;
                }
                return Some(Link::new(stream, patience, true, &self.ticks));
            }
            if !quiet && age < HASTY {
                self.doubt();
            }
        }
    }

    /// The engine closed a connection right behind an answer, and had not said that it would.
    pub(crate) fn doubt(&self) {
        self.lock().trusted = false;
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<Link> {
        let connecting = async {
            match &self.place {
                Place::Local(address) => TcpStream::connect(address).await,
                Place::Named(name) => TcpStream::connect(name.as_str()).await,
            }
        };
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no connection within 5 s"))??;
        // Heads and bodies go out whole; waiting for more would only add delay.
        stream.set_nodelay(true)?;
        Ok(Link::new(stream, None, false, &self.ticks))
    }

    /// Takes a connection back for the next request.
    pub(crate) fn keep(&self, link: Link) {
        let Some((stream, patience)) = link.into_kept() else { return };
        let mut idle = self.lock();
        if idle.unused.len() < IDLE_MAX {
            idle.unused.push((stream, patience, Instant::now()));
        }
    }

    /// Closes what was not used for [`KEEP_ALIVE`].
    pub(crate) fn prune(&self) {
        let now = Instant::now();
        self.lock().unused.retain(|(_, _, since)| now.duration_since(*since) < KEEP_ALIVE);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Whether the runtime has heard nothing of it since it was read last.
fn is_silent(stream: &TcpStream) -> bool {
    stream.poll_read_ready(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// Whether the kernel has nothing from it. Anything there means that it was closed, or that something came that nobody
/// asked for.
fn is_quiet(stream: &TcpStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(stream, &mut [0; 1], flags), Err(rustix::io::Errno::AGAIN))
}

/// Sends a small request and reads a small answer: for probes.
///
/// # Errors
/// A sentence without an address.
pub(crate) async fn ask(
    pool: &Pool,
    request: &[u8],
    limit: Duration,
    max: usize,
) -> Result<(u16, Vec<u8>), String> {
    let mut body = Vec::new();
    let status = ask_in_pieces(pool, request, limit, max, |piece| body.extend_from_slice(piece)).await?;
    Ok((status, body))
}

/// The same, with each piece of the answer's body as it comes.
///
/// # Errors
/// A sentence without an address.
pub(crate) async fn ask_in_pieces(
    pool: &Pool,
    request: &[u8],
    limit: Duration,
    max: usize,
    mut piece: impl FnMut(&[u8]),
) -> Result<u16, String> {
    let asking = async {
        let mut link = pool.connect().await.map_err(|error| match (error.kind(), pool.place()) {
            // A process of this host, which begins to listen when it has come so far.
            (io::ErrorKind::ConnectionRefused, Place::Local(_)) => "it does not listen yet".to_owned(),
            _ => says(&error),
        })?;
        link.write(request).await.map_err(|(error, _)| says(&error))?;
        link.may_take(limit, limit);
        let mut answer = Answer::new();
        let (mut head, mut length) = (None, 0);
        loop {
            let mut part = link.read().await.map_err(|error| says(&error))?;
            if part.is_empty() {
                answer.end().map_err(|bad| bad.to_string())?;
                break;
            }
            let mut bytes = part.bytes();
            if head.is_none() {
                let found = answer.head(bytes).map_err(|bad| bad.to_string())?;
                let Some((found, behind)) = found else { continue };
                head = Some(found);
                bytes = bytes.get_mut(behind..).unwrap_or_default();
            }
            let payload = answer.body(bytes);
            answer.check().map_err(|bad| bad.to_string())?;
            length += payload;
            if length > max {
                return Err(format!("its answer is longer than {max} bytes"));
            }
            piece(bytes.get(..payload).unwrap_or_default());
            if answer.is_complete() {
                break;
            }
        }
        head.map(|head| head.status).ok_or_else(|| "it closed the connection without an answer".to_owned())
    };
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| Err("it does not answer in time".into()))
}

/// An error of a socket in words, without the address.
pub(crate) fn says(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".into(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "it broke the connection".into(),
        io::ErrorKind::TimedOut => "no answer in time".into(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "its host is not reachable".into()
        }
        _ if error.raw_os_error().is_none() => "its name cannot be resolved".into(),
        kind => kind.to_string(),
    }
}
