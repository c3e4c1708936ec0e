//! The local socket: what `umbel node status` shows, also while the edge cannot be reached.
//!
//! Owns the one document behind it; leaves the socket's file and mode to `umbel_contracts::daemon`, formatting to the
//! CLI. Invariant: it holds no secret, and a caller that asks nothing costs a place for a few seconds.

use std::{io, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::Semaphore,
};
use umbel_contracts::daemon::LocalListener;

use crate::{
    core::identity::Identity,
    shell::{credential::Credentials, edge::Edge, engines::Engines, relay::Relay, reports::Reports},
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
}

/// Answers callers for ever.
pub(crate) async fn serve(listener: LocalListener, admin: Arc<Admin>) {
    let places = Arc::new(Semaphore::new(CALLERS));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let admin = Arc::clone(&admin);
                tokio::spawn(async move {
                    // A caller that went away needs no answer.
                    let _ = tokio::time::timeout(LIMIT, answer(stream, &admin)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the local socket takes no caller");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

async fn answer(mut stream: UnixStream, admin: &Admin) -> io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < REQUEST_MAX {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            break;
        }
        request.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    let (status, body) = if request.starts_with(b"GET /api/v1/status ") {
        ("200 OK", admin.status())
    } else {
        ("404 Not Found", json!({ "title": "there is only GET /api/v1/status" }))
    };
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

impl Admin {
    fn status(&self) -> Value {
        let inventory = self.reports.inventory();
        let gpus: Vec<Value> = inventory
            .gpus
            .iter()
            .map(|gpu| json!({ "uuid": gpu.uuid, "name": gpu.name, "memory_bytes": gpu.memory_bytes, "index": gpu.index }))
            .collect();
        let engines: Vec<Value> = self
            .engines
            .list()
            .iter()
            .map(|engine| {
                let view = engine.view();
                json!({
                    "name": engine.config.name,
                    "kind": engine.config.source.kind(),
                    "model": engine.config.model,
                    "state": view.state,
                    "cause": view.cause,
                    "since": when(view.since.unix_ms()),
                    "restarts": view.restarts,
                    "in_flight": engine.in_flight(),
                    "capacity": engine.config.capacity,
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
            "gpus": gpus,
            "engines": engines,
            "streams_in_flight": self.relay.in_flight(),
            "settings_version": 0,
            "problems": problems,
        })
    }
}

/// A time as the operator's objects have it.
fn when(unix_ms: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(unix_ms).ok().map(|at| at.to_string())
}
