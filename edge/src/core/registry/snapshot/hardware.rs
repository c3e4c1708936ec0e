//! A node's hardware and figures as its edge tells of them.
//!
//! Owns which values are still told. Invariant: a figure carries its age and is left out once it is older than three
//! intervals; a value that was not given stays absent and never becomes 0.

use std::time::Duration;

use umbel_contracts::proto::control::{
    EngineMemorySummary, GpuFigures, GpuState, GpuSummary, InventorySummary, MigSummary, StorageSummary,
    TelemetrySummary,
};
use umbel_contracts::proto::node::{Gpu, GpuTelemetry, NodeInventory, NodeTelemetry};

use super::super::Moment;
use super::super::gpus::{Absence, AbsentGpu};
use super::super::node::Node;
use super::super::reports::GPUS_MAX;

/// Three intervals of telemetry: what is older says nothing of now.
pub(crate) const FIGURES_AGE: Duration = Duration::from_secs(15);

/// What a node last reported, unpacked once for all that is told of it.
pub(crate) struct Reports {
    pub(crate) inventory: Option<NodeInventory>,
    pub(crate) telemetry: Option<NodeTelemetry>,
}

impl Reports {
    pub(super) fn of(node: &Node) -> Self {
        Self { inventory: node.inventory(), telemetry: node.telemetry() }
    }
}

/// The hardware with the figures of each GPU.
pub(super) fn inventory(node: &Node, reports: Reports, moment: Moment) -> Option<InventorySummary> {
    let kept = node.report.inventory.as_ref()?;
    let report = reports.inventory?;
    let fresh = fresh(node, reports.telemetry, moment);
    let free = |name: &str| {
        let fresh = fresh.as_ref()?;
        fresh.telemetry.storage.iter().find(|root| root.name == name).map(|root| root.free_bytes)
    };
    let storage = report.storage.into_iter().map(|root| StorageSummary {
        free_bytes: free(&root.name),
        name: root.name,
        total_bytes: root.total_bytes,
        reserve_bytes: root.reserve_bytes,
    });
    let storage = storage.collect();
    // Each GPU is as alive as the youngest word of its node.
    let told = fresh.as_ref().map_or(0, |fresh| fresh.received_at_unix_ms);
    let told = told.max(kept.received_at_unix_ms);
    let gpus = report.gpus.into_iter().map(|found| gpu(node, found, told, fresh.as_ref()));
    let missing = node.report.absent.iter().filter(|gpu| gpu.why == Absence::Missing).map(missing);
    Some(InventorySummary {
        gpus: gpus.chain(missing).take(GPUS_MAX).collect(),
        storage,
        hostname: report.hostname,
        os: report.os,
        kernel: report.kernel,
        cpu_model: report.cpu_model,
        cpu_count: report.cpu_count,
        memory_bytes: report.memory_bytes,
        complete: report.complete,
        incomplete_reason: report.incomplete_reason,
        age_ms: millis(kept.age(moment)),
        accelerator_mode: report.accelerator_mode,
        driver_version: report.driver_version,
        cuda_version: report.cuda_version,
        fabric_labels: report.fabric_labels,
        observed_at_unix_ms: kept.observed_at_unix_ms,
        received_at_unix_ms: kept.received_at_unix_ms,
    })
}

/// The host's figures with their age, however old.
pub(super) fn telemetry(node: &Node, reports: &Reports, moment: Moment) -> Option<TelemetrySummary> {
    let kept = node.report.telemetry.as_ref()?;
    let report = reports.telemetry.as_ref()?;
    Some(TelemetrySummary {
        age_ms: millis(kept.age(moment)),
        memory_used_bytes: report.memory_used_bytes,
        load_1m_milli: report.load_1m_milli,
        storage_free_bytes: report.storage.iter().map(|root| root.free_bytes).sum(),
        observed_at_unix_ms: kept.observed_at_unix_ms,
        received_at_unix_ms: kept.received_at_unix_ms,
    })
}

/// Telemetry that still says something of now.
struct Fresh {
    telemetry: NodeTelemetry,
    age: Duration,
    received_at_unix_ms: i64,
}

/// The last telemetry, unless it is too old.
fn fresh(node: &Node, telemetry: Option<NodeTelemetry>, moment: Moment) -> Option<Fresh> {
    let kept = node.report.telemetry.as_ref()?;
    let age = kept.age(moment);
    let received_at_unix_ms = kept.received_at_unix_ms;
    telemetry.filter(|_| age <= FIGURES_AGE).map(|telemetry| Fresh { telemetry, age, received_at_unix_ms })
}

fn gpu(node: &Node, gpu: Gpu, told: i64, fresh: Option<&Fresh>) -> GpuSummary {
    let absent = node.absent_gpu(&gpu.uuid);
    let state = if absent.is_some() || gpu.lost { GpuState::Lost } else { GpuState::Ok };
    let figures = fresh.filter(|_| state == GpuState::Ok).and_then(|fresh| figures_of(fresh, &gpu.uuid));
    let migs = gpu.mig_instances.into_iter().map(|mig| MigSummary {
        uuid: mig.uuid,
        profile: mig.profile,
        memory_bytes: mig.memory_bytes,
    });
    GpuSummary {
        mig_instances: migs.collect(),
        figures,
        uuid: gpu.uuid,
        name: gpu.name,
        memory_bytes: gpu.memory_bytes,
        index: gpu.index,
        state: state.into(),
        last_seen_at_unix_ms: absent.map_or(told, |absent| absent.last_seen_at_unix_ms),
        pci_address: gpu.pci_address,
        mig_enabled: gpu.mig_enabled,
        compute_capability: gpu.compute_capability,
        memory_is_host: gpu.memory_is_host,
        fabric_cluster: gpu.fabric_cluster,
        fabric_clique: gpu.fabric_clique,
    }
}

fn missing(gpu: &AbsentGpu) -> GpuSummary {
    GpuSummary {
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        memory_bytes: gpu.memory_bytes,
        index: gpu.index,
        state: GpuState::Missing.into(),
        last_seen_at_unix_ms: gpu.last_seen_at_unix_ms,
        ..GpuSummary::default()
    }
}

/// The figures of one GPU, if they are fresh.
fn figures_of(fresh: &Fresh, uuid: &str) -> Option<GpuFigures> {
    let gpu = fresh.telemetry.gpus.iter().find(|gpu| gpu.uuid == uuid)?;
    figures(gpu, fresh.age)
}

/// The figures of one GPU; nothing if the driver gave them too long ago, or no longer answers.
fn figures(gpu: &GpuTelemetry, arrived: Duration) -> Option<GpuFigures> {
    let age = arrived + Duration::from_millis(gpu.age_ms.into());
    if gpu.lost || age > FIGURES_AGE {
        return None;
    }
    Some(GpuFigures {
        age_ms: millis(age),
        utilization_percent: gpu.utilization_percent,
        memory_used_bytes: gpu.memory_used_bytes,
        memory_total_bytes: gpu.memory_total_bytes,
        temperature_celsius: gpu.temperature_celsius,
        power_milliwatts: gpu.power_milliwatts,
        sm_clock_mhz: gpu.sm_clock_mhz,
        memory_clock_mhz: gpu.memory_clock_mhz,
        throttle_reasons: gpu.throttle_reasons.clone(),
        ecc_corrected: gpu.ecc_corrected,
        ecc_uncorrected: gpu.ecc_uncorrected,
        xid_count: gpu.xid_count,
        xid_last: gpu.xid_last,
        engines: gpu
            .engines
            .iter()
            .map(|memory| EngineMemorySummary { engine: memory.engine.clone(), bytes: memory.bytes })
            .collect(),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
