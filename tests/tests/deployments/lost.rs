//! Nodes that are lost: many together, one for good, and back again; links that are lost while an engine loads
//! (rows 5, 72, 83 and 91).

use std::time::Duration;

use umbel_tests::fault_proxy::{Direction, Faults, Proxy};
use umbel_tests::fleet::free_address;

use super::*;

/// A redial waits at most 30 s, and a connect or handshake that hangs 5 s each.
const REDIAL: Duration = Duration::from_secs(50);

/// Two of three nodes lost together hold every replacement up and say so; one is back, and what it ran goes on as it was while
/// what the other had is replaced; that one comes back at last, and its engine, which nobody wants now, ends.
#[test]
fn nodes_lost_together_are_waited_for_and_one_that_stays_away_is_replaced() {
    let mut s = site(&["gpu-1", "gpu-2"]);
    s.apply("replicas = 2\nreplace_delay = \"1s\"\n");
    let third = s.start("gpu-3");
    s.nodes.push(third);
    let replicas = s.shown()["replicas"].clone();
    let engine_of = |node: &str| {
        let of = replicas.as_array().unwrap().iter().find(|one| one["node"] == node);
        of.unwrap()["engine"].as_str().unwrap().to_owned()
    };
    let kept = s.runs_as("gpu-2", &engine_of("gpu-2"));
    for node in &mut s.nodes[..2] {
        node.daemon.kill();
    }
    let held = "2 of 3 nodes were lost together";
    s.wait("replacements to be held", |one| one["message"].as_str().is_some_and(|text| text.contains(held)));
    let shown = s.shown();
    let lost = |one: &Value| one["state"] == "lost";
    assert!(shown["replicas"].as_array().unwrap().iter().all(lost), "{shown}");
    let listed = s.edge.ctl(&["model"]).ok();
    assert!(format!("{}{}", listed.out, listed.err).contains("lost together"), "{listed:?}");
    let why = s.edge.ctl(&["model", "why", "tiny"]);
    assert!(why.out.contains("gpu-1") && why.out.contains("offline"), "{}", why.out);

    s.nodes[1].daemon.start();
    let on = |shown: &Value, node: &str| {
        shown["replicas"].as_array().unwrap().iter().any(|one| one["node"] == node && one["state"] == "ready")
    };
    s.wait("the other two to serve", |one| one["state"] == "ready" && on(one, "gpu-2") && on(one, "gpu-3"));
    assert_eq!(s.runs_as("gpu-2", &engine_of("gpu-2")), kept, "what came back in time went on");
    s.answers("org/tiny");

    s.nodes[0].daemon.start();
    let gone = s.nodes[0].state.join(format!("engines/{}.json", engine_of("gpu-1")));
    wait::until("the engine that nobody wants any more to be gone", SOON, || !gone.exists());
    let shown = s.shown();
    assert!(shown["ready"] == 2 && !on(&shown, "gpu-1"), "{shown}");
}

/// An agent that ends by SIGTERM is like one that is away: its engine stays, and what comes meanwhile waits for the next agent.
#[test]
fn row_93_requests_wait_while_the_only_agent_ends_and_starts_anew() {
    let mut s = site(&["gpu-1"]);
    s.apply("");
    let (node, engine) = s.replica();
    let (at, pid) = (s.engine_at(&node, &engine), s.runs_as(&node, &engine));
    let script = json!({"events": 6, "gate": "go", "gate_at": 2});
    let mut running = s.edge.chat("org/tiny", "runs", true, &script).ask(&s.edge.target()).unwrap();
    running.read_to("tok0").unwrap();
    s.nodes[0].daemon.signal(Signal::Term);
    wait::until("its engine to take nothing new", SOON, || {
        s.edge.node("gpu-1")["providers"][0]["status"] == "draining"
    });
    let asked = s.edge.chat("org/tiny", "answers", true, &json!({})).send(&s.edge.target()).unwrap();
    wait::until("it to wait", SOON, || s.edge.ctl(&["queue", "-o", "json"]).ok().json()[0]["depth"] == 1);
    assert_eq!(Ask::post("/_gate/go", "").whole(&Target::Tcp(at)).unwrap().status, 200);
    assert!(running.rest().text().ends_with("data: [DONE]\n\n"));
    assert!(s.nodes[0].daemon.wait_end(SOON).success());
    s.nodes[0].daemon.start();
    let whole = asked.head().unwrap().rest();
    assert!(whole.text().ends_with("data: [DONE]\n\n"), "{}", whole.text());
    assert_eq!(s.runs_as(&node, &engine), pid);
}

/// A deployment that is deleted while its node is away, and applied anew as another model under its name; the edge is killed in
/// between. What comes back meets nothing of the other, and the old engine ends.
#[test]
fn row_72_a_name_goes_over_while_its_node_is_away() {
    let mut s = site(&["gpu-1"]);
    s.apply("");
    let (node, engine) = s.replica();
    let old = s.runs_as(&node, &engine);
    s.nodes[0].daemon.kill();
    s.edge.wait_node("gpu-1", "offline", SOON, |node| node["state"] == "offline");
    let told = s.edge.ctl(&["model", "delete", "tiny", "-m", "over", "--confirm", "tiny"]).ok().err;
    assert!(told.contains("tiny is gone"), "{told}");
    let document = s.document("");
    let text =
        std::fs::read_to_string(&document).unwrap().replace("model = \"org/tiny\"", "model = \"org/other\"");
    std::fs::write(&document, text).unwrap();
    let _ = s.edge.ctl(&["model", "apply", &document.to_string_lossy(), "--detach"]).ok();
    s.edge.daemon.kill();
    s.edge.start();
    s.nodes[0].daemon.start();
    let shown = s.wait("the new one to be ready", |one| one["state"] == "ready");
    assert_eq!(
        (&shown["model"], shown["replicas"][0]["failures"].as_u64()),
        (&json!("org/other"), None),
        "{shown}"
    );
    wait::until("only the new one to be left", SOON, || {
        s.engines().len() == 1 && !PathBuf::from(format!("/proc/{old}")).exists()
    });
    let got = s.edge.chat("org/other", "answers", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert!(got.text().contains("[DONE]"), "{}", got.text());
}

/// Row 91: while an engine loads, the link is slow, then the edge's words do not come, then there is no link at all. The node is the
/// authority on its own processes: the engine is not ended, none is started beside it, and it is taken for what it is when it can be
/// told again.
#[test]
fn row_91_an_engine_that_loads_behind_a_bad_link_is_started_once() {
    let nodes = free_address();
    let proxy = Proxy::start(nodes).unwrap();
    let options = EdgeOptions { nodes_via: Some((nodes, proxy.address())), ..EdgeOptions::default() };
    let s = site_with(&["gpu-1"], &options);
    let document = s.document("");
    let text = std::fs::read_to_string(&document)
        .unwrap()
        .replace("model = \"org/tiny\"", "model = \"loads-until-told\"");
    std::fs::write(&document, text).unwrap();
    let _ = s.edge.ctl(&["model", "apply", &document.to_string_lossy(), "--detach"]).ok();
    s.wait("it to load", |one| {
        let replica = &one["replicas"][0];
        replica["state"] == "loading" && replica["job"]["kind"] == "load" && !s.engines().is_empty()
    });
    let folder = s.node("gpu-1").state.join("engines");
    wait::until("its process", SOON, || s.started("gpu-1", "tiny.r1").is_some());
    let first = s.started("gpu-1", "tiny.r1");

    let slow = Direction { rate: 1024, ..Direction::default() };
    proxy.set_all(Faults { up: slow, down: slow, ..Faults::default() });
    let passed = || proxy.links().iter().map(|link| link.bytes().0).sum::<u64>();
    let before = passed();
    wait::until("some seconds of a slow link", SOON, || passed() >= before + 4 * 1024);
    assert_eq!(s.started("gpu-1", "tiny.r1"), first);

    let mute = Direction { black_hole: true, ..Direction::default() };
    proxy.set_all(Faults { down: mute, ..Faults::default() });
    s.edge.wait_node("gpu-1", "given up by itself", SOON, |node| node["connected"] == false);
    proxy.set_all(Faults::black_hole());
    s.edge.wait_node("gpu-1", "offline", SOON, |node| node["liveness"] == "offline");
    // It gets ready while nobody can be told.
    std::fs::write(folder.join("go"), b"").unwrap();
    wait::until("it to be ready by its node's word", SOON, || folder.join("tiny.r1.ready").exists());
    proxy.set_all(Faults::default());
    let shown = wait::until_some("it to be taken for what it is", REDIAL, || {
        let shown = s.shown();
        if shown["state"] == "ready" { Ok(shown) } else { Err(format!("{shown:#}")) }
    });
    let replicas = shown["replicas"].as_array().unwrap();
    assert_eq!((replicas.len(), &replicas[0]["engine"]), (1, &json!("tiny.r1")), "{shown:#}");
    assert_eq!(s.started("gpu-1", "tiny.r1"), first, "the process that it was, and the only one");
    let got = s.edge.chat("loads-until-told", "answers", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert!(got.text().contains("[DONE]"), "{}", got.text());
}

impl Site {
    /// The run of an engine, once it has a process: its process and its mark, which no two runs share.
    fn started(&self, node: &str, engine: &str) -> Option<(u64, Value)> {
        let record = std::fs::read(self.node(node).state.join(format!("engines/{engine}.json"))).ok()?;
        let record: Value = serde_json::from_slice(&record).ok()?;
        Some((record["pid"].as_u64().filter(|pid| *pid > 0)?, record["nonce"].clone()))
    }
}
