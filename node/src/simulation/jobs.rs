//! Jobs on a simulated node: taken, worked on, told, as `shell/jobs` and its bodies do it, without waiting.
//!
//! Owns one body a kind of work, looked at again whenever something happened. Leaves what may be taken and what is due to
//! `core/jobs`, and the list of engines to `core/deployments`. Invariant: one request about jobs is under way at a time.

#![allow(clippy::result_large_err, reason = "failures as the wire has them, of which a world has few")]

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::causes::Cause;
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::job_lease::Body as Work;
use umbel_contracts::proto::node::{
    ArtifactAcquireReport, DeploymentDrainReport, DeploymentLoad, DeploymentLoadReport,
    DeploymentUnloadReport, JobEndAck, JobFailure, JobLease, JobLeaseAck, JobProgress, JobProgressAck,
    JobReady, JobReadyAck, JobRefusal,
};
use umbel_contracts::{bounds, method};
use umbel_wire::Error;
use umbel_wire::simulation::{Asked, Call, LinkId};

use super::Node;
use super::downloads::Download;
use crate::core::deployments::{Kept, Taken, shared_gpu, taken, without};
use crate::core::jobs::{AGAIN, Heard, Jobs as Table, Outcome, Step, Taken as Claim, Word};
use crate::core::supervisor::State;

const TIMEOUT: Duration = Duration::from_secs(10);
/// What an engine's end takes at most, after its streams.
const END: Duration = Duration::from_secs(60);
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

enum Doing {
    Load { engine: String, is_new: bool },
    Ends { engine: String, until: Instant, cancelled: bool },
    Drain { engine: String, until: Instant },
    Fetch(Box<Download>),
    Failed(JobFailure),
}

struct Running {
    attempt: u32,
    doing: Doing,
    cancelled: bool,
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

fn failure(code: Cause, message: impl Into<String>, retry: bool) -> JobFailure {
    JobFailure { code: code.as_str().to_owned(), message: message.into(), retry, ..JobFailure::default() }
}

fn cancelled() -> JobFailure {
    failure(Cause::Cancelled, "it was cancelled", false)
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

    fn begin_body(&mut self, body: Work, now: Instant) -> Doing {
        match body {
            Work::DeploymentLoad(load) => match self.load(&load, now) {
                Ok(is_new) => Doing::Load { engine: load.engine, is_new },
                Err(failure) => Doing::Failed(failure),
            },
            Work::DeploymentUnload(unload) => match self.forget_engine(&unload.engine, now) {
                Ok(()) => Doing::Ends { engine: unload.engine, until: now + END, cancelled: false },
                Err(failure) => Doing::Failed(failure),
            },
            Work::DeploymentDrain(drain) => {
                let engine = self.engines.list.iter_mut().find(|one| one.kept.engine == drain.engine);
                let Some(engine) = engine.filter(|one| !one.leaving) else {
                    return Doing::Failed(failure(
                        Cause::UnknownEngine,
                        "this node has no such engine",
                        false,
                    ));
                };
                engine.closed = true;
                self.engines.news = true;
                let until = now + Duration::from_millis(drain.deadline_ms.into());
                Doing::Drain { engine: drain.engine, until }
            }
            Work::ArtifactAcquire(acquire) => match self.begin_download(&acquire, now) {
                Ok(download) => Doing::Fetch(Box::new(download)),
                Err(failure) => Doing::Failed(failure),
            },
            _ => Doing::Failed(failure(Cause::Internal, "not simulated", false)),
        }
    }

    // As `shell/deployments` takes one.
    fn load(&mut self, load: &DeploymentLoad, now: Instant) -> Result<bool, JobFailure> {
        let refused = |refusal: crate::core::deployments::Refusal| {
            let retry = refusal.code.passes() || refusal.code == Cause::StillLeaving;
            failure(refusal.code, refusal.message, retry)
        };
        let wanted = Kept::read(load).map_err(refused)?;
        let there = self.of_name(&wanted.engine);
        let (next, is_new) = match taken(&self.disk.deployments, &wanted, there).map_err(refused)? {
            Taken::Same => (None, false),
            Taken::Changed(next) => (Some(next), false),
            Taken::New(next) => (Some(next), true),
        };
        if let Some(next) = next {
            let others = self.engines.list.iter().filter(|one| one.kept.engine != wanted.engine);
            let others = others.map(|one| (one.kept.engine.as_str(), one.kept.gpus.as_slice()));
            let twice = self.setup.mutation == Some("a GPU is given twice");
            if let Some((uuid, engine)) = shared_gpu(&wanted.gpus, others).filter(|_| !twice) {
                let says = format!("GPU {uuid} is given to engine {engine}");
                return Err(failure(Cause::GpuInUse, says, true));
            }
            if let Err(why) = self.validate(&wanted) {
                return Err(failure(Cause::ArtifactMissing, why, false));
            }
            self.write_deployments(next)?;
            self.settle_engines(now);
            self.become_like(&wanted, now);
        }
        if let Some(engine) = self.engines.list.iter_mut().find(|one| one.kept.engine == load.engine) {
            engine.closed = false;
        }
        Ok(is_new)
    }

    fn write_deployments(&mut self, next: Vec<Kept>) -> Result<(), JobFailure> {
        if self.disk.full {
            let says = "cannot be kept in the state directory: no space";
            return Err(failure(Cause::StateNotWritable, says, true));
        }
        self.disk.deployments = next;
        Ok(())
    }

    fn forget_engine(&mut self, name: &str, now: Instant) -> Result<(), JobFailure> {
        if let Some(next) = without(&self.disk.deployments, name) {
            self.write_deployments(next)?;
        }
        self.let_engine_go(name, Duration::ZERO, now);
        Ok(())
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

    fn body_goes_on(
        &mut self,
        id: &str,
        running: &mut Running,
        now: Instant,
    ) -> Option<Result<Report, JobFailure>> {
        match &mut running.doing {
            Doing::Failed(failure) => Some(Err(failure.clone())),
            Doing::Load { .. } => self.load_goes_on(id, running, now),
            Doing::Ends { engine, until, cancelled: why } => {
                let (why, engine) = (*why, engine.clone());
                if self.engines.list.iter().any(|one| one.kept.engine == engine) {
                    return (*until <= now).then(|| Err(failure(Cause::DoesNotEnd, "it does not end", true)));
                }
                if why {
                    return Some(Err(cancelled()));
                }
                let report = DeploymentUnloadReport { engine, stopped: true, milliseconds: 0 };
                Some(Ok(Report::DeploymentUnload(report)))
            }
            Doing::Drain { engine, until } => {
                let (engine, over) = (engine.clone(), *until <= now);
                let left = self.streams.count_on(&engine);
                if running.cancelled && left > 0 && !over {
                    if let Some(one) = self.engines.list.iter_mut().find(|one| one.kept.engine == engine) {
                        one.closed = false;
                        self.engines.news = true;
                    }
                    return Some(Err(cancelled()));
                }
                let report = DeploymentDrainReport { engine, left, milliseconds: 0 };
                (left == 0 || over).then_some(Ok(Report::DeploymentDrain(report)))
            }
            Doing::Fetch(download) => {
                if running.cancelled {
                    return Some(Err(cancelled()));
                }
                let done = self.download_goes_on(download, now)?;
                Some(done.map(|digest| {
                    let here = self.disk.artifacts.get(&digest).cloned().unwrap_or_default();
                    let (root, path) = (here.root, here.path);
                    let report =
                        ArtifactAcquireReport { digest, root, path, ..ArtifactAcquireReport::default() };
                    Report::ArtifactAcquire(report)
                }))
            }
        }
    }

    fn load_goes_on(
        &mut self,
        id: &str,
        running: &mut Running,
        now: Instant,
    ) -> Option<Result<Report, JobFailure>> {
        let Doing::Load { engine, is_new } = &running.doing else { return None };
        let (name, is_new) = (engine.clone(), *is_new);
        if running.cancelled && !is_new {
            return Some(Err(cancelled()));
        }
        if running.cancelled {
            running.doing = match self.forget_engine(&name, now) {
                Ok(()) => Doing::Ends { engine: name, until: now + END, cancelled: true },
                Err(failure) => Doing::Failed(failure),
            };
            return self.body_goes_on(id, running, now);
        }
        let Some(one) = self.engines.list.iter().find(|one| one.kept.engine == name) else {
            return Some(Err(failure(Cause::UnknownEngine, "this node has no such engine", false)));
        };
        let (phase, message) = (one.state().to_string(), one.supervisor.cause().to_owned());
        match one.state() {
            State::Ready => {
                let profile_digest = one.kept.origin.profile_digest.clone();
                let report =
                    DeploymentLoadReport { engine: name, profile_digest, ..DeploymentLoadReport::default() };
                return Some(Ok(Report::DeploymentLoad(report)));
            }
            State::Failed => {
                let code = one.supervisor.code().unwrap_or(Cause::Failed);
                return Some(Err(failure(code, message, code.passes())));
            }
            State::Stopping | State::Stopped | State::Draining => {
                return Some(Err(failure(Cause::Unloaded, "it was unloaded while it was loading", false)));
            }
            _ => {}
        }
        self.jobs.table.step(id, running.attempt, Step { phase, message, ..Step::default() });
        None
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
