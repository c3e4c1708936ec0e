//! The rig: an edge with ports that the kernel chose, and nodes that speak the wire.

use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::proto::node::{
    DeclaredEngine, EngineState, EngineStatus, NodeEnrollRequest, NodeEnrollResponse, NodeHeartbeat,
    NodeHelloRequest, NodeInventory, NodeLeases, NodeLeasesAck,
};
use umbel_contracts::{NODE_PROTOCOL, method};
use umbel_store::{Store, WriteSwitch};
use umbel_wire::io::dial::dial_attempt;
use umbel_wire::secret::Secret;
use umbel_wire::tls::{self, ClientIdentity, KeyPair, Trust};
use umbel_wire::{
    Attempt, Connection, DialError, DialTarget, Error, Handler, HelloOut, IncomingStream, InstanceId, NodeId,
    Purpose, VersionRange, Welcome, dial_once, token,
};

use crate::Config;
use crate::app::{Running, STORE_FILE, STORE_OWNER};
use crate::core::commands::Request;
use crate::shell::commands::Standing;
use crate::shell::dispatch::{Admitted, Ask, KeyNumber, Slot};

pub(super) const TIME: Duration = Duration::from_secs(30);

/// Runs a test on the runtime that an edge runs on.
pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.unwrap() });
}

/// Waits until something holds.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIME;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// An edge and its state directory.
pub(super) struct Edge {
    pub(super) directory: tempfile::TempDir,
    pub(super) config: Config,
    pub(super) running: Running,
    pub(super) disk: WriteSwitch,
}

impl Edge {
    pub(super) async fn start() -> Self {
        Self::start_with("").await
    }

    /// `more` is added to the file.
    pub(super) async fn start_with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "[edge]\nsite = \"ber1\"\nstate_dir = {:?}\nadvertise = [\"edge.example:7451\"]\n[listen]\n\
             api = \"127.0.0.1:0\"\nnodes = \"127.0.0.1:0\"\nmetrics = \"\"\n{more}",
            directory.path().join("state")
        );
        let config = Config::parse(&text, std::path::Path::new("edge.toml")).unwrap();
        crate::init(&config).unwrap();
        let (running, disk) = Self::open(&config).await;
        Self { directory, config, running, disk }
    }

    async fn open(config: &Config) -> (Running, WriteSwitch) {
        let disk = WriteSwitch::default();
        let path = config.state_dir.join(STORE_FILE);
        let opened = || Store::open_existing_switched(&path, STORE_OWNER, disk.clone());
        (Running::build_on(config, opened).await.unwrap(), disk.clone())
    }

    /// Ends the edge in order and starts it again on the same state.
    pub(super) async fn restart(self) -> Self {
        let Self { directory, config, running, .. } = self;
        running.drain(Duration::from_secs(5)).await;
        let (running, disk) = Self::open(&config).await;
        Self { directory, config, running, disk }
    }

    /// Starts an edge on what another one has left.
    pub(super) async fn resume(directory: tempfile::TempDir, config: Config) -> Self {
        let (running, disk) = Self::open(&config).await;
        Self { directory, config, running, disk }
    }

    /// Ends the edge as a crash does: nothing is flushed.
    pub(super) async fn crash(self) -> Self {
        let Self { directory, config, running, .. } = self;
        running.crash().await;
        let (running, disk) = Self::open(&config).await;
        Self { directory, config, running, disk }
    }

    /// A copy of the store as it stands.
    pub(super) async fn backup(&self, name: &str) -> std::path::PathBuf {
        let to = self.directory.path().join(name);
        self.running.site.store.backup(to.clone(), self.config.site.to_string()).await.unwrap();
        to
    }

    /// Ends the edge and starts it again from a backup.
    pub(super) async fn restore(self, from: &std::path::Path) -> Self {
        let Self { directory, config, running, .. } = self;
        running.drain(Duration::from_secs(5)).await;
        let path = config.state_dir.join(STORE_FILE);
        let restoring =
            umbel_store::Restoring::begin(from, &path, STORE_OWNER, config.site.as_str()).unwrap();
        restoring.finish().unwrap();
        let (running, disk) = Self::open(&config).await;
        Self { directory, config, running, disk }
    }

    /// Ends the edge in order, lets something happen to its files, and starts it again, perhaps on a full disk.
    pub(super) async fn meanwhile(self, full: bool, happens: impl FnOnce(&Config)) -> Self {
        let Self { directory, config, running, .. } = self;
        running.drain(Duration::from_secs(5)).await;
        happens(&config);
        let disk = WriteSwitch::default();
        disk.full(full);
        let path = config.state_dir.join(STORE_FILE);
        let opened = || Store::open_rescuing_switched(&path, STORE_OWNER, disk.clone());
        let running = Running::build_on(&config, opened).await.unwrap();
        Self { directory, config, running, disk }
    }

    /// Asks an operation as the local socket would.
    pub(super) async fn ask(&self, operation: &str, selector: &str, args: Value) -> Result<Standing, Error> {
        self.ask_as(&uuid::Uuid::new_v4().to_string(), operation, selector, args).await
    }

    pub(super) async fn ask_as(
        &self,
        id: &str,
        operation: &str,
        selector: &str,
        args: Value,
    ) -> Result<Standing, Error> {
        let request = Request {
            command_id: id.to_owned(),
            operation: operation.to_owned(),
            selector: selector.to_owned(),
            args: args.as_object().cloned().unwrap_or_default(),
            reason: "a test".to_owned(),
            actor: "local".to_owned(),
            ..Request::default()
        };
        self.running.commands.ask(request, TIME).await
    }

    /// `node.decommission` with the name typed.
    pub(super) async fn ask_confirmed(
        &self,
        selector: &str,
        name: &str,
        args: Value,
    ) -> Result<Standing, Error> {
        self.ask_confirmed_as(&uuid::Uuid::new_v4().to_string(), selector, name, args).await
    }

    pub(super) async fn ask_confirmed_as(
        &self,
        id: &str,
        selector: &str,
        name: &str,
        args: Value,
    ) -> Result<Standing, Error> {
        self.running.commands.ask(self.decommission(id, selector, name, args), TIME).await
    }

    pub(super) fn decommission(&self, id: &str, selector: &str, name: &str, args: Value) -> Request {
        Request {
            command_id: id.to_owned(),
            operation: "node.decommission".to_owned(),
            selector: selector.to_owned(),
            args: args.as_object().cloned().unwrap_or_default(),
            reason: "a test".to_owned(),
            confirm: name.to_owned(),
            actor: "local".to_owned(),
            ..Request::default()
        }
    }

    /// Mints a token as an operator does: the secret stays here.
    pub(super) async fn token(&self, name: &str) -> (String, Secret) {
        self.token_for(name, 900, true).await
    }

    pub(super) async fn token_for(&self, name: &str, seconds: u64, eligible: bool) -> (String, Secret) {
        let (id, secret) = (token::new_id(), Secret::generate());
        let args = json!({
            "token_id": id, "secret_sha256": secret.hash().to_hex(), "name": name,
            "expires_in_seconds": seconds, "eligible": eligible,
        });
        let made = self.ask("enrollment.create", "", args).await.unwrap();
        assert_eq!(made.phase, CommandPhase::Succeeded);
        (id, secret)
    }

    /// A token whose host takes a node's place.
    pub(super) async fn token_replacing(&self, node: &str) -> (String, Secret) {
        let (id, secret) = (token::new_id(), Secret::generate());
        let args = json!({
            "token_id": id, "secret_sha256": secret.hash().to_hex(), "name": "ignored", "replace": node,
        });
        let made = self.ask("enrollment.create", "", args).await.unwrap();
        assert_eq!(made.phase, CommandPhase::Succeeded);
        (id, secret)
    }

    pub(super) fn target(&self, identity: Option<ClientIdentity>) -> DialTarget {
        let ca = std::fs::read(self.config.state_dir.join("ca/ca.pem")).unwrap();
        DialTarget {
            addresses: vec![self.running.nodes_address.to_string()],
            server_name: "ber1.umbel".to_owned(),
            tls: tls::wire_client(Trust::Ca(tls::parse_chain(&ca).unwrap()), identity).unwrap(),
        }
    }

    /// One exchange of enrollment.
    pub(super) async fn enroll(
        &self,
        token_id: &str,
        secret: &Secret,
        key: &KeyPair,
    ) -> Result<NodeEnrollResponse, DialError> {
        let request = NodeEnrollRequest {
            token_id: token_id.to_owned(),
            token_secret: secret.expose().to_vec(),
            signing_request: key.signing_request().unwrap(),
            name: "whatever".to_owned(),
            software_version: "test".to_owned(),
        };
        let hello = HelloOut {
            purpose: Purpose::Enroll,
            versions: NODE_PROTOCOL,
            instance: InstanceId::random(),
            payload: request.encode_to_vec(),
        };
        let (_, welcome) =
            dial_once(self.target(None), hello, |_, _| Ok(Arc::new(umbel_wire::NoHandler))).await?;
        Ok(NodeEnrollResponse::decode(welcome.payload).unwrap())
    }

    /// A new node with one engine called `e`, not connected yet.
    pub(super) async fn node(&self, name: &str) -> FakeNode {
        let (id, secret) = self.token(name).await;
        let key = KeyPair::generate().unwrap();
        let answer = self.enroll(&id, &secret, &key).await.unwrap();
        FakeNode::new(key, &answer)
    }

    pub(super) fn view(&self, node: &FakeNode) -> Arc<crate::core::registry::node::Node> {
        self.running.site.read(|registry| registry.node(&node.id).cloned()).unwrap()
    }

    /// A slot of the model that fake nodes serve, as a request would get it.
    pub(super) fn slot(&self) -> Option<Slot> {
        let dispatch = &self.running.site.dispatch;
        let model = dispatch.resolve("llama")?.model;
        let class = crate::core::keys::class_of(50);
        match dispatch.admit(Instant::now(), &Ask::new(model, KeyNumber(0), class)) {
            Admitted::Slot(slot) => Some(slot),
            _ => None,
        }
    }

    pub(super) fn connected(&self, node: &FakeNode) -> bool {
        self.view(node).connected()
    }

    /// The same, once there is one.
    pub(super) async fn audited(&self, action: &str) -> Vec<umbel_store::AuditEntry> {
        let deadline = Instant::now() + TIME;
        loop {
            let found = self.audit(action).await;
            if !found.is_empty() {
                return found;
            }
            assert!(Instant::now() < deadline, "never audited: {action}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(super) async fn audit(&self, action: &str) -> Vec<umbel_store::AuditEntry> {
        let all = self.running.site.store.audit_after(0, 1_000).await.unwrap();
        umbel_store::verify(&all).unwrap();
        all.into_iter().filter(|entry| entry.record.action == action).collect()
    }
}

/// A node as its own process would be: identity, instance, what it declares.
#[derive(Clone)]
pub(super) struct FakeNode {
    pub(super) id: NodeId,
    pub(super) identity: ClientIdentity,
    pub(super) key: Arc<KeyPair>,
    pub(super) instance: InstanceId,
    pub(super) hello: NodeHelloRequest,
    pub(super) versions: VersionRange,
    // Dials of all copies of this process.
    pub(super) attempts: Arc<AtomicU64>,
}

pub(super) fn engine(name: &str, state: EngineState) -> DeclaredEngine {
    DeclaredEngine {
        name: name.to_owned(),
        kind: "sim".to_owned(),
        model: "llama".to_owned(),
        category: "local_inference".to_owned(),
        capacity: 4,
        status: Some(EngineStatus { name: name.to_owned(), state: state.into(), ..EngineStatus::default() }),
        ..DeclaredEngine::default()
    }
}

impl FakeNode {
    pub(super) fn new(key: KeyPair, answer: &NodeEnrollResponse) -> Self {
        let chain = answer.certificate_chain.iter().map(|der| der.clone().into()).collect();
        let now = umbel_wire::clock::Wall::now().unix_ms();
        let inventory = NodeInventory {
            sequence: 1,
            observed_at_unix_ms: now,
            hostname: "host".to_owned(),
            complete: true,
            ..NodeInventory::default()
        };
        Self {
            id: NodeId::parse(&answer.node_id).unwrap(),
            identity: ClientIdentity::new(chain, key.private_key()),
            key: Arc::new(key),
            instance: InstanceId::random(),
            hello: NodeHelloRequest {
                node_id: answer.node_id.clone(),
                agent_version: "test".to_owned(),
                engines: vec![engine("e", EngineState::Ready)],
                inventory_sequence: 1,
                inventory: Some(inventory),
                ..NodeHelloRequest::default()
            },
            versions: NODE_PROTOCOL,
            attempts: Arc::default(),
        }
    }

    /// Says hello.
    pub(super) async fn dial(&self, edge: &Edge) -> Result<(Connection, Welcome), DialError> {
        self.dial_with(edge, Arc::new(Relay::default())).await
    }

    pub(super) async fn dial_with(
        &self,
        edge: &Edge,
        relay: Arc<Relay>,
    ) -> Result<(Connection, Welcome), DialError> {
        self.dial_by(edge, relay).await
    }

    pub(super) async fn dial_by(
        &self,
        edge: &Edge,
        handler: Arc<dyn Handler>,
    ) -> Result<(Connection, Welcome), DialError> {
        let hello = HelloOut {
            purpose: Purpose::Hello,
            versions: self.versions,
            instance: self.instance,
            payload: self.hello.encode_to_vec(),
        };
        let attempt = Attempt(self.attempts.fetch_add(1, Ordering::SeqCst) + 1);
        dial_attempt(edge.target(Some(self.identity.clone())), hello, attempt, |_, _| Ok(handler)).await
    }

    /// Says hello, names no leases, and beats once: a node that is complete.
    pub(super) async fn connect(&self, edge: &Edge) -> Connection {
        self.connect_with(edge, Arc::new(Relay::default())).await
    }

    pub(super) async fn connect_with(&self, edge: &Edge, relay: Arc<Relay>) -> Connection {
        self.connect_by(edge, relay).await
    }

    pub(super) async fn connect_by(&self, edge: &Edge, handler: Arc<dyn Handler>) -> Connection {
        let (connection, welcome) = self.dial_by(edge, handler).await.unwrap();
        assert_eq!(welcome.generation, connection.generation());
        let ack = name_leases(&connection, &[]).await.unwrap();
        assert!(ack.cancel_lease_ids.is_empty());
        beat(&connection, 1).await.unwrap();
        connection
    }
}

pub(super) async fn name_leases(connection: &Connection, leases: &[u64]) -> Result<NodeLeasesAck, Error> {
    let leases = NodeLeases { lease_ids: leases.to_vec() };
    let answer = connection.request(method::NODE_LEASES, leases.encode_to_vec(), TIME).await?;
    Ok(NodeLeasesAck::decode(answer).unwrap())
}

pub(super) async fn beat(connection: &Connection, sequence: u64) -> Result<(), Error> {
    let heartbeat = NodeHeartbeat {
        sequence,
        observed_at_unix_ms: umbel_wire::clock::Wall::now().unix_ms(),
        health: 1,
        ..NodeHeartbeat::default()
    };
    connection.request(method::NODE_HEARTBEAT, heartbeat.encode_to_vec(), TIME).await.map(drop)
}

/// The reason of a refused dial.
pub(super) fn reason(result: Result<(Connection, Welcome), DialError>) -> (umbel_wire::Code, String) {
    let Err(error) = result else { panic!("it was let in") };
    let rejection = error.rejection.unwrap_or_else(|| panic!("no rejection: {}", error.message));
    (rejection.error.code, rejection.error.reason.into_owned())
}

/// The node's side of streams: it keeps them until it is told to let go.
#[derive(Default)]
pub(super) struct Relay {
    pub(super) streams: Mutex<Vec<IncomingStream>>,
    pub(super) opened: AtomicUsize,
}

impl Relay {
    pub(super) fn open(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }

    /// Ends every stream it holds.
    pub(super) fn finish(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            stream.finish(&[]);
        }
    }
}

impl Handler for Relay {
    fn on_stream(&self, _connection: &Connection, stream: IncomingStream) {
        self.streams.lock().unwrap().push(stream);
        self.opened.fetch_add(1, Ordering::SeqCst);
    }
}
