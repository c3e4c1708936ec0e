//! Operations on artifacts: what they take and give. Bringing one to a node and taking it away are jobs of that node.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::deployment::ArtifactSpec;

/// `artifact.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactListArgs {
    /// Only this repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub repository: Option<String>,
    /// Artifacts a page, at most 1,000; those of one node come together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub cursor: Option<String>,
}

/// An artifact that is whole and in place on a node, as that said last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactObject {
    /// Where.
    pub node_id: String,
    /// Its display name.
    pub node: String,
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
    /// Engines of deployments on that node that need it: it stays there while there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub used_by: Vec<String>,
}

/// `artifact.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ArtifactListResult {
    /// By node, and there by repository and revision.
    pub artifacts: Vec<ArtifactObject>,
    /// There are more: ask on with `next_cursor`, choose fewer nodes, or name a repository.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `artifact.acquire`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactAcquireArgs {
    /// What a deployment's `[artifact]` says; nothing is done with its `main_file` here.
    #[serde(flatten)]
    pub artifact: ArtifactSpec,
    /// Name of one of the nodes' own roots; absent: the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub root: Option<String>,
    /// Bytes to leave free there, where that is more than the node's file says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
}

/// `artifact.remove`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactRemoveArgs {
    /// `Qwen/Qwen3-8B`.
    #[schemars(length(min = 1, max = 200))]
    pub repository: String,
    /// The exact revision.
    #[schemars(length(min = 1, max = 128))]
    pub revision: String,
    /// SHA-256 of the list of its files, as `artifact.list` has it.
    #[schemars(length(min = 64, max = 64))]
    pub digest: String,
    /// Only from this root; absent: from every one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub root: Option<String>,
}
