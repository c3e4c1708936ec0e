//! The audit in the store: appending, reading, searching, checking, and letting go of what is old.
//!
//! Pure, over a transaction. Leaves the entry's shape and hash to [`crate::audit`]. Invariants: sequences grow by one,
//! each entry carries the hash of the one before it, and the oldest kept one that of the checkpoint, which is what
//! pruning leaves; pruning is itself an entry.

use data_encoding::HEXLOWER;

use crate::audit::{self, AuditAt, AuditEntry, AuditHead, AuditLine, AuditRecord};
use crate::backend::{Failure, Space, Transaction, View};
use crate::limits;

const HEAD_KEY: &[u8] = b"audit";
const CHECKPOINT_KEY: &[u8] = b"audit/checkpoint";
const LOST_KEY: &[u8] = b"audit/lost";
/// Ranges that are remembered as lost: as many as a store is rescued within the time that its audit is kept.
const LOST_MAX: usize = 16;
/// The end of every sequence.
const END: [u8; 9] = [0xFF; 9];

/// How much of the audit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retention {
    /// Most entries.
    pub(crate) entries: u64,
    /// Longest time, in milliseconds.
    pub(crate) keep_ms: i64,
}

/// The newest entry.
pub(crate) fn head(view: &dyn View) -> Result<AuditHead, Failure> {
    end(view, HEAD_KEY)
}

/// The newest entry that is no longer kept; of sequence 0 when all are.
pub(crate) fn checkpoint(view: &dyn View) -> Result<AuditHead, Failure> {
    end(view, CHECKPOINT_KEY)
}

fn end(view: &dyn View, key: &[u8]) -> Result<AuditHead, Failure> {
    let Some(bytes) = view.get(Space::Meta, key)? else { return Ok(AuditHead::default()) };
    let decoded = bytes.split_first_chunk::<8>().and_then(|(sequence, hash)| {
        Some(AuditHead { sequence: u64::from_be_bytes(*sequence), hash: hash.try_into().ok()? })
    });
    decoded.ok_or_else(|| Failure("an end of the audit does not decode".to_owned()))
}

pub(crate) fn put_head(tx: &mut dyn Transaction, head: AuditHead) -> Result<(), Failure> {
    put_end(tx, HEAD_KEY, head)
}

pub(crate) fn put_checkpoint(tx: &mut dyn Transaction, checkpoint: AuditHead) -> Result<(), Failure> {
    put_end(tx, CHECKPOINT_KEY, checkpoint)
}

fn put_end(tx: &mut dyn Transaction, key: &[u8], end: AuditHead) -> Result<(), Failure> {
    let mut bytes = end.sequence.to_be_bytes().to_vec();
    bytes.extend_from_slice(&end.hash);
    tx.put(Space::Meta, key, &bytes)
}

/// Ranges of entries that a rescue lost, as long as what is kept begins there or before: age has not reached them.
pub(crate) fn lost(view: &dyn View) -> Result<Vec<(u64, u64)>, Failure> {
    let Some(bytes) = view.get(Space::Meta, LOST_KEY)? else { return Ok(Vec::new()) };
    let mut ranges: Vec<(u64, u64)> = serde_json::from_slice(&bytes).unwrap_or_default();
    let checkpoint = checkpoint(view)?.sequence;
    ranges.retain(|(_, last)| *last >= checkpoint);
    Ok(ranges)
}

/// Remembers ranges that a rescue lost; the newest last.
pub(crate) fn put_lost(tx: &mut dyn Transaction, ranges: &[(u64, u64)]) -> Result<(), Failure> {
    let newest = ranges.get(ranges.len().saturating_sub(LOST_MAX)..).unwrap_or_default();
    let json = serde_json::to_vec(newest).map_err(|error| Failure(error.to_string()))?;
    tx.put(Space::Meta, LOST_KEY, &json)
}

/// Appends entries in order.
pub(crate) fn append(
    tx: &mut dyn Transaction,
    records: &[AuditRecord],
    now_unix_ms: i64,
) -> Result<(), Failure> {
    if records.is_empty() {
        return Ok(());
    }
    let mut head = head(tx)?;
    for record in records {
        let (bytes, next) = audit::append(head, record.clone(), now_unix_ms);
        tx.put(Space::Audit, &next.sequence.to_be_bytes(), &bytes)?;
        head = next;
    }
    put_head(tx, head)
}

fn after_key(sequence: u64) -> [u8; 8] {
    sequence.saturating_add(1).to_be_bytes()
}

fn sequence_of(key: &[u8]) -> u64 {
    key.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// At most `limit` entries after a sequence, oldest first. One that does not verify is left out: [`check`] tells it.
pub(crate) fn after(view: &dyn View, sequence: u64, limit: usize) -> Result<Vec<AuditEntry>, Failure> {
    let pairs = view.scan(Space::Audit, &after_key(sequence), &END, limit.min(limits::AUDIT_PAGE), false)?;
    Ok(pairs.iter().filter_map(|(_, bytes)| audit::decode(bytes)).collect())
}

/// The newest `limit` entries, oldest first.
pub(crate) fn tail(view: &dyn View, limit: usize) -> Result<Vec<AuditEntry>, Failure> {
    let mut pairs = view.scan(Space::Audit, &[0; 8], &END, limit.min(limits::AUDIT_PAGE), true)?;
    pairs.reverse();
    Ok(pairs.iter().filter_map(|(_, bytes)| audit::decode(bytes)).collect())
}

/// Entries after a sequence as they are stored, oldest first.
pub(crate) fn lines(view: &dyn View, sequence: u64, limit: usize) -> Result<Vec<AuditLine>, Failure> {
    let pairs = view.scan(Space::Audit, &after_key(sequence), &END, limit.min(limits::AUDIT_PAGE), false)?;
    Ok(pairs.iter().filter_map(|(key, bytes)| audit::line(sequence_of(key), bytes)).collect())
}

/// What stands at a number.
pub(crate) fn at(view: &dyn View, sequence: u64) -> Result<AuditAt, Failure> {
    let checkpoint = checkpoint(view)?;
    if sequence == checkpoint.sequence {
        return Ok(AuditAt::Entry(checkpoint.hash));
    }
    if sequence < checkpoint.sequence {
        let lost = lost(view)?.iter().any(|(first, last)| (*first..=*last).contains(&sequence));
        return Ok(if lost { AuditAt::Nothing } else { AuditAt::Aged });
    }
    let stored = view.get(Space::Audit, &sequence.to_be_bytes())?;
    let entry = stored.as_deref().and_then(audit::decode).filter(|entry| entry.sequence == sequence);
    Ok(entry.map_or(AuditAt::Nothing, |entry| AuditAt::Entry(entry.hash)))
}

/// What one look of a search came to.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Newest first.
    pub(crate) entries: Vec<AuditEntry>,
    /// How many were looked at.
    pub(crate) looked: usize,
    /// Where the next look begins: below this. `None` when all that is kept was looked at.
    pub(crate) before: Option<u64>,
}

/// Entries below a sequence for which `wanted` holds, newest first: at most `limit`, of at most `look` entries.
pub(crate) fn search(
    view: &dyn View,
    before: u64,
    limit: usize,
    look: usize,
    wanted: &dyn Fn(&AuditEntry) -> bool,
) -> Result<Found, Failure> {
    let pairs =
        view.scan(Space::Audit, &[0; 8], &before.to_be_bytes(), look.min(limits::AUDIT_PAGE), true)?;
    let mut found = Found::default();
    for (key, bytes) in &pairs {
        found.looked += 1;
        found.before = Some(sequence_of(key));
        if let Some(entry) = audit::decode(bytes).filter(|entry| wanted(entry)) {
            found.entries.push(entry);
        }
        if found.entries.len() >= limit {
            break;
        }
    }
    let oldest = checkpoint(view)?.sequence + 1;
    found.before = found.before.filter(|before| *before > oldest);
    Ok(found)
}

/// Where a check of the chain has got to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// The last entry that follows from all before it.
    pub(crate) last: AuditHead,
    /// Entries looked at so far.
    pub(crate) entries: u64,
    /// The first one, once known.
    pub(crate) first: u64,
    /// Where it breaks, and how.
    pub(crate) broken: Option<(u64, String)>,
    /// The end was reached, or a break.
    pub(crate) done: bool,
}

/// Checks the next page; `None` begins at the checkpoint.
pub(crate) fn check(view: &dyn View, so_far: Option<Checked>) -> Result<Checked, Failure> {
    let checkpoint = checkpoint(view)?;
    let mut now = so_far.unwrap_or(Checked {
        last: checkpoint,
        entries: 0,
        first: checkpoint.sequence + 1,
        broken: None,
        done: false,
    });
    if checkpoint.sequence > now.last.sequence {
        // Pruned meanwhile: what is kept begins later.
        now.last = checkpoint;
        now.first = checkpoint.sequence + 1;
    }
    let pairs = view.scan(Space::Audit, &after_key(now.last.sequence), &END, limits::AUDIT_PAGE, false)?;
    for (key, bytes) in &pairs {
        let sequence = sequence_of(key);
        let expected = now.last.sequence + 1;
        let broken = match audit::decode(bytes) {
            _ if sequence != expected => Some((expected, "it is missing")),
            None => Some((sequence, "it does not match its own hash")),
            Some(entry) if entry.sequence != sequence => Some((sequence, "it stands in another's place")),
            Some(entry) if entry.previous != now.last.hash => {
                Some((sequence, "it does not follow from the one before it"))
            }
            Some(entry) => {
                now.last = AuditHead { sequence, hash: entry.hash };
                now.entries += 1;
                None
            }
        };
        if let Some((at, how)) = broken {
            return Ok(Checked { broken: Some((at, how.to_owned())), done: true, ..now });
        }
    }
    if pairs.len() < limits::AUDIT_PAGE {
        now.done = true;
        let head = head(view)?;
        if head != now.last {
            let at = now.last.sequence + 1;
            now.broken = Some((at, format!("entries up to {} were written and are missing", head.sequence)));
        }
    }
    Ok(now)
}

/// Lets go of what is above the bounds, and says so in an entry: how many went. `aged`: looks at the age too.
pub(crate) fn prune(
    tx: &mut dyn Transaction,
    keep: Retention,
    now_unix_ms: i64,
    aged: bool,
) -> Result<u64, Failure> {
    let (newest, oldest) = (head(tx)?, checkpoint(tx)?);
    let kept = newest.sequence.saturating_sub(oldest.sequence);
    let excess = kept.saturating_sub(keep.entries);
    if excess == 0 && !aged {
        return Ok(0);
    }
    // A hundredth more than needed, so that not every later entry lets go of one.
    let spare = if excess > 0 { keep.entries / 100 } else { 0 };
    let wanted = (excess + spare).min(limits::AUDIT_PRUNED);
    let most = limits::AUDIT_PRUNED.min(kept.saturating_sub(1));
    let scan = usize::try_from(most + 1).unwrap_or(usize::MAX);
    let pairs = tx.scan(Space::Audit, &after_key(oldest.sequence), &END, scan, false)?;
    let before = now_unix_ms.saturating_sub(keep.keep_ms);
    let mut gone = 0;
    for (_, bytes) in pairs.iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
        let too_old = aged && audit::decode(bytes).is_none_or(|entry| entry.record.at_unix_ms < before);
        if gone < wanted || too_old {
            gone += 1;
        } else {
            break;
        }
    }
    let count = usize::try_from(gone).unwrap_or(usize::MAX);
    let last = count.checked_sub(1).and_then(|last| pairs.get(last));
    // The hash that the oldest kept one carries is the last one's that went.
    let hash = pairs.get(count).and_then(|(_, bytes)| bytes.first_chunk::<32>());
    let (Some((last, _)), Some(hash)) = (last, hash) else { return Ok(0) };
    let checkpoint = AuditHead { sequence: sequence_of(last), hash: *hash };
    for (key, _) in pairs.iter().take(count) {
        tx.remove(Space::Audit, key)?;
    }
    put_checkpoint(tx, checkpoint)?;
    let range = format!("{}-{}", oldest.sequence + 1, checkpoint.sequence);
    let sentence = format!("too old or too many; the last of them had the hash {}", HEXLOWER.encode(hash));
    append(
        tx,
        &[AuditRecord::new("audit.pruned", range, "succeeded").by("retention").because(sentence)],
        now_unix_ms,
    )?;
    Ok(gone)
}
