//! What admission is told of the site's nodes.
//!
//! Owns the comparison of what it was told last with what is, so that every change, whatever caused it, is told
//! once and in order. Invariant: a provider is up only under the generation of a complete connection, and a node
//! is ready only with its providers up.

use std::collections::BTreeMap;

use umbel_wire::{Generation, NodeId};

use super::node::{Declared, Node, ProviderState};
use super::{Notice, Registry};

/// What admission is told, in this order, while the registry is locked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// A provider that this site has, whether or not its node is here.
    Declare { node: NodeId, engine: Declared },
    /// A provider of a complete connection.
    Up { node: NodeId, generation: Generation, engine: Declared, state: ProviderState, cause: String },
    /// Its engine changed.
    State { node: NodeId, generation: Generation, engine: String, state: ProviderState, cause: String },
    /// The node no longer declares it.
    Down { node: NodeId, engine: String },
    /// The node may take work, or not now.
    Ready { node: NodeId, generation: Generation, ready: bool },
    /// People want no new work there.
    Draining { node: NodeId, draining: bool },
    /// People allow application traffic there.
    Eligible { node: NodeId, eligible: bool },
    /// A connection ended.
    Lost { node: NodeId, generation: Generation },
}

// What admission was last told of a node, so that only differences are told.
#[derive(Debug, Default)]
pub(super) struct Told {
    eligible: Option<bool>,
    draining: Option<bool>,
    declared: BTreeMap<String, Declared>,
    pub(super) up: BTreeMap<String, (Generation, Declared, ProviderState, String)>,
    pub(super) ready: Option<(Generation, bool)>,
}

impl<H: Clone> Registry<H> {
    // Compares what admission was told with what is, and tells the difference.
    pub(super) fn reconcile(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id).cloned() else { return };
        let told = self.told.entry(id).or_default();
        let calls = &mut self.calls;
        if told.eligible != Some(node.row.eligible) {
            told.eligible = Some(node.row.eligible);
            calls.push(Call::Eligible { node: id, eligible: node.row.eligible });
        }
        if told.draining != Some(node.row.draining) {
            told.draining = Some(node.row.draining);
            calls.push(Call::Draining { node: id, draining: node.row.draining });
        }
        let engines = &node.report.engines;
        told.declared.retain(|name, _| {
            let kept = engines.iter().any(|engine| engine.name == *name);
            if !kept {
                told.up.remove(name);
                calls.push(Call::Down { node: id, engine: name.clone() });
            }
            kept
        });
        for engine in engines {
            if told.declared.get(&engine.name) != Some(engine) {
                told.declared.insert(engine.name.clone(), engine.clone());
                calls.push(Call::Declare { node: id, engine: engine.clone() });
            }
        }
        let Some(session) = node.session.as_ref().filter(|session| session.named) else { return };
        let generation = session.generation;
        for engine in engines {
            let (state, cause) = node.engine_state(&engine.name);
            let now = (generation, engine.clone(), state, cause.clone());
            let name = engine.name.clone();
            match told.up.get(&name) {
                Some(before) if *before == now => continue,
                Some(before) if before.0 == generation && before.1 == *engine => {
                    calls.push(Call::State { node: id, generation, engine: name.clone(), state, cause });
                }
                _ => calls.push(Call::Up { node: id, generation, engine: engine.clone(), state, cause }),
            }
            let before = told.up.insert(name.clone(), now).map(|before| before.2);
            if before != Some(state) {
                self.notices.push(provider_notice(&node, &name, state));
            }
        }
        let ready = node.connected();
        if told.ready != Some((generation, ready)) {
            told.ready = Some((generation, ready));
            calls.push(Call::Ready { node: id, generation, ready });
        }
    }
}

fn provider_notice(node: &Node, engine: &str, state: ProviderState) -> Notice {
    let (_, cause) = node.engine_state(engine);
    let (kind, word) = match state {
        ProviderState::Available => ("provider_available", "takes requests"),
        ProviderState::Loading => ("provider_loading", "is loading"),
        ProviderState::Draining => ("provider_draining", "takes no new request"),
        ProviderState::Unavailable => ("provider_unavailable", "is not available"),
        ProviderState::Failed => ("provider_failed", "has failed"),
    };
    let mut message = format!("{}: {engine} {word}", node.row.name);
    if !cause.is_empty() {
        message.push_str(&format!(" ({cause})"));
    }
    Notice {
        kind,
        node: node.id,
        provider: Some(node.provider_id(engine)),
        generation: node.generation,
        message,
        audited: false,
    }
}
