//! What the node tells its edge besides answers: inventory, engine states, heartbeats, problems.
//!
//! Owns putting the messages together and their sequence numbers; leaves sending to `edge`.
//! Invariant: every message fits its frame, and no sequence number is used twice, over restarts too.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::task::spawn_blocking;
use umbel_contracts::{
    NODE_PROTOCOL,
    proto::node::{
        AgentHealth, EngineRuntime, EngineState, EngineStatus, NodeHeartbeat, NodeHelloRequest,
        NodeInventory, NodeProblem,
    },
};
use umbel_wire::clock::Wall;

use crate::{
    config::Config,
    core::{
        identity::Identity,
        inventory::{self, GpuFacts},
        sequence::{BLOCK, Sequence},
    },
    shell::{engines::Engines, gpu::Gpus, host, state::State},
};

/// What this agent can do, by the names of the boundary.
const CAPABILITIES: [&str; 3] = ["hardware.inventory", "deployment.invoke.v1", "deployment.health.v1"];
/// Kinds of engines that this agent runs.
const KINDS: [&str; 3] = ["sim", "external", "llama-server"];
/// Bytes of output tails in one message: with 32 engines and their causes it stays below a frame.
const TAILS_MAX: usize = 24 * 1024;
/// Bytes of a cause.
const CAUSE_MAX: usize = 512;

/// The node's reports.
#[derive(Debug)]
pub(crate) struct Reports {
    identity: Arc<Identity>,
    engines: Arc<Engines>,
    state: Arc<State>,
    gpus: Gpus,
    labels: std::collections::BTreeMap<String, String>,
    state_dir: PathBuf,
    accelerator: &'static str,
    allow_sim: bool,
    inventory: Mutex<NodeInventory>,
    inventory_sequence: Mutex<Sequence>,
    heartbeats: AtomicU64,
    problems: Vec<NodeProblem>,
}

impl Reports {
    /// Takes a first look at the host and reserves sequence numbers. Blocks on the disk.
    pub(crate) fn new(
        config: &Config,
        identity: Arc<Identity>,
        engines: Arc<Engines>,
        state: Arc<State>,
        gpus: Gpus,
        found: &GpuFacts,
    ) -> Self {
        let accelerator = config.accelerator.name();
        let facts = host::facts(&config.state_dir);
        let inventory = inventory::inventory(&facts, found, accelerator, &Default::default());
        let problems = host::is_not_durable(&config.state_dir).map(|why| NodeProblem {
            code: "STATE_NOT_DURABLE".into(),
            message: format!("the state directory {why}; set node.state_dir to a directory on a disk"),
            since_unix_ms: Wall::now().unix_ms(),
        });
        let reports = Self {
            identity,
            engines,
            gpus,
            labels: config.labels.clone(),
            state_dir: config.state_dir.clone(),
            accelerator,
            allow_sim: config.allow_sim,
            inventory: Mutex::new(inventory),
            inventory_sequence: Mutex::new(Sequence::after_start(state.sequences().inventory)),
            heartbeats: AtomicU64::new(0),
            problems: problems.into_iter().collect(),
            state,
        };
        reports.reserve();
        reports
    }

    fn sequence(&self) -> std::sync::MutexGuard<'_, Sequence> {
        self.inventory_sequence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, NodeInventory> {
        self.inventory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves sequence numbers if they run low. Blocks on the disk.
    fn reserve(&self) {
        let Some(up_to) = self.sequence().wanted() else { return };
        match self.state.reserve(|sequences| sequences.inventory = up_to.max(sequences.inventory)) {
            Ok(()) => self.sequence().reserved(up_to),
            // Reports stop when the reserve is used up; streams go on.
            Err(error) => {
                tracing::error!(%error, "sequence numbers cannot be reserved in the state directory")
            }
        }
    }

    /// The edge has seen this number: what comes is above it.
    pub(crate) fn raise(self: &Arc<Self>, inventory: u64) {
        let far = inventory.saturating_add(BLOCK);
        self.sequence().raise(inventory);
        let reports = Arc::clone(self);
        if self.sequence().wanted().is_some_and(|up_to| up_to <= far) {
            drop(spawn_blocking(move || reports.reserve()));
        }
    }

    /// The whole inventory under a new number; nothing if no number is to be had.
    pub(crate) fn next_inventory(self: &Arc<Self>) -> Option<NodeInventory> {
        let sequence = {
            let mut numbers = self.sequence();
            let next = numbers.next();
            if numbers.wanted().is_some() {
                let reports = Arc::clone(self);
                drop(spawn_blocking(move || reports.reserve()));
            }
            next?
        };
        let mut inventory = self.seen().clone();
        (inventory.sequence, inventory.observed_at_unix_ms) = (sequence, Wall::now().unix_ms());
        Some(inventory)
    }

    /// Looks at the host again; whether something changed.
    pub(crate) async fn look_again(self: &Arc<Self>) -> bool {
        let folder = self.state_dir.clone();
        let Ok(facts) = spawn_blocking(move || host::facts(&folder)).await else { return false };
        let found = match self.gpus.look().await {
            Ok(found) => found,
            // The last good list stays, and says that it is not whole.
            Err(fault) => {
                let last = self.seen().clone();
                GpuFacts {
                    gpus: last.gpus,
                    driver_version: last.driver_version,
                    cuda_version: last.cuda_version,
                    incomplete: Some(fault.to_string()),
                }
            }
        };
        let now = inventory::inventory(&facts, &found, self.accelerator, &Default::default());
        let mut seen = self.seen();
        let changed = !inventory::same(&seen, &now);
        if changed {
            *seen = now;
        }
        changed
    }

    /// The inventory as it was seen last.
    pub(crate) fn inventory(&self) -> NodeInventory {
        self.seen().clone()
    }

    pub(crate) fn problems(&self) -> &[NodeProblem] {
        &self.problems
    }

    /// What the node says first.
    pub(crate) fn hello(self: &Arc<Self>) -> NodeHelloRequest {
        let inventory = self.next_inventory();
        let mut engines: Vec<_> = self.engines.list().iter().map(|engine| engine.declared()).collect();
        bound(engines.iter_mut().filter_map(|engine| engine.status.as_mut()));
        NodeHelloRequest {
            node_id: self.identity.node_id.to_string(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: CAPABILITIES.map(str::to_owned).to_vec(),
            runtimes: KINDS
                .iter()
                .filter(|kind| self.allow_sim || **kind != "sim")
                .map(|kind| EngineRuntime {
                    kind: (*kind).to_owned(),
                    adapter_version: NODE_PROTOCOL.max.to_string(),
                    ..EngineRuntime::default()
                })
                .collect(),
            inventory_sequence: self.sequence().last(),
            telemetry_sequence: 0,
            engines,
            applied_settings_version: 0,
            inventory,
            labels: self.labels.clone(),
            ..NodeHelloRequest::default()
        }
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
        let failed = engines.iter().any(|engine| engine.state == i32::from(EngineState::Failed));
        let health =
            if failed || !self.problems.is_empty() { AgentHealth::Degraded } else { AgentHealth::Ok };
        NodeHeartbeat {
            sequence: self.heartbeats.fetch_add(1, Ordering::Relaxed) + 1,
            observed_at_unix_ms: Wall::now().unix_ms(),
            health: health.into(),
            streams_in_flight: u32::try_from(streams_in_flight).unwrap_or(u32::MAX),
            engines,
            problems: self.problems.clone(),
            ..NodeHeartbeat::default()
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
            let end = boundary(&status.cause, CAUSE_MAX);
            status.cause.truncate(end);
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
