//! Which engines there shall be: from the file, from settings, and again whenever one of the two changes.
//!
//! Owns comparing what shall be with what is; leaves starting and ending one to `driver`. Invariants: an engine that is
//! wanted and unchanged is not touched; one that is wanted no more finishes its streams before it ends; a name is given
//! anew only when nothing of its last engine is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, watch},
    task::spawn_blocking,
};
use umbel_contracts::proto::node::{DeclaredEngine, EngineRuntime};
use umbel_wire::{clock::Wall, contained};

use super::{COMMANDS, Command, Engine, Engines, Host, Shared, View, driver};
use crate::{
    config::{Config, EngineConfig},
    core::{
        deployments::{Grounds, Kept},
        supervisor::{GRACE, State},
    },
    engines::adapter::HostFacts,
};

/// The engines as they shall be and as they are.
#[derive(Debug, Default)]
pub(super) struct List {
    /// Of the node's file and of settings.
    own: Vec<EngineConfig>,
    /// Of deployments.
    deployed: Vec<Kept>,
    /// Of deployments whose list was lost: as they were started.
    pub(super) salvaged: Vec<EngineConfig>,
    /// Why there are such.
    pub(super) lost: Option<String>,
    /// What engines of deployments need of the node's file.
    grounds: Grounds,
    /// For the streams of an engine that is wanted no more.
    drain: Duration,
    /// Both.
    wanted: Vec<EngineConfig>,
    /// In the order of `wanted`.
    pub(super) engines: Vec<Arc<Engine>>,
    /// Wanted no more, and not gone yet.
    leaving: Vec<Arc<Engine>>,
    /// Tried out, and told to nobody.
    hidden: Vec<Arc<Engine>>,
    /// The agent stops: nothing is started any more.
    pub(super) stopping: bool,
}

/// How an engine does that something was changed about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It runs as it shall be.
    Good,
    /// It runs as it was, and takes the change with its next start.
    Waits,
    /// Something of its last engine is left, whose name it has: it has not begun.
    Leaving,
    /// It is on its way.
    Working,
    /// It does not run, and why.
    Failed(String),
}

/// What a node declares, without the states: by this it is judged whether to declare anew.
pub(crate) type Declaration = (Vec<DeclaredEngine>, BTreeMap<String, String>, Vec<EngineRuntime>);

impl List {
    /// Everything that may have a process.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Engine>> {
        self.engines.iter().chain(&self.leaving).chain(&self.hidden)
    }
}

impl Host {
    /// Breaks off where a test wants it.
    #[cfg(test)]
    #[allow(clippy::panic, reason = "that is what it is for")]
    pub(super) fn trip(&self, engine: &str) {
        let asked = self.trips.lock().unwrap_or_else(PoisonError::into_inner).take_if(|name| name == engine);
        if asked.is_some() {
            panic!("a test trips what drives {engine}");
        }
    }

    /// Nothing, outside of tests.
    #[cfg(not(test))]
    pub(super) fn trip(&self, _engine: &str) {}

    /// What adapters know of the host, as the node's file has it now.
    pub(super) fn facts(&self) -> HostFacts {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Engine {
    /// What it shall be.
    pub(crate) fn config(&self) -> Arc<EngineConfig> {
        Arc::clone(&self.lock().config)
    }

    /// What it is: what its process was started with stays until the next start.
    pub(crate) fn in_force(&self) -> EngineConfig {
        let shared = self.lock();
        let mut config = EngineConfig::clone(&shared.config);
        if let Some(started) = &shared.started {
            config.source = started.source.clone();
            config.model.clone_from(&started.model);
            if started.fixed_aliases() != config.fixed_aliases() {
                config.aliases.clone_from(&started.aliases);
            }
            // It takes as many at once as it was started for.
            config.capacity = config.capacity.min(started.slots());
            config.long_context_capacity = config.long_context_capacity.min(config.capacity);
        }
        config
    }

    /// It takes what was changed about it with its next start.
    pub(crate) fn waits_for_restart(&self) -> bool {
        let shared = self.lock();
        shared.started.as_ref().is_some_and(|started| {
            started.digest() != shared.config.digest() || started.slots() < shared.config.slots()
        })
    }

    fn standing(&self) -> Standing {
        if self.waits_for_restart() {
            return Standing::Waits;
        }
        let view = self.view();
        match view.state {
            State::Ready | State::Draining => Standing::Good,
            State::Failed | State::Stopped => Standing::Failed(view.cause),
            State::Validating | State::Starting | State::Loading | State::Restarting | State::Stopping => {
                Standing::Working
            }
        }
    }
}

impl Engines {
    /// Engines about which something would be new under this configuration, but for those that have failed before: these
    /// can only get better.
    pub(crate) fn touched(&self, config: &Config) -> Vec<String> {
        let list = self.lock();
        let is_same = |wanted: &EngineConfig| {
            list.engines.iter().filter(|engine| engine.name == wanted.name).any(|engine| {
                let config = engine.config();
                *config == *wanted || engine.view().state == State::Failed
            })
        };
        let touched = config.engines.iter().filter(|wanted| !is_same(wanted));
        touched.map(|wanted| wanted.name.clone()).collect()
    }

    /// Makes the engines what this configuration says, without touching what stays.
    pub(crate) fn apply(&self, config: &Config) {
        self.host.facts.lock().unwrap_or_else(PoisonError::into_inner).programs.clone_from(&config.programs);
        let mut list = self.lock();
        list.own.clone_from(&config.engines);
        list.grounds = Grounds::of(config);
        list.drain = config.drain;
        self.make(&mut list);
        drop(list);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Makes the engines of deployments these, without touching what stays. One that goes gets `drain` for its streams if
    /// it is the named one, else what the node's file says.
    pub(crate) fn deploy(&self, deployed: Vec<Kept>, goes: Option<(&str, Duration)>) {
        let mut list = self.lock();
        list.salvaged.retain(|one| !deployed.iter().any(|kept| kept.engine == one.name));
        list.deployed = deployed;
        let named = goes.and_then(|(name, drain)| {
            let engine = list.engines.iter().find(|engine| engine.name == name)?;
            Some((Arc::clone(engine), drain))
        });
        if let Some((engine, drain)) = named {
            engine.stop(drain, GRACE);
        }
        self.make(&mut list);
        drop(list);
        self.changed.send_modify(|version| *version += 1);
    }

    /// What adapters know of the host.
    pub(crate) fn facts(&self) -> HostFacts {
        self.host.facts()
    }

    /// What engines of deployments need of the node's file, as it is now.
    pub(crate) fn grounds(&self) -> Grounds {
        self.lock().grounds.clone()
    }

    /// GPUs that engines are given, by engine: of those that are leaving, too.
    pub(crate) fn given_gpus(&self) -> Vec<(String, Vec<String>)> {
        let list = self.lock();
        let given = list.all().filter_map(|engine| {
            let gpus = engine.in_force().source.process()?.gpus.clone();
            Some((engine.name.clone(), gpus))
        });
        given.collect()
    }

    /// Names, and bytes of the names of models, of all engines that are wanted.
    pub(crate) fn names(&self) -> Vec<(String, usize)> {
        let bytes = |engine: &EngineConfig| {
            engine.name.len() + engine.model.len() + engine.aliases.iter().map(String::len).sum::<usize>()
        };
        self.lock().wanted.iter().map(|engine| (engine.name.clone(), bytes(engine))).collect()
    }

    /// Whether anything is left of an engine, wanted or not.
    pub(crate) fn is_there(&self, name: &str) -> bool {
        self.lock().all().any(|engine| engine.name == name)
    }

    /// What still holds what an engine had that has ended and is wanted no more.
    pub(crate) fn held_after_end(&self, name: &str) -> Option<String> {
        let list = self.lock();
        let mut ended = list.leaving.iter().chain(&list.hidden).filter(|engine| engine.name == name);
        ended.find_map(|engine| engine.lock().held.clone())
    }

    /// Starts an engine that is told to nobody. [`Engines::give_up`] ends it.
    pub(crate) fn try_out(&self, config: EngineConfig) -> Option<Arc<Engine>> {
        let mut list = self.lock();
        if list.stopping || list.all().any(|engine| engine.name == config.name) {
            return None;
        }
        let engine = self.spawn(config);
        list.hidden.push(Arc::clone(&engine));
        Some(engine)
    }

    /// Ends an engine that was tried out.
    pub(crate) fn give_up(&self, engine: &Engine) {
        engine.stop(Duration::ZERO, GRACE);
    }

    /// Makes the engines what they shall be.
    fn make(&self, list: &mut List) {
        let of_deployments = list.deployed.iter().map(|kept| kept.config(&list.grounds));
        list.wanted = list.own.iter().cloned().chain(of_deployments).chain(list.salvaged.clone()).collect();
        let mut kept = Vec::new();
        for engine in std::mem::take(&mut list.engines) {
            let wanted = list.wanted.iter().find(|wanted| {
                wanted.name == engine.name && wanted.source.kind() == engine.config().source.kind()
            });
            match wanted {
                Some(wanted) => {
                    engine.become_like(wanted);
                    kept.push(engine);
                }
                None => {
                    engine.stop(list.drain, GRACE);
                    list.leaving.push(engine);
                }
            }
        }
        list.engines = kept;
        self.settle(list);
    }

    /// Starts what is wanted and not there, unless something of its last engine is left.
    fn settle(&self, list: &mut List) {
        if list.stopping {
            return;
        }
        let missing: Vec<_> = list
            .wanted
            .iter()
            .filter(|wanted| !list.all().any(|engine| engine.name == wanted.name))
            .cloned()
            .collect();
        for config in missing {
            let engine = self.spawn(config);
            list.engines.push(engine);
        }
        let place = |engine: &Arc<Engine>| list.wanted.iter().position(|wanted| wanted.name == engine.name);
        let mut engines = std::mem::take(&mut list.engines);
        engines.sort_by_key(place);
        list.engines = engines;
    }

    fn spawn(&self, config: EngineConfig) -> Arc<Engine> {
        let inherited = self.host.inherit(&config);
        let (commands, asked) = mpsc::channel(COMMANDS);
        let (stop, stops) = watch::channel(None);
        let view = View {
            state: State::Validating,
            cause: String::new(),
            code: None,
            exit: None,
            looks_again: false,
            tail: String::new(),
            since: Wall::now(),
            restarts: 0,
        };
        let engine = Arc::new(Engine {
            name: config.name.clone(),
            shared: Mutex::new(Shared {
                config: Arc::new(config),
                started: None,
                view,
                route: None,
                way: None,
                leader: None,
                process_since_unix_ms: 0,
                run: None,
                last: super::output::Last::default(),
                held: None,
            }),
            in_flight: AtomicU32::new(0),
            closed: AtomicBool::new(false),
            node_drains: Arc::clone(&self.node_drains),
            ended: Notify::new(),
            commands,
            stop,
        });
        let (host, changed) = (Arc::clone(&self.host), Arc::clone(&self.changed));
        if self.host.is_parked(&engine.name) {
            // The first word that its driver hears; what runs of it ends.
            let _ = engine.commands.try_send(Command::Park { drain: Duration::ZERO });
        }
        let driven = driver::drive(Arc::clone(&engine), host, (asked, stops), changed, inherited);
        let (own, ended) = (self.own.clone(), Arc::clone(&engine));
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended need no place.
        while running.try_join_next().is_some() {}
        running.spawn(async move {
            if contained(driven).await.is_err() {
                ended.broke_off();
            }
            if let Some(engines) = own.upgrade() {
                engines.gone(&ended);
            }
        });
        engine
    }

    /// Nothing of an engine is left: its name may be wanted again.
    fn gone(&self, engine: &Arc<Engine>) {
        let last = engine.lock().last.clone();
        self.host.gone.keep(&engine.name, last);
        let mut list = self.lock();
        if list.leaving.iter().any(|one| Arc::ptr_eq(one, engine)) && !list.stopping {
            self.host.forget_parked(&engine.name);
        }
        list.leaving.retain(|one| !Arc::ptr_eq(one, engine));
        list.hidden.retain(|one| !Arc::ptr_eq(one, engine));
        self.settle(&mut list);
        let there: BTreeSet<String> = list.all().map(|engine| engine.name.clone()).collect();
        drop(list);
        self.changed.send_modify(|version| *version += 1);
        let folder = self.host.state.engines();
        drop(spawn_blocking(move || {
            crate::shell::output::remove_outworn(&folder, |name| there.contains(name))
        }));
    }

    /// How an engine does. One that is not there and waits for no name is one that does not come: its trial has an end.
    pub(crate) fn standing(&self, name: &str) -> Standing {
        if let Some(engine) = self.by_name(name) {
            return engine.standing();
        }
        if self.lock().leaving.iter().any(|engine| engine.name == name) {
            Standing::Leaving
        } else {
            Standing::Working
        }
    }

    /// The engines that take a change with their next start.
    pub(crate) fn waiting_for_restart(&self) -> Vec<String> {
        let waits = self.list().into_iter().filter(|engine| engine.waits_for_restart());
        waits.map(|engine| engine.name.clone()).collect()
    }

    /// What is declared of all of them, without their states.
    pub(crate) fn declared(&self) -> Vec<DeclaredEngine> {
        let bare = |engine: &Arc<Engine>| DeclaredEngine { status: None, ..engine.declared() };
        self.list().iter().map(bare).collect()
    }
}

impl Engine {
    fn become_like(&self, wanted: &EngineConfig) {
        {
            let mut shared = self.lock();
            if *shared.config == *wanted {
                return;
            }
            shared.config = Arc::new(wanted.clone());
        }
        tracing::info!(engine = %self.name, "what this engine shall be has changed");
        // What is in the queue reads the newest configuration.
        if self.commands.capacity() == COMMANDS {
            let _ = self.commands.try_send(Command::Changed);
        }
    }
}
