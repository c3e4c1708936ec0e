//! Every way to place one replica, tried one after the other, written without a look at how placement does it.

use std::cmp::Ordering;

use umbel_contracts::selector::{Term, glob};

use crate::core::placement::Plan;
use crate::core::placement::candidate::{Candidate, Condition, Gpu, Standing};
use crate::core::placement::check::FOREIGN_TOLERATED;
use crate::core::placement::request::{Request, Strategy};

fn gpu_will_do(request: &Request, gpu: &Gpu) -> bool {
    let need = &request.gpus;
    let named = need.names.is_empty() || need.names.iter().any(|pattern| glob(pattern, &gpu.name));
    let capable = match (need.capability, gpu.capability) {
        (None, _) => true,
        (Some(wanted), Some(found)) => found >= wanted,
        (Some(_), None) => false,
    };
    let roomy = if need.memory_bytes == 0 {
        gpu.foreign_bytes <= FOREIGN_TOLERATED
    } else {
        gpu.memory_bytes.saturating_sub(gpu.foreign_bytes) >= need.memory_bytes
    };
    let free = match &gpu.holder {
        None => true,
        Some(holder) => request.displaces.contains(holder),
    };
    named && capable && roomy && free && gpu.condition == Condition::Ok
}

fn node_will_do(request: &Request, node: &Candidate) -> bool {
    let selected = request.selector.as_ref().is_none_or(|selector| {
        selector.terms().iter().all(|term| match term {
            Term::All => true,
            Term::Node(name) => node.name == *name || node.id.to_string() == *name,
            Term::Label { key, value } => node.labels.get(key) == Some(value),
            Term::Model(model) => node.models.contains(model),
            Term::Gpu(pattern) => node.gpus.iter().any(|gpu| glob(pattern, &gpu.name)),
        })
    });
    let engine = request.engine.as_ref().is_none_or(|engine| {
        node.runtimes.iter().any(|one| {
            one.kind == engine.kind
                && engine.version.is_none_or(|wanted| {
                    umbel_contracts::release::Release::found(&one.version)
                        .is_some_and(|found| found >= wanted)
                })
        })
    });
    let files = request.artifact.as_ref().is_none_or(|artifact| {
        node.artifacts.contains(&artifact.key)
            || node.acquires
                && node
                    .room
                    .is_none_or(|room| room.free_bytes >= artifact.bytes.saturating_add(room.reserve_bytes))
    });
    let driver = request.gpus.count == 0
        || node.inventory
            && request.gpus.driver.is_none_or(|wanted| node.driver.is_some_and(|found| found >= wanted));
    node.standing == Standing::Here
        && node.settings_refused.is_none()
        && !node.draining
        && !request.avoid.contains_key(&node.id)
        && node.loads
        && node.engines.iter().filter(|one| !request.displaces.contains(*one)).count() < 32
        && selected
        && engine
        && files
        && driver
}

/// Whether this node could take a shard with exactly these GPUs.
fn shard_will_do(request: &Request, node: &Candidate, gpus: &[&Gpu]) -> bool {
    node_will_do(request, node)
        && gpus.len() == request.gpus.count as usize
        && gpus.iter().all(|gpu| gpu_will_do(request, gpu))
}

/// Whether any subset of the node's GPUs would do.
fn any_gpus(request: &Request, node: &Candidate) -> bool {
    (0..1u32 << node.gpus.len()).any(|set| {
        let gpus: Vec<&Gpu> =
            node.gpus.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, gpu)| gpu).collect();
        shard_will_do(request, node, &gpus)
    })
}

/// Tries every set of nodes.
pub(super) fn fits_somewhere(request: &Request, fleet: &[Candidate]) -> bool {
    let wanted = request.nodes.max(1);
    let good: Vec<&Candidate> = fleet.iter().filter(|node| any_gpus(request, node)).collect();
    (0..1u32 << good.len()).filter(|set| set.count_ones() == wanted).any(|set| {
        let chosen: Vec<&Candidate> =
            good.iter().enumerate().filter(|(at, _)| set & (1 << at) != 0).map(|(_, node)| *node).collect();
        wanted == 1 || share_a_fabric(request, &chosen)
    })
}

fn share_a_fabric(request: &Request, nodes: &[&Candidate]) -> bool {
    let values: Vec<_> = nodes.iter().map(|node| node.fabric.get(&request.fabric_label)).collect();
    values.iter().all(|value| value.is_some() && *value == values[0])
}

/// Whether a plan is one of those ways.
pub(super) fn is_legal(plan: &Plan, request: &Request, fleet: &[Candidate]) -> bool {
    let wanted = request.nodes.max(1) as usize;
    let mut nodes: Vec<&Candidate> = Vec::new();
    for shard in &plan.shards {
        let node = fleet.iter().find(|node| node.id == shard.node).unwrap();
        if nodes.iter().any(|other| other.id == node.id) {
            return false;
        }
        let mut gpus: Vec<&Gpu> = Vec::new();
        for uuid in &shard.gpus {
            let gpu = node.gpus.iter().find(|gpu| gpu.uuid == *uuid).unwrap();
            if gpus.iter().any(|other| other.uuid == gpu.uuid) {
                return false;
            }
            gpus.push(gpu);
        }
        let has = request.artifact.as_ref().is_none_or(|artifact| node.artifacts.contains(&artifact.key));
        if !shard_will_do(request, node, &gpus) || shard.acquire == has {
            return false;
        }
        nodes.push(node);
    }
    nodes.len() == wanted && (wanted == 1 || share_a_fabric(request, &nodes))
}

/// Which of two nodes that fit is the better one, told in the words of the design; equal ones go by name.
fn better(request: &Request, a: &Candidate, b: &Candidate) -> Ordering {
    let own = |node: &Candidate| request.placed.get(&node.id).copied().unwrap_or(0);
    let lacks =
        |node: &Candidate| !request.artifact.as_ref().is_none_or(|one| node.artifacts.contains(&one.key));
    let idle = |node: &Candidate| {
        let idle = node.gpus.iter().filter(|gpu| gpu.holder.is_none() && gpu.condition == Condition::Ok);
        idle.filter(|_| request.gpus.count > 0).map(|gpu| gpu.memory_bytes).collect::<Vec<_>>()
    };
    let smallest = |node: &Candidate| idle(node).into_iter().min().unwrap_or(u64::MAX);
    let engines =
        |node: &Candidate| node.engines.iter().filter(|one| !request.displaces.contains(*one)).count();
    let memory = |node: &Candidate| node.free_memory_bytes.unwrap_or(0);
    let begun = |node: &Candidate| {
        let work = match request.gpus.count {
            0 => engines(node) > 0,
            _ => node.gpus.iter().any(|gpu| gpu.holder.is_some()),
        };
        own(node) > 0 || work
    };
    let requests = b.eligible.cmp(&a.eligible);
    let figures = match request.strategy {
        Strategy::Spread => own(a)
            .cmp(&own(b))
            .then(lacks(a).cmp(&lacks(b)))
            .then(smallest(a).cmp(&smallest(b)))
            .then(idle(b).len().cmp(&idle(a).len()))
            .then(engines(a).cmp(&engines(b)))
            .then(memory(b).cmp(&memory(a))),
        Strategy::Pack => begun(b)
            .cmp(&begun(a))
            .then(idle(a).len().cmp(&idle(b).len()))
            .then(lacks(a).cmp(&lacks(b)))
            .then(smallest(a).cmp(&smallest(b)))
            .then(own(b).cmp(&own(a)))
            .then(engines(b).cmp(&engines(a)))
            .then(memory(a).cmp(&memory(b))),
    };
    requests.then(figures).then_with(|| a.name.cmp(&b.name))
}

/// The best of the nodes that could take a replica of one node.
pub(super) fn best<'a>(request: &Request, fleet: &'a [Candidate]) -> Option<&'a Candidate> {
    fleet.iter().filter(|node| any_gpus(request, node)).min_by(|a, b| better(request, a, b))
}
