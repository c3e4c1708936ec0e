//! The store of a daemon that does not run: a copy of it, and a copy put in its place; and where copies are kept.
//!
//! Owns the order of the steps, alike for each kind of daemon. Leaves the copy itself to [`crate::backup`], the exchange
//! to [`crate::restore`], and to the daemon what it is called and which of its tokens are open. Invariants: tokens that
//! were open at the time of the backup are void before the store is in place; a newer copy never goes for an older one.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde::{Serialize, de::DeserializeOwned};

use crate::backup::{Backup, BackupError, keep_newest};
use crate::commit::Commit;
use crate::error::OpenError;
use crate::handle::Store;
use crate::restore::Restoring;
use crate::writer::now_unix_ms;

/// Tokens made void in one commit.
const VOIDED_A_COMMIT: usize = 500;

/// Where a daemon's backups go, and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFolder {
    /// The directory.
    pub directory: PathBuf,
    /// How the names of this daemon's begin: `edge-ber1-`.
    pub beginning: String,
    /// So many are kept.
    pub keep: usize,
}

impl BackupFolder {
    /// The directory, made for this user only if there is none. One that is there keeps its mode: it may be a mount.
    ///
    /// # Errors
    /// The file system's.
    pub async fn ready(&self) -> io::Result<()> {
        // The disk may take its time, which is not the runtime's.
        let folder = self.clone();
        let ready = tokio::task::spawn_blocking(move || folder.make_directory()).await;
        ready.unwrap_or_else(|broken| Err(broken.into()))
    }

    fn make_directory(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)
    }

    /// A backup's file name. Milliseconds: two in one second are two files. Names grow with the time.
    #[must_use]
    pub fn name(&self, now_unix_ms: i64) -> String {
        format!("{}{}.redb", self.beginning, timestamp(now_unix_ms).strftime("%Y%m%dT%H%M%S%3fZ"))
    }

    /// Makes one more of a store that is open, and lets go of the oldest: the new file's name, and what it holds.
    ///
    /// # Errors
    /// Nothing was made then.
    pub async fn make(&self, store: &Store, about: &str) -> Result<(String, Backup), BackupError> {
        let file = self.name(now_unix_ms());
        let made = store.backup(self.directory.join(&file), about.to_owned()).await?;
        // Removing large files takes its time, which is not the runtime's.
        let folder = self.clone();
        let pruned = tokio::task::spawn_blocking(move || folder.prune()).await;
        if let Err(error) = pruned.unwrap_or_else(|broken| Err(broken.into())) {
            tracing::warn!(%error, "old backups could not be removed");
        }
        Ok((file, made))
    }

    fn prune(&self) -> io::Result<()> {
        keep_newest(&self.directory, &self.beginning, self.keep).map(drop)
    }
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// The new file.
    pub file: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// A daemon whose store was put in place from a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutBack {
    /// The new store's name: positions of others do not compare with its own.
    pub incarnation: String,
    /// When the backup was made.
    pub made_at: Timestamp,
    /// Open enrollment tokens that are void now.
    pub voided: u64,
    /// Where the store that stood there is now, if there was one.
    pub kept: Option<PathBuf>,
}

/// Why there is no copy, or none was put in place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OfflineError {
    /// The daemon runs.
    #[error("it runs")]
    Runs,
    /// Its store or its state directory is not as it should be.
    #[error("{0}")]
    State(String),
    /// The file is no backup of this daemon.
    #[error("{0}")]
    NoBackup(String),
    /// A copy cannot be written.
    #[error("{0}")]
    Failed(String),
}

impl OfflineError {
    fn state(error: impl std::fmt::Display) -> Self {
        Self::State(error.to_string())
    }

    fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<OpenError> for OfflineError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::InUse { .. } => Self::Runs,
            error => Self::state(error),
        }
    }
}

/// A daemon that does not run.
#[derive(Clone, Copy, Debug)]
pub struct Offline<'a> {
    /// Its store's file, whose directory exists.
    pub store: &'a Path,
    /// Its kind: `edge`, `control-plane`.
    pub owner: &'a str,
    /// Whose state it is, as its backups say.
    pub about: &'a str,
}

impl Offline<'_> {
    /// Copies the store to a file, or into the folder, where the oldest goes then.
    ///
    /// # Errors
    /// If the daemon runs, or the copy cannot be written.
    pub fn backup(&self, to: Option<&Path>, folder: &BackupFolder) -> Result<BackedUp, OfflineError> {
        let file = match to {
            Some(file) => file.to_owned(),
            None => {
                folder.make_directory().map_err(OfflineError::failed)?;
                folder.directory.join(folder.name(now_unix_ms()))
            }
        };
        blocking(async {
            let store = Store::open_existing(self.store, self.owner)?;
            let made = store.backup(file.clone(), self.about.to_owned()).await;
            store.close().await;
            let made = made.map_err(OfflineError::failed)?;
            if to.is_none() {
                folder.prune().map_err(OfflineError::failed)?;
            }
            Ok(BackedUp { file, bytes: made.bytes, sha256: HEXLOWER.encode(&made.sha256) })
        })
    }

    /// Puts a backup in the store's place. `voided`: what becomes of a row of the daemon's enrollment tokens at this time
    /// (milliseconds since 1970); `None` if the token is not open. `over`: the same for what nodes or others said.
    ///
    /// # Errors
    /// If the daemon runs, or the file is no backup of it. Nothing has changed then.
    pub fn restore<Token: Serialize + DeserializeOwned>(
        &self,
        from: &Path,
        tokens: &'static str,
        voided: impl Fn(Token, i64) -> Option<Token>,
        over: Option<Over<'_>>,
    ) -> Result<PutBack, OfflineError> {
        let restoring = Restoring::begin(from, self.store, self.owner, self.about)
            .map_err(|error| OfflineError::NoBackup(error.to_string()))?;
        blocking(async {
            let store = restoring.open(self.owner)?;
            let mut count = void(&store, tokens, voided).await;
            if let (Ok(_), Some((table, over))) = (&count, over)
                && let Err(error) = void(&store, table, |row, _| over(row)).await
            {
                count = Err(error);
            }
            let incarnation = store.incarnation().to_owned();
            store.close().await;
            let voided = count?;
            let done = restoring.finish().map_err(OfflineError::state)?;
            let made_at = timestamp(done.state_of_unix_ms);
            Ok(PutBack { incarnation, made_at, voided, kept: done.replaced })
        })
    }
}

/// Rows of another table that say nothing any more as they stand, and what becomes of each; `None`: it stays.
pub type Over<'a> = (&'static str, &'a dyn Fn(serde_json::Value) -> Option<serde_json::Value>);

// Whoever has a token that was open then may not be whom it was meant for any more.
async fn void<Token: Serialize + DeserializeOwned>(
    store: &Store,
    table: &'static str,
    voided: impl Fn(Token, i64) -> Option<Token>,
) -> Result<u64, OfflineError> {
    let rows = store.load_json::<Token>(table).await.map_err(OfflineError::state)?;
    let now = now_unix_ms();
    let open: Vec<_> =
        rows.into_iter().filter_map(|(stored, row)| Some((stored.key, voided(row, now)?))).collect();
    for part in open.chunks(VOIDED_A_COMMIT) {
        let commit =
            part.iter().fold(Commit::new(), |commit, (key, row)| commit.put_json(table, key.as_str(), row));
        store.commit(commit).await.map_err(OfflineError::state)?;
    }
    Ok(u64::try_from(open.len()).unwrap_or(u64::MAX))
}

fn blocking<T>(work: impl Future<Output = Result<T, OfflineError>>) -> Result<T, OfflineError> {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .map_err(|error| OfflineError::Failed(format!("cannot start a runtime: {error}")))?
        .block_on(work)
}

// One outside of the calendar becomes its nearest end.
fn timestamp(unix_ms: i64) -> Timestamp {
    let end = if unix_ms < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(unix_ms).unwrap_or(end)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_running_daemon_is_left_alone_and_a_stopped_one_comes_back_without_its_open_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        let backups = BackupFolder {
            directory: folder.path().join("backups"),
            beginning: "edge-ber1-".to_owned(),
            keep: 2,
        };
        let daemon = Offline { store: &path, owner: "edge", about: "ber1" };
        let running = Store::open(&path, "edge").unwrap();
        assert_eq!(daemon.backup(None, &backups).unwrap_err(), OfflineError::Runs);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let tokens =
            (0..3u8).fold(Commit::new(), |commit, n| commit.put_json("tokens", n.to_string(), &(n, 0i64)));
        runtime.block_on(async {
            running.commit(tokens).await.unwrap();
            running.close().await;
        });
        let made = daemon.backup(None, &backups).unwrap();
        assert!(made.file.starts_with(&backups.directory) && made.bytes > 0 && made.sha256.len() == 64);
        // The first one is spent.
        let voided = |(n, ended): (u8, i64), now| (n > 0 && ended == 0).then_some((n, now));
        let back = daemon.restore(&made.file, "tokens", voided, None).unwrap();
        assert_eq!(back.voided, 2);
        assert!(back.kept.unwrap().exists(), "what stood there is kept");
        let again = daemon.restore(&made.file, "tokens", voided, None).unwrap();
        assert_ne!(back.incarnation, again.incarnation);
        let other = Offline { about: "ber2", ..daemon };
        let refused = other.restore(&made.file, "tokens", voided, None).unwrap_err();
        assert!(matches!(refused, OfflineError::NoBackup(_)), "{refused:?}");
        let store = Store::open_existing(&path, "edge").unwrap();
        let rows = runtime.block_on(store.load_json::<(u8, i64)>("tokens")).unwrap();
        assert_eq!(rows.iter().filter(|(_, (_, ended))| *ended > 0).count(), 2);
    }

    #[test]
    fn names_grow_with_the_time() {
        let folder = BackupFolder { directory: PathBuf::new(), beginning: "edge-ber1-".to_owned(), keep: 1 };
        assert_eq!(folder.name(1_700_000_000_123), "edge-ber1-20231114T221320123Z.redb");
        assert!(folder.name(0) < folder.name(1) && folder.name(999) < folder.name(1_000));
    }
}
