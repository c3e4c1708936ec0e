//! Engines of deployments on a simulated node: made of the list on its disk, driven by their supervisors, told to the edge.
//!
//! Owns what `shell/engines` does around the supervisor, without waiting: validate, start, probe, end, adopt. Leaves every
//! decision to the cores, processes to [`super::machine`]. Invariant: the list stands on the disk before its engines are made.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use umbel_contracts::proto::node::{DeclaredEngine, EngineState, EngineStatus};

use super::machine::News;
use super::{Machine, Node};
use crate::core::deployments::{Kept, OfName};
use crate::core::supervisor::{GRACE, Input, Output, State, Supervisor, Traits};

/// From start to ready.
const START: Duration = Duration::from_secs(60);
const TRAITS: Traits = Traits { supervised: true, start_timeout: START };

/// One engine, as the agent has it.
pub(super) struct Engine {
    pub(super) kept: Kept,
    pub(super) supervisor: Supervisor,
    nonce: Option<u64>,
    pub(super) closed: bool,
    /// It is wanted no more.
    pub(super) leaving: bool,
    /// It is to be started once nothing of what nobody wants is left.
    waits: bool,
}

#[derive(Default)]
pub(super) struct Engines {
    pub(super) list: Vec<Engine>,
    /// Something is to be told.
    pub(super) news: bool,
    /// What was declared last.
    pub(super) declared: Vec<DeclaredEngine>,
    /// Engines that were told to end: name, whether one was ready, and whether the list on the disk wanted it.
    ended: Vec<(String, bool, bool)>,
}

impl Node {
    /// Its host's processes.
    #[must_use]
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// The same, to look at.
    #[must_use]
    pub fn runs(&self) -> &Machine {
        &self.machine
    }

    /// Engines that were told to end since the last time: name, whether one was ready, and whether the list on the disk
    /// wanted it all the same.
    pub fn engines_ended(&mut self) -> Vec<(String, bool, bool)> {
        std::mem::take(&mut self.engines.ended)
    }

    /// Engines of deployments that stand in the list on its disk.
    #[must_use]
    pub fn engines_kept(&self) -> Vec<String> {
        self.disk.deployments.iter().map(|one| one.engine.clone()).collect()
    }

    /// The process starts: what runs is gone on with, what nobody wants is ended, what is missing is started.
    pub(super) fn start_engines(&mut self, now: Instant) {
        self.machine.taken_up();
        let all: Vec<(u64, String)> = self.machine.all().map(|one| (one.nonce, one.name.clone())).collect();
        let ends = self.setup.mutation == Some("a new agent ends what it finds");
        for (nonce, name) in all {
            if ends || !self.disk.deployments.iter().any(|kept| kept.engine == name) {
                self.end_process(nonce, &name, GRACE, now);
            }
        }
        self.settle_engines(now);
    }

    /// Starts what is wanted and not there, unless something of its last engine is left.
    pub(super) fn settle_engines(&mut self, now: Instant) {
        for kept in self.disk.deployments.clone() {
            if !self.engines.list.iter().any(|one| one.kept.engine == kept.engine) {
                self.begin_engine(kept, now);
            }
        }
    }

    fn begin_engine(&mut self, kept: Kept, now: Instant) {
        let found = self.machine.by_name(&kept.engine).map(|one| one.nonce);
        let again = self.setup.mutation == Some("an adopted engine is started again");
        let found = found.filter(|_| !again);
        let (supervisor, outputs) = match found {
            Some(_) => Supervisor::adopting(now, TRAITS, 0),
            None => Supervisor::new(TRAITS),
        };
        self.engines.list.push(Engine {
            kept,
            supervisor,
            nonce: found,
            closed: false,
            leaving: false,
            waits: false,
        });
        self.do_for_engine(self.engines.list.len() - 1, outputs, now);
    }

    fn end_process(&mut self, nonce: u64, name: &str, grace: Duration, now: Instant) {
        let ready = self.machine.is_ready(nonce, now);
        let kept = self.disk.deployments.iter().any(|kept| kept.engine == name);
        self.engines.ended.push((name.to_owned(), ready, kept));
        self.machine.end(nonce, grace, now);
    }

    fn do_for_engine(&mut self, at: usize, outputs: Vec<Output>, now: Instant) {
        let mut todo: VecDeque<Output> = outputs.into();
        while let Some(output) = todo.pop_front() {
            let Some(engine) = self.engines.list.get(at) else { return };
            let (name, nonce, grace) = (engine.kept.engine.clone(), engine.nonce, engine.supervisor.grace());
            let input = match output {
                Output::Report => {
                    self.engines.news = true;
                    continue;
                }
                Output::Validate => Input::Validated(self.validate(&engine.kept)),
                Output::Start if self.strangers() => {
                    if let Some(engine) = self.engines.list.get_mut(at) {
                        engine.waits = true;
                    }
                    continue;
                }
                Output::Start => {
                    let mut gpus = engine.kept.gpus.clone();
                    if self.setup.mutation == Some("an engine takes the first GPU") {
                        gpus = self.setup.gpus.iter().take(1).cloned().collect();
                    }
                    let nonce = self.machine.start(&name, &gpus, now);
                    if let Some(engine) = self.engines.list.get_mut(at) {
                        engine.nonce = Some(nonce);
                    }
                    Input::Started(Ok(()))
                }
                Output::Probe => {
                    let ready = nonce.is_some_and(|nonce| self.machine.is_ready(nonce, now));
                    Input::Probed(ready.then_some(()).ok_or_else(|| "it loads".to_owned()))
                }
                Output::Terminate | Output::Kill => {
                    let grace = if output == Output::Kill { Duration::ZERO } else { grace };
                    if let Some(nonce) = nonce {
                        self.end_process(nonce, &name, grace, now);
                    }
                    continue;
                }
            };
            if let Some(engine) = self.engines.list.get_mut(at) {
                todo.extend(engine.supervisor.handle(now, input));
            }
        }
    }

    /// Whether something runs that no engine here has.
    fn strangers(&self) -> bool {
        let known = |nonce: u64| self.engines.list.iter().any(|one| one.nonce == Some(nonce));
        let doubles = self.setup.mutation == Some("an adopted engine is started again");
        !doubles && self.machine.all().any(|one| !known(one.nonce))
    }

    /// Whether an engine can run here, as far as files and GPUs say.
    pub(super) fn validate(&self, kept: &Kept) -> Result<(), String> {
        if let Some(files) = &kept.artifact
            && !self.disk.artifacts.contains_key(&files.digest)
        {
            return Err("ARTIFACT_MISSING: its files are not here".to_owned());
        }
        match kept.gpus.iter().find(|uuid| self.reports.missing.contains(*uuid)) {
            Some(uuid) => Err(format!("GPU_MISSING: this node has no GPU {uuid}")),
            None => Ok(()),
        }
    }

    /// What is here of an engine's name.
    pub(super) fn of_name(&self, name: &str) -> OfName {
        match self.engines.list.iter().find(|one| one.kept.engine == name) {
            Some(engine) if engine.leaving => OfName::Leaving,
            Some(_) => OfName::Wanted,
            None => OfName::Nothing,
        }
    }

    /// What an engine shall be has changed.
    pub(super) fn become_like(&mut self, wanted: &Kept, now: Instant) {
        let at = self.engines.list.iter().position(|one| one.kept.engine == wanted.engine && !one.leaving);
        let Some(engine) = at.and_then(|at| self.engines.list.get_mut(at)) else { return };
        engine.kept = wanted.clone();
        let outputs = engine.supervisor.handle(now, Input::Changed(TRAITS));
        self.engines.news = true;
        self.do_for_engine(at.unwrap_or_default(), outputs, now);
    }

    /// It is wanted no more: its streams get `drain`.
    pub(super) fn let_engine_go(&mut self, name: &str, drain: Duration, now: Instant) {
        let at = self.engines.list.iter().position(|one| one.kept.engine == name && !one.leaving);
        let Some(engine) = at.and_then(|at| self.engines.list.get_mut(at)) else { return };
        engine.leaving = true;
        let outputs = engine.supervisor.handle(now, Input::Stop { drain, grace: GRACE });
        self.engines.news = true;
        self.do_for_engine(at.unwrap_or_default(), outputs, now);
        self.drop_gone(now);
    }

    pub(super) fn engines_deadline(&self) -> Option<Instant> {
        let own = self.engines.list.iter().filter_map(|one| one.supervisor.next_deadline());
        own.chain(self.machine.next_deadline()).min()
    }

    /// What happened to processes, and what is due.
    pub(super) fn drive_engines(&mut self, now: Instant) {
        for news in self.machine.advance(now) {
            let (nonce, input) = match news {
                News::Exited(nonce, exit) => (nonce, Input::Exited(exit)),
                News::Gone(nonce) => (nonce, Input::Gone { tail: String::new() }),
            };
            let at = self.engines.list.iter().position(|one| one.nonce == Some(nonce));
            let Some(engine) = at.and_then(|at| self.engines.list.get_mut(at)) else { continue };
            if matches!(input, Input::Gone { .. }) {
                engine.nonce = None;
            }
            let name = engine.kept.engine.clone();
            let outputs = engine.supervisor.handle(now, input);
            self.do_for_engine(at.unwrap_or_default(), outputs, now);
            self.streams.engine_exited(&name, now);
        }
        for at in 0..self.engines.list.len() {
            let Some(engine) = self.engines.list.get(at) else { continue };
            let idle = !self.streams.is_on(&engine.kept.engine);
            let due = engine.supervisor.next_deadline().is_some_and(|due| due <= now);
            let drained = engine.supervisor.state() == State::Draining && idle;
            let starts = engine.waits && !self.strangers();
            let Some(engine) = self.engines.list.get_mut(at) else { continue };
            let mut outputs = Vec::new();
            if std::mem::take(&mut engine.waits) {
                if starts {
                    outputs.push(Output::Start);
                } else {
                    engine.waits = true;
                }
            }
            if drained {
                outputs.extend(engine.supervisor.handle(now, Input::Drained));
            }
            if due {
                outputs.extend(engine.supervisor.handle(now, Input::Tick));
            }
            self.do_for_engine(at, outputs, now);
        }
        self.drop_gone(now);
    }

    fn drop_gone(&mut self, now: Instant) {
        let before = self.engines.list.len();
        self.engines.list.retain(|one| !one.supervisor.is_over() || one.nonce.is_some());
        if self.engines.list.len() < before {
            self.engines.news = true;
            self.settle_engines(now);
        }
    }

    /// Its engines of deployments, with their states.
    pub(super) fn deployed(&self) -> Vec<DeclaredEngine> {
        let wanted = self.engines.list.iter().filter(|one| !one.leaving);
        wanted.map(Engine::declared).collect()
    }
}

impl Engine {
    pub(super) fn state(&self) -> State {
        match self.supervisor.state() {
            State::Ready if self.closed => State::Draining,
            state => state,
        }
    }

    pub(super) fn status(&self) -> EngineStatus {
        EngineStatus {
            name: self.kept.engine.clone(),
            state: EngineState::from(self.state()).into(),
            cause: self.supervisor.cause().to_owned(),
            ..EngineStatus::default()
        }
    }

    fn declared(&self) -> DeclaredEngine {
        let kept = &self.kept;
        DeclaredEngine {
            name: kept.engine.clone(),
            kind: kept.profile.kind().as_str().to_owned(),
            model: kept.model.clone(),
            aliases: kept.aliases.clone(),
            category: kept.category.clone(),
            capacity: kept.capacity,
            status: Some(self.status()),
            deployment: kept.origin.deployment.clone(),
            replica: kept.origin.replica,
            shard_index: kept.origin.shard_index,
            shard_count: kept.origin.shard_count,
            gpu_uuids: kept.gpus.clone(),
            artifact_digest: kept.origin.artifact_digest.clone(),
            profile_digest: kept.origin.profile_digest.clone(),
            ..DeclaredEngine::default()
        }
    }
}
