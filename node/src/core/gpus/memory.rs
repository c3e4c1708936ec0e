//! Whose memory of GPUs is held, and which of them answer.
//!
//! Owns what one sweep says about memory; leaves finding a process's engine to `shell/process`, and waiting until memory is given
//! back to `shell/gpu`. Invariant: of a GPU that does not tell all its figures it is not said how much nobody has.

use std::collections::{BTreeMap, BTreeSet};

use umbel_contracts::proto::node::EngineMemory;

use super::{Gpus, Known};

/// What the driver said last, for whoever starts engines or waits for their end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Said {
    /// Processes that hold memory.
    pub(crate) holders: BTreeSet<i32>,
    /// GPUs that answer, and their parts.
    pub(crate) answering: BTreeSet<String>,
    /// Bytes of each GPU's memory that no process has which the driver names: its own, and in a container everybody's.
    pub(crate) unowned: BTreeMap<String, u64>,
}

impl Gpus {
    /// What is to be told of the last sweep.
    pub(crate) fn said(&self) -> Said {
        Said { holders: self.holders(), answering: self.answering(), unowned: self.unowned() }
    }

    /// Who owns the memory: engines by process, as the host's process table had it.
    pub(crate) fn attribute(&mut self, owners: &BTreeMap<i32, String>) {
        for known in self.known.values_mut() {
            if known.lost_since_unix_ms.is_some() {
                // The engines that were on it: nothing newer can be known.
                continue;
            }
            let mut engines: BTreeMap<&str, u64> = BTreeMap::new();
            for holder in &known.processes {
                if let (Some(owner), Some(bytes)) = (owners.get(&holder.pid), holder.bytes) {
                    let sum = engines.entry(owner).or_default();
                    *sum = sum.saturating_add(bytes);
                }
            }
            let engines = engines.into_iter();
            known.engines =
                engines.map(|(engine, bytes)| EngineMemory { engine: engine.to_owned(), bytes }).collect();
        }
    }

    /// Processes that hold memory, as of the last sweep.
    fn holders(&self) -> BTreeSet<i32> {
        self.known.values().flat_map(|known| &known.processes).map(|holder| holder.pid).collect()
    }

    /// UUIDs of those that answered when they were looked at last, and of their parts.
    fn answering(&self) -> BTreeSet<String> {
        let here = self.known.values().filter(|known| known.is_answering());
        let parts = |known: &Known| {
            known.facts.mig_instances.iter().map(|part| part.uuid.clone()).collect::<Vec<_>>()
        };
        here.flat_map(|known| parts(known).into_iter().chain([known.facts.uuid.clone()])).collect()
    }

    fn unowned(&self) -> BTreeMap<String, u64> {
        let of = |known: &Known| {
            let owned = known.processes.iter().map(|holder| holder.bytes).sum::<Option<u64>>()?;
            let used = known.figures.memory_used_bytes.filter(|_| known.is_answering())?;
            Some((known.facts.uuid.clone(), used.saturating_sub(owned)))
        };
        self.known.values().filter_map(of).collect()
    }
}

impl Known {
    fn is_answering(&self) -> bool {
        self.at.is_some() && self.lost_since_unix_ms.is_none()
    }
}
