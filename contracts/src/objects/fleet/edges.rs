//! Edges and operators as the control plane knows them: identities, credentials, tokens without their secrets.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Role;
use crate::objects::{ProblemObject, SummaryObject};

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
