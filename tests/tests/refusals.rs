//! The behaviours of contracts/openai.md from 17 on: refusals, second tries, models, size, idleness, long silence.
//!
//! Each test has its number. The first sixteen are in `behaviours`, what official clients make of them in `clients`.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::json;
use umbel_tests::engine::Engine;
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions, Signal};
use umbel_tests::http::{Ask, Whole};
use umbel_tests::wait;

use crate::behaviours::{post, record, with};
use crate::sites::{SHORT, error_event, external, refused, site, site_with};

#[test]
fn behaviour_17_keys_and_models_are_refused_in_openais_words() {
    let s = site(1);
    let to = s.edge.target();
    let secret = s.edge.key.clone();
    // One in 64 keys ends in an x of its own.
    let other = if secret.ends_with('x') { 'y' } else { 'x' };
    let wrong = format!("{}{other}", &secret[..secret.len() - 1]);
    let got = Ask::get("/v1/models").bearer(&wrong).whole(&to).unwrap();
    let error = refused(&got, 401);
    assert_eq!((&error["code"], got.header("www-authenticate")), (&json!("invalid_api_key"), Some("Bearer")));
    assert!(!got.text().contains(&secret[secret.len().saturating_sub(8)..]), "no part of a key is told");
    assert_eq!(
        refused(&Ask::post("/v1/responses", "{}").whole(&to).unwrap(), 401)["code"],
        "invalid_api_key"
    );
    let error = refused(&s.edge.chat("gone", "x", true, &json!({})).whole(&to).unwrap(), 404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    let _ = s.edge.ctl(&["node", "drain", "gpu-1", "-m", "a test", "-y"]).ok();
    let got = wait::until_some("known, and nobody may be given work", SHORT, || {
        let got = s.edge.chat("m", "x", true, &json!({})).whole(&to).unwrap();
        if got.status == 503 { Ok(got) } else { Err(got.text()) }
    });
    assert_eq!(refused(&got, 503)["code"], "model_unavailable");
    assert_eq!((got.header("x-should-retry"), got.header("retry-after")), (Some("false"), None));
}

#[test]
fn behaviour_18_a_context_overflow_stays_recognisable() {
    let s = site(4);
    for (body, message) in [
        (
            r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the messages, Please reduce the length of the messages.","type":"BadRequestError","param":null,"code":400}}"#,
            "maximum context length is 4096 tokens",
        ),
        (
            r#"{"error":{"code":400,"message":"request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":5000,"n_ctx":4096}}"#,
            "exceeds the available context size",
        ),
    ] {
        for stream in [true, false] {
            let script = json!({"status": 400, "body": body});
            let got = s.edge.chat("m", "long", stream, &script).whole(&s.edge.target()).unwrap();
            let error = got.json()["error"].clone();
            assert_eq!(
                (got.status, &error["code"]),
                (400, &json!("context_length_exceeded")),
                "{}",
                got.text()
            );
            assert!(error["message"].as_str().unwrap().contains(message));
            assert_eq!(got.text(), body.replace("\"code\":400", "\"code\":\"context_length_exceeded\""));
        }
    }
}

#[test]
fn behaviour_19_each_429_and_503_says_when_to_come_back_or_that_it_is_useless() {
    let s = site_with(1, &with("[queue]\nmax_requests = 1\nmax_wait = \"1s\"\n"));
    let to = s.edge.target();
    let after = |got: &Whole| {
        let seconds: u64 =
            got.header("retry-after").unwrap_or_else(|| panic!("{:?}", got.headers)).parse().unwrap();
        assert!((1..=60).contains(&seconds), "{seconds}");
    };
    for (status, said, told) in [(429, "7", "7"), (503, "300", "60"), (503, "soon", "1")] {
        let script = json!({"status": status, "headers": [["Retry-After", said]]});
        let got = s.edge.chat("m", "busy", true, &script).whole(&to).unwrap();
        assert_eq!((got.status, got.header("retry-after")), (status, Some(told)), "{said}");
    }
    let held = s.edge.chat("m", "holds", true, &json!({"head_gate": "go"})).send(&to).unwrap();
    record(&s, "holds");
    let waits = s.edge.chat("m", "waits", true, &json!({})).send(&to).unwrap();
    wait::until("one waits", SHORT, || s.edge.get("/api/v1/edges/berlin/status")["queues"][0]["depth"] == 1);
    let full = s.edge.chat("m", "full", true, &json!({})).whole(&to).unwrap();
    assert!(refused(&full, 429)["message"].as_str().unwrap().contains("1 of 1 requests wait"));
    after(&full);
    let waited = waits.head().unwrap().rest();
    assert!(refused(&waited, 429)["message"].as_str().unwrap().contains("within 1 s"));
    after(&waited);
    assert!(waited.header("x-umbel-queue-ms").is_some());
    s.engine.open_gate("go");
    assert!(held.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
}

#[test]
fn behaviour_20_nothing_is_done_twice() {
    let fleet = Fleet::new();
    let (dead, live) = (Engine::start(&["m"]).unwrap(), Engine::start(&["m"]).unwrap());
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let _one = fleet.node(&edge, "one", &external(&dead, 8));
    let _two = fleet.node(&edge, "two", &external(&live, 8));
    // Both break the connection after they have read the request: nobody else is asked.
    for (path, body) in [("/v1/chat/completions", "messages"), ("/v1/responses", "input")] {
        let mark = format!("broken {path}");
        let body =
            json!({"model": "m", body: mark, "x_script": {"no_head": true, "ending": "rst"}}).to_string();
        let got = Ask::post(path, body).bearer(&edge.key).whole(&edge.target()).unwrap();
        assert_eq!((got.status, got.header("x-umbel-attempts")), (502, Some("1")), "{}", got.text());
        assert_eq!(dead.runs(&mark) + live.runs(&mark), 1);
    }
    // One on each, so that the one that is gone has more room and is tried first.
    let hold = |n: usize| {
        edge.chat("m", &format!("held-{n}-"), true, &json!({"head_gate": "never"})).send(&edge.target())
    };
    let _held = [hold(0).unwrap(), hold(1).unwrap()];
    wait::until("both hold one", SHORT, || dead.running() == 1 && live.running() == 1);
    drop(dead);
    let mut tried_elsewhere = 0;
    for n in 0..6 {
        let mark = format!("elsewhere-{n}-");
        let got = edge.chat("m", &mark, n % 2 == 0, &json!({})).whole(&edge.target()).unwrap();
        assert_eq!((got.status, live.runs(&mark)), (200, 1), "{}", got.text());
        tried_elsewhere += usize::from(got.header("x-umbel-attempts") == Some("2"));
    }
    assert!(tried_elsewhere > 0, "the refused connection is seen in x-umbel-attempts");
}

#[test]
fn behaviour_22_models_are_listed_and_retrieved_by_ids_with_slashes() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m", "Qwen/Qwen3-32B"]).unwrap();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let mut slash = EngineDeclaration::external("q", "Qwen/Qwen3-32B", &engine.url(), 8);
    slash.toml.push_str("aliases = [\"qwen\"]\n");
    let engines = vec![EngineDeclaration::external("e", "m", &engine.url(), 8), slash];
    let _node = fleet.node(&edge, "gpu-1", &NodeOptions { engines, ..NodeOptions::default() });
    let some = edge.ctl(&["key", "create", "some", "--model", "m"]).ok().out.trim().to_owned();
    let get = |path: &str, key: &str| Ask::get(path).bearer(key).whole(&edge.target()).unwrap();
    let ids = |key: &str| -> Vec<String> {
        let list = get("/v1/models", key).json();
        assert_eq!(list["object"], "list");
        let data = list["data"].as_array().unwrap();
        for model in data {
            assert!(
                model["created"].is_u64() && model["object"] == "model" && model["owned_by"].is_string(),
                "{model}"
            );
        }
        let mut ids: Vec<_> = data.iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&edge.key), ["Qwen/Qwen3-32B", "m", "qwen"]);
    assert_eq!(ids(&some), ["m"]);
    for path in ["/v1/models/Qwen/Qwen3-32B", "/v1/models/Qwen%2FQwen3-32B", "//v1/models/Qwen%2fQwen3-32B/"]
    {
        assert_eq!(get(path, &edge.key).json()["id"], "Qwen/Qwen3-32B", "{path}");
        refused(&get(path, &some), 404);
    }
    assert_eq!(get("/v1/models/", &edge.key).status, 200);
    let body = json!({"model": "Qwen/Qwen3-32B", "messages": []}).to_string();
    for path in ["//v1/chat/completions", "/v1/chat/completions/", "/v1//chat/completions"] {
        let got = Ask::post(path, body.clone()).bearer(&edge.key).whole(&edge.target()).unwrap();
        assert_eq!(got.status, 200, "{path}: {}", got.text());
    }
}

#[test]
fn behaviour_23_large_bodies_pass_in_every_framing_and_larger_ones_are_told() {
    let s = site(2);
    let image = "iVBORw0KGgo/+AAA".repeat((20 << 20) / 16);
    let url = format!("data:image/png;base64,{image}");
    let content =
        json!([{"type": "text", "text": "large"}, {"type": "image_url", "image_url": {"url": url}}]);
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: e\r\nAuthorization: Bearer {}\r\n", s.edge.key);
    let mut chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
    for piece in body.as_bytes().chunks(1 << 20) {
        chunked.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        chunked.extend_from_slice(piece);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let plain = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).into_bytes();
    let expects =
        format!("{head}Content-Length: {}\r\nExpect: 100-continue\r\n\r\n", body.len()).into_bytes();
    for (name, first, then) in
        [("plain", plain, None), ("chunked", chunked, None), ("expects", expects, Some(&body))]
    {
        let mut socket = std::net::TcpStream::connect(s.edge.api).unwrap();
        socket.set_read_timeout(Some(6 * SHORT)).unwrap();
        socket.write_all(&first).unwrap();
        let mut answer = [0; 4096];
        let mut got = socket.read(&mut answer).unwrap();
        if let Some(body) = then {
            assert!(
                answer[..got].starts_with(b"HTTP/1.1 100 "),
                "{}",
                String::from_utf8_lossy(&answer[..got])
            );
            socket.write_all(body.as_bytes()).unwrap();
            got = socket.read(&mut answer).unwrap();
        }
        assert!(
            answer[..got].starts_with(b"HTTP/1.1 200 "),
            "{name}: {}",
            String::from_utf8_lossy(&answer[..got])
        );
        assert_eq!(s.engine.records().pop().unwrap().body.len(), body.len(), "{name}");
    }
    let larger = format!("{{\"model\":\"m\",\"x\":\"{}\"}}", "y".repeat(65 << 20));
    let got = post(&s, "/v1/chat/completions", &larger).whole(&s.edge.target()).unwrap();
    let error = refused(&got, 413);
    assert!(error["message"].as_str().unwrap().contains("33554432"), "the limit is named: {error}");
}

/// Five minutes of requests every five seconds at an engine that closes after five, in small: three of them.
#[test]
fn behaviour_24_an_engine_that_closes_its_idle_connections_costs_no_request() {
    let s = site(4);
    s.engine.close_idle_after(Duration::from_secs(5));
    for n in 0..4 {
        let got = s.edge.chat("m", "again", n % 2 == 0, &json!({})).whole(&s.edge.target()).unwrap();
        assert_eq!((got.status, got.header("x-umbel-attempts")), (200, Some("1")), "{}", got.text());
        if n < 3 {
            let pause = Duration::from_millis(4_950 + 50 * n);
            wait::stays("the node is there", pause, || Ok(()));
        }
    }
    assert_eq!(s.engine.runs("again"), 4);
}

/// An engine that closes each connection right behind its answer, without having said so: none is used again before it has
/// rested, and then it is seen to be closed.
#[test]
fn behaviour_24_an_engine_that_closes_behind_its_answers_costs_no_request() {
    let s = site(8);
    let filler = "x".repeat(40 * 1024);
    let lost = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (s, lost, filler) = (&s, &lost, &filler);
            scope.spawn(move || {
                for n in 0..50 {
                    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "closing"}],
                        "x_script": {"closes_after_ms": n % 3, "events": 1}});
                    if n % 5 == 4 {
                        body["filler"] = json!(filler);
                    }
                    let got =
                        post(s, "/v1/chat/completions", &body.to_string()).whole(&s.edge.target()).unwrap();
                    if got.status != 200 {
                        lost.lock().unwrap().push(format!("{client}/{n}: {} {}", got.status, got.text()));
                    }
                }
            });
        }
    });
    let lost = lost.into_inner().unwrap();
    // An engine that is held up for longer than a rest looks as if it kept its connection.
    assert!(lost.len() <= 2, "{} of 200: {lost:?}", lost.len());
    assert_eq!(s.engine.runs("closing"), 200 - lost.len(), "each ran once");
}

/// 400 s of prefill are in small some heartbeats of silence: nothing of ours ends a request that an engine works on.
#[test]
fn behaviour_25_a_silent_prefill_outlasts_every_clock_of_ours_and_a_shutdown_lets_streams_finish() {
    let s = site(8);
    let sent =
        s.edge.chat("m", "prefill", true, &json!({"before_head_ms": 6_000})).send(&s.edge.target()).unwrap();
    let got = sent.head().unwrap().rest();
    assert!(got.text().ends_with("data: [DONE]\n\n"), "{}", got.text());
    for (drain, code) in [("60s", None), ("1s", Some("draining"))] {
        let s = site_with(8, &with(&format!("[shutdown]\ndrain = \"{drain}\"\n")));
        let mut streams = Vec::new();
        for n in 0..3 {
            let script = json!({"events": 6, "gate": "go", "gate_at": 3});
            let mark = format!("stream-{n}");
            let mut answer = s.edge.chat("m", &mark, true, &script).ask(&s.edge.target()).unwrap();
            let before = answer.read_to("tok1").unwrap();
            assert_eq!(answer.header("connection"), None);
            streams.push((answer, before));
        }
        s.edge.daemon.signal(Signal::Term);
        wait::until("new work is refused", SHORT, || {
            let got = s.edge.chat("m", "new", true, &json!({})).whole(&s.edge.target());
            got.map_or(true, |got| got.status == 503)
        });
        if code.is_none() {
            s.engine.open_gate("go");
        }
        for (answer, mut text) in streams {
            let rest = answer.rest();
            text.extend_from_slice(&rest.body);
            let whole = Whole { body: text, ..rest };
            match code {
                None => assert!(whole.text().ends_with("data: [DONE]\n\n"), "{}", whole.text()),
                Some(code) => assert_eq!(error_event(&whole)["code"], code),
            }
        }
    }
}
