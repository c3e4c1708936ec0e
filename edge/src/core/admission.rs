//! Admission: which request gets which provider's slot, and when.
//!
//! Owns providers with their capacity, a bounded queue a model, and provider leases, which are the only
//! counter of load. Leaves connections, tasks and clocks to `shell::dispatch`. Invariants: a provider never
//! gets a lease above its capacity; a lease ends exactly once; no waiter that fits stands beside a free slot;
//! every waiter is granted, refused or withdrawn exactly once.

mod affinity;
mod budget;
mod choice;
mod declare;
mod estimate;
mod figures;
mod lease;
mod model;
mod node;
mod outliers;
mod pool;
mod prefix;
mod provider;
mod queue;
mod reading;
#[cfg(test)]
mod tests;
mod waiting;
mod words;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_wire::ids::NodeId;
use umbel_wire::numbered::Numbered;

use affinity::Seen;
pub(crate) use budget::RetryBudget;
use choice::Size;
pub(crate) use declare::NotTaken;
pub(crate) use figures::{ChoiceFigures, LeaseCounts};
use lease::Lease;
pub(crate) use lease::{LeaseId, LeasePhase, Phases};
use model::Models;
#[cfg(test)]
pub(crate) use model::QueueFigures;
use node::Node;
pub(crate) use prefix::Prefix;
use provider::Provider;
pub(crate) use provider::{Category, Figures, ProviderSpec, ProviderState};
use queue::Who;
pub(crate) use queue::{Class, KeyNumber, NORMAL_CLASS, Ticket};
pub(crate) use reading::{LeaseReading, QueueReading, Reading};
use waiting::{Timer, Waiter};
pub(crate) use words::{
    Ask, Avoid, Decision, Grant, ModelIndex, Outcome, Output, ProviderIndex, Refusal, RefusalReason, Released,
};

use crate::core::usage::{Usage, UsageSource};

/// Bounds and times of admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Requests waiting for one model.
    pub(crate) waiting: usize,
    /// How long a request waits while its model is served.
    pub(crate) max_wait: Duration,
    /// How long it waits while its model is loading.
    pub(crate) max_wait_loading: Duration,
    /// How long the node's terminal frame may take after a reset.
    pub(crate) confirm: Duration,
    /// Names of models and aliases that can be known in all.
    pub(crate) names: usize,
    /// Providers that can be known in all.
    pub(crate) providers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: 1_000,
            max_wait: Duration::from_secs(30),
            max_wait_loading: Duration::from_secs(110),
            // 10-wire: without its terminal frame for 5 s a lease is unconfirmed.
            confirm: Duration::from_secs(5),
            // Metrics have a series a model, so names are bounded well below what memory would allow.
            names: 4_096,
            // 10,000 nodes with a few engines each.
            providers: 65_536,
        }
    }
}

/// The state of admission.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    models: Models,
    /// What callers say.
    names: HashMap<Arc<str>, ModelIndex>,
    /// By the name that its providers declare; as long as there is room, also while nobody does.
    canonical: HashMap<Arc<str>, ModelIndex>,
    /// Models that were forgotten and have not been told so.
    forgotten: Vec<ModelIndex>,
    providers: Vec<Provider>,
    by_id: HashMap<Arc<str>, ProviderIndex>,
    nodes: HashMap<NodeId, Node>,
    leases: Numbered<LeaseId, Lease>,
    waiters: Numbered<Ticket, Waiter>,
    timers: BTreeSet<(Instant, Timer)>,
    next_lease: u64,
    next_ticket: u64,
    /// Of all models.
    phases: Phases,
    seen: Seen,
    prefix_hits: u64,
    prefix_misses: u64,
    passed_over_total: u64,
    outputs: VecDeque<Output>,
    /// A fault that a simulated world switches on.
    #[cfg(feature = "simulation")]
    planted: Option<&'static str>,
}

impl Admission {
    /// An empty one. `first_lease` must lie above all that an earlier process of this edge may have given.
    pub(crate) fn new(limits: Limits, first_lease: u64) -> Self {
        Self {
            limits,
            models: Models::default(),
            names: HashMap::new(),
            canonical: HashMap::new(),
            forgotten: Vec::new(),
            providers: Vec::new(),
            by_id: HashMap::new(),
            nodes: HashMap::new(),
            leases: Numbered::default(),
            waiters: Numbered::default(),
            timers: BTreeSet::new(),
            next_lease: first_lease,
            next_ticket: 0,
            phases: Phases::default(),
            seen: Seen::default(),
            prefix_hits: 0,
            prefix_misses: 0,
            passed_over_total: 0,
            outputs: VecDeque::new(),
            #[cfg(feature = "simulation")]
            planted: None,
        }
    }

    /// A simulated world switches a fault on.
    #[cfg(feature = "simulation")]
    pub(crate) fn plant(&mut self, fault: Option<&'static str>) {
        self.planted = fault;
    }

    #[cfg(feature = "simulation")]
    fn has_planted(&self, fault: &str) -> bool {
        self.planted == Some(fault)
    }

    #[cfg(not(feature = "simulation"))]
    fn has_planted(&self, _: &str) -> bool {
        false
    }

    /// What a request costs its key.
    fn cost(&self, size: Size) -> u64 {
        if self.has_planted("keys do not take turns") { 0 } else { size.cost() }
    }

    /// Other bounds of the queues, for requests that come from now on.
    pub(crate) fn set_queue_limits(
        &mut self,
        waiting: usize,
        max_wait: Duration,
        max_wait_loading: Duration,
    ) {
        self.limits = Limits { waiting, max_wait, max_wait_loading, ..self.limits };
    }

    /// The model of a name or alias; `None` when nobody is declared to serve it.
    pub(crate) fn resolve(&self, name: &str) -> Option<ModelIndex> {
        let index = *self.names.get(name)?;
        self.models.get(index.0 as usize).filter(|model| !model.providers.is_empty()).map(|_| index)
    }

    /// The next thing that happened to a waiting request. To be asked after every call that takes `now`.
    pub(crate) fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Models that were forgotten since the last call: nothing has to be kept of them any more.
    pub(crate) fn take_forgotten(&mut self) -> Vec<ModelIndex> {
        std::mem::take(&mut self.forgotten)
    }

    /// When [`Admission::expire`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Decides on a request.
    pub(crate) fn admit(&mut self, now: Instant, ask: &Ask) -> Decision {
        self.seat(now, ask.model);
        let size = match self.fitted(ask) {
            Ok(size) => size,
            Err(reason) => return Decision::Refused(self.refuse(now, ask.model, reason)),
        };
        // Whoever waits and fits already has its slot, so a free one belongs to the newcomer.
        match self.grant(now, ask, size, Duration::ZERO) {
            Some(grant) => {
                let cost = self.cost(size);
                if let Some(model) = self.models.get_mut(ask.model.0 as usize)
                    && !ask.at_head
                {
                    model.queue.charge(ask.class, Who::Key(ask.key), cost);
                }
                Decision::Granted(grant)
            }
            None => self.wait(now, ask, size),
        }
    }

    fn fitted(&self, ask: &Ask) -> Result<Size, RefusalReason> {
        let none = RefusalReason::NoneWanted;
        let model = self.models.get(ask.model.0 as usize).filter(|model| model.wanted > 0).ok_or(none)?;
        let size = self.size(ask.model, ask.prompt_bytes)?;
        if model.pool.is_wanted(size.lane) { Ok(size) } else { Err(none) }
    }

    /// Makes a lease of the best provider that has a slot for the request.
    fn grant(&mut self, now: Instant, ask: &Ask, size: Size, waited: Duration) -> Option<Grant> {
        let (index, affinity) = self.choose(ask.model, size.lane, ask.avoid, &ask.prefix)?;
        let provider = self.providers.get_mut(index.0 as usize)?;
        let generation = provider.generation?;
        let model = self.models.get_mut(ask.model.0 as usize)?;
        let node = self.nodes.get_mut(&provider.spec.node_id)?;
        let long = size.lane.long;
        provider.in_flight += 1;
        provider.long_in_flight += u32::from(long);
        model.pool.set(index, provider.seat, provider.room());
        model.in_flight += 1;
        model.phases.prefill += 1;
        self.phases.prefill += 1;
        model.admitted_total += 1;
        node.in_flight += 1;
        let lease = LeaseId(self.next_lease);
        self.next_lease = self.next_lease.wrapping_add(1);
        let held = Lease {
            provider: index,
            model: ask.model,
            node: provider.spec.node_id,
            generation,
            phase: LeasePhase::Granted,
            orphan: false,
            long,
            kind: outliers::kind(ask.events, long),
            stalled: false,
            granted_at: now,
            request: ask.request,
        };
        let avoid = Avoid { provider: index, opened: provider.opened };
        if !ask.prefix.hashes().is_empty() {
            self.prefix_hits += u64::from(affinity);
            self.prefix_misses += u64::from(!affinity);
            self.seen.note(ask.model, ask.prefix.hashes(), index, avoid.opened);
        }
        self.expect_head(now, lease, &held);
        self.leases.insert(lease, held);
        let estimated_tokens = size.tokens;
        Some(Grant { lease, provider: index, generation, avoid, waited, estimated_tokens, long, affinity })
    }

    /// Tokens that a prompt of so many bytes is estimated to have.
    pub(crate) fn estimate(&self, model: ModelIndex, prompt_bytes: u64) -> u64 {
        self.models.get(model.0 as usize).map_or(0, |model| model.ratio.tokens(prompt_bytes))
    }

    /// What a request used in the end. It corrects the model's bytes a token, if an engine reported it, and the turn of
    /// its key, which was charged by an estimate.
    pub(crate) fn used(
        &mut self,
        index: ModelIndex,
        (key, class): (KeyNumber, Class),
        prompt_bytes: u64,
        estimated_tokens: u64,
        usage: &Usage,
    ) {
        let Some(model) = self.models.get_mut(index.0 as usize) else { return };
        if usage.source == UsageSource::None {
            return;
        }
        if usage.source == UsageSource::Reported {
            model.ratio.correct(prompt_bytes, usage.prompt_tokens);
        }
        // An engine that reports nonsense does not end its key's turns.
        let most =
            estimated_tokens.saturating_mul(USED_MAX_TIMES).max(estimated_tokens.saturating_add(USED_MAX));
        let used = i64::try_from(usage.total().min(most)).unwrap_or(i64::MAX);
        let charged = i64::try_from(estimated_tokens).unwrap_or(i64::MAX);
        model.queue.correct(class, key, used.saturating_sub(charged));
    }
}

/// A request is not corrected to more than so many times its estimate, or so many tokens above it.
const USED_MAX_TIMES: u64 = 4;
const USED_MAX: u64 = 262_144;
