//! Reads of the audit: the newest, a search, what follows, the chain as it is stored, and its check.
//!
//! Owns how long each look is. Leaves what an entry is to [`crate::chain`]. Invariant: each page is a look of its own, so
//! that no read holds an old state for long.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::audit::{AuditAt, AuditCheck, AuditEntry, AuditHead, AuditLine};
use crate::error::ReadError;
use crate::handle::Store;
use crate::writer::Job;
use crate::{chain, limits};

impl Store {
    /// The newest audit entry's number and hash, as the last commit left it. Waits for nothing.
    pub fn audit_head(&self) -> AuditHead {
        *self.told.head.borrow()
    }

    /// What stands at one number, which whoever was told its hash before compares.
    pub async fn audit_at(&self, sequence: u64) -> Result<AuditAt, ReadError> {
        self.read(move |view| chain::at(view, sequence)).await
    }

    /// At most `limit` (and [`limits::AUDIT_PAGE`]) audit entries after a sequence, oldest first.
    pub async fn audit_after(&self, sequence: u64, limit: usize) -> Result<Vec<AuditEntry>, ReadError> {
        self.passed().await;
        self.read(move |view| chain::after(view, sequence, limit)).await
    }

    /// The newest `limit` (at most [`limits::AUDIT_PAGE`]) audit entries, oldest first.
    pub async fn audit_tail(&self, limit: usize) -> Result<Vec<AuditEntry>, ReadError> {
        self.passed().await;
        self.read(move |view| chain::tail(view, limit)).await
    }

    /// At most `limit` (and [`limits::AUDIT_PAGE`]) entries after a sequence as they are stored and hashed.
    pub async fn audit_lines(&self, sequence: u64, limit: usize) -> Result<Vec<AuditLine>, ReadError> {
        self.passed().await;
        self.read(move |view| chain::lines(view, sequence, limit)).await
    }

    /// Entries below `before` (the newest, without it) for which `wanted` holds, newest first, at most `limit`; and
    /// where the next page begins, unless all that is kept was looked at. One call looks at
    /// [`limits::AUDIT_SEARCHED`] entries at most, so that a page may be short and yet not the last.
    pub async fn audit_search(
        &self,
        before: Option<u64>,
        limit: usize,
        wanted: impl Fn(&AuditEntry) -> bool + Send + Sync + 'static,
    ) -> Result<(Vec<AuditEntry>, Option<u64>), ReadError> {
        self.passed().await;
        let wanted = Arc::new(wanted);
        let mut next = Some(before.unwrap_or(u64::MAX));
        let (mut entries, mut looked) = (Vec::new(), 0);
        while let Some(before) = next
            && entries.len() < limit
            && looked < limits::AUDIT_SEARCHED
        {
            let wanted = Arc::clone(&wanted);
            let (limit, look) = (limit - entries.len(), limits::AUDIT_SEARCHED - looked);
            let found = self.read(move |view| chain::search(view, before, limit, look, &*wanted)).await?;
            looked += found.looked.max(1);
            entries.extend(found.entries);
            next = found.before;
        }
        Ok((entries, next))
    }

    /// Entries after a sequence for which `wanted` holds, oldest first, at most `limit`; and the newest sequence that
    /// was looked at, where the next call goes on. One call looks at [`limits::AUDIT_SEARCHED`] entries at most.
    pub async fn audit_follow(
        &self,
        after: u64,
        limit: usize,
        wanted: impl Fn(&AuditEntry) -> bool,
    ) -> Result<(Vec<AuditEntry>, u64), ReadError> {
        let (mut entries, mut at, mut looked) = (Vec::new(), after, 0);
        while looked < limits::AUDIT_SEARCHED {
            let page = self.audit_after(at, limits::AUDIT_PAGE).await?;
            let whole = page.len() == limits::AUDIT_PAGE;
            for entry in page {
                (at, looked) = (entry.sequence, looked + 1);
                if wanted(&entry) {
                    entries.push(entry);
                }
                if entries.len() >= limit {
                    return Ok((entries, at));
                }
            }
            if !whole {
                break;
            }
        }
        Ok((entries, at))
    }

    /// Checks the whole chain of the audit, from the oldest kept entry to the newest. Reads page by page.
    pub async fn audit_check(&self) -> Result<AuditCheck, ReadError> {
        self.passed().await;
        let mut so_far = None;
        loop {
            let page = self.read(move |view| chain::check(view, so_far)).await?;
            if page.done {
                let chain::Checked { last, entries, first, broken, .. } = page;
                let lost = self.read(chain::lost).await?;
                return Ok(AuditCheck { entries, first, last, broken, lost });
            }
            so_far = Some(page);
        }
    }

    // What was told to the audit before this is in it, unless the disk needs longer than anybody wants to wait.
    async fn passed(&self) {
        // Whoever was told to append in the same moment does so first.
        tokio::task::yield_now().await;
        let (answer, answered) = oneshot::channel();
        let passed = async {
            if self.queue.send(Job::Pass(answer)).await.is_ok() {
                let _ = answered.await;
            }
        };
        let _ = tokio::time::timeout(limits::AUDIT_PATIENCE, passed).await;
    }
}
