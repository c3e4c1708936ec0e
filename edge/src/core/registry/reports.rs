//! What nodes say: hello, heartbeats, inventory, telemetry, engine states.
//!
//! Owns sequences and what a report changes. Invariant: a report of an older generation, or with a sequence
//! that is not above the stored one, changes nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use umbel_contracts::proto::node::{
    EngineStatus, NodeEngines, NodeHeartbeat, NodeHelloRequest, NodeHelloResponse, NodeInventory,
    NodeProblem, NodeTelemetry,
};
use umbel_wire::{Code, Error, Generation, NodeId};

use super::node::{Declared, Received, Session};
use super::problems::{Problem, REPORTED_MAX};
use super::{Registry, StaleGeneration};

/// Most engines of one node.
pub(crate) const ENGINES_MAX: usize = 64;
/// Most GPUs of one node.
pub(crate) const GPUS_MAX: usize = 64;
/// Most labels, capabilities, runtimes and storage roots of one node, each.
pub(crate) const NAMES_MAX: usize = 128;
/// Longest name, label or model, in bytes.
pub(crate) const NAME_MAX: usize = 256;

const INVENTORY: usize = 0;
const TELEMETRY: usize = 1;

fn bad(reason: &'static str, message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, reason, message)
}

/// Checks a hello's bounds: nothing in it may be longer or more than a real host has.
pub(crate) fn check_hello(hello: &NodeHelloRequest) -> Result<(), Error> {
    if hello.engines.len() > ENGINES_MAX {
        return Err(bad("TOO_MANY_ENGINES", format!("a node declares at most {ENGINES_MAX} engines")));
    }
    if hello.capabilities.len() > NAMES_MAX
        || hello.labels.len() > NAMES_MAX
        || hello.runtimes.len() > NAMES_MAX
    {
        return Err(bad(
            "TOO_MANY_NAMES",
            format!("a node names at most {NAMES_MAX} capabilities, runtimes or labels"),
        ));
    }
    let mut names = std::collections::BTreeSet::new();
    for engine in &hello.engines {
        let name = &engine.name;
        let sound = !name.is_empty() && name.len() <= 63 && !name.contains(['/', '\0']);
        if !sound || !names.insert(name.as_str()) {
            return Err(bad(
                "ENGINE_NAME",
                "an engine's name is 1 to 63 characters without '/', and unique on its node",
            ));
        }
        if engine.model.is_empty() || engine.model.len() > NAME_MAX {
            return Err(bad(
                "ENGINE_MODEL",
                format!("engine {name} names no model, or one longer than {NAME_MAX}"),
            ));
        }
        if engine.aliases.len() > NAMES_MAX || engine.aliases.iter().any(|one| one.len() > NAME_MAX) {
            return Err(bad(
                "ENGINE_ALIASES",
                format!("engine {name} has too many aliases, or too long ones"),
            ));
        }
        if engine.capacity == 0 {
            return Err(bad(
                "ENGINE_CAPACITY",
                format!("engine {name} has capacity 0; it must be at least 1"),
            ));
        }
        if engine.long_context_capacity > engine.capacity {
            return Err(bad(
                "ENGINE_CAPACITY",
                format!("engine {name} has more long_context_capacity than capacity"),
            ));
        }
    }
    hello.inventory.as_ref().map_or(Ok(()), check_inventory)
}

fn check_inventory(inventory: &NodeInventory) -> Result<(), Error> {
    if inventory.gpus.len() > GPUS_MAX || inventory.storage.len() > NAMES_MAX {
        return Err(bad("TOO_MANY_DEVICES", format!("an inventory has at most {GPUS_MAX} GPUs")));
    }
    Ok(())
}

impl<H: Clone> Registry<H> {
    /// Applies an accepted hello, in memory and whether or not it can be stored, so that a node can always
    /// reconnect. The slot was registered before.
    pub(crate) fn greet(
        &mut self,
        id: NodeId,
        generation: Generation,
        protocol: u32,
        hello: NodeHelloRequest,
        now: Instant,
        wall: i64,
    ) -> Result<NodeHelloResponse, StaleGeneration> {
        self.current(id, generation)?;
        let engines = self.declared_anew(&id, &hello, wall);
        let states: BTreeMap<String, EngineStatus> = hello
            .engines
            .iter()
            .filter_map(|engine| engine.status.clone().map(|status| (engine.name.clone(), status)))
            .collect();
        self.change(id, |node| {
            node.session = Some(Session { generation, protocol, named: false, leaving: false });
            node.protocol = protocol;
            node.generation = generation;
            node.engines = states;
            node.labels = hello.labels.into_iter().collect();
            node.capabilities = hello.capabilities;
            node.report.agent_version = hello.agent_version;
            node.report.last_seen_at_unix_ms = wall;
            let report = &mut node.report;
            report.inventory_sequence = report.inventory_sequence.max(hello.inventory_sequence);
            report.telemetry_sequence = report.telemetry_sequence.max(hello.telemetry_sequence);
        });
        self.declare(id, engines);
        self.settings_greeted(id, hello.settings);
        if let Some(inventory) = hello.inventory {
            self.take_inventory(id, inventory, now, wall);
        }
        self.unsaved.insert(id);
        self.heard(id, now);
        let node = self.nodes.get(&id).ok_or(StaleGeneration)?;
        Ok(NodeHelloResponse {
            edge_id: String::new(),
            name: node.row.name.clone(),
            inventory_sequence: node.report.inventory_sequence,
            telemetry_sequence: node.report.telemetry_sequence,
            desired_settings_version: node.settings.desired.version,
            ..NodeHelloResponse::default()
        })
    }

    /// A heartbeat: what liveness counts, with the states that dispatch depends on.
    pub(crate) fn heartbeat(
        &mut self,
        id: NodeId,
        generation: Generation,
        heartbeat: NodeHeartbeat,
        now: Instant,
        wall: i64,
    ) -> Result<(), StaleGeneration> {
        self.current(id, generation)?;
        self.heard(id, now);
        let health = heartbeat.health();
        let reported = reported(id, heartbeat.problems, wall);
        let Some(node) = self.nodes.get_mut(&id) else { return Err(StaleGeneration) };
        // Most heartbeats say nothing new: they must not raise the revision.
        std::sync::Arc::make_mut(node).report.last_seen_at_unix_ms = wall;
        if node.health != health || node.reported != reported {
            self.change(id, |node| {
                node.health = health;
                node.reported = reported;
            });
        }
        if !heartbeat.engines.is_empty() {
            self.states(id, heartbeat.engines);
        }
        Ok(())
    }

    /// Engine states that changed between two heartbeats.
    pub(crate) fn engines(
        &mut self,
        id: NodeId,
        generation: Generation,
        engines: NodeEngines,
    ) -> Result<(), StaleGeneration> {
        self.current(id, generation)?;
        self.states(id, engines.engines);
        Ok(())
    }

    /// An inventory event: refused with `REPLAYED` unless its sequence is above the stored one.
    pub(crate) fn inventory(
        &mut self,
        id: NodeId,
        generation: Generation,
        inventory: NodeInventory,
        now: Instant,
        wall: i64,
    ) -> Result<(), Error> {
        self.current(id, generation).map_err(|StaleGeneration| stale_error())?;
        check_inventory(&inventory)?;
        let stored = self.nodes.get(&id).map_or(0, |node| node.report.inventory_sequence);
        if inventory.sequence <= stored {
            return Err(replayed(inventory.sequence, stored));
        }
        self.take_inventory(id, inventory, now, wall);
        Ok(())
    }

    /// A telemetry event; it never raises the revision.
    pub(crate) fn telemetry(
        &mut self,
        id: NodeId,
        generation: Generation,
        telemetry: NodeTelemetry,
        now: Instant,
        wall: i64,
    ) -> Result<(), Error> {
        self.current(id, generation).map_err(|StaleGeneration| stale_error())?;
        let Some(node) = self.nodes.get(&id) else { return Err(stale_error()) };
        let stored = node.report.telemetry_sequence;
        if telemetry.sequence <= stored {
            return Err(replayed(telemetry.sequence, stored));
        }
        if telemetry.gpus.len() > GPUS_MAX || telemetry.storage.len() > NAMES_MAX {
            return Err(bad("TOO_MANY_DEVICES", format!("telemetry has at most {GPUS_MAX} GPUs")));
        }
        let last_good = observed(&node.observed, TELEMETRY);
        let good = self.judge_clock(id, telemetry.observed_at_unix_ms, last_good, wall);
        if let Some(node) = self.nodes.get_mut(&id) {
            let node = std::sync::Arc::make_mut(node);
            node.report.telemetry_sequence = telemetry.sequence;
            if good {
                let [_, newest] = &mut node.observed;
                *newest = telemetry.observed_at_unix_ms;
                node.telemetry = Some(Received { report: telemetry, at: now, wall });
            }
        }
        Ok(())
    }

    fn take_inventory(&mut self, id: NodeId, inventory: NodeInventory, now: Instant, wall: i64) {
        let last_good = self.nodes.get(&id).map_or(0, |node| observed(&node.observed, INVENTORY));
        let good = self.judge_clock(id, inventory.observed_at_unix_ms, last_good, wall);
        self.unsaved.insert(id);
        if !good {
            let sequence = inventory.sequence;
            self.change(id, |node| {
                node.report.inventory_sequence = node.report.inventory_sequence.max(sequence);
                // The first one since the edge started shows the host even if its clock is wrong.
                if node.inventory.is_none() {
                    node.inventory = Some(Received { report: inventory, at: now, wall });
                }
            });
            return;
        }
        self.judge_hardware(id, &inventory, wall);
        self.change(id, |node| {
            let report = &mut node.report;
            report.inventory_sequence = report.inventory_sequence.max(inventory.sequence);
            let [newest, _] = &mut node.observed;
            *newest = inventory.observed_at_unix_ms;
            let kept = node.inventory.take();
            node.inventory = Some(Received { report: merge(kept, inventory), at: now, wall });
        });
    }

    fn states(&mut self, id: NodeId, engines: Vec<EngineStatus>) {
        let Some(node) = self.nodes.get(&id) else { return };
        let fresh: Vec<_> = engines
            .into_iter()
            .filter(|status| node.report.engines.iter().any(|engine| engine.name == status.name))
            .collect();
        // Counters move with each report; only a new state or cause is news.
        let news = fresh.iter().any(|status| {
            node.engines
                .get(&status.name)
                .is_none_or(|old| old.state != status.state || old.cause != status.cause)
        });
        if news {
            self.change(id, |node| {
                node.engines.extend(fresh.into_iter().map(|status| (status.name.clone(), status)));
            });
        }
    }

    fn current(&self, id: NodeId, generation: Generation) -> Result<(), StaleGeneration> {
        if self.slots.is_current(&id, generation) { Ok(()) } else { Err(StaleGeneration) }
    }
}

// An incomplete inventory keeps the GPUs of the last good one: only a complete one says that a GPU is gone.
fn merge(kept: Option<Received<NodeInventory>>, mut inventory: NodeInventory) -> NodeInventory {
    if let Some(kept) = kept.filter(|_| !inventory.complete) {
        for gpu in kept.report.gpus {
            if inventory.gpus.len() < GPUS_MAX && !inventory.gpus.iter().any(|one| one.uuid == gpu.uuid) {
                inventory.gpus.push(gpu);
            }
        }
    }
    inventory
}

fn observed(observed: &[i64; 2], stream: usize) -> i64 {
    let [inventory, telemetry] = *observed;
    if stream == INVENTORY { inventory } else { telemetry }
}

fn reported(id: NodeId, problems: Vec<NodeProblem>, wall: i64) -> Vec<Problem> {
    problems
        .into_iter()
        .take(REPORTED_MAX)
        .map(|problem| Problem {
            code: problem.code.chars().take(64).collect(),
            message: problem.message.chars().take(512).collect(),
            since_unix_ms: if problem.since_unix_ms > 0 { problem.since_unix_ms } else { wall },
            subject: id.to_string(),
            until: None,
        })
        .collect()
}

fn replayed(sequence: u64, stored: u64) -> Error {
    Error::new(
        Code::Conflict,
        "REPLAYED",
        format!("sequence {sequence} is not above {stored}, which was taken; go on above it"),
    )
}

/// What a connection is told that no longer owns its node.
pub(crate) fn stale_error() -> Error {
    Error::new(Code::Conflict, "STALE_GENERATION", "a newer connection of this node has taken over")
}
