//! Backups of the site's store while the edge runs.
//!
//! Leaves the copy itself, names and how many are kept to the store. Invariants: a backup that was told is whole and
//! durable; one that is newer is never removed for an older one.

use umbel_contracts::objects::timestamp;
use umbel_contracts::operations::EdgeBackupResult;
use umbel_store::{BackupError, BackupFolder, Store};
use umbel_wire::{Code, EdgeId, Error};

use crate::Config;

/// Where the backups of this edge go.
pub(crate) fn folder(config: &Config) -> BackupFolder {
    BackupFolder {
        directory: config.backup.dir.clone(),
        beginning: format!("edge-{}-", config.site),
        keep: usize::try_from(config.backup.keep).unwrap_or(usize::MAX),
    }
}

/// Makes one more, and lets go of the oldest.
///
/// # Errors
/// Nothing was made then.
pub(crate) async fn make(
    folder: &BackupFolder,
    store: &Store,
    site: &EdgeId,
) -> Result<EdgeBackupResult, Error> {
    folder.ready().await.map_err(|error| {
        let message = format!(
            "the backup directory cannot be made ({}); set backup.dir in the edge's file to one that can",
            error.kind()
        );
        Error::new(Code::Unprocessable, "BACKUP_DIRECTORY", message)
    })?;
    let (file, made) = folder.make(store, site.as_str()).await.map_err(|error| refused(&error))?;
    Ok(EdgeBackupResult {
        file,
        bytes: made.bytes,
        sha256: data_encoding::HEXLOWER.encode(&made.sha256),
        position: made.position.0,
        at: timestamp(made.at_unix_ms),
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
