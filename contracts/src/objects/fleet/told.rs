//! What is told of the past: events, gaps between them, audit entries, and the problem document of an error.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::timestamp;
use crate::proto::control;

/// Something that happened, told after it did. Nothing correct depends on seeing it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventObject {
    /// The site it happened at.
    pub edge_id: String,
    /// The edge's own sequence; 0 for what the control plane itself says.
    pub sequence: u64,
    /// The edge's time.
    pub at: Timestamp,
    /// `node_ready`, `provider_available`; `events_lost` tells of a gap.
    pub kind: String,
    /// The node it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// The provider it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// Generation of the connection it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The deployment it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// The job it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// One sentence.
    pub message: String,
}

impl EventObject {
    /// An event as the edge told it.
    #[must_use]
    pub fn from_proto(event: control::EdgeNodeEvent) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Self {
            edge_id: event.edge_id,
            sequence: event.sequence,
            at: timestamp(event.at_unix_ms),
            kind: event.kind,
            node_id: some(event.node_id),
            provider_id: some(event.provider_id),
            generation: (event.generation > 0).then_some(event.generation),
            deployment: some(event.deployment),
            job_id: some(event.job_id),
            message: event.message,
        }
    }
}

/// A gap in the stream of events: what a slow or late reader missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventGap {
    /// How many were missed; absent when that cannot be known (the server was restarted in between).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

/// One entry of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditObject {
    /// Grows by one an entry.
    pub sequence: u64,
    /// The server's time.
    pub at: Timestamp,
    /// Who asked.
    pub actor: String,
    /// `command.requested`, `command.finished`, `operator.create`, ...
    pub action: String,
    /// The edge it went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edge_id: Option<String>,
    /// The operation, or what the action was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The command's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    /// The command's selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Names of the arguments; their values are never kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argument_names: Vec<String>,
    /// The reason that the actor gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `requested`, `succeeded`, `failed: NOT_FOUND`, ...
    pub outcome: String,
    /// Milliseconds from the request to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The request's id in every log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

/// An error, as RFC 9457 has it (`application/problem+json`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemDocument {
    /// `about:blank`, or what documents the problem.
    #[serde(rename = "type")]
    pub kind: String,
    /// The code for people.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What was wrong and what to do.
    pub detail: String,
    /// The path that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// A code by name: `NOT_FOUND`.
    pub code: String,
    /// For machines: `TOKEN_EXPIRED`.
    pub reason: String,
    /// The request's id in every log; also in the header `x-request-id`.
    pub correlation_id: String,
    /// When to try again, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
}
