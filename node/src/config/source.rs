//! What an engine is and where it comes from, once it was checked; and what of it a process keeps until its next start.
//!
//! Owns the types; leaves reading them to `engine` (the node's file) and `shell/deployments` (a site's deployments).
//! Invariant: two that would be started alike have the same digest.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use umbel_contracts::deployment::{
    EngineKind, Profile, canonical, digest,
    profile::{Holds, Key},
};

/// From start to ready, where the profile says nothing.
const START_LLAMA: Duration = Duration::from_secs(600);
/// The same for engines that compile kernels and read weights of hundreds of gigabytes.
const START_GPU: Duration = Duration::from_secs(1800);

/// One engine that this node shall have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EngineConfig {
    /// Unique on the node; the provider is `NODE_ID/NAME`.
    pub(crate) name: String,
    /// What it is and where it comes from.
    pub(crate) source: EngineSource,
    /// The model it serves.
    pub(crate) model: String,
    /// Other names of the model.
    pub(crate) aliases: Vec<String>,
    /// `local_inference`, `api` or `cli`.
    pub(crate) category: String,
    /// Requests at once.
    pub(crate) capacity: u32,
    /// Longest prompt and answer in tokens; 0: not said.
    pub(crate) max_context_tokens: u32,
    /// A request above this is long; 0: none is.
    pub(crate) long_context_threshold_tokens: u32,
    /// Long requests at once.
    pub(crate) long_context_capacity: u32,
    /// The deployment that it is of; none: it stands in the node's file or in settings.
    #[serde(default)]
    pub(crate) origin: Option<Origin>,
}

/// Which part of which deployment an engine is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The deployment's name.
    pub(crate) deployment: String,
    /// From 1.
    pub(crate) replica: u32,
    /// From 1, of `shard_count`.
    pub(crate) shard_index: u32,
    /// Nodes of the replica.
    pub(crate) shard_count: u32,
    /// Of the profile, as the edge knows it.
    pub(crate) profile_digest: String,
    /// Of its files; empty where it has none.
    pub(crate) artifact_digest: String,
}

/// What an engine is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EngineSource {
    /// Built in: answers by rule.
    Sim {
        /// Before the first token.
        first_token_delay: Duration,
        /// Between tokens.
        token_delay: Duration,
        /// Tokens of an answer when the request names no limit.
        tokens: u32,
    },
    /// An OpenAI-compatible server that is already there.
    External {
        /// `host:port`.
        authority: String,
        /// Path before `/v1`, without a slash at its end; mostly empty.
        base_path: String,
    },
    /// A program that is started once a request.
    Cli {
        /// The program; its name is the node's own file's.
        program: PathBuf,
        /// Longest run of one request.
        timeout: Duration,
    },
    /// A process that is started here and serves until it is stopped.
    Process(Box<ProcessSource>),
    /// A deployment's engine that this node's file does not allow, or not any more.
    Missing {
        /// What it would be.
        kind: String,
        /// Why not, and what to do.
        why: String,
    },
}

/// An engine that has a process of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessSource {
    /// Of vLLM, SGLang or llama-server.
    pub(crate) profile: Profile,
    /// The model's file (llama-server) or folder.
    pub(crate) model: PathBuf,
    /// 0: a free one.
    pub(crate) port: u16,
    /// UUIDs of the GPUs it may see, in order; none: whatever its environment says.
    pub(crate) gpus: Vec<String>,
    /// Requests in flight and no byte for so long: it has stalled. Zero: never.
    pub(crate) stall_timeout: Duration,
}

impl EngineSource {
    /// `sim`, `external`, `cli`, `llama-server`, `vllm` or `sglang`.
    #[must_use]
    pub(crate) fn kind(&self) -> &str {
        match self {
            Self::Sim { .. } => "sim",
            Self::External { .. } => "external",
            Self::Cli { .. } => "cli",
            Self::Process(process) => process.kind().as_str(),
            Self::Missing { kind, .. } => kind,
        }
    }

    /// The process that it is, if it is one.
    #[must_use]
    pub(crate) fn process(&self) -> Option<&ProcessSource> {
        match self {
            Self::Process(process) => Some(process),
            _ => None,
        }
    }
}

impl ProcessSource {
    /// Which engine.
    #[must_use]
    pub(crate) fn kind(&self) -> EngineKind {
        self.profile.kind()
    }

    /// From start to ready.
    #[must_use]
    pub(crate) fn start_timeout(&self) -> Duration {
        let (said, otherwise) = match &self.profile {
            Profile::Vllm(profile) => (profile.start_timeout, START_GPU),
            Profile::Sglang(profile) => (profile.start_timeout, START_GPU),
            Profile::LlamaServer(profile) => (profile.start_timeout, START_LLAMA),
            Profile::External(_) | Profile::Cli(_) | Profile::Sim(_) => (None, START_LLAMA),
        };
        said.map_or(otherwise, Into::into)
    }

    /// What of the profile becomes options, by key; the rest is Umbel's own and can change while it runs.
    #[must_use]
    pub(crate) fn options(&self) -> Map<String, Value> {
        let own = |key: &Key| matches!(key.holds, Holds::Duration(..));
        let mut options = self.profile.table();
        options.retain(|name, _| !self.kind().keys().iter().any(|key| key.name == name && own(key)));
        options
    }
}

impl EngineConfig {
    /// Requests that a process of it is started for: what the engine itself takes at once.
    #[must_use]
    pub(crate) fn slots(&self) -> u32 {
        let said = self.source.process().and_then(|process| process.profile.max_requests());
        said.unwrap_or(self.capacity)
    }

    /// Aliases that a process knows from its start on: one that refuses names it was not started with has to be started
    /// anew for others.
    #[must_use]
    pub(crate) fn fixed_aliases(&self) -> &[String] {
        match self.source.process().map(ProcessSource::kind) {
            Some(kind) if kind.is_started_with_aliases() => &self.aliases,
            _ => &[],
        }
    }

    /// SHA-256, in hexadecimal, of all that a process is started with and keeps; of the number of slots it is not, which
    /// may be above what is wanted. Empty for what has no process.
    #[must_use]
    pub(crate) fn digest(&self) -> String {
        let Some(process) = self.source.process() else { return String::new() };
        let kept = (
            process.kind().as_str(),
            process.options(),
            &process.model,
            process.port,
            &process.gpus,
            &self.model,
            self.fixed_aliases(),
        );
        digest(&canonical(&kept))
    }

    /// SHA-256 of the profile, as the edge knows it; empty for what has none.
    #[must_use]
    pub(crate) fn profile_digest(&self) -> String {
        match (&self.origin, self.source.process()) {
            (Some(origin), _) => origin.profile_digest.clone(),
            (None, Some(process)) => process.profile.digest(),
            (None, None) => String::new(),
        }
    }
}
