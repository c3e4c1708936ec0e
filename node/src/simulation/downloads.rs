//! Downloads on a simulated node: a source that is slow, breaks off, or sends something else; what came is kept for the next try.
//!
//! Owns the steps of `shell/artifacts`. Leaves names, what is missing, room and tries to `core/artifacts`. Invariant: what is
//! not what its digest says is never put in place.

#![allow(clippy::result_large_err, reason = "failures as the wire has them, of which a world has few")]

use std::time::{Duration, Instant};

use umbel_contracts::artifact::{ArtifactFile, digest};
use umbel_contracts::proto::node::{Artifact, ArtifactAcquire, JobFailure};

use super::Node;
use crate::core::artifacts::{Failure, Kept, Patience, Reason, Step, Tries, Wanted, room};

/// Between two looks at what came.
const LOOK: Duration = Duration::from_millis(1_500);
/// Free on each host's disk.
const FREE: u64 = 1 << 40;

/// What is in quarantine of an artifact.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    bytes: u64,
    /// Some of it is not what was asked for.
    spoiled: bool,
}

/// One under way.
pub(super) struct Download {
    wanted: Wanted,
    tries: Tries,
    pub(super) next: Instant,
}

fn told(failure: &Failure) -> JobFailure {
    JobFailure {
        code: failure.reason.cause().as_str().to_owned(),
        message: failure.says.clone(),
        retry: failure.retry(),
        ..JobFailure::default()
    }
}

impl Node {
    /// Digests of artifacts that stand in place though they are not what was wanted.
    #[must_use]
    pub fn spoiled(&self) -> Vec<String> {
        self.disk.spoiled.clone()
    }

    pub(super) fn begin_download(
        &mut self,
        asked: &ArtifactAcquire,
        now: Instant,
    ) -> Result<Download, JobFailure> {
        let file = |file: &umbel_contracts::proto::node::ArtifactFile| ArtifactFile {
            path: file.path.clone(),
            bytes: file.bytes,
            sha256: data_encoding::HEXLOWER.encode(&file.sha256),
        };
        let files: Vec<_> = asked.files.iter().map(file).collect();
        let wanted = Wanted {
            repository: asked.repository.clone(),
            revision: asked.revision.clone(),
            digest: digest(&files),
            source: asked.source.clone(),
            root: asked.root.clone(),
            reserve: asked.reserve_bytes,
            files,
        };
        wanted.check().map_err(|failure| told(&failure))?;
        room(FREE, 0, wanted.reserve, self.missing(&wanted)).map_err(|failure| told(&failure))?;
        Ok(Download { wanted, tries: Tries::new(Patience::default()), next: now + LOOK })
    }

    fn missing(&self, wanted: &Wanted) -> u64 {
        // They come one after the other.
        let mut came = self.disk.quarantine.get(&wanted.digest).map_or(0, |part| part.bytes);
        let missing = wanted.files.iter().map(|file| {
            let kept = if came >= file.bytes { Kept::Verified } else { Kept::Part(came) };
            came = came.saturating_sub(file.bytes);
            Step::of(file, Some(kept)).missing(file)
        });
        missing.sum()
    }

    /// A look at it; the artifact's digest once it is in place.
    pub(super) fn download_goes_on(
        &mut self,
        download: &mut Download,
        now: Instant,
    ) -> Option<Result<String, JobFailure>> {
        let wanted = &download.wanted;
        if self.disk.artifacts.contains_key(&wanted.digest) {
            return Some(Ok(wanted.digest.clone()));
        }
        if download.next > now {
            return None;
        }
        let luck = self.luck.draw();
        download.next = now + LOOK;
        if self.disk.full {
            let failure = Failure::new(Reason::Disk, "no space left");
            return Some(Err(told(&failure)));
        }
        let part = self.disk.quarantine.entry(wanted.digest.clone()).or_default();
        let calm = self.machine.is_calm();
        if luck.is_multiple_of(6) && !calm {
            let byte = u8::try_from(luck % 251).unwrap_or_default();
            let Some(pause) = download.tries.failed(0, None, byte) else {
                let failure = Failure::new(Reason::SourceUnreachable, "no usable answer");
                return Some(Err(told(&failure)));
            };
            download.next = now + pause;
            return None;
        }
        part.spoiled = !calm && (part.spoiled || luck % 40 == 7);
        part.bytes = (part.bytes + wanted.bytes() / 4 + 1).min(wanted.bytes());
        if self.missing(wanted) > 0 {
            return None;
        }
        let spoiled = self.disk.quarantine.remove(&wanted.digest).is_some_and(|part| part.spoiled);
        if spoiled && self.setup.mutation != Some("what a source says is believed") {
            let failure = Failure::new(Reason::DigestMismatch, "the content is not what its digest says");
            return Some(Err(told(&failure)));
        }
        if spoiled {
            self.disk.spoiled.push(wanted.digest.clone());
        }
        let here = Artifact {
            repository: wanted.repository.clone(),
            revision: wanted.revision.clone(),
            digest: wanted.digest.clone(),
            bytes: wanted.bytes(),
            root: "models".to_owned(),
            path: wanted.folder(),
            files: 1,
        };
        self.disk.artifacts.insert(wanted.digest.clone(), here);
        self.artifacts_news = true;
        Some(Ok(wanted.digest.clone()))
    }
}
