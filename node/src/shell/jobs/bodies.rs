//! What each kind of job does: one arm a kind, each in the part of the agent that it is about.
//!
//! Owns which kinds this agent names to its edge, and handing a body to its part. Leaves the work to the parts. Invariant: a
//! kind that is named has its arm, and the other way round.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use umbel_contracts::proto::node::{
    EngineHealth, EngineState, Evidence, JobFailure, RuntimeHealth, RuntimeHealthReport,
    job_complete::Report, job_lease::Body,
};

use super::Progress;
use crate::{
    core::jobs::Step,
    shell::{
        artifacts::{Artifacts, job},
        engines::Engines,
    },
};

/// Of jobs, by the names of the boundary.
pub(crate) const CAPABILITIES: [&str; 3] = ["artifact.acquire.v1", "artifact.remove.v1", "runtime.health.v1"];

/// The parts of the agent that do the work.
pub(crate) struct Bodies {
    pub(crate) engines: Arc<Engines>,
    pub(crate) artifacts: Arc<Artifacts>,
}

impl Bodies {
    /// Whether there is somebody for it.
    pub(crate) fn know(&self, body: Option<&Body>) -> bool {
        matches!(body, Some(Body::ArtifactAcquire(_) | Body::ArtifactRemove(_) | Body::RuntimeHealth(_)))
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
        match body {
            Body::ArtifactAcquire(body) => {
                let tell = |progress_of: crate::core::artifacts::Progress| {
                    progress.tell(Step {
                        phase: progress_of.stage.as_str(),
                        done: progress_of.bytes_done,
                        total: progress_of.bytes_total,
                        unit: "bytes",
                        message: job::sentence(&progress_of),
                    });
                };
                job::acquire(&self.artifacts, body, tell, &cancel).await.map(Report::ArtifactAcquire)
            }
            Body::ArtifactRemove(body) => {
                job::remove(&self.artifacts, body, |_| None).await.map(Report::ArtifactRemove)
            }
            Body::RuntimeHealth(body) => self.health(&body).map(Report::RuntimeHealth),
            _ => Err(JobFailure {
                code: "UNKNOWN_WORK".to_owned(),
                message: "this agent does not know the work".to_owned(),
                ..JobFailure::default()
            }),
        }
    }

    /// How engines are, as their drivers know.
    fn health(&self, asked: &RuntimeHealth) -> Result<RuntimeHealthReport, JobFailure> {
        let engines = self.engines.list();
        let engines: Vec<_> = engines
            .iter()
            .filter(|engine| asked.engine.is_empty() || engine.name == asked.engine)
            .map(|engine| {
                let status = engine.status();
                let ok = status.state() == EngineState::Ready;
                let detail =
                    if status.cause.is_empty() { status.state().as_str_name() } else { &status.cause };
                let layer =
                    Evidence { layer: "process".to_owned(), ok, detail: detail.to_owned(), milliseconds: 0 };
                EngineHealth {
                    engine: status.name.clone(),
                    state: status.state,
                    layers: vec![layer],
                    in_flight: status.in_flight,
                }
            })
            .collect();
        if engines.is_empty() && !asked.engine.is_empty() {
            return Err(JobFailure {
                code: "UNKNOWN_ENGINE".to_owned(),
                message: format!("this node has no engine called {}", asked.engine),
                path: "engine".to_owned(),
                ..JobFailure::default()
            });
        }
        Ok(RuntimeHealthReport { engines })
    }
}
