//! Which of the nodes that fit, and which of their GPUs.
//!
//! Owns the order of preference: spread goes where least is, pack where most is, and both where requests go before where none do
//! yet. Invariants: shards of one replica go to different nodes with one value of the fabric label;
//! GPUs of one kind are preferred to mixed ones, and small ones to large ones, which others may need; ties go by name and id,
//! so that the order of the input decides nothing.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::candidate::{Candidate, Gpu};
use super::check::{self, Ask};
use super::fleet::Load;
use super::request::Strategy;
use super::{Plan, Shard};

/// What decides between nodes that fit: less is better, from the first figure to the last.
type Figures = [u64; 8];

/// How well a node suits, best first.
#[derive(Clone, Copy, Debug)]
struct Rank<'a> {
    node: &'a Candidate,
    figures: Figures,
}

impl Rank<'_> {
    fn before(&self, other: &Self) -> Ordering {
        let (a, b) = (self, other);
        let names = || a.node.name.cmp(&b.node.name).then_with(|| a.node.id.cmp(&b.node.id));
        a.figures.cmp(&b.figures).then_with(names)
    }
}

/// The best plan for one replica; `None` if it fits nowhere.
pub(super) fn plan(ask: &Ask<'_>, candidates: &[Candidate]) -> Option<Plan> {
    plan_among(ask, candidates.iter().map(|node| (node, Load::of(node))))
}

/// The same, of nodes whose loads are known.
pub(super) fn plan_among<'a>(
    ask: &Ask<'_>,
    nodes: impl Iterator<Item = (&'a Candidate, Load)>,
) -> Option<Plan> {
    let chosen = match ask.request.shards() {
        1 => vec![best(ask, nodes)?],
        wanted => {
            let fitting = nodes.filter(|(node, _)| check::fits(ask, node));
            best_group(ask, fitting.map(|(node, load)| rank(ask, node, &load)), wanted)?
        }
    };
    Some(Plan { shards: chosen.into_iter().map(|one| shard(ask, one.node)).collect() })
}

/// The best node that fits. Whether it fits costs more than how well it would suit: it is asked only of nodes that are better
/// than the best so far.
fn best<'a>(ask: &Ask<'_>, nodes: impl Iterator<Item = (&'a Candidate, Load)>) -> Option<Rank<'a>> {
    let mut best: Option<Rank<'a>> = None;
    for (node, load) in nodes {
        if !load.may_fit(ask.request) {
            continue;
        }
        let one = rank(ask, node, &load);
        if best.is_none_or(|best| one.before(&best) == Ordering::Less) && check::fits(ask, node) {
            best = Some(one);
        }
    }
    best
}

/// The nodes that fit, best first, as a plan for one node would choose among them.
pub(super) fn in_order<'a>(
    ask: &Ask<'_>,
    fitting: impl Iterator<Item = &'a Candidate>,
) -> Vec<&'a Candidate> {
    let mut ranked: Vec<Rank<'a>> = fitting.map(|node| rank(ask, node, &Load::of(node))).collect();
    ranked.sort_by(Rank::before);
    ranked.into_iter().map(|one| one.node).collect()
}

fn rank<'a>(ask: &Ask<'_>, node: &'a Candidate, load: &Load) -> Rank<'a> {
    let placed = &ask.request.placed;
    let own = if placed.is_empty() { 0 } else { placed.get(&node.id).copied().unwrap_or(0) };
    let missing = u64::from(ask.request.artifact.is_some() && !(load.files && check::has_files(ask, node)));
    // Whoever asks for no GPU is not drawn to them, nor kept away.
    let asks = ask.request.gpus.count > 0;
    let (idle, smallest) = if asks { (load.idle, load.smallest) } else { (0, u64::MAX) };
    // What is placed where no requests go serves nobody yet.
    let waits = u64::from(load.waits);
    let engines = match ask.request.displaces.len() {
        0 => load.engines,
        _ => u64::try_from(check::staying(ask, node)).unwrap_or(u64::MAX),
    };
    let memory = load.free_memory;
    let figures = match ask.request.strategy {
        Strategy::Spread => {
            [waits, u64::from(own), missing, smallest, u64::MAX - idle, engines, u64::MAX - memory, 0]
        }
        Strategy::Pack => {
            let used = own > 0 || if asks { load.held } else { engines > 0 };
            let own = u64::from(u32::MAX - own);
            [waits, u64::from(!used), idle, missing, smallest, own, u64::MAX - engines, memory]
        }
    };
    Rank { node, figures }
}

/// The best of the groups of nodes that share a value of the fabric label and are enough.
fn best_group<'a>(
    ask: &Ask<'_>,
    ranked: impl Iterator<Item = Rank<'a>>,
    wanted: usize,
) -> Option<Vec<Rank<'a>>> {
    let mut groups: BTreeMap<&str, Vec<Rank<'a>>> = BTreeMap::new();
    for one in ranked {
        if let Some(value) = one.node.fabric.get(&ask.request.fabric_label) {
            groups.entry(value).or_default().push(one);
        }
    }
    let enough = groups.into_values().filter(|group| group.len() >= wanted);
    let ranked = enough.map(|mut group| {
        // A larger fabric stays whole where a smaller one will do.
        let size = group.len();
        group.sort_by(Rank::before);
        group.truncate(wanted);
        let worst = group.last().map_or([u64::MAX; 8], |one| one.figures);
        ((worst, size), group)
    });
    // The first of equal ones, in the order of the label's values.
    ranked.min_by_key(|(key, _): &((Figures, usize), _)| *key).map(|(_, group)| group)
}

fn shard(ask: &Ask<'_>, node: &Candidate) -> Shard {
    let gpus = pick(check::free(ask, node), ask.request.count());
    Shard {
        node: node.id,
        gpus: gpus.into_iter().map(|gpu| gpu.uuid.clone()).collect(),
        acquire: !check::has_files(ask, node),
    }
}

/// Of the GPUs that will do, so many: of one kind if there are enough of any.
pub(super) fn pick(mut free: Vec<&Gpu>, count: usize) -> Vec<&Gpu> {
    free.sort_by(|a, b| {
        let kind = a.memory_bytes.cmp(&b.memory_bytes).then_with(|| a.name.cmp(&b.name));
        kind.then_with(|| a.index.cmp(&b.index)).then_with(|| a.uuid.cmp(&b.uuid))
    });
    let alike = |a: &&Gpu, b: &&Gpu| a.memory_bytes == b.memory_bytes && a.name == b.name;
    let of_one_kind = free.chunk_by(alike).find(|kind| kind.len() >= count).map(<[&Gpu]>::to_vec);
    let mut chosen = of_one_kind.unwrap_or(free);
    chosen.truncate(count);
    chosen.sort_by(|a, b| a.index.cmp(&b.index).then_with(|| a.uuid.cmp(&b.uuid)));
    chosen
}
