//! Backups of the site's store: their directory, their names, and how many are kept.
//!
//! Leaves the copy itself to the store. Invariants: a backup that was told is whole and durable; one that is newer is
//! never removed for an older one.

use std::path::{Path, PathBuf};

use umbel_contracts::objects::timestamp;
use umbel_contracts::operations::EdgeBackupResult;
use umbel_store::{BackupError, Store, keep_newest};
use umbel_wire::{Code, EdgeId, Error};

/// Where backups go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backups {
    pub(crate) directory: PathBuf,
    /// So many are kept.
    pub(crate) keep: usize,
}

impl Backups {
    /// Makes one more, and lets go of the oldest.
    ///
    /// # Errors
    /// Nothing was made then.
    pub(crate) async fn make(&self, store: &Store, site: &EdgeId) -> Result<EdgeBackupResult, Error> {
        ready(&self.directory)?;
        let file = name(site, umbel_wire::clock::Wall::now().unix_ms());
        let made =
            store.backup(self.directory.join(&file), site.to_string()).await.map_err(|e| refused(&e))?;
        if let Err(error) = keep_newest(&self.directory, &beginning(site), self.keep) {
            tracing::warn!(%error, "old backups could not be removed");
        }
        Ok(EdgeBackupResult {
            file,
            bytes: made.bytes,
            sha256: data_encoding::HEXLOWER.encode(&made.sha256),
            position: made.position.0,
            at: timestamp(made.at_unix_ms),
        })
    }
}

/// How the names of a site's backups begin.
pub(crate) fn beginning(site: &EdgeId) -> String {
    format!("edge-{site}-")
}

/// A backup's file name. Milliseconds: two in one second are two files. Names grow with the time.
pub(crate) fn name(site: &EdgeId, now_unix_ms: i64) -> String {
    format!("{}{}.redb", beginning(site), timestamp(now_unix_ms).strftime("%Y%m%dT%H%M%S%3fZ"))
}

/// The directory, made for this user only if there is none. One that is there keeps its mode: it may be a mount.
pub(crate) fn ready(directory: &Path) -> Result<(), Error> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
        let message = format!(
            "the backup directory cannot be made ({}); set backup.dir in the edge's file to one that can",
            error.kind()
        );
        Error::new(Code::Unprocessable, "BACKUP_DIRECTORY", message)
    })
}

fn refused(error: &BackupError) -> Error {
    tracing::error!(%error, "no backup was made");
    match error {
        BackupError::Running => {
            Error::new(Code::Conflict, "BACKUP_RUNNING", "another backup is being made; wait for its end")
        }
        BackupError::Read(_) => Error::new(
            Code::Unavailable,
            "STORE_UNREADABLE",
            "the store cannot be read, so that there is no backup; the edge's log says why",
        ),
        // The path stays on this host.
        _ => Error::new(
            Code::InsufficientStorage,
            "BACKUP_NOT_WRITTEN",
            "the backup cannot be written: the edge's log says why; free space where its backups go",
        ),
    }
}
