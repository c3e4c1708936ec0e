//! The nodes of a site while replicas are given places one after the other.
//!
//! Owns what is worked out of each node once and not for each replica, and what a plan takes away. Leaves the choice to
//! [`super::choose`]. Invariant: a node's load is what its candidate says, also after a plan took something of it; a plan is
//! the one that [`super::plan`] finds among the same nodes.

use std::collections::HashMap;

use umbel_wire::NodeId;

use super::candidate::{Candidate, Condition};
use super::check::Ask;
use super::request::Request;
use super::{Plan, choose};

/// What of a node is in use and what is not, whatever is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// No requests go to it yet.
    pub(super) waits: bool,
    /// A GPU of it is held.
    pub(super) held: bool,
    /// It has files, or they are on their way.
    pub(super) files: bool,
    /// GPUs that nobody holds and that can be used.
    pub(super) idle: u64,
    /// Memory of the smallest of them; as much as there can be where there is none.
    pub(super) smallest: u64,
    pub(super) engines: u64,
    /// The host's memory that nobody uses; 0: it does not say.
    pub(super) free_memory: u64,
}

impl Load {
    pub(super) fn of(node: &Candidate) -> Self {
        let free = || node.gpus.iter().filter(|gpu| gpu.holder.is_none() && gpu.condition == Condition::Ok);
        Self {
            waits: !node.eligible,
            held: node.gpus.iter().any(|gpu| gpu.holder.is_some()),
            files: !node.artifacts.is_empty(),
            idle: free().map(|_| 1).sum(),
            smallest: free().map(|gpu| gpu.memory_bytes).min().unwrap_or(u64::MAX),
            engines: u64::try_from(node.engines.len()).unwrap_or(u64::MAX),
            free_memory: node.free_memory_bytes.unwrap_or(0),
        }
    }

    /// Whether it is worth asking further: it has as many free GPUs as are wanted, or some that count as free.
    pub(super) fn may_fit(&self, request: &Request) -> bool {
        self.idle >= u64::from(request.gpus.count) || !request.displaces.is_empty()
    }
}

/// The nodes, in the order given.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    nodes: Vec<Candidate>,
    loads: Vec<Load>,
    places: HashMap<NodeId, usize>,
}

impl Fleet {
    pub(crate) fn of(nodes: Vec<Candidate>) -> Self {
        let loads = nodes.iter().map(Load::of).collect();
        let places = nodes.iter().enumerate().map(|(place, node)| (node.id, place)).collect();
        Self { nodes, loads, places }
    }

    pub(crate) fn nodes(&self) -> &[Candidate] {
        &self.nodes
    }

    /// The best place for one more replica; `None` if it fits nowhere.
    pub(crate) fn plan(&self, request: &Request) -> Option<Plan> {
        choose::plan_among(&Ask::new(request), self.nodes.iter().zip(self.loads.iter().copied()))
    }

    /// Gives a plan's GPUs, files and space away, with a place among the engines, so that the next replica of the same round
    /// does not get them too.
    pub(crate) fn take(&mut self, plan: &Plan, request: &Request, holder: &str) {
        for shard in &plan.shards {
            let place = self.places.get(&shard.node).copied();
            let Some((place, node)) = place.and_then(|at| Some((at, self.nodes.get_mut(at)?))) else {
                continue;
            };
            for gpu in node.gpus.iter_mut().filter(|gpu| shard.gpus.contains(&gpu.uuid)) {
                gpu.holder = Some(holder.to_owned());
            }
            node.engines.insert(holder.to_owned());
            if let Some(artifact) = request.artifact.as_ref().filter(|_| shard.acquire)
                && node.artifacts.insert(artifact.key.clone())
                && let Some(room) = &mut node.room
            {
                room.free_bytes = room.free_bytes.saturating_sub(artifact.bytes);
            }
            if let Some(load) = self.loads.get_mut(place) {
                *load = Load::of(node);
            }
        }
    }
}
