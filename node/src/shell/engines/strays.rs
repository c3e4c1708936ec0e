//! Runs of engines that no record names: it was cut, damaged or removed while the engine ran.
//!
//! Owns finding them, by the sockets in the folder of engines and by the processes that work in it, and ending them through
//! their holders; leaves what a record names to `leftovers`. Invariants: a holder that can write its record again is asked
//! to, so that its engine is gone on with; an engine is not started while anything of another run of it is left.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, PoisonError},
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use super::{
    Host,
    leftovers::{GRACE, LIMIT, end_found},
};
use crate::{
    config::EngineConfig,
    core::{
        process_tree::{Born, Family, ProcessFacts},
        supervisor,
    },
    shell::{
        holder::{self, Held},
        process,
        state::{EngineRecord, State},
    },
};

/// Sentences of one problem; more are counted.
const SENTENCES: usize = 4;
/// Process ids of one cause.
const PIDS: usize = 4;

/// What a run of an engine is found by.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    /// Nothing where nobody says which engine it is: it may be any.
    pub(crate) name: Option<String>,
    pub(super) nonce: String,
    pub(super) roots: Vec<Born>,
    /// Those that it was given; nothing where nobody says: it may be any.
    gpus: Option<Vec<String>>,
}

impl Trace {
    pub(super) fn of(record: &EngineRecord) -> Self {
        let (name, nonce) = (Some(record.name.clone()), record.nonce.clone());
        let started: Option<EngineConfig> = serde_json::from_value(record.started.clone()).ok();
        let gpus =
            started.map(|started| started.source.process().map(|own| own.gpus.clone()).unwrap_or_default());
        Self { name, nonce, roots: vec![record.holder, record.engine], gpus }
    }

    /// Of a run that no record names.
    fn unrecorded(name: Option<String>, nonce: String) -> Self {
        Self { name, nonce, roots: Vec::new(), gpus: None }
    }

    /// Whether it is in the way of an engine: by its name, or on its GPUs.
    fn is_in_the_way(&self, engine: &str, gpus: &[String]) -> bool {
        let is_named = self.name.as_deref().is_none_or(|name| name == engine);
        is_named || gpus.iter().any(|gpu| self.gpus.as_ref().is_none_or(|own| own.contains(gpu)))
    }

    /// What is left of it. Blocks on `/proc`.
    fn members(&self) -> Vec<ProcessFacts> {
        process::members(&mut Family::new(&self.roots), &self.nonce, true)
    }
}

/// A run that no record names.
#[derive(Debug)]
pub(crate) struct Stray {
    pub(crate) trace: Trace,
    holder: Option<Born>,
    held: Option<Held>,
}

/// What was found, and what there is to tell of it.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) strays: Vec<Stray>,
    /// By the engine's name.
    told: BTreeMap<String, &'static str>,
}

/// Finds them. Those whose holder has written its record again are none when this returns.
pub(super) async fn find(state: &Arc<State>) -> Found {
    let mut found = Found::default();
    let mut by_nonce = BTreeMap::new();
    for (name, held) in answering(state).await {
        let named = state.engine_record(&name);
        let is_known = |record: &EngineRecord| record.nonce == held.nonce();
        if named.as_ref().is_some_and(is_known) {
            continue;
        }
        if named.is_none() && held.is_there() {
            held.record().await;
            if state.engine_record(&name).as_ref().is_some_and(is_known) {
                found.told.insert(name, "ran, and its holder wrote its record anew: it is gone on with");
                continue;
            }
        }
        let trace = Trace::unrecorded(Some(name), held.nonce());
        by_nonce.insert(held.nonce(), Stray { trace, holder: None, held: Some(held) });
    }
    add_working(state, &mut by_nonce).await;
    for stray in by_nonce.into_values() {
        if stray.runs().await {
            let name = stray.trace.name.clone().unwrap_or_else(|| "of an unknown name".into());
            found
                .told
                .insert(name, "ran without a record, so its port and key are not known: it is ended first");
        }
        found.strays.push(stray);
    }
    found
}

/// Whoever answers at a socket in the folder of engines.
async fn answering(state: &State) -> Vec<(String, Held)> {
    let mut asked = JoinSet::new();
    for name in state.engine_files("sock") {
        let folder = state.engines();
        asked.spawn(async move { holder::find(&name, &folder).await.map(|held| (name, held)) });
    }
    asked.join_all().await.into_iter().flatten().collect()
}

/// Adds what works in the folder of engines and carries the mark of a run that no record names.
async fn add_working(state: &Arc<State>, strays: &mut BTreeMap<String, Stray>) {
    let state = Arc::clone(state);
    let looked = spawn_blocking(move || {
        let records = state.engine_records();
        let known: BTreeSet<String> = records.into_iter().map(|record| record.nonce).collect();
        let mut marked = process::marked_in(Path::new(&state.engines()));
        marked.retain(|process| !known.contains(&process.nonce));
        marked
    });
    for process in looked.await.unwrap_or_default() {
        let stray = strays.entry(process.nonce.clone()).or_insert_with(|| Stray {
            trace: Trace::unrecorded(None, process.nonce),
            holder: None,
            held: None,
        });
        stray.trace.roots.push(process.born);
        if process.is_holder {
            stray.holder = Some(process.born);
        }
        if stray.trace.name.is_none() {
            stray.trace.name = process.engine;
        }
    }
}

impl Stray {
    /// Whether anything of the engine is left, besides a holder that goes.
    async fn runs(&self) -> bool {
        if self.held.as_ref().is_some_and(Held::is_there) {
            return true;
        }
        let (trace, holder) = (self.trace.clone(), self.holder);
        let is_more = move |facts: &ProcessFacts| holder.is_none_or(|holder| !holder.is(facts));
        spawn_blocking(move || trace.members().iter().any(is_more)).await.unwrap_or(true)
    }

    /// Ends it, with grace where it has a holder.
    ///
    /// # Errors
    /// Something of it is left.
    pub(super) async fn end(self) -> Result<(), Trace> {
        let Self { trace, holder, held } = self;
        tracing::warn!(engine = trace.name, "a run of an engine that no record names is ended");
        let patience = match (held, holder) {
            (Some(held), _) => {
                held.end(supervisor::GRACE);
                let gone = timeout(supervisor::GRACE + LIMIT, held.gone()).await;
                held.release().await;
                // Then only the holder itself is left to go.
                if matches!(gone, Ok(Ok(_))) { GRACE } else { Duration::ZERO }
            }
            // It has lost its socket; told to end it does the same.
            (None, Some(holder)) => {
                let facts = process::facts(holder.pid).filter(|facts| holder.is(facts));
                process::signal(facts.as_slice(), Signal::TERM);
                supervisor::GRACE + LIMIT
            }
            (None, None) => Duration::ZERO,
        };
        let until = Instant::now() + patience;
        while Instant::now() < until {
            let look = trace.clone();
            if spawn_blocking(move || look.members().is_empty()).await.unwrap_or(false) {
                return Ok(());
            }
            sleep(process::LOOK).await;
        }
        if end_found(&trace, Some(LIMIT)).await { Ok(()) } else { Err(trace) }
    }
}

impl Found {
    /// One problem of all that was found. `damaged`: engines whose records could not be read and were set aside.
    pub(super) fn problem(&self, damaged: &[String]) -> Option<String> {
        let mut sentences: Vec<String> = Vec::new();
        for name in damaged {
            let what = self.told.get(name).map_or("did not run any more", |what| *what);
            sentences.push(format!(
                "the record of engine {name} could not be read and was set aside as {}.unreadable; the engine {what}",
                EngineRecord::file_name(name)
            ));
        }
        let others = self.told.iter().filter(|(name, _)| !damaged.contains(name));
        sentences
            .extend(others.map(|(name, what)| format!("no record named a run of engine {name}; it {what}")));
        let more = sentences.len().saturating_sub(SENTENCES);
        sentences.truncate(SENTENCES);
        if more > 0 {
            sentences.push(format!("and {more} more"));
        }
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }
}

impl Host {
    /// Remembers what could not be ended: whatever has its name is not started.
    pub(super) fn stuck(&self, trace: Trace) {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).push(trace);
    }

    /// Looks whether anything is left of other runs of this engine, and tries to end it once more.
    ///
    /// # Errors
    /// Why the engine cannot be started.
    pub(super) async fn alone(&self, engine: &str, gpus: &[String]) -> Result<(), String> {
        let stuck = self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for trace in stuck.into_iter().filter(|trace| trace.is_in_the_way(engine, gpus)) {
            let nonce = trace.nonce.clone();
            let looked = spawn_blocking(move || {
                let members = trace.members();
                process::signal(&members, Signal::KILL);
                members
            });
            let unknown =
                |_| "LEFT_OVER: it could not be looked for what is left of an earlier run".to_owned();
            let members = looked.await.map_err(unknown)?;
            if !members.is_empty() {
                let pids: Vec<_> = members.iter().take(PIDS).map(|facts| facts.id.0.to_string()).collect();
                return Err(format!(
                    "LEFT_OVER: {} processes of an earlier run cannot be ended ({}); it is started when they are gone. If they hang in the kernel, mostly in a driver, the host wants a restart",
                    members.len(),
                    pids.join(", ")
                ));
            }
            self.stuck.lock().unwrap_or_else(PoisonError::into_inner).retain(|trace| trace.nonce != nonce);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Config,
        shell::{
            engines::{Engines, Inheritance},
            gpu::Holders,
        },
    };

    /// While something of an earlier run is left, its engine is not started and says why; others are.
    #[tokio::test]
    async fn an_engine_waits_for_what_is_left_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let config =
            Config::parse("[node]\nstate_dir = \"/s\"\n", Path::new("/etc/umbel/node.toml")).unwrap();
        let state = Arc::new(State::open(&dir.path().join("state")).unwrap());
        let engines =
            Engines::start(&config, &state, &Arc::new(Holders::new(false)), &[], Inheritance::default());
        let nonce = format!("left-over-{}", std::process::id());
        let mut left =
            std::process::Command::new("sleep").arg("1000").env(process::NONCE, &nonce).spawn().unwrap();
        engines.host.stuck(Trace::unrecorded(Some("chat.r1".into()), nonce.clone()));
        assert_eq!(engines.host.alone("other", &[]).await, Ok(()));
        let pid = i32::try_from(left.id()).unwrap();
        let marked = async {
            while !process::is_marked(crate::core::process_tree::ProcessId(pid), &nonce) {
                sleep(process::LOOK).await
            }
        };
        timeout(Duration::from_secs(20), marked).await.unwrap();
        let why = engines.host.alone("chat.r1", &[]).await.unwrap_err();
        assert!(why.starts_with("LEFT_OVER: 1 processes") && why.contains(&left.id().to_string()), "{why}");
        left.wait().unwrap();
        assert_eq!(engines.host.alone("chat.r1", &[]).await, Ok(()));
        assert!(engines.host.stuck.lock().unwrap().is_empty());
    }

    /// Row 83: what an engine started and what has left its folder, its parent and its session is found by the mark in its environment
    /// that names the folder; what carries another node's is left alone.
    #[tokio::test]
    async fn row_83_a_stray_that_left_the_folder_is_found_by_its_mark() {
        let dir = tempfile::tempdir().unwrap();
        let state = Arc::new(State::open(&dir.path().join("state")).unwrap());
        let home = process::home(Path::new(&state.engines()));
        let other = tempfile::tempdir().unwrap();
        let stray = |nonce: &str, home: &Path| {
            let mut command = std::process::Command::new("setsid");
            command.args(["sleep", "1000"]).current_dir("/").env_clear();
            command.env(process::NONCE, nonce).env(process::HOME, home).spawn().unwrap()
        };
        let nonce = |of: &str| format!("{of}-{}", std::process::id());
        let (mut own, mut others) = (stray(&nonce("own"), &home), stray(&nonce("other"), other.path()));
        let has = |child: &std::process::Child, of: &str| {
            let id = crate::core::process_tree::ProcessId(i32::try_from(child.id()).unwrap());
            process::is_marked(id, &nonce(of))
        };
        let marked = async {
            while !has(&own, "own") || !has(&others, "other") {
                sleep(process::LOOK).await;
            }
        };
        timeout(Duration::from_secs(20), marked).await.unwrap();
        let found = find(&state).await;
        let nonces: Vec<_> = found.strays.iter().map(|stray| stray.trace.nonce.clone()).collect();
        assert_eq!(nonces, [nonce("own")]);
        let says = found.problem(&[]).unwrap();
        assert!(says.contains("ran without a record"), "{says}");
        // The test is its parent, and takes it.
        let reaped = std::thread::spawn(move || own.wait().unwrap());
        for stray in found.strays {
            stray.end().await.unwrap();
        }
        assert!(!reaped.join().unwrap().success());
        assert!(others.try_wait().unwrap().is_none());
        others.kill().unwrap();
        others.wait().unwrap();
    }

    /// What cannot be ended is in the way of its own name, and of whoever wants its GPUs; of a run that no record names these
    /// are not known.
    #[test]
    fn what_is_left_is_in_the_way_on_its_gpus() {
        let gpus = ["GPU-1".to_owned()];
        let mut trace = Trace::unrecorded(Some("chat.r1".into()), "n".into());
        assert!(trace.is_in_the_way("chat.r1", &[]) && trace.is_in_the_way("other", &gpus));
        assert!(!trace.is_in_the_way("other", &[]));
        trace.gpus = Some(vec!["GPU-2".into()]);
        assert!(!trace.is_in_the_way("other", &gpus));
        assert!(Trace::unrecorded(None, "n".into()).is_in_the_way("other", &[]));
    }

    #[test]
    fn a_problem_stays_short() {
        let told = (0..9).map(|n| (format!("e{n}"), "ran")).collect();
        let says = Found { strays: Vec::new(), told }.problem(&["a".into()]).unwrap();
        assert!(
            says.starts_with("the record of engine a could not be read") && says.ends_with("and 6 more"),
            "{says}"
        );
        assert_eq!(Found::default().problem(&[]), None);
    }
}
