//! Whether the host has the accelerators that its file asks for.

use crate::{Config, StartError};

/// What the preflight found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Preflight {
    /// `auto`, `nvidia` or `cpu`, as the file has it.
    pub accelerator: String,
    /// Names of the GPUs found.
    pub gpus: Vec<String>,
    /// The driver's version, where one is.
    pub driver_version: Option<String>,
}

/// Checks the accelerators; never enrolls or connects. Ends within 10 s.
///
/// # Errors
/// [`StartError::Preflight`] with the code and the remedy.
pub fn preflight(config: &Config) -> Result<Preflight, StartError> {
    let _ = config;
    unimplemented!()
}
