//! Credentials that are replaced, expire and are renewed, and the site's authority that changes under its nodes.

use std::sync::{Arc, Mutex};

use prost::Message;
use serde_json::{Value, json};
use umbel_contracts::method;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::operations::CaResult;
use umbel_contracts::proto::node::{
    NodeCredentialRequest, NodeCredentialResponse, NodeHelloResponse, NodeRotate, NodeRotateAck, NodeTrust,
    NodeTrustAck,
};
use umbel_store::Commit;
use umbel_wire::ca::certificate_digest;
use umbel_wire::clock::Wall;
use umbel_wire::io::dial::dial_attempt;
use umbel_wire::tls::{self, ClientIdentity, KeyPair, Trust};
use umbel_wire::{
    Attempt, Code, Connection, DialError, DialTarget, Error, Handler, HelloOut, IncomingRequest, Open,
    Purpose, Terminal, Welcome,
};

use super::rig::{Edge, FakeNode, Relay, TIME, beat, name_leases, reason, run, until};
use crate::core::registry::node::{KeyState, NodeRow};

const DAY: i64 = 24 * 3_600_000;

/// What an edge asked of a node.
#[derive(Default)]
struct Asked {
    causes: Mutex<Vec<String>>,
    bundles: Mutex<Vec<Vec<Vec<u8>>>>,
}

impl Handler for Asked {
    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        let answer = match request.method {
            method::NODE_ROTATE => {
                let cause = NodeRotate::decode(request.payload.as_ref()).unwrap().cause;
                self.causes.lock().unwrap().push(cause);
                NodeRotateAck {}.encode_to_vec()
            }
            method::NODE_TRUST => {
                let bundle = NodeTrust::decode(request.payload.as_ref()).unwrap().ca_certificates;
                let trusted = bundle.iter().map(|der| certificate_digest(der).to_vec()).collect();
                self.bundles.lock().unwrap().push(bundle);
                NodeTrustAck { trusted_ca_sha256: trusted }.encode_to_vec()
            }
            other => panic!("method {other}"),
        };
        request.respond(Ok(answer));
    }
}

pub(super) async fn ask_credential(
    connection: &Connection,
    key: &KeyPair,
) -> Result<NodeCredentialResponse, Error> {
    let request = NodeCredentialRequest { signing_request: key.signing_request().unwrap() };
    let answer = connection.request(method::NODE_CREDENTIAL, request.encode_to_vec(), TIME).await?;
    Ok(NodeCredentialResponse::decode(answer).unwrap())
}

/// The same process with what it was given.
pub(super) fn with(node: &FakeNode, key: KeyPair, given: &NodeCredentialResponse) -> FakeNode {
    let chain = given.certificate_chain.iter().map(|der| der.clone().into()).collect();
    FakeNode { identity: ClientIdentity::new(chain, key.private_key()), key: Arc::new(key), ..node.clone() }
}

/// A hello of a host that trusts these.
async fn dial_trusting(
    edge: &Edge,
    node: &FakeNode,
    trust: &[Vec<u8>],
    handler: Arc<Asked>,
) -> Result<(Connection, Welcome), DialError> {
    let mut hello = node.hello.clone();
    hello.trusted_ca_sha256 = trust.iter().map(|der| certificate_digest(der).to_vec()).collect();
    let out = HelloOut {
        purpose: Purpose::Hello,
        versions: node.versions,
        instance: node.instance,
        payload: hello.encode_to_vec(),
    };
    let trust = Trust::Ca(trust.iter().map(|der| der.clone().into()).collect());
    let target = DialTarget {
        addresses: vec![edge.running.nodes_address.to_string()],
        server_name: "ber1.umbel".to_owned(),
        tls: tls::wire_client(trust, Some(node.identity.clone())).unwrap(),
    };
    let attempt = Attempt(node.attempts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1);
    dial_attempt(target, out, attempt, |_, _| Ok(handler)).await
}

async fn complete(connection: &Connection) {
    name_leases(connection, &[]).await.unwrap();
    beat(connection, 1).await.unwrap();
}

fn hello_of(welcome: &Welcome) -> NodeHelloResponse {
    NodeHelloResponse::decode(welcome.payload.as_ref()).unwrap()
}

/// Changes what is stored of a node.
async fn amend(edge: &Edge, node: &FakeNode, set: impl Fn(&mut NodeRow)) {
    let before = edge.view(node);
    let mut row = before.row.clone();
    set(&mut row);
    edge.running.site.store_nodes(vec![(before, row)], Commit::new()).await.unwrap().unwrap();
}

async fn ca(edge: &Edge, operation: &str, args: Value) -> Result<CaResult, Error> {
    let done = edge.ask(operation, "", args).await?;
    match (done.phase, done.error) {
        (CommandPhase::Succeeded, _) => Ok(serde_json::from_value(done.result.unwrap()).unwrap()),
        (_, error) => {
            let error = error.unwrap();
            Err(Error::new(Code::Unprocessable, error.reason, error.message))
        }
    }
}

#[test]
fn a_credential_is_replaced_while_the_old_connection_goes_on() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let old = node.connect_with(&edge, relay.clone()).await;
        let mut slot = edge.slot().unwrap();
        let mut stream = slot.open(Open { method: 3, end: true, ..Open::default() }).unwrap();
        until("a stream runs", || relay.open() == 1).await;
        let key = KeyPair::generate().unwrap();
        let given = ask_credential(&old, &key).await.unwrap();
        let second = key.key_hash();
        assert_eq!(edge.view(&node).row.key(&second), Some(KeyState::Pending));
        assert!(edge.connected(&node), "nothing has changed for the connection");

        let renewed = with(&node, key, &given);
        let new = renewed.connect(&edge).await;
        let row = edge.view(&node).row.clone();
        assert_eq!(row.key(&second), Some(KeyState::InUse));
        assert!(matches!(row.key(&node.key.key_hash()), Some(KeyState::Retired(_))));
        assert_eq!(row.pending, None);
        // What ran over the old connection comes to its own end; then that one goes.
        assert_eq!(old.peer_drains().await.unwrap().reason, "reconnect");
        relay.finish();
        while stream.data().await.is_some() {}
        assert!(matches!(stream.terminal(), Some(Terminal::Ended { error: None, .. })));
        old.closed().await;
        assert!(edge.connected(&node));
        let (code, _) = reason(node.dial(&edge).await);
        assert_eq!(code, Code::Unauthenticated, "the retired one opens nothing");
        assert_eq!(edge.audit("node.credential.issued").await.len(), 1);
        assert_eq!(edge.audit("node.credential.rotated").await.len(), 1);

        // Killed at this moment, the edge knows the new one and not the old.
        drop(new);
        let edge = edge.crash().await;
        renewed.connect(&edge).await;
        assert_eq!(reason(node.dial(&edge).await).0, Code::Unauthenticated);
    });
}

#[test]
fn a_killed_edge_forgets_no_credential_that_it_gave() {
    run(async {
        let mut edge = Edge::start().await;
        let mut node = edge.node("n").await;
        for _ in 0..3 {
            let connection = node.connect(&edge).await;
            let key = KeyPair::generate().unwrap();
            let given = ask_credential(&connection, &key).await.unwrap();
            let renewed = with(&node, key, &given);
            edge = edge.crash().await;
            // Given and not shown: both open the door, until the new one is shown.
            drop(node.connect(&edge).await);
            drop(renewed.connect(&edge).await);
            edge = edge.crash().await;
            assert_eq!(reason(node.dial(&edge).await).0, Code::Unauthenticated);
            node = renewed;
        }
        node.connect(&edge).await;
    });
}

#[test]
fn what_may_not_be_asked_for_is_refused_and_changes_nothing() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let other = edge.node("o").await;
        let first = node.connect(&edge).await;
        let before = edge.view(&node).row.clone();
        let refused = |answer: Result<NodeCredentialResponse, Error>| answer.unwrap_err().reason.into_owned();
        // Of one connection one at a time, and not more than one a second.
        assert_eq!(refused(ask_credential(&first, &node.key).await), "KEY_UNCHANGED");
        assert_eq!(refused(ask_credential(&first, &other.key).await), "ASKING_ALREADY");
        let second = node.connect(&edge).await;
        assert_eq!(refused(ask_credential(&second, &other.key).await), "KEY_IN_USE");
        let third = node.connect(&edge).await;
        let nonsense = NodeCredentialRequest { signing_request: vec![1, 2, 3] };
        let answer = third.request(method::NODE_CREDENTIAL, nonsense.encode_to_vec(), TIME).await;
        assert_eq!(answer.unwrap_err().reason, "SIGNING_REQUEST");
        assert_eq!(edge.view(&node).row, before);
    });
}

#[test]
fn a_pending_credential_is_not_taken_while_the_disk_is_full() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        let key = KeyPair::generate().unwrap();
        let given = ask_credential(&connection, &key).await.unwrap();
        let renewed = with(&node, key, &given);
        edge.disk.full(true);
        assert_eq!(reason(renewed.dial(&edge).await).1, "STORE_READ_ONLY");
        // The one before opens the door as ever.
        let connection = node.connect(&edge).await;
        assert!(edge.connected(&node));
        edge.disk.full(false);
        // The store finds by itself that it can be written again.
        let deadline = std::time::Instant::now() + TIME;
        while renewed.dial(&edge).await.is_err() {
            assert!(std::time::Instant::now() < deadline, "never: the new certificate opens the door");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(edge.view(&node).row.key(&renewed.key.key_hash()), Some(KeyState::InUse));
        drop(connection);
    });
}

#[test]
fn an_operator_rotates_a_node_that_is_here_and_one_that_is_away() {
    run(async {
        let edge = Edge::start().await;
        let (here, away) = (edge.node("here").await, edge.node("away").await);
        let asked = Arc::new(Asked::default());
        let connection = here.connect_by(&edge, asked.clone()).await;
        let done = edge.ask("node.credential.rotate", "all", json!({})).await.unwrap();
        assert_eq!(done.phase, CommandPhase::Succeeded);
        let nodes = done.result.unwrap()["nodes"].as_array().unwrap().clone();
        assert!(nodes.iter().all(|node| node["rotating"] == true && node["changed"] == true));
        until("the node is asked", || asked.causes.lock().unwrap().as_slice() == ["operator"]).await;
        let again = edge.ask("node.credential.rotate", "node:away", json!({})).await.unwrap();
        assert_eq!(again.result.unwrap()["nodes"][0]["changed"], false);

        let (late, welcome) = away.dial(&edge).await.unwrap();
        assert!(hello_of(&welcome).rotate_credential);
        for (node, connection) in [(&here, &connection), (&away, &late)] {
            let key = KeyPair::generate().unwrap();
            let given = ask_credential(connection, &key).await.unwrap();
            let (_, welcome) = with(node, key, &given).dial(&edge).await.unwrap();
            assert!(!hello_of(&welcome).rotate_credential, "it is done");
        }
        let rotated = edge.audit("node.credential.rotated").await;
        assert!(rotated.len() == 2 && rotated.iter().all(|entry| entry.record.actor == "local"));

        edge.ask("node.credential.revoke", "node:here", json!({})).await.unwrap();
        let refused = edge.ask("node.credential.rotate", "node:here", json!({})).await;
        assert_eq!(refused.unwrap_err().reason, "NOTHING_TO_ROTATE");
    });
}

#[test]
fn row_30_a_certificate_that_ended_is_renewed_within_its_grace_and_not_after() {
    run(async {
        let edge = Edge::start().await;
        let (node, lost) = (edge.node("n").await, edge.node("lost").await);
        let now = Wall::now().unix_ms();
        let ended = |ago: i64| {
            move |row: &mut NodeRow| {
                row.credential.issued_at_unix_ms = now - (90 + ago) * DAY;
                row.credential.not_after_unix_ms = now - ago * DAY;
            }
        };
        amend(&edge, &node, ended(29)).await;
        amend(&edge, &lost, ended(31)).await;
        edge.running.site.change(|registry| registry.judge_credentials(Wall::now()));
        let problem = |node: &FakeNode| -> Vec<String> {
            edge.view(node).problems.values().map(|problem| problem.code.clone()).collect()
        };
        assert_eq!(problem(&node), ["CERTIFICATE_EXPIRED"]);
        assert_eq!(
            (problem(&lost), edge.view(&lost).state()),
            (vec!["CREDENTIAL_EXPIRED".to_owned()], "credential_expired")
        );

        let error = lost.dial(&edge).await.unwrap_err().rejection.unwrap().error;
        assert_eq!((error.code, error.reason.as_ref()), (Code::Unauthenticated, "CERTIFICATE_EXPIRED"));
        assert!(error.retry_after.unwrap().as_secs() >= 60, "no crash loop");

        let (connection, welcome) = node.dial(&edge).await.unwrap();
        assert!(hello_of(&welcome).rotate_credential);
        let key = KeyPair::generate().unwrap();
        let given = ask_credential(&connection, &key).await.unwrap();
        assert!(given.not_after_unix_ms > now + 80 * DAY);
        with(&node, key, &given).connect(&edge).await;
        assert_eq!(problem(&node), Vec::<String>::new());

        // One that will end soon is told of before.
        amend(&edge, &node, |row| row.credential.not_after_unix_ms = now + 13 * DAY).await;
        edge.running.site.change(|registry| registry.judge_credentials(Wall::now()));
        assert_eq!(problem(&node), ["CERTIFICATE_ENDS"]);
    });
}

/// A host that enrolls in the middle of a change, with a token from before it, is told at its first hello and does not
/// count as one that lacks the new authority until the next look at everybody.
#[test]
fn a_host_that_comes_during_a_change_of_authority_is_told_at_once() {
    run(async {
        let edge = Edge::start().await;
        let first: Vec<u8> = edge.running.site.authorities.held().signing().certificate_der().to_vec();
        let (before, secret) = edge.token("from-before").await;
        for step in ["begin", "switch"] {
            ca(&edge, "ca.rotate", json!({ "step": step })).await.unwrap();
        }
        let one = ca(&edge, "ca.rotate", json!({ "step": "finish" })).await.unwrap_err();
        assert!(one.message.starts_with("1 open enrollment token names the old one: "), "{one}");
        let key = KeyPair::generate().unwrap();
        let answer = edge.enroll(&before, &secret, &key).await.unwrap();
        let node = FakeNode::new(key, &answer);
        let lacking = ca(&edge, "ca.rotate", json!({ "step": "finish" })).await.unwrap_err();
        assert!(lacking.message.starts_with("1 node lacks the new authority (from-before): "), "{lacking}");
        let asked = Arc::new(Asked::default());
        let trust = std::slice::from_ref(&first);
        let (connection, _) = dial_trusting(&edge, &node, trust, asked.clone()).await.unwrap();
        complete(&connection).await;
        // Well before the clock's next look: that one is half a minute away.
        until("it has said so", || edge.view(&node).report.trusts.len() == 2).await;
        ca(&edge, "ca.rotate", json!({ "step": "finish" })).await.unwrap();
    });
}

#[test]
fn row_32_the_authority_changes_under_running_nodes_and_a_late_one_is_told_why() {
    run(async {
        let edge = Edge::start().await;
        let (node, late) = (edge.node("n").await, edge.node("late").await);
        let first: Vec<u8> = edge.running.site.authorities.held().signing().certificate_der().to_vec();
        let asked = Arc::new(Asked::default());
        let (connection, welcome) =
            dial_trusting(&edge, &node, std::slice::from_ref(&first), asked.clone()).await.unwrap();
        complete(&connection).await;
        assert_eq!(hello_of(&welcome).ca_certificates, std::slice::from_ref(&first));
        let (before, secret) = edge.token("from-before").await;

        let begun = ca(&edge, "ca.rotate", json!({"step": "begin"})).await.unwrap();
        assert_eq!((begun.phase.as_str(), begun.authorities.len(), begun.lacking.len()), ("begun", 2, 2));
        until("the node is told", || asked.bundles.lock().unwrap().len() == 1).await;
        let bundle = asked.bundles.lock().unwrap()[0].clone();
        assert_eq!((bundle.len(), &bundle[0]), (2, &first));
        until("it has said so", || edge.view(&node).report.trusts.len() == 2).await;
        let shown = ca(&edge, "ca.show", json!({})).await.unwrap();
        let lacking: Vec<_> = shown.lacking.iter().map(|one| one.name.as_str()).collect();
        assert_eq!((lacking, shown.old_certificates), (vec!["late"], 0));
        let wrong = ca(&edge, "ca.rotate", json!({"step": "finish"})).await.unwrap_err();
        assert_eq!(wrong.reason, "CA_PHASE");

        let switched = ca(&edge, "ca.rotate", json!({"step": "switch"})).await.unwrap();
        assert_eq!((switched.phase.as_str(), switched.old_certificates), ("switched", 2));
        assert!(switched.authorities[0].signs && !switched.authorities[1].signs);
        // Running nodes go on, and get a certificate of the new one.
        beat(&connection, 2).await.unwrap();
        until("it is asked", || asked.causes.lock().unwrap().as_slice() == ["authority"]).await;
        let key = KeyPair::generate().unwrap();
        let given = ask_credential(&connection, &key).await.unwrap();
        let node = with(&node, key, &given);
        let (connection, welcome) = dial_trusting(&edge, &node, &bundle, asked.clone()).await.unwrap();
        complete(&connection).await;
        assert!(!hello_of(&welcome).rotate_credential);
        // A token from before the switch, a host that trusts only the old one, a crash in between.
        let edge = edge.crash().await;
        let answer = edge.enroll(&before, &secret, &KeyPair::generate().unwrap()).await.unwrap();
        assert_eq!(answer.ca_certificate, first, "the one that its token names");
        let quiet = || Arc::new(Asked::default());
        let (connection, _) =
            dial_trusting(&edge, &late, std::slice::from_ref(&first), quiet()).await.unwrap();
        drop(connection);
        dial_trusting(&edge, &node, &bundle, quiet()).await.unwrap();

        let refused = ca(&edge, "ca.rotate", json!({"step": "finish"})).await.unwrap_err();
        assert!(refused.reason == "CA_LACKING" && refused.message.contains("late"), "{refused}");
        let over = ca(&edge, "ca.rotate", json!({"step": "finish", "leave_behind": true})).await.unwrap();
        assert_eq!((over.phase.as_str(), over.authorities.len()), ("settled", 1));
        let edge = edge.crash().await;
        let (_, welcome) = dial_trusting(&edge, &node, &bundle, quiet()).await.unwrap();
        let now = hello_of(&welcome).ca_certificates;
        assert_eq!(now.len(), 1);
        assert_ne!(now[0], first);
        dial_trusting(&edge, &node, &now, quiet()).await.unwrap();
        let error = dial_trusting(&edge, &late, &[first], quiet()).await.unwrap_err();
        assert!(error.message.contains("CA \"Umbel CA ber1 "), "{}", error.message);
        assert!(!edge.config.state_dir.join("ca/ca.key").exists(), "the old key is gone");
        assert!(crate::init(&edge.config).is_err(), "it still is a site");
        // And once more, with the one that was new.
        for step in ["begin", "abort", "begin", "switch"] {
            ca(&edge, "ca.rotate", json!({"step": step})).await.unwrap();
        }
        dial_trusting(&edge, &node, &now, quiet()).await.unwrap();
        let done = edge.audit("ca.rotate").await;
        assert_eq!(done.iter().filter(|entry| entry.record.outcome == "succeeded").count(), 7);
    });
}
