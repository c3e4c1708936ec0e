//! `edge.toml`: parsed without effects, strict, and valid once a [`Config`] exists.
//!
//! Owns the file's shape, its defaults and every check that needs only the file. Leaves the host (ports, the
//! state directory) to `app` and `doctor`.

mod file;
mod overlay;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use umbel_contracts::config::{ConfigFile, LogFormat};
use umbel_wire::EdgeId;

use crate::StartError;
pub(crate) use crate::http::StreamUsage;

/// Where the edge listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The OpenAI surface, plain HTTP; absent when off.
    pub api: Option<SocketAddr>,
    /// The same with TLS; absent when off.
    pub api_https: Option<SocketAddr>,
    /// The nodes' port.
    pub nodes: SocketAddr,
    /// Metrics and health, plain HTTP; absent when off.
    pub metrics: Option<SocketAddr>,
    /// The local socket, mode 0600, whose callers are admin.
    pub socket: PathBuf,
}

/// Bounds of the OpenAI surface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// Certificate chain of `api_https`, PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    pub key_file: Option<PathBuf>,
    /// Largest request body, in bytes.
    pub body_max: u64,
    /// A silent stream gets a comment this often.
    pub keepalive: Duration,
    /// Request bytes that the edge holds at once, in bytes.
    pub held_max: u64,
    /// Whether engines are asked for the usage of streams.
    pub stream_usage: StreamUsage,
}

/// What is in the metrics beyond what always is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metrics {
    /// A series a key of requests, and two of tokens.
    pub keys: bool,
}

/// Bounds of a model's queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Requests that wait in one queue.
    pub max_requests: u32,
    /// How long a request waits for a slot.
    pub max_wait: Duration,
    /// How long it waits while the model is loading.
    pub max_wait_loading: Duration,
}

/// Patience with engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Until an engine's first byte.
    pub first_byte_timeout: Duration,
    /// Between two bytes of an answer.
    pub idle_timeout: Duration,
}

/// Liveness of nodes, from the heartbeats that this edge receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Liveness {
    /// What nodes are told to keep to.
    pub heartbeat: Duration,
    /// Without a heartbeat for this long a node is stale.
    pub stale: Duration,
    /// Without a heartbeat for this long a node is offline.
    pub offline: Duration,
}

/// What is made of nodes' clocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clock {
    /// How far a node's clock may be in the future before what it observed then counts as wrong.
    pub allowed_skew: Duration,
}

/// What is kept of the audit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Audit {
    /// How long an entry is kept.
    pub keep: Duration,
    /// And at most so many; the oldest go first.
    pub max_entries: u64,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A `tracing` filter: `info`, `umbel_edge=debug`.
    pub level: String,
    /// How log lines are written.
    pub format: LogFormat,
}

/// Backups of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Where they go: made, for this user only, if it is not there.
    pub dir: PathBuf,
    /// So many are kept; the oldest go.
    pub keep: u32,
}

/// A valid file of the edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Name of the site: the edge's id.
    pub site: EdgeId,
    /// Its name for people.
    pub name: String,
    /// Store, authority, keys, and what was joined.
    pub state_dir: PathBuf,
    /// Where nodes dial: `host:port`, at most 8; stands in enrollment tokens.
    pub advertise: Vec<String>,
    /// Where it listens.
    pub listen: Listen,
    /// The OpenAI surface.
    pub api: Api,
    /// What is in the metrics beyond what always is.
    pub metrics: Metrics,
    /// Queues.
    pub queue: Queue,
    /// Engines.
    pub upstream: Upstream,
    /// Liveness of nodes.
    pub liveness: Liveness,
    /// Nodes' clocks.
    pub clock: Clock,
    /// The audit.
    pub audit: Audit,
    /// Backups.
    pub backup: Backup,
    /// Logs.
    pub log: Log,
    /// How long running streams may take after SIGTERM.
    pub drain: Duration,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Names file, line and column, and what would be right.
    pub fn load(path: &Path) -> Result<Self, StartError> {
        let file = ConfigFile::read(path)
            .map_err(|error| StartError::Config(format!("{error}. Write it, or pass --config FILE.")))?;
        file::check(&file).map_err(|error| StartError::Config(error.to_string()))
    }

    /// Checks the text of a file; `path` is only named in errors.
    ///
    /// # Errors
    /// Names file, line and column, and what would be right.
    pub fn parse(text: &str, path: &Path) -> Result<Self, StartError> {
        file::check(&ConfigFile::from_text(path, text)).map_err(|error| StartError::Config(error.to_string()))
    }
}
