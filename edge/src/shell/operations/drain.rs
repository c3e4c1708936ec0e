//! `node.drain`: no new lease from now on, then the end of those that are held.
//!
//! Owns the waiting. The mark itself is stored and outlives restarts (row 76); what waits here is only the
//! command. Invariant: the command ends by its deadline, whatever its nodes do; the mark stays.

use std::sync::Arc;
use std::time::Duration;

use umbel_contracts::objects::{CommandPhase, ProgressObject};
use umbel_contracts::operations::{NodeDrainArgs, NodeOutcome};
use umbel_wire::clock::Wall;
use umbel_wire::{Code, Error, NodeId};

use super::nodes::{self, Deed, Full};
use crate::core::commands::{CommandRow, Request};
use crate::shell::commands::{Commands, Context, Running};
use crate::shell::events::Happened;

/// How long held leases may take unless said.
const PATIENCE: Duration = Duration::from_secs(600);
/// Longest patience.
const LONGEST: u64 = 86_400;
/// Progress is told this often.
const PROGRESS: Duration = Duration::from_secs(2);

/// As it is told.
const DRAINING: Deed = Deed { kind: "node_draining", what: "takes no new request", full: Full::InForce };

pub(super) async fn start(context: &Context<'_>, args: NodeDrainArgs) -> Result<(), Error> {
    let patience = patience(context.request, args.deadline_seconds)?;
    let until = context.commands.site.wall() + patience;
    let begun = context.begun();
    let row = |chosen: &[Arc<crate::core::registry::node::Node>]| {
        Ok(CommandRow {
            phase: CommandPhase::Running,
            nodes: chosen.iter().map(|node| node.id.to_string()).collect(),
            until_unix_ms: Some(until.unix_ms()),
            ..begun.clone()
        })
    };
    let row = nodes::mark(context, DRAINING, |row| row.draining = true, row).await?;
    if let Some(running) = context.commands.running(&context.request.command_id) {
        resume(context.commands, context.request.command_id.clone(), row, running);
    }
    Ok(())
}

/// How long held leases may take.
pub(super) fn patience(request: &Request, asked: Option<u64>) -> Result<Duration, Error> {
    let seconds = asked.unwrap_or(PATIENCE.as_secs());
    if seconds > LONGEST {
        let message = format!("deadline_seconds must be at most {LONGEST}");
        return Err(Error::new(Code::InvalidArgument, "ARGS", message));
    }
    let patience = Duration::from_secs(seconds);
    Ok(if request.deadline.is_zero() { patience } else { patience.min(request.deadline) })
}

/// Waits for the leases of a drain that is stored, also one that a restart interrupted.
pub(crate) fn resume(commands: &Arc<Commands>, id: String, row: CommandRow, running: Arc<Running>) {
    commands.go_on(id, row, |commands, id, row| async move {
        let ids: Vec<NodeId> = row.nodes.iter().filter_map(|id| NodeId::parse(id).ok()).collect();
        let until = Wall(row.until_unix_ms.unwrap_or(0));
        let left = until.unix_ms().saturating_sub(commands.site.wall().unix_ms());
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let drained = async {
            for node in &ids {
                commands.site.dispatch.drained(*node).await;
            }
        };
        let outcome = tokio::select! {
            biased;
            () = drained => Ok(()),
            () = running.cancel.cancelled() => Err(Error::new(
                Code::Cancelled,
                "CANCELLED",
                "the waiting was cancelled; the nodes stay draining until they are undrained",
            )),
            () = tokio::time::sleep(left) => Err(Error::new(
                Code::DeadlineExceeded,
                "DRAIN_DEADLINE",
                "leases are still held; the nodes stay draining and finish them",
            )),
            () = progress(&commands, &id, &ids) => Ok(()),
        };
        let nodes = outcomes(&commands, &ids);
        let ended = match outcome {
            Ok(()) => {
                tell(&commands, &nodes);
                nodes::value(nodes)
            }
            Err(error) => Err(error),
        };
        commands.ended(&id, row, ended).await;
    });
}

/// Tells how many requests are left, for ever.
pub(super) async fn progress(commands: &Commands, id: &str, ids: &[NodeId]) {
    let held = || outcomes(commands, ids).iter().map(|node| node.in_flight).sum::<u64>();
    let total = held();
    let mut last = None;
    loop {
        let left = held();
        if last != Some(left) {
            last = Some(left);
            let done = total.saturating_sub(left);
            let progress = ProgressObject { done, total: total.max(left), unit: "requests".to_owned() };
            let message = format!("{left} requests are still running");
            commands.step(id, CommandPhase::Running, &message, Some(progress));
        }
        tokio::time::sleep(PROGRESS).await;
    }
}

fn outcomes(commands: &Commands, ids: &[NodeId]) -> Vec<NodeOutcome> {
    let site = &commands.site;
    let nodes: Vec<_> =
        site.read(|registry| ids.iter().filter_map(|id| registry.node(id).cloned()).collect());
    nodes
        .iter()
        .map(|node| {
            let not_durable = node.unwritten > 0;
            NodeOutcome { changed: true, ..nodes::outcome(site, node, &node.row, not_durable) }
        })
        .collect()
}

fn tell(commands: &Commands, nodes: &[NodeOutcome]) {
    for node in nodes {
        commands.site.events.tell(Happened {
            kind: "node_drained",
            node_id: node.node_id.clone(),
            message: format!("{}: no request is left on it", node.name),
            ..Happened::default()
        });
    }
}
