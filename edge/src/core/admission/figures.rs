//! What admission says of itself: counts of providers, nodes, queues and leases, and names.
//!
//! Invariant: these are the numbers that decisions are made by; nothing is counted a second time.

use std::sync::Arc;
use std::time::Instant;

use umbel_wire::ids::NodeId;

use super::Admission;
use super::affinity::PrefixTable;
use super::lease::Phases;
use super::model::QueueFigures;
use super::provider::{Figures, Provider};
use super::words::ModelIndex;

impl Admission {
    /// Counts of a provider; `None` when it is not declared.
    pub(crate) fn figures(&self, provider_id: &str) -> Option<Figures> {
        self.providers.get(self.by_id.get(provider_id)?.0 as usize).and_then(|one| self.figures_of(one))
    }

    pub(super) fn figures_of(&self, provider: &Provider) -> Option<Figures> {
        let model = self.models.get(provider.model.0 as usize)?;
        // Those who could be given a slot of it; one that must not go back there counts as well.
        let queued = model.queue.waiting_in(|lane| model.pool.fits(lane, provider.seat));
        Some(Figures {
            capacity: provider.spec.capacity,
            in_flight: provider.in_flight,
            long_capacity: provider.spec.long_context_capacity,
            long_in_flight: provider.long_in_flight,
            unconfirmed: provider.unconfirmed,
            queued: u32::try_from(queued).unwrap_or(u32::MAX),
            open: provider.open,
            ejected: provider.is_ejected(),
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
        self.models
            .iter()
            .filter(|(_, model)| !model.is_over())
            .map(|(index, model)| QueueFigures {
                model: Arc::clone(&model.name),
                index,
                depth: model.queue.len(),
                long_waiting: model.queue.long_waiting(),
                limit: self.limits.waiting,
                oldest: self.oldest(now, index),
                admitted_total: model.admitted_total,
                shed_total: model.shed.total(),
                shed: model.shed,
                in_flight: model.in_flight,
                without_head: model.in_flight.saturating_sub(model.phases.streaming),
                phases: model.phases,
                capacity: model
                    .providers
                    .iter()
                    .filter_map(|provider| self.providers.get(provider.0 as usize))
                    .filter(|provider| provider.open)
                    .fold(0, |sum, provider| sum.saturating_add(provider.spec.capacity)),
                open_providers: model.open,
                ejected_providers: model.passed_over,
                wanted_providers: model.wanted,
                drains_every: model.drains_every(now),
                bytes_per_token: model.ratio.thousandths(),
                estimate_error: model.ratio.error(),
            })
            .collect()
    }

    /// Names that callers may use, with the name of the model each means: canonical names first, then aliases.
    pub(crate) fn model_names(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let served =
            || self.models.iter().map(|(_, model)| model).filter(|model| !model.providers.is_empty());
        let canonical = served().map(|model| (Arc::clone(&model.name), Arc::clone(&model.name)));
        let aliases = served()
            .flat_map(|model| model.aliases.iter().map(|alias| (Arc::clone(alias), Arc::clone(&model.name))));
        canonical.chain(aliases).collect()
    }

    /// The canonical name of a model.
    pub(crate) fn model_name(&self, model: ModelIndex) -> Option<&Arc<str>> {
        self.models.get(model.0 as usize).map(|model| &model.name)
    }

    /// Nodes that something is kept of.
    #[cfg(test)]
    pub(crate) fn nodes_known(&self) -> usize {
        self.nodes.len()
    }

    /// The specification of a provider.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn spec(&self, provider: super::ProviderIndex) -> Option<&super::ProviderSpec> {
        self.providers.get(provider.0 as usize).map(|provider| &provider.spec)
    }

    /// All leases held, by phase: without a head, streaming, being reset, unconfirmed.
    pub(crate) fn lease_counts(&self) -> LeaseCounts {
        let waiting = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        let Phases { prefill, streaming, ending, unconfirmed } = self.phases;
        LeaseCounts { waiting, without_head: prefill, streaming, resetting: ending, unconfirmed }
    }

    /// What prefix affinity and the passing over of failing providers came to since the start.
    pub(crate) fn choice_figures(&self) -> ChoiceFigures {
        ChoiceFigures {
            prefix_table: self.seen.table(),
            prefix_hits: self.prefix_hits,
            prefix_misses: self.prefix_misses,
            passed_over_total: self.passed_over_total,
        }
    }
}

/// What prefix affinity and the passing over of failing providers came to since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChoiceFigures {
    /// The table of prefixes.
    pub(crate) prefix_table: PrefixTable,
    /// Requests with a prefix that went where it was seen last.
    pub(crate) prefix_hits: u64,
    /// Requests with a prefix that was not known, or whose provider had no room for it.
    pub(crate) prefix_misses: u64,
    /// How often a provider was passed over for a while.
    pub(crate) passed_over_total: u64,
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
