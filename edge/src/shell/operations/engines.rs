//! Operations on engines: which there are, what they write, ending and starting them.
//!
//! Owns finding one by its name. Leaves engines to their nodes, which are asked over their connection. Invariants: an engine
//! is named on exactly one node; what a node refuses has changed nothing, and its reason is the answer; what it took is told as
//! taken, and written when the store can be.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prost::Message;
use serde_json::Value;
use umbel_contracts::objects::{EngineObject, JobState, timestamp};
use umbel_contracts::operations::{
    EngineControlArgs, EngineList, EngineListResult, EngineLogs, EngineLogsArgs, EngineLogsResult,
    EngineRestart, EngineShow, EngineStop, LOG_LINES_MAX, Operation,
};
use umbel_contracts::proto::node::{
    EngineAction, EngineControl, EngineControlAck, EngineOutput, EngineOutputRequest, EngineState,
};
use umbel_contracts::{bounds, method};
use umbel_wire::{Code, Error, NodeId};

use super::reading::page;
use super::{args, invalid, matches, parse, result, select_any, stored, unknown};
use crate::core::commands::Request;
use crate::core::registry::node::{Declared, Node, ProviderState};
use crate::shell::commands::{Commands, Context};
use crate::shell::owing::write_or_owe;
use crate::shell::site::Site;

/// A node's answer: it reads a file, or tells its driver.
const PATIENCE: Duration = Duration::from_secs(10);
/// Lines of output unless said.
const LINES: u32 = 200;
const LONGEST_SECONDS: u64 = 86_400;
/// Before a job's id in the cursor of lines that its failure has.
const KEPT: &str = "job:";

pub(super) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        EngineList::NAME => result::<EngineList>(list(commands, request)?),
        EngineShow::NAME => {
            let site = &commands.site;
            let (node, engine) = find(site, &args::<EngineShow>(request)?.engine)?;
            result::<EngineShow>(object(&node, &engine, site.wall().unix_ms(), true))
        }
        EngineLogs::NAME => result::<EngineLogs>(logs(&commands.site, args::<EngineLogs>(request)?).await?),
        other => Err(unknown(other)),
    }
}

fn list(commands: &Commands, request: &Request) -> Result<EngineListResult, Error> {
    let list = args::<EngineList>(request)?;
    let selector = parse(&request.selector)?;
    let (_, nodes) = commands.site.nodes();
    let wall = commands.site.wall().unix_ms();
    let chosen: Vec<_> =
        nodes.into_iter().filter(|node| !node.is_tombstone() && matches(&selector, node)).collect();
    if chosen.is_empty() && !request.selector.is_empty() {
        select_any(commands, &request.selector)?;
    }
    let key = |one: &EngineObject| format!("{}\t{}\t{}", one.node, one.engine, one.node_id);
    let mut engines: Vec<EngineObject> = chosen
        .iter()
        .flat_map(|node| node.report.engines.iter().map(|engine| object(node, engine, wall, false)))
        .collect();
    // A node names its engines in the order of its file.
    engines.sort_by_cached_key(key);
    let (engines, next_cursor) = page(engines, &list, key)?;
    Ok(EngineListResult { engines, next_cursor })
}

/// A time of the wire that is 0 where there is none.
fn when(unix_ms: i64) -> Option<Timestamp> {
    (unix_ms > 0).then(|| timestamp(unix_ms))
}

fn object(node: &Node, engine: &Declared, wall: i64, whole: bool) -> EngineObject {
    let status = node.engines.get(&engine.name).filter(|_| node.connected());
    // It runs, and yet is given no work: its GPU is gone, or what it declares does not stand here.
    let benched = status.filter(|status| status.state() == EngineState::Ready).and_then(|_| {
        let (state, cause) = node.engine_state(&engine.name);
        match state {
            ProviderState::Failed => Some(("failed", cause)),
            ProviderState::Unavailable => Some(("unavailable", cause)),
            _ => None,
        }
    });
    let said = status.map_or("unknown", |status| match status.state() {
        EngineState::Validating => "validating",
        EngineState::Starting => "starting",
        EngineState::Loading => "loading",
        EngineState::Ready => "ready",
        EngineState::Draining => "draining",
        EngineState::Stopping => "stopping",
        EngineState::Stopped => "stopped",
        EngineState::Failed => "failed",
        EngineState::Unspecified => "unknown",
    });
    let cause = || status.map(|status| status.cause.clone()).unwrap_or_default();
    let (state, cause) = benched.unwrap_or_else(|| (said, cause()));
    EngineObject {
        engine: engine.name.clone(),
        provider_id: node.provider_id(&engine.name),
        node_id: node.id.to_string(),
        node: node.row.name.clone(),
        kind: engine.kind.clone(),
        model: engine.model.clone(),
        deployment: Some(engine.deployment.clone()).filter(|name| !name.is_empty()),
        replica: Some(engine.replica()).filter(|number| *number > 0),
        capacity: engine.capacity,
        state: state.to_owned(),
        cause,
        since: status.and_then(|status| when(status.since_unix_ms)),
        age_ms: status.and_then(|status| node.age_ms(status.since_unix_ms, wall)),
        in_flight: status.map_or(0, |status| status.in_flight),
        restarts: status.map_or(0, |status| status.restarts),
        code: status.map(|status| status.code.clone()).filter(|code| !code.is_empty()),
        exit_status: status.and_then(|status| status.exit_status),
        exit_signal: status.and_then(|status| status.exit_signal),
        process_since: status.and_then(|status| when(status.process_since_unix_ms)),
        process_age_ms: status.and_then(|status| node.age_ms(status.process_since_unix_ms, wall)),
        profile_digest: status
            .map(|status| status.profile_digest.clone())
            .filter(|digest| !digest.is_empty()),
        gpus: engine.gpus.clone(),
        output_tail: status.filter(|_| whole).map(|status| status.output_tail.clone()).unwrap_or_default(),
    }
}

/// The one engine of a name, or of NODE_ID/NAME.
fn find(site: &Site, named: &str) -> Result<(Arc<Node>, Declared), Error> {
    let (node, name) = match named.split_once('/') {
        Some((node, name)) => (Some(node), name),
        None => (None, named),
    };
    let (_, nodes) = site.nodes();
    let mut found: Vec<(Arc<Node>, Declared)> = Vec::new();
    for one in nodes.iter().filter(|one| !one.is_tombstone()) {
        if node.is_some_and(|node| one.id.to_string() != node && one.row.name != node) {
            continue;
        }
        let engine = one.report.engines.iter().find(|engine| engine.name == name);
        found.extend(engine.map(|engine| (Arc::clone(one), engine.clone())));
    }
    if found.len() > 1 {
        let message = format!("{} nodes have an engine {name}; name it by NODE/{name}", found.len());
        return Err(invalid("ENGINE", message));
    }
    found.pop().ok_or_else(|| {
        let message =
            format!("no node of this site has an engine {named}; list the engines to see which there are");
        Error::new(Code::NotFound, "ENGINE_UNKNOWN", message)
    })
}

/// Asks the node that an engine is on.
async fn ask<A: bounds::Bounded>(
    site: &Site,
    node: &Node,
    method: u32,
    question: &impl Message,
) -> Result<A, Error> {
    let owner = site.read(|registry| registry.slots.owner(&node.id).map(|owner| owner.handle.clone()));
    let Some(connection) = owner.filter(|_| node.connected()) else {
        let message = format!("{} is {}: it cannot be asked now", node.row.name, node.state());
        return Err(Error::new(Code::Unavailable, "NODE_NOT_CONNECTED", message));
    };
    let answer = connection.request(method, question.encode_to_vec(), PATIENCE).await?;
    bounds::decode::<A>(&answer)
}

async fn logs(site: &Site, asked: EngineLogsArgs) -> Result<EngineLogsResult, Error> {
    let lines = asked.lines.unwrap_or(LINES);
    if !(1..=LOG_LINES_MAX).contains(&lines) {
        return Err(invalid("ARGS", format!("lines must be 1 to {LOG_LINES_MAX}")));
    }
    let (node, engine) = match find(site, &asked.engine) {
        Ok((node, engine)) => (node, engine.name),
        Err(unknown) if unknown.code == Code::NotFound => {
            return ended(site, &asked, lines).await.ok_or(unknown);
        }
        Err(error) => return Err(error),
    };
    output(site, &node, &engine, lines, asked.cursor.unwrap_or_default()).await
}

async fn output(
    site: &Site,
    node: &Node,
    engine: &str,
    lines: u32,
    cursor: String,
) -> Result<EngineLogsResult, Error> {
    let question = EngineOutputRequest { engine: engine.to_owned(), lines, cursor };
    let output: EngineOutput = ask(site, node, method::NODE_ENGINE_OUTPUT, &question).await?;
    Ok(EngineLogsResult {
        provider_id: node.provider_id(engine),
        node: node.row.name.clone(),
        lines: output.lines,
        cursor: output.cursor,
        gap: output.gap,
    })
}

/// The last words of an engine that no node has any more: of its node, which keeps them for a while, else of the job by which
/// it failed last.
async fn ended(site: &Site, asked: &EngineLogsArgs, lines: u32) -> Option<EngineLogsResult> {
    let (node, name) =
        asked.engine.split_once('/').map_or((None, asked.engine.as_str()), |(node, name)| (Some(node), name));
    let of_node = |id: &str| {
        let id = NodeId::parse(id).ok()?;
        let one = site.read(|registry| registry.node(&id).cloned())?;
        let named = node.is_none_or(|node| one.row.name == node || id.to_string() == node);
        Some(one).filter(|one| named && !one.is_tombstone())
    };
    let jobs = site.jobs.list(|view| view.row.subject == name && view.row.kind.starts_with("deployment."));
    let (node, _) = jobs.iter().find_map(|view| Some((of_node(&view.row.node)?, view)))?;
    let cursor = asked.cursor.clone().unwrap_or_default();
    if let Ok(told) = output(site, &node, name, lines, cursor.clone()).await {
        return Some(told);
    }
    let failed = jobs.iter().filter(|view| view.state == JobState::Failed);
    let (node, job) = failed.filter_map(|view| Some((of_node(&view.row.node)?, view))).next()?;
    let kept = format!("{KEPT}{}", job.id);
    let shown = crate::shell::jobs::show(site, &job.id).await.ok()?;
    let tail = shown.failure.and_then(|failure| failure.output_tail)?;
    let most = usize::try_from(lines).unwrap_or(usize::MAX);
    let all: Vec<String> = tail.lines().map(str::to_owned).collect();
    let seen = cursor == kept;
    let from = if seen { all.len() } else { all.len().saturating_sub(most) };
    Some(EngineLogsResult {
        provider_id: node.provider_id(name),
        node: node.row.name.clone(),
        lines: all.into_iter().skip(from).collect(),
        cursor: kept,
        gap: !seen && !cursor.is_empty(),
    })
}

fn control_args(request: &Request) -> Result<(EngineControlArgs, EngineAction), Error> {
    let (asked, action) = match request.operation.as_str() {
        EngineRestart::NAME => (args::<EngineRestart>(request)?, EngineAction::Restart),
        EngineStop::NAME => (args::<EngineStop>(request)?, EngineAction::Stop),
        other => return Err(unknown(other)),
    };
    if asked.deadline_seconds.is_some_and(|seconds| seconds > LONGEST_SECONDS) {
        return Err(invalid("ARGS", format!("deadline_seconds must be at most {LONGEST_SECONDS}")));
    }
    Ok((asked, action))
}

pub(super) fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    let (asked, _) = control_args(request)?;
    let (node, engine) = find(&commands.site, &asked.engine)?;
    result::<EngineShow>(object(&node, &engine, commands.site.wall().unix_ms(), false))
}

pub(super) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let site = &context.commands.site;
    let (asked, action) = control_args(context.request)?;
    let (node, engine) = find(site, &asked.engine)?;
    let deadline_ms = asked.deadline_seconds.unwrap_or(0).saturating_mul(1_000);
    let question = EngineControl {
        engine: engine.name.clone(),
        action: action.into(),
        deadline_ms: u32::try_from(deadline_ms).unwrap_or(u32::MAX),
    };
    let was = object(&node, &engine, site.wall().unix_ms(), false).state;
    let ack: EngineControlAck = ask(site, &node, method::NODE_ENGINE_CONTROL, &question).await?;
    if !ack.accepted {
        return Err(Error::new(Code::Conflict, "ENGINE_REFUSED", ack.message));
    }
    let now = site.read(|registry| registry.node(&node.id).cloned()).unwrap_or(node);
    let mut shown = object(&now, &engine, site.wall().unix_ms(), false);
    // Its node has taken the wish, and tells the first state that comes of it a moment later.
    let word = if action == EngineAction::Stop { "stopped" } else { "restarted" };
    if was != "stopped" && was == shown.state {
        "stopping".clone_into(&mut shown.state);
        shown.cause = format!("{word} by an operator");
    }
    let value = result::<EngineShow>(shown)?;
    let patience = match deadline_ms / 1_000 {
        0 => String::new(),
        seconds => format!(", its requests may take {seconds} s"),
    };
    let what = format!("{} on {} was {was}, is {word}{patience}", engine.name, now.row.name);
    let audit = context.audit_of(now.provider_id(&engine.name), &what);
    write_or_owe(&site.store, context.outcome(&stored(&value)).audit(audit)).await?;
    context.done(value);
    Ok(())
}
