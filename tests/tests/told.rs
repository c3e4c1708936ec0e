//! Reasons of refusals and failures, produced by a client over HTTP: status, code, reason and when to come back, as
//! contracts/openai.md has them; and the counters of reasons say what the clients were told. Not here: slow_body, held_bytes,
//! connections, engine_bad_answer, engine_truncated, engine_refused.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use umbel_contracts::daemon::exposition::read;
use umbel_tests::engine::Engine;
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Signal};
use umbel_tests::http::{Ask, Whole};
use umbel_tests::wait;

use crate::behaviours::{record, with};
use crate::engines::options;
use crate::sites::{SHORT, Site, refused, site_with};

/// What says when to come back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    Unsaid,
    After,
    Useless,
}

/// What the clients of one edge were told, by reason.
#[derive(Default)]
struct Told(BTreeMap<String, u64>);

impl Told {
    /// This answer is that refusal, whole.
    #[track_caller]
    fn note(&mut self, got: &Whole, reason: &str, status: u16, code: &str, again: Again) {
        let error = refused(got, status);
        assert_eq!(
            (&error["code"], got.header("x-umbel-reason")),
            (&json!(code), Some(reason)),
            "{}",
            got.text()
        );
        let after = got.header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
        let said = match (after, got.header("x-should-retry")) {
            (None, None) => Again::Unsaid,
            (Some(1..=60), None) => Again::After,
            (None, Some("false")) => Again::Useless,
            other => panic!("{reason}: {other:?}"),
        };
        assert_eq!(said, again, "{reason}");
        assert!(![429, 503].contains(&status) || said != Again::Unsaid, "{reason}");
        *self.0.entry(reason.to_owned()).or_default() += 1;
    }

    /// The counters say the same.
    #[track_caller]
    fn agrees(&self, s: &Site) {
        let samples = read(&s.edge.metrics()).unwrap_or_else(|why| panic!("{why}")).0;
        let mut counted: BTreeMap<String, u64> = BTreeMap::new();
        for one in samples.iter().filter(|one| one.name == "umbel_edge_rejections_total") {
            let reason = one.label("reason").unwrap().to_owned();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
            let count = one.value as u64;
            *counted.entry(reason).or_default() += count;
        }
        assert_eq!(counted, self.0);
    }
}

fn small(more: &str) -> EdgeOptions {
    let more = format!(
        "[api]\nbody_max = \"64KiB\"\nheld_max = \"256KiB\"\n[queue]\nmax_requests = 1\nmax_wait = \"1s\"\nmax_wait_loading = \"1s\"\n\
         [upstream]\nfirst_byte_timeout = \"2s\"\n{more}"
    );
    EdgeOptions { metrics: true, ..with(&more) }
}

/// Bytes as they are, and what comes back until the edge closes.
fn raw(s: &Site, bytes: &[u8]) -> Whole {
    let mut socket = TcpStream::connect(s.edge.api).unwrap();
    socket.set_read_timeout(Some(SHORT)).unwrap();
    socket.write_all(bytes).unwrap();
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut text = String::new();
    let _ = socket.read_to_string(&mut text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Whole { status, headers, body: body.as_bytes().to_vec(), end: umbel_tests::http::BodyEnd::Whole }
}

/// Refusals that need no engine.
#[test]
fn each_refusal_of_a_request_itself_is_told_and_counted() {
    let s = site_with(1, &small(""));
    let (to, mut told) = (s.edge.target(), Told::default());
    let post = |body: &str| Ask::post("/v1/chat/completions", body).bearer(&s.edge.key).whole(&to).unwrap();
    for key in ["", "umk_nobody", "sk-foreign"] {
        let got = Ask::post("/v1/chat/completions", "{}").bearer(key).whole(&to).unwrap();
        told.note(&got, "auth", 401, "invalid_api_key", Again::Unsaid);
    }
    told.note(&post("{"), "bad_request", 400, "invalid_json", Again::Unsaid);
    told.note(&post("{}"), "bad_request", 400, "missing_required_parameter", Again::Unsaid);
    told.note(&post("{\"model\": 7}"), "bad_request", 400, "invalid_type", Again::Unsaid);
    told.note(
        &post("{\"model\": \"m\", \"stream\": \"yes\"}"),
        "bad_request",
        400,
        "invalid_type",
        Again::Unsaid,
    );
    told.note(&post("{\"model\": \"nobody's\"}"), "not_found", 404, "model_not_found", Again::Unsaid);
    told.note(&post(&" ".repeat(70_000)), "too_large", 413, "request_too_large", Again::Unsaid);
    let got = Ask::get("/v1/nothing").bearer(&s.edge.key).whole(&to).unwrap();
    told.note(&got, "unknown_url", 404, "unknown_url", Again::Unsaid);
    let got = Ask::get("/v1/chat/completions").bearer(&s.edge.key).whole(&to).unwrap();
    told.note(&got, "method_not_allowed", 405, "method_not_allowed", Again::Unsaid);
    let form = Ask::post("/v1/audio/transcriptions", "").header("content-type", "multipart/form-data");
    let got = form.bearer(&s.edge.key).whole(&to).unwrap();
    told.note(&got, "bad_request", 400, "invalid_form", Again::Unsaid);
    told.note(&raw(&s, b"NOT HTTP\r\n\r\n"), "malformed_request", 400, "malformed_request", Again::Unsaid);
    let long = format!("GET /v1/models HTTP/1.1\r\nhost: e\r\nx-long: {}\r\n\r\n", "a".repeat(20 * 1024));
    told.note(&raw(&s, long.as_bytes()), "headers_too_large", 431, "headers_too_large", Again::Unsaid);
    let cut = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\nauthorization: Bearer {}\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        s.edge.key
    );
    told.note(&raw(&s, cut.as_bytes()), "incomplete_body", 400, "incomplete_body", Again::Unsaid);
    told.agrees(&s);
}

/// Refusals of admission and of a key's limits.
#[test]
fn each_refusal_of_admission_and_of_a_key_is_told_and_counted() {
    let s = site_with(1, &small(""));
    let (to, mut told) = (s.edge.target(), Told::default());
    let scripted = Engine::start(&["short"]).unwrap();
    let mut engine = EngineDeclaration::external("short", "short", &scripted.url(), 4);
    engine.toml.push_str("max_context_tokens = 16\n");
    let mut other = crate::sites::external(&s.engine, 1);
    other.engines = vec![engine];
    let _short = s.fleet.node(&s.edge, "short", &other);
    let long = s.edge.chat("short", &"word ".repeat(400), false, &json!({})).whole(&to).unwrap();
    told.note(&long, "too_long", 400, "context_length_exceeded", Again::Unsaid);

    let held = s.edge.chat("m", "holds", true, &json!({"head_gate": "go"})).send(&to).unwrap();
    record(&s, "holds");
    let waits = s.edge.chat("m", "waits", true, &json!({})).send(&to).unwrap();
    wait::until("one waits", SHORT, || {
        s.edge.get("/api/v1/edges/berlin/status")["queues"].to_string().contains("\"depth\":1")
    });
    let full = s.edge.chat("m", "full", true, &json!({})).whole(&to).unwrap();
    told.note(&full, "queue_full", 429, "overloaded", Again::After);
    told.note(&waits.head().unwrap().rest(), "queue_timeout", 429, "overloaded", Again::After);

    let key = |name: &str, flags: &[&str]| {
        let words: Vec<&str> = ["key", "create", name].into_iter().chain(flags.iter().copied()).collect();
        s.edge.ctl(&words).ok().out.trim().to_owned()
    };
    let with_key = |key: &str, model: &str, mark: &str, script: &Value| {
        let body =
            json!({ "model": model, "x_script": script, "messages": [{ "role": "user", "content": mark }] });
        Ask::post("/v1/chat/completions", body.to_string()).bearer(key)
    };
    let slow = key("slow", &["--rpm", "1"]);
    assert_eq!(with_key(&slow, "short", "x", &json!({})).whole(&to).unwrap().status, 200);
    let got = with_key(&slow, "short", "x", &json!({})).whole(&to).unwrap();
    told.note(&got, "key_requests", 429, "rate_limit_exceeded", Again::After);
    let thrifty = key("thrifty", &["--tpm", "1"]);
    assert_eq!(with_key(&thrifty, "short", "x", &json!({})).whole(&to).unwrap().status, 200);
    let got = with_key(&thrifty, "short", "x", &json!({})).whole(&to).unwrap();
    told.note(&got, "key_tokens", 429, "rate_limit_exceeded", Again::After);
    let single = key("single", &["--at-once", "1"]);
    let one = with_key(&single, "short", "single", &json!({"head_gate": "go"})).send(&to).unwrap();
    scripted.wait_record("single", "it runs", SHORT, |_| true);
    let got = with_key(&single, "short", "x", &json!({})).whole(&to).unwrap();
    told.note(&got, "key_at_once", 429, "rate_limit_exceeded", Again::After);
    // A key may hold a quarter of what all may: one body of just that is held by the engine that says nothing.
    let big = key("big", &[]);
    let filler = "x".repeat(60 * 1024);
    let body =
        json!({ "model": "short", "x_script": {"head_gate": "go"}, "x": filler, "messages": [] }).to_string();
    let first = Ask::post("/v1/chat/completions", body.clone()).bearer(&big).send(&to).unwrap();
    wait::until("the first holds its bytes", SHORT, || scripted.running() == 2);
    let got = Ask::post("/v1/chat/completions", body).bearer(&big).whole(&to).unwrap();
    told.note(&got, "key_held_bytes", 429, "overloaded", Again::After);
    s.engine.open_gate("go");
    scripted.open_gate("go");
    for sent in [held, one, first] {
        assert_eq!(sent.head().unwrap().rest().status, 200);
    }
    told.agrees(&s);
}

/// What becomes of a model that cannot run, and of an edge that goes down (row 93's first half).
#[test]
fn each_refusal_for_want_of_an_engine_is_told_and_counted() {
    let mut s = site_with(2, &small("[shutdown]\ndrain = \"20s\"\n"));
    let (to, mut told) = (s.edge.target(), Told::default());
    let mut slow = s.fleet.node_files("slow", &options(&s.fleet, "never-ready"));
    let _ = slow.enroll(&s.edge.token("slow")).ok();
    slow.daemon.start();
    s.edge.wait_node("slow", "loading", 3 * SHORT, |node| node["providers"][0]["status"] == "loading");
    let got = s.edge.chat("never-ready", "x", true, &json!({})).whole(&to).unwrap();
    told.note(&got, "loading", 503, "model_loading", Again::After);

    let _ = s.edge.ctl(&["node", "drain", "gpu-1", "-m", "a test", "-y"]).ok();
    let got = s.edge.chat("m", "x", true, &json!({})).whole(&to).unwrap();
    told.note(&got, "unavailable", 503, "model_unavailable", Again::Useless);
    let _ = s.edge.ctl(&["node", "undrain", "gpu-1"]).ok();
    s.edge.wait_serving("gpu-1");
    s.node.daemon.kill();
    s.edge.wait_node("gpu-1", "gone", 3 * SHORT, |node| node["connected"] == false);
    let got = s.edge.chat("m", "x", true, &json!({})).whole(&to).unwrap();
    told.note(&got, "unavailable", 503, "model_unavailable", Again::After);
    s.node.daemon.start();
    s.edge.wait_serving("gpu-1");

    let mut stream = s
        .edge
        .chat("m", "streams", true, &json!({"events": 4, "gate": "go", "gate_at": 3}))
        .ask(&to)
        .unwrap();
    let _ = stream.read_to("tok1").unwrap();
    s.edge.daemon.signal(Signal::Term);
    wait::until("it drains", SHORT, || Ask::get("/readyz").whole(&to).is_ok_and(|got| got.status == 503));
    let got = s.edge.chat("m", "new", true, &json!({})).whole(&to).unwrap();
    told.note(&got, "draining", 503, "draining", Again::After);
    told.agrees(&s);
    s.engine.open_gate("go");
    assert!(stream.rest().text().ends_with("data: [DONE]\n\n"));
}

/// Failures of engines before the head: told with their real status, and counted by the same word (rows 53, 64 and 69).
#[test]
fn each_failure_of_an_engine_is_told_and_counted() {
    let s = site_with(4, &small(""));
    let (to, mut told) = (s.edge.target(), Told::default());
    let ask =
        |mark: &str, stream: bool, script: &Value| s.edge.chat("m", mark, stream, script).whole(&to).unwrap();
    let got = ask("reset", true, &json!({"no_head": true, "ending": "rst"}));
    told.note(&got, "engine_lost", 502, "engine_lost", Again::Unsaid);
    let got = ask("silent", true, &json!({"head_gate": "never"}));
    told.note(&got, "engine_timeout", 504, "engine_timeout", Again::Useless);
    let got =
        ask("html", false, &json!({"status": 500, "body": "<html>no</html>", "content_type": "text/html"}));
    told.note(&got, "engine_error", 500, "engine_error", Again::Unsaid);
    told.agrees(&s);
}
