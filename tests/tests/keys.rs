//! API keys with every tier as a process: limits, models, revocation and usage, as an operator and the official client see
//! them.

use std::process::Command;

use serde_json::{Value, json};
use umbel_tests::engine::{End, Engine};
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, NodeOptions};
use umbel_tests::http::{Ask, BodyEnd};
use umbel_tests::wait;

use crate::clients::installed;
use crate::sites::{SHORT, refused, site, site_with, skipped};

/// A key as `umbel ctl key create` prints it.
#[track_caller]
fn key(edge: &Edge, name: &str, flags: &[&str]) -> String {
    let words: Vec<&str> = ["key", "create", name].into_iter().chain(flags.iter().copied()).collect();
    edge.ctl(&words).ok().out.trim().to_owned()
}

fn chat(key: &str, model: &str, mark: &str, stream: bool, script: &Value) -> Ask {
    let body = json!({ "model": model, "stream": stream, "x_script": script,
        "messages": [{ "role": "user", "content": mark }] });
    Ask::post("/v1/chat/completions", body.to_string()).bearer(key).limit(SHORT)
}

/// Usage by `ctl`, summed over models.
#[track_caller]
fn usage(edge: &Edge, name: &str) -> (u64, u64, u64, u64) {
    let rows = edge.ctl(&["key", "usage", name, "-o", "json"]).ok().json();
    let sum = |field: &str| rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum();
    (sum("requests"), sum("refused"), sum("prompt_tokens"), sum("completion_tokens"))
}

/// The official client is told in its own words, with the headers that it reads, and gets on when it is let.
#[test]
fn a_limited_key_is_refused_in_the_official_clients_words() {
    let Some(python) = installed("UMBEL_PYTHON", "e2e-python/bin/python") else {
        skipped("a_limited_key_is_refused_in_the_official_clients_words", "no python with the openai client");
        return;
    };
    let s = site(4);
    let secret = key(&s.edge, "slow", &["--rpm", "3", "--tpm", "1M", "--at-once", "8"]);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/openai_keys.py");
    let output = Command::new(python)
        .args([script, &format!("http://{}/v1", s.edge.api), "3", "2"])
        .env("OPENAI_API_KEY", &secret)
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    let seen: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}\n{err}"));
    for (left, headers) in ["2", "1", "0"].into_iter().zip(seen["answered"].as_array().unwrap()) {
        assert_eq!(headers["x-ratelimit-limit-requests"], "3", "{seen}");
        assert_eq!(headers["x-ratelimit-remaining-requests"], left, "{seen}");
        assert_eq!(headers["x-ratelimit-limit-tokens"], "1000000", "{seen}");
        assert!(
            headers["x-ratelimit-reset-requests"].is_string()
                && headers["x-ratelimit-reset-tokens"].is_string()
        );
    }
    for refused in seen["refused"].as_array().unwrap() {
        assert_eq!(
            (&refused["status"], &refused["code"]),
            (&json!(429), &json!("rate_limit_exceeded")),
            "{seen}"
        );
        assert_eq!(refused["type"], "requests");
        assert_eq!(refused["limits"]["x-ratelimit-remaining-requests"], "0");
        let after: u64 = refused["retry_after"].as_str().unwrap().parse().unwrap();
        assert!((1..=60).contains(&after) && refused["message"].as_str().unwrap().contains('3'), "{seen}");
    }
    assert_eq!(seen["models"], json!(["m"]), "lists are not limited");
    let (requests, refused, prompt, completion) = usage(&s.edge, "slow");
    assert_eq!((requests, refused), (5, 2));
    assert!(prompt > 0 && completion > 0, "{prompt} {completion}");
    // A change counts for the next request.
    let _ = s.edge.ctl(&["key", "update", "slow", "--rpm", "none", "-m", "it is urgent"]).ok();
    let got = chat(&secret, "m", "on", false, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!((got.status, got.header("x-ratelimit-limit-requests")), (200, None), "{}", got.text());
    assert_eq!(got.header("x-ratelimit-limit-tokens"), Some("1000000"));
    let audit = s.edge.ctl(&["audit", "--action", "apikey.update", "-o", "json"]).ok().json().to_string();
    assert!(
        audit.contains("requests_per_minute 3 -> none: it is urgent") && !audit.contains(&secret),
        "{audit}"
    );
}

/// Requests at once include those that wait, and each end makes room.
#[test]
fn requests_at_once_are_counted_to_their_last_byte() {
    let s = site(4);
    let secret = key(&s.edge, "narrow", &["--at-once", "1"]);
    let script = json!({ "events": 4, "gate": "go", "gate_at": 2 });
    let open = chat(&secret, "m", "first", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("first", "streaming", SHORT, |r| r.events_sent == 2);
    let got = chat(&secret, "m", "second", true, &json!({})).whole(&s.edge.target()).unwrap();
    let error = refused(&got, 429);
    assert_eq!(
        (&error["code"], &error["type"]),
        (&json!("rate_limit_exceeded"), &json!("requests")),
        "{error}"
    );
    assert_eq!(s.engine.runs("second"), 0);
    s.engine.open_gate("go");
    assert_eq!(open.head().unwrap().rest().end, BodyEnd::Whole);
    wait::until("the key's place is free", SHORT, || {
        let again = chat(&secret, "m", "third", true, &json!({})).whole(&s.edge.target()).unwrap();
        again.status == 200
    });
}

/// A revoked key opens nothing within a second, what waits of it gets no engine, and what runs comes to its end.
#[test]
fn a_revoked_key_is_refused_at_once_and_its_running_answer_is_whole() {
    let s = site(1);
    let secret = key(&s.edge, "leaked", &[]);
    let script = json!({ "events": 6, "gate": "revoked", "gate_at": 2 });
    let open = chat(&secret, "m", "runs", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("runs", "streaming", SHORT, |r| r.events_sent == 2);
    let waiting = chat(&secret, "m", "waits", true, &json!({})).send(&s.edge.target()).unwrap();
    wait::until_some("it waits", SHORT, || {
        let queues = s.edge.get("/api/v1/edges/berlin/status?sections=queues");
        if queues["queues"][0]["depth"] == 1 { Ok(()) } else { Err(queues.to_string()) }
    });
    let _ = s.edge.ctl(&["key", "revoke", "leaked", "-m", "it was in a repository"]).ok();
    let refused_now = chat(&secret, "m", "late", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(refused(&refused_now, 401)["code"], "invalid_api_key");
    let waited = waiting.head().unwrap().rest();
    assert_eq!(refused(&waited, 401)["code"], "invalid_api_key");
    s.engine.open_gate("revoked");
    let whole = open.head().unwrap().rest();
    assert!(whole.text().ends_with("data: [DONE]\n\n"), "{}", whole.text());
    s.engine.wait_record("runs", "complete", SHORT, |r| r.end == Some(End::Complete));
    assert_eq!(s.engine.runs("waits") + s.engine.runs("late"), 0);
    s.edge.wait_idle(SHORT);
    let (requests, refused, _, completion) = usage(&s.edge, "leaked");
    assert_eq!((requests, refused), (2, 1), "the refused one that came later has no key any more");
    assert!(completion > 0, "what ran is counted");
    // Its name used again means the new one; the revoked one has its id.
    let _next = key(&s.edge, "leaked", &[]);
    let shown = s.edge.ctl(&["key", "show", "leaked", "-o", "json"]).ok().json();
    assert!(shown["revoked_at"].is_null(), "{shown}");
    assert_eq!(usage(&s.edge, "leaked").0, 2, "what was used with the old one is still told");
}

/// Two keys, two models: each sees and may use its own, by any of its names.
#[test]
fn models_are_allowed_by_alias_or_name() {
    let fleet = Fleet::new();
    let engines = [Engine::start(&["m"]).unwrap(), Engine::start(&["n"]).unwrap()];
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let declared = |name: &str, model: &str, engine: &Engine| {
        let mut declared = EngineDeclaration::external(name, model, &engine.url(), 4);
        declared.toml.push_str(&format!("aliases = [\"{model}-latest\"]\n"));
        declared
    };
    let options = NodeOptions {
        engines: vec![declared("a", "m", &engines[0]), declared("b", "n", &engines[1])],
        ..NodeOptions::default()
    };
    let _node = fleet.node(&edge, "gpu-1", &options);
    let of_m = key(&edge, "by-alias", &["--model", "m-latest"]);
    let of_n = key(&edge, "by-name", &["--model", "n"]);
    let listed = |secret: &str| -> Vec<String> {
        let list = Ask::get("/v1/models").bearer(secret).whole(&edge.target()).unwrap().json();
        let mut ids: Vec<String> =
            list["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(listed(&of_m), ["m", "m-latest"]);
    assert_eq!(listed(&of_n), ["n", "n-latest"]);
    for (secret, model, status) in [
        (&of_m, "m-latest", 200),
        (&of_m, "m", 200),
        (&of_m, "n", 404),
        (&of_n, "n", 200),
        (&of_n, "n-latest", 200),
        (&of_n, "m-latest", 404),
    ] {
        let got = chat(secret, model, "x", false, &json!({})).whole(&edge.target()).unwrap();
        assert_eq!(got.status, status, "{model}: {}", got.text());
        if status == 404 {
            assert_eq!(refused(&got, 404)["code"], "model_not_found");
        }
    }
    // Lists and queues mean the same by any name, and so does who looks at them.
    for name in ["m", "m-latest"] {
        let listed = edge.ctl(&["request", "list", "--model", name, "-o", "json"]).ok().json();
        let rows = listed.as_array().unwrap();
        assert!(rows.len() == 2 && rows.iter().all(|row| row["model"] == "m"), "{name}: {listed}");
        let queue = edge.ctl(&["queue", name, "-o", "json"]).ok().json();
        assert_eq!(queue[0]["model"], "m", "{name}: {queue}");
    }
    let rows = edge.ctl(&["key", "usage", "by-name", "-o", "json"]).ok().json();
    let of = |model: &str, field: &str| {
        rows.as_array().unwrap().iter().find(|row| row["model"] == model).map(|row| row[field].clone())
    };
    assert_eq!((of("n", "requests"), of("", "refused")), (Some(json!(2)), Some(json!(1))), "{rows}");
}

/// What keys have used is what the metrics say, by model; it outlives a restart whole and a kill by what was written.
#[test]
fn usage_is_what_engines_reported_and_outlives_the_edge() {
    let mut s = site_with(4, &EdgeOptions { metrics: true, ..EdgeOptions::default() });
    let (one, two) = (key(&s.edge, "one", &[]), key(&s.edge, "two", &["--priority", "80"]));
    let ask = |edge: &Edge, secret: &str, n: usize| {
        for n in 0..n {
            let script = json!({ "events": 3, "usage": true });
            let stream = n % 2 == 0;
            let got = chat(secret, "m", "counted", stream, &script).whole(&edge.target()).unwrap();
            assert_eq!(got.status, 200, "{}", got.text());
        }
    };
    ask(&s.edge, &one, 4);
    ask(&s.edge, &two, 3);
    s.edge.wait_idle(SHORT);
    let (of_one, of_two) = (usage(&s.edge, "one"), usage(&s.edge, "two"));
    assert_eq!((of_one.0, of_one.1, of_two.0, of_two.1), (4, 0, 3, 0));
    let text = s.edge.metrics();
    let metric = |of: &str| -> u64 {
        let line =
            text.lines().find(|line| line.starts_with("umbel_edge_tokens_total{") && line.contains(of));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{of}: {text}"))
    };
    assert_eq!(of_one.2 + of_two.2, metric("direction=\"input\""), "prompts: {text}");
    assert_eq!(of_one.3 + of_two.3, metric("direction=\"output\""), "answers: {text}");

    // In order: all of it stays.
    s.edge.daemon.stop(SHORT);
    s.edge.start();
    s.edge.wait_serving("gpu-1");
    assert_eq!((usage(&s.edge, "one"), usage(&s.edge, "two")), (of_one, of_two));
    // Killed: what was written stays, and what came after it is lost, no more.
    ask(&s.edge, &one, 2);
    s.edge.daemon.kill();
    s.edge.start();
    s.edge.wait_serving("gpu-1");
    let after = usage(&s.edge, "one");
    assert!(
        (4..=6).contains(&after.0) && after.2 >= of_one.2 && after.3 >= of_one.3,
        "{after:?} after {of_one:?}"
    );
    assert_eq!(usage(&s.edge, "two"), of_two);
    ask(&s.edge, &one, 1);
    let by_day = s.edge.ctl(&["key", "usage", "one", "--by", "day", "-o", "json"]).ok().json();
    let days: u64 = by_day.as_array().unwrap().iter().map(|row| row["requests"].as_u64().unwrap()).sum();
    assert_eq!((days, usage(&s.edge, "one").0), (after.0 + 1, after.0 + 1), "{by_day}");
    let shown = s.edge.ctl(&["key", "usage"]).ok().out;
    assert!(shown.lines().count() >= 3 && shown.contains("REQUESTS") && shown.contains("two"), "{shown}");
}

/// What is said of a key at the control plane is done by the key's own edge, at once, and read back the same way.
#[test]
fn keys_are_changed_and_their_usage_is_read_through_the_control_plane() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let plane = fleet.control_plane();
    let edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    let _node = fleet.node(&edge, "gpu-1", &crate::sites::external(&engine, 2));
    plane.wait_fresh("berlin");
    let ctl = |words: &[&str]| {
        let words: Vec<&str> = words.iter().copied().chain(["--site", "berlin"]).collect();
        plane.ctl(&words)
    };
    let ask =
        || chat(&edge.key, "m", "counted", false, &json!({ "usage": true })).whole(&edge.target()).unwrap();
    assert_eq!(ask().status, 200);
    let _ = ctl(&["key", "update", "app", "--rpm", "1", "-m", "a trial"]).ok();
    assert_eq!(ask().status, 200);
    let got = ask();
    assert_eq!(refused(&got, 429)["code"], "rate_limit_exceeded");
    assert_eq!(got.header("x-umbel-reason"), Some("key_requests"));
    let _ = ctl(&["key", "update", "app", "--rpm", "none", "--model", "other", "-m", "a trial"]).ok();
    assert_eq!(ask().status, 404, "the model is not the key's any more");
    let _ = ctl(&["key", "update", "app", "--all-models", "-m", "a trial"]).ok();
    assert_eq!(ask().status, 200);
    edge.wait_idle(SHORT);
    let through = ctl(&["key", "usage", "app", "-o", "json"]).ok().json();
    let sum = |of: &Value, field: &str| -> u64 {
        of.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
    };
    assert_eq!((sum(&through, "requests"), sum(&through, "refused")), (5, 2), "{through}");
    let own = edge.ctl(&["key", "usage", "app", "-o", "json"]).ok().json();
    assert_eq!(sum(&own, "prompt_tokens"), sum(&through, "prompt_tokens"));
    assert_eq!(ctl(&["key", "update", "nobody", "--rpm", "1", "-m", "a trial"]).code, 6);
    // Both audits have it: who asked, and what was done.
    for audit in [plane.ctl(&["audit", "-o", "json"]), edge.ctl(&["audit", "-o", "json"])] {
        assert!(audit.ok().out.contains("apikey.update"));
    }
}
