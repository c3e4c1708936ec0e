//! What admission is told of the site's nodes.
//!
//! Owns the comparison of what it was told last with what is, so that every change, whatever caused it, is told
//! once and in order. Invariant: a provider is up only under the generation of a complete connection, and a node
//! is ready only with its providers up.

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
    /// People allow application traffic there, and let it in.
    Eligible { node: NodeId, eligible: bool },
    /// A connection ended.
    Lost { node: NodeId, generation: Generation },
    /// It left the site for good, and so did its providers.
    Gone { node: NodeId },
}

// What admission was last told of a node, so that only differences are told. A site has thousands of these, nearly all of
// one or two engines: vectors of exact length, no maps.
#[derive(Debug, Default)]
pub(super) struct Told {
    eligible: Option<bool>,
    draining: Option<bool>,
    engines: Vec<ToldEngine>,
    pub(super) ready: Option<(Generation, bool)>,
}

#[derive(Debug)]
struct ToldEngine {
    declared: Declared,
    /// What it declares does not stand at this site: admission does not know it.
    refused: bool,
    up: Option<Up>,
}

#[derive(Debug)]
struct Up {
    generation: Generation,
    state: ProviderState,
    cause: String,
    /// It was told before the engine was declared otherwise.
    outdated: bool,
}

impl Told {
    /// The connection has ended: nothing of it is up.
    pub(super) fn lost(&mut self) {
        self.ready = None;
        for engine in &mut self.engines {
            engine.up = None;
        }
    }

    fn declare(&mut self, node: &Node, calls: &mut Vec<Call>) {
        let declared = &node.report.engines;
        self.engines.retain(|told| {
            let kept = declared.iter().any(|engine| engine.name == told.declared.name);
            if !kept && !told.refused {
                calls.push(Call::Down { node: node.id, engine: told.declared.name.clone() });
            }
            kept
        });
        for engine in declared {
            let refused = node.refusal(&engine.name).is_some();
            match self.engines.iter_mut().find(|told| told.declared.name == engine.name) {
                Some(told) if told.declared == *engine && told.refused == refused => continue,
                Some(told) => {
                    if refused && !told.refused {
                        calls.push(Call::Down { node: node.id, engine: engine.name.clone() });
                    }
                    (told.declared, told.refused) = (engine.clone(), refused);
                    if let Some(up) = &mut told.up {
                        up.outdated = true;
                    }
                }
                None => self.engines.push(ToldEngine { declared: engine.clone(), refused, up: None }),
            }
            if !refused {
                calls.push(Call::Declare { node: node.id, engine: engine.clone() });
            }
        }
        self.engines.shrink_to_fit();
    }
}

impl ToldEngine {
    /// The provider's state under a complete connection; whether it is news for people.
    fn tell(&mut self, node: &Node, generation: Generation, calls: &mut Vec<Call>) -> Option<ProviderState> {
        let name = &self.declared.name;
        let (state, cause) = node.engine_state(name);
        let same = |up: &Up| up.generation == generation && !up.outdated;
        match &self.up {
            Some(up) if same(up) && up.state == state && up.cause == cause => return None,
            // What admission does not know is news for people only; told anew it comes up whole.
            _ if self.refused => {
                let before = self.up.replace(Up { generation, state, cause, outdated: true });
                return (before.map(|up| up.state) != Some(state)).then_some(state);
            }
            Some(up) if same(up) => {
                let (engine, cause) = (name.clone(), cause.clone());
                calls.push(Call::State { node: node.id, generation, engine, state, cause });
            }
            _ => {
                let (engine, cause) = (self.declared.clone(), cause.clone());
                calls.push(Call::Up { node: node.id, generation, engine, state, cause });
            }
        }
        let before = self.up.replace(Up { generation, state, cause, outdated: false });
        (before.map(|up| up.state) != Some(state)).then_some(state)
    }
}

impl<H: Clone> Registry<H> {
    // Compares what admission was told with what is, and tells the difference.
    pub(super) fn reconcile(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else { return };
        let calls = &mut self.calls;
        if node.is_tombstone() {
            if let Some(told) = self.told.remove(&id) {
                let known = told.engines.into_iter().filter(|told| !told.refused);
                calls.extend(known.map(|told| Call::Down { node: id, engine: told.declared.name }));
                calls.push(Call::Gone { node: id });
            }
            return;
        }
        let told = self.told.entry(id).or_default();
        // Whom people keep out does not come back by itself: nobody waits for it.
        let eligible = node.row.eligible && node.row.admits();
        if told.eligible != Some(eligible) {
            told.eligible = Some(eligible);
            calls.push(Call::Eligible { node: id, eligible });
        }
        if told.draining != Some(node.row.draining) {
            told.draining = Some(node.row.draining);
            calls.push(Call::Draining { node: id, draining: node.row.draining });
        }
        told.declare(node, calls);
        let Some(session) = node.session.as_ref().filter(|session| session.named) else { return };
        let generation = session.generation;
        for engine in &mut told.engines {
            if let Some(state) = engine.tell(node, generation, calls) {
                self.notices.push(provider_notice(node, &engine.declared.name, state));
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
        ProviderState::Draining | ProviderState::Leaving => ("provider_draining", "takes no new request"),
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
