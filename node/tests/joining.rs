//! Enrollment, the connection that is kept for ever, and the state directory's owner.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use umbel_contracts::proto::node::{EngineState, NodeEnrollRequest};
use umbel_wire::ca;

use crate::{
    agent::Folder,
    edge::{Ask, EDGE, Edge},
    until,
};

pub(crate) const SIM: &str =
    "[[engine]]\nname = \"sim\"\nkind = \"sim\"\nmodel = \"m\"\naliases = [\"n\"]\ncapacity = 2\n";

/// Joins, says hello, and carries a stream from the built-in engine.
#[tokio::test]
async fn joins_and_answers() {
    let edge = Edge::start().await;
    let folder = Folder::new(SIM);
    let enrolled = folder.enroll(edge.token()).await.unwrap();
    assert_eq!((enrolled.edge_id.as_str(), enrolled.name.as_str(), enrolled.already), (EDGE, "gpu-1", false));
    let _agent = folder.start();
    edge.engine("sim", EngineState::Ready).await;

    let (hello, enrollment) = edge.heard(|heard| (heard.hellos[0].clone(), heard.enrollments[0].clone()));
    assert_eq!(hello.node_id, enrolled.node_id);
    assert_eq!(enrollment.name, "test");
    let declared = &hello.engines[0];
    assert_eq!(
        (declared.name.as_str(), declared.kind.as_str(), declared.model.as_str()),
        ("sim", "sim", "m")
    );
    assert_eq!((declared.category.as_str(), declared.capacity), ("local_inference", 2));
    assert!(hello.capabilities.iter().any(|name| name == "deployment.invoke.v1"));
    let inventory = hello.inventory.unwrap();
    assert!(
        inventory.complete
            && inventory.cpu_count > 0
            && inventory.memory_bytes > 0
            && inventory.gpus.is_empty()
    );
    assert_eq!(inventory.sequence, hello.inventory_sequence);

    let body = r#"{"stream":true,"messages":[],"stream_options":{"include_usage":true}}"#;
    let (head, text, end) = edge.open(Ask::new("sim", body)).await.whole().await;
    assert_eq!((head.status, head.headers[0].value.as_slice()), (200, b"text/event-stream".as_slice()));
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    assert!(end.error.is_none(), "{end:?}");
    assert_eq!(end.told.completion_tokens, Some(16));
    assert_eq!(end.told.answer_bytes, text.len() as u64);

    let status = folder.status().await;
    assert_eq!(
        (status["connection"]["state"].as_str(), status["engines"][0]["state"].as_str()),
        (Some("connected"), Some("ready"))
    );
    assert_eq!(status["node_id"].as_str(), Some(enrolled.node_id.as_str()));
    until("heartbeats", async || edge.heard(|heard| (heard.heartbeats > 2).then_some(()))).await;
}

/// The answer was lost: the same token with the same key gets the certificate.
#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_key() {
    let edge = Edge::start().await;
    let folder = Folder::new("");
    edge.lose_answers(1);
    folder.enroll(edge.token()).await.unwrap_err();
    folder.enroll(edge.token()).await.unwrap();
    let keys = edge.heard(|heard| {
        heard
            .enrollments
            .iter()
            .map(|request| ca::request_key_hash(&request.signing_request).unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}

/// An identity is not overwritten, and a token that is not needed is not sent.
#[tokio::test]
async fn an_identity_stays() {
    let edge = Edge::start().await;
    let folder = Folder::new("");
    let first = folder.enroll(edge.token()).await.unwrap();
    let again = folder.enroll(edge.token()).await.unwrap();
    assert!(again.already && again.node_id == first.node_id);
    assert_eq!(edge.heard(|heard| heard.enrollments.len()), 1);
    let refused = folder.enroll(edge.token_for("site-2")).await.unwrap_err();
    assert!(refused.to_string().contains("site-1") && refused.to_string().contains("site-2"), "{refused}");
    let broken = folder.enroll("umbel1_nonsense".into()).await.unwrap_err();
    assert_eq!(broken.exit_code(), 2, "a malformed argument");
}

/// A credential that its edge revoked is replaced where it stands, by a new key; a lost answer gets that key's
/// certificate.
#[tokio::test]
async fn a_lost_credential_is_replaced_by_a_new_key() {
    let edge = Edge::start().await;
    let folder = Folder::new("");
    folder.enroll(edge.token()).await.unwrap();
    edge.revoke(true);
    edge.lose_answers(1);
    folder.enroll(edge.token()).await.unwrap_err();
    let again = folder.enroll(edge.token()).await.unwrap();
    assert!(!again.already);
    let keys = edge.heard(|heard| {
        let key = |request: &NodeEnrollRequest| ca::request_key_hash(&request.signing_request).unwrap();
        heard.enrollments.iter().map(key).collect::<Vec<_>>()
    });
    assert_eq!(keys.len(), 3);
    assert!(keys[0] != keys[1] && keys[1] == keys[2]);
    edge.revoke(false);
    let _agent = folder.start();
    until("hello", async || edge.heard(|heard| heard.hellos.first().cloned())).await;
}

#[tokio::test]
async fn without_an_identity_it_says_what_to_do() {
    let folder = Folder::new("");
    let mut agent = folder.start();
    assert_eq!(agent.ended().await, Some(1));
    assert!(folder.log().contains("umbel node enroll"), "{}", folder.log());
}

#[tokio::test]
async fn a_second_agent_on_one_state_directory_is_refused() {
    let edge = Edge::start().await;
    let folder = Folder::new(SIM);
    folder.enroll(edge.token()).await.unwrap();
    let first = folder.start();
    folder.status().await;
    let mut second = folder.start();
    assert_eq!(second.ended().await, Some(1));
    assert!(
        folder.log().contains(&format!("in use by another agent (pid {})", first.pid())),
        "{}",
        folder.log()
    );
    edge.engine("sim", EngineState::Ready).await;
}

/// Rows 15, 25 and 27: whatever answers in the edge's place, the identity stays, nothing is enrolled anew, and the
/// connection comes back by itself.
#[tokio::test]
async fn rows_15_25_27_the_agent_never_gives_up() {
    let mut edge = Edge::start().await;
    let folder = Folder::new(SIM);
    let enrolled = folder.enroll(edge.token()).await.unwrap();
    let identity = std::fs::read(folder.path("state/identity.json")).unwrap();
    let _agent = folder.start();
    edge.connection().await;

    // Nobody listens.
    edge.stop();
    failed_at(&folder, "connect").await;
    // A load balancer's page.
    let address = edge.address;
    let proxy = until("the port", async || TcpListener::bind(address).await.ok()).await;
    let html = tokio::spawn(async move {
        loop {
            let (mut stream, _) = proxy.accept().await.unwrap();
            let mut bytes = [0; 64];
            let _ = stream.read(&mut bytes).await;
            let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>").await;
        }
    });
    failed_at(&folder, "tls").await;
    html.abort();
    let _ = html.await;
    // The edge says no.
    edge.revoke(true);
    edge.restart().await;
    let status = failed_at(&folder, "hello").await;
    assert_eq!(status["connection"]["last_error"]["reason"].as_str(), Some("CREDENTIAL_REVOKED"));
    // And back.
    edge.revoke(false);
    edge.connection().await;
    assert_eq!(std::fs::read(folder.path("state/identity.json")).unwrap(), identity);
    assert_eq!(edge.heard(|heard| heard.enrollments.len()), 1);
    assert!(edge.heard(|heard| heard.hellos.iter().all(|hello| hello.node_id == enrolled.node_id)));
    let (_, _, end) = edge.open(Ask::new("sim", r#"{"messages":[]}"#)).await.whole().await;
    assert!(end.error.is_none());
}

async fn failed_at(folder: &Folder, step: &str) -> serde_json::Value {
    until(&format!("a failure at {step}"), async || {
        let status = folder.status().await;
        (status["connection"]["last_error"]["step"].as_str() == Some(step)).then_some(status)
    })
    .await
}

/// Sequence numbers only grow, over kill -9 too.
#[tokio::test]
async fn sequences_survive_a_kill() {
    let edge = Edge::start().await;
    let folder = Folder::new(SIM);
    folder.enroll(edge.token()).await.unwrap();
    for start in 1..4 {
        let mut agent = folder.start();
        until("a hello", async || edge.heard(|heard| (heard.hellos.len() == start).then_some(()))).await;
        agent.signal(rustix::process::Signal::KILL);
        agent.ended().await;
    }
    let sequences =
        edge.heard(|heard| heard.hellos.iter().map(|hello| hello.inventory_sequence).collect::<Vec<_>>());
    assert!(sequences.windows(2).all(|pair| pair[0] < pair[1]), "{sequences:?}");
}

/// The doctor names each step, and does not disturb the agent.
#[tokio::test]
async fn the_doctor_looks_without_touching() {
    let edge = Edge::start().await;
    let folder = Folder::new(SIM);
    folder.enroll(edge.token()).await.unwrap();
    edge.revoke(true);
    let config = folder.config();
    let checks = tokio::task::spawn_blocking(move || umbel_node::doctor(&config)).await.unwrap();
    let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].name, "hello");
    assert!(failed[0].message.contains("CREDENTIAL_REVOKED"));
    edge.stop();
    let address = edge.address;
    until("the listener's end", async || tokio::net::TcpStream::connect(address).await.err()).await;
    let config = folder.config();
    let checks = tokio::task::spawn_blocking(move || umbel_node::doctor(&config)).await.unwrap();
    assert_eq!(checks.iter().find(|check| !check.passed).map(|check| check.name.as_str()), Some("connect"));
}

/// Reserves of sequence numbers that cannot be read keep no agent from starting: it says so until its edge has told it
/// where they were.
#[tokio::test]
async fn lost_sequences_are_a_problem_until_the_edge_has_told_them() {
    let mut edge = Edge::start().await;
    let folder = Folder::new("");
    folder.enroll(edge.token()).await.unwrap();
    edge.stop();
    std::fs::write(folder.path("state/sequences.json"), b"{\"inven").unwrap();
    edge.set_cursors(7_000, 9_000);
    let _agent = folder.start();
    let codes = async || {
        let status = folder.status().await;
        let problems = status["problems"].as_array().cloned().unwrap_or_default();
        problems
            .iter()
            .map(|problem| problem["code"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    until("it is told", async || codes().await.contains(&"SEQUENCES_LOST".to_owned()).then_some(())).await;
    edge.restart().await;
    until("a report above what the edge knew", async || {
        edge.heard(|heard| heard.inventories.iter().any(|report| report.sequence > 7_000).then_some(()))
    })
    .await;
    until("it is over", async || (!codes().await.contains(&"SEQUENCES_LOST".to_owned())).then_some(())).await;
}
