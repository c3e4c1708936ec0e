//! What one replica of a deployment asks of the nodes that it runs on.
//!
//! Owns that wish, as placement reads it. Leaves the document that people write, and what is legal in it, to `contracts`.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use umbel_contracts::deployment::Strategy;
use umbel_contracts::deployment::{DeploymentSpec, Profile};
use umbel_contracts::release::Release;
use umbel_contracts::selector::{Selector, Term};
use umbel_wire::NodeId;

/// The wish of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// The deployment's name.
    pub(crate) deployment: String,
    /// What each node gives in GPUs.
    pub(crate) gpus: GpuNeed,
    /// `None`: every node will do.
    pub(crate) selector: Option<Selector>,
    /// Nodes that hold the replica together, one shard each; 0 is taken for 1.
    pub(crate) nodes: u32,
    /// The fabric label that they have to have in common, where they are several.
    pub(crate) fabric_label: String,
    /// `None`: nothing has to be installed (an endpoint that is already there).
    pub(crate) engine: Option<EngineNeed>,
    /// `None`: it needs no files.
    pub(crate) artifact: Option<ArtifactNeed>,
    pub(crate) strategy: Strategy,
    /// Its other replicas, how many on each node.
    pub(crate) placed: BTreeMap<NodeId, u32>,
    /// Nodes that must not be used now, and why.
    pub(crate) avoid: BTreeMap<NodeId, String>,
    /// Holders whose GPUs count as free, since they end before this one starts: `qwen.r1`.
    pub(crate) displaces: BTreeSet<String>,
    /// What is known of how it takes its GPUs' memory, for whoever explains it; a place is found without.
    pub(crate) memory: Memory,
}

/// What is known of how a replica takes memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// What its weights take over all its GPUs; `None`: its files do not say it.
    pub(crate) weights_bytes: Option<u64>,
    /// It is divided over as many GPUs as it gets.
    pub(crate) divides: bool,
    /// The most that one of its engines holds of one GPU now.
    pub(crate) measured_bytes: Option<u64>,
}

impl Memory {
    /// What a document says of it.
    pub(crate) fn of(spec: &DeploymentSpec) -> Self {
        let profile = spec.profile().ok();
        let copies = profile.as_ref().and_then(Profile::copies);
        let files = spec.artifact.iter().flat_map(|artifact| &artifact.files);
        let weights = files.filter(|file| is_weights(&file.path)).map(|file| file.bytes);
        let weights = weights.fold(0, u64::saturating_add);
        Self {
            weights_bytes: copies
                .map(|copies| weights.saturating_mul(copies.into()))
                .filter(|weights| *weights > 0),
            divides: profile.as_ref().is_some_and(Profile::divides),
            measured_bytes: None,
        }
    }
}

/// Whether an engine reads weights out of a file, judged by its name.
fn is_weights(path: &str) -> bool {
    const ENDINGS: [&str; 5] = [".safetensors", ".gguf", ".bin", ".pt", ".pth"];
    ENDINGS.iter().any(|ending| path.ends_with(ending))
}

/// What one node gives to a replica in GPUs. A GPU belongs to one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuNeed {
    /// 0: none is needed.
    pub(crate) count: u32,
    /// Memory that each must have beside what foreign processes hold; 0: all of it, whatever its size.
    pub(crate) memory_bytes: u64,
    /// Patterns of which a GPU's name must match one; none: any.
    pub(crate) names: Vec<String>,
    /// Least CUDA compute capability.
    pub(crate) capability: Option<Release>,
    /// Least version of the driver.
    pub(crate) driver: Option<Release>,
}

/// The engine that has to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineNeed {
    /// As a node names it in its hello: `vllm`.
    pub(crate) kind: String,
    /// Its least version.
    pub(crate) version: Option<Release>,
}

/// The files that have to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArtifactNeed {
    /// As [`umbel_contracts::artifact::key`] writes it.
    pub(crate) key: String,
    /// For people: `org/model@revision`.
    pub(crate) name: String,
    /// Size of all files.
    pub(crate) bytes: u64,
}

impl From<&DeploymentSpec> for Request {
    /// From a document that passed its check. Which replicas it has, and where it must not go, whoever asks adds.
    fn from(spec: &DeploymentSpec) -> Self {
        let version = |text: &Option<String>| text.as_deref().and_then(Release::found);
        let gpus = &spec.gpus;
        Self {
            deployment: spec.name.clone(),
            gpus: GpuNeed {
                count: gpus.count,
                memory_bytes: gpus.memory_bytes.unwrap_or(0),
                names: gpus.names.clone(),
                capability: version(&gpus.capability),
                driver: version(&gpus.driver),
            },
            selector: spec.selector.as_deref().and_then(|text| Selector::parse(text).ok()),
            nodes: spec.nodes_per_replica,
            fabric_label: spec.fabric_label.clone().unwrap_or_default(),
            engine: Some(EngineNeed { kind: spec.engine.kind.as_str().to_owned(), version: None }),
            artifact: spec.artifact.as_ref().map(|artifact| ArtifactNeed {
                key: artifact.key(),
                name: format!("{}@{}", artifact.repository, artifact.revision),
                bytes: artifact.bytes(),
            }),
            strategy: spec.strategy,
            ..Self::default()
        }
    }
}

impl Request {
    /// Over how many nodes one replica goes.
    pub(crate) fn shards(&self) -> usize {
        usize::try_from(self.nodes.max(1)).unwrap_or(usize::MAX)
    }

    /// What the weights take of each GPU, if it were so many on so many nodes; rounded up.
    pub(crate) fn weights_on_each(&self, gpus: u32, nodes: u32) -> Option<u64> {
        let gpus = u64::from(gpus).saturating_mul(nodes.max(1).into());
        self.memory.weights_bytes.filter(|_| gpus > 0).map(|all| all.div_ceil(gpus))
    }

    /// GPUs that each node gives.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.gpus.count).unwrap_or(usize::MAX)
    }

    /// The selector's conditions that say something.
    pub(crate) fn terms(&self) -> impl Iterator<Item = &Term> {
        self.selector.iter().flat_map(Selector::terms).filter(|term| **term != Term::All)
    }

    /// Whether a holder's GPUs count as free.
    pub(crate) fn displaces(&self, holder: &str) -> bool {
        !self.displaces.is_empty() && self.displaces.contains(holder)
    }
}
