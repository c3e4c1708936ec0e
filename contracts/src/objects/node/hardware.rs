//! What an edge says of a node's hardware and its figures.
//!
//! Each object has exactly one conversion from its message. A value that was not given is `null`, never zero; figures carry
//! their age and are `null` once they are too old.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::site::some;
use super::super::words::GpuState;
use super::when;
use crate::proto::control;

/// A node's hardware, as it last reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryObject {
    /// A label, not an identity.
    pub hostname: String,
    /// Operating system.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Model of its processors.
    pub cpu_model: String,
    /// Processors that the agent may use.
    pub cpu_count: u32,
    /// Memory of the host.
    pub memory_bytes: u64,
    /// Its GPUs, with those that are missing.
    pub gpus: Vec<GpuObject>,
    /// Everything could be read.
    pub complete: bool,
    /// What could not be read.
    pub incomplete_reason: Option<String>,
    /// Age of the report by the edge's clock.
    pub age_ms: u64,
    /// `auto`, `nvidia` or `cpu`.
    #[serde(default)]
    pub accelerator_mode: String,
    /// Of the GPU driver.
    #[serde(default)]
    pub driver_version: Option<String>,
    /// That the driver supports.
    #[serde(default)]
    pub cuda_version: Option<String>,
    /// From the node's file: hosts that share one can hold a replica together.
    #[serde(default)]
    pub fabric_labels: BTreeMap<String, String>,
    /// Where its files go.
    #[serde(default)]
    pub storage: Vec<StorageObject>,
    /// The node's time of the report: only shown.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub observed_at: Option<Timestamp>,
    /// The edge's time of its arrival.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub received_at: Option<Timestamp>,
}

impl InventoryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(inventory: control::InventorySummary) -> Self {
        Self {
            hostname: inventory.hostname,
            os: inventory.os,
            kernel: inventory.kernel,
            cpu_model: inventory.cpu_model,
            cpu_count: inventory.cpu_count,
            memory_bytes: inventory.memory_bytes,
            gpus: inventory.gpus.into_iter().map(GpuObject::from_proto).collect(),
            complete: inventory.complete,
            incomplete_reason: some(inventory.incomplete_reason),
            age_ms: inventory.age_ms,
            accelerator_mode: inventory.accelerator_mode,
            driver_version: some(inventory.driver_version),
            cuda_version: some(inventory.cuda_version),
            fabric_labels: inventory.fabric_labels,
            storage: inventory.storage.into_iter().map(StorageObject::from_proto).collect(),
            observed_at: when(inventory.observed_at_unix_ms),
            received_at: when(inventory.received_at_unix_ms),
        }
    }
}

/// One storage root of a node, by the name that its file gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StorageObject {
    /// Never its path.
    pub name: String,
    /// Its size; 0 while it is not known.
    pub total_bytes: u64,
    /// What is free; `null` if that was not told lately.
    pub free_bytes: Option<u64>,
    /// What the node's downloads leave free there; absent if its agent does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve_bytes: Option<u64>,
}

impl StorageObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(root: control::StorageSummary) -> Self {
        Self {
            name: root.name,
            total_bytes: root.total_bytes,
            free_bytes: root.free_bytes,
            reserve_bytes: root.reserve_bytes,
        }
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuObject {
    /// The driver's UUID.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its index now; changes with the host's state.
    pub index: u32,
    /// Whether it is there and answers.
    #[serde(default = "unrecognized")]
    pub state: GpuState,
    /// When a report last had it and it answered, by the edge's clock.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub last_seen_at: Option<Timestamp>,
    /// Its place on the bus now; changes with the host's state.
    #[serde(default)]
    pub pci_address: String,
    /// Whether it is divided; `null` if the driver does not say.
    #[serde(default)]
    pub mig_enabled: Option<bool>,
    /// Its divisions.
    #[serde(default)]
    pub mig_instances: Vec<MigObject>,
    /// CUDA compute capability: `9.0`.
    #[serde(default)]
    pub compute_capability: Option<String>,
    /// `memory_bytes` is the host's: the driver tells no memory of its own.
    #[serde(default)]
    pub memory_is_host: bool,
    /// NVLink fabric that it belongs to.
    #[serde(default)]
    pub fabric_cluster: Option<String>,
    /// Its partition there: GPUs with equal ones reach each other.
    #[serde(default)]
    pub fabric_clique: Option<u32>,
    /// Its last figures; `null` if there are none, or they are too old.
    #[serde(default)]
    pub figures: Option<GpuFiguresObject>,
}

fn unrecognized() -> GpuState {
    GpuState::Unrecognized
}

impl GpuObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(gpu: control::GpuSummary) -> Self {
        Self {
            uuid: gpu.uuid,
            name: gpu.name,
            memory_bytes: gpu.memory_bytes,
            index: gpu.index,
            state: GpuState::from_number(gpu.state),
            last_seen_at: when(gpu.last_seen_at_unix_ms),
            pci_address: gpu.pci_address,
            mig_enabled: gpu.mig_enabled,
            mig_instances: gpu.mig_instances.into_iter().map(MigObject::from_proto).collect(),
            compute_capability: some(gpu.compute_capability),
            memory_is_host: gpu.memory_is_host,
            fabric_cluster: some(gpu.fabric_cluster),
            fabric_clique: gpu.fabric_clique,
            figures: gpu.figures.map(GpuFiguresObject::from_proto),
        }
    }
}

/// One division of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MigObject {
    /// The driver's UUID.
    pub uuid: String,
    /// As the driver names it: `1g.10gb`.
    pub profile: String,
    /// Its memory.
    pub memory_bytes: u64,
}

impl MigObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(mig: control::MigSummary) -> Self {
        Self { uuid: mig.uuid, profile: mig.profile, memory_bytes: mig.memory_bytes }
    }
}

/// Last figures of one GPU. What the driver does not give is `null`, never 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuFiguresObject {
    /// Since the driver gave them, by the clocks of the edge and of the node's agent.
    pub age_ms: u64,
    /// Of its time.
    pub utilization_percent: Option<u32>,
    /// In use.
    pub memory_used_bytes: Option<u64>,
    /// As the driver tells now.
    pub memory_total_bytes: Option<u64>,
    /// Of the chip.
    pub temperature_celsius: Option<u32>,
    /// Drawn now.
    pub power_milliwatts: Option<u32>,
    /// Of its processors.
    pub sm_clock_mhz: Option<u32>,
    /// Of its memory.
    pub memory_clock_mhz: Option<u32>,
    /// What holds its clocks down, as the driver names it: `sw_thermal_slowdown`.
    pub throttle_reasons: Vec<String>,
    /// Memory errors that were corrected since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not.
    pub ecc_uncorrected: Option<u64>,
    /// Errors that the driver reported since the agent started.
    pub xid_count: Option<u64>,
    /// Number of the last of them.
    pub xid_last: Option<u32>,
    /// Memory of the node's engines on it.
    pub engines: Vec<EngineMemoryObject>,
}

impl GpuFiguresObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(figures: control::GpuFigures) -> Self {
        Self {
            age_ms: figures.age_ms,
            utilization_percent: figures.utilization_percent,
            memory_used_bytes: figures.memory_used_bytes,
            memory_total_bytes: figures.memory_total_bytes,
            temperature_celsius: figures.temperature_celsius,
            power_milliwatts: figures.power_milliwatts,
            sm_clock_mhz: figures.sm_clock_mhz,
            memory_clock_mhz: figures.memory_clock_mhz,
            throttle_reasons: figures.throttle_reasons,
            ecc_corrected: figures.ecc_corrected,
            ecc_uncorrected: figures.ecc_uncorrected,
            xid_count: figures.xid_count,
            xid_last: figures.xid_last,
            engines: figures.engines.into_iter().map(EngineMemoryObject::from_proto).collect(),
        }
    }
}

/// Memory of one engine on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineMemoryObject {
    /// Its name on the node.
    pub engine: String,
    /// Of its processes together.
    pub bytes: u64,
}

impl EngineMemoryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(memory: control::EngineMemorySummary) -> Self {
        Self { engine: memory.engine, bytes: memory.bytes }
    }
}

/// A node's last figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TelemetryObject {
    /// Age of the report by the edge's clock.
    pub age_ms: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Load average of one minute, in thousandths.
    pub load_1m_milli: u32,
    /// Free space of its storage roots together.
    pub storage_free_bytes: u64,
    /// The node's time of the report: only shown.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub observed_at: Option<Timestamp>,
    /// The edge's time of its arrival.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub received_at: Option<Timestamp>,
}

impl TelemetryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(telemetry: control::TelemetrySummary) -> Self {
        Self {
            age_ms: telemetry.age_ms,
            memory_used_bytes: telemetry.memory_used_bytes,
            load_1m_milli: telemetry.load_1m_milli,
            storage_free_bytes: telemetry.storage_free_bytes,
            observed_at: when(telemetry.observed_at_unix_ms),
            received_at: when(telemetry.received_at_unix_ms),
        }
    }
}
