//! Applications' requests: a lease, a stream on the lease's connection, the terminal that ends it.
//!
//! Owns what `shell/dispatch` does around admission, without waiting. Leaves every decision to admission. Invariant: a
//! lease that was granted is ended here exactly once, by its stream's terminal or by its node's loss.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::method;
use umbel_contracts::proto::node::InferenceOpen;
use umbel_wire::Terminal;
use umbel_wire::simulation::Outgoing;

use super::{Edge, LinkId};
use crate::core::admission::{
    Ask, Class, Decision, Grant, KeyNumber, LeaseId, NORMAL_CLASS, Outcome, ProviderSpec, Ticket,
};

/// Names a request in the world.
pub type RequestId = u64;

/// The reason of an engine that failed.
pub const ENGINE_FAILED: &str = "ENGINE_FAILED";

/// What an application got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The engine's whole answer.
    Complete,
    /// An error after it had a slot.
    Failed,
    /// No slot.
    Refused,
}

/// What an application asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The model.
    pub model: String,
    /// Whose request it is.
    pub key: u32,
    /// Its key's priority; a lower one is served first.
    pub class: u8,
    /// Bytes of its prompt.
    pub prompt_bytes: u64,
}

/// What happened to a request at admission, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It waits from now on.
    Waits(RequestId),
    /// It has a slot of this provider. `cost`: the tokens that its key is charged for.
    Granted {
        /// Which.
        request: RequestId,
        /// Where.
        provider: String,
        /// Tokens.
        cost: u64,
    },
    /// It does not wait any more, without a slot.
    Gone(RequestId),
}

/// A lease with an open stream.
pub(super) struct Held {
    pub(super) request: RequestId,
    pub(super) grant: Grant,
    pub(super) provider: Arc<str>,
}

/// The requests in hand.
#[derive(Default)]
pub(super) struct Requests {
    waiting: BTreeMap<Ticket, RequestId>,
    granted: Vec<(RequestId, Grant)>,
    pub(super) open: BTreeMap<(LinkId, Outgoing), Held>,
    answered: Vec<(RequestId, Answered)>,
    turns: Vec<Turn>,
    /// Their connection broke beside a newer one: held until their node says that it does not carry them.
    orphans: BTreeSet<LeaseId>,
}

impl Edge {
    /// An application asks for a model.
    pub fn ask(&mut self, request: RequestId, wanted: &Wanted, now: Instant) {
        if self.is("the site waits for its control plane") && self.plane_generation().is_none() {
            self.requests.answered.push((request, Answered::Refused));
            return;
        }
        let Some(model) = self.admission.resolve(&wanted.model) else {
            self.requests.answered.push((request, Answered::Refused));
            return;
        };
        let class = if self.is("classes are all the same") { NORMAL_CLASS } else { wanted.class };
        let prompt_bytes = if self.is("a long request takes any slot") { 0 } else { wanted.prompt_bytes };
        let ask = Ask { prompt_bytes, ..Ask::new(model, KeyNumber(wanted.key), Class(class)) };
        let more = u32::from(self.is("more is given than there is"));
        self.spoil_capacity(now, more);
        let decision = self.admission.admit(now, &ask);
        self.spoil_capacity(now, 0);
        match decision {
            Decision::Granted(grant) => self.is_granted(request, grant),
            Decision::Waiting(ticket) => {
                self.requests.waiting.insert(ticket, request);
                self.requests.turns.push(Turn::Waits(request));
            }
            Decision::Refused(_) => self.requests.answered.push((request, Answered::Refused)),
        }
        self.settle(now);
        self.open_granted(now);
    }

    fn is_granted(&mut self, request: RequestId, grant: Grant) {
        let provider = self.admission.spec(grant.provider).map(|spec| spec.provider_id.to_string());
        let cost = grant.estimated_tokens.max(1);
        self.requests.turns.push(Turn::Granted { request, provider: provider.unwrap_or_default(), cost });
        self.requests.granted.push((request, grant));
    }

    // A fault that only the world switches on.
    fn spoil_capacity(&mut self, now: Instant, more: u32) {
        if !self.is("more is given than there is") {
            return;
        }
        for node in self.registry.all() {
            for engine in &node.report.engines {
                let spec = crate::core::providers::spec(node.id, engine);
                let capacity = spec.capacity + more;
                drop(self.admission.declare(now, ProviderSpec { capacity, ..spec }));
            }
        }
    }

    /// The application went away.
    pub fn leave(&mut self, request: RequestId, now: Instant) {
        let waiting = self.requests.waiting.iter().find(|(_, one)| **one == request);
        if let Some(ticket) = waiting.map(|(ticket, _)| *ticket) {
            self.requests.waiting.remove(&ticket);
            self.requests.turns.push(Turn::Gone(request));
            self.admission.withdraw(ticket);
        }
        let open = self.requests.open.iter().find(|(_, held)| held.request == request);
        if let Some(((link, stream), lease)) = open.map(|(at, held)| (*at, held.grant.lease)) {
            if let Some(entry) = self.links.get_mut(&link) {
                entry.end.abandon(stream);
            }
            self.admission.resetting(now, lease);
        }
        self.settle(now);
        self.open_granted(now);
    }

    pub(super) fn granted_waiter(&mut self, now: Instant, ticket: Ticket, grant: Grant) {
        match self.requests.waiting.remove(&ticket) {
            Some(request) => self.is_granted(request, grant),
            None => {
                self.admission.end(now, grant.lease);
            }
        }
    }

    pub(super) fn refused_waiter(&mut self, ticket: Ticket) {
        if let Some(request) = self.requests.waiting.remove(&ticket) {
            self.requests.turns.push(Turn::Gone(request));
            self.requests.answered.push((request, Answered::Refused));
        }
    }

    /// Opens the streams of what was granted. A connection that takes none gives the slot to the next.
    pub(super) fn open_granted(&mut self, now: Instant) {
        // Each turn ends one lease or opens one stream, and waiters are bounded.
        while let Some((request, grant)) = self.requests.granted.pop() {
            let spec = self.admission.spec(grant.provider).cloned();
            let owner = spec.as_ref().and_then(|spec| self.registry.slots.owner(&spec.node_id));
            let link = owner.filter(|owner| owner.generation == grant.generation).map(|owner| owner.handle);
            let opened = link.and_then(|link| {
                let spec = spec?;
                let open = InferenceOpen {
                    provider_id: spec.provider_id.to_string(),
                    lease_id: grant.lease.0,
                    generation: grant.generation.0,
                    ..InferenceOpen::default()
                };
                let end = &mut self.links.get_mut(&link)?.end;
                let stream =
                    end.open(now, method::INFERENCE, open.encode_to_vec(), Duration::from_secs(600)).ok()?;
                Some(((link, stream), Held { request, grant, provider: spec.provider_id }))
            });
            match opened {
                Some((at, held)) => drop(self.requests.open.insert(at, held)),
                None => {
                    self.admission.end(now, grant.lease);
                    self.settle(now);
                    self.requests.answered.push((request, Answered::Failed));
                }
            }
        }
    }

    pub(super) fn terminal(&mut self, link: LinkId, stream: Outgoing, terminal: &Terminal, now: Instant) {
        let Some(held) = self.requests.open.remove(&(link, stream)) else { return };
        let (request, lease) = (held.request, held.grant.lease);
        let answered = match terminal {
            Terminal::Ended { error: None, .. } => Answered::Complete,
            _ => Answered::Failed,
        };
        match terminal {
            Terminal::Ended { error, .. } => {
                let outcome = match error {
                    None => Some(Outcome::Answered),
                    Some(error) => (error.reason == ENGINE_FAILED).then_some(Outcome::Failed),
                };
                if outcome == Some(Outcome::Answered) {
                    self.admission.streaming(now, lease);
                }
                if let Some(outcome) = outcome {
                    self.admission.report(now, held.grant.avoid, lease, outcome, false);
                }
                if !self.is("a lease outlives its stream") {
                    self.admission.end(now, lease);
                }
            }
            Terminal::Lost(_) => {
                let lost = self.serving(link).filter(|_| self.admission.phase(lease).is_some());
                if let Some(serving) = lost {
                    self.admission.node_lost(now, serving.own.id, serving.own.generation);
                    self.requests.orphans.insert(lease);
                    if self.is("a broken connection frees its slots") {
                        self.admission.end(now, lease);
                    }
                }
            }
        }
        self.settle(now);
        let admission = &self.admission;
        self.requests.orphans.retain(|lease| admission.phase(*lease).is_some());
        self.requests.answered.push((request, answered));
        if self.is("an answer is told twice") {
            self.requests.answered.push((request, answered));
        }
    }

    /// Leases without a stream that a node has to confirm.
    pub(super) fn orphans(&self) -> usize {
        self.requests.orphans.iter().filter(|lease| self.admission.phase(**lease).is_some()).count()
    }

    pub(super) fn waiting_requests(&self) -> Vec<RequestId> {
        self.requests.waiting.values().copied().collect()
    }

    /// Answers that applications got.
    pub fn answered(&mut self) -> Vec<(RequestId, Answered)> {
        std::mem::take(&mut self.requests.answered)
    }

    /// What happened at admission since the last time.
    pub fn turns(&mut self) -> Vec<Turn> {
        std::mem::take(&mut self.requests.turns)
    }
}
