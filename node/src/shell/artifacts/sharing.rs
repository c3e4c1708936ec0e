//! Downloads that run, and who waits for each: several who want the same share one.
//!
//! Owns the seats at a download, its thread, and its end; leaves what a download does to `fetch`, and when one stands still to
//! `core/artifacts`. Invariants: one thread an artifact writes to its folder; what nobody wants any more stops within a moment and
//! leaves what it has for the next try; nobody waits for another's source that brings nothing; however a thread ends, who waits
//! is told.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Artifacts, Done,
    fetch::{self, Fetch},
    folders,
};
use crate::core::artifacts::{Failure, Headway, Progress, Reason, STANDSTILL, Wanted};

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
    /// Of them, who asked for its source.
    asked: usize,
    missing: Arc<AtomicU64>,
    /// Its folder in the quarantine.
    pub(super) name: String,
    /// The source's name.
    source: String,
    headway: Headway,
    /// The one that made way for it, and may not have ended yet.
    before: Option<watch::Receiver<Told>>,
}

impl Running {
    /// Whether this one waits for another to stop: a second one behind it would only wait, too.
    fn is_held_up(&self) -> bool {
        self.before.as_ref().is_some_and(|before| before.borrow().end.is_none())
    }
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
            let theirs = (found.source != wanted.source).then(|| found.source.clone());
            found.asked += usize::from(theirs.is_none());
            let (told, mine) = (found.told.clone(), wanted.source.clone());
            return Ok(Seat { told, key, running: Arc::clone(&self.running), theirs, mine });
        }
        if running.len() >= RUNNING_MAX {
            return Err(Failure::new(Reason::Internal, format!("{RUNNING_MAX} downloads run already")));
        }
        self.begin(running, key, wanted, root, None)
    }

    /// Begins the download anew from another source, in place of one that stands still; if that has gone on or ended meanwhile, a
    /// place at what runs now.
    pub(super) fn take_over(&self, wanted: &Wanted, root: &Path, seat: &Seat) -> Result<Seat, Failure> {
        let mut running = lock(&self.running);
        let now = Instant::now().into_std();
        let stands = seat.mine(&mut running).filter(|one| one.headway.stands_still(now) && !one.is_held_up());
        let Some(found) = stands else {
            drop(running);
            return self.join(wanted, root);
        };
        let (cancel, source) = (found.cancel.clone(), found.source.clone());
        let before = (source.clone(), found.told.clone());
        let begun = self.begin(running, seat.key.clone(), wanted, root, Some(before))?;
        cancel.cancel();
        let Wanted { repository, revision, source: own, .. } = wanted;
        tracing::info!(repository, revision, "nothing comes from source {source}: source {own} is asked");
        Ok(begun)
    }

    /// Begins a download, after the one before it has stopped, and puts it among those that run.
    fn begin(
        &self,
        mut running: MutexGuard<'_, BTreeMap<String, Running>>,
        key: String,
        wanted: &Wanted,
        root: &Path,
        before: Option<(String, watch::Receiver<Told>)>,
    ) -> Result<Seat, Failure> {
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
        let stopping = before.clone();
        let one = Running {
            told: listening.clone(),
            cancel,
            waiting: 1,
            asked: 1,
            missing,
            name,
            source: wanted.source.clone(),
            headway: Headway::new(Instant::now().into_std()),
            before: before.map(|(_, told)| told),
        };
        running.insert(key.clone(), one);
        drop(running);
        let (running, mine) = (Arc::clone(&self.running), wanted.source.clone());
        let seat = Seat { told: listening, key, running, theirs: None, mine };
        // Without the lock: where no thread can be made, `left` takes it right here.
        std::thread::Builder::new()
            .name("artifact".into())
            .stack_size(self.stack)
            .spawn(move || left.end(download(fetch, stopping)))
            .map_err(|error| {
                Failure::new(Reason::Internal, format!("no thread for a download: {}", error.kind()))
            })?;
        Ok(seat)
    }
}

/// The whole of a download, on its thread.
fn download(fetch: Fetch, before: Option<(String, watch::Receiver<Told>)>) -> Result<Done, Failure> {
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
    let whole = async {
        if let Some((source, mut told)) = before {
            let says = format!("waits until the download from source {source} has stopped");
            fetch.told.send_modify(|own| own.progress.says = Some(says));
            // Also when nobody wants this one any more: whoever comes next must find the folder at rest.
            let _ = told.wait_for(|told| told.end.is_some()).await;
        }
        fetch::run(fetch).await
    };
    let end = runtime.block_on(whole).map_err(|failure| places.named(failure));
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
        {
            let mut running = lock(&self.running);
            let own = self.told.subscribe();
            // One that it made way for has its place already.
            if running.get(&self.key).is_some_and(|one| one.told.same_channel(&own)) {
                running.remove(&self.key);
            }
        }
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
    /// The source it comes from, if that is not what was asked for.
    theirs: Option<String>,
    /// What was.
    mine: String,
}

impl Seat {
    /// Whether it comes from a source that somebody else asked for.
    pub(super) fn is_of_another(&self) -> bool {
        self.theirs.is_some()
    }

    /// Waits for the end. Nothing if it comes from another's source and stands still, so that the own one is to take over:
    /// unless that had its turn (not `eager`), and somebody who asked for the other still waits.
    pub(super) async fn wait(
        &mut self,
        progress: &impl Fn(Progress),
        cancel: &CancellationToken,
        eager: bool,
    ) -> Option<Result<Done, Failure>> {
        let mut left = false;
        loop {
            let at = {
                let told = self.told.borrow_and_update();
                if let Some(end) = &told.end {
                    return Some(end.clone());
                }
                told.progress.clone()
            };
            let now = Instant::now();
            let deadline = self.looks(&at, now, eager).filter(|_| !left);
            if deadline.is_some_and(|deadline| deadline <= now) {
                return None;
            }
            progress(self.said(at, deadline.is_some()));
            tokio::select! {
                // Others may still want it; if nobody does, its end is waited for, so that its folder is at rest.
                () = cancel.cancelled(), if !left => {
                    left = true;
                    if !self.is_last() {
                        return Some(Err(Failure::cancelled()));
                    }
                    self.stop();
                }
                changed = self.told.changed() => if changed.is_err() {
                    return Some(Err(Failure::new(Reason::Internal, "the download broke off")));
                },
                () = sleep_until(deadline.unwrap_or(now)), if deadline.is_some() => {}
            }
        }
    }

    /// Remembers how far it is; when it has stood still for so long that the own source takes over.
    fn looks(&self, at: &Progress, now: Instant, eager: bool) -> Option<Instant> {
        let mut running = lock(&self.running);
        let one = self.mine(&mut running)?;
        one.headway.seen(at, now.into_std());
        let may = self.is_of_another() && (eager || one.asked == 0) && !one.is_held_up();
        one.headway.deadline().filter(|_| may).map(Instant::from_std)
    }

    /// How far it is, with where it comes from if that is not what was asked for.
    fn said(&self, mut at: Progress, takes_over: bool) -> Progress {
        let Some(theirs) = &self.theirs else { return at };
        let mut says = at.says.take().map(|says| says + "; ").unwrap_or_default();
        says.push_str(&format!("from source {theirs}, for another job"));
        if takes_over {
            let patience = STANDSTILL.as_secs();
            says.push_str(&format!("; source {} is asked if nothing comes for {patience} s", self.mine));
        }
        Progress { says: Some(says), ..at }
    }

    /// What it is a seat at, if that still runs: another may have taken its place.
    fn mine<'a>(&self, running: &'a mut BTreeMap<String, Running>) -> Option<&'a mut Running> {
        running.get_mut(&self.key).filter(|one| one.told.same_channel(&self.told))
    }

    fn is_last(&self) -> bool {
        self.mine(&mut lock(&self.running)).is_none_or(|one| one.waiting == 1)
    }

    fn stop(&self) {
        if let Some(one) = self.mine(&mut lock(&self.running)) {
            one.cancel.cancel();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut running = lock(&self.running);
        let Some(one) = self.mine(&mut running) else { return };
        one.waiting = one.waiting.saturating_sub(1);
        one.asked = one.asked.saturating_sub(usize::from(!self.is_of_another()));
        if one.waiting == 0 {
            one.cancel.cancel();
        }
    }
}
