//! What a simulated node says on its connection: leases first, then heartbeats, telemetry and inventory.
//!
//! Owns the order and the intervals, as `shell/edge/session.rs` has them. Leaves numbers to `core/sequence`.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{
    AgentHealth, DeclaredEngine, EngineRuntime, EngineState, EngineStatus, Gpu, GpuTelemetry, NodeArtifacts,
    NodeDeclared, NodeEngines, NodeHeartbeat, NodeHeartbeatAck, NodeHelloRequest, NodeInventory, NodeLeases,
    NodeLeasesAck, NodeTelemetry,
};
use umbel_contracts::{bounds, event, method};
use umbel_wire::clock::Wall;
use umbel_wire::simulation::{Call, LinkId};
use umbel_wire::{Code, Error, Intervals};

use super::{Node, trust};

pub(super) const INVENTORY: usize = 0;
pub(super) const TELEMETRY: usize = 1;

const TIMEOUT: Duration = Duration::from_secs(10);
const LEASES_AGAIN: Duration = Duration::from_millis(100);
const NAME_AGAIN: Duration = Duration::from_secs(1);

/// Asking -> Naming -> Talking, on each connection.
#[derive(Default)]
enum Phase {
    #[default]
    Silent,
    /// The leases are to be named then.
    Name(Instant),
    /// Their answer is awaited.
    Naming(Call),
    Talking,
}

/// What is due when.
#[derive(Default)]
pub(super) struct Reports {
    phase: Phase,
    intervals: Intervals,
    heartbeat_at: Option<Instant>,
    telemetry_at: Option<Instant>,
    inventory_at: Option<Instant>,
    heartbeats: u64,
    /// Connections that broke and whose streams are not over.
    pub(super) orphaned: Vec<LinkId>,
    /// The leases are to be named again then, or are being named.
    rename_at: Option<Instant>,
    renaming: Option<Call>,
    /// GPUs that fell off.
    pub(super) missing: Vec<String>,
    pub(super) replayed: u64,
}

impl Reports {
    pub(super) fn begin(&mut self, now: Instant, intervals: Intervals) {
        self.phase = Phase::Name(now);
        (self.rename_at, self.renaming) = (None, None);
        self.intervals = intervals;
        self.heartbeat_at = None;
        self.telemetry_at = None;
        self.inventory_at = None;
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Silent | Phase::Naming(_) => None,
            Phase::Name(at) => Some(at),
            Phase::Talking => {
                let rename = self.rename_at.filter(|_| self.renaming.is_none());
                let due = [self.heartbeat_at, self.telemetry_at, self.inventory_at, rename];
                due.into_iter().flatten().min()
            }
        }
    }
}

impl Node {
    /// A GPU falls off the bus, or comes back.
    pub fn gpu_missing(&mut self, uuid: &str, missing: bool, now: Instant) {
        self.reports.missing.retain(|one| one != uuid);
        if missing {
            self.reports.missing.push(uuid.to_owned());
        }
        self.reports.inventory_at = Some(now);
    }

    /// How many of its reports were refused as replayed.
    #[must_use]
    pub fn replayed(&self) -> u64 {
        self.reports.replayed
    }

    // Blocks on the disk, as the real one does on a thread of its own.
    pub(super) fn reserve(&mut self) {
        for (number, sequence) in self.sequences.iter_mut().enumerate() {
            if let Some(up_to) = sequence.wanted()
                && !self.disk.full
                && let Some(stored) = self.disk.sequences.get_mut(number)
            {
                *stored = up_to.max(*stored);
                sequence.reserved(up_to);
            }
        }
    }

    pub(super) fn raise(&mut self, cursors: [u64; 2]) {
        for (sequence, cursor) in self.sequences.iter_mut().zip(cursors) {
            sequence.raise(cursor);
        }
        self.reserve();
    }

    fn next(&mut self, stream: usize) -> Option<u64> {
        self.reserve();
        self.sequences.get_mut(stream)?.next()
    }

    fn last(&self, stream: usize) -> u64 {
        self.sequences.get(stream).map_or(0, |sequence| sequence.last())
    }

    fn status(&self) -> EngineStatus {
        EngineStatus {
            name: "engine".to_owned(),
            state: EngineState::Ready.into(),
            ..EngineStatus::default()
        }
    }

    fn declared(&self) -> Vec<DeclaredEngine> {
        let own = DeclaredEngine {
            name: "engine".to_owned(),
            kind: "sim".to_owned(),
            model: self.setup.model.clone(),
            capacity: self.setup.capacity,
            long_context_threshold_tokens: self.setup.long.0,
            long_context_capacity: self.setup.long.1,
            status: Some(self.status()),
            ..DeclaredEngine::default()
        };
        std::iter::once(own).chain(self.deployed()).collect()
    }

    fn statuses(&self) -> Vec<EngineStatus> {
        self.declared().into_iter().filter_map(|engine| engine.status).collect()
    }

    /// Whether it says more than leases on its connection.
    pub(super) fn is_talking(&self) -> bool {
        matches!(self.reports.phase, Phase::Talking)
    }

    /// Engines and artifacts that changed are told at once.
    pub(super) fn tell_news(&mut self, _now: Instant) {
        let Some(link) = self.current.filter(|_| self.is_talking()) else { return };
        let engines = std::mem::take(&mut self.engines.news);
        let artifacts = std::mem::take(&mut self.artifacts_news);
        if !engines && !artifacts {
            return;
        }
        let declared = bare(&self.declared());
        let anew = declared != self.engines.declared;
        self.engines.declared.clone_from(&declared);
        let statuses = self.statuses();
        let here: Vec<_> = self.disk.artifacts.values().cloned().collect();
        let Some(entry) = self.links.get_mut(&link) else { return };
        if artifacts {
            let message = NodeArtifacts { artifacts: here };
            entry.end.event(event::NODE_ARTIFACTS, "artifacts", message.encode_to_vec());
        }
        if anew {
            let message = NodeDeclared { engines: declared, ..NodeDeclared::default() };
            entry.end.event(event::NODE_DECLARED, "declared", message.encode_to_vec());
        }
        if engines {
            let message = NodeEngines { engines: statuses };
            entry.end.event(event::NODE_ENGINES, "engines", message.encode_to_vec());
        }
    }

    pub(super) fn hello(&mut self, wall: Wall) -> NodeHelloRequest {
        let inventory = self.inventory(wall);
        let engines = self.declared();
        self.engines.declared = bare(&engines);
        NodeHelloRequest {
            node_id: self.disk.node_id().unwrap_or_default(),
            agent_version: "0".to_owned(),
            capabilities: ["hardware.inventory", "hardware.telemetry"]
                .into_iter()
                .chain(super::jobs::CAPABILITIES)
                .map(str::to_owned)
                .collect(),
            runtimes: vec![EngineRuntime { kind: "vllm".to_owned(), ..EngineRuntime::default() }],
            jobs: self.names_jobs(),
            artifacts: self.disk.artifacts.values().cloned().collect(),
            inventory_sequence: self.last(INVENTORY),
            telemetry_sequence: self.last(TELEMETRY),
            engines,
            inventory,
            applied_settings_version: self.settings_version(),
            settings: Some(self.settings_state()),
            trusted_ca_sha256: self.trusts().iter().map(|one| trust::certificate(one)).collect(),
            ..NodeHelloRequest::default()
        }
    }

    fn inventory(&mut self, wall: Wall) -> Option<NodeInventory> {
        let sequence = self.next(INVENTORY)?;
        let there = self.setup.gpus.iter().filter(|uuid| !self.reports.missing.contains(uuid));
        Some(NodeInventory {
            sequence,
            observed_at_unix_ms: wall.unix_ms(),
            gpus: there.map(|uuid| Gpu { uuid: uuid.clone(), ..Gpu::default() }).collect(),
            complete: true,
            ..NodeInventory::default()
        })
    }

    fn telemetry(&mut self, wall: Wall) -> Option<NodeTelemetry> {
        let sequence = self.next(TELEMETRY)?;
        let gpus =
            self.setup.gpus.iter().map(|uuid| GpuTelemetry { uuid: uuid.clone(), ..GpuTelemetry::default() });
        let gpus = gpus.collect();
        Some(NodeTelemetry {
            sequence,
            observed_at_unix_ms: wall.unix_ms(),
            gpus,
            ..NodeTelemetry::default()
        })
    }

    pub(super) fn report(&mut self, now: Instant, wall: Wall) {
        let Some(link) = self.current else { return };
        match self.reports.phase {
            Phase::Name(at) if at <= now => self.name_leases(link, now),
            Phase::Talking => self.talk(link, now, wall),
            _ => {}
        }
    }

    fn name_leases(&mut self, link: LinkId, now: Instant) {
        let message = NodeLeases { lease_ids: self.streams.carried(link) }.encode_to_vec();
        let Some(entry) = self.links.get_mut(&link) else { return };
        if let Ok(call) = entry.end.request(now, method::NODE_LEASES, message, TIMEOUT) {
            self.reports.phase = Phase::Naming(call);
        }
    }

    /// The streams of connections that broke are over: no END of theirs reaches the edge.
    pub(super) fn name_orphans(&mut self, now: Instant) {
        let before = self.reports.orphaned.len();
        self.reports.orphaned.retain(|link| self.streams.carries_of(*link));
        if self.reports.orphaned.len() < before {
            self.reports.rename_at = Some(now);
        }
    }

    pub(super) fn answered(
        &mut self,
        link: LinkId,
        call: Call,
        answer: Result<bytes::Bytes, Error>,
        now: Instant,
    ) {
        if self.current == Some(link) && self.job_answered(call, &answer, now) {
            return;
        }
        if self.current != Some(link) || self.credential_given(link, call, &answer, now) {
            return;
        }
        if matches!(self.reports.phase, Phase::Naming(naming) if naming == call) {
            let ack = answer.and_then(|answer| bounds::decode::<NodeLeasesAck>(&answer));
            match ack {
                Ok(ack) if ack.cancel_lease_ids.is_empty() => {
                    self.reports.phase = Phase::Talking;
                    // They may have changed since the hello was put together.
                    (self.engines.news, self.artifacts_news) = (true, true);
                    let (telemetry, inventory) =
                        (self.reports.intervals.telemetry, self.reports.intervals.inventory);
                    self.reports.heartbeat_at = Some(now);
                    self.reports.telemetry_at = Some(now + telemetry);
                    self.reports.inventory_at = Some(now + inventory);
                }
                Ok(ack) => {
                    self.streams.cancel(&ack.cancel_lease_ids, now);
                    self.reports.phase = Phase::Name(now + LEASES_AGAIN);
                }
                // The edge closes a connection that never names its leases.
                Err(_) => self.reports.phase = Phase::Silent,
            }
        } else if self.reports.renaming == Some(call) {
            self.reports.renaming = None;
            match answer.and_then(|answer| bounds::decode::<NodeLeasesAck>(&answer)) {
                Ok(ack) if ack.cancel_lease_ids.is_empty() => {}
                Ok(ack) => {
                    self.streams.cancel(&ack.cancel_lease_ids, now);
                    self.reports.rename_at = Some(now + LEASES_AGAIN);
                }
                Err(_) => self.reports.rename_at = Some(now + NAME_AGAIN),
            }
        } else if let Ok(ack) = answer.and_then(|answer| bounds::decode::<NodeHeartbeatAck>(&answer))
            && let Some(entry) = self.links.get_mut(&link)
        {
            entry.spread = Duration::from_millis(u64::from(ack.reconnect_spread_ms)).max(entry.spread);
        }
    }

    pub(super) fn acknowledged(&mut self, _event: u32, result: Result<(), Error>) {
        if result.is_err_and(|error| error.code == Code::Conflict && error.reason == "REPLAYED") {
            self.reports.replayed += 1;
        }
    }

    fn talk(&mut self, link: LinkId, now: Instant, wall: Wall) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.reports.rename_at) && self.reports.renaming.is_none() {
            let message = NodeLeases { lease_ids: self.streams.carried(link) }.encode_to_vec();
            let entry = self.links.get_mut(&link);
            let asked =
                entry.and_then(|entry| entry.end.request(now, method::NODE_LEASES, message, TIMEOUT).ok());
            self.reports.rename_at = asked.is_none().then(|| now + NAME_AGAIN);
            self.reports.renaming = asked;
        }
        if due(self.reports.heartbeat_at) {
            // After a pause one report is enough.
            self.reports.heartbeat_at = Some(now + self.reports.intervals.heartbeat);
            self.reports.heartbeats += 1;
            let heartbeat = NodeHeartbeat {
                sequence: self.reports.heartbeats,
                observed_at_unix_ms: wall.unix_ms(),
                health: AgentHealth::Ok.into(),
                streams_in_flight: 0,
                engines: self.statuses(),
                settings: Some(self.settings_state()),
                ..NodeHeartbeat::default()
            };
            if let Some(entry) = self.links.get_mut(&link) {
                // One that cannot be sent is followed by the next.
                drop(entry.end.request(now, method::NODE_HEARTBEAT, heartbeat.encode_to_vec(), TIMEOUT));
            }
        }
        if due(self.reports.telemetry_at) {
            self.reports.telemetry_at = Some(now + self.reports.intervals.telemetry);
            if let Some(message) = self.telemetry(wall)
                && let Some(entry) = self.links.get_mut(&link)
            {
                entry.end.event(event::NODE_TELEMETRY, "telemetry", message.encode_to_vec());
            }
        }
        if due(self.reports.inventory_at) {
            self.reports.inventory_at = Some(now + self.reports.intervals.inventory);
            if let Some(message) = self.inventory(wall)
                && let Some(entry) = self.links.get_mut(&link)
            {
                entry.end.event(event::NODE_INVENTORY, "inventory", message.encode_to_vec());
            }
        }
    }
}

fn bare(engines: &[DeclaredEngine]) -> Vec<DeclaredEngine> {
    engines.iter().map(|engine| DeclaredEngine { status: None, ..engine.clone() }).collect()
}
