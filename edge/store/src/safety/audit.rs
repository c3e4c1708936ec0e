//! The audit's bounds and its check.

use std::time::Duration;

use super::{audited, run};
use crate::backend::{Backend, Space};
use crate::redb_file::RedbFile;
use crate::{AuditAt, Store, WriteSwitch, verify};

/// Old entries go by number and by age, leave word, and what is kept still verifies; a hole, a change and a cut tail do
/// not.
#[test]
fn the_audit_is_pruned_with_a_checkpoint_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async {
        let store = Store::open(&path, "edge").unwrap();
        store.keep_audit(1_000, Duration::from_secs(3600));
        for n in 0..30 {
            store.commit_each((0..100).map(|m| audited(n * 100 + m)).collect()).await;
        }
        let check = store.audit_check().await.unwrap();
        assert!(check.broken.is_none() && check.first > 1_900 && check.entries <= 1_100, "{check:?}");
        assert_eq!(check.last, store.audit_head());
        let pruned = |entry: &crate::AuditEntry| entry.record.action == "audit.pruned";
        let (found, next) = store.audit_search(None, 5, pruned).await.unwrap();
        assert!(!found.is_empty() && found.windows(2).all(|two| two[0].sequence > two[1].sequence));
        let at =
            [check.first - 2, check.first - 1, check.first, check.last.sequence, check.last.sequence + 1];
        let mut there = Vec::new();
        for sequence in at {
            there.push(store.audit_at(sequence).await.unwrap());
        }
        let oldest = &store.audit_lines(check.first - 1, 1).await.unwrap()[0];
        let [before, oldest] = [oldest.previous, oldest.hash].map(AuditAt::Entry);
        let newest = AuditAt::Entry(check.last.hash);
        assert_eq!(there, [AuditAt::Aged, before, oldest, newest, AuditAt::Nothing]);
        let (rest, end) = store.audit_search(next, 5_000, |_| true).await.unwrap();
        assert_eq!((end, rest.last().unwrap().sequence), (None, check.first));
        let lines = store.audit_lines(check.first - 1, 1_000).await.unwrap();
        assert_eq!(lines[0].sequence, check.first);
        let entries = store.audit_after(check.first - 1, 1_000).await.unwrap();
        verify(&entries).unwrap();
        let (followed, at) = store.audit_follow(check.last.sequence - 3, 9, |_| true).await.unwrap();
        assert_eq!((followed.len(), at), (3, check.last.sequence));
        store.close().await;
        // Everything is too old once nothing is to be kept for long.
        let store = Store::open_existing(&path, "edge").unwrap();
        store.keep_audit(1_000, Duration::ZERO);
        store.commit(audited(0)).await.unwrap();
        let aged = store.audit_check().await.unwrap();
        assert!(aged.broken.is_none() && aged.entries < check.entries / 2, "{aged:?}");
        store.close().await;
    });
    for (what, damage) in [("missing", 0), ("own hash", 1), ("are missing", 2)] {
        let copy = dir.path().join(format!("copy{damage}.redb"));
        std::fs::copy(&path, &copy).unwrap();
        let (mut file, _) = RedbFile::open_existing(&copy, "edge", WriteSwitch::default()).unwrap();
        file.write(&mut |tx| {
            let all = tx.scan(Space::Audit, &[], &[0xFF; 9], usize::MAX, false)?;
            let middle = &all[all.len() / 2];
            match damage {
                0 => tx.remove(Space::Audit, &middle.0),
                1 => {
                    let mut stored = middle.1.clone();
                    *stored.last_mut().unwrap() ^= 1;
                    tx.put(Space::Audit, &middle.0, &stored)
                }
                _ => tx.remove(Space::Audit, &all.last().unwrap().0),
            }
        })
        .unwrap();
        file.close();
        run(async {
            let store = Store::open_existing(&copy, "edge").unwrap();
            let check = store.audit_check().await.unwrap();
            assert!(check.broken.as_ref().unwrap().1.contains(what), "{what}: {check:?}");
            assert!(check.sentence().starts_with("the chain breaks at entry"));
            store.close().await;
        });
    }
}

/// Row 103: what a rescue cuts off the audit is counted, and the check says so until age would have taken it anyway.
#[test]
fn row_103_a_rescue_says_which_entries_it_lost() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store.redb");
    run(async {
        super::filled(&path, 30).await;
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let (word, other) = (b"\"subject\":\"12\"", b"\"subject\":\"22\"");
        for at in (0..bytes.len()).filter(|from| bytes[*from..].starts_with(word)) {
            file.write_at(other, at as u64).unwrap();
        }
        let store = Store::open_rescuing(&path, "edge").unwrap();
        let origin = store.origin().unwrap();
        assert_eq!(origin.audit_lost, [(1, 13)]);
        let told = store.audit_tail(1).await.unwrap();
        assert!(
            told[0].record.detail.contains("13 audit entries are lost, numbers 1 to 13"),
            "{:?}",
            told[0].record
        );
        let check = store.audit_check().await.unwrap();
        assert_eq!((check.first, &check.broken, &check.lost), (14, &None, &vec![(1, 13)]));
        assert!(!check.is_whole() && check.sentence().contains("cut the chain"), "{}", check.sentence());
        // It is remembered until what is kept begins later.
        store.close().await;
        let store = Store::open_existing(&path, "edge").unwrap();
        assert!(!store.audit_check().await.unwrap().is_whole());
        store.keep_audit(10, Duration::from_secs(3600));
        for n in 30..60 {
            store.commit(audited(n)).await.unwrap();
        }
        let check = store.audit_check().await.unwrap();
        assert!(check.is_whole() && check.first > 14, "{check:?}");
        store.close().await;
    });
}
