//! What is here: told whole, taken away, thrown out; and places that are not there any more.

use std::os::unix::fs::symlink;

use super::*;

#[tokio::test]
async fn what_is_taken_away_is_gone_unless_an_engine_uses_it() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model")]);
    let done = site.acquire(&wanted).await.unwrap();
    let name = ("org/name", "r1", wanted.digest.as_str());
    let used = site.artifacts.remove(name, "", |_| Some("chat".into())).unwrap_err();
    assert!(used.reason == Reason::InUse && used.says.contains("chat"));
    assert_eq!(site.placed(&done, "m"), b"model");
    assert_eq!(site.artifacts.remove(name, "", |_| None).unwrap(), 5);
    assert!(site.root_is_empty() && site.quarantine().is_empty());
    assert_eq!(site.artifacts.remove(name, "", |_| None).unwrap_err().reason, Reason::NotFound);
}

#[tokio::test]
async fn what_is_not_whole_is_not_told_and_comes_again() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model"), ("n", b"more")]);
    let done = site.acquire(&wanted).await.unwrap();
    let place = site.folder.path().join("models").join(&done.folder);
    fs::write(place.join("m"), b"mode").unwrap();
    assert!(site.artifacts.list().is_empty());
    site.artifacts.folders("org/name", "r1", &wanted.digest).unwrap_err();
    // What is left of it makes room.
    let before = site.hub.seen().len();
    let again = site.acquire(&wanted).await.unwrap();
    assert_eq!((site.placed(&again, "m"), site.artifacts.list().len()), (b"model".to_vec(), 1));
    assert!(site.hub.seen().len() > before && site.quarantine().is_empty());
    // Somebody else's folder is not overwritten.
    fs::remove_file(place.join(MANIFEST)).unwrap();
    let failed = site.acquire(&wanted).await.unwrap_err();
    assert_eq!(failed.reason, Reason::Disk, "{failed}");
    site.artifacts.remove(("org/name", "r1", &wanted.digest), "", |_| None).unwrap();
    let before = site.hub.seen().len();
    site.acquire(&wanted).await.unwrap();
    // All was here already, and waited for its place.
    assert_eq!((site.hub.seen().len(), site.artifacts.list().len()), (before, 1));
    assert!(!place.join("state.json").exists() && place.join(MANIFEST).exists());
}

#[tokio::test]
async fn a_file_of_the_right_size_that_is_not_what_was_brought_is_taken_away() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model"), ("n", b"more")]);
    let done = site.acquire(&wanted).await.unwrap();
    // The look behind a download is over.
    wait_until("it is told", || !site.artifacts.news().borrow().is_empty()).await;
    let place = site.folder.path().join("models").join(&done.folder);
    assert!(!site.artifacts.take_away_damaged(&place.join("m")));
    fs::write(place.join("m"), b"modex").unwrap();
    assert!(!site.artifacts.take_away_damaged(&place.join("n")), "another file is asked about");
    assert_eq!(site.artifacts.list().len(), 1, "nobody sees it by size and name");
    assert!(site.artifacts.take_away_damaged(&place.join("m")));
    assert!(site.artifacts.news().borrow().is_empty() && site.root_is_empty());
    let again = site.acquire(&wanted).await.unwrap();
    assert_eq!(site.placed(&again, "m"), b"model");
}

#[tokio::test]
async fn a_link_in_the_quarantine_or_root_is_not_followed() {
    let site = Site::new();
    let wanted = site.wanted(&[("a/m", b"model")]);
    let elsewhere = site.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, site.folder.path().join("models/org--name")).unwrap();
    let failed = site.acquire(&wanted).await.unwrap_err();
    assert_eq!(failed.reason, Reason::Disk, "{failed}");
    assert!(fs::read_dir(&elsewhere).unwrap().next().is_none());
}

#[test]
fn old_parts_are_thrown_away() {
    let site = Site::new();
    let quarantine = site.folder.path().join("quarantine");
    for name in ["old", "new", "leaving-x", "foreign"] {
        fs::create_dir_all(quarantine.join(name).join(if name == "foreign" { "x" } else { "files" }))
            .unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(30 * 24 * 3600);
    let touch = |path: &Path| fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
    touch(&quarantine.join("old/files"));
    touch(&quarantine.join("old"));
    site.artifacts.tidy_up();
    let mut left = site.quarantine();
    left.sort();
    assert_eq!(left, ["foreign", "new"]);
}

/// A quarantine or a root that is removed under a running agent is named by the failure, without its path.
#[tokio::test]
async fn a_place_that_is_not_there_any_more_is_named() {
    for (gone, key) in [("quarantine", "artifacts.quarantine"), ("models", "artifacts.roots.models")] {
        let site = Site::new();
        let wanted = site.wanted(&[("a", b"content")]);
        fs::remove_dir(site.folder.path().join(gone)).unwrap();
        let failed = site.acquire(&wanted).await.unwrap_err();
        assert_eq!(failed.reason, Reason::Disk, "{failed}");
        assert!(
            failed.says.contains(&format!("the directory {key} of the node's file is not there")),
            "{failed}"
        );
        assert!(!failed.says.contains('/') && failed.retry(), "{failed}");
        fs::create_dir(site.folder.path().join(gone)).unwrap();
        site.acquire(&wanted).await.unwrap();
    }
}

/// An artifact that was moved to another disk and linked from its root is told as before, used, and taken away by its link.
#[tokio::test]
async fn a_linked_artifact_is_present_in_every_way() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model")]);
    let done = site.acquire(&wanted).await.unwrap();
    let place = site.folder.path().join("models").join(&done.folder);
    let moved = site.folder.path().join("larger");
    fs::rename(&place, &moved).unwrap();
    symlink(&moved, &place).unwrap();
    site.artifacts.look();
    assert_eq!(site.artifacts.news().borrow().len(), 1);
    site.artifacts.folders("org/name", "r1", &wanted.digest).unwrap();
    let before = site.hub.seen().len();
    assert_eq!(site.acquire(&wanted).await.unwrap().fetched, 0);
    assert_eq!(site.hub.seen().len(), before);
    site.artifacts.remove(("org/name", "r1", &wanted.digest), "", |_| None).unwrap();
    assert!(site.root_is_empty() && moved.join("m").exists(), "what is elsewhere is its owner's");
    assert!(site.artifacts.news().borrow().is_empty());
}

/// What somebody has moved and linked is taken away as what it is in the root: a link, which frees nothing.
#[tokio::test]
async fn of_what_is_linked_the_link_goes_and_nothing_is_said_to_be_freed() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model")]);
    let done = site.acquire(&wanted).await.unwrap();
    let (place, moved) =
        (site.folder.path().join("models").join(&done.folder), site.folder.path().join("elsewhere"));
    fs::rename(&place, &moved).unwrap();
    symlink(&moved, &place).unwrap();
    assert_eq!(site.artifacts.list().len(), 1);
    assert_eq!(site.artifacts.remove(("org/name", "r1", &wanted.digest), "", |_| None).unwrap(), 0);
    assert!(site.artifacts.list().is_empty() && fs::read(moved.join("m")).unwrap() == b"model");
}

/// Two looks at once: the one that began first, and takes longer, does not bring back what is gone since.
#[tokio::test]
async fn an_older_look_does_not_overwrite_a_newer_one() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model")]);
    site.acquire(&wanted).await.unwrap();
    wait_until("it is told", || !site.artifacts.news().borrow().is_empty()).await;
    let (older, found) = (site.artifacts.looks.fetch_add(1, Ordering::Relaxed) + 1, site.artifacts.news());
    let found = found.borrow().to_vec();
    site.artifacts.remove(("org/name", "r1", &wanted.digest), "", |_| None).unwrap();
    site.artifacts.saw(older, found);
    assert!(site.artifacts.news().borrow().is_empty());
}
