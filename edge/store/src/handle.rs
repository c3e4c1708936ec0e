//! The handle to an open store: bounded queues to its writer and its reader thread.
//!
//! Owns opening, the questions and their answers. Invariant: no call waits for a disk on the caller's thread
//! (opening apart), and nothing is queued without a bound.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::audit::AuditHead;
use crate::backend::{Backend, Failure, Reader, View};
use crate::commit::{Change, Commit, Position, Row};
use crate::error::{CommitError, Gone, OpenError, ReadError};
use crate::memory::Memory;
use crate::opening::{self, Claim, Opened, Origin};
use crate::owed::{Owed, Settled};
use crate::reader::{self, Look};
use crate::redb_file::RedbFile;
use crate::switch::WriteSwitch;
use crate::times::CommitTimes;
use crate::told::{Told, Unreadable};
use crate::writer::{Job, Reserved, Writer, now_unix_ms};
use crate::{backup, core, limits};

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
    pub(crate) queue: mpsc::Sender<Job>,
    looks: mpsc::Sender<Look>,
    pub(crate) reader: Arc<dyn Reader>,
    pub(crate) told: Arc<Told>,
    incarnation: Arc<str>,
    origin: Option<Arc<Origin>>,
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

    fn start_on(
        (mut file, broken): (RedbFile, Option<String>),
        path: &Path,
        owner: &str,
        make: bool,
    ) -> Result<Self, OpenError> {
        let damaged = |Failure(cause)| OpenError::Damaged { path: path.to_owned(), cause };
        let mut keep = |reader: &dyn Reader, schema: u32| backup::keep(reader, path, schema);
        let claim = opening::claim(&mut file, owner, new_incarnation(), make, &mut keep).map_err(damaged)?;
        match claim {
            Claim::Ours(opened) => Self::start(Box::new(file), opened, broken)
                .map_err(|source| OpenError::Io { path: path.to_owned(), source }),
            Claim::Nobodys => Err(OpenError::Missing { path: path.to_owned() }),
            Claim::Unwritable(cause) => Err(OpenError::Unwritable { path: path.to_owned(), cause }),
            Claim::Others(found) if found.owner != owner => Err(OpenError::WrongOwner {
                path: path.to_owned(),
                found: found.owner,
                wanted: owner.to_owned(),
            }),
            Claim::Others(found) => Err(OpenError::NewerSchema {
                path: path.to_owned(),
                found: found.schema,
                known: core::SCHEMA,
            }),
        }
    }

    /// A store without a disk, with the same behaviour; its switch makes writes fail.
    pub fn in_memory() -> (Self, WriteSwitch) {
        let switch = WriteSwitch::default();
        // Neither can fail: an empty map is claimed, and threads are all that it needs.
        let mut memory = Memory::with_switch(switch.clone());
        let mut keep = |_: &dyn Reader, _| Ok(());
        let opened = match opening::claim(&mut memory, "memory", new_incarnation(), true, &mut keep) {
            Ok(Claim::Ours(opened)) => opened,
            _ => Opened { incarnation: new_incarnation(), head: AuditHead::default(), origin: None },
        };
        let reader = memory.reader();
        let store = Self::start(Box::new(memory), opened, None).unwrap_or_else(|_| Self {
            // Without a thread every call answers `Closed`.
            queue: mpsc::channel(1).0,
            looks: mpsc::channel(1).0,
            reader,
            told: Arc::new(Told::new(Health::Ok, AuditHead::default())),
            incarnation: Arc::from(""),
            origin: None,
        });
        (store, switch)
    }

    fn start(backend: Box<dyn Backend>, opened: Opened, broken: Option<String>) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel(limits::QUEUED_OPERATIONS);
        let (looks, asked) = mpsc::channel(limits::QUEUED_OPERATIONS);
        let health = broken.clone().map_or(Health::Ok, Health::ReadOnly);
        let told = Arc::new(Told::new(health, opened.head));
        let reader = backend.reader();
        let writer = Writer::new(backend, jobs, Arc::clone(&told), broken);
        let (reads, writes) = (Arc::clone(&reader), queue.clone());
        let telling = Arc::clone(&told);
        std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || telling.attend("store", || writer.run()))?;
        let telling = Arc::clone(&told);
        std::thread::Builder::new()
            .name("store-read".to_owned())
            .spawn(move || telling.attend("store-read", || reader::run(&reads, asked, &writes)))?;
        let origin = opened.origin.map(Arc::new);
        Ok(Self { queue, looks, reader, told, incarnation: opened.incarnation.into(), origin })
    }

    /// Commits all of it or nothing, durably. Waits for its turn when many are queued.
    pub async fn commit(&self, commit: Commit) -> Result<Position, CommitError> {
        commit.check()?;
        let (answer, answered) = oneshot::channel();
        self.queue.send(Job::Commit(commit, answer)).await.map_err(|_| CommitError::Closed)?;
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    /// Commits each of them for itself, with its own conditions and outcome, all in one transaction: many small changes
    /// that came together cost one sync. The answers are in the order of the commits. At most
    /// [`limits::BATCH_OPERATIONS`]; more are refused.
    pub async fn commit_each(&self, commits: Vec<Commit>) -> Vec<Result<Position, CommitError>> {
        let mut jobs = Vec::with_capacity(commits.len());
        let mut answers = Vec::with_capacity(commits.len());
        for commit in commits {
            let checked = match jobs.len() < limits::BATCH_OPERATIONS {
                true => commit.check(),
                false => Err(CommitError::TooLarge("too many commits at once")),
            };
            answers.push(checked.map(|()| {
                let (answer, answered) = oneshot::channel();
                jobs.push((commit, answer));
                answered
            }));
        }
        // A store that is closed drops them, and with them what is awaited below.
        let _ = self.queue.send(Job::Commits(jobs)).await;
        let mut outcomes = Vec::with_capacity(answers.len());
        for answer in answers {
            outcomes.push(match answer {
                Ok(answered) => answered.await.unwrap_or(Err(CommitError::Closed)),
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    /// Remembers what a commit that was answered `ReadOnly` asked for and what took force all the same: it is written
    /// by the first transaction that succeeds, before everything else in it, and in the order of these calls.
    /// Does not wait and queues nothing: [`Store::check`], or any commit, tries to write it.
    ///
    /// # Errors
    /// [`CommitError::TooLarge`] when it, or what waits already, is above a bound: then it is not remembered.
    pub fn owe(&self, owed: Owed) -> Result<Settled, CommitError> {
        self.told.debts.push(owed, now_unix_ms())
    }

    /// How many changes are in force and not written yet.
    pub fn owed(&self) -> usize {
        self.told.debts.len()
    }

    /// All rows of a table in the order of their keys. One that does not verify is left out and told by
    /// [`Store::unreadable`].
    pub async fn load(&self, table: &'static str) -> Result<Vec<Row>, ReadError> {
        let (rows, unusable) = self.read(move |view| core::load(view, table)).await?;
        for key in unusable {
            self.told.unreadable(table, &key, "its bytes do not match their check");
        }
        Ok(rows)
    }

    /// Rows of a table with `from <= key < to`, at most so many (at least one), in the order of their keys; and the key
    /// to go on from, if there may be more. Those that do not verify are left out and told by [`Store::unreadable`].
    pub async fn load_range(
        &self,
        table: &'static str,
        from: &str,
        to: &str,
        most: usize,
    ) -> Result<(Vec<Row>, Option<String>), ReadError> {
        let (from, to) = (from.to_owned(), to.to_owned());
        let range = self
            .read(move |view| core::range(view, table, (from.as_str(), to.as_str()), most.max(1)))
            .await?;
        for key in range.unusable {
            self.told.unreadable(table, &key, "its bytes do not match their check");
        }
        Ok((range.rows, range.next))
    }

    /// All rows of a table that decode as JSON of this type. Others are left out and told by [`Store::unreadable`].
    pub async fn load_json<T: serde::de::DeserializeOwned>(
        &self,
        table: &'static str,
    ) -> Result<Vec<(Row, T)>, ReadError> {
        let rows = self.load(table).await?;
        let decoded = rows.into_iter().filter_map(|row| match serde_json::from_slice(&row.value) {
            Ok(value) => Some((row, value)),
            Err(error) => {
                self.told.unreadable(table, &row.key, &format!("it does not decode: {error}"));
                None
            }
        });
        Ok(decoded.collect())
    }

    /// Records that were asked for and cannot be used, by name: at most [`limits::UNREADABLE_TOLD`].
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.told.all_unreadable()
    }

    /// Tells of a record that its user cannot use.
    pub fn not_usable(&self, table: &str, key: &str, cause: &str) {
        self.told.unreadable(table, key, cause);
    }

    /// One row.
    pub async fn get(&self, table: &'static str, key: impl Into<String>) -> Result<Option<Row>, ReadError> {
        let key = key.into();
        match self.read(move |view| core::row(view, table, &key)).await? {
            None => Ok(None),
            Some(Ok(row)) => Ok(Some(row)),
            Some(Err(core::Unusable(key))) => {
                self.told.unreadable(table, &key, "its bytes do not match their check");
                Err(ReadError::Failed(format!("row {key} of {table} does not match its check")))
            }
        }
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

    /// From now on the audit keeps at most so many entries for at most so long. Older ones go with the next commits,
    /// and leave a checkpoint.
    pub fn keep_audit(&self, entries: u64, time: Duration) {
        self.told.keep(entries, time);
    }

    /// How long durable transactions took, since it was opened.
    pub fn commit_times(&self) -> CommitTimes {
        self.told.times.read()
    }

    /// Durable transactions since it was opened: each costs a sync.
    pub fn transactions(&self) -> u64 {
        self.told.transactions.load(Ordering::SeqCst)
    }

    /// Where it came from, if it was put in place from a backup or out of a damaged file.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_deref()
    }

    /// When the state that it was restored to was current, in milliseconds since 1970: what happened after that is not
    /// in it, so that a certificate given later may be good although no row knows it. `None`: it was never restored;
    /// 0: it was read out of a damaged file, and any row may be missing.
    pub fn restored_at(&self) -> Option<i64> {
        self.origin.as_ref().map(|origin| origin.state_of_unix_ms)
    }

    /// Random name of this store, drawn when it was created: positions of different ones do not compare.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// Whether it can be written, as the last attempt found.
    pub fn health(&self) -> Health {
        self.told.health.borrow().clone()
    }

    /// Waits until one of its threads has broken off; its name. From then on it answers nothing, and whoever lives by it
    /// has to be started again.
    pub async fn broke(&self) -> &'static str {
        self.told.broke().await
    }

    /// Since when it takes no writes, in milliseconds since 1970; `None` while it does.
    pub fn read_only_since(&self) -> Option<i64> {
        Some(self.told.fell.load(Ordering::SeqCst)).filter(|since| *since > 0)
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
        self.queue
            .send(Job::Reserve { name, block, above: 0, answer })
            .await
            .map_err(|_| CommitError::Closed)?;
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    pub(crate) async fn unreserved(&self, name: &'static str) -> Result<u64, ReadError> {
        self.read(move |view| core::unreserved(view, name)).await
    }

    /// Queues a reservation without waiting; `false` when there is no room for it now.
    pub(crate) fn reserve_soon(
        &self,
        name: &'static str,
        block: u64,
        above: u64,
        answer: impl FnOnce(Result<u64, CommitError>) + Send + 'static,
    ) -> bool {
        self.queue.try_send(Job::Reserve { name, block, above, answer: Box::new(answer) }).is_ok()
    }

    pub(crate) async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&dyn View) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, ReadError> {
        let (answer, answered) = oneshot::channel();
        let look: Look = Box::new(move |view| drop(answer.send(view.and_then(look))));
        self.looks.send(look).await.map_err(|_| ReadError::Closed)?;
        let answered = answered.await;
        match answered {
            Ok(Err(_)) | Err(_) if self.queue.is_closed() => Err(ReadError::Closed),
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

pub(crate) fn new_incarnation() -> String {
    let mut bytes = [0; 16];
    // Without randomness the time and process tell two stores apart well enough.
    if getrandom::fill(&mut bytes).is_err() {
        let pid = u64::from(std::process::id());
        bytes = (u128::from(now_unix_ms().unsigned_abs()) << 64 | u128::from(pid)).to_be_bytes();
    }
    data_encoding::HEXLOWER.encode(&bytes)
}
