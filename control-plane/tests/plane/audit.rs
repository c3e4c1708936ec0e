//! The audit as operators search, follow, export and check it; the cut of an edge's audit; backups and restoring.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::method;
use umbel_contracts::proto::control::{AuditPlace, EdgeHeartbeat, EdgeSummary};
use umbel_wire::Connection;
use umbel_wire::tls::KeyPair;

use crate::client::{Ask, local};
use crate::rig::{Plane, plane, until};
use crate::site::{connected, enroll, enroll_request};

async fn items(plane: &Plane, path: &str) -> Vec<Value> {
    plane.get(path).await["items"].as_array().unwrap().clone()
}

#[tokio::test]
async fn the_audit_is_searched_followed_exported_and_checked() {
    let plane = plane().await;
    for n in 0..6 {
        plane.mint(&format!("edge{n}")).await;
    }
    plane.operator("viewer").await;
    let of = |query: &str| format!("/api/v1/audit?{query}");
    let minted = items(&plane, &of("action=enrollment.*&limit=1000")).await;
    assert_eq!(minted.len(), 6);
    assert!(minted.iter().all(|entry| entry["action"] == "enrollment.create" && entry["actor"] == "local"));
    assert_eq!(items(&plane, &of("action=enrollment.*&edge=edge3")).await.len(), 1);
    assert_eq!(items(&plane, &of("actor=init")).await.len(), 1);
    assert_eq!(items(&plane, &of("outcome=refused")).await.len(), 0);
    assert_eq!(items(&plane, &of("until=2000-01-01T00:00:00Z")).await.len(), 0);
    let correlation = minted[0]["correlation_id"].as_str().unwrap();
    assert_eq!(items(&plane, &of(&format!("correlation_id={correlation}"))).await.len(), 1);
    for bad in ["cursor=3&after=2", "since=yesterday", "who=x"] {
        let answer = plane.ask(Ask::get(&of(bad))).await;
        assert_eq!(answer.status, 400, "{bad}");
    }

    // Forwards: each entry once and in order, however small the pages.
    let (mut followed, mut after) = (Vec::new(), "0".to_owned());
    loop {
        let page = plane.get(&of(&format!("after={after}&limit=3"))).await;
        let part = page["items"].as_array().unwrap().clone();
        after = page["next_cursor"].as_str().unwrap().to_owned();
        if part.is_empty() {
            break;
        }
        followed.extend(part.iter().map(|entry| entry["sequence"].as_u64().unwrap()));
    }
    assert_eq!(followed, (1..=8).collect::<Vec<_>>());

    let exported = plane.get("/api/v1/audit/export?limit=5").await;
    assert_eq!((exported["lines"].as_array().unwrap().len(), &exported["next_after"]), (5, &json!(5)));
    let rest = plane.get("/api/v1/audit/export?after=5").await;
    let last = rest["lines"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["sequence"], &rest["next_after"]), (&json!(8), &Value::Null));
    let checked = plane.get("/api/v1/audit/verify").await;
    assert_eq!(
        (&checked["whole"], &checked["entries"], &checked["last_hash"]),
        (&json!(true), &json!(8), &last["hash"])
    );
}

async fn beat(connection: &Connection, audit_sequence: u64, hash: u8) {
    let summary = EdgeSummary { audit_sequence, audit_hash: vec![hash; 32], ..EdgeSummary::default() };
    let heartbeat = EdgeHeartbeat { summary: Some(summary), ..EdgeHeartbeat::default() };
    let answer =
        connection.request(method::EDGE_HEARTBEAT, heartbeat.encode_to_vec(), Duration::from_secs(20));
    answer.await.unwrap();
}

/// An edge whose audit was cut while nobody looked and has grown beyond its last place again is seen all the same: it is
/// asked what stands there. An edge that does not know the question is none that was cut.
#[tokio::test]
async fn an_audit_that_was_cut_and_outgrown_is_seen() {
    let mut plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    assert_eq!(site.asked(), 0, "nothing is known of it yet");
    beat(&connection, 9, 2).await;
    for (answer, newest, code) in [
        (None, 12, None),
        (Some(AuditPlace { sequence: 9, hash: vec![2; 32], aged: false }), 20, None),
        // What was told while that was open is asked for next.
        (Some(AuditPlace { sequence: 12, hash: Vec::new(), aged: true }), 30, None),
        (Some(AuditPlace { sequence: 20, hash: vec![5; 32], aged: false }), 40, Some("AUDIT_CUT")),
    ] {
        plane.restart().await;
        let connection = site.connect(&plane).await.unwrap();
        // The older one did not answer, so that it is asked the same again.
        let asked = answer.as_ref().map_or(9, |answer| answer.sequence);
        assert_eq!(site.asked(), asked);
        let summary = EdgeSummary {
            audit_sequence: newest,
            audit_hash: vec![u8::try_from(newest).unwrap(); 32],
            ..EdgeSummary::default()
        };
        let heartbeat =
            EdgeHeartbeat { summary: Some(summary), audit_witnessed: answer, ..EdgeHeartbeat::default() };
        let request =
            connection.request(method::EDGE_HEARTBEAT, heartbeat.encode_to_vec(), Duration::from_secs(20));
        request.await.unwrap();
        let told = plane.get("/api/v1/edges/ber1").await["problems"].clone();
        assert_eq!(told[0]["code"].as_str(), code, "{newest}: {told}");
        if code.is_some() {
            assert!(told[0]["message"].as_str().unwrap().contains("Entry 20"), "{told}");
        }
    }
}

/// An edge that had no audit yet when it was first heard is asked like any other; and a control plane that is drained has
/// stored what it acknowledged, also while an operator's question kept it.
#[tokio::test]
async fn a_place_that_was_acknowledged_outlives_the_drain() {
    let mut plane = plane().await;
    let (site, first) = connected(&plane, "ber1").await;
    beat(&first, 0, 0).await;
    plane.restart().await;
    let connection = site.connect(&plane).await.unwrap();
    assert_eq!(site.asked(), 0);
    site.acts.silent.store(true, Ordering::SeqCst);
    let (running, socket) = (plane.running.take().unwrap(), plane.config.socket.clone());
    let question = local(&socket, Ask::get("/api/v1/status"));
    let mut known = 0;
    let draining = async {
        until("the question is at the edge", || async { site.acts.statuses.load(Ordering::SeqCst) > 0 })
            .await;
        let beats = async {
            // At intervals, as heartbeats come, until the connection ends.
            for newest in 1.. {
                let summary =
                    EdgeSummary { audit_sequence: newest, audit_hash: vec![7; 32], ..EdgeSummary::default() };
                let heartbeat = EdgeHeartbeat { summary: Some(summary), ..EdgeHeartbeat::default() };
                let payload = heartbeat.encode_to_vec();
                let told = connection.request(method::EDGE_HEARTBEAT, payload, Duration::from_secs(20)).await;
                if told.is_err() {
                    break;
                }
                known = newest;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::join!(running.drain(Duration::from_secs(2)), beats)
    };
    // What becomes of the question is no matter here.
    let _ = tokio::join!(question, draining);
    plane.running = Some(umbel_control_plane::Running::build(&plane.config).await.unwrap());
    let connection = site.connect(&plane).await.unwrap();
    // The answer to the last one may have been lost on its way.
    let asked = site.asked();
    assert!(
        known > 0 && (asked == known || asked == known + 1),
        "{known} was acknowledged, {asked} is asked for"
    );
    drop(connection);
}

/// An edge whose audit loses its tail, also over a restart of the control plane, is a problem until somebody has looked.
#[tokio::test]
async fn a_cut_audit_of_an_edge_is_seen() {
    let mut plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    let problems = async |plane: &Plane| plane.get("/api/v1/edges/ber1").await["problems"].clone();
    beat(&connection, 5, 1).await;
    beat(&connection, 9, 2).await;
    assert!(problems(&plane).await.is_null());
    plane.restart().await;
    let connection = site.connect(&plane).await.unwrap();
    beat(&connection, 7, 3).await;
    let told = problems(&plane).await;
    assert_eq!(told[0]["code"], "AUDIT_CUT");
    assert!(told[0]["message"].as_str().unwrap().contains("entry 9"), "{told}");
    until("it is audited", || async { plane.audit().await.contains(&"edge.audit_cut observed".to_owned()) })
        .await;
    beat(&connection, 12, 4).await;
    plane.restart().await;
    assert_eq!(problems(&plane).await[0]["code"], "AUDIT_CUT", "it stays");
    // The same again is no second one.
    let connection = site.connect(&plane).await.unwrap();
    beat(&connection, 12, 4).await;
    beat(&connection, 13, 5).await;
    let cuts = plane.audit().await.iter().filter(|entry| entry.starts_with("edge.audit_cut")).count();
    assert_eq!(cuts, 1);
}

/// A backup while it runs, restored: edges of before come back, open tokens are void, what stood there is kept.
#[tokio::test]
async fn a_backup_is_made_while_it_runs_and_restored() {
    let mut plane = plane().await;
    let (site, connection) = connected(&plane, "ber1").await;
    let (open, secret) = plane.mint("ham1").await;
    let viewer = plane.operator("viewer").await;
    let refused = plane.ask_tls(Ask::post("/api/v1/backup", json!({})).token(&viewer)).await;
    assert_eq!(refused.status, 403);
    let made = plane.ask(Ask::post("/api/v1/backup", json!({}))).await.ok();
    let file = plane.config.backup.dir.join(made["file"].as_str().unwrap());
    assert_eq!(std::fs::metadata(&file).unwrap().len(), made["bytes"].as_u64().unwrap());
    until("it is audited", || async {
        plane.audit().await.contains(&"control_plane.backup succeeded".to_owned())
    })
    .await;
    plane.mint("late1").await;
    let run = |config: &umbel_control_plane::Config, file: &std::path::Path| {
        let (config, file) = (config.clone(), file.to_owned());
        tokio::task::spawn_blocking(move || umbel_control_plane::restore(&config, &file))
    };
    assert!(run(&plane.config, &file).await.unwrap().is_err(), "it runs");
    drop(connection);
    plane.running.take().unwrap().drain(Duration::from_secs(5)).await;
    let restored = run(&plane.config, &file).await.unwrap().unwrap();
    assert_eq!((restored.voided, restored.kept.unwrap().exists()), (1, true));
    // One that does not run is copied from its files.
    let config = plane.config.clone();
    let copied =
        tokio::task::spawn_blocking(move || umbel_control_plane::backup(&config, None)).await.unwrap();
    assert!(copied.unwrap().file.exists());
    plane.running = Some(umbel_control_plane::Running::build(&plane.config).await.unwrap());
    site.connect(&plane).await.unwrap();
    let key = KeyPair::generate().unwrap();
    let request = enroll_request(&open, &secret, "ham1", &key);
    assert!(enroll(&plane, request).await.is_err(), "an open token is void");
    assert_eq!(plane.get("/api/v1/audit/verify").await["whole"], true);
    let entries = plane.audit().await;
    assert!(entries.contains(&"store.restored succeeded".to_owned()), "{entries:?}");
}
