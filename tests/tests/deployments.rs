//! Deployments end to end: a document becomes files on a node, an engine, and answers; it is changed, moved and taken away.

use std::path::PathBuf;

use serde_json::{Value, json};
use umbel_tests::engine::Script;
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, Node, NodeOptions, SOON};
use umbel_tests::wait;

const MODEL: &[u8] = b"GGUF\x03\0\0\0";
const DIGEST: &str = include_str!("deployments/model.sha256");

/// Fields end in this order.
struct Site {
    nodes: Vec<Node>,
    edge: Edge,
    fleet: Fleet,
}

/// Nodes that have no engine of their own, a source, and the scripted engine in the place of llama-server.
fn site(nodes: &[&str]) -> Site {
    let fleet = Fleet::new();
    let source = fleet.dir().join("source");
    std::fs::create_dir_all(source.join("org/tiny/r1")).unwrap();
    std::fs::write(source.join("org/tiny/r1/model.gguf"), MODEL).unwrap();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let start = |name: &&str| {
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
    };
    let nodes = nodes.iter().map(start).collect();
    Site { nodes, edge, fleet }
}

impl Site {
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

    fn apply(&self, more: &str) -> String {
        let document = self.document(more);
        self.edge.ctl(&["model", "apply", &document.to_string_lossy()]).ok().err
    }

    fn shown(&self) -> Value {
        self.edge.ctl(&["model", "show", "tiny", "-o", "json"]).ok().json()
    }

    #[track_caller]
    fn answers(&self, model: &str) {
        let got = self.edge.chat(model, "answers", true, &json!({})).whole(&self.edge.target()).unwrap();
        assert_eq!(
            got.text(),
            String::from_utf8_lossy(&Script::default().stream_bytes("org/tiny")),
            "{}",
            got.status
        );
    }

    fn engines(&self) -> Vec<Value> {
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
    wait::until("the other node serves it alone", SOON, || {
        let shown = s.shown();
        let replicas = shown["replicas"].as_array().unwrap().clone();
        replicas.len() == 1 && replicas[0]["node"] == to && replicas[0]["state"] == "ready"
    });
    s.answers("org/tiny");
    let before = s.engines()[0]["since"].clone();
    s.edge.daemon.kill();
    s.edge.start();
    wait::until("it is ready again", SOON, || s.shown()["state"] == "ready");
    s.answers("org/tiny");
    assert_eq!(s.engines()[0]["since"], before, "the engine went on");
    assert_eq!(s.nodes.len(), 2);
}
