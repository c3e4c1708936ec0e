//! What a round is told: nodes, engines, jobs, and where something would fit.
//!
//! Owns the reconciler's words for them, which are fewer than the registry's. Invariant: what is not known is said so, and
//! nothing is concluded from it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use umbel_contracts::deployment::{DeploymentSpec, of_engine};
use umbel_wire::NodeId;

use crate::core::jobs::FilesAt;

/// Whether a node can be counted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Connected, complete, heard lately: what it reports is all there is.
    Here,
    /// Not now, or not judged yet: nothing follows from it.
    Away,
    /// Offline.
    Lost,
    /// People took it away: disabled, revoked.
    Gone,
}

/// An engine as its node reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineWord {
    /// On its way up, or up again after a crash.
    Coming,
    /// Takes requests.
    Ready,
    /// On its way down.
    Ending,
    /// Stands still by an operator's wish.
    Stopped,
    /// Its node does not try any more.
    Failed,
    /// Not said yet.
    Unknown,
}

/// An engine of a deployment on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineFact {
    pub(crate) state: EngineWord,
    pub(crate) cause: String,
    /// What it failed for may be over by itself.
    pub(crate) passes: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeFact {
    /// For people.
    pub(crate) name: String,
    pub(crate) standing: Standing,
    pub(crate) draining: bool,
    /// Requests may go to it.
    pub(crate) eligible: bool,
    /// Its engines that are some deployment's, by name.
    pub(crate) engines: BTreeMap<String, EngineFact>,
    /// GPUs that it cannot use now, since they do not answer or are gone: by UUID, with their words for people.
    pub(crate) absent_gpus: BTreeMap<String, String>,
    /// Where artifacts are that it tells of (it may have more than it can tell), by their [`key`](umbel_contracts::artifact::key).
    pub(crate) artifacts: BTreeMap<String, FilesAt>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobFact {
    /// There is none of this id: it was never stored.
    Unknown,
    /// Queued or running.
    Open,
    /// The same, and it was told to end.
    Ending,
    /// Done.
    Done,
    /// An operator cancelled it.
    Cancelled {
        /// Who.
        by: String,
        /// When.
        at_unix_ms: i64,
    },
    /// It failed, or the edge took it back.
    Failed {
        /// For people, with the engine's reason.
        message: String,
        /// Whether trying it there again makes sense: what it failed for may be over by itself.
        retryable: bool,
        /// The engine there runs as something else, and goes on as what is wanted only once it was ended.
        differs: bool,
    },
}

/// All that a round is told.
#[derive(Debug)]
pub(crate) struct Facts {
    /// Every node of the site that is no tombstone.
    pub(crate) nodes: BTreeMap<NodeId, NodeFact>,
    /// Of every job that [`super::Deployments::jobs`] names.
    pub(crate) jobs: BTreeMap<String, JobFact>,
    /// Where the files are that those of them brought which are done.
    pub(crate) brought: BTreeMap<String, FilesAt>,
    pub(crate) now: Instant,
    pub(crate) wall: i64,
    /// Numbers that engines on nodes have, by deployment: looked for once for all deployments.
    numbers: BTreeMap<String, BTreeSet<u32>>,
}

impl Facts {
    pub(crate) fn new(
        nodes: BTreeMap<NodeId, NodeFact>,
        jobs: BTreeMap<String, JobFact>,
        now: Instant,
        wall: i64,
    ) -> Self {
        let mut numbers: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for engine in nodes.values().flat_map(|node| node.engines.keys()) {
            if let Some((deployment, number)) = of_engine(engine) {
                numbers.entry(deployment.to_owned()).or_default().insert(number);
            }
        }
        Self { nodes, jobs, brought: BTreeMap::new(), now, wall, numbers }
    }

    pub(super) fn job(&self, id: &str) -> &JobFact {
        self.jobs.get(id).unwrap_or(&JobFact::Unknown)
    }

    /// Whether a job may still come to something, or was never stored.
    pub(super) fn pends(&self, id: &str) -> bool {
        matches!(self.job(id), JobFact::Open | JobFact::Ending | JobFact::Unknown)
    }

    pub(super) fn standing(&self, node: &NodeId) -> Standing {
        self.nodes.get(node).map_or(Standing::Gone, |node| node.standing)
    }

    pub(super) fn draining(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.draining)
    }

    /// Whether requests may go to a node.
    pub(super) fn eligible(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.eligible)
    }

    /// The first GPU of a replica that its node cannot use now.
    pub(super) fn absent_gpu(&self, node: &NodeId, gpus: &[String]) -> Option<&String> {
        let absent = &self.nodes.get(node)?.absent_gpus;
        gpus.iter().find_map(|gpu| absent.get(gpu))
    }

    /// Numbers of a deployment that engines on its nodes have, whoever wants them.
    pub(super) fn numbers(&self, deployment: &str) -> BTreeSet<u32> {
        self.numbers.get(deployment).cloned().unwrap_or_default()
    }

    pub(super) fn engine(&self, node: &NodeId, engine: &str) -> Option<&EngineFact> {
        self.nodes.get(node)?.engines.get(engine)
    }

    pub(super) fn name(&self, node: &NodeId) -> String {
        self.nodes.get(node).map_or_else(|| node.to_string(), |fact| fact.name.clone())
    }
}

/// A replica that looks for a place.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) spec: &'a DeploymentSpec,
    pub(crate) engine: String,
    /// Its deployment's other replicas by node.
    pub(crate) placed: BTreeMap<NodeId, u32>,
    /// Nodes that are not to be used, and why.
    pub(crate) avoid: BTreeMap<NodeId, String>,
    /// Engines whose GPUs count as free.
    pub(crate) displaces: BTreeSet<String>,
}

/// Where a replica fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: NodeId,
    pub(crate) gpus: Vec<String>,
}

/// Says where a replica fits.
pub(crate) trait Places {
    /// The best place, which stays free.
    ///
    /// # Errors
    /// Why there is none, in one sentence for people.
    fn place(&mut self, wanted: &Wanted<'_>) -> Result<Place, String>;

    /// Whether a document lets its replicas run on a node, whatever else is said of it; a node that is not known is not judged.
    fn selects(&self, _spec: &DeploymentSpec, _node: &NodeId) -> bool {
        true
    }

    /// A place is used from now on by this engine.
    fn take(&mut self, place: &Place, wanted: &Wanted<'_>);
}
