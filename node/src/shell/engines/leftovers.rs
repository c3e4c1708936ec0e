//! Engines that an agent before this one left behind: it was killed, or the power of deciding was taken from it.
//!
//! Owns finding and ending them by their records; leaves the records' files to `shell/state`.
//! Invariant: a process is ended only if boot, process id and start time are those of the record, or if it carries
//! the record's nonce.

use std::{sync::Arc, time::Duration};

use rustix::process::Signal;
use tokio::{task::spawn_blocking, time::Instant};

use crate::{
    core::process_tree::{Family, ProcessFacts, ProcessId, StartTime},
    shell::{
        process,
        state::{EngineRecord, State},
    },
};

/// A leftover has no running requests: a short grace.
const GRACE: Duration = Duration::from_secs(3);
/// After this the agent goes on; what cannot be killed by then hangs in the kernel.
const LIMIT: Duration = Duration::from_secs(15);

/// Ends every engine that the records name, and forgets them. Returns when nothing of them is left.
pub(crate) async fn end_leftovers(state: &Arc<State>) {
    let boot = process::boot_id();
    for record in state.engine_records() {
        if record.boot_id == boot {
            end(&record).await;
        }
        state.forget_engine(&record.name);
    }
}

async fn end(record: &EngineRecord) {
    let started = Instant::now();
    let mut family = family(record);
    let mut told = false;
    loop {
        let nonce = record.nonce.clone();
        let looked = spawn_blocking(move || {
            let members = process::members(&mut family, &nonce, true);
            (family, members)
        });
        let Ok((next, members)) = looked.await else { return };
        family = next;
        if members.is_empty() {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(engine = %record.name, processes = members.len(), "an engine was left running: it is ended");
            process::signal(&members, Signal::TERM);
        } else if started.elapsed() >= LIMIT {
            tracing::error!(engine = %record.name, ?members, "processes of a left engine cannot be ended");
            return;
        } else if started.elapsed() >= GRACE {
            process::signal(&members, Signal::KILL);
        }
        tokio::time::sleep(process::LOOK).await;
    }
}

/// The record's processes: by the leader if that is still the same, else by the nonce alone.
fn family(record: &EngineRecord) -> Family {
    let same = |facts: &ProcessFacts| facts.start == record.start_time && record.pid.0 > 0;
    match process::facts(record.pid).filter(same) {
        Some(leader) => Family::new(leader.id, leader.start, leader.group == leader.id),
        None => Family::new(ProcessId(-1), StartTime(0), false),
    }
}
