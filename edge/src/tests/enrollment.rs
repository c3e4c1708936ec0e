//! Tokens: one winner, lost answers, and what is refused.

use umbel_contracts::objects::CommandPhase;
use umbel_wire::secret::Secret;
use umbel_wire::tls::KeyPair;
use umbel_wire::{Code, DialError, NodeId, token};

use serde_json::json;

use super::rig::{Edge, FakeNode, run, until};
use crate::core::registry::node::ReportRow;

fn refusal<T>(result: Result<T, DialError>) -> (Code, String, String) {
    let Err(error) = result else { panic!("it was let in") };
    let rejection = error.rejection.unwrap_or_else(|| panic!("no rejection: {}", error.message));
    (rejection.error.code, rejection.error.reason.into_owned(), rejection.error.message)
}

/// Row 22: sixty at once with one token and different keys give one node and fifty-nine refusals.
#[test]
fn sixty_at_once_with_one_token() {
    run(async {
        let edge = Edge::start().await;
        for round in 1..=5 {
            let (id, secret) = edge.token("n").await;
            let keys: Vec<KeyPair> = (0..60).map(|_| KeyPair::generate().unwrap()).collect();
            // One whose connection had to make room for another of the crowd tries again, as a host does.
            let attempt = async |key| loop {
                let result = edge.enroll(&id, &secret, key).await;
                if result.as_ref().err().is_none_or(|error| error.rejection.is_some()) {
                    return result;
                }
            };
            let attempts = keys.iter().map(attempt);
            let results = futures_util::future::join_all(attempts).await;
            let won = results.iter().filter(|result| result.is_ok()).count();
            assert_eq!(won, 1);
            for result in results {
                if let Err(error) = result {
                    assert_eq!(error.rejection.unwrap().error.code, Code::Conflict);
                }
            }
            assert_eq!(edge.running.site.nodes().1.len(), round);
            assert_eq!(edge.audit("node.enrolled").await.len(), round);
        }
    });
}

/// Row 24: the answer was lost; the same key gets the same certificate, another key does not, and no ghost is left.
/// Also across a crash of the edge right after its commit.
#[test]
fn a_lost_answer_is_given_again() {
    run(async {
        let edge = Edge::start().await;
        let (id, secret) = edge.token("n").await;
        let key = KeyPair::generate().unwrap();
        let first = edge.enroll(&id, &secret, &key).await.unwrap();
        let again = edge.enroll(&id, &secret, &key).await.unwrap();
        assert_eq!(first, again);
        let edge = edge.crash().await;
        let after = edge.enroll(&id, &secret, &key).await.unwrap();
        assert_eq!(first, after);
        let other = refusal(edge.enroll(&id, &secret, &KeyPair::generate().unwrap()).await);
        assert_eq!((other.0, other.1.as_str()), (Code::Conflict, "TOKEN_USED"));
        assert_eq!(edge.running.site.nodes().1.len(), 1);
        FakeNode::new(key, &first).connect(&edge).await;
    });
}

/// Unknown, wrong, expired and revoked look the same to the host; the audit tells the true reason.
#[test]
fn refused_tokens_look_alike() {
    run(async {
        let edge = Edge::start().await;
        let key = KeyPair::generate().unwrap();
        let (wrong, _) = edge.token("n").await;
        let (revoked, revoked_secret) = edge.token("n").await;
        edge.ask("enrollment.revoke", "", json!({ "token_id": revoked })).await.unwrap();
        let (expired, expired_secret) = edge.token_for("n", 1, false).await;
        let end = edge.running.site.wall().unix_ms() + 1_000;
        until("the token expires", || edge.running.site.wall().unix_ms() > end).await;
        let answers = [
            refusal(edge.enroll(&token::new_id(), &Secret::generate(), &key).await),
            refusal(edge.enroll(&wrong, &Secret::generate(), &key).await),
            refusal(edge.enroll(&revoked, &revoked_secret, &key).await),
            refusal(edge.enroll(&expired, &expired_secret, &key).await),
        ];
        assert_eq!(answers[0].0, Code::Unauthenticated);
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        let mut entries = Vec::new();
        while entries.len() < 4 {
            entries = edge.audit("token.refused").await;
        }
        let told: Vec<_> = entries.iter().map(|entry| entry.record.detail.as_str()).collect();
        assert_eq!(told, ["unknown", "wrong_secret", "revoked", "expired"]);
        assert!(edge.running.site.nodes().1.is_empty());
        // Its end is told once, also across a restart.
        edge.running.site.flush().await;
        let edge = edge.restart().await;
        edge.running.site.flush().await;
        let ends: Vec<_> =
            edge.audit("token.expired").await.into_iter().map(|one| one.record.subject).collect();
        assert_eq!(ends, [expired]);
    });
}

#[test]
fn guessing_is_slowed_down() {
    run(async {
        let edge = Edge::start().await;
        let key = KeyPair::generate().unwrap();
        let (id, secret) = edge.token("n").await;
        for _ in 0..umbel_wire::limits::GUESSES {
            let answer = refusal(edge.enroll(&id, &Secret::generate(), &key).await);
            assert_eq!(answer.0, Code::Unauthenticated);
        }
        let answer = refusal(edge.enroll(&id, &secret, &key).await);
        assert_eq!((answer.0, answer.1.as_str()), (Code::ResourceExhausted, "TOO_MANY_GUESSES"));
    });
}

/// Row 108: a token that opens nothing counts as a guess, whatever the reason; one that another host has used makes its
/// rivals wait after many tries, and nobody else.
#[test]
fn row_108_dead_tokens_count_as_guesses_and_spent_ones_make_their_rivals_wait() {
    run(async {
        let edge = Edge::start().await;
        let key = KeyPair::generate().unwrap();
        let (spent, spent_secret) = edge.token("first").await;
        edge.enroll(&spent, &spent_secret, &KeyPair::generate().unwrap()).await.unwrap();
        for _ in 0..umbel_wire::limits::SPENT_TRIES {
            let answer = refusal(edge.enroll(&spent, &spent_secret, &key).await);
            assert_eq!(answer.0, Code::Conflict);
        }
        let answer = refusal(edge.enroll(&spent, &spent_secret, &key).await);
        assert_eq!((answer.0, answer.1.as_str()), (Code::ResourceExhausted, "TOO_MANY_GUESSES"));
        let (id, secret) = edge.token("second").await;
        edge.enroll(&id, &secret, &KeyPair::generate().unwrap()).await.unwrap();

        let (revoked, secret) = edge.token("third").await;
        edge.ask("enrollment.revoke", "", json!({ "token_id": revoked })).await.unwrap();
        for _ in 0..umbel_wire::limits::GUESSES {
            let answer = refusal(edge.enroll(&revoked, &secret, &key).await);
            assert_eq!((answer.0, answer.1.as_str()), (Code::Unauthenticated, "TOKEN_REFUSED"));
        }
        let answer = refusal(edge.enroll(&revoked, &secret, &key).await);
        assert_eq!((answer.0, answer.1.as_str()), (Code::ResourceExhausted, "TOO_MANY_GUESSES"));
    });
}

#[test]
fn what_operators_may_not_mint() {
    run(async {
        let edge = Edge::start().await;
        let sha = Secret::generate().hash().to_hex();
        let good = json!({ "token_id": token::new_id(), "secret_sha256": sha, "name": "n" });
        let with = |key: &str, value: serde_json::Value| {
            let mut args = good.clone();
            args[key] = value;
            args
        };
        for bad in [
            with("token_id", json!("x")),
            with("secret_sha256", json!("abc")),
            with("name", json!("")),
            with("expires_in_seconds", json!(86_401)),
            with("expires_in_seconds", json!(0)),
            with("unknown", json!(1)),
            json!({}),
        ] {
            let error = edge.ask("enrollment.create", "", bad.clone()).await.unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument, "{bad}: {}", error.message);
        }
        edge.ask("enrollment.create", "", good.clone()).await.unwrap();
        let again = edge.ask("enrollment.create", "", good).await.unwrap_err();
        assert_eq!((again.code, again.reason.as_ref()), (Code::Conflict, "TOKEN_EXISTS"));
        let listed = edge.ask("enrollment.list", "", json!({})).await.unwrap().result.unwrap();
        assert_eq!(listed["enrollments"].as_array().unwrap().len(), 1);
        assert!(!listed.to_string().contains(&sha), "no hash leaves the site");
    });
}

/// Names tell people which node is meant: one that another node has gets a number behind it.
#[test]
fn no_node_comes_in_under_the_name_of_another() {
    run(async {
        let edge = Edge::start().await;
        let longest = "n".repeat(63);
        let mut tokens = Vec::new();
        for name in ["gpu-1", "gpu-1", "gpu-1-2", &*longest, &*longest] {
            tokens.push(edge.token(name).await);
        }
        let enroll = async |(id, secret): &(String, Secret)| {
            edge.enroll(id, secret, &KeyPair::generate().unwrap()).await.unwrap().name
        };
        let mut names = Vec::new();
        for token in &tokens {
            names.push(enroll(token).await);
        }
        let cut = format!("{}-2", "n".repeat(61));
        assert_eq!(names, ["gpu-1", "gpu-1-2", "gpu-1-2-2", &*longest, &*cut]);
        // At once, too.
        let tokens = [edge.token("b").await, edge.token("b").await, edge.token("b").await];
        let mut names = futures_util::future::join_all(tokens.iter().map(&enroll)).await;
        names.sort();
        assert_eq!(names, ["b", "b-2", "b-3"]);
        // A node that is replaced keeps its name, and the name of one that is gone for good is free.
        assert_eq!(enroll(&edge.token_replacing("gpu-1").await).await, "gpu-1");
        edge.ask_confirmed("node:gpu-1", "gpu-1", json!({})).await.unwrap();
        until("it is gone for good", || {
            edge.running.site.nodes().1.iter().any(|node| node.is_tombstone() && node.row.name == "gpu-1")
        })
        .await;
        assert_eq!(enroll(&edge.token("gpu-1").await).await, "gpu-1");
    });
}

/// A full disk: the token is not spent, and the node enrolls when there is room again.
#[test]
fn a_full_disk_spends_no_token() {
    run(async {
        let edge = Edge::start().await;
        let (id, secret) = edge.token("n").await;
        let key = KeyPair::generate().unwrap();
        edge.disk.full(true);
        let answer = refusal(edge.enroll(&id, &secret, &key).await);
        assert_eq!((answer.0, answer.1.as_str()), (Code::Unavailable, "STORE_READ_ONLY"));
        let refused = edge.ask(
            "apikey.create",
            "",
            json!({
                "key_id": token::new_id(), "secret_sha256": Secret::generate().hash().to_hex(), "name": "k",
            }),
        );
        assert!(refused.await.is_err());
        edge.disk.full(false);
        let site = &edge.running.site;
        while !matches!(site.store.check().await, umbel_store::Health::Ok) {}
        edge.enroll(&id, &secret, &key).await.unwrap();
        let show = edge.ask("enrollment.list", "", json!({})).await.unwrap();
        assert_eq!(show.phase, CommandPhase::Succeeded);
    });
}

/// Row 11: a reinstalled host enrolls anew and is a second node; the name of the old one keeps nobody out.
#[test]
fn a_reinstalled_host_is_another_node() {
    run(async {
        let edge = Edge::start().await;
        let old = edge.node("h1").await;
        let connection = old.connect(&edge).await;
        connection.close(umbel_wire::CloseReason::Shutdown);
        let new = edge.node("h1").await;
        let _connection = new.connect(&edge).await;
        until("only the new one is connected", || edge.connected(&new) && !edge.connected(&old)).await;
        assert_eq!(edge.running.site.nodes().1.len(), 2);
        assert_ne!(old.id, new.id);
        assert_eq!(edge.view(&new).row.name, "h1-2");
    });
}

/// Row 24: the same host asks many times at once, as after lost answers: it is one node, one certificate, and never a
/// conflict with itself.
#[test]
fn one_key_at_once_is_one_node() {
    run(async {
        let edge = Edge::start().await;
        let (id, secret) = edge.token("n").await;
        let key = KeyPair::generate().unwrap();
        let attempts = (0..40).map(|_| edge.enroll(&id, &secret, &key));
        let answers: Vec<_> = futures_util::future::join_all(attempts).await;
        let first = answers[0].as_ref().unwrap();
        assert!(answers.iter().all(|answer| answer.as_ref().unwrap() == first));
        assert_eq!((edge.running.site.nodes().1.len(), edge.audit("token.used").await.len()), (1, 1));
        // The same key with two other tokens at once is one node all the same, until it was seen.
        let key = KeyPair::generate().unwrap();
        let tokens = [edge.token("a").await, edge.token("b").await];
        let (one, other) = tokio::join!(
            edge.enroll(&tokens[0].0, &tokens[0].1, &key),
            edge.enroll(&tokens[1].0, &tokens[1].1, &key)
        );
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!(one.node_id, other.node_id);
        assert_eq!(edge.running.site.nodes().1.len(), 2);
    });
}

/// An answer that was lost for good: a new token brings the host in as the node that it already is. Once it was seen,
/// its key enrolls nobody.
#[test]
fn a_host_that_never_came_enrolls_again() {
    run(async {
        let edge = Edge::start().await;
        let (id, secret) = edge.token("first").await;
        let key = KeyPair::generate().unwrap();
        let lost = edge.enroll(&id, &secret, &key).await.unwrap();
        let (id, secret) = edge.token("second").await;
        let answer = edge.enroll(&id, &secret, &key).await.unwrap();
        assert_eq!(answer.node_id, lost.node_id);
        assert_eq!(answer.name, "second", "the newest token's word counts");
        assert_eq!(edge.running.site.nodes().1.len(), 1);
        let node = FakeNode::new(key, &answer);
        let connection = node.connect(&edge).await;
        let (id, secret) = edge.token("third").await;
        let copied = refusal(edge.enroll(&id, &secret, &node.key).await);
        assert_eq!((copied.0, copied.1.as_str()), (Code::Conflict, "KEY_IN_USE"));
        assert!(copied.2.contains("remove the key file"), "{}", copied.2);
        assert!(edge.connected(&node), "the live one is not touched");
        drop(connection);
    });
}

/// A lost machine: the token's host becomes the node, with a new key; the old credential ends when the token is
/// claimed, not before, and with it the live connection.
#[test]
fn a_token_can_give_a_lost_node_a_new_host() {
    run(async {
        let edge = Edge::start().await;
        let old = edge.node("n").await;
        edge.ask("node.label", "node:n", json!({ "set": { "rack": "a" } })).await.unwrap();
        let connection = old.connect(&edge).await;
        let (id, secret) = edge.token_replacing("n").await;
        assert!(edge.connected(&old), "minting ends nothing");
        let same = refusal(edge.enroll(&id, &secret, &old.key).await);
        assert_eq!((same.0, same.1.as_str()), (Code::Conflict, "KEY_IN_USE"), "it takes a new key");
        // Its row changes while it is claimed: the claim still comes through, once.
        let keys: Vec<KeyPair> = (0..8).map(|_| KeyPair::generate().unwrap()).collect();
        let drain = edge.ask("node.eligible", "node:n", json!({ "eligible": false }));
        let attempts = keys.iter().map(|key| edge.enroll(&id, &secret, key));
        let (answers, drained) = tokio::join!(futures_util::future::join_all(attempts), drain);
        drained.unwrap();
        let won: Vec<_> =
            answers.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_ref().ok()?))).collect();
        let [(at, answer)] = won.as_slice() else { panic!("{} got in", won.len()) };
        assert_eq!(answer.node_id, old.id.to_string());
        assert_eq!(answer.name, "n");
        let closed = tokio::time::timeout(super::rig::TIME, connection.closed()).await.unwrap();
        assert!(matches!(closed, umbel_wire::CloseReason::ByPeer(goaway) if goaway.reason == "revoked"));
        assert_eq!(super::rig::reason(old.dial(&edge).await).1, "CREDENTIAL_REPLACED");
        let new = FakeNode::new(keys.into_iter().nth(*at).unwrap(), answer);
        let _connection = new.connect(&edge).await;
        let row = edge.view(&new).row.clone();
        assert_eq!((row.name.as_str(), row.eligible, row.labels.len()), ("n", false, 1), "its marks stay");
        let edge = edge.restart().await;
        assert_eq!(edge.running.site.nodes().1.len(), 1);
        let _again = new.connect(&edge).await;
        assert_eq!(super::rig::reason(old.dial(&edge).await).1, "CREDENTIAL_REPLACED");
        for (action, entries) in [("node.replaced", 1), ("node.credential.revoked", 1), ("token.used", 2)] {
            assert_eq!(edge.audit(action).await.len(), entries, "{action}");
        }
        let listed = edge.ask("enrollment.list", "", json!({})).await.unwrap().result.unwrap();
        let replacing =
            listed["enrollments"].as_array().unwrap().iter().filter(|one| one["replaces"].is_string());
        assert_eq!(replacing.count(), 1);
    });
}

/// What is replaced has to be there when the token is minted and when it is claimed.
#[test]
fn a_tombstone_has_no_successor() {
    run(async {
        let edge = Edge::start().await;
        let (node, twin) = (edge.node("n").await, edge.node("twin").await);
        // As stores of an earlier version have them.
        let twin = edge.view(&twin);
        let (row, position) = (twin.row.clone(), twin.position);
        let site = &edge.running.site;
        site.change(|registry| registry.insert(NodeId::random(), row, position, ReportRow::default()));
        let (id, secret) = edge.token_replacing(&node.id.to_string()).await;
        edge.ask_confirmed("node:n", "n", json!({})).await.unwrap();
        let late = refusal(edge.enroll(&id, &secret, &KeyPair::generate().unwrap()).await);
        assert_eq!((late.0, late.1.as_str()), (Code::Gone, "NODE_DECOMMISSIONED"));
        for (replace, code) in [("n", Code::Gone), ("nobody", Code::NotFound), ("twin", Code::Conflict)] {
            let args = json!({
                "token_id": token::new_id(), "secret_sha256": secret.hash().to_hex(), "name": "x", "replace": replace,
            });
            assert_eq!(edge.ask("enrollment.create", "", args).await.unwrap_err().code, code, "{replace}");
        }
    });
}

/// A credential that was ended since is not given out again, however its answer was lost; the audit says why.
#[test]
fn what_was_ended_is_not_repeated() {
    run(async {
        let edge = Edge::start().await;
        let mut tried = Vec::new();
        for name in ["revoked", "retired", "replaced"] {
            let (id, secret) = edge.token(name).await;
            let key = KeyPair::generate().unwrap();
            edge.enroll(&id, &secret, &key).await.unwrap();
            tried.push((id, secret, key));
        }
        edge.ask("node.credential.revoke", "node:revoked", json!({})).await.unwrap();
        edge.ask_confirmed("node:retired", "retired", json!({})).await.unwrap();
        let (id, secret) = edge.token_replacing("replaced").await;
        edge.enroll(&id, &secret, &KeyPair::generate().unwrap()).await.unwrap();
        for (id, secret, key) in &tried {
            let again = refusal(edge.enroll(id, secret, key).await);
            assert_eq!((again.0, again.1.as_str()), (Code::Unauthenticated, "TOKEN_REFUSED"));
        }
        let mut why = Vec::new();
        while why.len() < 3 {
            why = edge.audit("token.refused").await.into_iter().map(|one| one.record.detail).collect();
        }
        assert_eq!(why, ["credential_void"; 3]);
    });
}
