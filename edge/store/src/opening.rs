//! Whose a file is, what schema it has, and how an older one becomes this program's.
//!
//! Owns the claim, the migrations and what a store remembers of where it came from. Invariants: a migration goes
//! forward only, in one transaction, and a copy of the file as it was is kept before it; a file of a newer program or
//! of another kind of daemon is left alone.

use serde::{Deserialize, Serialize};

use crate::audit::AuditHead;
use crate::backend::{Backend, Failure, Reader, Space, Transaction, View};
use crate::chain;
use crate::core::{self, Identity, SCHEMA, encode_row, initialise, stored_position};

const ORIGIN_KEY: &[u8] = b"origin";

/// Where a store came from, if it did not grow up where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// When the state that it began with was current, in milliseconds since 1970. What happened after that is not in
    /// it. 0: unknown, any time.
    pub state_of_unix_ms: i64,
    /// When it was put in place.
    pub placed_unix_ms: i64,
    /// It was read out of a damaged file: so many records were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescued: Option<u64>,
    /// Records of the damaged file that could not be used, as far as they could be counted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unusable: u64,
    /// Audit entries of the damaged file that are not in this store: the first and the last of each range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audit_lost: Vec<(u64, u64)>,
}

impl Origin {
    /// Which audit entries a rescue lost, for people; empty: none.
    pub fn audit_lost_sentence(&self) -> String {
        lost_sentence(&self.audit_lost)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Ranges of lost audit entries, for people.
pub(crate) fn lost_sentence(ranges: &[(u64, u64)]) -> String {
    if ranges.is_empty() {
        return String::new();
    }
    let count: u64 = ranges.iter().map(|(first, last)| last.saturating_sub(*first).saturating_add(1)).sum();
    let each: Vec<_> = ranges.iter().map(|(first, last)| format!("{first} to {last}")).collect();
    format!("{count} audit entries are lost, numbers {}", each.join(" and "))
}

/// What is known of a file that is ours.
#[derive(Clone, Debug)]
pub(crate) struct Opened {
    pub(crate) incarnation: String,
    pub(crate) head: AuditHead,
    pub(crate) origin: Option<Origin>,
}

/// Whose a file is.
#[derive(Debug)]
pub(crate) enum Claim {
    Ours(Opened),
    Others(Identity),
    Nobodys,
    /// Ours, of an older schema, and it cannot be written now.
    Unwritable(String),
}

/// Claims a file: makes it this owner's if it is nobody's and that is wanted, and brings it to this schema. `keep`
/// copies it before that.
pub(crate) fn claim(
    backend: &mut dyn Backend,
    owner: &str,
    incarnation: String,
    make: bool,
    keep: &mut dyn FnMut(&dyn Reader, u32) -> Result<(), Failure>,
) -> Result<Claim, Failure> {
    let reader = backend.reader();
    let mut found = None;
    reader.read(&mut |view| {
        found = core::identity(view)?;
        Ok(())
    })?;
    match found {
        Some(found) if found.owner == owner && found.schema <= SCHEMA => {
            if found.schema < SCHEMA {
                if let Err(Failure(cause)) = keep(&*reader, found.schema) {
                    return Ok(Claim::Unwritable(cause));
                }
                backend.write(&mut |tx| migrate(tx, found.schema))?;
            }
        }
        Some(found) => return Ok(Claim::Others(found)),
        None if !make => return Ok(Claim::Nobodys),
        None => {
            let new = Identity { schema: SCHEMA, owner: owner.to_owned(), incarnation };
            backend.write(&mut |tx| initialise(tx, &new))?;
        }
    }
    let mut opened = None;
    reader.read(&mut |view| {
        opened = Some(about(view)?);
        Ok(())
    })?;
    opened.map(Claim::Ours).ok_or_else(|| Failure("the identity does not decode".to_owned()))
}

fn about(view: &dyn View) -> Result<Opened, Failure> {
    let identity = core::identity(view)?.ok_or_else(|| Failure("it has no identity".to_owned()))?;
    let origin = view.get(Space::Meta, ORIGIN_KEY)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ok(Opened { incarnation: identity.incarnation, head: chain::head(view)?, origin })
}

/// Records where a store came from.
pub(crate) fn put_origin(tx: &mut dyn Transaction, origin: &Origin) -> Result<(), Failure> {
    let json = serde_json::to_vec(origin).map_err(|error| Failure(error.to_string()))?;
    tx.put(Space::Meta, ORIGIN_KEY, &json)
}

/// Brings an older file to this schema.
fn migrate(tx: &mut dyn Transaction, from: u32) -> Result<(), Failure> {
    if from < 2 {
        rows_get_a_check(tx)?;
        the_audit_gets_a_checkpoint(tx)?;
    }
    let mut identity = core::identity(tx)?.ok_or_else(|| Failure("it has no identity".to_owned()))?;
    identity.schema = SCHEMA;
    initialise(tx, &identity)
}

// Schema 1 stored position and value; 2 has a check between them.
fn rows_get_a_check(tx: &mut dyn Transaction) -> Result<(), Failure> {
    for (row_key, stored) in tx.scan(Space::Rows, &[], &[0xFF], usize::MAX, false)? {
        let (Some(position), Some(value)) = (stored_position(&stored), stored.get(8..)) else { continue };
        let stored = encode_row(&row_key, position, value);
        tx.put(Space::Rows, &row_key, &stored)?;
    }
    Ok(())
}

// Schema 1 let go of old entries without leaving word; the oldest kept one knows its predecessor's hash.
fn the_audit_gets_a_checkpoint(tx: &mut dyn Transaction) -> Result<(), Failure> {
    let oldest = tx.scan(Space::Audit, &[], &[0xFF; 9], 1, false)?;
    let Some((key, bytes)) = oldest.first() else { return Ok(()) };
    let sequence = key.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    match (sequence, bytes.first_chunk::<32>()) {
        (2.., Some(previous)) => {
            chain::put_checkpoint(tx, AuditHead { sequence: sequence - 1, hash: *previous })
        }
        _ => Ok(()),
    }
}
