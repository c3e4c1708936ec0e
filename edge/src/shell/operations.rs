//! What each operation does at this edge.
//!
//! Owns validation of arguments and selectors, and the commits of mutations. Leaves idempotency, phases and
//! storing outcomes to [`crate::shell::commands`]. Invariant: a mutation is one commit that holds its effect, its
//! audit entry and its command; what is refused has changed nothing.

mod approve;
mod artifacts;
pub(crate) mod audit;
mod backup;
mod ca;
mod credential;
mod decommission;
mod deployments;
mod drain;
mod engines;
mod jobs;
mod keys;
mod lifecycle;
mod nodes;
mod placement;
mod reading;
mod requests;
mod runtime;
mod secrets;
mod settings;

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::operations::{
    self, Class, CommandCancel, CommandShow, CredentialRevoke, EnrollmentCreate, EnrollmentList,
    EnrollmentRevoke, LARGEST_STORED_RESULT, LONGEST_TEXT, NoArgs, NodeDecommission, NodeDisable, NodeDrain,
    NodeEligible, NodeEnable, NodeLabel, NodeList, NodeReadinessCheck, NodeRename, NodeShow, NodeUndrain,
    Operation, Target, check_size,
};
use umbel_contracts::selector::Selector;
use umbel_wire::{Code, Error};

use crate::core::commands::{CommandRow, Request};
use crate::core::registry::node::Node;
pub(crate) use crate::core::registry::selecting::matches;
use crate::shell::commands::{Commands, Context, Running};

use lifecycle::Simple;

pub(crate) use ca::catch_up;

/// Operations that take something away from somebody: whoever asks has to say why.
const REASONED: [&str; 12] = [
    operations::ArtifactRemove::NAME,
    NodeDrain::NAME,
    NodeDisable::NAME,
    CredentialRevoke::NAME,
    NodeDecommission::NAME,
    operations::SettingsRollback::NAME,
    operations::RequestRelease::NAME,
    operations::DeploymentUnload::NAME,
    operations::DeploymentDrain::NAME,
    operations::DeploymentDelete::NAME,
    operations::EngineStop::NAME,
    operations::RuntimeUnload::NAME,
];

fn invalid(reason: &'static str, message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, reason, message)
}

/// Checks everything of a request that needs no state, and says its class.
pub(crate) fn check(request: &Request) -> Result<Class, Error> {
    if uuid::Uuid::try_parse(&request.command_id).map(|id| id.hyphenated().to_string())
        != Ok(request.command_id.clone())
    {
        return Err(invalid("COMMAND_ID", "the command id must be a UUID in its usual spelling, lower case"));
    }
    let Some(spec) = operations::find(&request.operation) else {
        let message = "this edge does not know the operation; it may be older than the one who asks";
        return Err(Error::new(Code::Unimplemented, "OPERATION_UNKNOWN", message));
    };
    for (what, text) in
        [("target_selector", &request.selector), ("reason", &request.reason), ("confirm", &request.confirm)]
    {
        if text.len() > LONGEST_TEXT {
            return Err(Error::new(
                Code::TooLarge,
                "TEXT_TOO_LONG",
                format!("{what} is above {LONGEST_TEXT} bytes"),
            ));
        }
    }
    match spec.target {
        Target::Nothing if !request.selector.is_empty() => {
            return Err(invalid("SELECTOR", format!("{} takes no target selector", spec.name)));
        }
        Target::Nodes if request.selector.is_empty() => {
            return Err(invalid(
                "SELECTOR",
                format!("{} needs a target selector; write `all` for all", spec.name),
            ));
        }
        _ => {}
    }
    check_size(&request.args).map_err(|says| Error::new(Code::TooLarge, "ARGS_TOO_LARGE", says))?;
    if REASONED.contains(&spec.name) && !only_asks(request) && request.reason.trim().is_empty() {
        return Err(invalid("REASON", format!("{} needs a reason: who reads the audit wants it", spec.name)));
    }
    Ok(spec.class)
}

/// Whether nothing is to be changed: a dry run, or the preview of what cannot be undone.
pub(crate) fn only_asks(request: &Request) -> bool {
    let preview = request.operation == NodeDecommission::NAME
        && request.args.get("preview").is_some_and(|preview| *preview == Value::Bool(true));
    request.dry_run || preview
}

fn args<O: Operation>(request: &Request) -> Result<O::Args, Error> {
    serde_json::from_value(Value::Object(request.args.clone()))
        .map_err(|error| invalid("ARGS", format!("args of {}: {error}", O::NAME)))
}

fn result<O: Operation>(result: O::Result) -> Result<Value, Error> {
    serde_json::to_value(result).map_err(|error| {
        Error::new(Code::Internal, "INTERNAL", format!("a result has no JSON form: {error}"))
    })
}

/// What is stored of a result: one that is too long is told to its first asker only.
fn stored(value: &Value) -> Value {
    let length = serde_json::to_vec(value).map_or(0, |bytes| bytes.len());
    if length <= LARGEST_STORED_RESULT {
        return value.clone();
    }
    serde_json::json!({ "truncated": true, "bytes": length })
}

/// The nodes that a selector chooses, of those that can still change. NOT_FOUND if it chooses none.
fn select(commands: &Commands, selector: &str) -> Result<Vec<Arc<Node>>, Error> {
    let chosen = select_any(commands, selector)?;
    let living: Vec<_> = chosen.into_iter().filter(|node| !node.is_tombstone()).collect();
    if living.is_empty() {
        let message = "this node was decommissioned for good: it can only be looked at; enroll the host anew";
        return Err(Error::new(Code::Gone, "NODE_DECOMMISSIONED", message));
    }
    Ok(living)
}

/// The nodes that a selector chooses. Tombstones only where it chooses nothing else: their names are free again.
fn select_any(commands: &Commands, selector: &str) -> Result<Vec<Arc<Node>>, Error> {
    let selector = parse(selector)?;
    let (_, nodes) = commands.site.nodes();
    let (tombstones, living): (Vec<_>, Vec<_>) =
        nodes.into_iter().filter(|node| matches(&selector, node)).partition(|node| node.is_tombstone());
    let chosen = if living.is_empty() { tombstones } else { living };
    if chosen.is_empty() {
        let message = "no node of this site matches the selector; list the nodes to see which there are";
        return Err(Error::new(Code::NotFound, "NO_MATCH", message));
    }
    Ok(chosen)
}

/// The one node that an operation is about.
fn one(commands: &Commands, request: &Request) -> Result<Arc<Node>, Error> {
    let chosen = select(commands, &request.selector)?;
    match chosen.as_slice() {
        [node] => Ok(Arc::clone(node)),
        more => {
            let message = format!(
                "{} takes one node and the selector chooses {}; name it by its id",
                request.operation,
                more.len()
            );
            Err(invalid("SELECTOR", message))
        }
    }
}

fn parse(selector: &str) -> Result<Selector, Error> {
    match selector {
        "" => Ok(Selector::all()),
        text => Selector::parse(text).map_err(|error| invalid("SELECTOR", error.to_string())),
    }
}

/// Operations of class read.
pub(crate) async fn read(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    match request.operation.as_str() {
        CommandShow::NAME => result::<CommandShow>(reading::command(commands, request).await?),
        EnrollmentList::NAME => {
            result::<EnrollmentList>(secrets::list_tokens(commands, &args::<EnrollmentList>(request)?)?)
        }
        NodeList::NAME => result::<NodeList>(reading::nodes(commands, request)?),
        NodeShow::NAME => {
            args::<NodeShow>(request)?;
            result::<NodeShow>(reading::show(commands, &request.selector)?)
        }
        NodeReadinessCheck::NAME => {
            args::<NodeReadinessCheck>(request)?;
            lifecycle::readiness(commands, request)
        }
        other => match family(other) {
            "apikey" => keys::read(commands, request).await,
            "artifact" => artifacts::read(commands, request),
            "audit" => audit::read(commands, request).await,
            "ca" => ca::read(commands, request).await,
            "deployment" => deployments::read(commands, request),
            "engine" => engines::read(commands, request).await,
            "job" => jobs::read(commands, request).await,
            "placement" => placement::read(commands, request).await,
            "queue" | "request" => requests::read(commands, request),
            "settings" => settings::read(commands, request).await,
            _ => Err(unknown(other)),
        },
    }
}

/// What stands before the last word: `node.credential` of `node.credential.rotate`.
fn family(operation: &str) -> &str {
    operation.rsplit_once('.').map_or("", |(family, _)| family)
}

fn unknown(operation: &str) -> Error {
    Error::new(Code::Unimplemented, "OPERATION_UNKNOWN", format!("this edge does not know {operation}"))
}

/// Operations on nodes that take nothing but a selector and the reason.
fn simple(request: &Request) -> Result<Option<Simple>, Error> {
    let simple = match request.operation.as_str() {
        NodeUndrain::NAME => Simple::Undrain,
        NodeDisable::NAME => Simple::Disable,
        NodeEnable::NAME => Simple::Enable,
        CredentialRevoke::NAME => Simple::Revoke,
        _ => return Ok(None),
    };
    let NoArgs {} = args::<NodeUndrain>(request)?;
    Ok(Some(simple))
}

/// Says what a mutation would do.
pub(crate) async fn dry_run(commands: &Arc<Commands>, request: &Request) -> Result<Value, Error> {
    if let Some(simple) = simple(request)? {
        return lifecycle::preview(commands, request, simple);
    }
    match request.operation.as_str() {
        NodeDrain::NAME => {
            args::<NodeDrain>(request)?;
            nodes::preview(commands, request, |row| row.draining = true, nodes::outcomes)
        }
        NodeEligible::NAME => {
            let eligible = args::<NodeEligible>(request)?.eligible;
            nodes::preview(commands, request, |row| row.eligible = eligible, nodes::outcomes)
        }
        NodeLabel::NAME => lifecycle::preview_label(commands, request, args::<NodeLabel>(request)?),
        NodeRename::NAME => lifecycle::preview_rename(commands, request, &args::<NodeRename>(request)?),
        NodeDecommission::NAME => {
            args::<NodeDecommission>(request)?;
            decommission::preview(commands, request)
        }
        EnrollmentCreate::NAME => {
            let rows = secrets::tokens(commands, request, args::<EnrollmentCreate>(request)?)?;
            result::<EnrollmentCreate>(secrets::tokens_result(commands, &rows)?)
        }
        EnrollmentRevoke::NAME => {
            let token_id = args::<EnrollmentRevoke>(request)?.token_id;
            result::<EnrollmentRevoke>(secrets::revocable(commands, &token_id)?)
        }
        CommandCancel::NAME => result::<CommandCancel>(reading::command(commands, request).await?),
        other => match family(other) {
            "apikey" => keys::dry_run(commands, request),
            "artifact" => artifacts::dry_run(commands, request),
            "ca" => ca::dry_run(commands, request).await,
            "deployment" => deployments::dry_run(commands, request),
            "engine" => engines::dry_run(commands, request),
            "edge" => backup::dry_run(commands, request).await,
            "node.credential" => credential::dry_run(commands, request).await,
            "job" => jobs::dry_run(commands, request).await,
            "request" => requests::dry_run(commands, request),
            "runtime" => runtime::dry_run(commands, request),
            "settings" => settings::dry_run(commands, request).await,
            _ => Err(unknown(other)),
        },
    }
}

/// Goes on with a command that a restart interrupted; gives back one that cannot be gone on with.
pub(crate) fn resume(
    commands: &Arc<Commands>,
    id: String,
    row: CommandRow,
    run: impl FnOnce(&str, CommandRow) -> Arc<Running>,
) -> Option<(String, CommandRow)> {
    let go_on = match row.operation.as_str() {
        NodeDrain::NAME => drain::resume,
        NodeDecommission::NAME => decommission::resume,
        _ => return Some((id, row)),
    };
    let running = run(&id, row.clone());
    go_on(commands, id, row, running);
    None
}

/// Begins a mutation: when it returns, its effect is stored with its command, and either it is done or it goes on
/// by itself.
///
/// # Errors
/// A refusal: nothing has changed.
pub(crate) async fn start(context: &Context<'_>) -> Result<(), Error> {
    let request = context.request;
    if let Some(simple) = simple(request)? {
        return lifecycle::start(context, simple).await;
    }
    match request.operation.as_str() {
        NodeDrain::NAME => drain::start(context, args::<NodeDrain>(request)?).await,
        NodeEligible::NAME => lifecycle::eligible(context, args::<NodeEligible>(request)?.eligible).await,
        NodeLabel::NAME => lifecycle::label(context, args::<NodeLabel>(request)?).await,
        NodeRename::NAME => lifecycle::rename(context, args::<NodeRename>(request)?).await,
        NodeDecommission::NAME => decommission::start(context, &args::<NodeDecommission>(request)?).await,
        EnrollmentCreate::NAME => secrets::mint(context, args::<EnrollmentCreate>(request)?).await,
        EnrollmentRevoke::NAME => {
            secrets::revoke_token(context, &args::<EnrollmentRevoke>(request)?.token_id).await
        }
        CommandCancel::NAME => reading::cancel(context).await,
        other => match family(other) {
            "apikey" => keys::start(context).await,
            "artifact" => artifacts::start(context).await,
            "ca" => ca::start(context).await,
            "deployment" => deployments::start(context).await,
            "engine" => engines::start(context).await,
            "edge" => backup::start(context).await,
            "node.credential" => credential::start(context).await,
            "job" => jobs::start(context).await,
            "request" => requests::start(context).await,
            "runtime" => runtime::start(context).await,
            "settings" => settings::start(context).await,
            _ => Err(unknown(other)),
        },
    }
}
