//! One replica's steps: up, and what follows from what its node and its job say. Leaves its failures to [`super::failing`],
//! its end to [`super::ending`].
//!
//! Invariants: a replica has one job at a time, and a job that is unknown is ordered again under its own id; nothing is
//! concluded of a node that is away; why it is as it is is what its node says of its engine, as soon as it says it.

use super::ending::patience;
use super::facts::{EngineWord, JobFact, Standing};
use super::failing::pause_after;
use super::round::{Order, Round, Work};
use super::rows::{DeploymentRow, JobKind, JobRef, NotTaken, ReplicaRow, ReplicaState};

/// A node has so long to report what its job said it did.
pub(super) const REPORT_MS: i64 = 60_000;

impl Round<'_> {
    /// A replica a step on.
    pub(super) fn step(&mut self, row: ReplicaRow) {
        let Some(deployment) = self.state.rows.get(&row.deployment).cloned() else {
            // Its deployment's row could not be read: nothing is concluded.
            return;
        };
        match self.facts.standing(&row.node) {
            Standing::Gone => {
                let message = format!("{} is gone with its node, which was taken away", row.engine());
                self.tell("replica_lost", row.engine(), Some(row.node), message, true);
                self.cancel(&row);
                self.forget(&row);
            }
            Standing::Lost if row.state.goes() => {
                self.cancel(&row);
                self.forget(&row);
            }
            // What ends its engine there is for whoever hears the node again.
            Standing::Lost if row.state == ReplicaState::Failed => {
                self.failed(&deployment, ReplicaRow { job: None, gpus: Vec::new(), ..row });
            }
            Standing::Lost => self.lost(row),
            Standing::Away => {}
            Standing::Here => self.step_here(&deployment, row),
        }
    }

    fn lost(&mut self, mut row: ReplicaRow) {
        if row.state == ReplicaState::Lost {
            return;
        }
        let message = format!("{} is lost: {} is offline", row.engine(), self.facts.name(&row.node));
        row.turn(ReplicaState::Lost, "its node is offline", self.wall);
        self.tell("replica_lost", row.engine(), Some(row.node), message, true);
        self.put(row);
    }

    /// One that is up and lost a GPU of its own takes no requests; it goes on when the GPU is back.
    fn without_gpu(&mut self, row: &ReplicaRow) -> bool {
        use ReplicaState::{Loading, Lost, Ready, Stopped};
        let up = matches!(row.state, Loading | Ready | Stopped | Lost) && row.job.is_none();
        let gpu = self.facts.absent_gpu(&row.node, &row.gpus).filter(|_| up).cloned();
        let Some(gpu) = gpu else { return false };
        if row.state != Lost {
            let mut row = row.clone();
            row.turn(Lost, format!("its {gpu} does not answer, or is gone"), self.wall);
            let message = format!("{} is lost: {}", row.engine(), row.cause);
            self.tell("replica_lost", row.engine(), Some(row.node), message, true);
            self.put(row);
        }
        true
    }

    fn step_here(&mut self, deployment: &DeploymentRow, row: ReplicaRow) {
        if self.ordered_again(deployment, &row) || self.without_gpu(&row) {
            return;
        }
        match row.state {
            ReplicaState::Acquiring => self.acquiring(deployment, row),
            ReplicaState::Loading if row.job.is_some() && row.figures().is_none() => {
                self.loading(deployment, row);
            }
            ReplicaState::Loading | ReplicaState::Ready | ReplicaState::Stopped => {
                self.watch(deployment, row)
            }
            ReplicaState::Draining => self.draining(deployment, row),
            ReplicaState::Unloading => self.unloading(row),
            ReplicaState::Failed => self.failed(deployment, row),
            ReplicaState::Lost => self.back(deployment, row),
        }
    }

    /// A job that a row names and that was never stored: the edge ended in between.
    fn ordered_again(&mut self, deployment: &DeploymentRow, row: &ReplicaRow) -> bool {
        let Some(job) = row.job.as_ref().filter(|job| *self.facts.job(&job.id) == JobFact::Unknown) else {
            return false;
        };
        let work = match job.kind {
            JobKind::Acquire | JobKind::Load if deployment.outdates(row) || row.state.goes() => None,
            JobKind::Acquire => deployment
                .spec
                .artifact
                .clone()
                .map(|artifact| Work::Acquire { artifact: Box::new(artifact) }),
            JobKind::Load => Some(self.load_work(deployment, row)),
            JobKind::Drain => Some(Work::Drain { engine: row.engine(), deadline: patience(deployment, row) }),
            JobKind::Unload => Some(Work::Unload { engine: row.engine() }),
        };
        match work {
            Some(work) => {
                let (id, node, deployment) = (job.id.clone(), row.node, row.deployment.clone());
                if !self.out.orders.iter().any(|order| order.id == id) {
                    self.out.orders.push(Order { id, node, deployment, work });
                }
            }
            // What it was about is no longer wanted.
            None => self.put(ReplicaRow { job: None, ..row.clone() }),
        }
        true
    }

    fn load_work(&self, deployment: &DeploymentRow, row: &ReplicaRow) -> Work {
        Work::Load {
            spec: Box::new(deployment.spec.clone()),
            number: row.number,
            gpus: row.gpus.clone(),
            files: row.files_at.clone(),
        }
    }

    /// Up: files first where they are missing, then the engine.
    pub(super) fn bring_up(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        row.version = deployment.version;
        let Some(artifact) = &deployment.spec.artifact else { return self.load(deployment, row) };
        let key = artifact.key();
        row.files_at = self.facts.nodes.get(&row.node).and_then(|node| node.artifacts.get(&key)).cloned();
        if row.files_at.is_some() {
            return self.load(deployment, row);
        }
        row.turn(ReplicaState::Acquiring, "its node fetches the files", self.wall);
        row.source.clone_from(&artifact.source);
        match self.fetching(&row, &key) {
            Some(job) => row.job = Some(job),
            None => {
                let work = Work::Acquire { artifact: Box::new(artifact.clone()) };
                self.order(&mut row, JobKind::Acquire, work);
            }
        }
        self.put(row);
    }

    /// Leaves a download from a source that its document does not name any more: it ends, unless somebody else still names it.
    fn leave_source(&mut self, deployment: &DeploymentRow, row: ReplicaRow) {
        let Some(id) = row.job.as_ref().map(|job| job.id.clone()) else { return };
        let names = |other: &ReplicaRow| {
            let artifact = self.state.rows.get(&other.deployment).and_then(|of| of.spec.artifact.as_ref());
            artifact.is_some_and(|one| one.source == other.source)
        };
        let shares = |other: &&ReplicaRow| {
            other.key() != row.key() && other.job.as_ref().is_some_and(|job| job.id == id)
        };
        if self.work.values().filter(shares).any(names) {
            self.bring_up(deployment, ReplicaRow { job: None, ..row });
        } else if !self.out.cancels.contains(&id) {
            self.out.cancels.push(id);
        }
    }

    /// The job that brings the same files to the same node for another replica.
    fn fetching(&self, row: &ReplicaRow, artifact: &str) -> Option<JobRef> {
        let same_files = |other: &ReplicaRow| {
            let of = self.state.rows.get(&other.deployment).filter(|of| !of.outdates(other));
            of.and_then(|of| of.spec.artifact.as_ref()).is_some_and(|one| one.key() == artifact)
        };
        let here = self.work.values().filter(|other| other.node == row.node && other.key() != row.key());
        let fetch = here.filter_map(|other| {
            Some((other, other.job.as_ref().filter(|job| job.kind == JobKind::Acquire)?))
        });
        let ends = |id: &str| self.out.cancels.iter().any(|cancelled| cancelled == id);
        let open = |id: &str| matches!(self.facts.job(id), JobFact::Open | JobFact::Unknown) && !ends(id);
        // From another source it may never come.
        let same_source = |other: &ReplicaRow| other.source == row.source;
        let mut fetch = fetch.filter(|(other, job)| open(&job.id) && same_source(other) && same_files(other));
        fetch.next().map(|(_, job)| job.clone())
    }

    fn load(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        row.version = deployment.version;
        let work = self.load_work(deployment, &row);
        self.order(&mut row, JobKind::Load, work);
        row.turn(ReplicaState::Loading, "its engine starts", self.wall);
        let message = format!("{} is loading on {}", row.engine(), self.facts.name(&row.node));
        self.tell("replica_loading", row.engine(), Some(row.node), message, false);
        self.put(row);
    }

    fn acquiring(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        let held_back = deployment.paused || deployment.outdates(&row);
        let job = row.job.as_ref().map(|job| self.facts.job(&job.id).clone());
        let source = deployment.spec.artifact.as_ref().map(|artifact| &artifact.source);
        // What came from the other source is kept, and checked by its digests.
        let elsewhere =
            !held_back && !row.source.is_empty() && source.is_some_and(|source| *source != row.source);
        match job {
            Some(JobFact::Open) if elsewhere => self.leave_source(deployment, row),
            Some(JobFact::Failed { .. }) if elsewhere => {
                self.bring_up(deployment, ReplicaRow { job: None, ..row })
            }
            Some(JobFact::Open | JobFact::Ending | JobFact::Unknown) => {}
            Some(JobFact::Failed { message, retryable, .. }) => self.fail(row, &message, retryable),
            Some(JobFact::Cancelled { at_unix_ms, .. }) if row.is_asked_after(at_unix_ms) => {
                self.asked_again(row);
            }
            Some(JobFact::Cancelled { by, .. }) => self.cancelled(row, by),
            Some(JobFact::Done) | None if held_back => {}
            Some(JobFact::Done) => {
                // A node with very many does not tell of all that it has.
                let job = row.job.take();
                row.files_at = job.and_then(|job| self.facts.brought.get(&job.id).cloned());
                self.load(deployment, row);
            }
            None => self.bring_up(deployment, row),
        }
    }

    fn loading(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        let job = row.job.as_ref().map(|job| self.facts.job(&job.id).clone());
        let engine = self.facts.engine(&row.node, &row.engine());
        match job {
            Some(JobFact::Done) => {
                row.job = None;
                row.turn(ReplicaState::Loading, "its engine has started", self.wall);
                self.watch(deployment, row);
            }
            // An operator stopped it meanwhile: it stays so.
            Some(JobFact::Failed { .. } | JobFact::Cancelled { .. })
                if engine.is_some_and(|one| one.state == EngineWord::Stopped) =>
            {
                row.job = None;
                self.watch(deployment, row);
            }
            Some(JobFact::Failed { message, retryable, .. }) => self.fail(row, &message, retryable),
            Some(JobFact::Cancelled { at_unix_ms, .. }) if row.is_asked_after(at_unix_ms) => {
                self.asked_again(row);
            }
            Some(JobFact::Cancelled { by, .. }) => self.cancelled(row, by),
            // It may fall over many times before its job ends.
            _ => {
                let told = engine.filter(|engine| !engine.cause.is_empty());
                if let Some(engine) = told.filter(|engine| engine.state == EngineWord::Coming) {
                    row.turn(ReplicaState::Loading, engine.cause.clone(), self.wall);
                    self.put(row);
                }
            }
        }
    }

    /// What the node says of an engine that is there, or should be.
    pub(super) fn watch(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        if let Some(job) = &row.job {
            match self.facts.job(&job.id).clone() {
                JobFact::Open | JobFact::Ending | JobFact::Unknown => return,
                JobFact::Done => {
                    row.version = row.figures().unwrap_or(row.version);
                    row.job = None;
                    if row.not_taken.take().is_some() {
                        row.cause.clear();
                    }
                }
                JobFact::Failed { message, differs, .. } => self.figures_failed(&mut row, &message, differs),
                JobFact::Cancelled { at_unix_ms, .. } if row.is_asked_after(at_unix_ms) => row.job = None,
                JobFact::Cancelled { by, .. } => figures_cancelled(&mut row, &by),
            }
        }
        let engine = self.facts.engine(&row.node, &row.engine()).cloned();
        let Some(engine) = engine else { return self.engine_is_missing(deployment, row) };
        let now = self.wall;
        match engine.state {
            EngineWord::Failed => return self.fail(row, &engine.cause, engine.passes),
            EngineWord::Ready => {
                if row.state != ReplicaState::Ready {
                    let message = format!("{} is ready on {}", row.engine(), self.facts.name(&row.node));
                    self.tell("replica_ready", row.engine(), Some(row.node), message, true);
                    row.turn(ReplicaState::Ready, "", now);
                }
                self.forgive(&mut row);
                let drifted = row.version != deployment.version && !deployment.outdates(&row);
                let may = !deployment.paused && deployment.wanted() > 0 && self.asks_again(deployment, &row);
                if drifted && row.job.is_none() && may {
                    let work = self.load_work(deployment, &row);
                    self.order(&mut row, JobKind::Load, work);
                    row.job.iter_mut().for_each(|job| job.figures = Some(deployment.version));
                }
            }
            EngineWord::Coming => row.turn(ReplicaState::Loading, engine.cause, now),
            // On its way down nobody sends it anything: an operator stopped it, or wants it anew.
            EngineWord::Stopped | EngineWord::Ending => row.turn(ReplicaState::Stopped, engine.cause, now),
            EngineWord::Unknown => {}
        }
        self.put(row);
    }

    /// An engine that runs did not take its new figures: it goes on with the old ones, and is asked again later, whatever it
    /// was. Only one that runs as something else never will, and is replaced as in a change.
    fn figures_failed(&mut self, row: &mut ReplicaRow, why: &str, differs: bool) {
        let version = row.figures().unwrap_or(row.version);
        row.job = None;
        row.cause = format!("it did not take its new figures: {why}");
        if differs {
            row.condemned = true;
            return;
        }
        let before = row.not_taken.filter(|one| one.version == version).map_or(0, |one| one.times);
        let times = before.saturating_add(1);
        if times == 1 {
            let message = format!("{} goes on with its old figures, and is asked again: {why}", row.engine());
            self.tell("replica_figures_failed", row.engine(), Some(row.node), message, true);
        }
        let again_at_unix_ms = self.wall.saturating_add(pause_after(times));
        row.not_taken = Some(NotTaken { version, times, again_at_unix_ms, cancelled: false });
    }

    /// Whether an engine that runs is asked to take its document's figures now.
    fn asks_again(&self, deployment: &DeploymentRow, row: &ReplicaRow) -> bool {
        let same = row.not_taken.filter(|one| one.version == deployment.version);
        same.is_none_or(|one| !one.cancelled && self.is_due(one.again_at_unix_ms))
    }

    fn engine_is_missing(&mut self, deployment: &DeploymentRow, row: ReplicaRow) {
        let fresh = self.wall.saturating_sub(row.since_unix_ms) < REPORT_MS;
        if (row.state == ReplicaState::Loading && fresh) || deployment.paused {
            return self.put(row);
        }
        if deployment.outdates(&row) {
            let message = format!("{} is gone: its node does not have it any more", row.engine());
            self.tell("replica_unloaded", row.engine(), Some(row.node), message, true);
            return self.forget(&row);
        }
        self.bring_up(deployment, row);
    }

    /// Its node is heard again.
    fn back(&mut self, deployment: &DeploymentRow, mut row: ReplicaRow) {
        let now = self.wall;
        match row.job.as_ref().map(|job| job.kind) {
            Some(JobKind::Acquire) => row.turn(ReplicaState::Acquiring, "its node is back", now),
            Some(JobKind::Unload | JobKind::Drain) => row.turn(ReplicaState::Failed, "its node is back", now),
            Some(JobKind::Load) => row.turn(ReplicaState::Loading, "its node is back", now),
            None if self.facts.engine(&row.node, &row.engine()).is_none() => {
                return if deployment.outdates(&row) || deployment.paused {
                    self.forget(&row)
                } else {
                    self.bring_up(deployment, row)
                };
            }
            None => row.turn(ReplicaState::Loading, "its node is back", now),
        }
        self.put(row);
    }
}

/// An operator does not want an engine that runs to take its new figures: it goes on with the old ones until somebody asks.
fn figures_cancelled(row: &mut ReplicaRow, by: &str) {
    let version = row.figures().unwrap_or(row.version);
    row.job = None;
    row.not_taken = Some(NotTaken { version, times: 0, again_at_unix_ms: 0, cancelled: true });
    row.cause = format!(
        "it goes on with its old figures: its job was cancelled by {by}; umbel ctl model load {} asks it again",
        row.deployment
    );
}
