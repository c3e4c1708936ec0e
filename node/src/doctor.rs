//! `umbel node doctor`: checks the file and the connection step by step.

use crate::Config;

/// One step of the doctor.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// `configuration`, `state`, `preflight`, `engine NAME`, `lookup`, `connect`, `tls`, `hello`.
    pub name: String,
    /// It is as it should be.
    pub passed: bool,
    /// What was found.
    pub message: String,
    /// What to do; empty when it passed.
    pub next_step: String,
}

/// Checks state directory, accelerators, engines and the way to the edge; steps after a failed one that need it
/// are left out. Builds its own runtime; blocks for at most about 30 s.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let _ = config;
    unimplemented!()
}
