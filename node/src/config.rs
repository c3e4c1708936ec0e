//! `node.toml`: the node's own file.
//!
//! Owns the file's shape and every check that needs only the file; leaves checks of the host (programs, model
//! files, ports) to the supervisor. Invariant: a `Config` that exists is valid.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use umbel_contracts::config::{ConfigError, ConfigFile, LogFormat};

use crate::StartError;

mod artifacts;
mod engine;
mod file;
mod overlay;
mod programs;
mod source;

pub(crate) use engine::{CLI_TIMEOUT, STALL, external_category, is_gpu};
pub(crate) use programs::{Endpoint, Programs, program_key};
pub(crate) use source::{EngineConfig, EngineSource, Origin, ProcessSource};

/// Which accelerators the host must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// NVML is required only where NVIDIA devices are.
    Auto,
    /// At least one NVIDIA GPU with telemetry is required.
    Nvidia,
    /// No GPU is looked for.
    Cpu,
}

/// A valid node file.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file as it was read: settings are laid over it anew each time.
    pub(crate) source: ConfigFile,
    /// Label of this node; the name in the enrollment token wins. Empty: the host's name.
    pub name: String,
    /// Identity, key, sequences, engine records.
    pub state_dir: PathBuf,
    /// Labels that travel with every hello.
    pub labels: BTreeMap<String, String>,
    /// Which accelerators must be there.
    pub accelerator: Accelerator,
    /// NVIDIA's management library, where it is not where the driver puts it.
    pub nvml_library: Option<PathBuf>,
    /// Which fabric this host hangs on: for placement, told with the inventory.
    pub fabric_labels: BTreeMap<String, String>,
    /// The state directory may be one that the next boot or container empties.
    pub allow_volatile_state: bool,
    /// Where models are kept.
    pub artifacts: Artifacts,
    /// Engines of kind `sim` are allowed.
    pub allow_sim: bool,
    /// Metrics for a collector on this host: a loopback address only.
    pub metrics: Option<SocketAddr>,
    /// The local socket, mode 0600.
    pub socket: PathBuf,
    /// The programs that engines are started from.
    pub(crate) programs: Programs,
    /// Servers that are already there, by name.
    pub(crate) endpoints: BTreeMap<String, Endpoint>,
    /// A `tracing` filter: `info`, `umbel_node=debug`.
    pub log_level: String,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// How long running streams may take on SIGTERM.
    pub drain: Duration,
    /// The engines are ended with the agent; otherwise they run on, and the next agent goes on with them.
    pub stop_engines: bool,
    /// Engines that this node declares.
    pub(crate) engines: Vec<EngineConfig>,
}

/// Where models are kept, and where they wait until they are checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Artifacts {
    /// On the same file system as every root: what is checked goes there in one rename.
    pub quarantine: Option<PathBuf>,
    /// By name: paths never travel.
    pub roots: BTreeMap<String, PathBuf>,
    /// Bytes of that file system that downloads leave free.
    pub reserve: u64,
    /// Where files may come from, by name; nothing else is ever asked.
    pub sources: BTreeMap<String, Source>,
}

/// One `[[source]]`: where models' files may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A hub with the layout of Hugging Face: `URL/REPOSITORY/resolve/REVISION/FILE`.
    Hub(Remote),
    /// A plain server: `URL/REPOSITORY/REVISION/FILE`.
    Mirror(Remote),
    /// A directory of this host: `PATH/REPOSITORY/REVISION/FILE` or `PATH/REPOSITORY/FILE`.
    Directory(PathBuf),
}

/// A server that files are fetched from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Over TLS.
    pub secure: bool,
    /// `host:port`.
    pub authority: String,
    /// Path before everything else, without a slash at its end; mostly empty.
    pub base_path: String,
    /// A file with the bearer token, read anew for each download. It is sent to this server only.
    pub token_file: Option<PathBuf>,
    /// The only authorities that are trusted, PEM; nothing: the system's.
    pub ca_file: Option<PathBuf>,
}

impl Accelerator {
    /// The word in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Nvidia => "nvidia",
            Self::Cpu => "cpu",
        }
    }
}

impl Artifacts {
    /// All but where files come from.
    pub(crate) fn places(&self) -> (Option<&Path>, &BTreeMap<String, PathBuf>, u64) {
        (self.quarantine.as_deref(), &self.roots, self.reserve)
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`StartError::Config`] with file, line and column, and what would be right.
    pub fn load(path: &Path) -> Result<Self, StartError> {
        ConfigFile::read(path)
            .and_then(|file| file::check(&file))
            .map_err(|error| StartError::Config(error.to_string()))
    }

    /// Checks a file that was read.
    pub(crate) fn check(source: &ConfigFile) -> Result<Self, ConfigError> {
        file::check(source)
    }

    /// Checks the text of a file; `path` is only named in errors.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, StartError> {
        file::check(&ConfigFile::from_text(path, text)).map_err(|error| StartError::Config(error.to_string()))
    }
}

#[cfg(test)]
mod tests;
