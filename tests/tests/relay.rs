//! What passes between a client and an engine: bytes, endings, errors, headers (rows 35, 44, 50 to 53, 61 and 69).

use std::time::Duration;

use serde_json::json;
use umbel_tests::engine::{End, Engine, Script};
use umbel_tests::fleet::{EdgeOptions, Fleet, free_address};
use umbel_tests::http::{Ask, BodyEnd, Target};
use umbel_tests::wait;

use crate::sites::{CANCEL, SHORT, error_event, external, openai_error, refused, site, site_with};

/// Rows 50 and 51: any split of the engine's bytes gives the client the same bytes, and a last event without its blank
/// line arrives well terminated.
#[test]
fn bytes_pass_unchanged() {
    let s = site(4);
    for (mark, script) in [
        ("plain", json!({"events": 6, "usage": true})),
        ("one byte a write", json!({"events": 4, "piece": 1, "text": "héllo 😀 你好 "})),
        ("seven bytes a write", json!({"events": 4, "piece": 7, "text": "é✓"})),
        ("crlf", json!({"events": 4, "crlf": true, "piece": 5})),
        ("joined", json!({"events": 3, "usage": true, "ending": "joined"})),
        ("many", json!({"events": 3000})),
    ] {
        let want = serde_json::from_value::<Script>(script.clone()).unwrap().stream_bytes("m");
        let got = s.edge.chat("m", mark, true, &script).whole(&s.edge.target()).unwrap();
        assert_eq!(got.status, 200, "{mark}: {}", got.text());
        assert_eq!(got.text(), String::from_utf8_lossy(&want), "{mark}");
        assert_eq!(got.end, BodyEnd::Whole, "{mark}");
        assert!(got.header("content-type").unwrap().starts_with("text/event-stream"), "{mark}");
        assert_eq!(got.header("x-accel-buffering"), Some("no"), "{mark}");
        assert_eq!(got.header("content-encoding"), None, "{mark}");
    }
    for (mark, script) in
        [("no newline", json!({"ending": "no_newline"})), ("one newline", json!({"ending": "one_newline"}))]
    {
        let got = s.edge.chat("m", mark, true, &script).whole(&s.edge.target()).unwrap();
        let want = Script::default().stream_bytes("m");
        assert_eq!(got.text(), String::from_utf8_lossy(&want), "{mark}: the missing newlines are added");
        assert_eq!(got.end, BodyEnd::Whole, "{mark}");
    }
    let got = s
        .edge
        .chat("m", "not a stream", false, &json!({"body_bytes": 300_000}))
        .whole(&s.edge.target())
        .unwrap();
    let script = Script { body_bytes: 300_000, ..Script::default() };
    assert_eq!(got.body, script.plain_body("m"));
    s.edge.wait_idle(SHORT);
}

/// The request's own bytes reach the engine: unknown fields, spelling of numbers, order of keys, a body larger than a
/// frame.
#[test]
fn the_request_passes_unchanged() {
    let s = site(4);
    let odd = r#"{"z":1e-05, "seed": 9007199254740993, "model":"m","chat_template_kwargs":{"a" : [1,2.50]},"messages":[{"role":"user","content":"odd one"}],"top_k":7}"#;
    let got = Ask::post("/v1/chat/completions", odd).bearer(&s.edge.key).whole(&s.edge.target()).unwrap();
    assert_eq!(got.status, 200, "{}", got.text());
    assert_eq!(s.engine.records().last().unwrap().body, odd);
    let large =
        s.edge.chat("m", &"large ".repeat(200_000), false, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(large.status, 200, "{}", large.text());
    assert!(s.engine.records().last().unwrap().body.len() > 1_200_000);
    let too_large = Ask::post("/v1/chat/completions", vec![b' '; 33 << 20])
        .bearer(&s.edge.key)
        .whole(&s.edge.target())
        .unwrap();
    refused(&too_large, 413);
}

/// Row 52: an engine that dies in the middle of a stream is an error in the stream, never an end that looks whole.
#[test]
fn an_engine_that_dies_mid_stream_is_told() {
    let s = site(4);
    for ending in ["rst", "close", "no_done"] {
        let got = s
            .edge
            .chat("m", ending, true, &json!({"after": 3, "ending": ending}))
            .whole(&s.edge.target())
            .unwrap();
        assert_eq!(got.status, 200, "{ending}");
        assert!(got.text().contains("tok1"), "{ending}: what came before is kept");
        error_event(&got);
    }
    // A failure inside an event cannot be told in an event: the connection is cut.
    let script = json!({"after": 3, "delay_ms": 30, "ending": "mid_event"});
    let got = s.edge.chat("m", "inside", true, &script).whole(&s.edge.target()).unwrap();
    assert!(matches!(got.end, BodyEnd::Cut(_)), "{:?} {}", got.end, got.text());
    assert!(!got.text().contains("[DONE]"));
    s.edge.wait_idle(SHORT);
}

/// Row 53: an error before the first byte has its real status, and JSON.
#[test]
fn errors_before_the_first_byte_keep_their_status() {
    let s = site(4);
    for status in [400_u16, 404, 429, 500, 503] {
        let script = json!({"status": status, "headers": [["Retry-After", "7"]]});
        let got = s.edge.chat("m", "status", true, &script).whole(&s.edge.target()).unwrap();
        assert_eq!(got.status, status, "{}", got.text());
        assert!(got.header("content-type").unwrap().starts_with("application/json"), "{status}");
        openai_error(&got.json());
        if status == 429 {
            assert_eq!(got.header("retry-after"), Some("7"));
        }
    }
    for (mark, stream) in [("closes streaming", true), ("closes plain", false)] {
        let got = s
            .edge
            .chat("m", mark, stream, &json!({"no_head": true, "ending": "rst"}))
            .whole(&s.edge.target())
            .unwrap();
        refused(&got, 502);
        assert_eq!(s.engine.runs(mark), 1, "{mark}: the prompt is not run twice (row 69)");
    }
    s.edge.wait_idle(SHORT);
}

/// Row 69: before any work another provider is tried; afterwards never.
#[test]
fn a_refused_connection_is_tried_elsewhere_and_nothing_runs_twice() {
    let fleet = Fleet::new();
    let (dead, live) = (Engine::start(&["m"]).unwrap(), Engine::start(&["m"]).unwrap());
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let _one = fleet.node(&edge, "one", &external(&dead, 8));
    let _two = fleet.node(&edge, "two", &external(&live, 8));
    drop(dead);
    for n in 0..6 {
        let mark = format!("elsewhere-{n}-");
        let got = edge.chat("m", &mark, true, &json!({})).whole(&edge.target()).unwrap();
        assert_eq!(got.status, 200, "{}", got.text());
        assert!(got.text().ends_with("data: [DONE]\n\n"));
        assert_eq!(live.runs(&mark), 1);
    }
    let got = edge
        .chat("m", "after-one-", true, &json!({"after": 1, "ending": "rst"}))
        .whole(&edge.target())
        .unwrap();
    error_event(&got);
    assert_eq!(live.runs("after-one-"), 1);
    edge.wait_idle(SHORT);
}

/// Row 35: what belongs to the client's connection or credentials stays at the edge, and the engine's stays there too.
#[test]
fn credentials_and_hop_by_hop_headers_do_not_pass() {
    let s = site(4);
    let got = s
        .edge
        .chat(
            "m",
            "headers",
            false,
            &json!({"headers": [["Set-Cookie", "a=b"], ["X-Engine-Secret", "canary-engine"]]}),
        )
        .header("cookie", "session=canary-cookie")
        .header("x-api-key", "canary-x-api-key")
        .header("proxy-authorization", "Basic canary-proxy")
        .header("connection", "x-foo, keep-alive")
        .header("x-foo", "canary-foo")
        .header("te", "trailers")
        .header("accept-encoding", "gzip")
        .header("x-request-id", "req-0123456789")
        .whole(&s.edge.target())
        .unwrap();
    assert_eq!(got.status, 200, "{}", got.text());
    assert_eq!(got.header("set-cookie"), None);
    assert_eq!(got.header("server"), None);
    assert_eq!(got.header("x-request-id"), Some("req-0123456789"));
    let record = s.engine.records().pop().unwrap();
    let all = format!("{:?}", record.headers);
    assert!(!all.contains("canary"), "{all}");
    assert!(!all.contains(s.edge.key.as_str()), "the client's key stays at the edge");
    assert_eq!(record.header("authorization"), None);
    assert_eq!(record.header("x-request-id"), Some("req-0123456789"));
    assert_ne!(record.header("accept-encoding"), Some("gzip"));
}

/// Row 44: a client that stops reading holds up nobody else on the same node.
#[test]
fn a_slow_reader_disturbs_no_other() {
    let s = site(16);
    let flood = json!({"events": 60_000, "text": "x".repeat(100)});
    let mut slow = s.edge.chat("m", "slow", true, &flood).ask(&s.edge.target()).unwrap();
    slow.read_to("assistant").unwrap();
    let stuck = || s.engine.records().iter().find(|r| r.body.contains("slow")).map_or(0, |r| r.events_sent);
    let mut last = 0;
    wait::until("the slow stream has come to a stand", SHORT, || {
        let now = stuck();
        let stands = now == last && now > 0;
        last = now;
        stands
    });
    assert!(last < 60_000, "the engine waits for the slow reader");
    for n in 0..7 {
        let got = s
            .edge
            .chat("m", &format!("quick-{n}"), true, &json!({"events": 500}))
            .whole(&s.edge.target())
            .unwrap();
        assert!(got.text().ends_with("data: [DONE]\n\n"), "{n}");
    }
    assert_eq!(s.edge.node("gpu-1")["liveness"], "online");
    slow.leave(true);
    s.engine.wait_record("slow", "let go", SHORT, |r| r.end == Some(End::ClientGone));
    s.edge.wait_idle(SHORT);
}

/// Row 61: whatever way a request ends, its lease is given back.
#[test]
fn capacity_is_exact_after_every_kind_of_end() {
    let s = site(4);
    let scripts = [
        json!({}),
        json!({"after": 2, "ending": "rst"}),
        json!({"after": 2, "ending": "close"}),
        json!({"after": 2, "ending": "mid_event"}),
        json!({"no_head": true, "ending": "rst"}),
        json!({"status": 500}),
        json!({"events": 50, "delay_ms": 1}),
    ];
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (s, scripts) = (&s, &scripts);
            scope.spawn(move || {
                for n in 0..40 {
                    let script = &scripts[(n + worker) % scripts.len()];
                    let Ok(sent) = s.edge.chat("m", "mixed", n % 3 != 0, script).send(&s.edge.target())
                    else {
                        continue;
                    };
                    match n % 5 {
                        0 => sent.leave(true),
                        1 => sent.leave(false),
                        _ => drop(sent.head().map(umbel_tests::http::Answer::rest)),
                    }
                }
            });
        }
    });
    s.edge.wait_idle(SHORT);
    wait::until("the engine is idle", SHORT, || s.engine.running() == 0);
    let held: Vec<_> = (0..10)
        .map(|n| {
            s.edge
                .chat("m", &format!("all-{n}"), true, &json!({"head_gate": "all"}))
                .send(&s.edge.target())
                .unwrap()
        })
        .collect();
    wait::until("all four places can be taken", SHORT, || s.engine.running() == 4);
    wait::stays("no fifth is", Duration::from_millis(300), || match s.engine.running() {
        4 => Ok(()),
        n => Err(format!("{n} run")),
    });
    s.engine.open_gate("all");
    for sent in held {
        assert!(sent.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
    }
}

/// The OpenAI errors that clients act on.
#[test]
fn refusals_have_their_status_and_words() {
    let s = site_with(
        1,
        &EdgeOptions {
            more: "[queue]\nmax_requests = 1\nmax_wait = \"20s\"\n".into(),
            ..EdgeOptions::default()
        },
    );
    let to = s.edge.target();
    let no_key = Ask::post("/v1/chat/completions", "{\"model\":\"m\",\"messages\":[]}").whole(&to).unwrap();
    assert_eq!(refused(&no_key, 401)["code"], "invalid_api_key");
    let wrong = Ask::get("/v1/models").bearer("umk_nope_nope").whole(&to).unwrap();
    refused(&wrong, 401);
    let unknown = s.edge.chat("other", "x", true, &json!({})).whole(&to).unwrap();
    let error = refused(&unknown, 404);
    assert_eq!(error["code"], "model_not_found");
    assert_eq!(error["param"], "model");
    refused(&Ask::post("/v1/chat/completions", "not json").bearer(&s.edge.key).whole(&to).unwrap(), 400);
    refused(&Ask::get("/v1/nothing").bearer(&s.edge.key).whole(&to).unwrap(), 404);
    refused(&Ask::get("/v1/chat/completions").bearer(&s.edge.key).whole(&to).unwrap(), 405);
    let models = Ask::get("/v1/models").bearer(&s.edge.key).whole(&to).unwrap().json();
    assert_eq!(models["data"][0]["id"], "m");
    assert!(models["data"][0]["created"].is_u64());

    let held = s.edge.chat("m", "holds", true, &json!({"head_gate": "go"})).send(&to).unwrap();
    s.engine.wait_record("holds", "running", SHORT, |_| true);
    let waits = s.edge.chat("m", "waits", true, &json!({})).send(&to).unwrap();
    wait::until("the second one waits", SHORT, || {
        s.edge.get("/api/v1/edges/berlin/status")["queues"][0]["depth"] == 1
    });
    let full =
        s.edge.chat("m", "too many", true, &json!({})).limit(Duration::from_secs(5)).whole(&to).unwrap();
    refused(&full, 429);
    let after: u64 = full.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
    assert!(full.header("x-umbel-reason").is_some());
    s.engine.open_gate("go");
    assert!(held.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
    assert!(waits.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
}

/// With a certificate in the file the same surface is there over TLS, streams too.
#[test]
fn https_serves_the_same() {
    let mut s = site(2);
    let made = rcgen::generate_simple_self_signed(["api.example".to_owned()]).unwrap();
    let (certificate, key) = (s.fleet.dir().join("api.crt"), s.fleet.dir().join("api.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let https = free_address();
    let text = std::fs::read_to_string(&s.edge.config).unwrap();
    let text = text.replace("[listen]\n", &format!("[listen]\napi_https = \"{https}\"\n"));
    std::fs::write(
        &s.edge.config,
        format!("{text}\n[tls]\napi_cert_file = {certificate:?}\napi_key_file = {key:?}\n"),
    )
    .unwrap();
    s.edge.daemon.kill();
    s.edge.start();
    s.edge.wait_serving("gpu-1");
    let target = Target::Tls(https, "api.example".to_owned());
    let got = s.edge.chat("m", "over tls", true, &json!({"events": 300})).whole(&target).unwrap();
    let want = Script { events: 300, ..Script::default() }.stream_bytes("m");
    assert_eq!(got.text(), String::from_utf8_lossy(&want));
    let mut left =
        s.edge.chat("m", "leaves", true, &json!({"gate": "never", "gate_at": 2})).ask(&target).unwrap();
    left.read_to("tok0").unwrap();
    left.leave(true);
    s.engine.wait_record("leaves", "cancelled", CANCEL, |r| r.end == Some(End::ClientGone));
    // Plain HTTP on the TLS port is refused, and disturbs nobody.
    assert!(Ask::get("/v1/models").limit(SHORT).whole(&Target::Tcp(https)).map_or(true, |w| w.status == 400));
    s.edge.wait_idle(SHORT);
}

/// Row 55: a silent stream is kept open by comments of one line, and nothing comes before the engine's own head.
#[test]
fn a_silent_stream_is_kept_open() {
    let s =
        site_with(2, &EdgeOptions { more: "[api]\nkeepalive = \"1s\"\n".into(), ..EdgeOptions::default() });
    let script = json!({"head_gate": "head", "events": 4, "gate": "go", "gate_at": 2});
    let sent = s.edge.chat("m", "silent", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("silent", "running", SHORT, |_| true);
    s.engine.open_gate("head");
    let mut answer = sent.head().unwrap();
    let mut text = answer.read_to(": keepalive\n").unwrap();
    text.extend(answer.read_to(": keepalive\n").unwrap());
    s.engine.open_gate("go");
    text.extend(answer.rest().body);
    let text = String::from_utf8(text).unwrap();
    let want = Script::default().stream_bytes("m");
    assert_eq!(
        text.replace(": keepalive\n", ""),
        String::from_utf8(want).unwrap(),
        "only whole comment lines were added"
    );
}

/// An engine that takes too long: 504 before the first byte, an error event between two.
#[test]
fn an_engine_that_takes_too_long_is_told() {
    let more = "[upstream]\nfirst_byte_timeout = \"1s\"\nidle_timeout = \"1s\"\n".into();
    let s = site_with(2, &EdgeOptions { more, ..EdgeOptions::default() });
    let never =
        s.edge.chat("m", "no head", true, &json!({"head_gate": "never"})).whole(&s.edge.target()).unwrap();
    refused(&never, 504);
    assert_eq!(s.engine.runs("no head"), 1, "a time-out is never tried elsewhere");
    let stalls = json!({"gate": "never", "gate_at": 2});
    let stalled = s.edge.chat("m", "stalls", true, &stalls).whole(&s.edge.target()).unwrap();
    error_event(&stalled);
    for mark in ["no head", "stalls"] {
        s.engine.wait_record(mark, "let go", SHORT, |r| r.end == Some(End::ClientGone));
    }
    s.edge.wait_idle(SHORT);
}

/// One connection carries many requests, and a refused one does not spoil it.
#[test]
fn a_kept_connection_carries_many_requests() {
    let s = site(2);
    let good = s.edge.chat("m", "again", true, &json!({"events": 2})).bytes();
    let bad = s.edge.chat("unknown", "again", true, &json!({})).bytes();
    let mut socket = std::net::TcpStream::connect(s.edge.api).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    for n in 0..6 {
        std::io::Write::write_all(&mut socket, if n % 2 == 0 { &good } else { &bad }).unwrap();
        let end = if n % 2 == 0 { "0\r\n\r\n" } else { "}}" };
        let mut text = String::new();
        while !text.ends_with(end) {
            let mut piece = [0; 4096];
            let got = std::io::Read::read(&mut socket, &mut piece).unwrap();
            assert!(got > 0, "request {n}: the connection was closed after {text}");
            text.push_str(&String::from_utf8_lossy(&piece[..got]));
        }
        assert!(text.starts_with(if n % 2 == 0 { "HTTP/1.1 200" } else { "HTTP/1.1 404" }), "{text}");
    }
}
