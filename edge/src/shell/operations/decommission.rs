//! `node.decommission`: a node is drained, its replicas are unloaded, then it is retired for good.
//!
//! Owns the preview, the confirmation, the waiting and the last write. Leaves what a tombstone leaves behind to the registry,
//! ending replicas on a draining node to the reconciler, and engines that could not be unloaded to their node, which ends
//! them when it hears that it is gone. Invariant: nothing is revoked before the leases and replicas ended or their time is
//! over; the last write is one transaction with the command's outcome, so a restart in between goes on with the waiting.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::operations::{
    LostModel, NodeDecommission, NodeDecommissionArgs, NodeDecommissionResult,
};
use umbel_store::{AuditRecord, Commit, CommitError};
use umbel_wire::clock::Wall;
use umbel_wire::{Code, Error, NodeId};

use super::nodes::{self, Deed, Full};
use super::{drain, invalid, one, result, stored};
use crate::core::commands::{CommandRow, Request};
use crate::core::deployments::{DeploymentRow, ReplicaRow};
use crate::core::registry::node::{Decision, Node, ProviderState};
use crate::shell::commands::{COMMANDS, Commands, Context, Running, store_error};
use crate::shell::events::Happened;
use crate::shell::site::{REPORTS, Site};

/// How it begins.
const LEAVES: Deed = Deed {
    kind: "node_draining",
    what: "takes no new request; it is decommissioned when it holds none",
    full: Full::Refuse,
};
/// How often the last write is proposed again when the row changed in the same moment.
const TRIES: usize = 8;
/// An engine ends within a minute of its last request: SIGTERM, SIGKILL, memory of GPUs. Then its node is left with it.
const UNLOADS: Duration = Duration::from_secs(90);
/// Between two looks at what is not unloaded yet.
const LOOK: Duration = Duration::from_millis(250);

/// What will be lost.
pub(super) fn preview(commands: &Commands, request: &Request) -> Result<Value, Error> {
    let node = one(commands, request)?;
    result::<NodeDecommission>(lost(&commands.site, &node))
}

fn lost(site: &Site, node: &Node) -> NodeDecommissionResult {
    let (_, all) = site.nodes();
    let replicas = replicas(site, node.id, |_| true);
    let mut deployments: Vec<String> = replicas.iter().map(|row| row.deployment.clone()).collect();
    deployments.dedup();
    let mut models: Vec<String> = node.report.engines.iter().map(|engine| engine.model.clone()).collect();
    models.sort();
    models.dedup();
    let models = models
        .into_iter()
        .map(|model| LostModel { available_elsewhere: elsewhere(&all, node.id, &model), model });
    NodeDecommissionResult {
        node_id: node.id.to_string(),
        name: node.row.name.clone(),
        decommissioned: node.is_tombstone(),
        models: models.collect(),
        providers: node.report.engines.iter().map(|engine| node.provider_id(&engine.name)).collect(),
        leases: nodes::outcome(site, node, &node.row, false).in_flight,
        jobs: open_jobs(site, node.id),
        deployments,
        replicas: replicas.iter().map(ReplicaRow::engine).collect(),
    }
}

fn open_jobs(site: &Site, node: NodeId) -> u64 {
    site.jobs.open(Some(node), usize::MAX).len() as u64
}

/// The replicas on a node, by deployment.
fn replicas(site: &Site, node: NodeId, of: impl Fn(&DeploymentRow) -> bool) -> Vec<ReplicaRow> {
    site.deployments.read(|table| {
        let here = table.replicas.values().filter(|row| row.node == node);
        here.filter(|row| table.rows.get(&row.deployment).is_some_and(&of)).cloned().collect()
    })
}

/// Waits until the node has no replica that is going to end; a paused deployment's stays as it is. A node that cannot be asked
/// is not waited for.
async fn unloaded(commands: &Commands, command_id: &str, node: NodeId) {
    let site = &commands.site;
    let mut told = Vec::new();
    while site.read(|registry| registry.node(&node).is_some_and(|node| node.connected())) {
        let left = replicas(site, node, |row| !row.paused || row.deleting);
        let left: Vec<String> = left.iter().map(ReplicaRow::engine).collect();
        if left.is_empty() {
            return;
        }
        if left != told {
            let message = format!("waits for {} to end", left.join(", "));
            commands.step(command_id, CommandPhase::Running, &message, None);
            told = left;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Providers of other nodes that can take a model's requests now.
fn elsewhere(all: &[Arc<Node>], but: NodeId, model: &str) -> u32 {
    let serving = all
        .iter()
        .filter(|node| node.id != but && node.connected() && node.row.eligible && !node.row.draining);
    let providers = serving.flat_map(|node| {
        let engines = node.report.engines.iter().filter(|engine| engine.model == model);
        engines.filter(|engine| node.engine_state(&engine.name).0 == ProviderState::Available)
    });
    u32::try_from(providers.count()).unwrap_or(u32::MAX)
}

pub(super) async fn start(context: &Context<'_>, args: &NodeDecommissionArgs) -> Result<(), Error> {
    let request = context.request;
    let patience = drain::patience(request, args.deadline_seconds)?;
    let until = context.commands.site.wall() + patience;
    let begun = context.begun();
    let row = |chosen: &[Arc<Node>]| {
        let [node] = chosen else {
            one(context.commands, request)?;
            return Err(moved());
        };
        confirmed(node, &request.confirm)?;
        Ok(CommandRow {
            phase: CommandPhase::Running,
            nodes: vec![node.id.to_string()],
            until_unix_ms: Some(until.unix_ms()),
            ..begun.clone()
        })
    };
    let row = nodes::mark(context, LEAVES, |row| row.draining = true, row).await?;
    if let Some(running) = context.commands.running(&request.command_id) {
        resume(context.commands, request.command_id.clone(), row, running);
    }
    Ok(())
}

fn moved() -> Error {
    store_error(&CommitError::Conflict(0))
}

fn confirmed(node: &Node, confirm: &str) -> Result<(), Error> {
    if confirm == node.row.name {
        return Ok(());
    }
    let message = format!(
        "it cannot be undone: confirm it with the node's name, {}; a preview says what will be lost",
        node.row.name
    );
    Err(invalid("CONFIRM", message))
}

/// Waits for the leases of one that is stored, also after a restart, then retires the node.
pub(super) fn resume(commands: &Arc<Commands>, id: String, row: CommandRow, running: Arc<Running>) {
    commands.go_on(id, row, |commands, id, row| async move {
        let Some(node) = row.nodes.first().and_then(|id| NodeId::parse(id).ok()) else {
            let message = "what is stored of this command names no node: ask again with a new id";
            return commands.ended(&id, row, Err(Error::new(Code::Internal, "INTERNAL", message))).await;
        };
        let until = Wall(row.until_unix_ms.unwrap_or(0));
        let left = until.unix_ms().saturating_sub(commands.site.wall().unix_ms());
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let ids = [node];
        let emptied = async {
            commands.site.dispatch.drained(node).await;
            // Whatever is left after that ends when its node hears that it is gone.
            let _ = tokio::time::timeout(UNLOADS, unloaded(&commands, &id, node)).await;
        };
        let go_on = tokio::select! {
            biased;
            () = emptied => true,
            () = running.cancel.cancelled() => false,
            () = tokio::time::sleep(left) => true,
            () = drain::progress(&commands, &id, &ids) => true,
        };
        let ended = if go_on { retire(&commands, &id, &row, node).await } else { Err(cancelled()) };
        match ended {
            Ok(ended) => commands.finish(&id, ended),
            Err(error) => commands.ended(&id, row, Err(error)).await,
        }
    });
}

fn cancelled() -> Error {
    Error::new(
        Code::Cancelled,
        "CANCELLED",
        "it was cancelled before anything was lost; the node stays draining until it is undrained",
    )
}

/// The last write: tombstone, credentials, reports and the command's outcome.
async fn retire(
    commands: &Commands,
    command_id: &str,
    row: &CommandRow,
    id: NodeId,
) -> Result<CommandRow, Error> {
    let site = &commands.site;
    for _ in 0..TRIES {
        let node = site.read(|registry| registry.node(&id).cloned());
        let node = node.filter(|node| !node.is_tombstone()).ok_or_else(|| {
            Error::new(Code::Gone, "NODE_DECOMMISSIONED", "another command decommissioned it meanwhile")
        })?;
        let mut tombstone = node.row.clone();
        tombstone.decommission(Decision {
            at_unix_ms: site.wall().unix_ms(),
            by: row.actor.clone(),
            reason: row.reason.clone(),
        });
        let told = NodeDecommissionResult { decommissioned: true, ..lost(site, &node) };
        let told = result::<NodeDecommission>(told)?;
        let ended = commands.ending(row, &stored(&told));
        let audit = AuditRecord::new("node.decommissioned", id.to_string(), "succeeded")
            .by(&row.actor)
            .of(command_id, "")
            .because(row.reason.clone());
        let also =
            Commit::new().remove(REPORTS, id.to_string()).put_json(COMMANDS, command_id, &ended).audit(audit);
        let name = tombstone.name.clone();
        match site.store_nodes(vec![(Arc::clone(&node), tombstone)], also).await {
            Ok(None) => continue,
            Ok(Some(())) => {}
            Err(error) => return Err(store_error(&error)),
        }
        site.events.tell(Happened {
            kind: "node_decommissioned",
            node_id: id.to_string(),
            generation: node.generation.0,
            message: format!("{name}: decommissioned for good"),
            ..Happened::default()
        });
        return Ok(ended);
    }
    Err(moved())
}
