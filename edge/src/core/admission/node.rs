//! What changes around the requests: providers declared, up, drained, gone; nodes ready, drained, lost.
//!
//! Owns who may be given work. Invariant: `open`, `wanted` and `loading` of providers and models always
//! follow from the states here, in one function ([`Admission::refresh`]).

use std::sync::Arc;
use std::time::Instant;

use umbel_wire::ids::{Generation, NodeId};

use super::lease::{LeaseId, LeasePhase};
use super::model::{Model, QueueFigures};
use super::provider::{Figures, Provider, ProviderSpec, ProviderState};
use super::{Admission, ModelIndex, ProviderIndex};

/// What admission knows of a node.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) providers: Vec<ProviderIndex>,
    generation: Option<Generation>,
    ready: bool,
    draining: bool,
    /// Application traffic allowed. Closed until someone says so.
    eligible: bool,
    pub(super) in_flight: u32,
}

/// Why a provider was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderConflict {
    /// One of its aliases, or its model, is a name that already means another model.
    #[error("the name {0} already belongs to another model; rename it in one of the two node files")]
    NameTaken(String),
    /// The model's first provider has another threshold.
    #[error(
        "long_context_threshold_tokens is {declared}, but the other providers of the model say {stands}; use one value"
    )]
    Threshold {
        /// The one that stands.
        stands: u32,
        /// The one refused.
        declared: u32,
    },
    /// The model's first provider has other aliases.
    #[error("its aliases differ from those of the model's other providers; use the same list")]
    Aliases,
    /// Too many names or providers at this edge.
    #[error("this edge knows too many {0} already")]
    TooMany(&'static str),
    /// The report is of an older connection than the one in force.
    #[error("an older connection's report")]
    Stale,
}

impl Admission {
    /// Adds or replaces a provider's specification. Its state stays; a new one is unavailable. The provider
    /// of a node that is away counts as wanted if the node is eligible and not draining.
    ///
    /// # Errors
    /// If names or thresholds contradict what stands: then the provider is not served.
    pub fn declare(&mut self, now: Instant, spec: ProviderSpec) -> Result<ProviderIndex, ProviderConflict> {
        let index = self.by_id.get(&spec.provider_id).copied();
        let conflict = self.conflict(&spec, index);
        if let Some(index) = index {
            let moved = self
                .providers
                .get(index.0 as usize)
                .is_some_and(|provider| provider.spec.model != spec.model || provider.gone);
            if conflict.is_some() || moved {
                self.undeclare(now, &spec.provider_id);
            }
        }
        if let Some(conflict) = conflict {
            return Err(conflict);
        }
        let model = self.model_of(&spec)?;
        let index = match self.by_id.get(&spec.provider_id).copied() {
            Some(index) => {
                if let Some(provider) = self.providers.get_mut(index.0 as usize) {
                    provider.spec = spec;
                }
                index
            }
            None => self.add_provider(model, spec)?,
        };
        self.refresh(now, index);
        self.hand_over(now, model);
        Ok(index)
    }

    fn conflict(&self, spec: &ProviderSpec, own: Option<ProviderIndex>) -> Option<ProviderConflict> {
        let model = self.names.get(spec.model.as_str()).copied();
        let serves_others = |index: ModelIndex| {
            self.models
                .get(index.0 as usize)
                .is_some_and(|model| model.providers.iter().any(|provider| Some(*provider) != own))
        };
        let names = std::iter::once(&spec.model).chain(&spec.aliases);
        for name in names {
            if let Some(&other) = self.names.get(name.as_str())
                && serves_others(other)
                && (Some(other) != model || self.canonical(other) != Some(spec.model.as_str()))
            {
                return Some(ProviderConflict::NameTaken(name.clone()));
            }
        }
        let first = self
            .models
            .get(model?.0 as usize)?
            .providers
            .iter()
            .filter(|provider| Some(**provider) != own)
            .find_map(|provider| self.providers.get(provider.0 as usize))?;
        let (stands, declared) =
            (first.spec.long_context_threshold_tokens, spec.long_context_threshold_tokens);
        if stands != declared {
            return Some(ProviderConflict::Threshold { stands, declared });
        }
        (sorted(&first.spec.aliases) != sorted(&spec.aliases)).then_some(ProviderConflict::Aliases)
    }

    fn canonical(&self, model: ModelIndex) -> Option<&str> {
        self.models.get(model.0 as usize).map(|model| &*model.name)
    }

    /// The model of a specification that is free of conflicts, made or renamed as needed.
    fn model_of(&mut self, spec: &ProviderSpec) -> Result<ModelIndex, ProviderConflict> {
        let known = self.names.get(spec.model.as_str()).copied();
        let index = match known.filter(|index| self.canonical(*index) == Some(spec.model.as_str())) {
            Some(index) => index,
            None => {
                if self.names.len() >= self.limits.names || self.models.len() >= self.limits.names {
                    return Err(ProviderConflict::TooMany("model names"));
                }
                let index = ModelIndex(u32::try_from(self.models.len()).unwrap_or(u32::MAX));
                let name: Arc<str> = Arc::from(spec.model.as_str());
                self.names.insert(Arc::clone(&name), index);
                self.models.push(Model::new(name));
                index
            }
        };
        // Aliases of all providers of a model are equal, so the newest specification has them all.
        self.forget_aliases(index);
        for alias in &spec.aliases {
            if self.names.len() >= self.limits.names {
                return Err(ProviderConflict::TooMany("model names"));
            }
            let alias: Arc<str> = Arc::from(alias.as_str());
            self.names.insert(Arc::clone(&alias), index);
            if let Some(model) = self.models.get_mut(index.0 as usize)
                && !model.aliases.contains(&alias)
                && *alias != *model.name
            {
                model.aliases.push(alias);
            }
        }
        Ok(index)
    }

    fn forget_aliases(&mut self, index: ModelIndex) {
        let Some(model) = self.models.get_mut(index.0 as usize) else { return };
        for alias in std::mem::take(&mut model.aliases) {
            self.names.remove(&alias);
        }
    }

    fn add_provider(&mut self, model: ModelIndex, spec: ProviderSpec) -> Result<ProviderIndex, ProviderConflict> {
        if self.by_id.len() >= self.limits.providers {
            return Err(ProviderConflict::TooMany("providers"));
        }
        let free = if self.by_id.len() < self.providers.len() {
            self.providers.iter().position(|provider| provider.gone && provider.in_flight == 0)
        } else {
            None
        };
        let index = ProviderIndex(u32::try_from(free.unwrap_or(self.providers.len())).unwrap_or(u32::MAX));
        self.by_id.insert(Arc::clone(&spec.provider_id), index);
        self.nodes.entry(spec.node_id).or_default().providers.push(index);
        if let Some(model) = self.models.get_mut(model.0 as usize) {
            model.providers.push(index);
        }
        let opened = free.and_then(|free| self.providers.get(free)).map_or(0, |old| old.opened.wrapping_add(1));
        let provider = Provider {
            spec,
            model,
            state: ProviderState::default(),
            cause: String::new(),
            generation: None,
            in_flight: 0,
            unconfirmed: 0,
            open: false,
            wanted: false,
            opened,
            gone: false,
        };
        match free.and_then(|free| self.providers.get_mut(free)) {
            Some(slot) => *slot = provider,
            None => self.providers.push(provider),
        }
        Ok(index)
    }

    /// A provider is no longer declared: it takes nothing new, its leases end as they do.
    pub fn undeclare(&mut self, now: Instant, provider_id: &str) {
        let Some(index) = self.by_id.remove(provider_id) else { return };
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        provider.gone = true;
        provider.generation = None;
        let (model_index, node) = (provider.model, provider.spec.node_id);
        self.refresh(now, index);
        if let Some(node) = self.nodes.get_mut(&node) {
            node.providers.retain(|other| *other != index);
        }
        if let Some(model) = self.models.get_mut(model_index.0 as usize) {
            model.providers.retain(|other| *other != index);
            if model.providers.is_empty() {
                // The canonical name keeps its index; an alias is free for others again.
                self.forget_aliases(model_index);
            }
        }
    }

    /// The node's owner reported a provider over its connection.
    ///
    /// # Errors
    /// As [`Admission::declare`]; and for an older generation than the one in force.
    pub fn provider_up(
        &mut self,
        now: Instant,
        spec: ProviderSpec,
        generation: Generation,
        state: ProviderState,
    ) -> Result<ProviderIndex, ProviderConflict> {
        if !self.adopt(now, spec.node_id, generation) {
            return Err(ProviderConflict::Stale);
        }
        let index = self.declare(now, spec)?;
        if let Some(provider) = self.providers.get_mut(index.0 as usize) {
            provider.generation = Some(generation);
        }
        self.set_state(now, index, state, String::new());
        Ok(index)
    }

    /// A provider's state changed. Ignored when it is of another generation than the provider's.
    pub fn provider_state(
        &mut self,
        now: Instant,
        provider_id: &str,
        generation: Generation,
        state: ProviderState,
        cause: String,
    ) {
        if let Some(&index) = self.by_id.get(provider_id)
            && self.providers.get(index.0 as usize).is_some_and(|own| own.generation == Some(generation))
        {
            self.set_state(now, index, state, cause);
        }
    }

    fn set_state(&mut self, now: Instant, index: ProviderIndex, state: ProviderState, cause: String) {
        if let Some(provider) = self.providers.get_mut(index.0 as usize) {
            provider.state = state;
            provider.cause = cause;
        }
        self.refresh(now, index);
    }

    /// A node's connection is complete, or no longer to be given work (stale, offline, being replaced).
    /// Ignored for an older generation. A newer one closes what the older had open.
    pub fn node_ready(&mut self, now: Instant, node_id: NodeId, generation: Generation, ready: bool) {
        if self.adopt(now, node_id, generation) {
            self.nodes.entry(node_id).or_default().ready = ready;
            self.refresh_node(now, node_id);
        }
    }

    /// Makes a generation the one in force; a new one starts not ready. False if a newer one is in force.
    fn adopt(&mut self, now: Instant, node_id: NodeId, generation: Generation) -> bool {
        let node = self.nodes.entry(node_id).or_default();
        if node.generation.is_some_and(|own| own > generation) {
            return false;
        }
        if node.generation != Some(generation) {
            node.generation = Some(generation);
            node.ready = false;
            self.refresh_node(now, node_id);
        }
        true
    }

    /// Starts or ends draining a node: no new leases while it drains.
    pub fn node_draining(&mut self, now: Instant, node_id: NodeId, draining: bool) {
        self.nodes.entry(node_id).or_default().draining = draining;
        self.refresh_node(now, node_id);
    }

    /// Whether a node may be given application traffic.
    pub fn node_eligible(&mut self, now: Instant, node_id: NodeId, eligible: bool) {
        self.nodes.entry(node_id).or_default().eligible = eligible;
        self.refresh_node(now, node_id);
    }

    /// A node's connection of this generation is gone: its leases end, its providers close. Returns how many
    /// leases ended. An older generation than the one in force ends only its own leases.
    pub fn node_lost(&mut self, now: Instant, node_id: NodeId, generation: Generation) -> usize {
        if let Some(node) = self.nodes.get_mut(&node_id)
            && node.generation == Some(generation)
        {
            node.generation = None;
            node.ready = false;
            for index in node.providers.clone() {
                if let Some(provider) = self.providers.get_mut(index.0 as usize) {
                    provider.generation = None;
                    provider.state = ProviderState::Unavailable;
                }
            }
            self.refresh_node(now, node_id);
        }
        self.end_where(now, |held_node, held| held_node == node_id && held == generation)
    }

    fn end_where(&mut self, now: Instant, which: impl Fn(NodeId, Generation) -> bool) -> usize {
        let ended: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|(_, held)| which(held.node, held.generation))
            .map(|(lease, _)| *lease)
            .collect();
        for &lease in &ended {
            self.end(now, lease);
        }
        ended.len()
    }

    /// The leases that a returning node says it still carries. Those of an older generation that it does not
    /// name end here at once; the ones it names but does not own any more are returned, to be ended there.
    pub fn carried(
        &mut self,
        now: Instant,
        node_id: NodeId,
        generation: Generation,
        named: &[LeaseId],
    ) -> Vec<LeaseId> {
        let lapsed: Vec<LeaseId> = self
            .leases
            .iter()
            .filter(|(lease, held)| {
                held.node == node_id && held.generation < generation && !named.contains(lease)
            })
            .map(|(lease, _)| *lease)
            .collect();
        for lease in lapsed {
            self.end(now, lease);
        }
        let owned = |lease: &LeaseId| self.leases.get(lease).is_some_and(|held| held.node == node_id);
        named.iter().copied().filter(|lease| !owned(lease)).collect()
    }

    fn refresh_node(&mut self, now: Instant, node_id: NodeId) {
        let providers = self.nodes.get(&node_id).map_or_else(Vec::new, |node| node.providers.clone());
        for index in providers {
            self.refresh(now, index);
        }
    }

    /// Recomputes what a provider may do, keeps the model's counts, and serves or refuses those who wait.
    fn refresh(&mut self, now: Instant, index: ProviderIndex) {
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        let Some(model) = self.models.get_mut(provider.model.0 as usize) else { return };
        let node = self.nodes.entry(provider.spec.node_id).or_default();
        let before = (provider.open, provider.wanted, provider.loads());
        provider.wanted = !provider.gone
            && node.eligible
            && !node.draining
            && provider.state != ProviderState::Draining;
        provider.open = provider.wanted
            && node.ready
            && provider.generation.is_some()
            && provider.generation == node.generation
            && provider.state == ProviderState::Available;
        let after = (provider.open, provider.wanted, provider.loads());
        if after.0 && !before.0 {
            provider.opened = provider.opened.wrapping_add(1);
        }
        model.open = model.open + u32::from(after.0) - u32::from(before.0).min(model.open);
        model.wanted = model.wanted + u32::from(after.1) - u32::from(before.1).min(model.wanted);
        model.loading = model.loading + u32::from(after.2) - u32::from(before.2).min(model.loading);
        let model = provider.model;
        self.hand_over(now, model);
        self.refuse_unwanted(now, model);
    }

    /// Counts of a provider; `None` when it is not declared.
    pub fn figures(&self, provider_id: &str) -> Option<Figures> {
        let index = self.by_id.get(provider_id)?;
        let provider = self.providers.get(index.0 as usize)?;
        let model = self.models.get(provider.model.0 as usize)?;
        Some(Figures {
            capacity: provider.spec.capacity,
            in_flight: provider.in_flight,
            long_capacity: provider.spec.long_context_capacity,
            long_in_flight: 0,
            unconfirmed: provider.unconfirmed,
            queued: u32::try_from(model.queue.len()).unwrap_or(u32::MAX),
            open: provider.open,
            state: provider.state,
        })
    }

    /// Leases of a node, of any generation.
    pub fn node_in_flight(&self, node_id: NodeId) -> u32 {
        self.nodes.get(&node_id).map_or(0, |node| node.in_flight)
    }

    /// All queues, in the order in which their models were first declared; models that nobody serves and
    /// nobody waits for are left out.
    pub fn queues(&self, now: Instant) -> Vec<QueueFigures> {
        (0u32..)
            .zip(&self.models)
            .filter(|(_, model)| !model.providers.is_empty() || !model.queue.is_empty() || model.in_flight > 0)
            .map(|(index, model)| QueueFigures {
                model: Arc::clone(&model.name),
                depth: model.queue.len(),
                limit: self.limits.waiting,
                oldest: self.oldest(now, ModelIndex(index)),
                admitted_total: model.admitted_total,
                shed_total: model.shed_total,
                in_flight: model.in_flight,
                without_head: model.in_flight.saturating_sub(model.streaming),
                capacity: model
                    .providers
                    .iter()
                    .filter_map(|provider| self.providers.get(provider.0 as usize))
                    .filter(|provider| provider.open)
                    .fold(0, |sum, provider| sum.saturating_add(provider.spec.capacity)),
                open_providers: model.open,
                wanted_providers: model.wanted,
            })
            .collect()
    }

    /// Names that callers may use, with the name of the model each means: canonical names first, then aliases.
    pub fn model_names(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let served = || self.models.iter().filter(|model| !model.providers.is_empty());
        let canonical = served().map(|model| (Arc::clone(&model.name), Arc::clone(&model.name)));
        let aliases = served().flat_map(|model| {
            model.aliases.iter().map(|alias| (Arc::clone(alias), Arc::clone(&model.name)))
        });
        canonical.chain(aliases).collect()
    }

    /// The canonical name of a model.
    pub fn model_name(&self, model: ModelIndex) -> Option<&Arc<str>> {
        self.models.get(model.0 as usize).map(|model| &model.name)
    }

    /// The specification of a provider.
    pub fn spec(&self, provider: ProviderIndex) -> Option<&ProviderSpec> {
        self.providers.get(provider.0 as usize).map(|provider| &provider.spec)
    }

    /// Why a provider is in its state, as its node said.
    pub fn cause(&self, provider_id: &str) -> Option<&str> {
        let index = self.by_id.get(provider_id)?;
        self.providers.get(index.0 as usize).map(|provider| provider.cause.as_str())
    }

    /// All leases held, by phase: without a head, streaming, being reset, unconfirmed.
    pub fn lease_counts(&self) -> LeaseCounts {
        let mut counts = LeaseCounts { unconfirmed: self.unconfirmed, ..LeaseCounts::default() };
        for held in self.leases.values() {
            match held.phase {
                LeasePhase::Granted => counts.without_head += 1,
                LeasePhase::Streaming => counts.streaming += 1,
                LeasePhase::Resetting(_) => counts.resetting += 1,
                LeasePhase::Unconfirmed => {}
            }
        }
        counts.waiting = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        counts
    }
}

/// Requests and leases by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Requests that wait for a slot.
    pub waiting: u32,
    /// Leases without a head from the engine.
    pub without_head: u32,
    /// Leases whose answer flows.
    pub streaming: u32,
    /// Leases reset, to be confirmed.
    pub resetting: u32,
    /// Leases whose confirmation did not come in time.
    pub unconfirmed: u32,
}

impl LeaseCounts {
    /// Leases held.
    pub fn in_flight(&self) -> u32 {
        self.without_head + self.streaming + self.resetting + self.unconfirmed
    }
}

impl Provider {
    /// Wanted and on its way: its model's waiters get the longer time.
    fn loads(&self) -> bool {
        self.wanted && self.state == ProviderState::Loading
    }
}

fn sorted(names: &[String]) -> Vec<&str> {
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
}
