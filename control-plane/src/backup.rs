//! `umbel control-plane backup` and `restore`, for one that does not run.
//!
//! A running one is asked over its API. Owns what a control plane is called and which of its tokens are open. Leaves the
//! steps to the store. Invariants: a restored control plane is a new incarnation whose open tokens are void; what stood
//! in the store's place is kept beside it.

use std::path::Path;

pub use umbel_store::{BackedUp, PutBack as Restored};
use umbel_store::{BackupFolder, Offline, OfflineError};

use crate::core::enrollments::{ENROLLMENTS, EnrollmentRow};
use crate::init::{STORE_FILE, STORE_OWNER};
use crate::{Config, StartError, config};

/// Where the backups of a control plane of this name go.
pub(crate) fn folder(to: &config::Backup, name: &str) -> BackupFolder {
    BackupFolder {
        directory: to.dir.clone(),
        beginning: format!("control-plane-{name}-"),
        keep: usize::try_from(to.keep).unwrap_or(usize::MAX),
    }
}

fn told(error: OfflineError) -> StartError {
    match error {
        OfflineError::Runs => StartError::Refused(
            "the control plane runs: back it up over its API (`umbel ctl`), or stop it first; to restore, stop it"
                .to_owned(),
        ),
        OfflineError::State(why) => StartError::State(why),
        OfflineError::NoBackup(why) => StartError::Refused(why),
        OfflineError::Failed(why) => StartError::Failed(why),
    }
}

/// Copies the store of a control plane that does not run: to a file, or into the directory that its own file names.
///
/// # Errors
/// If it runs, or the copy cannot be written.
pub fn backup(config: &Config, to: Option<&Path>) -> Result<BackedUp, StartError> {
    let store = config.state_dir.join(STORE_FILE);
    let plane = Offline { store: &store, owner: STORE_OWNER, about: &config.name };
    plane.backup(to, &folder(&config.backup, &config.name)).map_err(told)
}

/// Puts a backup in the store's place. The authority's directory is not touched: it has its own copy elsewhere.
///
/// # Errors
/// If the control plane runs, or the file is no backup of it. Nothing has changed then.
pub fn restore(config: &Config, from: &Path) -> Result<Restored, StartError> {
    umbel_wire::files::private_dir(&config.state_dir)
        .map_err(|error| StartError::State(error.to_string()))?;
    let store = config.state_dir.join(STORE_FILE);
    let plane = Offline { store: &store, owner: STORE_OWNER, about: &config.name };
    plane.restore(from, ENROLLMENTS, EnrollmentRow::voided, None).map_err(told)
}
