//! The bodies of `deployment.*` and `runtime.*` jobs: engines of deployments are loaded, looked at, drained, unloaded.
//!
//! Owns what stands on the disk of them and the checks that need the whole host; leaves an engine's life to `engines`, what
//! a request may say to `core/deployments`, and leases and attempts to whoever runs jobs. Invariants: what is refused is
//! refused before anything changes; what stands on the disk is what the engines are made of; one job changes the list at a
//! time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::Mutex,
    task::spawn_blocking,
    time::{sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    causes::Cause,
    proto::node::{
        DeploymentHealth, DeploymentHealthReport, DeploymentLoad, DeploymentLoadReport, EngineHealth,
        JobFailure, RuntimeHealth, RuntimeHealthReport,
    },
};
use umbel_wire::text::shorten;

use crate::{
    core::{
        deployments::{Kept, OfName, Refusal, Taken, taken},
        supervisor::State as EngineState,
    },
    shell::{
        artifacts::Artifacts,
        engines::{Engine, Engines},
        state::State,
        watch::Watch,
    },
};

mod evidence;
mod fits;
mod probe;
mod unloading;

/// Bytes of a failure's sentence.
const SENTENCE_MAX: usize = 512;
/// Beyond an engine's own limit for its start: it is started anew after a crash, and fails by itself in the end.
const BEYOND: Duration = Duration::from_secs(900);
/// Between two looks at requests that run.
const LOOK: Duration = Duration::from_millis(50);
/// So long it is waited for what stands in an engine's way and may be over soon, before the edge looks for another node.
const IN_THE_WAY: Duration = Duration::from_secs(60);
/// For what ends an engine after its streams: SIGTERM, SIGKILL, and what hangs in the kernel.
const END: Duration = Duration::from_secs(60);

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// One word: `validating`, `starting`, `loading`, `ready`.
    pub(crate) phase: String,
    /// One sentence, or nothing.
    pub(crate) message: String,
}

/// The engines of deployments on this node.
#[derive(Debug)]
pub(crate) struct Deployments {
    state: Arc<State>,
    engines: Arc<Engines>,
    artifacts: Arc<Artifacts>,
    watch: Arc<Watch>,
    /// What stands on the disk; whoever changes it holds it until that is done.
    kept: Mutex<Vec<Kept>>,
}

/// A failure of this agent's own words.
fn failure(code: Cause, path: &str, message: impl Into<String>, retry: bool) -> JobFailure {
    let mut message = message.into();
    shorten(&mut message, SENTENCE_MAX);
    JobFailure {
        code: code.as_str().to_owned(),
        message,
        path: path.to_owned(),
        retry,
        ..JobFailure::default()
    }
}

impl From<Refusal> for JobFailure {
    fn from(refusal: Refusal) -> Self {
        // What another engine or process holds may be free in a while; all else stays as it is.
        let retry = refusal.code.passes();
        failure(refusal.code, &refusal.path, refusal.message, retry)
    }
}

fn cancelled() -> JobFailure {
    failure(Cause::Cancelled, "", "it was cancelled", false)
}

fn unknown(engine: &str) -> JobFailure {
    failure(Cause::UnknownEngine, "engine", format!("this node has no engine {engine:?}"), false)
}

fn milliseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Deployments {
    /// With what stands on the disk, which `engines` has begun with.
    pub(crate) fn new(
        state: &Arc<State>,
        engines: &Arc<Engines>,
        artifacts: &Arc<Artifacts>,
        watch: &Arc<Watch>,
    ) -> Self {
        Self {
            state: Arc::clone(state),
            engines: Arc::clone(engines),
            artifacts: Arc::clone(artifacts),
            watch: Arc::clone(watch),
            // The engines have told why, if it cannot be read.
            kept: Mutex::new(state.deployments().0),
        }
    }

    /// Starts an engine and waits until it is ready; one that runs as it shall takes other figures without a new start.
    ///
    /// # Errors
    /// What was refused before anything changed, or how the engine failed. It stays loaded then, and is unloaded by the
    /// edge; only one that is cancelled while it is new is taken away again.
    pub(crate) async fn load(
        &self,
        body: &DeploymentLoad,
        tell: impl Fn(Step),
        cancel: &CancellationToken,
    ) -> Result<DeploymentLoadReport, JobFailure> {
        let began = Instant::now();
        tell(Step { phase: "validating".to_owned(), message: String::new() });
        let wanted = Kept::read(body)?;
        let before = self.engines.by_name(&wanted.engine).and_then(|engine| engine.leader());
        let was_new = match self.take(wanted.clone()).await {
            Ok(was_new) => was_new,
            // Reads a whole file: nobody else's load or unload waits for that.
            Err(failure) => return Err(self.unfit(failure, wanted).await),
        };
        let Some(engine) = self.engines.by_name(&body.engine) else { return Err(unknown(&body.engine)) };
        self.engines.close(&engine, false);
        let limit = match body.ready_timeout_ms {
            0 => engine.config().source.process().map_or(END, |process| process.start_timeout()) + BEYOND,
            said => Duration::from_millis(u64::from(said)),
        };
        tokio::select! {
            ready = timeout(limit, self.ready(&engine, &tell)) => match ready {
                Ok(ready) => ready?,
                Err(_) => {
                    let view = engine.view();
                    let says = format!("was not ready within {} s: {} {}", limit.as_secs(), view.state, view.cause);
                    return Err(JobFailure { output_tail: view.tail, ..failure(Cause::TimedOut, "", says, true) });
                }
            },
            () = cancel.cancelled() => {
                if was_new {
                    self.forget(&body.engine, Duration::ZERO).await?;
                }
                return Err(cancelled());
            }
        }
        let now = engine.leader();
        Ok(DeploymentLoadReport {
            engine: body.engine.clone(),
            profile_digest: body.profile_digest.clone(),
            milliseconds: milliseconds(began),
            unchanged_process: before.is_some()
                && before.map(|leader| leader.id) == now.map(|leader| leader.id),
        })
    }

    /// Checks one against this host, keeps it, and makes an engine of it. Whether it is new.
    async fn take(&self, wanted: Kept) -> Result<bool, JobFailure> {
        let before = self.changes(&self.kept.lock().await, &wanted)?;
        if matches!(before, Taken::Same) {
            return Ok(false);
        }
        // Looks at the disk: a root on a network that hangs holds up nobody else's load or unload.
        self.fits(&wanted).await?;
        let mut kept = self.kept.lock().await;
        let (next, is_new) = match self.changes(&kept, &wanted)? {
            Taken::Same => return Ok(false),
            Taken::Changed(next) => (next, false),
            Taken::New(next) => (next, true),
        };
        let was_salvaged = self.engines.salvaged(&wanted.engine).is_some();
        self.write(&next, &kept).await?;
        if is_new {
            self.engines.begins_anew(&wanted.engine);
        }
        self.engines.deploy(next.clone(), None);
        if was_salvaged {
            self.write_salvaged().await;
        }
        *kept = next;
        Ok(is_new)
    }

    /// What would become of the list with this one, if there is room for it, and for nobody else on its GPUs.
    fn changes(&self, kept: &[Kept], wanted: &Kept) -> Result<Taken, Refusal> {
        let salvaged = self.engines.salvaged(&wanted.engine);
        if let Some(started) = &salvaged {
            let wanted = wanted.config(&self.engines.grounds());
            if started.source.kind() != wanted.source.kind() || started.digest() != wanted.digest() {
                let says = "runs as it was started before the list of deployments was lost, and that is not this: unload it first";
                return Err(Refusal::new(Cause::EngineDiffers, "engine", format!("{} {says}", wanted.name)));
            }
        }
        let there = match &salvaged {
            Some(_) => OfName::Salvaged,
            None if self.engines.by_name(&wanted.engine).is_some() => OfName::Wanted,
            None if self.engines.is_there(&wanted.engine) => OfName::Leaving,
            None => OfName::Nothing,
        };
        let taken = taken(kept, wanted, there)?;
        if !matches!(taken, Taken::Same) {
            self.room(wanted)?;
            self.gpus_are_free(wanted)?;
        }
        Ok(taken)
    }

    /// What cannot be written leaves `otherwise` to be written later.
    async fn write(&self, next: &[Kept], otherwise: &[Kept]) -> Result<(), JobFailure> {
        let (state, next, otherwise) = (Arc::clone(&self.state), next.to_vec(), otherwise.to_vec());
        let written = spawn_blocking(move || state.set_deployments(&next, &otherwise)).await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let says = format!("cannot be kept in the state directory: {}", error.kind());
                Err(failure(Cause::StateNotWritable, "", says, true))
            }
            Err(_) => Err(failure(Cause::Internal, "", "writing the list of engines broke off", true)),
        }
    }

    async fn write_salvaged(&self) {
        let (state, left) = (Arc::clone(&self.state), self.engines.all_salvaged());
        // What cannot be written is told in the log: an engine too many stands there then, which the edge unloads again.
        let _ = spawn_blocking(move || state.set_salvaged(&left)).await;
    }

    /// Waits until an engine is ready, telling each of its states.
    async fn ready(&self, engine: &Arc<Engine>, tell: &impl Fn(Step)) -> Result<(), JobFailure> {
        let mut changes = self.engines.changes();
        let mut told = None;
        // What stands in its way may be over soon, and is looked at by its supervisor: until then it is waited for.
        let mut in_the_way: Option<Instant> = None;
        loop {
            let view = engine.view();
            let step = Step { phase: view.state.to_string(), message: view.cause.clone() };
            match view.state {
                EngineState::Ready => {
                    tell(step);
                    return Ok(());
                }
                EngineState::Failed => {
                    let began = in_the_way.get_or_insert_with(Instant::now);
                    if !view.looks_again
                        || !view.code.is_some_and(Cause::passes)
                        || began.elapsed() >= IN_THE_WAY
                    {
                        return Err(evidence::failure_of(view));
                    }
                }
                EngineState::Stopping | EngineState::Stopped | EngineState::Draining => {
                    return Err(failure(
                        Cause::Unloaded,
                        "engine",
                        "it was unloaded while it was loading",
                        false,
                    ));
                }
                _ => in_the_way = None,
            }
            if told.as_ref() != Some(&step) {
                tell(step.clone());
                told = Some(step);
            }
            let until = in_the_way.map(|began| tokio::time::Instant::from_std(began + IN_THE_WAY));
            tokio::select! {
                // The sender lives as long as the engines.
                changed = changes.changed() => if changed.is_err() {
                    return Err(failure(Cause::Internal, "", "the engines are gone", true));
                },
                () = sleep_until(until.unwrap_or_else(tokio::time::Instant::now)), if until.is_some() => {}
            }
        }
    }

    /// What an engine shows from outside, layer by layer.
    ///
    /// # Errors
    /// If this node has no such engine.
    pub(crate) async fn health(&self, body: &DeploymentHealth) -> Result<DeploymentHealthReport, JobFailure> {
        let engine = self.engines.by_name(&body.engine).ok_or_else(|| unknown(&body.engine))?;
        Ok(DeploymentHealthReport { health: Some(look(&engine).await) })
    }

    /// The same of one engine, or of all that this node has.
    ///
    /// # Errors
    /// If this node has no such engine.
    pub(crate) async fn runtime_health(
        &self,
        body: &RuntimeHealth,
    ) -> Result<RuntimeHealthReport, JobFailure> {
        let all = if body.engine.is_empty() {
            self.engines.list()
        } else {
            vec![self.engines.by_name(&body.engine).ok_or_else(|| unknown(&body.engine))?]
        };
        let mut engines = Vec::with_capacity(all.len());
        for engine in all {
            engines.push(look(&engine).await);
        }
        Ok(RuntimeHealthReport { engines })
    }
}

async fn look(engine: &Arc<Engine>) -> EngineHealth {
    let (status, view) = (engine.status(), engine.view());
    EngineHealth {
        engine: engine.name.clone(),
        state: status.state,
        layers: evidence::layers(engine, &view).await,
        in_flight: status.in_flight,
    }
}

#[cfg(test)]
mod tests;
