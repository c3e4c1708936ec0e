//! Starting from a backup: the same state, as a new incarnation.
//!
//! Owns the exchange of the files. Leaves what must not be taken over (open tokens) to the caller, who changes the
//! restored store before it is put in place. Invariants: the backup is only read; what stood in its place is moved
//! aside and never deleted; numbers that only grow stay above those that were given after the backup, also where the clock was
//! ahead when they were given, unless what stood in its place is lost, or could never be written since.

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
        let replaced = given(to, owner);
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
        file.write(&mut |tx| reborn(tx, &origin, replaced, now)).map_err(failed)?;
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

/// A number above all that the store at `path` has reserved; 0 where it cannot be read: then only the clock says what was given.
fn given(path: &Path, owner: &str) -> u64 {
    // Checked through: a number that is only damaged would use up all that there are.
    let mut above = 0;
    if let Ok(store) = RedbFile::look(path, owner, true) {
        let _ = store.reader().read(&mut |view| {
            if core::identity(view)?.is_some_and(|identity| identity.owner == owner) {
                above = core::above_marks(view)?;
            }
            Ok(())
        });
    }
    above
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

/// Numbers of a damaged file, unless no clock was that far ahead: then they are no numbers.
pub(crate) fn believed(above: u64, now_unix_ms: i64) -> u64 {
    let most = of_this_time(now_unix_ms.saturating_add(LONG_AFTER_MS));
    if above <= most { above } else { 0 }
}

/// Makes a copy of a store another incarnation of it. `above`: what the store that it replaces has reserved of its marks, which a
/// clock that was ahead then may have set above those of the present time.
pub(crate) fn reborn(
    tx: &mut dyn Transaction,
    origin: &Origin,
    above: u64,
    now_unix_ms: i64,
) -> Result<(), Failure> {
    let mut identity = core::identity(tx)?.ok_or_else(|| Failure("it has no identity".to_owned()))?;
    identity.incarnation = new_incarnation();
    initialise(tx, &identity)?;
    put_origin(tx, origin)?;
    let position = core::position(tx)?;
    core::put_position(tx, Position(position.0 + POSITIONS + limits::CHANGES_KEPT))?;
    let of_this_time = of_this_time(moment(origin.state_of_unix_ms, now_unix_ms));
    core::raise_marks(tx, of_this_time.max(above))?;
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
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::HighWater;

    /// Found as seed 1596: the host's clock was 70 days behind when its backup of a minute ago was put in place.
    #[test]
    fn numbers_go_on_above_a_backup_whatever_the_clock_says() {
        let (backup, minute, day) = (1_786_320_016_435, 60_000, 86_400_000);
        let given = of_this_time(backup + minute);
        assert!(of_this_time(moment(backup, backup - 70 * day)) > given);
        assert!(of_this_time(moment(backup, backup + 2 * minute)) > given);
        assert!(of_this_time(moment(i64::MAX, 0)) > given);
    }

    /// Found as seed 1642: numbers were given while the clock was months ahead; under a right one an older backup, which knows
    /// nothing of them, took the store's place.
    #[test]
    fn numbers_go_on_above_those_of_a_clock_that_was_ahead() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("store.redb"), dir.path().join("copy.redb"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open(&path, "edge").unwrap();
            store.backup(copy.clone(), "ber1".to_owned()).await.unwrap();
            let ahead = of_this_time(now_unix_ms() + 70 * 86_400_000);
            let (told, first) = tokio::sync::oneshot::channel();
            assert!(store.reserve_soon("generation", 1_000, ahead, move |first| drop(told.send(first))));
            assert_eq!(first.await.unwrap(), Ok(ahead));
            store.close().await;
            for (what, times) in [("the store", 1), ("one that was restored in its place", 2)] {
                Restoring::begin(&copy, &path, "edge", "ber1").unwrap().finish().unwrap();
                let store = Store::open_existing(&path, "edge").unwrap();
                let given = HighWater::open(&store, "generation", 1_000).await.unwrap().take();
                assert!(given >= ahead + 1_000 * times, "{what} is heard");
                store.close().await;
            }
        });
    }

    #[test]
    fn numbers_that_no_clock_gave_are_not_believed() {
        let now = 1_786_320_016_435;
        let ahead = of_this_time(now + 70 * 86_400_000);
        assert_eq!((believed(ahead, now), believed(u64::MAX - 7, now)), (ahead, 0));
    }
}
