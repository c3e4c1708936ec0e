//! What admission knows of a provider, and when it may be given work.
//!
//! Owns the specification, the reported state and the counts of a provider, and the room it has in its model's pool.
//! Leaves the node's part (ready, draining, eligible) to [`super::node`], whether it is passed over to
//! [`super::outliers`], and the choice between providers to [`super::choice`].

use std::sync::Arc;

use umbel_wire::ids::{Generation, NodeId};

use super::outliers::{Health, Standing};
use super::pool::{Room, TRY_NEXT, load};
use super::words::ModelIndex;

/// What kind of thing serves a provider's model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Category {
    /// An engine on the node.
    #[default]
    LocalInference,
    /// An API endpoint that the node reaches.
    Api,
    /// A command-line tool.
    Cli,
}

/// One engine on one node serving one model, as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProviderSpec {
    /// `NODE_ID/NAME`.
    pub(crate) provider_id: Arc<str>,
    /// The node it is on.
    pub(crate) node_id: NodeId,
    /// The model's name as the engine knows it.
    pub(crate) model: String,
    /// Other names for the same model.
    pub(crate) aliases: Vec<String>,
    /// What serves it.
    pub(crate) category: Category,
    /// Requests at once.
    pub(crate) capacity: u32,
    /// Largest prompt in tokens; 0 is unknown.
    pub(crate) max_context_tokens: u32,
    /// From how many estimated prompt tokens a request is long; 0 means never.
    pub(crate) long_context_threshold_tokens: u32,
    /// How many of the requests at once may be long.
    pub(crate) long_context_capacity: u32,
}

/// What the node last said of a provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum ProviderState {
    /// Takes requests.
    Available,
    /// Its engine starts or loads the model.
    Loading,
    /// Finishes what it has and takes nothing new.
    Draining,
    /// The same, for as long as its node's agent ends: the next agent takes it up again, so requests wait for it.
    Leaving,
    /// Not serving now, may come back by itself.
    #[default]
    Unavailable,
    /// Given up by its node, or in conflict with another provider of the model.
    Failed,
}

/// Counts of one provider: the only ones there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// Requests at once.
    pub(crate) capacity: u32,
    /// Leases held, unconfirmed ones included.
    pub(crate) in_flight: u32,
    /// Requests at once that may be long.
    pub(crate) long_capacity: u32,
    /// Long requests in flight.
    pub(crate) long_in_flight: u32,
    /// Leases whose end the node has not confirmed in time.
    pub(crate) unconfirmed: u32,
    /// Requests waiting for which it is a candidate.
    pub(crate) queued: u32,
    /// May be given a request now, if a slot is free and it is not passed over.
    pub(crate) open: bool,
    /// It is passed over for a while, since it fails or stalls more than its peers.
    pub(crate) ejected: bool,
    /// What the node last said.
    pub(crate) state: ProviderState,
}

#[derive(Debug)]
pub(super) struct Provider {
    pub(super) spec: ProviderSpec,
    pub(super) model: ModelIndex,
    pub(super) state: ProviderState,
    /// Of the node's connection that reported it; `None` while the node is away.
    pub(super) generation: Option<Generation>,
    pub(super) in_flight: u32,
    pub(super) long_in_flight: u32,
    pub(super) unconfirmed: u32,
    /// How its tries went, and whether it is passed over for it.
    pub(super) health: Health,
    /// Its place in its model's pool.
    pub(super) seat: usize,
    /// May be given work: node ready, eligible and not draining, and the state is `Available`.
    pub(super) open: bool,
    /// Counts as a wanted replica of its model.
    pub(super) wanted: bool,
    /// Wanted and on its way: its model's waiters get the longer time.
    pub(super) loading: bool,
    /// Grows each time it opens: whoever was told to avoid it may try it again then.
    pub(super) opened: u32,
    /// No longer declared; kept until its leases have ended.
    pub(super) gone: bool,
}

impl Provider {
    /// The longest prompt it takes, in tokens.
    pub(super) fn limit(&self) -> u64 {
        match self.spec.max_context_tokens {
            0 => u64::MAX,
            tokens => u64::from(tokens),
        }
    }

    /// It is open, and passed over.
    pub(super) fn is_ejected(&self) -> bool {
        self.open && self.health.standing != Standing::In
    }

    /// Its part in its model's pool. Lowering the capacity below what is in flight leaves no slot free.
    pub(super) fn room(&self) -> Room {
        let spec = &self.spec;
        let free = self.open && self.in_flight < spec.capacity;
        let load = match self.health.standing {
            Standing::In => Some(load(self.in_flight, spec.capacity)),
            Standing::Due { .. } => Some(TRY_NEXT),
            Standing::Out { .. } | Standing::Tried { .. } => None,
        }
        .filter(|_| free);
        let is_candidate = self.open && self.health.standing == Standing::In;
        let of_candidate = |count: u32| if is_candidate { count } else { 0 };
        Room {
            load,
            long_load: load.filter(|_| self.long_in_flight < spec.long_context_capacity),
            wanted: self.wanted,
            capacity: of_candidate(spec.capacity),
            in_flight: of_candidate(self.in_flight),
        }
    }
}
