//! The settings as types, for those who put them in force.
//!
//! Invariant: every field of the tables has its field here (a test compares them), and each is optional: what is not
//! said stays as the host's file has it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{ByteSize, HumanDuration};

/// `agents.default` and `agents.nodes.NODE`: what lies over a node's own file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AgentSettings {
    /// What is logged.
    pub log: LogSettings,
    /// How it ends.
    pub shutdown: ShutdownSettings,
    /// Labels, beside those of the file.
    pub labels: BTreeMap<String, String>,
    /// Engines by name: those of the file, and further ones.
    pub engines: BTreeMap<String, EngineSettings>,
}

/// What is logged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// A filter: `info`, `info,umbel_edge=debug`.
    pub level: Option<String>,
}

/// How a daemon ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ShutdownSettings {
    /// How long running streams may take.
    pub drain: Option<HumanDuration>,
}

/// One engine. Where the node's file has no engine of the name, `kind` and `model` have to be said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EngineSettings {
    /// `false` takes an engine away.
    pub enabled: Option<bool>,
    /// `sim`, `external` or `llama-server`.
    pub kind: Option<String>,
    /// The model it serves.
    pub model: Option<String>,
    /// Other names of the model; replaces those of the file.
    pub aliases: Option<Vec<String>>,
    /// `local_inference` or `api`.
    pub category: Option<String>,
    /// Requests at once.
    pub capacity: Option<u32>,
    /// Longest prompt and answer in tokens; 0: not said.
    pub max_context_tokens: Option<u32>,
    /// A request above this is long; 0: none is.
    pub long_context_threshold_tokens: Option<u32>,
    /// Long requests at once.
    pub long_context_capacity: Option<u32>,
    /// `sim`: before the first token.
    pub first_token_delay: Option<HumanDuration>,
    /// `sim`: between tokens.
    pub token_delay: Option<HumanDuration>,
    /// `sim`: tokens of an answer when the request names no limit.
    pub tokens: Option<u32>,
    /// `llama-server`: `ROOT/PATH`, `ROOT` being one of the roots that the node's file names.
    pub model_file: Option<String>,
    /// `llama-server`: the engine's context in tokens; 0: the model's own.
    pub context_tokens: Option<u32>,
    /// `llama-server`: computing threads; 0: the engine's own choice.
    pub threads: Option<u32>,
    /// `llama-server`: from start to ready.
    pub start_timeout: Option<HumanDuration>,
}

/// `edge`: what lies over the edge's own file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EdgeSettings {
    /// The OpenAI surface.
    pub api: ApiSettings,
    /// What is in the metrics beyond what always is.
    pub metrics: MetricsSettings,
    /// Queues.
    pub queue: QueueSettings,
    /// Patience with engines.
    pub upstream: UpstreamSettings,
    /// Liveness of nodes.
    pub liveness: LivenessSettings,
    /// What is logged.
    pub log: LogSettings,
    /// How it ends.
    pub shutdown: ShutdownSettings,
    /// Nodes' clocks.
    pub clock: ClockSettings,
    /// What is kept of the audit.
    pub audit: AuditSettings,
}

/// Bounds of the OpenAI surface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ApiSettings {
    /// The largest request.
    pub body_max: Option<ByteSize>,
    /// A stream without news gets a comment this often.
    pub keepalive: Option<HumanDuration>,
    /// Request bytes held at once.
    pub held_max: Option<ByteSize>,
    /// Whether engines are asked for the usage of streams: `as_asked` by clients, or `always`.
    pub stream_usage: Option<String>,
}

/// What is in the metrics beyond what always is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsSettings {
    /// Whether each API key has series of its own: requests and tokens.
    pub keys: Option<bool>,
}

/// Bounds of a model's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSettings {
    /// Waiting requests a model.
    pub max_requests: Option<u32>,
    /// Longest wait for a slot.
    pub max_wait: Option<HumanDuration>,
    /// The same while the model is loading.
    pub max_wait_loading: Option<HumanDuration>,
}

/// Patience with engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UpstreamSettings {
    /// Until an engine's first byte.
    pub first_byte_timeout: Option<HumanDuration>,
    /// Between two.
    pub idle_timeout: Option<HumanDuration>,
}

/// Liveness of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LivenessSettings {
    /// Without a heartbeat for this long a node is stale.
    pub stale: Option<HumanDuration>,
    /// And for this long offline.
    pub offline: Option<HumanDuration>,
}

/// Nodes' clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClockSettings {
    /// How far a node's clock may be in the future.
    pub allowed_skew: Option<HumanDuration>,
}

/// What is kept of the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSettings {
    /// How long.
    pub keep: Option<HumanDuration>,
    /// And at most so many entries.
    pub max_entries: Option<u64>,
}
