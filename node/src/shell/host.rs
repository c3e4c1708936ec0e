//! What this host is and does: name, kernel, processors, memory, load, disks.
//!
//! Owns looking; leaves what becomes of it to `core/inventory` and `core/telemetry`, and whether a place may be used to
//! `places`. Invariant: no address of the host is looked at.

use std::path::{Path, PathBuf};

use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};
use umbel_contracts::proto::node::{StorageFree, StorageRoot};

use crate::{
    Config,
    core::{inventory::HostFacts, problems::listed},
};

/// A folder whose file system is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) name: String,
    /// It never leaves the host.
    pub(crate) path: PathBuf,
    /// What downloads leave free there; nothing where none go.
    pub(crate) reserve_bytes: Option<u64>,
}

/// The file systems that are told.
pub(crate) fn roots(config: &Config) -> Vec<Root> {
    let artifacts = &config.artifacts;
    let kept = Some(artifacts.reserve);
    let root = |name: &str, path: &Path, reserve_bytes| Root {
        name: name.to_owned(),
        path: path.to_owned(),
        reserve_bytes,
    };
    let mut roots = vec![root("state", &config.state_dir, None)];
    roots.extend(artifacts.quarantine.iter().map(|folder| root("quarantine", folder, kept)));
    roots.extend(artifacts.roots.iter().map(|(name, folder)| root(name, folder, kept)));
    roots
}

/// Looks at the host, disks left out. Reads files below `/proc`.
pub(crate) fn facts() -> HostFacts {
    let seen = System::new_with_specifics(
        RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    let seen = seen.as_ref().ok();
    let cpus = seen.map(System::cpus).unwrap_or_default();
    HostFacts {
        hostname: System::host_name().unwrap_or_default(),
        os: System::long_os_version().unwrap_or_default(),
        kernel: System::kernel_version().unwrap_or_default(),
        cpu_model: cpus.first().map(|cpu| cpu.brand().to_owned()).unwrap_or_default(),
        cpu_count: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        memory_bytes: seen.map(System::total_memory).unwrap_or_default(),
        storage: Vec::new(),
    }
}

/// Memory in use in bytes, and the load of the last minute in thousandths.
pub(crate) fn load() -> (u64, u32) {
    let memory = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    let load = System::load_average().map(|load| load.one).unwrap_or_default();
    (memory.map(|seen| seen.used_memory()).unwrap_or_default(), (load * 1000.0) as u32)
}

/// The host's name, as a label.
pub(crate) fn name() -> String {
    System::host_name().unwrap_or_default().chars().take(63).collect()
}

/// Size and free bytes of the file systems that hold the roots, of the first `asked` of them; one on a network may block. All
/// are named, since which there are stands in the node's file: one that was not asked, or does not answer, has no size and no
/// free bytes.
pub(crate) fn storage(roots: &[Root], asked: usize) -> (Vec<StorageRoot>, Vec<StorageFree>) {
    let mut free = Vec::new();
    let named = roots.iter().enumerate().map(|(at, Root { name, path, reserve_bytes })| {
        let found = if at < asked { disk(path) } else { None };
        free.extend(found.map(|(_, free_bytes)| StorageFree { name: name.clone(), free_bytes }));
        let total_bytes = found.map_or(0, |(total_bytes, _)| total_bytes);
        StorageRoot { name: name.clone(), total_bytes, reserve_bytes: *reserve_bytes }
    });
    let named = named.collect();
    (named, free)
}

/// What is wrong with the directories of the node's file that are not there any more, and what to do. May block.
pub(crate) fn gone(roots: &[Root]) -> Option<String> {
    let key = |root: &Root| match root.name.as_str() {
        "state" => "node.state_dir".to_owned(),
        "quarantine" => "artifacts.quarantine".to_owned(),
        name => format!("artifacts.roots.{name}"),
    };
    let gone: Vec<String> = roots.iter().filter(|root| !root.path.is_dir()).map(key).collect();
    if gone.is_empty() {
        return None;
    }
    let named = listed(gone.iter().map(String::as_str));
    Some(format!(
        "no directory is where {named} of the node's file says: make it for the agent's user, or mount what belongs there; engines that run go on"
    ))
}

/// Bytes of the file system that holds `path`, and how many of them this user may still fill.
fn disk(path: &Path) -> Option<(u64, u64)> {
    let facts = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(facts.f_frsize);
    Some((bytes(facts.f_blocks), bytes(facts.f_bavail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_that_are_gone_are_named_by_their_keys() {
        let root =
            |name: &str, path: &str| Root { name: name.into(), path: path.into(), reserve_bytes: None };
        assert_eq!(gone(&[root("state", "/"), root("big", "/proc")]), None);
        let says =
            gone(&[root("state", "/"), root("quarantine", "/nowhere"), root("big", "/dev/null")]).unwrap();
        assert!(says.contains("where artifacts.quarantine, artifacts.roots.big of"), "{says}");
        assert!(!says.contains("/nowhere"), "{says}");
    }

    #[test]
    fn looks_at_this_host() {
        let seen = facts();
        assert!(seen.cpu_count > 0 && seen.memory_bytes > 0 && !seen.kernel.is_empty());
        let (used, _) = load();
        assert!(used > 0 && used < seen.memory_bytes);
        let root = |name: &str, path: &str, reserve_bytes| Root {
            name: name.into(),
            path: path.into(),
            reserve_bytes,
        };
        let asked = [root("a", "/", Some(7)), root("b", "/nowhere/at/all", None)];
        let (roots, free) = storage(&asked, 2);
        assert!(roots.len() == 2 && free.len() == 1 && free[0].free_bytes <= roots[0].total_bytes);
        assert_eq!((roots[0].reserve_bytes, roots[1].name.as_str(), roots[1].total_bytes), (Some(7), "b", 0));
        // Before anybody asked the disks the same are named: what is told first and what is told next differ in sizes alone.
        let (named, free) = storage(&asked, 0);
        let names = |roots: &[StorageRoot]| roots.iter().map(|root| root.name.clone()).collect::<Vec<_>>();
        assert_eq!((names(&named), free), (names(&roots), Vec::new()));
    }

    #[test]
    fn each_root_says_what_downloads_leave_free_there() {
        let text = "[node]\nstate_dir = \"/s\"\n[artifacts]\nquarantine = \"/m/q\"\nreserve = \"1MiB\"\n\
                    [artifacts.roots]\nbig = \"/m/b\"\n";
        let config = Config::parse(text, Path::new("/etc/umbel/node.toml")).unwrap();
        let told: Vec<_> = roots(&config).into_iter().map(|root| (root.name, root.reserve_bytes)).collect();
        let named = |name: &str, reserve| (name.to_owned(), reserve);
        assert_eq!(
            told,
            [named("state", None), named("quarantine", Some(1 << 20)), named("big", Some(1 << 20))]
        );
    }
}
