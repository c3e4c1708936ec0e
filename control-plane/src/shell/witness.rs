//! Keeps what edges tell of their audits: judged at each heartbeat, written as often as one comes, a cut at once.
//!
//! Invariant: a control plane that is drained has stored all that it was told; one that is killed, all but what came in
//! the time between two heartbeats.

use std::sync::Arc;

use umbel_store::{AuditRecord, Commit, CommitError};
use umbel_wire::ids::{EdgeId, Generation};

use super::plane::Plane;
use crate::core::witness::{Answer, Cut, Place, written};

/// Rows in one commit.
const ROWS: usize = 500;

impl Plane {
    /// Takes the place of an edge's audit out of its heartbeat.
    pub(crate) fn witnessed(
        self: &Arc<Self>,
        edge_id: &EdgeId,
        generation: Generation,
        place: Place,
        answer: Option<Answer>,
    ) {
        let now = self.clock.now().unix_ms();
        let cut = self.witness().told(edge_id, place, answer, now);
        if let Some(cut) = cut {
            self.cut(edge_id, generation, &cut);
        }
    }

    fn cut(self: &Arc<Self>, edge_id: &EdgeId, generation: Generation, cut: &Cut) {
        tracing::error!(edge = %edge_id, had = cut.had.sequence, found = cut.found.sequence, "an edge's audit was cut");
        self.tell(edge_id, "edge_audit_cut", Some(generation), cut.sentence());
        self.metrics.audited.inc();
        let record = cut.deed(edge_id).record();
        let plane = Arc::clone(self);
        tokio::spawn(async move { plane.write_places(vec![record]).await });
    }

    /// Writes the places now and then, until the drain.
    pub(crate) async fn keep_places(self: Arc<Self>) {
        // What changed since, in one commit; nothing, if nothing did.
        let every = self.settings.heartbeat;
        while self.drain.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            self.write_places(Vec::new()).await;
        }
        self.write_places(Vec::new()).await;
    }

    /// Writes what came while it was drained: after the last heartbeat.
    pub(crate) async fn close_places(&self) {
        self.write_places(Vec::new()).await;
    }

    async fn write_places(&self, records: Vec<AuditRecord>) {
        let mut commit = records.into_iter().fold(Commit::new(), Commit::audit);
        loop {
            let rows = self.witness().take_unwritten(ROWS);
            if rows.is_empty() && commit.audit.is_empty() {
                return;
            }
            commit = written(commit, &rows);
            let records = commit.audit.clone();
            if let Err(error) = self.store().commit(std::mem::take(&mut commit)).await {
                let what = "the places of the edges' audits could not be written; they stay in memory";
                match error {
                    // The store tells of a full disk, once, for as long as it lasts.
                    CommitError::ReadOnly(_) => tracing::debug!(%error, "{what}"),
                    _ => tracing::warn!(%error, "{what}"),
                }
                self.witness().keep(rows);
                self.observed.tell(umbel_wire::clock::now(), records);
                return;
            }
        }
    }
}
