//! What each kind of job does: one arm a kind, each in the part of the agent that it is about.
//!
//! Owns which kinds this agent names to its edge, and handing a body to its part. Leaves the work to the parts. Invariant: a
//! kind that is named has its arm, and the other way round.

use std::{path::Path, sync::Arc};

use tokio_util::sync::CancellationToken;
use umbel_contracts::proto::node::{ArtifactAcquire, JobFailure, job_complete::Report, job_lease::Body};

use super::Progress;
use crate::{
    core::{artifacts, jobs::Step},
    shell::{
        artifacts::{Artifacts, job},
        deployments::{self, Deployments},
        engines::Engines,
        state::State,
        watch::Watch,
    },
};

/// Of jobs, by the names of the boundary.
pub(crate) const CAPABILITIES: [&str; 9] = [
    "artifact.acquire.v1",
    "artifact.remove.v1",
    "runtime.probe.v1",
    "runtime.health.v1",
    "runtime.unload.v1",
    "deployment.load.v1",
    "deployment.health.v1",
    "deployment.drain.v1",
    "deployment.unload.v1",
];

/// The parts of the agent that do the work.
pub(crate) struct Bodies {
    engines: Arc<Engines>,
    artifacts: Arc<Artifacts>,
    deployments: Deployments,
}

impl Bodies {
    /// Over the parts of this agent.
    pub(crate) fn new(
        state: &Arc<State>,
        engines: &Arc<Engines>,
        artifacts: &Arc<Artifacts>,
        watch: &Arc<Watch>,
    ) -> Self {
        Self {
            engines: Arc::clone(engines),
            artifacts: Arc::clone(artifacts),
            deployments: Deployments::new(state, engines, artifacts, watch),
        }
    }

    /// Ends the engines of deployments.
    pub(super) async fn retire(&self) {
        self.deployments.retire().await;
    }

    /// Does it.
    ///
    /// # Errors
    /// A typed failure, as the edge keeps it.
    pub(super) async fn run(
        &self,
        body: Body,
        progress: Progress,
        cancel: CancellationToken,
    ) -> Result<Report, JobFailure> {
        let at = &self.deployments;
        let tell = |step: deployments::Step| {
            let deployments::Step { phase, message } = step;
            progress.tell(Step { phase, message, ..Step::default() });
        };
        match body {
            Body::ArtifactAcquire(body) => {
                self.acquire(body, &progress, &cancel).await.map(Report::ArtifactAcquire)
            }
            Body::ArtifactRemove(body) => {
                let engines = Arc::clone(&self.engines);
                let used_by = move |folder: &Path| user_of(&engines, folder);
                job::remove(&self.artifacts, body, used_by).await.map(Report::ArtifactRemove)
            }
            Body::RuntimeProbe(body) => at.probe(&body, tell, &cancel).await.map(Report::RuntimeProbe),
            Body::RuntimeHealth(body) => at.runtime_health(&body).await.map(Report::RuntimeHealth),
            Body::RuntimeUnload(body) => at.runtime_unload(&body).await.map(Report::RuntimeUnload),
            Body::DeploymentLoad(body) => at.load(&body, tell, &cancel).await.map(Report::DeploymentLoad),
            Body::DeploymentHealth(body) => at.health(&body).await.map(Report::DeploymentHealth),
            Body::DeploymentDrain(body) => at.drain(&body, tell, &cancel).await.map(Report::DeploymentDrain),
            Body::DeploymentUnload(body) => at.unload(&body).await.map(Report::DeploymentUnload),
        }
    }

    async fn acquire(
        &self,
        body: ArtifactAcquire,
        progress: &Progress,
        cancel: &CancellationToken,
    ) -> Result<umbel_contracts::proto::node::ArtifactAcquireReport, JobFailure> {
        let tell = |at: artifacts::Progress| {
            progress.tell(Step {
                phase: at.stage.as_str().to_owned(),
                done: at.bytes_done,
                total: at.bytes_total,
                unit: "bytes",
                message: job::sentence(&at),
            });
        };
        job::acquire(&self.artifacts, body, tell, cancel).await
    }
}

/// The engine that runs from a folder, if one does.
fn user_of(engines: &Engines, folder: &Path) -> Option<String> {
    let runs_from = |process: &crate::config::ProcessSource| process.model.starts_with(folder);
    let list = engines.list();
    let user = list.iter().find(|engine| engine.config().source.process().is_some_and(runs_from));
    user.map(|engine| engine.name.clone())
}
