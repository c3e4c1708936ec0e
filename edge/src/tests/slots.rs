//! Who owns an identity: refusals at hello, duplicates, silent predecessors, late closes.

use std::sync::Arc;

use umbel_wire::peer::PeerCertificate;
use umbel_wire::tls::{ClientIdentity, KeyPair};
use umbel_wire::{CloseReason, Code, InstanceId, VersionRange};

use super::rig::{Edge, FakeNode, beat, name_leases, reason, run, until};
use crate::core::registry::node::Lifecycle;

async fn set(edge: &Edge, node: &FakeNode, change: impl Fn(&mut crate::core::registry::node::NodeRow)) {
    let view = edge.view(node);
    let mut row = view.row.clone();
    change(&mut row);
    let stored = edge.running.site.store_nodes(vec![(view, row)], umbel_store::Commit::new()).await;
    assert_eq!(stored.unwrap(), Some(()));
}

#[test]
fn every_refusal_says_why() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        // No certificate at all.
        let hello = umbel_wire::HelloOut {
            purpose: umbel_wire::Purpose::Hello,
            versions: node.versions,
            instance: node.instance,
            payload: prost::Message::encode_to_vec(&node.hello),
        };
        let result =
            umbel_wire::dial_once(edge.target(None), hello, |_, _| Ok(Arc::new(umbel_wire::NoHandler))).await;
        assert_eq!(reason(result), (Code::Unauthenticated, "CERTIFICATE_MISSING".to_owned()));
        // Another site's node.
        let directory = tempfile::tempdir().unwrap();
        let now = umbel_wire::clock::Wall::now();
        let other = umbel_wire::ca::Authority::create(directory.path(), "muc1", now).unwrap();
        let key = KeyPair::generate().unwrap();
        let muc1 = umbel_wire::EdgeId::parse("muc1").unwrap();
        let time = std::time::Duration::from_secs(1_000);
        let issued = other.sign_node(&key.signing_request().unwrap(), &muc1, node.id, now, time).unwrap();
        let foreign = FakeNode {
            identity: ClientIdentity::new(
                issued.chain.into_iter().map(Into::into).collect(),
                key.private_key(),
            ),
            ..node.clone()
        };
        assert_eq!(
            reason(foreign.dial(&edge).await),
            (Code::Unauthenticated, "CERTIFICATE_FOREIGN".to_owned())
        );
        // Hellos that do not fit the certificate.
        let mut unnamed = node.clone();
        unnamed.hello.node_id.clear();
        assert_eq!(reason(unnamed.dial(&edge).await), (Code::InvalidArgument, "NODE_ID_EMPTY".to_owned()));
        let second = edge.node("m").await;
        let mut posing = node.clone();
        posing.hello.node_id = second.id.to_string();
        assert_eq!(reason(posing.dial(&edge).await), (Code::PermissionDenied, "NODE_ID_FOREIGN".to_owned()));
        let mut crowded = node.clone();
        crowded.hello.engines[0].capacity = 0;
        assert_eq!(reason(crowded.dial(&edge).await).0, Code::InvalidArgument);
        // Versions, with the verdict.
        for (min, max, verdict) in [
            (2, 3, umbel_wire::Verdict::TooNew),
            (0, 0, umbel_wire::Verdict::Unknown),
            (3, 2, umbel_wire::Verdict::Unknown),
        ] {
            let odd = FakeNode { versions: VersionRange { min, max }, ..node.clone() };
            let error = odd.dial(&edge).await.err().unwrap();
            let rejection = error.rejection.unwrap();
            assert_eq!((rejection.error.code, rejection.verdict), (Code::Conflict, Some(verdict)));
        }
        // What people decided.
        set(&edge, &node, |row| row.credential.revoked_at_unix_ms = Some(1)).await;
        assert_eq!(reason(node.dial(&edge).await), (Code::Unauthenticated, "CREDENTIAL_REVOKED".to_owned()));
        set(&edge, &node, |row| row.lifecycle = Lifecycle::Disabled).await;
        assert_eq!(reason(node.dial(&edge).await), (Code::PermissionDenied, "NODE_DISABLED".to_owned()));
        set(&edge, &node, |row| row.lifecycle = Lifecycle::Decommissioned).await;
        assert_eq!(reason(node.dial(&edge).await), (Code::Gone, "NODE_DECOMMISSIONED".to_owned()));
        // Nothing of it left a trace in the slots.
        assert!(edge.running.site.read(|registry| registry.slots.owner(&node.id).is_none()));
        assert!(PeerCertificate::parse(b"nonsense").is_err());
    });
}

/// Row 10: a copied state directory is refused while the first answers, its streams are unbroken, and there is one
/// audit entry a period; when the first stops, the second gets in.
#[test]
fn a_copy_is_refused_while_the_first_answers() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let first = node.connect(&edge).await;
        let copy = FakeNode { instance: InstanceId::random(), ..node.clone() };
        for _ in 0..3 {
            let (code, why) = reason(copy.dial(&edge).await);
            assert_eq!((code, why.as_str()), (Code::Conflict, "DUPLICATE_IDENTITY"));
        }
        assert!(edge.connected(&node));
        beat(&first, 2).await.unwrap();
        let problems = crate::core::registry::snapshot::problems(&edge.view(&node));
        assert!(problems.iter().any(|problem| problem.code == "DUPLICATE_IDENTITY"));
        let mut entries = Vec::new();
        while entries.is_empty() {
            entries = edge.audit("node.duplicate_refused").await;
        }
        assert_eq!(entries.len(), 1);
        first.close(CloseReason::Shutdown);
        let second = loop {
            match copy.dial(&edge).await {
                Ok((connection, _)) => break connection,
                Err(error) => assert!(error.rejection.is_some(), "{}", error.message),
            }
        };
        assert!(second.generation() > first.generation());
    });
}

/// Row 9: the old session is silent; the same install, started again, takes over without waiting for a time-out.
#[test]
fn a_silent_predecessor_is_superseded() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        // A thread of its own, which after that is kept from everything: the socket is open and nobody answers.
        let (silent, target) = (node.clone(), edge.target(Some(node.identity.clone())));
        let (wake, woken) = std::sync::mpsc::sync_channel::<()>(0);
        let (made, connected) = tokio::sync::oneshot::channel();
        let asleep = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let connection = runtime.block_on(async {
                let hello = umbel_wire::HelloOut {
                    purpose: umbel_wire::Purpose::Hello,
                    versions: silent.versions,
                    instance: silent.instance,
                    payload: prost::Message::encode_to_vec(&silent.hello),
                };
                let dialed =
                    umbel_wire::dial_once(target, hello, |_, _| Ok(Arc::new(umbel_wire::NoHandler))).await;
                let (connection, _) = dialed.unwrap();
                name_leases(&connection, &[]).await.unwrap();
                connection
            });
            made.send(()).unwrap();
            let _ = woken.recv();
            runtime.block_on(async { connection.closed().await });
        });
        connected.await.unwrap();
        until("it is connected", || edge.connected(&node)).await;
        let again = FakeNode { instance: InstanceId::random(), ..node.clone() };
        let new = again.connect(&edge).await;
        assert!(edge.connected(&node));
        assert_eq!(edge.view(&node).generation, new.generation());
        drop(wake);
        until("the old one has learned it", || asleep.is_finished()).await;
        assert!(edge.connected(&node), "the close of the old one changed nothing");
    });
}

/// Row 8: 200 times a connection is replaced and the old one's close comes late: the new one stays the owner.
#[test]
fn late_closes_change_nothing() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let mut current = node.connect(&edge).await;
        for round in 0..200_u64 {
            let old = current;
            current = node.connect(&edge).await;
            assert!(edge.connected(&node));
            // Sometimes before, sometimes after the new one's next word.
            if round % 3 == 0 {
                old.close(CloseReason::Shutdown);
            }
            beat(&current, round + 2).await.unwrap();
            if round % 3 == 1 {
                old.close(CloseReason::Shutdown);
            }
            old.closed().await;
            assert!(edge.connected(&node), "round {round}");
            assert_eq!(edge.view(&node).generation, current.generation());
        }
        let site = &edge.running.site;
        assert!(site.read(|registry| registry.slots.is_current(&node.id, current.generation())));
        assert!(edge.audit("node_offline").await.is_empty());
        current.close(CloseReason::Shutdown);
        until("its own close counts", || !edge.connected(&node)).await;
    });
}

/// Row 4: an older connection that still beats is told so, never taken and never seen, and ends with its streams.
#[test]
fn an_older_connection_is_told_so() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let old = node.connect(&edge).await;
        let new = node.connect(&edge).await;
        let error = beat(&old, 9).await.unwrap_err();
        assert!(matches!(error.code, Code::Conflict | Code::Unavailable), "{error:?}");
        old.closed().await;
        beat(&new, 3).await.unwrap();
        assert!(edge.connected(&node));
    });
}

/// Row 29: what was said on one connection does not count on another, and an old sequence is refused.
#[test]
fn replayed_reports_are_refused() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        let sequence = |edge: &Edge| edge.view(&node).report.inventory_sequence;
        assert_eq!(sequence(&edge), 1);
        let send = |number: u64| {
            let mut inventory = node.hello.inventory.clone().unwrap();
            inventory.sequence = number;
            inventory.hostname = format!("host-{number}");
            let payload = prost::Message::encode_to_vec(&inventory);
            connection.event(umbel_contracts::event::NODE_INVENTORY, &number.to_string(), payload);
        };
        send(1);
        send(5);
        send(3);
        beat(&connection, 2).await.unwrap();
        until("the newest is taken", || sequence(&edge) == 5).await;
        beat(&connection, 3).await.unwrap();
        assert_eq!(sequence(&edge), 5);
        let host = edge.view(&node).inventory().unwrap().hostname;
        assert_eq!(host, "host-5");
        // Row 73: a node that lost its counter is told where to go on.
        let (_, welcome) = FakeNode {
            hello: {
                let mut hello = node.hello.clone();
                hello.inventory_sequence = 0;
                hello
            },
            ..node.clone()
        }
        .dial(&edge)
        .await
        .unwrap();
        let answer: umbel_contracts::proto::node::NodeHelloResponse =
            prost::Message::decode(welcome.payload).unwrap();
        assert_eq!(answer.inventory_sequence, 5);
    });
}
