//! What the audit keeps of an action: who, what, at which edge, why, how it ended, how long it took, and the names
//! of the arguments. Never an argument's value: it may be a secret.
//!
//! The store's record has one text for details; the structured ones stand in it as a small JSON object.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use umbel_contracts::objects::AuditObject;
use umbel_store::{AuditEntry, AuditRecord};
use umbel_wire::text::shorten;

/// Bytes that the JSON of the details may have: below the store's bound on a text.
const DETAIL_MAX: usize = 1_000;
/// Names of arguments that are kept.
const NAMES_MAX: usize = 16;

/// One action, before it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deed {
    pub(crate) actor: String,
    /// `command.requested`, `operator.create`.
    pub(crate) action: &'static str,
    /// The operation, or what the action was about.
    pub(crate) subject: String,
    /// `requested`, `succeeded`, `failed: NOT_FOUND`.
    pub(crate) outcome: String,
    pub(crate) command_id: String,
    pub(crate) correlation_id: String,
    pub(crate) detail: Detail,
}

/// What of an action has no field of its own in the store's record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Detail {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) edge: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) selector: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) took_ms: Option<u64>,
}

impl Detail {
    pub(crate) fn took(mut self, took: Duration) -> Self {
        self.took_ms = Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// As JSON that fits: the longest texts are shortened until it does.
    fn json(&self) -> String {
        let mut detail = self.clone();
        detail.args.truncate(NAMES_MAX);
        let mut room = 512;
        loop {
            let json = serde_json::to_string(&detail).unwrap_or_default();
            if json.len() <= DETAIL_MAX || room == 0 {
                return json;
            }
            room /= 2;
            shorten(&mut detail.selector, room);
            shorten(&mut detail.reason, room);
            detail.args.iter_mut().for_each(|name| shorten(name, room / 8));
        }
    }
}

impl Deed {
    /// For the store.
    pub(crate) fn record(&self) -> AuditRecord {
        AuditRecord::new(self.action, self.subject.as_str(), self.outcome.as_str())
            .by(self.actor.as_str())
            .of(self.command_id.as_str(), self.correlation_id.as_str())
            .because(self.detail.json())
    }
}

/// An entry of the store as operators see it.
pub(crate) fn object(entry: &AuditEntry) -> AuditObject {
    let record = &entry.record;
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    // A text that is no JSON object is a sentence of the store's own.
    let detail = serde_json::from_str::<Detail>(&record.detail)
        .unwrap_or_else(|_| Detail { reason: record.detail.clone(), ..Detail::default() });
    AuditObject {
        sequence: entry.sequence,
        at: timestamp(record.at_unix_ms),
        actor: record.actor.clone(),
        action: record.action.clone(),
        edge_id: some(&detail.edge),
        subject: some(&record.subject),
        command_id: some(&record.command_id),
        selector: some(&detail.selector),
        argument_names: detail.args,
        reason: some(&detail.reason),
        outcome: record.outcome.clone(),
        took_ms: detail.took_ms,
        correlation_id: some(&record.correlation_id),
    }
}

/// A stored time as an object's.
pub(crate) fn timestamp(unix_ms: i64) -> Timestamp {
    umbel_contracts::objects::timestamp(unix_ms)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn deed(reason: &str) -> Deed {
        Deed {
            actor: "ada".into(),
            action: "command.finished",
            subject: "node.drain".into(),
            outcome: "succeeded".into(),
            command_id: "c".into(),
            correlation_id: "req_1".into(),
            detail: Detail {
                edge: "ber1".into(),
                selector: "node:gpu-01".into(),
                args: vec!["deadline_seconds".into()],
                reason: reason.into(),
                ..Detail::default()
            }
            .took(Duration::from_millis(1500)),
        }
    }

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let entry = AuditEntry {
            sequence: 4,
            record: deed("fan is \"loud\"").record(),
            previous: [0; 32],
            hash: [0; 32],
        };
        let object = object(&entry);
        assert_eq!(object.edge_id.as_deref(), Some("ber1"));
        assert_eq!(object.reason.as_deref(), Some("fan is \"loud\""));
        assert_eq!(object.argument_names, ["deadline_seconds"]);
        assert_eq!(object.took_ms, Some(1500));
    }

    #[test]
    fn details_fit_however_long_the_texts_are() {
        let mut deed = deed(&"\u{1}ä\"".repeat(500));
        deed.detail.selector = "\"".repeat(1024);
        deed.detail.args = vec!["\\".repeat(300); 100];
        let detail = deed.record().detail;
        assert!(detail.len() <= DETAIL_MAX, "{}", detail.len());
        assert!(serde_json::from_str::<Detail>(&detail).is_ok(), "{detail}");
    }
}
