//! Dialing once: look-up, connecting, TLS, HELLO.
//!
//! Leaves keeping a connection to `keep`. Invariant: only WELCOME makes a connection; a finished TLS handshake
//! means nothing, since the acceptor judges the certificate after it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use rustls_pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::close::CloseReason;
use crate::error::{Code, Error};
use crate::ids::{Attempt, InstanceId};
use crate::io::handle::{Connection, Handler};
use crate::io::handshake::{FirstError, read_frame, step, write_frame};
use crate::io::socket::{Socket, Traffic};
use crate::io::{driver, options};
use crate::limits;
use crate::session::handshake::{Answer, hello, read_answer};
pub use crate::session::handshake::{Intervals, Purpose, Rejection, Welcome};
use crate::session::{Settings, Side};
use crate::tls;
use crate::version::VersionRange;

/// An address that does not answer holds up the next one for so long only.
const STAGGER: Duration = Duration::from_millis(250);

/// Where to dial. Asked for anew for each dial.
#[derive(Clone)]
pub struct DialTarget {
    /// `host:port` each; every address of every one is tried, IPv6 and IPv4.
    pub addresses: Vec<String>,
    /// The name the server's certificate must have, whatever address is dialed.
    pub server_name: String,
    /// Trust and identity.
    pub tls: Arc<rustls::ClientConfig>,
}

/// The HELLO to send. The attempt is filled in by the dialer.
#[derive(Clone)]
pub struct HelloOut {
    /// What it is for.
    pub purpose: Purpose,
    /// Versions of the boundary's protocol this side speaks.
    pub versions: VersionRange,
    /// Random per process start.
    pub instance: InstanceId,
    /// The typed message, at most 60 KiB (16 KiB if the registry may not know the key).
    pub payload: Vec<u8>,
}

/// How far a dial came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DialStep {
    /// Resolving the name.
    Lookup,
    /// TCP.
    Connect,
    /// TLS: trust, name, time, ALPN.
    Tls,
    /// HELLO and its answer.
    Hello,
}

/// Why a dial failed. `message` names what this host dialed and is for its own log and status.
#[derive(Clone, Debug)]
pub struct DialError {
    /// How far it came.
    pub step: DialStep,
    /// For people.
    pub message: String,
    /// What the acceptor said, if it said something.
    pub rejection: Option<Rejection>,
}

impl DialError {
    fn new(step: DialStep, message: impl Into<String>) -> Self {
        Self { step, message: message.into(), rejection: None }
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DialError {}

/// Dials once; `handler` looks at WELCOME and gives the connection its handler. Nothing is read before it returns.
///
/// # Errors
/// What failed, at which step, and what the acceptor said.
pub async fn dial_once(
    target: DialTarget,
    hello: HelloOut,
    handler: impl FnOnce(&Connection, &Welcome) -> Result<Arc<dyn Handler>, Error> + Send,
) -> Result<(Connection, Welcome), DialError> {
    dial_attempt(target, hello, Attempt(1), handler).await
}

/// The same as a later dial of this process: a higher attempt takes over from a lower one of the same instance.
///
/// # Errors
/// As [`dial_once`].
pub async fn dial_attempt(
    target: DialTarget,
    hello: HelloOut,
    attempt: Attempt,
    handler: impl FnOnce(&Connection, &Welcome) -> Result<Arc<dyn Handler>, Error> + Send,
) -> Result<(Connection, Welcome), DialError> {
    dial(target, hello, attempt, Arc::default(), handler).await
}

/// As [`dial_attempt`], over a TCP connection that the caller opened: from an address of its choice, or through a proxy.
///
/// # Errors
/// As [`dial_once`].
pub async fn dial_over(
    tcp: TcpStream,
    target: DialTarget,
    hello: HelloOut,
    attempt: Attempt,
    handler: impl FnOnce(&Connection, &Welcome) -> Result<Arc<dyn Handler>, Error> + Send,
) -> Result<(Connection, Welcome), DialError> {
    options::prepare(&tcp).map_err(|error| DialError::new(DialStep::Connect, error.to_string()))?;
    greet(tcp, target, hello, attempt, Arc::default(), handler).await
}

pub(crate) async fn dial(
    target: DialTarget,
    out: HelloOut,
    attempt: Attempt,
    sequence: Arc<AtomicU64>,
    handler: impl FnOnce(&Connection, &Welcome) -> Result<Arc<dyn Handler>, Error> + Send,
) -> Result<(Connection, Welcome), DialError> {
    let tcp = connect(&target.addresses).await?;
    greet(tcp, target, out, attempt, sequence, handler).await
}

async fn greet(
    tcp: TcpStream,
    target: DialTarget,
    out: HelloOut,
    attempt: Attempt,
    sequence: Arc<AtomicU64>,
    handler: impl FnOnce(&Connection, &Welcome) -> Result<Arc<dyn Handler>, Error> + Send,
) -> Result<(Connection, Welcome), DialError> {
    let bytes = hello(out.purpose, out.versions, out.instance, attempt, &out.payload)
        .map_err(|error| DialError::new(DialStep::Hello, error.message))?;
    let traffic = Traffic::new();
    let mut stream = secure(tcp, &target, traffic.clone()).await?;
    let (welcome, early) = exchange(&mut stream, &bytes).await?;
    let settings = Settings { max_streams: welcome.max_streams, sequence, ..Settings::new(Side::Dialer) };
    let connection = Connection::new(settings);
    connection.welcomed(welcome.generation, welcome.protocol);
    connection.set_reconnect_spread(welcome.reconnect_spread);
    match handler(&connection, &welcome) {
        Ok(handler) => {
            driver::start(stream, traffic, early, &connection, handler);
            Ok((connection, welcome))
        }
        Err(error) => {
            connection.close(CloseReason::Protocol(error.message.clone()));
            connection.0.gone.cancel();
            Err(DialError::new(DialStep::Hello, error.to_string()))
        }
    }
}

/// HELLO, and the acceptor's answer with the bytes behind it.
async fn exchange(
    stream: &mut TlsStream<Socket<TcpStream>>,
    hello: &[u8],
) -> Result<(Welcome, Vec<u8>), DialError> {
    // The acceptor may have refused already: its reason is read even if the hello cannot be written.
    let written = step(write_frame(stream, hello)).await;
    let answer = timeout(limits::STEP_TIMEOUT, read_frame(stream, limits::FRAME_MAX)).await;
    let (body, early) = match (answer, written) {
        (Ok(Ok(read)), _) => read,
        (Ok(Err(FirstError::Frame(error))), _) => {
            return Err(DialError::new(DialStep::Hello, error.to_string()));
        }
        (Ok(Err(FirstError::Io(error))), _) => {
            // An alert after the handshake is the acceptor's word on this side's certificate.
            let at = if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
                DialStep::Tls
            } else {
                DialStep::Hello
            };
            let what = format!("no answer to the hello: {}", tls::explain_io(&error));
            return Err(DialError::new(at, what));
        }
        (Err(_), Err(error)) => {
            return Err(DialError::new(DialStep::Hello, format!("the hello could not be sent: {error}")));
        }
        (Err(_), Ok(())) => return Err(DialError::new(DialStep::Hello, "no answer to the hello within 5 s")),
    };
    match read_answer(&body) {
        Ok(Answer::Welcome(welcome)) => Ok((welcome, early)),
        Ok(Answer::Rejected(rejection)) => Err(DialError {
            step: DialStep::Hello,
            message: format!("rejected: {}", rejection.error),
            rejection: Some(rejection),
        }),
        Err(error) => Err(DialError::new(DialStep::Hello, format!("the answer to the hello: {error}"))),
    }
}

async fn secure(
    tcp: TcpStream,
    target: &DialTarget,
    traffic: Arc<Traffic>,
) -> Result<TlsStream<Socket<TcpStream>>, DialError> {
    let failed = |message: String| DialError::new(DialStep::Tls, message);
    let name = ServerName::try_from(target.server_name.clone())
        .map_err(|_| failed(format!("{} is no server name", target.server_name)))?;
    let connector = TlsConnector::from(target.tls.clone());
    let stream = step(connector.connect(name, Socket::new(tcp, traffic)))
        .await
        .map_err(|error| failed(format!("TLS: {}", tls::explain_io(&error))))?;
    tls::check_alpn(stream.get_ref().1.alpn_protocol()).map_err(|error| failed(error.to_string()))?;
    Ok(stream)
}

/// A TCP connection to the first address that answers. The next one starts when one failed or took a while.
async fn connect(addresses: &[String]) -> Result<TcpStream, DialError> {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for address in addresses {
        match step(lookup_host(address)).await {
            Ok(resolved) => found.extend(interleave(resolved.collect())),
            Err(error) => failures.push(format!("{address}: {error}")),
        }
    }
    if found.is_empty() {
        let what = if failures.is_empty() { "no address to dial".to_owned() } else { failures.join("; ") };
        return Err(DialError::new(DialStep::Lookup, what));
    }
    let mut waiting = found.into_iter();
    let mut running = FuturesUnordered::new();
    loop {
        if let Some(address) = waiting.next() {
            running.push(async move { (address, open(address).await) });
        }
        let result = if waiting.len() > 0 {
            timeout(STAGGER, running.next()).await.unwrap_or_default()
        } else {
            running.next().await
        };
        match result {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => failures.push(format!("{address}: {error}")),
            None if running.is_empty() && waiting.len() == 0 => {
                return Err(DialError::new(DialStep::Connect, failures.join("; ")));
            }
            None => {}
        }
    }
}

async fn open(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = step(TcpStream::connect(address)).await?;
    options::prepare(&stream)?;
    Ok(stream)
}

/// Both families in turn, so that a dead one costs one stagger.
fn interleave(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let (six, four): (Vec<_>, Vec<_>) = addresses.into_iter().partition(SocketAddr::is_ipv6);
    let longest = six.len().max(four.len());
    (0..longest).flat_map(|at| [six.get(at).copied(), four.get(at).copied()]).flatten().collect()
}

/// What a retry hint of a rejection means for the next dial.
pub(crate) fn retry_hint(error: &DialError) -> Option<(Code, Option<Duration>)> {
    error.rejection.as_ref().map(|rejection| (rejection.error.code, rejection.error.retry_after))
}

/// A handler for connections that only send: everything the peer asks is unknown.
pub struct NoHandler;

impl Handler for NoHandler {}
