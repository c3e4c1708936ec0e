//! Starting and stopping: broken files, ports in use, few file descriptors (row 48), SIGTERM with live streams (row 93),
//! and secrets that never show (row 33).

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use umbel_tests::engine::Engine;
use umbel_tests::fleet::{EdgeOptions, Fleet, SOON, Signal, run};
use umbel_tests::http::Ask;
use umbel_tests::wait;

use crate::sites::{SHORT, external, refused, site, site_with};

/// An unknown key or a wrong value names file, line and what would be right; exit code 78.
#[test]
fn a_broken_file_is_refused_by_line() {
    let fleet = Fleet::new();
    let file = |name: &str, text: &str| {
        let path = fleet.dir().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    let cases = [
        (
            "control-plane",
            "control-plane.toml",
            "[control_plane]\nname = \"cp\"\nstate_dir = \"/tmp/x\"\nadvertize = []\n",
            4,
        ),
        (
            "edge",
            "edge.toml",
            "[edge]\nsite = \"berlin\"\nstate_dir = \"/tmp/x\"\n\n[listen]\napy = \"127.0.0.1:1\"\n",
            6,
        ),
        ("edge", "edge2.toml", "[edge]\nsite = \"not a label!\"\nstate_dir = \"/tmp/x\"\n", 2),
        (
            "node",
            "node.toml",
            "[node]\nname = \"n\"\nstate_dir = \"/tmp/x\"\n\n[[engine]]\nname = \"e\"\nkind = \"warp\"\n",
            7,
        ),
        ("node", "node2.toml", "[node]\nname = \"n\nstate_dir = \"/tmp/x\"\n", 2),
    ];
    for (tier, name, text, line) in cases {
        let path = file(name, text);
        let ran = run(&[tier, "--config", &path]);
        assert_eq!(ran.code, 78, "{name}: {ran:?}");
        assert!(
            ran.err.contains(&format!("{name}:{line}")),
            "{name}: names file and line {line}: {}",
            ran.err
        );
        assert!(!ran.err.contains("panicked"), "{}", ran.err);
    }
    let missing = run(&["edge", "--config", "/nonexistent/edge.toml"]);
    assert_eq!(missing.code, 78, "{missing:?}");
    let path = file(
        "edge3.toml",
        "[edge]\nsite = \"berlin\"\nstate_dir = \"/tmp/x\"\n\n[liveness]\nstale = \"20s\"\noffline = \"10s\"\n",
    );
    let ran = run(&["config", "check", &path, "--tier", "edge"]);
    assert_ne!(ran.code, 0, "offline must exceed stale: {ran:?}");
}

/// A port in use is an error that names the port, not a hang and not a panic.
#[test]
fn a_port_in_use_is_told() {
    let mut s = site(1);
    s.edge.daemon.kill();
    for address in [s.edge.api, s.edge.nodes] {
        let taken = TcpListener::bind(address).unwrap();
        s.edge.daemon.start();
        let status = s.edge.daemon.wait_end(SHORT);
        assert!(!status.success());
        assert!(s.edge.daemon.log().contains(&address.port().to_string()), "{}", s.edge.daemon.log());
        drop(taken);
    }
    s.edge.start();
    s.edge.wait_serving("gpu-1");
}

/// Two agents on one state directory, or two edges on one store: the second is refused and the first lives.
#[test]
fn a_state_directory_has_one_owner() {
    let s = site(1);
    let node = run(&["node", "--config", &s.node.config.to_string_lossy()]);
    assert_ne!(node.code, 0, "{node:?}");
    let edge = run(&["edge", "--config", &s.edge.config.to_string_lossy()]);
    assert_ne!(edge.code, 0, "{edge:?}");
    s.edge.wait_serving("gpu-1");
}

/// Row 93: SIGTERM lets streams run to their end, refuses what is new, and exits 0.
#[test]
fn sigterm_lets_streams_finish() {
    let mut s = site(32);
    let script = json!({"events": 6, "gate": "go", "gate_at": 2});
    let open: Vec<_> =
        (0..20).map(|_| s.edge.chat("m", "live", true, &script).send(&s.edge.target()).unwrap()).collect();
    wait::until("twenty streams run", SHORT, || s.engine.running() == 20);
    s.edge.daemon.signal(Signal::Term);
    wait::until("it is no longer ready", SHORT, || match Ask::get("/readyz").whole(&s.edge.target()) {
        Ok(whole) => whole.status == 503,
        Err(_) => true,
    });
    if let Ok(whole) = s.edge.chat("m", "new", true, &json!({})).whole(&s.edge.target()) {
        refused(&whole, 503);
        assert!(whole.header("retry-after").is_some());
    }
    s.engine.open_gate("go");
    for sent in open {
        let whole = sent.head().unwrap().rest();
        assert!(whole.text().ends_with("[DONE]\n\n"), "{}", whole.text());
        assert_ne!(whole.header("connection"), Some("close"), "a cut must not look like an end");
    }
    assert!(s.edge.daemon.wait_end(SHORT).success());
    // An idle edge goes at once, and so does an idle node.
    s.edge.start();
    s.edge.wait_serving("gpu-1");
    assert!(s.node.daemon.stop(Duration::from_secs(5)).success());
    assert!(s.edge.daemon.stop(Duration::from_secs(5)).success());
}

/// The node's own SIGTERM: its streams run to their end too.
#[test]
fn sigterm_of_a_node_lets_its_streams_finish() {
    let mut s = site(8);
    let script = json!({"events": 6, "gate": "go", "gate_at": 2});
    let open = s.edge.chat("m", "live", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("live", "streaming", SHORT, |r| r.events_sent == 2);
    s.node.daemon.signal(Signal::Term);
    wait::until("the edge no longer sends it work", SHORT, || {
        let node = s.edge.node("gpu-1");
        node["draining"] == true
            || node["connected"] == false
            || node["providers"][0]["status"] != "available"
    });
    s.engine.open_gate("go");
    assert!(open.head().unwrap().rest().text().ends_with("[DONE]\n\n"));
    assert!(s.node.daemon.wait_end(SOON).success());
}

/// A drain that takes too long ends streams with an error event, and a second SIGTERM ends at once.
#[test]
fn stragglers_are_told() {
    let options = EdgeOptions { more: "[shutdown]\ndrain = \"1s\"\n".into(), ..EdgeOptions::default() };
    let mut s = site_with(4, &options);
    let script = json!({"events": 6, "gate": "never", "gate_at": 2});
    let open = s.edge.chat("m", "straggler", true, &script).send(&s.edge.target()).unwrap();
    s.engine.wait_record("straggler", "streaming", SHORT, |r| r.events_sent == 2);
    s.edge.daemon.signal(Signal::Term);
    let whole = open.head().unwrap().rest();
    crate::sites::error_event(&whole);
    let _ = s.edge.daemon.wait_end(SHORT);
}

/// Row 48: 256 descriptors, 400 clients: no spinning, no flood of log lines, sessions go on, and operators, metrics and
/// nodes still come in.
#[test]
fn few_file_descriptors_do_not_stop_it() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let mut edge = fleet.edge("berlin", None, &EdgeOptions { metrics: true, ..EdgeOptions::default() });
    let mut node = fleet.node(&edge, "gpu-1", &external(&engine, 4));
    edge.daemon.kill();
    edge.daemon.wrapper = ["sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    edge.start();
    edge.wait_serving("gpu-1");
    let generation = edge.node("gpu-1")["generation"].clone();
    let clients: Vec<_> = (0..400)
        .filter_map(|_| std::net::TcpStream::connect_timeout(&edge.api, Duration::from_millis(50)).ok())
        .collect();
    let lines = edge.daemon.log().lines().count();
    let cpu = cpu_ms(edge.daemon.pid());
    std::thread::sleep(Duration::from_secs(2));
    let spent = cpu_ms(edge.daemon.pid()) - cpu;
    assert!(spent < 1_000, "it spins at the limit: {spent} ms of processor time in 2 s");
    let written = edge.daemon.log().lines().count() - lines;
    assert!(written < 10, "{written} log lines in 2 s");
    assert!(edge.metrics().contains("umbel_"), "metrics are answered");
    let shown = edge.node("gpu-1");
    assert_eq!(
        (&shown["liveness"], &shown["generation"]),
        (&json!("online"), &generation),
        "its session went on: {shown}"
    );
    node.daemon.kill();
    node.daemon.start();
    edge.wait_node("gpu-1", "the node is back", SOON, |now| {
        now["generation"] != generation && now["liveness"] == "online"
    });
    drop(clients);
    wait::until_some("clients are served again", SOON, || {
        let got = edge
            .chat("m", "again", true, &json!({}))
            .limit(SHORT)
            .whole(&edge.target())
            .map_err(|e| e.to_string())?;
        if got.status == 200 { Ok(()) } else { Err(got.text()) }
    });
}

fn cpu_ms(pid: u32) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ns: u64 = tasks
        .filter_map(|t| {
            std::fs::read_to_string(t.path().join("schedstat")).ok()?.split(' ').next()?.parse::<u64>().ok()
        })
        .sum();
    ns / 1_000_000
}

/// Row 33: at the most verbose level no log, status, audit or command line shows a secret or what a message said.
#[test]
fn secrets_never_show() {
    let fleet = Fleet::new();
    let engine = Engine::start(&["m"]).unwrap();
    let plane = fleet.control_plane();
    let mut edge =
        fleet.edge("berlin", Some(&plane), &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    edge.daemon.kill();
    let text =
        std::fs::read_to_string(&edge.config).unwrap().replace("level = \"debug\"", "level = \"trace\"");
    std::fs::write(&edge.config, text).unwrap();
    edge.start();
    edge.key = edge.ctl(&["key", "create", "app"]).ok().out.trim().to_owned();
    let second = edge.ctl(&["key", "create", "app"]).ok();
    assert!(second.err.contains("note: app has another key"), "a second key of one name is said: {second:?}");
    let token = edge.token("gpu-1");
    let node_token = std::fs::read_to_string(&token).unwrap();
    let mut node = fleet.node_files("gpu-1", &external(&engine, 2));
    let text =
        std::fs::read_to_string(&node.config).unwrap().replace("level = \"debug\"", "level = \"trace\"");
    std::fs::write(&node.config, text).unwrap();
    let _ = node.enroll(&token).ok();
    node.daemon.start();
    edge.wait_serving("gpu-1");
    let said = "canary-message-grüß";
    let got = edge.chat("m", said, true, &json!({"text": "canary-answer"})).whole(&edge.target()).unwrap();
    assert_eq!(got.status, 200);
    let _ = edge.chat("m", said, true, &json!({"ending": "mid_event", "after": 2})).whole(&edge.target());
    let _ = Ask::get("/v1/models").bearer("umk_canaryid_canarysecret").whole(&edge.target());
    let admin = std::fs::read_to_string(plane.state.join("admin.token")).unwrap();
    // The end of each text is its secret (and a checksum), whatever characters are in it.
    let secret_of =
        |text: &str| text.trim().chars().rev().take(28).collect::<Vec<_>>().iter().rev().collect::<String>();
    let canaries = [
        edge.key.clone(),
        secret_of(&edge.key),
        node_token.trim().to_owned(),
        secret_of(&node_token),
        admin.trim().to_owned(),
        secret_of(&admin),
        "canary-message".to_owned(),
        "canary-answer".to_owned(),
        "canarysecret".to_owned(),
        "PRIVATE KEY".to_owned(),
    ];
    let mut seen = vec![
        ("control plane's log".to_owned(), plane.daemon.log()),
        ("edge's log".to_owned(), edge.daemon.log()),
        ("node's log".to_owned(), node.daemon.log()),
        ("status".to_owned(), plane.get("/api/v1/edges/berlin/status").to_string()),
        ("control plane's audit".to_owned(), plane.get("/api/v1/audit").to_string()),
        ("edge's audit".to_owned(), edge.ctl(&["audit", "-o", "json"]).ok().out),
        ("events".to_owned(), edge.get("/api/v1/nodes").to_string()),
    ];
    for pid in [plane.daemon.pid(), edge.daemon.pid(), node.daemon.pid()] {
        for what in ["cmdline", "environ"] {
            let path = format!("/proc/{pid}/{what}");
            seen.push((
                path.clone(),
                String::from_utf8_lossy(&std::fs::read(Path::new(&path)).unwrap_or_default()).into_owned(),
            ));
        }
    }
    for (place, text) in &seen {
        for canary in &canaries {
            assert!(!text.contains(canary.as_str()), "{place} shows {canary:?}");
        }
    }
    // Rule R4: what leaves the host names no address.
    let told = plane.get("/api/v1/edges/berlin/status").to_string();
    for address in [edge.nodes.to_string(), engine.address().to_string()] {
        assert!(!told.contains(&address), "{address} in {told}");
    }
}
