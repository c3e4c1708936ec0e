//! A full disk: the site serves, what ends harm takes force and says that it is not durable, and is written first of
//! all once there is room.

use std::sync::Arc;

use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use umbel_contracts::method;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::proto::control::StoreHealth;
use umbel_contracts::proto::node::EngineControlAck;
use umbel_wire::token::{BearerKind, mint_bearer};
use umbel_wire::{Code, Connection, Error, Handler, IncomingRequest};

use super::rig::{Edge, TIME, run};
use crate::shell::status;

async fn key(edge: &Edge) -> Result<(String, String), Error> {
    let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
    let args = json!({ "key_id": key_id, "secret_sha256": hash.to_hex(), "name": "app" });
    edge.ask("apikey.create", "", args).await?;
    Ok((key_id, format!("Bearer {}", text.expose())))
}

/// Makes a key once there is room: the first commit that succeeds.
async fn key_when_there_is_room(edge: &Edge) {
    edge.disk.full(false);
    let deadline = std::time::Instant::now() + TIME;
    while let Err(error) = key(edge).await {
        assert_eq!((error.code, &*error.reason), (Code::InsufficientStorage, "AUDIT_UNAVAILABLE"));
        assert!(std::time::Instant::now() < deadline, "never writable again");
        tokio::task::yield_now().await;
    }
}

async fn done(edge: &Edge, operation: &str, selector: &str, args: Value) -> Value {
    let standing = edge.ask(operation, selector, args).await.unwrap();
    assert_eq!(standing.phase, CommandPhase::Succeeded, "{:?}", standing.error);
    standing.result.unwrap()
}

pub(super) async fn health(edge: &Edge, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(edge.running.api_address.unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A node that does what operators ask of its engines.
struct Obeys;

impl Handler for Obeys {
    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        assert_eq!(request.method, method::NODE_ENGINE_CONTROL);
        let ack = EngineControlAck { accepted: true, ..EngineControlAck::default() };
        request.respond(Ok(ack.encode_to_vec()));
    }
}

/// What a node has done already is no refusal: it is answered as done, and stands in the audit when that can be written.
#[test]
fn an_engine_that_was_stopped_is_said_to_be_stopped_and_audited_later() {
    run(async {
        let edge = Edge::start().await;
        let _node = edge.node("n").await.connect_by(&edge, Arc::new(Obeys)).await;
        edge.disk.full(true);
        let stopped = done(&edge, "engine.stop", "", json!({ "engine": "e" })).await;
        assert_eq!((&stopped["engine"], &stopped["state"]), (&json!("e"), &json!("stopping")));
        key_when_there_is_room(&edge).await;
        let kept = done(&edge, "audit.query", "", json!({ "action": "engine.stop" })).await;
        assert_eq!(kept["entries"].as_array().map(Vec::len), Some(1), "{kept}");
    });
}

/// A revoked key, a revoked token and a drain of an outage outlive a crash after it, each with its audit entry.
#[test]
fn what_took_force_is_written_before_anything_else() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _first = node.connect(&edge).await;
        let (key_id, bearer) = key(&edge).await.unwrap();
        let (token_id, secret) = edge.token("late").await;
        edge.disk.full(true);
        let _second = node.connect(&edge).await;
        assert!(edge.connected(&node) && edge.slot().is_some(), "nodes reconnect, and the site serves");
        let command = uuid::Uuid::new_v4().to_string();
        let drained = edge.ask_as(&command, "node.drain", "node:n", json!({})).await.unwrap();
        assert_eq!(drained.result.as_ref().unwrap()["nodes"][0]["not_durable"], true);
        assert!(edge.view(&node).row.draining && edge.slot().is_none());
        let again = edge.ask_as(&command, "node.drain", "node:n", json!({})).await.unwrap();
        assert_eq!((again.replayed, again.result), (true, drained.result));
        for _ in 0..2 {
            let revoked = done(&edge, "apikey.revoke", "", json!({ "key_id": key_id })).await;
            assert_eq!(revoked["not_durable"], true);
        }
        let revoked = done(&edge, "enrollment.revoke", "", json!({ "token_id": token_id })).await;
        assert_eq!(revoked["not_durable"], true);
        for (operation, list, id) in
            [("apikey.list", "apikeys", &key_id), ("enrollment.list", "enrollments", &token_id)]
        {
            let listed = done(&edge, operation, "", json!({})).await;
            let listed = listed[list].as_array().unwrap().clone();
            let one = listed.iter().find(|one| one["key_id"] == **id || one["token_id"] == **id);
            assert_eq!(one.unwrap()["not_durable"], true, "{operation}");
        }

        key_when_there_is_room(&edge).await;
        assert_eq!(edge.running.site.store.owed(), 0);
        let edge = edge.crash().await;
        assert!(edge.view(&node).row.draining);
        assert!(edge.running.commands.keys.check(Some(&bearer), || true).is_err());
        let key = umbel_wire::tls::KeyPair::generate().unwrap();
        assert!(edge.enroll(&token_id, &secret, &key).await.is_err());
        for (action, entries) in [("node.drain", 1), ("apikey.revoke", 1), ("enrollment.revoke", 1)] {
            assert_eq!(edge.audit(action).await.len(), entries, "{action}");
        }
        let kept = done(&edge, "command.show", "", json!({ "command_id": command })).await;
        assert_eq!(
            (&kept["phase"], &kept["result"]["nodes"][0]["draining"]),
            (&json!("succeeded"), &json!(true))
        );
        assert_eq!(kept["result"]["nodes"][0]["not_durable"], Value::Null, "it is durable now");
    });
}

/// What is in memory only can be taken back there; what is on disk cannot.
#[test]
fn a_drain_that_is_in_memory_can_be_undone() {
    run(async {
        let edge = Edge::start().await;
        let (node, other) = (edge.node("n").await, edge.node("other").await);
        let _connection = node.connect(&edge).await;
        done(&edge, "node.drain", "node:other", json!({})).await;
        edge.disk.full(true);
        for _ in 0..2 {
            done(&edge, "node.drain", "node:n", json!({})).await;
            assert!(edge.slot().is_none());
            let undrained = done(&edge, "node.undrain", "node:n", json!({})).await;
            assert_eq!((&undrained["nodes"][0]["not_durable"], edge.slot().is_some()), (&json!(true), true));
        }
        for (operation, selector, args) in [
            ("node.undrain", "node:other", json!({})),
            ("node.undrain", "node:n", json!({})),
            ("node.eligible", "node:n", json!({ "eligible": false })),
        ] {
            let refused = edge.ask(operation, selector, args).await.unwrap_err();
            assert_eq!((refused.code, &*refused.reason), (Code::InsufficientStorage, "AUDIT_UNAVAILABLE"));
        }
        done(&edge, "node.drain", "all", json!({})).await;
        let refused = edge.ask("node.undrain", "all", json!({})).await.unwrap_err();
        assert_eq!(refused.reason, "AUDIT_UNAVAILABLE");
        assert!(edge.view(&node).row.draining && edge.view(&other).row.draining, "all or none");
        done(&edge, "node.undrain", "node:n", json!({})).await;

        key_when_there_is_room(&edge).await;
        // Rows are where memory believes them to be: they can be changed again.
        done(&edge, "node.eligible", "node:n", json!({ "eligible": false })).await;
        let told = done(&edge, "node.undrain", "node:other", json!({})).await;
        assert_eq!(told["nodes"][0]["not_durable"], Value::Null);
        let edge = edge.crash().await;
        let row = edge.view(&node).row.clone();
        assert!(!row.draining && !row.eligible && !edge.view(&other).row.draining);
        let succeeded = |entries: Vec<umbel_store::AuditEntry>| {
            entries.iter().filter(|entry| entry.record.outcome == "succeeded").count()
        };
        assert_eq!(succeeded(edge.audit("node.drain").await), 4);
        assert_eq!(succeeded(edge.audit("node.undrain").await), 4);
    });
}

/// Health, status and problems name the store; none of them takes the site out of service.
#[test]
fn health_names_a_store_that_takes_no_writes() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        assert!(health(&edge, "/health").await.ends_with(r#"{"status":"ok","store":"ok"}"#));
        edge.disk.full(true);
        done(&edge, "node.drain", "node:n", json!({})).await;
        let told = health(&edge, "/health").await;
        assert!(
            told.starts_with("HTTP/1.1 200 ")
                && told.ends_with(r#"{"status":"degraded","store":"read_only"}"#),
            "{told}"
        );
        let ready = health(&edge, "/readyz?verbose").await;
        assert!(ready.starts_with("HTTP/1.1 200 ") && ready.contains("[!]store read-only"), "{ready}");
        assert!(health(&edge, "/readyz").await.ends_with("\r\n\r\nok"));
        let summary = status::summary(&edge.running.site).await;
        assert_eq!(summary.facts.unwrap().store(), StoreHealth::ReadOnly);
        let problem = summary.problems.iter().find(|problem| problem.code == "STORE_READ_ONLY").unwrap();
        assert!(problem.message.contains("2 changes are in force"), "{}", problem.message);
        key_when_there_is_room(&edge).await;
        assert!(health(&edge, "/health").await.ends_with(r#"{"status":"ok","store":"ok"}"#));
        assert!(
            status::summary(&edge.running.site)
                .await
                .problems
                .iter()
                .all(|one| one.code != "STORE_READ_ONLY")
        );
        assert!(edge.view(&node).row.draining);
    });
}
