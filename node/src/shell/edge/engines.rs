//! What operators want of single engines: their output, an end, a start anew.
//!
//! Owns the messages; leaves the rest to `shell/engines`. Invariant: an engine is named, never a process or a path.

use std::{sync::Arc, time::Duration};

use prost::Message;
use umbel_contracts::{
    bounds,
    proto::node::{EngineControl, EngineControlAck, EngineOutputRequest},
};
use umbel_wire::{Code, Error, IncomingRequest};

use super::Edge;

/// Where nothing is said: so many lines fit on a screen.
const LINES: usize = 100;

/// Answers with an engine's last lines, or with those after a cursor.
pub(super) fn output(edge: &Edge, request: IncomingRequest) {
    let engines = Arc::clone(&edge.engines);
    tokio::spawn(async move {
        let answer = async {
            let asked: EngineOutputRequest = bounds::decode(&request.payload)?;
            let lines = if asked.lines == 0 { LINES } else { asked.lines as usize };
            let told = engines.output(&asked.engine, &asked.cursor, lines).await.ok_or_else(unknown)?;
            Ok(told.encode_to_vec())
        };
        let answer = answer.await;
        request.respond(answer);
    });
}

/// Stops an engine, or starts it anew.
pub(super) fn control(edge: &Edge, request: IncomingRequest) {
    let engines = Arc::clone(&edge.engines);
    tokio::spawn(async move {
        let answer = async {
            let asked: EngineControl = bounds::decode(&request.payload)?;
            let drain = Duration::from_millis(asked.deadline_ms.into());
            let done = engines.control(&asked.engine, asked.action(), drain).await;
            tracing::info!(engine = %asked.engine, action = ?asked.action(), refused = done.err(), "an operator's wish");
            let message = done.err().unwrap_or_default().to_owned();
            Ok(EngineControlAck { accepted: done.is_ok(), message }.encode_to_vec())
        };
        let answer = answer.await;
        request.respond(answer);
    });
}

fn unknown() -> Error {
    Error::new(Code::NotFound, "UNKNOWN_ENGINE", "this node has no such engine")
}
