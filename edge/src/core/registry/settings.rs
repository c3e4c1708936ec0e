//! Settings and declarations of nodes: what each should have, what it says it has, and what it declares anew because
//! of them.
//!
//! Owns putting these on the nodes. Leaves what a version says to `core::settings`, sending it to the shell.
//! Invariant: only the owner's generation says anything; a node's desired version is known as long as the node is.

use std::collections::BTreeMap;

use umbel_contracts::proto::node::{EngineStatus, NodeDeclared, NodeHelloRequest, NodeSettingsState};
use umbel_wire::{Error, Generation, NodeId};

use super::node::{Declared, Lifecycle, Node};
use super::reports::{check_hello, stale_error};
use super::{Registry, StaleGeneration};
use crate::core::settings::{Desired, Reported, Rollout, Targets};

/// Nodes by where they stand with their settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standings {
    pub(crate) applied: u64,
    pub(crate) confirming: u64,
    /// Their names.
    pub(crate) pending: Vec<String>,
    /// Id, name, version and why.
    pub(crate) refused: Vec<(NodeId, String, u64, String)>,
}

impl Node {
    /// Its agent has said hello to this process, and is still there.
    fn greeted(&self) -> bool {
        self.session.is_some()
    }

    /// The version of its settings that it refused, and why.
    pub(crate) fn settings_refusal(&self) -> Option<(u64, &str)> {
        self.settings.refusal()
    }

    /// Its settings for observers.
    pub(crate) fn settings_config(&self) -> umbel_contracts::proto::control::NodeConfig {
        self.settings.config(self.greeted())
    }

    /// Where it stands with its settings.
    pub(crate) fn rollout(&self) -> Rollout {
        self.settings.rollout(self.greeted())
    }
}

impl<H: Clone> Registry<H> {
    /// What nodes should have from now on.
    pub(crate) fn set_targets(&mut self, targets: Targets) {
        self.targets = targets;
        let moved: Vec<_> = self
            .nodes
            .values()
            .map(|node| (node.id, self.targets.of(&node.id)))
            .filter(|(id, desired)| self.nodes.get(id).is_some_and(|node| node.settings.desired != *desired))
            .collect();
        for (id, desired) in moved {
            self.change(id, |node| node.settings.desired = desired);
        }
    }

    /// What one node should have.
    pub(crate) fn desired_settings(&self, id: &NodeId) -> Desired {
        self.targets.of(id)
    }

    /// A hello came: what it says of settings; `None` from an agent that knows none.
    pub(super) fn settings_greeted(&mut self, id: NodeId, state: Option<NodeSettingsState>) {
        match state {
            Some(state) => self.settings_taken(id, state),
            None => {
                if self.nodes.get(&id).is_some_and(|node| node.settings.reported.is_some()) {
                    self.change(id, |node| node.settings.reported = None);
                }
            }
        }
    }

    /// The owner says which settings it has: in a heartbeat, or in answer to new ones.
    pub(crate) fn settings_said(
        &mut self,
        id: NodeId,
        generation: Generation,
        state: NodeSettingsState,
    ) -> Result<(), StaleGeneration> {
        if !self.slots.is_current(&id, generation) {
            return Err(StaleGeneration);
        }
        self.settings_taken(id, state);
        Ok(())
    }

    /// The highest version that any node has said.
    pub(crate) fn settings_seen(&self) -> u64 {
        self.settings_seen
    }

    fn settings_taken(&mut self, id: NodeId, state: NodeSettingsState) {
        let reported = Reported::new(state);
        self.settings_seen = self.settings_seen.max(reported.applied).max(reported.refused);
        let known = self.nodes.get(&id).and_then(|node| node.settings.reported.as_deref());
        // Most heartbeats say nothing new: they must not raise the revision.
        if known == Some(&reported) {
            return;
        }
        let mut told = None;
        self.change(id, |node| told = node.settings.take(reported));
        if let Some(told) = told {
            self.notice(id, told.kind, None, &told.message, true);
        }
    }

    /// Nodes that are complete and lack what they should have.
    pub(crate) fn lacking_settings(&self) -> Vec<NodeId> {
        self.nodes
            .values()
            .filter(|node| is_reachable(node) && node.settings.to_send().is_some())
            .map(|node| node.id)
            .collect()
    }

    /// The connection that a node has to be sent its settings on, if it lacks them now.
    pub(crate) fn lacks_settings(&self, id: &NodeId) -> Option<(Generation, H)> {
        let node = self.nodes.get(id).filter(|node| is_reachable(node))?;
        node.settings.to_send()?;
        self.slots.owner(id).map(|owner| (owner.generation, owner.handle.clone()))
    }

    /// Where all nodes that are not decommissioned stand.
    pub(crate) fn settings_standings(&self) -> Standings {
        let mut standings = Standings::default();
        for node in self.all().iter().filter(|node| node.row.lifecycle != Lifecycle::Decommissioned) {
            let name = node.row.name.clone();
            match node.rollout() {
                Rollout::Applied => standings.applied += 1,
                Rollout::Confirming => standings.confirming += 1,
                Rollout::Pending => standings.pending.push(name),
                Rollout::Refused => {
                    let (version, why) = node.settings_refusal().unwrap_or_default();
                    standings.refused.push((node.id, name, version, why.to_owned()));
                }
                Rollout::Unsupported => {
                    let why = "its agent is too old to take settings: upgrade it".to_owned();
                    standings.refused.push((node.id, name, node.settings.desired.version, why));
                }
            }
        }
        standings
    }

    /// What a node declares changed without a new hello.
    ///
    /// # Errors
    /// As a hello's; nothing has changed then.
    pub(crate) fn redeclared(
        &mut self,
        id: NodeId,
        generation: Generation,
        declared: NodeDeclared,
        wall: i64,
    ) -> Result<(), Error> {
        let hello = NodeHelloRequest {
            engines: declared.engines,
            labels: declared.labels,
            runtimes: declared.runtimes,
            ..NodeHelloRequest::default()
        };
        check_hello(&hello)?;
        if !self.slots.is_current(&id, generation) {
            return Err(stale_error());
        }
        let engines = self.declared_anew(&id, &hello, wall);
        let labels: BTreeMap<String, String> = hello.labels.into_iter().collect();
        let states: Vec<EngineStatus> =
            hello.engines.into_iter().filter_map(|engine| engine.status).collect();
        let runtimes = hello.runtimes;
        self.change(id, |node| {
            node.labels = labels;
            // An agent that does not know the field says none.
            if !runtimes.is_empty() {
                node.can_run(runtimes);
            }
            node.engines.retain(|name, _| engines.iter().any(|engine| engine.name == *name));
            for status in states {
                node.engines.insert(status.name.clone(), Box::new(status));
            }
        });
        self.declare(id, engines);
        Ok(())
    }

    /// The engines of a hello; one that is unchanged since it was stored keeps its place in the order.
    pub(super) fn declared_anew(&self, id: &NodeId, hello: &NodeHelloRequest, wall: i64) -> Vec<Declared> {
        let old = self.nodes.get(id).map(|node| node.report.engines.as_slice()).unwrap_or_default();
        let kept = |new: Declared| {
            let same = |old: &&Declared| Declared { since_unix_ms: wall, ..(*old).clone() } == new;
            old.iter().find(same).cloned().unwrap_or(new)
        };
        hello.engines.iter().map(|engine| kept(Declared::new(engine, wall))).collect()
    }
}

/// It owns its slot, has named its leases, and stays.
fn is_reachable(node: &Node) -> bool {
    let here = node.session.as_ref().is_some_and(|session| session.named && !session.leaving);
    here && node.row.lifecycle == Lifecycle::Enrolled
}
