//! What can go wrong at the store boundary, each with the sentence that an operator reads.
//!
//! Owns the error types. Invariant: every sentence names the remedy where there is one.

use std::path::PathBuf;

use crate::commit::Position;

/// Why a store file could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process holds the file.
    #[error(
        "state directory in use by another {owner}: {path}. Stop that process, or give this one its own state_dir"
    )]
    InUse {
        /// The file.
        path: PathBuf,
        /// The kind of daemon that opens it, for example `edge`.
        owner: String,
    },
    /// There is none, or it is empty, where one was made before.
    #[error(
        "the store {path} is missing or empty: a new one would forget every identity, key and token, so none is made. Restore the last backup of it; only if this directory is to be made anew, move the directory away and run `init`"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a store, or its pages do not verify.
    #[error(
        "the store {path} is damaged ({cause}). Move it away and restore the last backup; do not delete it"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What the check found.
        cause: String,
    },
    /// A newer program wrote it.
    #[error(
        "the store {path} has schema {found}, this program knows up to {known}. Start the newer program that wrote it, or restore a backup made before the upgrade"
    )]
    NewerSchema {
        /// The file.
        path: PathBuf,
        /// Schema in the file.
        found: u32,
        /// Newest schema that this program knows.
        known: u32,
    },
    /// It has to be brought to this program's schema, and a copy of it as it is could not be kept.
    #[error(
        "the store {path} has an older schema and cannot be brought to this program's: {cause}. Free some space on its disk and start again"
    )]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
    /// The file belongs to another kind of daemon.
    #[error("the store {path} belongs to {found}, not to {wanted}. Give this process its own state_dir")]
    WrongOwner {
        /// The file.
        path: PathBuf,
        /// Who made it.
        found: String,
        /// Who opens it.
        wanted: String,
    },
    /// The disk is full.
    #[error("no space left for the store {path}. Free some space on its disk and start again")]
    NoSpace {
        /// The file.
        path: PathBuf,
    },
    /// Anything else that the operating system says.
    #[error(
        "cannot open the store {path}: {source}. Check that its directory exists and belongs to this user"
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

/// Why a commit did not happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// This precondition (by index) did not hold. Nothing was changed, nothing audited.
    #[error("precondition {0} does not hold")]
    Conflict(usize),
    /// The store cannot be written now. Nothing was applied.
    #[error(
        "the store cannot be written ({0}). The site goes on serving; free space or repair the disk, then repeat"
    )]
    ReadOnly(String),
    /// The commit is above a bound of [`crate::limits`].
    #[error("commit refused: {0}")]
    TooLarge(&'static str),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read, or a row in it cannot.
    #[error("the store cannot be read: {0}")]
    Failed(String),
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// The changes after this position are no longer kept: load the tables anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("changes since {asked} are gone, the oldest kept is {oldest}; load anew")]
pub struct Gone {
    /// The position that was asked for.
    pub asked: Position,
    /// The oldest position that is still kept.
    pub oldest: Position,
}

/// Why a backup was not restored. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The file cannot be opened, or the store is in use.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is a backup of something else.
    #[error("{path} cannot be restored here: {cause}")]
    NotThis {
        /// The backup.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The store's directory cannot be written.
    #[error("the store {path} cannot be put in place: {cause}")]
    Failed {
        /// The store.
        path: PathBuf,
        /// The cause.
        cause: String,
    },
}
