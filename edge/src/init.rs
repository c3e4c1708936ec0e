//! `umbel edge init`: makes the site's authority and the server's certificate.
//!
//! Invariant: it never replaces anything; a second call refuses and names what stands there.

use std::path::PathBuf;

use crate::{Config, StartError};

/// What `init` made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initialised {
    /// The site.
    pub edge_id: String,
    /// The authority's certificate, PEM.
    pub ca_file: PathBuf,
    /// SHA-256 of the authority's certificate, in hexadecimal.
    pub ca_sha256: String,
}

/// Makes the state directory's contents. Blocks for less than a second.
///
/// # Errors
/// If something of it exists already, or the directory cannot be written.
pub fn init(config: &Config) -> Result<Initialised, StartError> {
    let _ = config;
    unimplemented!()
}
