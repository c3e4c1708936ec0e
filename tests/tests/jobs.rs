//! Jobs through real processes: what a node does is listed, followed and kept across the loss of each side.

use serde_json::{Value, json};
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, NodeOptions, SOON};
use umbel_tests::hub::{Fault, Hub};
use umbel_tests::wait;

use crate::artifacts::from_hub;
use crate::records::lines;

fn jobs(edge: &Edge) -> Vec<Value> {
    lines(&edge.ctl(&["job", "-o", "jsonl"]).ok().out)
}

fn job(edge: &Edge, id: &str) -> Value {
    edge.ctl(&["job", "show", id, "-o", "json"]).ok().json()
}

/// A look that waits: its node is not there.
fn begun(edge: &Edge, node: &str) -> String {
    let ran = edge.ctl(&["engine", "health", "--node", node, "--detach"]).ok();
    ran.out.trim().to_owned()
}

/// A look at a node's engines is a job: begun by a command, done by the node, kept by the edge with its report.
#[test]
fn a_node_looks_at_its_engines() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let engines = vec![EngineDeclaration::sim("chat", "echo", "")];
    let _node = fleet.node(&edge, "gpu-1", &NodeOptions { engines, ..NodeOptions::default() });
    let ran = edge.ctl(&["engine", "health", "--node", "gpu-1", "-o", "json"]).ok().json();
    assert_eq!(ran["state"], "succeeded", "{ran}");
    assert_eq!(ran["report"]["engines"][0]["engine"], "chat", "{ran}");
    assert_eq!(ran["report"]["engines"][0]["state"], "ready", "{ran}");
    assert_eq!(ran["node_name"], "gpu-1", "{ran}");
    let listed = jobs(&edge);
    assert_eq!((listed.len(), &listed[0]["job_id"]), (1, &ran["job_id"]));
    assert_eq!(edge.ctl(&["engine", "health", "gpu-1/chat"]).ok().code, 0);
    let unknown = edge.ctl(&["engine", "health", "nothing"]);
    assert!(unknown.code == 6 && unknown.err.contains("there is no engine `nothing`"), "{unknown:?}");
    // The start of an id is enough.
    let start = ran["job_id"].as_str().unwrap().get(..13).unwrap();
    assert_eq!(job(&edge, start)["job_id"], ran["job_id"]);
}

/// Jobs of a node that is away wait on the edge's disk, across kill -9 of the edge, and are done when it is back; one that was
/// cancelled meanwhile is not.
#[test]
fn jobs_wait_across_kills_of_both_sides() {
    let fleet = Fleet::new();
    let mut edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let engines = vec![EngineDeclaration::sim("chat", "echo", "")];
    let mut node = fleet.node(&edge, "gpu-1", &NodeOptions { engines, ..NodeOptions::default() });
    node.daemon.kill();
    let (waits, cancelled) = (begun(&edge, "gpu-1"), begun(&edge, "gpu-1"));
    let _ = edge.ctl(&["job", "cancel", &cancelled, "-m", "not needed"]).ok();
    edge.daemon.kill();
    edge.start();
    // Its node had not said that it has room for it.
    assert_ne!(job(&edge, &waits)["state"], "succeeded");
    node.daemon.start();
    wait::until("the job that waited was done", SOON, || job(&edge, &waits)["state"] == "succeeded");
    assert_eq!(job(&edge, &cancelled)["state"], "cancelled");
    let done = job(&edge, &waits);
    assert!(done["attempt"].as_u64() <= Some(2), "{done}");
    // And with both alive again, the next one is done at once.
    let next = edge.ctl(&["engine", "health", "--node", "gpu-1", "-o", "json"]).ok().json();
    assert_eq!((&next["state"], &next["attempt"]), (&"succeeded".into(), &1.into()));
}

/// Row 104 for jobs: one that runs goes on across kill -9 of the edge, as the same attempt under a new lease; with kill -9 of
/// its agent the attempt is lost and the next one begins; cancelled, it ends at once.
#[test]
fn a_running_job_outlives_its_edge_and_is_begun_again_with_its_agent() {
    let fleet = Fleet::new();
    let mut edge = fleet.edge("berlin", None, &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let hub = Hub::start().unwrap();
    hub.add("org/tiny", "r1", "model.gguf", vec![7; 1 << 20]);
    // It never comes to its end by itself.
    hub.fault("model.gguf", Fault::Drip, 10_000);
    let more = from_hub(&fleet.dir().join("files"), &hub);
    let engines = vec![EngineDeclaration::sim("chat", "echo", "")];
    let mut node = fleet.node(&edge, "gpu-1", &NodeOptions { engines, more });
    let files = json!([{ "path": "model.gguf", "bytes": 1 << 20, "sha256": "a1".repeat(32) }]);
    let args = json!({ "repository": "org/tiny", "revision": "r1", "source": "hub", "files": files });
    let begun = edge.command("11111111-2222-4333-8444-555555555555", "artifact.acquire", "node:gpu-1", &args);
    let id = begun.json()["result"]["jobs"][0]["job_id"].as_str().unwrap().to_owned();
    let runs = |edge: &Edge, attempt: u64| {
        let job = job(edge, &id);
        job["state"] == "running" && job["attempt"] == attempt && job["progress"]["phase"].is_string()
    };
    wait::until("the job runs", SOON, || runs(&edge, 1));
    edge.daemon.kill();
    edge.start();
    wait::until("the same attempt goes on", SOON, || runs(&edge, 1));
    // An agent that is stopped in order gives its jobs back.
    node.daemon.stop(SOON);
    wait::until("the job waits", SOON, || job(&edge, &id)["state"] == "queued");
    node.daemon.start();
    wait::until("it was no attempt", SOON, || runs(&edge, 1));
    node.daemon.kill();
    node.daemon.start();
    wait::until("the next attempt runs", SOON, || runs(&edge, 2));
    let _ = edge.ctl(&["job", "cancel", &id, "-m", "enough"]).ok();
    wait::until("the job is cancelled", SOON, || job(&edge, &id)["state"] == "cancelled");
    let audit = edge.ctl(&["audit", "--action", "job.ended", "-o", "jsonl"]).ok().out;
    assert_eq!(lines(&audit).len(), 1, "{audit}");
}
