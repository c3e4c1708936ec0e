//! What the processes of an engine listen at.
//!
//! Owns reading the kernel's list of sockets and who has them open; leaves what a row means to `core/listening`. Invariant:
//! what may not be read says nothing. All of it blocks.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead, BufReader, Read},
};

use crate::core::{
    listening::{Listener, listener},
    process_tree::ProcessId,
};

/// Bytes of a list that are looked at: ten thousand sockets that listen.
const LIST_MAX: u64 = 2 * 1024 * 1024;
/// Open files of one process that are looked at.
const FILES_MAX: usize = 16 * 1024;

/// Ports at which these processes may be reached from other hosts, as the network of the first of them has it.
pub(crate) fn open_ports(processes: &[ProcessId]) -> Vec<u16> {
    let Some(first) = processes.first() else { return Vec::new() };
    let open: BTreeMap<u64, u16> = listeners(*first)
        .filter(|listener| listener.is_open)
        .map(|listener| (listener.inode, listener.port))
        .collect();
    if open.is_empty() {
        return Vec::new();
    }
    let has = |id: &ProcessId| sockets(*id).filter_map(|inode| open.get(&inode).copied()).collect::<Vec<_>>();
    let mut ports: Vec<u16> = processes.iter().flat_map(has).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// All sockets that listen in the network of a process. The kernel lists them before those that are connected, of which there
/// may be many.
fn listeners(of: ProcessId) -> impl Iterator<Item = Listener> {
    ["tcp", "tcp6"].into_iter().flat_map(move |list| {
        let file = File::open(format!("/proc/{}/net/{list}", of.0)).ok();
        let rows = file.into_iter().flat_map(|file| BufReader::new(file.take(LIST_MAX)).lines().skip(1));
        rows.map_while(|row| listener(&row.ok()?))
    })
}

/// The sockets that a process has open, by inode.
fn sockets(id: ProcessId) -> impl Iterator<Item = u64> {
    let files = fs::read_dir(format!("/proc/{}/fd", id.0)).ok().into_iter().flatten().take(FILES_MAX);
    files.filter_map(|file| {
        let target = fs::read_link(file.ok()?.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::shell::process::own;

    /// Row 95: what this process listens at for other hosts is found, and only that.
    #[test]
    fn row_95_a_port_that_others_may_reach_is_found() {
        let here = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let (here_port, open_port) = (port(&here), port(&open));
        let found = open_ports(&[own().pid]);
        assert!(found.contains(&open_port) && !found.contains(&here_port), "{found:?}");
        drop(open);
        assert!(!open_ports(&[own().pid]).contains(&open_port));
        assert_eq!(open_ports(&[ProcessId(i32::MAX)]), [0; 0]);
    }
}
