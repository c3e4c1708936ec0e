//! What operators are told: one stopped site delays no answer (row 75), one command runs once (row 71), exit codes.

use std::time::{Duration, Instant};

use serde_json::json;
use umbel_tests::engine::Engine;
use umbel_tests::fault_proxy::{Faults, Proxy};
use umbel_tests::fleet::{EdgeOptions, Fleet, SOON, Signal, free_address};
use umbel_tests::wait;

use crate::sites::{SHORT, external};

/// Row 75: one of two edges stopped with SIGSTOP; the answer comes within its deadline and says which one timed out.
#[test]
fn a_stopped_site_is_named_and_delays_nobody() {
    let fleet = Fleet::new();
    let plane = fleet.control_plane();
    let berlin = fleet.edge("berlin", Some(&plane), &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let _paris = fleet.edge("paris", Some(&plane), &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    plane.wait_fresh("berlin");
    plane.wait_fresh("paris");
    berlin.daemon.signal(Signal::Stop);
    let start = Instant::now();
    let ran = plane.ctl(&["status", "-o", "json"]);
    let took = start.elapsed();
    berlin.daemon.signal(Signal::Continue);
    let status = ran.ok().json();
    let of = |edge: &str| {
        status["sites"].as_array().unwrap().iter().find(|s| s["edge_id"] == edge).unwrap().clone()
    };
    assert_eq!(of("paris")["freshness"], "fresh", "{status}");
    assert_eq!(of("berlin")["freshness"], "timed_out", "{status}");
    assert!(of("berlin")["age_ms"].is_u64(), "old figures carry their age: {status}");
    let deadline = Duration::from_millis(status["deadline_ms"].as_u64().unwrap());
    assert!(took < deadline + Duration::from_secs(3), "{took:?} for a deadline of {deadline:?}");
    plane.wait_fresh("berlin");
}

/// Row 71: the same id again is the first outcome, also after a restart of the edge; another content is refused.
#[test]
fn a_command_runs_once() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let plane = fleet.control_plane();
    let mut edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    let _node = fleet.node(&edge, "gpu-1", &external(&engine, 1));
    plane.wait_fresh("berlin");
    let id = uuid::Uuid::new_v4().to_string();
    let args = json!({"key_id": "0123456789abcdef", "secret_sha256": "ab".repeat(32), "name": "once"});
    let first = plane.command("berlin", &id, "apikey.create", "", &args);
    assert_eq!(first.json()["phase"], "succeeded", "{}", first.text());
    let again = plane.command("berlin", &id, "apikey.create", "", &args).json();
    assert_eq!((&again["phase"], &again["replayed"]), (&json!("succeeded"), &json!(true)), "{again}");
    assert_eq!(again["result"], first.json()["result"]);
    edge.daemon.kill();
    edge.start();
    plane.wait_fresh("berlin");
    let after = plane.command("berlin", &id, "apikey.create", "", &args).json();
    assert_eq!((&after["phase"], &after["replayed"]), (&json!("succeeded"), &json!(true)), "{after}");
    let other = plane.command("berlin", &id, "node.drain", "node:gpu-1", &json!({}));
    assert_eq!(other.status, 409, "{}", other.text());
    let local = edge.command(&id, "apikey.create", "", &args).json();
    assert_eq!(local["replayed"], true, "the local socket shares the ids: {local}");
    let keys = edge.ctl(&["key", "-o", "json"]).ok().out;
    assert_eq!(keys.matches("\"once\"").count(), 1, "{keys}");
}

/// An edge that is not connected is told at once; nothing is kept for later.
#[test]
fn a_command_to_an_absent_site_is_refused_at_once() {
    let fleet = Fleet::new();
    let plane = fleet.control_plane();
    let mut edge =
        fleet.edge("berlin", Some(&plane), &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    plane.wait_fresh("berlin");
    edge.daemon.kill();
    wait::until("the control plane has noticed", SHORT, || {
        plane.site("berlin")["freshness"] == "disconnected"
    });
    let refused = plane.command("berlin", &uuid::Uuid::new_v4().to_string(), "node.drain", "all", &json!({}));
    assert_eq!(refused.status, 503, "{}", refused.text());
    let ran = plane.ctl(&["--site", "berlin", "node", "drain", "x", "-m", "a test"]);
    assert!([1, 4].contains(&ran.code), "{ran:?}");
    let unknown = plane.ctl(&["edge", "show", "nowhere"]);
    assert_eq!(unknown.code, 6, "{unknown:?}");
    let usage = plane.ctl(&["edge", "--no-such-flag"]);
    assert_eq!(usage.code, 2, "{usage:?}");
}

/// Exit codes and selectors of a site that answers.
#[test]
fn errors_name_what_was_wrong() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    assert_eq!(edge.ctl(&["node", "show", "nobody"]).code, 6);
    let missing = edge.command(&uuid::Uuid::new_v4().to_string(), "node.drain", "node:nobody", &json!({}));
    assert!(missing.text().contains("NOT_FOUND"), "{}", missing.text());
    let malformed = edge.command(&uuid::Uuid::new_v4().to_string(), "node.drain", "node:", &json!({}));
    assert!(malformed.text().contains("INVALID_ARGUMENT"), "{}", malformed.text());
    let unknown = edge.command(&uuid::Uuid::new_v4().to_string(), "node.explode", "all", &json!({}));
    assert!((400..=501).contains(&unknown.status), "{}: {}", unknown.status, unknown.text());
    let gone = umbel_tests::fleet::run(&["ctl", "--socket", "/nonexistent/edge.sock", "status"]);
    assert_eq!(gone.code, 4, "{gone:?}");
}

/// Row 7 on the link itself: it hangs, the site serves, the control plane says how old its figures are, and all is well
/// again when it heals.
#[test]
fn a_site_whose_link_hangs_goes_on() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let edges = free_address();
    let proxy = Proxy::start(edges).unwrap();
    let plane = fleet.control_plane_via(edges, proxy.address());
    let edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    let _node = fleet.node(&edge, "gpu-1", &external(&engine, 2));
    plane.wait_fresh("berlin");
    proxy.set_all(Faults::black_hole());
    let site = plane.site("berlin");
    assert!(["timed_out", "disconnected"].contains(&site["freshness"].as_str().unwrap()), "{site}");
    wait::until_some("it is given up", SOON, || {
        let site = plane.site("berlin");
        if site["freshness"] == "disconnected" && site["age_ms"].is_u64() {
            Ok(())
        } else {
            Err(site.to_string())
        }
    });
    let got = edge.chat("m", "alone", true, &json!({})).whole(&edge.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"), "{}", got.text());
    proxy.set_all(Faults::default());
    wait::until_some("it is fresh again", Duration::from_secs(60), || {
        let site = plane.site("berlin");
        if site["freshness"] == "fresh" { Ok(()) } else { Err(site.to_string()) }
    });
}
