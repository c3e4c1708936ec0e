//! Changes that would make a replica fit.
//!
//! Owns each change, what it does to a wish and to a node, and how much it asks of people. Invariant: a remedy is told only
//! after the same questions were asked again with its changes made ([`find`]).

use std::collections::{BTreeMap, BTreeSet};

use umbel_contracts::deployment::of_engine;
use umbel_contracts::release::Release;
use umbel_contracts::selector::Term;
use umbel_wire::NodeId;

use super::candidate::{Candidate, Condition, Gpu, Runtime, Standing};
use super::request::Request;

pub(super) mod find;
pub(super) mod words;

/// Changes that together make one replica fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remedy {
    /// At least one.
    pub(crate) steps: Vec<Step>,
    /// On which nodes it then fits.
    pub(crate) nodes: Vec<NodeId>,
}

/// A change and the node for whose sake it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) node: NodeId,
    pub(crate) change: Change,
}

/// One thing that people, or time, can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Enable,
    /// A new credential for the host.
    Readmit,
    /// Its state is one in which waiting may be enough.
    BringOnline {
        state: &'static str,
    },
    CorrectSettings {
        version: u64,
    },
    Undrain,
    StopAvoiding,
    AddLabel {
        key: String,
        value: String,
    },
    /// Take these out of the selector.
    WidenSelector {
        terms: Vec<Term>,
    },
    UpdateAgent,
    Install {
        kind: String,
        version: Option<Release>,
    },
    /// `None`: whatever its fabric is called.
    AddFabricLabel {
        label: String,
        value: Option<String>,
    },
    UpdateDriver {
        to: Release,
    },
    /// Stop engines and end foreign processes.
    FreeGpus(Vec<Freed>),
    /// Turn MIG off.
    Undivide(Vec<Named>),
    /// Bring GPUs back that are lost or gone.
    Repair(Vec<Named>),
    FreeSpace {
        bytes: u64,
    },
    /// So many engines fewer, whichever.
    EndEngines {
        count: usize,
    },
    LowerGpuCount {
        from: u32,
        to: u32,
    },
    /// More GPUs, each with so much less of the same memory.
    RaiseGpuCount {
        from: u32,
        to: u32,
        memory_from: u64,
        memory_to: u64,
    },
    LowerGpuMemory {
        from: u64,
        to: u64,
    },
    AllowGpuNames {
        names: Vec<String>,
    },
    LowerCapability {
        from: Release,
        to: Release,
    },
    LowerNodes {
        from: u32,
        to: u32,
    },
}

/// A GPU to be freed, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) gpu: Named,
    /// The engine or replica that has it.
    pub(crate) holder: Option<String>,
    /// Of foreign processes that hold too much.
    pub(crate) foreign_bytes: u64,
    pub(crate) memory_bytes: u64,
}

/// Replicas of the site's deployments, each by its engine's name, in the order in which they would go if fewer were wanted.
pub(crate) type Stocks = BTreeMap<String, Vec<String>>;

/// What a change takes from another deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Takes {
    pub(crate) deployment: String,
    /// Replicas that hold what is needed.
    pub(crate) needed: usize,
    /// Replicas that go: just those where they are the ones that fewer replicas would end, else all of it.
    pub(crate) goes: usize,
    /// Replicas that it has.
    pub(crate) of: usize,
}

/// A GPU by its UUID and, for people, its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) uuid: String,
    pub(crate) index: u32,
}

impl Named {
    fn of(gpu: &Gpu) -> Self {
        Self { uuid: gpu.uuid.clone(), index: gpu.index }
    }
}

impl Change {
    /// It changes the deployment's document, and so holds on every node.
    pub(crate) const fn is_of_document(&self) -> bool {
        matches!(
            self,
            Self::WidenSelector { .. }
                | Self::LowerGpuCount { .. }
                | Self::RaiseGpuCount { .. }
                | Self::LowerGpuMemory { .. }
                | Self::AllowGpuNames { .. }
                | Self::LowerCapability { .. }
                | Self::LowerNodes { .. }
        )
    }

    /// What it takes from deployments whose replicas it ends.
    pub(crate) fn takes(&self, stocks: &Stocks) -> Vec<Takes> {
        let Self::FreeGpus(freed) = self else { return Vec::new() };
        let mut needed: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for holder in freed.iter().filter_map(|one| one.holder.as_deref()) {
            if let Some((deployment, _)) = of_engine(holder) {
                needed.entry(deployment).or_default().insert(holder);
            }
        }
        let takes = needed.into_iter().map(|(deployment, holders)| {
            let stock = stocks.get(deployment).map(Vec::as_slice).unwrap_or_default();
            let first: BTreeSet<&str> = stock.iter().take(holders.len()).map(String::as_str).collect();
            let of = stock.len().max(holders.len());
            let goes = if first == holders { holders.len() } else { of };
            Takes { deployment: deployment.to_owned(), needed: holders.len(), goes, of }
        });
        takes.collect()
    }

    /// How much it asks of people: a command before a visit to the host, a visit before another machine.
    pub(crate) fn effort(&self) -> u32 {
        match self {
            Self::Undrain | Self::StopAvoiding => 1,
            Self::BringOnline { state: "unknown" | "online" } | Self::AddLabel { .. } | Self::Enable => 2,
            Self::CorrectSettings { .. } | Self::WidenSelector { .. } => 4,
            Self::FreeSpace { .. } | Self::EndEngines { .. } | Self::AddFabricLabel { .. } => 5,
            Self::FreeGpus(freed) => freed
                .iter()
                .map(|one| u32::from(one.holder.is_some()) * 2 + u32::from(one.foreign_bytes > 0) * 3)
                .fold(4, u32::saturating_add),
            Self::LowerGpuCount { .. }
            | Self::RaiseGpuCount { .. }
            | Self::LowerGpuMemory { .. }
            | Self::AllowGpuNames { .. } => 8,
            Self::BringOnline { .. } | Self::UpdateAgent => 9,
            Self::Readmit | Self::Install { .. } | Self::UpdateDriver { .. } => 10,
            Self::Undivide(gpus) => u32::try_from(gpus.len()).unwrap_or(u32::MAX).saturating_add(9),
            Self::LowerCapability { .. } | Self::LowerNodes { .. } => 14,
            Self::Repair(gpus) => u32::try_from(gpus.len()).unwrap_or(u32::MAX).saturating_add(20),
        }
    }

    /// Makes the change, as far as placement sees it.
    pub(super) fn make(&self, request: &mut Request, node: &mut Candidate) {
        match self {
            Self::Enable | Self::Readmit | Self::BringOnline { .. } => node.standing = Standing::Here,
            Self::CorrectSettings { .. } => node.settings_refused = None,
            Self::Undrain => node.draining = false,
            Self::StopAvoiding => drop(request.avoid.remove(&node.id)),
            Self::AddLabel { key, value } => drop(node.labels.insert(key.clone(), value.clone())),
            Self::UpdateAgent => (node.loads, node.acquires) = (true, true),
            Self::Install { kind, version } => node.runtimes.push(Runtime {
                kind: kind.clone(),
                version: version.map_or_else(String::new, |version| version.to_string()),
            }),
            Self::AddFabricLabel { label, value } => {
                node.fabric.insert(label.clone(), value.clone().unwrap_or_default());
            }
            Self::UpdateDriver { to } => node.driver = Some(*to),
            Self::EndEngines { count } => {
                let ended: Vec<String> = node.engines.iter().take(*count).cloned().collect();
                node.engines.retain(|engine| !ended.contains(engine));
            }
            Self::FreeSpace { bytes } => {
                if let Some(room) = &mut node.room {
                    room.free_bytes = room.free_bytes.saturating_add(*bytes);
                }
            }
            Self::FreeGpus(freed) => {
                let uuids = freed.iter().map(|one| one.gpu.uuid.as_str());
                each(node, uuids, |gpu| (gpu.holder, gpu.foreign_bytes) = (None, 0));
            }
            Self::Undivide(gpus) | Self::Repair(gpus) => {
                let uuids = gpus.iter().map(|one| one.uuid.as_str());
                each(node, uuids, |gpu| gpu.condition = Condition::Ok);
            }
            _ => self.write(request),
        }
    }

    /// Makes a change of the document.
    fn write(&self, request: &mut Request) {
        match self {
            Self::WidenSelector { terms } => {
                let kept: Vec<Term> = request.terms().filter(|term| !terms.contains(term)).cloned().collect();
                request.selector = umbel_contracts::selector::Selector::of(kept);
            }
            Self::LowerGpuCount { to, .. } => request.gpus.count = *to,
            Self::RaiseGpuCount { to, memory_to, .. } => {
                (request.gpus.count, request.gpus.memory_bytes) = (*to, *memory_to);
            }
            Self::LowerGpuMemory { to, .. } => request.gpus.memory_bytes = *to,
            Self::AllowGpuNames { names } => request.gpus.names.extend(names.iter().cloned()),
            Self::LowerCapability { to, .. } => request.gpus.capability = Some(*to),
            Self::LowerNodes { to, .. } => request.nodes = *to,
            _ => {}
        }
    }
}

fn each<'a>(node: &mut Candidate, uuids: impl Iterator<Item = &'a str>, change: impl Fn(&mut Gpu)) {
    for uuid in uuids {
        node.gpus.iter_mut().filter(|gpu| gpu.uuid == uuid).for_each(&change);
    }
}

impl Remedy {
    /// Fewer changes before more, then less effort.
    pub(crate) fn cost(&self) -> (usize, u32) {
        let effort = self.steps.iter().map(|step| step.change.effort()).fold(0, u32::saturating_add);
        (self.steps.len(), effort)
    }

    /// Of what kinds its changes are: two remedies of the same kinds are one idea on two nodes.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.steps.iter().map(|step| step.change.word()).collect()
    }
}
