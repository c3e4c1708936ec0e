//! What ends engines on a node, on real processes: the node's own end, an operator's wish, and what an end waits for.

use std::net::TcpStream;

use serde_json::{Value, json};
use umbel_tests::fleet::{SOON, run};
use umbel_tests::wait;

use crate::deployments::{Site, site};

impl Site {
    fn pid(&self, node: &str, engine: &str) -> Option<u64> {
        let record = std::fs::read(self.node(node).state.join(format!("engines/{engine}.json"))).ok()?;
        serde_json::from_slice::<Value>(&record).ok()?["pid"].as_u64().filter(|pid| *pid > 0)
    }

    /// An engine of a node's own file beside those of deployments; its process.
    fn with_own(&self, node: &str) -> u64 {
        let model = self.fleet.dir().join("source/org/tiny/r1/model.gguf");
        let config = &self.node(node).config;
        let text = std::fs::read_to_string(config).unwrap();
        let own = format!(
            "[[engine]]\nname = \"own\"\nkind = \"llama-server\"\nmodel = \"org/own\"\nmodel_file = {model:?}\n"
        );
        std::fs::write(config, format!("{text}\n{own}")).unwrap();
        self.edge.wait_node(node, "with an engine of its own", SOON, |node| {
            let all = node["providers"].as_array().cloned().unwrap_or_default();
            all.iter().any(|one| {
                one["provider_id"].as_str().is_some_and(|id| id.ends_with("/own"))
                    && one["status"] == "available"
            })
        });
        self.pid(node, "own").unwrap()
    }
}

fn lives(pid: u64) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// The preview names the replicas; they are unloaded before the node is gone, and replaced elsewhere. An agent that did not
/// run then ends its own when it hears that it is gone. Engines of the node's own file are nobody's but the node's.
#[test]
fn a_decommissioned_node_keeps_no_engine_of_a_deployment() {
    let mut s = site(&["gpu-1", "gpu-2"]);
    s.apply("");
    let (from, engine) = s.replica();
    let at = s.engine_at(&from, &engine);
    let own = s.with_own(&from);
    let preview = s.edge.ctl(&["node", "decommission", &from, "--preview"]).ok().out;
    assert!(preview.contains("tiny loses tiny.r1"), "{preview}");
    let retire = |s: &Site, name: &str| {
        s.edge.ctl(&["node", "decommission", name, "-m", "sold", "--confirm", name, "-o", "json"]).ok().json()
    };
    let retired = retire(&s, &from);
    assert_eq!(retired["decommissioned"], true, "{retired}");
    assert!(TcpStream::connect(at).is_err(), "it was unloaded first");
    assert_eq!(s.pid(&from, &engine), None);
    wait::until("the other node serves", SOON, || {
        let shown = s.shown();
        shown["state"] == "ready" && shown["replicas"][0]["node"] != from.as_str()
    });
    s.answers("org/tiny");
    let config = s.node(&from).config.to_string_lossy().into_owned();
    wait::until("the node knows what it is", SOON, || {
        let status = run(&["node", "status", "--config", &config, "-o", "json"]);
        status.out.contains("\"decommissioned\"") && status.out.contains("stop-engines")
    });
    assert!(lives(own) && s.pid(&from, "own") == Some(own), "an engine of its own file goes on");

    // The other one is retired while its agent is away.
    let (last, engine) = s.replica();
    let at = s.engine_at(&last, &engine);
    let index = s.nodes.iter().position(|node| node.name == last).unwrap();
    s.nodes[index].daemon.kill();
    s.edge.wait_node(&last, "away", SOON, |node| node["connected"] == false);
    assert_eq!(retire(&s, &last)["decommissioned"], true);
    assert!(TcpStream::connect(at).is_ok(), "nobody could be asked to end it");
    s.nodes[index].daemon.start();
    wait::until("the node ends it by itself", SOON, || {
        TcpStream::connect(at).is_err() && s.pid(&last, &engine).is_none()
    });
    // Nor is it started again with the agent.
    s.nodes[index].daemon.kill();
    s.nodes[index].daemon.start();
    let log = s.nodes[index].daemon.log();
    assert!(log.contains("umbel node stop-engines"), "{log}");
    let kept = std::fs::read_to_string(s.nodes[index].state.join("deployments.json")).unwrap();
    assert_eq!(kept.trim(), "[]");
    assert_eq!(s.shown()["replicas"], json!([]));
}
