//! The router in front of a small fleet of its own: roles at each route, bounds, problem documents, streams.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use futures_util::StreamExt;
use umbel_wire::error::{Code, Error};

use super::*;
use crate::objects::*;
use crate::operations::{AuditExportArgs, AuditExportResult, AuditVerifyResult, Class, EdgeBackupResult};

/// Knows three tokens named like their roles, one edge, and operations named like their classes.
struct Small {
    ring: Arc<EventRing>,
}

fn unavailable<T: Send>() -> impl Future<Output = Result<T, Error>> + Send {
    std::future::ready(Err(Error::new(Code::Unavailable, "EDGE_NOT_CONNECTED", "away")
        .with_retry_after(Duration::from_millis(1500))))
}

impl Fleet for Small {
    async fn authenticate(&self, token: &str) -> Result<Bearer, Error> {
        let bearer = |actor: &str, role| Bearer { actor: actor.into(), role, token_id: actor.into() };
        match token {
            "viewer" => Ok(bearer("v", Role::Viewer)),
            "operator" => Ok(bearer("o", Role::Operator)),
            "admin" => Ok(bearer("a", Role::Admin)),
            _ => Err(Error::new(Code::Unauthenticated, "TOKEN_UNKNOWN", "no")),
        }
    }
    async fn status(&self, deadline: Option<Duration>) -> Result<FleetStatus, Error> {
        Ok(FleetStatus {
            fleet_name: "f".into(),
            answered_by: "small".into(),
            observed_at: timestamp(0),
            deadline_ms: deadline.map_or(0, |deadline| u64::try_from(deadline.as_millis()).unwrap()),
            sites: Vec::new(),
        })
    }
    async fn edges(&self) -> Result<Vec<EdgeObject>, Error> {
        Ok(Vec::new())
    }
    async fn edge(&self, edge_id: &str) -> Result<EdgeObject, Error> {
        Err(Error::new(Code::NotFound, "EDGE_UNKNOWN", format!("no {edge_id}")))
    }
    fn edge_status(
        &self,
        _: &str,
        _: StatusQuestion,
    ) -> impl Future<Output = Result<SiteStatus, Error>> + Send {
        unavailable()
    }
    async fn nodes(&self, _: StatusQuestion) -> Result<FleetNodes, Error> {
        Ok(FleetNodes { items: Vec::new(), missing: Vec::new() })
    }
    async fn operation_class(&self, _: &str, operation: &str) -> Result<Class, Error> {
        Ok(operation.parse().unwrap_or(Class::Admin))
    }
    async fn command(&self, _: &Caller, edge_id: &str, call: CommandCall) -> Result<CommandObject, Error> {
        Ok(CommandObject {
            command_id: call.command_id,
            edge_id: edge_id.into(),
            operation: Some(call.body.operation),
            phase: if call.wait.is_zero() { CommandPhase::Accepted } else { CommandPhase::Succeeded },
            error: None,
            result: None,
            replayed: false,
        })
    }
    fn command_show(
        &self,
        _: &Caller,
        _: &str,
        _: &str,
    ) -> impl Future<Output = Result<CommandObject, Error>> + Send {
        unavailable()
    }
    fn command_events(
        &self,
        _: &Caller,
        _: &str,
        _: &str,
    ) -> impl Future<Output = Result<Feed<CommandEventObject>, Error>> + Send {
        unavailable()
    }
    async fn events(&self, follow: Follow) -> Result<Feed<Told>, Error> {
        Ok(self.ring.follow(&follow))
    }
    async fn audit(&self, question: AuditQuestion) -> Result<Page<AuditObject>, Error> {
        Ok(Page { items: Vec::new(), next_cursor: question.before.map(|before| before.to_string()) })
    }
    fn audit_export(
        &self,
        _: AuditExportArgs,
    ) -> impl Future<Output = Result<AuditExportResult, Error>> + Send {
        unavailable()
    }
    fn audit_verify(&self) -> impl Future<Output = Result<AuditVerifyResult, Error>> + Send {
        unavailable()
    }
    fn backup(&self, _: &Caller) -> impl Future<Output = Result<EdgeBackupResult, Error>> + Send {
        unavailable()
    }
}

fn event(number: u64) -> EventObject {
    EventObject {
        edge_id: if number.is_multiple_of(2) { "even" } else { "odd" }.into(),
        sequence: number,
        at: timestamp(0),
        kind: "node_ready".into(),
        node_id: None,
        provider_id: None,
        generation: None,
        deployment: None,
        job_id: None,
        message: String::new(),
    }
}

fn small(door: Door) -> (Router, Arc<EventRing>) {
    let ring = EventRing::new("inc", 4);
    (router(Arc::new(Small { ring: Arc::clone(&ring) }), door), ring)
}

async fn send(router: &Router, request: Request<Body>) -> Response {
    use axum::handler::Handler;
    axum::routing::any_service(router.clone()).call(request, ()).await
}

fn request(method: Method, path: &str, token: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path);
    if let Some(token) = token {
        builder = builder.header("authorization", format!("Bearer {token}"));
    }
    builder.body(body.into()).unwrap()
}

async fn ask(method: Method, path: &str, token: Option<&str>, body: &str) -> (StatusCode, String) {
    let response = send(&small(Door::Network).0, request(method, path, token, body.to_owned())).await;
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let reason =
        serde_json::from_slice::<ProblemDocument>(&body).map(|problem| problem.reason).unwrap_or_default();
    (status, reason)
}

#[tokio::test]
async fn a_path_that_is_no_text_is_refused_in_a_problem_document() {
    let (status, reason) = ask(Method::GET, "/api/v1/edges/%ff", Some("viewer"), "").await;
    assert_eq!((status, &*reason), (StatusCode::BAD_REQUEST, "PATH_INVALID"));
}

/// Every route with the least role that passes: below it 403, without a token 401, and with it anything but these.
#[tokio::test]
async fn every_route_asks_for_its_role() {
    let command = |operation: &str| format!("{{\"operation\":\"{operation}\"}}");
    let id = "/api/v1/edges/ber1/commands/00000000-0000-4000-8000-000000000001";
    let enrollment = r#"{"token_id":"t","secret_sha256":"s","edge_id":"e"}"#;
    let operator = r#"{"operator_id":"o","secret_sha256":"s","name":"n","role":"viewer"}"#;
    let rows = [
        (Method::GET, "/api/v1/status", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/edges", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/edges/ber1", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/edges/ber1/status", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/nodes", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/nodes/n1", String::new(), Role::Viewer),
        (Method::GET, id, String::new(), Role::Viewer),
        (Method::GET, &format!("{id}/events"), String::new(), Role::Viewer),
        (Method::GET, "/api/v1/events?follow=false", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/audit", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/audit?action=token.*&since=2026-11-29T12:00:00Z", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/audit/export?after=3&limit=10", String::new(), Role::Viewer),
        (Method::GET, "/api/v1/audit/verify", String::new(), Role::Viewer),
        (Method::POST, "/api/v1/backup", String::new(), Role::Admin),
        (Method::POST, "/api/v1/edges/ber1/commands", command("read"), Role::Viewer),
        (Method::POST, "/api/v1/edges/ber1/commands", command("operate"), Role::Operator),
        (Method::POST, "/api/v1/edges/ber1/commands", command("admin"), Role::Admin),
        (Method::POST, "/api/v1/edges/ber1/commands", command("not.known"), Role::Admin),
        (Method::POST, "/api/v1/edges/ber1/credential:revoke", r#"{"reason":"lost"}"#.into(), Role::Admin),
        (Method::GET, "/api/v1/edge-enrollments", String::new(), Role::Admin),
        (Method::POST, "/api/v1/edge-enrollments", enrollment.into(), Role::Admin),
        (Method::GET, "/api/v1/edge-enrollments/t", String::new(), Role::Admin),
        (Method::DELETE, "/api/v1/edge-enrollments/t", String::new(), Role::Admin),
        (Method::GET, "/api/v1/operators", String::new(), Role::Admin),
        (Method::POST, "/api/v1/operators", operator.into(), Role::Admin),
        (Method::DELETE, "/api/v1/operators/o", String::new(), Role::Admin),
    ];
    for (method, path, body, least) in rows {
        let what = format!("{method} {path} {body}");
        for token in [None, Some("wrong"), Some("")] {
            let (status, _) = ask(method.clone(), path, token, &body).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{what} with {token:?}");
        }
        for role in [Role::Viewer, Role::Operator, Role::Admin] {
            let (status, reason) = ask(method.clone(), path, Some(role.as_str()), &body).await;
            let refused = (status, reason.as_str()) == (StatusCode::FORBIDDEN, "ROLE_TOO_LOW");
            assert_eq!(refused, role < least, "{what} as {role:?}: {status} {reason}");
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{what}");
            assert_ne!(status, StatusCode::BAD_REQUEST, "{what}: {reason}");
        }
    }
}

#[tokio::test]
async fn paths_and_methods_that_do_not_exist_are_told_to_callers_only() {
    for (method, path, status) in [
        (Method::GET, "/api/v1/nope", StatusCode::NOT_FOUND),
        (Method::GET, "/", StatusCode::NOT_FOUND),
        (Method::PUT, "/api/v1/status", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        assert_eq!(ask(method.clone(), path, None, "").await.0, StatusCode::UNAUTHORIZED, "{path}");
        assert_eq!(ask(method, path, Some("viewer"), "").await.0, status, "{path}");
    }
}

#[tokio::test]
async fn the_local_door_needs_no_token_and_its_callers_are_admin() {
    let (router, _) = small(Door::Local);
    let response = send(&router, request(Method::GET, "/api/v1/operators", None, "")).await;
    // A fleet of one has no operators: the default answer, past the role check.
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_error_is_a_problem_document_with_the_requests_id() {
    let (router, _) = small(Door::Network);
    let mut asked = request(Method::GET, "/api/v1/edges/ber1/status", Some("viewer"), "");
    asked.headers_mut().insert("x-request-id", "mine-1".parse().unwrap());
    let response = send(&router, asked).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(response.headers()["x-request-id"], "mine-1");
    assert_eq!(response.headers()["retry-after"], "2");
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let problem: ProblemDocument = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (problem.status, problem.code.as_str(), problem.reason.as_str()),
        (503, "UNAVAILABLE", "EDGE_NOT_CONNECTED")
    );
    assert_eq!((problem.correlation_id.as_str(), problem.retry_after_ms), ("mine-1", Some(1500)));
    assert_eq!(problem.instance.as_deref(), Some("/api/v1/edges/ber1/status"));

    for odd in ["a b", "x\u{7f}", &"x".repeat(129)] {
        let mut asked = request(Method::GET, "/api/v1/status", Some("viewer"), "");
        if let Ok(value) = odd.parse() {
            asked.headers_mut().insert("x-request-id", value);
        }
        let response = send(&router, asked).await;
        assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req_"), "{odd}");
    }
}

#[tokio::test]
async fn bodies_and_fields_have_bounds() {
    let path = "/api/v1/edges/ber1/commands";
    let post = |body: String| async move { ask(Method::POST, path, Some("admin"), &body).await };
    assert_eq!(post("{".into()).await, (StatusCode::BAD_REQUEST, "BODY_MALFORMED".into()));
    assert_eq!(post("{}".into()).await.1, "BODY_MALFORMED");
    assert_eq!(post(r#"{"operation":"read","nope":1}"#.into()).await.1, "BODY_MALFORMED");
    assert_eq!(post(r#"{"operation":""}"#.into()).await.1, "OPERATION_MISSING");
    let long = format!(r#"{{"operation":"read","reason":"{}"}}"#, "x".repeat(600));
    assert_eq!(post(long).await.1, "FIELD_TOO_LONG");
    let huge = format!(r#"{{"operation":"read","reason":"{}"}}"#, "x".repeat(BODY_MAX));
    assert_eq!(post(huge).await, (StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE".into()));
}

#[tokio::test]
async fn queries_are_checked() {
    let get = |path: &'static str| async move { ask(Method::GET, path, Some("viewer"), "").await.1 };
    assert_eq!(get("/api/v1/status?deadline=soon").await, "DURATION_MALFORMED");
    assert_eq!(get("/api/v1/status?dedline=1s").await, "QUERY_MALFORMED");
    assert_eq!(get("/api/v1/nodes?sections=secrets").await, "SECTION_UNKNOWN");
    let (router, _) = small(Door::Network);
    for (asked, taken) in
        [("1ms", 50), ("2", 2_000), ("1s", 1_000), ("9m", 30_000), ("99999999999999999999s", 0)]
    {
        let response = send(
            &router,
            request(Method::GET, &format!("/api/v1/status?deadline={asked}"), Some("viewer"), ""),
        )
        .await;
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let told = serde_json::from_slice::<FleetStatus>(&body).map_or(0, |status| status.deadline_ms);
        assert_eq!(told, taken, "{asked}");
    }
}

#[tokio::test]
async fn a_command_has_an_id_a_location_and_a_status_that_says_whether_it_ended() {
    let (router, _) = small(Door::Network);
    let id = "0d9b5e1a-9d3c-4c53-9a43-000000000001";
    for (query, status) in [("", StatusCode::ACCEPTED), ("?wait=5s", StatusCode::OK)] {
        let path = format!("/api/v1/edges/ber1/commands{query}");
        let mut asked = request(Method::POST, &path, Some("operator"), r#"{"operation":"operate"}"#);
        asked.headers_mut().insert("idempotency-key", id.to_uppercase().parse().unwrap());
        let response = send(&router, asked).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["location"], format!("/api/v1/edges/ber1/commands/{id}"));
    }
    let mut asked =
        request(Method::POST, "/api/v1/edges/ber1/commands", Some("operator"), r#"{"operation":"operate"}"#);
    asked.headers_mut().insert("idempotency-key", "yes".parse().unwrap());
    assert_eq!(send(&router, asked).await.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn streams_are_counted_and_freed() {
    let (router, ring) = small(Door::Network);
    let open = || request(Method::GET, "/api/v1/events", Some("viewer"), "");
    let mut held = Vec::new();
    for _ in 0..STREAMS_MAX {
        let response = send(&router, open()).await;
        assert_eq!(response.status(), StatusCode::OK);
        held.push(response);
    }
    assert_eq!(send(&router, open()).await.status(), StatusCode::TOO_MANY_REQUESTS);
    held.pop();
    assert_eq!(send(&router, open()).await.status(), StatusCode::OK, "one that went away made room");
    ring.close();
}

#[tokio::test]
async fn events_are_server_sent_with_ids_and_filtered_by_edge() {
    let (router, ring) = small(Door::Network);
    (0..4).for_each(|number| ring.publish(event(number)));
    let asked = request(Method::GET, "/api/v1/events?recent=9&follow=false&edge=even", Some("viewer"), "");
    let response = send(&router, asked).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    let ids: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["inc.0", "inc.2"]);
    assert!(text.contains("event: event\n"), "{text}");
}

fn numbers(told: &[Told]) -> Vec<String> {
    told.iter()
        .map(|told| match told {
            Told::Event { id, .. } => id.clone(),
            Told::Gap { id, gap } => format!("gap {:?} before {id}", gap.lost),
        })
        .collect()
}

async fn read(ring: &Arc<EventRing>, after: Option<&str>, recent: usize) -> Vec<String> {
    let follow = Follow { after: after.map(str::to_owned), recent, live: false };
    numbers(&ring.follow(&follow).collect::<Vec<_>>().await)
}

#[tokio::test]
async fn a_reader_goes_on_where_it_was_and_is_told_what_it_missed() {
    let ring = EventRing::new("inc", 4);
    assert!(read(&ring, None, 9).await.is_empty());
    (0..6).for_each(|number| ring.publish(event(number)));
    assert_eq!(read(&ring, None, 0).await, Vec::<String>::new());
    assert_eq!(read(&ring, None, 2).await, ["inc.4", "inc.5"]);
    assert_eq!(read(&ring, Some("inc.3"), 0).await, ["inc.4", "inc.5"]);
    assert_eq!(read(&ring, Some("inc.5"), 0).await, Vec::<String>::new());
    assert_eq!(
        read(&ring, Some("inc.0"), 0).await,
        ["gap Some(1) before inc.1", "inc.2", "inc.3", "inc.4", "inc.5"]
    );
    // Of a former process, from the future, or rubbish: an unknown number was missed.
    for odd in ["old.3", "inc.6", "inc.x", "inc", ""] {
        let told = read(&ring, Some(odd), 0).await;
        assert_eq!(told.first().map(String::as_str), Some("gap None before inc.1"), "{odd}");
        assert_eq!(told.len(), 5, "{odd}");
    }
}

#[tokio::test]
async fn a_slow_reader_costs_no_memory_and_loses_the_oldest() {
    let ring = EventRing::new("inc", 4);
    let mut feed = ring.follow(&Follow { live: true, ..Follow::default() });
    (0..10).for_each(|number| ring.publish(event(number)));
    ring.close();
    let told = numbers(&feed.by_ref().collect::<Vec<_>>().await);
    assert_eq!(told, ["gap Some(6) before inc.5", "inc.6", "inc.7", "inc.8", "inc.9"]);
}
