//! Why a replica fits or does not: of all nodes a funnel, of the nearest ones everything.
//!
//! Owns which nodes are told of and in which order. Invariants: each node is counted once, at its first obstacle; nodes that fit
//! come first, as they would be chosen, then those that lack least.

use std::collections::{BTreeMap, HashMap};

use umbel_contracts::objects::PlacementReason;
use umbel_wire::NodeId;

use super::candidate::{Candidate, Gpu, Room};
use super::check::{self, Ask};
use super::choose;
use super::obstacle::{GpuReason, Judged, Obstacle};
use super::remedy::{Remedy, find};
use super::request::Request;
use super::{Plan, remedy};

/// Nodes of which it is tried out what would make them fit: those that lack least by the look of it.
const TRIED: usize = 128;

/// What is known of one more replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub(crate) request: Request,
    /// Where it would go.
    pub(crate) plan: Option<Plan>,
    pub(crate) total: usize,
    /// Nodes without an obstacle.
    pub(crate) left: usize,
    /// Names of the nodes that left at each question, in the order of the questions.
    pub(crate) funnel: BTreeMap<PlacementReason, Vec<String>>,
    /// What is against the one node that left at a question.
    pub(crate) alone: BTreeMap<PlacementReason, String>,
    pub(crate) nodes: Vec<View>,
    /// Nodes that only the funnel tells of.
    pub(crate) left_off: usize,
    /// What would make it fit, the least first.
    pub(crate) remedies: Vec<Remedy>,
}

/// One node in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) obstacles: Vec<Obstacle>,
    pub(crate) favours: Vec<Favour>,
    /// Its engines get requests.
    pub(crate) eligible: bool,
    pub(crate) replicas: u32,
    pub(crate) gpus: Vec<Judged>,
    pub(crate) remedies: Vec<Remedy>,
}

/// Something that speaks for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Favour {
    /// So many of its GPUs fit, and more are not wanted.
    Gpus {
        fit: u32,
        all: u32,
    },
    Installed {
        kind: String,
        version: String,
    },
    /// The files are there, or on their way.
    Files,
    /// They fit.
    Space(Room),
    /// It has none of this deployment's replicas, and others do.
    Fresh,
}

/// Which nodes are wanted in full.
#[derive(Clone, Copy)]
pub(crate) struct Detail<'a> {
    pub(crate) most: usize,
    pub(crate) only: &'a dyn Fn(&NodeId) -> bool,
}

/// One node while it is looked at.
struct Looked<'a> {
    node: &'a Candidate,
    obstacles: Vec<Obstacle>,
    remedies: Vec<Remedy>,
}

/// The whole explanation, in full of chosen nodes.
pub(crate) fn explain_some(request: &Request, candidates: &[Candidate], detail: Detail<'_>) -> Explanation {
    let ask = Ask::new(request);
    let plan = choose::plan(&ask, candidates);
    let look = |node| Looked { node, obstacles: check::obstacles(&ask, node), remedies: Vec::new() };
    let mut looked: Vec<Looked<'_>> = candidates.iter().map(look).collect();
    if plan.is_none() {
        fabric_too_small(request, &mut looked);
    }
    let left = looked.iter().filter(|one| one.obstacles.is_empty()).count();
    let mut funnel: BTreeMap<PlacementReason, Vec<String>> = BTreeMap::new();
    for one in &looked {
        if let Some(first) = one.obstacles.first() {
            funnel.entry(first.reason()).or_default().push(one.node.name.clone());
        }
    }
    funnel.values_mut().for_each(|names| names.sort_unstable());
    let first = |one: &Looked<'_>| {
        let first = one.obstacles.first()?;
        let alone = funnel.get(&first.reason()).is_some_and(|names| names.len() == 1);
        alone.then(|| (first.reason(), first.sentence()))
    };
    let alone = looked.iter().filter_map(first).collect();
    sort(&ask, &mut looked);
    for one in looked.iter_mut().filter(|one| !one.obstacles.is_empty()).take(TRIED) {
        one.remedies = find::of_node(request, one.node, &one.obstacles);
    }
    nearest(&mut looked);
    let remedies = match plan {
        Some(_) => Vec::new(),
        None => find::of_all(request, candidates, looked.iter().flat_map(|one| &one.remedies)),
    };
    let nodes: Vec<View> = looked
        .into_iter()
        .filter(|one| (detail.only)(&one.node.id))
        .take(detail.most)
        .map(|one| view(&ask, one))
        .collect();
    let total = candidates.len();
    Explanation {
        request: request.clone(),
        plan,
        total,
        left,
        funnel,
        alone,
        left_off: total - nodes.len(),
        nodes,
        remedies,
    }
}

/// At how many nodes each question ends, without a word more: cheap.
pub(crate) fn funnel(request: &Request, candidates: &[Candidate]) -> BTreeMap<PlacementReason, u32> {
    let ask = Ask::new(request);
    let mut counts = BTreeMap::new();
    for node in candidates {
        if let Some(reason) = check::first_reason(&ask, node) {
            *counts.entry(reason).or_default() += 1;
        }
    }
    counts
}

/// A funnel in one sentence: `0 of 5 nodes fit: not online 1, draining 1, GPUs held by engines 3`.
pub(crate) fn sentence(funnel: &BTreeMap<PlacementReason, u32>, total: usize) -> String {
    if total == 0 {
        return "the site has no node".to_owned();
    }
    let out: u32 = funnel.values().sum();
    let left = total.saturating_sub(usize::try_from(out).unwrap_or(usize::MAX));
    let parts: Vec<String> =
        funnel.iter().map(|(reason, count)| format!("{} {count}", reason.words())).collect();
    let nodes = if total == 1 { "node fits" } else { "nodes fit" };
    match parts.len() {
        0 => format!("{left} of {total} {nodes}"),
        _ => format!("{left} of {total} {nodes}: {}", parts.join(", ")),
    }
}

/// Where single nodes would do and no fabric has enough of them, that is against each of them.
fn fabric_too_small(request: &Request, looked: &mut [Looked<'_>]) {
    if request.shards() == 1 {
        return;
    }
    let mut fitting: HashMap<&str, u32> = HashMap::new();
    let fabric = |node: &'_ Candidate| node.fabric.get(&request.fabric_label).cloned();
    let values: Vec<Option<String>> =
        looked.iter().map(|one| fabric(one.node).filter(|_| one.obstacles.is_empty())).collect();
    for value in values.iter().flatten() {
        *fitting.entry(value).or_default() += 1;
    }
    for (one, value) in looked.iter_mut().zip(&values) {
        if let Some(value) = value {
            one.obstacles.push(Obstacle::FabricTooSmall {
                label: request.fabric_label.clone(),
                value: value.clone(),
                fitting: fitting.get(value.as_str()).copied().unwrap_or(0),
                wanted: request.nodes,
            });
        }
    }
}

/// Nodes that fit as they would be chosen, then the others by the look of it.
fn sort(ask: &Ask<'_>, looked: &mut [Looked<'_>]) {
    let fitting = looked.iter().filter(|one| one.obstacles.is_empty()).map(|one| one.node);
    let order = choose::in_order(ask, fitting);
    let places: HashMap<NodeId, usize> = order.iter().enumerate().map(|(at, node)| (node.id, at)).collect();
    looked.sort_by_cached_key(|one| {
        let place = places.get(&one.node.id).copied().unwrap_or(usize::MAX);
        (place, look_of(&one.obstacles), one.node.name.clone(), one.node.id)
    });
}

/// How far off a node seems: how many obstacles, how grave, how many GPUs and how much memory short.
fn look_of(obstacles: &[Obstacle]) -> (usize, u32, u64) {
    let grave = |obstacle: &Obstacle| match obstacle {
        Obstacle::Draining | Obstacle::Avoided { .. } => 1,
        Obstacle::FabricTooSmall { .. } => 2,
        Obstacle::NotSelected { .. } | Obstacle::SettingsRefused { .. } | Obstacle::FabricMissing { .. } => 3,
        Obstacle::Space { .. } | Obstacle::Full { .. } => 4,
        Obstacle::Gpus(shortage) => match shortage.at {
            Some(GpuReason::Held | GpuReason::Foreign) => {
                5_u32.saturating_add(shortage.wanted.saturating_sub(shortage.usable))
            }
            Some(_) => 12,
            None if shortage.usable > 0 => 14,
            None => 40,
        },
        _ => 9,
    };
    let short = obstacles.iter().flat_map(|obstacle| match obstacle {
        Obstacle::Gpus(shortage) => Some(shortage.judged.iter().map(|one| shortage.short_bytes(&one.gpu))),
        _ => None,
    });
    let graves = obstacles.iter().map(grave).fold(0, u32::saturating_add);
    (obstacles.len(), graves, short.flatten().fold(0, u64::saturating_add))
}

/// The order in which they are told of, once it is known what would help.
fn nearest(looked: &mut [Looked<'_>]) {
    // Stable: equal ones stay in the order of their looks.
    looked.sort_by_key(|one| match (one.obstacles.is_empty(), one.remedies.first()) {
        (true, _) => (0, (0, 0)),
        (false, Some(remedy)) => (1, remedy.cost()),
        (false, None) => (2, (0, 0)),
    });
}

fn view(ask: &Ask<'_>, one: Looked<'_>) -> View {
    let Looked { node, obstacles, remedies } = one;
    let judged = |gpu: &Gpu| Judged { gpu: gpu.clone(), against: check::judge(ask, gpu) };
    let gpus = match ask.request.gpus.count {
        0 => Vec::new(),
        _ => node.gpus.iter().map(judged).collect(),
    };
    View {
        id: node.id,
        name: node.name.clone(),
        favours: favours(ask, node, &gpus),
        eligible: node.eligible,
        replicas: ask.request.placed.get(&node.id).copied().unwrap_or(0),
        obstacles,
        gpus,
        remedies,
    }
}

fn favours(ask: &Ask<'_>, node: &Candidate, gpus: &[Judged]) -> Vec<Favour> {
    let request = ask.request;
    let mut favours = Vec::new();
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let fit = number(gpus.iter().filter(|one| one.against.is_none()).count());
    if request.gpus.count > 0 && fit >= request.gpus.count {
        favours.push(Favour::Gpus { fit, all: number(gpus.len()) });
    }
    if let Some(engine) = &request.engine {
        let newest = node
            .runtimes
            .iter()
            .filter(|one| one.kind == engine.kind)
            .max_by_key(|one| umbel_contracts::release::Release::found(&one.version));
        let enough = newest.filter(|one| check::new_enough(&one.version, engine.version));
        favours.extend(
            enough.map(|one| Favour::Installed { kind: one.kind.clone(), version: one.version.clone() }),
        );
    }
    if let Some(artifact) = &request.artifact {
        if check::has_files(ask, node) {
            favours.push(Favour::Files);
        } else if let Some(room) = node.room {
            favours.extend((room.usable_bytes() >= artifact.bytes).then_some(Favour::Space(room)));
        }
    }
    if !request.placed.is_empty() && !request.placed.contains_key(&node.id) {
        favours.push(Favour::Fresh);
    }
    favours
}

impl Favour {
    /// For people.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Gpus { fit, all } => format!("{fit} of {all} GPUs fit"),
            Self::Installed { kind, version } if version.is_empty() => format!("{kind} is installed"),
            Self::Installed { kind, version } => format!("{kind} {version} is installed"),
            Self::Files => "the files are there".to_owned(),
            Self::Space(room) => {
                let [free, reserve] = [room.free_bytes, room.reserve_bytes].map(remedy::words::bytes);
                format!("{free} free for the files, {reserve} of it to stay so")
            }
            Self::Fresh => "it has no replica yet".to_owned(),
        }
    }
}
