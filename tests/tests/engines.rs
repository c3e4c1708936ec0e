//! Engines that the node's agent starts itself, with the scripted engine in the place of llama-server: they serve,
//! outlive their agent, are started anew when they die, and say why when they cannot (rows 52, 83, 87 and 89).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use umbel_tests::engine::Script;
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions, SOON};
use umbel_tests::http::{Ask, Target};
use umbel_tests::wait;

use crate::sites::{CANCEL, SHORT, error_event};

/// Fields end in this order.
struct Supervised {
    node: Node,
    edge: Edge,
    _fleet: Fleet,
}

pub(crate) fn options(fleet: &Fleet, model: &str) -> NodeOptions {
    let file = fleet.dir().join("model.gguf");
    std::fs::write(&file, b"GGUF\x03\0\0\0").unwrap();
    NodeOptions {
        engines: vec![EngineDeclaration {
            toml: format!(
                "[[engine]]\nname = \"e\"\nkind = \"llama-server\"\nmodel = \"{model}\"\nmodel_file = {file:?}\ncapacity = 4\n"
            ),
        }],
        more: format!("[programs]\nllama_server = {:?}\n", Path::new(env!("CARGO_BIN_EXE_scripted-engine"))),
    }
}

fn supervised() -> Supervised {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let node = fleet.node(&edge, "gpu-1", &options(&fleet, "m"));
    Supervised { node, edge, _fleet: fleet }
}

impl Supervised {
    fn record_file(&self) -> PathBuf {
        self.node.state.join("engines/e.json")
    }

    fn record(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.record_file()).unwrap_or_default()).unwrap_or_default()
    }

    fn pid(&self) -> u64 {
        self.record()["pid"].as_u64().unwrap_or_default()
    }

    #[track_caller]
    fn serves(&self) {
        let got = self.edge.chat("m", "serves", true, &json!({})).whole(&self.edge.target()).unwrap();
        assert_eq!(got.text(), String::from_utf8_lossy(&Script::default().stream_bytes("m")));
    }

    fn log(&self) -> Value {
        let port = u16::try_from(self.record()["port"].as_u64().unwrap_or_default()).unwrap();
        Ask::get("/_log").whole(&Target::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))).unwrap().json()
    }
}

fn alive(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z "))
}

fn kill(pid: u64) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Row 52 with kill -9 of the engine: an error in the stream; then it is started anew by itself.
#[test]
fn a_killed_engine_is_told_and_started_anew() {
    let s = supervised();
    s.serves();
    let first = s.pid();
    assert!(alive(first));
    let script = json!({"events": 9, "gate": "never", "gate_at": 3});
    let mut open = s.edge.chat("m", "killed", true, &script).ask(&s.edge.target()).unwrap();
    let before = String::from_utf8(open.read_to("tok1").unwrap()).unwrap();
    kill(first);
    let mut whole = open.rest();
    whole.body = [before.into_bytes(), whole.body].concat();
    error_event(&whole);
    s.edge.wait_idle(CANCEL);
    wait::until("another process is recorded", SOON, || ![0, first].contains(&s.pid()) && alive(s.pid()));
    s.edge.wait_serving("gpu-1");
    s.serves();
    assert!(!alive(first));
}

/// A cancel reaches a supervised engine too.
#[test]
fn a_cancel_reaches_a_supervised_engine() {
    let s = supervised();
    let sent = s.edge.chat("m", "left", true, &json!({"head_gate": "never"})).send(&s.edge.target()).unwrap();
    let of = |log: &Value| {
        log.as_array()
            .into_iter()
            .flatten()
            .find(|r| r["body"].as_str().is_some_and(|b| b.contains("left")))
            .cloned()
    };
    wait::until("it runs", SHORT, || of(&s.log()).is_some());
    sent.leave(false);
    wait::until("it is cancelled", CANCEL, || of(&s.log()).is_some_and(|r| r["end"] == "client_gone"));
}

/// R6: a clean stop of the agent leaves the engine running, and the next agent goes on with it; it ends when it is told to.
#[test]
fn an_engine_outlives_a_clean_stop() {
    let mut s = supervised();
    let pid = s.pid();
    assert!(s.node.daemon.stop(SHORT).success());
    assert!(alive(pid), "the engine runs on without its agent");
    s.node.daemon.start();
    s.edge.wait_serving("gpu-1");
    s.serves();
    assert_eq!(s.pid(), pid);
    let config = s.node.config.to_string_lossy().into_owned();
    let refused = umbel_tests::fleet::run(&["node", "stop-engines", "--config", &config]);
    assert!(refused.code == 1 && refused.err.contains("stop it first"), "{}", refused.err);
    assert!(s.node.daemon.stop(SHORT).success());
    let stopped = umbel_tests::fleet::run(&["node", "stop-engines", "--config", &config, "-o", "json"]).ok();
    assert!(stopped.out.contains("\"e\""), "{}", stopped.out);
    assert!(!alive(pid) && !s.record_file().exists());
}

/// Row 83: kill -9 of the agent under streams: they end with an error, the engine's process is the same, the next agent
/// adopts it, and it serves. Told: how long that took.
#[test]
fn a_killed_agent_leaves_its_engine_to_the_next() {
    let mut s = supervised();
    let (first, nonce) = (s.pid(), s.record()["nonce"].clone());
    let script = json!({"events": 9, "gate": "never", "gate_at": 3});
    let mut open: Vec<_> = (0..4)
        .map(|number| {
            s.edge.chat("m", &format!("cut {number}"), true, &script).ask(&s.edge.target()).unwrap()
        })
        .collect();
    let heads: Vec<_> = open.iter_mut().map(|stream| stream.read_to("tok1").unwrap()).collect();
    s.node.daemon.kill();
    for (stream, before) in open.into_iter().zip(heads) {
        let mut whole = stream.rest();
        whole.body = [before, whole.body].concat();
        error_event(&whole);
    }
    assert!(alive(first));
    let started = std::time::Instant::now();
    s.node.daemon.start();
    wait::until("it is ready again", SOON, || {
        umbel_tests::fleet::run(&[
            "node",
            "status",
            "--config",
            &s.node.config.to_string_lossy(),
            "-o",
            "json",
        ])
        .out
        .contains("\"state\": \"ready\"")
    });
    println!("from the agent's start to adopted and ready: {:?}", started.elapsed());
    s.edge.wait_serving("gpu-1");
    s.serves();
    println!("from the agent's start to an answer through the edge: {:?}", started.elapsed());
    assert_eq!((s.pid(), &s.record()["nonce"]), (first, &nonce));
}

/// An upgrade: the agent comes back as another file, the one before it is gone from the disk, and the engine is the same;
/// its next start goes through the new one.
#[test]
fn an_upgraded_agent_adopts_what_the_old_one_started() {
    let fleet = Fleet::new();
    let (old, new) = (fleet.dir().join("umbel-old"), fleet.dir().join("umbel-new"));
    for file in [&old, &new] {
        std::fs::copy(umbel_tests::fleet::binary(), file).unwrap();
    }
    let run_as = |file: &Path| {
        let words = ["sh", "-c", "shift; exec \"$0\" \"$@\""];
        let mut words: Vec<String> = words.map(str::to_owned).to_vec();
        words.push(file.to_string_lossy().into_owned());
        words
    };
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let mut node = fleet.node_files("gpu-1", &options(&fleet, "m"));
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.wrapper = run_as(&old);
    node.daemon.start();
    edge.wait_serving("gpu-1");
    let mut s = Supervised { node, edge, _fleet: fleet };
    let first = s.pid();
    // The package is replaced while the agent runs: an engine that dies now is started by what is gone from the disk.
    std::fs::remove_file(&old).unwrap();
    kill(first);
    wait::until("another process is recorded", SOON, || ![0, first].contains(&s.pid()) && alive(s.pid()));
    s.edge.wait_serving("gpu-1");
    let second = s.pid();
    assert!(s.node.daemon.stop(SHORT).success());
    s.node.daemon.wrapper = run_as(&new);
    s.node.daemon.start();
    s.edge.wait_serving("gpu-1");
    s.serves();
    assert_eq!(s.pid(), second);
}

/// Rows 87 and 89: an engine that ends at once is reported with its code and its last lines, and does not spin.
#[test]
fn an_engine_that_cannot_start_says_why() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let mut node = fleet.node_files("gpu-1", &options(&fleet, "ends-at-once"));
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.start();
    let seen = edge.wait_node("gpu-1", "told why", SOON, |n| {
        n["connected"] == true && n["providers"][0]["cause"].as_str().is_some_and(|c| !c.is_empty())
    });
    assert_ne!(seen["providers"][0]["status"], "available", "{seen}");
    edge.wait_node("gpu-1", "failed with its code", SOON, |n| {
        let provider = &n["providers"][0];
        provider["cause"].as_str().is_some_and(|cause| cause.contains("code 3"))
            && provider["status"] == "failed"
    });
    let refused = edge.chat("ends-at-once", "x", true, &json!({})).whole(&edge.target()).unwrap();
    assert!([503, 404].contains(&refused.status), "{}", refused.text());
    assert!(node.daemon.is_running());
    let status = umbel_tests::fleet::run(&[
        "node",
        "status",
        "--config",
        &node.config.to_string_lossy(),
        "-o",
        "json",
    ])
    .ok();
    assert!(status.out.contains("the last line of all"), "{}", status.out);
}
