//! What the operations on the site's settings take and give.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `settings.get`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsGetArgs {
    /// A version of the history; the newest unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Also what this node's effective settings are: its id or name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub node: Option<String>,
}

/// `settings.get`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsGetResult {
    /// Which; 0 before the first change.
    pub version: u64,
    /// The document: `edge`, `agents.default`, `agents.nodes.NODE_ID`.
    pub document: serde_json::Value,
    /// Default overlaid with the node's own; `null` unless a node was named.
    pub effective: Option<serde_json::Value>,
    /// How many nodes have it, and which have not.
    pub rollout: SettingsRollout,
}

/// How far the newest version has got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsRollout {
    /// Nodes that have applied what they should have.
    pub applied: u64,
    /// Nodes that have it on trial.
    pub confirming: u64,
    /// Nodes that were not reached yet: names, at most 100.
    pub pending: Vec<String>,
    /// Nodes that refused it, at most 100.
    pub refused: Vec<SettingsRefusal>,
}

/// A node that refused its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsRefusal {
    /// Which.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// What it refused.
    pub version: u64,
    /// Why.
    pub reason: String,
}

/// `settings.set`: changes of single fields, or a whole document.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsSetArgs {
    /// Fields to change, at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<SettingsChange>,
    /// Replaces everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<serde_json::Value>,
    /// CONFLICT unless this is the newest version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_version: Option<u64>,
}

/// One field's new value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsChange {
    /// Where: `agents.default.log.level`, `agents.nodes.gpu-1.shutdown.drain`, `edge.liveness.offline`.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// The value; `null` takes the field away.
    pub value: serde_json::Value,
}

/// `settings.set` and `settings.rollback`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsChangedResult {
    /// The new version; the newest one if nothing changed.
    pub version: u64,
    /// Something was changed (in a dry run: would be).
    pub changed: bool,
    /// What is different.
    pub diff: Vec<SettingsDifference>,
    /// Nodes that get new settings.
    pub nodes: u64,
}

/// One field that differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsDifference {
    /// Where.
    pub path: String,
    /// Before; `null` if it was not set.
    pub from: serde_json::Value,
    /// After; `null` if it is not set any more.
    pub to: serde_json::Value,
}

/// `settings.history`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsHistoryResult {
    /// Newest first; the last 1,000 are kept.
    pub versions: Vec<SettingsVersion>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One version of the settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsVersion {
    /// Its number.
    pub version: u64,
    /// When it was made.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// By whom.
    pub author: String,
    /// Why, if it was said.
    pub reason: Option<String>,
    /// It was made from this older one.
    pub rolled_back_to: Option<u64>,
    /// What it changed.
    pub diff: Vec<SettingsDifference>,
}

/// `settings.diff`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsDiffArgs {
    /// The older version; the one before `to` unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u64>,
    /// The newer one; the newest unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
}

/// `settings.diff`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingsDiffResult {
    /// The older one.
    pub from: u64,
    /// The newer one.
    pub to: u64,
    /// What is different.
    pub diff: Vec<SettingsDifference>,
}

/// `settings.rollback`: a new version that says what an older one said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsRollbackArgs {
    /// Which.
    pub version: u64,
}
