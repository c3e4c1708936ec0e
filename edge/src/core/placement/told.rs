//! An explanation as the object that operators get.
//!
//! Owns that conversion. Invariant: a number in a sentence is a field too.

use std::collections::HashMap;

use umbel_contracts::objects::{
    PlacementAgainstObject, PlacementChangeObject, PlacementGpuObject, PlacementNeedsObject,
    PlacementNodeObject, PlacementObject, PlacementRemedyObject, PlacementReplicaObject,
    PlacementShardObject, PlacementStepObject, PlacementTakesObject,
};
use umbel_contracts::settings::ENGINES_MAX;
use umbel_wire::NodeId;

use super::Plan;
use super::candidate::{Candidate, Standing};
use super::explain::{Explanation, Favour, View};
use super::obstacle::{Obstacle, Shortage};
use super::remedy::{Remedy, Step, Stocks, Takes};
use super::request::Request;

/// Names of nodes at one step of the funnel.
const NAMED: usize = 32;

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Names of nodes, whose ids the rest has.
type Names<'a> = HashMap<NodeId, &'a str>;

/// What a remedy's words need beside it.
struct Context<'a> {
    names: Names<'a>,
    request: &'a Request,
    stocks: &'a Stocks,
}

/// The object of an explanation, of as many replicas as `plans` has places for. `stocks`: what other deployments have.
pub(crate) fn object(
    why: &Explanation,
    plans: &[Plan],
    candidates: &[Candidate],
    stocks: &Stocks,
) -> PlacementObject {
    let names: Names<'_> = candidates.iter().map(|node| (node.id, node.name.as_str())).collect();
    let context = Context { names, request: &why.request, stocks };
    PlacementObject {
        deployment: why.request.deployment.clone(),
        fits: why.plan.is_some(),
        replicas_wanted: 0,
        replicas_placed: 0,
        waiting_since: None,
        changes: None,
        remarks: Vec::new(),
        plan: plans.iter().map(|plan| replica(plan, candidates)).collect(),
        needs: needs(&why.request, candidates),
        nodes_total: number(why.total),
        nodes_left: number(why.left),
        funnel: why
            .funnel
            .iter()
            .map(|(reason, nodes)| PlacementStepObject {
                reason: *reason,
                count: number(nodes.len()),
                nodes: nodes.iter().take(NAMED).cloned().collect(),
                message: why.alone.get(reason).cloned(),
            })
            .collect(),
        nodes: why.nodes.iter().map(|view| node(view, &context)).collect(),
        nodes_left_off: number(why.left_off),
        remedies: why.remedies.iter().map(|one| remedy(one, &context)).collect(),
    }
}

fn replica(plan: &Plan, candidates: &[Candidate]) -> PlacementReplicaObject {
    let shards = plan.shards.iter().map(|shard| {
        let node = candidates.iter().find(|node| node.id == shard.node);
        let gpus = node.map(|node| node.gpus.as_slice()).unwrap_or_default();
        PlacementShardObject {
            node_id: shard.node.to_string(),
            node: node.map(|node| node.name.clone()).unwrap_or_default(),
            gpu_indexes: gpus
                .iter()
                .filter(|gpu| shard.gpus.contains(&gpu.uuid))
                .map(|gpu| gpu.index)
                .collect(),
            gpus: shard.gpus.clone(),
            acquire: shard.acquire,
            remarks: node.map(|node| remarks(node.eligible, &node.name)).unwrap_or_default(),
        }
    });
    PlacementReplicaObject { shards: shards.collect() }
}

fn needs(request: &Request, candidates: &[Candidate]) -> PlacementNeedsObject {
    let gpus = &request.gpus;
    let artifact = request.artifact.as_ref();
    PlacementNeedsObject {
        nodes_per_replica: request.nodes.max(1),
        fabric_label: (request.shards() > 1).then(|| request.fabric_label.clone()),
        gpus: gpus.count,
        gpu_memory_bytes: (gpus.memory_bytes > 0).then_some(gpus.memory_bytes),
        gpu_weights_bytes: request.weights_on_each(gpus.count, request.nodes),
        gpu_measured_bytes: request.memory.measured_bytes,
        gpu_names: gpus.names.clone(),
        capability: gpus.capability.map(|version| version.to_string()),
        driver: gpus.driver.map(|version| version.to_string()),
        engine: request.engine.as_ref().map(|engine| engine.kind.clone()),
        engine_version: request
            .engine
            .as_ref()
            .and_then(|one| one.version)
            .map(|version| version.to_string()),
        artifact: artifact.map(|artifact| artifact.name.clone()),
        artifact_bytes: artifact.map(|artifact| artifact.bytes),
        reserve_bytes: artifact.and_then(|_| reserve(candidates)),
        selector: request.selector.as_ref().map(ToString::to_string),
        strategy: request.strategy.as_str().to_owned(),
    }
}

/// What neither speaks for a node nor stands against it.
fn remarks(eligible: bool, name: &str) -> Vec<String> {
    let waits = || format!("not eligible: its requests wait until `umbel ctl node eligible {name}`");
    (!eligible).then(waits).into_iter().collect()
}

/// What all nodes leave free, where that is one figure.
fn reserve(candidates: &[Candidate]) -> Option<u64> {
    let mut all = candidates.iter().filter_map(|node| Some(node.room?.reserve_bytes));
    let first = all.next()?;
    all.all(|one| one == first).then_some(first)
}

fn node(view: &View, context: &Context<'_>) -> PlacementNodeObject {
    let request = context.request;
    let fit = view.gpus.iter().filter(|one| one.against.is_none()).count();
    let asked = Shortage {
        wanted: request.gpus.count,
        usable: number(fit),
        memory_bytes: request.gpus.memory_bytes,
        capability: request.gpus.capability,
        at: None,
        judged: Vec::new(),
    };
    let gpus = view.gpus.iter().map(|one| PlacementGpuObject {
        uuid: one.gpu.uuid.clone(),
        index: one.gpu.index,
        name: one.gpu.name.to_string(),
        memory_bytes: one.gpu.memory_bytes,
        capability: one.gpu.capability.map(|version| version.to_string()),
        available_bytes: one.gpu.available_bytes(),
        short_bytes: asked.short_bytes(&one.gpu),
        held_by: one.gpu.holder.clone(),
        reason: one.against.map(super::obstacle::GpuReason::reason),
        message: one.against.map(|against| asked.why(&one.gpu, against)),
    });
    PlacementNodeObject {
        node_id: view.id.to_string(),
        node: view.name.clone(),
        fits: view.obstacles.is_empty(),
        reasons_for: view.favours.iter().map(Favour::sentence).collect(),
        against: view.obstacles.iter().map(against).collect(),
        remarks: remarks(view.eligible, &view.name),
        replicas: view.replicas,
        gpus_fit: number(fit),
        gpus: gpus.collect(),
        remedies: view.remedies.iter().map(|one| remedy(one, context)).collect(),
    }
}

fn against(obstacle: &Obstacle) -> PlacementAgainstObject {
    let (wanted, found) = match obstacle {
        Obstacle::Gpus(shortage) => (Some(shortage.wanted.into()), Some(shortage.usable.into())),
        Obstacle::Full { engines } => {
            (Some(u64::from(number(ENGINES_MAX))), Some(u64::from(number(*engines))))
        }
        Obstacle::Space { bytes, room } => {
            (Some(bytes.saturating_add(room.reserve_bytes)), Some(room.free_bytes))
        }
        Obstacle::FabricTooSmall { wanted, fitting, .. } => {
            (Some(u64::from(*wanted)), Some(u64::from(*fitting)))
        }
        Obstacle::SettingsRefused { version, .. } => (Some(*version), None),
        _ => (None, None),
    };
    let (wanted_version, found_version) = match obstacle {
        Obstacle::EngineTooOld { wanted, found, .. } => {
            (Some(wanted.to_string()), Some(found.clone()).filter(|found| !found.is_empty()))
        }
        Obstacle::Driver { wanted, found } => {
            (Some(wanted.to_string()), found.map(|found| found.to_string()))
        }
        _ => (None, None),
    };
    PlacementAgainstObject {
        reason: obstacle.reason(),
        message: obstacle.sentence(),
        wanted,
        found,
        wanted_version,
        found_version,
        for_ms: match obstacle {
            Obstacle::Away(Standing::Silent(_, since)) => *since,
            _ => None,
        },
    }
}

fn remedy(remedy: &Remedy, context: &Context<'_>) -> PlacementRemedyObject {
    let name = |id: &NodeId| context.names.get(id).copied().unwrap_or_default();
    PlacementRemedyObject {
        nodes: remedy.nodes.iter().map(|id| name(id).to_owned()).collect(),
        changes: remedy
            .steps
            .iter()
            .map(|Step { node, change }| {
                let takes = change.takes(context.stocks);
                let beside: String = takes.iter().map(Takes::beside).collect();
                PlacementChangeObject {
                    change: change.word().to_owned(),
                    node: (!change.is_of_document()).then(|| name(node).to_owned()),
                    message: change.sentence(name(node)) + &beside,
                    commands: change.commands(name(node), &context.request.deployment, context.stocks),
                    takes: takes.into_iter().map(taken).collect(),
                }
            })
            .collect(),
    }
}

fn taken(takes: Takes) -> PlacementTakesObject {
    PlacementTakesObject {
        deployment: takes.deployment,
        needed: number(takes.needed),
        goes: number(takes.goes),
        of: number(takes.of),
    }
}
