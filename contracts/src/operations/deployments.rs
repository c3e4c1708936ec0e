//! Operations on deployments and on engines.
//!
//! Owns their arguments and results. Leaves the document to [`crate::deployment`] and carrying them out to the edge.
//! Invariant: what is asked of a deployment is a wish that is stored at once; whoever wants to see it come true looks at the
//! deployment again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::deployment::DeploymentSpec;
use crate::objects::{DeploymentObject, EngineObject};

/// Lines that `engine.logs` gives at most.
pub const LOG_LINES_MAX: u32 = 2_000;

/// `deployment.apply`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentApplyArgs {
    /// The whole document.
    #[schemars(with = "DeploymentSpec")]
    pub document: Map<String, Value>,
    /// Refused unless the deployment is at this version; 0: unless there is none of its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
}

/// `deployment.show`, `deployment.load`, `deployment.delete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentArgs {
    /// Which.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
}

/// `deployment.unload` and `deployment.restart`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentReplicaArgs {
    /// Which.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// Only this replica; another one comes in its place if it is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub replica: Option<u32>,
}

/// `deployment.drain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentDrainArgs {
    /// Which.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// Only this replica; another one comes in its place if it is wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub replica: Option<u32>,
    /// How long running requests may take; the document's `drain_deadline` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub deadline_seconds: Option<u64>,
}

/// `deployment.pause`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentPauseArgs {
    /// Which.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// `false` takes a pause back.
    #[serde(default = "yes")]
    pub paused: bool,
}

const fn yes() -> bool {
    true
}

/// `deployment.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeploymentListResult {
    /// Those of this page, by name.
    pub deployments: Vec<DeploymentObject>,
    /// Why lost replicas are not replaced now; absent if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `engine.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineListResult {
    /// Those of this page, by node and name.
    pub engines: Vec<EngineObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `engine.show`: one engine by its name, and its node where the name alone is not enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineArgs {
    /// `qwen3.r1`, or NODE_ID/NAME.
    #[schemars(length(min = 1, max = 192))]
    pub engine: String,
}

/// `engine.restart` and `engine.stop`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineControlArgs {
    /// `qwen3.r1`, or NODE_ID/NAME.
    #[schemars(length(min = 1, max = 192))]
    pub engine: String,
    /// How long running requests may take before its process ends; none unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub deadline_seconds: Option<u64>,
}

/// `engine.logs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineLogsArgs {
    /// `qwen3.r1`, or NODE_ID/NAME.
    #[schemars(length(min = 1, max = 192))]
    pub engine: String,
    /// At most so many, the last ones unless there is a cursor; 200 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 2000))]
    pub lines: Option<u32>,
    /// Of an earlier answer: only what came after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub cursor: Option<String>,
}

/// `engine.logs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineLogsResult {
    /// NODE_ID/ENGINE.
    pub provider_id: String,
    /// The node's name.
    pub node: String,
    /// Its output, secrets and addresses taken out.
    pub lines: Vec<String>,
    /// Where the next question goes on.
    pub cursor: String,
    /// Lines between the cursor asked and the first one here are no longer kept.
    #[serde(default)]
    pub gap: bool,
}

/// `engine.restart` and `engine.stop`.
pub type EngineControlResult = EngineObject;
