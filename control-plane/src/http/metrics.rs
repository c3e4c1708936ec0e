//! Metrics and health: plain HTTP on a listener of their own, without a token and without anything secret.
//!
//! Leaves what is in them to [`crate::metrics`] and [`crate::shell::vitals`].

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use umbel_contracts::daemon::exposition::TextFormat;
use umbel_store::Health;
use umbel_wire::Trouble;

use crate::shell::plane::Plane;

/// `/metrics`, `/livez` and `/readyz`.
pub(crate) fn router(plane: Arc<Plane>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(plane)
}

/// Ready to take edges and operators: not once the drain has begun.
pub(super) async fn readyz(State(plane): State<Arc<Plane>>) -> Response {
    if plane.drain.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    let mut text = String::from("ok\n");
    // It takes traffic all the same.
    if let Health::ReadOnly(cause) = plane.store().health() {
        text.push_str(&format!("[!]store read-only, changes are refused: {cause}\n"));
    }
    for broke in plane.parts.troubles() {
        text.push_str(&format!("[!]{}: {}\n", Trouble::CODE, broke.sentence("this control plane")));
    }
    text.into_response()
}

async fn metrics(State(plane): State<Arc<Plane>>, headers: HeaderMap) -> Response {
    let format = TextFormat::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    // It walks the whole fleet: not on the thread that serves.
    let text = tokio::task::spawn_blocking(move || plane.metrics.encode(format)).await;
    match text {
        Ok(Some(text)) => ([(CONTENT_TYPE, format.content_type())], text).into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
