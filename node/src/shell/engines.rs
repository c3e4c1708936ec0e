//! The node's engines: what the relay and the reports see of each, which there are, and their end together.
//!
//! Owns the shared view of an engine and the streams counted on it; leaves its life to `driver`, which engines there
//! shall be to `changing`, and the rules to `core/supervisor`. Invariant: a stream gets a way to an engine only while
//! that engine is ready, and is counted until it is over.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
};
use umbel_contracts::{causes::Cause, proto::node::EngineAction};
use umbel_wire::clock::Wall;

use crate::{
    config::{Config, EngineConfig},
    core::{
        process_tree::Leader,
        supervisor::{Exit, State},
    },
    engines::{adapter::HostFacts, cli::Cli, sim::Sim},
    shell::{engine_http::Pool, gpu::Holders, holder::Held, state},
};

mod changing;
mod claims;
mod driver;
mod leftovers;
mod output;
mod parking;
mod ports;
mod remembering;
mod strays;
mod told;
mod traffic;

pub(crate) use remembering::TRIED;

pub(crate) use changing::{Declaration, Standing};
pub(crate) use ports::{Exposed, Ports};
pub(crate) use traffic::{Traffic, Verdict};

pub(crate) use leftovers::{Inheritance, any_runs, end_all as end_all_inherited, find as find_inherited};
#[cfg(test)]
pub(crate) use leftovers::{Left, end as end_inherited};

/// One word of a change, and what operators want: more at once than are begun with are refused.
const COMMANDS: usize = 4;

/// The way to a ready engine.
#[derive(Debug)]
pub(crate) enum Route {
    /// It answers in this process.
    Sim(Sim),
    /// A program is started for each request.
    Cli(Cli),
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
    /// What its streams see.
    pub(crate) traffic: Arc<Traffic>,
    /// What its processes listen at.
    pub(crate) ports: Arc<Ports>,
}

/// What is told of an engine.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: State,
    pub(crate) cause: String,
    /// What the cause is an instance of, if that has a name.
    pub(crate) code: Option<Cause>,
    /// How the last process ended.
    pub(crate) exit: Option<Exit>,
    /// It has failed, and is looked at again by itself.
    pub(crate) looks_again: bool,
    pub(crate) tail: String,
    pub(crate) since: Wall,
    pub(crate) restarts: u32,
}

#[derive(Debug)]
struct Shared {
    /// What it shall be.
    config: Arc<EngineConfig>,
    /// What its process was started as.
    started: Option<Arc<EngineConfig>>,
    view: View,
    route: Option<Arc<Route>>,
    /// The way to it, whether it is ready or not: for those who look at it.
    way: Option<Arc<Route>>,
    /// Its process, from the start until nothing of it is left.
    leader: Option<Leader>,
    /// When that was started; 0: there is none.
    process_since_unix_ms: i64,
    /// The run's nonce, and who holds it.
    run: Option<(String, Arc<Held>)>,
    /// The last lines of the run before.
    last: output::Last,
    /// It has ended, and this is what still holds what it had.
    held: Option<String>,
}

/// A demand to end an engine: running requests get `drain`, then its processes `grace`.
#[derive(Debug, Clone, Copy)]
struct Stop {
    drain: Duration,
    grace: Duration,
}

/// What an engine's driver is asked, while it is wanted.
#[derive(Debug, Clone, Copy)]
enum Command {
    /// What it shall be has changed.
    Changed,
    /// To start it anew; running requests get `drain`.
    Restart { drain: Duration },
    /// To stop it until it is restarted.
    Park { drain: Duration },
}

/// One engine of the node.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) name: String,
    shared: Mutex<Shared>,
    in_flight: AtomicU32,
    /// The whole node takes no new streams.
    node_drains: Arc<AtomicBool>,
    /// It alone takes no new streams.
    closed: AtomicBool,
    /// The last stream on it has ended; a word that nobody waited for is kept.
    ended: Notify,
    commands: mpsc::Sender<Command>,
    /// That it is to end: beside what it is asked, which may be as much as it takes.
    stop: watch::Sender<Option<Stop>>,
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
            self.engine.ended.notify_one();
        }
    }
}

impl Engine {
    /// A way to it for one stream, if it is ready; else why not.
    pub(crate) fn visit(self: &Arc<Self>) -> Result<Visit, View> {
        let shared = self.lock();
        match &shared.route {
            Some(route) if shared.view.state == State::Ready && !self.is_closed() => {
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
        if view.state == State::Ready && self.is_closed() {
            view.state = State::Draining;
            let node = self.node_drains.load(Ordering::Acquire);
            view.cause = if node { "the node agent stops" } else { "it is drained" }.into();
        }
        view
    }

    /// It takes no new streams.
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) || self.node_drains.load(Ordering::Acquire)
    }

    /// Whether it shall take new streams. Those that run go on.
    pub(crate) fn close(&self, closed: bool) {
        let _shared = self.lock();
        self.closed.store(closed, Ordering::Release);
    }

    /// The way to it, whether it is ready or not.
    pub(crate) fn way(&self) -> Option<Arc<Route>> {
        self.lock().way.clone()
    }

    /// Its process, from the start until nothing of it is left.
    pub(crate) fn leader(&self) -> Option<Leader> {
        self.lock().leader.clone()
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Waits until no stream is on it: at once, where none is.
    pub(super) async fn idle(&self) {
        while self.in_flight() > 0 {
            self.ended.notified().await;
        }
    }

    /// Its driver is gone by a defect: nothing is sent to it any more. Its process, if it has one, is in the record,
    /// and gone on with when the agent starts again.
    fn broke_off(&self) {
        let mut shared = self.lock();
        shared.view.state = State::Failed;
        shared.view.cause =
            "INTERNAL: what drives it broke off by a defect of the agent, whose log says where; \
                             restart the agent"
                .into();
        (shared.view.code, shared.view.looks_again) = (Some(Cause::Internal), false);
        shared.view.since = Wall::now();
        shared.route = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks it to end for good. The first word of a drain counts, unless a later one leaves no time for it.
    fn stop(&self, drain: Duration, grace: Duration) {
        self.stop.send_modify(|asked| {
            let drain = asked.map_or(drain, |before| if drain.is_zero() { drain } else { before.drain });
            *asked = Some(Stop { drain, grace });
        });
    }

    /// Does what an operator wants: stops it, or starts it anew. Running requests get `drain`.
    fn control(&self, action: EngineAction, drain: Duration) -> Result<(), &'static str> {
        let command = match action {
            EngineAction::Restart => Command::Restart { drain },
            EngineAction::Stop => Command::Park { drain },
            EngineAction::Unspecified => return Err("this node does not know what is to be done"),
        };
        self.commands
            .try_send(command)
            .map_err(|_| "it has not begun with what it was told before; ask again")
    }
}

/// What all engines of a node share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) state: Arc<state::State>,
    pub(crate) holders: Arc<Holders>,
    /// How this program becomes the holder of an engine: the arguments of itself.
    holder: &'static [&'static str],
    /// What earlier agents left, until somebody goes on with it or it is ended.
    inheritance: Mutex<Inheritance>,
    /// What could not be ended of that.
    stuck: Mutex<Vec<strays::Trace>>,
    /// What became of it.
    fates: leftovers::Fates,
    claims: claims::Claims,
    gone: output::Gone,
    /// Engines that an operator stopped: they stay so until he says otherwise.
    parked: Mutex<BTreeSet<String>>,
    /// They are being written.
    parking: Mutex<()>,
    /// Whatever nobody goes on with was ended, as far as that could be done.
    cleared: watch::Sender<bool>,
    /// The node's file may name other programs while the agent runs: then the next start takes those.
    facts: Mutex<HostFacts>,
    /// The driver that a test wants to break off.
    #[cfg(test)]
    pub(crate) trips: Mutex<Option<String>>,
}

/// All engines of a node.
#[derive(Debug)]
pub(crate) struct Engines {
    host: Arc<Host>,
    list: Mutex<changing::List>,
    changed: Arc<watch::Sender<u64>>,
    node_drains: Arc<AtomicBool>,
    running: Mutex<JoinSet<()>>,
    /// For the tasks that run them.
    own: Weak<Self>,
}

impl Engines {
    /// Begins with every engine of the file, each in a task of its own; those that an earlier agent left running are gone
    /// on with. No process is started before [`Engines::end_unwanted`].
    pub(crate) fn start(
        config: &Config,
        state: &Arc<state::State>,
        holders: &Arc<Holders>,
        holder: &'static [&'static str],
        inheritance: Inheritance,
    ) -> Arc<Self> {
        let host = Host {
            state: Arc::clone(state),
            holders: Arc::clone(holders),
            holder,
            cleared: watch::Sender::new(inheritance.is_empty()),
            inheritance: Mutex::new(inheritance),
            stuck: Mutex::default(),
            fates: leftovers::Fates::default(),
            claims: claims::Claims::default(),
            gone: output::Gone::default(),
            parked: Mutex::new(state.parked()),
            parking: Mutex::default(),
            facts: Mutex::new(HostFacts {
                programs: config.programs.clone(),
                accelerator: config.accelerator,
            }),
            #[cfg(test)]
            trips: Mutex::default(),
        };
        let engines = Arc::new_cyclic(|own| Self {
            host: Arc::new(host),
            list: Mutex::default(),
            changed: Arc::new(watch::Sender::new(0)),
            node_drains: Arc::new(AtomicBool::new(false)),
            running: Mutex::default(),
            own: own.clone(),
        });
        // Before anything of an earlier agent is judged: these are wanted.
        engines.remember();
        engines.apply(config);
        engines
    }

    /// How this program becomes a holder or a leash: the arguments of itself.
    pub(crate) fn holder(&self) -> &'static [&'static str] {
        self.host.holder
    }

    /// An engine takes no new streams, or takes them again.
    pub(crate) fn close(&self, engine: &Engine, closed: bool) {
        engine.close(closed);
        self.changed.send_modify(|version| *version += 1);
    }

    /// All that there shall be, in the order of the file.
    pub(crate) fn list(&self) -> Vec<Arc<Engine>> {
        self.lock().engines.clone()
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<Arc<Engine>> {
        self.lock().engines.iter().find(|engine| engine.name == name).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, changing::List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes of the engines that have one.
    pub(crate) fn leaders(&self) -> Vec<Leader> {
        let list = self.lock();
        list.all().filter_map(|engine| engine.lock().leader.clone()).collect()
    }

    /// Changes whenever an engine's state or cause does.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// No new streams from now on; engines and running streams go on.
    pub(crate) fn drain(&self) {
        self.node_drains.store(true, Ordering::Release);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Asks all to end: SIGTERM now, SIGKILL after `grace`. Again with a shorter grace: that one counts.
    pub(crate) fn stop(&self, grace: Duration) {
        let mut list = self.lock();
        list.stopping = true;
        for engine in list.all() {
            engine.stop(Duration::ZERO, grace);
        }
    }

    /// Waits until nothing of any engine is left; [`Engines::stop`] comes first.
    pub(crate) async fn stopped(&self) {
        let mut running = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        while running.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What drives an engine breaks off: the engine has failed and says why, nothing is sent to it, and the others go on.
    #[tokio::test]
    async fn an_engine_whose_driver_breaks_off_has_failed() {
        let dir = tempfile::tempdir().unwrap();
        let text = "[node]\nstate_dir = \"/s\"\nallow_sim = true\n\
            [[engine]]\nname = \"a\"\nkind = \"sim\"\nmodel = \"m\"\n\
            [[engine]]\nname = \"b\"\nkind = \"sim\"\nmodel = \"m\"\n";
        let config = Config::parse(text, std::path::Path::new("/etc/umbel/node.toml")).unwrap();
        let state = Arc::new(state::State::open(&dir.path().join("state")).unwrap());
        let engines =
            Engines::start(&config, &state, &Arc::new(Holders::new(false)), &[], Inheritance::default());
        let mut changes = engines.changes();
        let becomes = async |changes: &mut watch::Receiver<u64>, name: &str, state: State| {
            let is = || engines.by_name(name).is_some_and(|engine| engine.view().state == state);
            let waiting = async {
                while !is() {
                    changes.changed().await.unwrap();
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
            waited.unwrap_or_else(|_| panic!("waited in vain for {name} to be {state:?}"));
        };
        for name in ["a", "b"] {
            becomes(&mut changes, name, State::Ready).await;
        }
        assert_eq!(engines.standing("nobody"), Standing::Working, "a trial of what does not come has an end");
        *engines.host.trips.lock().unwrap() = Some("a".into());
        let mut changed = config.clone();
        changed.engines[0].capacity += 1;
        engines.apply(&changed);
        becomes(&mut changes, "a", State::Failed).await;
        let engine = engines.by_name("a").unwrap();
        assert!(
            engine.view().cause.starts_with("INTERNAL: what drives it broke off"),
            "{}",
            engine.view().cause
        );
        assert!(engine.visit().is_err());
        assert!(engines.by_name("b").unwrap().visit().is_ok());
    }
}
