//! How a replica goes, from wherever it is: no new request, then no engine, then no row.
//!
//! Invariants: an engine that may be there is unloaded before its row goes, unless its node is lost, where whoever hears it
//! again takes it for unwanted; what ends an engine is never cancelled, and a download that others wait for is not either.

use std::time::Duration;

use super::facts::JobFact;
use super::failing::RETRY_FIRST_MS;
use super::replica::REPORT_MS;
use super::round::{Round, Work};
use super::rows::{DeploymentRow, JobKind, ReplicaRow, ReplicaState};

impl Round<'_> {
    /// Down, from wherever it is.
    pub(super) fn end(&mut self, mut row: ReplicaRow, why: &str) {
        let now = self.wall;
        let Some(deployment) = self.state.rows.get(&row.deployment).cloned() else { return };
        let engine = self.facts.engine(&row.node, &row.engine()).is_some();
        match row.state {
            ReplicaState::Lost => {
                self.cancel(&row);
                self.forget(&row);
            }
            ReplicaState::Acquiring | ReplicaState::Failed if !engine => {
                self.cancel(&row);
                let message = format!("{} is given up: {why}", row.engine());
                self.tell("replica_unloaded", row.engine(), Some(row.node), message, true);
                self.forget(&row);
            }
            ReplicaState::Acquiring | ReplicaState::Failed | ReplicaState::Loading => self.unload(row, why),
            ReplicaState::Ready | ReplicaState::Stopped => {
                let message = format!("{} takes no new request: {why}", row.engine());
                self.tell("replica_draining", row.engine(), Some(row.node), message, true);
                row.turn(ReplicaState::Draining, why, now);
                if row.job.is_none() {
                    self.drain(&deployment, &mut row);
                }
                self.put(row);
            }
            ReplicaState::Draining | ReplicaState::Unloading => {}
        }
    }

    /// Ends its engine, to which no requests go.
    pub(super) fn unload(&mut self, mut row: ReplicaRow, why: &str) {
        row.retry_at_unix_ms = None;
        self.cancel(&row);
        // A download is waited for by nobody; what starts an engine ends before what ends it begins.
        if row.job.as_ref().is_none_or(|job| job.kind == JobKind::Acquire) {
            self.order_unload(&mut row);
        }
        row.turn(ReplicaState::Unloading, why, self.wall);
        self.put(row);
    }

    /// Waits for its requests, or ends it at once where nobody wants to wait.
    fn drain(&mut self, deployment: &DeploymentRow, row: &mut ReplicaRow) {
        let deadline = patience(deployment, row);
        if deadline.is_zero() {
            let why = row.cause.clone();
            self.order_unload(row);
            return row.turn(ReplicaState::Unloading, why, self.wall);
        }
        let engine = row.engine();
        self.order(row, JobKind::Drain, Work::Drain { engine, deadline });
    }

    pub(super) fn draining(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        let job = row.job.as_ref().map(|job| (job.kind, self.facts.job(&job.id).clone()));
        match job {
            Some((_, JobFact::Open | JobFact::Ending | JobFact::Unknown)) => {}
            Some((JobKind::Drain, _)) => {
                row.job = None;
                self.order_unload(&mut row);
                let why = row.cause.clone();
                row.turn(ReplicaState::Unloading, why, self.wall);
                self.put(row);
            }
            Some(_) | None => {
                self.drain(deployment, &mut row);
                self.put(row);
            }
        }
    }

    pub(super) fn unloading(&mut self, mut row: ReplicaRow) {
        let now = self.wall;
        let engine = self.facts.engine(&row.node, &row.engine()).is_some();
        let job = row.job.as_ref().map(|job| (job.kind, self.facts.job(&job.id).clone()));
        match job {
            // What starts it was to end when this began; whoever wanted that may have ended before it was said.
            Some((_, JobFact::Open)) => return self.cancel(&row),
            Some((_, JobFact::Ending | JobFact::Unknown)) => return,
            // One that failed is no end, also where its node does not tell of the engine any more: something of it is left.
            Some((JobKind::Unload, JobFact::Done)) | None if !engine => {
                let message = format!("{} has ended on {}", row.engine(), self.facts.name(&row.node));
                self.tell("replica_unloaded", row.engine(), Some(row.node), message, true);
                return self.forget(&row);
            }
            Some((JobKind::Unload, JobFact::Done)) if row.retry_at_unix_ms.is_none() => {
                // The job says that it has ended; its node will.
                row.retry_at_unix_ms = Some(now.saturating_add(REPORT_MS));
            }
            Some((JobKind::Unload, fact @ (JobFact::Failed { .. } | JobFact::Cancelled { .. })))
                if row.retry_at_unix_ms.is_none() =>
            {
                // What ends an engine is wanted, whoever cancels it.
                row.cause = match fact {
                    JobFact::Failed { message, .. } => format!("it did not end: {message}"),
                    _ => "its end was cancelled, and is asked for again".to_owned(),
                };
                row.retry_at_unix_ms = Some(now.saturating_add(RETRY_FIRST_MS));
            }
            Some((JobKind::Unload, _)) if row.retry_at_unix_ms.is_some_and(|at| !self.is_due(at)) => return,
            _ => {
                row.retry_at_unix_ms = None;
                self.order_unload(&mut row);
            }
        }
        self.put(row);
    }

    pub(super) fn order_unload(&mut self, row: &mut ReplicaRow) {
        let engine = row.engine();
        self.order(row, JobKind::Unload, Work::Unload { engine });
    }

    /// Its job is no longer wanted, unless others wait for it too.
    pub(super) fn cancel(&mut self, row: &ReplicaRow) {
        // What ends an engine is always wanted.
        let Some(job) = row.job.as_ref().filter(|job| job.kind != JobKind::Unload) else { return };
        let shared = self
            .work
            .values()
            .any(|other| other.key() != row.key() && other.job.as_ref().is_some_and(|one| one.id == job.id));
        if !shared && *self.facts.job(&job.id) != JobFact::Ending {
            self.out.cancels.push(job.id.clone());
        }
    }
}

/// How long requests of a replica that goes may take.
pub(super) fn patience(deployment: &DeploymentRow, row: &ReplicaRow) -> Duration {
    let of_deployment = deployment.leave_ms.filter(|_| deployment.wanted() == 0);
    let asked = row.leave_ms.or(of_deployment).map(Duration::from_millis);
    asked.unwrap_or(deployment.spec.drain_deadline.into())
}
