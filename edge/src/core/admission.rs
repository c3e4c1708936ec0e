//! Admission: which request gets which provider's slot, and when.
//!
//! Owns providers with their capacity, a bounded queue a model, and provider leases, which are the only
//! counter of load. Leaves connections, tasks and clocks to `shell::dispatch`. Invariants: a provider never
//! gets a lease above its capacity; a lease ends exactly once; no waiter that fits stands beside a free slot;
//! every waiter is granted, refused or withdrawn exactly once.

mod budget;
mod choice;
mod declare;
mod figures;
mod lease;
mod model;
mod node;
mod prefix;
mod provider;
mod queue;
mod reading;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_wire::ids::{Generation, NodeId};

pub(crate) use budget::RetryBudget;
pub(crate) use declare::ProviderConflict;
pub(crate) use figures::LeaseCounts;
use lease::Lease;
pub(crate) use lease::{LeaseId, LeasePhase};
use model::Model;
pub(crate) use model::QueueFigures;
use node::Node;
pub(crate) use prefix::Prefix;
use provider::Provider;
pub(crate) use provider::{Category, Figures, ProviderSpec, ProviderState};
pub(crate) use queue::{Class, KeyNumber, NORMAL_CLASS, Ticket};
pub(crate) use reading::{LeaseReading, QueueReading, Reading};
use waiting::{Timer, Waiter};

/// A model's place in this process; a name keeps its index for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelIndex(pub(crate) u32);

/// A provider's place in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProviderIndex(pub(crate) u32);

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

/// What a request asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The model, from [`Admission::resolve`].
    pub(crate) model: ModelIndex,
    /// Whose request it is.
    pub(crate) key: KeyNumber,
    /// Its key's priority.
    pub(crate) class: Class,
    /// The provider that just failed it.
    pub(crate) avoid: Option<Avoid>,
    /// It had a slot before: it waits at the head of its class, whatever the queue's bound.
    pub(crate) at_head: bool,
    /// Bytes of its prompt as it came (messages, prompt or input); 0 is unknown.
    pub(crate) prompt_bytes: u64,
    /// How its prompt begins.
    pub(crate) prefix: Prefix,
    /// It wants an event stream: the engine's head comes with the first token, not with the last.
    pub(crate) events: bool,
    /// Its number in the request ring; 0 is none.
    pub(crate) request: u64,
}

impl Ask {
    /// A first try of which nothing else is known.
    pub(crate) fn new(model: ModelIndex, key: KeyNumber, class: Class) -> Self {
        Self {
            model,
            key,
            class,
            avoid: None,
            at_head: false,
            prompt_bytes: 0,
            prefix: Prefix::default(),
            events: false,
            request: 0,
        }
    }
}

/// A provider that a request does not go back to until that provider has closed and opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Avoid {
    provider: ProviderIndex,
    opened: u32,
}

impl Avoid {
    pub(crate) fn applies(self, provider: ProviderIndex, opened: u32) -> bool {
        self.provider == provider && self.opened == opened
    }
}

/// A slot, given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The lease.
    pub(crate) lease: LeaseId,
    /// Where it is held.
    pub(crate) provider: ProviderIndex,
    /// The node's connection it was given under.
    pub(crate) generation: Generation,
    /// For a second try elsewhere.
    pub(crate) avoid: Avoid,
    /// How long the request waited.
    pub(crate) waited: Duration,
    /// Tokens that its prompt is estimated to have.
    pub(crate) estimated_tokens: u64,
    /// It takes one of the provider's long slots.
    pub(crate) long: bool,
    /// It goes where its prefix was seen last.
    pub(crate) affinity: bool,
}

/// How a try at a provider went, as far as the provider is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It answered.
    Answered,
    /// It refused the request for what it is (4xx): says nothing of the provider but that it lives.
    ClientError,
    /// It refused the connection, broke it, answered with 5xx or with what is no answer.
    Failed,
    /// Its first byte did not come in time.
    TimedOut,
    /// It fell silent in the middle of an answer.
    Stalled,
}

/// What came of releasing a lease by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Released {
    /// Its slot is free.
    Released,
    /// It runs, or its end is still being confirmed: there is nothing to release.
    NotUnconfirmed,
    /// No such lease; it may have ended by itself.
    Unknown,
}

/// Why a request got no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The reason.
    pub(crate) reason: RefusalReason,
    /// When trying again makes sense; `None` where the queue does not drain.
    pub(crate) retry_after: Option<Duration>,
}

/// Why a request got no slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// The queue is at its bound.
    QueueFull {
        /// The bound.
        limit: usize,
        /// Capacity exists and is contended; else no provider is there.
        contended: bool,
    },
    /// It waited its time while capacity exists.
    WaitedTooLong(Duration),
    /// It waited its time while the model was loading.
    StillLoading(Duration),
    /// It waited its time and no provider came.
    NoneCame(Duration),
    /// No provider is wanted: all are drained, not eligible, or gone.
    NoneWanted,
    /// Its prompt is too long for every provider of the model.
    TooLong {
        /// Tokens that its prompt is estimated to have.
        estimated: u64,
        /// The longest prompt that a provider of the model takes.
        limit: u64,
    },
}

/// The answer to an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A slot at once.
    Granted(Grant),
    /// Wait for an [`Output`] with this ticket.
    Waiting(Ticket),
    /// No.
    Refused(Refusal),
}

/// What happened to a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// It got a slot.
    Granted(Ticket, Grant),
    /// It waits no longer.
    Refused(Ticket, Refusal),
}

/// The state of admission.
#[derive(Debug)]
pub(crate) struct Admission {
    limits: Limits,
    models: Vec<Model>,
    names: HashMap<Arc<str>, ModelIndex>,
    providers: Vec<Provider>,
    by_id: HashMap<Arc<str>, ProviderIndex>,
    nodes: HashMap<NodeId, Node>,
    leases: HashMap<LeaseId, Lease>,
    waiters: HashMap<Ticket, Waiter>,
    timers: BTreeSet<(Instant, Timer)>,
    next_lease: u64,
    next_ticket: u64,
    unconfirmed: u32,
    outputs: VecDeque<Output>,
}

impl Admission {
    /// An empty one. `first_lease` must lie above all that an earlier process of this edge may have given.
    pub(crate) fn new(limits: Limits, first_lease: u64) -> Self {
        Self {
            limits,
            models: Vec::new(),
            names: HashMap::new(),
            providers: Vec::new(),
            by_id: HashMap::new(),
            nodes: HashMap::new(),
            leases: HashMap::new(),
            waiters: HashMap::new(),
            timers: BTreeSet::new(),
            next_lease: first_lease,
            next_ticket: 0,
            unconfirmed: 0,
            outputs: VecDeque::new(),
        }
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

    /// When [`Admission::expire`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Decides on a request.
    pub(crate) fn admit(&mut self, now: Instant, ask: &Ask) -> Decision {
        let Some(model) = self.models.get(ask.model.0 as usize) else {
            return Decision::Refused(Refusal { reason: RefusalReason::NoneWanted, retry_after: None });
        };
        if model.wanted == 0 {
            return Decision::Refused(self.refuse(now, ask.model, RefusalReason::NoneWanted));
        }
        // Whoever waits and fits already has its slot, so a free one belongs to the newcomer.
        if model.open > 0
            && let Some(provider) = choice::choose(&model.providers, &self.providers, ask.avoid)
            && let Some(grant) = self.grant(provider, Duration::ZERO)
        {
            return Decision::Granted(grant);
        }
        self.wait(now, ask)
    }

    /// Makes a lease of a provider that [`choice::choose`] named.
    fn grant(&mut self, index: ProviderIndex, waited: Duration) -> Option<Grant> {
        let provider = self.providers.get_mut(index.0 as usize)?;
        let generation = provider.generation?;
        let model = self.models.get_mut(provider.model.0 as usize)?;
        let node = self.nodes.get_mut(&provider.spec.node_id)?;
        provider.in_flight += 1;
        model.in_flight += 1;
        model.admitted_total += 1;
        node.in_flight += 1;
        let lease = LeaseId(self.next_lease);
        self.next_lease = self.next_lease.wrapping_add(1);
        let held = Lease {
            provider: index,
            model: provider.model,
            node: provider.spec.node_id,
            generation,
            phase: LeasePhase::Granted,
            orphan: false,
        };
        self.leases.insert(lease, held);
        let avoid = Avoid { provider: index, opened: provider.opened };
        Some(Grant {
            lease,
            provider: index,
            generation,
            avoid,
            waited,
            estimated_tokens: 0,
            long: false,
            affinity: false,
        })
    }

    /// The engine's head arrived for this lease.
    pub(crate) fn streaming(&mut self, lease: LeaseId) {
        if let Some(held) = self.leases.get_mut(&lease)
            && held.phase == LeasePhase::Granted
        {
            held.phase = LeasePhase::Streaming;
            if let Some(model) = self.models.get_mut(held.model.0 as usize) {
                model.streaming += 1;
            }
        }
    }

    /// The edge reset the stream of this lease: the node has the confirmation time to end it.
    pub(crate) fn resetting(&mut self, now: Instant, lease: LeaseId) {
        if let Some(held) = self.leases.get_mut(&lease)
            && matches!(held.phase, LeasePhase::Granted | LeasePhase::Streaming)
        {
            let until = now + self.limits.confirm;
            if held.phase == LeasePhase::Streaming
                && let Some(model) = self.models.get_mut(held.model.0 as usize)
            {
                model.streaming = model.streaming.saturating_sub(1);
            }
            held.phase = LeasePhase::Resetting(until);
            self.timers.insert((until, Timer::Confirm(lease)));
        }
    }

    /// Ends a lease: its stream's terminal frame came, or it was never used. The slot goes to the best waiter.
    /// False if it had ended before, which changes nothing.
    pub(crate) fn end(&mut self, now: Instant, lease: LeaseId) -> bool {
        let Some(model) = self.drop_lease(now, lease) else { return false };
        self.hand_over(now, model);
        true
    }

    /// Takes the lease out of all counts, without handing its slot over.
    fn drop_lease(&mut self, now: Instant, lease: LeaseId) -> Option<ModelIndex> {
        let held = self.leases.remove(&lease)?;
        if let LeasePhase::Resetting(until) = held.phase {
            self.timers.remove(&(until, Timer::Confirm(lease)));
        }
        let unconfirmed = u32::from(held.phase == LeasePhase::Unconfirmed);
        self.unconfirmed = self.unconfirmed.saturating_sub(unconfirmed);
        if let Some(provider) = self.providers.get_mut(held.provider.0 as usize) {
            provider.in_flight = provider.in_flight.saturating_sub(1);
            provider.unconfirmed = provider.unconfirmed.saturating_sub(unconfirmed);
        }
        if let Some(model) = self.models.get_mut(held.model.0 as usize) {
            model.in_flight = model.in_flight.saturating_sub(1);
            model.streaming -= u32::from(held.phase == LeasePhase::Streaming).min(model.streaming);
            model.note_end(now);
        }
        if let Some(node) = self.nodes.get_mut(&held.node) {
            node.in_flight = node.in_flight.saturating_sub(1);
        }
        Some(held.model)
    }

    /// How far a lease is; `None` once it ended.
    pub(crate) fn phase(&self, lease: LeaseId) -> Option<LeasePhase> {
        self.leases.get(&lease).map(|held| held.phase)
    }

    /// Ends an unconfirmed lease by hand.
    pub(crate) fn release(&mut self, now: Instant, lease: LeaseId) -> Released {
        match self.phase(lease) {
            None => Released::Unknown,
            Some(LeasePhase::Unconfirmed) => {
                self.end(now, lease);
                Released::Released
            }
            Some(_) => Released::NotUnconfirmed,
        }
    }

    /// Tokens that a prompt of so many bytes is estimated to have.
    pub(crate) fn estimate(&self, _model: ModelIndex, prompt_bytes: u64) -> u64 {
        prompt_bytes.div_ceil(4)
    }

    /// Leases whose end is not confirmed, with their providers.
    pub(crate) fn unconfirmed(&self) -> Vec<(LeaseId, Arc<str>)> {
        let unconfirmed = self.leases.iter().filter(|(_, held)| held.phase == LeasePhase::Unconfirmed);
        let mut list: Vec<_> = unconfirmed
            .filter_map(|(lease, held)| {
                Some((*lease, Arc::clone(&self.providers.get(held.provider.0 as usize)?.spec.provider_id)))
            })
            .collect();
        list.sort_unstable();
        list
    }
}
