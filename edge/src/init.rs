//! `umbel edge init`: makes the site's authority and its store.
//!
//! Invariant: it never replaces anything; a second call refuses and names what stands there.

use std::path::PathBuf;

use umbel_store::Store;
use umbel_wire::ca::{Authority, CERTIFICATE_FILE};
use umbel_wire::clock::Wall;
use umbel_wire::files;

use crate::app::{STORE_FILE, STORE_OWNER};
use crate::shell::authority::{ca_dir, is_initialised};
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
/// If the site is initialised already, or the directory cannot be written.
pub fn init(config: &Config) -> Result<Initialised, StartError> {
    let state = &config.state_dir;
    let failed = |error: &dyn std::fmt::Display| StartError::State(format!("{}: {error}", state.display()));
    files::private_dir(state).map_err(|error| failed(&error))?;
    let directory = ca_dir(config);
    if is_initialised(&directory) {
        return Err(StartError::State(format!(
            "{} holds a site's authority already; nothing was changed. To start anew, give the new site another \
             state_dir: enrolled nodes trust this one.",
            directory.display()
        )));
    }
    // The store first: a site with an authority is complete.
    let store = Store::open(&state.join(STORE_FILE), STORE_OWNER).map_err(|error| failed(&error))?;
    store.close_blocking();
    let authority =
        Authority::create(&directory, config.site.as_str(), Wall::now()).map_err(|error| failed(&error))?;
    Ok(Initialised {
        edge_id: config.site.to_string(),
        ca_file: directory.join(CERTIFICATE_FILE),
        ca_sha256: data_encoding::HEXLOWER.encode(&authority.digest()),
    })
}
