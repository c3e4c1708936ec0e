//! Engines that the agent starts itself: each in a holder, and on without its agent.

mod judged;

use rustix::process::Signal;
use umbel_contracts::proto::node::{EngineAction, EngineState, InferenceOutcome as Outcome};
use umbel_wire::Code;

use crate::{
    agent::{Agent, Folder},
    edge::{Ask, Edge},
    engine::program,
    joining::SIM,
    until,
};

/// Fields end in this order.
struct Bench {
    agent: Agent,
    edge: Edge,
    folder: Folder,
}

impl Bench {
    /// A node with a program that behaves like this, and the built-in engine beside it.
    async fn start(mode: &str) -> Self {
        Self::with(mode, "").await
    }

    /// The same with further lines of the engine's table.
    async fn with(mode: &str, more: &str) -> Self {
        let edge = Edge::start().await;
        let folder = Folder::new("");
        let text = std::fs::read_to_string(folder.path("node.toml")).unwrap();
        let lines = program(folder.path("").as_path(), mode);
        std::fs::write(folder.path("node.toml"), format!("{text}{lines}{more}{SIM}")).unwrap();
        folder.enroll(edge.token()).await.unwrap();
        let agent = folder.start();
        edge.connection().await;
        Self { agent, edge, folder }
    }

    fn record(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&std::fs::read(self.folder.path("state/engines/own.json")).ok()?).ok()
    }

    async fn pid(&self) -> i32 {
        until("the engine's record", async || {
            let pid = self.record()?["pid"].as_i64()?;
            (pid > 0).then(|| i32::try_from(pid).unwrap())
        })
        .await
    }

    /// The engine's holder.
    async fn holder(&self) -> i32 {
        self.pid().await;
        i32::try_from(self.record().unwrap()["holder"]["pid"].as_i64().unwrap()).unwrap()
    }

    fn nonce(&self) -> String {
        self.record().unwrap()["nonce"].as_str().unwrap().to_owned()
    }

    /// Starts the agent again; it has said hello when this returns.
    async fn again(&mut self) {
        let hellos = self.edge.heard(|heard| heard.hellos.len());
        self.agent = self.folder.start();
        until("the next hello", async || {
            self.edge.heard(|heard| (heard.hellos.len() > hellos).then_some(()))
        })
        .await;
    }

    /// Waits until a cause of the engine was told that says this.
    async fn told(&self, what: &str) {
        until(what, async || {
            self.edge.heard(|heard| heard.causes.iter().any(|cause| cause.contains(what)).then_some(()))
        })
        .await;
    }

    async fn serves(&self) {
        let mut stream = self.edge.open(Ask::new("own", "{}")).await;
        stream.head().await;
        assert_eq!(stream.take(10).await, b"data: {\"key\":true}\n\n");
    }
}

/// Processes that carry the mark of this engine, by the word in the record.
fn marked(nonce: &str) -> Vec<i32> {
    let wanted = format!("UMBEL_ENGINE_NONCE={nonce}");
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        })
        .collect()
}

fn kill(pid: i32) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Comes up, answers with its own key, and its death in mid-stream is told as what it is (rows 52 and 69). It is
/// started again.
#[tokio::test]
async fn row_52_a_dead_engine_is_told_and_started_again() {
    let bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let record = bench.record().unwrap();
    assert!(record["port"].as_u64().unwrap() > 0 && record["start_time"].as_u64().unwrap() > 0);
    let mut stream = bench.edge.open(Ask::new("own", "{}")).await;
    stream.head().await;
    assert_eq!(stream.take(10).await, b"data: {\"key\":true}\n\n");
    kill(bench.pid().await);
    let (_, end) = stream.rest().await;
    assert_eq!((end.outcome, end.error.unwrap().code), (Outcome::EngineGone, Code::Unavailable));
    until("another engine", async || {
        bench.record().filter(|now| now["nonce"] != record["nonce"] && now["pid"].as_i64() > Some(0))
    })
    .await;
    let report = bench.edge.engine("own", EngineState::Ready).await;
    assert_eq!(report.restarts, 1);
}

/// Row 82: the leader is killed, then the agent is stopped: whatever the engine started is gone first.
#[tokio::test]
async fn row_82_nothing_of_an_engine_is_left() {
    let mut bench = Bench::start("children").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let first = bench.record().unwrap()["nonce"].as_str().unwrap().to_owned();
    assert!(marked(&first).len() >= 5, "{:?}", marked(&first));
    kill(bench.pid().await);
    let second = until("another engine", async || {
        let nonce = bench.record()?["nonce"].as_str()?.to_owned();
        (nonce != first).then_some(nonce)
    })
    .await;
    assert_eq!(marked(&first), [0; 0], "the next one was started while the last one was there");
    bench.edge.engine("own", EngineState::Ready).await;
    until("children", async || (marked(&second).len() >= 5).then_some(())).await;
    bench.agent.signal(Signal::TERM);
    assert_eq!(bench.agent.ended().await, Some(0));
    assert_eq!(marked(&second), [0; 0]);
    assert!(bench.record().is_none());
}

/// Row 83: the agent is killed with a stream open: the stream ends with an error, the engine runs on and is gone on with,
/// with its own key; and a clean stop that keeps engines does the same.
#[tokio::test]
async fn row_83_an_engine_outlives_its_agent() {
    let mut bench = Bench::start("children").await;
    bench.folder.edit("engines = \"stop\"", "engines = \"keep\"");
    bench.edge.engine("own", EngineState::Ready).await;
    let (pid, holder, nonce) = (bench.pid().await, bench.holder().await, bench.nonce());
    let before = marked(&nonce);
    assert!(before.len() >= 5, "{before:?}");
    let mut stream = bench.edge.open(Ask::new("own", "{}")).await;
    stream.head().await;
    for signal in [Signal::KILL, Signal::TERM] {
        bench.agent.signal(signal);
        bench.agent.ended().await;
        bench.again().await;
        bench.edge.engine("own", EngineState::Ready).await;
        assert_eq!((bench.pid().await, bench.holder().await, bench.nonce()), (pid, holder, nonce.clone()));
        assert_eq!(marked(&nonce), before);
        bench.serves().await;
    }
    // It is still an engine as any other: its death is seen, and it is started anew.
    kill(pid);
    until("another engine", async || (bench.record()?["nonce"] != nonce.as_str()).then_some(())).await;
    bench.edge.engine("own", EngineState::Ready).await;
    assert_eq!(marked(&nonce), [0; 0]);
    bench.serves().await;
}

/// Row 83: what the next agent does not want any more ends, before anything new is started; never two of one engine.
#[tokio::test]
async fn row_83_what_is_not_wanted_any_more_ends() {
    let mut bench = Bench::start("children").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let first = bench.nonce();
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    bench.folder.edit("name = \"own\"", "name = \"other\"");
    bench.again().await;
    bench.edge.engine("other", EngineState::Ready).await;
    assert_eq!(marked(&first), [0; 0]);
    assert!(bench.record().is_none());
}

/// An engine that ended while no agent was there is told with its code and its last lines, and started anew.
#[tokio::test]
async fn an_end_without_an_agent_is_told() {
    let mut bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    let (first, holder) = (bench.nonce(), bench.holder().await);
    kill(bench.pid().await);
    until("the holder's end", async || {
        (!std::path::Path::new(&format!("/proc/{holder}")).exists()).then_some(())
    })
    .await;
    assert_eq!(bench.record().unwrap()["end"]["exit"]["signal"], 9);
    bench.again().await;
    let report = bench.edge.engine("own", EngineState::Ready).await;
    assert_eq!(report.restarts, 1);
    assert_ne!(bench.nonce(), first);
}

/// Kill -9 of the holder: its engine is not left running unseen, and another one is started.
#[tokio::test]
async fn a_lost_holder_is_told_and_replaced() {
    let bench = Bench::start("children").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let first = bench.nonce();
    kill(bench.holder().await);
    until("another engine", async || (bench.record()?["nonce"] != first.as_str()).then_some(())).await;
    assert_eq!(marked(&first), [0; 0]);
    let report = bench.edge.engine("own", EngineState::Ready).await;
    assert_eq!(report.restarts, 1);
    bench.told("lost its holder").await;
    bench.serves().await;
}

/// A holder that does not answer any more keeps no engine from its end.
#[tokio::test]
async fn a_stopped_holder_is_ended() {
    let mut bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let (nonce, holder) = (bench.nonce(), bench.holder().await);
    let holder = rustix::process::Pid::from_raw(holder).unwrap();
    rustix::process::kill_process(holder, Signal::STOP).unwrap();
    bench.agent.signal(Signal::TERM);
    bench.agent.signal(Signal::TERM);
    assert_eq!(bench.agent.ended().await, Some(0));
    assert_eq!(marked(&nonce), [0; 0]);
}

/// `stop-engines` ends what agents left, and does nothing while one runs.
#[tokio::test]
async fn engines_are_stopped_without_an_agent() {
    let mut bench = Bench::start("children").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let nonce = bench.nonce();
    let stop = async |folder: &Folder| {
        let config = folder.config();
        tokio::task::spawn_blocking(move || umbel_node::stop_engines(&config)).await.unwrap()
    };
    let refused = stop(&bench.folder).await.unwrap_err();
    assert!(refused.to_string().contains("stop it first"), "{refused}");
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    assert_eq!(stop(&bench.folder).await.unwrap(), ["own"]);
    assert_eq!(marked(&nonce), [0; 0]);
    assert!(bench.record().is_none() && stop(&bench.folder).await.unwrap().is_empty());
}

/// The runs of engines that work in a node's folder, by their marks.
fn runs(folder: &Folder) -> std::collections::BTreeSet<String> {
    let place = folder.path("state/engines").canonicalize().unwrap();
    let mut runs = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let is_here = std::fs::read_link(entry.path().join("cwd")).is_ok_and(|path| path == place);
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let mut entries = environment.split(|byte| *byte == 0).filter(|_| is_here);
        runs.extend(
            entries.find_map(|one| {
                Some(String::from_utf8_lossy(one.strip_prefix(b"UMBEL_ENGINE_NONCE=")?).into())
            }),
        );
    }
    runs
}

/// Row 83: whatever became of an engine's record while no agent was there, the next one goes on with the engine that runs,
/// starts no second one, and says what it found.
#[tokio::test]
async fn row_83_a_lost_record_doubles_no_engine() {
    let mut bench = Bench::start("children").await;
    bench.folder.edit("engines = \"stop\"", "engines = \"keep\"");
    bench.edge.engine("own", EngineState::Ready).await;
    let (pid, nonce, record) =
        (bench.pid().await, bench.nonce(), bench.folder.path("state/engines/own.json"));
    let whole = std::fs::read(&record).unwrap();
    let damages: [(&str, Option<&[u8]>); 5] = [
        ("cut", Some(&whole[..200])),
        ("garbage", Some(b"\xff\x00 not a record")),
        ("empty", Some(b"")),
        ("of another shape", Some(b"{}")),
        ("removed", None),
    ];
    for (damage, content) in damages {
        bench.agent.signal(Signal::KILL);
        bench.agent.ended().await;
        match content {
            Some(content) => std::fs::write(&record, content).unwrap(),
            None => std::fs::remove_file(&record).unwrap(),
        }
        bench.again().await;
        bench.edge.engine("own", EngineState::Ready).await;
        assert_eq!((bench.pid().await, bench.nonce()), (pid, nonce.clone()), "{damage}");
        assert_eq!(runs(&bench.folder), [nonce.clone()].into(), "{damage}");
        bench.serves().await;
        let problems = bench.folder.status().await["problems"].to_string();
        assert!(problems.contains("ENGINE_RECORD_LOST") && problems.contains("gone on with"), "{problems}");
        let aside = std::fs::read(bench.folder.path("state/engines/own.json.unreadable")).ok();
        assert!(content.is_none_or(|content| aside.as_deref() == Some(content)), "{damage}");
    }
}

/// Row 83: with its socket gone as well nobody can go on with it: it is ended, with all that it started, before another one
/// is started; also by `stop-engines`.
#[tokio::test]
async fn row_83_without_record_and_socket_it_is_ended_first() {
    let mut bench = Bench::start("children").await;
    let lose = |bench: &Bench| {
        for name in ["own.json", "own.sock"] {
            std::fs::remove_file(bench.folder.path("state/engines").join(name)).unwrap();
        }
    };
    bench.edge.engine("own", EngineState::Ready).await;
    let first = bench.nonce();
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    lose(&bench);
    bench.again().await;
    bench.edge.engine("own", EngineState::Ready).await;
    let second = bench.nonce();
    assert_eq!((runs(&bench.folder), marked(&first)), ([second.clone()].into(), Vec::new()));
    bench.serves().await;
    let problems = bench.folder.status().await["problems"].to_string();
    assert!(problems.contains("ENGINE_RECORD_LOST") && problems.contains("ended first"), "{problems}");
    bench.agent.signal(Signal::KILL);
    bench.agent.ended().await;
    lose(&bench);
    let config = bench.folder.config();
    let stopped = tokio::task::spawn_blocking(move || umbel_node::stop_engines(&config)).await.unwrap();
    assert_eq!(stopped.unwrap(), ["own"]);
    assert_eq!((runs(&bench.folder).len(), marked(&second)), (0, Vec::new()));
}

/// A record whose process id was given to somebody else ends nobody.
#[tokio::test]
async fn a_reused_process_id_is_left_alone() {
    let mut bench = Bench::start("plain").await;
    bench.edge.engine("own", EngineState::Ready).await;
    bench.agent.signal(Signal::TERM);
    bench.agent.ended().await;
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let record = format!(
        "{{\"name\":\"own\",\"pid\":{},\"start_time\":1,\"boot_id\":\"{}\",\"port\":1,\"nonce\":\"n\",\"program\":\"/x\"}}",
        stranger.id(),
        boot.trim()
    );
    umbel_wire::files::write_private(&bench.folder.path("state/engines/own.json"), record.as_bytes())
        .unwrap();
    bench.again().await;
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Row 86: whatever it writes, it never blocks, and the agent stays small.
#[tokio::test]
async fn row_86_a_flood_of_output() {
    let bench = Bench::start("flood").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", bench.agent.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    let peak: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    // Unoptimized code is large; the flood itself is 150 MB.
    assert!(peak < 80 * 1024, "{line}");
    let logs = std::fs::read_dir(bench.folder.path("state/engines")).unwrap();
    let size: u64 = logs.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 20 * 1024 * 1024, "{size}");
}

/// Row 87: the last line of a traceback is in the report, with the exit code.
#[tokio::test]
async fn row_87_the_last_lines_are_told() {
    let bench = Bench::start("traceback").await;
    let report = until("a report with output", async || {
        bench.edge.heard(|heard| {
            heard
                .engines
                .iter()
                .find(|status| status.name == "own" && !status.output_tail.is_empty())
                .cloned()
        })
    })
    .await;
    assert!(report.cause.contains("exited with code 1"), "{}", report.cause);
    assert!(report.output_tail.ends_with("ValueError: no such model"), "{}", report.output_tail);
    assert!(report.output_tail.contains("line 199") && report.output_tail.len() <= 4096);
}

/// Row 89: an engine that ends by itself with 0 is started again, waits longer each time, and other engines are fine.
#[tokio::test]
async fn row_89_short_successes() {
    let bench = Bench::start("short").await;
    until("two restarts", async || {
        bench.edge.heard(|heard| {
            heard.states.iter().any(|(name, _, restarts)| name == "own" && *restarts >= 2).then_some(())
        })
    })
    .await;
    let report = until("a cause", async || {
        bench.edge.heard(|heard| {
            heard
                .engines
                .iter()
                .find(|status| status.name == "own" && status.cause.contains("started again"))
                .cloned()
        })
    })
    .await;
    assert!(report.cause.contains("code 0 without being asked"), "{}", report.cause);
    let (_, _, end) = bench.edge.open(Ask::new("sim", r#"{"messages":[]}"#)).await.whole().await;
    assert_eq!(end.outcome, Outcome::Complete);
}

/// Children of a process that have ended and were not waited for.
fn zombies(parent: i32) -> usize {
    children(parent, Some("Z")).len()
}

fn children(parent: i32, state: Option<&str>) -> Vec<i32> {
    let stats = std::fs::read_dir("/proc").unwrap();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok());
    stats
        .filter(|stat| {
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            state.is_none_or(|state| fields[0] == state) && fields[1] == parent.to_string()
        })
        .map(|stat| stat.split(' ').next().unwrap().parse().unwrap())
        .collect()
}

/// Row 92: as process 1 of its namespace the agent reaps what nobody else would, and still knows its engine's end.
#[tokio::test]
async fn row_92_as_the_first_process() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut bench = Bench::start("orphans").await;
    bench.edge.engine("own", EngineState::Ready).await;
    bench.agent.signal(Signal::TERM);
    bench.agent.ended().await;
    let hellos = bench.edge.heard(|heard| heard.hellos.len());
    bench.agent = bench.folder.start_as_first();
    until("the next hello", async || bench.edge.heard(|heard| (heard.hellos.len() > hellos).then_some(())))
        .await;
    bench.edge.engine("own", EngineState::Ready).await;
    let first = children(bench.agent.pid(), None)[0];
    let holder = children(first, None)[0];
    until("no zombie", async || (zombies(first) + zombies(holder) == 0).then_some(())).await;
    let engine = children(holder, None)[0];
    kill(engine);
    until("a restart", async || {
        bench.edge.heard(|heard| {
            heard.states.iter().any(|(name, _, restarts)| name == "own" && *restarts == 1).then_some(())
        })
    })
    .await;
}

/// Row 92: orphans of an engine become its holder's children and are reaped.
#[tokio::test]
async fn row_92_no_zombies_pile_up() {
    let bench = Bench::start("orphans").await;
    bench.edge.engine("own", EngineState::Ready).await;
    let (agent, holder) = (bench.agent.pid(), bench.holder().await);
    until("no zombie", async || (zombies(agent) + zombies(holder) == 0).then_some(())).await;
    // Nor holders, when their engines are gone.
    kill(bench.pid().await);
    until("another holder", async || (bench.holder().await != holder).then_some(())).await;
    until("no zombie", async || (zombies(agent) == 0).then_some(())).await;
    let (_, _, end) = bench.edge.open(Ask::new("sim", r#"{"messages":[]}"#)).await.whole().await;
    assert_eq!(end.outcome, Outcome::Complete);
}
