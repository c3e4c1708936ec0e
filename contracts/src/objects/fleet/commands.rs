//! Commands to an edge: what is asked, where it stands, and its steps, with the one conversion of each message.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::timestamp;
use crate::proto::control;

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
