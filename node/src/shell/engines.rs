//! The node's engines: what the relay and the reports see of each, and their start and end together.
//!
//! Owns the shared view of an engine and the streams counted on it; leaves its life to `driver` and the rules to
//! `core/supervisor`. Invariant: a stream gets a way to an engine only while that engine is ready, and is counted
//! until it is over.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
};
use umbel_contracts::proto::node::{DeclaredEngine, EngineState, EngineStatus};
use umbel_wire::clock::Wall;

use crate::{
    config::{Accelerator, Config, EngineConfig, EngineSource},
    core::{process_tree::Leader, supervisor::State},
    engines::sim::Sim,
    shell::{engine_http::Pool, gpu::Holders, state},
};

mod driver;
mod leftovers;

pub(crate) use leftovers::end_leftovers;

/// A second asking to stop overtakes the first; more are the same.
const COMMANDS: usize = 4;

/// The way to a ready engine.
#[derive(Debug)]
pub(crate) enum Route {
    /// It answers in this process.
    Sim(Sim),
    /// It speaks HTTP.
    Http(HttpRoute),
}

/// The way to an engine that speaks HTTP.
#[derive(Debug)]
pub(crate) struct HttpRoute {
    pub(crate) pool: Pool,
    /// Goes before the route's path.
    pub(crate) base: String,
    /// The engine's own key.
    pub(crate) key: Option<String>,
    /// Becomes true when the process has ended; nothing for one that is not ours.
    pub(crate) gone: Option<watch::Receiver<bool>>,
}

/// What is told of an engine.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: State,
    pub(crate) cause: String,
    pub(crate) tail: String,
    pub(crate) since: Wall,
    pub(crate) restarts: u32,
}

#[derive(Debug)]
struct Shared {
    view: View,
    route: Option<Arc<Route>>,
    /// Its process, from the start until nothing of it is left.
    leader: Option<Leader>,
}

/// One engine of the node's file.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) config: EngineConfig,
    shared: Mutex<Shared>,
    in_flight: AtomicU32,
    /// The whole node takes no new streams.
    node_drains: Arc<AtomicBool>,
    /// The last stream on it has ended.
    idle: Notify,
    stop: mpsc::Sender<Duration>,
}

/// A stream on an engine; dropping it says it is over.
#[derive(Debug)]
pub(crate) struct Visit {
    engine: Arc<Engine>,
    pub(crate) route: Arc<Route>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.engine.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.engine.idle.notify_one();
        }
    }
}

impl Engine {
    /// A way to it for one stream, if it is ready; else why not.
    pub(crate) fn visit(self: &Arc<Self>) -> Result<Visit, View> {
        let shared = self.lock();
        match &shared.route {
            Some(route) if shared.view.state == State::Ready && !self.node_drains.load(Ordering::Acquire) => {
                // Counted under the lock: a drain that begins now sees it.
                self.in_flight.fetch_add(1, Ordering::AcqRel);
                Ok(Visit { engine: Arc::clone(self), route: Arc::clone(route) })
            }
            _ => {
                drop(shared);
                Err(self.view())
            }
        }
    }

    /// Its state as the edge and the operator shall see it.
    pub(crate) fn view(&self) -> View {
        let mut view = self.lock().view.clone();
        if view.state == State::Ready && self.node_drains.load(Ordering::Acquire) {
            view.state = State::Draining;
            view.cause = "the node agent stops".into();
        }
        view
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its state, as the boundary has it.
    pub(crate) fn status(&self) -> EngineStatus {
        let view = self.view();
        EngineStatus {
            name: self.config.name.clone(),
            state: match view.state {
                State::Validating => EngineState::Validating,
                State::Starting | State::Restarting => EngineState::Starting,
                State::Loading => EngineState::Loading,
                State::Ready => EngineState::Ready,
                State::Draining => EngineState::Draining,
                State::Stopping => EngineState::Stopping,
                State::Stopped => EngineState::Stopped,
                State::Failed => EngineState::Failed,
            }
            .into(),
            cause: view.cause,
            output_tail: view.tail,
            in_flight: self.in_flight(),
            profile_digest: String::new(),
            since_unix_ms: view.since.unix_ms(),
            restarts: view.restarts,
        }
    }

    /// What it is, as the boundary has it.
    pub(crate) fn declared(&self) -> DeclaredEngine {
        let config = &self.config;
        DeclaredEngine {
            name: config.name.clone(),
            kind: config.source.kind().to_owned(),
            model: config.model.clone(),
            aliases: config.aliases.clone(),
            category: config.category.clone(),
            capacity: config.capacity,
            max_context_tokens: config.max_context_tokens,
            long_context_threshold_tokens: config.long_context_threshold_tokens,
            long_context_capacity: config.long_context_capacity,
            status: Some(self.status()),
        }
    }
}

/// What all engines of a node share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) state: Arc<state::State>,
    pub(crate) accelerator: Accelerator,
    pub(crate) llama_server: Option<std::path::PathBuf>,
    pub(crate) holders: Arc<Holders>,
}

/// All engines of a node.
#[derive(Debug)]
pub(crate) struct Engines {
    list: Vec<Arc<Engine>>,
    changed: Arc<watch::Sender<u64>>,
    node_drains: Arc<AtomicBool>,
    running: Mutex<JoinSet<()>>,
}

impl Engines {
    /// Starts every engine of the file, each in a task of its own.
    pub(crate) fn start(config: &Config, state: &Arc<state::State>, holders: &Arc<Holders>) -> Self {
        let host = Arc::new(Host {
            state: Arc::clone(state),
            accelerator: config.accelerator,
            llama_server: config.llama_server.clone(),
            holders: Arc::clone(holders),
        });
        let changed = Arc::new(watch::Sender::new(0));
        let node_drains = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        let list = config
            .engines
            .iter()
            .map(|engine| {
                let (stop, stops) = mpsc::channel(COMMANDS);
                let view = View {
                    state: State::Validating,
                    cause: String::new(),
                    tail: String::new(),
                    since: Wall::now(),
                    restarts: 0,
                };
                let engine = Arc::new(Engine {
                    config: engine.clone(),
                    shared: Mutex::new(Shared { view, route: None, leader: None }),
                    in_flight: AtomicU32::new(0),
                    node_drains: Arc::clone(&node_drains),
                    idle: Notify::new(),
                    stop,
                });
                running.spawn(driver::drive(
                    Arc::clone(&engine),
                    Arc::clone(&host),
                    stops,
                    Arc::clone(&changed),
                ));
                engine
            })
            .collect();
        Self { list, changed, node_drains, running: Mutex::new(running) }
    }

    pub(crate) fn list(&self) -> &[Arc<Engine>] {
        &self.list
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Engine>> {
        self.list.iter().find(|engine| engine.config.name == name)
    }

    /// The processes of the engines that have one.
    pub(crate) fn leaders(&self) -> Vec<Leader> {
        self.list.iter().filter_map(|engine| engine.lock().leader.clone()).collect()
    }

    /// Changes whenever an engine's state or cause does.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Any of them has a process.
    pub(crate) fn are_supervised(&self) -> bool {
        self.list.iter().any(|engine| matches!(engine.config.source, EngineSource::LlamaServer { .. }))
    }

    /// No new streams from now on; engines and running streams go on.
    pub(crate) fn drain(&self) {
        self.node_drains.store(true, Ordering::Release);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Asks all to end: SIGTERM now, SIGKILL after `grace`. Again with a shorter grace: that one counts.
    pub(crate) fn stop(&self, grace: Duration) {
        for engine in &self.list {
            // A full queue holds the same demand already.
            let _ = engine.stop.try_send(grace);
        }
    }

    /// Waits until nothing of any engine is left; [`Engines::stop`] comes first.
    pub(crate) async fn stopped(&self) {
        let mut running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        while running.join_next().await.is_some() {}
    }
}
