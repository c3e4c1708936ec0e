//! Rule R12 at the nodes' port: which credentials open it, in whatever state, and what each other one is told.

use std::sync::Arc;

use serde_json::json;
use umbel_contracts::proto::node::NodeEnrollResponse;
use umbel_store::Commit;
use umbel_wire::ca::{Authority, CLIENT_VALIDITY};
use umbel_wire::tls::KeyPair;
use umbel_wire::{Code, DialError, EdgeId, NodeId};

use super::rig::{Edge, FakeNode, reason, run};
use super::rotation::{ask_credential, with};
use crate::shell::site::NODES;

/// A node whose certificate somebody signed.
fn signed(authority: &Authority, edge: &str, id: NodeId, edge_itself: bool) -> FakeNode {
    let key = KeyPair::generate().unwrap();
    let request = key.signing_request().unwrap();
    let (edge, now) = (EdgeId::parse(edge).unwrap(), umbel_wire::clock::Wall::now());
    let made = if edge_itself {
        authority.sign_edge(&request, &edge, now, CLIENT_VALIDITY)
    } else {
        authority.sign_node(&request, &edge, id, now, CLIENT_VALIDITY)
    };
    let answer = NodeEnrollResponse {
        node_id: id.to_string(),
        certificate_chain: made.unwrap().chain.iter().map(|one| one.to_vec()).collect(),
        ..NodeEnrollResponse::default()
    };
    FakeNode::new(key, &answer)
}

async fn told(edge: &Edge, node: &FakeNode) -> (Code, String) {
    reason(node.dial(edge).await)
}

/// Credentials of a node in every state that people and rotations bring it to.
#[test]
fn a_credential_opens_the_port_only_while_it_is_the_nodes_own() {
    run(async {
        let edge = Edge::start().await;
        let (disabled, revoked) = (edge.node("disabled").await, edge.node("revoked").await);
        let (gone, replaced) = (edge.node("gone").await, edge.node("replaced").await);
        for operation in ["disable", "credential.revoke"] {
            let name = if operation == "disable" { "disabled" } else { "revoked" };
            edge.ask(&format!("node.{operation}"), &format!("node:{name}"), json!({})).await.unwrap();
        }
        edge.ask_confirmed("node:gone", "gone", json!({})).await.unwrap();
        let (token, secret) = edge.token_replacing("replaced").await;
        let key = KeyPair::generate().unwrap();
        let answer = edge.enroll(&token, &secret, &key).await.unwrap();
        let successor = FakeNode::new(key, &answer);

        // Rotated: both open until the new one was shown, then only that.
        let old = edge.node("rotated").await;
        let connection = old.connect(&edge).await;
        let key = KeyPair::generate().unwrap();
        let given = ask_credential(&connection, &key).await.unwrap();
        let new = with(&old, key, &given);
        let _old_again = old.connect(&edge).await;
        let _new = new.connect(&edge).await;
        let _successor = successor.connect(&edge).await;

        // Over for longer than the grace time.
        let ended = edge.node("ended").await;
        let mut row = edge.view(&ended).row.clone();
        row.credential.not_after_unix_ms = edge.running.site.wall().unix_ms() - 31 * 24 * 3_600_000;
        edge.running.site.store_nodes(vec![(edge.view(&ended), row)], Commit::new()).await.unwrap().unwrap();
        assert!(edge.running.site.store.get(NODES, ended.id.to_string()).await.unwrap().is_some());

        let ours = edge.running.site.authorities.held();
        let stranger = Authority::create(
            &edge.directory.path().join("stranger"),
            "stranger",
            umbel_wire::clock::Wall::now(),
        )
        .unwrap();
        let refusals = [
            (disabled, Code::PermissionDenied, "NODE_DISABLED"),
            (revoked, Code::Unauthenticated, "CREDENTIAL_REVOKED"),
            (gone, Code::Gone, "NODE_DECOMMISSIONED"),
            (replaced, Code::Unauthenticated, "CREDENTIAL_REPLACED"),
            (old, Code::Unauthenticated, "CREDENTIAL_RETIRED"),
            (ended, Code::Unauthenticated, "CERTIFICATE_EXPIRED"),
            // Signed by this site's own authority, and still nobody's here.
            (
                signed(ours.signing(), "ber1", NodeId::random(), false),
                Code::Unauthenticated,
                "CERTIFICATE_UNKNOWN",
            ),
            (signed(ours.signing(), "ber1", new.id, false), Code::Unauthenticated, "CERTIFICATE_UNKNOWN"),
            (signed(&stranger, "ber1", new.id, false), Code::Unauthenticated, "CERTIFICATE_UNKNOWN"),
            (signed(&stranger, "muc1", new.id, false), Code::Unauthenticated, "CERTIFICATE_FOREIGN"),
            (signed(&stranger, "ber1", new.id, true), Code::Unauthenticated, "CERTIFICATE_KIND"),
        ];
        for (node, code, why) in &refusals {
            assert_eq!(told(&edge, node).await, (*code, (*why).to_owned()));
        }
        assert!(edge.connected(&new) && edge.connected(&successor), "none of them touched anybody");
        // All of it holds after a restart.
        let edge = edge.restart().await;
        for (node, code, why) in &refusals {
            assert_eq!(told(&edge, node).await, (*code, (*why).to_owned()));
        }
        let _both = (new.connect(&edge).await, successor.connect(&edge).await);
    });
}

/// Hosts of a whole site enroll at once: each is a node, and they share transactions.
#[test]
fn a_site_enrolls_at_once() {
    run(async {
        let edge = Arc::new(Edge::start().await);
        let mut hosts = Vec::new();
        for n in 0..60 {
            let (id, secret) = edge.token(&format!("n{n}")).await;
            hosts.push((id, secret, KeyPair::generate().unwrap()));
        }
        let before = edge.running.site.store.transactions();
        let attempts = hosts.iter().map(|(id, secret, key)| edge.enroll(id, secret, key));
        let answers: Vec<Result<_, DialError>> = futures_util::future::join_all(attempts).await;
        let mut ids: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().node_id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 60);
        let written = edge.running.site.store.transactions() - before;
        assert!(written <= 10, "{written} transactions");
        assert_eq!(edge.audit("token.used").await.len(), 60);
    });
}
