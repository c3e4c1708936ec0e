//! Jobs as operators see them: work that one node does for its edge, with its progress and what came of it.
//!
//! Owns their shape and the conversion of a node's typed report. Leaves what a job does to the boundary of edge and node.
//! Invariant: what a node reported is shown as it said it, without place or address of its host.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EngineStateWord;
use super::fleet::timestamp;
use super::site::some;
use crate::proto::node::job_complete::Report;
use crate::proto::{control, node};

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for its node to have room.
    Queued,
    /// It was given to its node, which has not said yet that it took it.
    Leased,
    /// Its node works on it.
    Running,
    /// It came to its good end; the report says what was done.
    Succeeded,
    /// It came to nothing; the failure says why.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// A word of a newer version.
    #[serde(other)]
    Unrecognized,
}

impl JobState {
    /// From the wire's number.
    #[must_use]
    pub fn from_number(number: i32) -> Self {
        use control::JobState as Number;
        match Number::try_from(number).unwrap_or_default() {
            Number::Queued => Self::Queued,
            Number::Leased => Self::Leased,
            Number::Running => Self::Running,
            Number::Succeeded => Self::Succeeded,
            Number::Failed => Self::Failed,
            Number::Cancelled => Self::Cancelled,
            Number::Unspecified => Self::Unrecognized,
        }
    }

    /// For the wire.
    #[must_use]
    pub const fn to_proto(self) -> control::JobState {
        match self {
            Self::Queued => control::JobState::Queued,
            Self::Leased => control::JobState::Leased,
            Self::Running => control::JobState::Running,
            Self::Succeeded => control::JobState::Succeeded,
            Self::Failed => control::JobState::Failed,
            Self::Cancelled => control::JobState::Cancelled,
            Self::Unrecognized => control::JobState::Unspecified,
        }
    }

    /// Whether nothing more happens to it.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// Its spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Leased => "leased",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unrecognized => "unrecognized",
        }
    }
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobObject {
    /// Which.
    pub job_id: String,
    /// What it does: `artifact.acquire`, `deployment.load`.
    pub kind: String,
    /// What it is about: an engine, or a repository and its revision.
    pub subject: String,
    /// The node that it is bound to.
    pub node_id: String,
    /// What people call that node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Whose work it is: `deployment/NAME`; absent if a person asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Who asked for it.
    pub actor: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where it stands.
    pub state: JobState,
    /// Its attempt, from 1.
    pub attempt: u32,
    /// After so many it has failed.
    pub attempts_max: u32,
    /// Its node is asked to stop it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cancel_requested: bool,
    /// What its node said last, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgressObject>,
    /// When it was asked for.
    #[schemars(with = "String")]
    pub submitted_at: Timestamp,
    /// When its node first got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ended_at: Option<Timestamp>,
    /// Why its last attempt came to nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<JobFailureObject>,
    /// What was done; only in `job.show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<JobReportObject>,
}

impl JobObject {
    /// From the wire, without its report.
    #[must_use]
    pub fn from_proto(said: control::JobSnapshot) -> Self {
        let when = |unix_ms: i64| (unix_ms > 0).then(|| timestamp(unix_ms));
        Self {
            job_id: said.job_id,
            kind: said.kind,
            subject: said.subject,
            node_id: said.node_id,
            node_name: some(said.node_name),
            owner: some(said.owner),
            actor: said.actor,
            reason: some(said.reason),
            state: JobState::from_number(said.state),
            attempt: said.attempt,
            attempts_max: said.attempts_max,
            cancel_requested: said.cancel_requested,
            progress: said.step.map(JobProgressObject::from_step),
            submitted_at: timestamp(said.submitted_at_unix_ms),
            started_at: when(said.started_at_unix_ms),
            ended_at: when(said.ended_at_unix_ms),
            failure: said.failure.map(JobFailureObject::from_setback),
            report: None,
        }
    }
}

/// Jobs of a site that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobFiguresObject {
    /// They wait for their node to have room.
    pub queued: u32,
    /// Their node has them.
    pub running: u32,
}

impl JobFiguresObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(said: control::JobFigures) -> Self {
        Self { queued: said.queued, running: said.running }
    }
}

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobProgressObject {
    /// One word: `downloading`.
    pub phase: String,
    /// So much of `total`.
    pub done: u64,
    /// 0: not known.
    pub total: u64,
    /// Of `done` and `total`: `bytes`, `files`, `layers`.
    pub unit: String,
    /// One sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl JobProgressObject {
    /// From the wire.
    #[must_use]
    pub fn from_step(said: control::JobStep) -> Self {
        Self { phase: said.phase, done: said.done, total: said.total, unit: said.unit, message: said.message }
    }
}

/// Why an attempt came to nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobFailureObject {
    /// In capitals: `DIGEST_MISMATCH`, `PROCESS_EXITED`.
    pub code: String,
    /// What happened and what to do.
    pub message: String,
    /// The field that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Another attempt may succeed.
    pub retry: bool,
    /// The engine's last output; only in `job.show`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tail: Option<String>,
    /// How far a probe or check came; only in `job.show`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<EvidenceObject>,
}

impl JobFailureObject {
    /// From the wire's short form: without output and evidence.
    #[must_use]
    pub fn from_setback(said: control::JobSetback) -> Self {
        Self {
            code: said.code,
            message: said.message,
            path: some(said.path),
            retry: said.retry,
            output_tail: None,
            layers: Vec::new(),
        }
    }

    /// From the message of the wire.
    #[must_use]
    pub fn from_proto(said: node::JobFailure) -> Self {
        Self {
            code: said.code,
            message: said.message,
            path: Some(said.path).filter(|path| !path.is_empty()),
            retry: said.retry,
            output_tail: Some(said.output_tail).filter(|tail| !tail.is_empty()),
            layers: said.layers.into_iter().map(EvidenceObject::from_proto).collect(),
        }
    }
}

/// What was seen of one layer of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EvidenceObject {
    /// `process`, `port`, `health`, `model`, `inference`; each rests on the one before.
    pub layer: String,
    /// It is well.
    pub ok: bool,
    /// One sentence.
    pub detail: String,
    /// How long the look took.
    pub milliseconds: u64,
}

impl EvidenceObject {
    /// From the message of the wire.
    #[must_use]
    pub fn from_proto(said: node::Evidence) -> Self {
        Self { layer: said.layer, ok: said.ok, detail: said.detail, milliseconds: said.milliseconds }
    }
}

/// What a job's node did. Which fields there are depends on the job's kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobReportObject {
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub milliseconds: Option<u64>,
    /// The engine that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// `artifact.acquire`: what is in place now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<AcquiredObject>,
    /// `artifact.remove`: what is free again; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed_bytes: Option<u64>,
    /// `runtime.probe`: what was seen, layer upon layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<EvidenceObject>,
    /// `runtime.probe`: what was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredObject>,
    /// `runtime.health`, `deployment.health`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<EngineHealthObject>,
    /// `deployment.drain`: requests that still ran at the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_left: Option<u32>,
    /// `deployment.unload`, `runtime.unload`: false if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<bool>,
    /// `deployment.load`: the process that ran went on, with other figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged_process: Option<bool>,
}

/// An artifact that a job brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcquiredObject {
    /// How many files.
    pub files: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Of those, what had to be fetched.
    pub fetched_bytes: u64,
    /// What the artifact is known by.
    pub digest: String,
    /// Name of the root that it is in.
    pub root: String,
    /// The folder's name below the root.
    pub folder: String,
}

/// What a probe measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredObject {
    /// From the start of the process to ready.
    pub start_ms: u64,
    /// To the first piece of the answer.
    pub first_piece_ms: u64,
    /// Thousandths.
    pub tokens_per_second_milli: u64,
    /// At its highest.
    pub peak_memory_bytes: u64,
    /// As the engine says.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub engine_version: String,
}

/// How one engine is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineHealthObject {
    /// Which.
    pub engine: String,
    /// Its state.
    pub state: EngineStateWord,
    /// What was seen, up to the first layer that is not well.
    pub layers: Vec<EvidenceObject>,
    /// Requests that run.
    pub in_flight: u32,
}

impl EngineHealthObject {
    /// From the message of the wire.
    #[must_use]
    pub fn from_proto(said: node::EngineHealth) -> Self {
        Self {
            state: EngineStateWord::from_number(said.state),
            engine: said.engine,
            layers: said.layers.into_iter().map(EvidenceObject::from_proto).collect(),
            in_flight: said.in_flight,
        }
    }
}

impl JobReportObject {
    /// From the message of the wire.
    #[must_use]
    pub fn from_proto(report: Report) -> Self {
        let engine = |engine: String| Some(engine);
        match report {
            Report::ArtifactAcquire(report) => Self {
                milliseconds: Some(report.milliseconds),
                artifact: Some(AcquiredObject {
                    files: report.files,
                    bytes: report.bytes,
                    fetched_bytes: report.fetched_bytes,
                    digest: report.digest,
                    root: report.root,
                    folder: report.path,
                }),
                ..Self::default()
            },
            Report::ArtifactRemove(report) => {
                Self { freed_bytes: report.removed.then_some(report.freed_bytes), ..Self::default() }
            }
            Report::RuntimeProbe(report) => Self {
                layers: report.layers.into_iter().map(EvidenceObject::from_proto).collect(),
                measured: Some(MeasuredObject {
                    start_ms: report.start_ms,
                    first_piece_ms: report.first_token_ms,
                    tokens_per_second_milli: report.tokens_per_second_milli,
                    peak_memory_bytes: report.peak_memory_bytes,
                    engine_version: report.engine_version,
                }),
                ..Self::default()
            },
            Report::RuntimeHealth(report) => Self {
                engines: report.engines.into_iter().map(EngineHealthObject::from_proto).collect(),
                ..Self::default()
            },
            Report::DeploymentHealth(report) => Self {
                engines: report.health.into_iter().map(EngineHealthObject::from_proto).collect(),
                ..Self::default()
            },
            Report::RuntimeUnload(report) => Self {
                milliseconds: Some(report.milliseconds),
                engine: engine(report.engine),
                stopped: Some(report.stopped),
                ..Self::default()
            },
            Report::DeploymentLoad(report) => Self {
                milliseconds: Some(report.milliseconds),
                engine: engine(report.engine),
                unchanged_process: Some(report.unchanged_process),
                ..Self::default()
            },
            Report::DeploymentDrain(report) => Self {
                milliseconds: Some(report.milliseconds),
                engine: engine(report.engine),
                requests_left: Some(report.left),
                ..Self::default()
            },
            Report::DeploymentUnload(report) => Self {
                milliseconds: Some(report.milliseconds),
                engine: engine(report.engine),
                stopped: Some(report.stopped),
                ..Self::default()
            },
        }
    }
}
