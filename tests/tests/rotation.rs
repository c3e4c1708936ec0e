//! Credentials that are replaced under load, kill -9 in the middle of it, and a site whose authority changes while its
//! nodes serve; on real processes.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use umbel_tests::fleet::{Node, SOON};
use umbel_tests::wait;

use crate::sites::{SHORT, Site, external, site};

/// Rounds of killing in the suite; set UMBEL_KILLS for a long run.
const KILLS: u64 = 15;

fn file(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn identity(node: &Node) -> Value {
    file(&node.state.join("identity.json")).unwrap()
}

/// What the state directory has once a rotation is over: one key, and it is the identity's.
fn settled(node: &Node) -> Result<(), String> {
    let keys: Vec<_> = std::fs::read_dir(&node.state)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains(".key") || name.starts_with("pending") || name.ends_with(".new"))
        .collect();
    let named = identity(node)["key_file"].as_str().unwrap().to_owned();
    if keys == [named] { Ok(()) } else { Err(format!("{keys:?}")) }
}

fn rotated(s: &Site, before: &Value) {
    wait::until_some("the certificate is another one", SOON, || {
        let now = identity(&s.node);
        let other = now["certificate_chain"] != before["certificate_chain"];
        let done = !s.edge.node("gpu-1")["credential"]["rotating"].as_bool().unwrap_or(true);
        if other && done { settled(&s.node) } else { Err(format!("other: {other}, done: {done}")) }
    });
}

/// The old connection finishes what it carries, the new one takes what comes; nobody notices.
#[test]
fn a_node_rotates_while_it_streams() {
    let s = site(4);
    let before = identity(&s.node);
    let script = json!({"events": 6, "gate": "go", "gate_at": 2});
    let open = s.edge.chat("m", "over", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("over", "streaming", SHORT, |r| r.events_sent == 2);
    let _ = s.edge.ctl(&["node", "rotate", "gpu-1"]).ok();
    rotated(&s, &before);
    let got = s.edge.chat("m", "beside", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(got.status, 200);
    s.engine.open_gate("go");
    let whole = open.head().unwrap().rest();
    assert!(whole.text().ends_with("[DONE]\n\n"), "{}", whole.text());
    assert!(s.node.daemon.log().contains("accepted the new certificate"));
}

/// Row 80: killed at whatever moment of a rotation, each side starts again with a credential that the other accepts, and
/// the rotation comes to its end.
#[test]
fn row_80_kill_9_in_the_middle_of_rotations() {
    let mut s = site(1);
    let kills = std::env::var("UMBEL_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    for round in 0..kills {
        let before = identity(&s.node);
        let _ = s.edge.ctl(&["node", "rotate", "gpu-1"]).ok();
        // The moment of the kill: nothing is waited for by it.
        std::thread::sleep(Duration::from_millis(round * 7 % 50));
        if round % 3 == 2 {
            s.edge.daemon.kill();
            s.edge.start();
        } else {
            s.node.daemon.kill();
            s.node.daemon.start();
        }
        s.edge.wait_serving("gpu-1");
        rotated(&s, &before);
    }
    let audit = s.edge.command("00000000-0000-4000-8000-000000000001", "audit.verify", "", &json!({}));
    assert_eq!((audit.status, &audit.json()["result"]["whole"]), (200, &json!(true)), "{}", audit.text());
}

/// Row 32: the authority changes while a node streams; one that was away all the time is told whose certificate it sees.
#[test]
fn row_32_the_authority_changes_under_a_running_site() {
    let s = site(4);
    let mut late = s.fleet.node(&s.edge, "late", &external(&s.engine, 1));
    s.edge.wait_serving("late");
    late.daemon.kill();
    let first = identity(&s.node)["ca_certificate"].clone();
    let script = json!({"events": 6, "gate": "go", "gate_at": 2});
    let open = s.edge.chat("m", "over", true, &script).send(&s.edge.target()).unwrap();

    let _ = s.edge.ctl(&["ca", "rotate", "begin"]).ok();
    let lacking = || {
        let told: Value = serde_json::from_str(&s.edge.ctl(&["ca", "-o", "json"]).out).unwrap();
        told["lacking"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    wait::until("only the one that is away lacks it", SOON, || lacking() == ["late"]);
    assert_eq!(identity(&s.node)["ca_certificates"].as_array().unwrap().len(), 2);
    let before = identity(&s.node);
    let _ = s.edge.ctl(&["ca", "rotate", "switch"]).ok();
    rotated(&s, &before);
    // One more host joins by the new one, and the one before still opens the door to whoever is late.
    let new = s.fleet.node(&s.edge, "new", &external(&s.engine, 1));
    s.edge.wait_serving("new");
    assert_ne!(identity(&new)["ca_certificate"], first);
    let refused = s.edge.ctl(&["--yes", "ca", "rotate", "finish"]);
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert!(refused.err.contains("late"), "{}", refused.err);
    let _ = s.edge.ctl(&["--yes", "ca", "rotate", "finish", "--leave-behind"]).ok();
    wait::until("the old one is forgotten", SOON, || {
        !identity(&s.node)["ca_certificates"].as_array().unwrap().contains(&first)
    });
    late.daemon.start();
    wait::until("it says whose certificate it sees", SOON, || late.daemon.log().contains("is of CA"));
    let log = late.daemon.log();
    assert!(log.contains("Umbel CA berlin") && log.contains("not of the CA that this host trusts"), "{log}");
    s.engine.open_gate("go");
    assert!(open.head().unwrap().rest().text().ends_with("[DONE]\n\n"), "no stream was touched");
    s.edge.wait_serving("gpu-1");
}
