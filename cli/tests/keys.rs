//! `ctl key`: what is asked of the site, and what people and programs get of its answers.

use serde_json::{Value, json};

use crate::run::{canned, run};
use crate::server::Server;

const ID: &str = "abcdefgh12345678";

/// A site with one key and its usage; it answers every command with all of it.
fn site() -> Server {
    let server = Server::start();
    server.on("GET /api/v1/edges", 200, canned("edges.json"));
    let key = |id: &str, name: &str, more: Value| {
        let mut key = json!({ "key_id": id, "name": name, "models": ["small", "large"], "priority": 80,
            "created_at": "2026-11-01T00:00:00Z", "created_by": "ada", "revoked_at": null });
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        key
    };
    let used = |name: &str, id: &str, model: &str, day: &str, requests: u64| {
        json!({ "key_id": id, "name": name, "model": model, "day": day, "requests": requests, "refused": 2,
            "prompt_tokens": 1200, "completion_tokens": 34, "cached_tokens": 400,
            "last_used_at": "2026-11-29T10:00:00Z" })
    };
    let limits = json!({ "limits": { "requests_per_minute": 600, "requests_at_once": 8 },
        "last_used_at": "2026-11-29T10:00:00Z" });
    let result = json!({
        "apikeys": [key(ID, "webshop", limits), key("k-of-nightly-1", "nightly", json!({}))],
        "usage": [used("webshop", ID, "small", "2026-11-29", 31), used("", "_loopback", "", "2026-11-28", 2)],
    });
    let answer = json!({ "command_id": "00000000-0000-4000-8000-000000000002", "edge_id": "berlin",
        "operation": "apikey.list", "phase": "succeeded", "result": result });
    server.on("POST /api/v1/edges/berlin/commands", 200, answer.to_string());
    server
}

/// The arguments of the last command of an operation.
#[track_caller]
fn sent(server: &Server, operation: &str) -> Value {
    let all = server.asked();
    let mut bodies = all.iter().filter_map(|asked| serde_json::from_str::<Value>(&asked.body).ok());
    let of = bodies.rfind(|body| body["operation"] == operation);
    of.unwrap_or_else(|| panic!("{operation} was not asked"))
}

#[test]
fn a_new_key_gets_what_it_may_do() {
    let server = site();
    let words =
        ["key", "create", "nightly", "--site", "berlin", "--model", "small", "--priority", "10", "--rpm"];
    let ran = server.ctl(&[&words[..], &["600", "--tpm", "200k", "--at-once", "8"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let args = &sent(&server, "apikey.create")["args"];
    assert_eq!((&args["models"], &args["priority"]), (&json!(["small"]), &json!(10)));
    let limits = json!({ "requests_per_minute": 600, "tokens_per_minute": 200_000, "requests_at_once": 8 });
    assert_eq!(args["limits"], limits);
    for wrong in [&["--rpm", "0"][..], &["--tpm", "many"], &["--priority", "101"], &["--at-once", "-1"]] {
        let ran = run(&[&["ctl", "--socket", "/nonexistent", "key", "create", "x"][..], wrong].concat());
        assert_eq!(ran.code, 2, "{wrong:?}: {}", ran.err);
    }
}

#[test]
fn a_change_sends_only_what_is_changed() {
    let server = site();
    let ran = server.ctl(&["key", "update", "webshop", "--site", "berlin", "--tpm", "none", "-m", "grown"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    let body = sent(&server, "apikey.update");
    assert_eq!(body["args"], json!({ "key_id": ID, "limits": { "tokens_per_minute": null } }));
    assert_eq!(body["reason"], "grown");
    let ran = server.ctl(&["key", "update", "webshop", "--site", "berlin", "--all-models", "--rpm", "5"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let wanted = json!({ "key_id": ID, "models": null, "limits": { "requests_per_minute": 5 } });
    assert_eq!(sent(&server, "apikey.update")["args"], wanted);
    let ran = server.ctl(&["key", "update", "webshop"]);
    assert_eq!(ran.code, 2, "nothing to change: {}", ran.err);
    let ran = server.ctl(&["key", "update", "webs", "--rpm", "5", "--site", "berlin"]);
    assert_eq!(ran.code, 2, "half a name is confirmed: {}", ran.err);
}

#[test]
fn keys_show_limits_and_last_use() {
    let server = site();
    let ran = server.ctl(&["key", "--site", "berlin"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let line = ran.out.lines().find(|line| line.contains("webshop")).unwrap();
    assert!(line.contains("600 rpm, 8 at once") && line.contains("small,large"), "{}", ran.out);
    let ran = server.ctl(&["key", "show", "nightly", "--site", "berlin"]);
    assert!(ran.out.contains("Limits     none") && ran.out.contains("Last used  never"), "{}", ran.out);
    let ran = server.ctl(&["key", "--site", "berlin", "-o", "name"]);
    assert_eq!(ran.out, format!("{ID}\nk-of-nightly-1\n"));
}

#[test]
fn usage_is_a_table_for_people_and_rows_for_programs() {
    let server = site();
    let words = ["key", "usage", "webshop", "--site", "berlin", "--by", "day", "--since", "2026-11-01"];
    let ran = server.ctl(&[&words[..], &["--model", "small"]].concat());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let wanted = json!({ "key_id": ID, "model": "small", "by": "day", "since": "2026-11-01", "limit": 1000 });
    assert_eq!(sent(&server, "apikey.usage")["args"], wanted);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("DAY") && lines[1].starts_with("2026-11-29  webshop"), "{}", ran.out);
    assert!(lines[2].contains("_loopback"), "{}", ran.out);
    assert!(
        ran.err.contains("33 requests (4 refused), 2400 tokens of prompts, 68 of answers"),
        "{}",
        ran.err
    );
    let ran = server.ctl(&["key", "usage", "--site", "berlin", "-o", "json"]);
    let rows: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&rows[0]["edge_id"], &rows[0]["requests"]), (&json!("berlin"), &json!(31)));
    assert_eq!(sent(&server, "apikey.usage")["args"], json!({ "limit": 1000 }));
    let ran = server.ctl(&["key", "usage", "_loopback", "--site", "berlin"]);
    assert_eq!((ran.code, &sent(&server, "apikey.usage")["args"]["key_id"]), (0, &json!("_loopback")));
    let ran = server.ctl(&["key", "usage", "--since", "last week"]);
    assert!(ran.code == 2 && ran.err.contains("2026-11-29, 7d"), "{}", ran.err);
}
