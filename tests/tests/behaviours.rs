//! The behaviours of contracts/openai.md that are seen on the bytes, each by its number, end to end: 1 to 16 and 21.
//!
//! The others are in `refusals`; what official clients make of them is in `clients`, what a front alone decides in the
//! edge's own tests.

use serde_json::{Value, json};
use umbel_tests::engine::{End, Engine, Record, Script};
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions};
use umbel_tests::http::{Ask, BodyEnd};
use umbel_tests::wait;

use crate::sites::{CANCEL, SHORT, Site, error_event, openai_error, refused, site, site_with};

pub(crate) fn with(more: &str) -> EdgeOptions {
    EdgeOptions { more: more.to_owned(), ..EdgeOptions::default() }
}

pub(crate) fn post(s: &Site, path: &str, body: &str) -> Ask {
    Ask::post(path, body).bearer(&s.edge.key)
}

/// What the engine got, of the one request with this mark.
pub(crate) fn record(s: &Site, mark: &str) -> Record {
    s.engine.wait_record(mark, "there", SHORT, |_| true)
}

#[test]
fn behaviour_1_each_event_is_forwarded_at_once() {
    let s = site(4);
    for at in 1..6 {
        let gate = format!("gate-{at}");
        let script = json!({"events": 4, "gate": gate, "gate_at": at});
        let mut answer = s.edge.chat("m", &gate, true, &script).ask(&s.edge.target()).unwrap();
        assert_eq!(answer.header("x-accel-buffering"), Some("no"));
        assert!(answer.header("cache-control").unwrap().contains("no-cache"));
        let events = Script { events: 4, ..Script::default() }.events("m");
        let before = String::from_utf8(events[..at].concat()).unwrap();
        // The engine waits: what it said so far is here.
        let got = answer.read_to(before.trim_end().rsplit("\n\n").next().unwrap()).unwrap();
        assert!(before.starts_with(String::from_utf8(got).unwrap().trim_end()));
        s.engine.open_gate(&gate);
        assert!(answer.rest().text().ends_with("data: [DONE]\n\n"));
    }
}

#[test]
fn behaviour_2_streams_are_not_compressed_and_the_engine_is_asked_for_no_compression() {
    let s = site(4);
    for stream in [true, false] {
        let ask = s.edge.chat("m", "zip", stream, &json!({})).header("accept-encoding", "gzip, deflate, br");
        let got = ask.whole(&s.edge.target()).unwrap();
        assert_eq!((got.status, got.header("content-encoding")), (200, None));
    }
    for record in s.engine.records() {
        assert!(matches!(record.header("accept-encoding"), None | Some("identity")), "{:?}", record.headers);
    }
}

/// Streams in the shapes of vLLM, llama.cpp and SGLang: chat, usage, reasoning, tools, log probabilities, comments.
const STREAMS: [(&str, &str); 12] = [
    ("vllm-chat", include_str!("../streams/vllm-chat.sse")),
    ("vllm-usage", include_str!("../streams/vllm-usage.sse")),
    ("vllm-reasoning", include_str!("../streams/vllm-reasoning.sse")),
    ("vllm-tools", include_str!("../streams/vllm-tools.sse")),
    ("vllm-logprobs", include_str!("../streams/vllm-logprobs.sse")),
    ("vllm-completions", include_str!("../streams/vllm-completions.sse")),
    ("llamacpp-chat", include_str!("../streams/llamacpp-chat.sse")),
    ("llamacpp-usage", include_str!("../streams/llamacpp-usage.sse")),
    ("llamacpp-tools", include_str!("../streams/llamacpp-tools.sse")),
    ("sglang-chat", include_str!("../streams/sglang-chat.sse")),
    ("spaced-crlf", include_str!("../streams/spaced-crlf.sse")),
    ("comments-names-ids", include_str!("../streams/comments-names-ids.sse")),
];

/// Recorded from llama.cpp's server with the model of scripts/real-engine, by the route that each was asked for.
const RECORDED: [(&str, &str, &str); 5] = [
    ("chat", "/v1/chat/completions", include_str!("../streams/recorded-llamacpp-chat.sse")),
    ("usage", "/v1/chat/completions", include_str!("../streams/recorded-llamacpp-usage.sse")),
    ("logprobs", "/v1/chat/completions", include_str!("../streams/recorded-llamacpp-logprobs.sse")),
    ("completions", "/v1/completions", include_str!("../streams/recorded-llamacpp-completions.sse")),
    ("responses", "/v1/responses", include_str!("../streams/recorded-llamacpp-responses.sse")),
];

/// Behaviours 3, 4, 7 and 8: nothing is changed, merged or split, whatever the pieces.
#[test]
fn behaviours_3_4_7_8_streams_pass_byte_for_byte_in_any_pieces() {
    let s = site(4);
    for (name, text) in STREAMS {
        for piece in [0, 1, 7, 4096] {
            let script = json!({"raw_events": [text], "ending": "no_done", "piece": piece});
            let got = s.edge.chat("m", name, true, &script).whole(&s.edge.target()).unwrap();
            assert_eq!(
                (got.text().as_str(), &got.end),
                (text, &BodyEnd::Whole),
                "{name} in pieces of {piece}"
            );
        }
    }
    for (name, path, text) in RECORDED {
        for piece in [0, 1, 4096] {
            let script = json!({"raw_events": [text], "ending": "no_done", "piece": piece});
            let ask = json!({"model": "m", "stream": true, "x_script": script,
                "stream_options": {"include_usage": name == "usage"}});
            let got = post(&s, path, &ask.to_string()).whole(&s.edge.target()).unwrap();
            assert_eq!(
                (got.text().as_str(), &got.end),
                (text, &BodyEnd::Whole),
                "recorded {name} in pieces of {piece}"
            );
        }
    }
    let got = s.edge.chat("m", "plain", false, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(got.body, Script::default().plain_body("m"), "unknown fields of an answer stay");
    s.edge.wait_idle(SHORT);
}

#[test]
fn behaviour_5_done_comes_once_and_last_and_never_for_responses() {
    let s = site(4);
    for (path, body) in [
        (
            "/v1/chat/completions",
            r#"{"model":"m","stream":true,"messages":[],"x_script":{"ending":"joined"}}"#,
        ),
        ("/v1/completions", r#"{"model":"m","stream":true,"prompt":"x"}"#),
    ] {
        let got = post(&s, path, body).whole(&s.edge.target()).unwrap();
        assert_eq!(got.text().matches("[DONE]").count(), 1, "{path}: {}", got.text());
        assert!(got.text().ends_with("data: [DONE]\n\n"));
    }
    let body = r#"{"model":"m","stream":true,"input":"x"}"#;
    let got = post(&s, "/v1/responses", body).whole(&s.edge.target()).unwrap();
    assert_eq!((got.text().contains("[DONE]"), &got.end), (false, &BodyEnd::Whole), "{}", got.text());
    assert!(got.text().contains("event: response.completed\n") && got.text().ends_with("}\n\n"));
    // Without its last event it has failed, and says so to those who look at `type` as well.
    let body = r#"{"model":"m","stream":true,"input":"x","x_script":{"after":2}}"#;
    let cut = post(&s, "/v1/responses", body).whole(&s.edge.target()).unwrap();
    let last = cut.text().trim_end().lines().next_back().unwrap().to_owned();
    let event: Value = serde_json::from_str(last.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!((&event["type"], &event["error"]["code"]), (&json!("error"), &json!("engine_lost")), "{last}");
    openai_error(&event);
}

/// Prompt and completion tokens of a key, as its usage has them.
fn tokens(s: &Site) -> (u64, u64) {
    let metrics = s.edge.metrics();
    let of = |direction: &str| {
        let line = format!("umbel_edge_tokens_total{{model=\"m\",direction=\"{direction}\"}} ");
        let value = metrics.lines().find_map(|found| found.strip_prefix(&line));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    (of("input"), of("output"))
}

#[test]
fn behaviour_6_usage_is_there_for_those_who_asked_and_tokens_are_counted_for_all() {
    for (always, setting) in [(false, "as_asked"), (true, "always")] {
        let mut options = with(&format!("[api]\nstream_usage = \"{setting}\"\n"));
        options.metrics = true;
        let s = site_with(4, &options);
        let mut used = (0, 0);
        let mut counts = |what: &str, prompt: std::ops::RangeInclusive<u64>, completion: u64| {
            let now = wait::until_some("the tokens are counted", SHORT, || {
                let now = tokens(&s);
                if now == used { Err(format!("{now:?}")) } else { Ok(now) }
            });
            assert!(prompt.contains(&(now.0 - used.0)), "{what}: {now:?} after {used:?}");
            assert_eq!(now.1 - used.1, completion, "{what}: {now:?} after {used:?}");
            used = now;
        };
        for piece in [0, 1, 7] {
            let script = json!({"events": 5, "piece": piece});
            let body = |options: &str| {
                format!(
                    "{{\"model\":\"m\",{options}\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"p{piece}\"}}],\"x_script\":{script}}}"
                )
            };
            let got = post(&s, "/v1/chat/completions", &body("")).whole(&s.edge.target()).unwrap();
            let want = Script { events: 5, ..Script::default() }.stream_bytes("m");
            assert_eq!(got.text(), String::from_utf8_lossy(&want), "{setting}, {piece}: no usage");
            let sent = record(&s, &format!("p{piece}")).body;
            assert_eq!(sent == body(""), !always, "{setting}: {sent}");
            // Without a report the prompt is an estimate.
            counts("not asked", if always { 7..=7 } else { 1..=100 }, 5);

            let asked = body("\"stream_options\":{\"include_usage\":true},");
            let got = post(&s, "/v1/chat/completions", &asked).whole(&s.edge.target()).unwrap();
            let want = Script { events: 5, usage: true, ..Script::default() }.stream_bytes("m");
            assert_eq!(got.text(), String::from_utf8_lossy(&want), "{setting}, {piece}: with usage");
            counts("asked", 7..=7, 5);
        }
        let got = s.edge.chat("m", "plain", false, &json!({})).whole(&s.edge.target()).unwrap();
        assert_eq!(got.json()["usage"]["prompt_tokens"], 7);
        counts("plain", 7..=7, 4);
        for (path, body, completion) in [
            ("/v1/embeddings", r#"{"model":"m","input":["a"],"encoding_format":"base64"}"#, 0),
            ("/v1/responses", r#"{"model":"m","input":"a"}"#, 4),
            ("/v1/responses", r#"{"model":"m","input":"a","stream":true}"#, 4),
            ("/v1/rerank", r#"{"model":"m","query":"a","documents":["b"]}"#, 0),
        ] {
            assert_eq!(post(&s, path, body).whole(&s.edge.target()).unwrap().status, 200, "{path}");
            counts(path, 7..=7, completion);
            assert_eq!(s.engine.records().last().unwrap().body, body, "{path}: nothing is put in");
        }
        assert_eq!(s.engine.records().last().unwrap().path, "/v1/rerank");
    }
}

#[test]
fn behaviour_9_the_request_passes_unchanged_on_every_route() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let mut declared = EngineDeclaration::external("e", "m", &engine.url(), 8);
    declared.toml.push_str("aliases = [\"small\"]\n");
    let node = fleet.node(&edge, "gpu-1", &NodeOptions { engines: vec![declared], ..NodeOptions::default() });
    let s = Site { node, edge, engine, fleet };
    let odd = r#"{"z":1e-05, "seed": 9007199254740993, "model" : "m","top_k":7,"chat_template_kwargs":{"a" : [1,2.50]},"input":"é","encoding_format":"base64"}"#;
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank"] {
        assert_eq!(post(&s, path, odd).whole(&s.edge.target()).unwrap().status, 200, "{path}");
        let got = s.engine.records().pop().unwrap();
        assert_eq!((got.path.as_str(), got.body.as_str()), (path, odd));
        let alias = odd.replace("\"m\"", "\"small\"");
        assert_eq!(post(&s, path, &alias).whole(&s.edge.target()).unwrap().status, 200, "{path}");
        assert_eq!(
            s.engine.records().pop().unwrap().body,
            odd,
            "only the alias is written as the engine knows it"
        );
    }
    let form = |model: &str| {
        format!(
            "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n\
             RIFF\0\u{1}\r\n--c\r\n\r\n--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b--\r\n"
        )
    };
    for model in ["m", "small"] {
        let mut ask = Ask::get("/v1/audio/transcriptions").method("POST").bearer(&s.edge.key);
        ask = ask.header("content-type", "multipart/form-data; boundary=b").body(form(model));
        let got = ask.whole(&s.edge.target()).unwrap();
        assert_eq!(got.json()["text"], Script::default().text(), "{}", got.text());
        let record = s.engine.records().pop().unwrap();
        assert_eq!(record.body, form("m"));
        assert_eq!(record.header("content-type"), Some("multipart/form-data; boundary=b"));
    }
}

#[test]
fn behaviour_10_only_stream_decides_between_json_and_events() {
    let s = site(4);
    for (stream, kind) in [
        ("", "application/json"),
        ("\"stream\":false,", "application/json"),
        ("\"stream\":true,", "text/event-stream"),
    ] {
        for accept in ["application/json", "text/event-stream", "*/*"] {
            let body = format!("{{{stream}\"model\":\"m\",\"messages\":[]}}");
            let ask = post(&s, "/v1/chat/completions", &body).header("accept", accept);
            let got = ask.whole(&s.edge.target()).unwrap();
            assert!(
                got.header("content-type").unwrap().starts_with(kind),
                "{stream} {accept}: {:?}",
                got.headers
            );
        }
    }
}

/// Behaviours 11 and 12: what comes after the head is told in band, or the connection breaks.
#[test]
fn behaviours_11_12_a_failure_after_the_first_byte_never_looks_like_an_end() {
    let s = site(4);
    for (ending, after) in [("rst", 3), ("close", 3), ("no_done", 3), ("no_done", 1), ("rst", 1)] {
        let script = json!({"after": after, "ending": ending});
        let got = s.edge.chat("m", ending, true, &script).whole(&s.edge.target()).unwrap();
        assert_eq!(error_event(&got)["code"], "engine_lost", "{ending} after {after}");
        assert_eq!(got.end, BodyEnd::Whole);
    }
    let inside = json!({"after": 3, "delay_ms": 20, "ending": "mid_event"});
    let got = s.edge.chat("m", "inside", true, &inside).whole(&s.edge.target()).unwrap();
    assert!(matches!(got.end, BodyEnd::Cut(_)) && !got.text().contains("[DONE]"), "{}", got.text());
    s.edge.wait_idle(SHORT);
}

#[test]
fn behaviour_13_a_failure_before_the_first_byte_has_its_real_status() {
    let s = site_with(4, &with("[upstream]\nfirst_byte_timeout = \"1s\"\n"));
    for stream in [true, false] {
        for (script, status) in [
            (json!({"status": 400}), 400),
            (json!({"status": 500}), 500),
            (json!({"no_head": true, "ending": "close"}), 502),
            (json!({"no_head": true, "ending": "rst"}), 502),
            (json!({"head_gate": "never"}), 504),
        ] {
            refused(&s.edge.chat("m", "early", stream, &script).whole(&s.edge.target()).unwrap(), status);
        }
    }
}

/// 60 s of silence with a comment each second, in small: a comment each second, and one more than the engine's patience.
#[test]
fn behaviour_14_heartbeats_are_comments_of_one_line_and_only_after_the_head() {
    let s = site_with(4, &with("[api]\nkeepalive = \"1s\"\n"));
    let script = json!({"events": 3, "head_gate": "head", "gate": "go", "gate_at": 2});
    let sent = s.edge.chat("m", "silent", true, &script).send(&s.edge.target()).unwrap();
    record(&s, "silent");
    s.engine.open_gate("head");
    let mut answer = sent.head().unwrap();
    let mut text = Vec::new();
    for _ in 0..3 {
        text.extend(answer.read_to(": keepalive\n").unwrap());
    }
    s.engine.open_gate("go");
    text.extend(answer.rest().body);
    let text = String::from_utf8(text).unwrap();
    let want = Script { events: 3, ..Script::default() }.stream_bytes("m");
    assert_eq!(text.replace(": keepalive\n", ""), String::from_utf8(want).unwrap());
    assert!(!text.contains(": keepalive\n\n"), "{text}");
}

#[test]
fn behaviour_15_a_client_that_leaves_ends_the_engines_request_in_every_phase() {
    let s = site(1);
    let gone = |record: &Record| record.end == Some(End::ClientGone);
    for (mark, stream, script, sees) in [
        ("before the head", true, json!({"head_gate": "never"}), None),
        ("without a stream", false, json!({"head_gate": "never"}), None),
        ("silent after the head", true, json!({"gate": "never", "gate_at": 1}), Some("assistant")),
        ("streaming", true, json!({"events": 500, "delay_ms": 20}), Some("tok2")),
    ] {
        let sent = s.edge.chat("m", mark, stream, &script).send(&s.edge.target()).unwrap();
        record(&s, mark);
        let queued = s.edge.chat("m", "queued", stream, &json!({})).send(&s.edge.target()).unwrap();
        let depth = || s.edge.get("/api/v1/edges/berlin/status")["queues"][0]["depth"].as_u64();
        wait::until("one waits", SHORT, || depth() == Some(1));
        queued.leave(false);
        wait::until("nobody waits", CANCEL, || depth() == Some(0));
        match sees {
            None => sent.leave(true),
            Some(text) => {
                let mut answer = sent.head().unwrap();
                answer.read_to(text).unwrap();
                answer.leave(false);
            }
        }
        s.engine.wait_record(mark, "cancelled", CANCEL, gone);
        s.edge.wait_idle(CANCEL);
    }
    assert_eq!(s.engine.runs("queued"), 0);
}

/// Behaviours 16 and 21: fourteen bad requests, one shape of error, an id on each.
#[test]
fn behaviours_16_21_every_error_has_the_same_body_and_its_id() {
    let s = site_with(4, &with("[api]\nbody_max = \"1MiB\"\n"));
    let (to, key) = (s.edge.target(), s.edge.key.clone());
    let json = |body: &str| Ask::post("/v1/chat/completions", body).bearer(&key);
    let form = |kind: &str| {
        Ask::get("/v1/audio/transcriptions")
            .method("POST")
            .bearer(&key)
            .header("content-type", kind)
            .body("--b\r\n")
    };
    for (ask, status, code) in [
        (Ask::get("/v1/nothing").bearer(&key), 404, "unknown_url"),
        (Ask::get("/").bearer(&key), 404, "unknown_url"),
        (Ask::get("/v1/chat/completions").bearer(&key), 405, "method_not_allowed"),
        (Ask::get("/v1/models").method("DELETE").bearer(&key), 405, "method_not_allowed"),
        (Ask::get("/v1/embeddings").method("OPTIONS").bearer(&key), 405, "method_not_allowed"),
        (Ask::post("/v1/chat/completions", "{}"), 401, "invalid_api_key"),
        (Ask::get("/v1/models").bearer("umk_wrong_wrong"), 401, "invalid_api_key"),
        (json("not json"), 400, "invalid_json"),
        (json("[1]"), 400, "invalid_json"),
        (json("{\"messages\":[]}"), 400, "missing_required_parameter"),
        (json("{\"model\":7}"), 400, "invalid_type"),
        (json("{\"model\":\"m\",\"stream\":\"yes\"}"), 400, "invalid_type"),
        (json("{\"model\":\"gpt-4o\"}"), 404, "model_not_found"),
        (json(&format!("{{\"model\":\"m\",\"x\":\"{}\"}}", "y".repeat(2 << 20))), 413, "request_too_large"),
        (form("application/json"), 400, "invalid_form"),
        (form("multipart/form-data; boundary=b"), 400, "invalid_form"),
        (Ask::get("/v1/models/not-there").bearer(&key), 404, "model_not_found"),
    ] {
        let got = ask.clone().header("x-request-id", "bad id!").whole(&to).unwrap();
        assert_eq!(refused(&got, status)["code"], code, "{ask:?}");
        let id = got.header("x-request-id").unwrap();
        assert!(id.starts_with("req_"), "an unsound id is replaced: {id}");
        assert!(got.header("x-umbel-reason").is_some());
    }
    let ask = s.edge.chat("m", "mine", true, &json!({})).header("x-request-id", "my-own.id_1");
    let got = ask.whole(&to).unwrap();
    assert_eq!(got.header("x-request-id"), Some("my-own.id_1"));
    assert_eq!(record(&s, "mine").header("x-request-id"), Some("my-own.id_1"));
}
