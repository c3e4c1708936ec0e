//! What admission says of itself: counts of providers, nodes, queues and leases, and names.
//!
//! Invariant: these are the numbers that decisions are made by; nothing is counted a second time.

use std::sync::Arc;
use std::time::Instant;

use umbel_wire::ids::NodeId;

use super::lease::LeasePhase;
use super::model::QueueFigures;
use super::provider::Figures;
use super::{Admission, ModelIndex};

impl Admission {
    /// Counts of a provider; `None` when it is not declared.
    pub(crate) fn figures(&self, provider_id: &str) -> Option<Figures> {
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
    pub(crate) fn node_in_flight(&self, node_id: NodeId) -> u32 {
        self.nodes.get(&node_id).map_or(0, |node| node.in_flight)
    }

    /// All queues, in the order in which their models were first declared; models that nobody serves and
    /// nobody waits for are left out.
    pub(crate) fn queues(&self, now: Instant) -> Vec<QueueFigures> {
        (0u32..)
            .zip(&self.models)
            .filter(|(_, model)| {
                !model.providers.is_empty() || !model.queue.is_empty() || model.in_flight > 0
            })
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
    pub(crate) fn model_names(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let served = || self.models.iter().filter(|model| !model.providers.is_empty());
        let canonical = served().map(|model| (Arc::clone(&model.name), Arc::clone(&model.name)));
        let aliases = served()
            .flat_map(|model| model.aliases.iter().map(|alias| (Arc::clone(alias), Arc::clone(&model.name))));
        canonical.chain(aliases).collect()
    }

    /// The canonical name of a model.
    pub(crate) fn model_name(&self, model: ModelIndex) -> Option<&Arc<str>> {
        self.models.get(model.0 as usize).map(|model| &model.name)
    }

    /// The specification of a provider.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn spec(&self, provider: super::ProviderIndex) -> Option<&super::ProviderSpec> {
        self.providers.get(provider.0 as usize).map(|provider| &provider.spec)
    }

    /// All leases held, by phase: without a head, streaming, being reset, unconfirmed.
    pub(crate) fn lease_counts(&self) -> LeaseCounts {
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
pub(crate) struct LeaseCounts {
    /// Requests that wait for a slot.
    pub(crate) waiting: u32,
    /// Leases without a head from the engine.
    pub(crate) without_head: u32,
    /// Leases whose answer flows.
    pub(crate) streaming: u32,
    /// Leases reset, to be confirmed.
    pub(crate) resetting: u32,
    /// Leases whose confirmation did not come in time.
    pub(crate) unconfirmed: u32,
}

impl LeaseCounts {
    /// Leases held.
    pub(crate) fn in_flight(&self) -> u32 {
        self.without_head + self.streaming + self.resetting + self.unconfirmed
    }
}
