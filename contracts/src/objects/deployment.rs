//! What the operator API says of deployments, their replicas, and engines.
//!
//! Invariant: a deployment's state follows from its replicas and from what is wanted; where it is not `ready` its sentence
//! says why, and what to do where people have to.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fleet::timestamp;
use crate::proto::control;

/// How a deployment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeploymentState {
    /// All wanted replicas are ready, as the document says.
    Ready,
    /// Replicas come up.
    Loading,
    /// Replicas are replaced by those of a newer document or of a restart.
    Changing,
    /// Fewer replicas are ready than wanted, and nothing more can be done now.
    Degraded,
    /// Every replica has failed and was given up.
    Failed,
    /// None fits anywhere.
    Unplaced,
    /// Replicas go.
    Unloading,
    /// None is wanted.
    Unloaded,
    /// It goes.
    Deleting,
    /// A word of a newer edge.
    #[serde(other)]
    Other,
}

impl DeploymentState {
    /// Its spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Loading => "loading",
            Self::Changing => "changing",
            Self::Degraded => "degraded",
            Self::Failed => "failed",
            Self::Unplaced => "unplaced",
            Self::Unloading => "unloading",
            Self::Unloaded => "unloaded",
            Self::Deleting => "deleting",
            Self::Other => "other",
        }
    }

    /// From the wire's number.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        use control::DeploymentState as Number;
        match Number::try_from(number).unwrap_or_default() {
            Number::Ready => Self::Ready,
            Number::Loading => Self::Loading,
            Number::Changing => Self::Changing,
            Number::Degraded => Self::Degraded,
            Number::Failed => Self::Failed,
            Number::Unplaced => Self::Unplaced,
            Number::Unloading => Self::Unloading,
            Number::Unloaded => Self::Unloaded,
            Number::Deleting => Self::Deleting,
            Number::Unspecified => Self::Other,
        }
    }

    /// Whether it stays so unless something happens.
    #[must_use]
    pub const fn is_at_rest(self) -> bool {
        matches!(self, Self::Ready | Self::Degraded | Self::Failed | Self::Unplaced | Self::Unloaded)
    }
}

/// A deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentObject {
    /// Its name.
    pub name: String,
    /// The model's name for applications.
    pub model: String,
    /// Other names of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// The engine's kind.
    pub engine_kind: String,
    /// How it stands.
    pub state: DeploymentState,
    /// Why, in one sentence; empty if it is ready.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Replicas that are wanted now.
    pub wanted: u32,
    /// Replicas that take requests.
    pub ready: u32,
    /// Grows with each document that says something else.
    pub version: u64,
    /// SHA-256 of the document in its canonical form.
    pub digest: String,
    /// Nothing is begun for it and nothing taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// No replica is wanted until it is loaded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unloaded: bool,
    /// When it was first applied.
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    /// When its document was applied.
    #[schemars(with = "String")]
    pub applied_at: Timestamp,
    /// By whom.
    pub applied_by: String,
    /// Since when it has fewer replicas than it wants and cannot place more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub unplaced_since: Option<Timestamp>,
    /// Its replicas, by number.
    pub replicas: Vec<ReplicaObject>,
    /// The document; only in `deployment.show` and where it was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Map<String, Value>>,
}

impl DeploymentObject {
    /// From the wire, without its document.
    #[must_use]
    pub fn from_proto(said: control::DeploymentSnapshot) -> Self {
        Self {
            name: said.name,
            model: said.model,
            aliases: said.aliases,
            engine_kind: said.engine_kind,
            state: DeploymentState::from_number(said.state),
            message: said.message,
            wanted: said.wanted,
            ready: said.ready,
            version: said.version,
            digest: said.digest,
            paused: said.paused,
            unloaded: said.unloaded,
            created_at: timestamp(said.created_at_unix_ms),
            applied_at: timestamp(said.applied_at_unix_ms),
            applied_by: said.applied_by,
            unplaced_since: when(said.unplaced_since_unix_ms),
            replicas: said.replicas.into_iter().map(ReplicaObject::from_proto).collect(),
            document: None,
        }
    }
}

/// A time of the wire that is 0 where there is none.
fn when(unix_ms: i64) -> Option<Timestamp> {
    (unix_ms > 0).then(|| timestamp(unix_ms))
}

/// A replica of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaObject {
    /// Its engine's name: `qwen3.r1`.
    pub engine: String,
    /// From 1.
    pub number: u32,
    /// Where it is.
    pub node_id: String,
    /// The node's name.
    pub node: String,
    /// GPUs that it has, by UUID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// `acquiring`, `loading`, `ready`, `stopped`, `draining`, `unloading`, `failed` or `lost`.
    pub state: String,
    /// When the state began.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Why it is so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// The document's version that it was last loaded with.
    pub version: u64,
    /// It runs something else than the document says, and will be replaced.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outdated: bool,
    /// Failures one after another.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failures: u32,
    /// When a failed one is tried again; absent if it is given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub retry_at: Option<Timestamp>,
    /// What is done for it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<ReplicaJobObject>,
}

impl ReplicaObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::ReplicaSnapshot) -> Self {
        Self {
            engine: said.engine,
            number: said.number,
            node_id: said.node_id,
            node: said.node_name,
            gpus: said.gpu_uuids,
            state: said.state,
            since: timestamp(said.since_unix_ms),
            cause: said.cause,
            version: said.version,
            outdated: said.outdated,
            failures: said.failures,
            retry_at: when(said.retry_at_unix_ms),
            job: said.job.map(ReplicaJobObject::from_proto),
        }
    }
}

/// What is done for a replica now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaJobObject {
    /// `job.show` tells more.
    pub job_id: String,
    /// `acquire`, `load`, `drain` or `unload`.
    pub kind: String,
    /// One word; empty before its node has begun.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// One sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// So much of `total`.
    #[serde(default)]
    pub done: u64,
    /// 0: not known.
    #[serde(default)]
    pub total: u64,
    /// Of `done` and `total`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
}

impl ReplicaJobObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::ReplicaJob) -> Self {
        let step = said.step.unwrap_or_default();
        Self {
            job_id: said.job_id,
            kind: said.kind,
            phase: step.phase,
            message: step.message,
            done: step.done,
            total: step.total,
            unit: step.unit,
        }
    }
}

/// Deployments of a site in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentFiguresObject {
    /// All of them.
    pub total: u32,
    /// Of them: fewer replicas take requests than are wanted.
    pub short: u32,
    /// Replicas that are wanted now, of all.
    pub replicas_wanted: u32,
    /// Replicas that take requests.
    pub replicas_ready: u32,
    /// Replicas that failed and are tried again later, or were given up.
    pub replicas_failed: u32,
    /// Why lost replicas are not replaced now; absent if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Those that are short first, then by name: as many as there was room for.
    #[serde(default)]
    pub listed: Vec<DeploymentSummaryObject>,
}

impl DeploymentFiguresObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::DeploymentFigures) -> Self {
        Self {
            total: said.total,
            short: said.short,
            replicas_wanted: said.replicas_wanted,
            replicas_ready: said.replicas_ready,
            replicas_failed: said.replicas_failed,
            held: super::site::some(said.held),
            listed: said.listed.into_iter().map(DeploymentSummaryObject::from_proto).collect(),
        }
    }
}

/// A deployment in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentSummaryObject {
    /// Its name.
    pub name: String,
    /// The model's name for applications.
    pub model: String,
    /// How it stands.
    pub state: DeploymentState,
    /// Replicas that are wanted now.
    pub wanted: u32,
    /// Replicas that take requests.
    pub ready: u32,
}

impl DeploymentSummaryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::DeploymentSummary) -> Self {
        Self {
            name: said.name,
            model: said.model,
            state: DeploymentState::from_number(said.state),
            wanted: said.wanted,
            ready: said.ready,
        }
    }
}

/// An engine on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineObject {
    /// Its name on its node.
    pub engine: String,
    /// NODE_ID/ENGINE.
    pub provider_id: String,
    /// Where it is.
    pub node_id: String,
    /// The node's name.
    pub node: String,
    /// Its kind.
    pub kind: String,
    /// The model that it serves.
    pub model: String,
    /// The deployment that it is of; absent if the node's own file declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// Which replica of it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
    /// Requests at once that it is declared with.
    #[serde(default)]
    pub capacity: u32,
    /// `ready`, `loading`, `failed`, ...; `unavailable` if it runs and is given no work, `unknown` while its node is away.
    pub state: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// Since when, by the node's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// For how long, when it was told: no clock but one counts in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// Requests that it works on, as its node counts.
    pub in_flight: u32,
    /// How often its process was started anew.
    pub restarts: u32,
    /// What the cause is an instance of: `CRASH_LOOP`, `OUT_OF_MEMORY`; absent if it has no name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// How its last process ended, if one did: its exit status, or the signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_status: Option<i32>,
    /// The signal that ended its last process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_signal: Option<u32>,
    /// When the process that runs was started, by the node's clock; absent if none runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub process_since: Option<Timestamp>,
    /// For how long it runs, when it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_age_ms: Option<u64>,
    /// Of the profile that it was started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile_digest: Option<String>,
    /// GPUs that it was given, by UUID.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<String>,
    /// The last lines of its output when it failed; only in `engine.show`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output_tail: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
