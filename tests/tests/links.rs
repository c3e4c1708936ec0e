//! Bad links between node and edge, made by the fault proxy (rows 1, 3, 8, 9, 10, 15 and 40).

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use umbel_tests::engine::{Engine, Script};
use umbel_tests::fault_proxy::{Cut, Direction, Door, Faults, Proxy};
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, Node, SOON, free_address};
use umbel_tests::wait;

use crate::sites::{SHORT, external};

/// A redial waits at most 30 s, and a connect or handshake that hangs 5 s each.
const REDIAL: Duration = Duration::from_secs(50);

/// A site whose node reaches its edge through the proxy. Fields end in this order.
struct Linked {
    node: Node,
    edge: Edge,
    proxy: Proxy,
    engine: Engine,
    fleet: Fleet,
}

fn linked() -> Linked {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let nodes: SocketAddr = free_address();
    let proxy = Proxy::start(nodes).unwrap();
    let options = EdgeOptions { nodes_via: Some((nodes, proxy.address())), ..EdgeOptions::default() };
    let edge = fleet.edge("berlin", None, &options);
    let node = fleet.node(&edge, "gpu-1", &external(&engine, 8));
    Linked { node, edge, proxy, engine, fleet }
}

impl Linked {
    #[track_caller]
    fn serves(&self, mark: &str) {
        let got = self.edge.chat("m", mark, true, &json!({})).whole(&self.edge.target()).unwrap();
        assert_eq!(got.text(), String::from_utf8_lossy(&Script::default().stream_bytes("m")), "{mark}");
    }
}

/// Row 1: every packet is dropped both ways. Stale, then offline, then, healed, one session and online.
#[test]
fn a_black_hole_is_noticed_and_healed() {
    let l = linked();
    l.proxy.set_all(Faults::black_hole());
    l.edge.wait_node("gpu-1", "stale", SOON, |n| n["liveness"] == "stale");
    l.edge.wait_node("gpu-1", "offline", SOON, |n| n["liveness"] == "offline" && n["connected"] == false);
    // The node closes its own socket and dials again.
    wait::until("the node has dialled anew", REDIAL, || l.proxy.links().len() > 2);
    l.proxy.set_all(Faults::default());
    l.edge
        .wait_node("gpu-1", "online again", REDIAL, |n| n["liveness"] == "online" && n["connected"] == true);
    l.edge.wait_serving("gpu-1");
    wait::until("one session is left", SOON, || l.proxy.live().len() == 1);
    l.serves("healed");
}

/// A node that is cut off: its heartbeats and what was received stop, not merely age; it walks online, stale, offline, gets
/// no work, and returns as the same node. The times are the fleet's short ones; CUT_OFF=100 and real thresholds by hand.
#[test]
fn a_node_that_is_cut_off_stops_and_returns() {
    let real =
        std::env::var("CUT_OFF").ok().and_then(|text| text.parse::<u64>().ok()).map(Duration::from_secs);
    let l = linked();
    let (edge, proxy) = (&l.edge, &l.proxy);
    if real.is_some() {
        let _ = edge.ctl(&["settings", "set", "edge.liveness.stale=30s", "edge.liveness.offline=90s"]).ok();
    }
    let limit = real.unwrap_or(SOON).max(SOON);
    let before =
        edge.wait_node("gpu-1", "beating", SOON, |node| node["heartbeat_sequence"].as_u64() > Some(1));
    proxy.set_all(Faults::black_hole());
    let cut = std::time::Instant::now();
    let stale = edge.wait_node("gpu-1", "stale", limit, |node| node["state"] == "stale");
    let stopped = (
        stale["heartbeat_sequence"].clone(),
        stale["last_seen_at"].clone(),
        stale["telemetry"]["received_at"].clone(),
    );
    assert!(edge.ctl(&["node", "why", "gpu-1"]).code == 3);
    // A request waits for the node to come back, or is refused; it does not run there.
    let ran = l.engine.records().len();
    let waits = edge
        .chat("m", "nothing for it", true, &json!({}))
        .limit(Duration::from_secs(2))
        .whole(&edge.target());
    assert!(waits.is_err() || waits.is_ok_and(|whole| whole.status == 503));
    assert_eq!(l.engine.records().len(), ran, "no work for a node that is stale");
    edge.wait_node("gpu-1", "offline", limit + SHORT, |node| node["state"] == "offline");
    if let Some(real) = real {
        std::thread::sleep(real.saturating_sub(cut.elapsed()));
    }
    let offline = edge.node("gpu-1");
    let still = (
        offline["heartbeat_sequence"].clone(),
        offline["last_seen_at"].clone(),
        offline["telemetry"]["received_at"].clone(),
    );
    assert_eq!(still, stopped, "they stopped, not merely aged");
    proxy.set_all(Faults::default());
    let back = edge.wait_node("gpu-1", "online again", Duration::from_secs(60), |node| {
        node["state"] == "online"
            && node["connected"] == true
            && node["providers"][0]["status"] == "available"
    });
    assert_eq!(back["node_id"], before["node_id"]);
    assert!(back["heartbeat_sequence"] != stopped.0 && back["last_seen_at"] != stopped.1, "{back}");
    let got = edge.chat("m", "again", true, &json!({})).whole(&edge.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"), "{}", got.text());
}

/// Rows 8 and 9: the old connection hangs, the node comes back on a new one, and the late close of the old one changes
/// nothing.
#[test]
fn a_late_close_of_the_old_session_changes_nothing() {
    let mut l = linked();
    for round in 0..5 {
        let before = l.edge.node("gpu-1")["generation"].as_u64().unwrap();
        let old = l.proxy.live();
        for link in &old {
            link.set(Faults::black_hole());
        }
        l.node.daemon.restart();
        l.edge.wait_node("gpu-1", "back on a new session", SOON, |n| {
            n["connected"] == true && n["generation"].as_u64().unwrap_or(0) > before
        });
        l.edge.wait_serving("gpu-1");
        let generation = l.edge.node("gpu-1")["generation"].clone();
        for link in &old {
            link.end(if round % 2 == 0 { Cut::Rst } else { Cut::Fin });
        }
        l.serves(&format!("round {round}"));
        let node = l.edge.node("gpu-1");
        assert_eq!((&node["connected"], &node["generation"]), (&json!(true), &generation), "{node}");
    }
    let audit = l.edge.ctl(&["audit", "--action", "node_offline", "-o", "json"]).ok().json();
    assert_eq!(audit, json!([]), "it was never offline");
}

/// Row 10: a copied state directory. The first stays, the copy is told why, and gets in when the first has gone.
#[test]
fn a_copied_state_directory_is_refused_while_the_first_lives() {
    let mut l = linked();
    let mut copy = l.fleet.node_files("copy", &external(&l.engine, 8));
    copy_dir(&l.node.state, &copy.state);
    let open = l
        .edge
        .chat("m", "unbroken", true, &json!({"events": 6, "gate": "go", "gate_at": 2}))
        .send(&l.edge.target())
        .unwrap();
    l.engine.wait_record("unbroken", "streaming", SHORT, |r| r.events_sent == 2);
    let generation = l.edge.node("gpu-1")["generation"].clone();
    copy.daemon.start();
    wait::until("the copy is told", SOON, || copy.daemon.log().contains("DUPLICATE_IDENTITY"));
    let node = l.edge.node("gpu-1");
    assert_eq!(
        (&node["connected"], &node["generation"]),
        (&json!(true), &generation),
        "the first is not evicted: {node}"
    );
    assert!(node["problems"].to_string().contains("DUPLICATE_IDENTITY"), "{node}");
    l.engine.open_gate("go");
    assert!(
        open.head().unwrap().rest().text().ends_with("[DONE]\n\n"),
        "the first one's streams are unbroken"
    );
    l.node.daemon.kill();
    // The copy was told to wait 30 s; a restarted one asks at once.
    copy.daemon.restart();
    l.edge.wait_node("gpu-1", "the copy", SOON, |n| n["connected"] == true && n["generation"] != generation);
}

fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    use std::fs;
    fs::create_dir_all(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_dir(&path, &target);
        } else if path.is_file() {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// Row 15: whatever the address answers for a while, the agent lives and comes back by itself.
#[test]
fn the_agent_never_gives_up() {
    let mut l = linked();
    let identity = std::fs::read_dir(&l.node.state).unwrap().count();
    for door in [Door::Reset, Door::Html, Door::Silent] {
        let before = l.proxy.links().len();
        l.proxy.set_default(Faults { door, ..Faults::default() });
        for link in l.proxy.live() {
            link.end(Cut::Rst);
        }
        let tries = if door == Door::Silent { 1 } else { 2 };
        wait::until("the node has tried it", REDIAL, || l.proxy.links().len() >= before + tries);
        assert!(l.node.daemon.is_running(), "{door:?}");
        l.proxy.set_all(Faults::default());
        l.edge.wait_node("gpu-1", "back", REDIAL, |n| n["connected"] == true);
        l.edge.wait_serving("gpu-1");
    }
    l.serves("after all of it");
    assert_eq!(std::fs::read_dir(&l.node.state).unwrap().count(), identity, "row 27: the identity is kept");
}

/// Row 40: one byte a write, while streams and cancels go both ways.
#[test]
fn one_byte_a_write_changes_nothing() {
    let l = linked();
    let slow = Direction { piece: 1, ..Direction::default() };
    l.proxy.set_all(Faults { up: slow, down: slow, ..Faults::default() });
    let want = Script { events: 40, ..Script::default() }.stream_bytes("m");
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (l, want) = (&l, &want);
            scope.spawn(move || {
                let mark = format!("bytes-{n}");
                let got =
                    l.edge.chat("m", &mark, true, &json!({"events": 40})).whole(&l.edge.target()).unwrap();
                assert_eq!(&got.body, want, "{mark}");
                let mut left = l
                    .edge
                    .chat("m", "cancelled", true, &json!({"events": 40}))
                    .ask(&l.edge.target())
                    .unwrap();
                left.read_to("tok").unwrap();
                left.leave(true);
            });
        }
    });
    l.edge.wait_idle(SHORT);
    assert_eq!(l.edge.node("gpu-1")["liveness"], "online");
}

/// Row 3: a full slow link keeps its node online, since heartbeats go ahead of data.
#[test]
fn a_full_link_stays_online() {
    let l = linked();
    let generation = l.edge.node("gpu-1")["generation"].clone();
    let slow = Direction { rate: 2 << 20, ..Direction::default() };
    l.proxy.set_all(Faults { up: slow, ..Faults::default() });
    let script = json!({"events": 14_000, "text": "z".repeat(60)});
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (l, script) = (&l, &script);
            scope.spawn(move || {
                let got =
                    l.edge.chat("m", &format!("bulk-{n}"), true, script).whole(&l.edge.target()).unwrap();
                assert!(got.text().ends_with("[DONE]\n\n"), "{n}");
            });
        }
        let l = &l;
        scope.spawn(move || {
            wait::until("all bulk streams run", SHORT, || l.engine.running() == 8);
            while l.engine.running() > 0 {
                assert_eq!(l.edge.node("gpu-1")["liveness"], "online");
                std::thread::sleep(Duration::from_millis(200));
            }
        });
    });
    assert_eq!(l.edge.node("gpu-1")["generation"], generation, "no reconnect");
}

/// Row 24: the link breaks at any point of an enrollment; the same token and key again give the one identity.
#[test]
fn an_enrollment_whose_answer_was_lost_is_repeated() {
    let l = linked();
    let mut lost = 0;
    for (n, at) in (400..4_400).step_by(500).enumerate() {
        let name = format!("cut-{n}");
        let token = l.edge.token(&name);
        let node = l.fleet.node_files(&name, &external(&l.engine, 1));
        let cut = Direction { cut: Some((at, Cut::Rst)), ..Direction::default() };
        l.proxy.set_default(Faults { down: cut, ..Faults::default() });
        if node.enroll(&token).code != 0 {
            lost += 1;
        }
        l.proxy.set_default(Faults::default());
        let _ = node.enroll(&token).ok();
        let same = l.edge.nodes().iter().filter(|x| x["name"] == name.as_str()).count();
        assert_eq!(same, 1, "cut at byte {at}: one record");
    }
    assert!(lost > 2, "some enrollments were cut: {lost}");
}

/// Row 24: the edge has answered, and the answer is cut on its way. One call of `node enroll` asks again by itself, with the
/// same key, and is the one node that there is.
#[test]
fn row_24_an_enrollment_whose_answer_is_cut_is_asked_again() {
    let fleet = Fleet::new();
    let nodes: SocketAddr = free_address();
    let proxy = Proxy::start(nodes).unwrap();
    let options = EdgeOptions { nodes_via: Some((nodes, proxy.address())), ..EdgeOptions::default() };
    let edge = fleet.edge("berlin", None, &options);
    let engine = Engine::start(&["m"]).unwrap();
    for (number, bytes) in [600_u64, 1_500, 2_300].into_iter().enumerate() {
        let name = format!("gpu-{number}");
        let node = fleet.node_files(&name, &external(&engine, 1));
        let token = edge.token(&name);
        let before = proxy.links().len();
        let cut = Direction { cut: Some((bytes, Cut::Fin)), ..Direction::default() };
        proxy.set_default(Faults { down: cut, ..Faults::default() });
        std::thread::scope(|scope| {
            let enrolling = scope.spawn(|| node.enroll(&token));
            wait::until("it has dialed", SOON, || proxy.links().len() > before);
            proxy.set_default(Faults::default());
            let ran = enrolling.join().unwrap();
            assert_eq!(ran.code, 0, "after {bytes} bytes: {ran:?}");
        });
        assert!(proxy.links().len() > before + 1, "it was asked again");
    }
    proxy.set_default(Faults::default());
    assert_eq!(edge.nodes().len(), 3);
}
