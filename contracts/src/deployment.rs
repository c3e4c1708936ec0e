//! The document that an operator applies: which model a site should serve, from which files, how and where.
//!
//! Owns: its shape, its one check ([`DeploymentSpec::check`]) for whoever handles it (`ctl`, edge, node), and the canonical
//! form whose SHA-256 names it. Leaves to others: what an engine's profile may say ([`profile`]), where a replica fits (the
//! edge's placement), what a node makes of it.
//! Invariant: a document that passes the check names no path outside the artifact's folder, no program, no variable and
//! no address of a node; an error names the field by its path, the value, and what is legal.
//!
//! ```toml
//! name = "qwen3"
//! model = "Qwen/Qwen3-8B"
//! replicas = 2
//! [artifact]
//! repository = "Qwen/Qwen3-8B"
//! revision = "895c8d171bc03c30e113cd7a28c02494b5e068b7"
//! source = "hub"
//! files = [{ path = "model.safetensors", bytes = 16_000_000_000, sha256 = "..." }]
//! [engine]
//! kind = "vllm"
//! profile = { max_model_len = 32_768 }
//! [gpus]
//! count = 1
//! memory_bytes = "40GiB"
//! ```

mod artifact;
pub mod profile;
mod read;
mod rules;
mod shape;
#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::artifact::ArtifactFile;
use crate::config::HumanDuration;
pub use artifact::ArtifactSpec;
pub use profile::{EngineKind, Profile};
pub use read::{Faults, canonical, digest};
pub use rules::parse_version;

/// Bytes of a deployment's name: with `.rN.sM` it is an engine's, and half of a provider's id.
pub const NAME_BYTES_MAX: usize = 40;
/// Bytes of a document's JSON: it travels in the arguments of one command, and what is beside it there takes a few hundred.
pub const DOCUMENT_BYTES_MAX: usize = crate::operations::LARGEST_ARGS - 1024;
/// Replicas of one deployment.
pub const REPLICAS_MAX: u32 = 64;
/// Nodes of one replica.
pub const NODES_PER_REPLICA_MAX: u32 = 16;
/// GPUs of one node.
pub const GPUS_MAX: u32 = 64;
/// Name globs of GPUs.
pub const GPU_NAMES_MAX: usize = 16;
/// Requests at once of one replica, unless it says.
pub const CAPACITY_DEFAULT: u32 = 4;
/// How long a lost node is waited for, unless the document says.
pub const REPLACE_DELAY_DEFAULT: HumanDuration = HumanDuration::seconds(300);
/// How long requests of a replica that goes may take to end, unless the document says.
pub const DRAIN_DEADLINE_DEFAULT: HumanDuration = HumanDuration::seconds(600);
/// Longest delay that a document can ask for.
pub const DELAY_MAX: HumanDuration = HumanDuration::seconds(86_400);

/// What an operator wants served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentSpec {
    /// A DNS label of at most 40 bytes: `a-z`, `0-9` and `-`.
    #[schemars(length(min = 1, max = 40))]
    pub name: String,
    /// The model's name for applications; the deployment's own unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 200))]
    pub model: Option<String>,
    /// Other names of the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub aliases: Vec<String>,
    /// The model's files; absent for engines that need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<ArtifactSpec>,
    /// What computes.
    pub engine: EngineSpec,
    /// Running copies that are wanted.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 64))]
    pub replicas: u32,
    /// GPUs of a replica on each of its nodes; none unless said.
    #[serde(default, skip_serializing_if = "GpuSpec::is_none")]
    pub gpus: GpuSpec,
    /// Nodes of a replica: more than one make it of that many shards, all within one value of `fabric_label`.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16))]
    pub nodes_per_replica: u32,
    /// The fabric label whose value all nodes of a replica share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub fabric_label: Option<String>,
    /// Nodes that may be used: `label:rack=a,gpu:*H200*`; all unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub selector: Option<String>,
    /// Where replicas go if several places fit.
    #[serde(default)]
    pub strategy: Strategy,
    /// Requests at once of one replica; the engine's own limit unless said, or 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub capacity: Option<u32>,
    /// Longest prompt and answer in tokens; not said: no bound of the site's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_context_tokens: Option<u32>,
    /// A request whose prompt is above this is long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub long_context_threshold_tokens: Option<u32>,
    /// Long requests at once of one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub long_context_capacity: Option<u32>,
    /// `local_inference`, `api` or `cli`; what the engine's kind is unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub category: Option<String>,
    /// How long running requests may take to end when a replica goes; 10 minutes unless said.
    #[serde(default = "drain_deadline")]
    pub drain_deadline: HumanDuration,
    /// How long a lost node is waited for before its replica is placed elsewhere; 5 minutes unless said.
    #[serde(default = "replace_delay")]
    pub replace_delay: HumanDuration,
}

/// What computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineSpec {
    /// Which adapter.
    pub kind: EngineKind,
    /// Its typed parameters, as its adapter takes them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub profile: Map<String, Value>,
}

/// GPUs of one replica on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GpuSpec {
    /// How many; 0: it computes on the processor.
    #[schemars(range(min = 0, max = 64))]
    pub count: u32,
    /// Free memory that each must have, in bytes; in a document also as `"40GiB"`.
    #[serde(deserialize_with = "read::bytes", skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Their names: one of these globs (`*`, `?`, in any case) has to match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub names: Vec<String>,
    /// Least compute capability: `8.9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub capability: Option<String>,
    /// Least driver version: `550.54`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub driver: Option<String>,
}

/// Where replicas go if several places fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// Over as many nodes as there are.
    #[default]
    Spread,
    /// On as few nodes as will do, so that large places stay free.
    Pack,
}

impl Strategy {
    /// Its spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spread => "spread",
            Self::Pack => "pack",
        }
    }
}

impl GpuSpec {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl DeploymentSpec {
    /// The model's name for applications.
    #[must_use]
    pub fn model(&self) -> &str {
        self.model.as_deref().unwrap_or(&self.name)
    }

    /// Requests at once of one replica.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity.unwrap_or(CAPACITY_DEFAULT)
    }

    /// `local_inference`, `api` or `cli`.
    #[must_use]
    pub fn category(&self) -> &str {
        self.category.as_deref().unwrap_or(match self.engine.kind {
            EngineKind::External => "api",
            EngineKind::Cli => "cli",
            _ => "local_inference",
        })
    }

    /// The name of a replica's engine on its node: `qwen3.r1`, of a shard `qwen3.r1.s0`.
    #[must_use]
    pub fn engine_name(&self, replica: u32, shard: Option<u32>) -> String {
        match shard {
            None => format!("{}.r{replica}", self.name),
            Some(shard) => format!("{}.r{replica}.s{shard}", self.name),
        }
    }

    /// Its engine's parameters as a type.
    ///
    /// # Errors
    /// The first parameter that is wrong.
    pub fn profile(&self) -> Result<Profile, crate::settings::Fault> {
        Profile::read(self.engine.kind, &self.engine.profile, "engine.profile")
    }

    /// SHA-256 of the whole document in its canonical form, in hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        digest(&canonical(self))
    }

    /// SHA-256 of what an engine has to be started anew for: files, profile, the model's name, GPUs. What is not in it
    /// (capacity figures, replicas, where they may run, delays) changes without a restart.
    #[must_use]
    pub fn engine_digest(&self) -> String {
        let artifact = self.artifact.as_ref().map(|artifact| {
            (&artifact.repository, &artifact.revision, artifact.digest(), &artifact.main_file)
        });
        let what = serde_json::json!({
            "artifact": artifact,
            "engine": self.engine,
            "gpus": self.gpus.count,
            "model": self.model(),
            "nodes": self.nodes_per_replica,
        });
        digest(&canonical(&what))
    }
}

/// The deployment and replica that an engine's name says it is of; `None` for engines of a node's own file.
#[must_use]
pub fn of_engine(name: &str) -> Option<(&str, u32)> {
    let (deployment, rest) = name.split_once(".r")?;
    let number = rest.split_once(".s").map_or(rest, |(number, _)| number);
    let number: u32 = number.parse().ok().filter(|number| *number > 0)?;
    (!deployment.is_empty()).then_some((deployment, number))
}

const fn one() -> u32 {
    1
}

const fn drain_deadline() -> HumanDuration {
    DRAIN_DEADLINE_DEFAULT
}

const fn replace_delay() -> HumanDuration {
    REPLACE_DELAY_DEFAULT
}
