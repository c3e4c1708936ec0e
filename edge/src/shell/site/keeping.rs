//! What a running site does by the clock: judges liveness, and writes what was reported and what has ended.
//!
//! Owns when it is done. Leaves what follows from a judgement to the registry. Invariants: a slow disk delays writing
//! only, never judging; each end of a token is told, and only once unless the edge is killed in between.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use umbel_store::{AuditRecord, Commit, CommitError};
use umbel_wire::clock;

use super::{REPORTS, SELF, Site, WALL};
use crate::core::registry::Registry;

/// Ends of tokens told in one commit.
const EXPIRED_A_COMMIT: usize = 400;
/// Reports written in one commit.
const REPORTS_A_COMMIT: usize = 500;
/// How often it is written when connected nodes were last seen. What a hello or an inventory changes is written
/// with the next sweep; a crash in between loses what the node says again.
const SEEN_EVERY: Duration = Duration::from_secs(300);
/// How often the wall clock is written.
const WALL_EVERY: Duration = Duration::from_secs(60);

/// How often liveness is judged: a third of the heartbeat, so that `stale` is right to a fraction of one.
pub(super) fn sweep_period(heartbeat: Duration) -> Duration {
    (heartbeat / 3).clamp(Duration::from_millis(100), Duration::from_secs(5))
}

fn ended(token_id: &str) -> AuditRecord {
    AuditRecord::new("token.expired", token_id, "observed").by("edge")
}

/// A full disk is told by the store, once, and shown as a problem for as long as it lasts: not at each sweep.
fn not_written(error: &CommitError, what: &str) {
    match error {
        CommitError::ReadOnly(_) => tracing::debug!(%error, "{what}"),
        error => tracing::warn!(%error, "{what}"),
    }
}

impl Site {
    /// Judges liveness for ever, and has written now and then what nodes reported. A disk that is slow delays only
    /// that.
    pub(crate) async fn keep(self: Arc<Self>) {
        let started = clock::now();
        let (mut seen, mut flushed) = (started, started);
        let mut writing: Option<tokio::task::JoinHandle<()>> = None;
        loop {
            let deadline = self.read(Registry::next_deadline);
            tokio::time::sleep_until(deadline.into()).await;
            let now = clock::now();
            self.trip("liveness");
            self.change(|registry| registry.sweep(now));
            self.observed.tick(now);
            if now.saturating_duration_since(seen) >= SEEN_EVERY {
                seen = now;
                let wall = self.wall();
                self.tokens.lock().unwrap_or_else(PoisonError::into_inner).forget_answers(wall);
                self.read_mut(Registry::save_connected);
            }
            let due = now.saturating_duration_since(flushed) >= WALL_EVERY;
            let flush = due || self.read(Registry::has_unsaved);
            let check = self.store_trouble().is_some();
            let busy = writing.as_ref().is_some_and(|task| !task.is_finished());
            if (flush || check) && !busy {
                if flush {
                    flushed = now;
                }
                let site = Arc::clone(&self);
                writing = Some(tokio::spawn(async move {
                    if flush {
                        site.flush().await;
                    }
                    if check {
                        site.store.check().await;
                    }
                }));
            }
        }
    }

    /// Writes what nodes reported since the last time, and the wall clock.
    pub(crate) async fn flush(&self) {
        let now = self.wall();
        let since = *self.wall_stored.lock().unwrap_or_else(PoisonError::into_inner);
        // With the clock on disk, or before it, so that each end is told, also across a restart.
        let expired = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).expired(since, now);
        let mut ends: Vec<_> = expired.into_iter().map(|id| ended(&id)).collect();
        while ends.len() > EXPIRED_A_COMMIT {
            let some = ends.drain(..EXPIRED_A_COMMIT).fold(Commit::new(), Commit::audit);
            if let Err(error) = self.store.commit(some).await {
                not_written(&error, "the ends of tokens could not be written; they are told later");
                return;
            }
        }
        let clock = Commit::new().put_json(SELF, WALL, &now.unix_ms());
        let mut commit = ends.into_iter().fold(clock, Commit::audit);
        loop {
            let unsaved = {
                let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
                registry.take_unsaved(REPORTS_A_COMMIT)
            };
            let count = unsaved.len();
            for (id, report) in &unsaved {
                commit = commit.put_json(REPORTS, id.to_string(), report);
            }
            if let Err(error) = self.store.commit(commit).await {
                not_written(&error, "what nodes reported could not be written; it stays in memory");
                self.read_mut(|registry| registry.keep_unsaved(unsaved.into_iter().map(|(id, _)| id)));
                return;
            }
            *self.wall_stored.lock().unwrap_or_else(PoisonError::into_inner) = now;
            if count < REPORTS_A_COMMIT {
                return;
            }
            commit = Commit::new();
        }
    }
}
