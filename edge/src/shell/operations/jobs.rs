//! `job.list`, `job.show`, `job.cancel`, and how an operation begins whose work is a job a node.
//!
//! Owns their pages, and storing what begins. Leaves what the work is to whoever asks for it, and jobs themselves to
//! [`crate::shell::jobs`]. Invariant: a command that begins jobs is stored with them in one transaction; it has succeeded then,
//! and the jobs go on by themselves.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::objects::JobObject;
use umbel_contracts::operations::{
    JOBS_AT_ONCE, JobCancel, JobList, JobListArgs, JobListResult, JobShow, JobsResult, Operation,
    RuntimeHealth,
};
use umbel_contracts::proto::node::job_lease::Body;
use umbel_wire::{Code, Error};

use super::reading::PAGE_MAX;
use super::{args, invalid, result, select, select_any, stored, unknown};
use crate::core::commands::Request;
use crate::core::jobs::Order;
use crate::core::registry::node::Node;
use crate::shell::commands::{Commands, Context};
use crate::shell::jobs;

/// Jobs a page unless said.
const JOBS: u32 = 100;

/// Operations of class read.
pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        JobList::NAME => result::<JobList>(list(commands, request, &args::<JobList>(request)?)?),
        JobShow::NAME => {
            result::<JobShow>(jobs::show(&commands.site, &args::<JobShow>(request)?.job_id).await?)
        }
        other => Err(unknown(other)),
    }
}

fn list(commands: &Commands, request: &Request, asked: &JobListArgs) -> Result<JobListResult, Error> {
    let limit = asked.limit.unwrap_or(JOBS);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let before = asked.cursor.as_deref().map(|cursor| {
        cursor.parse::<u64>().map_err(|_| invalid("CURSOR", "the cursor is `next_cursor` of the page before"))
    });
    let before = before.transpose()?;
    let nodes: Option<HashSet<String>> = match request.selector.as_str() {
        "" => None,
        text => Some(select_any(commands, text)?.iter().map(|node| node.id.to_string()).collect()),
    };
    let found = commands.site.jobs.list(|view| {
        let row = &view.row;
        before.is_none_or(|before| row.sequence < before)
            && nodes.as_ref().is_none_or(|nodes| nodes.contains(&row.node))
            && asked.state.is_none_or(|state| view.state == state)
            && asked.running.is_none_or(|running| running != row.state.is_end())
            && asked.kind.as_ref().is_none_or(|kind| *kind == row.kind)
            && asked.owner.as_ref().is_none_or(|owner| *owner == row.owner)
    });
    let more = found.len() > limit;
    let next_cursor = found.get(limit.saturating_sub(1)).filter(|_| more);
    let next_cursor = next_cursor.map(|last| last.row.sequence.to_string());
    let jobs = found.iter().take(limit).map(|view| jobs::object(&commands.site, view)).collect();
    Ok(JobListResult { jobs, next_cursor })
}

pub(super) async fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        JobCancel::NAME => {
            result::<JobCancel>(jobs::show(&commands.site, &args::<JobCancel>(request)?.job_id).await?)
        }
        other => Err(unknown(other)),
    }
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    match context.request.operation.as_str() {
        JobCancel::NAME => cancel(context).await,
        other => Err(unknown(other)),
    }
}

async fn cancel(context: &Context<'_>) -> Result<(), Error> {
    let id = args::<JobCancel>(context.request)?.job_id;
    let site = &context.commands.site;
    let mut told = jobs::show(site, &id).await?;
    told.cancel_requested = !told.state.is_end();
    let what = format!("{} was {}", jobs::about(&told), told.state.as_str());
    let value = result::<JobCancel>(told)?;
    let commit = context.outcome(&stored(&value)).audit(context.audit_of(id.clone(), &what));
    jobs::cancel(site, &id, Some(&context.request.actor), commit).await?;
    context.done(value);
    Ok(())
}

/// Work for each node that the selector chooses; nobody gets any if one cannot.
pub(super) fn orders(
    commands: &Commands,
    request: &Request,
    body: impl Fn(&Arc<Node>) -> Result<Body, Error>,
) -> Result<Vec<Order>, Error> {
    orders_of(&select(commands, &request.selector)?, request, body)
}

/// The same for these nodes.
pub(super) fn orders_of(
    chosen: &[Arc<Node>],
    request: &Request,
    body: impl Fn(&Arc<Node>) -> Result<Body, Error>,
) -> Result<Vec<Order>, Error> {
    if chosen.len() > JOBS_AT_ONCE {
        let message = format!(
            "this would be a job on each of {} nodes, and {JOBS_AT_ONCE} is the most at once: choose fewer, by their names \
             or a label",
            chosen.len()
        );
        return Err(invalid("SELECTOR", message));
    }
    let order = |node: &Arc<Node>| {
        Ok(Order {
            id: None,
            node: node.id,
            body: body(node)?,
            owner: String::new(),
            actor: request.actor.clone(),
            reason: request.reason.clone(),
        })
    };
    chosen.iter().map(order).collect()
}

/// Begins a job a node: they are stored with the command, which has succeeded then.
pub(super) async fn begin(context: &Context<'_>, orders: Vec<Order>) -> Result<(), Error> {
    let mut value = None;
    jobs::submit_all(&context.commands.site, orders, |objects: &[JobObject]| {
        let told = result::<RuntimeHealth>(JobsResult { jobs: objects.to_vec() })?;
        let commit = objects.iter().fold(context.outcome(&stored(&told)), |commit, job| {
            commit.audit(context.audit_of(format!("{} {}", job.node_id, job.job_id), &jobs::about(job)))
        });
        value = Some(told);
        Ok(commit)
    })
    .await?;
    let missing = || Error::new(Code::Internal, "INTERNAL", "a command that began jobs has no result");
    context.done(value.ok_or_else(missing)?);
    Ok(())
}
