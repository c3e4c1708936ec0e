//! The jobs that this node runs for its edge: what it takes, what is due to be said of each, what is kept until it is heard.
//!
//! Owns room, the one attempt of a job, leases, and the pace of progress. Leaves the work to bodies and sending to the shell.
//! Invariants: a job id is worked on once at a time; an end is kept until the edge has it or does not want it; a job outlives
//! the connection that brought it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use prost::Message;
use umbel_contracts::{
    causes::Cause,
    method,
    proto::node::{
        JobComplete, JobFail, JobFailure, JobLease, JobProgress, JobRefusal, RunningJob, job_complete::Report,
    },
};
use umbel_wire::{Code, Error};

/// Jobs at once: each GPU of a host may be loading while another is drained, beside a few downloads.
pub(crate) const ROOM: usize = 16;
/// Ended jobs whose end the edge has not taken yet, with those that run: the boundary's bound of names.
pub(crate) const KEPT: usize = 64;
/// Progress is told no more often.
pub(crate) const PACE: Duration = Duration::from_secs(1);
/// And no more seldom: it renews the lease, and brings back that a job is to be cancelled.
pub(crate) const RENEWAL: Duration = Duration::from_secs(3);
/// What could not be said is said again after this.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);
/// Bytes of a progress's sentence.
const SENTENCE: usize = 1024;

/// Bytes of a phase: the boundary's bound of a word.
const WORD: usize = 32;

/// How a job came out.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Complete(Box<Report>),
    Fail(Box<JobFailure>),
}

/// One step of a job, as its body tells it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Step {
    /// One word.
    pub(crate) phase: String,
    pub(crate) done: u64,
    /// 0: not known.
    pub(crate) total: u64,
    pub(crate) unit: &'static str,
    pub(crate) message: String,
}

/// What becomes of a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Its body begins.
    Starts,
    /// It runs already, and goes on under the new lease.
    GoesOn,
    Refused(JobRefusal, String),
    /// Refused: another attempt of it runs, which nobody waits for. It is to be cancelled.
    Another,
}

/// What is due to be said.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Word {
    Progress(JobProgress),
    End { job_id: String, lease_id: String, outcome: Outcome },
}

impl Word {
    /// Whose it is.
    pub(crate) fn job(&self) -> (&str, &str) {
        match self {
            Self::Progress(progress) => (&progress.job_id, &progress.lease_id),
            Self::End { job_id, lease_id, .. } => (job_id, lease_id),
        }
    }

    /// The method that says it, and its message.
    pub(crate) fn message(&self) -> (u32, Vec<u8>) {
        let (job_id, lease_id, outcome) = match self {
            Self::Progress(progress) => return (method::NODE_JOB_PROGRESS, progress.encode_to_vec()),
            Self::End { job_id, lease_id, outcome } => (job_id.clone(), lease_id.clone(), outcome),
        };
        match outcome.clone() {
            Outcome::Complete(report) => {
                let said = JobComplete { job_id, lease_id, report: Some(*report) };
                (method::NODE_JOB_COMPLETE, said.encode_to_vec())
            }
            Outcome::Fail(failure) => {
                let said = JobFail { job_id, lease_id, failure: Some(*failure) };
                (method::NODE_JOB_FAIL, said.encode_to_vec())
            }
        }
    }
}

/// What the edge said to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It has it. True: the job is to be cancelled.
    Taken(bool),
    /// The lease is not in force any more: the job waits for another, or for the word that nobody wants it.
    OldLease,
    /// It does not know the job, or it is another node's.
    Unknown,
    /// It cannot take the end as it is.
    Unfit,
    /// It could not be asked, or could not write.
    Later,
}

impl Heard {
    /// What a refusal means.
    pub(crate) fn of(error: &Error) -> Self {
        match error.code {
            Code::Conflict if error.reason == "JOB_LEASE_OLD" => Self::OldLease,
            Code::NotFound | Code::PermissionDenied => Self::Unknown,
            Code::InvalidArgument | Code::TooLarge => Self::Unfit,
            _ => Self::Later,
        }
    }
}

#[derive(Debug)]
struct Job {
    attempt: u32,
    lease: String,
    /// The lease is known to be over.
    stale: bool,
    step: Step,
    news: bool,
    due: Instant,
    outcome: Option<Outcome>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: BTreeMap<String, Job>,
    /// Attempts that nobody wants any more and whose bodies have not ended yet.
    leaving: BTreeMap<String, u32>,
    closing: bool,
    /// The edge has to be told of room and of what runs.
    ready: bool,
    /// Bodies that came to a good end, and to nothing.
    ends: (u64, u64),
}

/// Jobs in figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) running: usize,
    /// Their end is not told yet.
    pub(crate) untold: usize,
    /// Ends since the start.
    pub(crate) completed: u64,
    pub(crate) failed: u64,
}

impl Jobs {
    /// Bodies that run.
    fn running(&self) -> usize {
        self.jobs.values().filter(|job| job.outcome.is_none()).count() + self.leaving.len()
    }

    /// Takes a job, or says why not.
    pub(crate) fn take(&mut self, lease: &JobLease, now: Instant) -> Taken {
        let running = self.running();
        if self.leaving.contains_key(&lease.job_id) {
            return Taken::Another;
        }
        if let Some(job) = self.jobs.get_mut(&lease.job_id) {
            if job.attempt != lease.attempt {
                return Taken::Another;
            }
            job.lease.clone_from(&lease.lease_id);
            job.stale = false;
            job.due = now;
            return Taken::GoesOn;
        }
        if self.closing {
            return Taken::Refused(JobRefusal::Closing, "the node agent stops".to_owned());
        }
        if running >= ROOM || self.jobs.len() >= KEPT {
            let message = format!("{running} jobs run already");
            return Taken::Refused(JobRefusal::NoRoom, message);
        }
        let job = Job {
            attempt: lease.attempt,
            lease: lease.lease_id.clone(),
            stale: false,
            step: Step::default(),
            news: false,
            due: now + RENEWAL,
            outcome: None,
        };
        self.jobs.insert(lease.job_id.clone(), job);
        Taken::Starts
    }

    /// How many more it takes.
    pub(crate) fn slots(&self) -> u32 {
        if self.closing {
            return 0;
        }
        let room = ROOM.saturating_sub(self.running()).min(KEPT.saturating_sub(self.jobs.len()));
        u32::try_from(room).unwrap_or(u32::MAX)
    }

    /// In figures.
    pub(crate) fn figures(&self) -> Figures {
        let running = self.running();
        let (completed, failed) = self.ends;
        let untold = self.jobs.values().filter(|job| job.outcome.is_some()).count();
        Figures { running, untold, completed, failed }
    }

    /// Those that it runs, and those whose end is not told yet.
    pub(crate) fn names(&self) -> Vec<RunningJob> {
        self.jobs
            .iter()
            .map(|(id, job)| RunningJob {
                job_id: id.clone(),
                attempt: job.attempt,
                lease_id: job.lease.clone(),
                ended: job.outcome.is_some(),
            })
            .collect()
    }

    /// A body tells how far it is.
    pub(crate) fn step(&mut self, id: &str, attempt: u32, mut step: Step) {
        umbel_wire::text::shorten(&mut step.message, SENTENCE);
        umbel_wire::text::shorten(&mut step.phase, WORD);
        let job = self.jobs.get_mut(id).filter(|job| job.attempt == attempt && job.outcome.is_none());
        if let Some(job) = job
            && job.step != step
        {
            if !job.news {
                // What was told last was told at `due - RENEWAL`.
                job.due = job.due.checked_sub(RENEWAL).map_or(job.due, |told| told + PACE);
            }
            job.news = true;
            job.step = step;
        }
    }

    /// A body has ended.
    pub(crate) fn ended(&mut self, id: &str, attempt: u32, outcome: Outcome, now: Instant) {
        if self.leaving.get(id) == Some(&attempt) {
            self.leaving.remove(id);
            self.ready = true;
            return;
        }
        if let Some(job) = self.jobs.get_mut(id).filter(|job| job.attempt == attempt) {
            match outcome {
                Outcome::Complete(_) => self.ends.0 += 1,
                Outcome::Fail(_) => self.ends.1 += 1,
            }
            job.outcome = Some(outcome);
            job.due = now;
            self.ready = true;
        }
    }

    /// The agent stops: what runs is given back, and begins anew with the next one.
    pub(crate) fn hand_back(&mut self, now: Instant) {
        for job in self.jobs.values_mut().filter(|job| job.outcome.is_none()) {
            job.outcome = Some(Outcome::Fail(Box::new(JobFailure {
                code: Cause::AgentStopped.as_str().to_owned(),
                message: "the node's agent was stopped; the job begins anew with the next one".to_owned(),
                retry: true,
                ..JobFailure::default()
            })));
            job.due = now;
        }
    }

    /// A new connection: everything is said anew.
    pub(crate) fn connected(&mut self, now: Instant) {
        self.ready = true;
        for job in self.jobs.values_mut() {
            // Nothing is said under the lease of an older connection before the edge has heard what runs.
            job.due = job.due.max(now + AGAIN);
        }
    }

    /// Whether room and what runs are to be told; asked once.
    pub(crate) fn take_ready(&mut self) -> bool {
        std::mem::take(&mut self.ready)
    }

    /// They could not be told, or have to be once more.
    pub(crate) fn ready_again(&mut self) {
        self.ready = true;
    }

    /// What is due now.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<Word> {
        let due = self.jobs.iter_mut().filter(|(_, job)| !job.stale && job.due <= now);
        due.map(|(id, job)| {
            let (job_id, lease_id) = (id.clone(), job.lease.clone());
            if let Some(outcome) = &job.outcome {
                job.due = now + AGAIN;
                return Word::End { job_id, lease_id, outcome: outcome.clone() };
            }
            job.due = now + RENEWAL;
            job.news = false;
            let step = &job.step;
            Word::Progress(JobProgress {
                job_id,
                lease_id,
                phase: step.phase.clone(),
                done: step.done,
                total: step.total,
                unit: step.unit.to_owned(),
                message: step.message.clone(),
            })
        })
        .collect()
    }

    /// When something is due next.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.jobs.values().filter(|job| !job.stale).map(|job| job.due).min()
    }

    /// What the edge said to a word; true if the job's body is to be cancelled.
    pub(crate) fn heard(&mut self, word: &Word, heard: Heard) -> bool {
        let (id, lease) = word.job();
        let Some(job) = self.jobs.get_mut(id).filter(|job| job.lease == lease) else { return false };
        let is_end = matches!(word, Word::End { .. });
        match heard {
            Heard::Taken(cancel) => {
                if is_end {
                    self.jobs.remove(id);
                    self.ready = true;
                }
                cancel && !is_end
            }
            Heard::OldLease => {
                job.stale = true;
                self.ready = true;
                false
            }
            Heard::Unknown => {
                self.forget(id);
                true
            }
            Heard::Unfit if is_end => {
                let unfit =
                    matches!(&job.outcome, Some(Outcome::Fail(failure)) if failure.code == UNFIT.as_str());
                if unfit {
                    // Not even that: the lease ends, and the edge gives it anew.
                    self.forget(id);
                } else {
                    job.outcome = Some(Outcome::Fail(Box::new(JobFailure {
                        code: UNFIT.as_str().to_owned(),
                        message: "the edge could not take this node's report; upgrade edges before nodes"
                            .to_owned(),
                        ..JobFailure::default()
                    })));
                }
                false
            }
            Heard::Unfit | Heard::Later => false,
        }
    }

    /// Nobody wants it any more: it is not told of again. Its id is not worked on anew before its body has ended.
    pub(crate) fn forget(&mut self, id: &str) {
        if let Some(job) = self.jobs.remove(id) {
            self.ready = true;
            if job.outcome.is_none() {
                self.leaving.insert(id.to_owned(), job.attempt);
            }
        }
    }

    /// No more are taken.
    pub(crate) fn close(&mut self) {
        self.closing = true;
        self.ready = true;
    }
}

/// The failure of a job whose own end the edge refused.
const UNFIT: Cause = Cause::ReportRefused;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
    use super::*;

    fn lease(id: &str, lease: &str, attempt: u32) -> JobLease {
        JobLease { job_id: id.into(), lease_id: lease.into(), attempt, ..JobLease::default() }
    }

    fn fail(code: &str) -> Outcome {
        Outcome::Fail(Box::new(JobFailure { code: code.into(), ..JobFailure::default() }))
    }

    #[test]
    fn there_is_room_for_some_and_one_attempt_of_each() {
        let (mut jobs, now) = (Jobs::default(), Instant::now());
        for n in 0..ROOM {
            assert_eq!(jobs.take(&lease(&n.to_string(), "l", 1), now), Taken::Starts);
        }
        assert_eq!(jobs.slots(), 0);
        let refused = jobs.take(&lease("more", "l", 1), now);
        assert!(matches!(refused, Taken::Refused(JobRefusal::NoRoom, _)), "{refused:?}");
        assert_eq!(jobs.take(&lease("0", "m", 1), now), Taken::GoesOn);
        assert_eq!(jobs.take(&lease("0", "n", 2), now), Taken::Another);
        jobs.ended("0", 1, fail("X"), now);
        assert_eq!(jobs.slots(), 1);
        jobs.close();
        assert!(matches!(jobs.take(&lease("late", "l", 1), now), Taken::Refused(JobRefusal::Closing, _)));
        assert_eq!(jobs.slots(), 0);
    }

    /// An edge that was restored from a backup may not know a job that runs, and then give the same id again.
    #[test]
    fn what_nobody_wants_any_more_keeps_its_id_until_its_body_has_ended() {
        let (mut jobs, now) = (Jobs::default(), Instant::now());
        assert_eq!(jobs.take(&lease("a", "l1", 1), now), Taken::Starts);
        jobs.forget("a");
        assert!(jobs.names().is_empty() && jobs.figures().running == 1);
        for attempt in [1, 2] {
            assert_eq!(jobs.take(&lease("a", "l2", attempt), now), Taken::Another);
        }
        jobs.take_ready();
        jobs.ended("a", 1, fail("CANCELLED"), now);
        assert!(jobs.take_ready() && jobs.due(now).is_empty(), "there is room, and no end to tell");
        assert_eq!(jobs.take(&lease("a", "l3", 2), now), Taken::Starts);
        // One whose end waits to be told has no body.
        jobs.ended("a", 2, fail("X"), now);
        jobs.forget("a");
        assert_eq!(jobs.take(&lease("a", "l4", 3), now), Taken::Starts);
    }

    #[test]
    fn progress_is_told_at_most_once_a_second_and_at_least_every_three() {
        let (mut jobs, start) = (Jobs::default(), Instant::now());
        jobs.take(&lease("a", "l", 1), start);
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut told = Vec::new();
        for ms in (0..10_000).step_by(100) {
            if ms < 5_000 {
                jobs.step("a", 1, Step { phase: "downloading".into(), done: ms, ..Step::default() });
            }
            told.extend(jobs.due(at(ms)).into_iter().map(|_| ms));
        }
        assert!(told.windows(2).all(|pair| (1_000..=3_000).contains(&(pair[1] - pair[0]))), "{told:?}");
        assert!(told.len() >= 5, "{told:?}");
        jobs.step("a", 1, Step { message: "é".repeat(4_000), ..Step::default() });
        let words = jobs.due(at(20_000));
        assert!(matches!(&words[..], [Word::Progress(said)] if said.message.len() <= SENTENCE));
    }

    #[test]
    fn an_end_is_kept_until_the_edge_has_it() {
        let (mut jobs, now) = (Jobs::default(), Instant::now());
        jobs.take(&lease("a", "l1", 1), now);
        jobs.ended("a", 1, fail("X"), now);
        let word = jobs.due(now).pop().unwrap();
        jobs.heard(&word, Heard::Later);
        assert!(jobs.due(now).is_empty());
        let word = jobs.due(now + AGAIN).pop().unwrap();
        jobs.heard(&word, Heard::OldLease);
        // It waits for another lease, and names itself meanwhile.
        assert_eq!(jobs.next_due(), None);
        assert!(jobs.take_ready() && jobs.names().iter().any(|job| job.ended));
        assert_eq!(jobs.take(&lease("a", "l2", 1), now), Taken::GoesOn);
        let word = jobs.due(now).pop().unwrap();
        assert_eq!(word.job(), ("a", "l2"));
        jobs.heard(&word, Heard::Taken(false));
        assert!(jobs.names().is_empty() && jobs.take_ready());
    }

    #[test]
    fn what_runs_is_given_back_when_the_agent_stops() {
        let (mut jobs, now) = (Jobs::default(), Instant::now());
        jobs.take(&lease("a", "l1", 1), now);
        jobs.take(&lease("b", "l2", 1), now);
        jobs.ended("b", 1, fail("X"), now);
        jobs.hand_back(now);
        let codes: Vec<_> = jobs
            .due(now)
            .into_iter()
            .map(|word| match word {
                Word::End { outcome: Outcome::Fail(failure), .. } => (failure.code, failure.retry),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(codes, [("AGENT_STOPPED".to_owned(), true), ("X".to_owned(), false)]);
    }

    #[test]
    fn what_the_edge_says_of_an_older_lease_changes_nothing() {
        let (mut jobs, now) = (Jobs::default(), Instant::now());
        jobs.take(&lease("a", "l1", 1), now);
        let late = jobs.due(now + RENEWAL).pop().unwrap();
        jobs.take(&lease("a", "l2", 1), now);
        assert!(!jobs.heard(&late, Heard::OldLease));
        assert!(jobs.next_due().is_some(), "the newer lease is in force");
        assert!(!jobs.heard(&late, Heard::Taken(true)));
        let word = jobs.due(now + RENEWAL).pop().unwrap();
        assert!(jobs.heard(&word, Heard::Taken(true)), "it is to be cancelled");
        assert!(jobs.heard(&word, Heard::Unknown) && jobs.names().is_empty());
    }

    #[test]
    fn a_report_that_the_edge_cannot_take_becomes_a_failure_once() {
        let (mut jobs, now) = (Jobs::default(), Instant::now());
        jobs.take(&lease("a", "l", 1), now);
        jobs.ended("a", 1, fail("X"), now);
        let word = jobs.due(now).pop().unwrap();
        jobs.heard(&word, Heard::Unfit);
        let word = jobs.due(now + AGAIN).pop().unwrap();
        assert!(
            matches!(&word, Word::End { outcome: Outcome::Fail(failure), .. } if failure.code == UNFIT.as_str())
        );
        jobs.heard(&word, Heard::Unfit);
        assert!(jobs.names().is_empty());
    }
}
