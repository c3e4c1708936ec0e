//! After a restore: what the backup holds comes in, what is newer waits for an operator.

use serde_json::{Value, json};
use umbel_wire::Code;
use umbel_wire::tls::KeyPair;

use super::rig::{Edge, FakeNode, reason, run};
use crate::core::registry::node::Lifecycle;
use crate::shell::status;

async fn problems(edge: &Edge) -> Vec<umbel_contracts::proto::control::Problem> {
    let summary = status::summary(&edge.running.site).await;
    summary.problems.into_iter().filter(|one| one.code == "CREDENTIAL_HELD").collect()
}

fn key(node: &FakeNode) -> String {
    let request = node.key.signing_request().unwrap();
    umbel_wire::ca::request_key_hash(&request).unwrap().to_string()
}

async fn approve(edge: &Edge, key: &str) -> Result<Value, umbel_wire::Error> {
    let told = edge.ask("node.credential.approve", "", json!({ "key_sha256": key })).await?;
    assert_eq!(told.phase, umbel_contracts::objects::CommandPhase::Succeeded, "{:?}", told.error);
    Ok(told.result.unwrap())
}

#[test]
fn what_is_newer_than_the_backup_waits_for_an_operator() {
    run(async {
        let edge = Edge::start().await;
        let (kept, moved, gone) =
            (edge.node("kept").await, edge.node("moved").await, edge.node("gone").await);
        edge.ask_confirmed("node:gone", "gone", json!({})).await.unwrap();
        let backup = edge.backup("store.backup").await;
        // Since then: another host took a node's place, and one enrolled.
        let (id, secret) = edge.token_replacing("moved").await;
        let fresh = KeyPair::generate().unwrap();
        let answer = edge.enroll(&id, &secret, &fresh).await.unwrap();
        let moved_to = FakeNode::new(fresh, &answer);
        let mut new = edge.node("new").await;
        // Its first frame is larger than a stranger's may be.
        for engine in &mut new.hello.engines {
            engine.aliases = (0..64).map(|n| format!("{n:0>250}")).collect();
        }
        let mut other = new.hello.engines[0].clone();
        other.name = "other".to_owned();
        new.hello.engines.push(other);
        assert_eq!(reason(moved.dial(&edge).await).1, "CREDENTIAL_REPLACED");

        let edge = edge.restore(&backup).await;
        let _kept = kept.connect(&edge).await;
        assert_eq!(reason(gone.dial(&edge).await).1, "NODE_DECOMMISSIONED");
        let held = (Code::PermissionDenied, "CREDENTIAL_HELD".to_owned());
        for _ in 0..2 {
            assert_eq!(reason(moved_to.dial(&edge).await), held);
            assert_eq!(reason(new.dial(&edge).await), held);
        }
        let told = problems(&edge).await;
        assert_eq!(told.len(), 2);
        assert!(told.iter().any(|one| one.subject == new.id.to_string() && one.message.contains(&key(&new))));
        // Until somebody decides, the backup's word counts: the old host is the node.
        let old = moved.connect(&edge).await;
        assert_eq!(approve(&edge, &"0".repeat(64)).await.unwrap_err().reason, "NOTHING_HELD");
        approve(&edge, &key(&moved_to)).await.unwrap();
        let closed = tokio::time::timeout(super::rig::TIME, old.closed()).await.unwrap();
        assert!(matches!(closed, umbel_wire::CloseReason::ByPeer(goaway) if goaway.reason == "revoked"));
        let _moved = moved_to.connect(&edge).await;
        assert_eq!(reason(moved.dial(&edge).await).1, "CREDENTIAL_REPLACED");
        let approved = approve(&edge, &key(&new)).await.unwrap();
        assert!(approved["nodes"][0]["name"].as_str().unwrap().starts_with("recovered-"));
        let _new = new.connect(&edge).await;
        let row = edge.view(&new).row.clone();
        assert!(
            !row.eligible && row.lifecycle == Lifecycle::Enrolled,
            "no application traffic before people say so"
        );
        assert!(problems(&edge).await.is_empty());
        let edge = edge.restart().await;
        let _again = (new.connect(&edge).await, moved_to.connect(&edge).await);
        assert_eq!(
            edge.audit("node.credential.approve")
                .await
                .iter()
                .filter(|one| one.record.outcome == "succeeded")
                .count(),
            2
        );
        assert_eq!(edge.audit("node.credential.held").await.len(), 2, "once each, however often they come");
    });
}

/// An edge that was never restored holds nobody: what it does not know is a stranger.
#[test]
fn without_a_restore_an_unknown_certificate_is_a_stranger() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let site = &edge.running.site;
        let signed = site.authorities.held();
        let key = KeyPair::generate().unwrap();
        let id = umbel_wire::NodeId::random();
        let request = key.signing_request().unwrap();
        let made = signed
            .signing()
            .sign_node(&request, &site.edge_id, id, site.wall(), umbel_wire::ca::CLIENT_VALIDITY)
            .unwrap();
        let answer = umbel_contracts::proto::node::NodeEnrollResponse {
            node_id: id.to_string(),
            certificate_chain: made.chain.iter().map(|one| one.to_vec()).collect(),
            ..Default::default()
        };
        let forged = FakeNode::new(key, &answer);
        assert_eq!(
            reason(forged.dial(&edge).await),
            (Code::Unauthenticated, "CERTIFICATE_UNKNOWN".to_owned())
        );
        let _node = node.connect(&edge).await;
    });
}
