//! One simulated node: a real identity, a real connection, and the reports of a host with GPUs.
//!
//! Owns what it says and how often. Its process is shared with all others, so it keeps nothing that it does not need.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpSocket;
use umbel_contracts::proto::node::{
    DeclaredEngine, EngineMemory, EngineState, EngineStatus, Gpu, GpuTelemetry, NodeEnrollRequest,
    NodeEnrollResponse, NodeHeartbeat, NodeHelloRequest, NodeInventory, NodeLeases, NodeSettings,
    NodeSettingsResult, NodeSettingsState, NodeTelemetry, StorageFree, StorageRoot,
};
use umbel_contracts::{NODE_PROTOCOL, event, method};
use umbel_wire::clock::Wall;
use umbel_wire::secret::Secret;
use umbel_wire::tls::{self, ClientIdentity, KeyPair, Trust};
use umbel_wire::{
    Attempt, Code, Connection, DialError, DialTarget, Error, Handler, HelloOut, IncomingRequest, InstanceId,
    NoHandler, Purpose, dial_over,
};

const GIB: u64 = 1 << 30;

/// What all nodes of a swarm share.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    pub(crate) name: String,
    pub(crate) ca: Vec<CertificateDer<'static>>,
    /// GPUs of each node.
    pub(crate) gpus: usize,
    /// Nodes that were told a settings version, by the last one.
    pub(crate) told: Arc<AtomicU64>,
}

/// A node with its certificate.
pub(crate) struct Node {
    number: u32,
    id: String,
    identity: ClientIdentity,
}

/// A key with its signing request, made before the clock runs.
pub(crate) struct Newcomer {
    number: u32,
    token: String,
    secret: Secret,
    key: KeyPair,
    request: Vec<u8>,
}

/// Eight nodes share an address, as hosts behind one router do: an edge takes few newcomers at once from each.
fn source(number: u32) -> IpAddr {
    let [_, _, high, low] = (number / 8).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 1, high, low))
}

impl Site {
    fn target(&self, identity: Option<ClientIdentity>) -> Result<DialTarget, String> {
        let tls =
            tls::wire_client(Trust::Ca(self.ca.clone()), identity).map_err(|error| error.to_string())?;
        Ok(DialTarget { addresses: Vec::new(), server_name: format!("{}.umbel", self.name), tls })
    }

    async fn dial(
        &self,
        number: u32,
        identity: Option<ClientIdentity>,
        purpose: Purpose,
        payload: Vec<u8>,
        handler: Arc<dyn Handler>,
    ) -> Result<(Connection, umbel_wire::Welcome), String> {
        let target = self.target(identity)?;
        let instance = InstanceId::random();
        let mut wait = Duration::from_millis(100);
        for attempt in 1..=20 {
            let socket = TcpSocket::new_v4().map_err(|error| error.to_string())?;
            socket.bind(SocketAddr::new(source(number), 0)).map_err(|error| error.to_string())?;
            let hello = HelloOut { purpose, versions: NODE_PROTOCOL, instance, payload: payload.clone() };
            let tcp = match socket.connect(self.address).await {
                Ok(tcp) => tcp,
                Err(error) => {
                    last(attempt, &error.to_string())?;
                    tokio::time::sleep(wait).await;
                    continue;
                }
            };
            let handler = Arc::clone(&handler);
            match dial_over(tcp, target.clone(), hello, Attempt(attempt), |_, _| Ok(handler)).await {
                Ok(done) => return Ok(done),
                Err(DialError { message, .. }) => last(attempt, &message)?,
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(2));
        }
        Err("never".to_owned())
    }
}

fn last(attempt: u64, message: &str) -> Result<(), String> {
    if attempt < 20 { Ok(()) } else { Err(message.to_owned()) }
}

impl Newcomer {
    pub(crate) fn new(number: u32, token: String, secret: Secret) -> Result<Self, String> {
        let key = KeyPair::generate().map_err(|error| error.to_string())?;
        let request = key.signing_request().map_err(|error| error.to_string())?;
        Ok(Self { number, token, secret, key, request })
    }

    /// One enrollment.
    pub(crate) async fn enroll(self, site: &Site) -> Result<Node, String> {
        let request = NodeEnrollRequest {
            token_id: self.token,
            token_secret: self.secret.expose().to_vec(),
            signing_request: self.request,
            name: "swarm".to_owned(),
            software_version: "bench".to_owned(),
        };
        let handler = Arc::new(NoHandler);
        let payload = request.encode_to_vec();
        let (_, welcome) = site.dial(self.number, None, Purpose::Enroll, payload, handler).await?;
        let answer = NodeEnrollResponse::decode(welcome.payload).map_err(|error| error.to_string())?;
        let chain = answer.certificate_chain.into_iter().map(CertificateDer::from).collect();
        let identity = ClientIdentity::new(chain, self.key.private_key());
        Ok(Node { number: self.number, id: answer.node_id, identity })
    }
}

/// Takes whatever settings it is given.
struct Obedient(Arc<AtomicU64>);

fn settings(version: u64, digest: Vec<u8>) -> NodeSettingsState {
    NodeSettingsState { applied_version: version, applied_digest: digest, ..NodeSettingsState::default() }
}

impl Handler for Obedient {
    fn on_request(&self, _: &Connection, request: IncomingRequest) {
        let answer = match request.method {
            method::NODE_SETTINGS => NodeSettings::decode(&*request.payload)
                .map(|given| {
                    self.0.fetch_add(1, Ordering::SeqCst);
                    let state = Some(settings(given.version, given.digest));
                    NodeSettingsResult { state }.encode_to_vec()
                })
                .map_err(|error| Error::new(Code::InvalidArgument, "SETTINGS", error.to_string())),
            _ => Err(Error::new(Code::Unimplemented, "UNKNOWN_METHOD", "a node of a swarm")),
        };
        request.respond(answer);
    }
}

impl Node {
    /// Connects and is complete.
    pub(crate) async fn connect(&self, site: &Site) -> Result<Connection, String> {
        let hello = NodeHelloRequest {
            node_id: self.id.clone(),
            agent_version: "bench".to_owned(),
            capabilities: ["hardware.inventory", "hardware.telemetry", "deployment.invoke.v1"]
                .map(str::to_owned)
                .to_vec(),
            inventory_sequence: 1,
            engines: vec![self.engine()],
            inventory: Some(self.inventory(site.gpus)),
            settings: Some(settings(0, Vec::new())),
            ..NodeHelloRequest::default()
        };
        let handler = Arc::new(Obedient(Arc::clone(&site.told)));
        let identity = Some(self.identity.clone());
        let payload = hello.encode_to_vec();
        let (connection, _) = site.dial(self.number, identity, Purpose::Hello, payload, handler).await?;
        let leases = NodeLeases::default().encode_to_vec();
        let answer = connection.request(method::NODE_LEASES, leases, Duration::from_secs(30)).await;
        answer.map_err(|error| error.to_string())?;
        Ok(connection)
    }

    /// Beats and reports until the connection ends.
    pub(crate) async fn live(
        self,
        site: Arc<Site>,
        connection: Connection,
        beat: Duration,
        report: Duration,
    ) {
        // Nobody starts in the same moment.
        let spread = Duration::from_millis(u64::from(self.number.wrapping_mul(2_654_435_761) % 10_000));
        tokio::time::sleep(beat.mul_f64(spread.as_secs_f64() / 10.0)).await;
        let (mut beats, mut reports) = (tokio::time::interval(beat), tokio::time::interval(report));
        let (mut sequence, mut telemetry) = (0, 0);
        loop {
            tokio::select! {
                _ = connection.closed() => return,
                _ = beats.tick() => {
                    sequence += 1;
                    let heartbeat = NodeHeartbeat {
                        sequence,
                        observed_at_unix_ms: Wall::now().unix_ms(),
                        health: 1,
                        engines: vec![self.engine().status.unwrap_or_default()],
                        ..NodeHeartbeat::default()
                    };
                    let payload = heartbeat.encode_to_vec();
                    let _ = connection.request(method::NODE_HEARTBEAT, payload, Duration::from_secs(30)).await;
                }
                _ = reports.tick() => {
                    telemetry += 1;
                    connection.event(event::NODE_TELEMETRY, "telemetry", self.telemetry(site.gpus, telemetry));
                }
            }
        }
    }

    fn uuid(&self, gpu: usize) -> String {
        format!("GPU-{:08x}-1111-2222-3333-{gpu:012x}", self.number)
    }

    fn engine(&self) -> DeclaredEngine {
        let status = EngineStatus {
            name: "llama".to_owned(),
            state: EngineState::Ready.into(),
            since_unix_ms: 1,
            ..EngineStatus::default()
        };
        DeclaredEngine {
            name: "llama".to_owned(),
            kind: "llama-server".to_owned(),
            model: "llama-3.1-8b-instruct".to_owned(),
            category: "local_inference".to_owned(),
            capacity: 8,
            max_context_tokens: 32_768,
            status: Some(status),
            ..DeclaredEngine::default()
        }
    }

    fn inventory(&self, gpus: usize) -> NodeInventory {
        let gpu = |index: usize| Gpu {
            uuid: self.uuid(index),
            name: "NVIDIA H100 80GB HBM3".to_owned(),
            memory_bytes: 80 * GIB,
            pci_address: format!("00000000:{index:02X}:00.0"),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            mig_enabled: Some(false),
            compute_capability: "9.0".to_owned(),
            ..Gpu::default()
        };
        NodeInventory {
            sequence: 1,
            observed_at_unix_ms: Wall::now().unix_ms(),
            hostname: format!("gpu-{:05}.example", self.number),
            os: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            kernel: "6.1.0-28-amd64".to_owned(),
            cpu_model: "AMD EPYC 9654 96-Core Processor".to_owned(),
            cpu_count: 192,
            memory_bytes: 1_536 * GIB,
            storage: vec![StorageRoot {
                name: "models".to_owned(),
                total_bytes: 7 << 40,
                reserve_bytes: Some(100 << 30),
            }],
            gpus: (0..gpus).map(gpu).collect(),
            complete: true,
            accelerator_mode: "nvidia".to_owned(),
            driver_version: "570.86.15".to_owned(),
            cuda_version: "12.8".to_owned(),
            ..NodeInventory::default()
        }
    }

    fn telemetry(&self, gpus: usize, sequence: u64) -> Vec<u8> {
        let moves = u32::try_from(sequence % 50).unwrap_or_default();
        let gpu = |index: usize| GpuTelemetry {
            uuid: self.uuid(index),
            utilization_percent: Some(40 + moves),
            memory_used_bytes: Some(70 * GIB),
            memory_total_bytes: Some(80 * GIB),
            temperature_celsius: Some(40 + moves / 2),
            power_milliwatts: Some(300_000 + moves),
            sm_clock_mhz: Some(1_980),
            memory_clock_mhz: Some(2_619),
            ecc_corrected: Some(0),
            ecc_uncorrected: Some(0),
            xid_count: Some(0),
            engines: vec![EngineMemory { engine: "llama".to_owned(), bytes: 70 * GIB }],
            ..GpuTelemetry::default()
        };
        let report = NodeTelemetry {
            sequence,
            observed_at_unix_ms: Wall::now().unix_ms(),
            memory_used_bytes: 200 * GIB,
            load_1m_milli: 12_000,
            storage: vec![StorageFree { name: "models".to_owned(), free_bytes: 2 << 40 }],
            gpus: (0..gpus).map(gpu).collect(),
        };
        report.encode_to_vec()
    }
}
