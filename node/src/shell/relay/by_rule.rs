//! Streams on the built-in engine: the same bytes in the same frames as from a real one, at its own pace.
//!
//! Owns the pace; leaves the bytes to `engines/sim`. Invariant: its streams end and are cancelled like any other.

use std::time::Duration;

use umbel_wire::{Code, IncomingStream};

use super::{Ended, Progress, body_part, open::Asked, pass_on, send_head};
use crate::{
    engines::sim::{Reply, Sim},
    shell::engine_http::Head,
};

/// A body that it takes: what an edge takes by default.
const BODY_MAX: u64 = 32 * 1024 * 1024;

/// The built-in engine's answer, at its own pace.
pub(super) async fn answer(
    stream: &IncomingStream,
    asked: &Asked,
    sim: &Sim,
    progress: &mut Progress,
) -> Result<(), Ended> {
    let body = whole_body(stream, asked).await?;
    let reply = sim.reply(asked.method, asked.path, &body);
    let (status, kind) = match &reply {
        Reply::Whole { status, .. } => (*status, "application/json"),
        Reply::Stream(_) => (200, "text/event-stream"),
    };
    let head = Head { status, headers: vec![("content-type", kind.into())] };
    match reply {
        Reply::Whole { body, delay, .. } => {
            pause(delay).await;
            send_head(stream, head, &body, progress).await
        }
        Reply::Stream(mut events) => {
            send_head(stream, head, &[], progress).await?;
            while let Some((delay, event)) = events.next() {
                pause(delay).await;
                pass_on(stream, &event, progress).await?;
            }
            Ok(())
        }
    }
}

async fn pause(delay: Duration) {
    if delay.is_zero() {
        // Other streams share this thread.
        tokio::task::consume_budget().await;
    } else {
        tokio::time::sleep(delay).await;
    }
}

pub(super) async fn whole_body(stream: &IncomingStream, asked: &Asked) -> Result<Vec<u8>, Ended> {
    let mut left = asked.body_bytes;
    if left > BODY_MAX {
        return Err(Ended::refused(Code::TooLarge, "BODY_TOO_LARGE", "this engine takes at most 32 MiB"));
    }
    let mut body = Vec::new();
    while left > 0 {
        match body_part(stream, &mut left).await? {
            Some(part) => body.extend_from_slice(&part),
            None => break,
        }
    }
    Ok(body)
}
