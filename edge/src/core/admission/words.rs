//! The words of admission: what is asked, granted, refused and reported.
//!
//! Owns no decision; every type here is told to or by [`super::Admission`].

use std::time::Duration;

use umbel_wire::ids::Generation;

use super::lease::LeaseId;
use super::prefix::Prefix;
use super::queue::{Class, KeyNumber, Ticket};

/// A model's place in this process. It means no other model, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelIndex(pub(crate) u32);

/// A provider's place in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProviderIndex(pub(crate) u32);

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Avoid {
    pub(super) provider: ProviderIndex,
    pub(super) opened: u32,
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
    Free,
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
    /// Its key was revoked while it waited.
    KeyRevoked,
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
