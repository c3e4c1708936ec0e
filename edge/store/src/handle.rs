//! The handle to an open store: a bounded queue to its writer thread.
//!
//! Owns opening, the questions and their answers. Invariant: no call waits for a disk on the caller's thread
//! (opening apart), and nothing is queued without a bound.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use crate::audit::{AuditEntry, AuditHead};
use crate::backend::{Backend, Failure, View};
use crate::commit::{Change, Commit, Position, Row};
use crate::core;
use crate::error::{CommitError, Gone, OpenError, ReadError};
use crate::limits;
use crate::memory::{Memory, WriteSwitch};
use crate::owed::{Debts, Owed, Settled};
use crate::redb_file::RedbFile;
use crate::writer::{Job, Look, Reserved, Writer, now_unix_ms};

/// Whether the store can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Ok,
    /// No, and why. Commits are refused, reads may work; the next commit tries again, and writes first what is owed.
    ReadOnly(String),
}

/// A handle to an open store. Cheap to clone; the file closes when the last one is gone, or by [`Store::close`].
#[derive(Clone)]
pub struct Store {
    queue: mpsc::Sender<Job>,
    incarnation: Arc<str>,
    health: watch::Receiver<Health>,
    debts: Debts,
}

impl Store {
    /// Opens the store file of a kind of daemon (`owner`: `edge`, `control-plane`), or creates it (mode
    /// 0600) in a directory that exists. Blocks for some milliseconds.
    pub fn open(path: &Path, owner: &str) -> Result<Self, OpenError> {
        Self::open_switched(path, owner, WriteSwitch::default())
    }

    /// As [`Store::open`], with a switch by which a test makes its writes fail.
    pub fn open_switched(path: &Path, owner: &str, switch: WriteSwitch) -> Result<Self, OpenError> {
        Self::start_on(RedbFile::open(path, owner, switch)?, path, owner, true)
    }

    /// Opens a store that was made before, and never makes one: what a lost or emptied file knew must not be taken for
    /// nothing.
    pub fn open_existing(path: &Path, owner: &str) -> Result<Self, OpenError> {
        Self::open_existing_switched(path, owner, WriteSwitch::default())
    }

    /// As [`Store::open_existing`], with a switch by which a test makes its writes fail.
    pub fn open_existing_switched(path: &Path, owner: &str, switch: WriteSwitch) -> Result<Self, OpenError> {
        Self::start_on(RedbFile::open_existing(path, owner, switch)?, path, owner, false)
    }

    fn start_on(mut file: RedbFile, path: &Path, owner: &str, make: bool) -> Result<Self, OpenError> {
        let damaged = |Failure(cause)| OpenError::Damaged { path: path.to_owned(), cause };
        let identity = core::claim(&mut file, owner, new_incarnation(), make).map_err(damaged)?;
        match identity {
            Ok(identity) => Self::start(Box::new(file), identity.incarnation)
                .map_err(|source| OpenError::Io { path: path.to_owned(), source }),
            Err(None) => Err(OpenError::Missing { path: path.to_owned() }),
            Err(Some(found)) if found.owner != owner => Err(OpenError::WrongOwner {
                path: path.to_owned(),
                found: found.owner,
                wanted: owner.to_owned(),
            }),
            Err(Some(found)) => Err(OpenError::NewerSchema {
                path: path.to_owned(),
                found: found.schema,
                known: core::SCHEMA,
            }),
        }
    }

    /// A store without a disk, with the same behaviour; its switch makes writes fail.
    pub fn in_memory() -> (Self, WriteSwitch) {
        let switch = WriteSwitch::default();
        let memory = Memory::with_switch(switch.clone());
        // Neither can fail: an empty map is claimed, and a thread is all that it needs.
        let store = Self::start_memory(memory);
        (store, switch)
    }

    fn start_memory(mut memory: Memory) -> Self {
        let incarnation = new_incarnation();
        let _ = core::claim(&mut memory, "memory", incarnation.clone(), true);
        match Self::start(Box::new(memory), incarnation.clone()) {
            Ok(store) => store,
            // Without a thread every call answers `Closed`.
            Err(_) => Self {
                queue: mpsc::channel(1).0,
                incarnation: incarnation.into(),
                health: watch::channel(Health::Ok).1,
                debts: Debts::default(),
            },
        }
    }

    fn start(backend: Box<dyn Backend>, incarnation: String) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel(limits::QUEUED_OPERATIONS);
        let (told, health) = watch::channel(Health::Ok);
        let debts = Debts::default();
        let writer = Writer::new(backend, jobs, told, debts.clone());
        std::thread::Builder::new().name("store".to_owned()).spawn(move || writer.run())?;
        Ok(Self { queue, incarnation: incarnation.into(), health, debts })
    }

    /// Commits all of it or nothing, durably. Waits for its turn when many are queued.
    pub async fn commit(&self, commit: Commit) -> Result<Position, CommitError> {
        commit.check()?;
        let (answer, answered) = oneshot::channel();
        self.queue.send(Job::Commit(commit, answer)).await.map_err(|_| CommitError::Closed)?;
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Remembers what a commit that was answered `ReadOnly` asked for and what took force all the same: it is written
    /// by the first transaction that succeeds, before everything else in it, and in the order of these calls.
    /// Does not wait and queues nothing: [`Store::check`], or any commit, tries to write it.
    ///
    /// # Errors
    /// [`CommitError::TooLarge`] when it, or what waits already, is above a bound: then it is not remembered.
    pub fn owe(&self, owed: Owed) -> Result<Settled, CommitError> {
        self.debts.push(owed, now_unix_ms())
    }

    /// How many changes are in force and not written yet.
    pub fn owed(&self) -> usize {
        self.debts.len()
    }

    /// All rows of a table in the order of their keys.
    pub async fn load(&self, table: &'static str) -> Result<Vec<Row>, ReadError> {
        self.read(move |view| core::load(view, table)).await
    }

    /// One row.
    pub async fn get(&self, table: &'static str, key: impl Into<String>) -> Result<Option<Row>, ReadError> {
        let key = key.into();
        self.read(move |view| core::row(view, table, &key)).await
    }

    /// The newest committed position.
    pub async fn position(&self) -> Result<Position, ReadError> {
        self.read(core::position).await
    }

    /// Every row that a commit after this position touched, oldest commit first. `Gone` when it is further
    /// back than [`limits::CHANGES_KEPT`] or of another incarnation.
    pub async fn changes_since(&self, position: Position) -> Result<Result<Vec<Change>, Gone>, ReadError> {
        self.read(move |view| core::changes_since(view, position)).await
    }

    /// The newest audit entry's number and hash.
    pub async fn audit_head(&self) -> Result<AuditHead, ReadError> {
        self.read(core::audit_head).await
    }

    /// At most `limit` (and [`limits::AUDIT_PAGE`]) audit entries after a sequence, oldest first.
    pub async fn audit_after(&self, sequence: u64, limit: usize) -> Result<Vec<AuditEntry>, ReadError> {
        self.read(move |view| core::audit_after(view, sequence, limit)).await
    }

    /// The newest `limit` (at most [`limits::AUDIT_PAGE`]) audit entries, oldest first.
    pub async fn audit_tail(&self, limit: usize) -> Result<Vec<AuditEntry>, ReadError> {
        self.read(move |view| core::audit_tail(view, limit)).await
    }

    /// Random name of this store, drawn when it was created: positions of different ones do not compare.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// Whether it can be written, as the last attempt found.
    pub fn health(&self) -> Health {
        self.health.borrow().clone()
    }

    /// Tells of each change of [`Store::health`].
    pub fn watch_health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Writes nothing but tries to: finds out whether a read-only store can be written again.
    pub async fn check(&self) -> Health {
        match self.commit(Commit::new()).await {
            Ok(_) | Err(CommitError::Conflict(_) | CommitError::TooLarge(_)) => Health::Ok,
            Err(error) => Health::ReadOnly(error.to_string()),
        }
    }

    /// Waits until everything queued is durable and the file is closed. Later calls answer `Closed`.
    pub async fn close(&self) {
        let (answer, closed) = oneshot::channel();
        let answer = Box::new(move || {
            // A caller that does not wait any more needs no answer.
            let _ = answer.send(());
        });
        if self.queue.send(Job::Close(answer)).await.is_ok() {
            let _ = closed.await;
        }
    }

    /// The same for a caller without a runtime. Blocks; nothing may be queued by others meanwhile.
    pub fn close_blocking(self) {
        let (answer, closed) = std::sync::mpsc::sync_channel(1);
        let answer = Box::new(move || {
            let _ = answer.send(());
        });
        if self.queue.try_send(Job::Close(answer)).is_ok() {
            let _ = closed.recv();
        }
    }

    pub(crate) async fn reserve(&self, name: &'static str, block: u64) -> Result<u64, CommitError> {
        let (answer, answered) = oneshot::channel();
        let answer: Reserved = Box::new(move |first| drop(answer.send(first)));
        self.queue.send(Job::Reserve { name, block, answer }).await.map_err(|_| CommitError::Closed)?;
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Queues a reservation without waiting; `false` when there is no room for it now.
    pub(crate) fn reserve_soon(
        &self,
        name: &'static str,
        block: u64,
        answer: impl FnOnce(Result<u64, CommitError>) + Send + 'static,
    ) -> bool {
        self.queue.try_send(Job::Reserve { name, block, answer: Box::new(answer) }).is_ok()
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn View) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, ReadError> {
        let (answer, answered) = oneshot::channel();
        let look: Look = Box::new(move |view| drop(answer.send(view.and_then(look))));
        self.queue.send(Job::Read(look)).await.map_err(|_| ReadError::Closed)?;
        match answered.await {
            Ok(result) => result.map_err(|Failure(cause)| ReadError::Failed(cause)),
            Err(_) => Err(ReadError::Closed),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Store").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

fn new_incarnation() -> String {
    let mut bytes = [0; 16];
    // Without randomness the time and process tell two stores apart well enough.
    if getrandom::fill(&mut bytes).is_err() {
        let pid = u64::from(std::process::id());
        bytes = (u128::from(now_unix_ms().unsigned_abs()) << 64 | u128::from(pid)).to_be_bytes();
    }
    data_encoding::HEXLOWER.encode(&bytes)
}
