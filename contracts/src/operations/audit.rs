//! What the operations on the site's audit and store take and give.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::objects::AuditObject;

/// `audit.query`: every condition given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditQueryArgs {
    /// Who: exactly, or a prefix that ends with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub actor: Option<String>,
    /// What: exactly, or a prefix that ends with `*`: `token.*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub action: Option<String>,
    /// Of what: part of the subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub subject: Option<String>,
    /// `succeeded`, `refused`, ...: the beginning of the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub outcome: Option<String>,
    /// The command's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(equal = 36))]
    pub command_id: Option<String>,
    /// The request's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub correlation_id: Option<String>,
    /// At or after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// Before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub until: Option<Timestamp>,
    /// Entries a page, at most 1,000; 100 unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
    /// `next_before` of the page before: entries below this sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// `audit.query`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditQueryResult {
    /// Newest first.
    #[schemars(with = "Vec<serde_json::Value>")]
    pub entries: Vec<AuditObject>,
    /// For the next page; absent when everything that is kept was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_before: Option<u64>,
}

/// `audit.export`: a page of the chain as it is stored, for keeping elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditExportArgs {
    /// Entries above this sequence; the oldest kept unless said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Entries a page, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub limit: Option<u32>,
}

/// `audit.export`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditExportResult {
    /// Oldest first: each the line that was hashed, then what the hash was over and became.
    pub lines: Vec<AuditLine>,
    /// For the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_after: Option<u64>,
}

/// An entry as it is chained: SHA-256 over `previous` (32 bytes) and `entry` gives `hash`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditLine {
    /// Grows by one.
    pub sequence: u64,
    /// Hash of the entry before, in hexadecimal.
    pub previous: String,
    /// The exact JSON text of the entry.
    pub entry: String,
    /// In hexadecimal.
    pub hash: String,
}

/// `audit.verify`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditVerifyResult {
    /// The chain is whole from the oldest kept entry, or the last checkpoint, to the newest.
    pub whole: bool,
    /// Entries that were looked at.
    pub entries: u64,
    /// The oldest kept one.
    pub first_sequence: u64,
    /// The newest.
    pub last_sequence: u64,
    /// Hash of the newest, in hexadecimal: compare it with what the control plane was told.
    pub last_hash: String,
    /// Where it breaks first, and how.
    pub broken_at: Option<u64>,
    /// One sentence.
    pub message: String,
}

/// `edge.backup`: into the directory that the edge's file names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EdgeBackupArgs {}

/// `edge.backup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EdgeBackupResult {
    /// Name of the new file in that directory.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
    /// The store's position that it holds.
    pub position: u64,
    /// When it was made.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

impl AuditQueryArgs {
    /// Whether an entry is asked for; `limit` and `before` say nothing about that.
    #[must_use]
    pub fn matches(&self, entry: &AuditObject) -> bool {
        let part = |wanted: &Option<String>, text: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| text.is_some_and(|text| text.contains(wanted)))
        };
        let equal = |wanted: &Option<String>, text: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| text == Some(wanted))
        };
        beginning_or_whole(self.actor.as_deref(), &entry.actor)
            && beginning_or_whole(self.action.as_deref(), &entry.action)
            && part(&self.subject, entry.subject.as_deref())
            && self.outcome.as_deref().is_none_or(|outcome| entry.outcome.starts_with(outcome))
            && equal(&self.command_id, entry.command_id.as_deref())
            && equal(&self.correlation_id, entry.correlation_id.as_deref())
            && self.since.is_none_or(|since| entry.at >= since)
            && self.until.is_none_or(|until| entry.at < until)
    }

    /// Entries a page.
    ///
    /// # Errors
    /// One sentence, if it is out of its range.
    pub fn page(&self) -> Result<usize, String> {
        page(self.limit)
    }
}

impl AuditExportArgs {
    /// Entries a page.
    ///
    /// # Errors
    /// One sentence, if it is out of its range.
    pub fn page(&self) -> Result<usize, String> {
        page(self.limit.or(Some(PAGE_MAX)))
    }
}

/// Entries a page unless said, and at most.
const PAGE: u32 = 100;
const PAGE_MAX: u32 = 1_000;

fn page(limit: Option<u32>) -> Result<usize, String> {
    match limit.unwrap_or(PAGE) {
        limit @ 1..=PAGE_MAX => Ok(usize::try_from(limit).unwrap_or(usize::MAX)),
        _ => Err(format!("limit must be 1 to {PAGE_MAX}")),
    }
}

// Exactly, or what ends with `*` by its beginning.
fn beginning_or_whole(wanted: Option<&str>, text: &str) -> bool {
    wanted.is_none_or(|wanted| match wanted.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => text == wanted,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn entry() -> AuditObject {
        serde_json::from_value(serde_json::json!({
            "sequence": 7, "at": "2026-11-29T12:00:00Z", "actor": "ada", "action": "token.refused",
            "subject": "tok-1,tok-2", "outcome": "refused: UNAUTHENTICATED", "correlation_id": "req_1",
        }))
        .unwrap()
    }

    fn wanted(json: serde_json::Value) -> bool {
        serde_json::from_value::<AuditQueryArgs>(json).unwrap().matches(&entry())
    }

    #[test]
    fn every_condition_must_hold() {
        use serde_json::json;
        for yes in [
            json!({}),
            json!({ "actor": "ada", "action": "token.*", "subject": "tok-2", "outcome": "refused" }),
            json!({ "action": "*", "correlation_id": "req_1" }),
            json!({ "since": "2026-11-29T12:00:00Z", "until": "2026-11-29T12:00:01Z" }),
        ] {
            assert!(wanted(yes.clone()), "{yes}");
        }
        for no in [
            json!({ "actor": "ad" }),
            json!({ "actor": "ada", "action": "node.*" }),
            json!({ "subject": "tok-3" }),
            json!({ "command_id": "8c3b1a52-6f0e-4c55-9d8b-2f1f6f3b9a10" }),
            json!({ "until": "2026-11-29T12:00:00Z" }),
            json!({ "since": "2026-11-29T12:00:01Z" }),
        ] {
            assert!(!wanted(no.clone()), "{no}");
        }
    }

    #[test]
    fn a_page_has_its_bounds() {
        let of = |limit| AuditQueryArgs { limit, ..AuditQueryArgs::default() }.page();
        assert_eq!((of(None), of(Some(1)), of(Some(1_000))), (Ok(100), Ok(1), Ok(1_000)));
        assert!(of(Some(0)).is_err() && of(Some(1_001)).is_err());
        assert_eq!(AuditExportArgs::default().page(), Ok(1_000));
    }
}
