//! What every engine must do, run on redb and in memory alike.
//!
//! Owns one function a rule; `both` runs it on each engine.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use quickcheck::{Arbitrary, Gen, quickcheck};

use crate::{
    AuditRecord, Commit, CommitError, Health, HighWater, Owed, Position, Store, WriteSwitch, limits, verify,
};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs a rule on each engine.
fn both<F: AsyncFn(Store, WriteSwitch)>(rule: F) {
    let runtime = runtime();
    runtime.block_on(async {
        let (store, switch) = Store::in_memory();
        rule(store, switch).await;
        let dir = tempfile::tempdir().unwrap();
        let switch = WriteSwitch::default();
        let store = Store::open_switched(&dir.path().join("store.redb"), "edge", switch.clone()).unwrap();
        rule(store, switch).await;
    });
}

fn put(key: &str, value: &str) -> Commit {
    Commit::new().put("t", key, value.as_bytes().to_vec())
}

#[test]
fn a_commit_is_all_or_nothing() {
    both(async |store, _| {
        let first = store.commit(put("a", "1")).await.unwrap();
        let failing = put("b", "2")
            .put("t", "c", b"3".to_vec())
            .remove("t", "a")
            .require_present("t", "a")
            .require_absent("t", "a")
            .audit(AuditRecord::new("x", "b", "succeeded"));
        assert_eq!(store.commit(failing).await, Err(CommitError::Conflict(1)));
        let rows = store.load("t").await.unwrap();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].position, first);
        assert_eq!(store.audit_head().sequence, 0);
        assert_eq!(store.position().await.unwrap(), first);
    });
}

#[test]
fn a_part_of_a_table_is_read_page_by_page() {
    both(async |store, _| {
        for key in ["a/1", "a/2", "a/3", "b/1"] {
            store.commit(put(key, key)).await.unwrap();
        }
        store.commit(Commit::new().put("u", "a/9", b"other".to_vec())).await.unwrap();
        let (mut keys, mut from) = (Vec::new(), Some("a/".to_owned()));
        while let Some(at) = from {
            let (rows, next) = store.load_range("t", &at, "a0", 2).await.unwrap();
            keys.extend(rows.into_iter().map(|row| row.key));
            from = next;
        }
        assert_eq!(keys, ["a/1", "a/2", "a/3"]);
        let (rows, next) = store.load_range("t", "c", "d", 2).await.unwrap();
        assert_eq!((rows.len(), next), (0, None));
    });
}

#[test]
fn positions_guard_against_lost_updates() {
    both(async |store, _| {
        let first = store.commit(put("a", "1")).await.unwrap();
        let second = store.commit(put("a", "2").require_at("t", "a", first)).await.unwrap();
        assert!(second > first);
        let late = store.commit(put("a", "3").require_at("t", "a", first)).await;
        assert_eq!(late, Err(CommitError::Conflict(0)));
        assert_eq!(store.get("t", "a").await.unwrap().unwrap().value, b"2");
        let absent = Commit::new().require_at("t", "nobody", first);
        assert_eq!(store.commit(absent).await, Err(CommitError::Conflict(0)));
    });
}

#[test]
fn one_of_sixty_conditional_writes_wins() {
    both(async |store, _| {
        store.commit(put("token", "open")).await.unwrap();
        let open = store.position().await.unwrap();
        let claims = (0..60).map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let claim = put("token", &format!("claimed by {n}")).require_at("t", "token", open);
                store.commit(claim.put("nodes", format!("n{n}"), b"row".to_vec())).await
            })
        });
        let mut won = 0;
        for claim in claims.collect::<Vec<_>>() {
            match claim.await.unwrap() {
                Ok(_) => won += 1,
                Err(error) => assert_eq!(error, CommitError::Conflict(0)),
            }
        }
        assert_eq!(won, 1);
        assert_eq!(store.load("nodes").await.unwrap().len(), 1);
    });
}

#[test]
fn tables_do_not_mix() {
    both(async |store, _| {
        store
            .commit(Commit::new().put("ab", "c", b"1".to_vec()).put("a", "bc", b"2".to_vec()))
            .await
            .unwrap();
        assert_eq!(store.load("a").await.unwrap()[0].key, "bc");
        assert_eq!(store.load("ab").await.unwrap()[0].key, "c");
        assert!(store.load("abc").await.unwrap().is_empty());
    });
}

#[test]
fn changes_are_told_until_they_are_gone() {
    both(async |store, _| {
        let start = store.position().await.unwrap();
        store.commit(put("a", "1")).await.unwrap();
        let middle = store.commit(put("b", "1")).await.unwrap();
        store.commit(Commit::new().remove("t", "a")).await.unwrap();
        let all = store.changes_since(start).await.unwrap().unwrap();
        assert_eq!(all.iter().map(|change| change.key.as_str()).collect::<Vec<_>>(), ["a", "b", "a"]);
        assert!(all[2].row.is_none());
        assert_eq!(store.changes_since(middle).await.unwrap().unwrap().len(), 1);
        let future = Position(store.position().await.unwrap().0 + 1);
        assert!(store.changes_since(future).await.unwrap().is_err());
        let jobs: Vec<_> = (0..limits::CHANGES_KEPT)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { store.commit(put(&format!("k{}", n % 7), "v")).await })
            })
            .collect();
        for job in jobs {
            job.await.unwrap().unwrap();
        }
        let gone = store.changes_since(start).await.unwrap().unwrap_err();
        assert_eq!(gone.asked, start);
        assert_eq!(
            store.changes_since(gone.oldest).await.unwrap().unwrap().len() as u64,
            limits::CHANGES_KEPT
        );
    });
}

#[test]
fn the_audit_is_a_chain() {
    both(async |store, _| {
        for n in 0..20 {
            let record = AuditRecord::new("node.drain", format!("n{n}"), "succeeded").by("local");
            store.commit(Commit::new().audit(record.clone()).audit(record)).await.unwrap();
        }
        let entries = store.audit_after(0, 1_000).await.unwrap();
        assert_eq!(entries.len(), 40);
        verify(&entries).unwrap();
        let head = store.audit_head();
        assert_eq!((head.sequence, head.hash), (40, entries[39].hash));
        assert_eq!(store.audit_tail(3).await.unwrap(), entries[37..]);
        assert_eq!(store.audit_after(38, 1).await.unwrap(), entries[38..39]);
        let mut cut = entries.clone();
        cut.remove(7);
        assert_eq!(verify(&cut).unwrap_err().sequence, 9);
        let mut moved = entries;
        moved[5].previous = [1; 32];
        assert_eq!(verify(&moved).unwrap_err().sequence, 6);
    });
}

/// A full disk (row 80): nothing is lost, nothing is half done, and it works again when there is room.
#[test]
fn a_full_disk_makes_it_read_only_until_there_is_room() {
    both(async |store, switch| {
        let before = store.commit(put("a", "1")).await.unwrap();
        switch.full(true);
        let refused = store.commit(put("a", "2").audit(AuditRecord::new("x", "a", "succeeded"))).await;
        assert!(matches!(refused, Err(CommitError::ReadOnly(_))), "{refused:?}");
        assert!(matches!(store.health(), Health::ReadOnly(_)));
        assert!(matches!(store.check().await, Health::ReadOnly(_)));
        // Reads go on, at once and all the time.
        assert_eq!(store.get("t", "a").await.unwrap().unwrap().value, b"1");
        switch.full(false);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while store.check().await != Health::Ok {
            assert!(std::time::Instant::now() < deadline, "not writable again");
            tokio::task::yield_now().await;
        }
        assert_eq!(store.health(), Health::Ok);
        let row = store.get("t", "a").await.unwrap().unwrap();
        assert_eq!((row.value.as_slice(), row.position), (b"1".as_slice(), before));
        // Nothing of what was refused, but that it was.
        let told = store.audit_tail(9).await.unwrap();
        assert_eq!((told.len(), told[0].record.action.as_str()), (1, "audit.gap"));
        assert!(told[0].record.detail.contains("1 were refused"), "{:?}", told[0].record);
        store.commit(put("a", "3").require_at("t", "a", before)).await.unwrap();
    });
}

/// What took force on a full disk is written first of all when there is room, in its order, with its audit.
#[test]
fn what_is_owed_is_written_before_anything_else() {
    both(async |store, switch| {
        store.commit(put("a", "1").put("t", "b", b"1".to_vec())).await.unwrap();
        switch.full(true);
        assert!(store.commit(put("a", "2")).await.is_err());
        let add = |text: &'static str| move |old: &[u8]| Some([old, text.as_bytes()].concat());
        let entry = |what| {
            Commit::new().require_present("t", "nobody").audit(AuditRecord::new(what, "a", "succeeded"))
        };
        let first = store.owe(Owed::new().amend("t", "a", add("x")).with(entry("first"))).unwrap();
        let second =
            Owed::new().amend("t", "a", add("y")).amend("t", "gone", add("z")).amend("t", "b", |_| None);
        let second = store.owe(second.with(entry("second").put("t", "c", b"1".to_vec()))).unwrap();
        assert!(store.commit(put("a", "3")).await.is_err());
        assert_eq!((store.owed(), store.get("t", "c").await.ok().flatten()), (2, None));
        switch.full(false);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let after = loop {
            // The first commit that succeeds finds it written.
            match store
                .commit(Commit::new().require_present("t", "c").audit(AuditRecord::new(
                    "after",
                    "a",
                    "succeeded",
                )))
                .await
            {
                Ok(position) => break position,
                Err(error) => assert!(matches!(error, CommitError::ReadOnly(_)), "{error}"),
            }
            assert!(std::time::Instant::now() < deadline, "not writable again");
            tokio::task::yield_now().await;
        };
        assert_eq!((store.owed(), store.health()), (0, Health::Ok));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!(first[0].row.as_ref().unwrap().value, b"1x");
        let told: Vec<_> =
            second.iter().map(|change| (change.key.as_str(), change.row.clone().unwrap())).collect();
        assert_eq!(told.len(), 2);
        assert_eq!((told[0].0, told[0].1.value.as_slice()), ("a", b"1xy".as_slice()));
        assert_eq!((told[1].0, told[1].1.value.as_slice()), ("b", b"1".as_slice()));
        assert!(first[0].position < second[0].position && second[0].position < after);
        let entries = store.audit_after(0, 9).await.unwrap();
        verify(&entries).unwrap();
        let actions: Vec<_> = entries.iter().map(|entry| entry.record.action.as_str()).collect();
        // A gap is told before what was kept for later: two were refused in it.
        assert_eq!(actions, ["audit.gap", "first", "second", "after"]);
        assert!(entries[0].record.detail.contains("2 changes took force"), "{:?}", entries[0].record);
        assert!(entries[1].record.at_unix_ms <= entries[3].record.at_unix_ms);
    });
}

/// An end in order writes it too; its number is bounded.
#[test]
fn what_is_owed_is_bounded_and_written_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    runtime().block_on(async {
        let store = Store::open(&path, "edge").unwrap();
        for n in 0..limits::OWED_OPERATIONS {
            store.owe(Owed::new().with(put(&n.to_string(), "v"))).unwrap();
        }
        assert!(matches!(store.owe(Owed::new()), Err(CommitError::TooLarge(_))));
        store.close().await;
        let store = Store::open(&path, "edge").unwrap();
        assert_eq!(store.load("t").await.unwrap().len(), limits::OWED_OPERATIONS);
        store.close().await;
    });
}

#[test]
fn marks_only_grow_and_go_on_without_a_disk() {
    both(async |store, switch| {
        let mark = HighWater::open(&store, "generation", 8).await.unwrap();
        let mut last = 0;
        for _ in 0..100 {
            let next = mark.take();
            assert!(next > last);
            last = next;
            // Lets the writer answer the reservation of the next block.
            store.commit(Commit::new()).await.unwrap();
        }
        let second = HighWater::open(&store, "generation", 8).await.unwrap();
        assert!(second.take() > last);
        switch.full(true);
        for _ in 0..100 {
            let next = mark.take();
            assert!(next > last);
            last = next;
        }
    });
}

#[test]
fn bounds_are_errors() {
    both(async |store, _| {
        let long = "k".repeat(limits::KEY + 1);
        let large = vec![0; limits::VALUE + 1];
        let mut many = Commit::new();
        for n in 0..=limits::EFFECTS {
            many = many.put("t", n.to_string(), b"v".to_vec());
        }
        for commit in [
            put(&long, "v"),
            put("", "v"),
            Commit::new().put("t", "k", large),
            Commit::new().put("t", "k", Vec::new()),
            Commit::new().put("", "k", b"v".to_vec()),
            many,
        ] {
            assert!(matches!(store.commit(commit).await, Err(CommitError::TooLarge(_))));
        }
        assert!(store.load("t").await.unwrap().is_empty());
        let cut = AuditRecord::new("a", "ä".repeat(limits::AUDIT_FIELD), "succeeded");
        store.commit(Commit::new().audit(cut)).await.unwrap();
        assert!(store.audit_tail(1).await.unwrap()[0].record.subject.len() <= limits::AUDIT_FIELD);
    });
}

#[test]
fn a_closed_store_says_so() {
    both(async |store, _| {
        store.commit(put("a", "1")).await.unwrap();
        store.close().await;
        assert_eq!(store.commit(put("a", "2")).await, Err(CommitError::Closed));
        assert!(store.load("t").await.is_err());
        store.close().await;
    });
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    PutIfAbsent(u8, u8),
    PutIfPresent(u8, u8),
    Remove(u8),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let key = u8::arbitrary(g) % 6;
        let value = u8::arbitrary(g);
        match u8::arbitrary(g) % 4 {
            0 => Step::Put(key, value),
            1 => Step::PutIfAbsent(key, value),
            2 => Step::PutIfPresent(key, value),
            _ => Step::Remove(key),
        }
    }
}

quickcheck! {
    /// Any history, committed together or apart, leaves both engines as a plain map would be.
    fn histories_match_a_map(steps: Vec<Step>) -> bool {
        let model = steps.iter().fold(BTreeMap::new(), |mut map, step| {
            match *step {
                Step::Put(key, value) => { map.insert(key.to_string(), vec![value]); }
                Step::PutIfAbsent(key, value) => { map.entry(key.to_string()).or_insert(vec![value]); }
                Step::PutIfPresent(key, value) => {
                    if let Some(old) = map.get_mut(&key.to_string()) { *old = vec![value]; }
                }
                Step::Remove(key) => { map.remove(&key.to_string()); }
            }
            map
        });
        both(async |store, _| {
            // Submitted in order without waiting, so they share transactions.
            let mut answers = Vec::new();
            for step in &steps {
                let commit = match *step {
                    Step::Put(key, value) => Commit::new().put("t", key.to_string(), vec![value]),
                    Step::PutIfAbsent(key, value) => {
                        Commit::new().require_absent("t", key.to_string()).put("t", key.to_string(), vec![value])
                    }
                    Step::PutIfPresent(key, value) => {
                        Commit::new().require_present("t", key.to_string()).put("t", key.to_string(), vec![value])
                    }
                    Step::Remove(key) => Commit::new().remove("t", key.to_string()),
                };
                let store = store.clone();
                answers.push(tokio::spawn(async move { store.commit(commit).await }));
            }
            for answer in answers {
                assert!(matches!(answer.await.unwrap(), Ok(_) | Err(CommitError::Conflict(0))));
            }
            let rows = store.load("t").await.unwrap();
            let stored: BTreeMap<_, _> = rows.into_iter().map(|row| (row.key, row.value)).collect();
            assert_eq!(stored, model);
        });
        true
    }
}
