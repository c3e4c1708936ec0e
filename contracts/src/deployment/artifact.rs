//! Which files a deployment is served from: repository, exact revision, the files, and whose source they come from.
//!
//! Leaves names, lists and the digest to [`crate::artifact`]. Invariant: two documents whose artifacts have one key and one
//! digest mean the same bytes, wherever these come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::artifact::{self, ArtifactFile};

/// A model's files, and where nodes get them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArtifactSpec {
    /// `Qwen/Qwen3-8B`.
    #[schemars(length(min = 1, max = 200))]
    pub repository: String,
    /// The exact revision, such as a commit; no branch.
    #[schemars(length(min = 1, max = 128))]
    pub revision: String,
    /// Name of one of the node's own sources.
    #[schemars(length(min = 1, max = 63))]
    pub source: String,
    /// All files.
    #[schemars(length(min = 1, max = 256))]
    pub files: Vec<ArtifactFile>,
    /// The file that the engine is given, where it takes one and not the folder: one of `files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub main_file: Option<String>,
}

impl ArtifactSpec {
    /// What its files are, wherever they come from.
    #[must_use]
    pub fn digest(&self) -> String {
        artifact::digest(&self.files)
    }

    /// What it is called on a node: repository, revision, and the digest of its files.
    #[must_use]
    pub fn key(&self) -> String {
        artifact::key(&self.repository, &self.revision, &self.digest())
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }
}
