//! `control-plane.toml`: parsed without effects, strict, and valid once a [`Config`] exists.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::StartError;

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// Lines for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A valid file of the control plane.
#[derive(Debug, Clone)]
pub struct Config {
    /// Name of this control plane.
    pub name: String,
    /// Name of the fleet, shown in every status.
    pub fleet_name: String,
    /// Store, authority and keys.
    pub state_dir: PathBuf,
    /// Where edges dial: `host:port`, at most 8; stands in enrollment tokens.
    pub advertise: Vec<String>,
    /// The operator API, HTTPS; absent when off.
    pub api: Option<SocketAddr>,
    /// The edges' port.
    pub edges: SocketAddr,
    /// Metrics and health, plain HTTP; absent when off.
    pub metrics: Option<SocketAddr>,
    /// The local socket, mode 0600, whose callers are admin.
    pub socket: PathBuf,
    /// More DNS names or addresses in the API's own certificate.
    pub server_names: Vec<String>,
    /// A certificate chain for the API in place of the own authority's, with `api_key_file`.
    pub api_cert_file: Option<PathBuf>,
    /// The key of `api_cert_file`.
    pub api_key_file: Option<PathBuf>,
    /// Interval of the edges' heartbeats.
    pub heartbeat: Duration,
    /// Without a heartbeat for this long an edge is stale.
    pub stale: Duration,
    /// Without a heartbeat for this long an edge is disconnected.
    pub offline: Duration,
    /// Time that sites are given for a status.
    pub status_deadline: Duration,
    /// A `tracing` filter: `info`, `umbel_control_plane=debug`.
    pub log_level: String,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// How long the drain may take after SIGTERM.
    pub drain: Duration,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Names file, line and column, and what would be right.
    pub fn load(path: &Path) -> Result<Self, StartError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            StartError::Config(format!("cannot read {}: {error}. Write it, or pass --config FILE.", path.display()))
        })?;
        Self::parse(&text, path)
    }

    /// Checks the text of a file; `path` is only named in errors.
    ///
    /// # Errors
    /// Names file, line and column, and what would be right.
    pub fn parse(text: &str, path: &Path) -> Result<Self, StartError> {
        let _ = (text, path);
        unimplemented!()
    }
}
