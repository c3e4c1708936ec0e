//! Looks at the host and its GPUs at the edge's interval, whether or not a connection is there.
//!
//! Owns the latest of everything that was seen and its age; leaves reading to `host` and `gpu`, what it means to
//! `core/gpus` and `core/telemetry`, and telling to `reports`. Invariant: a driver or disk that does not answer delays
//! nothing but itself, and of each at most one look is out.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::spawn_blocking, time::MissedTickBehavior};
use umbel_contracts::proto::node::{NodeInventory, NodeProblem, NodeTelemetry, StorageFree, StorageRoot};
use umbel_wire::{Parts, UnderWay, clock::Wall};

use crate::{
    Config,
    core::{
        gpus::{self, Sweep},
        inventory::{self, HostFacts},
        problems::Problems,
        telemetry::{self, HostFigures, REPORT_EVERY},
    },
    shell::{
        engines::Engines,
        gpu::{Gpus, Holders},
        host, process,
        state::State,
    },
};

/// Where the edge says nothing.
const TELEMETRY: Duration = Duration::from_secs(5);
/// A driver's answer is waited for this long before the report goes out without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A directory of the node's file is not there any more.
const DIRECTORY_MISSING: &str = "DIRECTORY_MISSING";
/// What a host is changes seldom.
const LOOK: Duration = Duration::from_secs(60);

/// Counts what was seen, for whoever tells of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// Passes over the host.
    pub(crate) passes: u64,
    /// Changes of which GPUs are lost.
    pub(crate) lost: u64,
}

#[derive(Debug)]
struct Seen {
    host: HostFacts,
    figures: HostFigures,
    gpus: gpus::Gpus,
    /// Of the directories of the node's file.
    places: Problems,
}

/// Asks the disks that hold these roots; blocks.
type AskDisks = fn(&[host::Root]) -> (Vec<StorageRoot>, Vec<StorageFree>);

/// What is seen of the host.
#[derive(Debug)]
pub(crate) struct Watch {
    gpus: Gpus,
    engines: Arc<Engines>,
    state: Arc<State>,
    holders: Arc<Holders>,
    roots: Vec<host::Root>,
    ask: AskDisks,
    accelerator: &'static str,
    fabric_labels: BTreeMap<String, String>,
    seen: Mutex<Seen>,
    /// A look at the processes that hold memory is out.
    attributing: Arc<AtomicBool>,
    interval: watch::Sender<Duration>,
    news: watch::Sender<News>,
}

impl Watch {
    /// Starts with what the preflight found, or why it found nothing. Blocks on files below `/proc` and on the state directory.
    pub(crate) fn new(
        config: &Config,
        engines: Arc<Engines>,
        state: Arc<State>,
        gpus: Gpus,
        holders: Arc<Holders>,
        found: Result<(Instant, Sweep), String>,
    ) -> Self {
        let mut known = gpus::Gpus::after_start(if gpus.are_wanted() { state.gpus() } else { Vec::new() });
        match found {
            Ok((at, found)) if gpus.are_wanted() => {
                if known.swept(at, Wall::now().unix_ms(), found).kept {
                    state.set_gpus(known.kept());
                }
                holders.tell(known.said());
            }
            Ok(_) => {}
            Err(why) => {
                known.failed(Wall::now().unix_ms(), why);
            }
        }
        let roots = host::roots(config);
        // The state directory was just written to, so it answers; the others are asked later.
        let (storage, free) = host::storage(&roots, 1);
        let (memory_used_bytes, load_1m_milli) = host::load();
        let figures =
            HostFigures { memory_used_bytes, load_1m_milli, storage: free, storage_at: Some(Instant::now()) };
        let seen = Seen {
            host: HostFacts { storage, ..host::facts() },
            figures,
            gpus: known,
            places: Problems::default(),
        };
        Self {
            gpus,
            engines,
            state,
            holders,
            roots,
            ask: |roots| host::storage(roots, roots.len()),
            accelerator: config.accelerator.name(),
            fabric_labels: config.fabric_labels.clone(),
            seen: Mutex::new(seen),
            attributing: Arc::default(),
            interval: watch::Sender::new(TELEMETRY),
            news: watch::Sender::new(News::default()),
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The edge's interval; zero is its own choice.
    pub(crate) fn set_interval(&self, wanted: Duration) {
        let wanted = if wanted.is_zero() { TELEMETRY } else { wanted.max(REPORT_EVERY) };
        self.interval.send_if_modified(|interval| std::mem::replace(interval, wanted) != wanted);
    }

    /// Changes with each pass.
    pub(crate) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Looks for ever.
    pub(crate) fn start(self: Arc<Self>, parts: &Parts) {
        // Apart: a disk on a network that hangs must not stop the GPUs' figures, nor the driver the disks'.
        let watch = Arc::clone(&self);
        tokio::spawn(parts.clone().kept("look at disks", move || Arc::clone(&watch).watch_disks()));
        tokio::spawn(parts.clone().kept("look at GPUs", move || Arc::clone(&self).watch_gpus()));
    }

    async fn watch_gpus(self: Arc<Self>) {
        let mut interval = self.interval.subscribe();
        let mut ticks = ticks(*interval.borrow_and_update());
        loop {
            tokio::select! {
                _ = ticks.tick() => self.pass().await,
                () = self.holders.asked() => self.pass().await,
                // The sender lives as long as this.
                Ok(()) = interval.changed() => ticks = self::ticks(*interval.borrow_and_update()),
            }
        }
    }

    /// One pass over the GPUs and the host's load.
    async fn pass(self: &Arc<Self>) {
        let (memory_used_bytes, load_1m_milli) = host::load();
        let changed = if self.gpus.are_wanted() { self.sweep().await } else { gpus::Changed::default() };
        {
            let mut seen = self.seen();
            (seen.figures.memory_used_bytes, seen.figures.load_1m_milli) = (memory_used_bytes, load_1m_milli);
        }
        self.news.send_modify(|news| {
            news.passes += 1;
            news.lost += u64::from(changed.lost);
        });
    }

    async fn sweep(self: &Arc<Self>) -> gpus::Changed {
        let patience = PATIENCE.min(*self.interval.borrow() / 2);
        let known = self.seen().gpus.uuids();
        let (at, swept) = self.gpus.sweep(known, patience).await;
        let unix_ms = Wall::now().unix_ms();
        let sweep = match swept {
            Ok(sweep) => sweep,
            Err(fault) => {
                if self.seen().gpus.failed(unix_ms, fault.to_string()) {
                    tracing::warn!(%fault, "the GPUs cannot be looked at");
                }
                return gpus::Changed::default();
            }
        };
        let (changed, said) = {
            let mut seen = self.seen();
            (seen.gpus.swept(at, unix_ms, sweep), seen.gpus.said())
        };
        let holders = said.holders.clone();
        self.holders.tell(said);
        if changed.lost {
            tracing::warn!(lost = ?self.lost(), "GPUs were lost or came back");
        }
        self.attribute(holders).await;
        if changed.kept {
            let (state, kept) = (Arc::clone(&self.state), self.seen().gpus.kept());
            // A disk that hangs is not waited for; the list is written again when it changes.
            drop(spawn_blocking(move || state.set_gpus(kept)));
        }
        changed
    }

    /// Finds the engines of these processes.
    async fn attribute(self: &Arc<Self>, holders: BTreeSet<i32>) {
        let Some(under_way) = UnderWay::take(&self.attributing) else { return };
        let (watch, leaders) = (Arc::clone(self), self.engines.leaders());
        let attributed = spawn_blocking(move || {
            let owners = process::owners(&holders, &leaders);
            watch.seen().gpus.attribute(&owners);
            drop(under_way);
        });
        // Looking at a process that hangs in the driver can hang as well: then the figures go without.
        let _ = tokio::time::timeout(PATIENCE, attributed).await;
    }

    async fn watch_disks(self: Arc<Self>) {
        let mut interval = self.interval.subscribe();
        let mut looked = Instant::now();
        loop {
            let watch = Arc::clone(&self);
            let asked = spawn_blocking(move || ((watch.ask)(&watch.roots), host::gone(&watch.roots))).await;
            let facts = if looked.elapsed() >= LOOK {
                looked = Instant::now();
                spawn_blocking(host::facts).await.ok()
            } else {
                None
            };
            {
                let mut seen = self.seen();
                let facts = facts.unwrap_or_else(|| seen.host.clone());
                // A look that broke off says nothing: what was seen before gets older, and the next look may see.
                let storage = match asked {
                    Ok(((storage, free), gone)) => {
                        seen.places.set(DIRECTORY_MISSING, gone, Wall::now());
                        (seen.figures.storage, seen.figures.storage_at) = (free, Some(Instant::now()));
                        storage
                    }
                    Err(_) => seen.host.storage.clone(),
                };
                seen.host = HostFacts { storage, ..facts };
            }
            let period = *interval.borrow_and_update();
            let _ = tokio::time::timeout(period, interval.changed()).await;
        }
    }

    /// The inventory as of now, without sequence and time.
    pub(crate) fn inventory(&self) -> NodeInventory {
        let seen = self.seen();
        let mut facts = seen.gpus.facts();
        for gpu in facts.gpus.iter_mut().filter(|gpu| gpu.memory_is_host) {
            gpu.memory_bytes = seen.host.memory_bytes;
        }
        let mut inventory = inventory::inventory(&seen.host, &facts, self.accelerator, &self.fabric_labels);
        telemetry::fit(&mut inventory);
        inventory
    }

    /// What the host does now, without sequence and time.
    pub(crate) fn telemetry(&self) -> NodeTelemetry {
        let (now, interval) = (Instant::now(), *self.interval.borrow());
        let seen = self.seen();
        telemetry::report(&seen.figures, seen.gpus.telemetry(now, interval), now, interval)
    }

    /// The GPUs as the host's own status shows them.
    pub(crate) fn shown(&self) -> Vec<gpus::Shown> {
        let interval = *self.interval.borrow();
        let seen = self.seen();
        let mut shown = seen.gpus.shown(Instant::now(), interval);
        for gpu in shown.iter_mut().filter(|gpu| gpu.facts.memory_is_host) {
            gpu.facts.memory_bytes = seen.host.memory_bytes;
        }
        shown
    }

    /// UUIDs of GPUs that were found and do not answer.
    pub(crate) fn lost(&self) -> Vec<String> {
        self.seen().gpus.lost()
    }

    /// What is wrong with directories, and with GPUs besides lost ones.
    pub(crate) fn problems(&self) -> Vec<NodeProblem> {
        let seen = self.seen();
        seen.places.all().cloned().chain(seen.gpus.problems(Instant::now())).collect()
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(period);
    // After a pause one pass is enough.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::config::Accelerator;

    static LOOKS: AtomicU64 = AtomicU64::new(0);

    fn breaks(_: &[host::Root]) -> (Vec<StorageRoot>, Vec<StorageFree>) {
        match LOOKS.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => panic!("the look breaks off"),
            n => (Vec::new(), vec![StorageFree { name: "state".into(), free_bytes: n }]),
        }
    }

    /// A look at the disks that breaks off says nothing, and is not the last one.
    #[tokio::test]
    async fn a_look_at_disks_that_breaks_off_is_not_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let text = "[node]\nstate_dir = \"/s\"\nallow_sim = true\n";
        let config = Config::parse(text, std::path::Path::new("/etc/umbel/node.toml")).unwrap();
        let state = Arc::new(State::open(&dir.path().join("state")).unwrap());
        let holders = Arc::new(Holders::new(false));
        let engines = Engines::start(&config, &state, &holders, &[], Default::default());
        let gpus = Gpus::start(Accelerator::Cpu, None);
        let found = (Instant::now(), Sweep::default());
        let watch = Watch { ask: breaks, ..Watch::new(&config, engines, state, gpus, holders, Ok(found)) };
        let (watch, parts) = (Arc::new(watch), Parts::default());
        watch.set_interval(REPORT_EVERY);
        Arc::clone(&watch).start(&parts);
        let seen = async {
            while watch
                .seen()
                .figures
                .storage
                .first()
                .is_none_or(|one| one.name != "state" || one.free_bytes > 9)
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), seen).await.expect("a look after those that broke off");
        assert!(LOOKS.load(Ordering::SeqCst) >= 3 && parts.troubles().is_empty());
    }
}
