//! GPUs that a node had and that are gone, or are there and do not answer.
//!
//! Owns what makes a GPU missing (a complete inventory without it, and nothing else), lost (its node says so in a heartbeat)
//! and returned, and which engines were on it. Invariant: what a node had does not vanish: it is shown as missing, with the
//! time it was seen last, until it is back or long forgotten.

use serde::{Deserialize, Serialize};
use umbel_contracts::proto::node::{Gpu, NodeInventory, NodeTelemetry};
use umbel_wire::NodeId;

use super::Registry;
use super::node::Node;
use super::reports::GPUS_MAX;

/// A GPU that was taken out is shown as missing for this long.
const MISSING_SHOWN_MS: i64 = 30 * 24 * 3_600 * 1_000;

/// Why a GPU cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Absence {
    /// It was found and does not answer.
    Lost,
    /// A complete inventory no longer has it.
    Missing,
}

/// One such GPU, in its node's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AbsentGpu {
    pub(crate) uuid: String,
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) memory_bytes: u64,
    pub(crate) why: Absence,
    pub(crate) since_unix_ms: i64,
    /// When it was last known to answer, by the edge's clock.
    pub(crate) last_seen_at_unix_ms: i64,
    /// UUIDs of the parts that it was divided into (MIG): what is on one of them is on it.
    #[serde(default)]
    pub(crate) parts: Vec<String>,
    /// Engines that were on it and have not been started again since.
    #[serde(default)]
    pub(crate) engines: Vec<String>,
}

impl AbsentGpu {
    /// For people: `GPU 3 (H100, GPU-1a2b...)`.
    pub(crate) fn words(&self) -> String {
        format!("GPU {} ({}, {})", self.index, self.name, self.uuid)
    }

    /// All that is gone with it: itself, and its parts.
    pub(crate) fn uuids(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.uuid).chain(&self.parts)
    }
}

impl Node {
    /// What makes a provider of this engine unavailable although the engine runs: a GPU that it was given by its UUID, or that
    /// it was seen on.
    pub(crate) fn absent_gpu_of(&self, engine: &str) -> Option<&AbsentGpu> {
        let mut absent = self.report.absent.iter();
        let declared = || self.report.engines.iter().find(|one| one.name == engine);
        absent.find(|gpu| {
            gpu.engines.iter().any(|name| name == engine)
                || declared().is_some_and(|one| gpu.uuids().any(|uuid| one.gpus.contains(uuid)))
        })
    }

    /// This GPU, if it cannot be used.
    pub(crate) fn absent_gpu(&self, uuid: &str) -> Option<&AbsentGpu> {
        self.report.absent.iter().find(|gpu| gpu.uuid == uuid)
    }
}

/// What became of a GPU.
enum News {
    Lost,
    Missing,
    Returned,
}

impl<H: Clone> Registry<H> {
    /// What a heartbeat says of GPUs that do not answer: all of them, so the others do.
    pub(super) fn lost_gpus(&mut self, id: NodeId, lost: &[String], last_seen: i64, wall: i64) {
        let Some(node) = self.nodes.get(&id) else { return };
        let known = node.report.absent.iter().filter(|gpu| gpu.why == Absence::Lost);
        // Nearly every heartbeat ends here.
        if known.clone().count() == lost.len() && known.clone().all(|gpu| lost.contains(&gpu.uuid)) {
            return;
        }
        let back: Vec<String> =
            known.filter(|gpu| !lost.contains(&gpu.uuid)).map(|gpu| gpu.uuid.clone()).collect();
        self.lose(id, lost, last_seen, wall);
        self.give_back(id, &back);
    }

    /// GPUs of the last inventory that do not answer any more.
    pub(super) fn lose(&mut self, id: NodeId, lost: &[String], last_seen: i64, wall: i64) {
        let Some(node) = self.nodes.get(&id) else { return };
        let fresh = |uuid: &&String| node.absent_gpu(uuid).is_none_or(|gpu| gpu.why == Absence::Missing);
        let fresh: Vec<&String> = lost.iter().filter(fresh).collect();
        if fresh.is_empty() {
            return;
        }
        let (inventory, telemetry) = (node.inventory().unwrap_or_default(), node.telemetry());
        let absent: Vec<AbsentGpu> = inventory
            .gpus
            .iter()
            .filter(|gpu| fresh.contains(&&gpu.uuid))
            .map(|gpu| absent(gpu, Absence::Lost, telemetry.as_ref(), last_seen, wall))
            .collect();
        self.take_away(id, absent);
    }

    /// What an inventory says that counts: a complete one without a GPU makes that missing.
    pub(super) fn judge_gpus(&mut self, id: NodeId, inventory: &NodeInventory, wall: i64) {
        let Some(node) = self.nodes.get(&id) else { return };
        let here = |uuid: &str| inventory.gpus.iter().find(|gpu| gpu.uuid == uuid);
        let kept = node.inventory().unwrap_or_default();
        let telemetry = node.telemetry();
        let received = |node: &Node| {
            let inventory = node.report.inventory.as_ref().map_or(0, |kept| kept.received_at_unix_ms);
            let telemetry = node.report.telemetry.as_ref().map_or(0, |kept| kept.received_at_unix_ms);
            inventory.max(telemetry)
        };
        let last_seen = received(node);
        let mut gone: Vec<AbsentGpu> = Vec::new();
        if inventory.complete {
            for gpu in kept.gpus.iter().filter(|gpu| here(&gpu.uuid).is_none()) {
                gone.push(match node.absent_gpu(&gpu.uuid) {
                    Some(lost) => AbsentGpu { why: Absence::Missing, since_unix_ms: wall, ..lost.clone() },
                    None => absent(gpu, Absence::Missing, telemetry.as_ref(), last_seen, wall),
                });
            }
        }
        let back: Vec<String> = node
            .report
            .absent
            .iter()
            .filter(|gpu| here(&gpu.uuid).is_some_and(|found| !found.lost))
            .map(|gpu| gpu.uuid.clone())
            .collect();
        let lost: Vec<String> =
            inventory.gpus.iter().filter(|gpu| gpu.lost).map(|gpu| gpu.uuid.clone()).collect();
        self.take_away(id, gone);
        self.give_back(id, &back);
        self.lose(id, &lost, last_seen, wall);
        let old = |gpu: &AbsentGpu| {
            gpu.why == Absence::Missing && wall.saturating_sub(gpu.since_unix_ms) > MISSING_SHOWN_MS
        };
        if self.nodes.get(&id).is_some_and(|node| node.report.absent.iter().any(old)) {
            self.change(id, |node| node.report.absent.retain(|gpu| !old(gpu)));
        }
    }

    fn take_away(&mut self, id: NodeId, gpus: Vec<AbsentGpu>) {
        for gpu in gpus {
            let news = match gpu.why {
                Absence::Lost => News::Lost,
                Absence::Missing => News::Missing,
            };
            self.tell_gpu(id, &gpu, &news);
            self.change(id, |node| {
                let absent = &mut node.report.absent;
                absent.retain(|other| other.uuid != gpu.uuid);
                absent.push(gpu);
                // The oldest go first: more than a host can have at once is history.
                let over = absent.len().saturating_sub(GPUS_MAX);
                absent.drain(..over);
            });
        }
    }

    fn give_back(&mut self, id: NodeId, uuids: &[String]) {
        for uuid in uuids {
            let Some(gpu) = self.nodes.get(&id).and_then(|node| node.absent_gpu(uuid)).cloned() else {
                continue;
            };
            self.tell_gpu(id, &gpu, &News::Returned);
            self.change(id, |node| node.report.absent.retain(|other| other.uuid != *uuid));
        }
    }

    fn tell_gpu(&mut self, id: NodeId, gpu: &AbsentGpu, news: &News) {
        self.unsaved.insert(id);
        let (kind, words) = match news {
            News::Lost => ("gpu_lost", "does not answer any more"),
            News::Missing => ("gpu_missing", "is gone from the host"),
            News::Returned => ("gpu_returned", "is back"),
        };
        self.notice(id, kind, None, &format!("{} {words}", gpu.words()), true);
    }

    /// An engine that was started again says itself whether it runs: the GPU that it was on no longer counts.
    pub(super) fn started_again(&mut self, id: NodeId, engines: &[String]) {
        let held = |node: &Node| {
            let mut on = node.report.absent.iter().flat_map(|gpu| &gpu.engines);
            on.any(|name| engines.contains(name))
        };
        if !self.nodes.get(&id).is_some_and(|node| held(node)) {
            return;
        }
        self.unsaved.insert(id);
        self.change(id, |node| {
            for gpu in &mut node.report.absent {
                gpu.engines.retain(|name| !engines.contains(name));
            }
        });
    }
}

fn absent(
    gpu: &Gpu,
    why: Absence,
    telemetry: Option<&NodeTelemetry>,
    last_seen: i64,
    wall: i64,
) -> AbsentGpu {
    let figures = telemetry.and_then(|report| report.gpus.iter().find(|one| one.uuid == gpu.uuid));
    let engines = figures.map(|figures| figures.engines.as_slice()).unwrap_or_default();
    AbsentGpu {
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        index: gpu.index,
        memory_bytes: gpu.memory_bytes,
        why,
        since_unix_ms: wall,
        last_seen_at_unix_ms: last_seen,
        parts: gpu.mig_instances.iter().map(|part| part.uuid.clone()).collect(),
        engines: engines.iter().filter(|one| one.bytes > 0).map(|one| one.engine.clone()).collect(),
    }
}
