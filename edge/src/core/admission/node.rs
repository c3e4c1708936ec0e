//! What changes around the requests: providers declared, up, drained, gone; nodes ready, drained, lost.
//!
//! Owns who may be given work. Invariant: `open`, `wanted` and `loading` of providers and models always
//! follow from the states here, in one function ([`Admission::refresh`]).

use std::time::Instant;

use umbel_wire::ids::{Generation, NodeId};

use super::Admission;
use super::declare::NotTaken;
use super::lease::{Lease, LeaseId};
use super::provider::{ProviderSpec, ProviderState};
use super::words::ProviderIndex;

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
    /// It left the site for good: nothing is kept of it once its leases have ended.
    gone: bool,
}

impl Node {
    pub(super) fn is_over(&self) -> bool {
        self.gone && self.in_flight == 0
    }
}

impl Admission {
    /// The node's owner reported a provider over its connection.
    ///
    /// # Errors
    /// As [`Admission::declare`]; and for an older generation than the one in force.
    pub(crate) fn provider_up(
        &mut self,
        now: Instant,
        spec: ProviderSpec,
        generation: Generation,
        state: ProviderState,
    ) -> Result<ProviderIndex, NotTaken> {
        if !self.adopt(now, spec.node_id, generation) {
            return Err(NotTaken::Stale);
        }
        let index = self.declare(now, spec)?;
        if let Some(provider) = self.providers.get_mut(index.0 as usize) {
            provider.generation = Some(generation);
        }
        self.set_state(now, index, state);
        Ok(index)
    }

    /// A provider's state changed. Ignored when it is of another generation than the provider's.
    pub(crate) fn provider_state(
        &mut self,
        now: Instant,
        provider_id: &str,
        generation: Generation,
        state: ProviderState,
    ) {
        if let Some(&index) = self.by_id.get(provider_id)
            && self.providers.get(index.0 as usize).is_some_and(|own| own.generation == Some(generation))
        {
            self.set_state(now, index, state);
        }
    }

    fn set_state(&mut self, now: Instant, index: ProviderIndex, state: ProviderState) {
        if let Some(provider) = self.providers.get_mut(index.0 as usize) {
            provider.state = state;
        }
        self.refresh(now, index);
    }

    /// A node's connection is complete, or no longer to be given work (stale, offline, being replaced).
    /// Ignored for an older generation. A newer one closes what the older had open.
    pub(crate) fn node_ready(&mut self, now: Instant, node_id: NodeId, generation: Generation, ready: bool) {
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
    pub(crate) fn node_draining(&mut self, now: Instant, node_id: NodeId, draining: bool) {
        self.nodes.entry(node_id).or_default().draining = draining;
        self.refresh_node(now, node_id);
    }

    /// Whether a node may be given application traffic.
    pub(crate) fn node_eligible(&mut self, now: Instant, node_id: NodeId, eligible: bool) {
        self.nodes.entry(node_id).or_default().eligible = eligible;
        self.refresh_node(now, node_id);
    }

    /// A node left the site for good, after its providers.
    pub(crate) fn node_gone(&mut self, node_id: NodeId) {
        let Some(node) = self.nodes.get_mut(&node_id) else { return };
        node.gone = node.providers.is_empty();
        if node.is_over() {
            self.nodes.remove(&node_id);
        }
    }

    /// A node's connection of this generation is gone: its leases end, its providers close. Returns how many
    /// leases ended. Those of an older generation than the one in force wait to be confirmed: the engine may still
    /// work on them, and the node says with its next naming that it does not.
    pub(crate) fn node_lost(&mut self, now: Instant, node_id: NodeId, generation: Generation) -> usize {
        if self.nodes.get(&node_id).and_then(|node| node.generation).is_some_and(|own| own > generation) {
            for lease in self.held_where(|held| held.node == node_id && held.generation == generation) {
                self.resetting(now, lease);
                if let Some(held) = self.leases.get_mut(&lease) {
                    held.orphan = true;
                }
            }
            return 0;
        }
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
        // With the node go those that only it could confirm: it gets no work before it has named what it carries.
        let lost = |held: &Lease| held.node == node_id && (held.generation == generation || held.orphan);
        let ended = self.held_where(lost);
        for &lease in &ended {
            self.end(now, lease);
        }
        ended.len()
    }

    // In the order in which they were given: slots go to waiters the same way whatever the table's order.
    fn held_where(&self, which: impl Fn(&Lease) -> bool) -> Vec<LeaseId> {
        let held = self.leases.iter().filter(|(_, held)| which(held));
        let mut held: Vec<LeaseId> = held.map(|(lease, _)| *lease).collect();
        held.sort_unstable();
        held
    }

    /// The leases that a returning node says it still carries. Those of an older generation that it does not
    /// name end here at once; the ones it names but does not own any more are returned, to be ended there.
    pub(crate) fn carried(
        &mut self,
        now: Instant,
        node_id: NodeId,
        generation: Generation,
        named: &[LeaseId],
    ) -> Vec<LeaseId> {
        let older = |held: &Lease| held.node == node_id && held.generation < generation;
        let mut lapsed = self.held_where(older);
        lapsed.retain(|lease| !named.contains(lease));
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
    pub(super) fn refresh(&mut self, now: Instant, index: ProviderIndex) {
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        let Some(model) = self.models.get_mut(provider.model.0 as usize) else { return };
        let none = Node::default();
        let node = self.nodes.get(&provider.spec.node_id).unwrap_or(&none);
        let before = (provider.open, provider.wanted, provider.loading);
        provider.wanted =
            !provider.gone && node.eligible && !node.draining && provider.state != ProviderState::Draining;
        provider.open = provider.wanted
            && node.ready
            && provider.generation.is_some()
            && provider.generation == node.generation
            && provider.state == ProviderState::Available;
        provider.loading = provider.wanted && provider.state == ProviderState::Loading;
        let after = (provider.open, provider.wanted, provider.loading);
        if after.0 && !before.0 {
            provider.opened = provider.opened.wrapping_add(1);
        }
        model.open = model.open + u32::from(after.0) - u32::from(before.0).min(model.open);
        model.wanted = model.wanted + u32::from(after.1) - u32::from(before.1).min(model.wanted);
        model.loading = model.loading + u32::from(after.2) - u32::from(before.2).min(model.loading);
        model.pool.set(index, provider.seat, provider.room());
        let model = provider.model;
        if after.0 != before.0 {
            self.stand_anew(now, index);
            self.take_back_the_last(now, model);
        }
        self.hand_over(now, model);
        self.refuse_unwanted(now, model);
    }
}
