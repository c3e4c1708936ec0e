//! A real partition: the node in a network namespace of its own, its cable pulled by taking the veth down (row 1).
//!
//! Needs root and kernel support; elsewhere the tests say that they were skipped, and the fault proxy's remain.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions, SOON, free_address};
use umbel_tests::http::Ask;
use umbel_tests::wait;

use crate::sites::skipped;

/// A namespace joined to this one by a veth pair; gone when dropped.
struct Namespace {
    name: String,
    outer: String,
    here: Ipv4Addr,
}

fn ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(words).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl Namespace {
    fn new(tag: &str) -> Result<Self, String> {
        // 10.231/16 in pieces of four addresses, by process, so that two runs do not meet.
        let piece = (std::process::id() % 4096) * 4;
        let base = u32::from(Ipv4Addr::new(10, 231, 0, 0)) + piece;
        let (here, there) = (Ipv4Addr::from(base + 1), Ipv4Addr::from(base + 2));
        let id = format!("{tag}{}", std::process::id() % 100_000);
        let space = Self { name: format!("umb-{id}"), outer: format!("ua{id}"), here };
        ip(&["netns", "add", &space.name])?;
        let inner = format!("ub{id}");
        ip(&["link", "add", &space.outer, "type", "veth", "peer", "name", &inner])?;
        ip(&["link", "set", &inner, "netns", &space.name])?;
        ip(&["addr", "add", &format!("{here}/30"), "dev", &space.outer])?;
        ip(&["link", "set", &space.outer, "up"])?;
        ip(&["-n", &space.name, "addr", "add", &format!("{there}/30"), "dev", &inner])?;
        ip(&["-n", &space.name, "link", "set", &inner, "up"])?;
        ip(&["-n", &space.name, "link", "set", "lo", "up"])?;
        Ok(space)
    }

    fn cable(&self, plugged: bool) {
        ip(&["link", "set", &self.outer, if plugged { "up" } else { "down" }]).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&["link", "del", &self.outer]);
        let _ = ip(&["netns", "del", &self.name]);
    }
}

#[test]
fn a_pulled_cable_is_noticed_and_healed() {
    let space = match Namespace::new("c") {
        Ok(space) => space,
        Err(why) => {
            skipped("a_pulled_cable_is_noticed_and_healed", &format!("no network namespace here: {why}"));
            return;
        }
    };
    let fleet = Fleet::new();
    let nodes = SocketAddr::from((space.here, free_address().port()));
    let edge = fleet.edge(
        "berlin",
        None,
        &EdgeOptions { nodes_via: Some((nodes, nodes)), ..EdgeOptions::default() },
    );
    let sim = NodeOptions {
        engines: vec![EngineDeclaration::sim("s", "sim-model", "tokens = 3")],
        ..NodeOptions::default()
    };
    let mut node = fleet.node_files("far", &sim);
    let _ = node.enroll(&edge.token("far")).ok();
    node.daemon.wrapper = ["ip", "netns", "exec", &space.name].map(str::to_owned).to_vec();
    node.daemon.start();
    edge.wait_serving("far");
    let generation = edge.node("far")["generation"].as_u64().unwrap();
    let dead = Duration::from_secs(60);

    space.cable(false);
    edge.wait_node("far", "stale", SOON, |n| n["liveness"] == "stale");
    edge.wait_node("far", "offline", SOON, |n| n["liveness"] == "offline" && n["connected"] == false);
    // The node finds its own end of the link dead and dials for ever; the edge lets go of the old connection.
    wait::until("both sides have let go", dead, || {
        let log = node.daemon.log();
        log.contains("connection to the edge ended") && edge.daemon.log().contains("connection ended")
    });
    assert!(node.daemon.is_running());

    space.cable(true);
    let back =
        edge.wait_node("far", "online again", dead, |n| n["liveness"] == "online" && n["connected"] == true);
    assert!(back["generation"].as_u64().unwrap() > generation, "{back}");
    edge.wait_serving("far");
    let body = json!({"model": "sim-model", "stream": true, "messages": [{"role": "user", "content": "hi"}]});
    let got =
        Ask::post("/v1/chat/completions", body.to_string()).bearer(&edge.key).whole(&edge.target()).unwrap();
    assert!(got.text().ends_with("[DONE]\n\n"), "{}", got.text());
}
