//! `umbel control-plane init`: makes the authority, the server's certificate and the first admin's token.
//!
//! Invariant: it never replaces anything; a second call refuses and names what stands there.

use std::path::PathBuf;

use crate::{Config, StartError};

/// What `init` made. The token itself stands only in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialised {
    /// The authority's certificate, PEM: what `ctl --ca-file` takes.
    pub ca_file: PathBuf,
    /// SHA-256 of the authority's certificate, in hexadecimal.
    pub ca_sha256: String,
    /// The first admin's token, mode 0600.
    pub token_file: PathBuf,
}

/// Makes the state directory's contents. Blocks for less than a second.
///
/// # Errors
/// If something of it exists already, or the directory cannot be written.
pub fn init(config: &Config) -> Result<Initialised, StartError> {
    let _ = config;
    unimplemented!()
}
