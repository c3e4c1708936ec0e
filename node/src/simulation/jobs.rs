//! Jobs on a simulated node: taken, worked on, told, as `shell/jobs` and its bodies do it, without waiting.
//!
//! Owns what is said and heard of them. Leaves what may be taken and what is due to `core/jobs`, the work itself to [`bodies`].
//! Invariant: one request about jobs is under way at a time.

#![allow(clippy::result_large_err, reason = "failures as the wire has them, of which a world has few")]

mod bodies;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::causes::Cause;
use umbel_contracts::proto::node::{
    JobEndAck, JobLease, JobLeaseAck, JobProgress, JobProgressAck, JobReady, JobReadyAck, JobRefusal,
};
use umbel_contracts::{bounds, method};
use umbel_wire::Error;
use umbel_wire::simulation::{Asked, Call, LinkId};

use super::Node;
use crate::core::jobs::{AGAIN, Heard, Jobs as Table, Outcome, Taken as Claim, Word};
use bodies::{Doing, Running, failure};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Capabilities of jobs.
pub(super) const CAPABILITIES: [&str; 4] =
    ["artifact.acquire.v1", "deployment.load.v1", "deployment.drain.v1", "deployment.unload.v1"];

/// A job that a body was begun for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Which.
    pub job: String,
    /// Which attempt of it.
    pub attempt: u32,
    /// Under this lease.
    pub lease: String,
}

enum Saying {
    Ready,
    Word(Word),
}

#[derive(Default)]
pub(super) struct Jobs {
    table: Table,
    bodies: BTreeMap<String, Running>,
    asked: Option<(Call, Saying)>,
    words: VecDeque<Word>,
    pause: Option<Instant>,
    begun: Vec<Begun>,
}

impl Node {
    /// Bodies that were begun since the last time.
    pub fn begun(&mut self) -> Vec<Begun> {
        std::mem::take(&mut self.jobs.begun)
    }

    /// Jobs whose bodies run.
    pub fn works_on(&self) -> impl Iterator<Item = &str> {
        self.jobs.bodies.keys().map(String::as_str)
    }

    pub(super) fn names_jobs(&self) -> Vec<umbel_contracts::proto::node::RunningJob> {
        self.jobs.table.names()
    }

    /// The talk about jobs begins anew with each connection.
    pub(super) fn talk_of_jobs(&mut self, now: Instant) {
        if self.setup.mutation == Some("jobs are forgotten with their connection") {
            self.jobs = Jobs { begun: std::mem::take(&mut self.jobs.begun), ..Jobs::default() };
        }
        (self.jobs.asked, self.jobs.pause) = (None, None);
        self.jobs.words.clear();
        self.jobs.table.connected(now);
    }

    pub(super) fn job_leased(&mut self, link: LinkId, asked: Asked, payload: &[u8], now: Instant) {
        let lease = match bounds::decode::<JobLease>(payload) {
            Ok(lease) => lease,
            Err(error) => {
                let entry = self.links.get_mut(&link);
                return entry.map_or((), |entry| entry.end.respond(asked, Err(error)));
            }
        };
        let runs = self.jobs.table.names().into_iter().find(|one| one.job_id == lease.job_id);
        let former = runs.filter(|one| one.lease_id != lease.lease_id);
        let answer = self.take_job(lease, now).encode_to_vec();
        let Some(entry) = self.links.get_mut(&link) else { return };
        entry.end.respond(asked, Ok(answer));
        // A word under the lease before, which was under way for long: nobody waits for an answer.
        if let Some(former) = former {
            let (job_id, lease_id) = (former.job_id, former.lease_id);
            let late = JobProgress { job_id, lease_id, phase: "late".to_owned(), ..JobProgress::default() };
            drop(entry.end.request(now, method::NODE_JOB_PROGRESS, late.encode_to_vec(), TIMEOUT));
        }
    }

    fn take_job(&mut self, lease: JobLease, now: Instant) -> JobLeaseAck {
        let refused =
            |refusal: JobRefusal, message| JobLeaseAck { claimed: false, refusal: refusal.into(), message };
        match self.jobs.table.take(&lease, now) {
            Claim::Starts => {
                let JobLease { job_id, lease_id, attempt, body, .. } = lease;
                self.jobs.begun.push(Begun { job: job_id.clone(), attempt, lease: lease_id });
                let doing = body.map_or_else(
                    || Doing::Failed(failure(Cause::Internal, "no body", false)),
                    |body| self.begin_body(body, now),
                );
                self.jobs.bodies.insert(job_id, Running { attempt, doing, cancelled: false });
            }
            Claim::GoesOn => {}
            Claim::Refused(refusal, message) => {
                self.jobs.table.ready_again();
                return refused(refusal, message);
            }
            Claim::Another => {
                self.cancel_body(&lease.job_id);
                return refused(
                    JobRefusal::StillRuns,
                    "an earlier attempt of it has not ended yet".to_owned(),
                );
            }
        }
        JobLeaseAck { claimed: true, ..JobLeaseAck::default() }
    }

    fn cancel_body(&mut self, job: &str) {
        if let Some(running) = self.jobs.bodies.get_mut(job) {
            running.cancelled = true;
        }
    }

    pub(super) fn jobs_deadline(&self) -> Option<Instant> {
        let bodies = self.jobs.bodies.values().filter_map(|one| match &one.doing {
            Doing::Ends { until, .. } | Doing::Drain { until, .. } => Some(*until),
            Doing::Fetch(download) => Some(download.next),
            Doing::Load { .. } | Doing::Failed(_) => None,
        });
        let talk = self.jobs.asked.is_none() && self.current.is_some() && self.is_talking();
        let words = self.jobs.pause.or(self.jobs.table.next_due()).filter(|_| talk);
        bodies.chain(words).min()
    }

    /// Bodies go on, and what is due is said.
    pub(super) fn drive_jobs(&mut self, now: Instant) {
        for (id, mut running) in std::mem::take(&mut self.jobs.bodies) {
            match self.body_goes_on(&id, &mut running, now) {
                None => drop(self.jobs.bodies.insert(id, running)),
                Some(done) => {
                    let outcome = match done {
                        Ok(report) => Outcome::Complete(Box::new(report)),
                        Err(failure) => Outcome::Fail(Box::new(failure)),
                    };
                    self.jobs.table.ended(&id, running.attempt, outcome, now);
                }
            }
        }
        self.speak_of_jobs(now);
    }

    fn speak_of_jobs(&mut self, now: Instant) {
        let Some(link) = self.current.filter(|_| self.is_talking()) else { return };
        if self.jobs.asked.is_some() || self.jobs.pause.is_some_and(|at| at > now) {
            return;
        }
        self.jobs.pause = None;
        let (number, bytes, saying) = if self.jobs.table.take_ready() {
            let ready = JobReady { slots: self.jobs.table.slots(), running: self.jobs.table.names() };
            (method::NODE_JOB_READY, ready.encode_to_vec(), Saying::Ready)
        } else {
            if self.jobs.words.is_empty() {
                self.jobs.words = self.jobs.table.due(now).into();
            }
            let Some(word) = self.jobs.words.pop_front() else { return };
            let (number, bytes) = word.message();
            (number, bytes, Saying::Word(word))
        };
        let Some(entry) = self.links.get_mut(&link) else { return };
        match entry.end.request(now, number, bytes, TIMEOUT) {
            Ok(call) => self.jobs.asked = Some((call, saying)),
            Err(_) => {
                self.jobs.table.ready_again();
                self.jobs.pause = Some(now + AGAIN);
            }
        }
    }

    /// Whether this answered something that was said of jobs.
    pub(super) fn job_answered(
        &mut self,
        call: Call,
        answer: &Result<bytes::Bytes, Error>,
        now: Instant,
    ) -> bool {
        let Some((_, saying)) = self.jobs.asked.take_if(|(asked, _)| *asked == call) else { return false };
        match saying {
            Saying::Ready => match answer.clone().and_then(|answer| bounds::decode::<JobReadyAck>(&answer)) {
                Ok(ack) => {
                    for id in ack.cancel_job_ids {
                        self.cancel_body(&id);
                        self.jobs.table.forget(&id);
                    }
                }
                Err(_) => {
                    self.jobs.table.ready_again();
                    self.jobs.pause = Some(now + AGAIN);
                }
            },
            Saying::Word(word) => {
                let taken = answer.clone().and_then(|answer| match &word {
                    Word::Progress(_) => {
                        bounds::decode::<JobProgressAck>(&answer).map(|ack| ack.cancel_requested)
                    }
                    Word::End { .. } => bounds::decode::<JobEndAck>(&answer).map(|_| false),
                });
                let heard = taken.map_or_else(|error| Heard::of(&error), Heard::Taken);
                if self.jobs.table.heard(&word, heard) {
                    self.cancel_body(word.job().0);
                }
            }
        }
        true
    }
}
