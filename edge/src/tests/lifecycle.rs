//! What people decide about a node: kept out, let in again, renamed, labelled, revoked, retired for good.

use std::sync::Arc;

use serde_json::{Value, json};
use umbel_contracts::objects::CommandPhase;
use umbel_wire::{CloseReason, Code, Connection, Error, Open};

use super::rig::{Edge, Relay, TIME, reason, run, until};
use crate::core::registry::node::Lifecycle;
use crate::shell::status;

async fn done(edge: &Edge, operation: &str, selector: &str, args: Value) -> Value {
    let standing = edge.ask(operation, selector, args).await.unwrap();
    assert_eq!(standing.phase, CommandPhase::Succeeded, "{operation}: {:?}", standing.error);
    standing.result.unwrap()
}

async fn refused(edge: &Edge, operation: &str, selector: &str, args: Value) -> (Code, String) {
    let error: Error = edge.ask(operation, selector, args).await.unwrap_err();
    (error.code, error.reason.into_owned())
}

/// The connection was closed by the edge as revoked.
async fn cut_off(connection: &Connection) {
    let closed = tokio::time::timeout(TIME, connection.closed()).await.unwrap();
    let CloseReason::ByPeer(goaway) = closed else { panic!("{closed:?}") };
    assert_eq!(goaway.reason, "revoked");
}

#[test]
fn a_disabled_node_is_cut_off_and_keeps_its_identity() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let mut slot = edge.slot().unwrap();
        let _stream = slot.open(Open { method: 3, ..Open::default() }).unwrap();
        until("a stream runs", || relay.open() == 1).await;
        let told = done(&edge, "node.disable", "node:n", json!({})).await;
        assert_eq!(told["nodes"][0]["state"], "disabled");
        cut_off(&connection).await;
        let view = edge.view(&node);
        assert!(!view.connected() && view.session.is_none() && edge.slot().is_none());
        assert_eq!(reason(node.dial(&edge).await), (Code::PermissionDenied, "NODE_DISABLED".to_owned()));
        let snapshot = status::node(&edge.running.site, &view);
        let check = &snapshot.readiness[0];
        assert!(check.message.contains("disabled") && !check.next_step.is_empty(), "{check:?}");
        // It holds after a restart, and is taken back by people alone.
        let edge = edge.restart().await;
        assert_eq!(reason(node.dial(&edge).await).1, "NODE_DISABLED");
        let again = done(&edge, "node.disable", "node:n", json!({})).await;
        assert_eq!(again["nodes"][0]["changed"], false);
        done(&edge, "node.enable", "node:n", json!({})).await;
        let _connection = node.connect(&edge).await;
        assert!(edge.connected(&node) && edge.slot().is_some());
        assert_eq!(edge.view(&node).state(), "online");
        for action in ["node.disable", "node.enable"] {
            assert!(!edge.audit(action).await.is_empty(), "{action}");
        }
        // Enabled again at once it is one that has yet to come, not one that is here.
        for operation in ["node.disable", "node.enable"] {
            done(&edge, operation, "node:n", json!({})).await;
        }
        let view = edge.view(&node);
        assert_eq!((view.state(), view.connected()), ("stale", false));
    });
}

/// A revocation closes the live connection, also on a full disk, and holds after a restart; a token that replaces the
/// node is the way back.
#[test]
fn a_revoked_credential_opens_nothing() {
    run(async {
        let edge = Edge::start().await;
        let (node, other) = (edge.node("n").await, edge.node("other").await);
        let connections = (node.connect(&edge).await, other.connect(&edge).await);
        let told = done(&edge, "node.credential.revoke", "node:n", json!({})).await;
        assert!(told["nodes"][0]["revoked_at"].is_string() && told["nodes"][0]["changed"] == true);
        cut_off(&connections.0).await;
        assert_eq!(reason(node.dial(&edge).await), (Code::Unauthenticated, "CREDENTIAL_REVOKED".to_owned()));
        assert!(edge.connected(&other), "nobody else is touched");
        edge.disk.full(true);
        let told = done(&edge, "node.credential.revoke", "node:other", json!({})).await;
        assert_eq!(told["nodes"][0]["not_durable"], true);
        cut_off(&connections.1).await;
        assert_eq!(reason(other.dial(&edge).await).1, "CREDENTIAL_REVOKED");
        edge.disk.full(false);
        while !matches!(edge.running.site.store.check().await, umbel_store::Health::Ok) {}
        let edge = edge.crash().await;
        for node in [&node, &other] {
            assert_eq!(reason(node.dial(&edge).await).1, "CREDENTIAL_REVOKED");
        }
        assert_eq!(edge.audit("node.credential.revoke").await.len(), 2);
    });
}

/// A disable that is in memory only is written once there is room, and can be taken back before.
#[test]
fn a_disable_takes_force_on_a_full_disk() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        edge.disk.full(true);
        let told = done(&edge, "node.disable", "node:n", json!({})).await;
        assert_eq!(told["nodes"][0]["not_durable"], true);
        cut_off(&connection).await;
        done(&edge, "node.enable", "node:n", json!({})).await;
        let connection = node.connect(&edge).await;
        done(&edge, "node.disable", "node:n", json!({})).await;
        cut_off(&connection).await;
        edge.disk.full(false);
        while !matches!(edge.running.site.store.check().await, umbel_store::Health::Ok) {}
        let edge = edge.crash().await;
        assert_eq!(reason(node.dial(&edge).await).1, "NODE_DISABLED");
    });
}

#[test]
fn names_are_unique_and_ids_stay() {
    run(async {
        let edge = Edge::start().await;
        let (a, b) = (edge.node("a").await, edge.node("b").await);
        let told = done(&edge, "node.rename", "node:a", json!({ "name": "gpu-1" })).await;
        assert_eq!(told["nodes"][0]["node_id"], a.id.to_string());
        assert_eq!(
            refused(&edge, "node.rename", "node:b", json!({ "name": "gpu-1" })).await,
            (Code::Conflict, "NAME_TAKEN".to_owned())
        );
        assert_eq!(refused(&edge, "node.rename", "all", json!({ "name": "x" })).await.1, "SELECTOR");
        for name in [" ", "", "..", "A!", "é", "A B", "-a", &"a".repeat(64)] {
            assert_eq!(
                refused(&edge, "node.rename", "node:b", json!({ "name": name })).await.1,
                "ARGS",
                "{name}"
            );
        }
        // Two at once that want one name: one of them gets it.
        let (one, other) = tokio::join!(
            edge.ask("node.rename", "node:gpu-1", json!({ "name": "same" })),
            edge.ask("node.rename", "node:b", json!({ "name": "same" }))
        );
        assert!(one.is_ok() != other.is_ok());
        let edge = edge.restart().await;
        let names = [edge.view(&a).row.name.clone(), edge.view(&b).row.name.clone()];
        assert_eq!(names.iter().filter(|name| *name == "same").count(), 1, "{names:?}");
        let _connection = a.connect(&edge).await;
    });
}

#[test]
fn labels_are_set_and_taken_away() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        done(&edge, "node.label", "node:n", json!({ "set": { "rack": "a", "zone": "1" } })).await;
        let told = done(&edge, "node.label", "label:rack=a", json!({ "remove": ["zone"] })).await;
        assert_eq!(told["nodes"][0]["labels"], json!({ "rack": "a" }));
        for bad in [
            json!({}),
            json!({ "set": { "": "x" } }),
            json!({ "set": { "x": "y" }, "remove": ["x"] }),
            json!({ "set": (0..33).map(|n| (n.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>() }),
        ] {
            assert_eq!(refused(&edge, "node.label", "node:n", bad).await.1, "ARGS");
        }
        assert_eq!(edge.view(&node).row.labels.len(), 1);
    });
}

/// The preview says what will be lost, the name has to be typed, running requests finish, and then nothing of the
/// node opens anything, for ever; its name is free again.
#[test]
fn a_decommissioned_node_is_a_tombstone() {
    run(async {
        let edge = Edge::start().await;
        let (node, other) = (edge.node("n").await, edge.node("other").await);
        let relay = Arc::new(Relay::default());
        let connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let mut slot = edge.slot().unwrap();
        let stream = slot.open(Open { method: 3, end: true, ..Open::default() }).unwrap();
        until("a stream runs", || relay.open() == 1).await;
        let _other = other.connect(&edge).await;

        let preview = done(&edge, "node.decommission", "node:n", json!({ "preview": true })).await;
        assert_eq!((&preview["decommissioned"], &preview["leases"]), (&json!(false), &json!(1)));
        assert_eq!(preview["models"][0], json!({ "model": "llama", "available_elsewhere": 1 }));
        let (selector, args) = ("node:n", json!({ "deadline_seconds": 60 }));
        assert_eq!(refused(&edge, "node.decommission", selector, args.clone()).await.1, "CONFIRM");
        assert_eq!(edge.ask_confirmed("all", "n", args.clone()).await.unwrap_err().reason, "SELECTOR");
        assert!(!edge.view(&node).row.draining, "what is refused has changed nothing");

        let ending = edge.ask_confirmed(selector, "n", args.clone());
        let finish = async {
            until("it drains", || edge.view(&node).row.draining).await;
            assert_eq!(edge.view(&node).row.lifecycle, Lifecycle::Enrolled, "requests finish first");
            relay.finish();
        };
        let (ended, ()) = tokio::join!(ending, finish);
        let ended = ended.unwrap();
        assert_eq!(ended.phase, CommandPhase::Succeeded, "{:?}", ended.error);
        assert_eq!(ended.result.unwrap()["decommissioned"], true);
        drop((stream, slot));
        cut_off(&connection).await;

        let edge = edge.restart().await;
        let gone = (Code::Gone, "NODE_DECOMMISSIONED".to_owned());
        assert_eq!(reason(node.dial(&edge).await), gone);
        for (operation, args) in [
            ("node.enable", json!({})),
            ("node.undrain", json!({})),
            ("node.credential.revoke", json!({})),
            ("node.rename", json!({ "name": "x" })),
        ] {
            assert_eq!(refused(&edge, operation, &format!("node:{}", node.id), args).await, gone);
        }
        assert_eq!(edge.ask_confirmed(selector, "n", args).await.unwrap_err().code, Code::Gone);
        let listed = done(&edge, "node.list", "", json!({})).await;
        assert_eq!(listed["nodes"].as_array().unwrap().len(), 1);
        let listed = done(&edge, "node.list", "", json!({ "decommissioned": true })).await;
        assert_eq!(listed["nodes"].as_array().unwrap().len(), 2);
        let shown = done(&edge, "node.show", &format!("node:{}", node.id), json!({})).await;
        assert_eq!(
            (&shown["nodes"][0]["state"], &shown["nodes"][0]["providers"]),
            (&json!("decommissioned"), &json!([]))
        );
        // Its key never enrolls again; its name is free.
        let (id, secret) = edge.token("n").await;
        let again = edge.enroll(&id, &secret, &node.key).await.unwrap_err();
        assert_eq!(again.rejection.unwrap().error.reason, "KEY_IN_USE");
        let fresh = edge.node("n").await;
        let _fresh = fresh.connect(&edge).await;
        let shown = done(&edge, "node.show", "node:n", json!({})).await;
        assert_eq!(shown["nodes"][0]["node_id"], fresh.id.to_string());
        done(&edge, "node.rename", "node:other", json!({ "name": "else" })).await;
        assert_eq!(
            edge.audit("node.decommission")
                .await
                .iter()
                .filter(|one| one.record.outcome == "succeeded")
                .count(),
            1
        );
        assert_eq!(edge.audit("node.decommissioned").await.len(), 1);
    });
}

/// Leases that do not end are cut at the deadline; a restart in between goes on waiting; cancelled in time, nothing is
/// lost.
#[test]
fn a_decommission_waits_and_survives_a_restart() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let _connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let slot = edge.slot().unwrap();
        let id = uuid::Uuid::new_v4().to_string();
        let waiting = edge.ask_confirmed_as(&id, "node:n", "n", json!({}));
        let cancel = async {
            until("it runs", || edge.view(&node).row.draining).await;
            let shown = done(&edge, "command.show", "", json!({ "command_id": id })).await;
            assert_eq!(shown["operation"], "node.decommission");
            done(&edge, "command.cancel", "", json!({ "command_id": id })).await;
        };
        let (cancelled, ()) = tokio::join!(waiting, cancel);
        assert_eq!(cancelled.unwrap().phase, CommandPhase::Cancelled);
        assert_eq!(edge.view(&node).row.lifecycle, Lifecycle::Enrolled);

        let id = uuid::Uuid::new_v4().to_string();
        let commands = Arc::clone(&edge.running.commands);
        let asked = edge.decommission(&id, "node:n", "n", json!({ "deadline_seconds": 3600 }));
        let begun = tokio::spawn(async move { commands.ask(asked, std::time::Duration::ZERO).await });
        assert_eq!(begun.await.unwrap().unwrap().phase, CommandPhase::Running);
        drop(slot);
        let edge = edge.crash().await;
        // The connection and with it its leases ended: nothing is left to wait for.
        until("it is retired", || edge.view(&node).row.lifecycle == Lifecycle::Decommissioned).await;
        let mut shown = json!({});
        while shown["phase"] != "succeeded" {
            shown = done(&edge, "command.show", "", json!({ "command_id": id })).await;
        }
        assert_eq!(reason(node.dial(&edge).await).1, "NODE_DECOMMISSIONED");
    });
}

#[test]
fn a_lease_that_does_not_end_does_not_keep_a_node() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = Arc::new(Relay::default());
        let connection = node.connect_with(&edge, Arc::clone(&relay)).await;
        let mut slot = edge.slot().unwrap();
        let _stream = slot.open(Open { method: 3, end: true, ..Open::default() }).unwrap();
        let ended = edge.ask_confirmed("node:n", "n", json!({ "deadline_seconds": 0 })).await.unwrap();
        assert_eq!(ended.phase, CommandPhase::Succeeded, "{:?}", ended.error);
        cut_off(&connection).await;
        assert_eq!(edge.running.site.dispatch.totals().in_flight(), 0);
        assert!(edge.running.site.dispatch.resolve("llama").is_none(), "its model is not served any more");
    });
}

/// A full disk makes no tombstone: what cannot be undone is never in memory only.
#[test]
fn nothing_is_retired_on_a_full_disk() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        edge.disk.full(true);
        let error = edge.ask_confirmed("node:n", "n", json!({})).await.unwrap_err();
        assert_eq!(error.reason, "AUDIT_UNAVAILABLE");
        assert!(!edge.view(&node).row.draining);
    });
}

#[test]
fn readiness_names_the_next_step_of_each() {
    run(async {
        let edge = Edge::start().await;
        edge.node("away").await;
        let here = edge.node("here").await;
        let _connection = here.connect(&edge).await;
        let told = done(&edge, "node.readiness", "all", json!({})).await;
        let nodes = told["nodes"].as_array().unwrap();
        assert_eq!((nodes.len(), &nodes[0]["ready"], &nodes[1]["ready"]), (2, &json!(false), &json!(true)));
        let connection = &nodes[0]["checks"][0];
        assert_eq!(connection["name"], "connection");
        assert!(connection["next_step"].as_str().unwrap().contains("umbel node"), "{connection}");
    });
}
