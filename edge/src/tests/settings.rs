//! Settings from an operator's change to what a node has and what people see of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::proto::node::{
    EngineRuntime, EngineState, NodeDeclared, NodeHeartbeat, NodeSettings, NodeSettingsResult,
    NodeSettingsState,
};
use umbel_contracts::{event, method};
use umbel_wire::{Code, Connection, Handler, IncomingRequest};

use super::rig::{Edge, FakeNode, TIME, engine, run, until};
use crate::shell::status;

/// The node's side of settings: it says yes, or no to some versions.
#[derive(Default)]
struct Agent {
    got: Mutex<Vec<NodeSettings>>,
    state: Mutex<NodeSettingsState>,
    /// Versions up to this one are refused.
    refuse_to: AtomicU64,
}

impl Agent {
    fn versions(&self) -> Vec<u64> {
        self.got.lock().unwrap().iter().map(|one| one.version).collect()
    }

    fn said(&self) -> NodeSettingsState {
        self.state.lock().unwrap().clone()
    }

    fn last(&self) -> Value {
        serde_json::from_slice(&self.got.lock().unwrap().last().unwrap().settings_json).unwrap()
    }
}

impl Handler for Agent {
    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        assert_eq!(request.method, method::NODE_SETTINGS);
        let settings = NodeSettings::decode(&*request.payload).unwrap();
        let mut state = self.state.lock().unwrap();
        if settings.version <= self.refuse_to.load(Ordering::SeqCst) {
            state.refused_version = settings.version;
            state.refusal = "engines.chat.model: is missing".to_owned();
        } else {
            state.applied_version = settings.version;
            state.applied_digest = settings.digest.clone();
            (state.refused_version, state.refusal) = (0, String::new());
        }
        self.got.lock().unwrap().push(settings);
        request.respond(Ok(NodeSettingsResult { state: Some(state.clone()) }.encode_to_vec()));
    }
}

async fn connect(edge: &Edge, node: &mut FakeNode, agent: &Arc<Agent>) -> Connection {
    node.hello.settings = Some(agent.said());
    let handler: Arc<dyn Handler> = Arc::clone(agent) as Arc<dyn Handler>;
    node.connect_by(edge, handler).await
}

async fn set(edge: &Edge, path: &str, value: Value) -> Value {
    let args = json!({ "changes": [{ "path": path, "value": value }] });
    done(edge, "settings.set", args).await
}

async fn done(edge: &Edge, operation: &str, args: Value) -> Value {
    let standing = edge.ask(operation, "", args).await.unwrap();
    assert_eq!(standing.phase, CommandPhase::Succeeded);
    standing.result.unwrap()
}

#[test]
fn a_change_reaches_the_node_and_is_seen_everywhere() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("gpu-1").await;
        let agent = Arc::new(Agent::default());
        let _connection = connect(&edge, &mut node, &agent).await;
        let result = set(&edge, "agents.default.log.level", json!("debug")).await;
        assert_eq!((&result["version"], &result["nodes"]), (&json!(1), &json!(1)));
        set(&edge, "agents.nodes.gpu-1.labels.rack", json!("r1")).await;
        until("the node has version 2", || agent.said().applied_version == 2).await;
        // Both came within the second in which changes are gathered.
        assert_eq!(agent.versions(), [2]);
        assert_eq!(agent.last(), json!({ "labels": { "rack": "r1" }, "log": { "level": "debug" } }));
        until("it is seen", || edge.view(&node).settings.to_send().is_none()).await;
        let shown = status::node(&edge.running.site, &edge.view(&node)).config.unwrap();
        assert_eq!((shown.desired_version, shown.applied_version, shown.refused_version), (2, 2, 0));
        assert_eq!(shown.digest.len(), 64);
        let got = done(&edge, "settings.get", json!({ "node": "gpu-1" })).await;
        assert_eq!(got["effective"]["labels"]["rack"], "r1");
        assert_eq!(got["rollout"]["applied"], 1);
        assert_eq!(edge.audit("settings.set").await.len(), 2);
        edge.audited("settings_applied").await;
    });
}

/// Row 78: what a node refused is not sent again until its version changes; both versions are seen.
#[test]
fn row_78_refused_settings_are_sent_again_only_when_they_change() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("gpu-1").await;
        let agent = Arc::new(Agent::default());
        agent.refuse_to.store(1, Ordering::SeqCst);
        let connection = connect(&edge, &mut node, &agent).await;
        set(&edge, "agents.default.engines.chat.capacity", json!(2)).await;
        until("it refused", || edge.view(&node).settings_refusal().is_some()).await;
        // A change that is none of its business, a new hello, an edge that starts anew: nothing is sent again.
        set(&edge, "edge.queue.max_wait", json!("5s")).await;
        drop(connection);
        let edge = edge.restart().await;
        let _connection = connect(&edge, &mut node, &agent).await;
        until("it is complete", || edge.connected(&node)).await;
        let got = done(&edge, "settings.get", json!({})).await;
        assert_eq!(got["rollout"]["refused"][0]["version"], 1);
        assert_eq!(agent.versions(), [1]);
        set(&edge, "agents.default.engines.chat.capacity", json!(3)).await;
        until("the new one is applied", || edge.view(&node).settings.to_send().is_none()).await;
        assert_eq!(agent.versions(), [1, 3]);
        assert_eq!(edge.view(&node).settings_refusal(), None);
    });
}

#[test]
fn an_old_agent_is_sent_nothing_and_shown_as_such() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("gpu-1").await;
        set(&edge, "agents.default.log.level", json!("debug")).await;
        let _connection = node.connect(&edge).await;
        until("it is complete", || edge.connected(&node)).await;
        let shown = status::node(&edge.running.site, &edge.view(&node)).config.unwrap();
        assert_eq!((shown.desired_version, shown.applied_version), (1, 0));
        assert!(shown.refusal.contains("too old"), "{}", shown.refusal);
        let got = done(&edge, "settings.get", json!({})).await;
        assert!(got["rollout"]["refused"][0]["reason"].as_str().unwrap().contains("upgrade"));
    });
}

/// Row 81: what is wrong is refused by its path when it is set, and never sent; a good change follows.
#[test]
fn row_81_bad_settings_are_refused_when_they_are_set() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("gpu-1").await;
        let agent = Arc::new(Agent::default());
        let _connection = connect(&edge, &mut node, &agent).await;
        for (path, value) in [
            ("edge.queue.max_wait", json!("0s")),
            ("edge.liveness.offline", json!("30s")),
            ("edge.liveness.stale", json!("1s")),
            ("agents.default.engines.chat.capacity", json!(-2)),
            ("agents.default.engines.chat.capacity", json!(1_000_000_000)),
            ("agents.default.engines.chat.aliases", json!(["a", "a"])),
            ("agents.nodes.gpu-1.state_dir", json!("/")),
        ] {
            let args = json!({ "changes": [{ "path": path, "value": value }] });
            let error = edge.ask("settings.set", "", args).await.unwrap_err();
            assert_eq!((error.code, error.reason.as_ref()), (Code::InvalidArgument, "SETTINGS"), "{path}");
            let last = path.rsplit('.').next().unwrap();
            assert!(error.message.split(": ").next().unwrap().ends_with(last), "{}", error.message);
        }
        set(&edge, "agents.default.engines.chat.capacity", json!(2)).await;
        until("the good one is applied", || agent.said().applied_version == 1).await;
        assert_eq!(agent.versions(), [1]);
        let stale = json!({ "base_version": 0, "changes": [{ "path": "edge.log.level", "value": "info" }] });
        assert_eq!(edge.ask("settings.set", "", stale).await.unwrap_err().reason, "SETTINGS_CHANGED");
    });
}

#[test]
fn the_edges_own_settings_take_force_while_it_runs() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("gpu-1").await;
        let _connection = node.connect(&edge).await;
        let site = Arc::clone(&edge.running.site);
        let document = json!({ "edge": {
            "queue": { "max_requests": 3, "max_wait": "7s" },
            "liveness": { "stale": "25s", "offline": "60s" },
            "shutdown": { "drain": "1s" },
        } });
        done(&edge, "settings.set", json!({ "document": document })).await;
        let in_force = site.settings.in_force();
        assert_eq!((in_force.queue.max_requests, in_force.drain), (3, Duration::from_secs(1)));
        // A restart takes them up again; without them the file counts.
        let edge = edge.restart().await;
        let site = Arc::clone(&edge.running.site);
        assert_eq!(site.settings.in_force().liveness.offline, Duration::from_secs(60));
        assert_eq!(status::summary(&site).await.facts.unwrap().settings_version, 1);
        done(&edge, "settings.rollback", json!({ "version": 0 })).await;
        assert_eq!(site.settings.in_force().queue.max_requests, 1_000);
        let history = done(&edge, "settings.history", json!({})).await;
        assert_eq!(history["versions"][0]["rolled_back_to"], 0);
        assert_eq!(history["versions"][1]["version"], 1);
        let diff = done(&edge, "settings.diff", json!({ "from": 0, "to": 1 })).await;
        assert_eq!(diff["diff"].as_array().unwrap().len(), 5);
    });
}

/// Settings that no longer fit on an edited file keep neither the edge nor a good change from coming (row 81).
#[test]
fn row_81_an_edited_file_that_does_not_fit_is_a_problem_and_no_end() {
    run(async {
        let edge = Edge::start().await;
        set(&edge, "edge.liveness.stale", json!("25s")).await;
        let mut edge = edge;
        edge.config.liveness.heartbeat = Duration::from_secs(20);
        edge.config.liveness.stale = Duration::from_secs(40);
        let edge = edge.restart().await;
        let site = Arc::clone(&edge.running.site);
        assert_eq!(site.settings.in_force().liveness.stale, Duration::from_secs(40));
        let problems = status::summary(&site).await.problems;
        assert!(problems.iter().any(|one| one.code == "SETTINGS_NOT_IN_FORCE"), "{problems:?}");
        set(&edge, "edge.liveness.stale", json!("45s")).await;
        assert_eq!(site.settings.in_force().liveness.stale, Duration::from_secs(45));
        assert!(site.settings.problem().is_none());
    });
}

/// A row that cannot be read is a problem and no end: versions go on above every one that was made.
#[test]
fn row_103_settings_that_cannot_be_read_are_a_problem_and_no_end() {
    run(async {
        let edge = Edge::start().await;
        set(&edge, "edge.queue.max_wait", json!("5s")).await;
        set(&edge, "edge.queue.max_wait", json!("6s")).await;
        let store = edge.running.site.store.clone();
        store.commit(umbel_store::Commit::new().put("settings", "current", b"[1".to_vec())).await.unwrap();
        drop(store);
        let edge = edge.restart().await;
        let site = Arc::clone(&edge.running.site);
        assert!(site.settings.problem().unwrap().message.contains("cannot be read"));
        assert_eq!(set(&edge, "edge.queue.max_wait", json!("7s")).await["version"], 3);
        assert_eq!(site.settings.in_force().queue.max_wait, Duration::from_secs(7));
        assert!(site.settings.problem().is_none());
    });
}

/// An edge that was restored from a backup goes on above what its nodes have.
#[test]
fn a_node_ahead_of_a_restored_edge_gets_its_settings_anew() {
    run(async {
        let edge = Edge::start().await;
        set(&edge, "agents.default.log.level", json!("debug")).await;
        let mut node = edge.node("gpu-1").await;
        let agent = Arc::new(Agent::default());
        agent.state.lock().unwrap().applied_version = 7;
        let _connection = connect(&edge, &mut node, &agent).await;
        until("it is applied", || agent.said().applied_version == 8).await;
        assert_eq!(agent.last(), json!({ "log": { "level": "debug" } }));
        let got = done(&edge, "settings.get", json!({ "version": 1 })).await;
        assert_eq!(got["document"]["agents"]["default"]["log"]["level"], "debug");
    });
}

/// Row 67: a lower capacity starts nothing new before enough have ended, a higher one acts at once.
#[test]
fn row_67_capacity_changes_while_requests_run() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("gpu-1").await;
        let wide = |capacity: u32| {
            let mut engine = engine("e", EngineState::Ready);
            engine.capacity = capacity;
            engine
        };
        node.hello.engines = vec![wide(8)];
        let connection = node.connect(&edge).await;
        until("it is there", || edge.connected(&node)).await;
        let mut slots: Vec<_> = (0..8).map(|_| edge.slot().unwrap()).collect();
        assert!(edge.slot().is_none());
        let declare = |capacity: u32| {
            let declared = NodeDeclared { engines: vec![wide(capacity)], ..NodeDeclared::default() };
            connection.event(event::NODE_DECLARED, "declared", declared.encode_to_vec());
        };
        let figures = || edge.running.site.dispatch.figures(&format!("{}/e", node.id)).unwrap();
        declare(2);
        until("it is lower", || figures().capacity == 2).await;
        assert_eq!(figures().in_flight, 8);
        for left in (2..8).rev() {
            slots.pop();
            assert_eq!(figures().in_flight, left);
            assert!(edge.slot().is_none(), "{left} run");
        }
        slots.pop();
        slots.push(edge.slot().unwrap());
        assert!(edge.slot().is_none());
        declare(8);
        until("it is higher", || figures().capacity == 8).await;
        slots.extend((0..6).map(|_| edge.slot().unwrap()));
        assert!(edge.slot().is_none());
        assert_eq!(figures().in_flight, 8);
    });
}

/// What a node declares is checked as in a hello, and an old connection's word changes nothing.
#[test]
fn a_declaration_is_checked_as_a_hello_is() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("gpu-1").await;
        let connection = node.connect(&edge).await;
        let mut bad = engine("e", EngineState::Ready);
        bad.capacity = 0;
        let declared = NodeDeclared { engines: vec![bad], ..NodeDeclared::default() };
        connection.event(event::NODE_DECLARED, "declared", declared.encode_to_vec());
        let both = vec![engine("e", EngineState::Ready), engine("f", EngineState::Loading)];
        let labels = [("rack".to_owned(), "r2".to_owned())].into();
        let vllm = EngineRuntime {
            kind: "vllm".to_owned(),
            engine_version: "0.33.0".to_owned(),
            ..EngineRuntime::default()
        };
        let declared = NodeDeclared { engines: both, labels, runtimes: vec![vllm] };
        connection.event(event::NODE_DECLARED, "declared", declared.encode_to_vec());
        until("both are there", || edge.view(&node).report.engines.len() == 2).await;
        assert_eq!(edge.view(&node).report.engines[0].capacity, 4);
        assert_eq!(edge.view(&node).labels["rack"], "r2");
        let version = || edge.view(&node).report.runtimes.first().map(|one| one.engine_version.clone());
        assert_eq!(version().as_deref(), Some("0.33.0"), "found out after the hello");
        let none = NodeDeclared::default();
        connection.event(event::NODE_DECLARED, "declared", none.encode_to_vec());
        until("none is left", || edge.view(&node).report.engines.is_empty()).await;
        assert!(version().is_some(), "an agent that does not know the field says nothing of it");
        assert!(edge.slot().is_none());
    });
}

/// A heartbeat says how a trial ended.
#[test]
fn a_trial_that_is_taken_back_is_told() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("gpu-1").await;
        let agent = Arc::new(Agent::default());
        agent.state.lock().unwrap().confirming = true;
        let connection = connect(&edge, &mut node, &agent).await;
        set(&edge, "agents.default.log.level", json!("debug")).await;
        until("it is on trial", || edge.view(&node).rollout() == crate::core::settings::Rollout::Confirming)
            .await;
        let state = NodeSettingsState {
            refused_version: 1,
            refusal: "engine chat is failed".to_owned(),
            ..NodeSettingsState::default()
        };
        let beat = NodeHeartbeat { sequence: 2, settings: Some(state), ..NodeHeartbeat::default() };
        let answer = connection.request(method::NODE_HEARTBEAT, beat.encode_to_vec(), TIME).await.unwrap();
        let ack = umbel_contracts::proto::node::NodeHeartbeatAck::decode(&*answer).unwrap();
        assert_eq!(ack.desired_settings_version, 1);
        assert_eq!(edge.view(&node).settings_refusal(), Some((1, "engine chat is failed")));
        edge.audited("settings_rolled_back").await;
        assert_eq!(agent.versions(), [1]);
    });
}
