//! An acceptor and dialers on loopback with a CA of their own, and a proxy that misbehaves on demand.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use umbel_wire::ca::{Authority, CLIENT_VALIDITY, SERVER_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::tls::{ClientIdentity, KeyPair, TlsServer, Trust, wire_client, wire_server};
use umbel_wire::{
    BoxFuture, CloseReason, Connection, DialTarget, Door, EdgeId, Error, Generation, Handler, HelloOut,
    IncomingRequest, IncomingStream, InstanceId, KeyHash, Newcomer, NoHandler, NodeId, Purpose, Rejection,
    VersionRange, WelcomeOut, dial_once, serve,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const SERVER: &str = "site-1.umbel";

/// Waits until `look` is true.
pub(crate) async fn until(what: &str, mut look: impl FnMut() -> bool) {
    let wait = async {
        while !look() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, wait).await.is_ok(), "never happened: {what}");
}

/// A future that must end.
pub(crate) async fn within<R>(what: &str, work: impl Future<Output = R>) -> R {
    tokio::time::timeout(LIMIT, work).await.unwrap_or_else(|_| panic!("took too long: {what}"))
}

pub(crate) struct Pki {
    pub(crate) server: Arc<TlsServer>,
    pub(crate) client: Arc<rustls::ClientConfig>,
    pub(crate) client_key: KeyHash,
    pub(crate) ca: rustls_pki_types::CertificateDer<'static>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = tempfile();
        let now = Wall::now();
        let authority = Authority::create(&dir, "test", now).unwrap();
        let server = authority.issue_server(&[SERVER.to_owned()], now, SERVER_VALIDITY).unwrap();
        let key = KeyPair::generate().unwrap();
        let edge = EdgeId::parse("site-1").unwrap();
        let issued = authority
            .sign_node(&key.signing_request().unwrap(), &edge, NodeId::random(), now, CLIENT_VALIDITY)
            .unwrap();
        let chain = issued.chain.into_iter().map(Into::into).collect();
        let ca = authority.certificate_der().clone();
        let client =
            wire_client(Trust::Ca(vec![ca.clone()]), Some(ClientIdentity::new(chain, key.private_key())))
                .unwrap();
        if let Some(folder) = dir.parent() {
            let _ = std::fs::remove_dir_all(folder);
        }
        Self {
            server: wire_server(server.chain, server.key.private_key()).unwrap(),
            client,
            client_key: issued.key_hash,
            ca,
        }
    }

    pub(crate) fn stranger(&self) -> Arc<rustls::ClientConfig> {
        wire_client(Trust::Ca(vec![self.ca.clone()]), None).unwrap()
    }
}

fn tempfile() -> std::path::PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("umbel-wire-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir.join("ca")
}

type Knock = dyn Fn(Newcomer, u64) -> BoxFuture<'static, ()> + Send + Sync;

/// A door that numbers newcomers and hands them to a closure.
pub(crate) struct TestDoor {
    known: KeyHash,
    generation: AtomicU64,
    knock: Box<Knock>,
}

impl Door for TestDoor {
    fn knows(&self, key: &KeyHash) -> bool {
        *key == self.known
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        (self.knock)(newcomer, self.generation.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) pki: Pki,
    shutdown: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Server {
    pub(crate) async fn start(
        knock: impl Fn(Newcomer, u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        let pki = Pki::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let door = TestDoor { known: pki.client_key, generation: AtomicU64::new(0), knock: Box::new(knock) };
        tokio::spawn(serve(listener, pki.server.clone(), Arc::new(door), shutdown.clone()));
        Self { address, pki, shutdown }
    }

    /// Accepts everybody with one handler; connections come out of the channel.
    pub(crate) async fn accepting(handler: Arc<dyn Handler>) -> (Self, mpsc::Receiver<Connection>) {
        let (sender, receiver) = mpsc::channel(64);
        let server = Self::start(move |newcomer, generation| {
            let (handler, sender) = (handler.clone(), sender.clone());
            Box::pin(async move {
                let out = WelcomeOut { generation: Generation(generation), ..WelcomeOut::default() };
                let connection = newcomer.accept(out, handler);
                let _ = sender.try_send(connection);
            })
        })
        .await;
        (server, receiver)
    }

    pub(crate) async fn rejecting(rejection: Rejection) -> Self {
        Self::start(move |newcomer, _| {
            let rejection = rejection.clone();
            Box::pin(async move { newcomer.reject(rejection) })
        })
        .await
    }

    pub(crate) fn target(&self) -> DialTarget {
        target(self.address, &self.pki)
    }
}

pub(crate) fn target(address: SocketAddr, pki: &Pki) -> DialTarget {
    DialTarget {
        addresses: vec![address.to_string()],
        server_name: SERVER.to_owned(),
        tls: pki.client.clone(),
    }
}

pub(crate) fn hello() -> HelloOut {
    HelloOut {
        purpose: Purpose::Hello,
        versions: VersionRange::ONE,
        instance: InstanceId([7; 16]),
        payload: b"hello".to_vec(),
    }
}

/// Both ends of one link: (dialer, acceptor).
pub(crate) struct Link {
    pub(crate) dialer: Connection,
    pub(crate) acceptor: Connection,
    /// Serves for as long as the link lives.
    _server: Server,
}

pub(crate) async fn link(dialer: Arc<dyn Handler>, acceptor: Arc<dyn Handler>) -> Link {
    let (server, mut accepted) = Server::accepting(acceptor).await;
    let (connection, _) = dial_once(server.target(), hello(), |_, _| Ok(dialer)).await.unwrap();
    let acceptor = within("accept", accepted.recv()).await.unwrap();
    Link { dialer: connection, acceptor, _server: server }
}

/// The same through a proxy.
pub(crate) async fn link_through(dialer: Arc<dyn Handler>, acceptor: Arc<dyn Handler>) -> (Link, Proxy) {
    let (server, mut accepted) = Server::accepting(acceptor).await;
    let proxy = Proxy::start(server.address).await;
    let (connection, _) =
        dial_once(target(proxy.address, &server.pki), hello(), |_, _| Ok(dialer)).await.unwrap();
    let acceptor = within("accept", accepted.recv()).await.unwrap();
    (Link { dialer: connection, acceptor, _server: server }, proxy)
}

pub(crate) fn nobody() -> Arc<dyn Handler> {
    Arc::new(NoHandler)
}

type OnRequest = dyn Fn(IncomingRequest) + Send + Sync;
type OnStream = dyn Fn(IncomingStream) + Send + Sync;

/// Number and key of an event, and what the other side said.
type Acked = (u32, String, Result<(), Error>);

/// A handler made of closures, which notes what it hears.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) request: Option<Box<OnRequest>>,
    pub(crate) stream: Option<Box<OnStream>>,
    pub(crate) events: Mutex<Vec<(u32, String, Vec<u8>)>>,
    pub(crate) acks: Mutex<Vec<Acked>>,
    pub(crate) closed: Mutex<Vec<CloseReason>>,
}

impl Recorder {
    pub(crate) fn requests(request: impl Fn(IncomingRequest) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { request: Some(Box::new(request)), ..Self::default() })
    }

    pub(crate) fn streams(stream: impl Fn(IncomingStream) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { stream: Some(Box::new(stream)), ..Self::default() })
    }
}

impl Handler for Recorder {
    fn on_request(&self, _: &Connection, request: IncomingRequest) {
        match &self.request {
            Some(answer) => answer(request),
            None => drop(request),
        }
    }

    fn on_stream(&self, _: &Connection, stream: IncomingStream) {
        match &self.stream {
            Some(answer) => answer(stream),
            None => drop(stream),
        }
    }

    fn on_event(&self, _: &Connection, event: u32, key: &str, payload: &[u8]) -> Result<(), Error> {
        self.events.lock().unwrap().push((event, key.to_owned(), payload.to_vec()));
        if event == 99 {
            return Err(Error::new(umbel_wire::Code::Conflict, "REPLAY", "seen before"));
        }
        Ok(())
    }

    fn on_ack(&self, _: &Connection, event: u32, key: &str, result: Result<(), Error>) {
        self.acks.lock().unwrap().push((event, key.to_owned(), result));
    }

    fn on_closed(&self, _: &Connection, reason: &CloseReason) {
        self.closed.lock().unwrap().push(reason.clone());
    }
}

/// Echoes a request's payload.
pub(crate) fn echo(request: IncomingRequest) {
    let payload = request.payload.to_vec();
    request.respond(Ok(payload));
}

/// Answers a stream: head, the body echoed, end.
pub(crate) fn echo_stream(stream: IncomingStream) {
    tokio::spawn(async move {
        let _ = stream.send_head(b"head", b"");
        while let Ok(Some(part)) = stream.body().await {
            if stream.send(&part).await.is_err() {
                return;
            }
        }
        stream.finish(b"end");
    });
}

/// All of an answer.
pub(crate) async fn read_all(stream: &mut umbel_wire::OutgoingStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(part) = stream.data().await {
        all.extend_from_slice(&part);
    }
    all
}

pub(crate) fn some_bytes(count: usize) -> Bytes {
    (0..count).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

/// A TCP proxy that can stop forwarding, cut, or forward byte by byte.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) black_hole: Arc<AtomicBool>,
    pub(crate) one_byte: Arc<AtomicBool>,
    /// Towards the acceptor, so many bytes are forwarded before the connection is cut.
    pub(crate) cut_after: Arc<AtomicUsize>,
    shutdown: CancellationToken,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Proxy {
    pub(crate) async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            black_hole: Arc::default(),
            one_byte: Arc::default(),
            cut_after: Arc::new(AtomicUsize::new(usize::MAX)),
            shutdown: CancellationToken::new(),
        };
        let (hole, one, cut) = (proxy.black_hole.clone(), proxy.one_byte.clone(), proxy.cut_after.clone());
        let shutdown = proxy.shutdown.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shutdown.is_cancelled() {
                    return;
                }
                let server = TcpStream::connect(upstream).await.unwrap();
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (client_read, client_write) = client.into_split();
                let (server_read, server_write) = server.into_split();
                let never = Arc::new(AtomicUsize::new(usize::MAX));
                tokio::spawn(forward(
                    client_read,
                    server_write,
                    hole.clone(),
                    one.clone(),
                    cut.clone(),
                    shutdown.clone(),
                ));
                tokio::spawn(forward(
                    server_read,
                    client_write,
                    hole.clone(),
                    one.clone(),
                    never,
                    shutdown.clone(),
                ));
            }
        });
        proxy
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    hole: Arc<AtomicBool>,
    one: Arc<AtomicBool>,
    cut: Arc<AtomicUsize>,
    shutdown: CancellationToken,
) {
    let work = async {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if hole.load(Ordering::Relaxed) {
                continue;
            }
            let left = cut.load(Ordering::Relaxed);
            let now = count.min(left);
            if left != usize::MAX {
                cut.store(left - now, Ordering::Relaxed);
            }
            let bytes = &buffer[..now];
            if one.load(Ordering::Relaxed) {
                for byte in bytes.chunks(1) {
                    if to.write_all(byte).await.is_err() {
                        return;
                    }
                }
            } else if to.write_all(bytes).await.is_err() {
                return;
            }
            if now < count {
                return;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
}
