//! Processor time and memory of process trees, from /proc: schedstat has nanosecond grain, where stat's ticks are 10 ms.

use std::fs;

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
