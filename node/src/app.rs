//! Builds every part of the agent, runs it, and drains it.
//!
//! Owns the order of start and stop; leaves the parts to `shell`. Invariants: an engine ends with the agent only where the
//! node's file says so; a second signal shortens every wait.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use umbel_contracts::daemon::{LocalListener, Signals, bind_if_on, memory, raise_descriptors};
use umbel_wire::{Parts, Trouble, contained_now, keep_connected};

use crate::{
    Config, StartError,
    core::{gpus::Sweep, identity::Identity, supervisor::GRACE},
    preflight,
    shell::{
        admin::{Admin, Doors},
        artifacts::Artifacts,
        credential::Credentials,
        edge::Edge,
        engines::{self, Engines},
        gpu::{Gpus, Holders},
        jobs::{Bodies, Jobs},
        places, process,
        relay::Relay,
        reports::Reports,
        settings::{Opened, Settings},
        state::State,
        watch::Watch,
    },
};

/// Orphans that end are reaped at the latest after this; normally a signal says so.
const REAP: Duration = Duration::from_secs(5);
/// How often it is looked whether a part that broke off counts as sound again.
const BROKEN: Duration = Duration::from_secs(10);
/// Between two tries to write what the disk did not take.
const OWED: Duration = Duration::from_secs(5);
/// Time for the last frames to the edge.
const FAREWELL: Duration = Duration::from_secs(3);
/// What streams that were cancelled at the end of the drain get to tell the edge so.
const STRAGGLERS: Duration = Duration::from_secs(1);

/// Runs the agent until SIGTERM or SIGINT and the drain after it. Builds its own runtime; blocks. `holder`: the arguments
/// with which this very program calls [`crate::hold`].
///
/// # Errors
/// What kept it from starting: [`StartError::exit_code`] says with which code to exit.
pub fn run(config: Config, holder: &'static [&'static str]) -> Result<(), StartError> {
    raise_descriptors();
    let runtime = runtime()?;
    let result = runtime.block_on(agent(config, holder));
    // A look at a hanging disk or driver is not waited for.
    runtime.shutdown_background();
    result
}

/// The agent's runtime: one thread. Two that share the work take an eighth to a half more of it (BENCHMARKS.md).
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Files, `/proc` and name look-ups: short and rare.
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|error| StartError::Failed(format!("no runtime: {error}")))
}

/// Who this node is, once it has enrolled.
fn identity(state: &State, config: &Config) -> Result<Arc<Identity>, StartError> {
    state.identity()?.map(Arc::new).ok_or_else(|| {
        StartError::Refused(format!(
            "this node has no identity in {}: join an edge first with `umbel node enroll` and a token from `umbel ctl token create`",
            config.state_dir.display()
        ))
    })
}

/// The host as it is; or why it cannot be looked at, where engines run.
async fn look(
    config: &Config,
    gpus: &Gpus,
    state: &State,
) -> Result<Result<(Instant, Sweep), String>, StartError> {
    match preflight::check(config.accelerator, gpus).await {
        Ok(found) => Ok(Ok(found)),
        // Engines that run are served and can be ended whatever became of the driver.
        Err(why) if engines::any_runs(state) => {
            tracing::error!("engines run: the agent goes on with them although {why}");
            Ok(Err(why.to_string()))
        }
        Err(why) => Err(why),
    }
}

async fn agent(config: Config, holder: &'static [&'static str]) -> Result<(), StartError> {
    memory::keep_small();
    // From here on a signal ends the agent in order, not at once.
    let mut signals = Signals::take()?;
    let volatile = places::check(&config)?;
    let state = Arc::new(State::open(&config.state_dir)?);
    let identity = identity(&state, &config)?;
    let gpus = Gpus::start(config.accelerator, config.nvml_library.as_deref());
    let found = look(&config, &gpus, &state).await?;
    let socket = LocalListener::bind(&config.socket)?;
    let metrics = bind_if_on("listen.metrics", config.metrics).await?;

    let inheritance = engines::find_inherited(&state).await;
    let lost_records = inheritance.problem.clone();
    // Before any engine: what loses its holder comes here.
    process::become_subreaper();
    let children = signal(SignalKind::child())
        .map_err(|error| StartError::Failed(format!("cannot take signals: {error}")))?;
    tokio::spawn(reap(children));
    let holders = Arc::new(Holders::new(gpus.are_wanted()));
    let opened = Opened::read(&state, config);
    let config = opened.in_force();
    let engines = Engines::start(&config, &state, &holders, holder, inheritance);
    let settings = Settings::new(opened, &state, &engines);
    engines.end_unwanted();
    let pieces = Parts::default();
    keep_settings(&pieces, &settings);
    let relay = Arc::new(Relay::new(&identity, Arc::clone(&engines)));
    let watch = Arc::new(Watch::new(&config, Arc::clone(&engines), Arc::clone(&state), gpus, holders, found));
    Arc::clone(&watch).start(&pieces);
    let artifacts = keep_artifacts(&pieces, &config);
    let jobs = Jobs::new(Bodies::new(&state, &engines, &artifacts, &watch));
    let reports = Arc::new(Reports::new(
        Arc::clone(&identity),
        Arc::clone(&engines),
        Arc::clone(&state),
        watch,
        Arc::clone(&settings),
        &artifacts,
    ));
    reports.set_problem("STATE_NOT_DURABLE", volatile);
    reports.set_problem("ENGINE_RECORD_LOST", lost_records);
    keep_reports(&pieces, &reports, &engines);
    keep_state(&pieces, &state);
    let credentials = Arc::new(Credentials::open(&state, (*identity).clone())?);
    let edge = Edge::new(
        Arc::clone(&credentials),
        Arc::clone(&identity),
        Arc::clone(&relay),
        Arc::clone(&reports),
        Arc::clone(&engines),
        Arc::clone(&jobs),
    );
    let parts = Admin {
        identity,
        credentials,
        edge: Arc::clone(&edge),
        engines: Arc::clone(&engines),
        relay: Arc::clone(&relay),
        reports,
        artifacts,
        jobs,
    };
    tracing::info!(node_id = %parts.identity.node_id, edge = %parts.identity.edge_id, "node agent started");
    let doors = Arc::new(Doors::new(socket, metrics, Arc::new(parts)));
    let answering = tokio::spawn(pieces.clone().kept("local socket", move || Arc::clone(&doors).serve()));
    let end = CancellationToken::new();
    let (role, ends) = (Arc::clone(&edge), end.clone());
    let dialing = tokio::spawn(pieces.clone().kept("connection to the edge", move || {
        keep_connected(Arc::clone(&role) as Arc<dyn umbel_wire::DialRole>, ends.clone())
    }));

    signals.next().await;
    edge.drain();
    drain((&relay, &edge), &settings, &engines, &mut signals).await;
    end.cancel();
    tokio::select! {
        _ = tokio::time::timeout(FAREWELL, dialing) => {}
        _ = signals.next() => {}
    }
    // The socket's file goes with the task that listens on it.
    answering.abort();
    let _ = answering.await;
    tracing::info!("node agent ended");
    Ok(())
}

/// Lets running streams finish, gives jobs back, and ends the engines where the file says so.
async fn drain(
    (relay, edge): (&Relay, &Edge),
    settings: &Settings,
    engines: &Engines,
    signals: &mut Signals,
) {
    let hurried = tokio::select! {
        () = relay.idle() => false,
        () = tokio::time::sleep(settings.in_force().drain) => false,
        _ = signals.next() => true,
    };
    relay.cancel_all();
    tokio::select! {
        _ = tokio::time::timeout(STRAGGLERS, relay.idle()) => {}
        _ = signals.next() => {}
    }
    // Before engines are stopped: a load that is given back has not failed.
    edge.hand_back(STRAGGLERS).await;
    if settings.in_force().stop_engines {
        stop_engines(engines, signals, hurried).await;
    }
}

async fn stop_engines(engines: &Engines, signals: &mut Signals, hurried: bool) {
    engines.stop(if hurried { Duration::ZERO } else { GRACE });
    let stopped = engines.stopped();
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            () = &mut stopped => return,
            _ = signals.next() => engines.stop(Duration::ZERO),
        }
    }
}

/// Tells what broke off, and asks the programs of engines for their versions, for ever.
fn keep_reports(pieces: &Parts, reports: &Arc<Reports>, engines: &Arc<Engines>) {
    tokio::spawn(tell_broken(pieces.clone(), Arc::clone(reports)));
    let (part, engines) = (reports.installed(), Arc::clone(engines));
    tokio::spawn(
        pieces.clone().kept("versions of engines", move || Arc::clone(&part).watch(Arc::clone(&engines))),
    );
}

/// Writes what the disk did not take, for ever.
fn keep_state(pieces: &Parts, state: &Arc<State>) {
    let state = Arc::clone(state);
    tokio::spawn(pieces.clone().kept("what is owed to the disk", move || {
        let state = Arc::clone(&state);
        async move {
            loop {
                tokio::time::sleep(OWED).await;
                let state = Arc::clone(&state);
                // One that hangs holds up nobody but itself.
                let _ = tokio::task::spawn_blocking(move || state.write_owed()).await;
            }
        }
    }));
}

/// Judges trials of settings and looks at the file, for ever.
fn keep_settings(pieces: &Parts, settings: &Arc<Settings>) {
    let part = Arc::clone(settings);
    tokio::spawn(pieces.clone().kept("trials of settings", move || Arc::clone(&part).judge_trials()));
    let part = Arc::clone(settings);
    tokio::spawn(pieces.clone().kept("configuration file", move || Arc::clone(&part).watch_file()));
}

/// Looks after the artifacts of this host, for ever.
fn keep_artifacts(pieces: &Parts, config: &Config) -> Arc<Artifacts> {
    let artifacts = Arc::new(Artifacts::new(config.artifacts.clone()));
    // Before the first hello, which tells what is here.
    artifacts.look();
    let part = Arc::clone(&artifacts);
    tokio::spawn(pieces.clone().kept("artifacts", move || Arc::clone(&part).keep()));
    artifacts
}

/// Tells the edge which parts of the agent broke off, and when they have run for a while again.
async fn tell_broken(pieces: Parts, reports: Arc<Reports>) {
    let mut changes = pieces.changes();
    loop {
        let troubles = pieces.troubles();
        let sentences: Vec<_> = troubles.iter().map(|trouble| trouble.sentence("this agent")).collect();
        reports.set_problem(Trouble::CODE, (!sentences.is_empty()).then(|| sentences.join("; ")));
        // One that runs again is no news of its own.
        let _ = tokio::time::timeout(BROKEN, changes.changed()).await;
    }
}

/// Reaps orphans of engines for ever.
async fn reap(mut children: Signal) {
    loop {
        // Several ends may be behind one signal, and one may be missed.
        let _ = tokio::time::timeout(REAP, children.recv()).await;
        // A look that breaks off is not the last one.
        let _ = contained_now(process::reap_orphans);
    }
}
