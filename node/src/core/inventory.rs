//! What the host has, as it is told to the edge.
//!
//! Owns bounds and the question whether something changed; leaves looking to `shell/host` and `shell/gpu`.
//! Invariant: an inventory never holds more than the boundary allows, and says so when something was left out.

use std::collections::BTreeMap;

use umbel_contracts::proto::node::{Gpu, NodeInventory, StorageRoot};

/// GPUs of one node: the boundary's bound.
pub(crate) const GPUS: usize = 64;
/// Bytes of a fact that is free text.
const TEXT: usize = 128;

/// What was seen of the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct HostFacts {
    pub(crate) hostname: String,
    pub(crate) os: String,
    pub(crate) kernel: String,
    pub(crate) cpu_model: String,
    pub(crate) cpu_count: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) storage: Vec<StorageRoot>,
}

/// What was seen of the GPUs. What could not be seen is an error, never an empty success.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct GpuFacts {
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) driver_version: String,
    pub(crate) cuda_version: String,
    /// Why the list is not whole.
    pub(crate) incomplete: Option<String>,
}

/// Puts an inventory together, without sequence and time.
pub(crate) fn inventory(
    host: &HostFacts,
    gpus: &GpuFacts,
    accelerator: &str,
    fabric_labels: &BTreeMap<String, String>,
) -> NodeInventory {
    let mut incomplete = gpus.incomplete.clone();
    if gpus.gpus.len() > GPUS {
        incomplete = Some(format!("{} GPUs, and a node reports at most {GPUS}", gpus.gpus.len()));
    }
    NodeInventory {
        sequence: 0,
        observed_at_unix_ms: 0,
        hostname: text(&host.hostname),
        os: text(&host.os),
        kernel: text(&host.kernel),
        cpu_model: text(&host.cpu_model),
        cpu_count: host.cpu_count,
        memory_bytes: host.memory_bytes,
        storage: host.storage.clone(),
        gpus: gpus.gpus.iter().take(GPUS).cloned().collect(),
        fabric_labels: fabric_labels.clone(),
        complete: incomplete.is_none(),
        incomplete_reason: incomplete.as_deref().map(text).unwrap_or_default(),
        accelerator_mode: accelerator.to_owned(),
        driver_version: text(&gpus.driver_version),
        cuda_version: text(&gpus.cuda_version),
    }
}

/// Whether two inventories say the same of the host.
pub(crate) fn same(a: &NodeInventory, b: &NodeInventory) -> bool {
    let facts = |inventory: &NodeInventory| NodeInventory {
        sequence: 0,
        observed_at_unix_ms: 0,
        ..inventory.clone()
    };
    facts(a) == facts(b)
}

fn text(value: &str) -> String {
    umbel_wire::text::beginning(value, TEXT).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_gpus_than_allowed_are_told_as_incomplete() {
        let gpus = GpuFacts { gpus: vec![Gpu::default(); GPUS + 1], ..GpuFacts::default() };
        let told = inventory(&HostFacts::default(), &gpus, "auto", &BTreeMap::new());
        assert_eq!(told.gpus.len(), GPUS);
        assert!(!told.complete && !told.incomplete_reason.is_empty());
    }

    #[test]
    fn time_and_sequence_are_no_change() {
        let host = HostFacts { hostname: "ä".repeat(400), ..HostFacts::default() };
        let a = inventory(&host, &GpuFacts::default(), "cpu", &BTreeMap::new());
        let b = NodeInventory { sequence: 9, observed_at_unix_ms: 9, ..a.clone() };
        assert!(same(&a, &b) && a.complete && a.hostname.len() <= TEXT);
        assert!(!same(&a, &NodeInventory { memory_bytes: 1, ..a.clone() }));
    }
}
