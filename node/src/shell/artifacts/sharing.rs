//! Downloads that run, and who waits for each: several who want the same share one.
//!
//! Owns the seats at a download, its thread, and its end; leaves what a download does to `fetch`. Invariants: one thread an
//! artifact writes to its folder; what nobody wants any more stops within a moment and leaves what it has for the next try;
//! however a thread ends, who waits is told.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    Artifacts, Done,
    fetch::{self, Fetch},
    folders,
};
use crate::core::artifacts::{Failure, Progress, Reason, Wanted};

/// Downloads at once: each has a thread and some buffers. Jobs are far fewer.
const RUNNING_MAX: usize = 16;

/// Bytes of stack of a download's thread: what threads have by default.
pub(super) const STACK: usize = 2 * 1024 * 1024;

/// How far a download is, and how it ended.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) progress: Progress,
    pub(super) end: Option<Result<Done, Failure>>,
}

/// A download that runs.
pub(super) struct Running {
    told: watch::Receiver<Told>,
    /// Ends it.
    cancel: CancellationToken,
    /// Who waits for it. At zero it is cancelled.
    waiting: usize,
    missing: Arc<AtomicU64>,
    /// Its folder in the quarantine.
    pub(super) name: String,
}

pub(super) type Downloads = Arc<Mutex<BTreeMap<String, Running>>>;

pub(super) fn lock(running: &Downloads) -> MutexGuard<'_, BTreeMap<String, Running>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Artifacts {
    /// A place at the download of an artifact, begun if there is none.
    pub(super) fn join(&self, wanted: &Wanted, root: &Path) -> Result<Seat, Failure> {
        let key = format!("{}/{}", wanted.root, wanted.folder());
        let mut running = lock(&self.running);
        if let Some(found) = running.get_mut(&key) {
            found.waiting += 1;
            return Ok(Seat { told: found.told.clone(), key, running: Arc::clone(&self.running) });
        }
        if running.len() >= RUNNING_MAX {
            return Err(Failure::new(Reason::Internal, format!("{RUNNING_MAX} downloads run already")));
        }
        let (told, listening) = watch::channel(Told::default());
        let (cancel, missing) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let name = folders::parts_name(&wanted.root, &wanted.folder());
        let source = self.settings.sources.get(&wanted.source).cloned();
        let (Some(source), Some(quarantine)) = (source, self.settings.quarantine.clone()) else {
            return Err(Failure::new(Reason::RootUnknown, "the node's file has no artifacts.quarantine"));
        };
        let told = Arc::new(told);
        let (others, mine) = (Arc::clone(&self.running), key.clone());
        let writers = Arc::clone(&self.running);
        let fetch = Fetch {
            wanted: wanted.clone(),
            source,
            quarantine,
            name: name.clone(),
            root: root.to_owned(),
            reserve: wanted.reserve.max(self.settings.reserve),
            patience: self.patience,
            told: Arc::clone(&told),
            cancel: cancel.clone(),
            missing: Arc::clone(&missing),
            came: Arc::clone(&self.fetched),
            promised: Box::new(move || {
                let others = lock(&others);
                let left_out = others.iter().filter(|(key, _)| **key != mine);
                left_out.map(|(_, one)| one.missing.load(Ordering::Relaxed)).sum()
            }),
            running: Box::new(move |name| lock(&writers).values().any(|one| one.name == name)),
        };
        let left = Leaves { key: key.clone(), running: Arc::clone(&self.running), told, end: None };
        running.insert(key.clone(), Running { told: listening.clone(), cancel, waiting: 1, missing, name });
        drop(running);
        let seat = Seat { told: listening, key, running: Arc::clone(&self.running) };
        // Without the lock: where no thread can be made, `left` takes it right here.
        std::thread::Builder::new()
            .name("artifact".into())
            .stack_size(self.stack)
            .spawn(move || left.end(download(fetch)))
            .map_err(|error| {
                Failure::new(Reason::Internal, format!("no thread for a download: {}", error.kind()))
            })?;
        Ok(seat)
    }
}

/// The whole of a download, on its thread.
fn download(fetch: Fetch) -> Result<Done, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Looking up names.
        .max_blocking_threads(2)
        .build()
        .map_err(|error| {
            Failure::new(Reason::Internal, format!("no runtime for a download: {}", error.kind()))
        })?;
    let (repository, revision) = (fetch.wanted.repository.clone(), fetch.wanted.revision.clone());
    let places = Places::of(&fetch);
    let end = runtime.block_on(fetch::run(fetch)).map_err(|failure| places.named(failure));
    runtime.shutdown_background();
    match &end {
        Ok(done) => {
            tracing::info!(repository, revision, bytes = done.bytes, took = ?done.took, "artifact is here")
        }
        Err(failure) => tracing::warn!(repository, revision, %failure, "artifact could not be brought here"),
    }
    end
}

/// Where a download puts what comes, for the words of its failure.
struct Places([(String, PathBuf); 2]);

impl Places {
    fn of(fetch: &Fetch) -> Self {
        let root = format!("artifacts.roots.{}", fetch.wanted.root);
        Self([("artifacts.quarantine".into(), fetch.quarantine.clone()), (root, fetch.root.clone())])
    }

    /// A disk that fails because one of them is not there any more is told by that one's name.
    fn named(&self, failure: Failure) -> Failure {
        let gone = self.0.iter().find(|(_, place)| failure.reason == Reason::Disk && !place.is_dir());
        gone.map_or(failure, |(key, _)| {
            let says = format!(
                "the directory {key} of the node's file is not there any more: make it for the agent's user, or mount what belongs there"
            );
            Failure::new(Reason::Disk, says)
        })
    }
}

/// The last act of a download's thread, however it ends: it is no longer among those that run, and then who waits is told.
struct Leaves {
    key: String,
    running: Downloads,
    told: Arc<watch::Sender<Told>>,
    /// Nothing after a panic: who waits would wait for ever.
    end: Option<Result<Done, Failure>>,
}

impl Leaves {
    fn end(mut self, end: Result<Done, Failure>) {
        self.end = Some(end);
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        lock(&self.running).remove(&self.key);
        let broken = || Err(Failure::new(Reason::Internal, "the download broke off"));
        let end = self.end.take().unwrap_or_else(broken);
        self.told.send_modify(|told| told.end = Some(end));
    }
}

/// One who waits for a download.
pub(super) struct Seat {
    told: watch::Receiver<Told>,
    key: String,
    running: Downloads,
}

impl Seat {
    pub(super) async fn wait(
        mut self,
        progress: &impl Fn(Progress),
        cancel: &CancellationToken,
    ) -> Result<Done, Failure> {
        let mut left = false;
        loop {
            {
                let told = self.told.borrow_and_update();
                if let Some(end) = &told.end {
                    return end.clone();
                }
                progress(told.progress);
            }
            tokio::select! {
                // Others may still want it; if nobody does, its end is waited for, so that its folder is at rest.
                () = cancel.cancelled(), if !left => {
                    left = true;
                    if !self.is_last() {
                        return Err(Failure::cancelled());
                    }
                    self.stop();
                }
                changed = self.told.changed() => if changed.is_err() {
                    return Err(Failure::new(Reason::Internal, "the download broke off"));
                },
            }
        }
    }

    fn is_last(&self) -> bool {
        lock(&self.running).get(&self.key).is_none_or(|one| one.waiting == 1)
    }

    fn stop(&self) {
        if let Some(one) = lock(&self.running).get(&self.key) {
            one.cancel.cancel();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        // Another download of the same name may have begun since this one ended.
        let Some(one) = running.get_mut(&self.key).filter(|one| one.told.same_channel(&self.told)) else {
            return;
        };
        one.waiting = one.waiting.saturating_sub(1);
        if one.waiting == 0 {
            one.cancel.cancel();
        }
    }
}
