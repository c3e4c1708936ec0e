//! Inventories and telemetry as they arrive.
//!
//! Owns what replaces the last good report of each stream and what people are told of changed hardware. Invariant: the
//! cursor moves with every new number; the last good report is replaced only by one that is not older and not from the
//! future; telemetry never raises the revision.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use umbel_contracts::proto::node::{NodeInventory, NodeTelemetry};
use umbel_wire::{Error, Generation, NodeId};

use super::kept::{Kept, Moment};
use super::reports::{GPUS_MAX, NAMES_MAX, bad, stale_error};
use super::{Registry, StaleGeneration, stream};

/// On disk the telemetry's cursor stands this far above the true one, so that it need not be written with each report and
/// still never goes back: a node goes on above whatever it is told.
const RESERVED: u64 = 256;
/// Changes named in one sentence.
const CHANGES: usize = 8;

impl<H: Clone> Registry<H> {
    /// An inventory event: refused with `REPLAYED` unless its sequence is above the stored one.
    pub(crate) fn inventory(
        &mut self,
        id: NodeId,
        generation: Generation,
        inventory: NodeInventory,
        now: Instant,
        wall: i64,
    ) -> Result<(), Error> {
        self.current(id, generation).map_err(|StaleGeneration| stale_error())?;
        check_inventory(&inventory)?;
        let Some(node) = self.nodes.get_mut(&id) else { return Err(stale_error()) };
        let node = Arc::make_mut(node);
        node.streams.inventory.arrives(&mut node.report.inventory_sequence, inventory.sequence, now)?;
        self.take_inventory(id, inventory, Moment { now, wall });
        Ok(())
    }

    /// A telemetry event; it never raises the revision.
    pub(crate) fn telemetry(
        &mut self,
        id: NodeId,
        generation: Generation,
        telemetry: NodeTelemetry,
        now: Instant,
        wall: i64,
    ) -> Result<(), Error> {
        self.current(id, generation).map_err(|StaleGeneration| stale_error())?;
        if telemetry.gpus.len() > GPUS_MAX || telemetry.storage.len() > NAMES_MAX {
            return Err(bad("TOO_MANY_DEVICES", format!("telemetry has at most {GPUS_MAX} GPUs")));
        }
        let Some(node) = self.nodes.get_mut(&id) else { return Err(stale_error()) };
        let node = Arc::make_mut(node);
        let arrived =
            node.streams.telemetry.arrives(&mut node.report.telemetry_sequence, telemetry.sequence, now);
        if node.report.telemetry_sequence.saturating_add(RESERVED / 2) > node.telemetry_on_disk {
            self.unsaved.insert(id);
        }
        arrived?;
        let (last_good, kept) = last_good(node.report.telemetry.as_ref());
        let last_seen = node.report.last_seen_at_unix_ms;
        let observed = telemetry.observed_at_unix_ms;
        let good = self.judge_clock(id, observed, last_good, wall);
        let lost: Vec<String> =
            telemetry.gpus.iter().filter(|gpu| gpu.lost).map(|gpu| gpu.uuid.clone()).collect();
        if !lost.is_empty() {
            self.lose(id, &lost, last_seen, wall);
        }
        if (good || !kept)
            && let Some(node) = self.nodes.get_mut(&id)
        {
            let report = &mut Arc::make_mut(node).report;
            report.telemetry = Some(Kept::new(&telemetry, observed, good, Moment { now, wall }));
        }
        Ok(())
    }

    pub(super) fn take_inventory(&mut self, id: NodeId, mut inventory: NodeInventory, moment: Moment) {
        say_once(&mut inventory);
        let Some(node) = self.nodes.get(&id) else { return };
        let (last_good, kept) = last_good(node.report.inventory.as_ref());
        let last_seen = node.report.last_seen_at_unix_ms;
        let observed = inventory.observed_at_unix_ms;
        let good = self.judge_clock(id, observed, last_good, moment.wall);
        self.unsaved.insert(id);
        if !good {
            let lost: Vec<String> =
                inventory.gpus.iter().filter(|gpu| gpu.lost).map(|gpu| gpu.uuid.clone()).collect();
            self.change(id, |node| {
                stream::greet(&mut node.report.inventory_sequence, inventory.sequence);
                // What was never good is worth no more than this one: the host is shown, with its clock's problem.
                if !kept {
                    node.report.inventory = Some(Kept::new(&inventory, observed, false, moment));
                }
            });
            self.lose(id, &lost, last_seen, moment.wall);
            return;
        }
        self.judge_hardware(id, &inventory, moment.wall);
        let Some(node) = self.nodes.get(&id) else { return };
        let before = node.inventory();
        let known = |uuid: &str| node.absent_gpu(uuid).is_some();
        let changes = before.as_ref().map(|before| changes(before, &inventory, &known)).unwrap_or_default();
        self.judge_gpus(id, &inventory, moment.wall);
        let inventory = merge(before, inventory);
        self.change(id, |node| {
            let report = &mut node.report;
            stream::greet(&mut report.inventory_sequence, inventory.sequence);
            report.inventory = Some(Kept::new(&inventory, observed, true, moment));
        });
        if !changes.is_empty() {
            self.notice(id, "inventory_changed", None, &sentence(&changes), true);
        }
    }
}

/// The telemetry's cursor as it is written.
pub(super) fn on_disk(cursor: u64) -> u64 {
    if cursor == 0 { 0 } else { cursor.saturating_add(RESERVED) }
}

/// The time of the last good report, and whether there is one.
fn last_good<M: prost::Message + Default>(kept: Option<&Kept<M>>) -> (i64, bool) {
    (kept.map_or(0, Kept::last_good), kept.is_some_and(|kept| kept.good))
}

pub(super) fn check_inventory(inventory: &NodeInventory) -> Result<(), Error> {
    if inventory.gpus.len() > GPUS_MAX || inventory.storage.len() > NAMES_MAX {
        return Err(bad("TOO_MANY_DEVICES", format!("an inventory has at most {GPUS_MAX} GPUs")));
    }
    Ok(())
}

/// What an agent names twice is one thing.
fn say_once(inventory: &mut NodeInventory) {
    let mut seen = BTreeSet::new();
    inventory.gpus.retain(|gpu| !gpu.uuid.is_empty() && seen.insert(gpu.uuid.clone()));
    let mut seen = BTreeSet::new();
    inventory.storage.retain(|root| seen.insert(root.name.clone()));
}

// An incomplete inventory keeps the GPUs of the last good one: only a complete one says that a GPU is gone.
fn merge(kept: Option<NodeInventory>, mut inventory: NodeInventory) -> NodeInventory {
    if let Some(kept) = kept.filter(|_| !inventory.complete) {
        for gpu in kept.gpus {
            if inventory.gpus.len() < GPUS_MAX && !inventory.gpus.iter().any(|one| one.uuid == gpu.uuid) {
                inventory.gpus.push(gpu);
            }
        }
        if inventory.driver_version.is_empty() {
            (inventory.driver_version, inventory.cuda_version) = (kept.driver_version, kept.cuda_version);
        }
    }
    inventory
}

/// What differs and matters: not an index, an address on the bus or a reading. Lost, missing and returned GPUs are told
/// for themselves.
fn changes(old: &NodeInventory, new: &NodeInventory, known: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut changes = Vec::new();
    let mut text = |what: &str, old: &str, new: &str| {
        if old != new && !new.is_empty() {
            let old = if old.is_empty() { "not told" } else { old };
            changes.push(format!("{what} {new}, was {old}"));
        }
    };
    text("hostname", &old.hostname, &new.hostname);
    text("OS", &old.os, &new.os);
    text("kernel", &old.kernel, &new.kernel);
    text("CPU", &old.cpu_model, &new.cpu_model);
    text("driver", &old.driver_version, &new.driver_version);
    text("CUDA", &old.cuda_version, &new.cuda_version);
    text("accelerator mode", &old.accelerator_mode, &new.accelerator_mode);
    text("CPUs", &old.cpu_count.to_string(), &new.cpu_count.to_string());
    text("memory", &gib(old.memory_bytes), &gib(new.memory_bytes));
    if old.complete != new.complete {
        changes.push(match new.complete {
            true => "complete again".to_owned(),
            false => format!("incomplete: {}", new.incomplete_reason),
        });
    }
    if old.fabric_labels != new.fabric_labels {
        changes.push("other fabric labels".to_owned());
    }
    let roots = |inventory: &NodeInventory| -> BTreeSet<String> {
        inventory.storage.iter().map(|root| root.name.clone()).collect()
    };
    if roots(old) != roots(new) {
        changes.push("other storage roots".to_owned());
    }
    for gpu in &new.gpus {
        match old.gpus.iter().find(|one| one.uuid == gpu.uuid) {
            None if known(&gpu.uuid) => {}
            None => changes.push(format!("GPU {} ({}, {}) was not there", gpu.index, gpu.name, gpu.uuid)),
            Some(was) => {
                if was.mig_enabled != gpu.mig_enabled || was.mig_instances != gpu.mig_instances {
                    changes.push(format!("GPU {} is divided otherwise", gpu.index));
                }
                if was.memory_bytes != gpu.memory_bytes {
                    changes.push(format!("GPU {} has {}", gpu.index, gib(gpu.memory_bytes)));
                }
            }
        }
    }
    changes
}

fn gib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn sentence(changes: &[String]) -> String {
    let mut text = changes.iter().take(CHANGES).cloned().collect::<Vec<_>>().join("; ");
    if changes.len() > CHANGES {
        text.push_str(&format!("; and {} more", changes.len() - CHANGES));
    }
    text.chars().take(512).collect()
}
