//! The objects of the operator API that are about the fleet and not about one node: edges, sites' statuses,
//! commands, events, audit entries, operators, edge enrollments, and the problem document of every error.
//!
//! What an edge says of its nodes, providers and queues stands beside this file. Fields are only ever added;
//! times are RFC 3339 in UTC, durations are integers of milliseconds with `_ms` in the name.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{NodeObject, ProblemObject, QueueObject, SummaryObject};
use crate::proto::control;

/// A time of the wire as an object's. One outside of the calendar becomes its nearest end.
#[must_use]
pub fn timestamp(unix_ms: i64) -> Timestamp {
    let edge = if unix_ms < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(unix_ms).unwrap_or(edge)
}

/// What an operator's token allows: each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads.
    Viewer,
    /// Commands that change running state.
    Operator,
    /// Tokens, credentials, decommission, operators; and every operation whose class is not known.
    Admin,
}

impl Role {
    /// Its spelling in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The entries of this page.
    pub items: Vec<T>,
    /// What to pass as `cursor` for the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A list that fits on one page.
    #[must_use]
    pub fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// How old a site's figures are, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Freshness {
    /// The edge answered this question.
    Fresh,
    /// The edge is connected but was not asked or refused; the figures are its last heartbeat's.
    Cached,
    /// The edge is connected and did not answer by the deadline; the figures are the last known.
    TimedOut,
    /// The edge is not connected; the figures are the last known, if any.
    Disconnected,
}

/// The answer about the whole fleet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// Name of the fleet; on an edge's own socket the site's name.
    pub fleet_name: String,
    /// Who answers: the control plane's name, or the edge's.
    pub answered_by: String,
    /// When the answer was put together.
    pub observed_at: Timestamp,
    /// The time that the edges were given, in milliseconds.
    pub deadline_ms: u64,
    /// Every enrolled site, by name.
    pub sites: Vec<SiteStatus>,
}

/// What is known of one site. Without `nodes` or `queues` that section was not asked for, or is not known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteStatus {
    /// The site.
    pub edge_id: String,
    /// Its name for people.
    pub display_name: String,
    /// How old the figures are, and why.
    pub freshness: Freshness,
    /// Age of the figures by the answering host's own clock; absent when nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_ms: Option<u64>,
    /// The edge's own time of the reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Timestamp>,
    /// Why the site is not fresh, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Figures of the site; absent while the edge has said nothing since the control plane started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<SummaryObject>,
    /// The site's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<NodeObject>>,
    /// The site's queues, one a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<QueueObject>>,
}

/// The nodes of the fleet, with the sites whose nodes are not among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FleetNodes {
    /// Each node with its site.
    pub items: Vec<SiteNode>,
    /// Sites that did not answer: their nodes are missing from `items` and are not to be taken for gone.
    pub missing: Vec<SiteStatus>,
}

/// A node and its site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteNode {
    /// The site.
    pub edge_id: String,
    /// The node as its edge describes it.
    #[serde(flatten)]
    pub node: NodeObject,
}

/// Whether an edge's connection is up, by the control plane's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeConnection {
    /// A connection is up and something was heard lately.
    Connected,
    /// A connection is up, but no heartbeat came for the stale time.
    Stale,
    /// No connection, or none worth the name for the offline time.
    Disconnected,
    /// Enrolled, and not seen since this control plane started.
    Never,
}

/// Whether an edge's credential opens the edge port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CredentialState {
    /// It does.
    Active,
    /// It was revoked here; the edge still obeys other control planes.
    Revoked,
}

/// One enrolled edge: its identity, which the control plane owns, and its view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EdgeObject {
    /// The site.
    pub edge_id: String,
    /// Its name for people.
    pub display_name: String,
    /// Whether its connection is up.
    pub connection: EdgeConnection,
    /// Milliseconds since anything was last heard of it; absent if nothing was since the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heard_ms: Option<u64>,
    /// Number of its connection; grows with each accepted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Round trip of the last PING.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// What it runs, from its last hello.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub software_version: Option<String>,
    /// Protocol of its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<u32>,
    /// Operations that it offers, from its last hello.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<OperationObject>,
    /// Events of this edge that were lost on their way.
    pub events_lost: u64,
    /// Its credential.
    pub credential: CredentialObject,
    /// When it enrolled.
    pub enrolled_at: Timestamp,
    /// The last figures it gave, with `last_summary_age_ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_summary: Option<SummaryObject>,
    /// Age of `last_summary`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_summary_age_ms: Option<u64>,
    /// What is wrong with this edge as the control plane sees it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<ProblemObject>,
}

/// An operation that an edge offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationObject {
    /// `node.drain`.
    pub name: String,
    /// `read`, `operate` or `admin`.
    pub class: String,
}

/// An edge's credential. The certificate itself stays with its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialObject {
    /// Whether it opens the edge port.
    pub state: CredentialState,
    /// SHA-256 of its public key, in hexadecimal.
    pub key_sha256: String,
    /// End of its certificate.
    pub not_after: Timestamp,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
    /// Why it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_reason: Option<String>,
}

/// What an operator sends to mint an edge's enrollment token. The secret stays with the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EdgeEnrollmentRequest {
    /// Made by the sender.
    pub token_id: String,
    /// SHA-256 of the secret, in hexadecimal.
    pub secret_sha256: String,
    /// The only edge that may use it.
    pub edge_id: String,
    /// At most 86,400; 900 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// Where an enrollment token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnrollmentState {
    /// It can be used.
    Open,
    /// It was used.
    Used,
    /// It was revoked before its use.
    Revoked,
    /// Its time is over.
    Expired,
}

/// An edge's enrollment token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeEnrollmentObject {
    /// Its id; may be logged.
    pub token_id: String,
    /// The only edge that may use it.
    pub edge_id: String,
    /// Where it stands.
    pub state: EnrollmentState,
    /// When it was minted.
    pub created_at: Timestamp,
    /// Who minted it.
    pub created_by: String,
    /// End of its use.
    pub expires_at: Timestamp,
    /// When it was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_at: Option<Timestamp>,
    /// Where the edge dials: goes into the token's text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// SHA-256 of the authority's certificate, in hexadecimal: goes into the token's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_sha256: Option<String>,
}

/// What an admin sends to add an operator. The secret stays with the sender.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorRequest {
    /// Made by the sender.
    pub operator_id: String,
    /// SHA-256 of the secret, in hexadecimal.
    pub secret_sha256: String,
    /// For people; at most 64 characters.
    pub name: String,
    /// What the token allows.
    pub role: Role,
}

/// An operator's token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorObject {
    /// The id inside the token's text.
    pub operator_id: String,
    /// For people.
    pub name: String,
    /// What the token allows.
    pub role: Role,
    /// When it was added.
    pub created_at: Timestamp,
    /// Who added it.
    pub created_by: String,
    /// When it was revoked; a revoked one opens nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<Timestamp>,
}

/// The reason that a write asks for, where its body has nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonBody {
    /// One sentence for the audit.
    #[serde(default)]
    pub reason: String,
}

/// The body of `POST /api/v1/edges/{id}/commands`; the `Idempotency-Key` header is the command's id.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandRequestBody {
    /// `node.drain`.
    pub operation: String,
    /// Terms joined with `,`: `node:NAME-OR-ID`, `label:KEY=VALUE`, `model:NAME`, `gpu:GLOB`, `all`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target_selector: String,
    /// One JSON object, validated by the edge; `{}` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<serde_json::Map<String, Value>>,
    /// One sentence for the audit.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Say what would be done, and do nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The name typed for what cannot be undone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub confirm: String,
    /// Time for the whole operation in milliseconds; the operation's own default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u32>,
    /// What the caller calls itself: `umbel ctl 0.1.0`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub client: String,
}

/// Where a command stands. The last four are ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandPhase {
    /// The edge has it.
    Accepted,
    /// The edge works on it.
    Running,
    /// Done.
    Succeeded,
    /// Not done; `error` says why.
    Failed,
    /// Cancelled on request.
    Cancelled,
    /// Its deadline passed.
    TimedOut,
}

impl CommandPhase {
    /// Whether nothing follows.
    #[must_use]
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Accepted | Self::Running)
    }

    /// From the wire; `None` for a number that this build does not know.
    #[must_use]
    pub fn from_proto(number: i32) -> Option<Self> {
        match control::Phase::try_from(number).ok()? {
            control::Phase::Unspecified => None,
            control::Phase::Accepted => Some(Self::Accepted),
            control::Phase::Running => Some(Self::Running),
            control::Phase::Succeeded => Some(Self::Succeeded),
            control::Phase::Failed => Some(Self::Failed),
            control::Phase::Cancelled => Some(Self::Cancelled),
            control::Phase::TimedOut => Some(Self::TimedOut),
        }
    }

    /// For the wire.
    #[must_use]
    pub fn to_proto(self) -> control::Phase {
        match self {
            Self::Accepted => control::Phase::Accepted,
            Self::Running => control::Phase::Running,
            Self::Succeeded => control::Phase::Succeeded,
            Self::Failed => control::Phase::Failed,
            Self::Cancelled => control::Phase::Cancelled,
            Self::TimedOut => control::Phase::TimedOut,
        }
    }

    /// Its spelling in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

/// Why a command did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandErrorObject {
    /// A code by name: `NOT_FOUND`.
    pub code: String,
    /// For machines: `TOKEN_EXPIRED`.
    pub reason: String,
    /// For people: what was wrong and what to do.
    pub message: String,
}

impl CommandErrorObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(error: control::CommandError) -> Self {
        Self { code: error.code, reason: error.reason, message: error.message }
    }
}

/// The JSON object in the bytes of the wire; `None` if there is none or it is none.
fn json_object(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok().filter(Value::is_object)
}

/// A command and what is known of its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandObject {
    /// The caller's idempotency key.
    pub command_id: String,
    /// The edge that runs it.
    pub edge_id: String,
    /// `node.drain`; absent where only the edge's answer is at hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Where it stands.
    pub phase: CommandPhase,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CommandErrorObject>,
    /// One JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// This outcome was stored by an earlier request with the same id.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

impl CommandObject {
    /// What an edge answered; `None` if its phase is none that this build knows.
    #[must_use]
    pub fn from_proto(edge_id: &str, answer: control::EdgeCommandResponse) -> Option<Self> {
        Some(Self {
            phase: CommandPhase::from_proto(answer.phase)?,
            command_id: answer.command_id,
            edge_id: edge_id.to_owned(),
            operation: None,
            error: answer.error.map(CommandErrorObject::from_proto),
            result: json_object(&answer.result_json),
            replayed: answer.replayed,
        })
    }
}

/// Progress of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressObject {
    /// Done so far, in `unit`.
    pub done: u64,
    /// All there is; 0 if not known.
    pub total: u64,
    /// `bytes`, `requests`.
    pub unit: String,
}

/// One step of a command, as `GET .../commands/{command}/events` streams them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandEventObject {
    /// The command.
    pub command_id: String,
    /// Grows within the command.
    pub sequence: u64,
    /// Where it stands.
    pub phase: CommandPhase,
    /// One sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressObject>,
    /// Why it did not succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<CommandErrorObject>,
    /// One JSON object, with the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The edge's time of the step.
    pub at: Timestamp,
}

impl CommandEventObject {
    /// A step as the edge told it; `None` if its phase is none that this build knows.
    #[must_use]
    pub fn from_proto(event: control::EdgeCommandEvent) -> Option<Self> {
        let progress = event.progress.map(|progress| ProgressObject {
            done: progress.done,
            total: progress.total,
            unit: progress.unit,
        });
        Some(Self {
            phase: CommandPhase::from_proto(event.phase)?,
            command_id: event.command_id,
            sequence: event.sequence,
            message: event.message,
            progress,
            error: event.error.map(CommandErrorObject::from_proto),
            result: json_object(&event.result_json),
            at: timestamp(event.at_unix_ms),
        })
    }
}

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
