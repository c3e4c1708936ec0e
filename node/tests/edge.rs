//! An edge that does only what the tests say: real TLS and the real wire, no registry and no admission.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use sha2::{Digest as _, Sha256};
use tokio::{net::TcpListener, sync::oneshot};
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    NODE_PROTOCOL, bounds, event, method,
    proto::node::{
        DeclaredEngine, EngineAction, EngineControl, EngineControlAck, EngineOutput, EngineOutputRequest,
        EngineState, EngineStatus, Header, InferenceEnd, InferenceHead, InferenceOpen, InferenceOutcome,
        NodeDeclared, NodeEngines, NodeEnrollRequest, NodeEnrollResponse, NodeHeartbeat, NodeHeartbeatAck,
        NodeHelloRequest, NodeHelloResponse, NodeInventory, NodeLeases, NodeLeasesAck, NodeSettings,
        NodeSettingsResult, NodeSettingsState, NodeTelemetry,
    },
};
use umbel_wire::{
    BoxFuture, CloseReason, Code, Connection, Door, EdgeId, Error, Generation, Handler, IncomingRequest,
    Intervals, KeyHash, Newcomer, NodeId, Open, OutgoingStream, Purpose, Rejection, Terminal, WelcomeOut,
    ca::{Authority, CLIENT_VALIDITY, SERVER_VALIDITY},
    clock::Wall,
    negotiate,
    secret::Secret,
    serve,
    tls::wire_server,
    token::{EnrollmentToken, TokenKind, new_id},
};

mod door;
mod streams;

pub(crate) use streams::{Ask, Stream};

use crate::until;
use door::Gate;

pub(crate) const EDGE: &str = "site-1";

/// What the edge has heard.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) hellos: Vec<NodeHelloRequest>,
    pub(crate) enrollments: Vec<NodeEnrollRequest>,
    pub(crate) inventories: Vec<NodeInventory>,
    pub(crate) leases: Vec<NodeLeases>,
    pub(crate) telemetries: Vec<NodeTelemetry>,
    pub(crate) heartbeats: usize,
    /// The newest, and when each was observed.
    pub(crate) heartbeat: NodeHeartbeat,
    pub(crate) beats_unix_ms: Vec<i64>,
    pub(crate) engines: Vec<EngineStatus>,
    pub(crate) goaways: usize,
    pub(crate) declared: Vec<NodeDeclared>,
    /// Which settings the node said last that it has.
    pub(crate) settings: NodeSettingsState,
    /// Every state that an engine was reported in, with its restarts.
    pub(crate) states: Vec<(String, EngineState, u32)>,
    /// Every cause that was told of one.
    pub(crate) causes: Vec<String>,
}

struct Inner {
    authority: Authority,
    secret: Secret,
    token_id: String,
    generation: AtomicU64,
    heard: Mutex<Heard>,
    connection: Mutex<Option<Connection>>,
    /// The next answers to enrollments are lost.
    lose_answers: AtomicUsize,
    /// Hellos are refused as from a revoked node.
    revoked: AtomicBool,
    /// Every lease that it gave, with the generation of its connection; the first is 1.
    given: Mutex<Vec<u64>>,
    /// The highest sequence numbers that it knows, of inventories and of telemetry.
    cursors: (AtomicU64, AtomicU64),
}

/// A running edge.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
    shutdown: CancellationToken,
    /// The CA's files.
    _folder: tempfile::TempDir,
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Edge {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create(&folder.path().join("ca"), EDGE, Wall::now()).unwrap();
        let inner = Inner {
            authority,
            secret: Secret::generate(),
            token_id: new_id(),
            generation: AtomicU64::new(0),
            heard: Mutex::default(),
            connection: Mutex::new(None),
            lose_answers: AtomicUsize::new(0),
            revoked: AtomicBool::new(false),
            given: Mutex::default(),
            cursors: Default::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let edge =
            Self { address, inner: Arc::new(inner), shutdown: CancellationToken::new(), _folder: folder };
        edge.serve(listener, edge.shutdown.clone());
        edge
    }

    fn serve(&self, listener: TcpListener, shutdown: CancellationToken) {
        let names = [format!("{EDGE}.umbel")];
        let server = self.inner.authority.issue_server(&names, Wall::now(), SERVER_VALIDITY).unwrap();
        let tls = wire_server(server.chain.clone(), server.key.private_key()).unwrap();
        tokio::spawn(serve(listener, tls, Arc::new(Gate(Arc::clone(&self.inner))), shutdown));
    }

    /// Stops to listen and closes the connection.
    pub(crate) fn stop(&self) {
        self.shutdown.cancel();
        if let Some(connection) = self.inner.connection.lock().unwrap().take() {
            connection.close(CloseReason::Shutdown);
        }
    }

    /// Listens again where it did before.
    pub(crate) async fn restart(&mut self) {
        self.shutdown = CancellationToken::new();
        let address = self.address;
        let listener = until("the port", async || TcpListener::bind(address).await.ok()).await;
        self.serve(listener, self.shutdown.clone());
    }

    pub(crate) fn token(&self) -> String {
        self.token_for(EDGE)
    }

    pub(crate) fn token_for(&self, edge: &str) -> String {
        let token = EnrollmentToken {
            kind: TokenKind::Node,
            edge_id: EdgeId::parse(edge).unwrap(),
            token_id: self.inner.token_id.clone(),
            ca_digest: self.inner.authority.digest(),
            addresses: vec![self.address.to_string()],
            secret: self.inner.secret.clone(),
        };
        token.to_text().unwrap().expose().to_owned()
    }

    pub(crate) fn heard<T>(&self, look: impl FnOnce(&Heard) -> T) -> T {
        look(&self.inner.heard.lock().unwrap())
    }

    pub(crate) fn lose_answers(&self, count: usize) {
        self.inner.lose_answers.store(count, Ordering::SeqCst);
    }

    /// It has seen reports up to these numbers.
    pub(crate) fn set_cursors(&self, inventory: u64, telemetry: u64) {
        self.inner.cursors.0.store(inventory, Ordering::SeqCst);
        self.inner.cursors.1.store(telemetry, Ordering::SeqCst);
    }

    pub(crate) fn revoke(&self, revoked: bool) {
        self.inner.revoked.store(revoked, Ordering::SeqCst);
    }

    /// The connection, once the node has named its leases on it.
    pub(crate) async fn connection(&self) -> Connection {
        until("the node's connection", async || self.live()).await
    }

    pub(crate) fn live(&self) -> Option<Connection> {
        self.inner.connection.lock().unwrap().clone().filter(|connection| !connection.is_closed())
    }

    /// Waits until an engine has been reported in a state; its report.
    pub(crate) async fn engine(&self, name: &str, state: EngineState) -> EngineStatus {
        until(&format!("{name} in {state:?}"), async || {
            self.heard(|heard| {
                let report = heard.engines.iter().find(|status| status.name == name)?;
                (report.state == i32::from(state)).then(|| report.clone())
            })
        })
        .await
    }

    /// Sends settings as an edge does, and takes the answer.
    pub(crate) async fn set(
        &self,
        version: u64,
        settings: serde_json::Value,
    ) -> Result<NodeSettingsState, Error> {
        let settings_json = serde_json::to_vec(&settings).unwrap();
        let digest = Sha256::digest(&settings_json).to_vec();
        let message = NodeSettings { version, digest, settings_json }.encode_to_vec();
        let connection = self.connection().await;
        let answer = connection.request(method::NODE_SETTINGS, message, crate::LIMIT).await?;
        Ok(bounds::decode::<NodeSettingsResult>(&answer).unwrap().state.unwrap())
    }

    /// Lines of an engine's output, as an edge asks for them.
    pub(crate) async fn output(&self, engine: &str, lines: u32, cursor: &str) -> EngineOutput {
        let message = EngineOutputRequest { engine: engine.into(), lines, cursor: cursor.into() };
        let connection = self.connection().await;
        let answer =
            connection.request(method::NODE_ENGINE_OUTPUT, message.encode_to_vec(), crate::LIMIT).await;
        bounds::decode(&answer.unwrap()).unwrap()
    }

    /// Stops an engine or starts it anew, as an edge asks for it.
    pub(crate) async fn control(&self, engine: &str, action: EngineAction) -> EngineControlAck {
        let message = EngineControl { engine: engine.into(), action: action.into(), deadline_ms: 1000 };
        let connection = self.connection().await;
        let answer =
            connection.request(method::NODE_ENGINE_CONTROL, message.encode_to_vec(), crate::LIMIT).await;
        bounds::decode(&answer.unwrap()).unwrap()
    }

    /// Sends settings and does not wait for the answer.
    pub(crate) fn send(&self, connection: &Connection, version: u64, settings: serde_json::Value) {
        let settings_json = serde_json::to_vec(&settings).unwrap();
        let digest = Sha256::digest(&settings_json).to_vec();
        let message = NodeSettings { version, digest, settings_json }.encode_to_vec();
        let connection = connection.clone();
        tokio::spawn(async move { connection.request(method::NODE_SETTINGS, message, crate::LIMIT).await });
    }

    /// Waits until the node says of its settings what is looked for.
    pub(crate) async fn settings(
        &self,
        what: &str,
        look: impl Fn(&NodeSettingsState) -> bool,
    ) -> NodeSettingsState {
        until(what, async || {
            let said = self.heard(|heard| heard.settings.clone());
            look(&said).then_some(said)
        })
        .await
    }

    pub(crate) fn provider(&self, engine: &str) -> String {
        let node = self.heard(|heard| heard.hellos.last().unwrap().node_id.clone());
        format!("{node}/{engine}")
    }

    /// Opens a stream to an engine on the live connection.
    pub(crate) async fn open(&self, ask: Ask) -> Stream {
        let connection = self.connection().await;
        self.open_on(&connection, ask)
    }

    pub(crate) fn open_on(&self, connection: &Connection, ask: Ask) -> Stream {
        let message = InferenceOpen {
            provider_id: if ask.engine.contains('/') {
                ask.engine.clone()
            } else {
                self.provider(&ask.engine)
            },
            lease_id: self.inner.give(connection),
            generation: ask.generation.unwrap_or(connection.generation().0),
            method: "POST".into(),
            path: ask.path,
            headers: ask.headers,
            first_byte_timeout_ms: ask.first_byte_timeout_ms,
            idle_timeout_ms: ask.idle_timeout_ms,
            body_bytes: ask.body.len() as u64,
            request_id: "request-1".into(),
        };
        let open = Open {
            method: method::INFERENCE,
            message: message.encode_to_vec(),
            body: ask.body,
            end: true,
            timeout: Duration::ZERO,
        };
        let (ended, terminal) = oneshot::channel();
        let stream = connection.open(open, move |terminal| drop(ended.send(terminal))).unwrap();
        Stream { stream: Some(stream), terminal: Some(terminal) }
    }
}
