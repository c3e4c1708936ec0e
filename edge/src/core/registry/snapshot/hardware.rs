//! A node's hardware and figures as its edge tells of them.
//!
//! Owns which values are still told. Invariant: a figure carries its age and is left out once it is older than three
//! intervals; a value that was not given stays absent and never becomes 0.

use std::time::{Duration, Instant};

use umbel_contracts::proto::control::{
    EngineMemorySummary, GpuFigures, GpuState, GpuSummary, InventorySummary, MigSummary, StorageSummary,
    TelemetrySummary,
};
use umbel_contracts::proto::node::{Gpu, GpuTelemetry, NodeTelemetry};

use super::super::node::Node;

/// Three intervals of telemetry: what is older says nothing of now.
pub(crate) const FIGURES_AGE: Duration = Duration::from_secs(15);

pub(super) fn inventory(node: &Node, now: Instant) -> Option<InventorySummary> {
    let received = node.inventory.as_ref()?;
    let report = &received.report;
    let fresh = fresh(node, now);
    let free = |name: &str| {
        let (_, telemetry) = fresh?;
        telemetry.storage.iter().find(|root| root.name == name).map(|root| root.free_bytes)
    };
    Some(InventorySummary {
        hostname: report.hostname.clone(),
        os: report.os.clone(),
        kernel: report.kernel.clone(),
        cpu_model: report.cpu_model.clone(),
        cpu_count: report.cpu_count,
        memory_bytes: report.memory_bytes,
        gpus: report.gpus.iter().map(|found| gpu(found, fresh)).collect(),
        complete: report.complete,
        incomplete_reason: report.incomplete_reason.clone(),
        age_ms: age_ms(received.at, now),
        accelerator_mode: report.accelerator_mode.clone(),
        driver_version: report.driver_version.clone(),
        cuda_version: report.cuda_version.clone(),
        fabric_labels: report.fabric_labels.clone(),
        storage: report
            .storage
            .iter()
            .map(|root| StorageSummary {
                name: root.name.clone(),
                total_bytes: root.total_bytes,
                free_bytes: free(&root.name),
            })
            .collect(),
        observed_at_unix_ms: report.observed_at_unix_ms,
        received_at_unix_ms: received.wall,
    })
}

pub(super) fn telemetry(node: &Node, now: Instant) -> Option<TelemetrySummary> {
    let received = node.telemetry.as_ref()?;
    let report = &received.report;
    Some(TelemetrySummary {
        age_ms: age_ms(received.at, now),
        memory_used_bytes: report.memory_used_bytes,
        load_1m_milli: report.load_1m_milli,
        storage_free_bytes: report.storage.iter().map(|root| root.free_bytes).sum(),
        observed_at_unix_ms: report.observed_at_unix_ms,
        received_at_unix_ms: received.wall,
    })
}

/// The last telemetry with its age, unless it is too old.
pub(crate) fn fresh(node: &Node, now: Instant) -> Option<(Duration, &NodeTelemetry)> {
    let received = node.telemetry.as_ref()?;
    let age = now.saturating_duration_since(received.at);
    (age <= FIGURES_AGE).then_some((age, &received.report))
}

fn gpu(gpu: &Gpu, fresh: Option<(Duration, &NodeTelemetry)>) -> GpuSummary {
    GpuSummary {
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        memory_bytes: gpu.memory_bytes,
        index: gpu.index,
        state: if gpu.lost { GpuState::Lost.into() } else { GpuState::Ok.into() },
        last_seen_at_unix_ms: 0,
        pci_address: gpu.pci_address.clone(),
        mig_enabled: gpu.mig_enabled,
        mig_instances: gpu
            .mig_instances
            .iter()
            .map(|mig| MigSummary {
                uuid: mig.uuid.clone(),
                profile: mig.profile.clone(),
                memory_bytes: mig.memory_bytes,
            })
            .collect(),
        compute_capability: gpu.compute_capability.clone(),
        memory_is_host: gpu.memory_is_host,
        fabric_cluster: gpu.fabric_cluster.clone(),
        fabric_clique: gpu.fabric_clique,
        figures: fresh.and_then(|(age, telemetry)| {
            telemetry.gpus.iter().find(|one| one.uuid == gpu.uuid).and_then(|one| figures(one, age))
        }),
    }
}

/// The figures of one GPU; nothing if the driver gave them too long ago, or no longer answers.
fn figures(gpu: &GpuTelemetry, arrived: Duration) -> Option<GpuFigures> {
    let age = arrived + Duration::from_millis(gpu.age_ms.into());
    if gpu.lost || age > FIGURES_AGE {
        return None;
    }
    Some(GpuFigures {
        age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
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

fn age_ms(at: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX)
}
