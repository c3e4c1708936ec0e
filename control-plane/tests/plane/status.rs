//! Who is seen how: fan-out with a deadline, freshness, ages, events, and what a restart forgets.

use std::sync::atomic::Ordering;

use umbel_wire::CloseReason;

use crate::client::{Ask, stream};
use crate::rig::{plane, plane_with, until, within};
use crate::site::{connected, enrolled, tell};

#[tokio::test]
async fn a_connected_edge_is_fresh_and_its_detail_comes_from_one_reading() {
    let plane = plane().await;
    let (_site, _connection) = connected(&plane, "ber1").await;
    let status = plane.get("/api/v1/status").await;
    let site = &status["sites"][0];
    assert_eq!(
        (site["edge_id"].as_str(), site["freshness"].as_str(), site["age_ms"].as_u64()),
        (Some("ber1"), Some("fresh"), Some(0))
    );
    assert_eq!(site["summary"]["nodes_total"], 40);
    assert!(site.get("nodes").is_none(), "the fleet's status has no nodes");
    let detail = plane.get("/api/v1/edges/ber1/status?sections=nodes").await;
    assert_eq!(detail["nodes"].as_array().unwrap().len(), 41, "both parts of the answer");
    assert!(detail.get("queues").is_none());
    let nodes = plane.get("/api/v1/nodes").await;
    assert_eq!(
        (nodes["items"].as_array().unwrap().len(), nodes["missing"].as_array().unwrap().len()),
        (41, 0)
    );
    let node = plane.get("/api/v1/nodes/gpu-40").await;
    assert_eq!((node["edge_id"].as_str(), node["name"].as_str()), (Some("ber1"), Some("gpu-40")));
    let ambiguous = plane.ask(Ask::get("/api/v1/nodes/gpu-3")).await;
    assert!(ambiguous.status.is_success(), "an exact name wins over its being a beginning");
    assert_eq!(plane.ask(Ask::get("/api/v1/nodes/gpu-")).await.refusal(), (409, "AMBIGUOUS"));
    assert_eq!(plane.ask(Ask::get("/api/v1/nodes/nope")).await.refusal(), (404, "NODE_UNKNOWN"));
    // A selector is the edge's to resolve: no match is an empty answer of the fleet, a malformed one the asker's error.
    let none = plane.get("/api/v1/nodes?nodes=node:nope").await;
    assert!(none["items"].as_array().unwrap().is_empty() && none["missing"].as_array().unwrap().is_empty());
    assert_eq!(plane.ask(Ask::get("/api/v1/nodes?nodes=nodes:x")).await.refusal(), (400, "SELECTOR"));
    assert_eq!(
        plane.ask(Ask::get("/api/v1/edges/ber1/status?nodes=node:nope")).await.refusal(),
        (404, "SELECTOR")
    );
}

/// Fault row 75: one silent edge of three; the answer comes by the deadline and says which timed out.
#[tokio::test]
async fn one_silent_edge_delays_nobody_and_is_named() {
    let plane = plane().await;
    let (_one, _c1) = connected(&plane, "ber1").await;
    let (silent, _c2) = connected(&plane, "ham1").await;
    let (_three, _c3) = connected(&plane, "mun1").await;
    assert_eq!(plane.freshness("ham1").await, "fresh");
    silent.acts.silent.store(true, Ordering::SeqCst);
    let status = plane.get("/api/v1/status").await;
    let seen: Vec<_> = status["sites"]
        .as_array()
        .unwrap()
        .iter()
        .map(|site| (site["edge_id"].as_str().unwrap(), site["freshness"].as_str().unwrap()))
        .collect();
    assert_eq!(seen, [("ber1", "fresh"), ("ham1", "timed_out"), ("mun1", "fresh")]);
    let late = &status["sites"][1];
    assert_eq!(late["summary"]["nodes_total"], 40, "the last known figures, with their age");
    assert!(late["age_ms"].is_u64());
    let nodes = plane.get("/api/v1/nodes").await;
    assert_eq!(nodes["items"].as_array().unwrap().len(), 82);
    assert_eq!(nodes["missing"][0]["edge_id"], "ham1", "nothing is left out in silence");
    silent.acts.silent.store(false, Ordering::SeqCst);
    until("the edge is fresh again", || async { plane.freshness("ham1").await == "fresh" }).await;
}

#[tokio::test]
async fn one_question_an_edge_is_shared_by_all_who_ask() {
    let plane = plane().await;
    let (site, _connection) = connected(&plane, "ber1").await;
    site.acts.silent.store(true, Ordering::SeqCst);
    let asked = (0..20).map(|_| plane.get("/api/v1/status"));
    let answers = within(futures_util::future::join_all(asked)).await;
    assert!(answers.iter().all(|status| status["sites"][0]["freshness"] == "timed_out"));
    assert_eq!(site.acts.statuses.load(Ordering::SeqCst), 1);
}

/// Fault row 7: a cut edge keeps its last figures with their age; after a restart nothing is known of it.
#[tokio::test]
async fn what_is_shown_is_what_the_edge_last_said() {
    let mut plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    assert_eq!(plane.freshness("ber1").await, "fresh");
    connection.close(CloseReason::Shutdown);
    until("the edge is seen to be gone", || async { plane.freshness("ber1").await == "disconnected" }).await;
    let detail = plane.get("/api/v1/edges/ber1/status").await;
    assert_eq!(detail["summary"]["nodes_total"], 40);
    assert!(detail["age_ms"].is_u64() && detail.get("nodes").is_none());
    plane.restart().await;
    let detail = plane.get("/api/v1/edges/ber1/status").await;
    assert_eq!(detail["freshness"], "disconnected");
    assert!(detail.get("summary").is_none() && detail.get("age_ms").is_none(), "{detail}");
    assert_eq!(plane.get("/api/v1/edges/ber1").await["connection"], "never");
    let _again = site.connect(&plane).await.unwrap();
    assert_eq!(plane.freshness("ber1").await, "fresh");
}

#[tokio::test]
async fn an_enrolled_edge_that_never_came_is_there() {
    let plane = plane().await;
    let _site = enrolled(&plane, "ber1").await;
    assert_eq!(plane.freshness("ber1").await, "disconnected");
    assert_eq!(plane.get("/api/v1/edges").await["items"][0]["connection"], "never");
    assert_eq!(plane.ask(Ask::get("/api/v1/edges/nope")).await.refusal(), (404, "EDGE_UNKNOWN"));
    assert_eq!(plane.ask(Ask::get("/api/v1/edges/No%20Such")).await.refusal(), (400, "EDGE_ID_MALFORMED"));
}

#[tokio::test]
async fn events_are_told_with_their_gaps_and_can_be_resumed() {
    let plane = plane().await;
    let mut events = stream(&plane.socket(), Ask::get("/api/v1/events")).await;
    let (_site, connection) = connected(&plane, "ber1").await;
    for kind in ["edge_enrolled", "edge_connected"] {
        let (_, _, event) = events.next().await.unwrap();
        assert_eq!((event["kind"].as_str(), event["edge_id"].as_str()), (Some(kind), Some("ber1")));
    }
    tell(&connection, "somebody-else", 7, "node_ready");
    let (name, id, event) = events.next().await.unwrap();
    assert_eq!((name.as_str(), event["sequence"].as_u64()), ("event", Some(7)));
    assert_eq!(event["edge_id"], "ber1", "an edge speaks for itself only");
    tell(&connection, "ber1", 10, "node_offline");
    let (_, _, lost) = events.next().await.unwrap();
    assert_eq!(
        (lost["kind"].as_str(), lost["message"].as_str()),
        (Some("events_lost"), Some("2 events of the edge were lost on their way."))
    );
    let (_, _, event) = events.next().await.unwrap();
    assert_eq!(event["sequence"], 10);
    assert_eq!(plane.get("/api/v1/edges/ber1").await["events_lost"], 2);

    let ask = Ask::get("/api/v1/events?follow=false").header("last-event-id", id);
    let mut resumed = stream(&plane.socket(), ask).await;
    assert_eq!(resumed.next().await.unwrap().2["kind"], "events_lost");
    assert_eq!(resumed.next().await.unwrap().2["sequence"], 10);
    assert!(resumed.next().await.is_none());
    let ask = Ask::get("/api/v1/events?follow=false").header("last-event-id", "former.3");
    assert_eq!(stream(&plane.socket(), ask).await.next().await.unwrap().0, "gap");
}

/// An edge whose link hangs: after the offline time without a word it counts as disconnected, open socket or not.
#[tokio::test]
async fn a_site_that_says_nothing_for_the_offline_time_is_disconnected() {
    let short = "[status]\ndeadline = \"100ms\"\n[liveness]\nheartbeat = \"500ms\"\nstale = \"1s\"\noffline = \"2s\"\n";
    let plane = plane_with(short).await;
    let mut events = stream(&plane.socket(), Ask::get("/api/v1/events")).await;
    let (site, connection) = connected(&plane, "ber1").await;
    site.acts.silent.store(true, Ordering::SeqCst);
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "edge_offline") {
        kinds.push(events.next().await.unwrap().2["kind"].as_str().unwrap().to_owned());
    }
    assert_eq!(kinds, ["edge_enrolled", "edge_connected", "edge_stale", "edge_offline"]);
    assert!(!connection.is_closed());
    assert_eq!(plane.freshness("ber1").await, "disconnected");
    assert_eq!(plane.get("/api/v1/edges/ber1").await["connection"], "disconnected");
    site.acts.silent.store(false, Ordering::SeqCst);
    assert_eq!(plane.freshness("ber1").await, "fresh", "an answer counts at once");
    assert_eq!(plane.get("/api/v1/edges/ber1").await["connection"], "connected");
}
