//! What separate processes say of one site's load: engines, nodes, the edge's snapshot, lists and metrics, the control
//! plane's view and what clients saw, at moments at which nothing moves and after a storm.
//!
//! That they agree at every moment of the edge itself is tested in one process: edge/src/tests/agreement.rs.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use umbel_contracts::daemon::exposition::{Sample, read};
use umbel_tests::engine::Engine;
use umbel_tests::fleet::{ControlPlane, Edge, EdgeOptions, Fleet, Node, NodeOptions, scraped};
use umbel_tests::http::Target;
use umbel_tests::wait;

use crate::behaviours::with;
use crate::sites::{SHORT, external};

/// Fields end in this order.
struct Processes {
    nodes: Vec<Node>,
    edge: Edge,
    plane: ControlPlane,
    engines: Vec<Engine>,
    _fleet: Fleet,
}

/// Two nodes of two slots each, and a queue of three.
fn processes() -> Processes {
    let fleet = Fleet::new();
    let plane = fleet.control_plane();
    let options = EdgeOptions { metrics: true, ..with("[queue]\nmax_requests = 3\nmax_wait = \"60s\"\n") };
    let edge = fleet.edge("berlin", Some(&plane), &options);
    let engines: Vec<Engine> = (0..2).map(|_| Engine::start(&["m"]).unwrap()).collect();
    let nodes = engines
        .iter()
        .enumerate()
        .map(|(n, engine)| {
            let options = NodeOptions { ..external(engine, 2) };
            fleet.node(&edge, &format!("gpu-{n}"), &options)
        })
        .collect();
    plane.wait_fresh("berlin");
    Processes { nodes, edge, plane, engines, _fleet: fleet }
}

fn samples(text: &str) -> Vec<Sample> {
    read(text).unwrap_or_else(|why| panic!("{why}")).0
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> u64 {
    samples.iter().filter(|one| one.name == name && one.has(labels)).map(|one| one.value).sum::<f64>() as u64
}

impl Processes {
    /// Everything that is said of what runs and waits, by who says it.
    fn said(&self) -> BTreeMap<&'static str, (u64, u64)> {
        let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
        let snapshot = self.edge.get("/api/v1/edges/berlin/status");
        let relayed = self.plane.get("/api/v1/edges/berlin/status");
        let queue = |of: &Value| (number(&of["queues"][0]["in_flight"]), number(&of["queues"][0]["depth"]));
        let phases = |of: &Value| -> u64 {
            let leases = of["queues"][0]["leases"].as_object().unwrap();
            leases.values().map(|count| count.as_u64().unwrap()).sum()
        };
        let depth = queue(&snapshot).1;
        let edge = samples(&self.edge.metrics());
        let plane = samples(&self.plane.metrics());
        let nodes: Vec<Vec<Sample>> = self
            .nodes
            .iter()
            .map(|node| samples(&scraped(&Target::Unix(node.state.join("node.sock")))))
            .collect();
        let of_nodes = |name: &str| nodes.iter().map(|node| sum(node, name, &[])).sum::<u64>();
        let listed = self.edge.ctl(&["request", "list", "--running", "-o", "json"]).ok().json();
        let records = listed.as_array().map_or(0, |all| all.len() as u64);
        let site = self.plane.site("berlin");
        let model = [("model", "m")];
        let site_phase =
            |phase| sum(&plane, "umbel_cp_site_requests", &[("site", "berlin"), ("phase", phase)]);
        let running: u64 = self.engines.iter().map(Engine::running).sum();
        BTreeMap::from([
            ("the engines", (running, depth)),
            ("the nodes' streams", (of_nodes("umbel_node_streams_in_flight"), depth)),
            ("the nodes' engines", (of_nodes("umbel_node_engine_in_flight"), depth)),
            ("the edge's snapshot", queue(&snapshot)),
            ("its leases by phase", (phases(&snapshot), depth)),
            ("its providers", (self.edge.in_flight(), depth)),
            (
                "its metrics",
                (
                    sum(&edge, "umbel_edge_leases", &model),
                    sum(&edge, "umbel_edge_requests_in_flight", &[model[0], ("phase", "queued")]),
                ),
            ),
            ("its queue's metrics", (running, sum(&edge, "umbel_edge_queue_depth", &model))),
            ("its list of requests", (records.saturating_sub(depth), depth)),
            ("the snapshot through the control plane", queue(&relayed)),
            (
                "the control plane's view",
                (number(&site["summary"]["requests_in_flight"]), number(&site["summary"]["requests_queued"])),
            ),
            ("the control plane's metrics", (site_phase("in_flight"), site_phase("queued"))),
        ])
    }

    /// Waits until everybody says this: what is told by heartbeats needs one.
    #[track_caller]
    fn agree(&self, in_flight: u64, waiting: u64) {
        wait::until_some("all processes say the same", 3 * SHORT, || {
            let said = self.said();
            if said.values().all(|of| *of == (in_flight, waiting)) {
                Ok(())
            } else {
                Err(format!("{said:?}"))
            }
        });
    }
}

/// Rows 61 and 6 in their large form: no process counts anything of its own that another one contradicts.
#[test]
fn every_process_says_the_same_of_a_sites_load_and_clients_saw_it() {
    let p = processes();
    let to = p.edge.target();
    p.agree(0, 0);
    let mut seen: BTreeMap<u16, u64> = BTreeMap::new();
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    // Four run, three wait, and the others are refused.
    let held = |mark: &str, gate: &str| {
        let script = json!({"events": 4, "gate": gate, "gate_at": 2});
        p.edge.chat("m", mark, true, &script).limit(6 * SHORT).send(&to).unwrap()
    };
    let mut open: Vec<_> = (0..4).map(|n| held(&format!("runs-{n}-"), "go")).collect();
    p.agree(4, 0);
    open.extend((0..3).map(|n| held(&format!("waits-{n}-"), "go")));
    p.agree(4, 3);
    for n in 0..5 {
        let got = p.edge.chat("m", &format!("refused-{n}-"), n % 2 == 0, &json!({})).whole(&to).unwrap();
        *seen.entry(got.status).or_default() += 1;
        *reasons.entry(got.header("x-umbel-reason").unwrap_or("none").to_owned()).or_default() += 1;
    }
    p.agree(4, 3);
    // One leaves while it waits, one while it runs: the first of those that wait takes its place.
    open.pop().unwrap().leave(true);
    p.agree(4, 2);
    open.remove(0).leave(true);
    p.agree(4, 1);
    for engine in &p.engines {
        engine.open_gate("go");
    }
    for sent in open {
        let got = sent.head().unwrap().rest();
        assert!(got.text().ends_with("data: [DONE]\n\n"), "{}", got.text());
        *seen.entry(got.status).or_default() += 1;
    }
    p.agree(0, 0);
    // What clients saw is what was counted, and what the operator is told of the key through the control plane.
    let edge = samples(&p.edge.metrics());
    let by = |name: &str, label: &str| {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for one in edge.iter().filter(|one| one.name == name && one.value > 0.0) {
            *sums.entry(one.label(label).unwrap().to_owned()).or_default() +=
                sum(std::slice::from_ref(one), name, &[]);
        }
        sums
    };
    assert_eq!(by("umbel_edge_rejections_total", "reason"), reasons);
    let snapshot = p.edge.get("/api/v1/edges/berlin/status")["queues"][0]["rejections"].clone();
    assert_eq!(snapshot, json!(reasons), "the snapshot's own");
    let mut codes = by("umbel_edge_requests_total", "code");
    assert_eq!(codes.remove("499"), Some(2), "those that left");
    assert_eq!(codes, seen.iter().map(|(status, count)| (status.to_string(), *count)).collect());
    let usage = p.plane.ctl(&["key", "usage", "app", "--site", "berlin", "-o", "json"]).ok().json();
    let total = |field: &str| -> u64 {
        usage.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
    };
    // Five were told so, and of one that left while it waited no engine knows.
    assert_eq!((total("requests"), total("refused")), (4 + 3 + 5, 5 + 1), "{usage}");
}
