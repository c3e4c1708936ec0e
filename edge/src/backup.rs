//! `umbel edge backup` and `restore`, for one that does not run.
//!
//! A running one is asked by `edge.backup`. Invariants: a restored edge is a new incarnation whose open tokens are void,
//! and which holds certificates newer than its state for approval; what stood in the store's place is kept beside it.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use umbel_contracts::objects::timestamp;
use umbel_store::{Commit, OpenError, Restoring, Store, keep_newest};
use umbel_wire::clock::Wall;

use crate::app::{STORE_FILE, STORE_OWNER};
use crate::core::enrollment::EnrollmentRow;
use crate::shell::backups;
use crate::shell::site::ENROLLMENTS;
use crate::{Config, StartError};

/// Tokens made void in one commit.
const VOIDED_A_COMMIT: usize = 500;

/// A backup that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackedUp {
    /// The new file.
    pub file: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// An edge whose store was put in place from a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The new store's name: positions of others do not compare with its own.
    pub incarnation: String,
    /// When the backup was made.
    pub made_at: Timestamp,
    /// Open enrollment tokens that are void now.
    pub voided: u64,
    /// Where the store that stood there is now, if there was one.
    pub kept: Option<PathBuf>,
}

fn in_use(error: OpenError) -> StartError {
    match error {
        OpenError::InUse { .. } => StartError::Refused(
            "the edge runs: back it up with `umbel ctl`, or stop it first; to restore, stop it".to_owned(),
        ),
        error => StartError::State(error.to_string()),
    }
}

fn blocking<T>(work: impl Future<Output = Result<T, StartError>>) -> Result<T, StartError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::Failed(format!("cannot start a runtime: {error}")))?
        .block_on(work)
}

/// Copies the store of an edge that does not run: to a file, or into the directory that its own file names.
///
/// # Errors
/// If it runs, or the copy cannot be written.
pub fn backup(config: &Config, to: Option<&Path>) -> Result<BackedUp, StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError::Failed(error.to_string());
    let file = match to {
        Some(file) => file.to_owned(),
        None => {
            backups::ready(&config.backup.dir).map_err(|error| failed(&error.message))?;
            config.backup.dir.join(backups::name(&config.site, Wall::now().unix_ms()))
        }
    };
    blocking(async {
        let store = Store::open_existing(&config.state_dir.join(STORE_FILE), STORE_OWNER).map_err(in_use)?;
        let made = store.backup(file.clone(), config.site.to_string()).await.map_err(|error| failed(&error));
        store.close().await;
        let made = made?;
        if to.is_none() {
            let keep = usize::try_from(config.backup.keep).unwrap_or(usize::MAX);
            keep_newest(&config.backup.dir, &backups::beginning(&config.site), keep)
                .map_err(|error| failed(&error))?;
        }
        Ok(BackedUp { file, bytes: made.bytes, sha256: data_encoding::HEXLOWER.encode(&made.sha256) })
    })
}

/// Puts a backup in the store's place. The authority's directory is not touched: it has its own copy elsewhere.
///
/// # Errors
/// If the edge runs, or the file is no backup of it. Nothing has changed then.
pub fn restore(config: &Config, from: &Path) -> Result<Restored, StartError> {
    let state = |error: &dyn std::fmt::Display| StartError::State(error.to_string());
    umbel_wire::files::private_dir(&config.state_dir).map_err(|error| state(&error))?;
    let path = config.state_dir.join(STORE_FILE);
    let restoring = Restoring::begin(from, &path, STORE_OWNER, config.site.as_str())
        .map_err(|error| StartError::Refused(error.to_string()))?;
    blocking(async {
        let store = restoring.open(STORE_OWNER).map_err(in_use)?;
        let voided = void(&store).await;
        let incarnation = store.incarnation().to_owned();
        store.close().await;
        let voided = voided?;
        let done = restoring.finish().map_err(|error| state(&error))?;
        Ok(Restored { incarnation, made_at: timestamp(done.state_of_unix_ms), voided, kept: done.replaced })
    })
}

async fn void(store: &Store) -> Result<u64, StartError> {
    let state = |error: &dyn std::fmt::Display| StartError::State(error.to_string());
    let rows = store.load_json::<EnrollmentRow>(ENROLLMENTS).await.map_err(|error| state(&error))?;
    let now = Wall::now().unix_ms();
    let open: Vec<_> =
        rows.into_iter().filter_map(|(stored, row)| Some((stored.key, row.voided(now)?))).collect();
    for part in open.chunks(VOIDED_A_COMMIT) {
        let commit = part
            .iter()
            .fold(Commit::new(), |commit, (key, row)| commit.put_json(ENROLLMENTS, key.as_str(), row));
        store.commit(commit).await.map_err(|error| state(&error))?;
    }
    Ok(u64::try_from(open.len()).unwrap_or(u64::MAX))
}
