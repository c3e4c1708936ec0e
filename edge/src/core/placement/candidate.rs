//! The nodes of a site as placement sees them.
//!
//! Owns that reading: what a node has, what of it is held, and by whom. Invariants: tombstones are no candidates; a figure that
//! is too old counts as not known, and what is not known is held against nobody but where the wish depends on it; what the
//! registry's own words say of a node is not judged anew here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use umbel_contracts::release::Release;
use umbel_wire::NodeId;

mod registry;

pub(crate) use registry::{Given, candidates, measured};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) id: NodeId,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Labels of its inventory: nodes with an equal one can hold a replica together.
    pub(crate) fabric: BTreeMap<String, String>,
    /// Models and aliases that it serves, for selectors.
    pub(crate) models: BTreeSet<String>,
    pub(crate) standing: Standing,
    /// Which version of its settings it refused, and why.
    pub(crate) settings_refused: Option<(u64, String)>,
    /// Its engines get requests; if not, whatever is placed there waits for somebody to say so.
    pub(crate) eligible: bool,
    pub(crate) draining: bool,
    /// Its agent knows how to load a deployment.
    pub(crate) loads: bool,
    /// Its agent knows how to bring files.
    pub(crate) acquires: bool,
    /// Engines that it has or is about to have, by name: its own and those of all deployments.
    pub(crate) engines: BTreeSet<String>,
    /// The host's memory that nobody uses; `None`: it does not say.
    pub(crate) free_memory_bytes: Option<u64>,
    /// Engines that it can run.
    pub(crate) runtimes: Vec<Runtime>,
    /// It has said what hardware it has.
    pub(crate) inventory: bool,
    pub(crate) driver: Option<Release>,
    pub(crate) gpus: Vec<Gpu>,
    /// Files that are on its disk, or on their way there: by their [`key`](umbel_contracts::artifact::key).
    pub(crate) artifacts: BTreeSet<String>,
    /// Where files go, the root with most room; `None`: it does not say.
    pub(crate) room: Option<Room>,
}

/// Room for files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Free, less what is on its way there.
    pub(crate) free_bytes: u64,
    /// What downloads leave free, as the node's own file says.
    pub(crate) reserve_bytes: u64,
}

impl Room {
    /// None at all.
    pub(crate) const NONE: Self = Self { free_bytes: 0, reserve_bytes: 0 };

    /// What files may fill.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.reserve_bytes)
    }
}

/// Whether work can go to a node at all, as people decided and the edge measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is connected and complete.
    #[default]
    Here,
    Disabled,
    /// Its credential opens nothing: `credential_revoked`, `credential_expired`.
    NoCredential(&'static str),
    /// It is not heard: `stale`, `offline`, `never`, `unknown`; since then, in milliseconds.
    Silent(&'static str, Option<u64>),
    /// It is heard and not complete yet, or its agent ends.
    NotComplete,
}

/// An engine that a node can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Runtime {
    pub(crate) kind: String,
    /// As it says itself; empty: it does not.
    pub(crate) version: String,
}

/// One GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) index: u32,
    /// Shared between GPUs of equal names.
    pub(crate) name: Arc<str>,
    pub(crate) memory_bytes: u64,
    pub(crate) capability: Option<Release>,
    pub(crate) condition: Condition,
    /// Memory of processes that are no engines of this node; 0 where it is not known now.
    pub(crate) foreign_bytes: u64,
    /// The replica or engine that has it.
    pub(crate) holder: Option<String>,
}

/// Whether a GPU can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Condition {
    #[default]
    Ok,
    /// It was found and does not answer.
    Lost,
    /// A complete inventory no longer has it.
    Missing,
    /// It is divided, and cannot be used whole.
    Mig,
}

impl Gpu {
    /// What is left beside foreign processes.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.memory_bytes.saturating_sub(self.foreign_bytes)
    }
}

impl Candidate {
    /// It can be given work now, whatever the work asks for.
    pub(crate) fn is_here(&self) -> bool {
        self.standing == Standing::Here
    }
}
