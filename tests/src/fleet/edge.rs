//! An edge: its file, its setup, what operators and applications ask it.

#![allow(clippy::indexing_slicing, reason = "an index into a JSON value that is not there gives null")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::asking::{LIVENESS, answers, ask, command, ctl, ready, scraped, words, write};
use super::{ControlPlane, Daemon, Fleet, Ran, SOON, free_address, run};
use crate::http::{Ask, Target, Whole};
use crate::wait;

/// How an edge differs from the usual.
#[derive(Clone, Debug, Default)]
pub struct EdgeOptions {
    /// What nodes are told to dial, as a fault proxy's address; with the node port to be bound.
    pub nodes_via: Option<(SocketAddr, SocketAddr)>,
    /// Added to its file, with table headers.
    pub more: String,
    /// Added to `[listen]`.
    pub listen: String,
    /// No API key is made.
    pub no_key: bool,
    /// It has a listener for metrics.
    pub metrics: bool,
    /// Its state directory, where it is not in the fleet's.
    pub state: Option<PathBuf>,
}

/// An edge.
pub struct Edge {
    /// Its process.
    pub daemon: Daemon,
    /// The site's name.
    pub site: String,
    /// Its file.
    pub config: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// Its HTTP API for applications.
    pub api: SocketAddr,
    /// Its port for nodes.
    pub nodes: SocketAddr,
    /// Its listener for metrics, if it has one.
    pub metrics_at: Option<SocketAddr>,
    /// Its local socket.
    pub socket: PathBuf,
    /// An API key; empty when none was made.
    pub key: String,
    dir: PathBuf,
}

impl Fleet {
    /// Sets up an edge, has it join the control plane if there is one, and starts it.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    #[must_use]
    pub fn edge(&self, site: &str, plane: Option<&ControlPlane>, options: &EdgeOptions) -> Edge {
        let api = free_address();
        let (nodes, advertise) = options.nodes_via.unwrap_or_else(|| {
            let nodes = free_address();
            (nodes, nodes)
        });
        let metrics = options.metrics.then(free_address);
        let metrics_text = metrics.map(|address| address.to_string()).unwrap_or_default();
        let dir = self.dir().join(site);
        let config = dir.join("edge.toml");
        let state = options.state.clone().unwrap_or_else(|| dir.join("state"));
        write(
            &config,
            &format!(
                "[edge]\nsite = \"{site}\"\nname = \"{site}\"\nstate_dir = {state:?}\nadvertise = [\"{advertise}\"]\n\n\
                 [listen]\napi = \"{api}\"\nnodes = \"{nodes}\"\nmetrics = \"{metrics_text}\"\n{}\n{LIVENESS}\n{}",
                options.listen, options.more
            ),
        );
        let path = config.to_string_lossy().into_owned();
        let _ = run(&["edge", "init", "--site", site, "--config", &path]).ok();
        let daemon = Daemon::new(&format!("edge-{site}"), self.dir(), words(&["edge", "--config"], &config));
        let socket = state.join("edge.sock");
        let mut edge = Edge {
            daemon,
            site: site.to_owned(),
            config,
            state,
            api,
            nodes,
            metrics_at: metrics,
            socket,
            key: String::new(),
            dir: self.dir().to_path_buf(),
        };
        if let Some(plane) = plane {
            edge.join(plane);
        }
        edge.start();
        if !options.no_key {
            edge.key = edge.ctl(&["key", "create", "app"]).ok().out.trim().to_owned();
        }
        edge
    }
}

impl Edge {
    /// Mints a token at the control plane and enrolls with it.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    pub fn join(&self, plane: &ControlPlane) {
        let token = self.dir.join(format!("{}.token", self.site));
        let _ = plane.ctl(&["edge", "token", "create", &self.site, "--out", &token.to_string_lossy()]).ok();
        let _ = run(&[
            "edge",
            "enroll",
            "--config",
            &self.config.to_string_lossy(),
            "--token-file",
            &token.to_string_lossy(),
        ])
        .ok();
    }

    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn start(&mut self) {
        self.daemon.start();
        let (socket, api) = (self.socket.clone(), self.target());
        ready(&mut self.daemon, "the edge answers", || {
            answers(&socket, "/api/v1/status")?;
            Ask::get("/livez").limit(Duration::from_secs(5)).whole(&api).map(drop).map_err(|e| e.to_string())
        });
    }

    /// `umbel ctl` at its socket.
    pub fn ctl(&self, words: &[&str]) -> Ran {
        ctl(&self.socket, words)
    }

    /// GET at its socket.
    #[track_caller]
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        ask(&self.socket, &Ask::get(path)).json()
    }

    /// A command at its own socket.
    #[track_caller]
    #[must_use]
    pub fn command(&self, id: &str, operation: &str, selector: &str, args: &Value) -> Whole {
        ask(&self.socket, &command(&self.site, id, operation, selector, args))
    }

    /// Its application API.
    #[must_use]
    pub fn target(&self) -> Target {
        Target::Tcp(self.api)
    }

    /// Its metrics; empty without a listener for them.
    #[track_caller]
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics_at.map_or_else(String::new, |at| scraped(&Target::Tcp(at)))
    }

    /// Its nodes, as its API shows them.
    #[track_caller]
    #[must_use]
    pub fn nodes(&self) -> Vec<Value> {
        self.get("/api/v1/nodes")["items"].as_array().cloned().unwrap_or_default()
    }

    /// One node by name; null when there is none.
    #[track_caller]
    #[must_use]
    pub fn node(&self, name: &str) -> Value {
        self.nodes().into_iter().find(|n| n["name"] == name).unwrap_or_default()
    }

    /// Waits until a node is as wanted.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn wait_node(&self, name: &str, what: &str, limit: Duration, fits: impl Fn(&Value) -> bool) -> Value {
        wait::until_some(&format!("{name} is {what}"), limit, || {
            let node = self.node(name);
            if fits(&node) { Ok(node) } else { Err(node.to_string()) }
        })
    }

    /// Waits until a node is connected and all its providers are available.
    ///
    /// # Panics
    /// When that does not come.
    #[track_caller]
    pub fn wait_serving(&self, name: &str) -> Value {
        self.wait_node(name, "serving", SOON, |n| {
            let providers = n["providers"].as_array().cloned().unwrap_or_default();
            n["connected"] == true
                && !providers.is_empty()
                && providers.iter().all(|p| p["status"] == "available")
        })
    }

    /// All leases held now, over its nodes' providers.
    #[track_caller]
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let nodes = self.nodes();
        let providers = nodes.iter().flat_map(|n| n["providers"].as_array().cloned().unwrap_or_default());
        providers.filter_map(|p| p["in_flight"].as_u64()).sum()
    }

    /// Waits until no lease is held.
    ///
    /// # Panics
    /// When one stays.
    #[track_caller]
    pub fn wait_idle(&self, limit: Duration) {
        wait::until_some("no lease is held", limit, || match self.in_flight() {
            0 => Ok(()),
            n => Err(format!("{n} in flight")),
        });
    }

    /// A chat completion.
    #[must_use]
    pub fn chat(&self, model: &str, mark: &str, stream: bool, script: &Value) -> Ask {
        let body = json!({
            "model": model, "stream": stream, "messages": [{"role": "user", "content": mark}], "x_script": script,
        });
        let ask = Ask::post("/v1/chat/completions", body.to_string());
        if self.key.is_empty() { ask } else { ask.bearer(&self.key) }
    }

    /// Mints a token for a node into a file.
    ///
    /// # Panics
    /// When that fails.
    #[track_caller]
    #[must_use]
    pub fn token(&self, name: &str) -> PathBuf {
        let token = self.dir.join(format!("{}-{name}-{}.token", self.site, uuid::Uuid::new_v4().simple()));
        let _ = self.ctl(&["token", "create", name, "--eligible", "--out", &token.to_string_lossy()]).ok();
        token
    }
}
