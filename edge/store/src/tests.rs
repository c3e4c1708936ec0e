//! What only the engine on disk can show: locks, damage, modes, a newer schema, kill -9 and a full disk.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::backend::{Backend, Space};
use crate::redb_file::RedbFile;
use crate::{AuditRecord, Commit, Health, OpenError, Owed, Store, WriteSwitch, verify};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn put(key: impl Into<String>, value: &str) -> Commit {
    Commit::new().put("t", key, value.as_bytes().to_vec())
}

#[test]
fn it_survives_a_restart_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    runtime().block_on(async {
        let store = Store::open(&path, "edge").unwrap();
        let incarnation = store.incarnation().to_owned();
        let position = store.commit(put("a", "1")).await.unwrap();
        store.close().await;
        let store = Store::open(&path, "edge").unwrap();
        assert_eq!(store.incarnation(), incarnation);
        assert_eq!(store.position().await.unwrap(), position);
        assert_eq!(store.load("t").await.unwrap()[0].value, b"1");
    });
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["store.redb"], "no temporary file is left");
}

#[test]
fn a_second_process_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let _held = Store::open(&path, "edge").unwrap();
    let error = Store::open(&path, "edge").unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    assert!(error.to_string().starts_with("state directory in use by another edge"), "{error}");
}

#[test]
fn files_of_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    runtime().block_on(async { Store::open(&path, "control-plane").unwrap().close().await });
    assert!(matches!(Store::open(&path, "edge"), Err(OpenError::WrongOwner { .. })));
    assert!(matches!(Store::open(&dir.path().join("no/such/dir"), "edge"), Err(OpenError::Io { .. })));

    let newer = dir.path().join("newer.redb");
    runtime().block_on(async { Store::open(&newer, "edge").unwrap().close().await });
    let (mut file, _) = RedbFile::open(&newer, "edge", WriteSwitch::default()).unwrap();
    file.write(&mut |tx| tx.put(Space::Meta, b"schema", &7_u32.to_be_bytes())).unwrap();
    drop(file);
    assert!(matches!(Store::open(&newer, "edge"), Err(OpenError::NewerSchema { found: 7, known: 2, .. })));
}

/// What a lost file knew is not taken for nothing: only who makes a directory makes a store.
#[test]
fn a_lost_store_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let missing = |path: &Path| matches!(Store::open_existing(path, "edge"), Err(OpenError::Missing { .. }));
    assert!(missing(&path) && !path.exists());
    std::fs::write(&path, "").unwrap();
    assert!(missing(&path) && std::fs::read(&path).unwrap().is_empty());
    std::fs::remove_file(&path).unwrap();
    drop(RedbFile::open(&path, "edge", WriteSwitch::default()).unwrap());
    assert!(missing(&path), "a file that nobody claimed is no store");
    Store::open(&path, "edge").unwrap().close_blocking();
    Store::open_existing(&path, "edge").unwrap().close_blocking();
}

#[test]
fn damage_is_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    runtime().block_on(async {
        let store = Store::open(&path, "edge").unwrap();
        for n in 0..200 {
            store.commit(put(format!("k{n}"), &"v".repeat(300))).await.unwrap();
        }
        store.close().await;
    });
    let text = dir.path().join("text.redb");
    std::fs::write(&text, "this is no database, but somebody's notes").unwrap();
    assert!(matches!(Store::open(&text, "edge"), Err(OpenError::Damaged { .. })));

    let cut = dir.path().join("cut.redb");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(Store::open(&cut, "edge"), Err(OpenError::Damaged { .. } | OpenError::Io { .. })));

    // A flipped byte is found when the file is opened, or stands in a page that nothing uses.
    for at in (8192..bytes.len() as u64).step_by(4096 * 3 + 100) {
        let flipped = dir.path().join("flipped.redb");
        std::fs::write(&flipped, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&flipped).unwrap();
        file.write_at(&[bytes[at as usize] ^ 0x55], at).unwrap();
        match Store::open(&flipped, "edge") {
            Err(OpenError::Damaged { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(store) => runtime().block_on(async {
                let rows = store.load("t").await.unwrap();
                assert!(rows.len() == 200 && rows.iter().all(|row| row.value.len() == 300));
                store.close().await;
            }),
        }
    }
}

const CHILD: &str = "UMBEL_STORE_TEST_CHILD";

/// Not a test of its own: the process that `kill_nine_loses_nothing_that_was_answered` kills.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    runtime().block_on(async {
        let store = Store::open(Path::new(&path), "edge").unwrap();
        let mut next = store.load("t").await.unwrap().len();
        loop {
            let batch: Vec<_> = (next..next + 5)
                .map(|n| {
                    let store = store.clone();
                    tokio::spawn(async move {
                        let audit = AuditRecord::new("put", n.to_string(), "succeeded");
                        store.commit(put(format!("{n:08}"), "value").audit(audit)).await.unwrap();
                        println!("done {n}");
                    })
                })
                .collect();
            for one in batch {
                one.await.unwrap();
            }
            next += 5;
        }
    });
}

/// Row 80: whatever was answered is there, the audit chain holds, and the file opens, each time.
#[test]
fn kill_nine_loses_nothing_that_was_answered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let mut answered = 0_usize;
    for round in 0..20_usize {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::child_that_writes_until_it_is_killed", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The first round dies at once, perhaps while the file is being made; later ones further on.
        let wanted = round * 7;
        let mut seen = 0;
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for line in lines.map_while(Result::ok) {
            if let Some(done) = line.split("done ").nth(1) {
                answered = answered.max(done.trim().parse::<usize>().unwrap() + 1);
                seen += 1;
            }
            if seen >= wanted {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        runtime().block_on(async {
            let store = Store::open(&path, "edge").unwrap();
            let rows = store.load("t").await.unwrap();
            assert!(rows.len() >= answered, "{} rows, {answered} answered", rows.len());
            let audit = store.audit_after(0, 1_000).await.unwrap();
            verify(&audit).unwrap();
            assert_eq!(store.audit_head().sequence as usize, rows.len());
            store.close().await;
        });
    }
}

/// Row 80 on a real small volume, where this user may mount one: ENOSPC refuses, loses nothing, recovers.
#[test]
fn a_small_volume_that_fills_up() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
        .arg(dir.path())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("skipped: no right to mount a small volume here");
        return;
    }
    let result = std::panic::catch_unwind(|| {
        runtime().block_on(async {
            let path = dir.path().join("store.redb");
            let store = Store::open(&path, "edge").unwrap();
            store.commit(put("first", "kept")).await.unwrap();
            let ballast = dir.path().join("ballast");
            std::fs::write(&ballast, vec![1; 8 * 1024 * 1024]).unwrap_err();
            let mut refused = false;
            for n in 0..200 {
                if store.commit(put(format!("k{n}"), &"v".repeat(100_000))).await.is_err() {
                    refused = true;
                    break;
                }
            }
            assert!(refused && matches!(store.health(), Health::ReadOnly(_)));
            // What is there can still be read.
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while store.get("t", "first").await.is_err() {
                assert!(std::time::Instant::now() < deadline, "not readable on a full disk");
                tokio::task::yield_now().await;
            }
            let entry = AuditRecord::new("revoke", "first", "succeeded");
            let owed = Owed::new().amend("t", "first", |_| Some(b"revoked".to_vec()));
            let settled = store.owe(owed.with(Commit::new().audit(entry))).unwrap();
            assert!(matches!(store.check().await, Health::ReadOnly(_)));
            std::fs::remove_file(&ballast).unwrap();
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while store.check().await != Health::Ok {
                assert!(std::time::Instant::now() < deadline, "not writable again");
                tokio::task::yield_now().await;
            }
            // Writable means: what was in force is written too. A kill from here on does not bring it back.
            assert_eq!(settled.await.unwrap()[0].row.as_ref().unwrap().value, b"revoked");
            store.close().await;
            let store = Store::open(&path, "edge").unwrap();
            assert_eq!(store.get("t", "first").await.unwrap().unwrap().value, b"revoked");
            assert_eq!(store.audit_tail(1).await.unwrap()[0].record.action, "revoke");
            store.close().await;
        });
    });
    let _ = Command::new("umount").arg(dir.path()).status();
    result.unwrap();
}

/// Changes that are committed each for itself share one transaction, and none stands in another's way.
#[tokio::test]
async fn commits_that_come_together_share_a_transaction() {
    let (store, disk) = Store::in_memory();
    let before = store.transactions();
    let put = |key: &str| Commit::new().require_absent("t", key).put("t", key, vec![1]);
    let outcomes = store.commit_each(vec![put("a"), put("b"), put("a"), put("")]).await;
    assert!(outcomes[0].is_ok() && outcomes[1].is_ok());
    assert!(outcomes[0].clone().unwrap() < outcomes[1].clone().unwrap());
    assert_eq!(outcomes[2], Err(crate::CommitError::Conflict(0)));
    assert!(matches!(outcomes[3], Err(crate::CommitError::TooLarge(_))));
    assert_eq!(store.transactions() - before, 1);
    disk.full(true);
    let outcomes = store.commit_each(vec![put("c"), put("d")]).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(crate::CommitError::ReadOnly(_)))));
    store.close().await;
    assert_eq!(store.commit_each(vec![put("e")]).await, [Err(crate::CommitError::Closed)]);
}
