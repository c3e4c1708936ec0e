//! What the node tells on its own host: the status and metrics on the local socket, metrics on loopback where the file
//! says so; also while the edge cannot be reached.
//!
//! Owns the status; leaves metrics to `metrics`, the socket's file and mode to `umbel_contracts::daemon`, formatting to the
//! CLI. Invariant: it holds no secret, and a caller that asks nothing costs a place for a few seconds.

use std::{io, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    sync::Semaphore,
};
use umbel_contracts::{
    daemon::{LocalListener, exposition::TextFormat},
    proto::node::{NodeInventory, NodeSettingsState, NodeTelemetry},
};

use crate::{
    core::{gpus::Shown, identity::Identity},
    shell::{
        artifacts::Artifacts, credential::Credentials, edge::Edge, engines::Engines, jobs::Jobs,
        metrics::Metrics, relay::Relay, reports::Reports,
    },
};

/// Callers at once.
const CALLERS: usize = 16;
/// A caller's request and patience.
const REQUEST_MAX: usize = 8 * 1024;
const LIMIT: Duration = Duration::from_secs(5);

/// What the socket tells of.
pub(crate) struct Admin {
    pub(crate) identity: Arc<Identity>,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) edge: Arc<Edge>,
    pub(crate) engines: Arc<Engines>,
    pub(crate) relay: Arc<Relay>,
    pub(crate) reports: Arc<Reports>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) jobs: Arc<Jobs>,
}

/// A caller's stream, of either listener.
trait Caller: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Caller for S {}

/// Where callers come from.
enum Door {
    /// The status and metrics.
    Local(LocalListener, Arc<Admin>),
    /// Metrics alone: anybody on this host may come.
    Loopback(TcpListener),
}

impl Door {
    async fn accept(&self) -> io::Result<Box<dyn Caller>> {
        Ok(match self {
            Self::Local(listener, _) => Box::new(listener.accept().await?),
            Self::Loopback(listener) => Box::new(listener.accept().await?.0),
        })
    }

    async fn serve(&self, metrics: &Arc<Metrics>) {
        let places = Arc::new(Semaphore::new(CALLERS));
        loop {
            // It is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            match self.accept().await {
                Ok(stream) => {
                    let metrics = Arc::clone(metrics);
                    let admin = match self {
                        Self::Local(_, admin) => Some(Arc::clone(admin)),
                        Self::Loopback(_) => None,
                    };
                    tokio::spawn(async move {
                        // A caller that went away needs no answer.
                        let _ = tokio::time::timeout(LIMIT, answer(stream, admin.as_deref(), &metrics)).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a caller on this host cannot be taken");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
}

/// The node's own doors. The socket's file goes with them.
pub(crate) struct Doors {
    local: Door,
    loopback: Option<Door>,
    metrics: Arc<Metrics>,
}

impl Doors {
    pub(crate) fn new(local: LocalListener, loopback: Option<TcpListener>, admin: Arc<Admin>) -> Self {
        let metrics = Arc::new(Metrics::new(&admin));
        Self { local: Door::Local(local, admin), loopback: loopback.map(Door::Loopback), metrics }
    }

    /// Answers callers of the local socket, and collectors on loopback, for ever. May be begun again.
    pub(crate) async fn serve(self: Arc<Self>) {
        let local = self.local.serve(&self.metrics);
        match &self.loopback {
            Some(door) => drop(tokio::join!(local, door.serve(&self.metrics))),
            None => local.await,
        }
    }
}

/// Without an `admin` there are only metrics.
async fn answer(mut stream: Box<dyn Caller>, admin: Option<&Admin>, metrics: &Metrics) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        request.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    let (status, content_type, body) = match admin {
        Some(admin) if request.starts_with(b"GET /api/v1/status ") => {
            ("200 OK", "application/json", admin.status().to_string())
        }
        _ if request.starts_with(b"GET /metrics ") => {
            let format = TextFormat::accepted(accepted(&request).as_deref());
            match metrics.encode(format) {
                Some(text) => ("200 OK", format.content_type(), text),
                None => ("500 Internal Server Error", format.content_type(), String::new()),
            }
        }
        _ => {
            let title = "there is GET /metrics, and on the local socket GET /api/v1/status";
            ("404 Not Found", "application/json", json!({ "title": title }).to_string())
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// The `Accept` header of a request.
fn accepted(request: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(request);
    let named = |line: &str| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("accept").then(|| value.trim().to_owned())
    };
    text.lines().skip(1).find_map(named)
}

impl Admin {
    fn status(&self) -> Value {
        let inventory = self.reports.watch().inventory();
        let telemetry = self.reports.watch().telemetry();
        let gpus: Vec<Value> = self.reports.watch().shown().iter().map(gpu).collect();
        let engines: Vec<Value> = self
            .engines
            .list()
            .iter()
            .map(|engine| {
                let (view, config) = (engine.view(), engine.in_force());
                json!({
                    "name": engine.name,
                    "kind": config.source.kind(),
                    "model": config.model,
                    "state": view.state,
                    "cause": view.cause,
                    "since": when(view.since.unix_ms()),
                    "restarts": view.restarts,
                    "in_flight": engine.in_flight(),
                    "capacity": config.capacity,
                    "waits_for_restart": engine.waits_for_restart(),
                    "output_tail": view.tail,
                })
            })
            .collect();
        let problems: Vec<Value> = self
            .reports
            .problems()
            .iter()
            .map(|problem| json!({ "code": problem.code, "message": problem.message, "since": when(problem.since_unix_ms) }))
            .collect();
        let settings = self.reports.settings().state();
        let shown = self.edge.shown();
        let credential = self.credentials.shown();
        let last_error = shown.last_error.map(|error| {
            json!({
                "step": error.step,
                "code": error.code,
                "reason": error.reason,
                "message": error.message,
                "at": when(error.at_unix_ms),
                "retry_in_ms": error.retry_in_ms,
            })
        });
        json!({
            "node_id": self.identity.node_id,
            "name": self.identity.name,
            "edge_id": self.identity.edge_id,
            "agent_version": env!("CARGO_PKG_VERSION"),
            "credential_not_after": when(credential.not_after_unix_ms),
            "credential": {
                "state": credential.state,
                "not_after": when(credential.not_after_unix_ms),
                "trusts": credential.trusts,
            },
            "connection": {
                "state": shown.state,
                "generation": shown.generation,
                "since": when(shown.since_unix_ms),
                "last_error": last_error,
            },
            "accelerator": inventory.accelerator_mode,
            "driver_version": said(&inventory.driver_version),
            "cuda_version": said(&inventory.cuda_version),
            "inventory_complete": inventory.complete,
            "inventory_incomplete_reason": said(&inventory.incomplete_reason),
            "host": host(&inventory, &telemetry),
            "gpus": gpus,
            "engines": engines,
            "streams_in_flight": self.relay.in_flight(),
            "settings_version": settings.applied_version,
            "settings": settings_object(&settings),
            "problems": problems,
        })
    }
}

/// Which settings are in force, and what became of the last ones.
fn settings_object(state: &NodeSettingsState) -> Value {
    json!({
        "applied_version": state.applied_version,
        "confirming": state.confirming,
        "refused_version": (state.refused_version > 0).then_some(state.refused_version),
        "refusal": (!state.refusal.is_empty()).then_some(&state.refusal),
        "ignored_keys": state.ignored_keys,
        "waits_for_restart": state.waits_for_restart,
    })
}

/// Processors, memory and disks.
fn host(inventory: &NodeInventory, telemetry: &NodeTelemetry) -> Value {
    let free =
        |name: &str| telemetry.storage.iter().find(|root| root.name == name).map(|root| root.free_bytes);
    let storage: Vec<Value> = inventory
        .storage
        .iter()
        .map(|root| json!({ "name": root.name, "total_bytes": root.total_bytes, "free_bytes": free(&root.name) }))
        .collect();
    json!({
        "cpu_count": inventory.cpu_count,
        "load_1m": f64::from(telemetry.load_1m_milli) / 1000.0,
        "memory_bytes": inventory.memory_bytes,
        "memory_used_bytes": telemetry.memory_used_bytes,
        "storage": storage,
    })
}

/// A GPU: what it is, what it does, how old that is. A figure that the driver does not give is null.
fn gpu(shown: &Shown) -> Value {
    let (facts, figures) = (&shown.facts, &shown.telemetry);
    let instances: Vec<Value> = facts
        .mig_instances
        .iter()
        .map(|mig| json!({ "uuid": mig.uuid, "profile": mig.profile, "memory_bytes": mig.memory_bytes }))
        .collect();
    let engines: Vec<Value> = figures
        .engines
        .iter()
        .map(|memory| json!({ "engine": memory.engine, "memory_bytes": memory.bytes }))
        .collect();
    json!({
        "uuid": facts.uuid,
        "name": facts.name,
        "index": facts.index,
        "pci_address": facts.pci_address,
        "memory_bytes": facts.memory_bytes,
        "memory_is_host": facts.memory_is_host,
        "compute_capability": said(&facts.compute_capability),
        "fabric_cluster": said(&facts.fabric_cluster),
        "fabric_clique": facts.fabric_clique,
        "mig_enabled": facts.mig_enabled,
        "mig_instances": instances,
        "state": if figures.lost { "lost" } else { "ok" },
        "lost_since": shown.lost_since_unix_ms.and_then(when),
        "seen_at": (shown.seen_unix_ms > 0).then(|| when(shown.seen_unix_ms)).flatten(),
        "age_ms": figures.age_ms,
        "utilization_percent": figures.utilization_percent,
        "memory_used_bytes": figures.memory_used_bytes,
        "temperature_celsius": figures.temperature_celsius,
        "power_milliwatts": figures.power_milliwatts,
        "sm_clock_mhz": figures.sm_clock_mhz,
        "memory_clock_mhz": figures.memory_clock_mhz,
        "throttle_reasons": figures.throttle_reasons,
        "ecc_corrected": figures.ecc_corrected,
        "ecc_uncorrected": figures.ecc_uncorrected,
        "xid_count": figures.xid_count,
        "xid_last": figures.xid_last,
        "engines": engines,
    })
}

fn said(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A time as the operator's objects have it.
fn when(unix_ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(unix_ms).ok().map(|at| at.to_string())
}
