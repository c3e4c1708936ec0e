//! The host's GPUs over time: which are known, which are lost, and how old each figure is.
//!
//! Owns what becomes of one sweep over the driver after another; leaves the driver to `shell/gpu`. Invariant: a GPU is
//! named by its UUID whatever its index, a figure that was not read is absent and never a zero, and a GPU that was
//! there is left out only when the driver told of all of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use umbel_contracts::proto::node::{EngineMemory, Gpu, GpuTelemetry, NodeProblem};

use super::inventory::{GPUS, GpuFacts};

mod memory;

pub(crate) use memory::Said;

/// Figures go away when they are older than this many intervals.
pub(crate) const INTERVALS_KEPT: u32 = 3;
/// How long a hardware error stays a problem after it was raised last.
pub(crate) const XID_SHOWN: Duration = Duration::from_secs(600);
/// Processes of one GPU that are looked at.
pub(crate) const PROCESSES: usize = 256;
/// Driver errors that speak of the hardware or its link, by NVIDIA's list; others come from programs.
const HARDWARE_XIDS: [u32; 15] = [38, 48, 54, 61, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140, 143];

/// What one pass over the driver found.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sweep {
    pub(crate) driver_version: String,
    pub(crate) cuda_version: String,
    pub(crate) seen: Vec<Seen>,
    /// One sentence for each place of the driver's list that gave no GPU.
    pub(crate) unreadable: Vec<String>,
    /// Known UUIDs that the driver still knows, and that do not answer.
    pub(crate) silent: BTreeSet<String>,
    /// Errors that the driver raised since the last pass: UUID and number.
    pub(crate) xids: Vec<(String, u32)>,
}

/// A GPU that answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) facts: Gpu,
    /// `uuid`, `lost`, the Xids, `engines` and `age_ms` are filled in here, not by who reads the driver.
    pub(crate) figures: GpuTelemetry,
    pub(crate) processes: Vec<Holder>,
    /// PCI addresses at the other ends of its NVLinks.
    pub(crate) peers: BTreeSet<String>,
}

/// A process that holds memory of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: i32,
    /// Nothing where the driver does not say.
    pub(crate) bytes: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct Known {
    facts: Gpu,
    figures: GpuTelemetry,
    /// When the figures were read.
    at: Option<Instant>,
    seen_unix_ms: i64,
    lost_since_unix_ms: Option<i64>,
    processes: Vec<Holder>,
    engines: Vec<EngineMemory>,
    xid_count: u64,
    xid_last: u32,
    /// The last one that speaks of the hardware.
    broken: Option<(u32, Instant, i64)>,
}

/// What a sweep changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    /// Which GPUs are lost: what dispatch depends on.
    pub(crate) lost: bool,
    /// What is kept on the disk.
    pub(crate) kept: bool,
}

/// A GPU as the host's own status shows it.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) facts: Gpu,
    pub(crate) telemetry: GpuTelemetry,
    pub(crate) seen_unix_ms: i64,
    pub(crate) lost_since_unix_ms: Option<i64>,
}

/// All GPUs of the host.
#[derive(Debug, Default)]
pub(crate) struct Gpus {
    known: BTreeMap<String, Known>,
    driver_version: String,
    cuda_version: String,
    incomplete: Option<String>,
    /// Why the driver does not answer at all, and since when.
    fault: Option<(String, i64)>,
}

impl Gpus {
    /// What an earlier agent knew: not seen yet.
    pub(crate) fn after_start(kept: Vec<Gpu>) -> Self {
        let known = kept.into_iter().take(GPUS);
        let known = known.map(|facts| (facts.uuid.clone(), Known { facts, ..Known::default() }));
        Self { known: known.collect(), ..Self::default() }
    }

    /// UUIDs of all known ones.
    pub(crate) fn uuids(&self) -> Vec<String> {
        self.known.keys().cloned().collect()
    }

    /// Takes what a pass over the driver found, which ended at `now`.
    pub(crate) fn swept(&mut self, now: Instant, unix_ms: i64, sweep: Sweep) -> Changed {
        let before = (self.lost(), self.kept());
        self.fault = None;
        (self.driver_version, self.cuda_version) = (sweep.driver_version, sweep.cuda_version);
        let groups = nvlink_groups(&sweep.seen);
        let seen: BTreeSet<String> = sweep.seen.iter().map(|seen| seen.facts.uuid.clone()).collect();
        let mut left_out = 0;
        for mut gpu in sweep.seen {
            let uuid = gpu.facts.uuid.clone();
            if self.known.len() >= GPUS && !self.known.contains_key(&uuid) {
                left_out += 1;
                continue;
            }
            if let Some(group) = groups.get(&uuid)
                && gpu.facts.fabric_cluster.is_empty()
            {
                gpu.facts.fabric_cluster.clone_from(group);
            }
            gpu.processes.truncate(PROCESSES);
            let known = self.known.entry(uuid).or_default();
            *known = Known {
                facts: gpu.facts,
                figures: gpu.figures,
                at: Some(now),
                seen_unix_ms: unix_ms,
                lost_since_unix_ms: None,
                processes: gpu.processes,
                ..std::mem::take(known)
            };
        }
        self.incomplete = self.miss(&seen, &sweep.silent, &sweep.unreadable, unix_ms);
        if left_out > 0 {
            self.incomplete = Some(format!("{left_out} GPUs more than the {GPUS} that a node reports"));
        }
        for (uuid, number) in sweep.xids {
            if let Some(known) = self.known.get_mut(&uuid) {
                known.xid_count += 1;
                known.xid_last = number;
                if HARDWARE_XIDS.contains(&number) {
                    known.broken = Some((number, now, unix_ms));
                }
            }
        }
        Changed { lost: before.0 != self.lost(), kept: before.1 != self.kept() }
    }

    /// Judges the known ones that were not seen; why the list is not whole, if it is not.
    fn miss(
        &mut self,
        seen: &BTreeSet<String>,
        silent: &BTreeSet<String>,
        unreadable: &[String],
        unix_ms: i64,
    ) -> Option<String> {
        let absent: Vec<String> = self.known.keys().filter(|uuid| !seen.contains(*uuid)).cloned().collect();
        let mut places = unreadable.len();
        let mut unclear = Vec::new();
        for uuid in absent {
            if silent.contains(&uuid) {
                places = places.saturating_sub(1);
                self.lose(&uuid, unix_ms);
            } else {
                unclear.push(uuid);
            }
        }
        if places == 0 {
            // The driver told of all there are, and these are not among them.
            for uuid in &unclear {
                self.known.remove(uuid);
            }
            return None;
        }
        // As many places as absent ones, or more: each of those is behind one.
        if places >= unclear.len() {
            places -= unclear.len();
            for uuid in &unclear {
                self.lose(uuid, unix_ms);
            }
        }
        (places > 0).then(|| unreadable.join("; "))
    }

    fn lose(&mut self, uuid: &str, unix_ms: i64) {
        if let Some(known) = self.known.get_mut(uuid) {
            known.lost_since_unix_ms.get_or_insert(unix_ms);
            // What it last said of itself would be read as what it says now.
            (known.figures, known.at) = (GpuTelemetry::default(), None);
        }
    }

    /// The driver did not answer, or said that it cannot; whether that is news.
    pub(crate) fn failed(&mut self, unix_ms: i64, why: String) -> bool {
        let news = self.fault.as_ref().is_none_or(|(before, _)| *before != why);
        let since = self.fault.as_ref().map_or(unix_ms, |(_, since)| *since);
        self.fault = Some((why, since));
        news
    }

    /// UUIDs of those that were found and do not answer.
    pub(crate) fn lost(&self) -> Vec<String> {
        let lost = self.known.iter().filter(|(_, known)| known.lost_since_unix_ms.is_some());
        lost.map(|(uuid, _)| uuid.clone()).collect()
    }

    /// What to keep on the disk, so that a lost one can be named after a restart.
    pub(crate) fn kept(&self) -> Vec<Gpu> {
        self.known.values().map(|known| known.facts.clone()).collect()
    }

    /// What an inventory says of them: by index, lost ones where they were.
    pub(crate) fn facts(&self) -> GpuFacts {
        let mut gpus: Vec<Gpu> = self
            .known
            .values()
            .map(|known| Gpu { lost: known.lost_since_unix_ms.is_some(), ..known.facts.clone() })
            .collect();
        gpus.sort_by(|a, b| (a.index, &a.uuid).cmp(&(b.index, &b.uuid)));
        GpuFacts {
            gpus,
            driver_version: self.driver_version.clone(),
            cuda_version: self.cuda_version.clone(),
            incomplete: self.fault.as_ref().map(|(why, _)| why.clone()).or_else(|| self.incomplete.clone()),
        }
    }

    /// The figures of all of them, as old as they are.
    pub(crate) fn telemetry(&self, now: Instant, interval: Duration) -> Vec<GpuTelemetry> {
        self.known.values().map(|known| known.telemetry(now, interval)).collect()
    }

    /// What the host's own status shows.
    pub(crate) fn shown(&self, now: Instant, interval: Duration) -> Vec<Shown> {
        let mut shown: Vec<Shown> = self
            .known
            .values()
            .map(|known| Shown {
                facts: known.facts.clone(),
                telemetry: known.telemetry(now, interval),
                seen_unix_ms: known.seen_unix_ms,
                lost_since_unix_ms: known.lost_since_unix_ms,
            })
            .collect();
        shown.sort_by_key(|shown| shown.facts.index);
        shown
    }

    /// What is wrong with them, besides lost ones: those are told by UUID.
    pub(crate) fn problems(&self, now: Instant) -> Vec<NodeProblem> {
        let mut problems = Vec::new();
        if let Some((why, since)) = &self.fault {
            problems.push(NodeProblem {
                code: "GPU_UNAVAILABLE".into(),
                message: format!(
                    "the GPUs' driver does not answer: {why}. Check `nvidia-smi` and `dmesg` on the host; figures go away, engines go on"
                ),
                since_unix_ms: *since,
            });
        }
        for (uuid, known) in &self.known {
            if let Some((number, at, since)) = known.broken
                && now.saturating_duration_since(at) < XID_SHOWN
            {
                problems.push(NodeProblem {
                    code: "GPU_XID".into(),
                    message: format!(
                        "{uuid} raised the driver's error Xid {number}; look it up in NVIDIA's list and check `dmesg`. This goes away after {} min without another",
                        XID_SHOWN.as_secs() / 60
                    ),
                    since_unix_ms: since,
                });
            }
        }
        problems
    }
}

impl Known {
    fn telemetry(&self, now: Instant, interval: Duration) -> GpuTelemetry {
        let age = self.at.map(|at| now.saturating_duration_since(at));
        let figures = match age {
            Some(age) if age <= interval * INTERVALS_KEPT => self.figures.clone(),
            _ => GpuTelemetry::default(),
        };
        let xids = (self.xid_count > 0).then_some(self.xid_last);
        GpuTelemetry {
            uuid: self.facts.uuid.clone(),
            lost: self.lost_since_unix_ms.is_some(),
            // The driver keeps no count: before the first one it is known to be none, unless it never answered.
            xid_count: (self.at.is_some() || self.xid_count > 0).then_some(self.xid_count),
            xid_last: xids,
            engines: self.engines.clone(),
            age_ms: age.map_or(0, |age| u32::try_from(age.as_millis()).unwrap_or(u32::MAX)),
            ..figures
        }
    }
}

/// GPUs that reach each other over NVLinks, directly or through the same switch: each one's group.
fn nvlink_groups(seen: &[Seen]) -> BTreeMap<String, String> {
    // Places of one group come to have the least UUID's name, by spreading it until nothing changes.
    let mut place: BTreeMap<&str, &str> = BTreeMap::new();
    let linked: Vec<&Seen> = seen.iter().filter(|gpu| !gpu.peers.is_empty()).collect();
    loop {
        let mut changed = false;
        for gpu in &linked {
            let ends = || gpu.peers.iter().map(String::as_str).chain([gpu.facts.pci_address.as_str()]);
            let least =
                ends().filter_map(|end| place.get(end).copied()).chain([gpu.facts.uuid.as_str()]).min();
            let Some(least) = least else { continue };
            for end in ends() {
                changed |= place.insert(end, least) != Some(least);
            }
        }
        if !changed {
            break;
        }
    }
    let group = |gpu: &&Seen| place.get(gpu.facts.pci_address.as_str()).map(|name| format!("nvlink:{name}"));
    linked.iter().filter_map(|gpu| Some((gpu.facts.uuid.clone(), group(gpu)?))).collect()
}

#[cfg(test)]
mod tests;
