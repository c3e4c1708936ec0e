//! kill -9 and restarts of each tier: what was answered stays, what was drained stays drained, engines' requests end.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::json;
use umbel_tests::engine::{End, Script};
use umbel_tests::fleet::{EdgeOptions, Fleet, SOON};
use umbel_tests::wait;

use crate::sites::{CANCEL, SHORT, error_event, external, site};

/// Row 104: whatever the edge answered is there after kill -9, in the middle of a storm of writes.
#[test]
fn what_was_answered_survives_kill_9() {
    let fleet = Fleet::new();
    let mut edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let answered: Mutex<BTreeSet<String>> = Mutex::default();
    for round in 0..4 {
        let before = answered.lock().unwrap().len();
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (edge, answered) = (&edge, &answered);
                scope.spawn(move || {
                    for n in 0.. {
                        let name = format!("key-{round}-{worker}-{n}");
                        let ran = edge.ctl(&["key", "create", &name]);
                        if ran.code != 0 {
                            break;
                        }
                        answered.lock().unwrap().insert(name);
                    }
                });
            }
            wait::until("some writes were answered", SOON, || answered.lock().unwrap().len() >= before + 6);
            edge.daemon.signal(umbel_tests::fleet::Signal::Kill);
        });
        edge.daemon.kill();
        edge.start();
        let listed = edge.ctl(&["key", "-o", "json"]).ok().out;
        for name in answered.lock().unwrap().iter() {
            assert!(
                listed.contains(&format!("\"{name}\"")),
                "{name} was answered and is lost after kill -9 number {round}"
            );
        }
    }
}

/// A token that was used stays used, and a node stays enrolled, after kill -9 of the edge.
#[test]
fn a_used_token_stays_used() {
    let s = site(1);
    let token = s.edge.token("late");
    let late = s.fleet.node_files("late", &external(&s.engine, 1));
    let _ = late.enroll(&token).ok();
    let mut edge = s.edge;
    edge.daemon.restart();
    let again = s.fleet.node_files("other", &external(&s.engine, 1));
    let refused = again.enroll(&token);
    assert_ne!(refused.code, 0, "{}", refused.out);
    edge.wait_node("late", "still there", SHORT, |n| n["name"] == "late" && n["connected"] == false);
    edge.wait_serving("gpu-1");
}

/// Nodes come back by themselves; nobody is called offline before that could be known (row 5).
#[test]
fn nodes_come_back_after_an_edge_restart() {
    let mut s = site(4);
    let generation = s.edge.node("gpu-1")["generation"].as_u64().unwrap();
    s.edge.daemon.kill();
    s.edge.start();
    let first = s.edge.node("gpu-1");
    assert_ne!(first["liveness"], "offline", "{first}");
    let node = s.edge.wait_serving("gpu-1");
    assert!(node["generation"].as_u64().unwrap() > generation, "generations only grow: {node}");
    assert_eq!(node["liveness"], "online");
    let got = s.edge.chat("m", "after", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(got.text(), String::from_utf8_lossy(&Script::default().stream_bytes("m")));
}

/// A node that dies ends its streams with an error and its leases at once; a request still without a head is tried again.
#[test]
fn a_node_that_dies_ends_its_leases() {
    let mut s = site(4);
    let streaming = json!({"events": 9, "gate": "never", "gate_at": 3});
    let open = s.edge.chat("m", "streaming", true, &streaming).send(&s.edge.target()).unwrap();
    s.engine.wait_record("streaming", "streaming", SHORT, |r| r.events_sent == 3);
    s.node.daemon.kill();
    let whole = open.head().unwrap().rest();
    assert_eq!(whole.status, 200);
    error_event(&whole);
    s.edge.wait_idle(CANCEL);
    s.engine.wait_record("streaming", "let go", SHORT, |r| r.end == Some(End::ClientGone));
    let waits = s.edge.chat("m", "waits", true, &json!({})).send(&s.edge.target()).unwrap();
    s.node.daemon.start();
    let whole = waits.head().unwrap().rest();
    assert_eq!(whole.status, 200, "a wanted replica on its way back is waited for: {}", whole.text());
    s.edge.wait_serving("gpu-1");
}

/// Row 76: a drain is kept by both restarts, running streams finish, and undrain brings the node back.
#[test]
fn a_drain_survives_restarts() {
    let mut s = site(4);
    let script = json!({"events": 6, "gate": "go", "gate_at": 2});
    let open: Vec<_> =
        (0..3).map(|_| s.edge.chat("m", "drained", true, &script).send(&s.edge.target()).unwrap()).collect();
    wait::until("three streams run", SHORT, || s.engine.running() == 3);
    let _ = s.edge.ctl(&["--detach", "node", "drain", "gpu-1", "-m", "a test", "--deadline", "60s"]).ok();
    wait::until("it drains", SHORT, || s.edge.node("gpu-1")["draining"] == true);
    s.engine.open_gate("go");
    for sent in open {
        assert!(sent.head().unwrap().rest().text().ends_with("[DONE]\n\n"), "a drain lets streams finish");
    }
    s.node.daemon.restart();
    s.edge.wait_node("gpu-1", "back", SOON, |n| n["connected"] == true);
    assert_eq!(s.edge.node("gpu-1")["draining"], true, "after the node's restart");
    s.edge.daemon.kill();
    s.edge.start();
    s.edge.wait_node("gpu-1", "back", SOON, |n| n["connected"] == true);
    assert_eq!(s.edge.node("gpu-1")["draining"], true, "after the edge's restart");
    let ran = s.engine.records().len();
    let refused = s.edge.chat("m", "while drained", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(s.engine.records().len(), ran);
    let _ = s.edge.ctl(&["node", "drain", "gpu-1", "-m", "again"]).ok();
    let _ = s.edge.ctl(&["node", "undrain", "gpu-1", "-m", "done"]).ok();
    s.edge.wait_serving("gpu-1");
    let got = s.edge.chat("m", "undrained", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(got.status, 200, "{}", got.text());
}
