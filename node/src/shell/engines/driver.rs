//! Carries out what one engine's supervisor decides, and tells it what came of it.
//!
//! Owns the engine's process, probes and record; leaves every decision to `core/supervisor`. Invariant: the record
//! stands on the disk before the process exists, and goes only when nothing of it is left.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};
use umbel_contracts::deployment::EngineKind;
use umbel_wire::{clock::Wall, contained, secret};

use super::{Command, Engine, Host, HttpRoute, Route, View};
use crate::{
    config::{EngineConfig, EngineSource},
    core::{
        process_tree::{Family, Leader, ProcessFacts, ProcessId, StartTime},
        supervisor::{Exit, Input, Output, State, Supervisor, Traits},
    },
    engines::{adapter, cli::Cli, ready, sim::Sim},
    shell::{
        engine_http::{Place, Pool},
        process::{self, Launch, Process},
        state::EngineRecord,
    },
};

/// Results of probes and checks on their way back: one of each can be out.
const RESULTS: usize = 4;
/// Processes of one run that are remembered.
const SEEN: usize = 1024;
/// After the last process of an engine is gone its output is there at once, unless a stranger holds the pipe.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// One start of an engine's process.
struct Run {
    process: Process,
    nonce: String,
    /// Not here while a look at `/proc` is under way.
    family: Option<Family>,
    /// All that were ever seen to belong to it.
    seen: BTreeMap<i32, StartTime>,
    exit: Option<Exit>,
    gone: watch::Sender<bool>,
    /// Its end was asked for: it is looked for until nothing is left.
    ending: bool,
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

/// Runs one engine until it was asked to stop and nothing of it is left.
pub(super) async fn drive(
    engine: Arc<Engine>,
    host: Arc<Host>,
    mut commands: mpsc::Receiver<Command>,
    changed: Arc<watch::Sender<u64>>,
) {
    let traits = traits(&engine.config());
    let (results, mut inputs) = mpsc::channel(RESULTS);
    let (supervisor, outputs) = Supervisor::new(traits);
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
    driver.carry_out(outputs).await;
    let mut looks = interval(process::LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !driver.supervisor.is_over() {
        let deadline = driver.supervisor.next_deadline().map(Instant::from_std);
        let draining = driver.supervisor.state() == State::Draining;
        let input = tokio::select! {
            Some((start, input)) = inputs.recv() => {
                if start != driver.start {
                    continue;
                }
                input
            }
            Some(command) = commands.recv() => match command {
                Command::Stop { drain, grace } => Input::Stop { drain, grace },
                Command::Changed => driver.reconfigure(),
            },
            exit = exited(driver.run.as_ref()) => driver.note_exit(exit),
            // Not a sleep made anew each time: other inputs, however many, shall not put the look off.
            _ = looks.tick(), if driver.run.as_ref().is_some_and(|run| run.ending) => {
                match driver.look_for_the_end().await {
                    Some(input) => input,
                    None => continue,
                }
            }
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

async fn exited(run: Option<&Run>) -> Exit {
    match run {
        Some(run) if run.exit.is_none() => run.process.exited().await,
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
                Output::Terminate => self.signal(Signal::TERM).await,
                Output::Kill => self.signal(Signal::KILL).await,
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
        let starting = Arc::clone(&config);
        let started = spawn_blocking(move || start(&starting, &host)).await;
        let (process, nonce, address, key) = started.unwrap_or_else(|_| Err("the start failed".into()))?;
        let (gone, is_gone) = watch::channel(false);
        self.route = Some(Arc::new(Route::Http(HttpRoute {
            pool: Pool::new(Place::Local(address)),
            base: String::new(),
            key: Some(key),
            gone: Some(is_gone),
        })));
        let family = Some(process.family());
        tracing::info!(engine = %self.engine.name, pid = process.id().0, "engine started");
        let mut shared = self.engine.lock();
        shared.started = Some(config);
        shared.leader = Some(Leader {
            engine: self.engine.name.clone(),
            id: process.id(),
            start: process.start_time(),
            nonce: nonce.clone(),
        });
        drop(shared);
        let seen = BTreeMap::from([(process.id().0, process.start_time())]);
        self.run = Some(Run { process, nonce, family, seen, exit: None, gone, ending: false });
        Ok(())
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

    async fn signal(&mut self, signal: Signal) {
        let members = self.members().await;
        if let Some(run) = &mut self.run {
            run.ending = true;
        }
        // The look above and the signals take no longer than a few milliseconds.
        process::signal(&members, signal);
    }

    /// The living processes of the engine.
    async fn members(&mut self) -> Vec<ProcessFacts> {
        let Some(run) = &mut self.run else { return Vec::new() };
        let Some(mut family) = run.family.take() else { return Vec::new() };
        let nonce = run.nonce.clone();
        let (family, members) = spawn_blocking(move || {
            let members = process::members(&mut family, &nonce, false);
            (family, members)
        })
        .await
        .unwrap_or_else(|_| (Family::new(run.process.id(), run.process.start_time(), true), Vec::new()));
        run.family = Some(family);
        run.seen.extend(members.iter().take(SEEN).map(|facts| (facts.id.0, facts.start)));
        while run.seen.len() > SEEN {
            run.seen.pop_first();
        }
        members
    }

    /// Whether nothing is left of a process that is being ended.
    async fn look_for_the_end(&mut self) -> Option<Input> {
        let left = !self.members().await.is_empty();
        if left || self.run.as_ref().is_none_or(|run| run.exit.is_none()) {
            return None;
        }
        let mut run = self.run.take()?;
        {
            let mut shared = self.engine.lock();
            (shared.leader, shared.started) = (None, None);
        }
        self.ended = std::mem::take(&mut run.seen);
        if let Some(all_read) = run.process.all_read.take() {
            // After that time whoever holds the pipe is no part of the engine.
            let _ = timeout(OUTPUT_WAIT, all_read).await;
        }
        let (host, name) = (Arc::clone(&self.host), self.engine.name.clone());
        // The disk's word is not waited for longer than it takes.
        let _ = spawn_blocking(move || host.state.forget_engine(&name)).await;
        Some(Input::Gone { tail: run.process.output.report() })
    }
}

/// Writes the intent, starts the process, writes its identity. Blocks.
fn start(config: &EngineConfig, host: &Host) -> Result<(Process, String, SocketAddr, String), String> {
    let address = adapter::address(config).map_err(|error| format!("no free port: {error}"))?;
    let (nonce, key) = (random_hex(), random_hex());
    let command = adapter::prepare(config, &host.facts(), address, &key, &host.state.engines())?;
    let mut record = EngineRecord {
        name: config.name.clone(),
        pid: ProcessId(0),
        start_time: StartTime(0),
        boot_id: process::boot_id(),
        port: address.port(),
        nonce: nonce.clone(),
        program: command.program.clone(),
    };
    let unwritable = |error| format!("its record cannot be written to the state directory: {error}");
    host.state.set_engine(&record).map_err(unwritable)?;
    for (path, content) in &command.files {
        umbel_wire::files::write_private(path, content)
            .map_err(|error| format!("its key cannot be written: {error}"))?;
    }
    let launch = Launch {
        program: command.program,
        arguments: command.arguments,
        environment: command.environment,
        folder: host.state.engines(),
        log: host.state.engines().join(format!("{}.log", record.name)),
        nonce: nonce.clone(),
    };
    let process = Process::start(&launch).map_err(|error| format!("cannot be started: {error}"))?;
    (record.pid, record.start_time) = (process.id(), process.start_time());
    if let Err(error) = host.state.set_engine(&record) {
        // Its nonce is on the disk, so it would be found; but the pid is what people look for.
        tracing::warn!(engine = %record.name, %error, "the engine's record could not be completed");
    }
    Ok((process, nonce, address, key))
}

fn random_hex() -> String {
    let mut bytes = [0; 16];
    secret::random_bytes(&mut bytes);
    data_encoding::HEXLOWER.encode(&bytes)
}
