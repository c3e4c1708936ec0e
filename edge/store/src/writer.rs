//! The writer thread.
//!
//! Owns the engine, group commit (everything queued goes into one transaction; the sync in progress is the
//! batching window), what is owed, and the read-only state. Leaves the queue before it to [`crate::handle`]. Invariant: an answer
//! leaves the thread only after the transaction that holds it is durable.

use std::collections::VecDeque;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot, watch};

use crate::backend::{Backend, Failure, View};
use crate::commit::{Change, Commit, Position};
use crate::core;
use crate::error::CommitError;
use crate::handle::Health;
use crate::limits;
use crate::owed::{Debts, Waiting};

pub(crate) type Reserved = Box<dyn FnOnce(Result<u64, CommitError>) + Send>;
pub(crate) type Look = Box<dyn FnOnce(Result<&dyn View, Failure>) + Send>;

pub(crate) enum Job {
    Commit(Commit, oneshot::Sender<Result<Position, CommitError>>),
    Reserve { name: &'static str, block: u64, answer: Reserved },
    Read(Look),
    Close(Box<dyn FnOnce() + Send>),
}

pub(crate) struct Writer {
    backend: Box<dyn Backend>,
    jobs: mpsc::Receiver<Job>,
    health: watch::Sender<Health>,
    // Why the engine has to be opened anew before it is used again.
    broken: Option<String>,
    // When that was last tried.
    tried: Option<Instant>,
    // What is in force and not written yet.
    debts: Debts,
}

enum Pending {
    Commit(Commit, oneshot::Sender<Result<Position, CommitError>>),
    Reserve { name: &'static str, block: u64, answer: Reserved },
}

#[derive(Clone, Copy)]
enum Outcome {
    Committed(Position),
    Conflict(usize),
    Reserved(u64),
}

impl Writer {
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        jobs: mpsc::Receiver<Job>,
        health: watch::Sender<Health>,
        debts: Debts,
    ) -> Self {
        Self { backend, jobs, health, broken: None, tried: None, debts }
    }

    /// Works until it is told to close or nobody can ask any more.
    pub(crate) fn run(mut self) {
        while let Some(first) = self.jobs.blocking_recv() {
            let mut next = Some(first);
            let mut batch = Vec::new();
            let mut bytes = 0;
            // A read stands where it was queued: it sees every commit before it and none after.
            while let Some(job) = next.take() {
                match job {
                    Job::Commit(commit, answer) => {
                        bytes += commit.bytes();
                        batch.push(Pending::Commit(commit, answer));
                    }
                    Job::Reserve { name, block, answer } => {
                        batch.push(Pending::Reserve { name, block, answer });
                    }
                    Job::Read(look) => {
                        self.flush(std::mem::take(&mut batch));
                        self.read(look);
                    }
                    Job::Close(answer) => {
                        self.flush(batch);
                        if self.debts.len() > 0 {
                            self.write(Vec::new());
                        }
                        // Who waits for what could not be written waits no longer.
                        drop(self.debts.take());
                        let Self { backend, jobs, health, .. } = self;
                        drop(jobs);
                        drop(backend);
                        drop(health);
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
    }

    fn read(&mut self, look: Look) {
        if let Err(cause) = self.usable() {
            return look(Err(Failure(cause)));
        }
        let mut look = Some(look);
        let result = self.backend.read(&mut |view| {
            if let Some(look) = look.take() {
                look(Ok(view));
            }
            Ok(())
        });
        if let (Err(failure), Some(look)) = (result, look) {
            look(Err(failure));
        }
    }

    // A failed engine is opened anew, not more often than the bound says.
    fn usable(&mut self) -> Result<(), String> {
        let Some(cause) = &self.broken else { return Ok(()) };
        if self.tried.is_some_and(|tried| tried.elapsed() < limits::REOPEN_EVERY) {
            return Err(cause.clone());
        }
        self.tried = Some(Instant::now());
        self.backend.reopen().map_err(|Failure(cause)| cause)?;
        self.broken = None;
        Ok(())
    }

    fn flush(&mut self, batch: Vec<Pending>) {
        // A read alone tries no write: on a full disk each failed one costs the reads after it.
        if !batch.is_empty() {
            self.write(batch);
        }
    }

    fn write(&mut self, batch: Vec<Pending>) {
        let owed = self.debts.take();
        let result = self.usable().map_err(Failure).and_then(|()| self.transact(&owed, &batch));
        match result {
            Ok((settled, outcomes)) => {
                // First of all: who asked for a commit of this batch finds the positions that it left behind.
                for (waiting, changes) in owed.into_iter().zip(settled) {
                    let _ = waiting.answer.send(changes);
                }
                self.tell(Health::Ok);
                for (pending, outcome) in batch.into_iter().zip(outcomes) {
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
            Err(Failure(cause)) => {
                self.debts.back(owed);
                self.broken = Some(cause.clone());
                self.tell(Health::ReadOnly(cause.clone()));
                for pending in batch {
                    let error = CommitError::ReadOnly(cause.clone());
                    match pending {
                        Pending::Commit(_, answer) => drop(answer.send(Err(error))),
                        Pending::Reserve { answer, .. } => answer(Err(error)),
                    }
                }
            }
        }
    }

    fn transact(
        &mut self,
        owed: &VecDeque<Waiting>,
        batch: &[Pending],
    ) -> Result<(Vec<Vec<Change>>, Vec<Outcome>), Failure> {
        let now = now_unix_ms();
        let backend = &mut self.backend;
        let mut settled = Vec::with_capacity(owed.len());
        let mut outcomes = Vec::with_capacity(batch.len());
        backend.write(&mut |tx| {
            for waiting in owed {
                settled.push(core::settle(tx, &waiting.owed, now)?);
            }
            for pending in batch {
                outcomes.push(match pending {
                    Pending::Commit(commit, _) => match core::apply(tx, commit, now)? {
                        Ok(position) => Outcome::Committed(position),
                        Err(index) => Outcome::Conflict(index),
                    },
                    Pending::Reserve { name, block, .. } => {
                        Outcome::Reserved(core::reserve(tx, name, *block)?)
                    }
                });
            }
            Ok(())
        })?;
        Ok((settled, outcomes))
    }

    fn tell(&self, health: Health) {
        self.health.send_if_modified(|old| {
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
