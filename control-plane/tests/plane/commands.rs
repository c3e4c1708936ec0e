//! Commands: relayed, joined, replayed over a lost connection, followed, audited before and after.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Answer, Ask, stream};
use crate::rig::{Plane, plane, until, within};
use crate::site::connected;

const PATH: &str = "/api/v1/edges/ber1/commands";

fn drain() -> Value {
    json!({"operation": "node.drain", "target_selector": "node:gpu-1", "args": {"deadline_seconds": 5, "secret": "hunter2"}, "reason": "fan"})
}

async fn send(plane: &Plane, id: &str, query: &str, body: Value) -> Answer {
    plane.ask(Ask::post(&format!("{PATH}{query}"), body).header("idempotency-key", id)).await
}

#[tokio::test]
async fn a_command_is_relayed_with_who_asked_and_audited_by_the_arguments_names_only() {
    let plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    let id = Uuid::new_v4().to_string();
    let ask = Ask::post(PATH, drain()).header("idempotency-key", &*id).header("x-request-id", "corr-1");
    let answer = plane.ask(ask).await;
    assert_eq!(answer.status, 200);
    assert_eq!(
        (answer.body["phase"].as_str(), answer.body["result"]["drained"].as_u64()),
        (Some("succeeded"), Some(1))
    );
    let request = site.acts.requests.lock().unwrap()[0].clone();
    assert_eq!(
        (request.command_id.as_str(), request.target_selector.as_str(), request.reason.as_str()),
        (id.as_str(), "node:gpu-1", "fan")
    );
    assert_eq!(
        (request.metadata["actor"].as_str(), request.metadata["correlation_id"].as_str()),
        ("local", "corr-1")
    );
    until("the end is audited", || async {
        plane.audit().await.contains(&"command.finished succeeded".into())
    })
    .await;
    let page = plane.get("/api/v1/audit").await;
    assert!(!page.to_string().contains("hunter2"));
    let entry = |action: &str| {
        page["items"].as_array().unwrap().iter().find(|entry| entry["action"] == action).unwrap().clone()
    };
    for entry in [entry("command.requested"), entry("command.finished")] {
        assert_eq!(
            (entry["edge_id"].as_str(), entry["subject"].as_str(), entry["command_id"].as_str()),
            (Some("ber1"), Some("node.drain"), Some(id.as_str()))
        );
        assert_eq!(
            (entry["actor"].as_str(), entry["reason"].as_str(), entry["correlation_id"].as_str()),
            (Some("local"), Some("fan"), Some("corr-1"))
        );
        assert_eq!(entry["argument_names"], json!(["deadline_seconds", "secret"]));
    }
    assert!(entry("command.finished")["took_ms"].is_u64());
}

/// Fault row 71: the answer is lost, the caller asks again, and it runs once.
#[tokio::test]
async fn the_same_id_runs_once_across_a_reconnect() {
    let plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    site.acts.cut.store(true, Ordering::SeqCst);
    let id = Uuid::new_v4().to_string();
    let lost = send(&plane, &id, "", drain()).await;
    assert_eq!(lost.refusal(), (503, "OUTCOME_UNKNOWN"));
    within(site.acts.closing.notified()).await;
    until("the loss is seen", || async {
        send(&plane, &id, "", drain()).await.refusal().1 == "EDGE_NOT_CONNECTED"
    })
    .await;
    let _connection = site.connect(&plane).await.unwrap();
    let again = send(&plane, &id, "", drain()).await.ok();
    assert_eq!((again["phase"].as_str(), again["replayed"].as_bool()), (Some("succeeded"), Some(true)));
    let other = json!({"operation": "node.drain", "target_selector": "node:gpu-2"});
    assert_eq!(send(&plane, &id, "", other).await.refusal(), (409, "COMMAND_ID_REUSED"));
    assert_eq!(site.runs(), 1);
}

#[tokio::test]
async fn a_command_whose_answer_was_lost_is_settled_when_the_edge_is_back() {
    let mut plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    site.acts.cut.store(true, Ordering::SeqCst);
    let id = Uuid::new_v4().to_string();
    assert_eq!(send(&plane, &id, "", drain()).await.refusal(), (503, "OUTCOME_UNKNOWN"));
    // Not even a restart of the control plane loses who asked.
    plane.restart().await;
    let _connection = site.connect(&plane).await.unwrap();
    until("the end is audited", || async {
        plane.audit().await.contains(&"command.finished succeeded".into())
    })
    .await;
    assert_eq!(site.runs(), 1);
    assert_eq!(plane.get(&format!("{PATH}/{id}")).await["phase"], "succeeded");
}

#[tokio::test]
async fn callers_with_the_same_id_join() {
    let plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    let id = Uuid::new_v4().to_string();
    let answers =
        within(futures_util::future::join_all((0..10).map(|_| send(&plane, &id, "", drain())))).await;
    assert!(answers.iter().all(|answer| answer.body["phase"] == "succeeded"), "{answers:?}");
    assert_eq!(site.runs(), 1);
}

#[tokio::test]
async fn a_long_command_answers_at_once_and_is_waited_for_and_followed() {
    let plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    site.acts.hold.store(true, Ordering::SeqCst);
    let id = Uuid::new_v4().to_string();
    let accepted = send(&plane, &id, "", drain()).await;
    assert_eq!((accepted.status.as_u16(), accepted.body["phase"].as_str()), (202, Some("accepted")));
    let shown = plane.get(&format!("{PATH}/{id}")).await;
    assert_eq!(
        (shown["phase"].as_str(), shown["operation"].as_str()),
        (Some("accepted"), Some("node.drain"))
    );
    let mut steps = stream(&plane.socket(), Ask::get(&format!("{PATH}/{id}/events"))).await;
    assert_eq!(steps.next().await.unwrap().0, "accepted");
    let waiting = send(&plane, &id, "?wait=20s", drain());
    let finishing = async {
        // The second request has arrived, and so waits.
        until("it waits", || async {
            site.acts.requests.lock().unwrap().iter().filter(|one| one.command_id == id).count() == 2
        })
        .await;
        site.finish(&connection, &id, 3);
    };
    let (waited, ()) = within(async { tokio::join!(waiting, finishing) }).await;
    assert_eq!((waited.status.as_u16(), waited.body["phase"].as_str()), (200, Some("succeeded")));
    let (name, sequence, step) = steps.next().await.unwrap();
    assert_eq!(
        (name.as_str(), sequence.as_str(), step["result"]["drained"].as_u64()),
        ("succeeded", "3", Some(1))
    );
    assert!(steps.next().await.is_none(), "the feed ends with the command");
    assert_eq!(site.runs(), 1);
}

#[tokio::test]
async fn a_command_can_be_followed_after_a_restart_of_the_control_plane() {
    let mut plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    site.acts.hold.store(true, Ordering::SeqCst);
    let id = Uuid::new_v4().to_string();
    send(&plane, &id, "", drain()).await.ok();
    plane.restart().await;
    let connection = site.connect(&plane).await.unwrap();
    let mut steps = stream(&plane.socket(), Ask::get(&format!("{PATH}/{id}/events"))).await;
    assert_eq!(steps.next().await.unwrap().0, "accepted");
    site.finish(&connection, &id, 9);
    assert_eq!(steps.next().await.unwrap().0, "succeeded");
    assert!(steps.next().await.is_none());
    until("the end is audited", || async {
        plane.audit().await.contains(&"command.finished succeeded".into())
    })
    .await;
}

#[tokio::test]
async fn a_command_that_ends_while_its_follower_asks_for_it_ends_the_feed() {
    let plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    let id = Uuid::new_v4().to_string();
    site.begun(&id);
    site.acts.ends_when_shown.store(true, Ordering::SeqCst);
    let mut steps = stream(&plane.socket(), Ask::get(&format!("{PATH}/{id}/events"))).await;
    let mut last = String::new();
    while let Some((phase, ..)) = steps.next().await {
        last = phase;
    }
    assert_eq!(last, "succeeded");
}

#[tokio::test]
async fn refusals_are_the_edges_own_and_reading_is_not_audited() {
    let plane = plane().await;
    let (_site, connection) = connected(&plane, "ber1").await;
    let read = send(&plane, &Uuid::new_v4().to_string(), "", json!({"operation": "node.list"})).await.ok();
    assert_eq!(read["phase"], "succeeded");
    let unknown = send(&plane, &Uuid::new_v4().to_string(), "", json!({"operation": "no.such"})).await;
    assert_eq!(unknown.refusal(), (501, "OPERATION_UNKNOWN"));
    until("the refusal is audited", || async {
        plane.audit().await.contains(&"command.finished refused: UNIMPLEMENTED".into())
    })
    .await;
    let page = plane.get("/api/v1/audit").await;
    assert!(page["items"].as_array().unwrap().iter().all(|entry| entry["subject"] != "node.list"));
    let id = Uuid::new_v4();
    assert_eq!(plane.ask(Ask::get(&format!("{PATH}/{id}"))).await.refusal(), (404, "COMMAND_UNKNOWN"));
    connection.close(umbel_wire::CloseReason::Shutdown);
    until("it is gone", || async { plane.freshness("ber1").await == "disconnected" }).await;
    assert_eq!(send(&plane, &id.to_string(), "", drain()).await.refusal(), (503, "EDGE_NOT_CONNECTED"));
    assert_eq!(plane.ask(Ask::get(&format!("{PATH}/{id}"))).await.refusal(), (503, "EDGE_NOT_CONNECTED"));
}

#[tokio::test]
async fn the_role_is_compared_with_the_class_that_the_edge_named() {
    let plane = plane().await;
    let (_site, _connection) = connected(&plane, "ber1").await;
    let tokens =
        [plane.operator("viewer").await, plane.operator("operator").await, plane.operator("admin").await];
    let rows = [("node.list", 0), ("node.drain", 1), ("enrollment.create", 2), ("no.such", 2)];
    for (operation, least) in rows {
        for (rank, token) in tokens.iter().enumerate() {
            let answer = plane.ask_tls(Ask::post(PATH, json!({"operation": operation})).token(token)).await;
            assert_eq!(
                answer.refusal() == (403, "ROLE_TOO_LOW"),
                rank < least,
                "{operation} as {rank}: {answer:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_audit_pages_backwards_and_by_edge() {
    let plane = plane().await;
    let (_site, _connection) = connected(&plane, "ber1").await;
    for _ in 0..7 {
        send(&plane, &Uuid::new_v4().to_string(), "", drain()).await.ok();
    }
    until("all ends are audited", || async {
        plane.audit().await.iter().filter(|entry| entry.starts_with("command.finished")).count() == 7
    })
    .await;
    let whole = plane.get("/api/v1/audit?limit=1000").await["items"].as_array().unwrap().clone();
    let mut paged = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = plane.get(&format!("/api/v1/audit?limit=3{cursor}")).await;
        paged.extend(page["items"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(paged, whole);
    let sequences: Vec<_> = whole.iter().map(|entry| entry["sequence"].as_u64().unwrap()).collect();
    assert_eq!(sequences, (1..=sequences.len() as u64).rev().collect::<Vec<_>>());
    let of_edge = plane.get("/api/v1/audit?limit=1000&edge=ber1").await;
    // Without the operator that init made.
    assert_eq!(of_edge["items"].as_array().unwrap().len(), whole.len() - 1);
}
