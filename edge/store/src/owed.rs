//! What is in force already and has to be written as soon as the store can be written again.
//!
//! Owns the list of it and its bound. Leaves writing it to [`crate::writer`]. Invariants: it is written in the order
//! in which it was owed, by the first transaction that succeeds, before everything else in that transaction; so
//! nothing is told to be durable, and the store is not called writable again, while something is owed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::commit::{Change, Commit};
use crate::error::CommitError;
use crate::limits;

/// Makes a row's new value out of the one that stands in the store when it is written; `None` leaves it as it is.
pub type Amend = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send>;

/// A change that took force although the store could not be written. It has no preconditions: it cannot be refused.
#[derive(Default)]
pub struct Owed {
    pub(crate) amends: Vec<(&'static str, String, Amend)>,
    pub(crate) rest: Commit,
}

impl Owed {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes a row that may have been written by others meanwhile; one that is gone stays gone.
    pub fn amend(
        mut self,
        table: &'static str,
        key: impl Into<String>,
        amend: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static,
    ) -> Self {
        self.amends.push((table, key.into(), Box::new(amend)));
        self
    }

    /// [`Owed::amend`] for a row that is JSON; one that does not decode is left as it is.
    pub fn amend_json<T: Serialize + DeserializeOwned>(
        self,
        table: &'static str,
        key: impl Into<String>,
        set: impl Fn(&mut T) + Send + 'static,
    ) -> Self {
        self.amend(table, key, move |old| {
            let mut row: T = serde_json::from_slice(old).ok()?;
            set(&mut row);
            serde_json::to_vec(&row).ok()
        })
    }

    /// Adds effects and audit entries; preconditions are left out. Entries keep the time at which they are owed.
    pub fn with(mut self, commit: Commit) -> Self {
        self.rest = self.rest.and(Commit { preconditions: Vec::new(), ..commit });
        self
    }
}

impl std::fmt::Debug for Owed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Owed").field("amends", &self.amends.len()).field("rest", &self.rest).finish()
    }
}

/// Whether entries that were refused are kept for later: while there is room beside what people revoke and drain.
pub(crate) fn keeps(refused: &CommitError, owed: usize) -> bool {
    matches!(refused, CommitError::ReadOnly(_)) && owed < limits::OWED_OPERATIONS / 2
}

/// Answers once it is written, with the rows as they stand then. The store's end before that drops it.
pub type Settled = oneshot::Receiver<Vec<Change>>;

pub(crate) struct Waiting {
    pub(crate) owed: Owed,
    pub(crate) answer: oneshot::Sender<Vec<Change>>,
}

/// The list, shared by handles and the writer thread.
#[derive(Clone, Default)]
pub(crate) struct Debts(Arc<Mutex<VecDeque<Waiting>>>);

impl Debts {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, mut owed: Owed, now_unix_ms: i64) -> Result<Settled, CommitError> {
        owed.rest.check()?;
        if owed.amends.len() > limits::EFFECTS {
            return Err(CommitError::TooLarge("too many effects"));
        }
        for record in owed.rest.audit.iter_mut().filter(|record| record.at_unix_ms == 0) {
            record.at_unix_ms = now_unix_ms;
        }
        let mut list = self.lock();
        if list.len() >= limits::OWED_OPERATIONS {
            return Err(CommitError::TooLarge("too much waits already for a store that can be written"));
        }
        let (answer, settled) = oneshot::channel();
        list.push_back(Waiting { owed, answer });
        Ok(settled)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    /// Takes all of it; what could not be written goes [`Debts::back`].
    pub(crate) fn take(&self) -> VecDeque<Waiting> {
        std::mem::take(&mut *self.lock())
    }

    /// Puts back what was taken, before what was owed since.
    pub(crate) fn back(&self, mut older: VecDeque<Waiting>) {
        let mut list = self.lock();
        older.append(&mut list);
        *list = older;
    }
}
