//! The site's audit and store as operators and nodes meet them: searched, checked, backed up, restored, damaged, slow.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use umbel_contracts::objects::CommandPhase;
use umbel_store::{AuditRecord, Commit, Health, Store};
use umbel_wire::tls::KeyPair;
use umbel_wire::{Code, clock};

use super::rig::{Edge, TIME, beat, reason, run, until};
use crate::app::{STORE_FILE, STORE_OWNER};
use crate::core::tombstones::{TOMBSTONES, Tombstone};
use crate::shell::site::NODES;
use crate::shell::status;

async fn done(edge: &Edge, operation: &str, args: Value) -> Value {
    let standing = edge.ask(operation, "", args).await.unwrap();
    assert_eq!(standing.phase, CommandPhase::Succeeded, "{:?}", standing.error);
    standing.result.unwrap()
}

async fn problems(edge: &Edge) -> Vec<(String, String)> {
    let summary = status::summary(&edge.running.site).await;
    summary.problems.into_iter().map(|problem| (problem.code, problem.subject)).collect()
}

/// Changes a stored file as somebody with its rights can.
fn tamper(path: &Path, commit: Commit) {
    let path = path.to_owned();
    let changed = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let store = Store::open_existing(&path, STORE_OWNER).unwrap();
            store.commit(commit).await.unwrap();
            store.close().await;
        });
    });
    changed.join().unwrap();
}

#[test]
fn the_audit_is_searched_exported_and_checked() {
    run(async {
        let edge = Edge::start().await;
        for n in 0..5 {
            edge.token(&format!("n{n}")).await;
        }
        let node = edge.node("gpu-1").await;
        let _connection = node.connect(&edge).await;
        let minted = done(&edge, "audit.query", json!({ "action": "enrollment.*", "limit": 4 })).await;
        let entries = minted["entries"].as_array().unwrap();
        assert_eq!(entries.len(), 4);
        assert!(
            entries.iter().all(|entry| entry["action"] == "enrollment.create" && entry["actor"] == "local")
        );
        let next = minted["next_before"].as_u64().unwrap();
        let rest =
            done(&edge, "audit.query", json!({ "action": "enrollment.*", "before": next, "limit": 9 })).await;
        assert_eq!((rest["entries"].as_array().unwrap().len(), &rest["next_before"]), (2, &Value::Null));
        let of_node = done(&edge, "audit.query", json!({ "subject": node.id.to_string() })).await;
        assert!(of_node["entries"].as_array().unwrap().iter().any(|e| e["action"] == "node.enrolled"));
        let none = done(&edge, "audit.query", json!({ "outcome": "failed" })).await;
        assert_eq!(none["entries"], json!([]));
        for bad in [json!({ "limit": 0 }), json!({ "who": "x" })] {
            assert_eq!(edge.ask("audit.query", "", bad).await.unwrap_err().reason, "ARGS");
        }

        // Whoever keeps the export can check it by himself.
        let mut lines = Vec::new();
        let mut after = 0;
        loop {
            let page = done(&edge, "audit.export", json!({ "after": after, "limit": 3 })).await;
            lines.extend(page["lines"].as_array().unwrap().clone());
            match page["next_after"].as_u64() {
                Some(next) => after = next,
                None => break,
            }
        }
        let checked = done(&edge, "audit.verify", json!({})).await;
        assert_eq!((&checked["whole"], &checked["first_sequence"]), (&json!(true), &json!(1)));
        assert_eq!(checked["entries"].as_u64().unwrap() as usize, lines.len());
        let mut previous = vec![0; 32];
        for line in &lines {
            let text = |key: &str| line[key].as_str().unwrap().to_owned();
            assert_eq!(text("previous"), data_encoding::HEXLOWER.encode(&previous));
            previous = Sha256::digest([&previous[..], text("entry").as_bytes()].concat()).to_vec();
            assert_eq!(text("hash"), data_encoding::HEXLOWER.encode(&previous));
        }
        assert_eq!(checked["last_hash"], data_encoding::HEXLOWER.encode(&previous));
        assert!(lines.iter().all(|line| !line.to_string().contains("secret")));
    });
}

/// A backup is made while the site works. Restored, it is another incarnation: what was open is void, and who came later
/// is not simply unknown.
#[test]
fn a_backup_is_made_while_it_runs_and_restored() {
    run(async {
        let edge = Edge::start().await;
        let early = edge.node("early").await;
        let connection = early.connect(&edge).await;
        let (open, secret) = edge.token("open").await;
        let made = done(&edge, "edge.backup", json!({})).await;
        let file = edge.config.backup.dir.join(made["file"].as_str().unwrap());
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(made["bytes"].as_u64().unwrap() as usize, bytes.len());
        assert_eq!(made["sha256"], data_encoding::HEXLOWER.encode(&Sha256::digest(&bytes)));
        assert_eq!(edge.audit("edge.backup").await.len(), 1);
        let late = edge.node("late").await;
        let incarnation = edge.running.site.store.incarnation().to_owned();
        let generation = edge.view(&early).generation;
        assert!(matches!(crate::restore(&edge.config, &file), Err(crate::StartError::Refused(_))), "it runs");
        drop(connection);

        let mut told = None;
        let edge = edge
            .meanwhile(false, |config| {
                let config = config.clone();
                let restored = std::thread::spawn(move || crate::restore(&config, &file)).join().unwrap();
                told = Some(restored.unwrap());
            })
            .await;
        let told = told.unwrap();
        assert_eq!((told.voided, told.kept.is_some_and(|kept| kept.exists())), (1, true));
        let site = &edge.running.site;
        assert!(told.incarnation != incarnation && told.incarnation == site.store.incarnation());
        assert_eq!(site.store.restored_at(), Some(told.made_at.as_millisecond()));
        assert!(problems(&edge).await.iter().any(|(code, _)| code == "STORE_RESTORED"));
        let _connection = early.connect(&edge).await;
        assert!(edge.view(&early).generation > generation, "generations only grow");
        let key = KeyPair::generate().unwrap();
        assert!(edge.enroll(&open, &secret, &key).await.is_err(), "an open token is void");
        assert!(late.dial(&edge).await.is_err(), "who came after the backup is not let in unseen");
        assert_eq!(edge.audit("store.restored").await.len(), 1);
    });
}

/// Row 102: an edge whose disk is full when it starts serves, refuses changes, and is whole again with room.
#[test]
fn row_102_it_starts_and_serves_on_a_full_disk() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        let generation = edge.view(&node).generation;
        drop(connection);
        let edge = edge.meanwhile(true, |_| ()).await;
        assert!(problems(&edge).await.iter().any(|(code, _)| code == "STORE_READ_ONLY"), "before any write");
        let _connection = node.connect(&edge).await;
        assert!(edge.connected(&node) && edge.slot().is_some());
        assert!(edge.view(&node).generation > generation);
        let refused = edge.ask("node.eligible", "node:n", json!({ "eligible": false })).await.unwrap_err();
        assert_eq!(refused.reason, "AUDIT_UNAVAILABLE");
        assert!(problems(&edge).await.iter().any(|(code, _)| code == "STORE_READ_ONLY"));
        edge.ask("node.drain", "node:n", json!({})).await.unwrap();
        assert!(edge.slot().is_none(), "a drain takes force");
        edge.disk.full(false);
        let deadline = clock::now() + TIME;
        while edge.running.site.store.check().await != Health::Ok {
            assert!(clock::now() < deadline, "never writable");
            tokio::task::yield_now().await;
        }
        let told = edge.running.site.store.audit_after(0, 1_000).await.unwrap();
        let place = |action: &str| told.iter().position(|entry| entry.record.action == action).unwrap();
        assert!(place("audit.gap") < place("node.drain"), "the gap is told before what was kept");
        assert_eq!(done(&edge, "audit.verify", json!({})).await["whole"], true);
        let edge = edge.crash().await;
        assert!(edge.view(&node).row.draining);
    });
}

/// Row 103: one record of a shape that nobody knows stops nobody else, and is told by name.
#[test]
fn row_103_one_bad_record_does_not_stop_the_site() {
    run(async {
        let edge = Edge::start().await;
        let (good, bad) = (edge.node("good").await, edge.node("bad").await);
        let id = bad.id.to_string();
        let edge = edge
            .meanwhile(false, |config| {
                let row = json!({ "schema": "of the future" });
                tamper(&config.state_dir.join(STORE_FILE), Commit::new().put_json(NODES, id.clone(), &row));
            })
            .await;
        let _connection = good.connect(&edge).await;
        assert!(edge.connected(&good));
        assert!(bad.dial(&edge).await.is_err(), "whom nobody knows is not let in");
        let told = problems(&edge).await;
        assert!(told.contains(&("RECORD_UNREADABLE".to_owned(), format!("{NODES}/{id}"))), "{told:?}");
    });
}

/// Row 103: a damaged file is moved aside, what verifies is the site, and both are told.
#[test]
fn row_103_a_damaged_file_is_moved_aside_and_the_site_goes_on() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        edge.running.site.flush().await;
        let edge = edge
            .meanwhile(false, |config| {
                let path = config.state_dir.join(STORE_FILE);
                // A word of the audit, wherever it stands: nothing of the nodes.
                let bytes = std::fs::read(&path).unwrap();
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                for at in (0..bytes.len()).filter(|from| bytes[*from..].starts_with(b"enrollment.create")) {
                    file.write_at(b"enrollment.cREATE", at as u64).unwrap();
                }
            })
            .await;
        let aside: Vec<_> = std::fs::read_dir(&edge.config.state_dir)
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".damaged-"))
            .collect();
        assert_eq!(aside.len(), 1);
        assert!(problems(&edge).await.iter().any(|(code, _)| code == "STORE_RESCUED"));
        let _connection = node.connect(&edge).await;
        assert!(edge.connected(&node), "credentials are kept");
        let told = edge.audit("store.rescued").await;
        assert_eq!(told.len(), 1);
        let summary = status::summary(&edge.running.site).await;
        let problem = summary.problems.iter().find(|one| one.code == "STORE_RESCUED").unwrap();
        for said in [&told[0].record.detail, &problem.message] {
            assert!(said.contains("audit entries are lost, numbers 1 to "), "{said}");
        }
        let verified = done(&edge, "audit.verify", json!({})).await;
        assert_eq!((&verified["whole"], &verified["broken_at"]), (&json!(false), &Value::Null));
        assert!(verified["message"].as_str().unwrap().contains("cut the chain"), "{verified}");
    });
}

/// Changes a word wherever it stands in a stored file.
fn damage(config: &crate::Config, word: &[u8], other: &[u8]) {
    let path = config.state_dir.join(STORE_FILE);
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    for at in (0..bytes.len()).filter(|from| bytes[*from..].starts_with(word)) {
        file.write_at(other, at as u64).unwrap();
    }
}

/// Row 103: what people ended stays ended when the node's row is lost; a node of which nothing is known any more comes
/// back disabled.
#[test]
fn row_103_a_tombstone_holds_without_its_row() {
    run(async {
        let edge = Edge::start().await;
        let (gone, revoked, lost) =
            (edge.node("n-gone").await, edge.node("n-revoked").await, edge.node("n-lost").await);
        edge.ask_confirmed("node:n-gone", "n-gone", json!({})).await.unwrap();
        edge.ask("node.credential.revoke", "node:n-revoked", json!({})).await.unwrap();
        let stones = |edge: &Edge| {
            let store = edge.running.site.store.clone();
            async move { store.load_json::<Tombstone>(TOMBSTONES).await.unwrap() }
        };
        let first = stones(&edge).await;
        assert_eq!(first.len(), 2);
        // A store from before they stood apart is filled from the rows.
        let ids = [gone.id.to_string(), revoked.id.to_string()];
        let edge = edge
            .meanwhile(false, |config| {
                let none = ids.into_iter().fold(Commit::new(), |commit, id| commit.remove(TOMBSTONES, id));
                tamper(&config.state_dir.join(STORE_FILE), none);
            })
            .await;
        let again: Vec<_> = stones(&edge).await.into_iter().map(|(_, stone)| stone).collect();
        assert_eq!(again, first.into_iter().map(|(_, stone)| stone).collect::<Vec<_>>());

        let edge = edge.meanwhile(false, |config| damage(config, b"\"name\":\"n-", b"\"name\":\"N-")).await;
        assert!(edge.running.site.nodes().1.is_empty(), "every row is lost");
        for _ in 0..2 {
            assert_eq!(reason(gone.dial(&edge).await), (Code::Gone, "NODE_DECOMMISSIONED".to_owned()));
            assert_eq!(reason(revoked.dial(&edge).await).1, "CREDENTIAL_REVOKED");
            assert_eq!(reason(lost.dial(&edge).await).1, "CREDENTIAL_HELD");
        }
        let (token, secret) = edge.token("again").await;
        let refused = edge.enroll(&token, &secret, &gone.key).await.unwrap_err();
        assert_eq!(refused.rejection.unwrap().error.reason, "KEY_IN_USE");
        let summary = status::summary(&edge.running.site).await;
        let held: Vec<_> = summary.problems.iter().filter(|one| one.code == "CREDENTIAL_HELD").collect();
        assert_eq!(held.len(), 1, "only whom nobody ended waits");
        assert!(held[0].message.contains("rescued: its row is lost"), "{}", held[0].message);
        let request = lost.key.signing_request().unwrap();
        let key = umbel_wire::ca::request_key_hash(&request).unwrap().to_string();
        done(&edge, "node.credential.approve", json!({ "key_sha256": key })).await;
        assert_eq!(reason(lost.dial(&edge).await).1, "NODE_DISABLED");
        edge.ask("node.enable", &format!("node:{}", lost.id), json!({})).await.unwrap();
        let _connection = lost.connect(&edge).await;
        let edge = edge.restart().await;
        assert_eq!(reason(gone.dial(&edge).await).1, "NODE_DECOMMISSIONED");
    });
}

/// Row 106: a disk that takes a second for each sync delays what is to be durable and nothing else.
#[test]
fn row_106_a_slow_disk_makes_nobody_stale() {
    run(async {
        let edge =
            Edge::start_with("[liveness]\nheartbeat = \"100ms\"\nstale = \"500ms\"\noffline = \"5s\"\n")
                .await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        edge.disk.slow(Duration::from_secs(1));
        let minting: Vec<_> = (0..4)
            .map(|n| {
                let store = edge.running.site.store.clone();
                tokio::spawn(async move {
                    let record = AuditRecord::new("test", n.to_string(), "observed");
                    store.commit(Commit::new().audit(record)).await.unwrap();
                })
            })
            .collect();
        let mut sequence = 1;
        while !minting.iter().all(tokio::task::JoinHandle::is_finished) {
            sequence += 1;
            beat(&connection, sequence).await.unwrap();
            status::summary(&edge.running.site).await;
            assert!(edge.slot().is_some(), "requests are placed meanwhile");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(sequence > 10, "heartbeats went on while the disk was busy");
        assert_eq!(edge.view(&node).state(), "online");
        edge.disk.slow(Duration::ZERO);
        assert!(edge.audit("node_stale").await.is_empty());
    });
}

/// Rows 107 and 108: what is told while the audit cannot be written follows when it can; repeats are one entry and a
/// count; everything is accounted for.
#[test]
fn rows_107_and_108_nothing_told_is_lost_and_repeats_are_folded() {
    run(async {
        let edge = Edge::start().await;
        let site = &edge.running.site;
        let told = |n: usize| AuditRecord::new("test.seen", n.to_string(), "observed").by("edge");
        for n in 0..1_000 {
            site.audit_soon(vec![told(n)]);
        }
        edge.disk.full(true);
        assert!(matches!(site.store.check().await, Health::ReadOnly(_)));
        for n in 1_000..2_000 {
            site.audit_soon(vec![told(n)]);
        }
        for _ in 0..5_000 {
            site.audit_soon(vec![AuditRecord::new("test.flood", "x", "refused").by("edge")]);
        }
        tokio::task::yield_now().await;
        edge.disk.full(false);
        let deadline = clock::now() + TIME;
        while site.store.check().await != Health::Ok {
            assert!(clock::now() < deadline, "never writable");
            tokio::task::yield_now().await;
        }
        until("all of them are kept", || site.store.owed() == 0).await;
        site.observed.flush(clock::now()).await;
        let mut seen = std::collections::BTreeSet::new();
        let mut flood = Vec::new();
        let mut after = 0;
        loop {
            let page = site.store.audit_after(after, 1_000).await.unwrap();
            let Some(last) = page.last() else { break };
            after = last.sequence;
            for entry in page {
                match entry.record.action.as_str() {
                    "test.seen" => assert!(seen.insert(entry.record.subject), "twice"),
                    "test.flood" => flood.push(entry.record.detail),
                    _ => {}
                }
            }
        }
        assert_eq!(seen.len(), 2_000, "count in is count out");
        assert_eq!((flood.len(), flood[1].split(' ').next()), (2, Some("4999")));
        assert_eq!(edge.audit("audit.gap").await.len(), 1);
        assert_eq!(done(&edge, "audit.verify", json!({})).await["whole"], true);
    });
}
