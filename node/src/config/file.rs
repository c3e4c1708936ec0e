//! The shape of `node.toml` and its checks, field by field.
//!
//! Owns keys, defaults and bounds; leaves engines to `engine`, models' files to `artifacts`, and TOML, places and units to `umbel_contracts::config`.
//! Invariant: everything is checked before anything is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use umbel_contracts::{
    config::{ConfigError, ConfigFile, HumanDuration, LogFormat},
    names::is_plain,
    settings::{AgentSettings, ENGINES_MAX, NAMES_BYTES_MAX},
};

use super::{
    Accelerator, Config, EngineConfig, artifacts,
    engine::{Checker, Engine},
    overlay, programs,
};

/// Labels of one node, and bytes of a value.
const LABELS_MAX: usize = 64;
const LABEL_VALUE_MAX: usize = 256;
/// Bytes of all labels together: they travel in one hello of at most 60 KiB.
const LABELS_BYTES_MAX: usize = 8 * 1024;
/// A path that `bind` takes for a Unix socket (`sun_path` less its end).
const SOCKET_PATH_MAX: usize = 107;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node: Node,
    #[serde(default)]
    listen: Listen,
    #[serde(default)]
    programs: programs::Table,
    #[serde(default)]
    endpoints: BTreeMap<String, String>,
    #[serde(default)]
    artifacts: artifacts::Table,
    #[serde(default)]
    source: Vec<artifacts::Source>,
    #[serde(default)]
    log: Log,
    #[serde(default)]
    shutdown: Shutdown,
    #[serde(default)]
    engine: Vec<Engine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    #[serde(default)]
    name: String,
    #[serde(default = "default_state_dir")]
    state_dir: PathBuf,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    accelerator: AcceleratorWord,
    nvml_library: Option<PathBuf>,
    #[serde(default)]
    fabric_labels: BTreeMap<String, String>,
    #[serde(default)]
    allow_volatile_state: bool,
    #[serde(default)]
    allow_sim: bool,
}

fn default_state_dir() -> PathBuf {
    "/var/lib/umbel/node".into()
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum AcceleratorWord {
    #[default]
    Auto,
    Nvidia,
    Cpu,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Listen {
    #[serde(default)]
    metrics: String,
    socket: Option<PathBuf>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Log {
    level: Option<String>,
    #[serde(default)]
    format: LogFormat,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Shutdown {
    drain: Option<HumanDuration>,
    #[serde(default)]
    engines: EnginesWord,
}

/// What becomes of the engines when the agent ends.
#[derive(Deserialize, Default, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum EnginesWord {
    #[default]
    Keep,
    Stop,
}

/// Parses and checks a file.
pub(super) fn check(source: &ConfigFile) -> Result<Config, ConfigError> {
    overlaid(source, &AgentSettings::default()).map(|(config, _)| config)
}

/// Parses a file, lays settings over it and checks what comes out; also the settings that say nothing to this node.
pub(super) fn overlaid(
    source: &ConfigFile,
    settings: &AgentSettings,
) -> Result<(Config, Vec<String>), ConfigError> {
    let mut file: File = source.parse()?;
    if let Some(level) = &settings.log.level {
        file.log.level = Some(level.clone());
    }
    file.shutdown.drain = settings.shutdown.drain.or(file.shutdown.drain);
    file.node.labels.extend(settings.labels.clone());
    let folder = source.path().parent().unwrap_or_else(|| Path::new(""));
    // A path is meant from where the file lies, not from where the agent was started.
    let path = |path: &Path| std::path::absolute(folder.join(path)).unwrap_or_else(|_| path.to_owned());
    if file.node.state_dir.as_os_str().is_empty() {
        return Err(source.error("node.state_dir", "is empty: name a directory that outlives restarts"));
    }
    let state_dir = path(&file.node.state_dir);
    check_labels(source, "node.labels", &file.node.labels)?;
    check_labels(source, "node.fabric_labels", &file.node.fabric_labels)?;
    let artifacts = artifacts::check(source, file.artifacts, file.source, &path)?;
    if file.node.name.len() > 63 || !is_plain(&file.node.name) {
        return Err(
            source.error("node.name", "is longer than 63 characters or has characters that cannot be seen")
        );
    }
    let socket = file.listen.socket.as_deref().map_or_else(|| state_dir.join("node.sock"), path);
    if socket.as_os_str().len() > SOCKET_PATH_MAX {
        let says = format!(
            "the path {} is longer than {SOCKET_PATH_MAX} bytes; set a shorter one",
            socket.display()
        );
        return Err(source.error("listen.socket", says));
    }
    let metrics = metrics_address(source, &file.listen.metrics)?;
    if file.engine.len() > ENGINES_MAX {
        return Err(source.error(
            "engine",
            format!("there are {} engines, at most {ENGINES_MAX} are allowed", file.engine.len()),
        ));
    }
    // Names have to be unique in the file itself: settings are said by name.
    let mut in_file = BTreeSet::new();
    for (index, engine) in file.engine.iter().enumerate() {
        if !in_file.insert(engine.name.clone()) {
            let checker = Checker { source, index, set: None };
            return Err(checker.error("name", "another engine has that name already"));
        }
    }
    let merged = overlay::merge(&mut file.engine, &settings.engines, &artifacts.roots)?;
    if file.engine.len() > ENGINES_MAX {
        return Err(overlay::error("engines", format!("a node has at most {ENGINES_MAX} engines")));
    }
    let programs = programs::programs(source, &file.programs, &path)?;
    let mut engines = Vec::with_capacity(file.engine.len());
    for (index, engine) in file.engine.into_iter().enumerate() {
        let set = merged.touched.get(&engine.name).map(String::as_str);
        let checker = Checker { source, index, set };
        engines.push(checker.engine(engine, file.node.allow_sim, &programs, &path)?);
    }
    let bytes = |engine: &EngineConfig| {
        engine.name.len() + engine.model.len() + engine.aliases.iter().map(String::len).sum::<usize>()
    };
    if engines.iter().map(bytes).sum::<usize>() > NAMES_BYTES_MAX {
        return Err(source.error("engine", "the names of models and aliases are longer than 16 KiB together"));
    }
    let config = Config {
        source: source.clone(),
        name: file.node.name,
        state_dir,
        labels: file.node.labels,
        accelerator: match file.node.accelerator {
            AcceleratorWord::Auto => Accelerator::Auto,
            AcceleratorWord::Nvidia => Accelerator::Nvidia,
            AcceleratorWord::Cpu => Accelerator::Cpu,
        },
        nvml_library: file.node.nvml_library.as_deref().map(path),
        fabric_labels: file.node.fabric_labels,
        allow_volatile_state: file.node.allow_volatile_state,
        artifacts,
        allow_sim: file.node.allow_sim,
        metrics,
        socket,
        programs,
        endpoints: programs::endpoints(source, &file.endpoints)?,
        log_level: file.log.level.unwrap_or_else(|| "info".into()),
        log_format: file.log.format,
        drain: file.shutdown.drain.map_or(Duration::from_secs(30), Into::into),
        stop_engines: file.shutdown.engines == EnginesWord::Stop,
        engines,
    };
    Ok((config, merged.skipped))
}

/// A node listens to no other host: not for metrics either.
fn metrics_address(source: &ConfigFile, text: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => Ok(Some(address)),
        _ => {
            let says = "must be a loopback address with a port, 127.0.0.1:7469: a node listens to no other host; the edge \
                        has its nodes' figures for collectors elsewhere";
            Err(source.error("listen.metrics", says))
        }
    }
}

fn check_labels(
    source: &ConfigFile,
    table: &str,
    labels: &BTreeMap<String, String>,
) -> Result<(), ConfigError> {
    let bytes: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
    if labels.len() > LABELS_MAX || bytes > LABELS_BYTES_MAX {
        return Err(source.error(table, format!("there are more than {LABELS_MAX}, or more than 8 KiB")));
    }
    for (name, value) in labels {
        let key = format!("{table}.{name}");
        if name.is_empty()
            || name.len() > 63
            || !name.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        {
            return Err(
                source.error(&key, "a label's name has 1 to 63 letters, digits, '-', '_', '.' and '/'")
            );
        }
        if value.len() > LABEL_VALUE_MAX || !is_plain(value) {
            return Err(source.error(
                &key,
                format!("is longer than {LABEL_VALUE_MAX} bytes or has characters that cannot be seen"),
            ));
        }
    }
    Ok(())
}
