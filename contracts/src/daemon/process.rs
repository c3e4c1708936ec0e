//! What this process uses of its host, under the names that every Prometheus client library gives them.
//!
//! Owns reading `/proc/self`. Leaves the exposition to each tier. Invariant: what cannot be read is left out, never 0.

use std::fs;

/// One figure of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessFigure {
    /// As it is exposed, without `_total` of a counter.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// It only grows.
    pub is_counter: bool,
    /// Seconds, bytes or a count.
    pub value: f64,
}

/// Ticks a second of `/proc`: the same on every Linux that programs see.
const TICKS: f64 = 100.0;

/// All figures that can be read now. A few reads of `/proc`, microseconds each.
#[must_use]
pub fn process_figures() -> Vec<ProcessFigure> {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
    let (stat, status, limits) = (read("stat"), read("status"), read("limits"));
    let seconds = |field| after_name(&stat, field).map(|ticks| ticks / TICKS);
    let cpu = seconds(13).zip(seconds(14)).map(|(user, system)| user + system);
    let booted = fs::read_to_string("/proc/stat").ok().and_then(|text| word_after(&text, "btime"));
    let started = booted.zip(seconds(21)).map(|(booted, since)| booted + since);
    let kilobytes = |name| word_after(&status, name).map(|count| count * 1024.0);
    let fds = fs::read_dir("/proc/self/fd").ok();
    #[expect(clippy::cast_precision_loss, reason = "no process has 2^53 descriptors")]
    let fds = fds.map(|entries| entries.count().saturating_sub(1) as f64);
    [
        ("process_cpu_seconds", "User and system time used", true, cpu),
        ("process_resident_memory_bytes", "Memory in use", false, kilobytes("VmRSS:")),
        ("process_virtual_memory_bytes", "Address space in use", false, kilobytes("VmSize:")),
        ("process_threads", "Threads", false, word_after(&status, "Threads:")),
        ("process_open_fds", "Open descriptors", false, fds),
        ("process_max_fds", "Most open descriptors", false, word_after(&limits, "Max open files")),
        ("process_start_time_seconds", "When it was started, since 1970", false, started),
    ]
    .into_iter()
    .filter_map(|(name, help, is_counter, value)| {
        Some(ProcessFigure { name, help, is_counter, value: value? })
    })
    .collect()
}

/// A numbered field of `/proc/self/stat`, from 0. The second one is a name in brackets that may hold spaces.
fn after_name(stat: &str, field: usize) -> Option<f64> {
    let rest = stat.get(stat.rfind(')')? + 1..)?;
    rest.split_whitespace().nth(field.checked_sub(2)?)?.parse().ok()
}

/// The number behind a word at the start of a line.
fn word_after(text: &str, word: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(word))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn every_figure_is_there_and_plausible() {
        let figures = process_figures();
        assert_eq!(figures.len(), 7, "{figures:?}");
        let value = |name: &str| figures.iter().find(|figure| figure.name == name).unwrap().value;
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        assert!(value("process_open_fds") >= 3.0 && value("process_open_fds") < value("process_max_fds"));
        assert!(value("process_threads") >= 1.0);
        // This century, and not in the future by more than a clock's step.
        assert!(value("process_start_time_seconds") > 946_684_800.0);
    }

    #[test]
    fn a_name_with_brackets_and_spaces_moves_no_field() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13";
        assert_eq!(after_name(stat, 3), Some(1.0));
        assert_eq!(after_name(stat, 13), Some(11.0));
        assert_eq!(after_name("", 3), None);
        assert_eq!(word_after("VmSize: 5 kB\nVmRSS:\t 12 kB\n", "VmRSS:"), Some(12.0));
        assert_eq!(word_after("Max open files unlimited x\n", "Max open files"), None);
    }
}
