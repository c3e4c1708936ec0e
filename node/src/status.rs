//! `umbel node status`: asks the running agent through its local socket.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use crate::StartError;

/// The agent answers from memory.
const LIMIT: Duration = Duration::from_secs(5);
/// An answer with every engine's output is a few hundred KiB.
const ANSWER_MAX: u64 = 8 * 1024 * 1024;

/// Asks the agent behind `socket`. The object has `node_id`, `name`, `edge_id`, `agent_version`,
/// `credential_not_after`, `connection` (`state`: `connecting`, `connected` or `draining`; `generation`, `since`,
/// `last_error`), `accelerator`, `driver_version`, `cuda_version`, `inventory_complete` and why not, `host` (processors,
/// load, memory, storage), `gpus` (facts, figures and their `age_ms`, `state` `ok` or `lost`), `engines`,
/// `streams_in_flight`, `settings_version` and `problems`.
///
/// # Errors
/// [`StartError::Unreachable`] when no agent listens there, [`StartError::Failed`] when its answer cannot be used.
pub fn status(socket: &Path) -> Result<serde_json::Value, StartError> {
    let unreachable = |error: std::io::Error| {
        StartError::Unreachable(format!(
            "no node agent answers on {}: {error}. Is `umbel node` running with this file, under this user?",
            socket.display()
        ))
    };
    let mut stream = UnixStream::connect(socket).map_err(unreachable)?;
    stream.set_read_timeout(Some(LIMIT)).map_err(unreachable)?;
    stream.write_all(b"GET /api/v1/status HTTP/1.1\r\nhost: node\r\n\r\n").map_err(unreachable)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer).map_err(unreachable)?;
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").and_then(|at| answer.get(at + 4..));
    serde_json::from_slice(body.unwrap_or_default())
        .map_err(|error| StartError::Failed(format!("the agent's answer cannot be read: {error}")))
}
