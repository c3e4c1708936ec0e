//! The order in which a model's waiting requests are served.
//!
//! Owns who is next: strict priority class, then requests that came back from a lost node, then fair turns
//! between keys (start-time fair queueing over one FIFO a key), then arrival. Leaves slots and time to
//! [`super::Admission`]. Invariant: each waiting ticket stands in exactly one flow, and a flow that stands
//! in the order is never empty.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A waiting request. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// The number of an API key in this process; 0 is a caller without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyNumber(pub(crate) u32);

/// Priority class: a lower one is served first, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class(pub(crate) u8);

impl Default for Class {
    fn default() -> Self {
        Self(NORMAL_CLASS)
    }
}

/// The class of a key that says nothing: the middle, so that keys can be put before and behind it.
pub(crate) const NORMAL_CLASS: u8 = 128;

/// What one request costs its key in virtual time. All requests cost the same until sizes are estimated.
const COST: u64 = 1;

/// Which flow a ticket waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FlowId {
    class: Class,
    /// `None`: requests that had a slot before and come back to the head.
    key: Option<KeyNumber>,
}

impl FlowId {
    /// The flow of a key's new requests.
    pub(super) fn of_key(class: Class, key: KeyNumber) -> Self {
        Self { class, key: Some(key) }
    }

    /// The flow at the head of a class.
    pub(super) fn at_head(class: Class) -> Self {
        Self { class, key: None }
    }
}

/// A flow's place in the order: class, virtual start time (0 for the head flow), first ticket.
type Place = (Class, u64, Ticket, FlowId);

#[derive(Debug, Default)]
struct Flow {
    waiting: BTreeSet<Ticket>,
    /// Virtual time from which this flow's next request counts.
    start: u64,
}

/// One model's waiting requests.
#[derive(Debug, Default)]
pub(super) struct Queue {
    flows: HashMap<FlowId, Flow>,
    order: BTreeSet<Place>,
    /// Virtual time: the start of the flow served last, by class.
    now: BTreeMap<Class, u64>,
    len: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a ticket, which must be newer than all before it unless it goes to the head flow.
    pub(super) fn push(&mut self, id: FlowId, ticket: Ticket) {
        let now = self.now.get(&id.class).copied().unwrap_or(0);
        let flow = self.flows.entry(id).or_default();
        let before = place(id, flow);
        if flow.waiting.is_empty() && id.key.is_some() {
            // A flow that was away gains nothing for it.
            flow.start = flow.start.max(now);
        }
        if flow.waiting.insert(ticket) {
            self.len = self.len.saturating_add(1);
        }
        let after = place(id, flow);
        self.move_place(before, after);
    }

    /// Takes a ticket out unserved: nothing is charged. False if it was not there.
    pub(super) fn remove(&mut self, id: FlowId, ticket: Ticket) -> bool {
        self.take(id, ticket, 0)
    }

    /// Takes a ticket out to be served, and charges its flow.
    pub(super) fn serve(&mut self, id: FlowId, ticket: Ticket) -> bool {
        if id.key.is_some()
            && let Some(flow) = self.flows.get(&id)
        {
            let start = flow.start;
            let now = self.now.entry(id.class).or_default();
            *now = (*now).max(start);
        }
        self.take(id, ticket, COST)
    }

    fn take(&mut self, id: FlowId, ticket: Ticket, cost: u64) -> bool {
        let Some(flow) = self.flows.get_mut(&id) else { return false };
        let before = place(id, flow);
        if !flow.waiting.remove(&ticket) {
            return false;
        }
        self.len = self.len.saturating_sub(1);
        if id.key.is_some() {
            flow.start = flow.start.saturating_add(cost);
        }
        let after = place(id, flow);
        self.move_place(before, after);
        if self.len == 0 {
            // Nobody waits, so nobody is owed anything; this also bounds the flows by those who wait.
            self.flows.clear();
            self.now.clear();
        } else {
            self.forget_idle(id);
        }
        true
    }

    /// An empty flow is remembered only while its start lies ahead: it must not gain by leaving and coming back.
    fn forget_idle(&mut self, id: FlowId) {
        let now = self.now.get(&id.class).copied().unwrap_or(0);
        if self.flows.get(&id).is_some_and(|flow| flow.waiting.is_empty() && flow.start <= now) {
            self.flows.remove(&id);
        }
    }

    fn move_place(&mut self, before: Option<Place>, after: Option<Place>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.order.remove(&before);
        }
        if let Some(after) = after {
            self.order.insert(after);
        }
    }

    /// Tickets in the order in which they may be served now: every one of a head flow (each may be unable to
    /// use a certain provider), then the first of each key's flow.
    pub(super) fn candidates(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.order.iter().flat_map(|(_, _, first, id)| {
            let all = if id.key.is_none() { self.flows.get(id) } else { None };
            let one = if all.is_none() { Some(*first) } else { None };
            all.into_iter().flat_map(|flow| flow.waiting.iter().copied()).chain(one)
        })
    }

    /// All tickets, in no promised order.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.flows.values().flat_map(|flow| flow.waiting.iter().copied())
    }
}

fn place(id: FlowId, flow: &Flow) -> Option<Place> {
    let first = *flow.waiting.first()?;
    let start = if id.key.is_some() { flow.start.saturating_add(1) } else { 0 };
    Some((id.class, start, first, id))
}
