//! What the operations take. Unknown keys are refused; every bound stands at its field.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// No arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoArgs {}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListArgs {
    /// Entries a page, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub cursor: Option<String>,
}

/// `enrollment.create`: the secret stays with the asker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentCreateArgs {
    /// Made by the asker: 8 to 36 characters of `a-z`, `0-9`, `-`.
    #[schemars(length(min = 8, max = 36))]
    pub token_id: String,
    /// SHA-256 of the secret, 64 hexadecimal digits.
    #[schemars(length(equal = 64))]
    pub secret_sha256: String,
    /// Name of the node that will use it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Labels of that node: at most 32, keys and values up to 63 characters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Life of the token; 15 minutes unless said, at most a day.
    #[serde(default = "default_expiry")]
    #[schemars(range(min = 1, max = 86400))]
    pub expires_in_seconds: u64,
    /// Whether the node gets application traffic as soon as it is ready.
    #[serde(default)]
    pub eligible: bool,
    /// The id or name of a node that lost its credential or its machine: the token's host becomes that node, with a new
    /// key, and the old credential is revoked when the token is used. Name, labels and `eligible` stay the node's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub replace: Option<String>,
    /// Further tokens of the same life, labels and `eligible`: all are made or none. Not together with `replace`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 127))]
    pub more: Vec<AnotherToken>,
}

/// One of several tokens that one `enrollment.create` makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnotherToken {
    /// Made by the asker: 8 to 36 characters of `a-z`, `0-9`, `-`.
    #[schemars(length(min = 8, max = 36))]
    pub token_id: String,
    /// SHA-256 of the secret, 64 hexadecimal digits.
    #[schemars(length(equal = 64))]
    pub secret_sha256: String,
    /// Name of the node that will use it.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
}

const fn default_expiry() -> u64 {
    900
}

/// `enrollment.revoke`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentRevokeArgs {
    /// Which.
    #[schemars(length(min = 8, max = 36))]
    pub token_id: String,
}

/// `node.drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeDrainArgs {
    /// How long to wait for leases that are held; 600 unless said. The drain stays when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub deadline_seconds: Option<u64>,
}

/// `node.eligible`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeEligibleArgs {
    /// Whether the nodes may get application traffic.
    pub eligible: bool,
}

/// `command.show` and `command.cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CommandArgs {
    /// Which: a UUID.
    #[schemars(length(equal = 36))]
    pub command_id: String,
}

/// `audit.tail`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditTailArgs {
    /// Entries, at most 1,000; 100 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// Only entries above this sequence, oldest first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}
