//! What nodes say: hello, heartbeats, engine states. Inventories and telemetry stand beside this file.
//!
//! Owns the bounds of a hello and what these reports change. Invariant: a report of an older generation changes nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use umbel_contracts::proto::node::{
    EngineState, EngineStatus, NodeEngines, NodeHeartbeat, NodeHelloRequest, NodeHelloResponse, NodeProblem,
};
use umbel_wire::{Code, Error, Generation, NodeId};

use super::inventory::check_inventory;
use super::kept::Moment;
use super::node::Session;
use super::problems::{Problem, REPORTED_MAX};
use super::{Registry, StaleGeneration, stream};

pub(crate) use umbel_contracts::settings::ENGINES_MAX;

/// Most GPUs of one node.
pub(crate) const GPUS_MAX: usize = 64;
/// Most labels, capabilities, runtimes and storage roots of one node, each.
pub(crate) const NAMES_MAX: usize = 128;
/// Longest name, label or model, in bytes.
pub(crate) const NAME_MAX: usize = 256;

pub(super) fn bad(reason: &'static str, message: impl Into<String>) -> Error {
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
        let states: BTreeMap<String, Box<EngineStatus>> = hello
            .engines
            .iter()
            .filter_map(|engine| engine.status.clone().map(|status| (engine.name.clone(), Box::new(status))))
            .collect();
        let not_ready = not_ready(states.values().map(Box::as_ref));
        self.change(id, |node| {
            let session = Session { generation, protocol, named: false, leaving: false, given_trust: false };
            node.session = Some(session);
            node.protocol = protocol;
            node.generation = generation;
            node.engines = states;
            node.labels = hello.labels.into_iter().collect();
            node.capabilities = hello.capabilities;
            node.report.agent_version = hello.agent_version;
            node.able(hello.runtimes, hello.artifacts);
            node.report.last_seen_at_unix_ms = wall;
            let report = &mut node.report;
            stream::greet(&mut report.inventory_sequence, hello.inventory_sequence);
            stream::greet(&mut report.telemetry_sequence, hello.telemetry_sequence);
        });
        self.declare(id, engines);
        self.settings_greeted(id, hello.settings);
        self.watch_refusal(id, wall);
        if let Some(inventory) = hello.inventory {
            self.take_inventory(id, inventory, Moment { now, wall });
        }
        self.started_again(id, &not_ready);
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
        self.note_clock(id, heartbeat.observed_at_unix_ms, wall);
        let ahead = self.nodes.get(&id).map_or(0, |node| node.clock_ahead_ms);
        let reported = reported(id, heartbeat.problems, (ahead, wall));
        let Some(node) = self.nodes.get_mut(&id) else { return Err(StaleGeneration) };
        // Most heartbeats say nothing new: they must not raise the revision.
        let report = &mut std::sync::Arc::make_mut(node).report;
        let last_seen = std::mem::replace(&mut report.last_seen_at_unix_ms, wall);
        report.heartbeat_sequence = heartbeat.sequence;
        if node.health != health || node.reported != reported {
            self.change(id, |node| {
                node.health = health;
                node.reported = reported;
            });
        }
        if !heartbeat.engines.is_empty() {
            self.states(id, heartbeat.engines);
        }
        self.watch_refusal(id, wall);
        self.lost_gpus(id, &heartbeat.lost_gpus, last_seen, wall);
        self.watch_clock(id, heartbeat.observed_at_unix_ms, wall);
        Ok(())
    }

    /// Since when the node is known to have refused its settings.
    fn watch_refusal(&mut self, id: NodeId, wall: i64) {
        let Some(node) = self.nodes.get(&id) else { return };
        let refused = node.settings_refusal().is_some();
        if refused != node.refused_since.is_some() {
            self.change(id, |node| node.refused_since = refused.then_some(wall));
        }
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
        let not_ready = not_ready(fresh.iter());
        self.started_again(id, &not_ready);
        if news {
            self.change(id, |node| {
                node.engines.extend(fresh.into_iter().map(|status| (status.name.clone(), Box::new(status))));
            });
        }
    }

    pub(super) fn current(&self, id: NodeId, generation: Generation) -> Result<(), StaleGeneration> {
        if self.slots.is_current(&id, generation) { Ok(()) } else { Err(StaleGeneration) }
    }
}

/// Engines that are between two runs, or have none.
fn not_ready<'a>(statuses: impl Iterator<Item = &'a EngineStatus>) -> Vec<String> {
    statuses.filter(|status| status.state() != EngineState::Ready).map(|status| status.name.clone()).collect()
}

/// By this edge's clock, of which the node's is so far ahead.
fn reported(id: NodeId, problems: Vec<NodeProblem>, (ahead, wall): (i64, i64)) -> Vec<Problem> {
    let since = |told: i64| if told > 0 { told.saturating_sub(ahead) } else { wall };
    problems
        .into_iter()
        .take(REPORTED_MAX)
        .map(|problem| Problem {
            code: problem.code.chars().take(64).collect(),
            message: problem.message.chars().take(512).collect(),
            since_unix_ms: since(problem.since_unix_ms),
            subject: id.to_string(),
            until: None,
        })
        .collect()
}

/// What a connection is told that no longer owns its node.
pub(crate) fn stale_error() -> Error {
    Error::new(Code::Conflict, "STALE_GENERATION", "a newer connection of this node has taken over")
}
