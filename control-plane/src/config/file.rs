//! The file as it is written: every key with its default. What the values must be is checked by the parent.

use std::path::PathBuf;

use serde::Deserialize;
use umbel_contracts::config::{HumanDuration, LogFormat};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) control_plane: Own,
    pub(super) listen: Listen,
    pub(super) tls: Tls,
    pub(super) liveness: Liveness,
    pub(super) status: Status,
    pub(super) backup: Backup,
    pub(super) log: Log,
    pub(super) shutdown: Shutdown,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Own {
    pub(super) name: String,
    pub(super) fleet_name: String,
    pub(super) state_dir: PathBuf,
    pub(super) advertise: Vec<String>,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            name: "control-plane".into(),
            fleet_name: String::new(),
            state_dir: "/var/lib/umbel/control-plane".into(),
            advertise: Vec::new(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Listen {
    pub(super) api: String,
    pub(super) edges: String,
    pub(super) metrics: String,
    pub(super) socket: String,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            api: "127.0.0.1:7440".into(),
            edges: "0.0.0.0:7441".into(),
            metrics: "127.0.0.1:7449".into(),
            socket: String::new(),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Tls {
    pub(super) server_names: Vec<String>,
    pub(super) api_cert_file: String,
    pub(super) api_key_file: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Liveness {
    pub(super) heartbeat: HumanDuration,
    pub(super) stale: HumanDuration,
    pub(super) offline: HumanDuration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            heartbeat: HumanDuration::seconds(10),
            stale: HumanDuration::seconds(30),
            offline: HumanDuration::seconds(90),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Status {
    pub(super) deadline: HumanDuration,
}

impl Default for Status {
    fn default() -> Self {
        Self { deadline: HumanDuration::seconds(2) }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Backup {
    pub(super) dir: String,
    pub(super) keep: u32,
}

impl Default for Backup {
    fn default() -> Self {
        Self { dir: String::new(), keep: 14 }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Log {
    pub(super) level: String,
    pub(super) format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".into(), format: LogFormat::Auto }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Shutdown {
    pub(super) drain: HumanDuration,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain: HumanDuration::seconds(30) }
    }
}
