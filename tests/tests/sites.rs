//! The small fleets that most tests stand on, and what tests say of answers.

use std::time::Duration;

use serde_json::Value;
use umbel_tests::engine::Engine;
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions};
use umbel_tests::http::Whole;

/// A cancel must reach the engine within 1 s; the rest is for a machine that compiles beside the tests.
pub(crate) const CANCEL: Duration = Duration::from_secs(3);
/// For what follows at once.
pub(crate) const SHORT: Duration = Duration::from_secs(10);

/// One edge that stands alone, one node, and a scripted engine behind it that serves model `m`.
/// The order of the fields is the order in which they end.
pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) edge: Edge,
    pub(crate) engine: Engine,
    pub(crate) fleet: Fleet,
}

pub(crate) fn site(capacity: u32) -> Site {
    site_with(capacity, &EdgeOptions::default())
}

pub(crate) fn site_with(capacity: u32, options: &EdgeOptions) -> Site {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let edge = fleet.edge("berlin", None, options);
    let node = fleet.node(&edge, "gpu-1", &external(&engine, capacity));
    Site { node, edge, engine, fleet }
}

/// A node's options: this engine as model `m`.
pub(crate) fn external(engine: &Engine, capacity: u32) -> NodeOptions {
    NodeOptions {
        engines: vec![EngineDeclaration::external("e", "m", &engine.url(), capacity)],
        ..NodeOptions::default()
    }
}

/// The one error event of a failed stream, and that nothing in it looks like success.
#[track_caller]
pub(crate) fn error_event(whole: &Whole) -> Value {
    let text = whole.text();
    assert!(!text.contains("[DONE]"), "no [DONE] after a failure: {text}");
    assert!(!text.contains("\"finish_reason\":\"stop\""), "no finish_reason stop after a failure: {text}");
    let errors: Vec<Value> = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "))
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .filter(|v| v.get("error").is_some())
        .collect();
    assert_eq!(errors.len(), 1, "exactly one error event: {text}");
    openai_error(&errors[0]);
    errors[0]["error"].clone()
}

/// OpenAI's error body.
#[track_caller]
pub(crate) fn openai_error(body: &Value) {
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "an error has a message: {body}");
    assert!(error["type"].is_string(), "an error has a type: {body}");
    assert!(error.get("param").is_some(), "an error has a param, if only null: {body}");
    assert!(
        error["code"].is_string() || error["code"].is_null(),
        "an error's code is a string or null: {body}"
    );
}

/// An error answer before any byte of a stream.
#[track_caller]
pub(crate) fn refused(whole: &Whole, status: u16) -> Value {
    assert_eq!(whole.status, status, "{}", whole.text());
    let kind = whole.header("content-type").unwrap_or_default();
    assert!(kind.starts_with("application/json"), "an error is JSON, not {kind}: {}", whole.text());
    assert!(whole.header("x-request-id").is_some(), "an error has a request id");
    let body = whole.json();
    openai_error(&body);
    body["error"].clone()
}

/// Says that a test was skipped and why, past the test runner's capture of output.
pub(crate) fn skipped(test: &str, why: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
