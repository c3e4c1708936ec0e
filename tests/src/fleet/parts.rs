//! The three tiers as tests see them: their files, how they are set up, and what they are asked.
//!
//! Times are short on purpose (heartbeat 1 s, stale 3 s, offline 10 s), as the fault catalogue scales them.

#![allow(clippy::indexing_slicing, reason = "an index into a JSON value that is not there gives null")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Daemon, Fleet, Ran, SOON, START, free_address, run};
use crate::http::{Ask, Target, Whole};
use crate::wait;

const LIVENESS: &str = "[liveness]\nheartbeat = \"1s\"\nstale = \"3s\"\noffline = \"10s\"\n\n[log]\nlevel = \"debug\"\n";

#[allow(clippy::expect_used, reason = "a rig that cannot write its files fails its test")]
fn write(path: &Path, text: &str) {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).expect("a directory");
    }
    fs::write(path, text).expect("a file");
}

/// Asks an operator API over its Unix socket.
///
/// # Panics
/// When it cannot be reached.
#[track_caller]
#[allow(clippy::panic, reason = "an API that does not answer fails its test")]
fn ask(socket: &Path, ask: &Ask) -> Whole {
    let target = Target::Unix(socket.to_path_buf());
    ask.whole(&target).unwrap_or_else(|e| panic!("{} does not answer: {e}", socket.display()))
}

fn answers(socket: &Path, path: &str) -> Result<Value, String> {
    let target = Target::Unix(socket.to_path_buf());
    let whole = Ask::get(path).limit(Duration::from_secs(10)).whole(&target).map_err(|e| e.to_string())?;
    if whole.status == 200 { Ok(whole.json()) } else { Err(format!("{}: {}", whole.status, whole.text())) }
}

#[track_caller]
fn ready(daemon: &mut Daemon, what: &str, mut look: impl FnMut() -> Result<(), String>) {
    wait::until_some(what, START, || {
        assert!(daemon.is_running(), "{what}: it ended at once:\n{}", daemon.log());
        look()
    });
}

/// A control plane.
pub struct ControlPlane {
    /// Its process.
    pub daemon: Daemon,
    /// Its file.
    pub config: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
    /// Its HTTPS API.
    pub api: SocketAddr,
    /// Its port for edges.
    pub edges: SocketAddr,
    /// Its local socket.
    pub socket: PathBuf,
}

impl Fleet {
    /// Sets one up and starts it.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    #[must_use]
    pub fn control_plane(&self) -> ControlPlane {
        self.control_plane_via(None)
    }

    /// The same; edges are told another address, as that of a fault proxy.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    #[must_use]
    pub fn control_plane_via(&self, advertise: Option<SocketAddr>) -> ControlPlane {
        let (api, edges) = (free_address(), free_address());
        let dir = self.dir().join("cp");
        let (config, state) = (dir.join("control-plane.toml"), dir.join("state"));
        write(
            &config,
            &format!(
                "[control_plane]\nname = \"cp\"\nfleet_name = \"test\"\nstate_dir = {state:?}\nadvertise = [\"{}\"]\n\n\
                 [listen]\napi = \"{api}\"\nedges = \"{edges}\"\nmetrics = \"\"\n\n{LIVENESS}",
                advertise.unwrap_or(edges)
            ),
        );
        let _ = run(&["control-plane", "init", "--config", &config.to_string_lossy()]).ok();
        let daemon = Daemon::new("control-plane", self.dir(), words(&["control-plane", "--config"], &config));
        let socket = state.join("control-plane.sock");
        let mut plane = ControlPlane { daemon, config, state, api, edges, socket };
        plane.start();
        plane
    }
}

fn words(words: &[&str], path: &Path) -> Vec<String> {
    words.iter().map(|w| (*w).to_owned()).chain([path.to_string_lossy().into_owned()]).collect()
}

impl ControlPlane {
    /// Starts it and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    pub fn start(&mut self) {
        self.daemon.start();
        let socket = self.socket.clone();
        ready(&mut self.daemon, "the control plane answers", || answers(&socket, "/api/v1/status").map(drop));
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

    /// A command for an edge.
    #[track_caller]
    #[must_use]
    pub fn command(&self, edge: &str, id: &str, operation: &str, selector: &str, args: &Value) -> Whole {
        ask(&self.socket, &command(edge, id, operation, selector, args))
    }

    /// One site of the fleet status.
    #[track_caller]
    #[must_use]
    pub fn site(&self, edge: &str) -> Value {
        let status = self.get("/api/v1/status");
        let sites = status["sites"].as_array().cloned().unwrap_or_default();
        sites.into_iter().find(|s| s["edge_id"] == edge).unwrap_or_default()
    }

    /// Waits until the status of this edge is fresh.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn wait_fresh(&self, edge: &str) {
        wait::until_some(&format!("the control plane has {edge} fresh"), SOON, || {
            let site = self.site(edge);
            if site["freshness"] == "fresh" { Ok(()) } else { Err(site.to_string()) }
        });
    }
}

fn command(edge: &str, id: &str, operation: &str, selector: &str, args: &Value) -> Ask {
    let body = json!({"operation": operation, "target_selector": selector, "args": args, "reason": "a test"});
    Ask::post(&format!("/api/v1/edges/{edge}/commands?wait=20s"), body.to_string()).header("idempotency-key", id)
}

fn ctl(socket: &Path, words: &[&str]) -> Ran {
    let socket = socket.to_string_lossy();
    let mut all = vec!["ctl", "--socket", &socket];
    all.extend_from_slice(words);
    run(&all)
}

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
        let dir = self.dir().join(site);
        let (config, state) = (dir.join("edge.toml"), dir.join("state"));
        write(
            &config,
            &format!(
                "[edge]\nsite = \"{site}\"\nname = \"{site}\"\nstate_dir = {state:?}\nadvertise = [\"{advertise}\"]\n\n\
                 [listen]\napi = \"{api}\"\nnodes = \"{nodes}\"\nmetrics = \"\"\n{}\n{LIVENESS}\n{}",
                options.listen, options.more
            ),
        );
        let path = config.to_string_lossy().into_owned();
        let _ = run(&["edge", "init", "--site", site, "--config", &path]).ok();
        let daemon = Daemon::new(&format!("edge-{site}"), self.dir(), words(&["edge", "--config"], &config));
        let socket = state.join("edge.sock");
        let mut edge =
            Edge { daemon, site: site.to_owned(), config, state, api, nodes, socket, key: String::new(), dir: self.dir().to_path_buf() };
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
        let _ = run(&["edge", "enroll", "--config", &self.config.to_string_lossy(), "--token-file", &token.to_string_lossy()]).ok();
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
            n["connected"] == true && !providers.is_empty() && providers.iter().all(|p| p["status"] == "available")
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

/// An `[[engine]]` of a node's file.
#[derive(Clone, Debug)]
pub struct EngineDeclaration {
    /// The lines of the table.
    pub toml: String,
}

impl EngineDeclaration {
    /// An OpenAI-compatible server that is already there.
    #[must_use]
    pub fn external(name: &str, model: &str, url: &str, capacity: u32) -> Self {
        Self {
            toml: format!(
                "[[engine]]\nname = \"{name}\"\nkind = \"external\"\nmodel = \"{model}\"\nurl = \"{url}\"\ncapacity = {capacity}\n"
            ),
        }
    }

    /// The built-in engine.
    #[must_use]
    pub fn sim(name: &str, model: &str, more: &str) -> Self {
        Self { toml: format!("[[engine]]\nname = \"{name}\"\nkind = \"sim\"\nmodel = \"{model}\"\n{more}\n") }
    }
}

/// How a node differs from the usual.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// What it runs.
    pub engines: Vec<EngineDeclaration>,
    /// Added to its file, with table headers.
    pub more: String,
}

/// A node.
pub struct Node {
    /// Its process.
    pub daemon: Daemon,
    /// Its name.
    pub name: String,
    /// Its file.
    pub config: PathBuf,
    /// Its state directory.
    pub state: PathBuf,
}

impl Fleet {
    /// Writes a node's files without enrolling or starting it.
    #[must_use]
    pub fn node_files(&self, name: &str, options: &NodeOptions) -> Node {
        let dir = self.dir().join(name);
        let (config, state) = (dir.join("node.toml"), dir.join("state"));
        let engines: Vec<_> = options.engines.iter().map(|e| e.toml.as_str()).collect();
        write(
            &config,
            &format!(
                "[node]\nname = \"{name}\"\nstate_dir = {state:?}\naccelerator = \"cpu\"\nallow_sim = true\n\n\
                 [log]\nlevel = \"debug\"\n\n{}\n{}",
                options.more,
                engines.join("\n")
            ),
        );
        let daemon = Daemon::new(&format!("node-{name}"), self.dir(), words(&["node", "--config"], &config));
        Node { daemon, name: name.to_owned(), config, state }
    }

    /// Enrolls a node at the edge, starts it, and waits until it serves.
    ///
    /// # Panics
    /// When it does not.
    #[track_caller]
    #[must_use]
    pub fn node(&self, edge: &Edge, name: &str, options: &NodeOptions) -> Node {
        let mut node = self.node_files(name, options);
        let _ = node.enroll(&edge.token(name)).ok();
        node.daemon.start();
        edge.wait_serving(name);
        node
    }
}

impl Node {
    /// Enrolls with the token in a file.
    #[must_use]
    pub fn enroll(&self, token: &Path) -> Ran {
        run(&["node", "enroll", "--config", &self.config.to_string_lossy(), "--token-file", &token.to_string_lossy()])
    }
}
