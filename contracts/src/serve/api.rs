//! The routes of `/api/v1`: what each one takes, the role it needs, and the status it answers with.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::sync::Semaphore;
use umbel_wire::error::Code;

use super::fleet::clip;
use super::input::{
    Path, SELECTOR_MAX, check_command, command_id, deadline, duration, idempotency_key, json, query, reason,
    refuse,
};
use super::large::large;
use super::problem::{Failure, tell};
use super::{Caller, CommandCall, Door, Fleet, Follow, SECTIONS, STREAMS_MAX, StatusQuestion, audit, stream};
use crate::objects::{CommandRequestBody, EdgeEnrollmentRequest, OperatorRequest, Page, Role};
use crate::operations::Class;

/// Longest time a command's caller may wait for its end.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// What the handlers share.
pub(super) struct Api<F> {
    pub(super) fleet: Arc<F>,
    pub(super) door: Door,
    pub(super) streams: Arc<Semaphore>,
}

impl<F> Clone for Api<F> {
    fn clone(&self) -> Self {
        Self { fleet: Arc::clone(&self.fleet), door: self.door, streams: Arc::clone(&self.streams) }
    }
}

/// The operator API of `fleet` for callers that come through `door`. One router a door; the bound on event
/// streams is each router's own.
pub fn router<F: Fleet>(fleet: Arc<F>, door: Door) -> Router {
    let api = Api { fleet, door, streams: Arc::new(Semaphore::new(STREAMS_MAX)) };
    let v1 = Router::new()
        .route("/status", get(status))
        .route("/edges", get(edges))
        .route("/edges/{edge}", get(edge))
        .route("/edges/{edge}/status", get(edge_status))
        .route("/edges/{edge}/commands", post(command))
        .route("/edges/{edge}/commands/{command}", get(command_show))
        .route("/edges/{edge}/commands/{command}/events", get(command_events))
        .route("/edges/{edge}/credential:revoke", post(credential_revoke))
        .route("/nodes", get(nodes))
        .route("/nodes/{node}", get(node))
        .route("/events", get(events))
        .route("/audit", get(audit::audit::<F>))
        .route("/audit/export", get(audit::export::<F>))
        .route("/audit/verify", get(audit::verify::<F>))
        .route("/backup", post(audit::backup::<F>))
        .route("/edge-enrollments", get(enrollments).post(enrollment_create))
        .route("/edge-enrollments/{token}", get(enrollment).delete(enrollment_revoke))
        .route("/operators", get(operators).post(operator_create))
        .route("/operators/{operator}", axum::routing::delete(operator_revoke))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method);
    Router::new().nest("/api/v1", v1).fallback(no_route).with_state(api).layer(from_fn(tell))
}

/// Unknown paths tell nothing to those who have no token.
async fn no_route(_caller: Caller) -> Failure {
    refuse(Code::NotFound, "NO_SUCH_ROUTE", "There is no such path. The operator API is under /api/v1.")
}

async fn no_method(_caller: Caller) -> Failure {
    refuse(Code::InvalidArgument, "METHOD_NOT_ALLOWED", "This path does not take this method.")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusQuery {
    deadline: Option<String>,
}

async fn status<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let query: StatusQuery = query(&request)?;
    Ok(Json(api.fleet.status(deadline(query.deadline.as_deref())?).await?).into_response())
}

async fn edges<F: Fleet>(State(api): State<Api<F>>, caller: Caller) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    Ok(Json(Page::whole(api.fleet.edges().await?)).into_response())
}

async fn edge<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(edge): Path<String>,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    Ok(Json(api.fleet.edge(&edge).await?).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DetailQuery {
    nodes: Option<String>,
    sections: Option<String>,
    deadline: Option<String>,
}

impl DetailQuery {
    fn question(self) -> Result<StatusQuestion, Failure> {
        let mut sections: Vec<String> = self
            .sections
            .iter()
            .flat_map(|list| list.split(','))
            .map(|name| name.trim().to_owned())
            .collect();
        sections.retain(|name| !name.is_empty());
        sections.sort();
        sections.dedup();
        if let Some(odd) = sections.iter().find(|name| !SECTIONS.contains(&name.as_str())) {
            return Err(refuse(
                Code::InvalidArgument,
                "SECTION_UNKNOWN",
                format!("`{}` is no section; there are {}.", clip(odd), SECTIONS.join(", ")),
            ));
        }
        let nodes = self.nodes.unwrap_or_default();
        if nodes.len() > SELECTOR_MAX {
            return Err(refuse(
                Code::InvalidArgument,
                "SELECTOR_TOO_LONG",
                "A selector has at most 1,024 bytes.",
            ));
        }
        Ok(StatusQuestion { nodes, sections, deadline: deadline(self.deadline.as_deref())? })
    }
}

async fn edge_status<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(edge): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let question = query::<DetailQuery>(&request)?.question()?;
    large(api.fleet.edge_status(&edge, question).await?).await
}

async fn nodes<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let mut question = query::<DetailQuery>(&request)?.question()?;
    question.sections = vec!["nodes".into()];
    large(api.fleet.nodes(question).await?).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeQuery {
    edge: Option<String>,
}

async fn node<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(node): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let query: NodeQuery = query(&request)?;
    Ok(Json(api.fleet.node(&node, query.edge.as_deref()).await?).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CommandQuery {
    wait: Option<String>,
}

async fn command<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(edge): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    // Before anything of the request is read: below viewer there is nothing to ask for.
    caller.need(Role::Viewer)?;
    let query: CommandQuery = query(&request)?;
    let wait = match query.wait.as_deref() {
        Some(text) => duration(text, "wait")?.min(WAIT_MAX),
        None => Duration::ZERO,
    };
    let command_id = idempotency_key(request.headers())?;
    let body: CommandRequestBody = json(request.into_body()).await?;
    check_command(&body)?;
    let class = api.fleet.operation_class(&edge, &body.operation).await?;
    caller.need(role_for(class))?;
    let command = api.fleet.command(&caller, &edge, CommandCall { command_id, body, wait }).await?;
    let location = format!("/api/v1/edges/{}/commands/{}", command.edge_id, command.command_id);
    let status = if command.phase.is_end() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, [(LOCATION, location)], Json(command)).into_response())
}

/// The role that an operation of this class needs.
#[must_use]
pub(super) fn role_for(class: Class) -> Role {
    match class {
        Class::Read => Role::Viewer,
        Class::Operate => Role::Operator,
        Class::Admin => Role::Admin,
    }
}

async fn command_show<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path((edge, command)): Path<(String, String)>,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let command = command_id(&command)?;
    Ok(Json(api.fleet.command_show(&caller, &edge, &command).await?).into_response())
}

async fn command_events<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path((edge, command)): Path<(String, String)>,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let command = command_id(&command)?;
    let permit = stream::admit(&api.streams)?;
    let feed = api.fleet.command_events(&caller, &edge, &command).await?;
    Ok(stream::command(feed, api.fleet.shut_out(&caller), permit))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    edge: Option<String>,
    recent: Option<usize>,
    follow: Option<bool>,
}

async fn events<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let query: EventsQuery = query(&request)?;
    let after =
        request.headers().get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let permit = stream::admit(&api.streams)?;
    let follow = Follow {
        after: after.filter(|id| !id.is_empty()),
        recent: query.recent.unwrap_or(0),
        live: query.follow.unwrap_or(true),
    };
    Ok(stream::events(api.fleet.events(follow).await?, query.edge, api.fleet.shut_out(&caller), permit))
}

async fn enrollments<F: Fleet>(State(api): State<Api<F>>, caller: Caller) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    Ok(Json(Page::whole(api.fleet.edge_enrollments().await?)).into_response())
}

async fn enrollment<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(token): Path<String>,
) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    Ok(Json(api.fleet.edge_enrollment(&token).await?).into_response())
}

async fn enrollment_create<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    let body: EdgeEnrollmentRequest = json(request.into_body()).await?;
    let made = api.fleet.edge_enrollment_create(&caller, body).await?;
    let location = format!("/api/v1/edge-enrollments/{}", made.token_id);
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(made)).into_response())
}

async fn enrollment_revoke<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(token): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    let reason = reason(request.into_body()).await?;
    Ok(Json(api.fleet.edge_enrollment_revoke(&caller, &token, &reason).await?).into_response())
}

async fn credential_revoke<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(edge): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    let reason = reason(request.into_body()).await?;
    if reason.trim().is_empty() {
        return Err(refuse(
            Code::InvalidArgument,
            "REASON_MISSING",
            "Revoking a credential needs a `reason`.",
        ));
    }
    Ok(Json(api.fleet.credential_revoke(&caller, &edge, &reason).await?).into_response())
}

async fn operators<F: Fleet>(State(api): State<Api<F>>, caller: Caller) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    Ok(Json(Page::whole(api.fleet.operators().await?)).into_response())
}

async fn operator_create<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    let body: OperatorRequest = json(request.into_body()).await?;
    let made = api.fleet.operator_create(&caller, body).await?;
    Ok((StatusCode::CREATED, Json(made)).into_response())
}

async fn operator_revoke<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    Path(operator): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    let reason = reason(request.into_body()).await?;
    Ok(Json(api.fleet.operator_revoke(&caller, &operator, &reason).await?).into_response())
}
