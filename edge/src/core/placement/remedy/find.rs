//! Which changes would make a replica fit.
//!
//! Owns the search: of one node what its obstacles ask for, with the ways there are to more GPUs; of several nodes that share a
//! fabric the ones that lack least. Invariant: what is returned was tried.

use std::collections::BTreeMap;

use umbel_contracts::deployment::GPUS_MAX;
use umbel_contracts::selector::Term;
use umbel_contracts::settings::ENGINES_MAX;
use umbel_wire::NodeId;

use super::super::candidate::{Candidate, Condition, Gpu, Standing};
use super::super::check::{self, Ask, FOREIGN_TOLERATED};
use super::super::choose;
use super::super::obstacle::{GpuReason, Obstacle, Shortage};
use super::super::request::Request;
use super::{Change, Freed, Named, Remedy, Step};

/// Remedies that are told of one node, and of all together.
pub(in super::super) const REMEDIES: usize = 3;
/// Memory is asked for in steps of this, downwards.
const STEP: u64 = 1 << 20;
/// Into how many times as many parts a model is divided at most.
const PARTS: [u32; 3] = [2, 4, 8];
/// Fabrics of which the way to enough nodes is tried: those that lack least.
const FABRICS_TRIED: usize = 8;

/// What would make one node fit, the least first; at most [`REMEDIES`].
pub(in super::super) fn of_node(request: &Request, node: &Candidate, obstacles: &[Obstacle]) -> Vec<Remedy> {
    // Each obstacle has its alternatives; one of each is needed.
    let mut ways: Vec<Vec<Change>> = vec![Vec::new()];
    for obstacle in obstacles {
        let alternatives = against(request, node, obstacle);
        let longer = ways.iter().flat_map(|way| {
            alternatives.iter().map(move |more| way.iter().chain(more).cloned().collect::<Vec<_>>())
        });
        ways = longer.collect();
    }
    let mut remedies: Vec<Remedy> = ways
        .into_iter()
        .filter(|changes| !changes.is_empty() && works(request, node, changes))
        .map(|changes| Remedy {
            nodes: vec![node.id],
            steps: changes.into_iter().map(|change| Step { node: node.id, change }).collect(),
        })
        .collect();
    // Stable: what costs the same stays in the order of the alternatives.
    remedies.sort_by_key(Remedy::cost);
    remedies.truncate(REMEDIES);
    remedies
}

/// Whether the node fits once the changes are made.
fn works(request: &Request, node: &Candidate, changes: &[Change]) -> bool {
    let (mut request, mut node) = (request.clone(), node.clone());
    for change in changes {
        change.make(&mut request, &mut node);
    }
    check::fits(&Ask::new(&request), &node)
}

/// The ways to take one obstacle away, each a list of changes. None: nobody knows one.
fn against(request: &Request, node: &Candidate, obstacle: &Obstacle) -> Vec<Vec<Change>> {
    let one = |change: Change| vec![vec![change]];
    match obstacle {
        Obstacle::Away(Standing::Disabled) => one(Change::Enable),
        Obstacle::Away(Standing::NoCredential(_)) => one(Change::Readmit),
        Obstacle::Away(Standing::Silent(state, _)) => one(Change::BringOnline { state }),
        Obstacle::Away(_) => one(Change::BringOnline { state: "online" }),
        Obstacle::SettingsRefused { version, .. } => one(Change::CorrectSettings { version: *version }),
        Obstacle::Draining => one(Change::Undrain),
        Obstacle::Avoided { .. } => one(Change::StopAvoiding),
        Obstacle::NotSelected { terms } => select(terms),
        Obstacle::AgentTooOld { .. } => one(Change::UpdateAgent),
        Obstacle::EngineMissing { wanted, .. } => one(Change::Install {
            kind: wanted.clone(),
            version: request.engine.as_ref().and_then(|engine| engine.version),
        }),
        Obstacle::EngineTooOld { kind, wanted, .. } => {
            one(Change::Install { kind: kind.clone(), version: Some(*wanted) })
        }
        Obstacle::FabricMissing { label } => {
            one(Change::AddFabricLabel { label: label.clone(), value: None })
        }
        Obstacle::Driver { wanted, .. } => one(Change::UpdateDriver { to: *wanted }),
        Obstacle::Gpus(shortage) => gpus(request, node, shortage),
        Obstacle::Full { engines } => {
            one(Change::EndEngines { count: (engines + 1).saturating_sub(ENGINES_MAX) })
        }
        Obstacle::Space { bytes, room } => {
            let wanted = bytes.saturating_add(room.reserve_bytes);
            one(Change::FreeSpace { bytes: wanted.saturating_sub(room.free_bytes) })
        }
        Obstacle::NoInventory | Obstacle::FabricTooSmall { .. } => Vec::new(),
    }
}

fn select(terms: &[Term]) -> Vec<Vec<Change>> {
    let label = |term: &Term| match term {
        Term::Label { key, value } => Some(Change::AddLabel { key: key.clone(), value: value.clone() }),
        _ => None,
    };
    let labels: Option<Vec<Change>> = terms.iter().map(label).collect();
    labels.into_iter().chain([vec![Change::WidenSelector { terms: terms.to_vec() }]]).collect()
}

/// The ways to enough GPUs of one node.
fn gpus(request: &Request, node: &Candidate, shortage: &Shortage) -> Vec<Vec<Change>> {
    let need = &request.gpus;
    let mut ways = vec![];
    ways.extend(more_gpus(request, node, shortage));
    if shortage.usable > 0 && weights_fit(request, shortage.usable, request.nodes, need.memory_bytes) {
        ways.push(vec![Change::LowerGpuCount { from: need.count, to: shortage.usable }]);
    }
    ways.extend(smaller_parts(request, node, shortage));
    ways.extend(
        less_memory(request, shortage).map(|to| vec![Change::LowerGpuMemory { from: need.memory_bytes, to }]),
    );
    let with = |reason: GpuReason| {
        shortage.judged.iter().filter(move |one| one.against == Some(reason)).map(|one| &one.gpu)
    };
    let mut names: Vec<String> = with(GpuReason::Name).map(|gpu| gpu.name.to_string()).collect();
    names.sort_unstable();
    names.dedup();
    if !names.is_empty() {
        ways.push(vec![Change::AllowGpuNames { names }]);
    }
    if let Some(from) = need.capability {
        let mut found: Vec<_> = with(GpuReason::Capability).filter_map(|gpu| gpu.capability).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        let lacking = usize::try_from(need.count.saturating_sub(shortage.usable)).unwrap_or(usize::MAX);
        if let Some(to) = lacking.checked_sub(1).and_then(|last| found.get(last)) {
            ways.push(vec![Change::LowerCapability { from, to: *to }]);
        }
    }
    ways
}

/// Frees GPUs, turns MIG off and repairs, where that is enough: the least of it.
fn more_gpus(request: &Request, node: &Candidate, shortage: &Shortage) -> Option<Vec<Change>> {
    let need = &request.gpus;
    let held =
        |gpu: &Gpu| gpu.holder.as_deref().filter(|holder| !request.displaces(holder)).map(str::to_owned);
    // GPUs each holder has here: ending one that has many ends fewer.
    let mut holds: BTreeMap<&str, usize> = BTreeMap::new();
    for gpu in &node.gpus {
        *holds.entry(gpu.holder.as_deref().unwrap_or_default()).or_default() += 1;
    }
    let wanted = request.count();
    let lacking = wanted.saturating_sub(usize::try_from(shortage.usable).unwrap_or(usize::MAX));
    // To end one of its own replicas for the sake of another helps nobody.
    let own = |gpu: &Gpu| {
        let of = gpu.holder.as_deref().and_then(umbel_contracts::deployment::of_engine);
        of.is_some_and(|(deployment, _)| deployment == request.deployment) && held(gpu).is_some()
    };
    let possible = shortage.judged.iter().filter(|one| {
        let kind = matches!(one.against, Some(GpuReason::Name | GpuReason::Capability));
        !kind && !own(&one.gpu) && one.against.is_some() && one.gpu.memory_bytes >= need.memory_bytes
    });
    let mut possible: Vec<(&Gpu, (u32, bool, usize))> = possible
        .map(|one| {
            let gpu = &one.gpu;
            let foreign = over(need.memory_bytes, gpu) > 0;
            let broken = match gpu.condition {
                Condition::Ok => 0,
                Condition::Mig => 9,
                Condition::Lost | Condition::Missing => 20,
            };
            let of_holder = held(gpu).and_then(|holder| holds.get(holder.as_str()).copied()).unwrap_or(0);
            // A holder with just enough first, else the ones with most.
            let surplus = of_holder.checked_sub(lacking).unwrap_or(usize::MAX - of_holder);
            (gpu, (broken + u32::from(foreign), of_holder < lacking, surplus))
        })
        .collect();
    possible.sort_by(|(a, cost), (b, other)| {
        let holders = || a.holder.cmp(&b.holder).then_with(|| a.index.cmp(&b.index));
        cost.cmp(other).then_with(holders).then_with(|| a.uuid.cmp(&b.uuid))
    });
    let chosen: Vec<&Gpu> = possible.into_iter().take(lacking).map(|(gpu, _)| gpu).collect();
    if chosen.len() < lacking {
        return None;
    }
    let with = |wanted: fn(Condition) -> bool| -> Vec<Named> {
        chosen.iter().filter(|gpu| wanted(gpu.condition)).map(|gpu| Named::of(gpu)).collect()
    };
    let freed: Vec<Freed> = chosen
        .iter()
        .filter(|gpu| held(gpu).is_some() || over(need.memory_bytes, gpu) > 0)
        .map(|gpu| Freed {
            gpu: Named::of(gpu),
            holder: held(gpu),
            foreign_bytes: over(need.memory_bytes, gpu),
            memory_bytes: gpu.memory_bytes,
        })
        .collect();
    let divided = with(|condition| condition == Condition::Mig);
    let broken = with(|condition| matches!(condition, Condition::Lost | Condition::Missing));
    let mut changes = Vec::new();
    changes.extend((!freed.is_empty()).then_some(Change::FreeGpus(freed)));
    changes.extend((!divided.is_empty()).then_some(Change::Undivide(divided)));
    changes.extend((!broken.is_empty()).then_some(Change::Repair(broken)));
    Some(changes)
}

/// What foreign processes hold of a GPU, if that is too much for what is wanted of it.
fn over(wanted: u64, gpu: &Gpu) -> u64 {
    let too_much = match wanted {
        0 => gpu.foreign_bytes > FOREIGN_TOLERATED,
        wanted => gpu.available_bytes() < wanted,
    };
    if too_much { gpu.foreign_bytes } else { 0 }
}

/// The most memory that enough GPUs have free now.
fn less_memory(request: &Request, shortage: &Shortage) -> Option<u64> {
    let short = |reason: GpuReason| matches!(reason, GpuReason::Size | GpuReason::Foreign);
    let free = |gpu: &Gpu| gpu.holder.as_deref().is_none_or(|holder| request.displaces(holder));
    let mut available: Vec<u64> = shortage
        .judged
        .iter()
        .filter(|one| one.against.is_none_or(short) && free(&one.gpu))
        .map(|one| one.gpu.available_bytes())
        .collect();
    available.sort_unstable_by(|a, b| b.cmp(a));
    let last = request.count().checked_sub(1)?;
    let to = available.get(last)? / STEP * STEP;
    let less = to > 0 && (request.gpus.memory_bytes == 0 || to < request.gpus.memory_bytes);
    (less && weights_fit(request, request.gpus.count, request.nodes, to)).then_some(to)
}

/// Whether the weights fit into so many GPUs on so many nodes with so much memory each, as far as that is known; 0: whatever they
/// have.
fn weights_fit(request: &Request, gpus: u32, nodes: u32, memory_bytes: u64) -> bool {
    let each = request.weights_on_each(gpus, nodes);
    memory_bytes == 0 || each.is_none_or(|each| each < memory_bytes)
}

/// The same memory in more GPUs, where these are too small and the engine divides the model over what it gets: with GPUs freed
/// for it, if it takes that.
fn smaller_parts(request: &Request, node: &Candidate, shortage: &Shortage) -> Option<Vec<Change>> {
    let (from, memory_from) = (request.gpus.count, request.gpus.memory_bytes);
    let too_small = matches!(shortage.at, Some(GpuReason::Size | GpuReason::Foreign));
    if !too_small || !request.memory.divides || from == 0 || memory_from == 0 {
        return None;
    }
    // Layers and heads are divided by powers of two more readily than by others.
    PARTS.into_iter().find_map(|parts| {
        let to = from.checked_mul(parts).filter(|to| *to <= GPUS_MAX)?;
        let memory_to = memory_from.div_ceil(parts.into()).div_ceil(STEP).saturating_mul(STEP);
        let change = Change::RaiseGpuCount { from, to, memory_from, memory_to };
        let mut raised = request.clone();
        (raised.gpus.count, raised.gpus.memory_bytes) = (to, memory_to);
        let shortage = check::shortage(&Ask::new(&raised), node);
        match shortage.usable >= to {
            true => Some(vec![change]),
            false => Some([vec![change], more_gpus(&raised, node, &shortage)?].concat()),
        }
    })
}

/// What would make it fit over all nodes: one of each kind, the least first; at most [`REMEDIES`].
pub(in super::super) fn of_all<'a>(
    request: &Request,
    candidates: &[Candidate],
    each: impl Iterator<Item = &'a Remedy>,
) -> Vec<Remedy> {
    let mut all: Vec<Remedy> = match request.shards() {
        1 => each.cloned().collect(),
        wanted => of_fabrics(request, candidates, &each.collect::<Vec<_>>(), wanted),
    };
    all.sort_by_key(Remedy::cost);
    let mut told: Vec<Remedy> = Vec::new();
    for remedy in all {
        if told.len() == REMEDIES {
            break;
        }
        if told.iter().all(|known| known.kinds() != remedy.kinds()) {
            told.push(remedy);
        }
    }
    told
}

/// For a replica of several nodes: in each fabric the nodes that lack least, or fewer nodes.
fn of_fabrics(request: &Request, candidates: &[Candidate], each: &[&Remedy], wanted: usize) -> Vec<Remedy> {
    let ask = Ask::new(request);
    let mut groups: BTreeMap<&str, (usize, Vec<&Candidate>)> = BTreeMap::new();
    let mut without: Vec<&Candidate> = Vec::new();
    let mut ordered: Vec<&Candidate> = candidates.iter().collect();
    ordered.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| a.id.cmp(&b.id)));
    for node in &ordered {
        let Some(value) = node.fabric.get(&request.fabric_label) else {
            without.push(node);
            continue;
        };
        let (fitting, others) = groups.entry(value).or_default();
        if check::fits(&ask, node) {
            *fitting += 1;
        } else {
            others.push(node);
        }
    }
    let most = groups.values().map(|(fitting, _)| *fitting).max().unwrap_or(0);
    let mut tried: Vec<(&str, Remedy)> = groups
        .iter()
        .filter_map(|(value, (fitting, others))| {
            let lacking = wanted.checked_sub(*fitting)?;
            let mut best: Vec<&Remedy> =
                others.iter().chain(&without).filter_map(|node| least(each, node.id)).collect();
            best.sort_by_key(|remedy| remedy.cost());
            best.truncate(lacking);
            (best.len() == lacking).then(|| (*value, joined(value, &best)))
        })
        .collect();
    tried.sort_by_key(|(_, remedy)| remedy.cost());
    tried.truncate(FABRICS_TRIED);
    let works = |(value, remedy): (&str, Remedy)| {
        let of_it = |node: &&Candidate| {
            node.fabric.get(&request.fabric_label).is_some_and(|its| its == value)
                || remedy.nodes.contains(&node.id)
        };
        let group: Vec<Candidate> = candidates.iter().filter(of_it).cloned().collect();
        whole_works(request, group, &remedy).then_some(remedy)
    };
    let mut remedies: Vec<Remedy> = tried.into_iter().filter_map(works).collect();
    let fits = |to: &u32| weights_fit(request, request.gpus.count, *to, request.gpus.memory_bytes);
    if let Some(to) = u32::try_from(most).ok().filter(|to| *to > 0).filter(fits)
        && let Some(node) = ordered.iter().find(|node| check::fits(&ask, node))
    {
        let change = Change::LowerNodes { from: request.nodes, to };
        remedies.push(Remedy { nodes: Vec::new(), steps: vec![Step { node: node.id, change }] });
    }
    remedies
}

/// The least of a node's remedies that changes nothing of the document, else the least.
fn least<'a>(each: &[&'a Remedy], node: NodeId) -> Option<&'a Remedy> {
    let own = || each.iter().filter(|remedy| remedy.nodes == [node]);
    let local = own().find(|remedy| remedy.steps.iter().all(|step| !step.change.is_of_document()));
    local.or_else(|| own().next()).copied()
}

fn joined(value: &str, remedies: &[&Remedy]) -> Remedy {
    let mut steps: Vec<Step> = Vec::new();
    for step in remedies.iter().flat_map(|remedy| &remedy.steps) {
        let mut step = step.clone();
        if let Change::AddFabricLabel { value: unnamed, .. } = &mut step.change {
            *unnamed = Some(value.to_owned());
        }
        let same = |known: &Step| known.change.is_of_document() && known.change == step.change;
        if !steps.iter().any(same) {
            steps.push(step);
        }
    }
    Remedy { nodes: remedies.iter().flat_map(|remedy| remedy.nodes.clone()).collect(), steps }
}

/// Whether there is a plan once all its changes are made.
pub(in super::super) fn whole_works(
    request: &Request,
    mut candidates: Vec<Candidate>,
    remedy: &Remedy,
) -> bool {
    let mut request = request.clone();
    for step in &remedy.steps {
        if let Some(node) = candidates.iter_mut().find(|node| node.id == step.node) {
            step.change.make(&mut request, node);
        }
    }
    choose::plan(&Ask::new(&request), &candidates).is_some()
}
