//! `ctl settings`, `ctl audit` and `ctl ca` against canned answers.

use crate::{
    run::{golden, run},
    server::Server,
};

const COMMANDS: &str = "POST /api/v1/edges/berlin/commands";

fn server() -> Server {
    let server = Server::start();
    let berlin: serde_json::Value = serde_json::from_str(&crate::run::canned("edges.json")).unwrap();
    let one = serde_json::json!({ "items": [berlin["items"][0]] });
    server.on("GET /api/v1/edges", 200, one.to_string());
    server
}

fn done(result: &serde_json::Value) -> String {
    let command = serde_json::json!({
        "command_id": "00000000-0000-4000-8000-00000000000a", "edge_id": "berlin", "phase": "succeeded",
        "result": result,
    });
    command.to_string()
}

fn example(operation: &str, case: &str) -> serde_json::Value {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../contracts/golden/operations");
    let path = root.join(operation).join(format!("{case}.result.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn sent(server: &Server) -> serde_json::Value {
    serde_json::from_str(&server.asked().pop().unwrap().body).unwrap()
}

#[test]
fn settings_are_shown_with_how_far_they_have_got() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("settings.get", "with-a-node")));
    let ran = server.ctl(&["settings"]);
    assert!(
        ran.err.contains("Version 7 at berlin. 10 nodes in force, 1 on trial, 1 not reached yet, 1 refused"),
        "{}",
        ran.err
    );
    golden("settings.txt", &ran.out);
    golden("settings-node.txt", &server.ctl(&["settings", "show", "--node", "gpu-04"]).out);
    golden("settings-status.txt", &server.ctl(&["settings", "status"]).out);
    assert_eq!(server.ctl(&["settings", "status", "--check"]).code, 3);
    let ran = server.ctl(&["config", "-o", "yaml"]);
    assert!(ran.out.contains("      log:\n        level: debug\n"), "{}", ran.out);
    server.on(COMMANDS, 200, done(&example("settings.history", "page")));
    golden("settings-history.txt", &server.ctl(&["settings", "history"]).out);
    server.on(COMMANDS, 200, done(&example("settings.diff", "two")));
    golden("settings-diff.txt", &server.ctl(&["settings", "diff", "6", "7"]).out);
    assert_eq!(sent(&server)["args"], serde_json::json!({ "from": 6, "to": 7 }));
}

#[test]
fn settings_are_set_by_field_and_say_how_to_undo_it() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("settings.set", "fields")));
    let ran = server.ctl(&[
        "settings",
        "set",
        "agents.default.log.level=debug",
        "edge.queue.max_requests=8",
        "--base",
        "6",
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert!(ran.err.contains("\"info\" → \"debug\"") && ran.err.contains("rollback 6"), "{}", ran.err);
    let wanted = serde_json::json!({
        "changes": [
            { "path": "agents.default.log.level", "value": "debug" },
            { "path": "edge.queue.max_requests", "value": 8 },
        ],
        "base_version": 6,
    });
    assert_eq!(sent(&server)["args"], wanted);
    server.ctl(&["settings", "unset", "agents.default.log.level"]);
    assert_eq!(sent(&server)["args"]["changes"][0]["value"], serde_json::Value::Null);
    assert_eq!(server.ctl(&["settings", "set"]).code, 2);
    assert_eq!(server.ctl(&["settings", "set", "nonsense"]).code, 2);
}

#[test]
fn a_whole_document_is_shown_before_it_replaces_everything() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("settings.set", "whole")));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("s.toml");
    std::fs::write(&file, "[edge.liveness]\noffline = \"2m\"\n").unwrap();
    let words = ["settings", "set", "-f", file.to_str().unwrap()];
    let ran = server.ctl(&words);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("edge.liveness.offline  not set → \"2m\"") && ran.err.contains("--yes"),
        "{}",
        ran.err
    );
    assert_eq!(sent(&server)["dry_run"], true);
    let ran = server.ctl(&[&words[..], &["--yes"]].concat());
    assert_eq!((ran.code, ran.err.contains("Would")), (0, false), "{}", ran.err);
    assert_ne!(sent(&server)["dry_run"], true);
    assert_eq!(sent(&server)["args"]["document"]["edge"]["liveness"]["offline"], "2m");
}

#[test]
fn nothing_at_all_takes_no_settings_away() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("settings.set", "whole")));
    let ran = server.ctl(&["settings", "set", "-y", "-f", "/dev/null"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(server.asked().iter().all(|asked| !asked.line.starts_with("POST")));
}

#[test]
fn settings_are_edited_as_a_document() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("settings.get", "before-the-first")));
    let ran = crate::run::umbel()
        .arg("ctl")
        .arg("--socket")
        .arg(&server.socket)
        .args(["settings", "edit"])
        .env_remove("VISUAL")
        .env("EDITOR", "true")
        .output()
        .unwrap();
    assert!(String::from_utf8(ran.stderr).unwrap().contains("Nothing is different"));
}

#[test]
fn a_rollback_carries_its_reason() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("settings.rollback", "one")));
    let ran = server.ctl(&["settings", "rollback", "6", "-m", "as before"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let body = sent(&server);
    assert_eq!(
        (body["operation"].as_str(), body["reason"].as_str()),
        (Some("settings.rollback"), Some("as before"))
    );
}

#[test]
fn the_keys_of_the_settings_need_no_server() {
    let ran = run(&["ctl", "--socket", "/nonexistent", "settings", "keys", "edge.queue"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("edge.queue.max_wait") && !ran.out.contains("edge.liveness"), "{}", ran.out);
}

#[test]
fn the_audit_is_asked_with_every_condition() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("audit.query", "filtered")));
    let words = [
        "audit",
        "--site",
        "berlin",
        "--actor",
        "ada",
        "--action",
        "node.*",
        "--about",
        "gpu-04",
        "--result",
        "succeeded",
        "--since",
        "2026-11-29T00:00:00Z",
        "-n",
        "1",
    ];
    let ran = server.ctl(&words);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("PSU swap"), "{}", ran.out);
    let args = sent(&server)["args"].clone();
    let wanted = serde_json::json!({
        "actor": "ada", "action": "node.*", "subject": "gpu-04", "outcome": "succeeded",
        "since": "2026-11-29T00:00:00Z", "limit": 1,
    });
    assert_eq!(args, wanted);
    server.on("GET /api/v1/audit", 200, crate::run::canned("audit.json"));
    assert_eq!(server.ctl(&["audit", "--actor", "a b"]).code, 0);
    assert!(server.asked().pop().unwrap().line.contains("&actor=a%20b"), "{:?}", server.asked());
    server.on(COMMANDS, 200, done(&example("audit.tail", "last")));
    let ran = server.ctl(&["audit", "tail", "--site", "berlin", "-o", "jsonl"]);
    assert!(ran.out.contains("\"sequence\":41,") && ran.out.lines().count() == 1, "{}", ran.out);
}

#[test]
fn an_audit_that_is_not_whole_is_exit_3() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("audit.verify", "whole")));
    let ran = server.ctl(&["audit", "verify", "--site", "berlin"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("4711 entries, numbers 1 to 4711: the chain is whole"), "{}", ran.out);
    server.on("GET /api/v1/audit/verify", 200, example("audit.verify", "broken").to_string());
    let ran = server.ctl(&["audit", "verify"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("at number 812"), "{}", ran.err);
}

#[test]
fn an_export_goes_to_a_new_file_of_one_record_a_line() {
    let server = server();
    let mut page = example("audit.export", "page");
    page.as_object_mut().unwrap().remove("next_after");
    server.on("GET /api/v1/audit/export", 200, page.to_string());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.audit");
    let words = ["audit", "export", "--out", file.to_str().unwrap()];
    assert_eq!(server.ctl(&words).code, 0);
    assert_eq!(server.ctl(&words).code, 2, "a file that is there stays");
    for format in ["json", "yaml", "name"] {
        assert_eq!(server.ctl(&["audit", "export", "-o", format]).code, 2, "{format}");
    }
    assert_eq!(server.ctl(&["audit", "export", "-o", "jsonl"]).code, 0);
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
    // Its hash is an example's, not the entry's.
    let ran = run(&["ctl", "--socket", "/nonexistent", "audit", "verify", "--file", file.to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.out.contains("number 41 is not what was hashed"), "{}", ran.out);
    std::fs::write(&file, "{\"seq").unwrap();
    let ran = run(&["ctl", "--socket", "/nonexistent", "audit", "verify", "--file", file.to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{}", ran.err);
}

#[test]
fn a_change_of_authority_goes_step_by_step() {
    let server = server();
    server.on(COMMANDS, 200, done(&example("ca.rotate", "begin")));
    let out = server.ctl(&["ca"]).out;
    for word in [
        "Change            begun",
        "wait until gpu-04 and gpu-05",
        &"5e".repeat(32),
        "gpu-05            never",
    ] {
        assert!(out.contains(word), "{out}");
    }
    assert_eq!(server.ctl(&["ca", "rotate", "begin"]).code, 0);
    assert_eq!(sent(&server)["args"], serde_json::json!({ "step": "begin", "leave_behind": false }));
    let ran = server.ctl(&["ca", "rotate", "switch", "--leave-behind"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("gpu-04, gpu-05"), "{}", ran.err);
    assert_eq!(server.ctl(&["ca", "rotate", "finish"]).code, 2, "it cannot be taken back");
    assert_eq!(server.ctl(&["ca", "rotate", "finish", "--yes"]).code, 0);
    assert_eq!(sent(&server)["args"]["step"], "finish");
}
