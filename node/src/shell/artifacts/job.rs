//! The bodies of `artifact.acquire` and `artifact.remove`, and what is told of artifacts.
//!
//! Owns turning messages of the boundary into what this part takes, and back; leaves leases, attempts and how often progress
//! is sent to `jobs`. Invariant: what does not fit a message is left out, and a failure's sentence is of this host's names only.

use std::{path::Path, sync::Arc, time::Duration};

use data_encoding::HEXLOWER;
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    artifact::{self, ArtifactFile},
    proto::node::{
        Artifact, ArtifactAcquire, ArtifactAcquireReport, ArtifactRemove, ArtifactRemoveReport, JobFailure,
    },
};
use umbel_wire::text::shorten;

use super::{Artifacts, Done, Present};
use crate::core::artifacts::{Failure, Progress, Reason, Stage, Wanted};

/// Bytes of a sentence.
const SENTENCE_MAX: usize = 512;
/// Artifacts that are told, and their bytes: one event. Of a hello they get a part; the event with all follows it.
const TOLD_MAX: usize = 128;
const TOLD_BYTES: usize = 48 * 1024;
pub(crate) const HELLO_BYTES: usize = 8 * 1024;

/// Brings an artifact here; `progress` is told whenever there is some.
///
/// # Errors
/// A typed failure, as the edge keeps it.
pub(crate) async fn acquire(
    artifacts: &Arc<Artifacts>,
    body: ArtifactAcquire,
    progress: impl Fn(Progress),
    cancel: &CancellationToken,
) -> Result<ArtifactAcquireReport, JobFailure> {
    let done = artifacts.acquire(wanted(body), progress, cancel).await.map_err(|failure| told(&failure))?;
    let Done { files, bytes, took, digest, root, folder, fetched } = done;
    let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    Ok(ArtifactAcquireReport {
        files,
        bytes,
        milliseconds,
        digest,
        path: folder,
        root,
        fetched_bytes: fetched,
    })
}

/// Takes an artifact away; `used_by` names the engine that runs from a folder.
///
/// # Errors
/// A typed failure; that it is not here is none.
pub(crate) async fn remove(
    artifacts: &Arc<Artifacts>,
    body: ArtifactRemove,
    used_by: impl Fn(&Path) -> Option<String> + Send + 'static,
) -> Result<ArtifactRemoveReport, JobFailure> {
    let artifacts = Arc::clone(artifacts);
    let removing = tokio::task::spawn_blocking(move || {
        let name = (body.repository.as_str(), body.revision.as_str(), body.digest.as_str());
        artifacts.remove(name, &body.root, used_by)
    });
    let broken = |_| Err(Failure::new(Reason::Internal, "removing broke off"));
    match removing.await.unwrap_or_else(broken) {
        Ok(freed_bytes) => Ok(ArtifactRemoveReport { removed: true, freed_bytes }),
        Err(failure) if failure.reason == Reason::NotFound => Ok(ArtifactRemoveReport::default()),
        Err(failure) => Err(told(&failure)),
    }
}

fn wanted(body: ArtifactAcquire) -> Wanted {
    let files: Vec<_> = body
        .files
        .into_iter()
        .map(|file| ArtifactFile {
            path: file.path,
            bytes: file.bytes,
            sha256: HEXLOWER.encode(&file.sha256),
        })
        .collect();
    Wanted {
        repository: body.repository,
        revision: body.revision,
        // The list is what the edge resolved; its digest is not told beside it.
        digest: artifact::digest(&files),
        source: body.source,
        root: body.root,
        reserve: body.reserve_bytes,
        files,
    }
}

/// A failure as it is told.
pub(crate) fn told(failure: &Failure) -> JobFailure {
    let mut message = failure.says.clone();
    shorten(&mut message, SENTENCE_MAX);
    JobFailure {
        code: failure.reason.cause().as_str().to_owned(),
        message,
        retry: failure.retry(),
        ..JobFailure::default()
    }
}

/// What is here, as it is told.
pub(super) fn listed(present: Vec<Present>) -> Vec<Artifact> {
    let all = present.into_iter().map(|one| Artifact {
        path: artifact::folder(&one.repository, &one.revision, &one.digest),
        repository: one.repository,
        revision: one.revision,
        digest: one.digest,
        bytes: one.bytes,
        root: one.root,
        files: u32::try_from(one.files.len()).unwrap_or(u32::MAX),
    });
    fitting(all.take(TOLD_MAX), TOLD_BYTES)
}

/// As many as fit into so many bytes.
pub(crate) fn fitting(all: impl Iterator<Item = Artifact>, most: usize) -> Vec<Artifact> {
    let mut bytes = 0;
    all.take_while(|one| {
        bytes += one.encoded_len() + 4;
        bytes <= most
    })
    .collect()
}

/// How far it is, in one sentence.
pub(crate) fn sentence(progress: &Progress) -> String {
    let Progress { stage, files_done, files_total, bytes_per_second, says, .. } = progress;
    let files = format!("{files_done} of {files_total} files");
    // For people: one decimal is enough.
    let tenths = bytes_per_second.saturating_mul(10) >> 20;
    let rate = format!("{}.{} MiB/s", tenths / 10, tenths % 10);
    // What is read first comes first: lines are cut where a terminal ends.
    match says {
        None => format!("{rate}, {files}"),
        Some(says) if *stage == Stage::Waiting => format!("{says}; {files}"),
        Some(says) => format!("{rate}, {files}, {says}"),
    }
}

/// How often it is looked whether somebody else changed a root, and what is outworn.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(600);
