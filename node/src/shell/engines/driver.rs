//! Carries out what one engine's supervisor decides, and tells it what came of it.
//!
//! Owns the engine's run, probes and record; leaves every decision to `core/supervisor`, and the process to its `holder`.
//! Invariant: the record stands on the disk before the process exists, and goes only when nothing of it is left.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, sleep, sleep_until},
};
use umbel_contracts::deployment::EngineKind;
use umbel_wire::{clock::Wall, contained, secret};

use super::{
    Command, Engine, Host, HttpRoute, Route, View,
    leftovers::{self, Inherited, Left},
};
use crate::{
    config::{EngineConfig, EngineSource},
    core::{
        process_tree::{Born, Family, Leader, StartTime},
        supervisor::{Exit, Input, Output, State, Supervisor, Traits},
    },
    engines::{adapter, cli::Cli, ready, sim::Sim},
    shell::{
        engine_http::{Place, Pool},
        holder::{self, Held, Instruction, Lost},
        process::{self, Launch},
        state::{EngineEnd, EngineRecord},
    },
};

/// Results of probes and checks on their way back: one of each can be out.
const RESULTS: usize = 4;
/// Processes of one run that are remembered.
const SEEN: usize = 1024;
/// A holder ends what it is told to kill within milliseconds. After so many demands it is asked whether it lives.
const KILLS: u32 = 10;

/// One start of an engine's process.
struct Run {
    held: Held,
    record: EngineRecord,
    /// Not here while a look at `/proc` is under way.
    family: Option<Family>,
    /// All that were ever seen to belong to it.
    seen: BTreeMap<i32, StartTime>,
    exit: Option<Exit>,
    gone: watch::Sender<bool>,
    /// Its holder is lost: it is found and ended by its nonce.
    lost: bool,
    /// Demands to kill it so far.
    kills: u32,
}

struct Driver {
    engine: Arc<Engine>,
    host: Arc<Host>,
    changed: Arc<watch::Sender<u64>>,
    supervisor: Supervisor,
    run: Option<Run>,
    /// The processes of the run before: the driver may hold their memory for a while.
    ended: BTreeMap<i32, StartTime>,
    route: Option<Arc<Route>>,
    /// Counts starts: results of an earlier one are late.
    start: u64,
    results: mpsc::Sender<(u64, Input)>,
}

/// Runs one engine until it was asked to stop and nothing of it is left. `inherited`: what an earlier agent left of it,
/// and what it was started as.
pub(super) async fn drive(
    engine: Arc<Engine>,
    host: Arc<Host>,
    mut commands: mpsc::Receiver<Command>,
    changed: Arc<watch::Sender<u64>>,
    inherited: Option<(Inherited, EngineConfig)>,
) {
    let traits = traits(&engine.config());
    let (results, mut inputs) = mpsc::channel(RESULTS);
    let now = std::time::Instant::now();
    let (supervisor, outputs) = match inherited {
        Some(_) => Supervisor::adopting(now, traits),
        None => Supervisor::new(traits),
    };
    let mut driver = Driver {
        engine,
        host,
        changed,
        supervisor,
        run: None,
        ended: BTreeMap::new(),
        route: None,
        start: 0,
        results,
    };
    let outputs = match inherited {
        Some((inherited, started)) => driver.go_on(now, inherited, started, outputs).await,
        None => outputs,
    };
    driver.carry_out(outputs).await;
    while !driver.supervisor.is_over() {
        let deadline = driver.supervisor.next_deadline().map(Instant::from_std);
        let draining = driver.supervisor.state() == State::Draining;
        let input = tokio::select! {
            Some((start, input)) = inputs.recv() => {
                if start != driver.start {
                    continue;
                }
                match input {
                    Input::Gone { tail } => driver.over(tail).await,
                    input => input,
                }
            }
            Some(command) = commands.recv() => match command {
                Command::Stop { drain, grace } => Input::Stop { drain, grace },
                Command::Changed => driver.reconfigure(),
            },
            exit = exited(driver.run.as_ref()) => match exit {
                Ok(exit) => driver.note_exit(exit),
                Err(Lost) => driver.lose(),
            },
            gone = gone(driver.run.as_ref()) => match gone {
                Ok(tail) => driver.over(tail).await,
                Err(Lost) => driver.lose(),
            },
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => Input::Tick,
            () = driver.engine.idle(), if draining => Input::Drained,
        };
        driver.host.trip(&driver.engine.name);
        let outputs = driver.supervisor.handle(std::time::Instant::now(), input);
        driver.carry_out(outputs).await;
    }
}

fn traits(config: &EngineConfig) -> Traits {
    match &config.source {
        EngineSource::Process(process) => Traits { supervised: true, start_timeout: process.start_timeout() },
        _ => Traits { supervised: false, start_timeout: Duration::ZERO },
    }
}

/// The way to an engine that has no process here.
fn direct(config: &EngineConfig) -> Option<Route> {
    match &config.source {
        EngineSource::Sim { first_token_delay, token_delay, tokens } => Some(Route::Sim(Sim {
            model: config.model.clone(),
            first_token_delay: *first_token_delay,
            token_delay: *token_delay,
            tokens: *tokens,
        })),
        EngineSource::External { authority, base_path } => Some(Route::Http(HttpRoute {
            pool: Pool::new(Place::Named(authority.clone())),
            base: base_path.clone(),
            key: None,
            gone: None,
        })),
        EngineSource::Cli { program, timeout } => {
            Some(Route::Cli(Cli { program: program.clone(), timeout: *timeout, model: config.model.clone() }))
        }
        EngineSource::Process(_) | EngineSource::Missing { .. } => None,
    }
}

/// The end of the engine's own process.
async fn exited(run: Option<&Run>) -> Result<Exit, Lost> {
    match run {
        Some(run) if run.exit.is_none() => run.held.exited().await,
        _ => std::future::pending().await,
    }
}

/// The end of everything of it, as its holder sees it.
async fn gone(run: Option<&Run>) -> Result<String, Lost> {
    match run {
        Some(run) if run.exit.is_some() && !run.lost => run.held.gone().await,
        _ => std::future::pending().await,
    }
}

impl Driver {
    async fn carry_out(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Validate => self.validate(),
                Output::Start => {
                    let started = self.start_process().await;
                    let outputs = self.supervisor.handle(std::time::Instant::now(), Input::Started(started));
                    // `Started` asks for a probe or for the end, never for another start.
                    Box::pin(self.carry_out(outputs)).await;
                }
                Output::Probe => self.probe().await,
                Output::Terminate => self.end(self.supervisor.grace()).await,
                Output::Kill => self.end(Duration::ZERO).await,
                Output::Report => self.report(),
            }
        }
    }

    fn report(&self) {
        let supervisor = &self.supervisor;
        let (name, state, cause) = (&self.engine.name, supervisor.state(), supervisor.cause());
        let mut shared = self.engine.lock();
        if shared.view.state != state {
            tracing::info!(engine = %name, %state, cause, "engine state");
            shared.view.since = Wall::now();
        }
        shared.view = View {
            state,
            cause: cause.to_owned(),
            tail: supervisor.tail().to_owned(),
            since: shared.view.since,
            restarts: supervisor.restarts(),
        };
        shared.way.clone_from(&self.route);
        shared.route = match state {
            State::Ready | State::Draining => self.route.clone(),
            _ => None,
        };
        drop(shared);
        self.changed.send_modify(|version| *version += 1);
    }

    /// `broken` is the answer of one that breaks off.
    fn answer_later(&self, broken: Input, work: impl Future<Output = Input> + Send + 'static) {
        let (start, results) = (self.start, self.results.clone());
        tokio::spawn(async move {
            let input = contained(work).await.unwrap_or(broken);
            // Nobody listens once the engine is over.
            let _ = results.send((start, input)).await;
        });
    }

    /// What the engine shall be has changed: streams that run keep the way that they have; a process keeps running as
    /// it was started.
    fn reconfigure(&mut self) -> Input {
        let config = self.engine.config();
        if let Some(route) = direct(&config) {
            self.route = Some(Arc::new(route));
            self.report();
        }
        Input::Changed(traits(&config))
    }

    fn validate(&mut self) {
        self.start += 1;
        let config = self.engine.config();
        if let Some(route) = direct(&config) {
            self.route = Some(Arc::new(route));
            return self.answer_later(Input::Validated(Ok(())), async { Input::Validated(Ok(())) });
        }
        let (host, ended) = (Arc::clone(&self.host), self.ended.clone());
        let broken = Input::Validated(Err("the check of its profile failed".into()));
        self.answer_later(broken, async move {
            host.cleared().await;
            // A start into memory that is not free yet would fail, and count as a crash.
            if let Err(pid) = host.holders.released(&ended).await {
                return Input::Validated(Err(format!(
                    "GPU_MEMORY_HELD: gpu memory held by pid {pid}, which has ended; it is started when the driver lets go of it. If it does not, the GPU wants a reset"
                )));
            }
            // The files may lie on a network: not on the runtime's thread.
            let checked = spawn_blocking(move || {
                adapter::validate(&config, &host.facts()).map_err(|refusal| refusal.message)
            });
            Input::Validated(checked.await.unwrap_or_else(|_| Err("the check of its profile failed".into())))
        });
    }

    async fn start_process(&mut self) -> Result<(), String> {
        self.start += 1;
        let (config, host) = (self.engine.config(), Arc::clone(&self.host));
        let preparing = Arc::clone(&config);
        let prepared = spawn_blocking(move || prepare(&preparing, &host)).await;
        let instruction = prepared.unwrap_or_else(|_| Err("the start failed".into()))?;
        let mut record = instruction.record.clone();
        match holder::start(self.host.holder, instruction).await {
            Ok(held) => {
                (record.engine, record.holder) = (held.engine(), held.holder());
                tracing::info!(engine = %self.engine.name, pid = record.engine.pid.0, "engine started");
                self.run_is(held, record, config);
                Ok(())
            }
            Err(why) => {
                // A holder that was lost half way may have come as far as the engine.
                if leftovers::end_unheld(&record, None).await {
                    let host = Arc::clone(&self.host);
                    let _ = spawn_blocking(move || host.state.forget_engine(&record)).await;
                }
                Err(why)
            }
        }
    }

    fn run_is(&mut self, held: Held, record: EngineRecord, started: Arc<EngineConfig>) {
        let (gone, is_gone) = watch::channel(false);
        self.route = Some(Arc::new(Route::Http(HttpRoute {
            pool: Pool::new(Place::Local((Ipv4Addr::LOCALHOST, record.port).into())),
            base: String::new(),
            key: record.key.clone(),
            gone: Some(is_gone),
        })));
        let mut shared = self.engine.lock();
        shared.started = Some(started);
        shared.leader = Some(Leader {
            engine: self.engine.name.clone(),
            // Whatever the engine starts descends from its holder, also what has lost its parent.
            id: held.holder().pid,
            start: held.holder().start_time,
            nonce: record.nonce.clone(),
        });
        drop(shared);
        let family = Some(held.family());
        let seen = BTreeMap::from([(record.engine.pid.0, record.engine.start_time)]);
        self.run = Some(Run { held, record, family, seen, exit: None, gone, lost: false, kills: 0 });
    }

    /// Goes on with what an earlier agent left of this engine; what there is to do first.
    async fn go_on(
        &mut self,
        now: std::time::Instant,
        inherited: Inherited,
        started: EngineConfig,
        outputs: Vec<Output>,
    ) -> Vec<Output> {
        let Inherited { record, left } = inherited;
        let end = match left {
            Left::Held(held) => {
                self.start += 1;
                let (holder, engine) = (held.holder().pid.0, held.engine().pid.0);
                tracing::info!(engine = %record.name, pid = engine, holder, "an engine that runs already is adopted");
                self.run_is(held, record, Arc::new(started));
                return outputs;
            }
            Left::Over(end) => end,
            // It is not given to a driver.
            Left::Unheld => EngineEnd { exit: Exit::Unheld, at_unix_ms: 0, tail: String::new() },
        };
        tracing::warn!(engine = %record.name, exit = %end.exit, "an engine ended while no agent was there");
        self.ended = BTreeMap::from([(record.engine.pid.0, record.engine.start_time)]);
        let host = Arc::clone(&self.host);
        let _ = spawn_blocking(move || host.state.forget_engine(&record)).await;
        // It counts as the crash that it is; there is nothing to end any more.
        self.supervisor.handle(now, Input::Exited(end.exit));
        self.supervisor.handle(now, Input::Gone { tail: end.tail })
    }

    async fn probe(&mut self) {
        if let Some(Route::Http(http)) = self.route.as_deref() {
            http.pool.prune();
        }
        // What has left the group while the engine lives is still known as its own when the parents are gone.
        self.members().await;
        let Some(route) = self.route.clone() else { return };
        let model = self.engine.in_force().model;
        let was_ready = self.supervisor.state() == State::Ready;
        let broken = Input::Probed(Err("the probe broke off by a defect of the agent".into()));
        self.answer_later(broken, async move {
            Input::Probed(match route.as_ref() {
                Route::Sim(_) => Ok(()),
                // It is looked at, not started: each start is a request.
                Route::Cli(cli) => {
                    adapter::is_program(&cli.program, EngineKind::Cli).map_err(|refusal| refusal.message)
                }
                Route::Http(http) => {
                    ready::probe(&http.pool, &http.base, &model, http.key.as_deref(), was_ready).await
                }
            })
        });
    }

    fn note_exit(&mut self, exit: Exit) -> Input {
        if let Some(run) = &mut self.run {
            run.exit = Some(exit);
            // Streams on it learn at once that the process is gone.
            run.gone.send_replace(true);
        }
        Input::Exited(exit)
    }

    /// Asks the holder to end it: SIGTERM now, SIGKILL after the grace.
    async fn end(&mut self, grace: Duration) {
        self.members().await;
        let Some(run) = &mut self.run else { return };
        run.held.end(grace);
        if grace.is_zero() {
            run.kills += 1;
        }
        if run.kills.is_multiple_of(KILLS) && run.kills > 0 && !run.lost && !run.held.answers().await {
            tracing::error!(engine = %run.record.name, "the engine's holder does not answer: it is ended");
            run.held.end_holder();
        }
    }

    /// The holder is lost: without it the engine's output is not read, so the engine does not live on.
    fn lose(&mut self) -> Input {
        let Some(run) = &mut self.run else { return Input::Exited(Exit::Unheld) };
        run.lost = true;
        tracing::error!(engine = %run.record.name, "the engine's holder was lost: what is left of it is ended");
        let (record, exit) = (run.record.clone(), run.exit.unwrap_or(Exit::Unheld));
        // Whatever happens to that task, nothing is started before it is certain that nothing is left.
        let (start, results) = (self.start, self.results.clone());
        tokio::spawn(async move {
            while contained(leftovers::end_unheld(&record, None)).await != Ok(true) {
                sleep(process::LOOK).await;
            }
            // Nobody listens once the engine is over.
            let _ = results.send((start, Input::Gone { tail: String::new() })).await;
        });
        self.note_exit(exit)
    }

    /// The living processes of the engine: what has left its group while it lives is still known when it is looked whose
    /// memory a GPU holds.
    async fn members(&mut self) {
        let Some(run) = &mut self.run else { return };
        let Some(mut family) = run.family.take() else { return };
        let nonce = run.record.nonce.clone();
        let (family, members) = spawn_blocking(move || {
            let members = process::members(&mut family, &nonce, false);
            (family, members)
        })
        .await
        .unwrap_or_else(|_| (run.held.family(), Vec::new()));
        run.family = Some(family);
        run.seen.extend(members.iter().take(SEEN).map(|facts| (facts.id.0, facts.start)));
        while run.seen.len() > SEEN {
            run.seen.pop_first();
        }
    }

    /// Nothing is left of the run.
    async fn over(&mut self, tail: String) -> Input {
        let Some(run) = self.run.take() else { return Input::Gone { tail } };
        {
            let mut shared = self.engine.lock();
            (shared.leader, shared.started) = (None, None);
        }
        self.ended = run.seen;
        run.held.release().await;
        let (host, record) = (Arc::clone(&self.host), run.record);
        // The disk's word is not waited for longer than it takes.
        let _ = spawn_blocking(move || host.state.forget_engine(&record)).await;
        Input::Gone { tail }
    }
}

/// Writes the intent; what its holder has to do. Blocks.
fn prepare(config: &EngineConfig, host: &Host) -> Result<Instruction, String> {
    let address = adapter::address(config).map_err(|error| format!("no free port: {error}"))?;
    let (nonce, key) = (random_hex(), random_hex());
    let folder = host.state.engines();
    let command = adapter::prepare(config, &host.facts(), address, &key, &folder)?;
    let name = |path: &std::path::Path| Some(path.file_name()?.to_str()?.to_owned());
    let files = command.files.iter().filter_map(|(path, _)| name(path)).collect();
    let launch = Launch {
        program: command.program.clone().into(),
        arguments: command.arguments,
        environment: command.environment,
        folder: folder.clone().into(),
        log: folder.join(format!("{}.log", config.name)).into(),
        nonce: nonce.clone(),
    };
    let record = EngineRecord {
        name: config.name.clone(),
        engine: Born::NOBODY,
        boot_id: process::boot_id(),
        port: address.port(),
        nonce,
        program: command.program,
        holder: Born::NOBODY,
        key: Some(key),
        profile_digest: config.digest(),
        started: serde_json::to_value(config).unwrap_or_default(),
        files,
        end: None,
    };
    host.state
        .set_engine(&record)
        .map_err(|error| format!("its record cannot be written to the state directory: {error}"))?;
    for (path, content) in &command.files {
        umbel_wire::files::write_private(path, content)
            .map_err(|error| format!("its key cannot be written: {error}"))?;
    }
    Ok(Instruction { record, folder, launch })
}

fn random_hex() -> String {
    let mut bytes = [0; 16];
    secret::random_bytes(&mut bytes);
    data_encoding::HEXLOWER.encode(&bytes)
}
