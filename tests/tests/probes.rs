//! Engines are tried out before they serve: what starts and answers is measured, what does not is named by the layer at which it
//! shows; an engine that says it is well and is not is found so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, Node, NodeOptions, Ran, SOON};
use umbel_tests::wait;

use crate::adapters::{model, program};

/// Fields end in this order.
struct Site {
    node: Node,
    edge: Edge,
    fleet: Fleet,
}

fn site() -> Site {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let (quarantine, root) = (fleet.dir().join("quarantine"), fleet.dir().join("models"));
    std::fs::create_dir_all(&quarantine).unwrap();
    std::fs::create_dir_all(&root).unwrap();
    let source = fleet.dir().join("source");
    let more = format!(
        "[programs]\nllama_server = {:?}\n[artifacts]\nquarantine = {quarantine:?}\nreserve = \"1MiB\"\n[artifacts.roots]\nmodels = {root:?}\n\
         [[source]]\nname = \"disk\"\nkind = \"directory\"\npath = {source:?}\n",
        program(&fleet, "llama-server")
    );
    std::fs::create_dir_all(&source).unwrap();
    let mut node = fleet.node_files("gpu-1", &NodeOptions { engines: Vec::new(), more });
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.start();
    edge.wait_node("gpu-1", "connected", SOON, |node| node["connected"] == true);
    Site { node, edge, fleet }
}

impl Site {
    /// A document of a model whose engine has a fault, with its files on the node.
    fn brought(&self, name: &str, fault: &str) -> String {
        let document = self.written(name, fault);
        let _ = self.edge.ctl(&["artifact", "acquire", &document, "--node", "gpu-1"]).ok();
        document
    }

    fn written(&self, name: &str, fault: &str) -> String {
        let folder = model(&self.fleet, &format!("source/org/{name}/r1"), &json!({ "x_stand_in": fault }));
        let repository = format!("org/{name}");
        let place = folder.to_string_lossy();
        let words = ["artifact", "resolve", &repository, "r1", "--source", "disk", "--directory", &place];
        let found = self.edge.ctl(&words).ok().out;
        let path = self.fleet.dir().join(format!("{name}.toml"));
        std::fs::write(&path, format!("name = {name:?}\n[engine]\nkind = \"llama-server\"\n\n{found}"))
            .unwrap();
        path.to_string_lossy().into_owned()
    }

    fn probe(&self, what: &str) -> (Ran, Value) {
        let before = self.records();
        let ran =
            self.edge.ctl(&["engine", "probe", what, "--node", "gpu-1", "--within", "6s", "-o", "json"]);
        let job = ran.json();
        assert_eq!(self.records(), before);
        (ran, job)
    }

    /// Records and sockets of engines: nobody is told of what was only tried.
    fn records(&self) -> BTreeSet<PathBuf> {
        let entries = std::fs::read_dir(self.node.state.join("engines")).unwrap();
        entries.map(|entry| entry.unwrap().path()).filter(|path| is_record(path)).collect()
    }
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "json" || end == "sock")
}

fn layers(of: &Value) -> Vec<(String, bool)> {
    let all = of["layers"].as_array().cloned().unwrap_or_default();
    all.iter().map(|one| (one["layer"].as_str().unwrap_or_default().to_owned(), one["ok"] == true)).collect()
}

fn up_to(last: &str, ok: bool) -> Vec<(String, bool)> {
    let all = ["process", "port", "health", "model", "inference"];
    let end = all.iter().position(|layer| *layer == last).unwrap();
    all.iter().take(end + 1).map(|layer| ((*layer).to_owned(), *layer != last || ok)).collect()
}

#[test]
fn a_probe_names_the_layer_at_which_an_engine_is_not_well() {
    let s = site();
    let good = s.written("good", "");
    let early = s.edge.ctl(&["engine", "probe", &good, "--node", "gpu-1"]);
    assert!(early.code == 7 && early.err.contains("umbel ctl artifact acquire"), "{early:?}");
    let _ = s.edge.ctl(&["artifact", "acquire", &good, "--node", "gpu-1"]).ok();
    let (ran, job) = s.probe(&good);
    assert_eq!((ran.code, &job["state"]), (0, &json!("succeeded")), "{job}");
    assert_eq!(layers(&job["report"]), up_to("inference", true), "{job}");
    assert!(job["report"]["measured"]["start_ms"].as_u64() > Some(0), "{job}");

    let (ran, job) = s.probe(&s.brought("memory", "out_of_memory"));
    assert_eq!((ran.code, &job["failure"]["code"]), (1, &json!("OUT_OF_MEMORY")), "{job}");
    assert_eq!(layers(&job["failure"]), up_to("process", false), "{job}");
    assert!(job["failure"]["output_tail"].to_string().contains("torch.OutOfMemoryError"), "{job}");

    let (ran, job) = s.probe(&s.brought("silent", "never_ready"));
    assert_eq!((ran.code, &job["failure"]["code"]), (1, &json!("PORT_NOT_OPEN")), "{job}");
    assert_eq!(layers(&job["failure"]), up_to("port", false), "{job}");
    assert_eq!(s.edge.ctl(&["engine", "-o", "json"]).ok().json(), json!([]));
}

/// An engine that lies in its health check: it comes up, it is looked at and all is well; only the probe finds it out. And what
/// a deployment has is not unloaded behind its back.
#[test]
fn a_probe_finds_an_engine_that_lies() {
    let s = site();
    let document = s.brought("liar", "broken_inference");
    let _ = s.edge.ctl(&["model", "apply", &document]).ok();
    let look = s.edge.ctl(&["engine", "health", "liar.r1", "-o", "json"]).ok().json();
    assert_eq!(layers(&look["report"]["engines"][0]), up_to("model", true), "{look}");
    assert_eq!(s.records().len(), 2, "{:?}", s.records());
    // By the name of the deployment, beside the engine that serves.
    let (ran, job) = s.probe("liar");
    assert_eq!((ran.code, &job["failure"]["code"]), (1, &json!("INFERENCE_FAILED")), "{job}");
    assert_eq!(layers(&job["failure"]), up_to("inference", false), "{job}");
    let told = s.edge.ctl(&["job", "show", job["job_id"].as_str().unwrap()]).ok().out;
    assert!(told.contains("inference not well"), "{told}");
    assert_eq!(s.edge.ctl(&["engine", "-o", "name"]).ok().out.lines().count(), 1);

    let refused = s.edge.ctl(&["engine", "unload", "liar.r1", "-m", "it lies"]);
    assert_eq!(refused.code, 7, "{refused:?}");
    assert!(refused.err.contains("umbel ctl model unload liar --replica 1"), "{refused:?}");
    let nothing =
        s.edge.ctl(&["engine", "unload", "gpu-1/other.r1", "-m", "tidy up", "-o", "json"]).ok().json();
    assert_eq!(nothing["report"]["stopped"], false, "{nothing}");
}

/// A load that would take for ever is cancelled: its engine is taken away.
#[test]
fn a_running_load_is_cancelled() {
    let s = site();
    let document = s.brought("silent", "never_ready");
    let _ = s.edge.ctl(&["model", "apply", &document, "--detach"]).ok();
    let listed = ["job", "list", "--running", "--kind", "deployment.load", "--model", "silent", "-o", "json"];
    let id = wait::until_some("the load runs", SOON, || {
        let jobs = s.edge.ctl(&listed).ok().json();
        let loads = jobs[0]["state"] == "running" && jobs[0]["progress"]["phase"] == "loading";
        if loads { Ok(jobs[0]["job_id"].as_str().unwrap().to_owned()) } else { Err(jobs.to_string()) }
    });
    let record = s.node.state.join("engines/silent.r1.json");
    let pid = wait::until_some("its engine runs", SOON, || {
        let record: Value =
            serde_json::from_slice(&std::fs::read(&record).unwrap_or_default()).unwrap_or_default();
        record["pid"].as_u64().filter(|pid| *pid > 0).ok_or_else(|| record.to_string())
    });
    let told = s.edge.ctl(&["job", "cancel", &id, "-m", "the wrong model"]).ok();
    assert!(told.err.contains("umbel ctl model load silent"), "{}", told.err);
    let watched = s.edge.ctl(&["job", "watch", &id]);
    assert!(watched.code == 1 && watched.err.contains("was cancelled"), "{watched:?}");
    wait::until("its engine is gone", SOON, || !Path::new(&format!("/proc/{pid}")).exists());
}
