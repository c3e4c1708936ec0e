//! An edge's front with nodes that answer by script.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use umbel_contracts::operations::KeyLimits;
use umbel_contracts::proto::node::{
    self, DeclaredEngine, InferenceEnd, InferenceHead, InferenceOpen, InferenceOutcome,
};
use umbel_store::{Commit, Store};
use umbel_wire::ca::{Authority, CLIENT_VALIDITY, SERVER_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::tls::{ClientIdentity, KeyPair, Trust, front_server, wire_client, wire_server};
use umbel_wire::token::{BearerKind, mint_bearer};
use umbel_wire::{
    BoxFuture, CloseReason, Code, Connection, DialTarget, Door, EdgeId, Error, Generation, Handler, HelloOut,
    IncomingStream, InstanceId, KeyHash, Newcomer, NodeId, Purpose, Reset, VersionRange, WelcomeOut,
};

use super::super::{Front, FrontOptions, serve, serve_metrics, serve_tls};
use crate::core::registry::Call as Told;
use crate::core::registry::node::{Declared, ProviderState};
use crate::metrics::Metrics;
use crate::shell::dispatch::{Dispatch, LeaseCounts, Limits};
use crate::shell::keys::{Actor, KeyRow, Keys};

/// No wait in a test takes longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Fails the test if something does not come in time.
pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("it did not come in time: {what}"),
    }
}

/// Looks until it is so.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

struct EdgeDoor {
    accepted: mpsc::Sender<(Generation, Connection)>,
    dispatch: Arc<Dispatch>,
    generation: Mutex<u64>,
}

impl Door for EdgeDoor {
    fn knows(&self, _: &KeyHash) -> bool {
        true
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        let generation = {
            let mut last = self.generation.lock().unwrap();
            *last += 1;
            Generation(*last)
        };
        let node_id = NodeId::parse(std::str::from_utf8(&newcomer.hello().payload).unwrap()).unwrap();
        let dispatch = Arc::clone(&self.dispatch);
        let ready = Told::Ready { node: node_id, generation, ready: false };
        dispatch.tell(&ready, None).unwrap();
        let handler = Arc::new(EdgeSide { node_id, generation, dispatch });
        let welcome = WelcomeOut { generation, ..WelcomeOut::default() };
        let connection = newcomer.accept(welcome, handler);
        let accepted = self.accepted.clone();
        Box::pin(async move { accepted.send((generation, connection)).await.unwrap() })
    }
}

struct EdgeSide {
    node_id: NodeId,
    generation: Generation,
    dispatch: Arc<Dispatch>,
}

impl Handler for EdgeSide {
    fn on_closed(&self, _: &Connection, _: &CloseReason) {
        let lost = Told::Lost { node: self.node_id, generation: self.generation };
        self.dispatch.tell(&lost, None).unwrap();
    }
}

/// One inference stream at a node, to be answered by the test.
pub(super) struct Call {
    pub(super) open: InferenceOpen,
    pub(super) body: Bytes,
    pub(super) stream: IncomingStream,
}

impl Call {
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let header = self.open.headers.iter().find(|header| header.name == name)?;
        Some(String::from_utf8(header.value.clone()).unwrap())
    }

    pub(super) fn head(&self, status: u32, headers: &[(&str, &str)]) {
        let headers = headers
            .iter()
            .map(|(name, value)| node::Header { name: (*name).to_owned(), value: value.as_bytes().to_vec() });
        let head = InferenceHead { status, headers: headers.collect() };
        self.stream.send_head(head.encode_to_vec(), &[]).unwrap();
    }

    pub(super) fn events(&self) {
        self.head(200, &[("content-type", "text/event-stream; charset=utf-8")]);
    }

    pub(super) async fn send(&self, text: impl AsRef<[u8]>) {
        self.stream.send(text.as_ref()).await.unwrap();
    }

    /// An event with this content.
    pub(super) async fn token(&self, text: &str) {
        self.send(format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")).await;
    }

    pub(super) fn complete(self) {
        self.stream.finish(&end(InferenceOutcome::Complete));
    }

    pub(super) fn fail(self, outcome: InferenceOutcome, not_processed: bool) {
        let error = Error::new(Code::BadGateway, "ENGINE", "the engine failed");
        self.stream.fail(error, not_processed, &end(outcome));
    }

    /// A whole JSON answer.
    pub(super) async fn json(self, text: &str) {
        self.head(200, &[("content-type", "application/json"), ("content-length", &text.len().to_string())]);
        self.send(text).await;
        self.complete();
    }

    /// Waits for the edge's reset and confirms it.
    pub(super) async fn cancelled(self) -> Reset {
        let reset = soon("the reset at the node", self.stream.reset()).await;
        self.stream.fail(reset.error.clone(), false, &end(InferenceOutcome::Cancelled));
        reset
    }
}

fn end(outcome: InferenceOutcome) -> Vec<u8> {
    let end = InferenceEnd {
        outcome: outcome as i32,
        prompt_tokens: Some(5),
        completion_tokens: Some(3),
        answer_bytes: 0,
        cached_tokens: None,
    };
    end.encode_to_vec()
}

struct NodeSide {
    calls: mpsc::Sender<Call>,
}

impl Handler for NodeSide {
    fn on_stream(&self, _: &Connection, stream: IncomingStream) {
        let calls = self.calls.clone();
        tokio::spawn(async move {
            let open = InferenceOpen::decode(stream.message()).unwrap();
            let mut body = Vec::new();
            while let Ok(Some(part)) = stream.body().await {
                body.extend_from_slice(&part);
            }
            assert_eq!(open.body_bytes, body.len() as u64);
            // A test that is over takes no calls.
            let _ = calls.send(Call { open, body: Bytes::from(body), stream }).await;
        });
    }
}

/// A node that is connected to the edge.
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) generation: Generation,
    pub(super) connection: Connection,
    pub(super) provider: String,
    calls: mpsc::Receiver<Call>,
}

impl Node {
    pub(super) async fn call(&mut self) -> Call {
        soon("a stream at the node", self.calls.recv()).await.unwrap()
    }

    /// What its engine is now.
    pub(super) fn says(&self, state: ProviderState) -> Told {
        let engine = "engine".to_owned();
        Told::State { node: self.id, generation: self.generation, engine, state, cause: String::new() }
    }

    /// No stream has arrived.
    pub(super) fn is_untouched(&mut self) -> bool {
        self.calls.try_recv().is_err()
    }
}

/// What a rig is made with.
pub(super) struct Setup {
    pub(super) options: FrontOptions,
    pub(super) limits: Limits,
}

impl Default for Setup {
    fn default() -> Self {
        let options = FrontOptions { keepalive: Duration::from_secs(600), ..FrontOptions::default() };
        Self { options, limits: Limits::default() }
    }
}

/// The edge under test.
pub(super) struct Rig {
    pub(super) front: Arc<Front>,
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) keys: Arc<Keys>,
    pub(super) http: SocketAddr,
    pub(super) https: SocketAddr,
    pub(super) metrics_http: SocketAddr,
    pub(super) shutdown: CancellationToken,
    pub(super) served: oneshot::Receiver<()>,
    authority: Authority,
    nodes: SocketAddr,
    accepted: mpsc::Receiver<(Generation, Connection)>,
    connections: Vec<Connection>,
    _state: tempfile::TempDir,
}

impl Rig {
    pub(super) async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    pub(super) async fn with(setup: Setup) -> Self {
        let state = tempfile::tempdir().unwrap();
        let authority = Authority::create(state.path(), "site", Wall::now()).unwrap();
        let names = ["site.umbel".to_owned(), "localhost".to_owned()];
        let server = || authority.issue_server(&names, Wall::now(), SERVER_VALIDITY).unwrap();
        let metrics = Arc::new(Metrics::new());
        let dispatch = Dispatch::new(setup.limits, 1_000_000, Arc::clone(&metrics));
        tokio::spawn(Arc::clone(&dispatch).run());
        let (store, _) = Store::in_memory();
        let keys = Keys::load(store).await.unwrap();
        let front = Front::new(Arc::clone(&dispatch), Arc::clone(&keys), metrics, setup.options);

        let shutdown = CancellationToken::new();
        let (accepted_to, accepted) = mpsc::channel(16);
        let (nodes_listener, nodes) = listener().await;
        let door =
            EdgeDoor { accepted: accepted_to, dispatch: Arc::clone(&dispatch), generation: Mutex::new(0) };
        let credential = server();
        let tls = wire_server(credential.chain, credential.key.private_key()).unwrap();
        tokio::spawn(umbel_wire::serve(nodes_listener, tls, Arc::new(door), CancellationToken::new()));

        let (http_listener, http) = listener().await;
        let (https_listener, https) = listener().await;
        let (metrics_listener, metrics_http) = listener().await;
        let credential = server();
        let tls = front_server(credential.chain, credential.key.private_key()).unwrap();
        tokio::spawn(serve_tls(https_listener, tls, Arc::clone(&front), shutdown.clone()));
        tokio::spawn(serve_metrics(metrics_listener, Arc::clone(&front), shutdown.clone()));
        let (tell, served) = oneshot::channel();
        let serving = serve(http_listener, Arc::clone(&front), shutdown.clone());
        tokio::spawn(async move {
            serving.await;
            let _ = tell.send(());
        });
        Self {
            front,
            dispatch,
            keys,
            http,
            https,
            metrics_http,
            shutdown,
            served,
            authority,
            nodes,
            accepted,
            connections: Vec::new(),
            _state: state,
        }
    }

    /// A rig with one node of this capacity that serves `m`.
    pub(super) async fn with_node(capacity: u32) -> (Self, Node) {
        let mut rig = Self::new().await;
        let node = rig.node("m", &[], capacity).await;
        (rig, node)
    }

    pub(super) async fn node(&mut self, model: &str, aliases: &[&str], capacity: u32) -> Node {
        self.dial(NodeId::random(), model, aliases, capacity).await
    }

    /// Dials as a node with this id, and makes it ready.
    pub(super) async fn dial(&mut self, id: NodeId, model: &str, aliases: &[&str], capacity: u32) -> Node {
        let key = KeyPair::generate().unwrap();
        let edge = EdgeId::parse("site").unwrap();
        let request = key.signing_request().unwrap();
        let issued = self.authority.sign_node(&request, &edge, id, Wall::now(), CLIENT_VALIDITY).unwrap();
        let chain = issued.chain.into_iter().map(Into::into).collect();
        let identity = ClientIdentity::new(chain, key.private_key());
        let trust = Trust::Ca(vec![self.authority.certificate_der().clone()]);
        let target = DialTarget {
            addresses: vec![self.nodes.to_string()],
            server_name: "site.umbel".to_owned(),
            tls: wire_client(trust, Some(identity)).unwrap(),
        };
        let hello = HelloOut {
            purpose: Purpose::Hello,
            versions: VersionRange { min: 1, max: 1 },
            instance: InstanceId::random(),
            payload: id.to_string().into_bytes(),
        };
        let (calls_to, calls) = mpsc::channel(64);
        let handler: Arc<dyn Handler> = Arc::new(NodeSide { calls: calls_to });
        let (connection, _) = umbel_wire::dial_once(target, hello, |_, _| Ok(handler)).await.unwrap();
        let (generation, accepted) = self.accepted.recv().await.unwrap();
        self.connections.push(accepted.clone());
        let provider = format!("{id}/engine");
        self.tell(&Told::Eligible { node: id, eligible: true });
        let (engine, state) = (declared(model, aliases, capacity), ProviderState::Available);
        let up = Told::Up { node: id, generation, engine, state, cause: String::new() };
        self.dispatch.tell(&up, Some(&accepted)).unwrap();
        self.tell(&Told::Ready { node: id, generation, ready: true });
        Node { id, generation, connection, provider, calls }
    }

    /// As the registry tells.
    pub(super) fn tell(&self, call: &Told) {
        self.dispatch.tell(call, None).unwrap();
    }

    /// The edge's end of the newest node's connection.
    pub(super) fn edge_side(&self) -> &Connection {
        self.connections.last().unwrap()
    }

    /// The CA, for clients of the HTTPS listener.
    pub(super) fn ca(&self) -> rustls::pki_types::CertificateDer<'static> {
        self.authority.certificate_der().clone()
    }

    /// Creates an API key and gives its header.
    pub(super) async fn key(&self, models: Option<&[&str]>) -> String {
        self.key_with(models, KeyLimits::default()).await
    }

    pub(super) async fn key_with(&self, models: Option<&[&str]>, limits: KeyLimits) -> String {
        let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
        let row = KeyRow {
            key_id,
            name: "app".to_owned(),
            secret_sha256: hash.to_hex(),
            models: models.map(|models| models.iter().map(|model| (*model).to_owned()).collect()),
            priority: 50,
            limits,
            created_at_unix_ms: 1,
            created_by: String::new(),
            revoked_at_unix_ms: None,
        };
        self.keys.create(row, &Actor::default(), Commit::new()).await.unwrap();
        format!("authorization: Bearer {}\r\n", text.expose())
    }

    pub(super) fn counts(&self) -> LeaseCounts {
        self.dispatch.totals()
    }

    pub(super) fn in_flight(&self, node: &Node) -> u32 {
        self.dispatch.figures(&node.provider).unwrap().in_flight
    }

    /// Waits until no lease is held and nobody waits.
    pub(super) async fn idle(&self) {
        soon("no lease is left", self.dispatch.idle()).await;
        assert_eq!(self.counts(), LeaseCounts::default());
    }
}

/// A node's `engine`.
pub(super) fn declared(model: &str, aliases: &[&str], capacity: u32) -> Declared {
    let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
    let (name, model) = ("engine".to_owned(), model.to_owned());
    let engine = DeclaredEngine { name, model, aliases, capacity, ..DeclaredEngine::default() };
    Declared::new(&engine, 1)
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Bodies that were held are given back.
pub(super) fn nothing_is_held(rig: &Rig) -> bool {
    rig.front.held.load(std::sync::atomic::Ordering::Relaxed) == 0
}
