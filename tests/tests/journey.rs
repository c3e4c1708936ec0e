//! The main job with every tier as a process: two sites, three nodes, streams, an operator who sees all of it.

use serde_json::json;
use umbel_tests::engine::{Engine, Script};
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions};
use umbel_tests::http::{Ask, BodyEnd};
use umbel_tests::wait;

use crate::sites::{SHORT, external};

/// Two sites, three nodes: each application is served by its own site, and the operator sees both.
#[test]
fn one_request_end_to_end() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let mut plane = fleet.control_plane();
    let berlin = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    let paris = fleet.edge("paris", Some(&plane), &EdgeOptions::default());
    let _nodes = [
        fleet.node(&berlin, "b-1", &external(&engine, 4)),
        fleet.node(&berlin, "b-2", &external(&engine, 4)),
        fleet.node(&paris, "p-1", &external(&engine, 4)),
    ];
    let want = Script::default().stream_bytes("m");
    for edge in [&berlin, &paris] {
        let mark = format!("from {}", edge.site);
        let got = edge.chat("m", &mark, true, &json!({})).whole(&edge.target()).unwrap();
        assert_eq!((got.status, &got.end), (200, &BodyEnd::Whole), "{}", got.text());
        assert_eq!(got.text(), String::from_utf8_lossy(&want));
        assert_eq!(engine.runs(&mark), 1);
    }
    // A key of one site opens no other.
    let foreign = berlin.chat("m", "foreign", true, &json!({})).whole(&paris.target()).unwrap();
    assert_eq!(foreign.status, 401, "{}", foreign.text());

    for (edge, nodes) in [("berlin", 2), ("paris", 1)] {
        plane.wait_fresh(edge);
        wait::until_some("the summary counts the nodes", SHORT, || {
            let site = plane.site(edge);
            if site["summary"]["nodes_online"] == nodes { Ok(()) } else { Err(site.to_string()) }
        });
    }
    let nodes = plane.get("/api/v1/nodes");
    assert_eq!(nodes["items"].as_array().unwrap().len(), 3, "{nodes}");
    assert!(nodes["missing"].as_array().unwrap().is_empty());

    let done =
        plane.command("berlin", &uuid::Uuid::new_v4().to_string(), "node.drain", "node:b-1", &json!({}));
    assert_eq!(done.json()["phase"], "succeeded", "{}", done.text());
    assert_eq!(berlin.node("b-1")["draining"], true);
    let got = berlin.chat("m", "served by b-2", true, &json!({})).whole(&berlin.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"));
    let audit = plane.get("/api/v1/audit").to_string();
    assert!(audit.contains("node.drain") && audit.contains("a test"), "{audit}");

    // Row 7 and rule R5: the site serves with the control plane gone, also a stream that was open then.
    let script = json!({"events": 6, "gate": "gone", "gate_at": 2});
    let open = berlin.chat("m", "open", true, &script).send(&berlin.target()).unwrap();
    engine.wait_record("open", "streaming", SHORT, |r| r.events_sent == 2);
    plane.daemon.kill();
    engine.open_gate("gone");
    assert!(open.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
    let got = paris.chat("m", "alone", true, &json!({})).whole(&paris.target()).unwrap();
    assert_eq!(got.text(), String::from_utf8_lossy(&want));
    let _ = berlin.ctl(&["node", "undrain", "b-1", "-m", "works without it"]).ok();
    assert_eq!(berlin.node("b-1")["draining"], false);
    plane.start();
    plane.wait_fresh("berlin");
    plane.wait_fresh("paris");
}

/// The built-in engine answers through the same path.
#[test]
fn the_built_in_engine_serves() {
    let fleet = Fleet::new();
    let edge = fleet.edge("solo", None, &EdgeOptions::default());
    let options = NodeOptions {
        engines: vec![EngineDeclaration::sim("s", "sim-model", "tokens = 5")],
        ..NodeOptions::default()
    };
    let _node = fleet.node(&edge, "n", &options);
    let body = json!({"model": "sim-model", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let got =
        Ask::post("/v1/chat/completions", body.to_string()).bearer(&edge.key).whole(&edge.target()).unwrap();
    assert_eq!(got.status, 200, "{}", got.text());
    assert!(got.text().ends_with("data: [DONE]\n\n"), "{}", got.text());
    let body = json!({"model": "sim-model", "messages": [{"role": "user", "content": "hi"}]});
    let got =
        Ask::post("/v1/chat/completions", body.to_string()).bearer(&edge.key).whole(&edge.target()).unwrap();
    assert!(got.json()["choices"][0]["message"]["content"].is_string(), "{}", got.text());
}
