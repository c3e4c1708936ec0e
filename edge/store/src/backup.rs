//! Copies of a store: a backup while it runs, and the file as it was before a migration.
//!
//! Owns copying and how a copy gets its name. Leaves starting from one to [`crate::restore`]. Invariants: a copy is of
//! one consistent state, and under its name it is whole and durable; writes go on meanwhile; one copy at a time.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::Builder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use crate::audit::AuditHead;
use crate::backend::{Backend, Failure, Pair, Reader, Space, View};
use crate::commit::Position;
use crate::handle::Store;
use crate::redb_file::RedbFile;
use crate::switch::WriteSwitch;
use crate::writer::now_unix_ms;
use crate::{chain, core, limits};

/// Meta row of a backup.
const STAMP_KEY: &[u8] = b"backup";

/// What a backup says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    /// Whose state it is: a site, for example.
    pub(crate) about: String,
    pub(crate) made_unix_ms: i64,
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Length of its file.
    pub bytes: u64,
    /// SHA-256 of its file.
    pub sha256: [u8; 32],
    /// The newest commit in it.
    pub position: Position,
    /// The newest audit entry in it.
    pub audit: AuditHead,
    /// When it was made, in milliseconds since 1970.
    pub at_unix_ms: i64,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// Another one is being made.
    #[error("a backup is being made; wait for it")]
    Running,
    /// A file of this name exists, or the directory cannot be written, or is full.
    #[error("the backup {path} cannot be written: {cause}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The store cannot be read.
    #[error("the store cannot be read: {0}")]
    Read(String),
}

impl Store {
    /// Copies the store as it stands into a new file (mode 0600), which appears under its name when it is whole and
    /// durable. Commits go on meanwhile. `about` says whose state it is; restoring checks it.
    ///
    /// # Errors
    /// Nothing is left under the name then.
    pub async fn backup(&self, to: PathBuf, about: String) -> Result<Backup, BackupError> {
        if self.told.copying.swap(true, Ordering::SeqCst) {
            return Err(BackupError::Running);
        }
        let (answer, answered) = oneshot::channel();
        let (reader, told) = (Arc::clone(&self.reader), Arc::clone(&self.told));
        // A thread of its own, at the pace of the disk; it ends with the copy even if nobody waits any more.
        let spawned = std::thread::Builder::new().name("store-backup".to_owned()).spawn(move || {
            let made = make(&*reader, &to, about);
            told.copying.store(false, Ordering::SeqCst);
            let _ = answer.send(made);
        });
        if let Err(error) = spawned {
            self.told.copying.store(false, Ordering::SeqCst);
            return Err(BackupError::Read(error.to_string()));
        }
        answered.await.unwrap_or_else(|_| Err(BackupError::Read("the copy broke off".to_owned())))
    }
}

/// Removes all but the newest of the backups in a directory: files that begin so and end with `.redb`, whose names grow
/// with the time. How many went.
///
/// # Errors
/// If the directory cannot be read or a file not removed.
pub(crate) fn keep_newest(directory: &Path, beginning: &str, most: usize) -> std::io::Result<usize> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(|name| name.starts_with(beginning) && name.ends_with(".redb")) {
            names.push(name);
        }
    }
    names.sort();
    let old = names.len().saturating_sub(most.max(1));
    for name in names.iter().take(old) {
        std::fs::remove_file(directory.join(name))?;
    }
    Ok(old)
}

fn make(reader: &dyn Reader, to: &Path, about: String) -> Result<Backup, BackupError> {
    let write = |cause: String| BackupError::Write { path: to.to_owned(), cause };
    if to.exists() {
        return Err(write("a file of this name exists".to_owned()));
    }
    let at_unix_ms = now_unix_ms();
    let stamp = serde_json::to_vec(&Stamp { about, made_unix_ms: at_unix_ms }).unwrap_or_default();
    let (mut position, mut audit) = (Position(0), AuditHead::default());
    let mut look = |view: &dyn View| {
        (position, audit) = (core::position(view)?, chain::head(view)?);
        Ok(())
    };
    place(reader, to, &[(STAMP_KEY.to_vec(), stamp)], &mut look).map_err(|Failure(cause)| write(cause))?;
    let (bytes, sha256) = digest(to).map_err(|error| write(error.to_string()))?;
    Ok(Backup { bytes, sha256, position, audit, at_unix_ms })
}

/// What a backup says of itself; `None` if it is a store's own file.
pub(crate) fn stamp(view: &dyn View) -> Result<Option<Stamp>, Failure> {
    Ok(view.get(Space::Meta, STAMP_KEY)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// The stamp is of the file that was copied, not of what it becomes.
pub(crate) fn is_stamp(space: Space, key: &[u8]) -> bool {
    space == Space::Meta && key == STAMP_KEY
}

/// Keeps the file as it is before a migration: `store.redb.schema-1`. One that is there already is of an earlier try.
pub(crate) fn keep(reader: &dyn Reader, path: &Path, schema: u32) -> Result<(), Failure> {
    let to = beside(path, &format!("schema-{schema}"));
    if to.exists() {
        return Ok(());
    }
    place(reader, &to, &[], &mut |_| Ok(()))
}

/// A name beside a file.
pub(crate) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{what}"));
    PathBuf::from(name)
}

// Copies under another name, then links the whole and durable file into place.
fn place(
    reader: &dyn Reader,
    to: &Path,
    more: &[Pair],
    look: &mut dyn FnMut(&dyn View) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let part = beside(to, &format!("part-{}", std::process::id()));
    let placed = fresh(&part).and_then(|mut file| {
        reader.read(&mut |view| {
            look(view)?;
            copy(view, &mut file, &|_, _| true)
        })?;
        file.write(&mut |tx| more.iter().try_for_each(|(key, value)| tx.put(Space::Meta, key, value)))?;
        file.close();
        settle(&part, to).map_err(|error| Failure(error.to_string()))
    });
    let _ = std::fs::remove_file(&part);
    placed
}

/// Gives a whole file its name, which must be free.
pub(crate) fn settle(part: &Path, to: &Path) -> std::io::Result<()> {
    File::open(part)?.sync_all()?;
    // Not rename: it would replace what stands there.
    std::fs::hard_link(part, to)?;
    std::fs::remove_file(part)?;
    sync_directory(to)
}

/// Makes names in a file's directory durable.
pub(crate) fn sync_directory(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// A new empty file that only this user may read.
pub(crate) fn fresh(path: &Path) -> Result<RedbFile, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure(error.to_string());
    let _ = std::fs::remove_file(path);
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|error| failed(&error))?;
    drop(Builder::new().set_cache_size(limits::PAGE_CACHE).create(path).map_err(|error| failed(&error))?);
    let (file, broken) =
        RedbFile::open_existing(path, "store", WriteSwitch::default()).map_err(|error| failed(&error))?;
    match broken {
        None => Ok(file),
        Some(cause) => Err(Failure(cause)),
    }
}

/// Copies every pair that is wanted.
pub(crate) fn copy(
    view: &dyn View,
    to: &mut RedbFile,
    wanted: &dyn Fn(Space, &[u8]) -> bool,
) -> Result<(), Failure> {
    for space in Space::ALL {
        let mut from = Vec::new();
        loop {
            let pairs = view.scan(space, &from, &[0xFF; 9], limits::COPIED_AT_ONCE, false)?;
            let Some((last, _)) = pairs.last() else { break };
            from.clone_from(last);
            from.push(0);
            to.write(&mut |tx| {
                pairs
                    .iter()
                    .filter(|(key, _)| wanted(space, key))
                    .try_for_each(|(key, value)| tx.put(space, key, value))
            })?;
        }
    }
    Ok(())
}

/// Length and SHA-256 of a file.
pub(crate) fn digest(path: &Path) -> std::io::Result<(u64, [u8; 32])> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 64 * 1024];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut block)?;
        let Some(part) = block.get(..read).filter(|part| !part.is_empty()) else { break };
        hash.update(part);
        bytes += part.len() as u64;
    }
    Ok((bytes, hash.finalize().into()))
}
