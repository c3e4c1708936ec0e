//! `umbel edge doctor`: checks the file, the state directory, the certificates, the ports and the control planes.

use crate::Config;

/// One step of the doctor.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// `state`, `authority`, `certificate`, `store`, `ports`, `control-plane NAME`.
    pub name: String,
    /// It is as it should be.
    pub passed: bool,
    /// What was found.
    pub message: String,
    /// What to do; empty when it passed.
    pub next_step: String,
}

/// Checks what can be checked on this host, whether or not the edge runs. Blocks for a few seconds at most and
/// changes nothing.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let _ = config;
    unimplemented!()
}
