//! Many tokens in one command: all of them or none, each single-use, each audited.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use umbel_contracts::operations::{LARGEST_ARGS, TOKENS_AT_ONCE};
use umbel_wire::secret::Secret;
use umbel_wire::tls::KeyPair;
use umbel_wire::{Code, token};

use super::rig::{Edge, run};
use crate::core::enrollment::{ENROLLMENTS, TOKENS_MAX};

/// Tokens with their secrets, and the arguments that make them.
fn many(count: usize) -> (Vec<(String, Secret)>, Value) {
    let tokens: Vec<_> = (0..count).map(|_| (token::new_id(), Secret::generate())).collect();
    let one = |(at, (id, secret)): (usize, &(String, Secret))| json!({ "token_id": id, "secret_sha256": secret.hash().to_hex(), "name": format!("n{at}") });
    let mut all: Vec<Value> = tokens.iter().enumerate().map(one).collect();
    let mut args = all.remove(0);
    args["more"] = all.into();
    (tokens, args)
}

async fn listed(edge: &Edge) -> usize {
    let listed = edge.ask("enrollment.list", "", json!({ "limit": 1_000 })).await.unwrap().result.unwrap();
    listed["enrollments"].as_array().unwrap().len()
}

#[test]
fn one_command_makes_many_and_each_makes_one_node() {
    run(async {
        let edge = Edge::start().await;
        let (tokens, mut args) = many(TOKENS_AT_ONCE);
        args["labels"] = json!({ "rack": "r12" });
        args["eligible"] = json!(true);
        let command = uuid::Uuid::new_v4().to_string();
        let commits = edge.running.site.store.transactions();
        let made = edge.ask_as(&command, "enrollment.create", "", args.clone()).await.unwrap();
        assert_eq!(edge.running.site.store.transactions(), commits + 1);
        assert_eq!(made.result.as_ref().unwrap()["token_id"], json!(tokens[0].0));
        // The same command again: the same answer, and nothing more is made; also after a restart.
        let again = edge.ask_as(&command, "enrollment.create", "", args.clone()).await.unwrap();
        assert_eq!((again.result, again.replayed), (made.result.clone(), true));
        let edge = edge.restart().await;
        let again = edge.ask_as(&command, "enrollment.create", "", args).await.unwrap();
        assert_eq!((again.result, again.replayed), (made.result, true));
        assert_eq!(listed(&edge).await, TOKENS_AT_ONCE);
        let audited: BTreeSet<String> =
            edge.audit("enrollment.create").await.into_iter().map(|one| one.record.subject).collect();
        assert_eq!(audited, tokens.iter().map(|(id, _)| id.clone()).collect());
        for at in [0, 1, TOKENS_AT_ONCE - 1] {
            let (id, secret) = &tokens[at];
            let key = KeyPair::generate().unwrap();
            let node = edge.enroll(id, secret, &key).await.unwrap();
            assert_eq!(node.name, format!("n{at}"));
            assert!(edge.enroll(id, secret, &KeyPair::generate().unwrap()).await.is_err(), "used once");
        }
        let (_, nodes) = edge.running.site.nodes();
        assert_eq!(nodes.len(), 3);
        assert!(nodes.iter().all(|node| node.row.eligible && node.row.labels["rack"] == "r12"));
    });
}

#[test]
fn one_at_fault_refuses_all() {
    run(async {
        let edge = Edge::start().await;
        let (taken, _) = edge.token("n").await;
        let (tokens, good) = many(3);
        let with = |key: &str, value: Value| {
            let mut args = good.clone();
            args["more"][1][key] = value;
            args
        };
        let mut replacing = good.clone();
        replacing["replace"] = json!("n");
        for (bad, reason) in [
            (with("name", json!("no name")), "ARGS"),
            (with("secret_sha256", json!("7c")), "ARGS"),
            (with("token_id", json!("x")), "ARGS"),
            (with("token_id", json!(tokens[0].0)), "ARGS"),
            (with("labels", json!({})), "ARGS"),
            (replacing, "ARGS"),
            (many(TOKENS_AT_ONCE + 1).1, "ARGS"),
            (with("token_id", json!(taken)), "TOKEN_EXISTS"),
        ] {
            let error = edge.ask("enrollment.create", "", bad.clone()).await.unwrap_err();
            assert_eq!(error.reason, reason, "{bad}: {}", error.message);
            assert_eq!(listed(&edge).await, 1, "{bad}");
        }
        let error = edge.ask("enrollment.create", "", with("name", json!("no name"))).await.unwrap_err();
        assert!(error.message.contains("no name"), "{}", error.message);
        edge.ask("enrollment.create", "", good).await.unwrap();
        assert_eq!(listed(&edge).await, 4);
    });
}

/// Whatever the names, as many as one command may make fit into its arguments.
#[test]
fn the_longest_fit() {
    run(async {
        let edge = Edge::start().await;
        let (_, mut args) = many(TOKENS_AT_ONCE);
        let long = |at: usize| json!(format!("{at:03}{}", "n".repeat(60)));
        let id = |at: usize| json!(format!("{at:03}{}", "t".repeat(33)));
        (args["name"], args["token_id"]) = (long(0), id(0));
        for at in 1..TOKENS_AT_ONCE {
            let one = &mut args["more"][at - 1];
            (one["name"], one["token_id"]) = (long(at), id(at));
        }
        let labels = (0..32).map(|at| (format!("{at:02}{}", "k".repeat(61)), json!("v".repeat(63))));
        args["labels"] = labels.collect::<serde_json::Map<_, _>>().into();
        let size = args.to_string().len();
        assert!(size <= LARGEST_ARGS, "{size}");
        edge.ask("enrollment.create", "", args).await.unwrap();
    });
}

/// What is kept of tokens is bounded: the oldest that ended make room, open ones never do.
#[test]
fn ended_tokens_make_room_and_open_ones_do_not() {
    run(async {
        let edge = Edge::start().await;
        let (ended, secret) = edge.token("n").await;
        edge.enroll(&ended, &secret, &KeyPair::generate().unwrap()).await.unwrap();
        let mut left = TOKENS_MAX - 1;
        while left > 0 {
            let count = left.min(TOKENS_AT_ONCE);
            edge.ask("enrollment.create", "", many(count).1).await.unwrap();
            left -= count;
        }
        let error = edge.ask("enrollment.create", "", many(2).1).await.unwrap_err();
        assert_eq!((error.code, error.reason.as_ref()), (Code::ResourceExhausted, "TOO_MANY_TOKENS"));
        edge.ask("enrollment.create", "", many(1).1).await.unwrap();
        assert!(edge.running.site.store.get(ENROLLMENTS, ended).await.unwrap().is_none());
    });
}
