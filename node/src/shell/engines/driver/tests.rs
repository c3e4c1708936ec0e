//! One engine's life between its driver, its supervisor and what is asked of it meanwhile; no process is started.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{path::Path, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::yield_now, time::timeout};
use umbel_contracts::{causes::Cause, proto::node::EngineAction};

use super::{Driver, traits};
use crate::{
    Config,
    core::supervisor::{State::Failed, Supervisor},
    shell::{
        engines::{COMMANDS, Engines, Inheritance},
        gpu::{Ended, Holders},
        state::State,
    },
};

const LIMIT: Duration = Duration::from_secs(20);

/// A node's file with these engines.
fn with(engines: &str) -> Config {
    let text = format!(
        "[node]\nstate_dir = \"/s\"\nallow_sim = true\n[programs]\nllama_server = \"/bin/sh\"\n{engines}"
    );
    Config::parse(&text, Path::new("/etc/umbel/node.toml")).unwrap()
}

/// An engine `a` that has a process and a GPU, and runs from this file.
fn llama(file: &Path) -> String {
    format!(
        "[[engine]]\nname = \"a\"\nkind = \"llama-server\"\nmodel = \"m\"\nmodel_file = {file:?}\ngpus = [\"GPU-1\"]\n"
    )
}

/// No engine yet.
fn engines(folder: &Path) -> Arc<Engines> {
    let state = Arc::new(State::open(&folder.join("state")).unwrap());
    Engines::start(&with(""), &state, &Arc::new(Holders::new(false)), &[], Inheritance::default())
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            yield_now().await;
        }
    };
    timeout(LIMIT, waiting).await.unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

/// A check before a start may be slow, and the engine stopped and gone meanwhile: what the check finds then takes no GPU.
#[tokio::test]
async fn row_83_a_check_that_outlives_its_engine_takes_no_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    std::fs::write(&file, "GGUF").unwrap();
    let engines = engines(dir.path());
    // Holds every check up.
    engines.host.cleared.send_replace(false);
    engines.apply(&with(&llama(&file)));
    until("a check to begin", || engines.host.cleared.receiver_count() > 0).await;
    engines.apply(&with(""));
    until("the engine to be gone", || !engines.is_there("a")).await;
    engines.host.cleared.send_replace(true);
    until("the check to end", || Arc::strong_count(&engines.host) == 1).await;
    engines.host.claim("b", &["GPU-1".to_owned()]).unwrap();
}

/// What stands in the way of a start has the name that its load would fail by: whoever is told judges by it whether that passes.
#[tokio::test]
async fn what_a_start_lacks_is_told_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (here, away) = (dir.path().join("m.gguf"), dir.path().join("away.gguf"));
    std::fs::write(&here, "GGUF").unwrap();
    let engines = engines(dir.path());
    for (config, code) in [
        (with(&llama(&away)), Cause::ArtifactMissing),
        (
            with(&llama(&here).replace("llama-server", "vllm").replace("model_file", "model_folder")),
            Cause::ProgramMissing,
        ),
    ] {
        engines.apply(&config);
        let view = || engines.by_name("a").map(|engine| engine.view());
        until("its check to fail", || view().is_some_and(|view| view.code == Some(code))).await;
        let view = view().unwrap();
        assert!(
            view.state == Failed && view.looks_again && view.cause.starts_with(code.as_str()),
            "{view:?}"
        );
        engines.apply(&with(""));
        until("it to be gone", || !engines.is_there("a")).await;
    }
}

/// However much operators ask of an engine that has not begun with it, it ends when it is wanted no more.
#[tokio::test]
async fn an_end_finds_room_beside_whatever_operators_ask() {
    let dir = tempfile::tempdir().unwrap();
    let engines = engines(dir.path());
    engines.apply(&with("[[engine]]\nname = \"a\"\nkind = \"sim\"\nmodel = \"m\"\n"));
    let engine = engines.by_name("a").unwrap();
    // Its driver has not begun yet.
    for _ in 0..COMMANDS {
        engine.control(EngineAction::Restart, Duration::ZERO).unwrap();
    }
    engine.control(EngineAction::Restart, Duration::ZERO).unwrap_err();
    engines.apply(&with(""));
    until("the engine to be gone", || !engines.is_there("a")).await;
}

/// An agent that ends waits neither for a port that a stranger has taken, nor for a GPU.
#[tokio::test]
async fn an_agent_that_ends_waits_for_nothing_that_an_engine_had() {
    let dir = tempfile::tempdir().unwrap();
    let stranger = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let engines = engines(dir.path());
    engines.apply(&with(&llama(Path::new("/nowhere"))));
    let engine = engines.by_name("a").unwrap();
    let mut stops = engine.stop.subscribe();
    let (supervisor, _) = Supervisor::new(traits(&engine.config()));
    let mut driver = Driver {
        engine,
        host: Arc::clone(&engines.host),
        changed: Arc::default(),
        supervisor,
        run: None,
        ended: Ended::default(),
        was_ready: None,
        port: Some(stranger.local_addr().unwrap().port()),
        route: None,
        start: 0,
        results: mpsc::channel(1).0,
    };
    engines.drain();
    tokio::select! {
        biased;
        () = driver.let_go(&mut stops) => {}
        () = std::future::ready(()) => panic!("it waits"),
    }
}
