//! Processor time and memory of process trees, from /proc: schedstat has nanosecond grain, where stat's ticks are 10 ms.
//! And on which cores they run.

use std::fs;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

fn tree(pid: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?))
        })
        .collect();
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next).copied() {
        all.extend(parents.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    all
}

/// Microseconds of processor time of a process tree so far.
pub(crate) fn cpu_us(pid: u32) -> f64 {
    tree(pid)
        .iter()
        .flat_map(|p| fs::read_dir(format!("/proc/{p}/task")).into_iter().flatten().flatten())
        .filter_map(|task| {
            fs::read_to_string(task.path().join("schedstat")).ok()?.split(' ').next()?.parse::<f64>().ok()
        })
        .sum::<f64>()
        / 1e3
}

/// The highest resident memory of a process tree so far, in MB.
pub(crate) fn peak_mb(pid: u32) -> f64 {
    tree(pid)
        .iter()
        .filter_map(|p| {
            let status = fs::read_to_string(format!("/proc/{p}/status")).ok()?;
            let line = status.lines().find(|l| l.starts_with("VmHWM"))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        })
        .sum::<f64>()
        / 1024.0
}

fn threads(pid: u32) -> Vec<Pid> {
    let thread = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw);
    tree(pid)
        .iter()
        .flat_map(|p| fs::read_dir(format!("/proc/{p}/task")).into_iter().flatten().flatten())
        .filter_map(thread)
        .collect()
}

/// Process trees that are kept on one core; dropping it gives them back all cores that this process had.
pub(crate) struct Pinned {
    threads: Vec<Pid>,
    before: CpuSet,
}

impl Pinned {
    pub(crate) fn new(pids: impl Iterator<Item = u32>, core: usize) -> Self {
        let before = sched_getaffinity(None).expect("the cores of this process");
        let threads: Vec<Pid> = pids.flat_map(threads).collect();
        let mut one = CpuSet::new();
        one.set(core);
        for thread in &threads {
            sched_setaffinity(Some(*thread), &one).expect("every process keeps to the core");
        }
        Self { threads, before }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for thread in &self.threads {
            // One that has ended needs no core.
            let _ = sched_setaffinity(Some(*thread), &self.before);
        }
    }
}
