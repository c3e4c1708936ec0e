//! Operations that set a mark on nodes: undrain, eligible, and the first half of drain.
//!
//! Invariant: the rows of all chosen nodes change in one transaction, or none does; a repeated one changes nothing
//! and says so.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::operations::{NodeOutcome, NodeUndrain, NodesResult};
use umbel_store::{Commit, CommitError};
use umbel_wire::{Code, Error, NodeId};

use super::{result, select, stored};
use crate::core::commands::{CommandRow, Request};
use crate::core::registry::node::{Node, NodeRow};
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::events::Happened;
use crate::shell::owing::Set;
use crate::shell::site::Site;

/// How often a change is proposed again when a row changed in the same moment.
const TRIES: usize = 8;

/// What became of one node.
pub(super) fn outcome(site: &Site, node: &Node, row: &NodeRow, not_durable: bool) -> NodeOutcome {
    let in_flight = node
        .report
        .engines
        .iter()
        .filter_map(|engine| site.dispatch.figures(&node.provider_id(&engine.name)))
        .map(|figures| u64::from(figures.in_flight))
        .sum();
    NodeOutcome {
        node_id: node.id.to_string(),
        name: row.name.clone(),
        changed: node.row != *row,
        draining: row.draining,
        eligible: row.eligible,
        state: Node { row: row.clone(), ..node.clone() }.state().to_owned(),
        labels: Node { row: row.clone(), ..node.clone() }.all_labels(),
        in_flight,
        not_durable,
    }
}

fn changed(chosen: Vec<Arc<Node>>, set: &dyn Fn(&mut NodeRow)) -> Vec<(Arc<Node>, NodeRow)> {
    chosen
        .into_iter()
        .map(|node| {
            let mut row = node.row.clone();
            set(&mut row);
            (node, row)
        })
        .collect()
}

/// What a change would do.
pub(super) fn preview(
    commands: &Commands,
    request: &Request,
    set: impl Fn(&mut NodeRow),
) -> Result<NodesResult, Error> {
    let changes = changed(select(commands, &request.selector)?, &set);
    let nodes = changes.iter().map(|(node, row)| outcome(&commands.site, node, row, false)).collect();
    Ok(NodesResult { nodes })
}

/// A change that is done with its first write. `undoes`: it may take back in memory what is in memory only.
pub(super) async fn change(
    context: &Context<'_>,
    kind: &'static str,
    set: impl Set,
    undoes: bool,
) -> Result<(), Error> {
    for _ in 0..TRIES {
        let changes = changed(select(context.commands, &context.request.selector)?, &set);
        let site = &context.commands.site;
        let mut nodes: Vec<_> = changes.iter().map(|(node, row)| outcome(site, node, row, false)).collect();
        let durable = value(nodes.clone())?;
        let also = context.outcome(&stored(&durable)).audit(context.audit(subjects(&changes)));
        let told = match apply(site, &changes, also.clone()).await {
            Ok(None) => continue,
            Ok(Some(())) => durable,
            Err(error) if is_full(&error) && undoes && only_in_memory(&changes) => {
                site.owe_nodes(&ids(&changes), set, also)?;
                nodes.iter_mut().for_each(|node| node.not_durable = node.changed);
                value(nodes)?
            }
            Err(error) => return Err(error),
        };
        tell(site, kind, &changes, &context.request.reason);
        context.done(told);
        return Ok(());
    }
    Err(store_error(&CommitError::Conflict(0)))
}

/// Marks the chosen nodes and stores the command as running: its row. A drain takes force in memory even when the
/// store cannot be written.
pub(super) async fn mark(
    context: &Context<'_>,
    kind: &'static str,
    set: impl Set,
    row: impl Fn(&[Arc<Node>]) -> CommandRow,
) -> Result<CommandRow, Error> {
    let site = &context.commands.site;
    for _ in 0..TRIES {
        let chosen = select(context.commands, &context.request.selector)?;
        let command = row(&chosen);
        let changes = changed(chosen, &set);
        let also = context.storing(&command).audit(context.audit(subjects(&changes)));
        match apply(site, &changes, also.clone()).await {
            Ok(None) => continue,
            Ok(Some(())) => {}
            Err(error) if is_full(&error) => site.owe_nodes(&ids(&changes), set, also)?,
            Err(error) => return Err(error),
        }
        context.stored(&command);
        tell(site, kind, &changes, &context.request.reason);
        return Ok(command);
    }
    Err(store_error(&CommitError::Conflict(0)))
}

fn is_full(error: &Error) -> bool {
    error.code == Code::InsufficientStorage
}

fn ids(changes: &[(Arc<Node>, NodeRow)]) -> Vec<NodeId> {
    changes.iter().map(|(node, _)| node.id).collect()
}

/// Whether it changes anything, and only rows that are not on disk as they stand.
fn only_in_memory(changes: &[(Arc<Node>, NodeRow)]) -> bool {
    let mut changed = changes.iter().filter(|(node, row)| node.row != *row).peekable();
    changed.peek().is_some() && changed.all(|(node, _)| node.unwritten > 0)
}

async fn apply(site: &Site, changes: &[(Arc<Node>, NodeRow)], also: Commit) -> Result<Option<()>, Error> {
    // Unchanged rows are written too: their preconditions make the answer one consistent reading.
    site.store_nodes(changes.to_vec(), also).await.map_err(|error| store_error(&error))
}

fn subjects(changes: &[(Arc<Node>, NodeRow)]) -> String {
    let mut text: String =
        changes.iter().take(16).map(|(node, _)| node.id.to_string()).collect::<Vec<_>>().join(",");
    if changes.len() > 16 {
        text.push_str(&format!(" and {} more", changes.len() - 16));
    }
    text
}

fn tell(site: &Site, kind: &'static str, changes: &[(Arc<Node>, NodeRow)], reason: &str) {
    for (node, row) in changes.iter().filter(|(node, row)| node.row != *row) {
        let what = match kind {
            "node_draining" => "takes no new request",
            "node_undrained" => "takes requests again",
            "node_eligible" => "may get application traffic",
            _ => "gets no application traffic",
        };
        let mut message = format!("{}: {what}", row.name);
        if !reason.is_empty() {
            message.push_str(&format!(" ({reason})"));
        }
        site.events.tell(Happened {
            kind,
            node_id: node.id.to_string(),
            generation: node.generation.0,
            message,
            ..Happened::default()
        });
    }
}

/// The result's JSON, as each operation on nodes gives it.
pub(super) fn value(nodes: Vec<NodeOutcome>) -> Result<Value, Error> {
    result::<NodeUndrain>(NodesResult { nodes })
}
