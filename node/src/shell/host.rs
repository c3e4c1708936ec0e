//! What this host is: name, kernel, processors, memory, disks.
//!
//! Owns looking; leaves what becomes of it to `core/inventory`. Invariant: no address of the host is looked at.

use std::path::Path;

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};
use umbel_contracts::proto::node::StorageRoot;

use crate::core::inventory::HostFacts;

/// Name of the only storage root so far.
const STATE_ROOT: &str = "state";

/// Looks at the host. Reads files below `/proc` and asks the file system of the state directory; blocks.
pub(crate) fn facts(state_dir: &Path) -> HostFacts {
    let seen = System::new_with_specifics(
        RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    let storage = disk(state_dir).map(|total| StorageRoot { name: STATE_ROOT.into(), total_bytes: total });
    let seen = seen.as_ref().ok();
    let cpus = seen.map(System::cpus).unwrap_or_default();
    HostFacts {
        hostname: System::host_name().unwrap_or_default(),
        os: System::long_os_version().unwrap_or_default(),
        kernel: System::kernel_version().unwrap_or_default(),
        cpu_model: cpus.first().map(|cpu| cpu.brand().to_owned()).unwrap_or_default(),
        cpu_count: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        memory_bytes: seen.map(System::total_memory).unwrap_or_default(),
        storage: storage.into_iter().collect(),
    }
}

/// The host's name, as a label.
pub(crate) fn name() -> String {
    System::host_name().unwrap_or_default().chars().take(63).collect()
}

/// Bytes of the file system that holds `path`.
fn disk(path: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(path).ok()?;
    Some(facts.f_blocks.saturating_mul(facts.f_frsize))
}

/// Whether the state directory is lost with the next boot or container; why.
pub(crate) fn is_not_durable(path: &Path) -> Option<&'static str> {
    // Numbers of linux/magic.h.
    const TMPFS: i64 = 0x0102_1994;
    const OVERLAY: i64 = 0x794c_7630;
    match rustix::fs::statfs(path).ok()?.f_type {
        TMPFS => Some("is in memory (tmpfs): what is there is lost with the next boot"),
        OVERLAY => Some("is in a container's own layer: what is there is lost with the container"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_at_this_host() {
        let seen = facts(Path::new("/"));
        assert!(seen.cpu_count > 0 && seen.memory_bytes > 0 && !seen.kernel.is_empty());
        assert!(seen.storage[0].total_bytes > 0);
    }

    #[test]
    fn memory_is_not_durable() {
        assert!(is_not_durable(Path::new("/dev/shm")).is_some());
    }
}
