//! Tasks that break off by a panic: what they held is settled, and what they did for ever goes on.

use std::sync::Arc;

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::method;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::proto::node::{NodeSettings, NodeSettingsResult, NodeSettingsState};
use umbel_wire::tls::KeyPair;
use umbel_wire::{Code, Connection, Handler, IncomingRequest};

use super::rig::{Edge, run, until};
use super::rotation::ask_credential;
use crate::shell::commands::Standing;
use crate::shell::status;

fn trip(edge: &Edge, place: &'static str) {
    edge.running.site.trips.lock().unwrap().push(place);
}

async fn eligible(edge: &Edge, id: &str, eligible: bool) -> Result<Standing, umbel_wire::Error> {
    edge.ask_as(id, "node.eligible", "node:n", json!({ "eligible": eligible })).await
}

/// One that breaks off before anything is stored has not happened, and its id is free; one that breaks off after it has
/// the outcome that is stored.
#[test]
fn a_command_that_breaks_off_is_settled_by_what_is_stored() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let id = uuid::Uuid::new_v4().to_string();
        trip(&edge, "command");
        let broken = eligible(&edge, &id, false).await.unwrap_err();
        assert_eq!((broken.code, broken.reason.as_ref()), (Code::Internal, "INTERNAL"));
        assert!(edge.view(&node).row.eligible);
        trip(&edge, "command is stored");
        let done = eligible(&edge, &id, false).await.unwrap();
        assert_eq!((done.phase, done.replayed), (CommandPhase::Succeeded, false));
        assert!(!edge.view(&node).row.eligible);
        let again = eligible(&edge, &id, false).await.unwrap();
        assert_eq!((again.phase, again.replayed), (CommandPhase::Succeeded, true));
        assert!(edge.running.commands.running(&id).is_none());
    });
}

/// What goes on in a task of its own and breaks off there has failed: nobody waits for it, and its id gives that.
#[test]
fn a_command_that_breaks_off_while_it_goes_on_has_failed() {
    run(async {
        let edge = Edge::start().await;
        edge.node("n").await;
        let id = uuid::Uuid::new_v4().to_string();
        trip(&edge, "command goes on");
        for replayed in [false, true] {
            let ended = edge.ask_as(&id, "node.drain", "node:n", json!({})).await.unwrap();
            assert_eq!((ended.phase, ended.replayed), (CommandPhase::Failed, replayed));
            assert_eq!(ended.error.unwrap().reason, "INTERNAL");
        }
        let next = edge.ask("node.drain", "node:n", json!({})).await.unwrap();
        assert_eq!(next.phase, CommandPhase::Succeeded);
    });
}

#[derive(Default)]
struct Agent(std::sync::Mutex<u64>);

impl Handler for Agent {
    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        assert_eq!(request.method, method::NODE_SETTINGS);
        let sent = NodeSettings::decode(request.payload.as_ref()).unwrap();
        *self.0.lock().unwrap() = sent.version;
        let state = NodeSettingsState { applied_version: sent.version, ..NodeSettingsState::default() };
        request.respond(Ok(NodeSettingsResult { state: Some(state) }.encode_to_vec()));
    }
}

/// A send that breaks off leaves its node free: it gets its settings with its next hello, or by the clock.
#[test]
fn a_node_whose_settings_broke_off_is_sent_them_again() {
    run(async {
        let edge = Edge::start().await;
        let mut node = edge.node("n").await;
        node.hello.settings = Some(NodeSettingsState::default());
        let agent = Arc::new(Agent::default());
        trip(&edge, "settings");
        let first = node.connect_by(&edge, agent.clone()).await;
        let change = json!({ "changes": [{ "path": "agents.default.log.level", "value": "debug" }] });
        edge.ask("settings.set", "", change).await.unwrap();
        until("a send breaks off", || edge.running.site.trips.lock().unwrap().is_empty()).await;
        assert_eq!(*agent.0.lock().unwrap(), 0);
        drop(first);
        let _second = node.connect_by(&edge, agent.clone()).await;
        until("it has version 1", || *agent.0.lock().unwrap() == 1).await;
    });
}

#[test]
fn a_certificate_that_broke_off_may_be_asked_for_again() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        let key = KeyPair::generate().unwrap();
        trip(&edge, "credential");
        let broken = ask_credential(&connection, &key).await.unwrap_err();
        assert_eq!(broken.code, Code::Internal);
        ask_credential(&connection, &key).await.unwrap();
    });
}

async fn rotate(edge: &Edge, step: &str) -> Standing {
    edge.ask("ca.rotate", "", json!({ "step": step })).await.unwrap()
}

async fn problems(edge: &Edge) -> Vec<String> {
    let summary = status::summary(&edge.running.site).await;
    summary.problems.into_iter().map(|problem| problem.code).collect()
}

/// A step of the change of authority whose files fail after it was stored is done; it is told that it is not in force,
/// and comes into force by itself, by the next step, or by a restart.
#[test]
fn a_step_of_the_authority_that_is_stored_comes_into_force() {
    run(async {
        let edge = Edge::start().await;
        let id = uuid::Uuid::new_v4().to_string();
        trip(&edge, "authority");
        let args = json!({ "step": "begin" });
        let begun = edge.ask_as(&id, "ca.rotate", "", args.clone()).await.unwrap();
        assert_eq!(begun.phase, CommandPhase::Succeeded);
        let phase = |value: &Option<Value>| value.as_ref().unwrap()["phase"].as_str().unwrap().to_owned();
        assert_eq!(phase(&begun.result), "begun");
        assert_eq!(problems(&edge).await, ["CA_NOT_IN_FORCE"]);
        let again = edge.ask_as(&id, "ca.rotate", "", args).await.unwrap();
        assert!(again.replayed && phase(&again.result) == "begun");
        let shown = edge.ask("ca.show", "", json!({})).await.unwrap();
        assert_eq!(phase(&shown.result), "settled", "what is in force");
        // The next step goes on from what is stored.
        trip(&edge, "authority");
        let refused = edge.ask("ca.rotate", "", json!({ "step": "switch" })).await.unwrap_err();
        assert_eq!(refused.reason, "CA_FILES");
        assert_eq!(phase(&rotate(&edge, "switch").await.result), "switched");
        assert_eq!(problems(&edge).await, Vec::<String>::new());
        // A restart takes it up.
        trip(&edge, "authority");
        rotate(&edge, "finish").await;
        let edge = edge.crash().await;
        let shown = edge.ask("ca.show", "", json!({})).await.unwrap();
        assert_eq!(phase(&shown.result), "settled");
        assert_eq!(shown.result.unwrap()["authorities"].as_array().unwrap().len(), 1);
        // And so does the clock.
        trip(&edge, "authority");
        rotate(&edge, "begin").await;
        edge.running.site.rotations.now();
        until("it is in force", || edge.running.site.authorities.not_in_force().is_none()).await;
        let wrong = edge.ask("ca.rotate", "", json!({ "step": "finish" })).await.unwrap_err();
        assert_eq!((wrong.code, wrong.reason.as_ref()), (Code::Conflict, "CA_PHASE"));
    });
}

/// A part that is begun again is a problem of the site until it has run for a while, and the site goes on.
#[test]
fn a_part_that_breaks_off_is_told_and_begun_again() {
    run(async {
        let edge = Edge::start().await;
        assert!(health(&edge).await.contains(r#""status":"ok""#));
        trip(&edge, "liveness");
        until("its sweep breaks off", || !edge.running.site.parts.troubles().is_empty()).await;
        assert_eq!(problems(&edge).await, ["PART_BROKE"]);
        let told = health(&edge).await;
        assert!(told.contains(r#""status":"degraded","store":"ok","broken":"liveness""#), "{told}");
        // Nobody is asked to restart: the sweep finds a node that has gone after it was begun again.
        trip(&edge, "liveness");
        until("it sweeps again", || edge.running.site.trips.lock().unwrap().is_empty()).await;
        let over = tokio::time::timeout(std::time::Duration::ZERO, edge.running.site.parts.over()).await;
        assert!(over.is_err(), "the process goes on");
    });
}

/// Without the store's thread nothing can be changed any more: the site says so, and its process ends.
#[test]
fn a_store_whose_thread_breaks_off_ends_the_process() {
    run(async {
        let edge = Edge::start().await;
        edge.disk.break_writer();
        let refused = edge.ask("settings.set", "", json!({ "changes": [] })).await;
        assert!(refused.is_err(), "nothing is answered as done");
        assert_eq!(edge.running.site.parts.over().await, "store");
        let told = health(&edge).await;
        assert!(told.contains(r#""status":"degraded","store":"read_only","broken":"store""#), "{told}");
        let told = problems(&edge).await;
        assert!(
            ["PART_BROKE", "STORE_READ_ONLY"].iter().all(|code| told.iter().any(|one| one == code)),
            "{told:?}"
        );
    });
}

async fn health(edge: &Edge) -> String {
    super::full_disk::health(edge, "/health").await
}
