//! What an answer of a source is worth.
//!
//! Owns judging its head; leaves the body to [`super`]. Invariant: a part is taken only where it was asked for, of a file in the
//! size that is wanted.

use std::time::Duration;

use hyper::{
    Response, StatusCode,
    body::{Body as _, Incoming},
    header::{self, HeaderMap},
};
use umbel_contracts::artifact::ArtifactFile;

use super::Run;
use crate::{
    core::artifacts::Reason,
    shell::artifacts::{http::Trouble, sink::Sink},
};

impl Run {
    /// Whether an answer's body is what was asked for; where it begins anew, so does the file.
    pub(super) fn judge(
        &mut self,
        response: &Response<Incoming>,
        file: &ArtifactFile,
        sink: &mut Sink,
    ) -> Result<(), Trouble> {
        let (status, headers) = (response.status(), response.headers());
        if !status.is_success() {
            return Err(self.refusal(status, headers, file, sink)?);
        }
        let packed = headers.get(header::CONTENT_ENCODING).is_some_and(|one| one != "identity");
        if packed {
            let says = format!("source {} packs {:?} although it was asked not to", self.name(), file.path);
            return Err(Trouble::never(Reason::SourceRefused, says));
        }
        match status {
            StatusCode::PARTIAL_CONTENT => {
                let (first, total) =
                    content_range(headers).ok_or_else(|| self.nonsense("a part of what it does not say"))?;
                if total.is_some_and(|total| total != file.bytes) {
                    return Err(self.size(file, total.unwrap_or_default()));
                }
                if first != sink.at() {
                    return Err(self.nonsense("another part than was asked for"));
                }
            }
            StatusCode::OK => {
                if sink.at() > 0 {
                    tracing::info!(file = file.path, "the source begins anew");
                    sink.restart()?;
                }
                if let Some(size) = response.body().size_hint().exact().filter(|size| *size != file.bytes) {
                    return Err(self.size(file, size));
                }
            }
            _ => return Err(self.nonsense("success without a file")),
        }
        Ok(self.parts.set_etag(&file.path, strong(headers))?)
    }

    /// What an answer that is no success means; an error of the disk comes before it.
    fn refusal(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        file: &ArtifactFile,
        sink: &mut Sink,
    ) -> Result<Trouble, Trouble> {
        let says = format!("source {} answers {} for {:?}", self.name(), status.as_u16(), file.path);
        Ok(match status.as_u16() {
            416 => {
                // What is here is longer than what is there: of another version.
                sink.restart()?;
                Trouble::later(says)
            }
            408 | 425 | 429 | 500..=599 => {
                let seconds =
                    headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                Trouble::Later { says, after: seconds.map(Duration::from_secs) }
            }
            401 | 403 => Trouble::never(
                Reason::SourceRefused,
                format!("{says}: is its token right, and allowed to read it?"),
            ),
            404 | 410 => Trouble::never(
                Reason::SourceRefused,
                format!("{says}: it has no such repository, revision or file"),
            ),
            _ => Trouble::never(Reason::SourceRefused, says),
        })
    }

    fn nonsense(&self, what: &str) -> Trouble {
        Trouble::later(format!("source {} answers with {what}", self.name()))
    }

    pub(super) fn size(&self, file: &ArtifactFile, found: u64) -> Trouble {
        let says = format!(
            "{:?} has {found} bytes at source {}, and should have {}",
            file.path,
            self.name(),
            file.bytes
        );
        Trouble::never(Reason::SizeMismatch, says)
    }
}

/// The first byte of a part, and the size of the whole if it is said.
fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes ")?;
    let (range, total) = text.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some((first.parse().ok()?, total))
}

/// A tag that names bytes, not only a meaning.
fn strong(headers: &HeaderMap) -> Option<String> {
    let tag = headers.get(header::ETAG)?.to_str().ok()?;
    (tag.starts_with('"') && tag.len() <= 256).then(|| tag.to_owned())
}
