//! A client that leaves: its request is gone at the engine at once, in every phase (rows 57 and 58).

use serde_json::json;
use umbel_tests::engine::{End, Record};
use umbel_tests::wait;

use crate::sites::{CANCEL, SHORT, site};

fn gone(record: &Record) -> bool {
    record.end == Some(End::ClientGone)
}

/// Row 58: before the first token nothing is written, so nothing fails; the close itself must be seen.
#[test]
fn before_the_engine_says_anything() {
    let s = site(1);
    for (mark, stream, reset) in
        [("stream-fin", true, false), ("stream-rst", true, true), ("plain-fin", false, false)]
    {
        let sent =
            s.edge.chat("m", mark, stream, &json!({"head_gate": "never"})).send(&s.edge.target()).unwrap();
        s.engine.wait_record(mark, "running", SHORT, |_| true);
        sent.leave(reset);
        s.engine.wait_record(mark, "cancelled", CANCEL, gone);
        s.edge.wait_idle(CANCEL);
    }
}

/// The head is out, the engine thinks.
#[test]
fn after_the_head_while_the_engine_is_silent() {
    let s = site(1);
    let script = json!({"events": 5, "gate": "never", "gate_at": 1});
    let mut answer = s.edge.chat("m", "silent", true, &script).ask(&s.edge.target()).unwrap();
    answer.read_to("assistant").unwrap();
    answer.leave(false);
    s.engine.wait_record("silent", "cancelled", CANCEL, gone);
    s.edge.wait_idle(CANCEL);
}

/// Row 57: at event 3 of 500; another stream goes on.
#[test]
fn in_the_middle_of_a_stream() {
    let s = site(2);
    let script = json!({"events": 500, "delay_ms": 20});
    let other = s
        .edge
        .chat("m", "other", true, &json!({"events": 4, "gate": "go", "gate_at": 3}))
        .send(&s.edge.target())
        .unwrap();
    let mut answer = s.edge.chat("m", "leaves", true, &script).ask(&s.edge.target()).unwrap();
    answer.read_to("tok2").unwrap();
    answer.leave(false);
    let record = s.engine.wait_record("leaves", "cancelled", CANCEL, gone);
    assert!(record.events_sent < 300, "{}", record.events_sent);
    s.engine.open_gate("go");
    assert!(other.head().unwrap().rest().text().ends_with("[DONE]\n\n"), "the other stream is whole");
    s.edge.wait_idle(CANCEL);
}

/// One that waits in the queue never reaches an engine.
#[test]
fn in_the_queue() {
    let s = site(1);
    let held = s.edge.chat("m", "holds", true, &json!({"head_gate": "go"})).send(&s.edge.target()).unwrap();
    s.engine.wait_record("holds", "running", SHORT, |_| true);
    let queued = s.edge.chat("m", "waits", true, &json!({})).send(&s.edge.target()).unwrap();
    let depth = || s.edge.get("/api/v1/edges/berlin/status")["queues"][0]["depth"].as_u64();
    wait::until("it waits", SHORT, || depth() == Some(1));
    queued.leave(false);
    wait::until("it no longer waits", CANCEL, || depth() == Some(0));
    s.engine.open_gate("go");
    assert!(held.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
    s.edge.wait_idle(CANCEL);
    assert_eq!(s.engine.runs("waits"), 0);
}

/// Row 46 in small: cancelled streams give everything back.
#[test]
fn many_cancels_leave_nothing() {
    let s = site(4);
    for n in 0..150 {
        let script = json!({"events": 2000, "text": "y".repeat(60)});
        let mut answer = s.edge.chat("m", "many", true, &script).ask(&s.edge.target()).unwrap();
        answer.read_to("assistant").unwrap();
        answer.leave(n % 2 == 0);
    }
    s.edge.wait_idle(SHORT);
    let got = s.edge.chat("m", "last", true, &json!({"events": 2000})).whole(&s.edge.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"));
}
