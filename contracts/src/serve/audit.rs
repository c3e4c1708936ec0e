//! The routes on the audit and on backups of the server itself: search, chain, check, copy.
//!
//! On a control plane they are about what its operators asked for, on an edge's socket about the site. Leaves reading
//! to the fleet behind them.

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use umbel_wire::error::Code;

use super::api::Api;
use super::input::{query, refuse};
use super::problem::Failure;
use super::{AuditQuestion, Caller, Fleet};
use crate::objects::Role;
use crate::operations::{AuditExportArgs, AuditQueryArgs};

/// Entries on a page: unless said, and at most.
const PAGE: (usize, usize) = (100, 1000);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    limit: Option<usize>,
    cursor: Option<u64>,
    after: Option<u64>,
    edge: Option<String>,
    actor: Option<String>,
    action: Option<String>,
    subject: Option<String>,
    outcome: Option<String>,
    command_id: Option<String>,
    correlation_id: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

pub(super) async fn audit<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let asked: AuditQuery = query(&request)?;
    if asked.after.is_some() && asked.cursor.is_some() {
        return Err(refuse(
            Code::InvalidArgument,
            "QUERY",
            "`after` follows the audit forwards and `cursor` pages backwards; give one of them.",
        ));
    }
    let question = AuditQuestion {
        limit: asked.limit.unwrap_or(PAGE.0).clamp(1, PAGE.1),
        before: asked.cursor,
        after: asked.after,
        edge_id: asked.edge,
        filter: AuditQueryArgs {
            actor: asked.actor,
            action: asked.action,
            subject: asked.subject,
            outcome: asked.outcome,
            command_id: asked.command_id,
            correlation_id: asked.correlation_id,
            since: asked.since,
            until: asked.until,
            limit: None,
            before: None,
        },
    };
    Ok(Json(api.fleet.audit(question).await?).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportQuery {
    after: Option<u64>,
    limit: Option<u32>,
}

pub(super) async fn export<F: Fleet>(
    State(api): State<Api<F>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    let ExportQuery { after, limit } = query(&request)?;
    let args = AuditExportArgs { after, limit };
    args.page().map_err(|error| refuse(Code::InvalidArgument, "QUERY", format!("{error}.")))?;
    Ok(Json(api.fleet.audit_export(args).await?).into_response())
}

pub(super) async fn verify<F: Fleet>(State(api): State<Api<F>>, caller: Caller) -> Result<Response, Failure> {
    caller.need(Role::Viewer)?;
    Ok(Json(api.fleet.audit_verify().await?).into_response())
}

pub(super) async fn backup<F: Fleet>(State(api): State<Api<F>>, caller: Caller) -> Result<Response, Failure> {
    caller.need(Role::Admin)?;
    Ok(Json(api.fleet.backup(&caller).await?).into_response())
}
