//! Changes of chosen nodes' rows: undrain, eligible, what `lifecycle` changes, and the first half of drain.
//!
//! Owns proposing them and what becomes of them when the store takes no writes. Leaves each transition to
//! `core/registry/identity.rs`. Invariant: the rows of all chosen nodes change in one transaction, or none does; a
//! repeated one changes nothing and says so.

use std::sync::Arc;

use serde_json::Value;
use umbel_contracts::names::is_plain;
use umbel_contracts::operations::{NodeOutcome, NodeUndrain, NodesResult};
use umbel_store::{Commit, CommitError};
use umbel_wire::{Code, Error, NodeId};

use super::{invalid, result, select, stored};
use crate::core::commands::{CommandRow, Request};
use crate::core::registry::node::{NAME_MAX, Node, NodeRow};
use crate::shell::commands::{Commands, Context, store_error};
use crate::shell::events::Happened;
use crate::shell::owing::Set;
use crate::shell::site::Site;

/// Longest node or key name, label key or value, in bytes.
pub(super) const NAME: usize = NAME_MAX;
/// Most labels that people give a node.
pub(super) const LABELS: usize = 32;
/// Nodes that one audit entry names one by one.
const SUBJECTS: usize = 16;
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
    let after = Node { row: row.clone(), ..node.clone() };
    NodeOutcome {
        node_id: node.id.to_string(),
        name: row.name.clone(),
        changed: node.row != *row,
        draining: row.draining,
        eligible: row.eligible,
        state: after.state().to_owned(),
        labels: after.all_labels(),
        in_flight,
        not_durable,
    }
}

fn changed(chosen: Vec<Arc<Node>>, set: &dyn Fn(&mut NodeRow)) -> Changes {
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
    shape: Shape,
) -> Result<Value, Error> {
    let changes = changed(select(commands, &request.selector)?, &set);
    check(&changes)?;
    shape(&commands.site, &changes, false)
}

/// What happens when the store takes no writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The change is refused.
    Refuse,
    /// It may take back in memory what is in memory only.
    TakeBack,
    /// It takes force in memory: it ends harm.
    InForce,
}

/// A change of nodes, as it is told and done.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deed {
    /// Of the event.
    pub(super) kind: &'static str,
    /// What the node does from now on.
    pub(super) what: &'static str,
    pub(super) full: Full,
}

type Changes = Vec<(Arc<Node>, NodeRow)>;

/// The result of changed nodes; the flag: in memory only.
pub(super) type Shape = fn(&Site, &[(Arc<Node>, NodeRow)], bool) -> Result<Value, Error>;

/// As most operations on nodes give it.
pub(super) fn outcomes(
    site: &Site,
    changes: &[(Arc<Node>, NodeRow)],
    in_memory: bool,
) -> Result<Value, Error> {
    let one =
        |(node, row): &(Arc<Node>, NodeRow)| outcome(site, node, row, in_memory && only_here(node, row));
    value(changes.iter().map(one).collect())
}

/// While the store takes no writes: whether a row is on disk as it will stand.
pub(super) fn only_here(node: &Node, row: &NodeRow) -> bool {
    node.row != *row || node.unwritten > 0
}

/// A change that is done with its first write.
pub(super) async fn change(
    context: &Context<'_>,
    deed: Deed,
    set: impl Set,
    shape: Shape,
) -> Result<(), Error> {
    for _ in 0..TRIES {
        let changes = changed(select(context.commands, &context.request.selector)?, &set);
        check(&changes)?;
        let site = &context.commands.site;
        let durable = shape(site, &changes, false)?;
        let also = context.outcome(&stored(&durable)).audit(context.audit(subjects(&changes)));
        let told = match apply(site, &changes, also.clone()).await {
            Ok(None) => continue,
            Ok(Some(())) => durable,
            Err(error) if is_full(&error) && may_owe(deed.full, &changes) => {
                site.owe_nodes(&ids(&changes), set, also)?;
                shape(site, &changes, true)?
            }
            Err(error) => return Err(error),
        };
        tell(site, deed, &changes, &context.request.reason);
        context.done(told);
        return Ok(());
    }
    Err(store_error(&CommitError::Conflict(0)))
}

fn may_owe(full: Full, changes: &Changes) -> bool {
    match full {
        Full::Refuse => false,
        Full::TakeBack => only_in_memory(changes),
        Full::InForce => true,
    }
}

/// What no row may become, whatever changes it.
fn check(changes: &Changes) -> Result<(), Error> {
    changes.iter().filter(|(node, row)| node.row != *row).try_for_each(|(_, row)| {
        check_name("name", &row.name)?;
        check_labels(&row.labels)
    })
}

pub(super) fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let sound = !name.trim().is_empty() && name.len() <= NAME && is_plain(name);
    if sound {
        Ok(())
    } else {
        Err(invalid("ARGS", format!("{what} must have 1 to {NAME} printable characters")))
    }
}

/// A name that a node gets from now on: it is pasted into commands and file names, and is a key in the settings. Those
/// that were given before stay.
pub(super) fn check_node_name(name: &str) -> Result<(), Error> {
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let sound = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if begins && sound && name.len() <= NAME {
        return Ok(());
    }
    let message = format!(
        "a node's name has 1 to {NAME} of the letters a-z and A-Z, digits, `.`, `_` and `-`, and begins with a letter \
         or digit"
    );
    Err(invalid("ARGS", message))
}

pub(super) fn check_labels(labels: &std::collections::BTreeMap<String, String>) -> Result<(), Error> {
    if labels.len() > LABELS {
        return Err(invalid("ARGS", format!("a node has at most {LABELS} labels")));
    }
    labels.iter().try_for_each(|(key, value)| {
        check_name("a label's key", key)?;
        check_name("a label's value", value)
    })
}

/// Marks the chosen nodes and stores the command as running: its row. A drain takes force in memory even when the
/// store cannot be written.
pub(super) async fn mark(
    context: &Context<'_>,
    deed: Deed,
    set: impl Set,
    row: impl Fn(&[Arc<Node>]) -> Result<CommandRow, Error>,
) -> Result<CommandRow, Error> {
    let site = &context.commands.site;
    for _ in 0..TRIES {
        let chosen = select(context.commands, &context.request.selector)?;
        let command = row(&chosen)?;
        let changes = changed(chosen, &set);
        // A round of deployments comes later than the first request that finds them drained.
        crate::shell::deployments::expect_without(site, &ids(&changes));
        let also = context.storing(&command).audit(context.audit(subjects(&changes)));
        match apply(site, &changes, also.clone()).await {
            Ok(None) => continue,
            Ok(Some(())) => {}
            Err(error) if is_full(&error) && may_owe(deed.full, &changes) => {
                site.owe_nodes(&ids(&changes), set, also)?;
            }
            Err(error) => return Err(error),
        }
        context.stored(&command);
        tell(site, deed, &changes, &context.request.reason);
        return Ok(command);
    }
    Err(store_error(&CommitError::Conflict(0)))
}

fn is_full(error: &Error) -> bool {
    error.code == Code::InsufficientStorage
}

fn ids(changes: &Changes) -> Vec<NodeId> {
    changes.iter().map(|(node, _)| node.id).collect()
}

/// Whether it changes anything, and only rows that are not on disk as they stand.
fn only_in_memory(changes: &Changes) -> bool {
    let mut changed = changes.iter().filter(|(node, row)| node.row != *row).peekable();
    changed.peek().is_some() && changed.all(|(node, _)| node.unwritten > 0)
}

async fn apply(site: &Site, changes: &Changes, also: Commit) -> Result<Option<()>, Error> {
    // Unchanged rows are written too: their preconditions make the answer one consistent reading.
    site.store_nodes(changes.clone(), also).await.map_err(|error| store_error(&error))
}

fn subjects(changes: &Changes) -> String {
    let shown: Vec<_> = changes.iter().take(SUBJECTS).map(|(node, _)| node.id.to_string()).collect();
    let mut text = shown.join(",");
    if changes.len() > SUBJECTS {
        text.push_str(&format!(" and {} more", changes.len() - SUBJECTS));
    }
    text
}

fn tell(site: &Site, deed: Deed, changes: &Changes, reason: &str) {
    for (node, row) in changes.iter().filter(|(node, row)| node.row != *row) {
        let mut message = format!("{}: {}", row.name, deed.what);
        if !reason.is_empty() {
            message.push_str(&format!(" ({reason})"));
        }
        site.events.tell(Happened {
            kind: deed.kind,
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
