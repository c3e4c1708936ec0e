//! Engines outlive every tier: kill -9 of the agent, of the edge and of the control plane under streams, and an agent's
//! clean stop (rows 83 and 93). The engines' processes stay the same, streams through what was not touched end whole, and
//! all is well again without a hand.

use std::net::SocketAddr;

use serde_json::{Value, json};
use umbel_tests::fleet::{ControlPlane, Edge, EdgeOptions, Fleet, Node, SOON, Signal};
use umbel_tests::http::{Answer, Ask, BodyEnd, Target, Whole};
use umbel_tests::wait;

use crate::engines::options;
use crate::sites::error_event;

/// Streams on each of the two nodes.
const EACH: usize = 10;

/// Fields end in this order.
struct Site {
    nodes: [Node; 2],
    edge: Edge,
    plane: ControlPlane,
    _fleet: Fleet,
}

/// Streams that stand at a gate: what they brought so far, and the rest.
type Standing = Vec<(Vec<u8>, Answer)>;

const MODELS: [&str; 2] = ["a", "b"];
const NAMES: [&str; 2] = ["gpu-1", "gpu-2"];

fn site() -> Site {
    let fleet = Fleet::new();
    let plane = fleet.control_plane();
    let edge = fleet.edge("berlin", Some(&plane), &EdgeOptions::default());
    let nodes = [0, 1].map(|at| {
        let mut options = options(&fleet, MODELS[at]);
        for engine in &mut options.engines {
            engine.toml = engine.toml.replace("capacity = 4", "capacity = 16");
        }
        fleet.node(&edge, NAMES[at], &options)
    });
    plane.wait_fresh("berlin");
    Site { nodes, edge, plane, _fleet: fleet }
}

impl Site {
    fn record(&self, at: usize) -> Value {
        let file = self.nodes[at].state.join("engines/e.json");
        serde_json::from_slice(&std::fs::read(file).unwrap_or_default()).unwrap_or_default()
    }

    fn pids(&self) -> [u64; 2] {
        [0, 1].map(|at| self.record(at)["pid"].as_u64().unwrap_or_default())
    }

    /// Streams on both nodes that wait in their middle.
    fn streams(&self, gate: &str) -> [Standing; 2] {
        MODELS.map(|model| {
            let script = json!({"events": 6, "gate": gate, "gate_at": 3});
            let asked = (0..EACH).map(|number| {
                let ask = self.edge.chat(model, &format!("{gate} {number}"), true, &script);
                let mut answer = ask.ask(&self.edge.target()).unwrap();
                (answer.read_to("tok1").unwrap(), answer)
            });
            asked.collect()
        })
    }

    /// Lets the streams of one node go on, past its agent.
    fn open(&self, at: usize, gate: &str) {
        let port = u16::try_from(self.record(at)["port"].as_u64().unwrap()).unwrap();
        let engine = Target::Tcp(SocketAddr::from(([127, 0, 0, 1], port)));
        assert_eq!(Ask::post(&format!("/_gate/{gate}"), "").whole(&engine).unwrap().status, 200);
    }

    /// All is as it was, without a hand.
    fn is_well(&self, pids: [u64; 2]) {
        for (name, model) in NAMES.iter().zip(MODELS) {
            self.edge.wait_serving(name);
            wait::until("it answers", SOON, || {
                let got = self.edge.chat(model, "again", true, &json!({})).whole(&self.edge.target());
                got.is_ok_and(|got| got.status == 200 && got.text().contains("[DONE]"))
            });
        }
        assert_eq!(self.pids(), pids, "the engines' processes are the same");
    }
}

fn rest((before, answer): (Vec<u8>, Answer)) -> Whole {
    let mut whole = answer.rest();
    whole.body = [before, whole.body].concat();
    whole
}

#[track_caller]
fn end_whole(streams: Standing) {
    for stream in streams {
        let whole = rest(stream);
        assert!(whole.end == BodyEnd::Whole && whole.text().contains("[DONE]"), "{}", whole.text());
    }
}

/// Row 83, and each other tier after it.
#[test]
fn engines_outlive_every_tier() {
    let mut s = site();
    let pids = s.pids();

    let [cut, untouched] = s.streams("agent");
    s.nodes[0].daemon.kill();
    for stream in cut {
        error_event(&rest(stream));
    }
    s.open(1, "agent");
    end_whole(untouched);
    s.nodes[0].daemon.start();
    s.is_well(pids);

    let streams = s.streams("edge");
    s.edge.daemon.kill();
    for stream in streams.into_iter().flatten() {
        let whole = rest(stream);
        assert!(!whole.text().contains("[DONE]"), "{}", whole.text());
    }
    s.edge.start();
    s.is_well(pids);

    let [first, second] = s.streams("plane");
    s.plane.daemon.kill();
    for at in [0, 1] {
        s.open(at, "plane");
    }
    end_whole(first);
    end_whole(second);
    s.is_well(pids);
    s.plane.start();
    s.plane.wait_fresh("berlin");
    assert_eq!(s.pids(), pids);
}

/// Row 93: an agent that is asked to stop takes nothing new, lets its streams end well, and leaves its engine running.
#[test]
fn row_93_a_stopped_agent_finishes_its_streams_and_keeps_its_engine() {
    let mut s = site();
    let pids = s.pids();
    let [own, other] = s.streams("stop");
    s.nodes[0].daemon.signal(Signal::Term);
    s.edge.wait_node(NAMES[0], "giving nothing new", SOON, |node| {
        node["providers"].as_array().is_some_and(|all| all.iter().all(|one| one["status"] != "available"))
    });
    assert!(s.nodes[0].daemon.is_running(), "it waits for its streams");
    for at in [0, 1] {
        s.open(at, "stop");
    }
    end_whole(own);
    end_whole(other);
    assert!(s.nodes[0].daemon.wait_end(SOON).success());
    assert_eq!(s.pids(), pids);
    s.nodes[0].daemon.start();
    s.is_well(pids);
}
