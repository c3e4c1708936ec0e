//! What the node tells its edge besides answers: inventory, telemetry, engine states, heartbeats, problems.
//!
//! Owns putting the messages together, their sequence numbers and which are due; leaves looking to `watch` and sending
//! to `edge`. Invariant: every message fits its frame, and no sequence number is used twice, over restarts too.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::spawn_blocking};
use umbel_contracts::{
    causes::Cause,
    deployment::EngineKind,
    proto::node::{
        AgentHealth, Artifact, EngineRuntime, EngineState, EngineStatus, NodeDeclared, NodeHeartbeat,
        NodeHelloRequest, NodeInventory, NodeProblem, NodeTelemetry,
    },
};
use umbel_wire::{UnderWay, clock::Wall, text::shorten};

use crate::{
    core::{identity::Identity, inventory, problems::Problems, sequence::Sequence, telemetry::Pace},
    engines::adapter,
    shell::{
        artifacts::{Artifacts, job},
        engines::{Declaration, Engines},
        jobs,
        runtimes::Runtimes,
        settings::Settings,
        state::State,
        watch::Watch,
    },
};

/// What this agent can do, by the names of the boundary.
const CAPABILITIES: [&str; 3] = ["hardware.inventory", "hardware.telemetry", "deployment.invoke.v1"];
/// Bytes of output tails in one message: with 32 engines and their causes it stays below a frame.
const TAILS_MAX: usize = 24 * 1024;
/// Bytes of a cause.
const CAUSE_MAX: usize = 512;
/// The numbers of reports had to come from the edge: shown until they have.
const SEQUENCES_LOST: &str = "SEQUENCES_LOST";
/// The disk does not take the list of deployments.
const STATE_NOT_WRITABLE: &str = "STATE_NOT_WRITABLE";
/// An engine listens to other hosts.
const ENGINE_EXPOSED: &str = Cause::EngineExposed.as_str();
/// Engines of deployments go on without the list of them.
const DEPLOYMENTS_LOST: &str = "DEPLOYMENTS_LOST";
/// Problems of one heartbeat: the boundary's bound.
const PROBLEMS_MAX: usize = 32;

/// One stream of reports: its numbers, and when the last one went out.
#[derive(Debug)]
struct Stream {
    numbers: Sequence,
    pace: Pace,
}

/// What was told last.
#[derive(Debug, Default)]
struct Told {
    inventory: NodeInventory,
    inventory_at: Option<Instant>,
    /// The edge cannot have taken the last inventory.
    inventory_again: bool,
    /// The last pass over the host that a telemetry report was about.
    pass: u64,
}

/// The node's reports.
#[derive(Debug)]
pub(crate) struct Reports {
    identity: Arc<Identity>,
    engines: Arc<Engines>,
    state: Arc<State>,
    watch: Arc<Watch>,
    settings: Arc<Settings>,
    artifacts: watch::Receiver<Arc<Vec<Artifact>>>,
    installed: Arc<Runtimes>,
    inventories: Mutex<Stream>,
    telemetries: Mutex<Stream>,
    /// Numbers are being reserved.
    reserving: Arc<AtomicBool>,
    told: Mutex<Told>,
    declared: Mutex<Declaration>,
    heartbeats: AtomicU64,
    /// By code; those of GPUs are the watch's.
    problems: Mutex<Problems>,
}

impl Reports {
    /// Reserves sequence numbers. Blocks on the disk.
    pub(crate) fn new(
        identity: Arc<Identity>,
        engines: Arc<Engines>,
        state: Arc<State>,
        watch: Arc<Watch>,
        settings: Arc<Settings>,
        artifacts: &Artifacts,
    ) -> Self {
        let on_disk = state.sequences();
        let stream =
            |number| Mutex::new(Stream { numbers: Sequence::after_start(number), pace: Pace::default() });
        let reports = Self {
            identity,
            engines,
            watch,
            settings,
            artifacts: artifacts.news(),
            installed: Arc::new(Runtimes::open(&state)),
            declared: Mutex::default(),
            inventories: stream(on_disk.inventory),
            telemetries: stream(on_disk.telemetry),
            reserving: Arc::default(),
            told: Mutex::default(),
            heartbeats: AtomicU64::new(0),
            problems: Mutex::default(),
            state,
        };
        reports.set_problem(SEQUENCES_LOST, reports.state.lost_sequences());
        reports.reserve();
        reports
    }

    fn inventories(&self) -> MutexGuard<'_, Stream> {
        self.inventories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn telemetries(&self) -> MutexGuard<'_, Stream> {
        self.telemetries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves sequence numbers where they run low. Blocks on the disk.
    fn reserve(&self) {
        let inventory = self.inventories().numbers.wanted();
        let telemetry = self.telemetries().numbers.wanted();
        if inventory.is_none() && telemetry.is_none() {
            return;
        }
        let raise =
            |number: &mut u64, wanted: Option<u64>| *number = (*number).max(wanted.unwrap_or_default());
        let reserved = self.state.reserve(|sequences| {
            raise(&mut sequences.inventory, inventory);
            raise(&mut sequences.telemetry, telemetry);
        });
        match reserved {
            Ok(()) => {
                self.inventories().numbers.reserved(inventory.unwrap_or_default());
                self.telemetries().numbers.reserved(telemetry.unwrap_or_default());
            }
            // Reports stop when the reserve is used up; streams go on.
            Err(error) => {
                tracing::error!(%error, "sequence numbers cannot be reserved in the state directory")
            }
        }
    }

    fn reserve_later(self: &Arc<Self>) {
        // One at a time: a disk that hangs must not take all threads for blocking work.
        let Some(under_way) = UnderWay::take(&self.reserving) else { return };
        let reports = Arc::clone(self);
        drop(spawn_blocking(move || {
            reports.reserve();
            drop(under_way);
        }));
    }

    /// The edge has seen these numbers: what comes is above them.
    pub(crate) fn raise(self: &Arc<Self>, inventory: u64, telemetry: u64) {
        let behind = {
            let mut inventories = self.inventories();
            let behind = inventories.numbers.last() < inventory;
            inventories.numbers.raise(inventory);
            behind
        };
        // What came with the hello had a number that was used before: the edge took nothing of it.
        self.told().inventory_again |= behind;
        self.telemetries().numbers.raise(telemetry);
        self.set_problem(SEQUENCES_LOST, None);
        self.reserve_later();
    }

    /// The next number of a stream; nothing if none is to be had.
    fn number(self: &Arc<Self>, stream: &Mutex<Stream>) -> Option<u64> {
        let (next, low) = {
            let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            (stream.numbers.next(), stream.numbers.wanted().is_some())
        };
        if low {
            self.reserve_later();
        }
        next
    }

    /// The whole inventory under a new number; nothing if no number is to be had.
    fn next_inventory(self: &Arc<Self>, now: Instant) -> Option<NodeInventory> {
        let sequence = self.number(&self.inventories)?;
        let inventory = self.watch.inventory();
        self.inventories().pace.note(now);
        let mut told = self.told();
        (told.inventory, told.inventory_at, told.inventory_again) = (inventory.clone(), Some(now), false);
        drop(told);
        Some(NodeInventory { sequence, observed_at_unix_ms: Wall::now().unix_ms(), ..inventory })
    }

    /// An inventory, if the host changed since the last one or that one is older than `every`.
    pub(crate) fn inventory_due(self: &Arc<Self>, now: Instant, every: Duration) -> Option<NodeInventory> {
        let due = {
            let told = self.told();
            told.inventory_again
                || told.inventory_at.is_none_or(|at| now.saturating_duration_since(at) >= every)
                || !inventory::same(&told.inventory, &self.watch.inventory())
        };
        if due && self.inventories().pace.may(now) { self.next_inventory(now) } else { None }
    }

    /// A telemetry report, if the host was looked at since the last one.
    pub(crate) fn telemetry_due(self: &Arc<Self>, now: Instant) -> Option<NodeTelemetry> {
        let pass = self.watch.news().borrow().passes;
        if self.told().pass == pass || !self.telemetries().pace.may(now) {
            return None;
        }
        let sequence = self.number(&self.telemetries)?;
        self.told().pass = pass;
        Some(NodeTelemetry { sequence, observed_at_unix_ms: Wall::now().unix_ms(), ..self.watch.telemetry() })
    }

    /// What is seen of the host.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Says what is wrong under a code, or that it is right again.
    pub(crate) fn set_problem(&self, code: &'static str, message: Option<String>) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.set(code, message, Wall::now());
    }

    /// What is wrong with this node, besides lost GPUs.
    pub(crate) fn problems(&self) -> Vec<NodeProblem> {
        self.set_problem(DEPLOYMENTS_LOST, self.engines.lost_deployments());
        self.set_problem(STATE_NOT_WRITABLE, self.state.unwritable());
        self.set_problem(ENGINE_EXPOSED, self.engines.exposed());
        let own =
            self.problems.lock().unwrap_or_else(PoisonError::into_inner).all().cloned().collect::<Vec<_>>();
        own.into_iter()
            .chain(self.settings.problems())
            .chain(self.watch.problems())
            .take(PROBLEMS_MAX)
            .collect()
    }

    /// What the node says first.
    pub(crate) fn hello(self: &Arc<Self>) -> NodeHelloRequest {
        let inventory = self.next_inventory(Instant::now());
        let settings = self.settings.state();
        let NodeDeclared { engines, labels, runtimes } = self.declare();
        NodeHelloRequest {
            node_id: self.identity.node_id.to_string(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: CAPABILITIES
                .iter()
                .chain(&jobs::CAPABILITIES)
                .map(|name| (*name).to_owned())
                .collect(),
            runtimes,
            inventory_sequence: self.inventories().numbers.last(),
            telemetry_sequence: self.telemetries().numbers.last(),
            engines,
            applied_settings_version: settings.applied_version,
            inventory,
            labels,
            settings: Some(settings),
            artifacts: job::fitting(self.artifacts.borrow().iter().cloned(), job::HELLO_BYTES),
            ..NodeHelloRequest::default()
        }
    }

    /// Which versions of engines are installed.
    pub(crate) fn installed(&self) -> Arc<Runtimes> {
        Arc::clone(&self.installed)
    }

    /// The kinds of engines that this host can run.
    fn runtimes(&self) -> Vec<EngineRuntime> {
        let grounds = self.engines.grounds();
        let runtime = |kind: EngineKind| {
            let installed = self.installed.of(kind, grounds.programs.of(kind));
            let (engine_version, digest) =
                installed.map(|installed| (installed.version, installed.digest)).unwrap_or_default();
            EngineRuntime {
                kind: kind.as_str().to_owned(),
                adapter_version: adapter::options_of(kind).unwrap_or_default().to_owned(),
                engine_version,
                digest,
            }
        };
        grounds.kinds().into_iter().map(runtime).collect()
    }

    /// Everything that is declared, as in a hello; it counts as told.
    fn declare(&self) -> NodeDeclared {
        let (labels, runtimes) = (self.settings.in_force().labels.clone(), self.runtimes());
        *self.last_declared() = (self.engines.declared(), labels.clone(), runtimes.clone());
        let mut engines: Vec<_> = self.engines.list().iter().map(|engine| engine.declared()).collect();
        bound(engines.iter_mut().filter_map(|engine| engine.status.as_mut()));
        NodeDeclared { engines, labels: labels.into_iter().collect(), runtimes }
    }

    fn last_declared(&self) -> MutexGuard<'_, Declaration> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is declared, if that differs from what was told last.
    pub(crate) fn declared_anew(&self) -> Option<NodeDeclared> {
        let now = (self.engines.declared(), self.settings.in_force().labels.clone(), self.runtimes());
        let differs = *self.last_declared() != now;
        differs.then(|| self.declare())
    }

    /// The artifacts that are here, and when that changes.
    pub(crate) fn artifacts(&self) -> watch::Receiver<Arc<Vec<Artifact>>> {
        self.artifacts.clone()
    }

    /// The node's settings.
    pub(crate) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// The states of all engines.
    pub(crate) fn statuses(&self) -> Vec<EngineStatus> {
        let mut statuses: Vec<_> = self.engines.list().iter().map(|engine| engine.status()).collect();
        bound(statuses.iter_mut());
        statuses
    }

    /// The next heartbeat.
    pub(crate) fn heartbeat(&self, streams_in_flight: usize) -> NodeHeartbeat {
        let engines = self.statuses();
        let (problems, lost_gpus) = (self.problems(), self.watch.lost());
        let failed = engines.iter().any(|engine| engine.state == i32::from(EngineState::Failed));
        let well = !failed && problems.is_empty() && lost_gpus.is_empty();
        let health = if well { AgentHealth::Ok } else { AgentHealth::Degraded };
        NodeHeartbeat {
            sequence: self.heartbeats.fetch_add(1, Ordering::Relaxed) + 1,
            observed_at_unix_ms: Wall::now().unix_ms(),
            health: health.into(),
            streams_in_flight: u32::try_from(streams_in_flight).unwrap_or(u32::MAX),
            engines,
            problems,
            lost_gpus,
            settings: Some(self.settings.state()),
        }
    }
}

/// Cuts causes and tails so that all of them fit into one message.
fn bound<'a>(statuses: impl Iterator<Item = &'a mut EngineStatus>) {
    let mut statuses: Vec<_> = statuses.collect();
    let with_tail = statuses.iter().filter(|status| !status.output_tail.is_empty()).count();
    let each = TAILS_MAX / with_tail.max(1);
    for status in &mut statuses {
        if status.cause.len() > CAUSE_MAX {
            shorten(&mut status.cause, CAUSE_MAX);
        }
        if status.output_tail.len() > each {
            // The end says why.
            let from = boundary(&status.output_tail, status.output_tail.len() - each);
            status.output_tail.drain(..from);
        }
    }
}

/// The first place at or after `at` where a character begins.
fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use umbel_contracts::proto::node::NodeEngines;

    use super::*;

    #[test]
    fn many_failed_engines_fit_into_one_frame() {
        let mut engines = vec![
            EngineStatus {
                cause: "ä".repeat(5000),
                output_tail: "ä".repeat(2048),
                ..EngineStatus::default()
            };
            32
        ];
        for status in &mut engines {
            status.output_tail.push_str("end");
        }
        bound(engines.iter_mut());
        assert!(engines.iter().all(|status| status.output_tail.ends_with("end")));
        assert!(NodeEngines { engines }.encode_to_vec().len() < 48 * 1024);
    }
}
