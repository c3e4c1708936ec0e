//! Metrics and health: plain HTTP on a listener of their own, without a token and without anything secret.
//!
//! Names are `umbel_cp_...`. Gauges are read when they are asked for, so that they cannot drift.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use umbel_contracts::objects::EdgeConnection;

use crate::shell::plane::Plane;

/// What is counted where it happens.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) events_total: Counter,
    pub(crate) events_lost_total: Counter,
    pub(crate) audit_total: Counter,
    pub(crate) enrolled_total: Counter,
    pub(crate) enrollments_refused_total: Counter,
    pub(crate) hellos_refused_total: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    role: &'static str,
}

/// `/metrics`, `/livez` and `/readyz`.
pub(crate) fn router(plane: Arc<Plane>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(plane)
}

/// Ready to take edges and operators: not once the drain has begun.
async fn readyz(State(plane): State<Arc<Plane>>) -> Response {
    if plane.drain.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    "ok\n".into_response()
}

async fn metrics(State(plane): State<Arc<Plane>>) -> Response {
    let mut text = String::new();
    if encode(&mut text, &registry(&plane)).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

fn registry(plane: &Plane) -> Registry {
    let mut registry = Registry::with_prefix("umbel");
    let build = Family::<BuildLabels, Gauge>::default();
    build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION"), role: "control_plane" }).set(1);
    registry.register("build_info", "What runs", build);
    registry.register("cp_sites", "Enrolled sites by the state of their connection", sites(plane));
    let running = Gauge::<i64>::default();
    running.set(i64::try_from(plane.commands().running()).unwrap_or(i64::MAX));
    registry.register("cp_commands_running", "Relayed commands whose end is not known", running);
    let counted = &plane.metrics;
    let counters = [
        ("cp_events", "Events of edges and of this control plane", &counted.events_total),
        ("cp_events_lost", "Events of edges that were lost on their way", &counted.events_lost_total),
        ("cp_audit_records", "Audit entries written since the start", &counted.audit_total),
        ("cp_enrolled", "Edges enrolled since the start", &counted.enrolled_total),
        ("cp_enrollments_refused", "Refused enrollments of edges", &counted.enrollments_refused_total),
        ("cp_hellos_refused", "Refused hellos of edges", &counted.hellos_refused_total),
    ];
    for (name, help, counter) in counters {
        registry.register(name, help, counter.clone());
    }
    registry
}

fn sites(plane: &Plane) -> Family<StateLabel, Gauge> {
    let family = Family::<StateLabel, Gauge>::default();
    for state in ["connected", "stale", "disconnected", "never"] {
        family.get_or_create(&StateLabel { state }).set(0);
    }
    let fleet = plane.fleet();
    for (edge_id, _) in fleet.edges.sorted() {
        let connection = fleet.views.connection(edge_id);
        let state = match connection {
            EdgeConnection::Connected => "connected",
            EdgeConnection::Stale => "stale",
            EdgeConnection::Disconnected => "disconnected",
            EdgeConnection::Never => "never",
        };
        family.get_or_create(&StateLabel { state }).inc();
    }
    family
}
