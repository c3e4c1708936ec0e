//! Engines that an agent before this one left running: it was stopped, replaced or killed.
//!
//! Owns finding them by their records and ending those that nobody wants; leaves the records' files to `shell/state`,
//! runs without one to `strays`, and what becomes of a wanted one to its `driver`. Invariants: a process is ended only if boot, process id and start time
//! are those of the record, or if it carries the record's nonce; until the unwanted ones are gone nothing new is started.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::Instant,
};

use super::{
    Engines, Host,
    strays::{self, Stray, Trace},
};
use crate::{
    config::EngineConfig,
    core::{process_tree::Family, supervisor},
    shell::{
        holder::{self, Held},
        process,
        state::{EngineEnd, EngineRecord, State},
    },
};

/// Without a holder nobody takes its output any more, and it has no running requests: a short grace.
pub(super) const GRACE: Duration = Duration::from_secs(3);
/// After this the agent goes on; what cannot be killed by then hangs in the kernel.
pub(super) const LIMIT: Duration = Duration::from_secs(15);

/// What is left of one engine.
#[derive(Debug)]
pub(crate) enum Left {
    /// It runs, and its holder answers for it.
    Held(Held),
    /// It ended while no agent was there.
    Over(EngineEnd),
    /// Nobody answers for it: whatever is found of it is ended. Adopted without a holder it would stop at its next line
    /// of output, which nobody reads, and take its exit status and its orphans with it.
    Unheld,
}

/// An engine of an earlier agent.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) record: EngineRecord,
    pub(crate) left: Left,
}

/// How many an agent went on with, found to have ended while no agent was there, and ended itself.
#[derive(Debug, Default)]
pub(super) struct Fates {
    adopted: AtomicU64,
    over: AtomicU64,
    ended: AtomicU64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    /// By the engine's name.
    pub(crate) engines: BTreeMap<String, Inherited>,
    /// Runs that no record names: they are ended.
    pub(crate) strays: Vec<Stray>,
    /// What was wrong with the records, for people.
    pub(crate) problem: Option<String>,
}

impl Inheritance {
    pub(crate) fn is_empty(&self) -> bool {
        self.engines.is_empty() && self.strays.is_empty()
    }
}

/// Finds what the records name, and what runs without one. Records that cannot be read are set aside. Those of another start of the kernel are forgotten: nothing of them can be left.
pub(crate) async fn find(state: &Arc<State>) -> Inheritance {
    let boot = process::boot_id();
    let folder = state.engines();
    let damaged = state.set_aside_engine_records();
    for record in state.engine_records().iter().filter(|record| record.boot_id != boot) {
        state.forget_engine(record);
    }
    // A holder may write its record again.
    let strays = strays::find(state).await;
    let problem = strays.problem(&damaged);
    if let Some(problem) = &problem {
        tracing::warn!("{problem}");
    }
    let mut asked = JoinSet::new();
    for record in state.engine_records() {
        let folder = folder.clone();
        asked.spawn(async move {
            let left = match holder::attach(&record, &folder).await {
                Ok(held) => Left::Held(held),
                Err(holder::Lost) => record.end.clone().map_or(Left::Unheld, Left::Over),
            };
            Inherited { record, left }
        });
    }
    let found = asked.join_all().await;
    let engines = found.into_iter().map(|inherited| (inherited.record.name.clone(), inherited)).collect();
    Inheritance { engines, strays: strays.strays, problem }
}

/// Whether a record names an engine of this start of the kernel that may run. Blocks.
pub(crate) fn any_runs(state: &State) -> bool {
    let boot = process::boot_id();
    let records = state.engine_records();
    records
        .iter()
        .any(|record| record.boot_id == boot && record.end.is_none() && process::lives(record.engine))
}

/// Ends all of them; what is left where something cannot be ended.
pub(crate) async fn end_all(state: &Arc<State>, inheritance: Inheritance) -> Vec<Trace> {
    let mut ending = JoinSet::new();
    for inherited in inheritance.engines.into_values() {
        let state = Arc::clone(state);
        ending.spawn(async move { end(&state, inherited).await });
    }
    for stray in inheritance.strays {
        ending.spawn(stray.end());
    }
    ending.join_all().await.into_iter().filter_map(Result::err).collect()
}

/// Ends one of them and forgets it.
///
/// # Errors
/// Something of it is left; its record stays.
pub(crate) async fn end(state: &Arc<State>, inherited: Inherited) -> Result<(), Trace> {
    let Inherited { record, left } = inherited;
    let is_gone = match left {
        Left::Over(_) => true,
        Left::Held(held) => {
            tracing::info!(engine = %record.name, "an engine that runs is wanted no more: it is ended");
            held.end(supervisor::GRACE);
            let waited = tokio::time::timeout(supervisor::GRACE + LIMIT, held.gone()).await;
            let is_gone = matches!(waited, Ok(Ok(_)));
            held.release().await;
            is_gone || end_unheld(&record, Some(LIMIT)).await
        }
        Left::Unheld => end_unheld(&record, Some(LIMIT)).await,
    };
    if !is_gone {
        return Err(Trace::of(&record));
    }
    let state = Arc::clone(state);
    // The disk's word is not waited for longer than it takes.
    let _ = spawn_blocking(move || state.forget_engine(&record)).await;
    Ok(())
}

/// Ends whatever is found of a run for which no holder answers, a hanging one included; whether nothing is left.
pub(super) async fn end_unheld(record: &EngineRecord, limit: Option<Duration>) -> bool {
    end_found(&Trace::of(record), limit).await
}

/// The same by what a run is found by.
pub(super) async fn end_found(trace: &Trace, limit: Option<Duration>) -> bool {
    let started = Instant::now();
    let mut family = Family::new(&trace.roots);
    let mut told = false;
    loop {
        let nonce = trace.nonce.clone();
        let looked = spawn_blocking(move || {
            let members = process::members(&mut family, &nonce, true);
            (family, members)
        });
        let Ok((next, members)) = looked.await else { return false };
        family = next;
        if members.is_empty() {
            return true;
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(
                engine = trace.name,
                processes = members.len(),
                "an engine has no holder: it is ended"
            );
            process::signal(&members, Signal::TERM);
        } else if limit.is_some_and(|limit| started.elapsed() >= limit) {
            tracing::error!(engine = trace.name, ?members, "processes of an engine cannot be ended");
            return false;
        } else if started.elapsed() >= GRACE {
            process::signal(&members, Signal::KILL);
        }
        tokio::time::sleep(process::LOOK).await;
    }
}

/// What an inherited engine was started as, if this agent can go on with it as that.
fn started_as(record: &EngineRecord, wanted: &EngineConfig) -> Option<EngineConfig> {
    let kept = serde_json::from_value::<EngineConfig>(record.started.clone()).ok();
    let is_as_wanted = record.profile_digest == wanted.digest();
    // What another version wrote may not be read any more; what is wanted says the same then, or it is another engine.
    let started = kept.or_else(|| is_as_wanted.then(|| wanted.clone()))?;
    (started.source.kind() == wanted.source.kind()).then_some(started)
}

impl Host {
    /// What an earlier agent left of this engine, if its driver can go on with it, and what it was started as.
    pub(super) fn inherit(&self, wanted: &EngineConfig) -> Option<(Inherited, EngineConfig)> {
        let mut inheritance = self.inheritance.lock().unwrap_or_else(PoisonError::into_inner);
        let found = inheritance.engines.get(&wanted.name)?;
        if matches!(found.left, Left::Unheld) {
            return None;
        }
        let started = started_as(&found.record, wanted)?;
        let fate = if matches!(found.left, Left::Held(_)) { &self.fates.adopted } else { &self.fates.over };
        fate.fetch_add(1, Ordering::Relaxed);
        Some((inheritance.engines.remove(&wanted.name)?, started))
    }

    /// Waits until what earlier agents left and nobody wants is gone: it may hold a port, or a GPU's memory.
    pub(super) async fn cleared(&self) {
        // The sender lives as long as this.
        let _ = self.cleared.subscribe().wait_for(|cleared| *cleared).await;
    }
}

impl Engines {
    /// What became of the engines that earlier agents left, since this one started.
    pub(crate) fn fates(&self) -> [(&'static str, u64); 3] {
        let fates = &self.host.fates;
        [("adopted", &fates.adopted), ("over", &fates.over), ("ended", &fates.ended)]
            .map(|(word, count)| (word, count.load(Ordering::Relaxed)))
    }

    /// Ends what earlier agents left and what no engine went on with. Called once everything that is wanted was applied:
    /// until then nothing is started.
    pub(crate) fn end_unwanted(&self) {
        let host = Arc::clone(&self.host);
        let left = std::mem::take(&mut *host.inheritance.lock().unwrap_or_else(PoisonError::into_inner));
        let found = left.engines.len() + left.strays.len();
        tokio::spawn(async move {
            let stuck = end_all(&host.state, left).await;
            host.fates.ended.fetch_add(found.saturating_sub(stuck.len()) as u64, Ordering::Relaxed);
            for trace in stuck {
                host.stuck(trace);
            }
            host.cleared.send_replace(true);
        });
    }
}
