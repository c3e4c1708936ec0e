//! Artifacts of this host: brought here, listed, taken away.
//!
//! Owns bringing one here, from the wish to its end, and figures; leaves downloads that run and who waits for them to `sharing`, what
//! is present to `present`, a download itself to `fetch`, and decisions to `core/artifacts`. Invariant: what is here already is not
//! asked for again.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use umbel_contracts::proto::node::Artifact;

use crate::{
    config,
    core::artifacts::{Failure, Patience, Progress, Reason, Wanted},
};

mod directory;
mod fetch;
mod folders;
mod http;
pub(crate) mod job;
pub(crate) mod listing;
mod present;
mod sharing;
mod sink;
#[cfg(test)]
mod tests;

use folders::Present;
use sharing::{Downloads, Told, lock};

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) files: u32,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    pub(crate) digest: String,
    /// The root's name.
    pub(crate) root: String,
    /// Where it is, relative to its root.
    pub(crate) folder: String,
    /// Of these bytes, what had to come now.
    pub(crate) fetched: u64,
}

/// All of them.
pub(crate) struct Artifacts {
    settings: config::Artifacts,
    patience: Patience,
    /// Bytes of stack of a download's thread.
    stack: usize,
    /// By root and folder.
    running: Downloads,
    /// What is here, as it was seen last.
    seen: watch::Sender<Arc<Vec<Artifact>>>,
    /// Looks that have begun, and the one that saw it.
    looks: AtomicU64,
    seen_by: AtomicU64,
    /// Bytes that came since the start.
    fetched: Arc<AtomicU64>,
}

/// Artifacts in figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figures {
    /// By root: how many are there, and their bytes.
    pub(crate) roots: BTreeMap<String, (u64, u64)>,
    /// Downloads that run.
    pub(crate) running: usize,
    /// Bytes that came since the start.
    pub(crate) fetched: u64,
}

impl std::fmt::Debug for Artifacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artifacts").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Artifacts {
    pub(crate) fn new(settings: config::Artifacts) -> Self {
        Self::with_patience(settings, Patience::default())
    }

    fn with_patience(settings: config::Artifacts, patience: Patience) -> Self {
        Self {
            settings,
            patience,
            stack: sharing::STACK,
            running: Downloads::default(),
            seen: watch::Sender::default(),
            looks: AtomicU64::new(0),
            seen_by: AtomicU64::new(0),
            fetched: Arc::default(),
        }
    }

    /// Brings an artifact here, or waits with others for the one download of it. Tells `progress` whenever there is some.
    ///
    /// # Errors
    /// Why it is not here; [`Failure::retry`] says whether the same again may go better.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        mut wanted: Wanted,
        progress: impl Fn(Progress),
        cancel: &CancellationToken,
    ) -> Result<Done, Failure> {
        wanted.check()?;
        let root = self.root(&mut wanted.root)?;
        if !self.settings.sources.contains_key(&wanted.source) {
            let says = format!(
                "the node's file has no source {:?}; it has: {}",
                wanted.source,
                named(&self.settings.sources)
            );
            return Err(Failure::new(Reason::SourceUnknown, says));
        }
        // Whether the own source was asked: it may be given way to, and then waits until the other one has failed.
        let mut asked = false;
        loop {
            if cancel.is_cancelled() {
                return Err(Failure::cancelled());
            }
            if let Some(done) = self.already(&wanted, &root).await {
                return Ok(done);
            }
            let mut seat = self.join(&wanted, &root)?;
            let end = loop {
                asked |= !seat.is_of_another();
                if let Some(end) = seat.wait(&progress, cancel, !asked).await {
                    break end;
                }
                seat = self.take_over(&wanted, &root, &seat)?;
            };
            match end {
                // It was on its way to its end when we came, since all others had left; or it made way.
                Err(failure) if failure.reason == Reason::Cancelled && !cancel.is_cancelled() => {}
                // The own source may have what another has not.
                Err(failure)
                    if seat.is_of_another() && failure.reason.is_of_source() && !cancel.is_cancelled() => {}
                end => {
                    if end.is_ok() {
                        self.look_later();
                    }
                    return end;
                }
            }
        }
    }

    /// A root by its name; the first of them if none is said.
    fn root(&self, name: &mut String) -> Result<PathBuf, Failure> {
        let roots = &self.settings.roots;
        if name.is_empty() {
            roots.keys().next().cloned().unwrap_or_default().clone_into(name);
        }
        roots.get(name).cloned().ok_or_else(|| {
            let says = match roots.len() {
                0 => "the node's file has no artifact roots: set artifacts.quarantine and artifacts.roots"
                    .to_owned(),
                _ => format!("the node's file has no artifact root {name:?}; it has: {}", named(roots)),
            };
            Failure::new(Reason::RootUnknown, says)
        })
    }

    async fn already(&self, wanted: &Wanted, root: &std::path::Path) -> Option<Done> {
        let (name, root, folder) = (wanted.root.clone(), root.to_owned(), wanted.folder());
        let found = {
            let folder = folder.clone();
            tokio::task::spawn_blocking(move || folders::present(&name, &root, &folder)).await.ok()??
        };
        Some(Done {
            files: u32::try_from(found.files.len()).unwrap_or(u32::MAX),
            bytes: found.bytes,
            took: Duration::ZERO,
            digest: found.digest,
            root: found.root,
            folder,
            fetched: 0,
        })
    }

    /// What is here and what comes, in figures.
    pub(crate) fn figures(&self) -> Figures {
        let mut roots: BTreeMap<String, (u64, u64)> =
            self.settings.roots.keys().map(|name| (name.clone(), (0, 0))).collect();
        for one in self.seen.borrow().iter() {
            let (count, bytes) = roots.entry(one.root.clone()).or_default();
            *count += 1;
            *bytes += one.bytes;
        }
        let fetched = self.fetched.load(Ordering::Relaxed);
        Figures { roots, running: lock(&self.running).len(), fetched }
    }

    /// What is here, for whoever tells it, and when that changes.
    pub(crate) fn news(&self) -> watch::Receiver<Arc<Vec<Artifact>>> {
        self.seen.subscribe()
    }
}

fn named<T>(map: &BTreeMap<String, T>) -> String {
    if map.is_empty() {
        return "none".into();
    }
    map.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}
