//! What a request holds: a place in a queue, then a slot.
//!
//! Invariant: dropped in whatever way, each gives back what it held, exactly once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use umbel_wire::{Error, Generation, Open, OutgoingStream, Terminal};

use super::{Avoid, Dispatch, Granted, LeaseId, Link, Outcome, Refusal, RefusalReason, Ticket};
use crate::core::admission::Grant;

/// A request in its model's queue. Dropping it withdraws the request.
#[must_use]
pub(crate) struct Waiting {
    dispatch: Arc<Dispatch>,
    ticket: Ticket,
    woken: oneshot::Receiver<Result<Granted, Refusal>>,
    done: bool,
}

impl Waiting {
    pub(super) fn new(
        dispatch: &Arc<Dispatch>,
        ticket: Ticket,
        woken: oneshot::Receiver<Result<Granted, Refusal>>,
    ) -> Self {
        Self { dispatch: Arc::clone(dispatch), ticket, woken, done: false }
    }
}

impl Future for Waiting {
    type Output = Result<Slot, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.woken).poll(cx));
        self.done = true;
        Poll::Ready(match result {
            Ok(Ok((grant, link))) => Ok(Slot::new(&self.dispatch, grant, link)),
            Ok(Err(refusal)) => Err(refusal),
            // The edge is going down.
            Err(_) => Err(Refusal { reason: RefusalReason::NoneWanted, retry_after: None }),
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let ticket = self.ticket;
        self.dispatch.change(|state, _| {
            state.waiting.remove(&ticket);
            state.admission.withdraw(ticket);
        });
        if let Ok(Ok((grant, _))) = self.woken.try_recv() {
            self.dispatch.end(grant.lease);
        }
    }
}

/// How far the use of a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// No stream was opened: the lease ends with the slot.
    Unused,
    /// A stream is open: the lease ends with its terminal frame, also long after the slot is dropped.
    Open,
    /// The terminal frame came.
    Ended,
}

/// A slot of a provider. Dropping it gives the slot back: at once if it was not used, else with the terminal
/// frame that follows the stream's reset.
#[must_use]
pub(crate) struct Slot {
    dispatch: Arc<Dispatch>,
    grant: Grant,
    link: Arc<Link>,
    usage: Use,
    reported: bool,
    /// Told as standing still: its time-out was counted then.
    stalled: bool,
}

impl Slot {
    pub(super) fn new(dispatch: &Arc<Dispatch>, grant: Grant, link: Arc<Link>) -> Self {
        Self {
            dispatch: Arc::clone(dispatch),
            grant,
            link,
            usage: Use::Unused,
            reported: false,
            stalled: false,
        }
    }

    /// The lease, as the node must name it.
    pub(crate) fn lease(&self) -> LeaseId {
        self.grant.lease
    }

    /// The generation that the lease was given under.
    pub(crate) fn generation(&self) -> Generation {
        self.grant.generation
    }

    /// The provider.
    pub(crate) fn provider_id(&self) -> &Arc<str> {
        &self.link.provider_id
    }

    /// The model's name as the engine knows it.
    pub(crate) fn model(&self) -> &str {
        &self.link.model
    }

    /// To be passed over by a second try.
    pub(crate) fn avoid(&self) -> Avoid {
        self.grant.avoid
    }

    /// How long the request waited for it.
    pub(crate) fn waited(&self) -> Duration {
        self.grant.waited
    }

    /// Tokens that the request's prompt is estimated to have.
    pub(crate) fn estimated_tokens(&self) -> u64 {
        self.grant.estimated_tokens
    }

    /// The request takes one of the provider's long slots.
    pub(crate) fn is_long(&self) -> bool {
        self.grant.long
    }

    /// The request goes where its prefix was seen last.
    pub(crate) fn has_affinity(&self) -> bool {
        self.grant.affinity
    }

    /// How the try goes, as far as the provider is to blame: what follows its head, or the want of one. Not told: a client
    /// that left.
    pub(crate) fn report(&mut self, outcome: Outcome) {
        if outcome == Outcome::Stalled && self.stalled {
            return;
        }
        let before = std::mem::replace(&mut self.reported, true);
        let grant = self.grant;
        self.dispatch.change(|state, now| {
            state.admission.report(now, grant.avoid, grant.lease, outcome, before);
        });
    }

    /// The answer stands still, for much longer than it did before.
    pub(crate) fn stalls(&mut self) {
        self.stalled = true;
        self.dispatch.change(|state, now| state.admission.stalled(now, self.grant.lease));
    }

    /// It goes on.
    pub(crate) fn goes_on(&mut self) {
        self.stalled = false;
        self.dispatch.change(|state, now| state.admission.goes_on(now, self.grant.lease));
    }

    /// Opens the request's stream on the provider's connection.
    ///
    /// # Errors
    /// If the connection takes no stream now: nothing was sent, and another provider may be tried.
    pub(crate) fn open(&mut self, open: Open) -> Result<OutgoingStream, Error> {
        let dispatch = Arc::clone(&self.dispatch);
        let lease = self.grant.lease;
        let (node_id, generation) = (self.link.node_id, self.grant.generation);
        let stream = self.link.connection.open(open, move |terminal| match terminal {
            Terminal::Ended { .. } => dispatch.end(lease),
            // Before anybody is given a slot that the other streams of the lost connection free.
            Terminal::Lost(_) => dispatch.lost_with(lease, node_id, generation),
        })?;
        self.usage = Use::Open;
        Ok(stream)
    }

    /// The engine's head arrived. What it says of the provider is told with it, since a stream may take minutes; what
    /// breaks the answer afterwards is reported as well.
    pub(crate) fn streaming(&mut self, now: Instant, outcome: Outcome) {
        let before = std::mem::replace(&mut self.reported, true);
        let grant = self.grant;
        self.dispatch.apply(|state| {
            state.admission.streaming(now, grant.lease);
            state.admission.report(now, grant.avoid, grant.lease, outcome, before);
        });
    }

    /// The stream's terminal was seen: nothing is left to give back.
    pub(crate) fn ended(&mut self) {
        self.usage = Use::Ended;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let lease = self.grant.lease;
        match self.usage {
            Use::Unused => self.dispatch.end(lease),
            Use::Open => self.dispatch.change(|state, now| state.admission.resetting(now, lease)),
            Use::Ended => {}
        }
    }
}
