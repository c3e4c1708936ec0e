//! What keeps a store safe: damage, backups, restoring, migrations, a slow disk, a file that does not grow.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod audit;

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::backend::{Backend, Space};
use crate::backup::keep_newest;
use crate::redb_file::RedbFile;
use crate::{
    AuditRecord, BackupError, Commit, CommitError, Health, HighWater, OpenError, Position, RestoreError,
    Restoring, Store, WriteSwitch,
};

const SOON: Duration = Duration::from_secs(30);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

fn put(key: impl Into<String>, value: impl Into<Vec<u8>>) -> Commit {
    Commit::new().put("t", key, value.into())
}

fn audited(n: usize) -> Commit {
    put(format!("k{n:05}"), format!("value {n} {}", "v".repeat(n % 300)))
        .audit(AuditRecord::new("put", n.to_string(), "succeeded").by("test"))
}

async fn filled(path: &Path, rows: usize) {
    let store = Store::open(path, "edge").unwrap();
    for part in (0..rows).collect::<Vec<_>>().chunks(100) {
        let outcomes = store.commit_each(part.iter().map(|n| audited(*n)).collect()).await;
        assert!(outcomes.iter().all(Result::is_ok));
    }
    HighWater::open(&store, "generation", 1_000).await.unwrap();
    store.close().await;
}

async fn rows(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.load("t").await.unwrap().into_iter().map(|row| (row.key, row.value)).collect()
}

fn beside(path: &Path, what: &str) -> Vec<PathBuf> {
    let begins = format!("{}.{what}", path.file_name().unwrap().to_str().unwrap());
    let entries = std::fs::read_dir(path.parent().unwrap()).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(&begins))
        .collect()
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Rounds of damage: as many as the environment wants (500 and more by hand), else what a run of all tests has time for.
fn rounds() -> u64 {
    std::env::var("UMBEL_DAMAGE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60)
}

/// A place where a sync costs nothing, if there is one.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Row 103: files with a flipped byte or a cut end. Each opens with nothing but rows that were written, or is refused
/// the same way each time; what is lost is told, the damaged file is kept, and a store that opened works.
#[test]
fn row_103_damage_never_makes_a_loop_and_nothing_false_is_believed() {
    let dir = memory();
    let whole = dir.path().join("whole.redb");
    run(async { filled(&whole, 600).await });
    let bytes = std::fs::read(&whole).unwrap();
    let (mut dice, mut untouched, mut rescued, mut refused) = (Dice(7), 0, 0, 0);
    for round in 0..rounds() {
        let home = dir.path().join(round.to_string());
        std::fs::create_dir(&home).unwrap();
        let path = home.join("store.redb");
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        if round % 10 == 9 {
            file.set_len(dice.roll(bytes.len() as u64)).unwrap();
        } else {
            let at = dice.roll(bytes.len() as u64);
            let flip = u8::try_from(dice.roll(255) + 1).unwrap();
            file.write_at(&[bytes[usize::try_from(at).unwrap()] ^ flip], at).unwrap();
        }
        drop(file);
        run(async {
            match Store::open_rescuing(&path, "edge") {
                Ok(store) => {
                    let found = rows(&store).await;
                    for (key, value) in &found {
                        let n: usize = key[1..].parse().unwrap();
                        assert_eq!(*value, format!("value {n} {}", "v".repeat(n % 300)).into_bytes());
                    }
                    let check = store.audit_check().await.unwrap();
                    assert_eq!(check.broken, None, "round {round}");
                    if store.origin().is_some() {
                        rescued += 1;
                        assert_eq!((store.restored_at(), beside(&path, "damaged-").len()), (Some(0), 1));
                        let told = store.audit_tail(1).await.unwrap();
                        assert_eq!(told[0].record.action, "store.rescued");
                        let mark = HighWater::open(&store, "generation", 1_000).await.unwrap();
                        assert!(mark.take() > 2_000, "generations go on above");
                    } else {
                        untouched += 1;
                        assert_eq!(found.len(), 600);
                    }
                    store.commit(audited(600)).await.unwrap();
                    store.close().await;
                    let store = Store::open_existing(&path, "edge").unwrap();
                    assert_eq!(rows(&store).await.len(), found.len() + 1);
                    store.close().await;
                }
                Err(first) => {
                    refused += 1;
                    let again = Store::open_rescuing(&path, "edge").unwrap_err();
                    assert_eq!(again.to_string(), first.to_string());
                    assert!(beside(&path, "rescue").is_empty(), "round {round}");
                }
            }
        });
        std::fs::remove_dir_all(&home).unwrap();
    }
    eprintln!("{untouched} untouched, {rescued} rescued, {refused} refused");
    assert!(rescued > 0 && untouched > 0);
}

/// A rescue that broke off (the damage ended the process) is not tried again.
#[test]
fn a_rescue_that_broke_off_is_not_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async { filled(&path, 50).await });
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
    std::fs::write(dir.path().join("store.redb.rescue"), "").unwrap();
    for _ in 0..2 {
        assert!(matches!(Store::open_rescuing(&path, "edge"), Err(OpenError::Damaged { .. })));
    }
    assert!(beside(&path, "damaged-").is_empty());
}

/// Row 103, one record of its own: it is passed over and named, and its place is not given away.
#[test]
fn one_record_that_cannot_be_used_is_passed_over_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async { filled(&path, 5).await });
    let (mut file, _) = RedbFile::open_existing(&path, "edge", WriteSwitch::default()).unwrap();
    file.write(&mut |tx| {
        let mut stored = tx.get(Space::Rows, b"t\0k00003")?.unwrap();
        stored[20] ^= 1;
        tx.put(Space::Rows, b"t\0k00003", &stored)
    })
    .unwrap();
    file.close();
    run(async {
        let store = Store::open_existing(&path, "edge").unwrap();
        store.commit(Commit::new().put_json("json", "old", &"of another shape")).await.unwrap();
        assert_eq!(rows(&store).await.len(), 4);
        assert!(store.get("t", "k00003").await.is_err());
        assert!(store.load_json::<BTreeMap<String, u64>>("json").await.unwrap().is_empty());
        let told = store.unreadable();
        let names: Vec<_> = told.iter().map(|one| format!("{}/{}", one.table, one.key)).collect();
        assert_eq!(names, ["json/old", "t/k00003"]);
        let taken = put("k00003", "mine").require_absent("t", "k00003");
        assert!(store.commit(taken).await.is_err(), "its place is taken");
        store.commit(put("k00003", "anew")).await.unwrap();
        assert_eq!(rows(&store).await.len(), 5);
        store.close().await;
    });
}

/// A backup of a running store is one consistent state, whatever is written meanwhile; restored it is a new incarnation
/// with numbers above all that were given.
#[test]
fn a_backup_is_one_state_and_starts_a_new_incarnation() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("store.redb"), dir.path().join("copy.redb"));
    run(async {
        filled(&path, 400).await;
        let store = Store::open_existing(&path, "edge").unwrap();
        let incarnation = store.incarnation().to_owned();
        let writer = tokio::spawn({
            let store = store.clone();
            async move {
                // Two rows that always agree.
                for n in 0..300_u32 {
                    let value = n.to_be_bytes().to_vec();
                    store.commit(put("one", value.clone()).put("t", "two", value)).await.unwrap();
                }
            }
        });
        let made = store.backup(copy.clone(), "ber1".to_owned()).await.unwrap();
        writer.await.unwrap();
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(made.bytes, std::fs::metadata(&copy).unwrap().len());
        assert!(matches!(
            store.backup(copy.clone(), "ber1".to_owned()).await,
            Err(BackupError::Write { .. })
        ));
        assert!(beside(&copy, "part").is_empty());
        let generation = HighWater::open(&store, "generation", 1_000).await.unwrap().take();
        let newest = store.position().await.unwrap();

        let begin = |from: &Path, about| Restoring::begin(from, &path, "edge", about);
        assert!(matches!(begin(&copy, "ber1"), Err(RestoreError::Open(OpenError::InUse { .. }))));
        store.close().await;
        assert!(matches!(begin(&copy, "ham1"), Err(RestoreError::NotThis { .. })));
        assert!(begin(&dir.path().join("nothing"), "ber1").is_err());
        let restoring = begin(&copy, "ber1").unwrap();
        let store = restoring.open("edge").unwrap();
        store.commit(put("void", "yes")).await.unwrap();
        store.close().await;
        let done = restoring.finish().unwrap();
        assert_eq!((done.state_of_unix_ms, done.replaced.is_some()), (made.at_unix_ms, true));
        assert!(beside(&path, "restoring").is_empty());

        let store = Store::open_existing(&path, "edge").unwrap();
        let found = rows(&store).await;
        assert_eq!((found.get("one"), found["void"].as_slice()), (found.get("two"), b"yes".as_slice()));
        assert!(found.len() >= 401);
        assert_ne!(store.incarnation(), incarnation);
        assert_eq!(store.restored_at(), Some(made.at_unix_ms));
        assert!(store.position().await.unwrap() > newest);
        assert!(store.changes_since(newest).await.unwrap().is_err(), "a reader of before loads anew");
        assert!(HighWater::open(&store, "generation", 1_000).await.unwrap().take() > generation);
        let check = store.audit_check().await.unwrap();
        assert_eq!((check.broken, check.first), (None, 1));
        assert!(store.audit_tail(9).await.unwrap().iter().any(|e| e.record.action == "store.restored"));
        store.close().await;
        // The copy itself was only read.
        let again = Restoring::begin(&copy, &dir.path().join("other.redb"), "edge", "ber1").unwrap();
        assert_eq!(again.finish().unwrap().replaced, None);
    });
}

#[test]
fn the_newest_backups_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["edge-a-1.redb", "edge-a-2.redb", "edge-a-3.redb", "edge-b-1.redb", "edge-a-4.txt"] {
        std::fs::write(dir.path().join(name), "").unwrap();
    }
    assert_eq!(keep_newest(dir.path(), "edge-a-", 2).unwrap(), 1);
    assert!(!dir.path().join("edge-a-1.redb").exists() && dir.path().join("edge-b-1.redb").exists());
}

/// A file of the first schema opens, and a copy of it as it was stays.
#[test]
fn an_older_file_is_migrated_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    let record = AuditRecord::new("put", "a", "succeeded");
    let before = crate::AuditHead { sequence: 41, hash: [7; 32] };
    let (entry, head) = crate::audit::append(before, record, 5);
    let (mut file, _) = RedbFile::open(&path, "edge", WriteSwitch::default()).unwrap();
    file.write(&mut |tx| {
        tx.put(Space::Meta, b"schema", &1_u32.to_be_bytes())?;
        tx.put(Space::Meta, b"owner", b"edge")?;
        tx.put(Space::Meta, b"incarnation", b"first")?;
        tx.put(Space::Meta, b"position", &9_u64.to_be_bytes())?;
        tx.put(Space::Meta, b"mark/generation", &77_u64.to_be_bytes())?;
        tx.put(Space::Rows, b"t\0a", &[&8_u64.to_be_bytes()[..], b"kept"].concat())?;
        tx.put(Space::Audit, &42_u64.to_be_bytes(), &entry)?;
        tx.put(Space::Meta, b"audit", &[&42_u64.to_be_bytes()[..], &head.hash].concat())
    })
    .unwrap();
    file.close();
    run(async {
        for _ in 0..2 {
            let store = Store::open_existing(&path, "edge").unwrap();
            let row = store.get("t", "a").await.unwrap().unwrap();
            assert_eq!((row.value.as_slice(), row.position), (b"kept".as_slice(), Position(8)));
            assert_eq!(store.incarnation(), "first");
            let check = store.audit_check().await.unwrap();
            assert_eq!((check.broken, check.first, check.entries), (None, 42, 1));
            assert!(HighWater::open(&store, "generation", 8).await.unwrap().take() >= 77);
            store.close().await;
        }
    });
    // The copy is of the old schema still, and an old program could start from it.
    let kept = dir.path().join("store.redb.schema-1");
    let (mut file, _) = RedbFile::open_existing(&kept, "edge", WriteSwitch::default()).unwrap();
    let mut schema = None;
    file.reader()
        .read(&mut |view| {
            schema = view.get(Space::Meta, b"schema")?;
            Ok(())
        })
        .unwrap();
    assert_eq!(schema, Some(1_u32.to_be_bytes().to_vec()));
    file.close();
}

/// Row 102: a store whose disk is full when it is opened, also after a crash, can be read, and is written again as soon
/// as there is room.
#[test]
fn row_102_it_opens_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async {
        filled(&path, 100).await;
        let switch = WriteSwitch::default();
        switch.full(true);
        for crashed in [false, true] {
            if crashed {
                // As kill -9 leaves it: the mark of use is set, and opening has to repair.
                let live = dir.path().join("live.redb");
                std::fs::copy(&path, &live).unwrap();
                let store = Store::open_existing(&live, "edge").unwrap();
                store.commit(audited(100)).await.unwrap();
                std::fs::copy(&live, &path).unwrap();
                store.close().await;
            }
            let store = Store::open_existing_switched(&path, "edge", switch.clone()).unwrap();
            assert!(matches!(store.health(), Health::ReadOnly(_)), "{crashed}");
            assert!(rows(&store).await.len() >= 100);
            assert!(store.commit(put("a", "b")).await.is_err());
            let mark = HighWater::open(&store, "generation", 8).await.unwrap();
            assert!(mark.take() > 1_008, "above every number of before");
            if crashed {
                switch.full(false);
                let deadline = Instant::now() + SOON;
                while store.check().await != Health::Ok {
                    assert!(Instant::now() < deadline, "never writable");
                    tokio::task::yield_now().await;
                }
                let last = mark.take();
                store.commit(Commit::new()).await.unwrap();
                assert!(HighWater::open(&store, "generation", 8).await.unwrap().take() > last);
                let told = store.audit_tail(1).await.unwrap();
                assert_eq!(told[0].record.action, "audit.gap");
            }
            store.close().await;
        }
        let store = Store::open_existing(&path, "edge").unwrap();
        assert_eq!(rows(&store).await.len(), 101);
        store.close().await;
    });
}

/// Row 106: reads go on beside a sync that does not end.
#[test]
fn row_106_a_frozen_sync_stops_no_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async {
        filled(&path, 10).await;
        let switch = WriteSwitch::default();
        let store = Store::open_existing_switched(&path, "edge", switch.clone()).unwrap();
        switch.freeze(true);
        let waiting = tokio::spawn({
            let store = store.clone();
            async move { store.commit(put("late", "v")).await }
        });
        for _ in 0..50 {
            assert_eq!(rows(&store).await.len(), 10);
            assert_eq!(store.audit_head().sequence, 10);
        }
        assert!(!waiting.is_finished(), "what is not durable is not answered");
        switch.freeze(false);
        waiting.await.unwrap().unwrap();
        assert_eq!(rows(&store).await.len(), 11);
        store.close().await;
    });
}

/// Row 105: 100,000 rewrites, a reader that asks all the time, and the audit's bound leave a small file.
#[test]
fn row_105_the_file_does_not_grow_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async {
        let store = Store::open(&path, "edge").unwrap();
        store.keep_audit(2_000, Duration::from_secs(3600));
        let before = store.transactions();
        for round in 0..200_u32 {
            let group = (0..500).map(|n| {
                let value = format!("{round} {}", "s".repeat(200));
                put(format!("node{n}"), value).audit(AuditRecord::new("put", n.to_string(), "observed"))
            });
            let (outcomes, read) = tokio::join!(store.commit_each(group.collect()), store.load("t"));
            assert!(outcomes.iter().all(Result::is_ok) && read.is_ok());
        }
        assert_eq!(store.transactions() - before, 200);
        let check = store.audit_check().await.unwrap();
        assert!(check.broken.is_none() && check.entries <= 3_000, "{check:?}");
        store.close().await;
    });
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length < 24 * 1024 * 1024, "{length} bytes");
}

/// A thread of the store that breaks off is told: nothing is answered any more, and nobody takes it for a sound store.
#[test]
fn a_thread_that_breaks_off_is_told() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let switch = WriteSwitch::default();
        let on_disk = Store::open_switched(&dir.path().join("store.redb"), "edge", switch.clone()).unwrap();
        let (in_memory, other) = Store::in_memory();
        for (store, switch) in [(on_disk, switch), (in_memory, other)] {
            store.commit(audited(1)).await.unwrap();
            assert_eq!(store.health(), Health::Ok);
            switch.break_writer();
            assert_eq!(store.commit(audited(2)).await, Err(CommitError::Closed));
            assert_eq!(store.broke().await, "store");
            assert!(matches!(store.health(), Health::ReadOnly(cause) if cause.contains("broke off")));
            assert!(store.read_only_since().is_some());
            assert!(matches!(store.check().await, Health::ReadOnly(_)));
        }
    });
}
