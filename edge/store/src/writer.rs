//! The writer thread.
//!
//! Owns the engine, group commit (everything queued goes into one transaction; the sync in progress is the
//! batching window), what is owed, the marker of a gap in the audit, and the read-only state. Leaves the queue before
//! it to [`crate::handle`] and reads to [`crate::reader`]. Invariant: an answer leaves the thread only after the
//! transaction that holds it is durable.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};

use crate::audit::AuditHead;
use crate::backend::{Backend, Failure, Reader};
use crate::commit::{Change, Commit, Position};
use crate::error::CommitError;
use crate::handle::Health;
use crate::outage::{Outage, gap};
use crate::owed::Waiting;
use crate::told::Told;
use crate::{chain, core, limits};

pub(crate) type Reserved = Box<dyn FnOnce(Result<u64, CommitError>) + Send>;

pub(crate) enum Job {
    Commit(Commit, oneshot::Sender<Result<Position, CommitError>>),
    /// Each for itself, all of them in one transaction.
    Commits(Vec<(Commit, oneshot::Sender<Result<Position, CommitError>>)>),
    Reserve {
        name: &'static str,
        block: u64,
        above: u64,
        answer: Reserved,
    },
    /// A read found the engine unsound.
    Mend,
    /// Answered once everything before it is written or refused.
    Pass(oneshot::Sender<()>),
    Close(Box<dyn FnOnce() + Send>),
}

pub(crate) struct Writer {
    backend: Box<dyn Backend>,
    reader: Arc<dyn Reader>,
    jobs: mpsc::Receiver<Job>,
    told: Arc<Told>,
    // Why the engine has to be opened anew before it is written again.
    broken: Option<String>,
    // When that was last tried, and how long to wait after it.
    tried: Option<(Instant, Duration)>,
    outage: Option<Outage>,
    aged: Option<Instant>,
}

enum Pending {
    Commit(Commit, oneshot::Sender<Result<Position, CommitError>>),
    Reserve { name: &'static str, block: u64, above: u64, answer: Reserved },
}

#[derive(Clone, Copy)]
enum Outcome {
    Committed(Position),
    Conflict(usize),
    Reserved(u64),
}

struct Written {
    settled: Vec<Vec<Change>>,
    outcomes: Vec<Outcome>,
    head: AuditHead,
}

impl Writer {
    /// `broken`: why the file could not be opened for writing.
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        jobs: mpsc::Receiver<Job>,
        told: Arc<Told>,
        broken: Option<String>,
    ) -> Self {
        let reader = backend.reader();
        let outage = broken.is_some().then(|| Outage::begin(now_unix_ms()));
        told.fell.store(outage.as_ref().map_or(0, |outage| outage.since_unix_ms), Ordering::SeqCst);
        Self { backend, reader, jobs, told, broken, tried: None, outage, aged: None }
    }

    /// Works until it is told to close or nobody can ask any more.
    pub(crate) fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let mut next = Some(first);
            let mut batch = Vec::new();
            let mut bytes = 0;
            while let Some(job) = next.take() {
                match job {
                    Job::Commit(commit, answer) => {
                        bytes += commit.bytes();
                        batch.push(Pending::Commit(commit, answer));
                    }
                    Job::Commits(commits) => {
                        bytes += commits.iter().map(|(commit, _)| commit.bytes()).sum::<usize>();
                        batch.extend(
                            commits.into_iter().map(|(commit, answer)| Pending::Commit(commit, answer)),
                        );
                    }
                    Job::Reserve { name, block, above, answer } => {
                        batch.push(Pending::Reserve { name, block, above, answer });
                    }
                    Job::Mend => self.mend(),
                    Job::Pass(answer) => {
                        self.flush(std::mem::take(&mut batch));
                        let _ = answer.send(());
                    }
                    Job::Close(answer) => {
                        self.flush(batch);
                        if self.told.debts.len() > 0 {
                            self.write(Vec::new());
                        }
                        // Who waits for what could not be written waits no longer.
                        drop(self.told.debts.take());
                        self.jobs.close();
                        self.backend.close();
                        answer();
                        return;
                    }
                }
                if batch.len() < limits::BATCH_OPERATIONS && bytes < limits::BATCH_BYTES {
                    next = self.jobs.try_recv().ok();
                }
            }
            self.flush(batch);
        }
        self.backend.close();
    }

    fn mend(&mut self) {
        if !self.reader.is_sound() && self.broken.is_none() {
            self.fell("its pages are not consistent: restore the last backup".to_owned());
        }
        // Its end is the next write's to find.
        let _ = self.usable();
    }

    // From now on it is read-only.
    fn fell(&mut self, cause: String) {
        self.tried = Some((Instant::now(), limits::REOPEN_EVERY));
        let outage = self.outage.get_or_insert_with(|| Outage::begin(now_unix_ms()));
        self.told.fell.store(outage.since_unix_ms, Ordering::SeqCst);
        if let Err(Failure(more)) = self.backend.read_only() {
            tracing::error!(cause = %more, "the store cannot even be read");
        }
        self.tell(Health::ReadOnly(cause.clone()));
        self.broken = Some(cause);
    }

    // A failed engine is opened anew, not more often than the bound says nor for most of the time.
    fn usable(&mut self) -> Result<(), String> {
        let Some(cause) = &self.broken else { return Ok(()) };
        if self.tried.is_some_and(|(tried, wait)| tried.elapsed() < wait) {
            return Err(cause.clone());
        }
        let began = Instant::now();
        let reopened = self.backend.reopen();
        self.tried = Some((Instant::now(), limits::REOPEN_EVERY.max(began.elapsed() * 4)));
        if reopened.is_err() {
            return Err(cause.clone());
        }
        self.broken = None;
        Ok(())
    }

    fn flush(&mut self, batch: Vec<Pending>) {
        if !batch.is_empty() {
            self.write(batch);
        }
    }

    fn write(&mut self, batch: Vec<Pending>) {
        let owed = self.told.debts.take();
        let begun = Instant::now();
        let result = match self.usable() {
            Ok(()) => self.transact(&owed, &batch).map_err(|Failure(cause)| {
                self.fell(cause.clone());
                cause
            }),
            Err(cause) => Err(cause),
        };
        match result {
            Ok(written) => {
                self.told.times.took(begun.elapsed());
                self.written(owed, batch, written);
            }
            Err(cause) => self.refuse(owed, batch, &cause),
        }
    }

    fn written(&mut self, owed: VecDeque<Waiting>, batch: Vec<Pending>, written: Written) {
        self.told.transactions.fetch_add(1, Ordering::SeqCst);
        self.told.head.send_replace(written.head);
        self.outage = None;
        self.told.fell.store(0, Ordering::SeqCst);
        // First of all: who asked for a commit of this batch finds the positions that it left behind.
        for (waiting, changes) in owed.into_iter().zip(written.settled) {
            let _ = waiting.answer.send(changes);
        }
        self.tell(Health::Ok);
        for (pending, outcome) in batch.into_iter().zip(written.outcomes) {
            match (pending, outcome) {
                (Pending::Commit(_, answer), Outcome::Committed(position)) => {
                    let _ = answer.send(Ok(position));
                }
                (Pending::Commit(_, answer), Outcome::Conflict(index)) => {
                    let _ = answer.send(Err(CommitError::Conflict(index)));
                }
                (Pending::Reserve { answer, .. }, Outcome::Reserved(first)) => answer(Ok(first)),
                // `transact` gives each operation an outcome of its kind.
                _ => {}
            }
        }
    }

    fn refuse(&mut self, owed: VecDeque<Waiting>, batch: Vec<Pending>, cause: &str) {
        self.told.debts.back(owed);
        for pending in batch {
            let error = CommitError::ReadOnly(cause.to_owned());
            match pending {
                Pending::Commit(commit, answer) => {
                    if let Some(outage) = &mut self.outage {
                        outage.refused(&commit);
                    }
                    drop(answer.send(Err(error)));
                }
                Pending::Reserve { answer, .. } => answer(Err(error)),
            }
        }
    }

    fn transact(&mut self, owed: &VecDeque<Waiting>, batch: &[Pending]) -> Result<Written, Failure> {
        let now = now_unix_ms();
        let lost = self.told.lost.load(Ordering::SeqCst);
        let gap = gap(self.outage.as_ref(), owed.len(), lost, now);
        let aged = self.aged.is_none_or(|at| at.elapsed() >= limits::AUDIT_AGED_EVERY);
        let keep = self.told.retention();
        let mut settled = Vec::with_capacity(owed.len());
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut head = AuditHead::default();
        self.backend.write(&mut |tx| {
            chain::append(tx, gap.as_slice(), now)?;
            for waiting in owed {
                settled.push(core::settle(tx, &waiting.owed, now)?);
            }
            for pending in batch {
                outcomes.push(match pending {
                    Pending::Commit(commit, _) => match core::apply(tx, commit, now)? {
                        Ok(position) => Outcome::Committed(position),
                        Err(index) => Outcome::Conflict(index),
                    },
                    Pending::Reserve { name, block, above, .. } => {
                        Outcome::Reserved(core::reserve(tx, name, *block, *above)?)
                    }
                });
            }
            chain::prune(tx, keep, now, aged)?;
            head = chain::head(tx)?;
            Ok(())
        })?;
        if aged {
            self.aged = Some(Instant::now());
        }
        self.told.lost.fetch_sub(lost, Ordering::SeqCst);
        Ok(Written { settled, outcomes, head })
    }

    fn tell(&self, health: Health) {
        self.told.health.send_if_modified(|old| {
            if *old == health {
                return false;
            }
            match &health {
                Health::Ok => tracing::info!("the store can be written again"),
                Health::ReadOnly(cause) => tracing::error!(%cause, "the store cannot be written"),
            }
            *old = health;
            true
        });
    }
}

pub(crate) fn now_unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
