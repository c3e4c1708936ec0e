//! A control plane: its file, its setup, what it is asked.

#![allow(clippy::indexing_slicing, reason = "an index into a JSON value that is not there gives null")]

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;

use super::asking::{LIVENESS, answers, ask, command, ctl, ready, scraped, words, write};
use super::{Daemon, Fleet, Ran, SOON, free_address, run};
use crate::http::{Ask, Target, Whole};
use crate::wait;

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
    /// Its listener for metrics and health.
    pub metrics_at: SocketAddr,
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
        let edges = free_address();
        self.control_plane_via(edges, edges)
    }

    /// The same with a given port for edges; they are told another address, as that of a fault proxy.
    ///
    /// # Panics
    /// When it does not come up.
    #[track_caller]
    #[must_use]
    pub fn control_plane_via(&self, edges: SocketAddr, advertise: SocketAddr) -> ControlPlane {
        let (api, metrics) = (free_address(), free_address());
        let dir = self.dir().join("cp");
        let (config, state) = (dir.join("control-plane.toml"), dir.join("state"));
        write(
            &config,
            &format!(
                "[control_plane]\nname = \"cp\"\nfleet_name = \"test\"\nstate_dir = {state:?}\nadvertise = [\"{advertise}\"]\n\n\
                 [listen]\napi = \"{api}\"\nedges = \"{edges}\"\nmetrics = \"{metrics}\"\n\n{LIVENESS}"
            ),
        );
        let _ = run(&["control-plane", "init", "--config", &config.to_string_lossy()]).ok();
        let daemon = Daemon::new("control-plane", self.dir(), words(&["control-plane", "--config"], &config));
        let socket = state.join("control-plane.sock");
        let mut plane = ControlPlane { daemon, config, state, api, edges, metrics_at: metrics, socket };
        plane.start();
        plane
    }
}

impl ControlPlane {
    /// Its metrics.
    #[track_caller]
    #[must_use]
    pub fn metrics(&self) -> String {
        scraped(&Target::Tcp(self.metrics_at))
    }

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
