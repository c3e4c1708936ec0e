//! `umbel ctl node why` for what can be wrong with a node, on real processes: each state is named with its numbers and the
//! next step, by the exit code, to people and to programs.

use std::path::Path;

use serde_json::Value;
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions, SOON};
use umbel_tests::nvml_stub::NvmlStub;
use umbel_tests::shifted_clock::ShiftedClock;
use umbel_tests::wait;

use crate::sites::site;

/// A day, in the seconds of a shifted clock.
const DAY: i64 = 86_400;

fn sim() -> NodeOptions {
    NodeOptions { engines: vec![EngineDeclaration::sim("s", "m", "")], ..NodeOptions::default() }
}

/// What `why` says of a node to programs, once a check of this name did not pass; its exit code is that of `code`.
#[track_caller]
pub(crate) fn why(edge: &Edge, node: &str, check: &str, code: i32) -> Value {
    let found = wait::until_some(&format!("why {node} tells of {check}"), SOON, || {
        let ran = edge.ctl(&["node", "why", node, "-o", "json"]);
        let why: Value = serde_json::from_str(&ran.out).map_err(|error| format!("{error}: {}", ran.err))?;
        let checks = why["checks"].as_array().cloned().unwrap_or_default();
        let wrong = |found: &&Value| matches!(found["result"].as_str(), Some("failed" | "warning"));
        let found = checks.iter().find(|found| found["name"] == check).filter(wrong);
        match found {
            Some(found) if ran.code == code => Ok(found.clone()),
            _ => Err(format!("exit code {}: {why:#}", ran.code)),
        }
    });
    assert!(
        found["next_step"].as_str().is_some_and(|step| !step.is_empty()),
        "it names no next step: {found}"
    );
    let people = edge.ctl(&["node", "why", node]);
    assert!(people.out.contains("try: "), "{}", people.out);
    found
}

/// Never connected, then offline: both say what to do at the host.
#[test]
fn a_node_that_never_came_and_one_that_went() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let mut node = fleet.node_files("gpu-1", &sim());
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    let never = why(&edge, "gpu-1", "connection", 3);
    assert!(never["message"].as_str().unwrap().contains("never connected"), "{never}");
    assert!(never["next_step"].as_str().unwrap().contains("umbel node doctor"), "{never}");
    node.daemon.start();
    edge.wait_node("gpu-1", "ready", SOON, |node| node["ready"] == true && node["connected"] == true);
    let content = edge.ctl(&["node", "why", "gpu-1"]).ok().out;
    assert!(content.contains("is serving"), "{content}");
    node.daemon.kill();
    edge.wait_node("gpu-1", "offline", SOON, |node| node["state"] == "offline");
    let offline = why(&edge, "gpu-1", "NODE_OFFLINE", 3);
    assert!(offline["since"].is_string(), "{offline}");
    assert!(edge.ctl(&["node", "why", "gpu-1"]).out.contains("It is offline, heard "));
}

/// What people did: disabled, drained, not eligible, revoked.
#[test]
fn a_node_that_people_keep_out() {
    let s = site(1);
    let _ = s.edge.ctl(&["node", "drain", "gpu-1", "-m", "a test"]).ok();
    let _ = s.edge.ctl(&["node", "eligible", "gpu-1", "no"]).ok();
    why(&s.edge, "gpu-1", "draining", 3);
    let eligible = why(&s.edge, "gpu-1", "eligible", 3);
    assert_eq!(eligible["next_step"], "umbel ctl node eligible gpu-1");
    let _ = s.edge.ctl(&["node", "disable", "gpu-1", "-m", "a test"]).ok();
    let disabled = why(&s.edge, "gpu-1", "lifecycle", 3);
    assert_eq!(disabled["next_step"], "umbel ctl node enable gpu-1");
    for words in
        [&["node", "enable", "gpu-1"][..], &["node", "undrain", "gpu-1"], &["node", "eligible", "gpu-1"]]
    {
        let _ = s.edge.ctl(words).ok();
    }
    s.edge.wait_serving("gpu-1");
    let _ = s.edge.ctl(&["node", "revoke", "gpu-1", "--confirm", "gpu-1", "-m", "a test"]).ok();
    let revoked = why(&s.edge, "gpu-1", "certificate", 3);
    assert_eq!(revoked["next_step"], "umbel ctl token create --replace gpu-1");
    assert_eq!(s.edge.node("gpu-1")["state"], "credential_revoked");
    let enabled = s.edge.ctl(&["node", "enable", "gpu-1"]).ok();
    let told = format!("{}{}", enabled.out, enabled.err);
    assert!(told.contains("credential is revoked") && told.contains("--replace gpu-1"), "{told}");
}

/// Row 11 and 17: a clock that is ahead is named with how far; when it is right again, all is well by itself.
#[test]
fn a_clock_that_is_ahead() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let mut node = fleet.node_files("gpu-1", &sim());
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    let clock = ShiftedClock::of(&mut node.daemon, node.config.parent().unwrap(), 20 * 60);
    node.daemon.start();
    edge.wait_serving("gpu-1");
    let ahead = why(&edge, "gpu-1", "CLOCK_AHEAD", 3);
    // It serves all the same: only its reports wait.
    assert_eq!(edge.ctl(&["node", "why", "gpu-1", "-o", "json"]).json()["serving"], true);
    assert!(ahead["message"].as_str().unwrap().contains("ahead"), "{ahead}");
    let skew = edge.node("gpu-1")["clock_skew_ms"].as_i64().unwrap();
    assert!((19 * 60_000..=21 * 60_000).contains(&skew), "{skew}");
    let shown = edge.ctl(&["node", "gpu-1"]).ok().out;
    assert!(shown.contains("ahead of the edge's"), "{shown}");
    clock.set(0);
    edge.wait_node("gpu-1", "right again", SOON, |node| {
        node["clock_skew_ms"].is_null() && node["problems"].as_array().is_some_and(Vec::is_empty)
    });
}

/// Row 10: a copied state directory.
#[test]
fn a_copied_state_directory() {
    let s = site(1);
    let mut copy = s.fleet.node_files("copy", &crate::sites::external(&s.engine, 1));
    copy_files(&s.node.state, &copy.state);
    copy.daemon.start();
    let duplicate = why(&s.edge, "gpu-1", "DUPLICATE_IDENTITY", 3);
    let next = duplicate["next_step"].as_str().unwrap();
    assert!(next.contains("stop the copy") && next.contains("stays gpu-1"), "{duplicate}");
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// A certificate that ends soon, of a node that is away and cannot renew it by itself: the edge tells it beforehand.
#[test]
fn a_certificate_that_is_about_to_end() {
    let mut s = site(1);
    s.node.daemon.kill();
    s.edge.daemon.kill();
    // Of its 90 days 10 are left.
    let folder = s.edge.config.parent().unwrap().to_path_buf();
    let _clock = ShiftedClock::of(&mut s.edge.daemon, &folder, 80 * DAY);
    s.edge.start();
    let ends = why(&s.edge, "gpu-1", "CERTIFICATE_ENDS", 3);
    assert!(ends["next_step"].as_str().unwrap().contains("umbel ctl node rotate gpu-1"), "{ends}");
}

/// A node with GPUs of a stub, and the stub.
fn with_gpus(fleet: &Fleet, edge: &Edge, lines: &[&str]) -> (Node, NvmlStub) {
    let folder = fleet.dir().join("nvml");
    std::fs::create_dir_all(&folder).unwrap();
    let stub = NvmlStub::new(&folder, lines);
    let options = sim();
    let mut node = fleet.node_files("gpu-1", &options);
    let text = std::fs::read_to_string(&node.config).unwrap().replace(
        "accelerator = \"cpu\"",
        &format!("accelerator = \"nvidia\"\nnvml_library = {:?}", stub.library()),
    );
    std::fs::write(&node.config, text).unwrap();
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.start();
    (node, stub)
}

const TWO: [&str; 3] = [
    "driver=580.95.05 cuda=13000",
    "gpu=GPU-a name=NVIDIA_H200 memory=150754820096:1000 temp=40 util=5 cc=9.0",
    "gpu=GPU-b name=NVIDIA_H200 memory=150754820096:2000 temp=41 util=7 cc=9.0",
];

/// Row 97: a GPU that a complete inventory no longer has is missing, and is back when it is back.
#[test]
fn a_gpu_that_is_missing() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let (mut node, stub) = with_gpus(&fleet, &edge, &TWO);
    edge.wait_node("gpu-1", "seen with two GPUs", SOON, |node| {
        node["inventory"]["gpus"].as_array().is_some_and(|gpus| gpus.len() == 2)
            && node["inventory"]["gpus"][1]["figures"]["temperature_celsius"] == 41
    });
    let shown = edge.ctl(&["node", "gpu-1"]).ok().out;
    assert!(shown.contains("41C") && shown.contains("Driver"), "{shown}");
    // A card that was taken out while the host was off.
    node.daemon.kill();
    stub.set(&TWO[..2]);
    node.daemon.start();
    let missing = why(&edge, "gpu-1", "GPU_MISSING", 3);
    assert!(missing["message"].as_str().unwrap().contains("GPU-b"), "{missing}");
    assert!(edge.ctl(&["node", "gpu-1"]).ok().out.contains("missing"));
    node.daemon.kill();
    stub.set(&TWO);
    node.daemon.start();
    edge.wait_node("gpu-1", "whole again", SOON, |node| {
        node["problems"].as_array().is_some_and(Vec::is_empty)
            && node["inventory"]["gpus"][1]["state"] == "ok"
    });
}

/// A driver that does not fit its library: the agent does not start and says so on its host; the edge says where to look.
#[test]
fn a_driver_that_is_wrong() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let (mut node, stub) = with_gpus(&fleet, &edge, &TWO);
    edge.wait_serving("gpu-1");
    node.daemon.kill();
    stub.set(&["init=mismatch"]);
    node.daemon.start();
    assert_eq!(node.daemon.wait_end(SOON).code(), Some(3), "{}", node.daemon.log());
    let offline = why(&edge, "gpu-1", "connection", 3);
    assert!(offline["next_step"].as_str().unwrap().contains("umbel node doctor"), "{offline}");
    let doctor = umbel_tests::fleet::run(&["node", "doctor", "--config", &node.config.to_string_lossy()]);
    assert_eq!(doctor.code, 3, "{doctor:?}");
    assert!(doctor.out.to_lowercase().contains("driver"), "{doctor:?}");
}
