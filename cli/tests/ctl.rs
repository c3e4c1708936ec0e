//! `umbel ctl` against canned answers: tables and JSON (golden files), names, exit codes, writes and following.

use crate::{
    run::{canned, golden},
    server::Server,
};

const A_COMMAND: &str = "00000000-0000-4000-8000-00000000000a";

/// A server that knows the canned fleet.
fn fleet() -> Server {
    let server = Server::start();
    server
        .on("GET /api/v1/status", 200, canned("status.json"))
        .on("GET /api/v1/edges", 200, canned("edges.json"))
        .on("GET /api/v1/edges/berlin", 200, canned("edge-berlin.json"))
        .on("GET /api/v1/edges/berlin/status", 200, canned("status-queues.json"))
        .on("GET /api/v1/edges/munich/status", 503, problem("UNAVAILABLE", "munich is not connected"))
        .on("GET /api/v1/nodes", 200, canned("nodes.json"))
        .on("GET /api/v1/audit", 200, canned("audit.json"))
        .on("GET /api/v1/operators", 200, canned("operators.json"));
    server
}

fn problem(code: &str, detail: &str) -> String {
    format!(
        r#"{{"type":"about:blank","title":"{code}","status":400,"detail":"{detail}","code":"{code}","reason":"WHY","correlation_id":"req_1"}}"#
    )
}

fn command(phase: &str, rest: &str) -> String {
    format!(
        r#"{{"command_id":"{A_COMMAND}","edge_id":"berlin","operation":"node.drain","phase":"{phase}"{rest}}}"#
    )
}

#[test]
fn tables_are_as_recorded() {
    let cases: [(&str, &[&str], i32); 12] = [
        ("status.txt", &["status"], 0),
        ("status-wide.txt", &["status", "-o", "wide"], 0),
        ("edges.txt", &["edge"], 0),
        ("edge-berlin.txt", &["edge", "ber"], 0),
        ("nodes.txt", &["node"], 0),
        ("nodes-munich.txt", &["node", "--site", "mun*"], 0),
        ("node-gpu-01.txt", &["node", "gpu-01"], 0),
        ("why-gpu-01.txt", &["node", "why", "gpu-01"], 0),
        ("why-gpu-03.txt", &["node", "why", "gpu-03"], 3),
        ("queues.txt", &["queue", "--site", "berlin"], 0),
        ("audit.txt", &["audit"], 0),
        ("operators.txt", &["operator"], 0),
    ];
    let server = fleet();
    for (name, words, code) in cases {
        let ran = server.ctl(words);
        assert_eq!(ran.code, code, "{words:?}: {}", ran.err);
        golden(name, &ran.out);
    }
}

#[test]
fn json_is_the_servers_object_with_what_this_version_does_not_know() {
    let server = fleet();
    let ran = server.ctl(&["edge", "show", "berlin", "-o", "json"]);
    let got: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let wanted: serde_json::Value = serde_json::from_str(&canned("edge-berlin.json")).unwrap();
    assert_eq!(got, wanted);
    assert_eq!(got["a_field_of_a_newer_server"], true);
    let ran = server.ctl(&["node", "-o", "jsonl"]);
    assert_eq!(ran.out.lines().count(), 3);
    for line in ran.out.lines() {
        assert!(serde_json::from_str::<serde_json::Value>(line).unwrap()["node_id"].is_string());
    }
    let ran = server.ctl(&["status", "-o", "json"]);
    let got: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(got["sites"][1]["freshness"], "timed_out");
}

#[test]
fn names_are_one_a_line() {
    let server = fleet();
    assert_eq!(server.ctl(&["node", "-o", "name"]).out, "gpu-01\ngpu-02\ngpu-03\n");
    assert_eq!(server.ctl(&["edge", "-o", "name"]).out, "berlin\nmunich\n");
}

#[test]
fn colour_is_forced_or_absent() {
    let server = fleet();
    assert!(!server.ctl(&["node"]).out.contains('\u{1b}'));
    assert!(server.ctl(&["node", "--color", "always"]).out.contains("\u{1b}[32monline"));
}

#[test]
fn status_check_is_3_when_there_is_a_problem() {
    let server = fleet();
    assert_eq!(server.ctl(&["status", "--check"]).code, 3);
    assert_eq!(server.ctl(&["status"]).code, 0);
}

#[test]
fn a_silent_site_hides_nothing_and_is_named() {
    let ran = fleet().ctl(&["queue"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.out.contains("qwen3-32b"));
    assert!(ran.err.contains("munich"), "{}", ran.err);
}

#[test]
fn ambiguous_names_list_the_candidates() {
    let server = fleet();
    let ran = server.ctl(&["node", "show", "gpu-0"]);
    assert_eq!((ran.code, ran.out.as_str()), (6, ""));
    for name in ["gpu-01", "gpu-02", "gpu-03"] {
        assert!(ran.err.contains(name), "{}", ran.err);
    }
    assert_eq!(server.ctl(&["node", "0b0e4a52-0000-4000-8000-000000000001", "-o", "name"]).out, "gpu-01\n");
    assert_eq!(server.ctl(&["node", "7c", "-o", "name"]).out, "gpu-03\n");
    let ran = server.ctl(&["node", "nothing"]);
    assert_eq!(ran.code, 6);
    assert!(ran.err.contains("umbel ctl node"), "{}", ran.err);
}

#[test]
fn a_node_may_be_at_a_site_that_does_not_answer() {
    let server = Server::start();
    let munich = r#"{"edge_id":"munich","display_name":"Munich","freshness":"disconnected"}"#;
    server.on("GET /api/v1/nodes", 200, format!(r#"{{"items":[],"missing":[{munich}]}}"#));
    let ran = server.ctl(&["node", "drain", "gpu-03", "-m", "why"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("munich"), "{}", ran.err);
}

#[test]
fn problem_documents_become_exit_codes() {
    for (code, status, exit) in [
        ("UNAUTHENTICATED", 401, 5),
        ("PERMISSION_DENIED", 403, 5),
        ("NOT_FOUND", 404, 6),
        ("GONE", 410, 6),
        ("CONFLICT", 409, 7),
        ("UNAVAILABLE", 503, 4),
        ("DEADLINE_EXCEEDED", 504, 124),
        ("INTERNAL", 500, 1),
        ("A_NEW_ONE", 403, 5),
    ] {
        let server = Server::start();
        server.on("GET /api/v1/status", status, problem(code, "a sentence"));
        let ran = server.ctl(&["status"]);
        assert_eq!((ran.code, ran.out.as_str()), (exit, ""), "{code}");
        assert!(ran.err.contains("a sentence (WHY)") && ran.err.contains("req_1"), "{}", ran.err);
    }
}

#[test]
fn an_answer_of_something_else_is_told() {
    let server = Server::start();
    server.on("GET /api/v1/status", 200, "<html>");
    let ran = server.ctl(&["status"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("not what this version expects"), "{}", ran.err);
}

#[test]
fn disruptive_writes_need_a_reason() {
    let server = fleet();
    for words in [
        &["node", "drain", "gpu-01"][..],
        &["token", "revoke", "x"],
        &["key", "revoke", "x"],
        &["operator", "revoke", "ada"],
        &["edge", "revoke", "berlin"],
        &["edge", "token", "revoke", "x"],
        &["node", "drain", "gpu-01", "-m", " "],
    ] {
        let ran = server.ctl(words);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains("-m"), "{}", ran.err);
    }
    assert!(server.asked().is_empty(), "nothing is asked before the reason is there");
}

#[test]
fn a_write_on_half_a_name_is_confirmed() {
    let server = fleet();
    let ran = server.ctl(&["node", "drain", "7c", "-m", "why"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("name it in full"), "{}", ran.err);
    // What a script always says is no answer to a question that nobody read.
    assert_eq!(server.ctl(&["node", "drain", "7c", "-m", "why", "--yes"]).code, 2);
}

#[test]
fn revoking_a_site_needs_its_name_twice() {
    let server = fleet();
    let ran = server.ctl(&["edge", "revoke", "berlin", "-m", "stolen"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("--confirm berlin"), "{}", ran.err);
    assert_eq!(server.ctl(&["edge", "revoke", "ber", "-m", "stolen", "--confirm", "ber"]).code, 6);
    server.on("POST /api/v1/edges/berlin/credential:revoke", 200, canned("edge-berlin.json"));
    assert_eq!(server.ctl(&["edge", "revoke", "berlin", "-m", "stolen", "--confirm", "berlin"]).code, 0);
    assert!(server.asked().last().unwrap().body.contains("stolen"));
}

#[test]
fn a_drain_carries_reason_target_and_id() {
    let server = fleet();
    server.on("POST /api/v1/edges/berlin/commands", 200, command("succeeded", r#","result":{"nodes":[]}"#));
    let ran = server.ctl(&[
        "node",
        "drain",
        "gpu-01",
        "-m",
        "PSU swap",
        "--deadline",
        "10m",
        "--command-id",
        A_COMMAND,
    ]);
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert!(ran.err.contains("undrain gpu-01"), "{}", ran.err);
    let asked = server.asked().pop().unwrap();
    assert!(
        asked
            .headers
            .iter()
            .any(|header| header.eq_ignore_ascii_case(&format!("idempotency-key: {A_COMMAND}")))
    );
    let body: serde_json::Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(body["operation"], "node.drain");
    assert_eq!(body["target_selector"], "node:0b0e4a52-0000-4000-8000-000000000001");
    assert_eq!(body["reason"], "PSU swap");
    assert_eq!(body["args"]["deadline_seconds"], 600);
}

#[test]
fn a_command_is_followed_to_its_end() {
    let server = fleet();
    let step = |sequence: u32, phase: &str, message: &str, rest: &str| {
        format!(
            "id: {sequence}\nevent: {phase}\ndata: {{\"command_id\":\"{A_COMMAND}\",\"sequence\":{sequence},\"phase\":\"{phase}\",\
             \"message\":\"{message}\",\"at\":\"2026-08-22T09:12:0{sequence}Z\"{rest}}}\n\n"
        )
    };
    let progress = ",\"progress\":{\"done\":3,\"total\":4,\"unit\":\"requests\"}";
    let steps = [
        step(1, "accepted", "accepted", ""),
        step(2, "running", "waiting for requests", progress),
        step(3, "succeeded", "drained", ""),
    ];
    server.on("POST /api/v1/edges/berlin/commands", 202, command("running", ""));
    server.stream(&format!("GET /api/v1/edges/berlin/commands/{A_COMMAND}/events"), steps.concat());
    let words = ["node", "drain", "gpu-01", "-m", "why", "--command-id", A_COMMAND];
    let ran = server.ctl(&words);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("09:12:02Z  running    waiting for requests  3 / 4 requests"), "{}", ran.err);
    let failed = [step(1, "running", "waiting", ""), step(2, "timed_out", "3 requests are left", "")];
    server.stream(&format!("GET /api/v1/edges/berlin/commands/{A_COMMAND}/events"), failed.concat());
    assert_eq!(server.ctl(&words).code, 124);
    let ran = server.ctl(&[&words[..], &["--detach"]].concat());
    assert_eq!((ran.code, ran.out), (0, format!("{A_COMMAND}\n")), "{}", ran.err);
}

#[test]
fn a_failed_command_says_why() {
    let server = fleet();
    let error = r#","error":{"code":"CONFLICT","reason":"COMMAND_ID","message":"this id was used for another command"}"#;
    server.on("POST /api/v1/edges/berlin/commands", 200, command("failed", error));
    let ran = server.ctl(&["node", "undrain", "gpu-02"]);
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(ran.err.contains("this id was used for another command (COMMAND_ID)"), "{}", ran.err);
}

#[test]
fn a_command_is_found_whatever_its_site() {
    let server = fleet();
    server.on(&format!("GET /api/v1/edges/munich/commands/{A_COMMAND}"), 503, problem("UNAVAILABLE", "no"));
    let ran = server.ctl(&["command", "show", A_COMMAND]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("munich"), "{}", ran.err);
    server.on(&format!("GET /api/v1/edges/berlin/commands/{A_COMMAND}"), 200, command("succeeded", ""));
    let ran = server.ctl(&["command", A_COMMAND, "-o", "json"]);
    assert!(ran.out.contains("\"phase\": \"succeeded\""), "{}", ran.out);
    assert_eq!(server.ctl(&["command", "show", "no-uuid"]).code, 2);
}

#[test]
fn tokens_are_listed_and_ambiguous_ones_are_not_revoked() {
    let server = fleet();
    server.on("POST /api/v1/edges/berlin/commands", 200, canned("tokens-list.json"));
    let ran = server.ctl(&["token", "--site", "berlin"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    golden("tokens.txt", &ran.out);
    let ran = server.ctl(&["token", "revoke", "abcd", "-m", "why", "--site", "berlin"]);
    assert_eq!(ran.code, 6, "{}", ran.err);
}

#[test]
fn a_write_to_no_particular_site_lists_the_sites() {
    let ran = fleet().ctl(&["token", "create", "gpu-9"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.err.contains("berlin") && ran.err.contains("munich") && ran.err.contains("--site"),
        "{}",
        ran.err
    );
}

#[test]
fn events_are_rows_or_objects_and_gaps_are_told() {
    let event = |id: u32, kind: &str| {
        format!(
            "id: x.{id}\nevent: event\ndata: {{\"edge_id\":\"berlin\",\"sequence\":{id},\"at\":\"2026-08-22T09:37:4{id}Z\",\
             \"kind\":\"{kind}\",\"node_id\":\"0b0e4a52-0000-4000-8000-000000000001\",\"message\":\"gpu-01 is {kind}\"}}\n\n"
        )
    };
    let gap = "id: x.5\nevent: gap\ndata: {\"lost\":3}\n\n".to_owned();
    let server = fleet();
    server.stream("GET /api/v1/events", [event(1, "node_ready"), gap, event(6, "node_stale")].concat());
    let ran = server.ctl(&["events"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    golden("events.txt", &ran.out);
    assert!(ran.err.contains("3 events were missed"), "{}", ran.err);
    let ran = server.ctl(&["events", "-o", "json"]);
    let list: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(list[1]["id"], "x.6");
    assert_eq!(server.ctl(&["events", "-o", "jsonl"]).out.lines().count(), 2);
    assert_eq!(server.ctl(&["events", "--site", "munich", "-o", "jsonl"]).out, "");
}

/// Each way in which a request ends has its exit code, and standard output stays empty.
#[test]
fn every_refusal_has_its_exit_code() {
    let cases = [
        ("INVALID_ARGUMENT", 400, 2),
        ("UNAUTHENTICATED", 401, 5),
        ("PERMISSION_DENIED", 403, 5),
        ("NOT_FOUND", 404, 6),
        ("CONFLICT", 409, 7),
        ("GONE", 410, 6),
        ("TOO_LARGE", 413, 1),
        ("RESOURCE_EXHAUSTED", 429, 1),
        ("CANCELLED", 499, 1),
        ("INTERNAL", 500, 1),
        ("UNIMPLEMENTED", 501, 1),
        ("BAD_GATEWAY", 502, 1),
        ("UNAVAILABLE", 503, 4),
        ("DEADLINE_EXCEEDED", 504, 124),
        ("INSUFFICIENT_STORAGE", 507, 1),
        ("A_CODE_OF_A_NEWER_SERVER", 418, 1),
    ];
    for (code, status, exit) in cases {
        let server = Server::start();
        server.on("GET /api/v1/audit", status, problem(code, "a sentence"));
        let ran = server.ctl(&["audit"]);
        assert_eq!((ran.code, ran.out.as_str()), (exit, ""), "{code}: {}", ran.err);
        assert!(ran.err.contains("a sentence") && ran.err.contains("req_1"), "{code}: {}", ran.err);
    }
    let server = Server::start();
    server.on("GET /api/v1/audit", 200, canned("audit.json"));
    assert_eq!(server.ctl(&["audit"]).code, 0);
    assert_eq!(server.ctl(&["audit", "--no-such-flag"]).code, 2);
}

/// A silent site's models are shown as it last said, with a mark and their age; the answer is not complete.
#[test]
fn models_of_a_silent_site_are_as_it_last_said() {
    let server = fleet();
    let listed = r#","result":{"deployments":[{"name":"qwen3","model":"Qwen/Qwen3-32B","engine_kind":"vllm","state":"ready",
        "wanted":1,"ready":1,"version":1,"digest":"","created_at":"1999-01-01T00:00:00Z","applied_at":"1999-01-01T00:00:00Z",
        "applied_by":"ada","replicas":[]}]}"#;
    server.on("POST /api/v1/edges/berlin/commands", 200, command("succeeded", listed)).on(
        "POST /api/v1/edges/munich/commands",
        503,
        problem("UNAVAILABLE", "munich is not connected"),
    );
    let ran = server.ctl(&["model"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    let row = |name: &str| {
        let line = ran.out.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name}: {}", ran.out)).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("qwen3").starts_with("qwen3 berlin Qwen/Qwen3-32B vllm ready 1/1"), "{}", ran.out);
    let silent = row("chat");
    assert!(silent.starts_with("chat munich Qwen/Qwen3-8B ? loading ? 1/2 ?"), "{silent}");
    assert!(silent.ends_with("as its site last said, 4m12s ago"), "{silent}");
    assert!(ran.err.contains("the deployments of munich are not known now"), "{}", ran.err);
    // Programs are told the same, and how old it is.
    let listed = server.ctl(&["model", "-o", "json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let all = listed.as_array().unwrap();
    let one = |name: &str| all.iter().find(|one| one["name"] == name).unwrap();
    assert!(one("qwen3").get("freshness").is_none() && one("qwen3").get("age_ms").is_none());
    let chat = one("chat");
    assert_eq!(
        (&chat["edge_id"], &chat["state"], &chat["ready"]),
        (&"munich".into(), &"loading".into(), &1.into())
    );
    assert_eq!((&chat["freshness"], &chat["age_ms"]), (&"disconnected".into(), &252_000.into()), "{chat}");
    let shown = server.ctl(&["model", "show", "chat"]);
    assert_eq!(shown.code, 4, "{shown:?}");
    assert!(
        shown.out.contains("loading ?") && shown.err.contains("this is what it last said, 4m12s ago"),
        "{shown:?}"
    );
    // Of one that nobody who answers has it is not said that there is none.
    for words in [["model", "show", "other"], ["engine", "show", "other"], ["model", "load", "other"]] {
        let ran = server.ctl(&words);
        assert!(ran.code == 4 && ran.err.contains("silent are\n         munich"), "{words:?}: {ran:?}");
    }
    // Jobs are kept at their site alone.
    let jobs = server.ctl(&["job", "-o", "json"]);
    assert_eq!((jobs.code, jobs.out.as_str()), (4, ""), "{jobs:?}");
    assert!(
        jobs.err.contains("jobs are known to their site alone; without an answer are\n         munich"),
        "{jobs:?}"
    );
    // The only site that is asked is silent.
    let ran = server.ctl(&["model", "--site", "munich"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.out.contains("embed") && !ran.out.contains("qwen3"), "{}", ran.out);
}
