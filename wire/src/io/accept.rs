//! The accepting side: listener, TLS, first frame, and the newcomer that the door judges.
//!
//! Leaves who may come in to the door, and how many may wait to `lobby`. Invariant: a peer that has not said hello
//! costs a bounded amount of memory and time; every refusal is told before the socket closes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::close::{CloseReason, Goaway};
use crate::error::{Code, Error};
use crate::frame::FrameError;
use crate::ids::KeyHash;
use crate::io::handle::{BoxFuture, Connection, Handler};
use crate::io::handshake::{FirstError, farewell_tls, read_frame, step};
use crate::io::lobby::Lobby;
use crate::io::socket::{Socket, Traffic};
use crate::io::{driver, options};
use crate::limits;
use crate::peer::PeerCertificate;
use crate::session::handshake::{self, Rejection, read_hello};
pub use crate::session::handshake::{HelloIn, WelcomeOut};
use crate::session::{Settings, Side};
use crate::tls::{self, TlsServer};

/// Judges newcomers: registry, tokens, slots.
pub trait Door: Send + Sync + 'static {
    /// Whether the registry holds this key in any state: decides how large the first frame may be.
    fn knows(&self, key: &KeyHash) -> bool;
    /// Whether a certificate whose key the registry does not hold may be one of its own all the same, because it lost
    /// some: then its first frame may be as large.
    fn may_be_ours(&self, _leaf: &[u8]) -> bool {
        false
    }
    /// Must accept, answer or reject; a dropped newcomer is rejected with INTERNAL.
    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()>;
}

// A kilobyte and more that many hands pass on: it stays where it is.
type Stream = Box<TlsStream<Socket<TcpStream>>>;

/// A peer that said hello and waits for an answer. Dropping it rejects with INTERNAL.
pub struct Newcomer {
    /// Taken by the answer.
    stream: Option<(Stream, Vec<u8>)>,
    traffic: Arc<Traffic>,
    address: SocketAddr,
    certificate: Option<PeerCertificate>,
    hello: HelloIn,
    connection: Connection,
}

impl Newcomer {
    /// Where it comes from. For this host's log only.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its certificate: proof that it holds the key, nothing more.
    pub fn certificate(&self) -> Option<&PeerCertificate> {
        self.certificate.as_ref()
    }

    /// The same as it was shown, DER. Empty without one.
    pub fn leaf(&self) -> &[u8] {
        let session = self.stream.as_ref().map(|(stream, _)| stream.get_ref().1);
        let leaf = session.and_then(|session| session.peer_certificates()).and_then(<[_]>::first);
        leaf.map(|leaf| leaf.as_ref()).unwrap_or_default()
    }

    /// What it said.
    pub fn hello(&self) -> &HelloIn {
        &self.hello
    }

    /// The handle the connection will have, to register it before WELCOME is sent.
    pub fn connection(&self) -> Connection {
        self.connection.clone()
    }

    /// Sends WELCOME and starts the session.
    pub fn accept(mut self, welcome: WelcomeOut, handler: Arc<dyn Handler>) -> Connection {
        let connection = self.connection.clone();
        if let Some((stream, early)) = self.stream.take() {
            connection.welcomed(welcome.generation, welcome.protocol);
            let bytes = handshake::welcome(&welcome);
            let now = clock::now();
            connection.with(|session| session.start(now, bytes, welcome.max_streams));
            driver::start(*stream, self.traffic.clone(), early, &connection, handler);
        }
        connection
    }

    /// Sends WELCOME with a payload, then closes: the answer to an enrollment.
    pub fn answer(mut self, payload: Vec<u8>) {
        let welcome = WelcomeOut { payload, ..WelcomeOut::default() };
        self.last(handshake::welcome(&welcome));
    }

    /// Sends REJECT, then closes.
    pub fn reject(mut self, rejection: Rejection) {
        self.last(handshake::reject(&rejection));
    }

    fn last(&mut self, bytes: Vec<u8>) {
        if let Some((stream, _)) = self.stream.take() {
            self.connection.close(CloseReason::Shutdown);
            let connection = self.connection.clone();
            tokio::spawn(async move {
                farewell_tls(stream, &bytes).await;
                connection.0.gone.cancel();
            });
        }
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.last(handshake::reject(&Rejection::new(Error::internal())));
    }
}

/// Accepts until `shutdown` is cancelled. Sessions that were accepted live on.
pub async fn serve(
    listener: TcpListener,
    tls: Arc<TlsServer>,
    door: Arc<dyn Door>,
    shutdown: CancellationToken,
) {
    let lobby = Arc::new(Lobby::default());
    let mut failures = 0u64;
    let mut logged: Option<std::time::Instant> = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = shutdown.cancelled() => return,
        };
        match accepted {
            Ok((stream, address)) => {
                let acceptor = TlsAcceptor::from(tls.config());
                let meet = meet(stream, address, acceptor, lobby.clone(), door.clone());
                let shutdown = shutdown.clone();
                tokio::spawn(async move {
                    tokio::select! {
                        () = meet => {}
                        () = shutdown.cancelled() => {}
                    }
                });
            }
            // The peer gave up while it stood in the queue: nothing is wrong here.
            Err(error) if gave_up(&error) => {}
            Err(error) => {
                // At the descriptor limit accept fails at once and again: wait for one to become free.
                failures += 1;
                let now = clock::now();
                if logged.is_none_or(|at| now.saturating_duration_since(at) >= Duration::from_secs(1)) {
                    logged = Some(now);
                    tracing::warn!(%error, failures, "cannot accept connections");
                }
                tokio::select! {
                    () = sleep(limits::ACCEPT_PAUSE) => {}
                    () = shutdown.cancelled() => return,
                }
            }
        }
    }
}

fn gave_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// From TCP to the door.
async fn meet(
    tcp: TcpStream,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    lobby: Arc<Lobby>,
    door: Arc<dyn Door>,
) {
    if options::prepare(&tcp).is_err() {
        return;
    }
    let traffic = Traffic::new();
    let Some(place) = lobby.enter(address.ip(), traffic.clone()).await else { return };
    // In memory of its own, which is given back before the newcomer is judged: a thousand may wait for their answers.
    let mut greeting = Box::pin(greet(Socket::new(tcp, traffic.clone()), acceptor, &*door));
    let greeted = tokio::select! {
        greeted = &mut greeting => greeted,
        () = place.dismissed.cancelled() => return,
    };
    drop((greeting, place));
    let Some((stream, early, certificate, hello)) = greeted else { return };
    let newcomer = Newcomer {
        stream: Some((stream, early)),
        traffic,
        address,
        certificate,
        hello,
        connection: Connection::new(Settings::new(Side::Acceptor)),
    };
    door.knock(newcomer).await;
}

type Greeted = (Stream, Vec<u8>, Option<PeerCertificate>, HelloIn);

/// TLS and the first frame. Whoever gets nothing is told why, if it can be told.
async fn greet(socket: Socket<TcpStream>, acceptor: TlsAcceptor, door: &dyn Door) -> Option<Greeted> {
    let mut stream = match step(acceptor.accept(socket)).await {
        Ok(stream) => Box::new(stream),
        Err(error) => {
            tracing::debug!(error = %tls::explain_io(&error), "a TLS handshake failed");
            return None;
        }
    };
    let session = stream.get_ref().1;
    tls::check_alpn(session.alpn_protocol()).ok()?;
    let leaf = session.peer_certificates().and_then(<[_]>::first);
    let certificate = leaf.and_then(|leaf| PeerCertificate::parse(leaf).ok());
    let known = certificate.as_ref().is_some_and(|certificate| door.knows(&certificate.key_hash))
        || leaf.is_some_and(|leaf| door.may_be_ours(leaf));
    let max = if known { limits::FRAME_MAX } else { limits::FRAME_UNKNOWN_PEER };
    let last = match timeout(limits::STEP_TIMEOUT, read_frame(&mut stream, max)).await {
        Ok(Ok((body, early))) => match read_hello(&body) {
            Ok(hello) => return Some((stream, early, certificate, hello)),
            Err(error) => handshake::reject(&Rejection::new(error)),
        },
        Ok(Err(FirstError::Frame(FrameError::TooLong(_)))) if !known => {
            let text =
                "the first frame of an unknown peer is limited to 16 KiB; is this identity enrolled here?";
            handshake::reject(&Rejection::new(Error::new(Code::Unauthenticated, "UNKNOWN_IDENTITY", text)))
        }
        Ok(Err(FirstError::Frame(error))) => {
            handshake::farewell(&Goaway::closing(&CloseReason::Protocol(error.to_string())))
        }
        Ok(Err(FirstError::Io(_))) => return None,
        Err(_) => {
            let text = "no hello came within 5 s";
            handshake::reject(&Rejection::new(Error::new(Code::DeadlineExceeded, "NO_HELLO", text)))
        }
    };
    farewell_tls(stream, &last).await;
    None
}
