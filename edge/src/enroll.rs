//! `umbel edge enroll`: joins a control plane with a single-use token.
//!
//! Owns the files under STATE/control-planes/NAME. Invariant: an identity that stands there is never
//! overwritten, and the key never leaves this host.

use crate::{Config, StartError};

/// What joining a control plane gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// The control plane's own name, and that of its directory.
    pub control_plane_id: String,
    /// The site, as it is known there.
    pub edge_id: String,
    /// An identity for it was there already; nothing was sent.
    pub already: bool,
}

/// Joins the control plane that the token names. Needs `init` before; a running edge takes it up by itself
/// within seconds. Blocks for at most half a minute.
///
/// # Errors
/// What the control plane said, or why it could not be reached; the token is not spent then unless it says so.
pub fn enroll(config: &Config, token: &str) -> Result<Enrolled, StartError> {
    let _ = (config, token);
    unimplemented!()
}
