//! Provider leases: a slot of a provider held by one request.
//!
//! Owns what a lease is and its states. Leaves granting and ending to [`super::Admission`].
//!
//! ```text
//! granted --head--> streaming --+
//!    |                          +--reset--> resetting --5 s--> unconfirmed
//!    +--------------------------+               |                  |
//!    +---- terminal frame, or generation cleared, exactly once ----+--> gone
//! ```
//!
//! One whose connection breaks beside a newer one of its node is `resetting` from then on: it ends when the node names
//! its leases without it, or with the node.

use std::time::Instant;

use umbel_wire::ids::{Generation, NodeId};

use super::{ModelIndex, ProviderIndex};

/// Names a lease at the edge and at the node. Not reused while the node can still carry an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

/// How far a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeasePhase {
    /// No head from the engine yet.
    Granted,
    /// The engine's answer flows.
    Streaming,
    /// The edge reset the stream and waits for the node's terminal frame until then.
    Resetting(Instant),
    /// The terminal frame did not come in time. The slot stays taken.
    Unconfirmed,
}

/// A slot of a provider held by one request.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) provider: ProviderIndex,
    pub(super) model: ModelIndex,
    pub(super) node: NodeId,
    pub(super) generation: Generation,
    pub(super) phase: LeasePhase,
    /// Its connection is lost beside a newer one of its node: no terminal frame can come any more.
    pub(super) orphan: bool,
}
