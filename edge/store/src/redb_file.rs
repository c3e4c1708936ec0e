//! The engine on disk: the only place that names redb's transactions.
//!
//! Owns opening (ownership of the file, its mode, damage, repair, compaction, a full disk) and redb's transactions.
//! Leaves meaning to [`crate::core`]. Invariant: after any failure the database is closed and opened anew
//! before it is used again, since redb refuses to go on after an I/O error and must not after a panic.

mod session;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, StorageError};

use self::session::{ReadSession, Switched, WriteSession, failure};
use crate::backend::{Backend, Failure, Look, Reader, Work};
use crate::error::OpenError;
use crate::limits;
use crate::overlay::Overlay;
use crate::switch::WriteSwitch;

/// An open file.
pub(crate) struct RedbFile {
    path: PathBuf,
    switch: WriteSwitch,
    shared: Arc<Shared>,
    // What is written stays in memory: the disk took no writes when it was opened.
    overlaid: bool,
}

/// What readers and the writer share.
struct Shared {
    // None only between a failure and the next successful opening, and after the end.
    database: RwLock<Option<Database>>,
    // redb panicked: nothing of the handle is used again.
    panicked: AtomicBool,
}

impl Shared {
    fn slot(&self) -> RwLockWriteGuard<'_, Option<Database>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, work: impl FnOnce(&Database) -> Result<(), Failure>) -> Result<(), Failure> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        if self.panicked.load(Ordering::SeqCst) {
            return Err(inconsistent());
        }
        let database =
            database.as_ref().ok_or_else(|| Failure("the file is closed after a failure".to_owned()))?;
        // A damaged page can make redb panic; here that is a failure, not an end.
        catch_unwind(AssertUnwindSafe(|| work(database))).unwrap_or_else(|_| {
            self.panicked.store(true, Ordering::SeqCst);
            Err(inconsistent())
        })
    }
}

fn inconsistent() -> Failure {
    Failure("its pages are not consistent: restore the last backup".to_owned())
}

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// For service. With `check` every page is verified, which may write.
    Real { check: bool },
    /// Nothing is written.
    Overlaid { check: bool },
}

impl RedbFile {
    /// Opens the file, made if there is none; and why it cannot be written, if it cannot.
    pub(crate) fn open(
        path: &Path,
        owner: &str,
        switch: WriteSwitch,
    ) -> Result<(Self, Option<String>), OpenError> {
        create_private(path).map_err(|source| open_error(path, owner, DatabaseError::from(source)))?;
        Self::open_existing(path, owner, switch)
    }

    /// As [`RedbFile::open`], and makes no file; an empty one is none.
    pub(crate) fn open_existing(
        path: &Path,
        owner: &str,
        switch: WriteSwitch,
    ) -> Result<(Self, Option<String>), OpenError> {
        match std::fs::metadata(path) {
            Ok(file) if file.len() > 0 => {}
            Ok(_) => return Err(OpenError::Missing { path: path.to_owned() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(OpenError::Missing { path: path.to_owned() });
            }
            Err(source) => return Err(open_error(path, owner, DatabaseError::from(source))),
        }
        let told = |fault| match fault {
            Fault::Redb(error) => open_error(path, owner, error),
            Fault::Panic(cause) => OpenError::Damaged { path: path.to_owned(), cause },
        };
        match open_checked(path, &switch, How::Real { check: true }).map_err(told) {
            Ok(database) => Self::with(path, switch, database, false).ready(),
            Err(OpenError::NoSpace { .. }) => {
                // Opening writes its repairs and its mark of use. They are kept in memory until there is room.
                let database = open_checked(path, &switch, How::Overlaid { check: true }).map_err(told)?;
                Ok((Self::with(path, switch, database, true), Some("no space left on its disk".to_owned())))
            }
            Err(error) => Err(error),
        }
    }

    /// A file that is only read and never changed: a backup, or a damaged one. `check` verifies its pages first.
    pub(crate) fn look(path: &Path, owner: &str, check: bool) -> Result<Self, OpenError> {
        let switch = WriteSwitch::default();
        let database = open_checked(path, &switch, How::Overlaid { check }).map_err(|fault| match fault {
            Fault::Redb(error) => open_error(path, owner, error),
            Fault::Panic(cause) => OpenError::Damaged { path: path.to_owned(), cause },
        })?;
        Ok(Self::with(path, switch, database, true))
    }

    fn with(path: &Path, switch: WriteSwitch, database: Database, overlaid: bool) -> Self {
        let shared = Shared { database: RwLock::new(Some(database)), panicked: AtomicBool::new(false) };
        Self { path: path.to_owned(), switch, shared: Arc::new(shared), overlaid }
    }

    fn ready(mut self) -> Result<(Self, Option<String>), OpenError> {
        self.compact();
        // All four tables exist from the first transaction on, so that readers need no special case.
        let written = self.write(&mut |_| Ok(()));
        // So little may fit into freed pages: whether its disk has room is known, and told, from the start.
        let written = written.and_then(|()| self.probe().map_err(|error| Failure(error.to_string())));
        let Err(Failure(cause)) = written else { return Ok((self, None)) };
        let readable = self.read_only().and_then(|()| self.shared.read(&mut |_| Ok(())));
        match readable {
            Ok(()) => Ok((self, Some(cause))),
            Err(Failure(cause)) => Err(OpenError::Damaged { path: self.path, cause }),
        }
    }

    // redb gives freed pages back only here. Before serving, when the file is large and mostly free.
    fn compact(&mut self) {
        let large = std::fs::metadata(&self.path).is_ok_and(|file| file.len() > limits::COMPACT_ABOVE);
        let mut slot = self.shared.slot();
        let Some(database) = slot.as_mut().filter(|_| large) else { return };
        let used = database
            .begin_write()
            .ok()
            .and_then(|tx| tx.stats().ok())
            .map(|stats| stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes());
        let length = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        if used.is_some_and(|used| used < length / 2)
            && let Err(error) = database.compact()
        {
            tracing::warn!(%error, "the store could not be compacted; it works, its file stays large");
        }
    }

    // Whether its disk takes a few pages: asked before the file is closed and opened again for it.
    fn probe(&self) -> std::io::Result<()> {
        self.switch.room()?;
        let mut name = self.path.as_os_str().to_owned();
        name.push(".probe");
        let path = PathBuf::from(name);
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(&[0; limits::PROBE]).and_then(|()| file.sync_all()));
        let _ = std::fs::remove_file(&path);
        written
    }
}

/// An empty file that only this user may read, if there is none; redb then initialises it, writing its
/// magic number last. A crash in between leaves a file that redb would refuse, so the new one is made
/// under another name and linked into place.
fn create_private(path: &Path) -> std::io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(name);
    let _ = std::fs::remove_file(&new);
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new)?;
    let made = Builder::new().set_cache_size(limits::PAGE_CACHE).create(&new);
    let linked = match made {
        Ok(database) => {
            drop(database);
            // Not rename: another process may have made the file meanwhile, and may hold it open.
            match std::fs::hard_link(&new, path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            }
        }
        Err(DatabaseError::Storage(StorageError::Io(error))) => Err(error),
        Err(error) => Err(std::io::Error::other(error)),
    };
    let _ = std::fs::remove_file(&new);
    linked?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

enum Fault {
    Redb(DatabaseError),
    Panic(String),
}

fn open_checked(path: &Path, switch: &WriteSwitch, how: How) -> Result<Database, Fault> {
    // A damaged page can make redb panic; here that is an answer, not an end.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let file = FileBackend::new(OpenOptions::new().read(true).write(true).open(path)?)?;
        let mut builder = Builder::new();
        builder.set_cache_size(limits::PAGE_CACHE);
        match how {
            How::Real { check } => builder
                .set_check_integrity_on_open(check)
                .create_with_backend(Switched { file, switch: switch.clone() }),
            How::Overlaid { check } => {
                builder.set_check_integrity_on_open(check).create_with_backend(Overlay::new(file)?)
            }
        }
    }));
    match opened {
        Ok(result) => result.map_err(Fault::Redb),
        Err(_) => Err(Fault::Panic("its pages are not consistent".to_owned())),
    }
}

fn open_error(path: &Path, owner: &str, error: DatabaseError) -> OpenError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path, owner: owner.to_owned() },
        DatabaseError::Storage(StorageError::Io(source)) => match source.kind() {
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
                OpenError::Damaged { path, cause: source.to_string() }
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                OpenError::NoSpace { path }
            }
            _ => OpenError::Io { path, source },
        },
        other => OpenError::Damaged { path, cause: other.to_string() },
    }
}

impl Reader for Shared {
    fn read(&self, look: Look<'_>) -> Result<(), Failure> {
        self.with(|database| {
            let tx = database.begin_read().map_err(failure)?;
            look(&ReadSession::open(&tx)?)
        })
    }

    fn is_sound(&self) -> bool {
        !self.panicked.load(Ordering::SeqCst)
    }
}

impl Backend for RedbFile {
    fn write(&mut self, work: Work<'_>) -> Result<(), Failure> {
        self.switch.stands();
        if self.overlaid {
            return Err(Failure("its disk takes no writes".to_owned()));
        }
        self.shared.with(|database| {
            let tx = database.begin_write().map_err(failure)?;
            // Dropping the transaction without commit aborts it.
            let mut session = WriteSession::open(&tx)?;
            work(&mut session)?;
            session.finish()?;
            tx.commit().map_err(failure)
        })
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::clone(&self.shared) as Arc<dyn Reader>
    }

    fn read_only(&mut self) -> Result<(), Failure> {
        let check = !self.shared.is_sound();
        let mut slot = self.shared.slot();
        // The old handle holds the file's lock.
        let_go(slot.take());
        self.overlaid = true;
        *slot = Some(opened(&self.path, &self.switch, How::Overlaid { check })?);
        self.shared.panicked.store(false, Ordering::SeqCst);
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        self.probe().map_err(|error| Failure(error.to_string()))?;
        // After a panic every page is looked at; else only what the last end left undone.
        let check = !self.shared.is_sound();
        {
            let mut slot = self.shared.slot();
            let_go(slot.take());
            match opened(&self.path, &self.switch, How::Real { check }) {
                Ok(database) => {
                    *slot = Some(database);
                    self.overlaid = false;
                    self.shared.panicked.store(false, Ordering::SeqCst);
                    return Ok(());
                }
                Err(failure) => tracing::debug!(cause = %failure.0, "the store cannot be opened for writing"),
            }
        }
        self.read_only()?;
        Err(Failure("its disk takes no writes".to_owned()))
    }

    fn close(&mut self) {
        let_go(self.shared.slot().take());
    }
}

// Closing writes, and after a panic it may be one more.
fn let_go(database: Option<Database>) {
    if catch_unwind(AssertUnwindSafe(|| drop(database))).is_err() {
        tracing::error!("the store's file could not be closed in order");
    }
}

fn opened(path: &Path, switch: &WriteSwitch, how: How) -> Result<Database, Failure> {
    open_checked(path, switch, how).map_err(|fault| match fault {
        Fault::Redb(error) => failure(error),
        Fault::Panic(cause) => Failure(cause),
    })
}
