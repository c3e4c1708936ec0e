//! The audit: append-only entries, each one chained to its predecessor by SHA-256.
//!
//! Owns the entry's shape, its stored bytes and the check of a chain. Leaves appending to [`crate::chain`].
//! Invariant: hash(n) = SHA-256(hash(n-1) || stored JSON of n), so no entry can be changed, dropped from
//! the middle or moved without breaking every later one.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::limits;
use crate::opening::lost_sentence;

/// What a user of the store says of one privileged action. Never a secret, never message content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Wall time at the writer, in milliseconds since 1970; 0 lets the store's thread fill it in.
    pub at_unix_ms: i64,
    /// Who: an operator's name, `local`, `node:ID`, `edge`.
    pub actor: String,
    /// The command that caused it, or empty.
    pub command_id: String,
    /// The action's name: `node.drain`, `token.refused`.
    pub action: String,
    /// What it was done to: a node id, a token id.
    pub subject: String,
    /// `succeeded`, `refused`, `failed`.
    pub outcome: String,
    /// Joins it with logs and errors, or empty.
    pub correlation_id: String,
    /// One sentence for people; the true reason of a refusal.
    pub detail: String,
}

impl AuditRecord {
    /// An entry of the daemon itself; the other fields are set by the caller.
    pub fn new(action: impl Into<String>, subject: impl Into<String>, outcome: impl Into<String>) -> Self {
        Self { action: action.into(), subject: subject.into(), outcome: outcome.into(), ..Self::default() }
    }

    /// Sets who did it.
    pub fn by(mut self, actor: impl Into<String>) -> Self {
        self.actor = actor.into();
        self
    }

    /// Sets the sentence.
    pub fn because(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Sets command and correlation id.
    pub fn of(mut self, command_id: impl Into<String>, correlation_id: impl Into<String>) -> Self {
        self.command_id = command_id.into();
        self.correlation_id = correlation_id.into();
        self
    }

    fn cut(&mut self) {
        let texts = [
            &mut self.actor,
            &mut self.command_id,
            &mut self.action,
            &mut self.subject,
            &mut self.outcome,
            &mut self.correlation_id,
            &mut self.detail,
        ];
        for text in texts {
            let mut end = limits::AUDIT_FIELD.min(text.len());
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            text.truncate(end);
        }
    }
}

/// An entry as it stands in the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// From 1, without a gap.
    pub sequence: u64,
    /// What was done.
    pub record: AuditRecord,
    /// Hash of the entry before; zeros for the first.
    pub previous: [u8; 32],
    /// Hash of this entry.
    pub hash: [u8; 32],
}

/// The newest entry's number and hash. Kept elsewhere, it shows a cut tail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditHead {
    /// 0: empty.
    pub sequence: u64,
    /// Zeros: empty.
    pub hash: [u8; 32],
}

/// What stands at one number of the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditAt {
    /// An entry with this hash.
    Entry([u8; 32]),
    /// Nothing any more: it was too old, or there were too many.
    Aged,
    /// Nothing that can be used, and age did not take it.
    Nothing,
}

/// An entry as it is stored and hashed: SHA-256 over `previous` and `entry` gives `hash`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// From 1, without a gap.
    pub sequence: u64,
    /// Hash of the entry before; zeros for the first.
    pub previous: [u8; 32],
    /// The exact JSON text.
    pub entry: String,
    /// Hash of this entry.
    pub hash: [u8; 32],
}

/// What a check of the whole chain found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditCheck {
    /// Entries that follow from each other.
    pub entries: u64,
    /// The oldest kept one; what was before it is the checkpoint's.
    pub first: u64,
    /// The newest one that follows from all before it.
    pub last: AuditHead,
    /// The first entry that does not hold, and how.
    pub broken: Option<(u64, String)>,
    /// Entries that a rescue from a damaged file lost and that age would not have taken yet: the first and the last of
    /// each range. Numbers at the end of a range may have been given again.
    pub lost: Vec<(u64, u64)>,
}

impl AuditCheck {
    /// Nothing breaks, and nothing is missing but what was too old.
    pub fn is_whole(&self) -> bool {
        self.broken.is_none() && self.lost.is_empty()
    }

    /// What it found, for people.
    pub fn sentence(&self) -> String {
        match &self.broken {
            None if self.entries == 0 => "there is no entry".to_owned(),
            None if !self.lost.is_empty() => format!(
                "{} entries, {} to {}, follow from each other, but a rescue from a damaged file cut the chain: {}; look \
                 for them in the file that was moved aside, in a backup or in an export",
                self.entries,
                self.first,
                self.last.sequence,
                lost_sentence(&self.lost)
            ),
            None => {
                format!(
                    "{} entries, {} to {}, follow from each other",
                    self.entries, self.first, self.last.sequence
                )
            }
            Some((at, how)) => format!(
                "the chain breaks at entry {at}: {how}. Compare it with an export or with the last hash that another \
                 server was told, and find out who could write the state directory"
            ),
        }
    }
}

/// The first entry at which a chain does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the audit chain breaks at entry {sequence}")]
pub struct AuditBroken {
    /// Its number.
    pub sequence: u64,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    sequence: u64,
    #[serde(flatten)]
    record: AuditRecord,
}

/// Appends one entry to a chain: its stored bytes and the new head.
pub(crate) fn append(head: AuditHead, mut record: AuditRecord, now_unix_ms: i64) -> (Vec<u8>, AuditHead) {
    record.cut();
    if record.at_unix_ms == 0 {
        record.at_unix_ms = now_unix_ms;
    }
    let sequence = head.sequence + 1;
    // A struct of numbers and texts always has a JSON form.
    let json = serde_json::to_vec(&Stored { sequence, record }).unwrap_or_default();
    let hash = chain(&head.hash, &json);
    let mut bytes = Vec::with_capacity(64 + json.len());
    bytes.extend_from_slice(&head.hash);
    bytes.extend_from_slice(&hash);
    bytes.extend_from_slice(&json);
    (bytes, AuditHead { sequence, hash })
}

/// Reads an entry's stored bytes; `None` when they are no entry or do not match their own hash.
pub(crate) fn decode(bytes: &[u8]) -> Option<AuditEntry> {
    let (previous, rest) = bytes.split_first_chunk::<32>()?;
    let (hash, json) = rest.split_first_chunk::<32>()?;
    if chain(previous, json) != *hash {
        return None;
    }
    let Stored { sequence, record } = serde_json::from_slice(json).ok()?;
    Some(AuditEntry { sequence, record, previous: *previous, hash: *hash })
}

/// An entry's stored bytes as they are exported; `None` when they are no entry.
pub(crate) fn line(sequence: u64, bytes: &[u8]) -> Option<AuditLine> {
    let (previous, rest) = bytes.split_first_chunk::<32>()?;
    let (hash, json) = rest.split_first_chunk::<32>()?;
    let entry = String::from_utf8(json.to_vec()).ok()?;
    Some(AuditLine { sequence, previous: *previous, entry, hash: *hash })
}

/// Checks that entries follow each other without a gap, each one carrying the hash of the one before.
pub fn verify(entries: &[AuditEntry]) -> Result<(), AuditBroken> {
    for pair in entries.windows(2) {
        if let [first, second] = pair
            && (second.sequence != first.sequence + 1 || second.previous != first.hash)
        {
            return Err(AuditBroken { sequence: second.sequence });
        }
    }
    Ok(())
}

fn chain(previous: &[u8; 32], json: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(previous);
    hash.update(json);
    hash.finalize().into()
}
