//! Operations on API keys: limits, changes and their audit, usage by day and in all, on a full disk too.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use umbel_contracts::objects::CommandPhase;
use umbel_wire::Code;
use umbel_wire::clock::Wall;
use umbel_wire::token::{BearerKind, mint_bearer};

use super::rig::{Edge, run};
use crate::core::keys::Caller;
use crate::core::usage::Usage;

async fn done(edge: &Edge, operation: &str, args: Value) -> Value {
    let standing = edge.ask(operation, "", args).await.unwrap();
    assert_eq!(standing.phase, CommandPhase::Succeeded, "{:?}", standing.error);
    standing.result.unwrap()
}

/// A key: its id and its header.
async fn key(edge: &Edge, more: Value) -> (String, String) {
    let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
    let mut args = json!({ "key_id": key_id, "secret_sha256": hash.to_hex(), "name": "app" });
    args.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    done(edge, "apikey.create", args).await;
    (key_id, format!("Bearer {}", text.expose()))
}

fn caller(edge: &Edge, header: &str) -> Caller {
    edge.running.commands.keys.check(Some(header), || false).unwrap()
}

fn use_it(edge: &Edge, header: &str, model: &str) {
    let caller = caller(edge, header);
    let permit = caller.enter(umbel_wire::clock::now(), 10).unwrap();
    let usage = Usage { prompt_tokens: 7, completion_tokens: 3, cached_tokens: 2, ..Usage::default() };
    edge.running.commands.keys.used((Instant::now(), Wall::now()), permit, &Arc::from(model), &usage);
}

#[test]
fn a_change_says_in_the_audit_what_it_changed_and_survives_a_crash() {
    run(async {
        let edge = Edge::start().await;
        let limits = json!({ "requests_per_minute": 2, "requests_at_once": 4 });
        let (id, header) = key(&edge, json!({ "limits": limits, "priority": 80 })).await;
        let args = json!({ "key_id": id, "models": ["small"], "priority": 20,
            "limits": { "requests_per_minute": null, "tokens_per_minute": 1000 } });
        let dry = umbel_dry(&edge, &args).await;
        assert_eq!((&dry["priority"], edge.audit("apikey.update").await.len()), (&json!(20), 0));
        let changed = done(&edge, "apikey.update", args.clone()).await;
        assert_eq!(changed["limits"], json!({ "tokens_per_minute": 1000, "requests_at_once": 4 }));
        assert!(
            caller(&edge, &header).may_use("small", "small", |_| false)
                && !caller(&edge, &header).may_use("m", "m", |_| false)
        );
        let audited = edge.audit("apikey.update").await;
        assert_eq!(
            audited[0].record.detail,
            "models all -> small, priority 80 -> 20, requests_per_minute 2 -> none, tokens_per_minute none -> 1000: a test"
        );
        assert_eq!(
            (audited[0].record.subject.as_str(), audited[0].record.actor.as_str()),
            (id.as_str(), "local")
        );
        done(&edge, "apikey.update", args).await;
        assert_eq!(edge.audit("apikey.update").await[1].record.detail, "nothing is different: a test");

        let edge = edge.crash().await;
        let listed = done(&edge, "apikey.list", json!({})).await;
        assert_eq!(listed["apikeys"][0], changed);
        for (args, code, reason) in [
            (json!({ "key_id": "nobody-knows-it" }), Code::NotFound, "UNKNOWN_KEY"),
            (json!({ "key_id": id, "priority": 101 }), Code::InvalidArgument, "INVALID_KEY"),
            (
                json!({ "key_id": id, "limits": { "requests_at_once": 0 } }),
                Code::InvalidArgument,
                "INVALID_KEY",
            ),
            (json!({ "key_id": id, "limits": { "per_day": 1 } }), Code::InvalidArgument, "ARGS"),
            (json!({ "key_id": id, "name": "" }), Code::InvalidArgument, "ARGS"),
        ] {
            let refused = edge.ask("apikey.update", "", args.clone()).await.unwrap_err();
            assert_eq!((refused.code, &*refused.reason), (code, reason), "{args}");
        }
        edge.disk.full(true);
        let refused =
            edge.ask("apikey.update", "", json!({ "key_id": id, "priority": 1 })).await.unwrap_err();
        assert_eq!(refused.code, Code::InsufficientStorage);
        assert_eq!(done(&edge, "apikey.list", json!({})).await["apikeys"][0]["priority"], 20);
        done(&edge, "apikey.revoke", json!({ "key_id": id })).await;
        let refused =
            edge.ask("apikey.update", "", json!({ "key_id": id, "priority": 1 })).await.unwrap_err();
        assert_eq!((refused.code, &*refused.reason), (Code::Conflict, "KEY_REVOKED"));
    });
}

async fn umbel_dry(edge: &Edge, args: &Value) -> Value {
    let request = crate::core::commands::Request {
        command_id: uuid::Uuid::new_v4().to_string(),
        operation: "apikey.update".to_owned(),
        args: args.as_object().cloned().unwrap(),
        dry_run: true,
        ..Default::default()
    };
    edge.running.commands.ask(request, super::rig::TIME).await.unwrap().result.unwrap()
}

#[test]
fn usage_is_told_by_key_and_model_and_day_and_survives_the_edge() {
    run(async {
        let edge = Edge::start().await;
        let (one, of_one) = key(&edge, json!({})).await;
        let (two, of_two) = key(&edge, json!({ "name": "other" })).await;
        for model in ["a", "a", "org/b"] {
            use_it(&edge, &of_one, model);
        }
        use_it(&edge, &of_two, "a");
        edge.running.commands.keys.refused(&caller(&edge, &of_two), &Arc::from(""));
        let rows = |result: &Value| -> Vec<(String, String, u64, u64, u64)> {
            let number = |row: &Value, field: &str| row[field].as_u64().unwrap();
            let row = |row: &Value| {
                let tokens = number(row, "prompt_tokens") + number(row, "completion_tokens");
                let text = |field: &str| row[field].as_str().unwrap().to_owned();
                (text("key_id"), text("model"), number(row, "requests"), number(row, "refused"), tokens)
            };
            result["usage"].as_array().unwrap().iter().map(row).collect()
        };
        let mut wanted = vec![
            (one.clone(), "a".to_owned(), 2, 0, 20),
            (one.clone(), "org/b".to_owned(), 1, 0, 10),
            (two.clone(), String::new(), 1, 1, 0),
            (two.clone(), "a".to_owned(), 1, 0, 10),
        ];
        wanted.sort();
        let totals = done(&edge, "apikey.usage", json!({})).await;
        assert_eq!((rows(&totals), &totals["next_cursor"]), (wanted.clone(), &Value::Null));
        // Killed before anything was written: the seconds since are lost. In order: nothing is.
        let edge = edge.crash().await;
        assert_eq!(done(&edge, "apikey.usage", json!({})).await, json!({ "usage": [] }));
        for model in ["a", "a", "org/b"] {
            use_it(&edge, &of_one, model);
        }
        use_it(&edge, &of_two, "a");
        edge.running.commands.keys.refused(&caller(&edge, &of_two), &Arc::from(""));
        let edge = edge.restart().await;
        let (mut paged, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let mut args = json!({ "by": "day", "limit": 1 });
            if !cursor.is_null() {
                args["cursor"] = cursor;
            }
            let page = done(&edge, "apikey.usage", args).await;
            assert!(page["usage"][0]["day"].is_string() && page["usage"][0]["name"] != "");
            paged.extend(rows(&page));
            cursor = page["next_cursor"].clone();
            if cursor.is_null() {
                break;
            }
        }
        assert_eq!(paged, wanted);
        let asked = json!({ "key_id": one, "model": "org/b", "since": "2026-01-01" });
        assert_eq!(
            rows(&done(&edge, "apikey.usage", asked).await),
            vec![wanted.iter().find(|row| row.1 == "org/b").unwrap().clone()]
        );
        let listed = done(&edge, "apikey.list", json!({})).await;
        assert!(listed["apikeys"].as_array().unwrap().iter().all(|key| key["last_used_at"].is_string()));
        for (args, code) in [
            (json!({ "key_id": "nobody-knows-it" }), Code::NotFound),
            (json!({ "by": "week" }), Code::InvalidArgument),
            (json!({ "since": "yesterday" }), Code::InvalidArgument),
            (json!({ "cursor": "x" }), Code::InvalidArgument),
            (json!({ "limit": 0 }), Code::InvalidArgument),
        ] {
            assert_eq!(edge.ask("apikey.usage", "", args.clone()).await.unwrap_err().code, code, "{args}");
        }
        assert_eq!(
            done(&edge, "apikey.usage", json!({ "key_id": "_loopback" })).await,
            json!({ "usage": [] })
        );
    });
}

/// A revoked key's request that waits gets no engine, whatever the disk does; one that has an engine keeps it.
#[test]
fn a_revocation_ends_what_waits_and_nothing_that_runs() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _connection = node.connect(&edge).await;
        let (id, header) = key(&edge, json!({})).await;
        let dispatch = &edge.running.site.dispatch;
        let model = dispatch.resolve("llama").unwrap().model;
        let ask = |caller: &Caller| crate::shell::dispatch::Ask::new(model, caller.number(), caller.class());
        let caller = caller(&edge, &header);
        let mut slots = Vec::new();
        let waiting = loop {
            match dispatch.admit(Instant::now(), &ask(&caller)) {
                crate::shell::dispatch::Admitted::Slot(slot) => slots.push(slot),
                crate::shell::dispatch::Admitted::Waiting(waiting) => break waiting,
                crate::shell::dispatch::Admitted::Refused(refusal) => panic!("{refusal:?}"),
            }
        };
        edge.disk.full(true);
        done(&edge, "apikey.revoke", json!({ "key_id": id })).await;
        let refused = waiting.await.err().unwrap();
        assert_eq!(refused.reason, crate::core::admission::RefusalReason::KeyRevoked);
        assert_eq!(dispatch.totals().in_flight() as usize, slots.len(), "those that run go on");
    });
}
