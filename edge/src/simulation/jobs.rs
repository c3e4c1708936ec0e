//! Jobs at a simulated edge: asked for, changed, ended, as `shell/jobs` does it, without waiting.
//!
//! Owns the order: a change is decided, proposed to the disk, applied once that answered, and only then told. Leaves the rules
//! to `core/jobs`, leases to [`give`], what nodes say to [`answer`]. Invariant: changes of one job stand in a row; what cannot be
//! decided yet waits until the one before is written.

mod answer;
mod give;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use umbel_contracts::objects::JobState;
use umbel_contracts::proto::node::{JobComplete, JobFail, JobLease, JobLeaseAck};
use umbel_store::simulation::Disk;
use umbel_store::{Commit, CommitError};
use umbel_wire::clock::Wall;
use umbel_wire::simulation::{Asked, Call};
use umbel_wire::{Code, Error, NodeId};

use super::disk::Then;
use super::{Edge, LinkId};
use crate::core::jobs::{JOBS, JobRow, Jobs as Table, Order, Speaker};
use give::Gift;

/// A node's answer to a lease.
const PATIENCE: Duration = Duration::from_secs(10);
/// After something could not be given or written.
const PAUSE: Duration = Duration::from_secs(1);

/// What a report of a node came to, as the judge sees it.
#[derive(Clone, Debug)]
pub struct JobHeard {
    /// Which job.
    pub job: String,
    /// The lease that it spoke under.
    pub lease: String,
    /// The lease in force before.
    pub in_force: Option<String>,
    /// Something about the job is different.
    pub changed: bool,
}

/// A step that follows once a change is written.
pub(super) enum After {
    Nothing,
    Answer(LinkId, Asked, Vec<u8>),
    Give(Box<Gift>),
}

/// A change of one job that is on its way to the disk.
pub(super) struct Writing {
    id: String,
    row: JobRow,
    after: After,
}

/// What is to be done about a job once nobody else changes it.
pub(super) enum Act {
    Give(NodeId, String),
    Complete(LinkId, Asked, Speaker, JobComplete),
    Fail(LinkId, Asked, Speaker, JobFail),
    Lost(String, Speaker),
    Refused(String, String, JobLeaseAck),
    Expire(String),
    Abandon(String),
    Cancel(String),
}

impl Act {
    fn job(&self) -> &str {
        match self {
            Self::Give(_, id)
            | Self::Lost(id, _)
            | Self::Refused(id, ..)
            | Self::Expire(id)
            | Self::Abandon(id)
            | Self::Cancel(id) => id,
            Self::Complete(_, _, _, said) => &said.job_id,
            Self::Fail(_, _, _, said) => &said.job_id,
        }
    }
}

/// All jobs of the process.
#[derive(Default)]
pub(super) struct Jobs {
    pub(super) table: Table,
    busy: BTreeSet<String>,
    waiting: VecDeque<Act>,
    /// Nodes that are given something, or not before then.
    giving: BTreeMap<NodeId, Option<Instant>>,
    asked: BTreeMap<(LinkId, Call), (NodeId, String, String)>,
    again_at: Option<Instant>,
    /// Only a mutation uses it.
    again: BTreeMap<NodeId, JobLease>,
    pub(super) heard: Vec<JobHeard>,
    /// Something is different.
    pub(super) version: u64,
}

fn refused(error: &CommitError) -> Error {
    let code =
        if matches!(error, CommitError::Conflict(_)) { Code::Conflict } else { Code::InsufficientStorage };
    Error::new(code, "NOT_WRITTEN", "the edge cannot write its store")
}

impl Edge {
    pub(super) fn load_jobs(&mut self, disk: &mut Disk, now: Instant) -> Result<(), String> {
        for stored in disk.load(JOBS).map_err(|error| error.to_string())? {
            let mut row: JobRow = stored.json().map_err(|error| error.to_string())?;
            if self.is("attempts begin anew") {
                row.failures = 0;
            }
            if self.is("a job that is done is cancelled at a start") && row.state == JobState::Succeeded {
                row.state = JobState::Cancelled;
            }
            self.jobs.table.apply(&stored.key, row, now);
        }
        Ok(())
    }

    /// What nodes said of their jobs since the last time.
    pub fn jobs_heard(&mut self) -> Vec<JobHeard> {
        std::mem::take(&mut self.jobs.heard)
    }

    pub(super) fn jobs_deadline(&self) -> Option<Instant> {
        let pauses = self.jobs.giving.values().filter_map(|until| *until);
        let silent = self.jobs.table.first_end().map(|end| self.jobs.again_at.map_or(end, |at| at.max(end)));
        pauses.chain(silent).chain(self.jobs.table.first_pause_end()).min()
    }

    /// What is due about jobs: leases that nothing was heard of, and nodes that get something.
    pub(super) fn tick_jobs(&mut self, now: Instant, wall: Wall) {
        self.jobs.giving.retain(|_, until| until.is_none_or(|until| until > now));
        self.jobs.table.end_pauses(now);
        if self.jobs.again_at.is_none_or(|at| at <= now) {
            let mut silent = self.jobs.table.silent(now);
            silent.sort_unstable();
            self.jobs.again_at = (!silent.is_empty()).then(|| now + PAUSE);
            for id in silent {
                self.act(Act::Expire(id), now, wall);
            }
        }
        self.give_jobs(now, wall);
    }

    /// Jobs of nodes that are gone for good.
    pub(super) fn abandon_jobs(&mut self, now: Instant, wall: Wall) {
        let mut nodes = self.jobs.table.nodes();
        nodes.sort_unstable();
        nodes.retain(|node| self.registry.node(node).is_none_or(|node| node.is_tombstone()));
        for node in nodes {
            for id in self.jobs.table.of_node(node) {
                self.act(Act::Abandon(id), now, wall);
            }
        }
    }

    /// A job of a deployment or of an operator.
    pub(super) fn submit_job(&mut self, id: &str, order: Order, wall: Wall) {
        let gone = self.registry.node(&order.node).is_none_or(|node| node.is_tombstone());
        if gone || self.jobs.table.view(id).is_some() || self.jobs.busy.contains(id) {
            return;
        }
        let Ok(row) = self.jobs.table.submit(order, wall) else { return };
        let commit = Commit::new().require_absent(JOBS, id).put_json(JOBS, id, &row);
        self.jobs.busy.insert(id.to_owned());
        self.disk
            .propose(commit, Then::Job(Box::new(Writing { id: id.to_owned(), row, after: After::Nothing })));
    }

    fn change_job(&mut self, id: &str, mut row: JobRow, after: After) {
        if self.is("a job that failed for good is tried again") && row.state == JobState::Failed {
            (row.state, row.ended_at_unix_ms) = (JobState::Queued, None);
        }
        self.jobs.busy.insert(id.to_owned());
        let commit = Commit::new().put_json(JOBS, id, &row);
        self.disk.propose(commit, Then::Job(Box::new(Writing { id: id.to_owned(), row, after })));
    }

    /// The disk has answered.
    pub(super) fn job_written(
        &mut self,
        writing: Writing,
        result: Result<(), CommitError>,
        now: Instant,
        wall: Wall,
    ) {
        let Writing { id, row, after } = writing;
        self.jobs.busy.remove(&id);
        let written = result.is_ok();
        if written {
            self.jobs.table.apply(&id, row.clone(), now);
            self.jobs.version += 1;
            self.wake_round(now);
        }
        match (after, result) {
            (After::Nothing, _) => {}
            (After::Answer(link, asked, answer), result) => {
                self.answer(link, asked, result.map(|()| answer).map_err(|error| refused(&error)));
            }
            (After::Give(gift), Ok(())) => self.lease_job(*gift, now),
            (After::Give(gift), Err(_)) => drop(self.jobs.giving.insert(gift.node, Some(now + PAUSE))),
        }
        if written {
            self.give_again(&id, &row);
        }
        for act in std::mem::take(&mut self.jobs.waiting) {
            self.act(act, now, wall);
        }
        self.give_jobs(now, wall);
    }

    fn answer(&mut self, link: LinkId, asked: Asked, answer: Result<Vec<u8>, Error>) {
        if let Some(entry) = self.links.get_mut(&link) {
            entry.end.respond(asked, answer);
        }
    }

    /// A connection is over: what was asked over it is not answered.
    pub(super) fn jobs_link_closed(&mut self, link: LinkId, now: Instant) {
        let asked = std::mem::take(&mut self.jobs.asked);
        for ((of, call), given) in asked {
            if of == link {
                self.jobs.giving.insert(given.0, Some(now + PAUSE));
            } else {
                self.jobs.asked.insert((of, call), given);
            }
        }
        if let Some(serving) = self.serving(link) {
            self.jobs.table.closed(serving.own.id, serving.own.generation);
        }
    }

    pub(super) fn act(&mut self, act: Act, now: Instant, wall: Wall) {
        if self.jobs.busy.contains(act.job()) {
            return self.jobs.waiting.push_back(act);
        }
        let id = act.job().to_owned();
        let row = match act {
            Act::Give(node, _) => return self.give_job(node, &id, now, wall),
            Act::Complete(link, asked, speaker, JobComplete { lease_id, report, .. }) => {
                let missing =
                    || Error::new(Code::InvalidArgument, "JOB_REPORT_MISSING", "the report is empty");
                let spoken = self.spoken(&id, &lease_id);
                let row = report
                    .ok_or_else(missing)
                    .and_then(|report| self.jobs.table.complete(speaker.node, &id, &spoken, report, wall));
                return self.end_heard((link, asked), &id, &lease_id, row);
            }
            Act::Fail(link, asked, speaker, JobFail { lease_id, failure, .. }) => {
                let (failure, spoken) = (failure.unwrap_or_default(), self.spoken(&id, &lease_id));
                let row = self.jobs.table.fail(speaker.node, &id, &spoken, &failure, wall);
                return self.end_heard((link, asked), &id, &lease_id, row);
            }
            Act::Lost(_, speaker) => self.jobs.table.lost(&id, &speaker, wall),
            Act::Refused(_, lease, ack) => {
                let refusal = ack.refusal();
                self.jobs.table.refused(&id, &lease, refusal, ack.message, wall)
            }
            Act::Expire(_) => self.jobs.table.expire(&id, now, wall),
            Act::Abandon(_) => self.jobs.table.abandon(&id, wall),
            Act::Cancel(_) => self.jobs.table.cancel(&id, None, wall).ok().flatten(),
        };
        if let Some(row) = row {
            self.change_job(&id, row, After::Nothing);
        }
    }

    pub(super) fn job_id(&mut self) -> String {
        uuid::Builder::from_random_bytes(self.luck.id()).into_uuid().hyphenated().to_string()
    }

    /// Whether every change is on the disk and applied.
    pub(super) fn jobs_rest(&self) -> bool {
        self.jobs.busy.is_empty()
    }
}
