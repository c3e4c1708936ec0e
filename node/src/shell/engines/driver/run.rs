//! One run of an engine: from its start, or its adoption, until nothing of it is left.
//!
//! Owns the record and the connection to the holder; leaves when a run begins and ends to the supervisor, and the process
//! to its `holder`. Invariant: a run is over only when its holder says that nothing is left, or, where the holder is lost,
//! when nothing is found by the run's nonce.

use std::{
    collections::BTreeMap,
    net::Ipv4Addr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::spawn_blocking, time::sleep};
use umbel_wire::{clock::Wall, contained, secret};

use super::{Driver, HttpRoute, Place, Pool, Route};
use crate::{
    config::EngineConfig,
    core::{
        holding::LINES_MAX,
        process_tree::{Born, Family, Leader, ProcessId, StartTime},
        supervisor::{Exit, Input, Output},
    },
    engines::adapter,
    shell::{
        engines::{
            Host,
            leftovers::{self, Inherited, Left},
            output::Last,
            ports::{PortLook, Ports},
            traffic::{Stall, Traffic},
        },
        gpu::Ended,
        holder::{self, Held, Instruction, Lost},
        process::{self, Launch},
        state::{EngineEnd, EngineRecord},
    },
};

/// An adopted engine that is ready within this was so all the time.
const ADOPTED: Duration = Duration::from_secs(30);
/// Processes of one run that are remembered.
const SEEN: usize = 1024;
/// A holder ends what it is told to kill within milliseconds. After so many demands it is asked whether it lives.
const KILLS: u32 = 10;

/// One start of an engine's process.
pub(super) struct Run {
    held: Arc<Held>,
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
    pub(super) traffic: Arc<Traffic>,
    pub(super) stall: Stall,
    /// A request of the agent's own is out.
    pub(super) checking: bool,
    /// Those that lived when it was looked last, the engine's own first.
    living: Vec<ProcessId>,
    ports: Arc<Ports>,
    /// It was ready once, under whichever agent.
    served: bool,
}

/// The end of the engine's own process.
pub(super) async fn exited(run: Option<&Run>) -> Result<Exit, Lost> {
    match run {
        Some(run) if run.exit.is_none() => run.held.exited().await,
        _ => std::future::pending().await,
    }
}

/// The end of everything of it, as its holder sees it.
pub(super) async fn gone(run: Option<&Run>) -> Result<String, Lost> {
    match run {
        Some(run) if run.exit.is_some() && !run.lost => run.held.gone().await,
        _ => std::future::pending().await,
    }
}

/// Waits until the engine's answers say that something is wrong with it; how many failed in a row.
pub(super) async fn suspected(run: Option<&Run>) -> u32 {
    match run {
        Some(run) if run.exit.is_none() && !run.checking => run.traffic.suspected().await,
        _ => std::future::pending().await,
    }
}

impl Driver {
    pub(super) async fn start_process(&mut self) -> Result<(), String> {
        self.start += 1;
        let (config, host) = (self.engine.config(), Arc::clone(&self.host));
        let (preparing, restarts) = (Arc::clone(&config), self.supervisor.restarts());
        let prepared = spawn_blocking(move || prepare(&preparing, restarts, &host)).await;
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
        let gpus = started.source.process().map(|process| process.gpus.as_slice()).unwrap_or_default();
        self.host.claimed(&record.name, gpus);
        let (gone, is_gone) = watch::channel(false);
        let (traffic, ports) = (Arc::<Traffic>::default(), Arc::<Ports>::default());
        self.route = Some(Arc::new(Route::Http(HttpRoute {
            pool: Pool::new(Place::Local((Ipv4Addr::LOCALHOST, record.port).into())),
            base: String::new(),
            key: record.key.clone(),
            gone: Some(is_gone),
            traffic: Arc::clone(&traffic),
            ports: Arc::clone(&ports),
        })));
        let held = Arc::new(held);
        let mut shared = self.engine.lock();
        shared.started = Some(started);
        shared.run = Some((record.nonce.clone(), Arc::clone(&held)));
        shared.process_since_unix_ms = record.started_at_unix_ms;
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
        self.run = Some(Run {
            held,
            record,
            family,
            seen,
            exit: None,
            gone,
            lost: false,
            kills: 0,
            traffic,
            stall: Stall::default(),
            checking: false,
            living: Vec::new(),
            ports,
            served: self.was_ready.is_some(),
        });
    }

    /// Goes on with what an earlier agent left of this engine; what there is to do first.
    pub(super) async fn go_on(
        &mut self,
        now: Instant,
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
                let (folder, read) = (self.host.state.engines(), record.clone());
                let since = spawn_blocking(move || read.ready_since(&folder)).await.ok().flatten();
                self.was_ready = since.map(|since| (now, Wall(since)));
                self.run_is(held, record, Arc::new(started));
                return outputs;
            }
            Left::Over(end) => end,
            // It is not given to a driver.
            Left::Unheld => EngineEnd { exit: Exit::Unheld, at_unix_ms: 0, tail: String::new() },
        };
        tracing::warn!(engine = %record.name, exit = %end.exit, "an engine ended while no agent was there");
        self.ended = Ended {
            processes: BTreeMap::from([(record.engine.pid.0, record.engine.start_time)]),
            before: record.gpu_memory_before.clone(),
        };
        let host = Arc::clone(&self.host);
        let _ = spawn_blocking(move || host.state.forget_engine(&record)).await;
        // It counts as the crash that it is; there is nothing to end any more.
        self.supervisor.handle(now, Input::Exited(end.exit));
        self.supervisor.handle(now, Input::Gone { tail: end.tail })
    }

    /// It is ready: since when, as whoever adopts it shall hear, too.
    pub(super) fn ready_since(&mut self) -> Wall {
        if let Some(run) = &mut self.run {
            run.served = true;
        }
        let adopted = self.was_ready.take().filter(|(at, _)| at.elapsed() < ADOPTED);
        let since = adopted.map_or_else(Wall::now, |(_, since)| since);
        if let (Some(run), None) = (&self.run, adopted) {
            let (record, folder) = (run.record.clone(), self.host.state.engines());
            // Nobody waits for it.
            drop(spawn_blocking(move || record.set_ready(&folder, since.unix_ms())));
        }
        since
    }

    pub(super) fn note_exit(&mut self, exit: Exit) -> Input {
        if let Some(run) = &mut self.run {
            run.exit = Some(exit);
            // Streams on it learn at once that the process is gone.
            run.gone.send_replace(true);
        }
        Input::Exited(exit)
    }

    /// Asks the holder to end it: SIGTERM now, SIGKILL after the grace.
    pub(super) async fn end(&mut self, grace: Duration) {
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
    pub(super) fn lose(&mut self) -> Input {
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
    pub(super) async fn members(&mut self) {
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
        run.living = members.iter().map(|facts| facts.id).collect();
        let own = run.record.engine.pid;
        run.living.sort_by_key(|id| *id != own);
        run.seen.extend(members.iter().take(SEEN).map(|facts| (facts.id.0, facts.start)));
        while run.seen.len() > SEEN {
            run.seen.pop_first();
        }
    }

    /// What to look with at the ports of the engine, if it has a process.
    pub(super) fn look_at_ports(&self) -> Option<PortLook> {
        let run = self.run.as_ref()?;
        Some(PortLook {
            engine: self.engine.name.clone(),
            living: run.living.clone(),
            port: run.record.port,
            ports: Arc::clone(&run.ports),
            served: run.served,
        })
    }

    /// Nothing is left of the run.
    pub(super) async fn over(&mut self, tail: String) -> Input {
        let Some(run) = self.run.take() else { return Input::Gone { tail } };
        let last = match run.held.output(None, LINES_MAX).await {
            Some(told) => Last { nonce: run.record.nonce.clone(), lines: told.lines, next: told.next },
            None => Last { nonce: run.record.nonce.clone(), ..Last::default() },
        };
        {
            let mut shared = self.engine.lock();
            (shared.leader, shared.started, shared.run) = (None, None, None);
            shared.process_since_unix_ms = 0;
            shared.last = last;
        }
        self.port = Some(run.record.port);
        self.ended = Ended { processes: run.seen, before: run.record.gpu_memory_before.clone() };
        run.held.release().await;
        let (host, record) = (Arc::clone(&self.host), run.record);
        // The disk's word is not waited for longer than it takes.
        let _ = spawn_blocking(move || host.state.forget_engine(&record)).await;
        Input::Gone { tail }
    }
}

/// Writes the intent; what its holder has to do. Blocks.
fn prepare(config: &EngineConfig, restarts: u32, host: &Host) -> Result<Instruction, String> {
    let address = adapter::address(config).map_err(|error| format!("no free port: {error}"))?;
    let (nonce, key) = (random_hex(), random_hex());
    let folder = host.state.engines();
    let gpus = config.source.process().map(|process| process.gpus.as_slice()).unwrap_or_default();
    let command = adapter::prepare(config, &host.facts(), address, &key, &folder)?;
    let name = |path: &std::path::Path| Some(path.file_name()?.to_str()?.to_owned());
    let ready = EngineRecord::ready_file(&config.name);
    let files = command.files.iter().filter_map(|(path, _)| name(path)).chain([ready]).collect();
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
        started_at_unix_ms: Wall::now().unix_ms(),
        restarts,
        gpu_memory_before: host.holders.unowned(gpus),
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
