//! Settings from the edge and edits of the node's own file, in a running agent.

use rustix::process::Signal;
use serde_json::json;
use umbel_contracts::proto::node::{EngineState, InferenceOutcome as Outcome};
use umbel_wire::Code;

use crate::{
    agent::{Agent, Folder},
    edge::{Ask, Edge},
    engine::program,
    joining::SIM,
    relay::Bench,
    until,
};

/// A node whose file has a root for models, a program that behaves like `mode`, and the built-in engine.
/// Fields end in this order.
struct Node {
    agent: Agent,
    edge: Edge,
    folder: Folder,
}

impl Node {
    async fn start(mode: &str, engine: bool) -> Self {
        let edge = Edge::start().await;
        let folder = Folder::new("");
        let text = std::fs::read_to_string(folder.path("node.toml")).unwrap();
        let lines = program(folder.path("").as_path(), mode);
        let lines = if engine { lines.as_str() } else { lines.split("[[engine]]").next().unwrap() };
        std::fs::create_dir(folder.path("quarantine")).unwrap();
        let roots = format!(
            "[artifacts]\nquarantine = \"quarantine\"\n[artifacts.roots]\nmodels = {:?}\n",
            folder.path("")
        );
        std::fs::write(folder.path("node.toml"), format!("{text}{roots}{lines}{SIM}")).unwrap();
        folder.enroll(edge.token()).await.unwrap();
        let agent = folder.start();
        edge.connection().await;
        Self { edge, folder, agent }
    }

    /// Kills the agent as the kernel does, and starts the next one.
    async fn kill_and_start(&mut self) {
        let hellos = self.edge.heard(|heard| heard.hellos.len());
        self.agent.signal(Signal::KILL);
        assert_eq!(self.agent.ended().await, None);
        self.agent = self.folder.start();
        until("the next hello", async || {
            (self.edge.heard(|heard| heard.hellos.len()) > hellos).then_some(())
        })
        .await;
    }

    fn edit(&self, from: &str, to: &str) {
        let text = std::fs::read_to_string(self.folder.path("node.toml")).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(self.folder.path("node.toml"), text.replace(from, to)).unwrap();
    }

    fn declared(&self, name: &str) -> Option<u32> {
        self.edge.heard(|heard| {
            let engines = &heard.declared.last()?.engines;
            engines.iter().find(|engine| engine.name == name).map(|engine| engine.capacity)
        })
    }
}

/// Settings change while a stream runs: it is unbroken, the connection too, and the new values are in force.
#[tokio::test]
async fn settings_change_while_it_streams() {
    let mut bench = Bench::start().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    exchange.start_events().await;
    exchange.chunk(b"data: 1\n\n").await;
    stream.head().await;
    assert_eq!(stream.take(9).await, b"data: 1\n\n");
    let settings = json!({
        "log": { "level": "debug" },
        "labels": { "rack": "r7" },
        "engines": { "ext": { "capacity": 9, "aliases": ["other"] } },
    });
    let state = bench.edge.set(1, settings).await.unwrap();
    assert_eq!((state.applied_version, state.refused_version), (1, 0));
    until("the new declaration", async || {
        bench.edge.heard(|heard| {
            let last = heard.declared.last()?;
            (last.engines[0].capacity == 9
                && last.engines[0].aliases == ["other"]
                && last.labels["rack"] == "r7")
                .then_some(())
        })
    })
    .await;
    bench.edge.settings("the end of the trial", |said| said.applied_version == 1 && !said.confirming).await;
    exchange.chunk(b"data: 2\n\n").await;
    exchange.end_chunks().await;
    let (bytes, end) = stream.rest().await;
    assert_eq!((bytes.as_slice(), end.outcome), (b"data: 2\n\n".as_slice(), Outcome::Complete));
    assert_eq!(bench.edge.heard(|heard| heard.hellos.len()), 1);
    let status = bench.folder.status().await;
    assert_eq!((&status["settings_version"], &status["engines"][0]["capacity"]), (&json!(1), &json!(9)));
    // The next hello says so, and an older one changes nothing.
    let old = bench.edge.set(1, json!({ "labels": {} })).await;
    assert_eq!(old.unwrap().applied_version, 1);
    bench.edge.set(3, json!({})).await.unwrap();
    let older = bench.edge.set(2, json!({ "labels": { "a": "b" } })).await.unwrap_err();
    assert_eq!((older.code, older.reason.as_ref()), (Code::Conflict, "SETTINGS_OLDER"));
    drop(bench.agent);
}

/// Engines come and go with settings; what a stream has it keeps.
#[tokio::test]
async fn engines_come_change_and_go_with_settings() {
    let node = Node::start("plain", false).await;
    let engines = |tokens: u32, enabled: bool| json!({ "engines": { "echo": { "kind": "sim", "model": "e", "tokens": tokens, "enabled": enabled } } });
    node.edge.set(1, engines(3, true)).await.unwrap();
    node.edge.engine("echo", EngineState::Ready).await;
    node.edge.settings("the end of the trial", |said| said.applied_version == 1 && !said.confirming).await;
    let answer = async || {
        let body = r#"{"model":"e","messages":[{"role":"user","content":"hello"}]}"#;
        let (head, bytes, end) = node.edge.open(Ask::new("echo", body)).await.whole().await;
        assert_eq!((head.status, end.outcome), (200, Outcome::Complete));
        serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["usage"]["completion_tokens"].clone()
    };
    assert_eq!(answer().await, 3);
    node.edge.set(2, engines(5, true)).await.unwrap();
    until("the new value in force", async || (answer().await == 5).then_some(())).await;
    node.edge.set(3, engines(5, false)).await.unwrap();
    until("it is declared no more", async || node.declared("echo").is_none().then_some(())).await;
    let gone = node.edge.open(Ask::new("echo", "{}")).await.ended().await;
    assert_eq!((gone.error.unwrap().reason.as_ref(), gone.not_processed), ("UNKNOWN_PROVIDER", true));
    // And back under the same name.
    node.edge.set(4, engines(2, true)).await.unwrap();
    node.edge.engine("echo", EngineState::Ready).await;
    until("it answers again", async || {
        (node.edge.open(Ask::new("echo", "{}")).await.ended().await.error.is_none()).then_some(())
    })
    .await;
}

/// An engine that has no stream ends at once, whatever time streams would get: its name is free for what comes next.
#[tokio::test]
async fn an_engine_that_nobody_uses_does_not_wait_to_be_drained() {
    let node = Node::start("plain", false).await;
    let engines = |enabled: bool| {
        let echo = json!({ "kind": "sim", "model": "e", "enabled": enabled });
        json!({ "shutdown": { "drain": "1h" }, "engines": { "echo": echo } })
    };
    node.edge.set(1, engines(true)).await.unwrap();
    node.edge.engine("echo", EngineState::Ready).await;
    node.edge.settings("the end of the trial", |said| said.applied_version == 1 && !said.confirming).await;
    node.edge.set(2, engines(false)).await.unwrap();
    until("it is declared no more", async || node.declared("echo").is_none().then_some(())).await;
    node.edge.set(3, engines(true)).await.unwrap();
    node.edge.engine("echo", EngineState::Ready).await;
    node.edge.settings("the end of the trial", |said| said.applied_version == 3 && !said.confirming).await;
}

/// Row 77: what parses and does not work is taken back by itself: the last good ones are in force, also after a
/// restart, and what failed is told.
#[tokio::test]
async fn row_77_settings_that_do_not_work_are_taken_back() {
    let mut node = Node::start("plain", false).await;
    let good = json!({ "labels": { "rack": "r1" } });
    node.edge.set(1, good).await.unwrap();
    let bad = json!({
        "labels": { "rack": "r2" },
        "engines": { "new": { "kind": "llama-server", "model": "m", "model_file": "models/missing.gguf" } },
    });
    let state = node.edge.set(2, bad.clone()).await.unwrap();
    assert_eq!((state.applied_version, state.confirming), (2, true));
    let state = node.edge.settings("they are taken back", |said| said.refused_version == 2).await;
    assert_eq!((state.applied_version, state.confirming), (1, false));
    assert!(
        state.refusal.starts_with("engine new: ARTIFACT_MISSING: the model's file missing.gguf"),
        "{}",
        state.refusal
    );
    until("the old labels", async || {
        node.edge.heard(|heard| (heard.declared.last()?.labels["rack"] == "r1").then_some(()))
    })
    .await;
    node.kill_and_start().await;
    let hello = node.edge.heard(|heard| heard.hellos.last().cloned().unwrap());
    let said = hello.settings.unwrap();
    assert_eq!((said.applied_version, said.refused_version, hello.applied_settings_version), (1, 2, 1));
    assert_eq!(hello.labels["rack"], "r1");
    // Row 78: the same again is answered as before, and not tried again.
    let state = node.edge.set(2, bad).await.unwrap();
    assert_eq!((state.applied_version, state.refused_version, state.confirming), (1, 2, false));
    // A good one follows at once.
    let state = node.edge.set(3, json!({ "labels": { "rack": "r3" } })).await.unwrap();
    assert_eq!((state.applied_version, state.refused_version), (3, 0));
}

/// Row 77: the agent is killed while settings are on trial. Once: they are tried on. Twice: they are taken back.
#[tokio::test]
async fn row_77_an_agent_killed_during_a_trial_comes_back_with_good_settings() {
    let mut node = Node::start("traceback", false).await;
    node.edge.set(1, json!({ "labels": { "rack": "r1" } })).await.unwrap();
    // It crashes for half a minute before that counts as a loop.
    let bad = json!({ "engines": { "new": { "kind": "llama-server", "model": "m", "model_file": "models/m.gguf" } } });
    assert!(node.edge.set(2, bad).await.unwrap().confirming);
    node.kill_and_start().await;
    let said = node.edge.heard(|heard| heard.hellos.last().unwrap().settings.clone().unwrap());
    assert_eq!((said.applied_version, said.confirming), (2, true));
    node.kill_and_start().await;
    let hello = node.edge.heard(|heard| heard.hellos.last().cloned().unwrap());
    let said = hello.settings.unwrap();
    assert_eq!((said.applied_version, said.refused_version, said.confirming), (1, 2, false));
    assert!(hello.engines.iter().all(|engine| engine.name != "new"));
    assert_eq!(hello.labels["rack"], "r1");
}

/// What a process was started with stays until its next start, and that is told; the rest is in force at once.
#[tokio::test]
async fn what_needs_an_engines_restart_waits_for_it() {
    let node = Node::start("plain", true).await;
    node.edge.engine("own", EngineState::Ready).await;
    let record = || -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(node.folder.path("state/engines/own.json")).unwrap()).unwrap()
    };
    let pid = record()["pid"].as_i64().unwrap();
    let settings = json!({ "engines": { "own": { "context_tokens": 512, "capacity": 2 } } });
    let state = node.edge.set(1, settings).await.unwrap();
    assert_eq!((state.applied_version, state.confirming), (1, false));
    assert_eq!(state.waits_for_restart, ["own"]);
    until("the lower capacity", async || (node.declared("own") == Some(2)).then_some(())).await;
    assert_eq!(record()["pid"].as_i64().unwrap(), pid);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    node.edge.settings("its next start", |said| said.waits_for_restart.is_empty()).await;
    // What it said last may still be of the process before.
    let next = until("its next process", async || {
        let record = std::fs::read(node.folder.path("state/engines/own.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&record).ok()?;
        record["pid"].as_i64().filter(|next| *next != pid && *next > 0)
    })
    .await;
    node.edge.engine("own", EngineState::Ready).await;
    let environment = std::fs::read(format!("/proc/{next}/environ")).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    assert!(environment.contains("--ctx-size 512") && environment.contains("--parallel 2"), "{environment}");
    // A higher capacity than it was started for waits again.
    let state = node.edge.set(2, json!({ "engines": { "own": { "capacity": 9 } } })).await.unwrap();
    assert_eq!(state.waits_for_restart, ["own"]);
    drop(node.agent);
}

/// Rows 78 and 81: keys of a newer edge are ignored and told; what cannot be is refused by its path, and the next good
/// ones are taken although an engine has failed.
#[tokio::test]
async fn rows_78_and_81_unknown_keys_are_told_and_bad_ones_refused() {
    let node = Node::start("plain", false).await;
    let newer = json!({ "labels": { "a": "b" }, "weather": { "sun": true }, "engines": { "nowhere": { "capacity": 3 } } });
    let state = node.edge.set(1, newer).await.unwrap();
    assert_eq!((state.applied_version, state.refused_version), (1, 0));
    assert_eq!(state.ignored_keys, ["weather", "engines.nowhere"]);
    for (version, settings, path) in [
        (2, json!({ "shutdown": { "drain": "soon" } }), "shutdown.drain: "),
        (3, json!({ "engines": { "sim": { "capacity": 0 } } }), "engines.sim.capacity: "),
        (4, json!({ "engines": { "sim": { "threads": 3 } } }), "engines.sim.threads: "),
        (5, json!({ "programs": { "llama_server": "/bin/sh" } }), "programs: cannot be set"),
        (
            6,
            json!({ "engines": { "x": { "kind": "llama-server", "model": "m", "model_file": "../m" } } }),
            "engines.x.model_file: ",
        ),
    ] {
        let state = node.edge.set(version, settings).await.unwrap();
        assert_eq!((state.applied_version, state.refused_version), (1, version));
        assert!(state.refusal.starts_with(path), "{}", state.refusal);
    }
    let state = node.edge.set(7, json!({ "labels": { "a": "c" } })).await.unwrap();
    assert_eq!((state.applied_version, state.refused_version), (7, 0));
    drop(node.agent);
}

/// An edited file is taken up; one that does not load changes nothing and is a problem until it is mended.
#[tokio::test]
async fn an_edited_file_is_taken_up_or_a_problem() {
    let node = Node::start("plain", false).await;
    node.edge.set(1, json!({ "labels": { "pool": "p" } })).await.unwrap();
    node.edit("capacity = 2", "capacity = 7");
    until("the edit in force", async || (node.declared("sim") == Some(7)).then_some(())).await;
    let problem = async |code: &str, there: bool| {
        until(&format!("{code}: {there}"), async || {
            let has =
                node.edge.heard(|heard| heard.heartbeat.problems.iter().any(|problem| problem.code == code));
            (has == there).then_some(())
        })
        .await;
    };
    node.edit("capacity = 7", "capacity = 0");
    problem("CONFIG_FILE_INVALID", true).await;
    assert_eq!(node.declared("sim"), Some(7));
    // Good alone and not with the settings on top: the same.
    node.edge.set(2, json!({ "engines": { "sim": { "tokens": 4 } } })).await.unwrap();
    node.edit("capacity = 0", "capacity = 3");
    problem("CONFIG_FILE_INVALID", false).await;
    until("the edit in force", async || (node.declared("sim") == Some(3)).then_some(())).await;
    let status = node.folder.status().await;
    assert_eq!((&status["settings_version"], &status["problems"]), (&json!(2), &json!([])));
    // What only a new start takes up is named.
    node.edit("name = \"test\"", "name = \"other\"");
    problem("CONFIG_FILE_NEEDS_RESTART", true).await;
    assert_eq!(node.edge.heard(|heard| heard.hellos.len()), 1);
    drop(node.agent);
}

/// Settings that do not fit on a file that was edited while the agent was off: it runs on the file, says so, and takes
/// them up again when the file is mended.
#[tokio::test]
async fn a_file_that_was_edited_while_off_does_not_keep_the_agent_from_starting() {
    let mut node = Node::start("plain", false).await;
    node.edge.set(5, json!({ "engines": { "sim": { "tokens": 4 } } })).await.unwrap();
    node.agent.signal(Signal::TERM);
    assert_eq!(node.agent.ended().await, Some(0));
    node.edit("allow_sim = true", "allow_sim = true # no");
    let text = std::fs::read_to_string(node.folder.path("node.toml")).unwrap();
    let without = text.replace("kind = \"sim\"", "kind = \"external\"\nurl = \"http://127.0.0.1:9\"");
    std::fs::write(node.folder.path("node.toml"), without).unwrap();
    let hellos = node.edge.heard(|heard| heard.hellos.len());
    node.agent = node.folder.start();
    until("the hello", async || (node.edge.heard(|heard| heard.hellos.len()) > hellos).then_some(())).await;
    let said = node.edge.heard(|heard| heard.hellos.last().unwrap().settings.clone().unwrap());
    assert_eq!((said.applied_version, said.refused_version), (0, 5));
    assert!(said.refusal.starts_with("engines.sim.tokens: "), "{}", said.refusal);
    std::fs::write(node.folder.path("node.toml"), text).unwrap();
    node.edge
        .settings("they are in force again", |said| said.applied_version == 5 && said.refused_version == 0)
        .await;
}

/// Row 80: settings that cannot be written are not taken: the last ones stay, the node says so, and they may come again.
#[tokio::test]
async fn row_80_settings_that_cannot_be_kept_are_not_taken() {
    let node = Node::start("plain", false).await;
    node.edge.set(1, json!({ "labels": { "a": "b" } })).await.unwrap();
    let file = node.folder.path("state/settings.json");
    // No file can take the place of a directory.
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let next = json!({ "labels": { "a": "c" } });
    let error = node.edge.set(2, next.clone()).await.unwrap_err();
    assert_eq!((error.code, error.reason.as_ref()), (Code::InsufficientStorage, "SETTINGS_NOT_KEPT"));
    until("the problem", async || {
        let told = |heard: &crate::edge::Heard| {
            heard.heartbeat.problems.iter().any(|problem| problem.code == "SETTINGS_NOT_KEPT")
        };
        node.edge.heard(told).then_some(())
    })
    .await;
    assert_eq!(node.edge.heard(|heard| heard.settings.applied_version), 1);
    std::fs::remove_dir(&file).unwrap();
    assert_eq!(node.edge.set(2, next).await.unwrap().applied_version, 2);
    drop(node.agent);
}

/// Row 80: killed at any moment of writing settings, the next agent starts and has one of them, whole.
#[tokio::test]
async fn row_80_killed_while_settings_are_written() {
    let mut node = Node::start("plain", false).await;
    let mut sent = 0;
    for round in 0..6 {
        let mut last = 0;
        for _ in 0..=round {
            sent += 1;
            last = sent;
            let _ = node.edge.set(sent, json!({ "labels": { "round": sent.to_string() } })).await;
        }
        // One more is on its way while the agent is killed.
        let connection = node.edge.connection().await;
        sent += 1;
        node.edge.send(&connection, sent, json!({ "labels": { "round": sent.to_string() } }));
        node.kill_and_start().await;
        let hello = node.edge.heard(|heard| heard.hellos.last().cloned().unwrap());
        let applied = hello.applied_settings_version;
        assert!(applied == last || applied == sent, "{applied} of {last} and {sent}");
        assert_eq!(hello.labels["round"], applied.to_string());
        let left: Vec<_> = std::fs::read_dir(node.folder.path("state"))
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .filter(|name| name.contains("settings"))
            .collect();
        assert!(left.iter().all(|name| name == "settings.json" || name.contains("tmp")), "{left:?}");
        node.edge.connection().await;
    }
}
