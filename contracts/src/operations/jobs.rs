//! Operations on jobs, and those whose work is a job: what they take and give.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::objects::{JobObject, JobState};

/// Nodes of one operation that gives each a job.
pub const JOBS_AT_ONCE: usize = 64;

/// `job.list`: every condition must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobListArgs {
    /// Only in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    /// Only those that have not ended (`true`) or that have (`false`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<bool>,
    /// Only of this kind: `artifact.acquire`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub kind: Option<String>,
    /// Only this one's: `deployment/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub owner: Option<String>,
    /// Jobs a page, at most 1,000; 100 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub cursor: Option<String>,
}

/// `job.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobListResult {
    /// Newest first, without their reports.
    pub jobs: Vec<JobObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `job.show`, `job.cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JobArgs {
    /// Which.
    #[schemars(length(min = 36, max = 36))]
    pub job_id: String,
}

/// `runtime.health`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeHealthArgs {
    /// Only this engine; absent: every engine of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub engine: Option<String>,
}

/// `runtime.probe`: exactly one of `deployment` and `document`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeProbeArgs {
    /// The name of a deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40))]
    pub deployment: Option<String>,
    /// A whole document as `deployment.apply` takes it; it need not be applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Map<String, Value>>,
    /// What the engine is asked to go on with; a fixed sentence unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub input: Option<String>,
    /// Tokens of its answer; 32 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub answer_tokens: Option<u32>,
    /// For start and answer together; what the node allows an engine's start, and five minutes, unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub timeout_seconds: Option<u64>,
}

/// `runtime.unload`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeUnloadArgs {
    /// Its name on the chosen node.
    #[schemars(length(min = 1, max = 128))]
    pub engine: String,
    /// How long running requests may take before its process ends; none unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub deadline_seconds: Option<u64>,
}

/// What was begun: a job a node. Follow them with `job.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobsResult {
    /// One a node.
    pub jobs: Vec<JobObject>,
}
