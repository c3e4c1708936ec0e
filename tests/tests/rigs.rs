//! The rigs themselves: what the scripted engine and the fault proxy promise, so that a failing end-to-end test can be
//! believed.

use std::time::Duration;

use umbel_tests::engine::{End, Ending, Engine, Script};
use umbel_tests::fault_proxy::{Cut, Direction, Door, Faults, Proxy};
use umbel_tests::http::{Ask, BodyEnd, Target};
use umbel_tests::wait;

const LIMIT: Duration = Duration::from_secs(10);

fn chat(mark: &str, script: serde_json::Value) -> Ask {
    let body = serde_json::json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": mark}], "x_script": script});
    Ask::post("/v1/chat/completions", body.to_string())
}

#[test]
fn the_engine_writes_what_its_script_says() {
    let engine = Engine::start(&["m"]).unwrap();
    let target = Target::Tcp(engine.address());
    for (mark, script) in [
        ("whole", serde_json::json!({"events": 5, "usage": true})),
        ("pieces", serde_json::json!({"events": 3, "piece": 1, "text": "é✓😀"})),
        ("crlf", serde_json::json!({"events": 3, "crlf": true})),
        ("no newline", serde_json::json!({"ending": "no_newline"})),
        ("joined", serde_json::json!({"usage": true, "ending": "joined"})),
    ] {
        let want = serde_json::from_value::<Script>(script.clone()).unwrap().stream_bytes("m");
        let got = chat(mark, script).whole(&target).unwrap();
        assert_eq!(String::from_utf8_lossy(&got.body), String::from_utf8_lossy(&want), "{mark}");
        assert_eq!(got.end, BodyEnd::Whole, "{mark}");
    }
    assert_eq!(engine.records().len(), 5);
    wait::until("the engine is idle", LIMIT, || engine.running() == 0);
}

#[test]
fn the_engine_dies_as_told() {
    let engine = Engine::start(&["m"]).unwrap();
    let target = Target::Tcp(engine.address());
    for ending in [Ending::Rst, Ending::Close, Ending::MidEvent] {
        let got = chat("x", serde_json::json!({"after": 2, "ending": ending})).whole(&target).unwrap();
        assert!(matches!(got.end, BodyEnd::Cut(_)), "{ending:?}: {:?}", got.end);
    }
    let before_head = chat("x", serde_json::json!({"no_head": true, "ending": "rst"})).whole(&target);
    assert!(before_head.is_err());
}

#[test]
fn the_engine_notices_a_client_that_leaves() {
    let engine = Engine::start(&["m"]).unwrap();
    let target = Target::Tcp(engine.address());
    chat("silent", serde_json::json!({"head_gate": "never"})).send(&target).unwrap().leave(false);
    engine.wait_record("silent", "client gone", LIMIT, |r| r.end == Some(End::ClientGone));
    let mut answer = chat("streaming", serde_json::json!({"events": 9, "gate": "never", "gate_at": 3}))
        .ask(&target)
        .unwrap();
    answer.read_to("tok1").unwrap();
    answer.leave(true);
    engine.wait_record("streaming", "client gone", LIMIT, |r| r.end == Some(End::ClientGone));
}

#[test]
fn the_proxy_holds_cuts_and_lies() {
    let engine = Engine::start(&["m"]).unwrap();
    let proxy = Proxy::start(engine.address()).unwrap();
    let target = Target::Tcp(proxy.address());
    let want = Script::default().stream_bytes("m");

    proxy.set_default(Faults { down: Direction { piece: 1, ..Direction::default() }, ..Faults::default() });
    assert_eq!(chat("pieces", serde_json::json!({})).whole(&target).unwrap().body, want);

    proxy.set_default(Faults {
        down: Direction { cut: Some((200, Cut::Fin)), ..Direction::default() },
        ..Faults::default()
    });
    assert!(matches!(chat("cut", serde_json::json!({})).whole(&target).unwrap().end, BodyEnd::Cut(_)));

    proxy.set_default(Faults { door: Door::Html, ..Faults::default() });
    assert_eq!(Ask::get("/").whole(&target).unwrap().status, 503);

    proxy.set_default(Faults { door: Door::Reset, ..Faults::default() });
    assert!(Ask::get("/").whole(&target).is_err());

    proxy.set_default(Faults::default());
    let held = chat("held", serde_json::json!({"gate": "go", "gate_at": 2}));
    let mut answer = held.ask(&target).unwrap();
    answer.read_to("tok0").unwrap();
    proxy.set_all(Faults::black_hole());
    engine.open_gate("go");
    engine.wait_record("held", "complete", LIMIT, |r| r.end == Some(End::Complete));
    let link = proxy.live().pop().unwrap();
    let before = link.bytes();
    wait::stays("nothing passes", Duration::from_millis(200), || {
        if link.bytes() == before { Ok(()) } else { Err("it did".into()) }
    });
    proxy.set_all(Faults::default());
    assert!(answer.rest().text().ends_with("data: [DONE]\n\n"));
}
