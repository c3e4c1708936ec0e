//! Commands: idempotent by their id, also across a restart; validated; audited with their effect.

use serde_json::json;
use umbel_contracts::objects::CommandPhase;
use umbel_store::Commit;
use umbel_wire::secret::Secret;
use umbel_wire::{Code, token};

use super::rig::{Edge, run, until};
use crate::shell::commands::COMMANDS;

/// Row 71: the same id again gives the first one's outcome, across a crash too; another content is refused.
#[test]
fn an_id_runs_once() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let id = uuid::Uuid::new_v4().to_string();
        let first = edge.ask_as(&id, "node.eligible", "node:n", json!({ "eligible": false })).await.unwrap();
        assert!(!first.replayed);
        assert_eq!(first.result.as_ref().unwrap()["nodes"][0]["changed"], true);
        // Somebody undoes it meanwhile: the repetition must not do it again.
        edge.ask("node.eligible", "node:n", json!({ "eligible": true })).await.unwrap();
        let edge = edge.crash().await;
        let again = edge.ask_as(&id, "node.eligible", "node:n", json!({ "eligible": false })).await.unwrap();
        assert!(again.replayed);
        assert_eq!((again.phase, &again.result), (first.phase, &first.result));
        assert!(edge.view(&node).row.eligible);
        let other =
            edge.ask_as(&id, "node.eligible", "node:n", json!({ "eligible": true })).await.unwrap_err();
        assert_eq!((other.code, other.reason.as_ref()), (Code::Conflict, "COMMAND_ID_REUSED"));
        assert_eq!(edge.audit("node.eligible").await.len(), 2, "one entry each, none for the repetition");
    });
}

/// The same id at once joins the one that runs.
#[test]
fn the_same_at_once_joins() {
    run(async {
        let edge = Edge::start().await;
        edge.node("n").await;
        let id = uuid::Uuid::new_v4().to_string();
        let ask = || edge.ask_as(&id, "node.drain", "node:n", json!({}));
        let (a, b, c) = tokio::join!(ask(), ask(), ask());
        for one in [&a, &b, &c] {
            assert_eq!(one.as_ref().unwrap().phase, CommandPhase::Succeeded);
        }
        let replayed = [a, b, c].iter().filter(|one| one.as_ref().unwrap().replayed).count();
        assert_eq!(replayed, 2);
        assert_eq!(edge.audit("node.drain").await.len(), 1);
    });
}

/// A refusal stores nothing: the same id may be asked again when the cause is gone.
#[test]
fn a_refusal_is_not_an_outcome() {
    run(async {
        let edge = Edge::start().await;
        let id = uuid::Uuid::new_v4().to_string();
        let refused = edge.ask_as(&id, "node.drain", "node:n", json!({})).await.unwrap_err();
        assert_eq!((refused.code, refused.reason.as_ref()), (Code::NotFound, "NO_MATCH"));
        edge.node("n").await;
        let done = edge.ask_as(&id, "node.drain", "node:n", json!({})).await.unwrap();
        assert_eq!(done.phase, CommandPhase::Succeeded);
        let mut outcomes = Vec::new();
        while outcomes.len() < 2 {
            outcomes = edge.audit("node.drain").await.into_iter().map(|one| one.record.outcome).collect();
        }
        assert!(
            outcomes.contains(&"refused: NOT_FOUND".to_owned()) && outcomes.contains(&"succeeded".to_owned())
        );
    });
}

#[test]
fn what_is_asked_is_checked() {
    run(async {
        let edge = Edge::start().await;
        edge.node("n").await;
        let id = || uuid::Uuid::new_v4().to_string();
        for (command, operation, selector, args, code) in [
            ("x".to_owned(), "node.list", "", json!({}), Code::InvalidArgument),
            (id(), "node.fly", "", json!({}), Code::Unimplemented),
            (id(), "node.drain", "", json!({}), Code::InvalidArgument),
            (id(), "node.drain", "node:", json!({}), Code::InvalidArgument),
            (id(), "node.drain", "node:m", json!({}), Code::NotFound),
            (id(), "node.drain", "node:n", json!({ "deadline": 1 }), Code::InvalidArgument),
            (id(), "queue.show", "node:n", json!({}), Code::InvalidArgument),
            (id(), "command.show", "", json!({ "command_id": id() }), Code::NotFound),
            (id(), "apikey.revoke", "", json!({ "key_id": "nobody-knows-it" }), Code::NotFound),
            (id(), "node.list", "", json!({ "limit": 0 }), Code::InvalidArgument),
        ] {
            let error = edge.ask_as(&command, operation, selector, args).await.unwrap_err();
            assert_eq!(error.code, code, "{operation} {selector}: {}", error.message);
        }
    });
}

#[test]
fn keys_are_made_listed_and_revoked() {
    run(async {
        let edge = Edge::start().await;
        let (id, secret) = (token::new_id(), Secret::generate());
        let args = json!({ "key_id": id, "secret_sha256": secret.hash().to_hex(), "name": "k" });
        let command = uuid::Uuid::new_v4().to_string();
        let made = edge.ask_as(&command, "apikey.create", "", args.clone()).await.unwrap();
        assert_eq!(made.result.unwrap()["created_by"], "local");
        let again = edge.ask_as(&command, "apikey.create", "", args).await.unwrap();
        assert!(again.replayed);
        let listed = edge.ask("apikey.list", "", json!({})).await.unwrap().result.unwrap();
        assert_eq!(listed["apikeys"].as_array().unwrap().len(), 1);
        assert!(!listed.to_string().contains(&secret.hash().to_hex()));
        let edge = edge.crash().await;
        let revoked = edge.ask("apikey.revoke", "", json!({ "key_id": id })).await.unwrap();
        assert!(revoked.result.unwrap()["revoked_at"].is_string());
        assert_eq!(edge.audit("apikey.create").await.len(), 1);
        assert_eq!(edge.audit("apikey.revoke").await.len(), 1);
        let tail = edge.ask("audit.tail", "", json!({ "limit": 1 })).await.unwrap().result.unwrap();
        assert_eq!(tail["entries"][0]["action"], "apikey.revoke");
    });
}

#[test]
fn a_waiting_drain_can_be_cancelled_and_followed() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let relay = std::sync::Arc::new(super::rig::Relay::default());
        let _connection = node.connect_with(&edge, std::sync::Arc::clone(&relay)).await;
        let slot = edge.slot().expect("a slot");
        let id = uuid::Uuid::new_v4().to_string();
        let drain = edge.ask_as(&id, "node.drain", "node:n", json!({}));
        let cancel = async {
            until("it runs", || edge.running.commands.running(&id).is_some()).await;
            loop {
                let shown = edge.ask("command.show", "", json!({ "command_id": id })).await;
                let phase = shown.unwrap().result.unwrap()["phase"].as_str().unwrap().to_owned();
                if phase == "running" {
                    break;
                }
                tokio::task::yield_now().await;
            }
            edge.ask("command.cancel", "", json!({ "command_id": id })).await.unwrap();
        };
        let (drained, ()) = tokio::join!(drain, cancel);
        assert_eq!(drained.unwrap().phase, CommandPhase::Cancelled);
        assert!(edge.view(&node).row.draining, "the mark stays");
        let late = edge.ask("command.cancel", "", json!({ "command_id": id })).await.unwrap_err();
        assert_eq!(late.reason, "COMMAND_ENDED");
        drop(slot);
    });
}

/// A record of a command that is damaged is said to be so, by whatever asks for it, and its id is not run again.
#[test]
fn a_command_whose_record_is_damaged_is_told() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let id = uuid::Uuid::new_v4().to_string();
        let eligible = json!({ "eligible": false });
        edge.ask_as(&id, "node.eligible", "node:n", eligible.clone()).await.unwrap();
        edge.ask("node.eligible", "node:n", json!({ "eligible": true })).await.unwrap();
        let damaged = Commit::new().put_json(COMMANDS, id.clone(), &json!("half of it"));
        edge.running.site.store.commit(damaged).await.unwrap();
        let shown = edge.ask("command.show", "", json!({ "command_id": id })).await.unwrap_err();
        assert_eq!((shown.code, &*shown.reason), (Code::Internal, "COMMAND_UNREADABLE"));
        let again = edge.ask_as(&id, "node.eligible", "node:n", eligible).await.unwrap_err();
        assert_eq!(&*again.reason, "COMMAND_UNREADABLE");
        assert!(edge.view(&node).row.eligible, "it was not run again");
    });
}
