//! Joining an edge with a single-use token.

use crate::{Config, StartError};

/// What enrollment brought.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Enrolled {
    /// The node's UUID.
    pub node_id: String,
    /// The edge it joined.
    pub edge_id: String,
    /// The name that the token gave it.
    pub name: String,
}

/// Runs the preflight, makes the key and joins the edge that the token names. Builds its own runtime; blocks.
///
/// # Errors
/// Failed preflight, a token that is none, an edge that cannot be reached or that refuses, an identity that is
/// already there for another edge.
pub fn enroll(config: &Config, token: &str) -> Result<Enrolled, StartError> {
    let _ = (config, token);
    unimplemented!()
}
