//! What is stored of deployments and their replicas.
//!
//! Invariant: a row says everything that a later process needs to go on; a field that is added has a default.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use umbel_contracts::deployment::{DeploymentSpec, EngineKind};
use umbel_wire::NodeId;

use crate::core::jobs::FilesAt;

/// What is wanted: table `deployments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeploymentRow {
    pub(crate) spec: DeploymentSpec,
    /// Grows with each document that says something else.
    pub(crate) version: u64,
    /// What engines are started as, as the edge that took the document names it: a later one that would name it otherwise
    /// restarts nothing.
    pub(crate) engine_digest: String,
    pub(crate) created_at_unix_ms: i64,
    pub(crate) applied_at_unix_ms: i64,
    /// Who applied the document.
    #[serde(default)]
    pub(crate) applied_by: String,
    /// Nothing is begun for it and nothing taken away.
    #[serde(default)]
    pub(crate) paused: bool,
    /// No replica is wanted until it is loaded again.
    #[serde(default)]
    pub(crate) unloaded: bool,
    /// It goes when its last replica has gone.
    #[serde(default)]
    pub(crate) deleting: bool,
    /// Grows with each restart that is asked for: replicas of before are replaced.
    #[serde(default)]
    pub(crate) restarts: u64,
    /// How long requests may take to end while it is unloaded; the document's deadline unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leave_ms: Option<u64>,
}

impl DeploymentRow {
    /// Replicas that are wanted now.
    pub(crate) fn wanted(&self) -> u32 {
        if self.unloaded || self.deleting { 0 } else { self.spec.replicas }
    }

    /// Whether its engines are only asked by their nodes, and not started: servers and programs that are there already.
    pub(crate) const fn is_only_asked(&self) -> bool {
        matches!(self.spec.engine.kind, EngineKind::External | EngineKind::Cli)
    }

    /// Whether a replica runs something else than it says.
    pub(crate) fn outdates(&self, replica: &ReplicaRow) -> bool {
        replica.condemned || replica.restarts < self.restarts || replica.engine_digest != self.engine_digest
    }
}

/// What names a replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ReplicaKey {
    pub(crate) deployment: String,
    /// From 1.
    pub(crate) number: u32,
}

impl ReplicaKey {
    /// The engine's name, and the row's key.
    pub(crate) fn engine(&self) -> String {
        format!("{}.r{}", self.deployment, self.number)
    }
}

/// Where a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReplicaState {
    /// Its node fetches the files.
    Acquiring,
    /// Its engine starts.
    Loading,
    /// Its engine takes requests.
    Ready,
    /// An operator stopped its engine.
    Stopped,
    /// It takes no new request.
    Draining,
    /// Its engine ends.
    Unloading,
    /// It could not be brought up, or fell over.
    Failed,
    /// Its node is offline.
    Lost,
}

impl ReplicaState {
    /// Its spelling.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Acquiring => "acquiring",
            Self::Loading => "loading",
            Self::Ready => "ready",
            Self::Stopped => "stopped",
            Self::Draining => "draining",
            Self::Unloading => "unloading",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }

    /// Whether it is on its way out.
    pub(crate) const fn goes(self) -> bool {
        matches!(self, Self::Draining | Self::Unloading)
    }

    /// Whether it is on its way up.
    pub(crate) const fn comes(self) -> bool {
        matches!(self, Self::Acquiring | Self::Loading)
    }
}

/// What a replica's job is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobKind {
    /// Fetching the files; replicas on one node share it.
    Acquire,
    /// Starting the engine, or giving one that runs other figures.
    Load,
    /// Waiting for running requests.
    Drain,
    /// Ending the engine.
    Unload,
}

/// The one job of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobRef {
    pub(crate) id: String,
    pub(crate) kind: JobKind,
    /// Of the document whose figures it gives an engine that runs; `None` for every other job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) figures: Option<u64>,
}

/// An engine that runs did not take the figures of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NotTaken {
    /// Of the document.
    pub(crate) version: u64,
    /// One after another.
    pub(crate) times: u32,
    /// When it is asked again.
    pub(crate) again_at_unix_ms: i64,
    /// An operator cancelled that: it is asked again when somebody wants it.
    #[serde(default)]
    pub(crate) cancelled: bool,
}

/// A replica: table `replicas`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReplicaRow {
    pub(crate) deployment: String,
    pub(crate) number: u32,
    /// Of the document that it was last loaded with.
    pub(crate) version: u64,
    /// What its engine was started as: another one needs a new engine.
    pub(crate) engine_digest: String,
    /// Of its files; empty for none.
    #[serde(default)]
    pub(crate) artifact: String,
    /// The deployment's restarts when it was placed.
    #[serde(default)]
    pub(crate) restarts: u64,
    /// An operator wants it replaced.
    #[serde(default)]
    pub(crate) condemned: bool,
    #[serde(with = "node_id")]
    pub(crate) node: NodeId,
    #[serde(default)]
    pub(crate) gpus: Vec<String>,
    /// The source that its download was asked of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) source: String,
    /// Where its files are on its node, as that last said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files_at: Option<FilesAt>,
    pub(crate) state: ReplicaState,
    /// When the state began.
    pub(crate) since_unix_ms: i64,
    /// Why it is so, for people.
    #[serde(default)]
    pub(crate) cause: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) job: Option<JobRef>,
    /// Failures one after another.
    #[serde(default)]
    pub(crate) failures: u32,
    /// When a failed one is tried again; `None` if it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_at_unix_ms: Option<i64>,
    /// The job by which it failed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) failed_job: Option<String>,
    /// Who cancelled the job that would have brought it up: nothing is begun for it until somebody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cancelled_by: Option<String>,
    /// When somebody asked for it last although its job was cancelled, and had not ended, or was not heard of yet: that holds
    /// nothing back. Until it gets another job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asked_at_unix_ms: Option<i64>,
    /// Nodes where it failed, the latest last.
    #[serde(default, with = "node_ids", skip_serializing_if = "Vec::is_empty")]
    pub(crate) avoid: Vec<NodeId>,
    /// Nodes where it failed for what lasts: trying again there makes no sense.
    #[serde(default, with = "node_ids", skip_serializing_if = "Vec::is_empty")]
    pub(crate) ruled_out: Vec<NodeId>,
    /// Why it failed on each of these nodes, by their ids. [`ReplicaRow::failed_on`] reads it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) causes: BTreeMap<String, String>,
    /// An operator wants it to go, and its requests may take so long; another one comes if it is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leave_ms: Option<u64>,
    /// It goes on with older figures than its document's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) not_taken: Option<NotTaken>,
}

impl ReplicaRow {
    /// What names it.
    pub(crate) fn key(&self) -> ReplicaKey {
        ReplicaKey { deployment: self.deployment.clone(), number: self.number }
    }

    /// Why it failed on this node, for people; rows of an earlier version know it of the last node only.
    pub(crate) fn failed_on(&self, node: &NodeId) -> String {
        let last = (self.node == *node && self.state == ReplicaState::Failed).then_some(&self.cause);
        match self.causes.get(&node.to_string()).or(last) {
            Some(cause) => format!("{} failed there: {cause}", self.engine()),
            None => format!("{} failed there", self.engine()),
        }
    }

    /// Nodes where it failed, each once.
    pub(crate) fn failed_at(&self) -> BTreeSet<NodeId> {
        self.avoid.iter().chain(&self.ruled_out).copied().collect()
    }

    /// The engine's name.
    pub(crate) fn engine(&self) -> String {
        self.key().engine()
    }

    /// The document whose figures its job gives an engine that runs.
    pub(crate) fn figures(&self) -> Option<u64> {
        self.job.as_ref()?.figures
    }

    /// Whether somebody asked for it after its job was cancelled.
    pub(crate) fn is_asked_after(&self, cancelled_at_unix_ms: i64) -> bool {
        self.asked_at_unix_ms.is_some_and(|asked| asked >= cancelled_at_unix_ms)
    }

    /// Whether an operator does not want its engine to take its document's figures.
    pub(crate) fn cancelled_figures(&self) -> bool {
        self.not_taken.is_some_and(|one| one.cancelled)
    }

    /// Whether it is not tried again where it was, and fits nowhere else.
    pub(crate) fn given_up(&self) -> bool {
        self.state == ReplicaState::Failed && self.retry_at_unix_ms.is_none() && self.job.is_none()
    }

    /// Whether its GPUs are not free for others.
    pub(crate) fn holds(&self) -> bool {
        self.state != ReplicaState::Failed || self.job.is_some() || !self.gpus.is_empty()
    }

    /// In another state from now on.
    pub(crate) fn turn(&mut self, state: ReplicaState, cause: impl Into<String>, now: i64) {
        if self.state != state {
            self.state = state;
            self.since_unix_ms = now;
        }
        self.cause = cause.into();
    }
}

/// A node's id as its text.
mod node_id {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use umbel_wire::NodeId;

    pub(super) fn serialize<S: Serializer>(id: &NodeId, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(id)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<NodeId, D::Error> {
        let text = String::deserialize(from)?;
        NodeId::parse(&text).map_err(|_| D::Error::custom("not a node's id"))
    }
}

/// Nodes' ids as their texts.
mod node_ids {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use umbel_wire::NodeId;

    pub(super) fn serialize<S: Serializer>(ids: &[NodeId], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(ids.iter().map(ToString::to_string))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<NodeId>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts
            .iter()
            .map(|text| NodeId::parse(text).map_err(|_| D::Error::custom("not a node's id")))
            .collect()
    }
}
