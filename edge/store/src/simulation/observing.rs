//! What one process knows of a disk's outages, and of observations on their way into the audit.
//!
//! Owns nothing of the rules: folding, what is kept for later, and the words of a gap are those of the real store.
//! Invariant: everything told is an entry, a count, kept for later, or lost and said so: [`Observing::held`] and the
//! audit add up to [`Observing::told`].

use std::time::Instant;

use super::{outage, owed};
use crate::audit::AuditRecord;
use crate::commit::Commit;
use crate::error::CommitError;
use crate::fold::Folds;

/// Of one process; it dies with that.
#[derive(Debug, Default)]
pub struct Observing {
    folds: Folds,
    outage: Option<outage::Outage>,
    refused: u64,
    unsaid: u64,
    lost: u64,
    told: u64,
}

impl Observing {
    /// Entries to be appended now; repeats are counted.
    pub fn tell(&mut self, now: Instant, records: Vec<AuditRecord>) -> Vec<AuditRecord> {
        self.told += records.len() as u64;
        records.into_iter().filter_map(|record| self.folds.take(now, record)).collect()
    }

    /// The counts of repeats whose time has ended.
    pub fn tick(&mut self, now: Instant) -> Vec<AuditRecord> {
        self.folds.ended(now, false)
    }

    /// Observations could not be written. True if they are to be kept for later.
    pub fn keeps(&mut self, refused: &CommitError, commit: &Commit, owed: usize) -> bool {
        let keeps = owed::keeps(refused, owed);
        if !keeps {
            self.lost += commit.audit.iter().map(weight).sum::<u64>();
        }
        keeps
    }

    /// A write came to nothing.
    pub fn refused(&mut self, commit: Option<&Commit>, now_unix_ms: i64) {
        let outage = self.outage.get_or_insert_with(|| outage::Outage::begin(now_unix_ms));
        if let Some(commit) = commit {
            outage.refused(commit);
            self.refused += u64::from(!commit.audit.is_empty());
            self.unsaid += u64::from(!commit.audit.is_empty());
        }
    }

    /// What the next write has to say first.
    #[must_use]
    pub fn gap(&self, owed: usize, now_unix_ms: i64) -> Option<AuditRecord> {
        outage::gap(self.outage.as_ref(), owed, self.lost, now_unix_ms)
    }

    /// It was written.
    pub fn wrote(&mut self) {
        self.outage = None;
        self.lost = 0;
        self.unsaid = 0;
    }

    /// Everything that was told so far.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told
    }

    /// Counted and not told yet, and lost and not said yet.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.folds.pending() + self.lost
    }

    /// Refused in all, and of them those that no gap tells of yet.
    #[must_use]
    pub fn refusals(&self) -> (u64, u64) {
        (self.refused, self.unsaid)
    }
}

/// For how many observations an entry stands.
#[must_use]
pub fn weight(record: &AuditRecord) -> u64 {
    match record.detail.split_once(" more within ").map(|(times, _)| times) {
        Some("once") => 1,
        Some(times) => times.trim_end_matches(" times").parse().unwrap_or(1),
        None => 1,
    }
}
