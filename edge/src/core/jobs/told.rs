//! The transitions of one job: each gives the row as it is to be stored, or nothing where nothing changes.
//!
//! Owns who is heard: the lease in force, and the lease whose end was taken, which may tell it again. Leaves writing and
//! applying to the shell. Invariant: what is refused changes nothing.

use std::time::Instant;

use umbel_contracts::causes::Cause;
use umbel_contracts::objects::JobState;
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::{JobFailure, JobProgress, JobRefusal};
use umbel_wire::clock::Wall;
use umbel_wire::{Code, Error, NodeId};

use super::row::{FailureRow, JobRow, LeaseRow, kind_of_report, stored_failure, stored_report};
use super::{ATTEMPTS, Job, Jobs, LEASE};

/// A failure's sentence in memory.
const SENTENCE: usize = 512;

fn unknown() -> Error {
    Error::new(Code::NotFound, "UNKNOWN_JOB", "this edge has no such job; ended ones are kept for 7 days")
}

fn old() -> Error {
    let message = "the lease is not the one in force: the job was given anew, or has ended";
    Error::new(Code::Conflict, "JOB_LEASE_OLD", message)
}

/// An attempt came to nothing: it is queued again where another makes sense.
fn failed(row: &JobRow, failure: FailureRow, told: String, now: Wall) -> JobRow {
    let mut row = row.clone();
    let ran = row.lease.take().or(row.unheard.take());
    row.unheard = None;
    row.ended_lease = ran.map(|lease| lease.id).unwrap_or_default();
    let cancelled = failure.code == Cause::Cancelled.as_str() && row.cancel_requested;
    if !cancelled {
        row.failures = row.failures.saturating_add(1);
    }
    let again = failure.retry && !row.cancel_requested && row.failures < ATTEMPTS;
    row.failure = Some(failure);
    row.told = told;
    if again {
        row.state = JobState::Queued;
    } else {
        row.state = if row.cancel_requested { JobState::Cancelled } else { JobState::Failed };
        row.ended_at_unix_ms = Some(now.unix_ms());
    }
    row
}

/// It was not begun, or given back: it is queued again for the same node, and that is no attempt.
fn returned(row: &JobRow, now: Wall) -> JobRow {
    let mut row = row.clone();
    (row.lease, row.unheard) = (None, None);
    row.state = JobState::Queued;
    if row.cancel_requested {
        row.state = JobState::Cancelled;
        row.ended_at_unix_ms = Some(now.unix_ms());
    }
    row
}

impl Jobs {
    /// The job, if it is this node's.
    fn of(&self, id: &str, node: NodeId) -> Result<&Job, Error> {
        let job = self.jobs.get(id).ok_or_else(unknown)?;
        if job.node != node {
            let message = "the job is bound to another node";
            return Err(Error::new(Code::PermissionDenied, "JOB_OF_ANOTHER_NODE", message));
        }
        Ok(job)
    }

    /// It is given to its node under this lease; `None` if it does not wait for one any more.
    pub(crate) fn lease(&self, id: &str, lease: LeaseRow, now: Wall) -> Option<JobRow> {
        let job = self.jobs.get(id)?;
        let waits = job.row.state == JobState::Queued && !job.row.is_unheard_by(&lease.instance);
        if !(waits || job.held) || job.row.state.is_end() {
            return None;
        }
        let mut row = (*job.row).clone();
        // What was begun under the one before goes on under this one.
        (row.lease, row.unheard) = (Some(lease), None);
        row.state = JobState::Leased;
        row.started_at_unix_ms = row.started_at_unix_ms.or(Some(now.unix_ms()));
        Some(row)
    }

    /// The row with this lease is applied: a slot of its node is taken unless it ran already.
    pub(crate) fn leased(&mut self, id: &str, ran: bool) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        job.held = false;
        let Some(room) = self.rooms.get_mut(&job.node) else { return };
        job.told = room.told;
        if !ran {
            room.slots = room.slots.saturating_sub(1);
        }
    }

    /// Whether its node runs it without a lease.
    pub(crate) fn is_held(&self, id: &str) -> bool {
        self.jobs.get(id).is_some_and(|job| job.held)
    }

    fn in_force(&self, id: &str, lease: &str) -> Option<&Job> {
        let job = self.jobs.get(id)?;
        job.row.lease.as_ref().is_some_and(|own| own.id == lease).then_some(job)
    }

    /// Its node took it.
    pub(crate) fn claimed(&mut self, id: &str, lease: &str) {
        if self.in_force(id, lease).is_some()
            && let Some(job) = self.jobs.get_mut(id)
        {
            job.claimed = true;
        }
    }

    /// Its node did not take it: it waits until the node says again that it has room, unless it has said so since it was given
    /// the job: that word may have overtaken this one, and nothing else would come. A node that does not know the work never
    /// will.
    pub(crate) fn refused(
        &mut self,
        id: &str,
        lease: &str,
        refusal: JobRefusal,
        message: String,
        now: Wall,
    ) -> Option<JobRow> {
        let row = std::sync::Arc::clone(&self.in_force(id, lease)?.row);
        if refusal == JobRefusal::UnknownBody {
            return Some(self.cannot(&row, message, now));
        }
        let (node, told) = self.jobs.get(id).map(|job| (job.node, job.told))?;
        if let Some(room) = self.rooms.get_mut(&node).filter(|room| room.told == told) {
            room.slots = 0;
        }
        Some(returned(&row, now))
    }

    /// A job whose node does not name what it takes.
    pub(crate) fn unable(&self, id: &str, now: Wall) -> Option<JobRow> {
        let job = self.jobs.get(id).filter(|job| !job.row.state.is_end())?;
        let message = format!(
            "this node's agent does not name {}, which this job needs; upgrade the agent",
            super::capability(&job.row.kind)
        );
        Some(self.cannot(&job.row, message, now))
    }

    fn cannot(&self, row: &JobRow, message: String, now: Wall) -> JobRow {
        let failure = FailureRow {
            code: Cause::CapabilityMissing.as_str().to_owned(),
            message,
            path: String::new(),
            retry: false,
        };
        failed(row, failure, String::new(), now)
    }

    /// Its node goes on with it: the lease lasts from now. True if it is to be cancelled.
    ///
    /// # Errors
    /// Another node, an older lease, a job that has ended or is not known: nothing changes.
    pub(crate) fn progress(
        &mut self,
        node: NodeId,
        progress: JobProgress,
        now: Instant,
    ) -> Result<bool, Error> {
        let id = progress.job_id.clone();
        self.of(&id, node)?;
        self.in_force(&id, &progress.lease_id).ok_or_else(old)?;
        let job = self.jobs.get_mut(&id).ok_or_else(unknown)?;
        job.until = Some(now + LEASE);
        job.claimed = true;
        if !progress.phase.is_empty() {
            job.progress = Some(progress);
        }
        Ok(job.row.cancel_requested)
    }

    /// The row of one that came to its good end; `None` if this lease has said so already.
    ///
    /// # Errors
    /// As [`Jobs::progress`]; INVALID_ARGUMENT for a report of other work.
    pub(crate) fn complete(
        &self,
        node: NodeId,
        id: &str,
        lease: &str,
        report: Report,
        now: Wall,
    ) -> Result<Option<JobRow>, Error> {
        let job = self.of(id, node)?;
        if kind_of_report(&report) != job.row.kind {
            let message = format!("the report is of other work than {}", job.row.kind);
            return Err(Error::new(Code::InvalidArgument, "JOB_REPORT_OF_OTHER_WORK", message));
        }
        if job.row.state == JobState::Succeeded && job.row.ended_lease == lease {
            return Ok(None);
        }
        self.in_force(id, lease).ok_or_else(old)?;
        let mut row = (*job.row).clone();
        row.state = JobState::Succeeded;
        row.ended_at_unix_ms = Some(now.unix_ms());
        row.ended_lease = lease.to_owned();
        row.lease = None;
        row.failure = None;
        row.told = stored_report(report);
        Ok(Some(row))
    }

    /// The row of one whose attempt came to nothing; `None` if this lease has said so already.
    ///
    /// # Errors
    /// As [`Jobs::progress`].
    pub(crate) fn fail(
        &self,
        node: NodeId,
        id: &str,
        lease: &str,
        failure: &JobFailure,
        now: Wall,
    ) -> Result<Option<JobRow>, Error> {
        let job = self.of(id, node)?;
        if job.row.state != JobState::Succeeded && !lease.is_empty() && job.row.ended_lease == lease {
            return Ok(None);
        }
        self.in_force(id, lease).ok_or_else(old)?;
        if failure.code == Cause::AgentStopped.as_str() {
            let ended_lease = lease.to_owned();
            return Ok(Some(JobRow { ended_lease, ..returned(&job.row, now) }));
        }
        let mut message = failure.message.clone();
        let end = (0..=SENTENCE.min(message.len())).rev().find(|at| message.is_char_boundary(*at));
        message.truncate(end.unwrap_or_default());
        let short = FailureRow {
            code: failure.code.clone(),
            message,
            path: failure.path.clone(),
            retry: failure.retry,
        };
        Ok(Some(failed(&job.row, short, stored_failure(failure), now)))
    }

    /// The row of one that is not wanted any more; `None` if that was said before. One that runs is ended by its node. `by`: the
    /// operator who says so, `None` for the edge itself. What an operator says is kept, whoever said it before: the last counts.
    ///
    /// # Errors
    /// NOT_FOUND; CONFLICT if it came to another end.
    pub(crate) fn cancel(&self, id: &str, by: Option<&str>, now: Wall) -> Result<Option<JobRow>, Error> {
        let job = self.jobs.get(id).ok_or_else(unknown)?;
        let said_before = job.row.cancel_requested && by.is_none() && !job.row.state.is_end();
        if job.row.state == JobState::Cancelled || said_before {
            return Ok(None);
        }
        if job.row.state.is_end() {
            let message = format!("it has ended already: {}", job.row.state.as_str());
            return Err(Error::new(Code::Conflict, "JOB_ENDED", message));
        }
        let mut row = (*job.row).clone();
        (row.cancel_requested, row.cancelled_by) = (true, by.map(str::to_owned));
        row.cancelled_at_unix_ms = Some(now.unix_ms());
        if row.lease.is_none() {
            row.state = JobState::Cancelled;
            row.ended_at_unix_ms = Some(now.unix_ms());
        }
        Ok(Some(row))
    }

    /// The row of one whose lease has ended without news; `None` if there was news. Whether an attempt was lost with it says
    /// its node's next word.
    pub(crate) fn expire(&self, id: &str, now: Instant, wall: Wall) -> Option<JobRow> {
        let job = self.jobs.get(id).filter(|job| job.until.is_some_and(|until| until <= now))?;
        let unheard = Some(job.row.lease.clone()?);
        let row = returned(&job.row, wall);
        Some(if row.state.is_end() { row } else { JobRow { unheard, ..row } })
    }

    /// The row of one that its node was given and does not run any more: `None` if it was given it again meanwhile. With the
    /// process that ran it an attempt is lost, whether or not its lease had ended before; the same process has only never got it.
    pub(crate) fn lost(&self, id: &str, speaker: &super::Speaker, now: Wall) -> Option<JobRow> {
        let job = self.jobs.get(id).filter(|job| !job.row.state.is_end())?;
        let lease = job.row.given_before(speaker.generation)?;
        if lease.instance == speaker.instance {
            return Some(returned(&job.row, now));
        }
        let failure = FailureRow {
            code: Cause::ProcessLost.as_str().to_owned(),
            message: "the node's agent ended while it ran the job".to_owned(),
            path: String::new(),
            retry: true,
        };
        Some(failed(&job.row, failure, String::new(), now))
    }

    /// The row of one whose node is gone for good.
    pub(crate) fn abandon(&self, id: &str, now: Wall) -> Option<JobRow> {
        let job = self.jobs.get(id).filter(|job| !job.row.state.is_end())?;
        let failure = FailureRow {
            code: Cause::NodeGone.as_str().to_owned(),
            message: "its node was decommissioned".to_owned(),
            path: String::new(),
            retry: false,
        };
        Some(failed(&job.row, failure, String::new(), now))
    }

    /// The jobs of one node that have not ended.
    pub(crate) fn of_node(&self, node: NodeId) -> Vec<String> {
        let room = self.rooms.get(&node);
        room.map(|room| room.jobs.iter().map(|(_, id)| id.clone()).collect()).unwrap_or_default()
    }
}
