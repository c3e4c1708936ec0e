//! Where a deployment can run and why not elsewhere: the object of `placement.explain`.
//!
//! Invariant: reasons stand in the order in which they are counted, each node at its first one; every number that a sentence
//! holds is also a field.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a node cannot take a replica, in the order of the funnel: what people decided, what the node has, what of it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlacementReason {
    /// People disabled it.
    Disabled,
    /// Its credential is revoked or has expired.
    NoCredential,
    /// It cannot be given work now: not heard, or not complete.
    NotOnline,
    /// It refused its settings.
    SettingsRefused,
    /// Nobody declared it fit for requests. Of earlier versions: it is a remark now, since engines run there.
    NotEligible,
    /// It takes no new work.
    Draining,
    /// It is left alone for a while: a load failed there.
    Avoided,
    /// The selector does not choose it.
    NotSelected,
    /// Its agent does not know how.
    AgentTooOld,
    /// The engine is not installed.
    EngineMissing,
    /// The installed engine is too old.
    EngineTooOld,
    /// It has no value of the fabric label.
    FabricMissing,
    /// It never said what hardware it has.
    NoInventory,
    /// Its GPU driver is too old.
    DriverTooOld,
    /// It has fewer GPUs, whatever they are.
    GpuCount,
    /// Its GPUs have other names.
    GpuName,
    /// Its GPUs can do too little.
    GpuCapability,
    /// Its GPUs do not answer or are gone.
    GpuGone,
    /// Its GPUs are divided.
    GpuMig,
    /// Its GPUs are too small even when they are empty.
    GpuSize,
    /// Foreign processes hold too much of its GPUs.
    GpuForeign,
    /// Engines hold its GPUs.
    GpuHeld,
    /// It has as many engines as a node may have.
    EngineCount,
    /// Its disk has no room for the files.
    Space,
    /// It fits, and too few others of its fabric do.
    FabricTooSmall,
    /// A word of a newer version.
    #[serde(other)]
    Unrecognized,
}

impl PlacementReason {
    /// For people, as a line of the funnel.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::NoCredential => "credential revoked or expired",
            Self::NotOnline => "not online",
            Self::SettingsRefused => "settings refused",
            Self::NotEligible => "not eligible",
            Self::Draining => "draining",
            Self::Avoided => "left alone for now",
            Self::NotSelected => "not selected",
            Self::AgentTooOld => "agent too old",
            Self::EngineMissing => "engine not installed",
            Self::EngineTooOld => "engine too old",
            Self::FabricMissing => "no fabric label",
            Self::NoInventory => "hardware not known",
            Self::DriverTooOld => "GPU driver too old",
            Self::GpuCount => "too few GPUs",
            Self::GpuName => "GPUs of another kind",
            Self::GpuCapability => "GPUs too old",
            Self::GpuGone => "GPUs lost or missing",
            Self::GpuMig => "GPUs divided (MIG)",
            Self::GpuSize => "GPUs too small",
            Self::GpuForeign => "GPU memory held by foreign processes",
            Self::GpuHeld => "GPUs held by engines",
            Self::EngineCount => "too many engines",
            Self::Space => "no space for the files",
            Self::FabricTooSmall => "fabric too small",
            Self::Unrecognized => "another reason",
        }
    }
}

/// Where the replicas that a deployment still wants would go, or why they cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementObject {
    /// Whose.
    pub deployment: String,
    /// Whether all of them fit now; of a deployment that has all it wants: whether one more would.
    pub fits: bool,
    /// Replicas that its document wants.
    pub replicas_wanted: u32,
    /// Those that have a place.
    pub replicas_placed: u32,
    /// Since when it has fewer than it wants; absent if it has not, or is not applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub waiting_since: Option<Timestamp>,
    /// Of a document whose deployment is applied and wanted: its fields that become another, with what they were. Then those
    /// replicas have a place that the document leaves where they are as they run. Absent for any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Vec<String>>,
    /// What else there is to say of its replicas: one that is where the selector does not let it be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Where they would go, as many as fit. All that follows is of the first of them and of the site as it is, or, if not all fit,
    /// of the first that does not, with the others in their places.
    pub plan: Vec<PlacementReplicaObject>,
    /// What is asked for.
    pub needs: PlacementNeedsObject,
    /// How many nodes were looked at.
    pub nodes_total: u32,
    /// How many of them fit.
    pub nodes_left: u32,
    /// How many nodes left at each question, in the order in which they are asked.
    pub funnel: Vec<PlacementStepObject>,
    /// Nodes with all that is for and against them: those that fit first, then the nearest.
    pub nodes: Vec<PlacementNodeObject>,
    /// Nodes of which only the funnel tells.
    pub nodes_left_off: u32,
    /// What would make it fit, each by itself, the least first; empty if it fits or nothing is known that would.
    pub remedies: Vec<PlacementRemedyObject>,
}

/// One replica's place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementReplicaObject {
    /// One a node.
    pub shards: Vec<PlacementShardObject>,
}

/// One node's part of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementShardObject {
    /// Which node.
    pub node_id: String,
    /// Its name.
    pub node: String,
    /// UUIDs of the GPUs that it gets.
    pub gpus: Vec<String>,
    /// Their indexes on the node now, for people.
    pub gpu_indexes: Vec<u32>,
    /// The files have to come first.
    pub acquire: bool,
    /// What else to know of it: its node gets no requests yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// What a deployment asks of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementNeedsObject {
    /// Nodes that hold one replica together.
    pub nodes_per_replica: u32,
    /// The fabric label that they must share; absent where one node is enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_label: Option<String>,
    /// GPUs of each node.
    pub gpus: u32,
    /// Memory that each must have; absent: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_memory_bytes: Option<u64>,
    /// What of it the weights take, judged by the sizes of their files; absent where these do not say it: no files, weights that
    /// are quantized when they are read or stay in the host's memory. The rest is for the KV cache and the engine itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_weights_bytes: Option<u64>,
    /// The most that an engine of this deployment holds of one GPU now; absent while none is seen there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_measured_bytes: Option<u64>,
    /// Patterns of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_names: Vec<String>,
    /// Least compute capability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// Least driver version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The engine's kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Its least version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// The files: repository and revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<String>,
    /// Their size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_bytes: Option<u64>,
    /// What must stay free beside them, as the nodes' own files say; absent where they differ or do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
    /// Which nodes are asked at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// `spread` or `pack`.
    pub strategy: String,
}

/// How many nodes left the funnel at one question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementStepObject {
    /// Which question.
    pub reason: PlacementReason,
    /// How many.
    pub count: u32,
    /// Names of the first 32 of them.
    pub nodes: Vec<String>,
    /// What is against it, for people, where it is one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// One node: what is for it, and what against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementNodeObject {
    /// Which.
    pub node_id: String,
    /// Its name.
    pub node: String,
    /// A shard can go there now.
    pub fits: bool,
    /// What is for it, one sentence each.
    pub reasons_for: Vec<String>,
    /// What is against it, in the order of the funnel.
    pub against: Vec<PlacementAgainstObject>,
    /// What else to know of it, neither for nor against: it gets no requests yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    /// Its replicas of this deployment.
    pub replicas: u32,
    /// Its GPUs that fit.
    pub gpus_fit: u32,
    /// All its GPUs.
    pub gpus: Vec<PlacementGpuObject>,
    /// What would make it fit, each by itself, the least first.
    pub remedies: Vec<PlacementRemedyObject>,
}

/// One thing that is against a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementAgainstObject {
    /// Which.
    pub reason: PlacementReason,
    /// With its numbers, for people.
    pub message: String,
    /// What is asked for, where that is a number: GPUs, bytes, nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
    /// What there is of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<u64>,
    /// What is asked for, where that is a version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted_version: Option<String>,
    /// What is there; absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_version: Option<String>,
    /// For how long it has been so, in milliseconds, where that is known: not heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementGpuObject {
    /// Which.
    pub uuid: String,
    /// Its place on the node now.
    pub index: u32,
    /// Its kind.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its compute capability; absent where it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
    /// What foreign processes leave of it.
    pub available_bytes: u64,
    /// By how much that is less than what is asked for.
    pub short_bytes: u64,
    /// The replica or engine that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// What is against it; absent: it fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<PlacementReason>,
    /// The same for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Changes that together make it fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementRemedyObject {
    /// On which nodes it then fits.
    pub nodes: Vec<String>,
    /// What has to be done.
    pub changes: Vec<PlacementChangeObject>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementChangeObject {
    /// In one word: `undrain`, `free_gpus`, `lower_gpu_count`...
    pub change: String,
    /// The node that it is about; absent: the deployment's document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// For people, with its numbers.
    pub message: String,
    /// What to type, where a command does it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    /// Deployments that get fewer replicas by these commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takes: Vec<PlacementTakesObject>,
}

/// What a change takes from another deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementTakesObject {
    /// Whose.
    pub deployment: String,
    /// Replicas that hold what is needed.
    pub needed: u32,
    /// Replicas that go: all of it where no smaller command ends just the needed ones.
    pub goes: u32,
    /// Replicas that it has.
    pub of: u32,
}
