//! What a node can run and which files it has, as it last said: what placement chooses by.
//!
//! Owns both in a node's stored report, so that they are known before the node is back after a restart of the edge.
//! Invariant: only the owner's generation says anything; a report that says nothing new is no change.

use serde::{Deserialize, Serialize};
use umbel_contracts::artifact;
use umbel_contracts::proto::node::{Artifact, EngineRuntime, NodeArtifacts};
use umbel_wire::{Generation, NodeId};

use super::node::Node;
use super::{Registry, StaleGeneration};
use crate::core::jobs::FilesAt;

/// An engine that a node can run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuntimeRow {
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) adapter_version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) engine_version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) digest: String,
}

/// Files of a model that are whole and in place on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ArtifactRow {
    pub(crate) repository: String,
    pub(crate) revision: String,
    pub(crate) digest: String,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) root: String,
    /// The folder's name below the root.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) files: u32,
}

impl From<EngineRuntime> for RuntimeRow {
    fn from(said: EngineRuntime) -> Self {
        Self {
            kind: said.kind,
            adapter_version: said.adapter_version,
            engine_version: said.engine_version,
            digest: said.digest,
        }
    }
}

impl From<Artifact> for ArtifactRow {
    fn from(said: Artifact) -> Self {
        Self {
            repository: said.repository,
            revision: said.revision,
            digest: said.digest,
            bytes: said.bytes,
            root: said.root,
            path: said.path,
            files: said.files,
        }
    }
}

impl ArtifactRow {
    /// Where it lies.
    pub(crate) fn at(&self) -> FilesAt {
        FilesAt { root: self.root.clone(), path: self.path.clone() }
    }

    /// By what a document means the same.
    pub(crate) fn key(&self) -> String {
        artifact::key(&self.repository, &self.revision, &self.digest)
    }
}

impl Node {
    /// A hello says all that it can run, and of artifacts as many as it has room for: where that is not all, the whole list
    /// comes soon after it.
    pub(super) fn able(&mut self, runtimes: Vec<EngineRuntime>, artifacts: Vec<Artifact>) {
        self.can_run(runtimes);
        self.report.artifacts = artifacts.into_iter().map(ArtifactRow::from).collect();
    }

    /// All kinds of engines that it can run.
    pub(super) fn can_run(&mut self, runtimes: Vec<EngineRuntime>) {
        self.report.runtimes = runtimes.into_iter().map(RuntimeRow::from).collect();
    }
}

impl<H: Clone> Registry<H> {
    /// What is in a node's artifact roots changed without a new hello: all that is there now.
    pub(crate) fn artifacts(
        &mut self,
        id: NodeId,
        generation: Generation,
        said: NodeArtifacts,
    ) -> Result<(), StaleGeneration> {
        self.current(id, generation)?;
        let artifacts: Vec<ArtifactRow> = said.artifacts.into_iter().map(ArtifactRow::from).collect();
        if self.node(&id).is_some_and(|node| node.report.artifacts != artifacts) {
            self.change(id, |node| node.report.artifacts = artifacts);
            self.unsaved.insert(id);
        }
        Ok(())
    }
}
