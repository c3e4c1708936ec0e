//! What is done about a damaged file: whatever verifies is read out of it, and it is moved aside.
//!
//! Owns the policy. A record that does not match its check is left out and counted, so that nothing false is believed:
//! a node, key or token that is missing is refused at its door. Invariants: the damaged file is never changed nor
//! deleted; a rescue that broke off is not tried again, so that no damage makes a loop of starts; no handle is used
//! after a panic.

use std::fs::OpenOptions;
use std::path::Path;

use crate::audit::{self, AuditHead};
use crate::backend::{Backend, Failure, Pair, Space, View};
use crate::backup::{self, beside};
use crate::commit::Position;
use crate::core::{self, Identity, SCHEMA};
use crate::error::OpenError;
use crate::handle::Store;
use crate::opening::Origin;
use crate::redb_file::RedbFile;
use crate::restore::{believed, reborn, set_aside};
use crate::switch::WriteSwitch;
use crate::writer::now_unix_ms;
use crate::{chain, limits};

/// Pairs read at a time; after a failure one by one, up to the very page that is damaged.
const STEP: usize = 200;

impl Store {
    /// As [`Store::open_existing`]; of a damaged file, what verifies is read into a new one, and the damaged one is moved
    /// aside. [`Store::origin`] tells of it.
    pub fn open_rescuing(path: &Path, owner: &str) -> Result<Self, OpenError> {
        Self::open_rescuing_switched(path, owner, WriteSwitch::default())
    }

    /// As [`Store::open_rescuing`], with a switch by which a test makes its writes fail.
    pub fn open_rescuing_switched(path: &Path, owner: &str, switch: WriteSwitch) -> Result<Self, OpenError> {
        let damage = match Self::open_existing_switched(path, owner, switch.clone()) {
            Err(damage @ OpenError::Damaged { .. }) => damage,
            other => return other,
        };
        tracing::error!(%damage, "what verifies is read out of the store's file");
        match rescue(path, owner) {
            Ok(origin) => {
                let (kept, unusable) = (origin.rescued.unwrap_or(0), origin.unusable);
                tracing::error!(
                    kept,
                    unusable,
                    "the damaged file was moved aside; the store goes on without the rest"
                );
                Self::open_existing_switched(path, owner, switch)
            }
            Err(Failure(cause)) => {
                tracing::error!(cause, "nothing could be read out of the damaged file; it stays where it is");
                Err(damage)
            }
        }
    }
}

fn rescue(path: &Path, owner: &str) -> Result<Origin, Failure> {
    let failed = |error: std::io::Error| Failure(error.to_string());
    // Whatever ends this process in the middle (a damaged page can make the engine do anything) leaves this.
    let marker = beside(path, "rescue");
    OpenOptions::new().write(true).create_new(true).open(&marker).map_err(|error| {
        Failure(format!("an earlier rescue broke off, or none can begin: {error} ({})", marker.display()))
    })?;
    backup::sync_directory(path).map_err(failed)?;
    let part = beside(path, "rescued");
    let done = read_out(path, owner, &part).and_then(|origin| {
        set_aside(path, "damaged").map_err(failed)?;
        backup::settle(&part, path).map_err(failed)?;
        Ok(origin)
    });
    let _ = std::fs::remove_file(&part);
    std::fs::remove_file(&marker).map_err(failed)?;
    done
}

fn read_out(path: &Path, owner: &str, part: &Path) -> Result<Origin, Failure> {
    let mut damaged = Damaged { path, owner, file: None };
    let identity = damaged
        .read(&mut |view| core::identity(view)?.ok_or_else(|| Failure("it has no identity".to_owned())))?;
    if identity.owner != owner || identity.schema != SCHEMA {
        return Err(Failure("its identity is not this program's".to_owned()));
    }
    let mut to = backup::fresh(part)?;
    let mut origin = Origin { placed_unix_ms: now_unix_ms(), rescued: Some(0), ..Origin::default() };
    let mut newest = Position(0);
    damaged.pairs(Space::Rows, &mut |pairs| {
        let (mut kept, mut unusable) = (0, 0);
        to.write(&mut |tx| {
            (kept, unusable) = (0, 0);
            for (key, stored) in pairs {
                match whole_row(key, stored) {
                    Some(position) => {
                        newest = newest.max(position);
                        tx.put(Space::Rows, key, stored)?;
                        kept += 1;
                    }
                    None => unusable += 1,
                }
            }
            Ok(())
        })?;
        origin.rescued = origin.rescued.map(|sum| sum + kept);
        origin.unusable += unusable;
        Ok(())
    })?;
    damaged.pairs(Space::Audit, &mut |pairs| {
        to.write(&mut |tx| {
            for (key, stored) in pairs {
                if audit::decode(stored).is_some_and(|entry| entry.sequence.to_be_bytes() == **key) {
                    tx.put(Space::Audit, key, stored)?;
                }
            }
            Ok(())
        })
    })?;
    // A number that cannot be believed is no reason to begin again below it.
    let told = damaged.read(&mut |view| core::position(view)).unwrap_or_default();
    let position = if told.0 < newest.0 + (1 << 40) { told.max(newest) } else { newest };
    let told = Told {
        before: damaged.read(&mut |view| chain::checkpoint(view)).unwrap_or_default(),
        last: damaged.read(&mut |view| chain::head(view)).unwrap_or_default(),
        lost: damaged.read(&mut |view| chain::lost(view)).unwrap_or_default(),
    };
    let above = damaged.read(&mut |view| core::above_marks(view)).unwrap_or_default();
    let above = believed(above, origin.placed_unix_ms);
    finish(&mut to, &Identity { ..identity }, (position, above), &mut origin, told)?;
    to.close();
    Ok(origin)
}

/// What the damaged file says of its audit.
struct Told {
    before: AuditHead,
    last: AuditHead,
    lost: Vec<(u64, u64)>,
}

fn finish(
    to: &mut RedbFile,
    identity: &Identity,
    (position, above): (Position, u64),
    origin: &mut Origin,
    told: Told,
) -> Result<(), Failure> {
    let reader = to.reader();
    let mut ends = (AuditHead::default(), AuditHead::default());
    reader.read(&mut |view| {
        ends = newest_run(view)?;
        Ok(())
    })?;
    let (checkpoint, head) = ends;
    // What is before a hole cannot be checked from here on; it is in the file that was moved aside.
    loop {
        let mut old = Vec::new();
        reader.read(&mut |view| {
            let end = (checkpoint.sequence + 1).to_be_bytes();
            old = view.scan(Space::Audit, &[], &end, limits::COPIED_AT_ONCE, false)?;
            Ok(())
        })?;
        if old.is_empty() {
            break;
        }
        to.write(&mut |tx| old.iter().try_for_each(|(key, _)| tx.remove(Space::Audit, key)))?;
    }
    // Between what was let go of by age and the run that is kept, and after that.
    let around = [(told.before.sequence + 1, checkpoint.sequence), (head.sequence + 1, told.last.sequence)];
    origin.audit_lost = around.into_iter().filter(|(first, last)| first <= last).collect();
    let origin = &*origin;
    let mut lost = told.lost;
    lost.retain(|(_, last)| *last >= checkpoint.sequence);
    lost.extend(&origin.audit_lost);
    to.write(&mut |tx| {
        core::initialise(tx, identity)?;
        core::put_position(tx, position)?;
        chain::put_checkpoint(tx, checkpoint)?;
        chain::put_head(tx, head)?;
        chain::put_lost(tx, &lost)?;
        reborn(tx, origin, above, origin.placed_unix_ms)
    })
}

/// The newest entries that follow from each other: what is before the first, and the last.
fn newest_run(view: &dyn View) -> Result<(AuditHead, AuditHead), Failure> {
    let mut end = [0xFF; 9].to_vec();
    let mut run: Option<(AuditHead, AuditHead)> = None;
    loop {
        let pairs = view.scan(Space::Audit, &[], &end, limits::COPIED_AT_ONCE, true)?;
        for (_, stored) in &pairs {
            let Some(entry) = audit::decode(stored) else { return Ok(run.unwrap_or_default()) };
            let own = AuditHead { sequence: entry.sequence, hash: entry.hash };
            let before = AuditHead { sequence: entry.sequence.saturating_sub(1), hash: entry.previous };
            run = match run {
                None => Some((before, own)),
                Some((first, last)) if first == own => Some((before, last)),
                Some(run) => return Ok(run),
            };
        }
        let Some((oldest, _)) = pairs.last() else { return Ok(run.unwrap_or_default()) };
        end.clone_from(oldest);
    }
}

// The position of a row that matches its check.
fn whole_row(row_key: &[u8], stored: &[u8]) -> Option<Position> {
    let table = row_key.split(|byte| *byte == 0).next()?;
    let table = std::str::from_utf8(table).ok()?;
    core::decode_row(table, row_key, stored).ok().map(|row| row.position)
}

/// A file whose pages may be anything. Opened anew after each failure.
struct Damaged<'a> {
    path: &'a Path,
    owner: &'a str,
    file: Option<RedbFile>,
}

impl Damaged<'_> {
    fn read<T>(&mut self, look: &mut dyn FnMut(&dyn View) -> Result<T, Failure>) -> Result<T, Failure> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                RedbFile::look(self.path, self.owner, false).map_err(|error| Failure(error.to_string()))?
            }
        };
        let mut found = Err(Failure("nothing was read".to_owned()));
        let read = file.reader().read(&mut |view| {
            found = look(view);
            Ok(())
        });
        let found = read.and(found);
        if found.is_ok() {
            self.file = Some(file);
        } else {
            let mut file = file;
            file.close();
        }
        found
    }

    /// Every pair that can be reached from either end.
    fn pairs(
        &mut self,
        space: Space,
        take: &mut dyn FnMut(&[Pair]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut from, mut to) = (Vec::new(), vec![0xFF; 9]);
        // A tree that leads in a circle ends here.
        let mut left = std::fs::metadata(self.path).map_or(0, |file| file.len()) / 16;
        for newest_first in [false, true] {
            let mut step = STEP;
            while left > 0 && from < to {
                let (low, high) = (from.clone(), to.clone());
                let read = self.read(&mut |view| view.scan(space, &low, &high, step, newest_first));
                let pairs = match read {
                    Ok(pairs) => pairs,
                    Err(_) if step > 1 => {
                        step = 1;
                        continue;
                    }
                    Err(_) => break,
                };
                let Some((last, _)) = pairs.last() else { return Ok(()) };
                let advances = pairs.iter().all(|(key, _)| *key >= low && *key < high);
                if !advances {
                    break;
                }
                if newest_first {
                    to.clone_from(last);
                } else {
                    from.clone_from(last);
                    from.push(0);
                }
                left = left.saturating_sub(pairs.len() as u64);
                take(&pairs)?;
            }
        }
        Ok(())
    }
}
