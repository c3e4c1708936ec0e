//! Builds every part of the control plane, runs it, and drains it.
//!
//! Order: settings, state directory, listeners (so that a port in use is told before anything starts), store, parts.
//! Drain: ready turns off, edges are told (GOAWAY shutdown), answers finish, connections close, the store is closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use umbel_contracts::daemon::exposition::Vitals;
use umbel_contracts::daemon::{LocalListener, Signals, bind, bind_if_on, memory, raise_descriptors};
use umbel_contracts::serve::{Door, measured, router, serve_local, serve_plain, serve_tls};
use umbel_store::{HighWater, Store};
use umbel_wire::ids::Generation;
use umbel_wire::{CloseReason, Connection, GoawayReason, files};

use crate::http::api::Api;
use crate::http::metrics;
use crate::init::{STORE_FILE, STORE_OWNER};
use crate::shell::authority::{Keys, ca_dir};
use crate::shell::edges::EdgeDoor;
use crate::shell::plane::{Plane, Settings};
use crate::shell::vitals::Own;
use crate::{Config, StartError};

/// Generations set aside for one process: more connections than it will ever accept.
const GENERATIONS: u64 = 1 << 32;
/// For farewells and the store at the very end.
const CLOSING: Duration = Duration::from_secs(3);
/// Edges whose other addresses are tried come back here after this.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs the control plane until SIGTERM or SIGINT and the drain after it. Builds its own runtime; blocks.
///
/// # Errors
/// What kept it from starting: [`StartError::exit_code`] says with which code to exit.
pub fn run(config: Config) -> Result<(), StartError> {
    raise_descriptors();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| StartError::Failed(format!("cannot start a runtime: {error}")))?;
    runtime.block_on(async {
        memory::keep_small();
        let signals = Signals::take()?;
        let running = Running::build(&config).await?;
        let api = running.api_address.map_or_else(|| "off".to_owned(), |address| address.to_string());
        tracing::info!(name = %config.name, edges = %running.edges_address, %api, "serving");
        let parts = running.plane.parts.clone();
        signals.drained(parts.over(), || config.drain, |grace| running.drain(grace)).await
    })
}

/// A control plane that serves. [`run`] is this and the signals; programs that hold one themselves use it directly.
pub struct Running {
    plane: Arc<Plane>,
    edges_address: SocketAddr,
    api_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    /// The listeners of operators: they end when the drain begins and their answers are out.
    serving: JoinSet<()>,
}

/// What is bound before anything is started.
struct Listeners {
    edges: TcpListener,
    api: Option<TcpListener>,
    metrics: Option<TcpListener>,
    local: LocalListener,
}

impl Running {
    /// Where edges connect.
    #[must_use]
    pub fn edges_address(&self) -> SocketAddr {
        self.edges_address
    }

    /// Where operators connect; absent when off.
    #[must_use]
    pub fn api_address(&self) -> Option<SocketAddr> {
        self.api_address
    }

    /// Where metrics and health are; absent when off.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The one place where parts are put together. Serves on the current runtime from then on.
    ///
    /// # Errors
    /// What kept it from starting; nothing of it is left then.
    pub async fn build(config: &Config) -> Result<Self, StartError> {
        let state = config.state_dir.as_path();
        if !ca_dir(config).exists() {
            return Err(StartError::State(format!(
                "{} is not initialised: run `umbel control-plane init` with the same --config first.",
                state.display()
            )));
        }
        files::private_dir(state)
            .map_err(|error| StartError::State(format!("{}: {error}", state.display())))?;
        let keys = Keys::open(config, umbel_wire::clock::Wall::now())?;
        let listeners = Listeners::bind(config).await?;
        let store = Store::open_rescuing(&state.join(STORE_FILE), STORE_OWNER)
            .map_err(|error| StartError::State(error.to_string()))?;
        let generations = HighWater::open(&store, "generation", GENERATIONS)
            .await
            .map_err(|error| StartError::State(error.to_string()))?;
        let plane = Plane::load(Settings::of(config), store, keys, Generation(generations.take())).await?;
        if plane.operators().active() == 0 {
            tracing::warn!("no operator token is configured: the API refuses everybody but the local socket");
        }
        let own = Own { plane: Arc::downgrade(&plane), store: state.join(STORE_FILE) };
        plane.metrics.register(|to| {
            to.register_collector(Box::new(Vitals::new("control_plane")));
            to.register_collector(Box::new(own));
        });
        Self::start(plane, listeners)
    }

    fn start(plane: Arc<Plane>, listeners: Listeners) -> Result<Self, StartError> {
        let Listeners { edges, api, metrics, local } = listeners;
        let address = |listener: &TcpListener| {
            listener
                .local_addr()
                .map_err(|error| StartError::Failed(format!("cannot name a listener: {error}")))
        };
        let edges_address = address(&edges)?;
        let api_address = api.as_ref().map(address).transpose()?;
        let metrics_address = metrics.as_ref().map(address).transpose()?;
        let drain = plane.drain.clone();
        let parts = &plane.parts;
        let mut serving = JoinSet::new();
        let (watched, broken) = (parts.clone(), plane.store().clone());
        let ends = drain.clone();
        serving.spawn(async move {
            if let Some(thread) = ends.run_until_cancelled(broken.broke()).await {
                watched.ended(thread);
            }
        });
        let fleet = Arc::new(Api(Arc::clone(&plane)));
        if let Some(listener) = api {
            let router = told(router(Arc::clone(&fleet), Door::Network), &plane);
            let work = serve_tls(listener, Arc::clone(&plane.keys.api), router, drain.clone());
            serving.spawn(parts.clone().vital("operators' port", drain.clone(), work));
        }
        let work = serve_local(local, told(router(fleet, Door::Local), &plane), drain.clone());
        serving.spawn(parts.clone().vital("local socket", drain.clone(), work));
        if let Some(listener) = metrics {
            let work = serve_plain(listener, metrics::router(Arc::clone(&plane)), drain.clone());
            serving.spawn(parts.clone().vital("metrics' port", drain.clone(), work));
        }
        let door = Arc::new(EdgeDoor(Arc::clone(&plane)));
        let work = umbel_wire::serve(edges, Arc::clone(&plane.keys.edges), door, drain.clone());
        serving.spawn(parts.clone().vital("edges' port", drain.clone(), work));
        let watched = Arc::clone(&plane);
        serving.spawn(parts.clone().kept("certificates", move || {
            let (watched, drain) = (Arc::clone(&watched), drain.clone());
            async move { watched.keys.watch(drain).await }
        }));
        let kept = Arc::clone(&plane);
        serving.spawn(parts.clone().kept("liveness", move || Arc::clone(&kept).sweep()));
        let kept = Arc::clone(&plane);
        serving.spawn(parts.clone().kept("places of audits", move || Arc::clone(&kept).keep_places()));
        Ok(Self { plane, edges_address, api_address, metrics_address, serving })
    }

    /// Ends everything in order, within `time` and a little for the farewells.
    pub async fn drain(mut self, time: Duration) {
        self.plane.drain.cancel();
        self.plane.events.close();
        self.plane.commands_moved();
        let connections = self.connections();
        for connection in &connections {
            connection.goaway(GoawayReason::Shutdown, "The control plane ends.", Some(RETRY_AFTER));
        }
        let finished = async {
            while self.serving.join_next().await.is_some() {}
            for connection in &connections {
                connection.drained().await;
            }
        };
        if tokio::time::timeout(time, finished).await.is_err() {
            tracing::warn!("the drain's time is over; what still runs is ended");
        }
        let closing = async {
            for connection in self.connections() {
                connection.close(CloseReason::Shutdown);
                connection.gone().await;
            }
            self.plane.close_places().await;
            self.plane.observed.flush(umbel_wire::clock::now()).await;
            self.plane.store().close().await;
        };
        if tokio::time::timeout(CLOSING, closing).await.is_err() {
            tracing::warn!("some connections did not end in time");
        }
    }

    fn connections(&self) -> Vec<Connection> {
        self.plane.fleet().slots.owners().map(|(_, owner)| owner.handle.clone()).collect()
    }
}

/// Routes whose answers are counted.
fn told(routes: Router, plane: &Arc<Plane>) -> Router {
    let plane = Arc::clone(plane);
    measured(routes, move |answered| plane.metrics.answered(answered))
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, StartError> {
        let api = bind_if_on("listen.api", config.api).await?;
        let metrics = bind_if_on("listen.metrics", config.metrics).await?;
        let edges = bind("listen.edges", config.edges).await?;
        Ok(Self { edges, api, metrics, local: LocalListener::bind(&config.socket)? })
    }
}
