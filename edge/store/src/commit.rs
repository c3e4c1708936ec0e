//! What a user proposes to the store: preconditions, effects, an audit entry.
//!
//! Owns the shapes and their bounds. Leaves applying them to [`crate::core`].

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::audit::AuditRecord;
use crate::error::{CommitError, ReadError};
use crate::limits;

/// A row's JSON is written into so many bytes to begin with: most have room in them, the largest (a node's report) grow.
const ROW_BYTES: usize = 1024;

/// A place in the order of commits. Only the store gives them; they only grow within one incarnation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl std::fmt::Display for Position {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(out)
    }
}

/// A stored row and the position of the commit that wrote it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Unique in its table.
    pub key: String,
    /// What the user stored.
    pub value: Vec<u8>,
    /// When it was written.
    pub position: Position,
}

impl Row {
    /// The value as the JSON that [`Commit::put_json`] stored. Fails when the row has another shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ReadError> {
        serde_json::from_slice(&self.value)
            .map_err(|error| ReadError::Failed(format!("row {} does not decode: {error}", self.key)))
    }
}

/// What must hold of a row inside the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No such row.
    Absent,
    /// The row exists.
    Present,
    /// The row was last written by this commit.
    At(Position),
}

/// A condition on one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// Table of the row.
    pub table: &'static str,
    /// Key of the row.
    pub key: String,
    /// What must hold.
    pub expected: Expected,
}

/// A change of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Writes a row, new or not.
    Put {
        /// Table of the row.
        table: &'static str,
        /// Key of the row.
        key: String,
        /// The new value.
        value: Vec<u8>,
    },
    /// Removes a row; one that is not there is no error.
    Remove {
        /// Table of the row.
        table: &'static str,
        /// Key of the row.
        key: String,
    },
}

/// A changed row, as `changes_since` tells it: with the value it has now, which may be a later one's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The commit that changed it.
    pub position: Position,
    /// Table of the row.
    pub table: String,
    /// Key of the row.
    pub key: String,
    /// The row now; `None` when it is gone.
    pub row: Option<Row>,
}

/// One atomic proposal. All of it happens, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Checked inside the transaction, in order.
    pub preconditions: Vec<Precondition>,
    /// Applied in order when all preconditions hold.
    pub effects: Vec<Effect>,
    /// Appended to the audit in the same transaction, in order.
    pub audit: Vec<AuditRecord>,
}

impl Commit {
    /// An empty proposal.
    pub fn new() -> Self {
        Self::default()
    }

    /// The row must not exist.
    pub fn require_absent(self, table: &'static str, key: impl Into<String>) -> Self {
        self.require(table, key, Expected::Absent)
    }

    /// The row must exist.
    pub fn require_present(self, table: &'static str, key: impl Into<String>) -> Self {
        self.require(table, key, Expected::Present)
    }

    /// The row must be the one that was read at this position.
    pub fn require_at(self, table: &'static str, key: impl Into<String>, position: Position) -> Self {
        self.require(table, key, Expected::At(position))
    }

    /// Adds a condition.
    pub fn require(mut self, table: &'static str, key: impl Into<String>, expected: Expected) -> Self {
        self.preconditions.push(Precondition { table, key: key.into(), expected });
        self
    }

    /// Writes a row.
    pub fn put(mut self, table: &'static str, key: impl Into<String>, value: Vec<u8>) -> Self {
        self.effects.push(Effect::Put { table, key: key.into(), value });
        self
    }

    /// Writes a row as JSON. A value that has no JSON form (a map with keys that are no text) makes the
    /// whole commit fail with [`CommitError::TooLarge`].
    pub fn put_json<T: Serialize>(self, table: &'static str, key: impl Into<String>, value: &T) -> Self {
        // An empty value is never valid JSON, so `check` refuses what did not serialize.
        let mut bytes = Vec::with_capacity(ROW_BYTES);
        if serde_json::to_writer(&mut bytes, value).is_err() {
            bytes.clear();
        }
        self.put(table, key, bytes)
    }

    /// Removes a row.
    pub fn remove(mut self, table: &'static str, key: impl Into<String>) -> Self {
        self.effects.push(Effect::Remove { table, key: key.into() });
        self
    }

    /// Appends an audit entry.
    pub fn audit(mut self, record: AuditRecord) -> Self {
        self.audit.push(record);
        self
    }

    /// Adds everything of another proposal after this one's.
    pub fn and(mut self, other: Commit) -> Self {
        self.preconditions.extend(other.preconditions);
        self.effects.extend(other.effects);
        self.audit.extend(other.audit);
        self
    }

    pub(crate) fn bytes(&self) -> usize {
        let effects: usize = self
            .effects
            .iter()
            .map(|effect| match effect {
                Effect::Put { key, value, .. } => key.len() + value.len(),
                Effect::Remove { key, .. } => key.len(),
            })
            .sum();
        effects + self.audit.len() * 512
    }

    pub(crate) fn check(&self) -> Result<(), CommitError> {
        if self.effects.len() + self.preconditions.len() + self.audit.len() > limits::EFFECTS {
            return Err(CommitError::TooLarge("too many effects"));
        }
        let names = self.preconditions.iter().map(|one| (one.table, &one.key)).chain(
            self.effects.iter().map(|one| match one {
                Effect::Put { table, key, .. } | Effect::Remove { table, key } => (*table, key),
            }),
        );
        for (table, key) in names {
            if table.is_empty() || table.len() > limits::TABLE_NAME || table.contains('\0') {
                return Err(CommitError::TooLarge("table name is empty or too long"));
            }
            if key.is_empty() || key.len() > limits::KEY {
                return Err(CommitError::TooLarge("key is empty or too long"));
            }
        }
        for effect in &self.effects {
            if let Effect::Put { value, .. } = effect {
                if value.is_empty() {
                    return Err(CommitError::TooLarge("value is empty"));
                }
                if value.len() > limits::VALUE {
                    return Err(CommitError::TooLarge("value is too long"));
                }
            }
        }
        Ok(())
    }
}
