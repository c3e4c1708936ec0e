//! The keys of `edge.toml` with their defaults, and the rules that types cannot say.
//!
//! Owns the mapping from the file to a valid [`Config`]. Invariant: every key that is not known, and every value
//! that cannot work, is an error with its place.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;
use umbel_contracts::config::{ByteSize, ConfigError, ConfigFile, HumanDuration, LogFormat};
use umbel_wire::EdgeId;
use umbel_wire::liveness::Times;
use umbel_wire::token::is_address;

use super::{
    Api, Audit, Backup, Clock, Config, Listen, Liveness, Log, Metrics, Queue, StreamUsage, Upstream,
};

/// Most addresses that an edge advertises.
const ADVERTISED: usize = 8;
/// Longest display name, in bytes.
const NAME: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    edge: EdgeTable,
    #[serde(default)]
    listen: ListenTable,
    #[serde(default)]
    tls: TlsTable,
    #[serde(default)]
    api: ApiTable,
    #[serde(default)]
    metrics: MetricsTable,
    #[serde(default)]
    queue: QueueTable,
    #[serde(default)]
    upstream: UpstreamTable,
    #[serde(default)]
    liveness: LivenessTable,
    #[serde(default)]
    clock: ClockTable,
    #[serde(default)]
    audit: AuditTable,
    #[serde(default)]
    backup: BackupTable,
    #[serde(default)]
    log: LogTable,
    #[serde(default)]
    shutdown: ShutdownTable,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EdgeTable {
    site: String,
    #[serde(default)]
    name: String,
    #[serde(default = "default_state_dir")]
    state_dir: PathBuf,
    #[serde(default)]
    advertise: Vec<String>,
}

fn default_state_dir() -> PathBuf {
    PathBuf::from("/var/lib/umbel/edge")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ListenTable {
    api: String,
    api_https: String,
    nodes: String,
    metrics: String,
    socket: String,
}

impl Default for ListenTable {
    fn default() -> Self {
        Self {
            // Without an API key the surface answers on loopback only; so does this default.
            api: "127.0.0.1:7450".to_owned(),
            api_https: String::new(),
            nodes: "0.0.0.0:7451".to_owned(),
            metrics: "127.0.0.1:7459".to_owned(),
            socket: String::new(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TlsTable {
    api_cert_file: String,
    api_key_file: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ApiTable {
    body_max: ByteSize,
    keepalive: HumanDuration,
    held_max: ByteSize,
    stream_usage: String,
}

impl Default for ApiTable {
    fn default() -> Self {
        Self {
            body_max: ByteSize::mebibytes(32),
            keepalive: HumanDuration::seconds(15),
            held_max: ByteSize::mebibytes(256),
            stream_usage: "as_asked".to_owned(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MetricsTable {
    keys: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct QueueTable {
    max_requests: u32,
    max_wait: HumanDuration,
    max_wait_loading: HumanDuration,
}

impl Default for QueueTable {
    fn default() -> Self {
        Self {
            max_requests: 1_000,
            max_wait: HumanDuration::seconds(30),
            max_wait_loading: HumanDuration::seconds(110),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UpstreamTable {
    first_byte_timeout: HumanDuration,
    idle_timeout: HumanDuration,
}

impl Default for UpstreamTable {
    fn default() -> Self {
        Self { first_byte_timeout: HumanDuration::seconds(600), idle_timeout: HumanDuration::seconds(300) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LivenessTable {
    heartbeat: HumanDuration,
    stale: HumanDuration,
    offline: HumanDuration,
}

impl Default for LivenessTable {
    fn default() -> Self {
        Self {
            heartbeat: HumanDuration::seconds(10),
            stale: HumanDuration::seconds(30),
            offline: HumanDuration::seconds(90),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ClockTable {
    allowed_skew: HumanDuration,
}

impl Default for ClockTable {
    fn default() -> Self {
        Self { allowed_skew: HumanDuration::seconds(300) }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AuditTable {
    keep: HumanDuration,
    max_entries: u64,
}

impl Default for AuditTable {
    fn default() -> Self {
        // A year and a million: some hundred MiB at most.
        Self { keep: HumanDuration::seconds(365 * 86_400), max_entries: 1_000_000 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BackupTable {
    dir: PathBuf,
    keep: u32,
}

impl Default for BackupTable {
    fn default() -> Self {
        Self { dir: PathBuf::new(), keep: 14 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LogTable {
    level: String,
    format: String,
}

impl Default for LogTable {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: "auto".to_owned() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ShutdownTable {
    drain: HumanDuration,
}

impl Default for ShutdownTable {
    fn default() -> Self {
        Self { drain: HumanDuration::seconds(600) }
    }
}

/// Parses and checks a file.
pub(super) fn check(file: &ConfigFile) -> Result<Config, ConfigError> {
    let parsed: File = file.parse()?;
    let edge = parsed.edge;
    let site = EdgeId::parse(&edge.site).map_err(|error| file.error("edge.site", error))?;
    if edge.name.len() > NAME {
        return Err(file.error("edge.name", format!("must be at most {NAME} bytes")));
    }
    if !edge.state_dir.is_absolute() {
        return Err(file.error("edge.state_dir", "must be an absolute path"));
    }
    if edge.advertise.len() > ADVERTISED {
        return Err(file.error("edge.advertise", format!("must have at most {ADVERTISED} addresses")));
    }
    if let Some(bad) = edge.advertise.iter().find(|address| !is_address(address)) {
        return Err(file.error("edge.advertise", format!("`{bad}` is not host:port")));
    }
    let listen = Listen {
        api: listener(file, "listen.api", &parsed.listen.api)?,
        api_https: listener(file, "listen.api_https", &parsed.listen.api_https)?,
        nodes: listener(file, "listen.nodes", &parsed.listen.nodes)?
            .ok_or_else(|| file.error("listen.nodes", "must be an address; nodes dial it"))?,
        metrics: listener(file, "listen.metrics", &parsed.listen.metrics)?,
        socket: match parsed.listen.socket.as_str() {
            "" => edge.state_dir.join("edge.sock"),
            path => PathBuf::from(path),
        },
    };
    let backup = backup(file, parsed.backup, &edge.state_dir)?;
    let name = if edge.name.is_empty() { site.to_string() } else { edge.name };
    Ok(Config {
        site,
        name,
        state_dir: edge.state_dir,
        advertise: edge.advertise,
        api: api(file, &parsed.api, &parsed.tls, listen.api_https)?,
        listen,
        metrics: Metrics { keys: parsed.metrics.keys },
        queue: queue(file, &parsed.queue)?,
        upstream: Upstream {
            first_byte_timeout: positive(
                file,
                "upstream.first_byte_timeout",
                parsed.upstream.first_byte_timeout,
            )?,
            idle_timeout: positive(file, "upstream.idle_timeout", parsed.upstream.idle_timeout)?,
        },
        liveness: liveness(file, &parsed.liveness)?,
        clock: Clock { allowed_skew: positive(file, "clock.allowed_skew", parsed.clock.allowed_skew)? },
        audit: audit(file, &parsed.audit)?,
        backup,
        log: log(file, parsed.log)?,
        drain: parsed.shutdown.drain.0,
    })
}

fn listener(file: &ConfigFile, key: &str, text: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        file.error(key, format!("`{text}` is not an IP address and port, as 127.0.0.1:7450 or [::]:7450"))
    })
}

fn positive(
    file: &ConfigFile,
    key: &str,
    duration: HumanDuration,
) -> Result<std::time::Duration, ConfigError> {
    if duration.0.is_zero() { Err(file.error(key, "must be longer than 0")) } else { Ok(duration.0) }
}

fn api(
    file: &ConfigFile,
    table: &ApiTable,
    tls: &TlsTable,
    https: Option<SocketAddr>,
) -> Result<Api, ConfigError> {
    let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
    let (cert_file, key_file) = (path(&tls.api_cert_file), path(&tls.api_key_file));
    if cert_file.is_some() != key_file.is_some() {
        return Err(file.error("tls", "api_cert_file and api_key_file belong together; give both or none"));
    }
    if https.is_some() && cert_file.is_none() {
        return Err(file.error("listen.api_https", "needs tls.api_cert_file and tls.api_key_file"));
    }
    // A key's requests hold a quarter at most: a larger body could never be taken.
    if table.body_max.0 == 0 || table.body_max.0 > table.held_max.0 / 4 {
        return Err(file.error("api.body_max", "must be above 0 and at most a quarter of api.held_max"));
    }
    let keepalive = positive(file, "api.keepalive", table.keepalive)?;
    let stream_usage = StreamUsage::parse(&table.stream_usage)
        .ok_or_else(|| file.error("api.stream_usage", "must be one of as_asked, always"))?;
    let (body_max, held_max) = (table.body_max.0, table.held_max.0);
    Ok(Api { cert_file, key_file, body_max, keepalive, held_max, stream_usage })
}

fn queue(file: &ConfigFile, table: &QueueTable) -> Result<Queue, ConfigError> {
    if table.max_requests == 0 || table.max_requests > 1_000_000 {
        return Err(file.error("queue.max_requests", "must be 1 to 1000000"));
    }
    Ok(Queue {
        max_requests: table.max_requests,
        max_wait: positive(file, "queue.max_wait", table.max_wait)?,
        max_wait_loading: positive(file, "queue.max_wait_loading", table.max_wait_loading)?,
    })
}

fn liveness(file: &ConfigFile, table: &LivenessTable) -> Result<Liveness, ConfigError> {
    let heartbeat = positive(file, "liveness.heartbeat", table.heartbeat)?;
    let (stale, offline) = (table.stale.0, table.offline.0);
    Times::new(stale, offline).map_err(|error| file.error("liveness.offline", error))?;
    if stale < heartbeat * 2 {
        return Err(
            file.error("liveness.stale", "must be at least two heartbeats, or one lost one makes it stale")
        );
    }
    Ok(Liveness { heartbeat, stale, offline })
}

fn audit(file: &ConfigFile, table: &AuditTable) -> Result<Audit, ConfigError> {
    if table.max_entries < 1_000 {
        return Err(file.error("audit.max_entries", "must be at least 1000"));
    }
    Ok(Audit { keep: positive(file, "audit.keep", table.keep)?, max_entries: table.max_entries })
}

fn backup(file: &ConfigFile, table: BackupTable, state: &std::path::Path) -> Result<Backup, ConfigError> {
    let dir = if table.dir.as_os_str().is_empty() { state.join("backups") } else { table.dir };
    if !dir.is_absolute() {
        return Err(file.error("backup.dir", "must be an absolute path"));
    }
    if table.keep == 0 || table.keep > 1_000 {
        return Err(file.error("backup.keep", "must be 1 to 1000"));
    }
    Ok(Backup { dir, keep: table.keep })
}

fn log(file: &ConfigFile, table: LogTable) -> Result<Log, ConfigError> {
    let format = match table.format.as_str() {
        "auto" => LogFormat::Auto,
        "text" => LogFormat::Text,
        "json" => LogFormat::Json,
        other => return Err(file.error("log.format", format!("`{other}` is not auto, text or json"))),
    };
    Ok(Log { level: table.level, format })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::path::Path;
    use std::time::Duration;

    use super::super::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("/etc/umbel/edge.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_site_is_enough() {
        let config = parse("[edge]\nsite = \"ber1\"\n").unwrap();
        assert_eq!(config.name, "ber1");
        assert_eq!(config.listen.socket, Path::new("/var/lib/umbel/edge/edge.sock"));
        assert_eq!(config.liveness.offline, Duration::from_secs(90));
        assert!(config.listen.api_https.is_none());
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_place() {
        for (text, wanted) in [
            ("[edge]\nsite = \"ber1\"\nsocket = 1\n", "edge.toml:3:1"),
            ("[edge]\nsite = \"Ber1\"\n", "edge.site"),
            ("[edge]\nsite = \"a\"\nstate_dir = \"x\"\n", "edge.state_dir"),
            ("[edge]\nsite = \"a\"\nadvertise = [\"nowhere\"]\n", "edge.advertise"),
            ("[edge]\nsite = \"a\"\n[listen]\nnodes = \"\"\n", "listen.nodes"),
            ("[edge]\nsite = \"a\"\n[listen]\napi = \"localhost\"\n", "listen.api"),
            ("[edge]\nsite = \"a\"\n[listen]\napi_https = \"0.0.0.0:443\"\n", "listen.api_https"),
            ("[edge]\nsite = \"a\"\n[liveness]\nstale = \"30s\"\noffline = \"30s\"\n", "liveness"),
            ("[edge]\nsite = \"a\"\n[queue]\nmax_requests = 0\n", "queue.max_requests"),
            ("[edge]\nsite = \"a\"\n[api]\nbody_max = \"1GiB\"\n", "api.body_max"),
            ("[edge]\nsite = \"a\"\n[log]\nformat = \"xml\"\n", "log.format"),
            ("[edge]\nsite = \"a\"\n[backup]\ndir = \"x\"\n", "backup.dir"),
            ("[edge]\nsite = \"a\"\n[backup]\nkeep = 0\n", "backup.keep"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{error} should name {wanted}");
            assert!(error.starts_with("/etc/umbel/edge.toml"), "{error}");
        }
    }
}
