//! A directory of the host as a source: what is taken from it, and what while it is away.

use std::os::unix::fs::symlink;

use super::*;

#[tokio::test]
async fn a_directory_is_a_source_and_nothing_outside_it() {
    let site = Site::new();
    let disk = site.folder.path().join("disk");
    let by_revision = disk.join("org/name/r1");
    fs::create_dir_all(&by_revision).unwrap();
    fs::write(by_revision.join("m"), b"model").unwrap();
    fs::write(disk.join("blob"), b"linked").unwrap();
    symlink("../../../blob", by_revision.join("inside")).unwrap();
    fs::write(disk.join("org/name/flat"), b"flat").unwrap();
    let files: [(&str, &[u8]); 3] = [("m", b"model"), ("inside", b"linked"), ("flat", b"flat")];
    let wanted = Wanted { source: "disk".into(), ..listed(&files) };
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!(site.placed(&done, "inside"), b"linked");
    // Row 94: a link out of it, a pipe, another size, and what is not there.
    fs::write(site.folder.path().join("secret"), b"secret").unwrap();
    symlink("../../../../secret", by_revision.join("outside")).unwrap();
    symlink(site.folder.path().join("secret"), by_revision.join("absolute")).unwrap();
    fs::create_dir(by_revision.join("folder")).unwrap();
    for (path, content, reason) in [
        ("outside", &b"secret"[..], Reason::SourceRefused),
        ("absolute", b"secret", Reason::SourceRefused),
        ("folder", b"x", Reason::SourceRefused),
        ("nothing", b"x", Reason::SourceRefused),
        ("m", b"model!", Reason::SizeMismatch),
        ("m", b"other", Reason::DigestMismatch),
    ] {
        let wanted = Wanted { source: "disk".into(), ..listed(&[(path, content)]) };
        let failed = site.acquire(&wanted).await.unwrap_err();
        assert_eq!(failed.reason, reason, "{path}: {failed}");
        assert!(!failed.says.contains(site.folder.path().to_str().unwrap()), "{failed}");
    }
}

/// A mount may come while it is waited for, and is not taken for an answer while it is away.
#[tokio::test]
async fn a_directory_that_is_not_mounted_is_waited_for() {
    let site = Site::new();
    let disk = site.folder.path().join("disk");
    let wanted = Wanted { source: "disk".into(), ..listed(&[("m", b"model")]) };
    for (away, says) in [(true, "is not there"), (false, "empty directory")] {
        if away {
            fs::remove_dir(&disk).unwrap();
        } else {
            fs::create_dir(&disk).unwrap();
        }
        let failed = site.acquire(&wanted).await.unwrap_err();
        assert!(failed.reason == Reason::SourceUnreachable && failed.retry(), "{failed}");
        assert!(failed.says.contains(says) && failed.says.contains("mounted"), "{failed}");
        assert!(!failed.says.contains(disk.to_str().unwrap()), "{failed}");
    }
    // It comes between two tries.
    let many = Patience { tries: 100, ..patience() };
    let artifacts = Arc::new(Artifacts::with_patience(site.artifacts.settings.clone(), many));
    let comes = |progress: Progress| {
        if progress.says.is_some_and(|says| says.contains("mounted?); tried again in")) {
            fs::create_dir_all(disk.join("org/name")).unwrap();
            fs::write(disk.join("org/name/m"), b"model").unwrap();
        }
    };
    let done = artifacts.acquire(wanted, comes, &CancellationToken::new()).await.unwrap();
    assert_eq!(site.placed(&done, "m"), b"model");
}
