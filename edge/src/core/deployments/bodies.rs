//! What nodes are asked to do for a replica, as messages.
//!
//! Invariant: a body carries only what the edge has checked: names relative to a root, digests, a profile in its canonical form.

use std::time::Duration;

use umbel_contracts::artifact::folder;
use umbel_contracts::deployment::{ArtifactSpec, DeploymentSpec};
use umbel_contracts::proto::node::job_lease::Body;
use umbel_contracts::proto::node::{
    ArtifactAcquire, ArtifactFile, DeploymentDrain, DeploymentLoad, DeploymentUnload, EngineArtifact,
};

use super::{Order, Work};
use crate::core::registry::abilities::ArtifactRow;

/// The job of an order. `held`: the artifacts of its node, as it last said.
///
/// # Errors
/// One sentence, if the document has no legal profile or digest.
pub(crate) fn of(order: &Order, held: &[ArtifactRow]) -> Result<Body, String> {
    Ok(match &order.work {
        Work::Acquire { artifact } => Body::ArtifactAcquire(acquire(artifact)?),
        Work::Load { spec, number, gpus, files } => {
            let mut load = load(spec, *number, gpus, held)?;
            if let Some((artifact, at)) = load.artifact.as_mut().zip(files.as_ref()) {
                // The round saw it there: it may have gone from what the node tells, not from the node.
                (artifact.root, artifact.path) = (at.root.clone(), at.path.clone());
            }
            Body::DeploymentLoad(load)
        }
        Work::Drain { engine, deadline } => Body::DeploymentDrain(DeploymentDrain {
            engine: engine.clone(),
            deadline_ms: milliseconds(*deadline),
        }),
        Work::Unload { engine } => {
            Body::DeploymentUnload(DeploymentUnload { engine: engine.clone(), deadline_ms: 0 })
        }
    })
}

fn milliseconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

/// What a node is told of files that it is to fetch; the root is its own choice.
///
/// # Errors
/// One sentence, if a digest is none.
pub(crate) fn acquire(artifact: &ArtifactSpec) -> Result<ArtifactAcquire, String> {
    let mut files = Vec::with_capacity(artifact.files.len());
    for file in &artifact.files {
        let sha256 =
            data_encoding::HEXLOWER.decode(file.sha256.as_bytes()).map_err(|error| error.to_string())?;
        files.push(ArtifactFile { path: file.path.clone(), bytes: file.bytes, sha256 });
    }
    Ok(ArtifactAcquire {
        repository: artifact.repository.clone(),
        revision: artifact.revision.clone(),
        files,
        source: artifact.source.clone(),
        root: String::new(),
        // The node's own file says it.
        reserve_bytes: 0,
        total_bytes: artifact.bytes(),
    })
}

/// What a node is told of an engine that it is to start.
///
/// # Errors
/// One sentence, if the document has no legal profile.
pub(crate) fn load(
    spec: &DeploymentSpec,
    number: u32,
    gpus: &[String],
    held: &[ArtifactRow],
) -> Result<DeploymentLoad, String> {
    let profile = spec.profile().map_err(|fault| fault.to_string())?;
    Ok(DeploymentLoad {
        deployment: spec.name.clone(),
        replica: number,
        shard_index: 1,
        shard_count: 1,
        engine: spec.engine_name(number, None),
        kind: spec.engine.kind.as_str().to_owned(),
        profile_json: profile.canonical(),
        profile_digest: profile.digest(),
        model: spec.model().to_owned(),
        aliases: spec.aliases.clone(),
        category: spec.category().to_owned(),
        artifact: spec.artifact.as_ref().map(|artifact| engine_artifact(artifact, held)),
        gpu_uuids: gpus.to_vec(),
        capacity: spec.capacity(),
        max_context_tokens: spec.max_context_tokens.unwrap_or_default(),
        long_context_threshold_tokens: spec.long_context_threshold_tokens.unwrap_or_default(),
        long_context_capacity: spec.long_context_capacity.unwrap_or_default(),
        ready_timeout_ms: 0,
    })
}

/// Where the node has it; before it has said so, where it will.
fn engine_artifact(artifact: &ArtifactSpec, held: &[ArtifactRow]) -> EngineArtifact {
    let (digest, key) = (artifact.digest(), artifact.key());
    let held = held.iter().find(|one| one.key() == key);
    let (root, path) = held.map_or_else(
        || (String::new(), folder(&artifact.repository, &artifact.revision, &digest)),
        |held| (held.root.clone(), held.path.clone()),
    );
    EngineArtifact {
        repository: artifact.repository.clone(),
        revision: artifact.revision.clone(),
        digest,
        root,
        path,
        main_file: artifact.main_file.clone().unwrap_or_default(),
    }
}
