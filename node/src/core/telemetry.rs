//! What the host does right now, as it is told to the edge.
//!
//! Owns bounds, ages of what was read of the disks, and how often a report may go out; leaves reading to
//! `shell/host` and GPUs to `gpus`. Invariant: a report fits the boundary's bound, and two of one stream are never less
//! than a second apart.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{Gpu, GpuTelemetry, NodeInventory, NodeTelemetry, StorageFree};

use super::gpus::INTERVALS_KEPT;

/// Least time between two reports of one stream: the boundary's bound.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Bytes of one report: the boundary's bound.
pub(crate) const REPORT: usize = 32 * 1024;

/// What was read of the host besides GPUs.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct HostFigures {
    pub(crate) memory_used_bytes: u64,
    /// Thousandths.
    pub(crate) load_1m_milli: u32,
    pub(crate) storage: Vec<StorageFree>,
    /// When the disks were asked: one on a network may not answer.
    pub(crate) storage_at: Option<Instant>,
}

/// Keeps two reports of one stream apart.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
}

impl Pace {
    /// Whether a report may go out now; it then has.
    pub(crate) fn may(&mut self, now: Instant) -> bool {
        let due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= REPORT_EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }

    /// One went out by another way.
    pub(crate) fn note(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

/// Puts a report together, without sequence and time.
pub(crate) fn report(
    host: &HostFigures,
    gpus: Vec<GpuTelemetry>,
    now: Instant,
    interval: Duration,
) -> NodeTelemetry {
    let fresh = |at: Instant| now.saturating_duration_since(at) <= interval * INTERVALS_KEPT;
    let storage = if host.storage_at.is_some_and(fresh) { host.storage.clone() } else { Vec::new() };
    let mut report = NodeTelemetry {
        sequence: 0,
        observed_at_unix_ms: 0,
        memory_used_bytes: host.memory_used_bytes,
        load_1m_milli: host.load_1m_milli,
        storage,
        gpus,
    };
    // The largest first: which engine holds what, then why clocks are held down.
    if report.encoded_len() > REPORT {
        report.gpus.iter_mut().for_each(|gpu| gpu.engines.clear());
    }
    if report.encoded_len() > REPORT {
        report.gpus.iter_mut().for_each(|gpu| gpu.throttle_reasons.clear());
    }
    report
}

/// Cuts an inventory to the boundary's bound; what was left out stands in its reason.
pub(crate) fn fit(inventory: &mut NodeInventory) {
    let too_large = |inventory: &NodeInventory| inventory.encoded_len() > REPORT - 64;
    let left_out = |gpu: &mut Gpu| std::mem::take(&mut gpu.mig_instances).len();
    if too_large(inventory) && inventory.gpus.iter_mut().map(left_out).sum::<usize>() > 0 {
        inventory.complete = false;
        inventory.incomplete_reason = "too many MIG instances for one report".into();
    }
    if too_large(inventory) {
        inventory.fabric_labels.clear();
        inventory.complete = false;
        inventory.incomplete_reason = "too large for one report".into();
    }
}

#[cfg(test)]
mod tests {
    use umbel_contracts::proto::node::{EngineMemory, MigInstance};

    use super::*;

    #[test]
    fn two_reports_are_a_second_apart() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert!(pace.may(start) && !pace.may(start + Duration::from_millis(999)));
        assert!(pace.may(start + REPORT_EVERY));
        // Row 16: a pause of any length earns one report and no more.
        let late = start + Duration::from_secs(600);
        assert!(pace.may(late) && !pace.may(late));
        pace.note(late + Duration::from_millis(500));
        assert!(!pace.may(late + REPORT_EVERY));
    }

    #[test]
    fn disks_that_do_not_answer_are_left_out_in_the_end() {
        let (now, interval) = (Instant::now(), Duration::from_secs(5));
        let root = StorageFree { name: "state".into(), free_bytes: 7 };
        let host = HostFigures { storage: vec![root], storage_at: Some(now), ..HostFigures::default() };
        let roots =
            |after| report(&host, Vec::new(), now + Duration::from_secs(after), interval).storage.len();
        assert_eq!((roots(0), roots(15), roots(16)), (1, 1, 0));
    }

    #[test]
    fn the_largest_reports_fit() {
        let engine = EngineMemory { engine: "e".repeat(63), bytes: u64::MAX };
        let gpu = GpuTelemetry {
            uuid: "G".repeat(80),
            throttle_reasons: vec!["sw_thermal_slowdown".into(); 9],
            engines: vec![engine; 32],
            memory_used_bytes: Some(u64::MAX),
            xid_count: Some(u64::MAX),
            age_ms: u32::MAX,
            ..GpuTelemetry::default()
        };
        let told = report(&HostFigures::default(), vec![gpu; 64], Instant::now(), Duration::from_secs(5));
        assert!(told.encoded_len() <= REPORT && told.gpus.len() == 64);
        let mig = MigInstance { uuid: "M".repeat(60), profile: "1g.10gb".into(), memory_bytes: 1 << 33 };
        let gpu =
            Gpu { uuid: "G".repeat(40), name: "N".repeat(40), mig_instances: vec![mig; 7], ..Gpu::default() };
        let mut inventory = NodeInventory { gpus: vec![gpu; 64], complete: true, ..NodeInventory::default() };
        fit(&mut inventory);
        assert!(inventory.encoded_len() <= REPORT && inventory.gpus.len() == 64 && !inventory.complete);
    }
}
