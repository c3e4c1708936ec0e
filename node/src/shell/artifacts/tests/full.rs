//! A disk that becomes full in the middle of a download. The small volume is a tmpfs; where none can be mounted the test says
//! that it was skipped.

use std::{
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use super::*;

/// A volume of 2 MiB; unmounted when dropped.
struct Volume(PathBuf);

impl Volume {
    fn mount(at: PathBuf) -> Option<Self> {
        fs::create_dir(&at).ok()?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(&at);
        let mounted = mount.stdin(Stdio::null()).stderr(Stdio::null()).status().ok()?.success();
        mounted.then_some(Self(at))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_disk_that_becomes_full_ends_a_download_that_goes_on_once_there_is_room() {
    let mut site = Site::new();
    let Some(volume) = Volume::mount(site.folder.path().join("volume")) else {
        let _ = writeln!(std::io::stderr(), "SKIPPED: no small volume can be mounted here");
        return;
    };
    let mut settings = site.artifacts.settings.clone();
    settings.quarantine = Some(volume.0.join("quarantine"));
    settings.roots.insert("models".into(), volume.0.join("models"));
    for folder in settings.quarantine.iter().chain(settings.roots.values()) {
        fs::create_dir_all(folder).unwrap();
    }
    site.artifacts = Arc::new(Artifacts::with_patience(settings, patience()));
    let model = bytes(1_500_000);
    let wanted = site.wanted(&[("m", &model)]);
    site.hub.fault("/m", Fault::Stall(500_000), 1);
    let (artifacts, of) = (Arc::clone(&site.artifacts), wanted.clone());
    let seen = Arc::new(Mutex::new(0));
    let told = Arc::clone(&seen);
    let downloading = tokio::spawn(async move {
        let tell = |progress: Progress| *told.lock().unwrap() = progress.bytes_done;
        artifacts.acquire(of, tell, &CancellationToken::new()).await
    });
    wait_until("half a megabyte has come", || *seen.lock().unwrap() > 0).await;
    let filler = volume.0.join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let failed = downloading.await.unwrap().unwrap_err();
    assert!(failed.reason == Reason::Space && failed.retry(), "{failed}");
    // Nothing that could be mistaken for an artifact, and what came is still there.
    assert!(site.artifacts.list().is_empty());
    drop(file);
    fs::remove_file(&filler).unwrap();
    let before = site.hub.seen().len();
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!(fs::read(volume.0.join("models").join(&done.folder).join("m")).unwrap(), model);
    assert!(site.hub.seen()[before].headers.contains_key("range"));
}
