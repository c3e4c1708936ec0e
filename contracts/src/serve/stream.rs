//! Feeds as server-sent events: numbered, kept alive while nothing happens, and counted, so that forgotten
//! readers cannot use up the server.
//!
//! Invariant: a feed ends with the token it was opened with; `shut_out` is that token's end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use umbel_wire::BoxFuture;
use umbel_wire::error::{Code, Error};

use super::{Feed, STREAMS_MAX, Told};
use crate::objects::CommandEventObject;

/// A comment this often while nothing happens, so that proxies keep the connection and readers see it is alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Room for one more stream, or RESOURCE_EXHAUSTED.
pub(super) fn admit(room: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Error> {
    Arc::clone(room).try_acquire_owned().map_err(|_| {
        Error::new(
            Code::ResourceExhausted,
            "TOO_MANY_STREAMS",
            format!("{STREAMS_MAX} event streams are open, which is the most. Close one and try again."),
        )
        .with_retry_after(Duration::from_secs(5))
    })
}

/// The fleet's events, only those of `edge_id` if it is given. Gaps are always told.
pub(super) fn events(
    feed: Feed<Told>,
    edge_id: Option<String>,
    shut_out: BoxFuture<'static, ()>,
    permit: OwnedSemaphorePermit,
) -> Response {
    let lines = feed.take_until(shut_out).filter_map(move |told| {
        let _ = &permit;
        let line = match told {
            Told::Event { event, .. } if edge_id.as_ref().is_some_and(|wanted| *wanted != event.edge_id) => {
                None
            }
            Told::Event { id, event } => json("event", &*event).map(|line| line.id(id)),
            Told::Gap { id, gap } => json("gap", &gap).map(|line| line.id(id)),
        };
        std::future::ready(line.map(Ok::<_, Infallible>))
    });
    respond(Sse::new(lines))
}

/// The steps of one command; the event's name is its phase.
pub(super) fn command(
    feed: Feed<CommandEventObject>,
    shut_out: BoxFuture<'static, ()>,
    permit: OwnedSemaphorePermit,
) -> Response {
    let lines = feed.take_until(shut_out).filter_map(move |step| {
        let _ = &permit;
        let line = json(step.phase.as_str(), &step).map(|line| line.id(step.sequence.to_string()));
        std::future::ready(line.map(Ok::<_, Infallible>))
    });
    respond(Sse::new(lines))
}

fn json(name: &str, object: &impl serde::Serialize) -> Option<Event> {
    Event::default().event(name).json_data(object).ok()
}

fn respond<S>(sse: Sse<S>) -> Response
where
    S: futures_util::Stream<Item = Result<Event, Infallible>> + Send + 'static,
{
    let mut response = sse.keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
