//! `umbel node status`: asks the running agent through its local socket.

use std::path::Path;

use crate::StartError;

/// Asks the agent behind `socket`. The object has `node_id`, `name`, `edge_id`, `agent_version`, `connection`
/// (`state`, `last_error`, `generation`), `gpus`, `engines`, `streams_in_flight`, `settings_version` and `problems`.
///
/// # Errors
/// [`StartError::Unreachable`] when no agent listens there.
pub fn status(socket: &Path) -> Result<serde_json::Value, StartError> {
    let _ = socket;
    unimplemented!()
}
