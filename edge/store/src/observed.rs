//! What is audited beside the commits: observations and refusals, which change no row.
//!
//! Owns folding their repeats, and keeping them while the store takes no writes. Invariants: nobody waits for it; each
//! one is written, counted in one that is, or counted as lost in the entry that tells of the gap.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::audit::AuditRecord;
use crate::commit::Commit;
use crate::error::CommitError;
use crate::fold::Folds;
use crate::handle::{Health, Store};
use crate::limits;
use crate::owed::{Owed, keeps};

/// The way of observations and refusals into the audit. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Observed(Arc<Inner>);

struct Inner {
    store: Store,
    folds: Mutex<Folds>,
}

impl Observed {
    /// Into the audit of this store.
    pub fn new(store: &Store) -> Self {
        Self(Arc::new(Inner { store: store.clone(), folds: Mutex::default() }))
    }

    /// Appends entries soon, repeats folded. Needs a runtime.
    pub fn tell(&self, now: Instant, records: Vec<AuditRecord>) {
        let told: Vec<_> = {
            let mut folds = self.0.folds.lock().unwrap_or_else(PoisonError::into_inner);
            records.into_iter().filter_map(|record| folds.take(now, record)).collect()
        };
        self.append(told);
    }

    /// Appends the counts of repeats whose time has ended. To be called every few seconds.
    pub fn tick(&self, now: Instant) {
        let ended = self.0.folds.lock().unwrap_or_else(PoisonError::into_inner).ended(now, false);
        self.append(ended);
    }

    /// Appends every count, and waits for that: before the end.
    pub async fn flush(&self, now: Instant) {
        let ended = self.0.folds.lock().unwrap_or_else(PoisonError::into_inner).ended(now, true);
        for part in ended.chunks(limits::EFFECTS) {
            self.write(part.to_vec()).await;
        }
    }

    fn append(&self, records: Vec<AuditRecord>) {
        for part in records.chunks(limits::EFFECTS) {
            let (this, part) = (self.clone(), part.to_vec());
            tokio::spawn(async move { this.write(part).await });
        }
    }

    async fn write(&self, records: Vec<AuditRecord>) {
        let count = records.len() as u64;
        if count == 0 {
            return;
        }
        let store = &self.0.store;
        let commit = records.into_iter().fold(Commit::new(), Commit::audit);
        let refused = match store.health() {
            Health::Ok => match store.commit(commit.clone()).await {
                Ok(_) => return,
                Err(error) => error,
            },
            Health::ReadOnly(cause) => CommitError::ReadOnly(cause),
        };
        let kept = keeps(&refused, store.owed()) && store.owe(Owed::new().with(commit)).is_ok();
        if !kept {
            store.told.lost.fetch_add(count, Ordering::SeqCst);
            tracing::error!(error = %refused, count, "audit entries could not be written and are lost");
        }
    }
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Observed").finish_non_exhaustive()
    }
}
