//! A control plane in a directory of its own, on ports that the kernel chose.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tempfile::TempDir;
use umbel_control_plane::{Config, Running, init};
use umbel_wire::secret::Secret;
use umbel_wire::tls::parse_chain;
use umbel_wire::token::{BearerKind, mint_bearer, new_id};

use crate::client::{Answer, Ask, Events, local, stream_tls, tls};

/// Longest wait for anything: only a failing test ever takes it.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits for a future, with the limit.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("it happens within the limit")
}

/// Waits until a condition holds, asked anew every few milliseconds.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let end = tokio::time::Instant::now() + LIMIT;
    while !condition().await {
        assert!(tokio::time::Instant::now() < end, "{what} within the limit");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A control plane that runs.
pub(crate) struct Plane {
    pub(crate) running: Option<Running>,
    pub(crate) config: Config,
    pub(crate) ca: CertificateDer<'static>,
    pub(crate) ca_digest: [u8; 32],
    pub(crate) admin: String,
    _dir: Arc<TempDir>,
}

/// The file of a control plane with its state in `dir`.
pub(crate) fn file(dir: &Path, more: &str) -> String {
    format!(
        "[control_plane]\nname = \"cp\"\nfleet_name = \"test\"\nstate_dir = \"{0}/state\"\nadvertise = [\"127.0.0.1:7441\"]\n\
         [listen]\napi = \"127.0.0.1:0\"\nedges = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\nsocket = \"{0}/cp.sock\"\n{more}",
        dir.display()
    )
}

/// A new control plane; `more` is added to its file.
pub(crate) async fn plane_with(more: &str) -> Plane {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let config = Config::parse(&file(dir.path(), more), Path::new("cp.toml")).unwrap();
    let made = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || init(&config).unwrap()).await.unwrap()
    };
    let ca = parse_chain(&std::fs::read(&made.ca_file).unwrap()).unwrap().remove(0);
    let admin = std::fs::read_to_string(&made.token_file).unwrap().trim().to_owned();
    let ca_digest = umbel_wire::ca::certificate_digest(&ca);
    let running = Some(Running::build(&config).await.unwrap());
    Plane { running, config, ca, ca_digest, admin, _dir: dir }
}

/// A new control plane with a short deadline for statuses.
pub(crate) async fn plane() -> Plane {
    plane_with("[status]\ndeadline = \"300ms\"\n").await
}

impl Plane {
    pub(crate) fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.config.socket.clone()
    }

    /// Ends it and starts it anew with the same state.
    pub(crate) async fn restart(&mut self) {
        self.running.take().unwrap().drain(Duration::from_secs(5)).await;
        self.running = Some(Running::build(&self.config).await.unwrap());
    }

    /// Asks over the local socket.
    pub(crate) async fn ask(&self, ask: Ask<'_>) -> Answer {
        local(&self.config.socket, ask).await
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.ask(Ask::get(path)).await.ok()
    }

    /// Asks over TLS with a token.
    pub(crate) async fn ask_tls(&self, ask: Ask<'_>) -> Answer {
        let config = umbel_wire::tls::api_client(std::slice::from_ref(&self.ca)).unwrap();
        tls(self.running().api_address().unwrap(), config, ask).await
    }

    /// Opens an event stream over TLS with a token.
    pub(crate) async fn stream_tls(&self, ask: Ask<'_>) -> Events {
        let config = umbel_wire::tls::api_client(std::slice::from_ref(&self.ca)).unwrap();
        stream_tls(self.running().api_address().unwrap(), config, ask).await
    }

    /// Mints an edge's enrollment token.
    pub(crate) async fn mint(&self, edge_id: &str) -> (String, Secret) {
        let secret = Secret::generate();
        let token_id = new_id();
        let body = json!({"token_id": token_id, "secret_sha256": secret.hash().to_hex(), "edge_id": edge_id});
        let made = self.ask(Ask::post("/api/v1/edge-enrollments", body)).await.ok();
        assert_eq!(made["addresses"], json!(["127.0.0.1:7441"]));
        (token_id, secret)
    }

    /// Adds an operator and gives his token.
    pub(crate) async fn operator(&self, role: &str) -> String {
        let (operator_id, token, hash) = mint_bearer(BearerKind::OperatorToken);
        let body =
            json!({"operator_id": operator_id, "secret_sha256": hash.to_hex(), "name": role, "role": role});
        self.ask(Ask::post("/api/v1/operators", body)).await.ok();
        token.expose().to_owned()
    }

    /// The audit, newest first, as `action outcome`.
    pub(crate) async fn audit(&self) -> Vec<String> {
        let page = self.get("/api/v1/audit?limit=1000").await;
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_owned();
        let items = page["items"].as_array().unwrap();
        items.iter().map(|entry| format!("{} {}", text(entry, "action"), text(entry, "outcome"))).collect()
    }

    /// The freshness of a site in the fleet's status.
    pub(crate) async fn freshness(&self, edge_id: &str) -> String {
        let status = self.get("/api/v1/status").await;
        let sites = status["sites"].as_array().unwrap();
        let site = sites.iter().find(|site| site["edge_id"] == edge_id).unwrap();
        site["freshness"].as_str().unwrap().to_owned()
    }
}
