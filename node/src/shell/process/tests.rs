//! Starts that fail half way.

use std::time::Instant;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// Without a descriptor for its handle a start fails; the process that is there already does not run on beside the next
/// one, which needs its port.
#[tokio::test]
async fn a_process_that_cannot_be_watched_ends_and_is_reaped() {
    let folder = tempfile::tempdir().unwrap();
    let launch = Launch {
        program: "/bin/sh".into(),
        arguments: ["-c", "sleep 1000 & sleep 1000"].map(OsString::from).to_vec(),
        environment: Vec::new(),
        folder: folder.path().into(),
        log: folder.path().join("engine.log").into(),
        nonce: "0123".into(),
    };
    let mut born = None;
    let refused = Process::start_watched(&launch, |pid| {
        born = Some(pid);
        Err(io::ErrorKind::QuotaExceeded.into())
    });
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
    let pid = born.unwrap();
    let id = pid.as_raw_nonzero().get();
    assert!(!WAITED_FOR.lock().unwrap().contains(&id), "the reaper may take it");
    let end = Instant::now() + LIMIT;
    while rustix::process::waitpid(Some(pid), WaitOptions::NOHANG).unwrap().is_none() {
        assert!(Instant::now() < end, "it ends within the limit");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let of_its_group = || all().into_iter().any(|facts| facts.group == ProcessId(id) && !facts.zombie);
    while of_its_group() {
        assert!(Instant::now() < end, "all of its group end within the limit");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
