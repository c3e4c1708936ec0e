//! `umbel dev` as a whole: a fleet that serves, its record, and that no child outlives it, however it ends.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::run::{Ran, umbel};

/// A fleet needs seconds; a slow machine under load some more.
const PATIENCE: Duration = Duration::from_secs(120);

struct Dev {
    child: Child,
    dir: tempfile::TempDir,
}

impl Dev {
    /// Starts a fleet in a folder of its own and waits for its banner.
    fn start(words: &[&str]) -> (Self, String) {
        let dir = tempfile::Builder::new().prefix("ud").tempdir().unwrap();
        let dev = Self::start_in(dir, words);
        let (mut dev, banner) = dev;
        assert!(dev.child.try_wait().unwrap().is_none(), "it ended: {banner}");
        (dev, banner)
    }

    fn start_in(dir: tempfile::TempDir, words: &[&str]) -> (Self, String) {
        let mut child = umbel()
            .arg("dev")
            .args(words)
            .arg("--keep")
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut banner = String::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            banner.push_str(&line);
            banner.push('\n');
            if line.starts_with("Ctrl-C") {
                break;
            }
        }
        (Dev { child, dir }, banner)
    }

    fn record(&self) -> serde_json::Value {
        serde_json::from_slice(&fs::read(self.dir.path().join("dev.json")).unwrap()).unwrap()
    }

    fn pids(&self) -> Vec<u32> {
        let record = self.record();
        let tiers = record["edges"].as_array().unwrap().iter().chain(record["nodes"].as_array().unwrap());
        let pids = tiers.map(|tier| tier["pid"].as_u64().unwrap());
        pids.chain([record["control_plane"]["pid"].as_u64().unwrap()])
            .map(|pid| u32::try_from(pid).unwrap())
            .collect()
    }

    fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).unwrap();
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// Looks until it is so.
#[track_caller]
fn wait_for(what: &str, mut look: impl FnMut() -> bool) {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
    }
}

fn wait_until_gone(pids: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    for number in pids {
        // An orphan may be waited for late or never; a zombie is gone for our purpose.
        let gone = || test_kill_process(pid(*number)).is_err() || is_zombie(*number);
        while !gone() {
            assert!(Instant::now() < deadline, "{number} is still there");
            std::thread::yield_now();
        }
    }
}

fn is_zombie(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

fn ctl(socket: &str, words: &[&str]) -> Ran {
    umbel().args(["ctl", "--socket", socket]).args(words).output().unwrap().into()
}

/// A streamed chat over plain HTTP; gives back the whole answer.
fn chat(edge: &serde_json::Value, model: &str) -> String {
    let url = edge["api_url"].as_str().unwrap();
    let key = fs::read_to_string(edge["key_file"].as_str().unwrap()).unwrap();
    let authority = url.strip_prefix("http://").unwrap();
    let body = serde_json::json!({
        "model": model, "stream": true, "messages": [{ "role": "user", "content": "hello" }],
    })
    .to_string();
    let mut stream = TcpStream::connect(authority).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        key.trim(),
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_fleet_serves_loses_its_control_plane_and_comes_back() {
    let (mut dev, banner) = Dev::start(&["--sites", "2", "--nodes", "3"]);
    assert!(banner.contains("2 sites and 3 nodes") && banner.contains("umk_"), "{banner}");
    let record = dev.record();
    assert_eq!(record["edges"].as_array().unwrap().len(), 2);
    let sites: Vec<&str> =
        record["nodes"].as_array().unwrap().iter().map(|n| n["edge_id"].as_str().unwrap()).collect();
    assert_eq!(sites, ["site-1", "site-2", "site-1"]);
    let socket = record["control_plane"]["socket"].as_str().unwrap().to_owned();
    let model = record["model"].as_str().unwrap().to_owned();
    for edge in record["edges"].as_array().unwrap() {
        let answer = chat(edge, &model);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("[DONE]"), "{answer}");
    }
    // Over the network door: TLS, the CA and the admin token.
    let control_plane = &record["control_plane"];
    let word = |key: &str| control_plane[key].as_str().unwrap().to_owned();
    let ran: Ran = umbel()
        .args([
            "ctl",
            "--addr",
            &word("api_url"),
            "--token-file",
            &word("token_file"),
            "--ca-file",
            &word("ca_file"),
        ])
        .args(["node", "-o", "name"])
        .output()
        .unwrap()
        .into();
    assert_eq!((ran.code, ran.out.as_str()), (0, "node-1\nnode-3\nnode-2\n"), "{}", ran.err);
    let ran = ctl(&socket, &["node", "drain", "node-1", "-m", "trying it out"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ctl(&socket, &["node", "why", "node-1"]).code, 3);
    assert_eq!(ctl(&socket, &["node", "undrain", "node-1"]).code, 0);
    // Its first figures come some seconds after it serves.
    wait_for("node-1 is content", || ctl(&socket, &["node", "why", "node-1"]).code == 0);
    // The control plane goes; the sites serve on and the fleet stays up.
    kill_process(pid(u32::try_from(control_plane["pid"].as_u64().unwrap()).unwrap()), Signal::KILL).unwrap();
    let answer = chat(&record["edges"][0], &model);
    assert!(answer.contains("[DONE]"), "{answer}");
    assert!(dev.child.try_wait().unwrap().is_none());
    // The end, and once more in the same folder: the same nodes, keys and ports.
    let pids = dev.pids();
    dev.signal(Signal::TERM);
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
    wait_until_gone(&pids);
    assert!(!dev.dir.path().join("dev.json").exists());
    let dir = std::mem::replace(&mut dev.dir, tempfile::tempdir().unwrap());
    let (again, _) = Dev::start_in(dir, &[]);
    let second = again.record();
    assert_eq!(second["nodes"][2]["node_id"], record["nodes"][2]["node_id"]);
    assert_eq!(second["edges"][1]["api_url"], record["edges"][1]["api_url"]);
    assert!(chat(&second["edges"][1], &model).contains("[DONE]"));
}

#[test]
fn no_child_outlives_a_fleet_that_is_killed() {
    let (mut dev, _) = Dev::start(&[]);
    let pids = dev.pids();
    assert_eq!(pids.len(), 3);
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();
    wait_until_gone(&pids);
}

#[test]
fn a_process_that_cannot_start_is_told_with_the_end_of_its_log() {
    let (mut dev, _) = Dev::start(&[]);
    dev.signal(Signal::INT);
    assert_eq!(dev.child.wait().unwrap().code(), Some(0));
    // The site's authority is gone, so its edge cannot start again.
    fs::remove_dir_all(dev.dir.path().join("sites/site-1/state/ca")).unwrap();
    let ran: Ran = umbel().args(["dev", "--keep"]).arg(dev.dir.path()).output().unwrap().into();
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{}", ran.err);
    assert!(ran.err.contains("site-1 ended: exit code 1") && ran.err.contains("site-1.log"), "{}", ran.err);
}

#[test]
fn a_folder_is_one_fleets() {
    let (dev, _) = Dev::start(&[]);
    let dir: &Path = dev.dir.path();
    let ran: Ran = umbel().args(["dev", "--keep"]).arg(dir).output().unwrap().into();
    assert_eq!(ran.code, 7, "{}", ran.err);
    assert!(ran.err.contains("another `umbel dev` runs"), "{}", ran.err);
}

#[test]
fn wrong_wishes_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let refuse = |words: &[&str], said: &str| {
        let ran: Ran =
            umbel().arg("dev").args(words).env("TMPDIR", temporary.path()).output().unwrap().into();
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(said), "{words:?}: {}", ran.err);
    };
    refuse(&["--sites", "0"], "1 to 64 sites");
    refuse(&["--engine", "llama-server"], "--model");
    refuse(&["--engine", "llama-server", "--model", "/nonexistent.gguf"], "/nonexistent.gguf");
    refuse(&["--engine", "sim", "--model", "x"], "--engine llama-server");
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn a_fleet_without_a_folder_leaves_nothing() {
    let temporary = tempfile::Builder::new().prefix("ud").tempdir().unwrap();
    let mut child =
        umbel().arg("dev").env("TMPDIR", temporary.path()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("Ctrl-C")));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 1);
    kill_process(pid(child.id()), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}
