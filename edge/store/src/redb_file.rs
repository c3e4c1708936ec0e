//! The engine on disk: the only place that names redb.
//!
//! Owns opening (ownership of the file, its mode, damage, repair, compaction) and redb's transactions.
//! Leaves meaning to [`crate::core`]. Invariant: after any failure the database is closed and opened anew
//! before it is used again, since redb refuses to go on after an I/O error.

use std::fs::{File, OpenOptions};
use std::ops::Bound;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{
    BackendError, Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError,
    TableDefinition,
};

use crate::backend::{Backend, Failure, Look, Pair, Space, Transaction, View, Work};
use crate::error::OpenError;
use crate::limits;
use crate::memory::WriteSwitch;

type Bytes = TableDefinition<'static, &'static [u8], &'static [u8]>;
const META: Bytes = TableDefinition::new("meta");
const ROWS: Bytes = TableDefinition::new("rows");
const CHANGES: Bytes = TableDefinition::new("changes");
const AUDIT: Bytes = TableDefinition::new("audit");

/// An open file.
pub(crate) struct RedbFile {
    path: PathBuf,
    switch: WriteSwitch,
    // None only between a failure and the next successful opening.
    database: Option<Database>,
}

impl RedbFile {
    pub(crate) fn open(path: &Path, owner: &str, switch: WriteSwitch) -> Result<Self, OpenError> {
        create_private(path).map_err(|source| open_error(path, owner, DatabaseError::from(source)))?;
        Self::open_existing(path, owner, switch)
    }

    /// As [`RedbFile::open`], and makes no file; an empty one is none.
    pub(crate) fn open_existing(path: &Path, owner: &str, switch: WriteSwitch) -> Result<Self, OpenError> {
        match std::fs::metadata(path) {
            Ok(file) if file.len() > 0 => {}
            Ok(_) => return Err(OpenError::Missing { path: path.to_owned() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(OpenError::Missing { path: path.to_owned() });
            }
            Err(source) => return Err(open_error(path, owner, DatabaseError::from(source))),
        }
        let database = open_checked(path, &switch, true).map_err(|error| match error {
            Fault::Redb(error) => open_error(path, owner, error),
            Fault::Panic(cause) => OpenError::Damaged { path: path.to_owned(), cause },
        })?;
        let mut file = Self { path: path.to_owned(), switch, database: Some(database) };
        file.compact();
        // All four tables exist from the first transaction on, so that readers need no special case.
        file.write(&mut |_| Ok(()))
            .map_err(|Failure(cause)| OpenError::Damaged { path: path.to_owned(), cause })?;
        Ok(file)
    }

    // redb gives freed pages back only here. Before serving, when the file is large and mostly free.
    fn compact(&mut self) {
        let large = std::fs::metadata(&self.path).is_ok_and(|file| file.len() > limits::COMPACT_ABOVE);
        let Some(database) = self.database.as_mut().filter(|_| large) else { return };
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

    fn database(&self) -> Result<&Database, Failure> {
        self.database.as_ref().ok_or_else(|| Failure("the file is closed after a failure".to_owned()))
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

fn open_checked(path: &Path, switch: &WriteSwitch, check: bool) -> Result<Database, Fault> {
    // A damaged page can make redb panic; here that is an answer, not an end.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let file = Switched { file: FileBackend::new(file)?, switch: switch.clone() };
        Builder::new()
            .set_cache_size(limits::PAGE_CACHE)
            .set_check_integrity_on_open(check)
            .create_with_backend(file)
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

impl Backend for RedbFile {
    fn write(&mut self, work: Work<'_>) -> Result<(), Failure> {
        let database = self.database()?;
        unwinding(|| {
            let tx = database.begin_write().map_err(failure)?;
            {
                let mut session = WriteSession {
                    meta: tx.open_table(META).map_err(failure)?,
                    rows: tx.open_table(ROWS).map_err(failure)?,
                    changes: tx.open_table(CHANGES).map_err(failure)?,
                    audit: tx.open_table(AUDIT).map_err(failure)?,
                };
                // Dropping the transaction without commit aborts it.
                work(&mut session)?;
            }
            tx.commit().map_err(failure)
        })
    }

    fn read(&mut self, look: Look<'_>) -> Result<(), Failure> {
        let database = self.database()?;
        unwinding(|| {
            let tx = database.begin_read().map_err(failure)?;
            look(&ReadSession {
                meta: tx.open_table(META).map_err(failure)?,
                rows: tx.open_table(ROWS).map_err(failure)?,
                changes: tx.open_table(CHANGES).map_err(failure)?,
                audit: tx.open_table(AUDIT).map_err(failure)?,
            })
        })
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        // The old handle holds the file's lock. Without the full check, which writes: a disk may still be full.
        drop(self.database.take());
        match open_checked(&self.path, &self.switch, false) {
            Ok(database) => {
                self.database = Some(database);
                Ok(())
            }
            Err(Fault::Redb(error)) => Err(failure(error)),
            Err(Fault::Panic(cause)) => Err(Failure(cause)),
        }
    }
}

/// A damaged page can make redb panic; here that is a failure, not an end.
fn unwinding(work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Failure("its pages are not consistent".to_owned())))
}

fn failure(error: impl Into<redb::Error>) -> Failure {
    Failure(error.into().to_string())
}

type WriteTable<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;
type ReadTable = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

struct WriteSession<'a> {
    meta: WriteTable<'a>,
    rows: WriteTable<'a>,
    changes: WriteTable<'a>,
    audit: WriteTable<'a>,
}

impl<'a> WriteSession<'a> {
    fn table(&self, space: Space) -> &WriteTable<'a> {
        match space {
            Space::Meta => &self.meta,
            Space::Rows => &self.rows,
            Space::Changes => &self.changes,
            Space::Audit => &self.audit,
        }
    }

    fn table_mut(&mut self, space: Space) -> &mut WriteTable<'a> {
        match space {
            Space::Meta => &mut self.meta,
            Space::Rows => &mut self.rows,
            Space::Changes => &mut self.changes,
            Space::Audit => &mut self.audit,
        }
    }
}

struct ReadSession {
    meta: ReadTable,
    rows: ReadTable,
    changes: ReadTable,
    audit: ReadTable,
}

impl ReadSession {
    fn table(&self, space: Space) -> &ReadTable {
        match space {
            Space::Meta => &self.meta,
            Space::Rows => &self.rows,
            Space::Changes => &self.changes,
            Space::Audit => &self.audit,
        }
    }
}

fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Vec<u8>>, Failure> {
    Ok(table.get(key).map_err(failure)?.map(|value| value.value().to_vec()))
}

fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    from: &[u8],
    to: &[u8],
    limit: usize,
    newest_first: bool,
) -> Result<Vec<Pair>, Failure> {
    let mut range = table.range(from..to).map_err(failure)?;
    let mut pairs = Vec::new();
    while pairs.len() < limit {
        let Some(pair) = (if newest_first { range.next_back() } else { range.next() }) else { break };
        let (key, value) = pair.map_err(failure)?;
        pairs.push((key.value().to_vec(), value.value().to_vec()));
    }
    Ok(pairs)
}

impl View for ReadSession {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        get(self.table(space), key)
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        scan(self.table(space), from, to, limit, newest_first)
    }
}

impl View for WriteSession<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        get(self.table(space), key)
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        scan(self.table(space), from, to, limit, newest_first)
    }
}

impl Transaction for WriteSession<'_> {
    fn put(&mut self, space: Space, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.table_mut(space).insert(key, value).map_err(failure)?;
        Ok(())
    }

    fn remove(&mut self, space: Space, key: &[u8]) -> Result<(), Failure> {
        self.table_mut(space).remove(key).map_err(failure)?;
        Ok(())
    }
}

/// A file whose writes a test can make fail as a full disk does. In service the switch is never set.
#[derive(Debug)]
struct Switched {
    file: FileBackend,
    switch: WriteSwitch,
}

impl Switched {
    fn room(&self) -> std::io::Result<()> {
        if self.switch.is_full() { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl redb::StorageBackend for Switched {
    fn len(&self) -> std::io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.room()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.room()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.room()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> std::io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
