//! Carries out what one engine's supervisor decides, and tells it what came of it.
//!
//! Owns checks and probes; leaves every decision to `core/supervisor`, and what runs to `run`. Invariant: a result of an
//! earlier start changes nothing.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use umbel_contracts::deployment::EngineKind;
use umbel_wire::{clock::Wall, contained};

use super::{Command, Engine, Host, HttpRoute, Route, Stop, View, leftovers::Inherited, ports};
use crate::{
    config::{EngineConfig, EngineSource},
    core::supervisor::{Input, Output, State, Supervisor, Traits},
    engines::{adapter, cli::Cli, ready, sim::Sim},
    shell::{
        engine_http::{Place, Pool},
        gpu::Ended,
        holder::Lost,
    },
};

mod release;
mod run;
#[cfg(test)]
mod tests;

use run::{Run, exited, gone, suspected};

/// Results of probes and checks on their way back: one of each can be out.
const RESULTS: usize = 4;

struct Driver {
    engine: Arc<Engine>,
    host: Arc<Host>,
    changed: Arc<watch::Sender<u64>>,
    supervisor: Supervisor,
    run: Option<Run>,
    /// What the run before had of GPUs: the driver may hold their memory for a while.
    ended: Ended,
    /// When it was adopted, and since when it was ready then.
    was_ready: Option<(std::time::Instant, Wall)>,
    /// The port of the run before.
    port: Option<u16>,
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
    (mut commands, mut stops): (mpsc::Receiver<Command>, watch::Receiver<Option<Stop>>),
    changed: Arc<watch::Sender<u64>>,
    inherited: Option<(Inherited, EngineConfig)>,
) {
    let traits = traits(&engine.config());
    let (results, mut inputs) = mpsc::channel(RESULTS);
    let now = std::time::Instant::now();
    let (supervisor, outputs) = match &inherited {
        Some((inherited, _)) => Supervisor::adopting(now, traits, inherited.record.restarts),
        None => Supervisor::new(traits),
    };
    let mut driver = Driver {
        engine,
        host,
        changed,
        supervisor,
        run: None,
        ended: Ended::default(),
        was_ready: None,
        port: None,
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
                    Input::Validated(Ok(())) => Input::Validated(driver.claim()),
                    input => {
                        driver.note_check(&input);
                        input
                    }
                }
            }
            Ok(()) = stops.changed() => {
                let Some(Stop { drain, grace }) = *stops.borrow_and_update() else { continue };
                Input::Stop { drain, grace }
            }
            Some(command) = commands.recv() => match command {
                Command::Changed => driver.reconfigure(),
                Command::Restart { drain } => Input::Restart { drain },
                Command::Park { drain } => Input::Park { drain },
            },
            failed = suspected(driver.run.as_ref()) => {
                driver.check(failed);
                continue;
            }
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
    driver.let_go(&mut stops).await;
}

fn traits(config: &EngineConfig) -> Traits {
    match &config.source {
        EngineSource::Process(process) => Traits { supervised: true, start_timeout: process.start_timeout() },
        _ => Traits { supervised: false, start_timeout: Duration::ZERO },
    }
}

/// The way to an engine that has no process here.
fn direct(config: &EngineConfig, host: &Host) -> Option<Route> {
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
            traffic: Arc::default(),
            ports: Arc::default(),
        })),
        EngineSource::Cli { program, timeout } => Some(Route::Cli(Cli {
            program: program.clone(),
            timeout: *timeout,
            model: config.model.clone(),
            holder: host.holder,
        })),
        EngineSource::Process(_) | EngineSource::Missing { .. } => None,
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

    fn report(&mut self) {
        let (before, state) = (self.engine.lock().view.state, self.supervisor.state());
        let since = match state {
            _ if state == before => None,
            State::Ready => Some(self.ready_since()),
            _ => Some(Wall::now()),
        };
        let supervisor = &self.supervisor;
        let (name, cause) = (&self.engine.name, supervisor.cause());
        let mut shared = self.engine.lock();
        if let Some(since) = since {
            tracing::info!(engine = %name, %state, cause, "engine state");
            shared.view.since = since;
        }
        shared.view = View {
            state,
            cause: cause.to_owned(),
            code: supervisor.code(),
            exit: supervisor.exit(),
            looks_again: supervisor.looks_again(),
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
        if let Some(route) = direct(&config, &self.host) {
            self.route = Some(Arc::new(route));
            self.report();
        }
        Input::Changed(traits(&config))
    }

    fn validate(&mut self) {
        self.start += 1;
        let config = self.engine.config();
        if let Some(route) = direct(&config, &self.host) {
            self.route = Some(Arc::new(route));
            return self.answer_later(Input::Validated(Ok(())), async { Input::Validated(Ok(())) });
        }
        let (host, ended) = (Arc::clone(&self.host), self.ended.clone());
        let broken = Input::Validated(Err("the check of its profile failed".into()));
        self.answer_later(broken, async move {
            host.cleared().await;
            let gpus = config.source.process().map(|process| process.gpus.clone()).unwrap_or_default();
            if let Err(why) = host.alone(&config.name, &gpus).await {
                return Input::Validated(Err(why));
            }
            if let Some(why) = host.holders.missing(&gpus) {
                return Input::Validated(Err(why));
            }
            // A start into memory that is not free yet would fail, and count as a crash.
            if let Err(hold) = host.holders.released(&ended).await {
                return Input::Validated(Err(format!(
                    "{hold}; it is started when the driver lets go of it. If it does not, the GPU wants a reset"
                )));
            }
            // The files may lie on a network: not on the runtime's thread.
            let checked = spawn_blocking(move || {
                // The supervisor reads the name in front: by it the edge judges whether it may be over by itself.
                adapter::validate(&config, &host.facts())
                    .map_err(|refusal| format!("{}: {}", refusal.code, refusal.message))
            });
            Input::Validated(checked.await.unwrap_or_else(|_| Err("the check of its profile failed".into())))
        });
    }

    /// Takes the GPUs of a start that is fine otherwise. Not in the check, which goes on while the engine may end: nobody would
    /// give back what is taken after that.
    fn claim(&self) -> Result<(), String> {
        if !matches!(self.supervisor.state(), State::Validating | State::Failed) {
            return Ok(());
        }
        let config = self.engine.config();
        let gpus = config.source.process().map(|process| process.gpus.as_slice()).unwrap_or_default();
        self.host.claim(&config.name, gpus)
    }

    async fn probe(&mut self) {
        if let Some(Route::Http(http)) = self.route.as_deref() {
            http.pool.prune();
        }
        // What has left the group while the engine lives is still known as its own when the parents are gone.
        self.members().await;
        let Some(route) = self.route.clone() else { return };
        let config = self.engine.in_force();
        let was_ready = self.supervisor.state() == State::Ready;
        let limit = config.source.process().map(|process| process.stall_timeout).unwrap_or_default();
        if let Some(run) = self.run.as_mut().filter(|_| was_ready && !limit.is_zero()) {
            let stalled = run.stall.look(std::time::Instant::now(), &run.traffic);
            if stalled >= limit {
                let cause =
                    format!("stalled: requests wait, and it has sent nothing for {} s", stalled.as_secs());
                let input = Input::Unhealthy(cause);
                return self.answer_later(input.clone(), async { input });
            }
        }
        let (model, look) = (config.model, self.look_at_ports());
        let broken = Input::Probed(Err("the probe broke off by a defect of the agent".into()));
        self.answer_later(broken, async move {
            let probed = match route.as_ref() {
                Route::Sim(_) => Ok(()),
                // It is looked at, not started: each start is a request.
                Route::Cli(cli) => {
                    adapter::is_program(&cli.program, EngineKind::Cli).map_err(|refusal| refusal.message)
                }
                Route::Http(http) => {
                    ready::probe(&http.pool, &http.base, &model, http.key.as_deref(), was_ready).await
                }
            };
            if let Some(look) = look
                && look.refuses(probed.is_ok() && !was_ready).await
            {
                return Input::Refused(ports::refusal());
            }
            Input::Probed(probed)
        });
    }

    /// So many requests in a row failed by the engine's own fault: it is asked something by the agent itself.
    fn check(&mut self, failed: u32) {
        let (Some(run), Some(route)) = (&mut self.run, self.route.clone()) else { return };
        run.checking = true;
        let (traffic, model) = (Arc::clone(&run.traffic), self.engine.in_force().model);
        self.answer_later(Input::Healthy, async move {
            let Route::Http(http) = route.as_ref() else { return Input::Healthy };
            match ready::try_one(&http.pool, &http.base, &model, http.key.as_deref()).await {
                Ok(()) => {
                    traffic.acquitted();
                    Input::Healthy
                }
                Err(why) => Input::Unhealthy(format!(
                    "failed {failed} requests in a row by its own fault while its health route was fine: {why}"
                )),
            }
        });
    }

    fn note_check(&mut self, input: &Input) {
        if let (Some(run), Input::Healthy | Input::Unhealthy(_)) = (&mut self.run, input) {
            run.checking = false;
        }
    }
}
