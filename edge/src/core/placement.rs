//! Where replicas can run, and why not elsewhere.
//!
//! Owns the choice of nodes and GPUs for one replica ([`plan`], of several in a row [`Fleet::plan`]), every reason against a node ([`obstacle`]), and the changes
//! that would take it away ([`remedy`]). Takes a reading of the registry ([`candidate`]) and returns what should be; leaves
//! loading to others. Invariants: a GPU is given to one replica at a time; a node is chosen only if no check has anything
//! against it, and a change is suggested only after the same checks were asked again with it; equal input in any order gives
//! equal output.

pub(crate) mod candidate;
mod check;
mod choose;
pub(crate) mod explain;
mod fleet;
pub(crate) mod obstacle;
pub(crate) mod remedy;
pub(crate) mod request;
#[cfg(test)]
mod tests;
pub(crate) mod told;

use umbel_wire::NodeId;

pub(crate) use self::candidate::Candidate;
pub(crate) use self::fleet::Fleet;
pub(crate) use self::request::Request;

/// Where one replica goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One a node, in the order of their shards; a replica of one node has one.
    pub(crate) shards: Vec<Shard>,
}

/// What one node does for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub(crate) node: NodeId,
    /// UUIDs, in the order in which its engine should see them.
    pub(crate) gpus: Vec<String>,
    /// The node lacks the files: they have to come first.
    pub(crate) acquire: bool,
}

/// Chooses nodes and GPUs for one more replica; `None` if it fits nowhere, which [`explain::explain_some`] explains.
pub(crate) fn plan(request: &Request, candidates: &[Candidate]) -> Option<Plan> {
    choose::plan(&check::Ask::new(request), candidates)
}
