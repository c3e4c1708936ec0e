//! From the registry's nodes to candidates.
//!
//! Owns what of a node's reports counts for placement, and by whom a GPU is held: first by what the edge has given it to, then
//! by what the node declares on it, then by what the driver sees there. Invariant: a figure older than the snapshot tells is not used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use umbel_contracts::deployment::of_engine;
use umbel_contracts::proto::node::{Gpu as FoundGpu, GpuTelemetry, NodeInventory, NodeTelemetry};
use umbel_contracts::release::Release;
use umbel_wire::NodeId;
use umbel_wire::liveness::State;

use super::{Candidate, Condition, Gpu, Room, Runtime, Standing};
use crate::core::registry::Moment;
use crate::core::registry::abilities::{ArtifactRow, RuntimeRow};
use crate::core::registry::gpus::Absence;
use crate::core::registry::node::{Lifecycle, Node};
use crate::core::registry::snapshot::FIGURES_AGE;

/// The capability of an agent that loads deployments.
const LOADS: &str = "deployment.load.v1";
/// The capability of an agent that brings files.
const ACQUIRES: &str = "artifact.acquire.v1";
/// What downloads leave free on a node whose agent does not say: what its file says unless it says otherwise.
const RESERVE: u64 = 4 << 30;
/// Roots of a node's storage that hold no models.
const NOT_FOR_FILES: [&str; 2] = ["state", "quarantine"];

/// What the edge has given away already, whether or not the nodes say so yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// GPUs by UUID, each with the replica that has it.
    pub(crate) gpus: BTreeMap<String, String>,
    /// Replicas of each node, by their engines' names.
    pub(crate) engines: BTreeMap<NodeId, Vec<String>>,
    /// Files on their way to a node: their keys and what is still to come, in bytes.
    pub(crate) artifacts: BTreeMap<NodeId, Vec<(String, u64)>>,
}

/// Every node that is no tombstone, in the order given.
pub(crate) fn candidates(nodes: &[Arc<Node>], given: &Given, moment: Moment) -> Vec<Candidate> {
    let mut names = Names::default();
    let living = nodes.iter().filter(|node| !node.is_tombstone());
    living.map(|node| candidate(node, given, moment, &mut names)).collect()
}

/// The most that an engine of a deployment holds of one GPU now; `None`: none is seen on any.
pub(crate) fn measured(nodes: &[Arc<Node>], deployment: &str, moment: Moment) -> Option<u64> {
    let of_it = |engine: &str| of_engine(engine).is_some_and(|(of, _)| of == deployment);
    let runs = |node: &&Arc<Node>| node.report.engines.iter().any(|engine| of_it(&engine.name));
    let on_each = nodes.iter().filter(runs).filter_map(|node| {
        let gpus = fresh(node, moment)?.gpus;
        let current = gpus.iter().filter(|gpu| Duration::from_millis(gpu.age_ms.into()) <= FIGURES_AGE);
        current.flat_map(|gpu| &gpu.engines).filter(|one| of_it(&one.engine)).map(|one| one.bytes).max()
    });
    on_each.max().filter(|bytes| *bytes > 0)
}

/// Names of GPUs, each kept once.
#[derive(Debug, Default)]
struct Names(HashMap<String, Arc<str>>);

impl Names {
    fn of(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(name);
        self.0.insert(name.to_owned(), Arc::clone(&new));
        new
    }
}

fn candidate(node: &Node, given: &Given, moment: Moment, names: &mut Names) -> Candidate {
    let inventory = node.inventory();
    let telemetry = fresh(node, moment);
    let known = inventory.is_some();
    let mut inventory = inventory.unwrap_or_default();
    let found = std::mem::take(&mut inventory.gpus);
    let coming = given.artifacts.get(&node.id).map(Vec::as_slice).unwrap_or_default();
    let mut models = BTreeSet::new();
    let mut engines: BTreeSet<String> = given.engines.get(&node.id).into_iter().flatten().cloned().collect();
    for engine in &node.report.engines {
        models.insert(engine.model.clone());
        models.extend(engine.aliases.iter().cloned());
        engines.insert(engine.name.clone());
    }
    let used = telemetry.as_ref().map(|report| report.memory_used_bytes);
    let has = |capability: &str| node.capabilities.iter().any(|name| name == capability);
    Candidate {
        id: node.id,
        name: node.row.name.clone(),
        labels: node.all_labels(),
        models,
        standing: standing(node, moment),
        settings_refused: node.settings_refusal().map(|(version, why)| (version, why.to_owned())),
        eligible: node.row.eligible,
        draining: node.row.draining,
        loads: has(LOADS),
        acquires: has(ACQUIRES),
        engines,
        free_memory_bytes: used.filter(|_| known).map(|used| inventory.memory_bytes.saturating_sub(used)),
        runtimes: runtimes(node),
        inventory: known,
        driver: Release::found(&inventory.driver_version),
        gpus: gpus(node, found, telemetry.as_ref(), given, names),
        artifacts: artifacts(node).chain(coming.iter().map(|(key, _)| key.clone())).collect(),
        room: room(&inventory, telemetry.as_ref(), coming),
        fabric: inventory.fabric_labels.into_iter().collect(),
    }
}

fn standing(node: &Node, moment: Moment) -> Standing {
    match node.state() {
        "disabled" => return Standing::Disabled,
        "credential_revoked" => return Standing::NoCredential("credential_revoked"),
        "credential_expired" => return Standing::NoCredential("credential_expired"),
        _ => {}
    }
    let leaving = node.session.as_ref().is_some_and(|session| session.leaving);
    if node.connected() && !leaving {
        return Standing::Here;
    }
    match node.liveness {
        State::Online if node.row.lifecycle == Lifecycle::Enrolled => Standing::NotComplete,
        state => {
            let seen = node.report.last_seen_at_unix_ms;
            let since = (seen > 0).then(|| u64::try_from(moment.wall.saturating_sub(seen)).unwrap_or(0));
            Standing::Silent(state.name(), since)
        }
    }
}

fn runtimes(node: &Node) -> Vec<Runtime> {
    let one = |kept: &RuntimeRow| Runtime { kind: kept.kind.clone(), version: kept.engine_version.clone() };
    node.report.runtimes.iter().map(one).collect()
}

fn artifacts(node: &Node) -> impl Iterator<Item = String> {
    node.report.artifacts.iter().map(ArtifactRow::key)
}

/// The last telemetry, unless it is too old.
fn fresh(node: &Node, moment: Moment) -> Option<NodeTelemetry> {
    let kept = node.report.telemetry.as_ref()?;
    (kept.age(moment) <= FIGURES_AGE).then(|| kept.report())
}

/// The root with most room for files. Its roots are on one file system, so what is on its way takes room of each.
fn room(
    inventory: &NodeInventory,
    telemetry: Option<&NodeTelemetry>,
    coming: &[(String, u64)],
) -> Option<Room> {
    let figures = &telemetry?.storage;
    let coming = coming.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    let roots = inventory.storage.iter().filter(|root| !NOT_FOR_FILES.contains(&root.name.as_str()));
    let rooms = roots.filter_map(|root| {
        let free = figures.iter().find(|free| free.name == root.name)?;
        Some(Room {
            free_bytes: free.free_bytes.saturating_sub(coming),
            reserve_bytes: root.reserve_bytes.unwrap_or(RESERVE),
        })
    });
    rooms.max_by_key(|room| (room.usable_bytes(), room.free_bytes))
}

fn gpus(
    node: &Node,
    found: Vec<FoundGpu>,
    telemetry: Option<&NodeTelemetry>,
    given: &Given,
    names: &mut Names,
) -> Vec<Gpu> {
    let told = telemetry.map(|report| report.gpus.as_slice()).unwrap_or_default();
    let mut gpus: Vec<Gpu> = found
        .into_iter()
        .enumerate()
        .map(|(place, found)| {
            // Nearly always told of in the same order: UUIDs differ in their last bytes only, and there are ten thousands.
            let same = |gpu: &&GpuTelemetry| gpu.uuid == found.uuid;
            let figures = told.get(place).filter(same).or_else(|| told.iter().find(same));
            gpu(node, found, figures, given, names)
        })
        .collect();
    for absent in node.report.absent.iter().filter(|gpu| gpu.why == Absence::Missing) {
        if gpus.iter().any(|gpu| gpu.uuid == absent.uuid) {
            continue;
        }
        gpus.push(Gpu {
            uuid: absent.uuid.clone(),
            index: absent.index,
            name: names.of(&absent.name),
            memory_bytes: absent.memory_bytes,
            capability: None,
            condition: Condition::Missing,
            foreign_bytes: 0,
            holder: given.gpus.get(&absent.uuid).cloned(),
        });
    }
    gpus.sort_by(|a, b| a.index.cmp(&b.index).then_with(|| a.uuid.cmp(&b.uuid)));
    gpus
}

fn gpu(
    node: &Node,
    found: FoundGpu,
    figures: Option<&GpuTelemetry>,
    given: &Given,
    names: &mut Names,
) -> Gpu {
    let lost = found.lost || node.absent_gpu(&found.uuid).is_some();
    let condition = match (lost, found.mig_enabled) {
        (true, _) => Condition::Lost,
        (false, Some(true)) => Condition::Mig,
        (false, _) => Condition::Ok,
    };
    let told = figures.filter(|gpu| Duration::from_millis(gpu.age_ms.into()) <= FIGURES_AGE);
    let mine: u64 =
        told.map_or(0, |gpu| gpu.engines.iter().map(|one| one.bytes).fold(0, u64::saturating_add));
    let used = told.and_then(|gpu| gpu.memory_used_bytes).unwrap_or(0);
    // Where memory is the host's, what the driver calls used is everybody's.
    let foreign_bytes = if found.memory_is_host { 0 } else { used.saturating_sub(mine) };
    let named = || {
        let engines = node.report.engines.iter();
        engines.filter(|engine| engine.gpus.contains(&found.uuid)).map(|engine| engine.name.clone()).min()
    };
    let seen = || {
        let engines = told.map(|gpu| gpu.engines.as_slice()).unwrap_or_default();
        engines.iter().filter(|one| one.bytes > 0).map(|one| one.engine.clone()).min()
    };
    let holder = given.gpus.get(&found.uuid).cloned().or_else(named).or_else(seen);
    Gpu {
        index: found.index,
        name: names.of(&found.name),
        memory_bytes: found.memory_bytes,
        capability: Release::found(&found.compute_capability),
        condition,
        foreign_bytes,
        holder,
        uuid: found.uuid,
    }
}
