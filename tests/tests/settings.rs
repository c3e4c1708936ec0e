//! A site's settings on real processes: in force while requests stream, checked by the node on top of its own file, told
//! where they are refused, and taken back (rows 77 to 81).

use serde_json::{Value, json};
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions, SOON};

use crate::sites::{SHORT, site};

/// Whether a node has what it should have.
fn settled(node: &Value) -> bool {
    node["config"]["applied_version"] == node["config"]["desired_version"]
        && node["config"]["confirming"] == false
}

/// The settings of a node change while it streams: the stream is unbroken, on the same connection, and the new value is in
/// force.
#[test]
fn a_stream_is_unbroken_while_settings_change() {
    let s = site(1);
    let script = json!({"events": 9, "gate": "changed", "gate_at": 3});
    let open = s.edge.chat("m", "streams", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("streams", "streaming", SHORT, |record| record.events_sent == 3);
    let before = s.edge.node("gpu-1");
    assert_eq!(before["providers"][0]["capacity"], 1);
    let words =
        ["settings", "set", "agents.nodes.gpu-1.engines.e.capacity=5", "agents.default.labels.tier=gold"];
    let set = s.edge.ctl(&[&words[..], &["-m", "a test"]].concat()).ok();
    assert!(set.err.contains("Version 1 at berlin") && set.err.contains("rollback 0"), "{set:?}");
    let after = s.edge.wait_node("gpu-1", "as it is set", SOON, |node| {
        node["providers"][0]["capacity"] == 5 && node["labels"]["tier"] == "gold" && settled(node)
    });
    assert_eq!(
        (&after["generation"], &after["connected"]),
        (&before["generation"], &json!(true)),
        "no new connection"
    );
    // The new slots are used beside the old stream.
    let second = s.edge.chat("m", "second", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert!(second.text().ends_with("[DONE]\n\n"), "{}", second.text());
    s.engine.open_gate("changed");
    let whole = open.head().unwrap().rest();
    assert!(whole.text().ends_with("[DONE]\n\n"), "{}", whole.text());
    let status = s.edge.ctl(&["settings", "status", "--check"]).ok();
    assert!(status.out.contains("version 1, 1 node in force"), "{status:?}");
    let shown = s.edge.ctl(&["settings", "show", "--node", "gpu-1"]).ok().out;
    assert!(shown.contains("engines.e.capacity  its own") && shown.contains("agents.default"), "{shown}");
}

/// What was set is in force after restarts of both, and rolling back is a version of its own.
#[test]
fn settings_outlive_restarts_and_roll_back() {
    let mut s = site(1);
    let _ = s.edge.ctl(&["settings", "set", "agents.default.engines.e.capacity=3", "-m", "more"]).ok();
    s.edge.wait_node("gpu-1", "at version 1", SOON, |node| {
        settled(node) && node["providers"][0]["capacity"] == 3
    });
    s.node.daemon.kill();
    s.edge.daemon.kill();
    s.node.daemon.start();
    s.edge.start();
    s.edge
        .wait_node("gpu-1", "as it was", SOON, |node| settled(node) && node["providers"][0]["capacity"] == 3);
    let _ = s.edge.ctl(&["settings", "set", "agents.default.engines.e.capacity=4"]).ok();
    let stale = s.edge.ctl(&["settings", "set", "agents.default.engines.e.capacity=9", "--base", "1"]);
    assert_eq!(stale.code, 7, "{stale:?}");
    assert_eq!(s.edge.ctl(&["settings", "rollback", "1"]).code, 2, "it needs a reason");
    let _ = s.edge.ctl(&["settings", "rollback", "1", "-m", "as before"]).ok();
    s.edge.wait_node("gpu-1", "rolled back", SOON, |node| {
        settled(node) && node["providers"][0]["capacity"] == 3
    });
    let history = s.edge.ctl(&["settings", "history", "-o", "json"]).ok().json();
    let versions: Vec<_> =
        history.as_array().unwrap().iter().map(|version| version["version"].clone()).collect();
    assert_eq!(versions, [json!(3), json!(2), json!(1)]);
    assert_eq!((&history[0]["rolled_back_to"], &history[0]["reason"]), (&json!(1), &json!("as before")));
    let diff = s.edge.ctl(&["settings", "diff", "1", "2", "-o", "json"]).ok().json();
    assert_eq!(diff["diff"][0]["to"], 4, "{diff}");
    let audit = s
        .edge
        .ctl(&["audit", "--site", "berlin", "--action", "settings.*", "-o", "jsonl", "-n", "100"])
        .ok()
        .out;
    assert!(audit.contains("as before"), "{audit}");
}

/// Row 81: what cannot be right is refused when it is set, by the field's path, and nothing has changed.
#[test]
fn a_wrong_value_is_refused_by_its_path() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    for (word, says) in [
        ("agents.default.engines.e.capacity=0", "agents.default.engines.e.capacity"),
        ("agents.default.engines.e.capacity=-1", "agents.default.engines.e.capacity"),
        ("agents.default.engines.e.capacity=1000000000", "1 to 1024"),
        ("edge.liveness.stale=0s", "edge.liveness.stale"),
        ("agents.default.state_dir=/tmp", "cannot be set"),
        ("agents.default.engines.e.program=/bin/sh", "cannot be set"),
        ("agents.default.log.levle=debug", "level"),
        ("edge.liveness.offline=1s", "offline"),
    ] {
        let ran = edge.ctl(&["settings", "set", word]);
        assert_ne!(ran.code, 0, "{word}: {ran:?}");
        assert!(ran.err.contains(says), "{word} says {says}: {}", ran.err);
    }
    assert_eq!(edge.ctl(&["settings", "-o", "json"]).ok().json()["version"], 0);
}

/// The edge's own settings are in force while it runs: shorter times make a node stale and offline sooner.
#[test]
fn the_edges_own_settings_are_in_force_at_once() {
    let s = site(1);
    let times = ["edge.liveness.stale=2s", "edge.liveness.offline=4s", "edge.log.level=debug"];
    let _ = s.edge.ctl(&[&["settings", "set"][..], &times].concat()).ok();
    s.node.daemon.signal(umbel_tests::fleet::Signal::Stop);
    let start = std::time::Instant::now();
    s.edge.wait_node("gpu-1", "offline", SHORT, |node| node["state"] == "offline");
    assert!(start.elapsed().as_secs() < 9, "the file says 10 s: {:?}", start.elapsed());
    s.node.daemon.signal(umbel_tests::fleet::Signal::Continue);
    s.edge.wait_serving("gpu-1");
}

/// An edited file is taken up while it runs; one that does not load changes nothing and is told.
#[test]
fn an_edited_file_is_taken_up() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let options = NodeOptions {
        engines: vec![EngineDeclaration::sim("s", "m", "capacity = 1")],
        ..NodeOptions::default()
    };
    let node = fleet.node(&edge, "gpu-1", &options);
    let generation = edge.node("gpu-1")["generation"].clone();
    let text = std::fs::read_to_string(&node.config).unwrap();
    std::fs::write(&node.config, text.replace("capacity = 1", "capacity = 7")).unwrap();
    edge.wait_node("gpu-1", "as its file says", SHORT, |node| node["providers"][0]["capacity"] == 7);
    std::fs::write(&node.config, text.replace("capacity = 1", "capacity = banana")).unwrap();
    let wrong = edge.wait_node("gpu-1", "a node with a problem", SHORT, |node| {
        node["problems"].as_array().is_some_and(|problems| !problems.is_empty())
    });
    assert_eq!(wrong["providers"][0]["capacity"], 7, "{wrong}");
    std::fs::write(&node.config, &text).unwrap();
    let right = edge.wait_node("gpu-1", "right again", SHORT, |node| {
        node["problems"].as_array().is_some_and(Vec::is_empty) && node["providers"][0]["capacity"] == 1
    });
    assert_eq!(right["generation"], generation);
}

/// Settings that the edge takes and this node cannot: told with the field, and by itself over once they are right.
#[test]
fn settings_that_a_node_refuses() {
    let s = site(4);
    // The node's file gives this engine 4 slots; the edge does not know the file.
    let path = "agents.nodes.gpu-1.engines.e.long_context_capacity";
    let _ = s.edge.ctl(&["settings", "set", &format!("{path}=9"), "-m", "a test"]).ok();
    let refused = crate::why::why(&s.edge, "gpu-1", "SETTINGS_REFUSED", 3);
    assert!(refused["message"].as_str().unwrap().contains("long_context_capacity"), "{refused}");
    let status = s.edge.ctl(&["settings", "status", "--check"]);
    assert_eq!(status.code, 3, "{status:?}");
    assert!(status.out.contains("gpu-1") && status.out.contains("long_context_capacity"), "{status:?}");
    let _ = s.edge.ctl(&["settings", "unset", path]).ok();
    s.edge.wait_node("gpu-1", "content", SOON, |node| {
        node["config"]["applied_version"] == node["config"]["desired_version"]
            && node["problems"].as_array().is_some_and(Vec::is_empty)
    });
}
