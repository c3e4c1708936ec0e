//! Builds every part of the edge, runs it, and drains it.
//!
//! Order: state directory, certificates, listeners (so that a port in use is told before anything starts), store,
//! parts. Drain: ready turns off, nodes and control planes are told (GOAWAY shutdown), running streams finish,
//! connections close, the store is closed. Invariant: nothing is served before the stored site is whole in memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use umbel_contracts::daemon::exposition::Vitals;
use umbel_contracts::daemon::{
    LocalListener, Signals, bind, bind_if_on, memory, raise_descriptors, set_log_level,
};
use umbel_contracts::serve::{Door, router, serve_local};
use umbel_store::{OpenError, Store};
use umbel_wire::clock::Wall;
use umbel_wire::liveness::Times;
use umbel_wire::{CloseReason, Connection, GoawayReason, files, tls::TlsServer};

use crate::http::{Front, FrontOptions, serve, serve_metrics, serve_tls};
use crate::metrics::Metrics;
use crate::shell::admin::Admin;
use crate::shell::authority::{Certificates, ca_dir};
use crate::shell::backups;
use crate::shell::commands::Commands;
use crate::shell::control;
use crate::shell::deployments;
use crate::shell::dispatch::{Dispatch, Limits};
use crate::shell::events::Happened;
use crate::shell::gauges::Gauges;
use crate::shell::jobs;
use crate::shell::keys::Keys;
use crate::shell::nodes::{NodeDoor, keep_credentials};
use crate::shell::settings::{self, Settings};
use crate::shell::site::{Opening, Site};
use crate::shell::vitals::Own;
use crate::{Config, StartError};

/// File of the store in the state directory.
pub(crate) const STORE_FILE: &str = "store.redb";
/// Whose the store is.
pub(crate) const STORE_OWNER: &str = "edge";
/// Directory of the joined control planes in the state directory.
pub(crate) const CONTROL_PLANES: &str = "control-planes";
/// For farewells and the store at the very end.
const CLOSING: Duration = Duration::from_secs(3);
/// Nodes whose other addresses are tried come back here after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs the edge until SIGTERM or SIGINT and the drain after it. Builds its own runtime; blocks.
///
/// # Errors
/// What kept it from starting: [`StartError::exit_code`] says with which code to exit.
pub fn run(config: Config) -> Result<(), StartError> {
    // One thread: two that share the work take an eighth to a half more of it (BENCHMARKS.md).
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::Failed(format!("cannot start a runtime: {error}")))?;
    runtime.block_on(async {
        memory::keep_small();
        let signals = Signals::take()?;
        let running = Running::build(&config).await?;
        let api = running.api_address.map_or_else(|| "off".to_owned(), |address| address.to_string());
        tracing::info!(site = %config.site, nodes = %running.nodes_address, %api, "serving");
        let site = Arc::clone(&running.site);
        let parts = site.parts.clone();
        signals.drained(parts.over(), || site.settings.in_force().drain, |grace| running.drain(grace)).await
    })
}

/// Every part, built and serving.
pub(crate) struct Running {
    pub(crate) site: Arc<Site>,
    pub(crate) commands: Arc<Commands>,
    pub(crate) front: Arc<Front>,
    pub(crate) nodes_address: SocketAddr,
    pub(crate) api_address: Option<SocketAddr>,
    // The nodes' port, the local socket and the links to control planes: they end when the drain begins.
    shutdown: CancellationToken,
    serving: JoinSet<()>,
    // The applications' listeners: they stay until the last request has ended, so that newcomers are told why.
    closing: CancellationToken,
    fronts: JoinSet<()>,
    // Keepers: they end with the process.
    keeping: JoinSet<()>,
}

/// What is bound before anything is started.
struct Listeners {
    nodes: TcpListener,
    api: Option<TcpListener>,
    https: Option<TcpListener>,
    metrics: Option<TcpListener>,
    local: LocalListener,
}

/// What listeners serve.
struct Served {
    site: Arc<Site>,
    commands: Arc<Commands>,
    front: Arc<Front>,
    certificates: Certificates,
    control_planes: std::path::PathBuf,
}

impl Running {
    /// The one place where parts are put together.
    pub(crate) async fn build(config: &Config) -> Result<Self, StartError> {
        let state = config.state_dir.as_path();
        if !ca_dir(config).exists() {
            return Err(StartError::State(format!(
                "{} is not initialised: run `umbel edge init` with the same --config first.",
                state.display()
            )));
        }
        files::private_dir(state)
            .map_err(|error| StartError::State(format!("{}: {error}", state.display())))?;
        Self::build_on(config, || Store::open_rescuing(&state.join(STORE_FILE), STORE_OWNER)).await
    }

    /// The same on a store that a test can make fail.
    pub(crate) async fn build_on(
        config: &Config,
        open: impl FnOnce() -> Result<Store, OpenError>,
    ) -> Result<Self, StartError> {
        let certificates = Certificates::open(config)?;
        let listeners = Listeners::bind(config).await?;
        let store = open().map_err(|error| StartError::State(error.to_string()))?;
        let served = Served::open(config, store, certificates).await?;
        Self::start(served, listeners)
    }

    fn start(served: Served, listeners: Listeners) -> Result<Self, StartError> {
        let Served { site, commands, front, certificates, control_planes } = served;
        let Listeners { nodes, api, https, metrics, local } = listeners;
        let address = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_err(|error| StartError::Failed(format!("cannot name a listener: {error}")))
        };
        let nodes_address = address(&nodes)?;
        let api_address = api.as_ref().map(address).transpose()?;
        let (shutdown, closing) = (CancellationToken::new(), CancellationToken::new());
        let mut serving = JoinSet::new();
        let mut fronts = JoinSet::new();
        let mut keeping = JoinSet::new();
        let parts = &site.parts;
        let (watched, broken) = (parts.clone(), site.store.clone());
        keeping.spawn(async move { watched.ended(broken.broke().await) });
        let kept = Arc::clone(&site);
        keeping.spawn(parts.clone().kept("admission", move || Arc::clone(&kept.dispatch).run()));
        let kept = Arc::clone(&site);
        keeping.spawn(parts.clone().kept("liveness", move || Arc::clone(&kept).keep()));
        let kept = Arc::clone(&site);
        keeping.spawn(parts.clone().kept("settings", move || settings::keep(Arc::clone(&kept))));
        let kept = Arc::clone(&site);
        keeping.spawn(parts.clone().kept("jobs", move || jobs::keep(Arc::clone(&kept))));
        // Before the first request is taken: what is wanted is known, whatever nodes have said yet.
        deployments::expect(&site);
        let kept = Arc::clone(&site);
        keeping.spawn(parts.clone().kept("deployments", move || deployments::keep(Arc::clone(&kept))));
        let kept = Arc::clone(&commands.keys);
        keeping.spawn(parts.clone().kept("keys", move || Arc::clone(&kept).keep()));
        if let Some(listener) = api {
            let work = serve(listener, Arc::clone(&front), closing.clone());
            fronts.spawn(parts.clone().vital("applications' port", closing.clone(), work));
        }
        if let (Some(listener), Some(tls)) = (https, certificates.front()) {
            let work = serve_tls(listener, tls, Arc::clone(&front), closing.clone());
            fronts.spawn(parts.clone().vital("applications' TLS port", closing.clone(), work));
        }
        if let Some(listener) = metrics {
            // Told to the last: a scrape during the drain shows how it goes.
            let never = CancellationToken::new();
            let work = serve_metrics(listener, Arc::clone(&front), never.clone());
            keeping.spawn(parts.clone().vital("metrics' port", never, work));
        }
        let tls: Arc<TlsServer> = Arc::clone(certificates.authorities.nodes());
        let door = NodeDoor { site: Arc::clone(&site) };
        let work = umbel_wire::serve(nodes, tls, Arc::new(door), shutdown.clone());
        serving.spawn(parts.clone().vital("nodes' port", shutdown.clone(), work));
        let admin = Arc::new(Admin { commands: Arc::clone(&commands) });
        let work = serve_local(local, router(admin, Door::Local), shutdown.clone());
        serving.spawn(parts.clone().vital("local socket", shutdown.clone(), work));
        let (linked, ends) = (Arc::clone(&commands), shutdown.clone());
        serving.spawn(parts.clone().kept("control planes", move || {
            control::keep(Arc::clone(&linked), control_planes.clone(), ends.clone())
        }));
        let work = certificates.watch(Arc::clone(&site), shutdown.clone());
        keeping.spawn(parts.clone().vital("certificates", shutdown.clone(), work));
        let (kept, ends) = (Arc::clone(&site), shutdown.clone());
        keeping.spawn(
            parts.clone().kept("credentials", move || keep_credentials(Arc::clone(&kept), ends.clone())),
        );
        site.events.tell(Happened {
            kind: "edge_started",
            message: format!("version {}", env!("CARGO_PKG_VERSION")),
            ..Happened::default()
        });
        Ok(Self {
            site,
            commands,
            front,
            nodes_address,
            api_address,
            shutdown,
            serving,
            closing,
            fronts,
            keeping,
        })
    }

    /// Ends everything in order, within `time` and a little for the farewells.
    pub(crate) async fn drain(mut self, time: Duration) {
        self.front.drain();
        self.site.events.tell(Happened {
            kind: "edge_stopping",
            message: "running requests finish, new ones are refused".to_owned(),
            ..Happened::default()
        });
        let nodes = self.connections();
        for connection in &nodes {
            connection.goaway(GoawayReason::Shutdown, "the edge ends", Some(RETRY_AFTER));
        }
        self.site.events.ring().close();
        self.shutdown.cancel();
        let site = Arc::clone(&self.site);
        let finished = async {
            site.dispatch.idle().await;
            while self.serving.join_next().await.is_some() {}
        };
        if tokio::time::timeout(time, finished).await.is_err() {
            tracing::warn!("the drain's time is over; what still runs is ended");
        }
        // What waits is told why, then what runs.
        self.front.end();
        let nodes = self.connections();
        for connection in &nodes {
            connection.close(CloseReason::Shutdown);
        }
        // Streams that were cut get their error event before their connections close.
        self.closing.cancel();
        let ended = async {
            while self.fronts.join_next().await.is_some() {}
            for connection in &nodes {
                connection.gone().await;
            }
        };
        if tokio::time::timeout(CLOSING, ended).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
        // Whoever does not end: what was used and seen is written.
        let flushed = async {
            self.site.flush().await;
            self.commands.keys.flush().await;
            self.site.observed.flush(umbel_wire::clock::now()).await;
            self.site.store.close().await;
        };
        if tokio::time::timeout(CLOSING, flushed).await.is_err() {
            tracing::warn!("the last of what was used and seen could not be written in time");
        }
        self.keeping.shutdown().await;
    }

    /// Ends as kill -9 does, as far as one process can: nothing is flushed and nobody is told.
    #[cfg(test)]
    pub(crate) async fn crash(mut self) {
        self.site.store.close().await;
        self.serving.shutdown().await;
        self.fronts.shutdown().await;
        self.keeping.shutdown().await;
        for connection in self.connections() {
            connection.close(CloseReason::Truncated);
        }
    }

    fn connections(&self) -> Vec<Connection> {
        self.site.read(|registry| registry.slots.owners().map(|(_, owner)| owner.handle.clone()).collect())
    }
}

impl Served {
    async fn open(file: &Config, store: Store, certificates: Certificates) -> Result<Self, StartError> {
        let state = |error: umbel_wire::Error| StartError::State(error.message);
        let settings = Settings::load(store.clone(), file.clone())
            .await
            .map_err(|error| StartError::State(error.to_string()))?;
        let config = settings.in_force();
        store.keep_audit(config.audit.max_entries, config.audit.keep);
        if let Err(error) = set_log_level(&config.log.level) {
            tracing::warn!(%error, "the log's level could not be set");
        }
        let metrics = Arc::new(Metrics::new());
        let limits = Limits {
            waiting: usize::try_from(config.queue.max_requests).unwrap_or(usize::MAX),
            max_wait: config.queue.max_wait,
            max_wait_loading: config.queue.max_wait_loading,
            ..Limits::default()
        };
        // Above every lease of an earlier process, as long as the clock does not go back by years.
        let first_lease = u64::try_from(Wall::now().unix_ms()).unwrap_or(0) << 20;
        let dispatch = Dispatch::new(limits, first_lease, Arc::clone(&metrics));
        let keys = Keys::load(store.clone()).await.map_err(|error| StartError::State(error.to_string()))?;
        let times = Times::new(config.liveness.stale, config.liveness.offline).map_err(StartError::Config)?;
        let site = Site::open(Opening {
            edge_id: config.site.clone(),
            name: config.name.clone(),
            advertise: config.advertise.clone(),
            store,
            backups: backups::folder(&config),
            dispatch: Arc::clone(&dispatch),
            times,
            heartbeat: config.liveness.heartbeat,
            authorities: Arc::clone(&certificates.authorities),
            settings,
        })
        .await
        .map_err(state)?;
        let gauges = Gauges { site: Arc::downgrade(&site) };
        let own = Own { site: Arc::downgrade(&site), keys: Arc::downgrade(&keys) };
        let deployments = deployments::gauges::Gauges { site: Arc::downgrade(&site) };
        let jobs = jobs::gauges::Gauges { site: Arc::downgrade(&site) };
        metrics.register(|to| {
            to.register_collector(Box::new(Vitals::new("edge")));
            to.register_collector(Box::new(own));
            to.register_collector(Box::new(gauges));
            to.register_collector(Box::new(deployments));
            to.register_collector(Box::new(jobs));
        });
        let commands = Commands::open(Arc::clone(&site), Arc::clone(&keys)).await.map_err(state)?;
        let options = FrontOptions {
            body_max: usize::try_from(config.api.body_max).unwrap_or(usize::MAX),
            held_max: config.api.held_max,
            stream_usage: config.api.stream_usage,
            keepalive: config.api.keepalive,
            first_byte_timeout: config.upstream.first_byte_timeout,
            idle_timeout: config.upstream.idle_timeout,
            connections: FrontOptions::connections_within(raise_descriptors()),
            parts: site.parts.clone(),
            ..FrontOptions::default()
        };
        let front = Front::new(dispatch, keys, metrics, options);
        site.settings.serve(&front);
        let control_planes = config.state_dir.join(CONTROL_PLANES);
        Ok(Self { site, commands, front, certificates, control_planes })
    }
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, StartError> {
        let listen = &config.listen;
        Ok(Self {
            nodes: bind("listen.nodes", listen.nodes).await?,
            api: bind_if_on("listen.api", listen.api).await?,
            https: bind_if_on("listen.api_https", listen.api_https).await?,
            metrics: bind_if_on("listen.metrics", listen.metrics).await?,
            local: LocalListener::bind(&listen.socket)?,
        })
    }
}
