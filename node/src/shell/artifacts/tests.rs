//! Downloads from a hub on loopback that is right, or lies: what comes of it on the disk and in words.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, sync::Mutex, time::Instant};

use sha2::{Digest as _, Sha256};
use umbel_contracts::artifact::{self, ArtifactFile, MANIFEST};

use super::*;
use crate::core::artifacts::Stage;
use hub::{Fault, Hub};

mod directory;
mod full;
mod present;
mod secure;
mod sharing;
// One hub for the tests of all crates; it needs nothing but the standard library.
#[path = "../../../../tests/src/hub.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests elsewhere use the rest of it")]
mod hub;

const LIMIT: Duration = Duration::from_secs(30);

struct Site {
    folder: tempfile::TempDir,
    hub: Hub,
    artifacts: Arc<Artifacts>,
}

/// Short times, so that lies are found out soon.
fn patience() -> Patience {
    Patience {
        step: Duration::from_millis(400),
        idle: Duration::from_millis(400),
        span: Duration::from_millis(300),
        trickle: 1000,
        tries: 3,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(50),
    }
}

impl Site {
    fn new() -> Self {
        Self::with("", |_| {})
    }

    fn with(more: &str, change: impl FnOnce(&mut config::Artifacts)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::start().unwrap();
        let mut settings = config::Artifacts::default();
        for name in ["quarantine", "models", "disk"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        settings.quarantine = Some(folder.path().join("quarantine"));
        settings.roots.insert("models".into(), folder.path().join("models"));
        let remote = |token_file| config::Remote {
            secure: false,
            authority: hub.address.to_string(),
            base_path: more.into(),
            token_file,
            ca_file: None,
        };
        let token = folder.path().join("token");
        fs::write(&token, "hf_secret\n").unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        settings.sources.insert("hub".into(), config::Source::Hub(remote(Some(token))));
        settings.sources.insert("mirror".into(), config::Source::Mirror(remote(None)));
        settings.sources.insert("disk".into(), config::Source::Directory(folder.path().join("disk")));
        change(&mut settings);
        let artifacts = Arc::new(Artifacts::with_patience(settings, patience()));
        Self { folder, hub, artifacts }
    }

    /// What is wanted of these files, which the hub has.
    fn wanted(&self, files: &[(&str, &[u8])]) -> Wanted {
        for (path, content) in files {
            self.hub.add("org/name", "r1", path, *content);
        }
        listed(files)
    }

    async fn acquire(&self, wanted: &Wanted) -> Result<Done, Failure> {
        let cancel = CancellationToken::new();
        let acquiring = self.artifacts.acquire(wanted.clone(), |_| {}, &cancel);
        tokio::time::timeout(LIMIT, acquiring).await.expect("the download ends")
    }

    fn placed(&self, done: &Done, path: &str) -> Vec<u8> {
        fs::read(self.folder.path().join("models").join(&done.folder).join(path)).unwrap()
    }

    fn root_is_empty(&self) -> bool {
        fs::read_dir(self.folder.path().join("models")).unwrap().next().is_none()
    }

    fn quarantine(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path().join("quarantine")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.hub.seen().iter().map(|seen| seen.headers.get("range").cloned()).collect()
    }
}

fn listed(files: &[(&str, &[u8])]) -> Wanted {
    let files: Vec<_> = files
        .iter()
        .map(|(path, content)| ArtifactFile {
            path: (*path).into(),
            bytes: content.len() as u64,
            sha256: data_encoding::HEXLOWER.encode(&Sha256::digest(content)),
        })
        .collect();
    Wanted {
        repository: "org/name".into(),
        revision: "r1".into(),
        digest: artifact::digest(&files),
        source: "hub".into(),
        root: String::new(),
        reserve: 0,
        files,
    }
}

fn bytes(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 31 % 251) as u8).collect()
}

#[tokio::test]
async fn a_repository_comes_whole_and_checked_in_either_layout() {
    let site = Site::new();
    let model = bytes(3_000_000);
    let wanted = site.wanted(&[("config.json", b"{}"), ("a b/größe.bin", &model), ("empty", b"")]);
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!((done.files, done.bytes, done.fetched), (3, 3_000_002, 3_000_002));
    assert_eq!(done.root, "models");
    assert_eq!(done.folder, format!("org--name/r1.{}", &wanted.digest[..16]));
    assert_eq!(site.placed(&done, "a b/größe.bin"), model);
    assert!(site.placed(&done, "empty").is_empty());
    assert_eq!(site.quarantine(), Vec::<String>::new());
    let seen = site.hub.seen();
    assert!(seen.iter().any(|seen| seen.path == "/org/name/resolve/r1/config.json"));
    assert!(seen.iter().all(|seen| seen.headers["authorization"] == "Bearer hf_secret"));
    // Again: nothing is asked.
    assert_eq!(site.acquire(&wanted).await.unwrap().fetched, 0);
    assert_eq!(site.hub.seen().len(), seen.len());

    let found = site.artifacts.list();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].digest.as_str(), found[0].bytes), (wanted.digest.as_str(), 3_000_002));
    let folder = site.artifacts.folders("org/name", "r1", &wanted.digest).unwrap().remove(0);
    assert!(folder.join("config.json").is_file());

    let mirrored = Site::new();
    let wanted = Wanted { source: "mirror".into(), ..mirrored.wanted(&[("config.json", b"{}")]) };
    mirrored.acquire(&wanted).await.unwrap();
    let seen = &mirrored.hub.seen()[0];
    assert!(seen.path == "/org/name/r1/config.json" && !seen.headers.contains_key("authorization"));
}

#[tokio::test]
async fn a_cut_download_goes_on_where_it_was() {
    let site = Site::new();
    let model = bytes(500_000);
    let wanted = site.wanted(&[("m", &model)]);
    site.hub.fault("/m", Fault::Cut(200_000), 1);
    site.hub.fault("/m", Fault::Stall(100_000), 1);
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!(site.placed(&done, "m"), model);
    let ranges = site.ranges();
    assert_eq!(ranges.len(), 3);
    assert_eq!(ranges[0], None);
    // How many of the bytes that were sent before a cut arrive is the kernel's affair.
    assert!(ranges[1].is_some());
    assert_eq!(site.hub.seen()[1].headers["if-range"], "\"500000\"");
}

#[tokio::test]
async fn a_later_download_uses_what_an_earlier_one_left() {
    let site = Site::new();
    let (first, second) = (bytes(100_000), bytes(300_000));
    let wanted = site.wanted(&[("a", &first), ("b", &second)]);
    site.hub.fault("/b", Fault::Stall(200_000), 1);
    site.hub.fault("/b", Fault::Status(503), 2);
    let failed = site.acquire(&wanted).await.unwrap_err();
    assert!(failed.reason == Reason::SourceUnreachable && failed.retry(), "{failed}");
    assert!(site.root_is_empty() && site.quarantine().len() == 1);
    // The agent may have been another one since: only the disk is asked.
    let before = site.hub.seen().len();
    let artifacts = Artifacts::with_patience(site.artifacts.settings.clone(), patience());
    let site = Site { artifacts: Arc::new(artifacts), ..site };
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!(site.placed(&done, "b"), second);
    assert_eq!(site.ranges()[before..], [Some("bytes=200000-".to_owned())]);
}

#[tokio::test]
async fn a_source_that_lies_puts_nothing_into_the_root() {
    let model = bytes(50_000);
    for (fault, times, reason, requests) in [
        // The right size and wrong bytes: asked once, since nothing was put together from pieces.
        (Fault::WrongByte, 9, Reason::DigestMismatch, 1),
        (Fault::Longer(10), 9, Reason::SizeMismatch, 1),
        (Fault::Endless, 9, Reason::SizeMismatch, 1),
        (Fault::Packed, 9, Reason::SourceRefused, 1),
        (Fault::Status(404), 9, Reason::SourceRefused, 1),
        (Fault::Status(403), 9, Reason::SourceRefused, 1),
        (Fault::Status(204), 9, Reason::SourceUnreachable, 3),
        (Fault::Status(500), 9, Reason::SourceUnreachable, 3),
        (Fault::Silent, 9, Reason::SourceUnreachable, 3),
        (Fault::Drip, 9, Reason::SourceUnreachable, 3),
        (Fault::Redirect("/org/name/resolve/r1/m".into()), 99, Reason::SourceRefused, 6),
        (Fault::Redirect("ftp://127.0.0.1/m".into()), 9, Reason::SourceRefused, 1),
    ] {
        let site = Site::new();
        let wanted = site.wanted(&[("m", &model)]);
        site.hub.fault("/m", fault.clone(), times);
        let failed = site.acquire(&wanted).await.unwrap_err();
        assert_eq!((failed.reason, site.hub.seen().len()), (reason, requests), "{fault:?}: {failed}");
        assert!(site.root_is_empty(), "{fault:?}");
        // What leaves the host names the source by its name, and no address.
        assert!(failed.says.contains("hub") && !failed.says.contains("127.0.0.1"), "{fault:?}: {failed}");
        assert_eq!(failed.retry(), reason == Reason::SourceUnreachable);
    }
}

#[tokio::test]
async fn odd_answers_that_are_right_are_taken() {
    let model = bytes(200_000);
    for (first, second) in [
        (Fault::Chunked, None),
        (Fault::Cut(50_000), Some(Fault::IgnoreRange)),
        (Fault::Cut(50_000), Some(Fault::WrongPart)),
        (Fault::Cut(50_000), Some(Fault::Tag("\"other\"".into()))),
        (Fault::Redirect("/org/name/resolve/r1/m?signed=1".into()), None),
        // A part of another content: found out at the end, and fetched anew as a whole.
        (Fault::Stall(50_000), Some(Fault::WrongByte)),
        (Fault::Status(429), Some(Fault::Status(503))),
    ] {
        let site = Site::new();
        let wanted = site.wanted(&[("m", &model)]);
        site.hub.add("org/name", "r1", "m?signed=1", &*model);
        site.hub.fault("/m", first.clone(), 1);
        if let Some(second) = &second {
            site.hub.fault("/m", second.clone(), 1);
        }
        let done =
            site.acquire(&wanted).await.unwrap_or_else(|error| panic!("{first:?} {second:?}: {error}"));
        assert_eq!(site.placed(&done, "m"), model, "{first:?} {second:?}");
    }
}

#[tokio::test]
async fn a_token_goes_to_nobody_else() {
    let site = Site::new();
    let elsewhere = Hub::start().unwrap();
    let wanted = site.wanted(&[("m", b"model")]);
    elsewhere.add("cdn", "x", "m", *b"model");
    site.hub.fault("/m", Fault::Redirect(format!("{}/cdn/x/m", elsewhere.url())), 1);
    site.acquire(&wanted).await.unwrap();
    assert_eq!(site.hub.seen()[0].headers["authorization"], "Bearer hf_secret");
    assert!(!elsewhere.seen()[0].headers.contains_key("authorization"));
}

async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn too_little_room_is_found_before_the_first_byte() {
    let site = Site::with("", |settings| settings.reserve = u64::MAX / 2);
    let wanted = site.wanted(&[("m", b"model")]);
    let failed = site.acquire(&wanted).await.unwrap_err();
    assert!(failed.reason == Reason::Space && failed.retry(), "{failed}");
    assert!(site.hub.seen().is_empty());
}

#[tokio::test]
async fn what_nobody_knows_is_refused_before_anything_is_asked() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", b"model")]);
    let unknown = Wanted { source: "elsewhere".into(), ..wanted.clone() };
    let failed = site.acquire(&unknown).await.unwrap_err();
    assert!(failed.reason == Reason::SourceUnknown && failed.says.contains("disk, hub, mirror"));
    let unknown = Wanted { root: "elsewhere".into(), ..wanted.clone() };
    assert_eq!(site.acquire(&unknown).await.unwrap_err().reason, Reason::RootUnknown);
    // Row 94.
    for path in ["../m", "/m", "a/../../m", "m\0", &"x".repeat(300), "a\u{2215}m"] {
        let failed = site.acquire(&listed(&[(path, b"model")])).await.unwrap_err();
        assert_eq!(failed.reason, Reason::NameRefused, "{path:?}");
    }
    assert!(site.hub.seen().is_empty() && site.root_is_empty() && site.quarantine().is_empty());
    site.artifacts.folders("../..", "r1", &wanted.digest).unwrap_err();
    site.artifacts.remove(("org/name", "../..", &wanted.digest), "", |_| None).unwrap_err();
}

#[tokio::test]
async fn a_list_that_was_resolved_at_a_hub_can_be_brought() {
    let site = Site::new();
    let wanted = site.wanted(&[("config.json", b"{}"), ("sub/m.bin", &bytes(5000))]);
    site.hub.add("org/name", "r1", "README.md", *b"text");
    // Of a large file the hub itself says what it is.
    site.hub.tell("org/name", "r1", "sub/m.bin", &wanted.files[1].sha256);
    let remote = config::Remote::parse(&site.hub.url(), None, None).unwrap();
    let mut fetched = 0;
    let no_text = |path: &str| !path.ends_with(".md");
    let resolved =
        listing::resolve_at_hub(&remote, "org/name", "r1", no_text, |_| fetched += 1).await.unwrap();
    assert_eq!((resolved.revision.as_str(), &resolved.files, fetched), ("r1", &wanted.files, 1));
    site.acquire(&Wanted { files: resolved.files, ..wanted }).await.unwrap();
    let none = listing::resolve_at_hub(&remote, "org/other", "r1", no_text, |_| {}).await;
    assert!(none.unwrap_err().contains("no file"));
}

#[tokio::test]
async fn progress_tells_bytes_and_files() {
    let site = Site::new();
    let wanted = site.wanted(&[("a", &bytes(1_000_000)), ("b", &bytes(500_000))]);
    let seen = Mutex::new(Vec::new());
    let cancel = CancellationToken::new();
    site.artifacts.acquire(wanted, |progress| seen.lock().unwrap().push(progress), &cancel).await.unwrap();
    let seen = seen.into_inner().unwrap();
    assert!(seen.iter().skip(1).all(|one| one.bytes_total == 1_500_000 || one.bytes_total == 0));
    assert!(seen.windows(2).all(|pair| pair[0].bytes_done <= pair[1].bytes_done));
    assert!(seen.iter().all(|one| Stage::as_str(one.stage).is_ascii()));
}

#[test]
fn progress_is_one_sentence_for_people() {
    let progress =
        Progress { files_done: 1, files_total: 3, bytes_per_second: 25 << 19, ..Progress::default() };
    assert_eq!(job::sentence(&progress), "12.5 MiB/s, 1 of 3 files");
    let comes = Progress { says: Some("from source b".into()), stage: Stage::Fetching, ..progress.clone() };
    assert_eq!(job::sentence(&comes), "12.5 MiB/s, 1 of 3 files, from source b");
    let waits = Progress { says: Some("source a answers 503".into()), ..progress };
    assert_eq!(job::sentence(&waits), "source a answers 503; 1 of 3 files");
}
