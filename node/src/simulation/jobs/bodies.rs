//! What a simulated node does for a job: one body a kind of work, looked at again whenever something happened.
//!
//! Owns the steps of each body. Leaves the list of engines to `core/deployments`, engines to `engines`, files to `downloads`.

use std::time::{Duration, Instant};

use umbel_contracts::causes::Cause;
use umbel_contracts::proto::node::job_complete::Report;
use umbel_contracts::proto::node::job_lease::Body as Work;
use umbel_contracts::proto::node::{
    ArtifactAcquireReport, DeploymentDrainReport, DeploymentLoad, DeploymentLoadReport,
    DeploymentUnloadReport, JobFailure,
};

use crate::core::deployments::{Kept, Taken, shared_gpu, taken, without};
use crate::core::jobs::Step;
use crate::core::supervisor::State;
use crate::simulation::Node;
use crate::simulation::downloads::Download;

/// What an engine's end takes at most, after its streams.
const END: Duration = Duration::from_secs(60);

/// What a job has come to on this node.
pub(super) enum Doing {
    Load { engine: String, is_new: bool },
    Ends { engine: String, until: Instant, cancelled: bool },
    Drain { engine: String, until: Instant },
    Fetch(Box<Download>),
    Failed(JobFailure),
}

/// A job whose body runs.
pub(super) struct Running {
    pub(super) attempt: u32,
    pub(super) doing: Doing,
    pub(super) cancelled: bool,
}

pub(super) fn failure(code: Cause, message: impl Into<String>, retry: bool) -> JobFailure {
    JobFailure { code: code.as_str().to_owned(), message: message.into(), retry, ..JobFailure::default() }
}

fn cancelled() -> JobFailure {
    failure(Cause::Cancelled, "it was cancelled", false)
}

impl Node {
    pub(super) fn begin_body(&mut self, body: Work, now: Instant) -> Doing {
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

    pub(super) fn body_goes_on(
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
}
