//! Operations that read: nodes and commands; and `command.cancel`, which asks a running one to end.

use std::sync::Arc;

use umbel_contracts::objects::{CommandPhase, NodeObject, timestamp};
use umbel_contracts::operations::{
    CommandArgs, CommandCancel, CommandShow, CommandStateResult, LARGEST_RESULT, ListArgs, NodeList,
    NodeListResult,
};
use umbel_wire::{Code, Error};

use super::{args, invalid, matches, parse, result, select_any, stored};
use crate::core::commands::Request;
use crate::core::registry::node::Node;
use crate::shell::commands::{Commands, Context};
use crate::shell::owing::write_or_owe;
use crate::shell::status;

/// Nodes are told whole up to this size of their answer.
const SHOWN_BYTES: usize = LARGEST_RESULT - LARGEST_RESULT / 8;
/// Most entries a page.
pub(super) const PAGE_MAX: u32 = 1_000;

/// One page of a list that stands in the order of its keys; the cursor is the key of the last entry of the page before.
/// What is behind it follows, whether or not that entry is still there.
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
    let start = list.cursor.as_ref().map_or(0, |cursor| items.partition_point(|item| key(item) <= *cursor));
    let more = items.len() > start + limit;
    let items: Vec<T> = items.into_iter().skip(start).take(limit).collect();
    let next = if more { items.last().map(key) } else { None };
    Ok((items, next))
}

/// The key of what is listed by name and then by id; no name has a tab, so that it orders as the two do.
pub(super) fn place(name: &str, id: impl std::fmt::Display) -> String {
    format!("{name}\t{id}")
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
    let (chosen, next_cursor) = page(chosen, &list, |node| place(&node.row.name, node.id))?;
    let nodes =
        chosen.iter().map(|node| NodeObject::from_proto(status::node(&commands.site, node))).collect();
    Ok(NodeListResult { nodes, next_cursor })
}

pub(super) fn show(commands: &Commands, selector: &str) -> Result<NodeListResult, Error> {
    let chosen = select_any(commands, selector)?;
    let plain = |node: &Arc<Node>| NodeObject::from_proto(status::node(&commands.site, node));
    let whole = |node: &Arc<Node>| NodeObject::from_proto(status::node_in_detail(&commands.site, node));
    Ok(NodeListResult { nodes: while_room(&chosen, plain, whole, SHOWN_BYTES), next_cursor: None })
}

/// Each in its plain form, and the first ones whole: as many as fit into so many bytes with all the others.
fn while_room<I, T: serde::Serialize>(
    items: &[I],
    plain: impl Fn(&I) -> T,
    whole: impl Fn(&I) -> T,
    most: usize,
) -> Vec<T> {
    let bytes = |one: &T| serde_json::to_vec(one).map_or(0, |text| text.len() + 1);
    let mut told: Vec<T> = items.iter().map(plain).collect();
    let mut room = most.saturating_sub(told.iter().map(bytes).sum());
    for (item, told) in items.iter().zip(&mut told) {
        let one = whole(item);
        let Some(left) = room.checked_sub(bytes(&one).saturating_sub(bytes(told))) else { break };
        room = left;
        *told = one;
    }
    told
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
    write_or_owe(&context.commands.site.store, commit).await?;
    if let Some(running) = context.commands.running(&command_id) {
        running.cancel.cancel();
    }
    context.done(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn of_many_as_many_are_told_whole_as_fit() {
        let told = |most| while_room(&[3, 3, 3], |_| "a".to_owned(), |many| "a".repeat(*many), most);
        // Each has quotes and a comma.
        assert_eq!(told(12), ["a", "a", "a"]);
        assert_eq!(told(16), ["aaa", "aaa", "a"]);
        assert_eq!(told(100), ["aaa", "aaa", "aaa"]);
        assert_eq!(told(0), ["a", "a", "a"], "that it is too much is said by whoever sends it");
    }

    #[test]
    fn a_page_goes_on_where_the_one_before_ended_whatever_was_removed() {
        let all: Vec<u32> = (10..30).collect();
        let mut cursor = None;
        let mut read = Vec::new();
        let mut pages = 0;
        loop {
            let list = ListArgs { limit: Some(6), cursor: cursor.take() };
            // The entry that each page ended with is gone when the next one is asked for.
            let left: Vec<u32> = all.iter().copied().filter(|item| !read.contains(item)).collect();
            let (items, next) = page(left, &list, |item| item.to_string()).unwrap();
            read.extend(items);
            pages += 1;
            assert!(pages <= 4, "it ends");
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(read, (10..30).collect::<Vec<_>>(), "each once, in its order");
        assert!(
            page(all.clone(), &ListArgs { limit: Some(0), cursor: None }, |item| item.to_string()).is_err()
        );
        let (rest, next) =
            page(all, &ListArgs { limit: None, cursor: Some("999".into()) }, |item| item.to_string())
                .unwrap();
        assert!(rest.is_empty() && next.is_none(), "behind the last there is nothing");
    }
}
