//! `ctl node` about identity and trust: what is wrong with a node and what to do, and the writes that take its rights.

use crate::{
    run::{canned, golden},
    server::Server,
};

const ID: &str = "6f1c2a34-8b5d-4e6f-9a01-23456789abcd";
const FAR: &str = "2999-01-01T00:00:00Z";

/// A node that serves; `change` makes it one that does not.
fn node(change: impl FnOnce(&mut serde_json::Value)) -> serde_json::Value {
    let mut node = serde_json::from_str(&canned("node-whole.json")).unwrap();
    change(&mut node);
    node
}

fn problem(code: &str, message: &str) -> serde_json::Value {
    serde_json::json!([{ "code": code, "message": message, "since": FAR, "subject": ID }])
}

fn server(node: &serde_json::Value) -> Server {
    let server = Server::start();
    server
        .on("GET /api/v1/nodes", 200, serde_json::json!({ "items": [node], "missing": [] }).to_string())
        .on("GET /api/v1/edges", 200, canned("edges.json"));
    server
}

/// Days until a date far away change daily.
fn steady(text: &str) -> String {
    let is_far = |word: &str| {
        word.strip_suffix('d')
            .is_some_and(|days| days.len() > 4 && days.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let line = |line: &str| {
        line.split(' ').map(|word| if is_far(word) { "Nd" } else { word }).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn a_node_is_shown_with_figures_and_their_ages() {
    let ran = server(&node(|_| {})).ctl(&["node", "gpu-04"]);
    golden("node-gpu-04.txt", &steady(&ran.out));
    let ran = server(&node(|_| {})).ctl(&["node", "gpu-04", "-o", "yaml"]);
    assert!(
        ran.out.contains("\nheartbeat_sequence: 77\n") && ran.out.contains("\n    ib: rail-3\n"),
        "{}",
        ran.out
    );
}

/// One state of a node that `why` must explain, and its exit code.
type Case = (&'static str, i32, fn(&mut serde_json::Value));

#[test]
fn why_names_the_state_its_numbers_and_the_next_step() {
    let cases: [Case; 9] = [
        ("serving", 0, |_| {}),
        ("never-connected", 3, |node| {
            for (key, value) in [
                ("state", "never".into()),
                ("liveness", "never".into()),
                ("connected", false.into()),
                ("last_seen_at", serde_json::Value::Null),
                ("inventory", serde_json::Value::Null),
                ("config", serde_json::Value::Null),
                ("providers", serde_json::json!([])),
            ] {
                node[key] = value;
            }
            node["readiness"] = serde_json::json!([{
                "name": "connection", "result": "failed", "passed": false,
                "message": "it has enrolled and never connected",
                "next_step": "Start `umbel node` on the host; `umbel node doctor` there says what is in the way.",
            }]);
        }),
        ("disabled", 3, |node| {
            node["state"] = "disabled".into();
            node["lifecycle"] = "disabled".into();
        }),
        ("clock-ahead", 0, |node| {
            node["clock_skew_ms"] = 612_000.into();
            node["problems"] = problem("CLOCK_AHEAD", "the node's clock is 612 s ahead");
        }),
        ("settings-refused", 0, |node| {
            let config = node["config"].as_object_mut().unwrap();
            config.insert("desired_version".to_owned(), 8.into());
            config.insert("refused_version".to_owned(), 8.into());
            config.insert("refusal".to_owned(), "engines.qwen.capacity: must be at least 1".into());
        }),
        ("duplicate", 3, |node| {
            node["problems"] = problem("DUPLICATE_IDENTITY", "another host uses the identity of this node");
        }),
        ("gpu-missing", 3, |node| {
            node["inventory"]["gpus"][1]["state"] = "missing".into();
            node["providers"][0]["status"] = "unavailable".into();
            node["providers"][0]["cause"] = "its GPU 1 is missing".into();
        }),
        ("certificate-ends", 0, |node| {
            let end = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(5 * 24 + 1);
            node["credential"]["not_after"] = end.to_string().into();
        }),
        ("revoked", 3, |node| node["credential"]["revoked_at"] = FAR.into()),
    ];
    for (name, code, change) in cases {
        let ran = server(&node(change)).ctl(&["node", "why", "gpu-04"]);
        assert_eq!(ran.code, code, "{name}: {}\n{}", ran.out, ran.err);
        golden(&format!("why-{name}.txt"), &steady(&ran.out));
        if name != "serving" {
            assert!(ran.out.contains("try: "), "{name}: {}", ran.out);
        }
        let ran = server(&node(change)).ctl(&["node", "why", "gpu-04", "-o", "json"]);
        let why: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert!(why["serving"] == true || code == 3, "{name}");
        for check in why["checks"].as_array().unwrap() {
            let wrong = check["result"] == "failed" || check["result"] == "warning";
            assert!(!wrong || check["next_step"].is_string(), "{name}: {check} names no step");
        }
    }
}

fn sent(server: &Server) -> serde_json::Value {
    serde_json::from_str(&server.asked().pop().unwrap().body).unwrap()
}

fn done(result: &str) -> String {
    format!(
        r#"{{"command_id":"00000000-0000-4000-8000-00000000000a","edge_id":"berlin","phase":"succeeded","result":{result}}}"#
    )
}

const COMMANDS: &str = "POST /api/v1/edges/berlin/commands";

#[test]
fn each_write_sends_its_operation_to_exactly_that_node() {
    let server = server(&node(|node| node["providers"][0]["in_flight"] = 0.into()));
    server.on(COMMANDS, 200, done(r#"{"nodes":[]}"#));
    let cases: [(&[&str], &str, serde_json::Value); 7] = [
        (&["rename", "gpu-04", "gpu-05"], "node.rename", serde_json::json!({ "name": "gpu-05" })),
        (
            &["label", "gpu-04", "rack=r8", "zone-"],
            "node.label",
            serde_json::json!({ "set": { "rack": "r8" }, "remove": ["zone"] }),
        ),
        (&["disable", "gpu-04", "-m", "why"], "node.disable", serde_json::json!({})),
        (&["enable", "gpu-04"], "node.enable", serde_json::json!({})),
        (&["rotate", "gpu-04"], "node.credential.rotate", serde_json::json!({})),
        (
            &["revoke", "gpu-04", "-m", "why", "--confirm", "gpu-04"],
            "node.credential.revoke",
            serde_json::json!({}),
        ),
        (&["eligible", "gpu-04", "no"], "node.eligible", serde_json::json!({ "eligible": false })),
    ];
    for (words, operation, args) in cases {
        let ran = server.ctl(&[&["node"], words].concat());
        assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{words:?}: {}", ran.err);
        let body = sent(&server);
        assert_eq!(body["operation"], operation);
        assert_eq!(body["args"], args, "{words:?}");
        assert_eq!(body["target_selector"], format!("node:{ID}"));
        assert_eq!(body["reason"] == "why", words.contains(&"-m"), "{words:?}");
    }
    server.on(COMMANDS, 200, done(r#"{"nodes":[]}"#));
    let ran = server.ctl(&["node", "approve", &"8b".repeat(32), "--site", "berlin"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(sent(&server)["operation"], "node.credential.approve");
}

#[test]
fn what_takes_rights_away_needs_a_reason_and_its_name() {
    let server = server(&node(|_| {}));
    for words in [
        &["node", "disable", "gpu-04"][..],
        &["node", "revoke", "gpu-04", "--confirm", "gpu-04"],
        &["node", "decommission", "gpu-04", "--confirm", "gpu-04"],
        &["settings", "rollback", "6"],
    ] {
        let ran = server.ctl(words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains("-m"), "{words:?}: {}", ran.err);
    }
    assert!(server.asked().is_empty(), "nothing is asked before the reason is there");
    let ran = server.ctl(&["node", "revoke", "gpu-04", "-m", "why"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--confirm gpu-04"), "{}", ran.err);
    assert_eq!(server.ctl(&["node", "revoke", "gpu-04", "-m", "why", "--confirm", "gpu-4"]).code, 2);
    assert_eq!(server.ctl(&["node", "revoke", "gpu", "-m", "why", "--confirm", "gpu"]).code, 6);
    // It runs requests: disabling it ends them.
    let ran = server.ctl(&["node", "disable", "gpu-04", "-m", "why"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("3 requests") && ran.err.contains("--yes"), "{}", ran.err);
    assert!(server.asked().iter().all(|asked| !asked.line.starts_with("POST")), "nothing was sent");
}

#[test]
fn a_node_is_retired_after_its_loss_was_shown_and_its_name_typed() {
    let server = server(&node(|_| {}));
    let lost = format!(
        r#"{{"node_id":"{ID}","name":"gpu-04","decommissioned":false,"models":[{{"model":"qwen3-32b","available_elsewhere":0}}],
        "providers":["{ID}/qwen"],"leases":3,"jobs":0,"deployments":[]}}"#
    );
    server.on(COMMANDS, 200, done(&lost));
    let ran = server.ctl(&["node", "decommission", "gpu-04", "--preview"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("3 run there") && ran.out.contains("served nowhere else"), "{}", ran.out);
    assert_eq!(sent(&server)["args"], serde_json::json!({ "preview": true }));
    let ran = server.ctl(&["node", "decommission", "gpu-04", "-m", "sold"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("--confirm gpu-04") && ran.err.contains("3 run there"), "{}", ran.err);
    assert_eq!(sent(&server)["args"]["preview"], true, "only the preview was asked");
    let ran = server.ctl(&[
        "node",
        "decommission",
        "gpu-04",
        "-m",
        "sold",
        "--confirm",
        "gpu-04",
        "--deadline",
        "1m",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let body = sent(&server);
    assert_eq!(body["args"], serde_json::json!({ "preview": false, "deadline_seconds": 60 }));
    assert_eq!((body["confirm"].as_str(), body["reason"].as_str()), (Some("gpu-04"), Some("sold")));
}

#[test]
fn a_token_may_replace_a_node() {
    let server = server(&node(|_| {}));
    let issued = format!(
        r#"{{"token_id":"t-8c2a91f1","edge_id":"berlin","addresses":["edge.example:7451"],"ca_sha256":"{}","expires_at":"{FAR}"}}"#,
        "4d".repeat(32)
    );
    server.on(COMMANDS, 200, done(&issued));
    let ran = server.ctl(&["token", "create", "--replace", "gpu-04", "--expires", "24h"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.starts_with("umbel1_") && ran.err.contains("becomes gpu-04"), "{}\n{}", ran.out, ran.err);
    let body = sent(&server);
    assert_eq!((body["args"]["replace"].as_str(), body["args"]["name"].as_str()), (Some(ID), Some("gpu-04")));
    assert_eq!(body["args"]["expires_in_seconds"], 86400);
    assert_eq!(server.ctl(&["token", "create"]).code, 2);
    assert_eq!(server.ctl(&["token", "create", "x", "--replace", "gpu-04"]).code, 2);
}

#[test]
fn retired_nodes_are_listed_only_when_asked_for_and_still_shown() {
    let server = Server::start();
    server
        .on("GET /api/v1/nodes", 200, r#"{"items":[],"missing":[]}"#)
        .on("GET /api/v1/edges", 200, canned("edges.json"))
        .on("POST /api/v1/edges/munich/commands", 200, done(r#"{"nodes":[]}"#));
    let mut tombstone = node(|node| {
        node["state"] = "decommissioned".into();
        node["lifecycle"] = "decommissioned".into();
        node["decommissioned_at"] = "2026-02-01T00:00:00Z".into();
    });
    tombstone.as_object_mut().unwrap().remove("edge_id");
    server.on(COMMANDS, 200, done(&serde_json::json!({ "nodes": [tombstone] }).to_string()));
    let ran = server.ctl(&["node", "list", "--decommissioned", "-o", "name"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "gpu-04\n"), "{}", ran.err);
    assert_eq!(sent(&server)["args"]["decommissioned"], true);
    let ran = server.ctl(&["node", "show", "gpu-04"]);
    assert!(ran.out.contains("Retired    "), "{}\n{}", ran.out, ran.err);
    let ran = server.ctl(&["node", "why", "gpu-04"]);
    assert!(ran.code == 3 && ran.out.contains("decommissioned"), "{}\n{}", ran.out, ran.err);
}

/// What a list of nodes does not have is asked for: runtimes, files, jobs, what stays free.
#[test]
fn a_node_is_shown_with_what_it_can_run_and_has() {
    let whole = node(|node| {
        node["inventory"]["storage"] = serde_json::json!([
            { "name": "models", "total_bytes": 8_u64 << 40, "free_bytes": 3_u64 << 40, "reserve_bytes": 4_u64 << 30 }
        ]);
        node["detail"] = serde_json::json!({
            "runtimes": [
                { "kind": "llama-server", "engine_version": "b6123", "adapter_version": "b10434" },
                { "kind": "external", "engine_version": null, "adapter_version": null }
            ],
            "artifacts": [{
                "repository": "Qwen/Qwen3-8B", "revision": "895c8d171bc03c30e113cd7a28c02494b5e068b7", "digest": "e3b0",
                "bytes": 16_u64 << 30, "files": 7, "root": "models", "folder": "Qwen--Qwen3-8B"
            }],
            "jobs": [{
                "job_id": "3b241101-e2bb-4255-8caf-4136c566a962", "kind": "deployment.load", "subject": "qwen3.r2",
                "node_id": ID, "owner": "deployment/qwen3", "actor": "edge", "state": "running", "attempt": 1,
                "attempts_max": 3, "submitted_at": FAR,
                "progress": { "phase": "load", "done": 3, "total": 5, "unit": "layers" }
            }]
        });
    });
    let server = server(&node(|_| {}));
    let site = node(|_| {})["edge_id"].as_str().unwrap().to_owned();
    let answer = serde_json::json!({
        "command_id": "00000000-0000-4000-8000-00000000000a", "edge_id": site, "operation": "node.show",
        "phase": "succeeded", "result": { "nodes": [whole] }
    });
    server.on(&format!("POST /api/v1/edges/{site}/commands"), 200, answer.to_string());
    let ran = server.ctl(&["node", "gpu-04"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let squeezed = ran.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    let lines: Vec<String> = squeezed.collect();
    for wanted in [
        "Storage models: 3.0 TiB of 8.0 TiB free, 4.0 GiB to stay free",
        "Can run llama-server b6123 (options of b10434), external",
        "Qwen/Qwen3-8B 895c8d171bc0 16.0 GiB 7 models",
        "3b241101-e2bb-4255-8caf-4136c566a962 0s running deployment.load qwen3.r2 load 3 of 5 layers",
    ] {
        assert!(lines.iter().any(|line| line == wanted), "no \"{wanted}\": {}", ran.out);
    }
}
