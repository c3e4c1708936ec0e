//! Engines of deployments go: their streams end or are waited for, then their processes, then they are forgotten.
//!
//! Owns the order of an end and what it waits for; leaves ending a process to `shell/engines`. Invariants: an engine is
//! unloaded only when its processes are gone and its port and the memory of its GPUs are free, or the job says by name what
//! holds them; what stands in the node's own file is not unloaded by anybody else.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    causes::Cause,
    proto::node::{
        DeploymentDrain, DeploymentDrainReport, DeploymentUnload, DeploymentUnloadReport, JobFailure,
        RuntimeUnload, RuntimeUnloadReport,
    },
};

use super::{Deployments, END, LOOK, Step, cancelled, failure, milliseconds, unknown};
use crate::core::deployments::without;

impl Deployments {
    /// No new streams from now on; waits for those that run until the deadline, and leaves the others running.
    ///
    /// # Errors
    /// If this node has no such engine, or it was cancelled: it takes streams again then.
    pub(crate) async fn drain(
        &self,
        body: &DeploymentDrain,
        tell: impl Fn(Step),
        cancel: &CancellationToken,
    ) -> Result<DeploymentDrainReport, JobFailure> {
        let began = Instant::now();
        let engine = self.engines.by_name(&body.engine).ok_or_else(|| unknown(&body.engine))?;
        self.engines.close(&engine, true);
        let deadline = Duration::from_millis(u64::from(body.deadline_ms));
        let mut left = engine.in_flight();
        while left > 0 && began.elapsed() < deadline {
            tell(Step { phase: "draining".to_owned(), message: format!("{left} requests still run") });
            tokio::select! {
                // The one word of an engine's last stream is its driver's.
                () = sleep(LOOK) => {}
                () = cancel.cancelled() => {
                    self.engines.close(&engine, false);
                    return Err(cancelled());
                }
            }
            left = engine.in_flight();
        }
        Ok(DeploymentDrainReport { engine: body.engine.clone(), left, milliseconds: milliseconds(began) })
    }

    /// Takes an engine of a deployment away: its streams end within the deadline, then its process, its port and memory
    /// are free, and it is forgotten.
    ///
    /// # Errors
    /// Something of it hangs, or memory of its GPUs is not given back.
    pub(crate) async fn unload(&self, body: &DeploymentUnload) -> Result<DeploymentUnloadReport, JobFailure> {
        let began = Instant::now();
        let stopped = self.forget(&body.engine, Duration::from_millis(u64::from(body.deadline_ms))).await?;
        Ok(DeploymentUnloadReport { engine: body.engine.clone(), stopped, milliseconds: milliseconds(began) })
    }

    /// The same of an engine by its name; those of the node's own file are not unloaded by anybody else.
    ///
    /// # Errors
    /// As [`Deployments::unload`].
    pub(crate) async fn runtime_unload(
        &self,
        body: &RuntimeUnload,
    ) -> Result<RuntimeUnloadReport, JobFailure> {
        let began = Instant::now();
        let stopped = self.forget(&body.engine, Duration::from_millis(u64::from(body.deadline_ms))).await?;
        Ok(RuntimeUnloadReport { engine: body.engine.clone(), stopped, milliseconds: milliseconds(began) })
    }

    /// Whether there was anything to stop.
    pub(super) async fn forget(&self, name: &str, drain: Duration) -> Result<bool, JobFailure> {
        {
            let mut kept = self.kept.lock().await;
            if self.engines.by_name(name).is_some_and(|engine| engine.config().origin.is_none()) {
                let says =
                    format!("{name} stands in the node's own file, or in settings: it is not a deployment's");
                return Err(failure(Cause::NotDeployed, "engine", says, false));
            }
            if let Some(next) = without(&kept, name) {
                // Taking away needs no disk: until it can be written, an agent that starts anew has it once more, and the edge
                // unloads it again.
                if let Err(failure) = self.write(&next, &next).await {
                    tracing::warn!(
                        engine = name,
                        "unloaded all the same: the list of deployments {}",
                        failure.message
                    );
                }
                self.engines.deploy(next.clone(), Some((name, drain)));
                *kept = next;
            } else if self.engines.salvaged(name).is_some() {
                self.engines.let_go(name);
                self.write_salvaged().await;
                self.engines.deploy(kept.clone(), Some((name, drain)));
            } else if !self.engines.is_there(name) {
                return Ok(false);
            }
        }
        self.gone(name, drain).await.map(|()| true)
    }

    /// This node is its edge's no more: every engine of a deployment ends, those of the node's own file go on. Said again, it
    /// changes nothing.
    pub(crate) async fn retire(&self) {
        let mut kept = self.kept.lock().await;
        let salvaged = self.engines.all_salvaged();
        if kept.is_empty() && salvaged.is_empty() {
            return;
        }
        tracing::warn!(
            engines = kept.len() + salvaged.len(),
            "the node was decommissioned: the engines of its deployments are ended"
        );
        // What cannot be written is ended all the same: an agent that starts anew is told again that it is gone.
        if let Err(failure) = self.write(&[], &[]).await {
            tracing::warn!("the list of deployments {}", failure.message);
        }
        for engine in salvaged {
            self.engines.let_go(&engine.name);
        }
        self.write_salvaged().await;
        self.engines.deploy(Vec::new(), None);
        kept.clear();
    }

    /// Waits until nothing is left of an engine: no process, no port, no memory of a GPU.
    async fn gone(&self, name: &str, drain: Duration) -> Result<(), JobFailure> {
        let mut changes = self.engines.changes();
        let gone = async {
            while self.engines.is_there(name) {
                if let Some(cause) = self.engines.held_after_end(name) {
                    // It is gone on with, and the engine's name and GPUs are given to nobody until it is over.
                    return Err(failure(Cause::GpuMemoryHeld, "engine", cause, true));
                }
                if changes.changed().await.is_err() {
                    break;
                }
            }
            Ok(())
        };
        if let Ok(gone) = timeout(drain + END, gone).await {
            return gone;
        }
        let says = format!("something of {name} does not end; it is killed again and again");
        Err(failure(Cause::DoesNotEnd, "engine", says, true))
    }
}
