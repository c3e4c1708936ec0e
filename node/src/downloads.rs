//! One download by itself, for measurements (feature `simulation`): what `artifact.acquire` does, without an edge.
//!
//! Owns nothing; everything is `shell/artifacts`.

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;
use umbel_contracts::artifact::{self, ArtifactFile};

use crate::{Config, core::artifacts::Wanted, shell::artifacts::Artifacts};

/// Brings an artifact into the first root of a node's file, and says how long that took, from the first connection to the
/// synced rename. Builds its own runtime; blocks.
///
/// # Errors
/// One sentence.
pub fn download(
    config: &Config,
    source: &str,
    (repository, revision): (&str, &str),
    files: Vec<ArtifactFile>,
) -> Result<Duration, String> {
    let runtime = crate::app::runtime().map_err(|error| error.to_string())?;
    let artifacts = Arc::new(Artifacts::new(config.artifacts.clone()));
    let wanted = Wanted {
        repository: repository.into(),
        revision: revision.into(),
        digest: artifact::digest(&files),
        source: source.into(),
        root: String::new(),
        reserve: 0,
        files,
    };
    let cancel = CancellationToken::new();
    let done = runtime.block_on(artifacts.acquire(wanted, |_| {}, &cancel));
    done.map(|done| done.took).map_err(|failure| failure.to_string())
}
