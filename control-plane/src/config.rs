//! `control-plane.toml`: parsed without effects, strict, and valid once a [`Config`] exists.
//!
//! Owns the file's shape, its defaults and every check that needs only the file. Leaves the host (ports, the state
//! directory) to `app`, `init` and `doctor`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use umbel_contracts::config::{ConfigError, ConfigFile, LogFormat};
use umbel_wire::ids::EdgeId;
use umbel_wire::liveness::Times;
use umbel_wire::token::is_address;

use crate::StartError;

mod file;

use file::File;

/// Backups of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Where they go: made, for this user only, if it is not there.
    pub dir: PathBuf,
    /// So many are kept; the oldest go.
    pub keep: u32,
}

/// A valid file of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of this control plane: a DNS label. Edges keep what they have of it under this name.
    pub name: String,
    /// Name of the fleet, shown in every status.
    pub fleet_name: String,
    /// Store, authority and keys.
    pub state_dir: PathBuf,
    /// Where edges dial: `host:port`, 1 to 8; stands in enrollment tokens.
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
    /// Without a heartbeat for how long an edge is stale, and disconnected.
    pub silence: Times,
    /// Time that sites are given for a status.
    pub status_deadline: Duration,
    /// Backups.
    pub backup: Backup,
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
        let file = ConfigFile::read(path).map_err(|error| StartError::Config(error.to_string()))?;
        check(&file).map_err(|error| StartError::Config(error.to_string()))
    }

    /// Checks the text of a file; `path` is only named in errors.
    ///
    /// # Errors
    /// Names file, line and column, and what would be right.
    pub fn parse(text: &str, path: &Path) -> Result<Self, StartError> {
        check(&ConfigFile::from_text(path, text)).map_err(|error| StartError::Config(error.to_string()))
    }
}

fn check(file: &ConfigFile) -> Result<Config, ConfigError> {
    let read: File = file.parse()?;
    let wrong = |key: &str, message: &str| Err(file.error(key, message));
    let own = &read.control_plane;
    if EdgeId::parse(&own.name).is_err() {
        return wrong(
            "control_plane.name",
            "must be 1 to 63 characters of a-z, 0-9 and `-`, such as \"cp-1\"",
        );
    }
    if own.state_dir.as_os_str().is_empty() {
        return wrong("control_plane.state_dir", "is empty; name a directory that only this user may enter");
    }
    if own.advertise.is_empty() || own.advertise.len() > 8 {
        return wrong(
            "control_plane.advertise",
            "needs 1 to 8 addresses that edges dial, such as \"cp.example.net:7441\"",
        );
    }
    if let Some(odd) = own.advertise.iter().find(|address| !is_address(address)) {
        return wrong("control_plane.advertise", &format!("\"{odd}\" is not host:port"));
    }
    let api = listen(file, "listen.api", &read.listen.api)?;
    let Some(edges) = listen(file, "listen.edges", &read.listen.edges)? else {
        return wrong("listen.edges", "cannot be off: edges connect there");
    };
    let metrics = listen(file, "listen.metrics", &read.listen.metrics)?;
    let cert = path(&read.tls.api_cert_file);
    let key = path(&read.tls.api_key_file);
    if cert.is_some() != key.is_some() {
        return wrong("tls.api_cert_file", "needs tls.api_key_file too, and the other way round");
    }
    let beats = &read.liveness;
    if beats.heartbeat.0.is_zero() || beats.heartbeat.0 > Duration::from_secs(3600) {
        return wrong("liveness.heartbeat", "must be above 0 and at most 1h");
    }
    let silence = Times::new(beats.stale.0, beats.offline.0)
        .map_err(|message| file.error("liveness.stale", message))?;
    if beats.stale.0 <= beats.heartbeat.0 {
        return wrong(
            "liveness.stale",
            "must be longer than liveness.heartbeat, or every edge is always stale",
        );
    }
    let deadline = read.status.deadline.0;
    if deadline < Duration::from_millis(50) || deadline > Duration::from_secs(30) {
        return wrong("status.deadline", "must be 50ms to 30s");
    }
    let backup = Backup {
        dir: path(&read.backup.dir).unwrap_or_else(|| own.state_dir.join("backups")),
        keep: read.backup.keep,
    };
    if backup.keep == 0 || backup.keep > 1_000 {
        return wrong("backup.keep", "must be 1 to 1000");
    }
    Ok(Config {
        name: own.name.clone(),
        fleet_name: if own.fleet_name.is_empty() { own.name.clone() } else { own.fleet_name.clone() },
        socket: path(&read.listen.socket).unwrap_or_else(|| own.state_dir.join("control-plane.sock")),
        state_dir: own.state_dir.clone(),
        advertise: own.advertise.clone(),
        api,
        edges,
        metrics,
        server_names: read.tls.server_names,
        api_cert_file: cert,
        api_key_file: key,
        heartbeat: beats.heartbeat.0,
        silence,
        status_deadline: deadline,
        backup,
        log_level: read.log.level,
        log_format: read.log.format,
        drain: read.shutdown.drain.0,
    })
}

/// An address, or nothing for the empty text.
fn listen(file: &ConfigFile, key: &str, text: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| file.error(key, format!("\"{text}\" is not an address and port, such as 127.0.0.1:7440"));
    text.parse().map(Some).map_err(wrong)
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

#[cfg(test)]
mod tests;
