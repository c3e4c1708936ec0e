//! What a commit means, whatever engine stores it.
//!
//! Owns preconditions, effects, positions, the change list, the audit chain and the marks.
//! Pure: engines, threads and clocks are arguments. Invariant: an operation checks all of its
//! preconditions before it changes anything, so one that fails leaves the shared transaction clean.

use crate::audit::{self, AuditEntry, AuditHead};
use crate::backend::{Backend, Failure, Space, Transaction, View};
use crate::commit::{Change, Commit, Effect, Expected, Position, Row};
use crate::error::Gone;
use crate::limits;
use crate::owed::Owed;

/// Newest schema that this program reads and writes.
pub(crate) const SCHEMA: u32 = 1;

const SCHEMA_KEY: &[u8] = b"schema";
const OWNER_KEY: &[u8] = b"owner";
const INCARNATION_KEY: &[u8] = b"incarnation";
const POSITION_KEY: &[u8] = b"position";
const AUDIT_KEY: &[u8] = b"audit";
const MARK_PREFIX: &[u8] = b"mark/";

/// What stands in a file's first rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) schema: u32,
    pub(crate) owner: String,
    pub(crate) incarnation: String,
}

/// Writes the identity of a new store.
pub(crate) fn initialise(tx: &mut dyn Transaction, identity: &Identity) -> Result<(), Failure> {
    tx.put(Space::Meta, SCHEMA_KEY, &identity.schema.to_be_bytes())?;
    tx.put(Space::Meta, OWNER_KEY, identity.owner.as_bytes())?;
    tx.put(Space::Meta, INCARNATION_KEY, identity.incarnation.as_bytes())
}

/// Reads it; `None` when the store is new.
pub(crate) fn identity(view: &dyn View) -> Result<Option<Identity>, Failure> {
    let Some(schema) = view.get(Space::Meta, SCHEMA_KEY)? else { return Ok(None) };
    let schema = schema.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
    let schema = schema.ok_or_else(|| Failure("the schema version does not decode".to_owned()))?;
    let text = |key| -> Result<String, Failure> {
        let bytes = view.get(Space::Meta, key)?.unwrap_or_default();
        String::from_utf8(bytes).map_err(|_| Failure("the identity does not decode".to_owned()))
    };
    Ok(Some(Identity { schema, owner: text(OWNER_KEY)?, incarnation: text(INCARNATION_KEY)? }))
}

/// Newest committed position.
pub(crate) fn position(view: &dyn View) -> Result<Position, Failure> {
    Ok(Position(number(view, POSITION_KEY)?))
}

/// Newest audit entry.
pub(crate) fn audit_head(view: &dyn View) -> Result<AuditHead, Failure> {
    let Some(bytes) = view.get(Space::Meta, AUDIT_KEY)? else { return Ok(AuditHead::default()) };
    let decoded = bytes.split_first_chunk::<8>().and_then(|(sequence, hash)| {
        Some(AuditHead { sequence: u64::from_be_bytes(*sequence), hash: hash.try_into().ok()? })
    });
    decoded.ok_or_else(|| Failure("the audit's head does not decode".to_owned()))
}

/// Applies one operation inside a transaction that it may share with others: its position, or the index
/// of the precondition that does not hold.
pub(crate) fn apply(
    tx: &mut dyn Transaction,
    commit: &Commit,
    now_unix_ms: i64,
) -> Result<Result<Position, usize>, Failure> {
    for (index, condition) in commit.preconditions.iter().enumerate() {
        let row = row(tx, condition.table, &condition.key)?;
        let holds = match (condition.expected, row) {
            (Expected::Absent, None) | (Expected::Present, Some(_)) => true,
            (Expected::At(position), Some(row)) => row.position == position,
            _ => false,
        };
        if !holds {
            return Ok(Err(index));
        }
    }
    let next = Position(position(tx)?.0 + 1);
    let mut changed = Vec::with_capacity(commit.effects.len());
    for effect in &commit.effects {
        match effect {
            Effect::Put { table, key, value } => {
                let mut stored = Vec::with_capacity(8 + value.len());
                stored.extend_from_slice(&next.0.to_be_bytes());
                stored.extend_from_slice(value);
                tx.put(Space::Rows, &row_key(table, key), &stored)?;
                changed.push((*table, key.as_str()));
            }
            Effect::Remove { table, key } => {
                tx.remove(Space::Rows, &row_key(table, key))?;
                changed.push((*table, key.as_str()));
            }
        }
    }
    let listed = serde_json::to_vec(&changed).map_err(|error| Failure(error.to_string()))?;
    tx.put(Space::Changes, &next.0.to_be_bytes(), &listed)?;
    if let Some(old) = next.0.checked_sub(limits::CHANGES_KEPT) {
        tx.remove(Space::Changes, &old.to_be_bytes())?;
    }
    append_audit(tx, commit, now_unix_ms)?;
    tx.put(Space::Meta, POSITION_KEY, &next.0.to_be_bytes())?;
    Ok(Ok(next))
}

/// Writes what is in force already, and tells the rows as they stand after it.
pub(crate) fn settle(
    tx: &mut dyn Transaction,
    owed: &Owed,
    now_unix_ms: i64,
) -> Result<Vec<Change>, Failure> {
    let mut commit = Commit::new();
    let mut touched = Vec::with_capacity(owed.amends.len());
    for (table, key, amend) in &owed.amends {
        let Some(row) = row(tx, table, key)? else { continue };
        if let Some(value) = amend(&row.value) {
            commit = commit.put(table, key.clone(), value);
        }
        touched.push((*table, key));
    }
    let commit = commit.and(owed.rest.clone());
    // It has no preconditions, so that none can fail.
    let Ok(position) = apply(tx, &commit, now_unix_ms)? else { return Ok(Vec::new()) };
    let mut changes = Vec::with_capacity(touched.len());
    for (table, key) in touched {
        let row = row(tx, table, key)?;
        changes.push(Change { position, table: table.to_owned(), key: key.clone(), row });
    }
    Ok(changes)
}

fn append_audit(tx: &mut dyn Transaction, commit: &Commit, now_unix_ms: i64) -> Result<(), Failure> {
    if commit.audit.is_empty() {
        return Ok(());
    }
    let mut head = audit_head(tx)?;
    for record in &commit.audit {
        let (bytes, next) = audit::append(head, record.clone(), now_unix_ms);
        tx.put(Space::Audit, &next.sequence.to_be_bytes(), &bytes)?;
        if let Some(old) = next.sequence.checked_sub(limits::AUDIT_KEPT) {
            tx.remove(Space::Audit, &old.to_be_bytes())?;
        }
        head = next;
    }
    let mut bytes = head.sequence.to_be_bytes().to_vec();
    bytes.extend_from_slice(&head.hash);
    tx.put(Space::Meta, AUDIT_KEY, &bytes)
}

/// All rows of a table, in the order of their keys.
pub(crate) fn load(view: &dyn View, table: &str) -> Result<Vec<Row>, Failure> {
    let from = row_key(table, "");
    // The name ends with NUL, so the next table starts at the name and 1.
    let mut to = table.as_bytes().to_vec();
    to.push(1);
    let mut rows = Vec::new();
    for (key, value) in view.scan(Space::Rows, &from, &to, usize::MAX, false)? {
        let key = key.get(from.len()..).unwrap_or_default();
        rows.push(decode_row(key, &value)?);
    }
    Ok(rows)
}

/// One row.
pub(crate) fn row(view: &dyn View, table: &str, key: &str) -> Result<Option<Row>, Failure> {
    match view.get(Space::Rows, &row_key(table, key))? {
        Some(value) => Ok(Some(decode_row(key.as_bytes(), &value)?)),
        None => Ok(None),
    }
}

/// What changed after a position, oldest first, each row once for each commit that touched it.
pub(crate) fn changes_since(view: &dyn View, asked: Position) -> Result<Result<Vec<Change>, Gone>, Failure> {
    let newest = position(view)?;
    let oldest = Position(newest.0.saturating_sub(limits::CHANGES_KEPT));
    // A position of the future belongs to another incarnation: what the asker has is void.
    if asked < oldest || asked > newest {
        return Ok(Err(Gone { asked, oldest }));
    }
    let from = (asked.0 + 1).to_be_bytes();
    let mut changes = Vec::new();
    for (key, listed) in view.scan(Space::Changes, &from, &[0xFF; 9], usize::MAX, false)? {
        let position = key.first_chunk::<8>().map(|bytes| Position(u64::from_be_bytes(*bytes)));
        let position = position.ok_or_else(|| Failure("a change does not decode".to_owned()))?;
        let listed: Vec<(String, String)> =
            serde_json::from_slice(&listed).map_err(|_| Failure("a change does not decode".to_owned()))?;
        for (table, key) in listed {
            let row = row(view, &table, &key)?;
            changes.push(Change { position, table, key, row });
        }
    }
    Ok(Ok(changes))
}

/// At most `limit` audit entries after a sequence, oldest first.
pub(crate) fn audit_after(view: &dyn View, after: u64, limit: usize) -> Result<Vec<AuditEntry>, Failure> {
    let from = after.saturating_add(1).to_be_bytes();
    let pairs = view.scan(Space::Audit, &from, &[0xFF; 9], limit.min(limits::AUDIT_PAGE), false)?;
    pairs.iter().map(|(_, bytes)| decode_entry(bytes)).collect()
}

/// The newest `limit` audit entries, oldest first.
pub(crate) fn audit_tail(view: &dyn View, limit: usize) -> Result<Vec<AuditEntry>, Failure> {
    let mut pairs = view.scan(Space::Audit, &[0; 8], &[0xFF; 9], limit.min(limits::AUDIT_PAGE), true)?;
    pairs.reverse();
    pairs.iter().map(|(_, bytes)| decode_entry(bytes)).collect()
}

/// Reserves the next `block` numbers of a mark on disk and returns the first.
pub(crate) fn reserve(tx: &mut dyn Transaction, name: &str, block: u64) -> Result<u64, Failure> {
    let key = [MARK_PREFIX, name.as_bytes()].concat();
    let first = number(tx, &key)?.max(1);
    let end = first.checked_add(block).ok_or_else(|| Failure(format!("mark {name} is used up")))?;
    tx.put(Space::Meta, &key, &end.to_be_bytes())?;
    Ok(first)
}

/// Opens a store's engine: checks whose it is, or makes it this owner's if that is wanted. Else it is somebody's, or
/// nobody's.
pub(crate) fn claim(
    backend: &mut dyn Backend,
    owner: &str,
    incarnation: String,
    make: bool,
) -> Result<Result<Identity, Option<Identity>>, Failure> {
    let mut found = None;
    backend.read(&mut |view| {
        found = identity(view)?;
        Ok(())
    })?;
    match found {
        Some(found) if found.owner == owner && found.schema <= SCHEMA => Ok(Ok(found)),
        Some(found) => Ok(Err(Some(found))),
        None if !make => Ok(Err(None)),
        None => {
            let new = Identity { schema: SCHEMA, owner: owner.to_owned(), incarnation };
            backend.write(&mut |tx| initialise(tx, &new))?;
            Ok(Ok(new))
        }
    }
}

fn row_key(table: &str, key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(table.len() + 1 + key.len());
    bytes.extend_from_slice(table.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

fn decode_row(key: &[u8], stored: &[u8]) -> Result<Row, Failure> {
    let key = String::from_utf8(key.to_vec()).map_err(|_| Failure("a key does not decode".to_owned()))?;
    let Some((position, value)) = stored.split_first_chunk::<8>() else {
        return Err(Failure(format!("row {key} does not decode")));
    };
    Ok(Row { key, value: value.to_vec(), position: Position(u64::from_be_bytes(*position)) })
}

fn decode_entry(bytes: &[u8]) -> Result<AuditEntry, Failure> {
    audit::decode(bytes).ok_or_else(|| Failure("an audit entry does not match its hash".to_owned()))
}

fn number(view: &dyn View, key: &[u8]) -> Result<u64, Failure> {
    match view.get(Space::Meta, key)? {
        None => Ok(0),
        Some(bytes) => bytes
            .first_chunk::<8>()
            .map(|bytes| u64::from_be_bytes(*bytes))
            .ok_or_else(|| Failure("a number does not decode".to_owned())),
    }
}
