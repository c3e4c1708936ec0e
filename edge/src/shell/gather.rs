//! Writes that come close together share one transaction.
//!
//! A disk syncs some hundred times a second, and a site that comes up enrolls a thousand hosts in one: while claims
//! follow each other they wait a little for company. Owns that waiting. Leaves the transaction to the store, where each
//! keeps its own conditions and outcome. Invariant: one that comes alone waits for nobody, nobody waits longer than
//! [`LONGEST`], and a round that breaks off leaves nobody waiting.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use umbel_store::{Commit, CommitError, Position, Store};
use umbel_wire::{clock, contained};

/// So many go at once: four times what one sync has to carry, since each transaction writes the same inner pages again.
const ENOUGH: usize = 256;
/// One that comes this long after the last one is alone.
const ALONE: Duration = Duration::from_millis(100);
/// When nobody came for so long the storm is over.
const QUIET: Duration = Duration::from_millis(40);
/// Longest wait for company.
const LONGEST: Duration = Duration::from_millis(500);

type Answer = oneshot::Sender<Result<Position, CommitError>>;

/// Those that wait for company.
pub(crate) struct Gather {
    store: Store,
    state: Mutex<State>,
    enough: Notify,
}

#[derive(Default)]
struct State {
    waiting: Vec<(Commit, Answer)>,
    last: Option<Instant>,
    // Since the first of those that wait.
    since: Option<Instant>,
}

/// What one that just came does.
enum Role {
    Alone(Commit),
    /// Somebody has to send this round.
    First,
    Later,
}

impl Gather {
    pub(crate) fn new(store: Store) -> Arc<Self> {
        Arc::new(Self { store, state: Mutex::default(), enough: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits all of it or nothing, durably, perhaps together with others.
    ///
    /// # Errors
    /// As `Store::commit`.
    pub(crate) async fn commit(self: &Arc<Self>, commit: Commit) -> Result<Position, CommitError> {
        let (answer, answered) = oneshot::channel();
        match self.join(commit, answer, clock::now()) {
            Role::Alone(commit) => return self.store.commit(commit).await,
            // In a task of its own: the first one may go away.
            Role::First => {
                let own = Arc::clone(self);
                drop(tokio::spawn(async move {
                    if contained(Arc::clone(&own).send()).await.is_err() {
                        // Their answers are dropped with them, which says that nobody knows.
                        own.take_round();
                    }
                }));
            }
            Role::Later => {}
        }
        answered.await.unwrap_or(Err(CommitError::Closed))
    }

    fn join(&self, commit: Commit, answer: Answer, now: Instant) -> Role {
        let mut state = self.state();
        let alone = state.last.is_none_or(|last| now.saturating_duration_since(last) >= ALONE);
        state.last = Some(now);
        if alone && state.waiting.is_empty() {
            return Role::Alone(commit);
        }
        state.waiting.push((commit, answer));
        if state.waiting.len() >= ENOUGH {
            self.enough.notify_one();
        }
        if state.since.is_some() {
            return Role::Later;
        }
        state.since = Some(now);
        Role::First
    }

    /// How long this round still waits; `None`: it goes now.
    fn wait(&self, now: Instant) -> Option<Duration> {
        let state = self.state();
        if state.waiting.len() >= ENOUGH {
            return None;
        }
        let quiet = state.last? + QUIET;
        let end = quiet.min(state.since? + LONGEST);
        Some(end.saturating_duration_since(now)).filter(|left| !left.is_zero())
    }

    fn take_round(&self) -> Vec<(Commit, Answer)> {
        let mut state = self.state();
        state.since = None;
        std::mem::take(&mut state.waiting)
    }

    async fn send(self: Arc<Self>) {
        while let Some(left) = self.wait(clock::now()) {
            tokio::select! {
                () = self.enough.notified() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
        let (commits, answers): (Vec<_>, Vec<_>) = self.take_round().into_iter().unzip();
        let outcomes = self.store.commit_each(commits).await;
        for (answer, outcome) in answers.into_iter().zip(outcomes) {
            // Who went away does not wait for it.
            let _ = answer.send(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use futures_util::future::join_all;

    use super::*;

    /// A storm costs a transaction for each 64 and ten more, whatever the disk; each write keeps its own outcome.
    #[tokio::test]
    async fn a_storm_shares_transactions() {
        let (store, _disk) = Store::in_memory();
        let gather = Gather::new(store.clone());
        let before = store.transactions();
        let writes = (0..1_000).map(|n: u32| {
            let gather = &gather;
            async move {
                let key = (n / 2).to_string();
                gather.commit(Commit::new().require_absent("t", &key).put("t", key, vec![1])).await.is_ok()
            }
        });
        let done = join_all(writes).await;
        assert_eq!(done.into_iter().filter(|done| *done).count(), 500);
        let written = store.transactions() - before;
        assert!(written <= 1_000 / 64 + 10, "{written}");
        assert!(gather.state().waiting.is_empty());
        let alone = gather.commit(Commit::new().put("t", "x", vec![1])).await;
        assert!(alone.is_ok());
    }
}
