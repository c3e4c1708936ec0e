//! Artifacts of this host: brought here, listed, taken away.
//!
//! Owns who downloads what, so that several who want the same share one download, and what is present; leaves the download
//! itself to `fetch`, and decisions to `core/artifacts`. Invariant: one thread an artifact writes to its folder, and what
//! nobody wants any more stops within a moment and leaves what it has for the next try.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use umbel_contracts::proto::node::Artifact;

use crate::{
    config,
    core::artifacts::{Failure, Patience, Progress, Reason, Wanted, outworn},
};

mod directory;
mod fetch;
mod folders;
mod http;
pub(crate) mod job;
pub(crate) mod listing;
mod sink;
#[cfg(test)]
mod tests;

use folders::Present;

/// Downloads at once: each has a thread and some buffers. Jobs are far fewer.
const RUNNING_MAX: usize = 16;

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

/// How far a download is, and how it ended.
#[derive(Debug, Default)]
struct Told {
    progress: Progress,
    end: Option<Result<Done, Failure>>,
}

/// A download that runs.
struct Running {
    told: watch::Receiver<Told>,
    /// Ends it.
    cancel: CancellationToken,
    /// Who waits for it. At zero it is cancelled.
    waiting: usize,
    missing: Arc<AtomicU64>,
    /// Its folder in the quarantine.
    name: String,
}

type Downloads = Arc<Mutex<BTreeMap<String, Running>>>;

/// All of them.
pub(crate) struct Artifacts {
    settings: config::Artifacts,
    patience: Patience,
    /// By root and folder.
    running: Downloads,
    /// What is here, as it was seen last.
    seen: watch::Sender<Arc<Vec<Artifact>>>,
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

fn lock(running: &Downloads) -> MutexGuard<'_, BTreeMap<String, Running>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Artifacts {
    pub(crate) fn new(settings: config::Artifacts) -> Self {
        Self::with_patience(settings, Patience::default())
    }

    fn with_patience(settings: config::Artifacts, patience: Patience) -> Self {
        Self {
            settings,
            patience,
            running: Downloads::default(),
            seen: watch::Sender::default(),
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
        loop {
            if cancel.is_cancelled() {
                return Err(Failure::cancelled());
            }
            if let Some(done) = self.already(&wanted, &root).await {
                return Ok(done);
            }
            let seat = self.join(&wanted, &root)?;
            match seat.wait(&progress, cancel).await {
                // It was on its way to its end when we came, since all others had left.
                Err(failure) if failure.reason == Reason::Cancelled && !cancel.is_cancelled() => {}
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

    /// A place at the download of an artifact, begun if there is none.
    fn join(&self, wanted: &Wanted, root: &std::path::Path) -> Result<Seat, Failure> {
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
        let fetch = fetch::Fetch {
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
        std::thread::Builder::new()
            .name("artifact".into())
            .spawn(move || left.end(download(fetch)))
            .map_err(|error| {
                Failure::new(Reason::Internal, format!("no thread for a download: {}", error.kind()))
            })?;
        running.insert(key.clone(), Running { told: listening.clone(), cancel, waiting: 1, missing, name });
        Ok(Seat { told: listening, key, running: Arc::clone(&self.running) })
    }

    /// Where an artifact is; for an engine that is to run from it. May block.
    ///
    /// # Errors
    /// [`Reason::NotFound`] if it is not here, or not whole.
    pub(crate) fn folder(&self, repository: &str, revision: &str, digest: &str) -> Result<PathBuf, Failure> {
        checked(repository, revision, digest)?;
        let folder = umbel_contracts::artifact::folder(repository, revision, digest);
        let there = self.settings.roots.iter().find(|(name, root)| {
            folders::present(name, root, &folder).is_some_and(|present| present.digest == digest)
        });
        there.map(|(_, root)| root.join(&folder)).ok_or_else(|| not_found(repository, revision))
    }

    /// Takes an artifact away if `file`, an absolute path in it, is not what was brought: its name and size are right, so nobody
    /// would fetch it again. An engine that has it open goes on with what it has. Reads all of the file. Whether it was so.
    pub(crate) fn take_away_damaged(&self, file: &std::path::Path) -> bool {
        let (Some(quarantine), roots) = (&self.settings.quarantine, &self.settings.roots) else {
            return false;
        };
        let found = self.list().into_iter().find_map(|one| {
            let folder = umbel_contracts::artifact::folder(&one.repository, &one.revision, &one.digest);
            let root = roots.get(&one.root)?;
            let path = file.strip_prefix(root.join(&folder)).ok()?.to_str()?.to_owned();
            Some((one, root, folder, path))
        });
        let Some((one, root, folder, path)) = found else { return false };
        if !folders::is_damaged(&one, &root.join(&folder), &path) {
            return false;
        }
        let name = &one.root;
        tracing::warn!(
            root = name,
            folder,
            path,
            "a file is not what was brought; its artifact is taken away"
        );
        if let Err(failure) = folders::remove(quarantine, root, &folder) {
            tracing::warn!(root = name, folder, %failure, "it cannot be taken away");
            return false;
        }
        self.look();
        true
    }

    /// All artifacts that are here, whole. May block.
    fn list(&self) -> Vec<Present> {
        self.settings.roots.iter().flat_map(|(name, root)| folders::scan(name, root)).collect()
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

    /// Looks at the roots anew. May block.
    pub(crate) fn look(&self) {
        let now = Arc::new(job::listed(self.list()));
        self.seen.send_if_modified(|seen| {
            let differs = *seen != now;
            *seen = now;
            differs
        });
    }

    fn look_later(self: &Arc<Self>) {
        let artifacts = Arc::clone(self);
        drop(tokio::task::spawn_blocking(move || artifacts.look()));
    }

    /// Looks at the roots now and then, and throws away what is outworn, for ever.
    pub(crate) async fn keep(self: Arc<Self>) {
        loop {
            let artifacts = Arc::clone(&self);
            // A root on a disk that hangs holds up nothing but this.
            let _ = tokio::task::spawn_blocking(move || {
                artifacts.look();
                artifacts.tidy_up();
            })
            .await;
            tokio::time::sleep(job::LOOK_AGAIN).await;
        }
    }

    /// Takes an artifact away, from every root unless one is named. `used_by` names the engine that runs from a folder, if one
    /// does. May block.
    ///
    /// # Errors
    /// [`Reason::InUse`] and nothing is done; [`Reason::NotFound`].
    pub(crate) fn remove(
        &self,
        (repository, revision, digest): (&str, &str, &str),
        root: &str,
        used_by: impl Fn(&std::path::Path) -> Option<String>,
    ) -> Result<u64, Failure> {
        checked(repository, revision, digest)?;
        let folder = umbel_contracts::artifact::folder(repository, revision, digest);
        let Some(quarantine) = &self.settings.quarantine else { return Err(not_found(repository, revision)) };
        let roots: Vec<_> =
            self.settings.roots.iter().filter(|(name, _)| root.is_empty() || root == *name).collect();
        for (name, root) in &roots {
            if let Some(engine) = used_by(&root.join(&folder)) {
                return Err(Failure::new(
                    Reason::InUse,
                    format!("engine {engine} runs from it: unload that first"),
                ));
            }
            if lock(&self.running).contains_key(&format!("{name}/{folder}")) {
                return Err(Failure::new(Reason::InUse, "it is being brought here: cancel that first"));
            }
        }
        let mut freed = None;
        for (name, root) in roots {
            // What is no whole artifact any more may go, too.
            let bytes = folders::present(name, root, &folder).map_or(0, |present| present.bytes);
            match folders::remove(quarantine, root, &folder) {
                Ok(()) => freed = Some(freed.unwrap_or(0) + bytes),
                Err(failure) if failure.reason == Reason::NotFound => {}
                Err(failure) => return Err(failure),
            }
        }
        self.look();
        freed.ok_or_else(|| not_found(repository, revision))
    }

    /// Throws away what nobody has gone on with for long. May block.
    fn tidy_up(&self) {
        let Some(quarantine) = &self.settings.quarantine else { return };
        let left = folders::left(quarantine, |name| lock(&self.running).values().any(|one| one.name == name));
        for name in outworn(left, 0) {
            tracing::info!(name, "an unfinished download is given up");
            folders::forget(quarantine, &name);
        }
    }
}

fn checked(repository: &str, revision: &str, digest: &str) -> Result<(), Failure> {
    use umbel_contracts::artifact;
    let refused = |says| Failure::new(Reason::NameRefused, says);
    artifact::check_repository(repository).map_err(refused)?;
    artifact::check_revision(revision).map_err(refused)?;
    if artifact::is_sha256(digest) { Ok(()) } else { Err(refused("the digest is no SHA-256".into())) }
}

fn not_found(repository: &str, revision: &str) -> Failure {
    Failure::new(Reason::NotFound, format!("{repository} at {revision} is not on this node, or not whole"))
}

fn named<T>(map: &BTreeMap<String, T>) -> String {
    if map.is_empty() {
        return "none".into();
    }
    map.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// The whole of a download, on its thread.
fn download(fetch: fetch::Fetch) -> Result<Done, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Looking up names.
        .max_blocking_threads(2)
        .build()
        .map_err(|error| {
            Failure::new(Reason::Internal, format!("no runtime for a download: {}", error.kind()))
        })?;
    let (repository, revision) = (fetch.wanted.repository.clone(), fetch.wanted.revision.clone());
    let end = runtime.block_on(fetch::run(fetch));
    runtime.shutdown_background();
    match &end {
        Ok(done) => {
            tracing::info!(repository, revision, bytes = done.bytes, took = ?done.took, "artifact is here")
        }
        Err(failure) => tracing::warn!(repository, revision, %failure, "artifact could not be brought here"),
    }
    end
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
struct Seat {
    told: watch::Receiver<Told>,
    key: String,
    running: Downloads,
}

impl Seat {
    async fn wait(
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
