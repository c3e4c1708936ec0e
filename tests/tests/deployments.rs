//! Deployments end to end: a document becomes files on a node, an engine, and answers; it is changed, moved and taken away.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use umbel_tests::engine::Script;
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, Node, NodeOptions, SOON, Signal};
use umbel_tests::http::{Ask, Target};
use umbel_tests::wait;

mod failing;
mod lost;

const MODEL: &[u8] = b"GGUF\x03\0\0\0";
const DIGEST: &str = include_str!("deployments/model.sha256");

/// Fields end in this order.
pub(crate) struct Site {
    pub(crate) nodes: Vec<Node>,
    pub(crate) edge: Edge,
    pub(crate) fleet: Fleet,
}

/// Nodes that have no engine of their own, a source, and the scripted engine in the place of llama-server.
pub(crate) fn site(nodes: &[&str]) -> Site {
    site_with(nodes, &EdgeOptions::default())
}

/// The same with an edge of these options.
pub(crate) fn site_with(nodes: &[&str], options: &EdgeOptions) -> Site {
    let fleet = Fleet::new();
    let source = fleet.dir().join("source");
    std::fs::create_dir_all(source.join("org/tiny/r1")).unwrap();
    std::fs::write(source.join("org/tiny/r1/model.gguf"), MODEL).unwrap();
    let edge = fleet.edge("berlin", None, options);
    let mut site = Site { nodes: Vec::new(), edge, fleet };
    site.nodes = nodes.iter().map(|name| site.start(name)).collect();
    site
}

impl Site {
    /// One more node.
    fn start(&self, name: &str) -> Node {
        let (fleet, edge, source) = (&self.fleet, &self.edge, self.fleet.dir().join("source"));
        let dir = fleet.dir().join(name);
        let (quarantine, root) = (dir.join("quarantine"), dir.join("models"));
        std::fs::create_dir_all(&quarantine).unwrap();
        std::fs::create_dir_all(&root).unwrap();
        let more = format!(
            "[programs]\nllama_server = {:?}\n[artifacts]\nquarantine = {quarantine:?}\nreserve = \"1MiB\"\n[artifacts.roots]\nmodels = {root:?}\n\
             [[source]]\nname = \"disk\"\nkind = \"directory\"\npath = {source:?}\n",
            env!("CARGO_BIN_EXE_scripted-engine")
        );
        let mut node = fleet.node_files(name, &NodeOptions { engines: Vec::new(), more });
        let _ = node.enroll(&edge.token(name)).ok();
        node.daemon.start();
        edge.wait_node(name, "connected", SOON, |node| node["connected"] == true);
        node
    }

    fn document(&self, more: &str) -> PathBuf {
        let path = self.fleet.dir().join("tiny.toml");
        let text = format!(
            "name = \"tiny\"\nmodel = \"org/tiny\"\naliases = [\"small\"]\n{more}\n[artifact]\nrepository = \"org/tiny\"\nrevision = \"r1\"\n\
             source = \"disk\"\nmain_file = \"model.gguf\"\nfiles = [{{ path = \"model.gguf\", bytes = {}, sha256 = \"{}\" }}]\n\
             [engine]\nkind = \"llama-server\"\n",
            MODEL.len(),
            DIGEST.trim()
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn apply(&self, more: &str) -> String {
        let document = self.document(more);
        self.edge.ctl(&["model", "apply", &document.to_string_lossy()]).ok().err
    }

    /// Waits until what is shown of it fits.
    #[track_caller]
    fn wait(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        wait::until_some(what, SOON, || {
            let shown = self.shown();
            if fits(&shown) { Ok(shown) } else { Err(format!("{shown:#}")) }
        })
    }

    /// The process of an engine, as its record says.
    fn runs_as(&self, node: &str, engine: &str) -> u64 {
        let record = std::fs::read(self.node(node).state.join(format!("engines/{engine}.json"))).unwrap();
        serde_json::from_slice::<Value>(&record).unwrap()["pid"].as_u64().unwrap()
    }

    pub(crate) fn shown(&self) -> Value {
        self.edge.ctl(&["model", "show", "tiny", "-o", "json"]).ok().json()
    }

    #[track_caller]
    pub(crate) fn answers(&self, model: &str) {
        let got = self.edge.chat(model, "answers", true, &json!({})).whole(&self.edge.target()).unwrap();
        assert_eq!(
            got.text(),
            String::from_utf8_lossy(&Script::default().stream_bytes("org/tiny")),
            "{}",
            got.status
        );
    }

    pub(crate) fn engines(&self) -> Vec<Value> {
        self.edge.ctl(&["engine", "-o", "json"]).ok().json().as_array().cloned().unwrap_or_default()
    }
}

#[test]
fn a_document_becomes_an_engine_that_answers_and_goes_again() {
    let s = site(&["gpu-1"]);
    let told = s.apply("");
    assert!(told.contains("tiny is ready: 1 of 1 replicas are ready"), "{told}");
    s.answers("org/tiny");
    let root = s.fleet.dir().join("gpu-1/models/org--tiny");
    assert!(root.is_dir(), "the files came to the node's root");
    let shown = s.shown();
    assert_eq!((&shown["state"], &shown["replicas"][0]["node"]), (&json!("ready"), &json!("gpu-1")));
    assert_eq!(s.engines()[0]["deployment"], "tiny");

    // Other figures, without another process.
    let before = s.engines()[0]["since"].clone();
    s.apply("capacity = 2\n");
    wait::until("the provider has its new capacity", SOON, || {
        let node = s.edge.node("gpu-1");
        node["providers"][0]["capacity"] == 2
    });
    assert_eq!(s.engines()[0]["since"], before);
    s.answers("small");

    let told = s.edge.ctl(&["model", "unload", "tiny", "-m", "enough"]).ok().err;
    assert!(told.contains("tiny is unloaded"), "{told}");
    assert_eq!(s.engines(), Vec::<Value>::new());
    let refused = s.edge.chat("org/tiny", "none", false, &json!({})).whole(&s.edge.target()).unwrap();
    assert!(refused.status >= 400, "{}", refused.status);
    let _ = s.edge.ctl(&["model", "load", "tiny"]).ok();
    s.answers("org/tiny");
    let told = s.edge.ctl(&["model", "delete", "tiny", "-m", "over", "--confirm", "tiny"]).ok().err;
    assert!(told.contains("tiny is gone"), "{told}");
    assert_eq!(s.engines(), Vec::<Value>::new());
}

#[test]
fn a_drained_node_gives_its_replica_to_another_and_an_edge_that_restarts_goes_on() {
    let mut s = site(&["gpu-1", "gpu-2"]);
    s.apply("");
    let from = s.shown()["replicas"][0]["node"].as_str().unwrap().to_owned();
    let to = if from == "gpu-1" { "gpu-2" } else { "gpu-1" };
    let _ = s.edge.ctl(&["node", "drain", &from, "-m", "new disk", "--detach"]).ok();
    // None takes requests now, and one is wanted: they wait.
    s.answers("org/tiny");
    wait::until("the other node serves it alone", SOON, || {
        let shown = s.shown();
        let replicas = shown["replicas"].as_array().unwrap().clone();
        replicas.len() == 1 && replicas[0]["node"] == to && replicas[0]["state"] == "ready"
    });
    s.answers("org/tiny");
    // Whoever follows the one that went is told which one came.
    let logs = s.edge.ctl(&["engine", "logs", "tiny.r1", "-f"]).ok();
    let told =
        format!("-- tiny.r1 has ended; now there is tiny.r2 on {to}: umbel ctl engine logs tiny.r2 --");
    assert!(logs.err.contains(&told), "{logs:?}");
    // By its node: an edge that starts knows the other only by what was last stored, until that one is back.
    let since = |s: &Site| s.engines().into_iter().find(|one| one["node"] == to).unwrap()["since"].clone();
    let before = since(&s);
    s.edge.daemon.kill();
    s.edge.start();
    // Also before its node is back: the deployment is wanted, so requests wait.
    s.answers("org/tiny");
    wait::until("it is ready again", SOON, || s.shown()["state"] == "ready");
    assert_eq!(since(&s), before, "the engine went on");
    assert_eq!(s.nodes.len(), 2);
}

impl Site {
    pub(crate) fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap()
    }

    /// Where an engine of a node listens, as its record says.
    pub(crate) fn engine_at(&self, node: &str, engine: &str) -> SocketAddr {
        let record = std::fs::read(self.node(node).state.join(format!("engines/{engine}.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        SocketAddr::from(([127, 0, 0, 1], u16::try_from(record["port"].as_u64().unwrap()).unwrap()))
    }

    pub(crate) fn replica(&self) -> (String, String) {
        let replica = self.shown()["replicas"][0].clone();
        (replica["node"].as_str().unwrap().to_owned(), replica["engine"].as_str().unwrap().to_owned())
    }
}

/// Rows 76 and 93: what runs finishes, new work goes elsewhere, and nothing of the engine is left.
#[test]
fn a_drain_lets_running_streams_finish_and_leaves_no_engine() {
    let s = site(&["gpu-1", "gpu-2"]);
    s.apply("");
    let (from, engine) = s.replica();
    let at = s.engine_at(&from, &engine);
    let script = json!({"events": 6, "gate": "go", "gate_at": 3});
    let mut streams: Vec<_> = (0..4)
        .map(|n| s.edge.chat("org/tiny", &format!("runs-{n}"), true, &script).ask(&s.edge.target()).unwrap())
        .collect();
    for stream in &mut streams {
        stream.read_to("tok0").unwrap();
    }
    let _ = s.edge.ctl(&["node", "drain", &from, "-m", "new disk", "--detach"]).ok();
    wait::until("the other node serves new work", SOON, || {
        let replicas = s.shown()["replicas"].as_array().cloned().unwrap_or_default();
        replicas.iter().any(|one| one["node"] != from.as_str() && one["state"] == "ready")
    });
    s.answers("org/tiny");
    let pid = s.runs_as(&from, &engine);
    assert_eq!(s.shown()["replicas"].as_array().unwrap().len(), 2, "the old one waits for its streams");
    assert_eq!(Ask::post("/_gate/go", "").whole(&Target::Tcp(at)).unwrap().status, 200);
    for stream in streams {
        let text = stream.rest().text();
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    }
    wait::until("the engine is gone", SOON, || {
        s.engines().iter().all(|one| one["node"] != from.as_str()) && TcpStream::connect(at).is_err()
    });
    assert!(!PathBuf::from(format!("/proc/{pid}")).exists(), "its process, and so its memory");
    let to = if from == "gpu-1" { "gpu-2" } else { "gpu-1" };
    wait::until("only the new replica is left", SOON, || {
        let replicas = s.shown()["replicas"].as_array().cloned().unwrap_or_default();
        replicas.len() == 1 && replicas[0]["node"] == to
    });
}

#[test]
fn a_change_is_served_through_and_a_site_that_lost_power_serves_again() {
    let mut s = site(&["gpu-1", "gpu-2"]);
    s.apply("");
    let (first, over) = (s.replica(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let site = &s;
        let asking = scope.spawn(|| {
            let mut asked = 0;
            while !over.load(Ordering::SeqCst) || asked == 0 {
                site.answers("org/tiny");
                asked += 1;
            }
        });
        let document = s.document("");
        let text = std::fs::read_to_string(&document).unwrap() + "profile = { ctx_size = 4096 }\n";
        std::fs::write(&document, text).unwrap();
        let told = s.edge.ctl(&["model", "apply", &document.to_string_lossy()]);
        over.store(true, Ordering::SeqCst);
        asking.join().unwrap();
        let told = told.ok().err;
        assert!(told.contains("tiny is ready"), "{told}");
    });
    assert_ne!(s.replica(), first, "a new engine came beside the old one");
    assert_eq!(s.engines().len(), 1);

    let (node, engine) = s.replica();
    let record = std::fs::read(s.node(&node).state.join(format!("engines/{engine}.json"))).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    s.edge.daemon.kill();
    for node in &mut s.nodes {
        node.daemon.kill();
    }
    // Its holder first, so that nobody is left to tell of the end.
    for pid in [&record["holder"]["pid"], &record["pid"]] {
        let pid = pid.as_i64().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    s.edge.start();
    for node in &mut s.nodes {
        node.daemon.start();
    }
    // The first request waits until its engine is there again.
    s.answers("org/tiny");
    wait::until("it is as it was", SOON, || s.shown()["state"] == "ready");
    assert_eq!(s.engines().len(), 1);
}

/// Row 80: a list of deployments that cannot be read ends no engine; it goes on as it was started, is said to be a problem,
/// and is one of the list again when the edge loads it.
#[test]
fn row_80_a_damaged_list_of_deployments_ends_no_engine() {
    let mut s = site(&["gpu-1"]);
    s.apply("");
    let file = s.nodes[0].state.join("deployments.json");
    let pid = |s: &Site| {
        let record = std::fs::read(s.nodes[0].state.join("engines/tiny.r1.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&record).unwrap_or_default()["pid"].as_u64()
    };
    let before = pid(&s);
    assert!(before.is_some());
    s.nodes[0].daemon.kill();
    std::fs::write(&file, b"[{").unwrap();
    s.nodes[0].daemon.start();
    let lost = |node: &Value| node["problems"].to_string().contains("DEPLOYMENTS_LOST");
    s.edge.wait_node("gpu-1", "with the problem", SOON, lost);
    wait::until("it is ready again", SOON, || s.shown()["state"] == "ready");
    s.answers("org/tiny");
    assert_eq!(pid(&s), before, "the engine went on");
    // Once more: what was salvaged stands on the disk.
    s.nodes[0].daemon.kill();
    s.nodes[0].daemon.start();
    s.edge.wait_node("gpu-1", "with the problem", SOON, lost);
    assert_eq!(pid(&s), before, "the engine went on");
    s.apply("capacity = 2\n");
    s.edge.wait_node("gpu-1", "without the problem", SOON, |node| !lost(node));
    s.answers("org/tiny");
    assert_eq!(pid(&s), before, "the engine went on");
}
