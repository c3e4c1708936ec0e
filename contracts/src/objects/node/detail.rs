//! What a node can run, which files it has and what it does: more than a list of nodes needs.
//!
//! Each object has exactly one conversion from its message. What a node does not say is `null`, never empty.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::JobObject;
use super::super::site::some;
use crate::proto::control;

/// What a node can run, has and does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeDetailObject {
    /// Engine kinds that it can run.
    pub runtimes: Vec<RuntimeObject>,
    /// Files of models that are whole and in place.
    pub artifacts: Vec<NodeArtifactObject>,
    /// Its jobs that have not ended, the newest first.
    pub jobs: Vec<JobObject>,
}

impl NodeDetailObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::NodeDetail) -> Self {
        Self {
            runtimes: said.runtimes.into_iter().map(RuntimeObject::from_proto).collect(),
            artifacts: said.artifacts.into_iter().map(NodeArtifactObject::from_proto).collect(),
            jobs: said.jobs.into_iter().map(JobObject::from_proto).collect(),
        }
    }
}

/// An engine kind that a node can run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeObject {
    /// `vllm`, `llama-server`.
    pub kind: String,
    /// Of the installed engine; `null` if it does not say.
    pub engine_version: Option<String>,
    /// Of the engine whose option names the agent's command lines are held against.
    pub adapter_version: Option<String>,
}

impl RuntimeObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::RuntimeSummary) -> Self {
        Self {
            kind: said.kind,
            engine_version: some(said.engine_version),
            adapter_version: some(said.adapter_version),
        }
    }
}

/// Files of a model on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeArtifactObject {
    /// `Qwen/Qwen3-8B`.
    pub repository: String,
    /// The exact revision.
    pub revision: String,
    /// SHA-256 of the list of its files: what it is known by.
    pub digest: String,
    /// Of all files.
    pub bytes: u64,
    /// How many.
    pub files: u32,
    /// The name of the node's root that it is in.
    pub root: String,
    /// The folder's name below the root.
    pub folder: String,
}

impl NodeArtifactObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::ArtifactSummary) -> Self {
        Self {
            repository: said.repository,
            revision: said.revision,
            digest: said.digest,
            bytes: said.bytes,
            files: said.files,
            root: said.root,
            folder: said.folder,
        }
    }
}
