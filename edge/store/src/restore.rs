//! Starting from a backup: the same state, as a new incarnation.
//!
//! Owns the exchange of the files. Leaves what must not be taken over (open tokens) to the caller, who changes the
//! restored store before it is put in place. Invariants: the backup is only read; what stood in its place is moved
//! aside and never deleted; numbers that only grow stay above those that were given after the backup.

use std::path::{Path, PathBuf};

use crate::audit::AuditRecord;
use crate::backend::{Backend, Failure, Space, Transaction, View};
use crate::backup::{self, beside};
use crate::commit::Position;
use crate::core::{self, Identity, SCHEMA, initialise};
use crate::error::{OpenError, RestoreError};
use crate::handle::{Store, new_incarnation};
use crate::marks::of_this_time;
use crate::opening::{Origin, put_origin};
use crate::redb_file::RedbFile;
use crate::switch::WriteSwitch;
use crate::writer::now_unix_ms;
use crate::{chain, limits};

/// How far numbers go on above a backup that is younger than the clock says it can be: no backup is older.
const LONG_AFTER_MS: i64 = 366 * 24 * 3_600 * 1_000;
/// Positions that a restored store leaves out, so that no reader takes its changes for those it missed.
const POSITIONS: u64 = 1 << 32;

/// A backup that is about to take a store's place. Dropped, nothing has happened.
#[derive(Debug)]
pub struct Restoring {
    part: PathBuf,
    to: PathBuf,
    state_of_unix_ms: i64,
}

/// A store that was put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// When its state was current, in milliseconds since 1970.
    pub state_of_unix_ms: i64,
    /// Where the one that stood in its place is now.
    pub replaced: Option<PathBuf>,
}

impl Restoring {
    /// Makes the restored store beside `to`, which belongs to `owner` and must not be in use. `about` must be what the
    /// backup was made with; a store's own file, which says nothing, is taken too.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn begin(from: &Path, to: &Path, owner: &str, about: &str) -> Result<Self, RestoreError> {
        not_in_use(to, owner)?;
        let source = RedbFile::look(from, owner, true)?;
        let part = beside(to, &format!("restoring-{}", std::process::id()));
        let mut this = Self { part, to: to.to_owned(), state_of_unix_ms: 0 };
        let failed = |Failure(cause)| RestoreError::Failed { path: to.to_owned(), cause };
        let mut judged = Ok(0);
        let mut file = backup::fresh(&this.part).map_err(failed)?;
        source
            .reader()
            .read(&mut |view| {
                judged = judge(view, from, owner, about)?;
                if judged.is_ok() {
                    backup::copy(view, &mut file, &|space, key| {
                        space != Space::Changes && !backup::is_stamp(space, key)
                    })?;
                }
                Ok(())
            })
            .map_err(failed)?;
        let now = now_unix_ms();
        this.state_of_unix_ms = judged?;
        let origin =
            Origin { state_of_unix_ms: this.state_of_unix_ms, placed_unix_ms: now, ..Origin::default() };
        file.write(&mut |tx| reborn(tx, &origin, now)).map_err(failed)?;
        file.close();
        Ok(this)
    }

    /// The restored store, to be changed before it is in place; close it before [`Restoring::finish`].
    ///
    /// # Errors
    /// As of opening a store.
    pub fn open(&self, owner: &str) -> Result<Store, OpenError> {
        Store::open_existing(&self.part, owner)
    }

    /// Puts it in place.
    ///
    /// # Errors
    /// If the names cannot be changed; the sentence says what stands where.
    pub fn finish(self) -> Result<Restored, RestoreError> {
        let failed =
            |error: std::io::Error| RestoreError::Failed { path: self.to.clone(), cause: error.to_string() };
        let replaced = set_aside(&self.to, "replaced").map_err(failed)?;
        backup::settle(&self.part, &self.to).map_err(failed)?;
        Ok(Restored { state_of_unix_ms: self.state_of_unix_ms, replaced })
    }
}

impl Drop for Restoring {
    fn drop(&mut self) {
        // After `finish` there is none.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Moves a file aside under a name that says when; `None` if there is none.
pub(crate) fn set_aside(path: &Path, why: &str) -> std::io::Result<Option<PathBuf>> {
    if !path.exists() {
        return Ok(None);
    }
    let aside = beside(path, &format!("{why}-{}", now_unix_ms()));
    std::fs::rename(path, &aside)?;
    backup::sync_directory(path)?;
    Ok(Some(aside))
}

fn not_in_use(path: &Path, owner: &str) -> Result<(), RestoreError> {
    match RedbFile::open_existing(path, owner, WriteSwitch::default()) {
        Err(error @ OpenError::InUse { .. }) => Err(RestoreError::Open(error)),
        // Missing or damaged: that is why there is a backup.
        _ => Ok(()),
    }
}

// When the state was current, if this file may be restored here.
fn judge(
    view: &dyn View,
    from: &Path,
    owner: &str,
    about: &str,
) -> Result<Result<i64, RestoreError>, Failure> {
    let refuse = |cause: String| Ok(Err(RestoreError::NotThis { path: from.to_owned(), cause }));
    let Some(Identity { schema, owner: found, .. }) = core::identity(view)? else {
        return refuse("it is no backup of a store".to_owned());
    };
    if found != owner {
        return refuse(format!("it is of another kind of daemon, {found}, and this is {owner}"));
    }
    if schema > SCHEMA {
        return refuse(format!(
            "it has schema {schema}, this program knows up to {SCHEMA}; use the newer one"
        ));
    }
    match backup::stamp(view)? {
        Some(stamp) if stamp.about != about => {
            refuse(format!("it is of `{}`, and this is `{about}`", stamp.about))
        }
        Some(stamp) => Ok(Ok(stamp.made_unix_ms)),
        // A store's own file: its newest entry is the best that is known of its time.
        None => Ok(Ok(chain::tail(view, 1)?.last().map_or(0, |entry| entry.record.at_unix_ms))),
    }
}

/// The moment whose numbers are above all that were given after a backup. A clock that is before the backup's own time is
/// wrong and says nothing of it.
fn moment(state_of_unix_ms: i64, now_unix_ms: i64) -> i64 {
    if now_unix_ms < state_of_unix_ms { state_of_unix_ms.saturating_add(LONG_AFTER_MS) } else { now_unix_ms }
}

/// Makes a copy of a store another incarnation of it.
pub(crate) fn reborn(tx: &mut dyn Transaction, origin: &Origin, now_unix_ms: i64) -> Result<(), Failure> {
    let mut identity = core::identity(tx)?.ok_or_else(|| Failure("it has no identity".to_owned()))?;
    identity.incarnation = new_incarnation();
    initialise(tx, &identity)?;
    put_origin(tx, origin)?;
    let position = core::position(tx)?;
    core::put_position(tx, Position(position.0 + POSITIONS + limits::CHANGES_KEPT))?;
    core::raise_marks(tx, of_this_time(moment(origin.state_of_unix_ms, now_unix_ms)))?;
    let sentence = match origin.rescued {
        None => format!("its state is of {} ms since 1970", origin.state_of_unix_ms),
        Some(kept) => format!(
            "read out of a damaged file, which was moved aside: {kept} records were kept, {} could not be used{}",
            origin.unusable,
            match origin.audit_lost_sentence() {
                lost if lost.is_empty() => lost,
                lost => format!("; {lost}"),
            }
        ),
    };
    let action = if origin.rescued.is_some() { "store.rescued" } else { "store.restored" };
    let entry = AuditRecord::new(action, &identity.incarnation, "succeeded").by("store").because(sentence);
    chain::append(tx, &[entry], now_unix_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found as seed 1596: the host's clock was 70 days behind when its backup of a minute ago was put in place.
    #[test]
    fn numbers_go_on_above_a_backup_whatever_the_clock_says() {
        let (backup, minute, day) = (1_786_320_016_435, 60_000, 86_400_000);
        let given = of_this_time(backup + minute);
        assert!(of_this_time(moment(backup, backup - 70 * day)) > given);
        assert!(of_this_time(moment(backup, backup + 2 * minute)) > given);
        assert!(of_this_time(moment(i64::MAX, 0)) > given);
    }
}
