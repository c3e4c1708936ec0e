//! `umbel control-plane doctor`: checks the file, the state directory, the certificates and the ports.

use crate::Config;

/// One step of the doctor.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// `state`, `authority`, `certificate`, `store`, `operators`, `ports`.
    pub name: String,
    /// It is as it should be.
    pub passed: bool,
    /// What was found.
    pub message: String,
    /// What to do; empty when it passed.
    pub next_step: String,
}

/// Checks what can be checked on this host, whether or not the control plane runs. Blocks for a few seconds at
/// most and changes nothing.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let _ = config;
    unimplemented!()
}
