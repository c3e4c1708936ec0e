//! What the operations on nodes' identity take and give: name, labels, lifecycle, credential.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::{ProblemObject, ReadinessObject};

/// `node.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeListArgs {
    /// Entries a page, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub cursor: Option<String>,
    /// Decommissioned ones too.
    #[serde(default)]
    pub decommissioned: bool,
}

/// `node.rename`: one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRenameArgs {
    /// The new display name; no other node of the site may have it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

/// `node.label`: at most 32 labels a node, keys and values up to 63 characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeLabelArgs {
    /// Labels to set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Keys of labels to take away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// `node.decommission`: one node; `confirm` of the command is its name, unless it is only a preview.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeDecommissionArgs {
    /// Only say what would be lost.
    #[serde(default)]
    pub preview: bool,
    /// How long to wait for leases that are held; 600 unless said. The rest ends with an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub deadline_seconds: Option<u64>,
}

/// `node.decommission`: what is lost for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeDecommissionResult {
    /// Which.
    pub node_id: String,
    /// Its name, to be typed as the confirmation.
    pub name: String,
    /// It is done; `false` in a preview.
    pub decommissioned: bool,
    /// Models that it serves, and how many providers elsewhere serve them too.
    pub models: Vec<LostModel>,
    /// Its providers, which end.
    pub providers: Vec<String>,
    /// Requests that it holds now.
    pub leases: u64,
    /// Jobs that it holds now.
    pub jobs: u64,
    /// Deployments that lose a replica.
    pub deployments: Vec<String>,
    /// Those replicas, by their engines' names: they are unloaded first, while the node can be asked.
    #[serde(default)]
    pub replicas: Vec<String>,
}

/// A model that a node serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostModel {
    /// Its name.
    pub model: String,
    /// Providers of other nodes that can take its requests now.
    pub available_elsewhere: u32,
}

/// `node.readiness`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReadinessResult {
    /// The chosen nodes, by name.
    pub nodes: Vec<NodeReadiness>,
}

/// Whether one node can serve, and what to do if not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeReadiness {
    /// Exactly this node.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// One word for its state: `online`, `disabled`, ...
    pub state: String,
    /// No check failed.
    pub ready: bool,
    /// Each check with its next step.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub checks: Vec<ReadinessObject>,
    /// What is wrong with it.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub problems: Vec<ProblemObject>,
}

/// `node.credential.approve`: lets a node in whose certificate is newer than the backup that the edge was restored from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CredentialApproveArgs {
    /// SHA-256 of the public key, 64 hexadecimal digits, as the site's problem names it.
    #[schemars(length(equal = 64))]
    pub key_sha256: String,
}

/// `node.credential.rotate`, `node.credential.revoke`, `node.credential.approve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CredentialsResult {
    /// Each chosen node.
    pub nodes: Vec<CredentialOutcome>,
}

/// What became of one node's credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CredentialOutcome {
    /// Which.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Something was changed (in a dry run: would be).
    pub changed: bool,
    /// It may not connect before people enable it: what was decided about it was lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// A new certificate is asked for and not yet shown. A node that is away gets one when it connects.
    pub rotating: bool,
    /// When it was revoked.
    #[schemars(with = "Option<String>")]
    pub revoked_at: Option<Timestamp>,
    /// End of the certificate in use.
    #[schemars(with = "String")]
    pub not_after: Timestamp,
    /// It is in force and not on disk, which takes no writes: it is written as soon as that works again, and lost if
    /// the edge restarts before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_durable: bool,
}
