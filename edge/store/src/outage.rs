//! A time in which the store takes no writes, and what the audit says of it afterwards.
//!
//! Pure: owns the count of what was refused and the entry that tells of the gap. Leaves noticing both ends to whoever
//! writes. Invariant: the entry comes before everything that was kept for the end of the outage.

use crate::audit::AuditRecord;
use crate::commit::Commit;

/// It began then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outage {
    pub(crate) since_unix_ms: i64,
    refused: u64,
}

impl Outage {
    pub(crate) fn begin(now_unix_ms: i64) -> Self {
        Self { since_unix_ms: now_unix_ms, refused: 0 }
    }

    /// A commit came to nothing; those that would have been audited count.
    pub(crate) fn refused(&mut self, commit: &Commit) {
        self.refused += u64::from(!commit.audit.is_empty());
    }
}

/// What the audit says of it, before anything that was kept for it. `owed`: changes that took force meanwhile; `lost`:
/// entries that could not be kept.
pub(crate) fn gap(outage: Option<&Outage>, owed: usize, lost: u64, now_unix_ms: i64) -> Option<AuditRecord> {
    if outage.is_none() && lost == 0 {
        return None;
    }
    let (since, refused) = outage.map_or((now_unix_ms, 0), |outage| (outage.since_unix_ms, outage.refused));
    let sentence = format!(
        "the store took no writes for {} s: {owed} changes took force meanwhile and are written after this, {refused} \
         were refused, {lost} entries could not be kept",
        now_unix_ms.saturating_sub(since).max(0) / 1_000
    );
    Some(AuditRecord::new("audit.gap", "audit", "observed").by("store").because(sentence))
}
