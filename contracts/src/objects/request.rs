//! What the operator API says of one application request.
//!
//! Invariant: no content of a message, and nothing of where its client is.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One request: running, or one of the last that ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestObject {
    /// The `x-request-id` that its client has: not unique, since clients may choose it.
    pub request_id: String,
    /// Grows with each request of this process of the edge: unique there.
    pub number: u64,
    /// Whose key it came with; absent for callers on the edge's host without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// What people call the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
    /// The model; absent where nobody serves what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The route's template.
    pub route: String,
    /// An event stream was asked for.
    pub stream: bool,
    /// `queued`, `prefill` or `streaming`: where it is, or was when it ended.
    pub phase: String,
    /// When its head was here.
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// When it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub ended_at: Option<Timestamp>,
    /// From its head to its end, or up to now.
    pub took_ms: u64,
    /// Of that, waiting for a slot (and reading its body).
    pub queued_ms: u64,
    /// Of that, with a slot and without a head from the engine.
    pub prefill_ms: u64,
    /// Of that, while the answer flowed.
    pub streaming_ms: u64,
    /// Bytes of its body.
    pub body_bytes: u64,
    /// Bytes of the prompt in it; 0 where they were not looked for.
    pub prompt_bytes: u64,
    /// Bytes of the answer that passed, once it ended.
    pub answer_bytes: u64,
    /// Prompt tokens by estimate, once it had a slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_tokens: Option<u64>,
    /// It counted as long.
    pub long: bool,
    /// Tries at engines, oldest first.
    pub tries: Vec<TryObject>,
    /// What its client was told; 499 if that left. Absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The machine reason where the edge refused or failed it, or had to break its stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tokens, where somebody counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<RequestUsageObject>,
    /// The lease that it still holds at a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseObject>,
}

/// One try at an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TryObject {
    /// `NODE_ID/NAME`.
    pub provider_id: String,
    /// Name of its node, if it is still known.
    pub node: String,
    /// Chosen since it saw the prompt's beginning last.
    pub affinity: bool,
    /// How it failed; absent while it runs or if it is the one that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Tokens of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestUsageObject {
    /// Of the prompt, cached ones included.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of the prompt's, those that the engine had cached.
    pub cached_tokens: u64,
    /// The engine reported them; else the edge counted events and estimated the prompt.
    pub reported: bool,
}

/// A slot of a provider, held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseObject {
    /// For `request.release`. A text: it is above what JSON readers keep exactly.
    pub lease_id: String,
    /// `NODE_ID/NAME`.
    pub provider_id: String,
    /// `prefill`, `streaming`, `ending` or `unconfirmed`.
    pub phase: String,
}
