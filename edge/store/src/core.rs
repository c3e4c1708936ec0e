//! What a commit means, whatever engine stores it.
//!
//! Owns preconditions, effects, positions, the change list and the marks; the audit is in [`crate::chain`].
//! Pure: engines, threads and clocks are arguments. Invariant: an operation checks all of its
//! preconditions before it changes anything, so one that fails leaves the shared transaction clean.

use sha2::{Digest, Sha256};

use crate::backend::{Failure, Space, Transaction, View};
use crate::chain;
use crate::commit::{Change, Commit, Effect, Expected, Position, Row};
use crate::error::Gone;
use crate::limits;
use crate::owed::Owed;

/// Newest schema that this program reads and writes.
pub(crate) const SCHEMA: u32 = 2;

const SCHEMA_KEY: &[u8] = b"schema";
const OWNER_KEY: &[u8] = b"owner";
const INCARNATION_KEY: &[u8] = b"incarnation";
const POSITION_KEY: &[u8] = b"position";
const MARK_PREFIX: &[u8] = b"mark/";
const MARK_FLOOR_KEY: &[u8] = b"mark-floor";

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

/// Applies one operation inside a transaction that it may share with others: its position, or the index
/// of the precondition that does not hold.
pub(crate) fn apply(
    tx: &mut dyn Transaction,
    commit: &Commit,
    now_unix_ms: i64,
) -> Result<Result<Position, usize>, Failure> {
    for (index, condition) in commit.preconditions.iter().enumerate() {
        // A row that cannot be used is there all the same: its place is not given to another.
        let stored = tx.get(Space::Rows, &row_key(condition.table, &condition.key))?;
        let holds = match (condition.expected, stored) {
            (Expected::Absent, None) | (Expected::Present, Some(_)) => true,
            (Expected::At(position), Some(stored)) => stored_position(&stored) == Some(position),
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
                let row_key = row_key(table, key);
                tx.put(Space::Rows, &row_key, &encode_row(&row_key, next, value))?;
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
    chain::append(tx, &commit.audit, now_unix_ms)?;
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
        // One that is gone stays gone, and so does one that cannot be used.
        let Some(Ok(row)) = row(tx, table, key)? else { continue };
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
        let row = row(tx, table, key)?.and_then(Result::ok);
        changes.push(Change { position, table: table.to_owned(), key: key.clone(), row });
    }
    Ok(changes)
}

/// All rows of a table, in the order of their keys, and the keys of those that cannot be used.
pub(crate) fn load(view: &dyn View, table: &str) -> Result<(Vec<Row>, Vec<String>), Failure> {
    let from = row_key(table, "");
    // The name ends with NUL, so the next table starts at the name and 1.
    let mut to = table.as_bytes().to_vec();
    to.push(1);
    let (mut rows, mut unusable) = (Vec::new(), Vec::new());
    for (row_key, stored) in view.scan(Space::Rows, &from, &to, usize::MAX, false)? {
        match decode_row(table, &row_key, &stored) {
            Ok(row) => rows.push(row),
            Err(Unusable(key)) => unusable.push(key),
        }
    }
    Ok((rows, unusable))
}

/// Rows of a table with `from <= key < to`, of at most so many that are looked at; the keys of those that cannot be
/// used; and the key to go on from, if there may be more.
pub(crate) fn range(
    view: &dyn View,
    table: &str,
    (from, to): (&str, &str),
    most: usize,
) -> Result<Range, Failure> {
    let mut range = Range::default();
    let pairs = view.scan(Space::Rows, &row_key(table, from), &row_key(table, to), most, false)?;
    let full = pairs.len() >= most;
    for (row_key, stored) in pairs {
        let key = match decode_row(table, &row_key, &stored) {
            Ok(row) => {
                let key = row.key.clone();
                range.rows.push(row);
                key
            }
            Err(Unusable(key)) => {
                range.unusable.push(key.clone());
                key
            }
        };
        // The smallest key above it.
        range.next = full.then(|| key + "\0");
    }
    Ok(range)
}

/// A part of a table.
#[derive(Debug, Default)]
pub(crate) struct Range {
    pub(crate) rows: Vec<Row>,
    pub(crate) unusable: Vec<String>,
    pub(crate) next: Option<String>,
}

/// One row, if it is there; and whether it can be used.
pub(crate) fn row(view: &dyn View, table: &str, key: &str) -> Result<Option<Result<Row, Unusable>>, Failure> {
    let row_key = row_key(table, key);
    Ok(view.get(Space::Rows, &row_key)?.map(|stored| decode_row(table, &row_key, &stored)))
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
            let row = match row(view, &table, &key)? {
                None => None,
                Some(Ok(row)) => Some(row),
                // Whoever loads the table is told; here it would look like one that was removed.
                Some(Err(_)) => continue,
            };
            changes.push(Change { position, table, key, row });
        }
    }
    Ok(Ok(changes))
}

/// Reserves the next `block` numbers of a mark on disk, none below `above`, and returns the first.
pub(crate) fn reserve(tx: &mut dyn Transaction, name: &str, block: u64, above: u64) -> Result<u64, Failure> {
    let key = mark_key(name);
    let first = unreserved(tx, name)?.max(above);
    let end = first.checked_add(block).ok_or_else(|| Failure(format!("mark {name} is used up")))?;
    tx.put(Space::Meta, &key, &end.to_be_bytes())?;
    Ok(first)
}

/// The first number of a mark that was never reserved.
pub(crate) fn unreserved(view: &dyn View, name: &str) -> Result<u64, Failure> {
    Ok(number(view, &mark_key(name))?.max(number(view, MARK_FLOOR_KEY)?).max(1))
}

/// A number above all that were reserved of any mark.
pub(crate) fn above_marks(view: &dyn View) -> Result<u64, Failure> {
    let mut after = MARK_PREFIX.to_vec();
    if let Some(last) = after.last_mut() {
        *last += 1;
    }
    let ends = view.scan(Space::Meta, MARK_PREFIX, &after, usize::MAX, false)?;
    let floor = number(view, MARK_FLOOR_KEY)?;
    // One that does not decode says nothing.
    let ends = ends.iter().filter_map(|(_, end)| Some(u64::from_be_bytes(end.as_slice().try_into().ok()?)));
    Ok(ends.fold(floor, u64::max))
}

/// Nothing below `least` is given out of any mark from now on, known or not.
pub(crate) fn raise_marks(tx: &mut dyn Transaction, least: u64) -> Result<(), Failure> {
    tx.put(Space::Meta, MARK_FLOOR_KEY, &least.to_be_bytes())
}

/// The newest committed position is this one.
pub(crate) fn put_position(tx: &mut dyn Transaction, position: Position) -> Result<(), Failure> {
    tx.put(Space::Meta, POSITION_KEY, &position.0.to_be_bytes())
}

fn mark_key(name: &str) -> Vec<u8> {
    [MARK_PREFIX, name.as_bytes()].concat()
}

pub(crate) fn row_key(table: &str, key: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(table.len() + 1 + key.len());
    bytes.extend_from_slice(table.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// A row that does not verify; its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable(pub(crate) String);

// Over key, position and value: what is read out of a damaged file has nothing else to go by.
fn check(row_key: &[u8], position: Position, value: &[u8]) -> [u8; 8] {
    let mut hash = Sha256::new();
    hash.update(u64::try_from(row_key.len()).unwrap_or(u64::MAX).to_be_bytes());
    hash.update(row_key);
    hash.update(position.0.to_be_bytes());
    hash.update(value);
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().copied().unwrap_or_default()
}

/// A row's stored bytes.
pub(crate) fn encode_row(row_key: &[u8], position: Position, value: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(16 + value.len());
    stored.extend_from_slice(&position.0.to_be_bytes());
    stored.extend_from_slice(&check(row_key, position, value));
    stored.extend_from_slice(value);
    stored
}

/// The position in a row's stored bytes, whether or not the row can be used.
pub(crate) fn stored_position(stored: &[u8]) -> Option<Position> {
    stored.first_chunk().map(|bytes| Position(u64::from_be_bytes(*bytes)))
}

/// A row of a table out of its stored bytes.
pub(crate) fn decode_row(table: &str, row_key: &[u8], stored: &[u8]) -> Result<Row, Unusable> {
    let key = row_key.get(table.len() + 1..).unwrap_or_default();
    let told = || Unusable(String::from_utf8_lossy(key).into_owned());
    let position = stored_position(stored).ok_or_else(told)?;
    let (sum, value) = stored.get(8..).and_then(|rest| rest.split_first_chunk::<8>()).ok_or_else(told)?;
    if *sum != check(row_key, position, value) {
        return Err(told());
    }
    let key = String::from_utf8(key.to_vec()).map_err(|_| told())?;
    Ok(Row { key, value: value.to_vec(), position })
}

pub(crate) fn number(view: &dyn View, key: &[u8]) -> Result<u64, Failure> {
    match view.get(Space::Meta, key)? {
        None => Ok(0),
        Some(bytes) => bytes
            .first_chunk::<8>()
            .map(|bytes| u64::from_be_bytes(*bytes))
            .ok_or_else(|| Failure("a number does not decode".to_owned())),
    }
}
