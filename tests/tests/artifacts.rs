//! Files on nodes, end to end: brought from a hub, listed, kept while somebody needs them, removed; a download that is cancelled,
//! left alone by whoever watched it, or stopped by a full disk.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions, SOON, binary};
use umbel_tests::hub::{Fault, Hub};
use umbel_tests::wait;

use crate::adapters::program;
use crate::disk::Volume;
use crate::sites::skipped;

pub(crate) const MIB: usize = 1 << 20;

/// What a node's file says that takes files from a hub to a folder.
pub(crate) fn from_hub(dir: &Path, hub: &Hub) -> String {
    let (quarantine, root) = (dir.join("quarantine"), dir.join("models"));
    std::fs::create_dir_all(&quarantine).unwrap();
    std::fs::create_dir_all(&root).unwrap();
    format!(
        "[artifacts]\nquarantine = {quarantine:?}\nreserve = \"1MiB\"\n[artifacts.roots]\nmodels = {root:?}\n\
         [[source]]\nname = \"hub\"\nkind = \"hub\"\nurl = \"{}\"\n",
        hub.url()
    )
}

/// A site whose nodes have llama-server's stand-in and take files from a hub. Fields end in this order.
pub(crate) struct Site {
    pub(crate) nodes: Vec<Node>,
    pub(crate) edge: Edge,
    pub(crate) hub: Hub,
    pub(crate) fleet: Fleet,
}

pub(crate) fn site(nodes: &[&str], options: &EdgeOptions) -> Site {
    let fleet = Fleet::new();
    let hub = Hub::start().unwrap();
    let edge = fleet.edge("berlin", None, options);
    let start = |name: &&str| {
        let programs = format!("[programs]\nllama_server = {:?}\n", program(&fleet, "llama-server"));
        let more = format!("{programs}{}", from_hub(&fleet.dir().join(name), &hub));
        let engines: Vec<EngineDeclaration> = Vec::new();
        let mut node = fleet.node_files(name, &NodeOptions { engines, more });
        let _ = node.enroll(&edge.token(name)).ok();
        node.daemon.start();
        edge.wait_node(name, "connected", SOON, |node| node["connected"] == true);
        node
    };
    let nodes = nodes.iter().map(start).collect();
    Site { nodes, edge, hub, fleet }
}

impl Site {
    /// Has the hub serve a model of so many bytes, and writes a document of it.
    pub(crate) fn model(&self, name: &str, bytes: usize, more: &str) -> String {
        let repository = format!("org/{name}");
        let mut content = b"GGUF\x03\0\0\0".to_vec();
        content.resize(bytes.max(8), 7);
        self.hub.add(&repository, "r1", "model.gguf", content);
        self.hub.add(&repository, "r1", "config.json", "{}");
        let found = self.edge.ctl(&["artifact", "resolve", &repository, "r1", "--hub", &self.hub.url()]).ok();
        let path = self.fleet.dir().join(format!("{name}.toml"));
        let text = format!("name = {name:?}\n{more}\n[engine]\nkind = \"llama-server\"\n\n{}", found.out);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }

    fn artifacts(&self) -> Vec<Value> {
        self.edge.ctl(&["artifact", "-o", "json"]).ok().json().as_array().cloned().unwrap_or_default()
    }

    pub(crate) fn job(&self, id: &str) -> Value {
        self.edge.ctl(&["job", "show", id, "-o", "json"]).ok().json()
    }

    /// Begins to bring a document's files to gpu-1.
    pub(crate) fn begun(&self, document: &str) -> String {
        let ran = self.edge.ctl(&["artifact", "acquire", document, "--node", "gpu-1", "--detach"]).ok();
        assert!(ran.err.contains("umbel ctl job watch"), "{}", ran.err);
        ran.out.trim().to_owned()
    }

    pub(crate) fn wait_bytes(&self, id: &str, bytes: usize) {
        wait::until_some("so much is there", SOON, || {
            let job = self.job(id);
            let done = job["progress"]["done"].as_u64();
            if done >= u64::try_from(bytes).ok() { Ok(()) } else { Err(job.to_string()) }
        });
    }

    /// `umbel ctl` that goes on beside the test.
    fn beside(&self, words: &[&str]) -> Child {
        let mut command = Command::new(binary());
        command.args(["ctl", "--socket"]).arg(&self.edge.socket).args(words).env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

fn end(child: Child) -> (Option<i32>, String, String) {
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn files_are_brought_listed_and_stay_while_somebody_needs_them() {
    let s = site(&["gpu-1", "gpu-2"], &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let document = s.model("tiny", 3 * MIB, "selector = \"node:gpu-1\"\n");
    let ran = s.edge.ctl(&["artifact", "acquire", &document, "--node", "gpu-1"]).ok();
    assert!(ran.err.contains("artifact.acquire org/tiny@r1") && ran.err.contains("succeeded"), "{}", ran.err);
    assert!(ran.out.contains("2 files, 3.0 MiB, 3.0 MiB fetched"), "{}", ran.out);
    let there = s.artifacts();
    assert_eq!(there.len(), 1, "{there:?}");
    assert_eq!((&there[0]["node"], &there[0]["bytes"]), (&json!("gpu-1"), &json!(3 * MIB + 2)));
    assert!(there[0]["used_by"].is_null(), "{there:?}");
    let listed = s.edge.ctl(&["artifact"]).ok().out;
    let digest = there[0]["digest"].as_str().unwrap().get(..12).unwrap().to_owned();
    assert!(
        listed.contains("org/tiny") && listed.contains("3.0 MiB") && listed.contains(&digest),
        "{listed}"
    );

    // The deployment finds them there.
    let asked = s.hub.seen().len();
    let _ = s.edge.ctl(&["model", "apply", &document]).ok();
    assert_eq!(s.hub.seen().len(), asked, "nothing is fetched again");
    assert_eq!(s.artifacts()[0]["used_by"], json!(["tiny.r1"]));
    let refused = s.edge.ctl(&["artifact", "remove", "org/tiny", "-m", "old"]);
    assert_eq!(refused.code, 7, "{refused:?}");
    assert!(refused.err.contains("is used by tiny.r1: umbel ctl model unload tiny first"), "{refused:?}");
    let nameless = s.edge.ctl(&["artifact", "remove", "org/tiny"]);
    assert!(nameless.code == 2 && nameless.err.contains("needs a reason"), "{nameless:?}");

    let _ = s.edge.ctl(&["model", "unload", "tiny", "-m", "enough"]).ok();
    let removed = s.edge.ctl(&["artifact", "remove", "org/tiny@r1", "-m", "old"]).ok();
    assert!(removed.out.contains("Freed") && removed.out.contains("3.0 MiB"), "{}", removed.out);
    wait::until("the list is empty", SOON, || s.artifacts().is_empty());
    let left = std::fs::read_dir(s.fleet.dir().join("gpu-1/models")).unwrap().count();
    assert_eq!(left, 0, "nothing is left in the root");
    let gone = s.edge.ctl(&["artifact", "remove", "org/tiny", "-m", "old"]);
    assert!(gone.code == 6 && gone.err.contains("there is no artifact"), "{gone:?}");
    let wrong = s.edge.ctl(&["artifact", "acquire", &document, "--node", "gpu-9"]);
    assert!(wrong.code == 6 && wrong.err.contains("no node of this site matches"), "{wrong:?}");
    assert_eq!(s.nodes.len(), 2);
}

/// Cancelled in the middle, a download ends at once, and the next one goes on where it was.
#[test]
fn a_cancelled_download_goes_on_where_it_was() {
    let s = site(&["gpu-1"], &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let document = s.model("tiny", 4 * MIB, "");
    s.hub.fault("model.gguf", Fault::Hold(2 << 20), 1);
    let id = s.begun(&document);
    s.wait_bytes(&id, 2 * MIB);
    let refused = s.edge.ctl(&["artifact", "list", "--node", "gpu-1", "-o", "json"]).ok().json();
    assert_eq!(refused, json!([]), "what is not whole is not there");
    let watching = s.beside(&["job", "watch", &id]);
    let told = s.edge.ctl(&["job", "cancel", &id, "-m", "wrong revision"]).ok();
    assert!(told.err.contains("gpu-1 is asked to end job"), "{}", told.err);
    let (code, out, err) = end(watching);
    assert!(code == Some(1) && err.contains("was cancelled"), "{code:?} {out} {err}");
    assert_eq!(s.job(&id)["state"], "cancelled");
    let again = s.edge.ctl(&["artifact", "acquire", &document, "--node", "gpu-1", "-o", "json"]).ok().json();
    let fetched = again["report"]["artifact"]["fetched_bytes"].as_u64().unwrap();
    assert!(fetched <= 2 << 20, "only the rest is fetched: {again}");
    let last = s.hub.seen().into_iter().rfind(|seen| seen.path.ends_with("model.gguf")).unwrap();
    assert!(last.headers.get("range").is_some_and(|range| range.starts_with("bytes=")), "{last:?}");
}

/// Whoever watched leaves; the download goes on, across kill -9 of the edge too, and can be followed again to its end.
#[test]
fn a_download_is_followed_again_after_its_watcher_and_its_edge_ended() {
    let mut s = site(&["gpu-1"], &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let document = s.model("tiny", 2 * MIB, "");
    s.hub.fault("model.gguf", Fault::Hold(1 << 20), 1);
    let watching = s.beside(&["artifact", "acquire", &document, "--node", "gpu-1"]);
    let listed = ["job", "list", "--running", "--kind", "artifact.acquire", "--node", "gpu-1", "-o", "name"];
    let id = wait::until_some("the job runs", SOON, || {
        let ids = s.edge.ctl(&listed).ok().out;
        ids.lines().next().map(str::to_owned).ok_or(ids)
    });
    s.wait_bytes(&id, MIB);
    assert!(Command::new("kill").args(["-INT", &watching.id().to_string()]).status().unwrap().success());
    let (code, _, err) = end(watching);
    assert!(code == Some(130) && err.contains(&format!("umbel ctl job watch {id}")), "{code:?} {err}");
    assert_eq!(s.job(&id)["state"], "running");
    let mut again = s.beside(&["job", "follow", &id]);
    let mut told = BufReader::new(again.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("running") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "it ended without a word");
    }
    s.edge.daemon.kill();
    s.edge.start();
    s.hub.let_go();
    let (code, out, _) = end(again);
    assert!(code == Some(0) && out.contains("2.0 MiB fetched"), "{code:?} {out}");
}

/// Row 102 for downloads: a disk that becomes full in the middle stops it with words that say so, and with room again it goes
/// on where it was.
#[test]
fn a_disk_that_fills_up_in_mid_download_is_told_in_words() {
    let fleet = Fleet::new();
    let volume = match Volume::mount(fleet.dir()) {
        Ok(volume) => volume,
        Err(why) => {
            skipped("a_disk_that_fills_up_in_mid_download_is_told_in_words", &format!("no volume: {why}"));
            return;
        }
    };
    let hub = Hub::start().unwrap();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let more = from_hub(&volume.at.join("files"), &hub);
    let mut node = fleet.node_files("gpu-1", &NodeOptions { engines: Vec::new(), more });
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.start();
    edge.wait_node("gpu-1", "connected", SOON, |node| node["connected"] == true);
    let s = Site { nodes: vec![node], edge, hub, fleet };
    let document = s.model("tiny", 10 * MIB, "");
    s.hub.fault("model.gguf", Fault::Hold(2 << 20), 1);
    let id = s.begun(&document);
    s.wait_bytes(&id, 2 * MIB);
    let filler = volume.fill();
    s.hub.let_go();
    let failed = s.edge.ctl(&["job", "watch", &id]);
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.err.contains("SPACE") && failed.err.contains(" free"), "{failed:?}");
    assert!(!failed.err.contains("os error"), "words for people: {failed:?}");
    std::fs::remove_file(filler).unwrap();
    let again = s.edge.ctl(&["artifact", "acquire", &document, "--node", "gpu-1", "-o", "json"]).ok().json();
    let fetched = again["report"]["artifact"]["fetched_bytes"].as_u64().unwrap();
    assert!(fetched <= 8 << 20, "only the rest is fetched: {again}");
    drop(s);
}
