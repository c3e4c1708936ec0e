//! `umbel edge backup` and `restore`, for one that does not run.
//!
//! A running one is asked by `edge.backup`. Owns what an edge is called, which of its tokens are open and what its nodes
//! said. Leaves the steps to the store. Invariants: a restored edge is a new incarnation whose open tokens are void, which
//! believes of nobody whom it trusts before it is said again, and which holds certificates newer than its state for
//! approval; what stood in the store's place is kept beside it.

use std::path::Path;

pub use umbel_store::{BackedUp, PutBack as Restored};
use umbel_store::{Offline, OfflineError};

use crate::app::{STORE_FILE, STORE_OWNER};
use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::ReportRow;
use crate::shell::backups;
use crate::shell::site::{ENROLLMENTS, REPORTS};
use crate::{Config, StartError};

fn told(error: OfflineError) -> StartError {
    match error {
        OfflineError::Runs => StartError::Refused(
            "the edge runs: back it up with `umbel ctl`, or stop it first; to restore, stop it".to_owned(),
        ),
        OfflineError::State(why) => StartError::State(why),
        OfflineError::NoBackup(why) => StartError::Refused(why),
        OfflineError::Failed(why) => StartError::Failed(why),
    }
}

/// Copies the store of an edge that does not run: to a file, or into the directory that its own file names.
///
/// # Errors
/// If it runs, or the copy cannot be written.
pub fn backup(config: &Config, to: Option<&Path>) -> Result<BackedUp, StartError> {
    let store = config.state_dir.join(STORE_FILE);
    let edge = Offline { store: &store, owner: STORE_OWNER, about: config.site.as_str() };
    edge.backup(to, &backups::folder(config)).map_err(told)
}

/// Puts a backup in the store's place. The authority's directory is not touched: it has its own copy elsewhere.
///
/// # Errors
/// If the edge runs, or the file is no backup of it. Nothing has changed then.
pub fn restore(config: &Config, from: &Path) -> Result<Restored, StartError> {
    umbel_wire::files::private_dir(&config.state_dir)
        .map_err(|error| StartError::State(error.to_string()))?;
    let store = config.state_dir.join(STORE_FILE);
    let edge = Offline { store: &store, owner: STORE_OWNER, about: config.site.as_str() };
    let trust = |row: serde_json::Value| {
        let row = serde_json::from_value::<ReportRow>(row).ok()?.of_a_backup()?;
        serde_json::to_value(row).ok()
    };
    edge.restore(from, ENROLLMENTS, EnrollmentRow::voided, Some((REPORTS, &trust))).map_err(told)
}
