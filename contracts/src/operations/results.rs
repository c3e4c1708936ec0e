//! What the operations give. Only ever extended; a reader takes fields that it does not know.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::{
    AuditObject, CommandErrorObject, CommandPhase, EnrollmentState, NodeObject, ProgressObject,
};

/// `enrollment.create`: all that the asker needs to compose the token's text. The one result that carries addresses,
/// and they are the issuer's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentCreateResult {
    /// As asked; of several the first, and all else is the same for all.
    pub token_id: String,
    /// The site that the node joins.
    pub edge_id: String,
    /// Where the node dials, `host:port` each.
    pub addresses: Vec<String>,
    /// SHA-256 of the edge's CA certificate, in hexadecimal.
    pub ca_sha256: String,
    /// End of the token's use.
    #[schemars(with = "String")]
    pub expires_at: Timestamp,
}

/// A node's enrollment token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentObject {
    /// May be logged.
    pub token_id: String,
    /// Name of the node that uses it.
    pub name: String,
    /// Labels of that node.
    pub labels: BTreeMap<String, String>,
    /// Whether that node gets application traffic as soon as it is ready.
    pub eligible: bool,
    /// `open`, `used`, `revoked` or `expired`.
    #[schemars(with = "String")]
    pub state: EnrollmentState,
    /// When it was minted.
    #[schemars(with = "String")]
    pub created_at: Timestamp,
    /// Who minted it.
    pub created_by: String,
    /// End of its use.
    #[schemars(with = "String")]
    pub expires_at: Timestamp,
    /// When it was used.
    #[schemars(with = "Option<String>")]
    pub used_at: Option<Timestamp>,
    /// The node that came of it.
    pub node_id: Option<String>,
    /// The node that it gives a new credential to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// It is in force and not on disk, which takes no writes: it is written as soon as that works again, and lost if
    /// the edge restarts before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_durable: bool,
}

/// `enrollment.list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnrollmentListResult {
    /// The tokens of this page, newest first.
    pub enrollments: Vec<EnrollmentObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// `node.list` and `node.show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeListResult {
    /// The chosen nodes, by name.
    pub nodes: Vec<NodeObject>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// What an operation on nodes did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodesResult {
    /// Each chosen node.
    pub nodes: Vec<NodeOutcome>,
}

/// What was done to one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeOutcome {
    /// Which.
    pub node_id: String,
    /// Its name.
    pub name: String,
    /// Something was changed (in a dry run: would be).
    pub changed: bool,
    /// It takes no new work.
    pub draining: bool,
    /// It may get application traffic.
    pub eligible: bool,
    /// One word for its state after the change: `online`, `disabled`, ...
    #[serde(default)]
    pub state: String,
    /// Its labels, those of its own file included.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Leases that it still holds.
    pub in_flight: u64,
    /// It is in force and not on disk, which takes no writes: it is written as soon as that works again, and lost if
    /// the edge restarts before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_durable: bool,
}

/// `command.show` and `command.cancel`: where a command stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CommandStateResult {
    /// Which.
    pub command_id: String,
    /// What it does.
    pub operation: String,
    /// Where it stands.
    #[schemars(with = "String")]
    pub phase: CommandPhase,
    /// One sentence.
    pub message: String,
    /// How far it is.
    #[schemars(with = "Option<serde_json::Value>")]
    pub progress: Option<ProgressObject>,
    /// Why it did not succeed.
    #[schemars(with = "Option<serde_json::Value>")]
    pub error: Option<CommandErrorObject>,
    /// What it gave.
    pub result: Option<serde_json::Value>,
    /// When the edge took it.
    #[schemars(with = "String")]
    pub accepted_at: Timestamp,
    /// When it ended.
    #[schemars(with = "Option<String>")]
    pub ended_at: Option<Timestamp>,
}

/// `audit.tail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditTailResult {
    /// Oldest first.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub entries: Vec<AuditObject>,
}
