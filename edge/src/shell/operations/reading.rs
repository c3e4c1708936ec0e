//! Operations that read: nodes and commands; and `command.cancel`, which asks a running one to end.

use std::sync::Arc;

use umbel_contracts::objects::{CommandPhase, NodeObject, timestamp};
use umbel_contracts::operations::{
    CommandArgs, CommandCancel, CommandShow, CommandStateResult, ListArgs, NodeList, NodeListResult,
};
use umbel_wire::{Code, Error};

use super::{args, invalid, matches, parse, result, select_any, stored};
use crate::core::commands::Request;
use crate::core::registry::node::Node;
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::status;

/// Most entries a page.
pub(super) const PAGE_MAX: u32 = 1_000;

/// One page of a list that is already in its order; the cursor is the key of the last entry of the page before.
pub(super) fn page<T>(
    items: Vec<T>,
    list: &ListArgs,
    key: impl Fn(&T) -> String,
) -> Result<(Vec<T>, Option<String>), Error> {
    let limit = list.limit.unwrap_or(PAGE_MAX);
    if limit == 0 || limit > PAGE_MAX {
        return Err(invalid("ARGS", format!("limit must be 1 to {PAGE_MAX}")));
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let start = match &list.cursor {
        None => 0,
        Some(cursor) => items.iter().position(|item| key(item) == *cursor).map_or(0, |at| at + 1),
    };
    let more = items.len() > start + limit;
    let items: Vec<T> = items.into_iter().skip(start).take(limit).collect();
    let next = if more { items.last().map(key) } else { None };
    Ok((items, next))
}

pub(super) fn nodes(commands: &Commands, request: &Request) -> Result<NodeListResult, Error> {
    let asked = args::<NodeList>(request)?;
    let list = ListArgs { limit: asked.limit, cursor: asked.cursor };
    let selector = parse(&request.selector)?;
    let (_, nodes) = commands.site.nodes();
    let shown = |node: &Arc<Node>| (asked.decommissioned || !node.is_tombstone()) && matches(&selector, node);
    let chosen: Vec<_> = nodes.into_iter().filter(shown).collect();
    // A site without nodes has an empty list; a selector without a match is a mistake.
    if chosen.is_empty() && !request.selector.is_empty() {
        select_any(commands, &request.selector)?;
    }
    let (chosen, next_cursor) = page(chosen, &list, |node| node.id.to_string())?;
    let nodes =
        chosen.iter().map(|node| NodeObject::from_proto(status::node(&commands.site, node))).collect();
    Ok(NodeListResult { nodes, next_cursor })
}

pub(super) fn show(commands: &Commands, selector: &str) -> Result<NodeListResult, Error> {
    let chosen = select_any(commands, selector)?;
    let nodes =
        chosen.iter().map(|node| NodeObject::from_proto(status::node(&commands.site, node))).collect();
    Ok(NodeListResult { nodes, next_cursor: None })
}

fn state(command_id: String, row: crate::core::commands::CommandRow) -> CommandStateResult {
    CommandStateResult {
        command_id,
        operation: row.operation,
        phase: row.phase,
        message: row.message,
        progress: None,
        error: row.error,
        result: row.result,
        accepted_at: timestamp(row.accepted_at_unix_ms),
        ended_at: row.ended_at_unix_ms.map(timestamp),
    }
}

pub(super) async fn command(
    commands: &Arc<Commands>,
    request: &Request,
) -> Result<CommandStateResult, Error> {
    let CommandArgs { command_id } = args::<CommandShow>(request)?;
    let row = commands.row(&command_id).await?;
    let mut shown = state(command_id, row);
    if let Some(running) = commands.running(&shown.command_id) {
        // Whoever asks about one that runs is told how it goes on.
        commands.follow(&running, request.origin.clone());
        shown.progress = running.steps().borrow().progress.clone();
    }
    Ok(shown)
}

pub(super) async fn cancel(context: &Context<'_>) -> Result<(), Error> {
    let CommandArgs { command_id } = args::<CommandCancel>(context.request)?;
    if command_id == context.request.command_id {
        return Err(invalid("ARGS", "a command cannot cancel itself"));
    }
    let row = context.commands.row(&command_id).await?;
    if row.phase.is_end() {
        let message = format!("it has ended already: {}", row.phase.as_str());
        return Err(Error::new(Code::Conflict, "COMMAND_ENDED", message));
    }
    let value = result::<CommandCancel>(CommandStateResult {
        phase: CommandPhase::Running,
        ..state(command_id.clone(), row)
    })?;
    let commit = context.outcome(&stored(&value)).audit(context.audit(command_id.clone()));
    // A cancellation that cannot be stored takes force all the same.
    let store = &context.commands.site.store;
    match store.commit(commit.clone()).await {
        Ok(_) => {}
        Err(umbel_store::CommitError::ReadOnly(_)) => {
            store.owe(umbel_store::Owed::new().with(commit)).map_err(crate::shell::owing::not_kept)?;
        }
        Err(error) => return Err(store_error(&error)),
    }
    if let Some(running) = context.commands.running(&command_id) {
        running.cancel.cancel();
    }
    context.done(value);
    Ok(())
}
