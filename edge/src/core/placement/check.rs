//! The questions that are asked of a node and of a GPU, in the order in which an explanation counts them.
//!
//! Owns each question once: whether it holds is asked of thousands of nodes, why it does not only where somebody wants to know.
//! Invariant: a node fits exactly if [`obstacles`] finds nothing.

use std::cell::RefCell;
use std::sync::Arc;

use umbel_contracts::objects::PlacementReason;
use umbel_contracts::release::Release;
use umbel_contracts::selector::{self, Term};
use umbel_contracts::settings::ENGINES_MAX;

use super::candidate::{Candidate, Condition, Gpu, Room};
use super::obstacle::{GpuReason, Judged, Obstacle, Shortage};
use super::request::Request;

/// Foreign processes may hold this much of a GPU that is wanted whole: a driver and a display do.
pub(super) const FOREIGN_TOLERATED: u64 = 1 << 30;

/// A wish, with what was found out about it on the way.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) request: &'a Request,
    // Whether each name of a GPU will do: a site has a handful of them and thousands of GPUs.
    names: RefCell<Vec<(Arc<str>, bool)>>,
}

impl<'a> Ask<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        Self { request, names: RefCell::default() }
    }

    fn named(&self, name: &Arc<str>) -> bool {
        let patterns = &self.request.gpus.names;
        if patterns.is_empty() {
            return true;
        }
        let mut known = self.names.borrow_mut();
        let same = |one: &&(Arc<str>, bool)| Arc::ptr_eq(&one.0, name) || one.0 == *name;
        if let Some((_, will_do)) = known.iter().find(same) {
            return *will_do;
        }
        let will_do = patterns.iter().any(|pattern| selector::glob(pattern, name));
        known.push((Arc::clone(name), will_do));
        will_do
    }
}

/// One question of a node.
struct Check {
    holds: fn(&Ask<'_>, &Candidate) -> bool,
    /// Asked only where it does not hold: where it counts, without a word made of it.
    reason: fn(&Ask<'_>, &Candidate) -> PlacementReason,
    /// Asked only where it does not hold.
    why: fn(&Ask<'_>, &Candidate) -> Obstacle,
}

/// All questions, in the order of the funnel. That several nodes share a fabric is asked of them together.
const CHECKS: [Check; 12] = [
    Check {
        holds: |_, node| node.is_here(),
        reason: |_, node| Obstacle::Away(node.standing).reason(),
        why: |_, node| Obstacle::Away(node.standing),
    },
    Check {
        holds: |_, node| node.settings_refused.is_none(),
        reason: |_, _| PlacementReason::SettingsRefused,
        why: |_, node| {
            let (version, why) = node.settings_refused.clone().unwrap_or_default();
            Obstacle::SettingsRefused { version, why }
        },
    },
    Check {
        holds: |_, node| !node.draining,
        reason: |_, _| PlacementReason::Draining,
        why: |_, _| Obstacle::Draining,
    },
    Check {
        holds: |ask, node| ask.request.avoid.is_empty() || !ask.request.avoid.contains_key(&node.id),
        reason: |_, _| PlacementReason::Avoided,
        why: |ask, node| Obstacle::Avoided {
            why: ask.request.avoid.get(&node.id).cloned().unwrap_or_default(),
        },
    },
    Check {
        holds: |ask, node| ask.request.terms().all(|term| selects(term, node)),
        reason: |_, _| PlacementReason::NotSelected,
        why: |ask, node| Obstacle::NotSelected {
            terms: ask.request.terms().filter(|term| !selects(term, node)).cloned().collect(),
        },
    },
    Check {
        holds: |ask, node| node.loads && (node.acquires || has_files(ask, node)),
        reason: |_, _| PlacementReason::AgentTooOld,
        why: |_, node| Obstacle::AgentTooOld { loads: node.loads },
    },
    Check {
        holds: |ask, node| installed(ask.request, node),
        reason: |ask, node| not_installed(ask.request, node).reason(),
        why: |ask, node| not_installed(ask.request, node),
    },
    Check {
        holds: |ask, node| ask.request.shards() == 1 || node.fabric.contains_key(&ask.request.fabric_label),
        reason: |_, _| PlacementReason::FabricMissing,
        why: |ask, _| Obstacle::FabricMissing { label: ask.request.fabric_label.clone() },
    },
    Check {
        holds: |ask, node| ask.request.gpus.count == 0 || driver_will_do(ask.request.gpus.driver, node),
        reason: |ask, node| driver(ask.request, node).reason(),
        why: |ask, node| driver(ask.request, node),
    },
    Check {
        // Of a node that never said what it has nothing is known of its GPUs: only that is told.
        holds: |ask, node| !node.inventory || usable(ask, node) >= ask.request.count(),
        reason: |ask, node| short_at(ask, node).map_or(PlacementReason::GpuCount, GpuReason::reason),
        why: |ask, node| Obstacle::Gpus(shortage(ask, node)),
    },
    Check {
        holds: |ask, node| staying(ask, node) < ENGINES_MAX,
        reason: |_, _| PlacementReason::EngineCount,
        why: |ask, node| Obstacle::Full { engines: staying(ask, node) },
    },
    Check {
        holds: |ask, node| space_short(ask, node).is_none(),
        reason: |_, _| PlacementReason::Space,
        why: |ask, node| {
            let (bytes, room) = space_short(ask, node).unwrap_or((0, Room::NONE));
            Obstacle::Space { bytes, room }
        },
    },
];

/// Whether a node can take a shard now, whatever others have in common with it.
pub(super) fn fits(ask: &Ask<'_>, node: &Candidate) -> bool {
    CHECKS.iter().all(|check| (check.holds)(ask, node))
}

/// Everything against a node, in the order of the funnel.
pub(super) fn obstacles(ask: &Ask<'_>, node: &Candidate) -> Vec<Obstacle> {
    CHECKS.iter().filter(|check| !(check.holds)(ask, node)).map(|check| (check.why)(ask, node)).collect()
}

/// At which question a node is out first; `None`: at none.
pub(super) fn first_reason(ask: &Ask<'_>, node: &Candidate) -> Option<PlacementReason> {
    let check = CHECKS.iter().find(|check| !(check.holds)(ask, node))?;
    Some((check.reason)(ask, node))
}

fn selects(term: &Term, node: &Candidate) -> bool {
    // Only what the term asks about is put together.
    let id = if matches!(term, Term::Node(_)) { node.id.to_string() } else { String::new() };
    let models: Vec<&str> = match term {
        Term::Model(_) => node.models.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    let gpus: Vec<&str> = match term {
        Term::Gpu(_) => node.gpus.iter().map(|gpu| &*gpu.name).collect(),
        _ => Vec::new(),
    };
    term.matches(&selector::Candidate {
        node_id: &id,
        name: &node.name,
        labels: &node.labels,
        models: &models,
        gpus: &gpus,
    })
}

/// Engines of a node, those left out that end before this one starts.
pub(super) fn staying(ask: &Ask<'_>, node: &Candidate) -> usize {
    match ask.request.displaces.len() {
        0 => node.engines.len(),
        _ => node.engines.iter().filter(|engine| !ask.request.displaces(engine)).count(),
    }
}

/// Whether the files are there, or on their way; also where none are needed.
pub(super) fn has_files(ask: &Ask<'_>, node: &Candidate) -> bool {
    ask.request.artifact.as_ref().is_none_or(|artifact| node.artifacts.contains(&artifact.key))
}

/// What the files need and what room there is, where that is less.
fn space_short(ask: &Ask<'_>, node: &Candidate) -> Option<(u64, Room)> {
    let artifact = ask.request.artifact.as_ref().filter(|_| !has_files(ask, node))?;
    // A node that does not say judges for itself, before the first byte.
    node.room.filter(|room| room.usable_bytes() < artifact.bytes).map(|room| (artifact.bytes, room))
}

pub(super) fn new_enough(found: &str, wanted: Option<Release>) -> bool {
    wanted.is_none_or(|wanted| Release::found(found).is_some_and(|found| found >= wanted))
}

fn installed(request: &Request, node: &Candidate) -> bool {
    request.engine.as_ref().is_none_or(|engine| {
        node.runtimes.iter().any(|one| one.kind == engine.kind && new_enough(&one.version, engine.version))
    })
}

fn not_installed(request: &Request, node: &Candidate) -> Obstacle {
    let Some(engine) = &request.engine else {
        return Obstacle::EngineMissing { wanted: String::new(), installed: Vec::new() };
    };
    let found = node.runtimes.iter().filter(|one| one.kind == engine.kind);
    // The newest of that kind, where several are there.
    let best = found.max_by_key(|one| Release::found(&one.version));
    match (best, engine.version) {
        (Some(found), Some(wanted)) => {
            Obstacle::EngineTooOld { kind: engine.kind.clone(), wanted, found: found.version.clone() }
        }
        _ => {
            let mut installed: Vec<String> = node.runtimes.iter().map(|one| one.kind.clone()).collect();
            installed.sort_unstable();
            installed.dedup();
            Obstacle::EngineMissing { wanted: engine.kind.clone(), installed }
        }
    }
}

fn driver(request: &Request, node: &Candidate) -> Obstacle {
    match request.gpus.driver {
        Some(wanted) if node.inventory => Obstacle::Driver { wanted, found: node.driver },
        _ => Obstacle::NoInventory,
    }
}

fn driver_will_do(wanted: Option<Release>, node: &Candidate) -> bool {
    node.inventory && wanted.is_none_or(|wanted| node.driver.is_some_and(|found| found >= wanted))
}

/// Where a GPU is out, or `None` if it can be given away.
pub(super) fn judge(ask: &Ask<'_>, gpu: &Gpu) -> Option<GpuReason> {
    let need = &ask.request.gpus;
    if !ask.named(&gpu.name) {
        return Some(GpuReason::Name);
    }
    if need.capability.is_some_and(|wanted| gpu.capability.is_none_or(|found| found < wanted)) {
        return Some(GpuReason::Capability);
    }
    match gpu.condition {
        Condition::Ok => {}
        Condition::Lost | Condition::Missing => return Some(GpuReason::Gone),
        Condition::Mig => return Some(GpuReason::Mig),
    }
    if gpu.memory_bytes < need.memory_bytes {
        return Some(GpuReason::Size);
    }
    if !has_room(need.memory_bytes, gpu) {
        return Some(GpuReason::Foreign);
    }
    match &gpu.holder {
        Some(holder) if !ask.request.displaces(holder) => Some(GpuReason::Held),
        _ => None,
    }
}

/// Whether what foreign processes leave is enough.
fn has_room(wanted: u64, gpu: &Gpu) -> bool {
    match wanted {
        0 => gpu.foreign_bytes <= FOREIGN_TOLERATED,
        wanted => gpu.available_bytes() >= wanted,
    }
}

/// GPUs that can be given away, counted no further than asked for.
fn usable(ask: &Ask<'_>, node: &Candidate) -> usize {
    node.gpus.iter().filter(|gpu| judge(ask, gpu).is_none()).take(ask.request.count()).count()
}

/// GPUs of a node that can be given away.
pub(super) fn free<'a>(ask: &Ask<'_>, node: &'a Candidate) -> Vec<&'a Gpu> {
    node.gpus.iter().filter(|gpu| judge(ask, gpu).is_none()).collect()
}

/// At which question too few GPUs of a node are left; `None`: it has too few of any kind.
fn short_at(ask: &Ask<'_>, node: &Candidate) -> Option<GpuReason> {
    let wanted = ask.request.count();
    let mut left = node.gpus.len();
    if left < wanted {
        return None;
    }
    let out: Vec<GpuReason> = node.gpus.iter().filter_map(|gpu| judge(ask, gpu)).collect();
    GpuReason::ALL.into_iter().find(|reason| {
        left -= out.iter().filter(|at| *at == reason).count();
        left < wanted
    })
}

/// Of each GPU what is against it, and at which question too few were left.
pub(super) fn shortage(ask: &Ask<'_>, node: &Candidate) -> Shortage {
    let judged: Vec<Judged> =
        node.gpus.iter().map(|gpu| Judged { gpu: gpu.clone(), against: judge(ask, gpu) }).collect();
    Shortage {
        wanted: ask.request.gpus.count,
        usable: u32::try_from(judged.iter().filter(|one| one.against.is_none()).count()).unwrap_or(u32::MAX),
        memory_bytes: ask.request.gpus.memory_bytes,
        capability: ask.request.gpus.capability,
        at: short_at(ask, node),
        judged,
    }
}
