//! Several who want the same artifact, and those who want it no more.

use super::*;

#[tokio::test]
async fn several_who_want_the_same_share_one_download() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", &bytes(100_000))]);
    site.hub.fault("/m", Fault::Stall(10_000), 1);
    let all = futures_of(&site, &wanted, 5);
    for one in all {
        one.await.unwrap().unwrap();
    }
    assert_eq!(site.hub.seen().len(), 2);
}

fn futures_of(
    site: &Site,
    wanted: &Wanted,
    count: usize,
) -> Vec<tokio::task::JoinHandle<Result<Done, Failure>>> {
    (0..count)
        .map(|_| {
            let (artifacts, wanted) = (Arc::clone(&site.artifacts), wanted.clone());
            tokio::spawn(async move { artifacts.acquire(wanted, |_| {}, &CancellationToken::new()).await })
        })
        .collect()
}

#[tokio::test]
async fn whoever_cancels_leaves_the_others_and_the_last_one_ends_it() {
    let site = Site::with("", |_| {});
    let wanted = site.wanted(&[("m", &bytes(400_000))]);
    site.hub.fault("/m", Fault::Stall(100_000), 1);
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let seen = Arc::new(Mutex::new(Progress::default()));
    let acquire = |cancel: &CancellationToken| {
        let (artifacts, wanted, cancel, seen) =
            (Arc::clone(&site.artifacts), wanted.clone(), cancel.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            artifacts.acquire(wanted, |progress| *seen.lock().unwrap() = progress, &cancel).await
        })
    };
    let (one, two) = (acquire(&first), acquire(&second));
    wait_until("bytes have come", || seen.lock().unwrap().bytes_done > 0).await;
    first.cancel();
    assert_eq!(one.await.unwrap().unwrap_err().reason, Reason::Cancelled);
    assert!(!two.is_finished());
    second.cancel();
    // It may have gone on to the end before that.
    let ended = two.await.unwrap();
    if let Err(failure) = ended {
        assert_eq!(failure.reason, Reason::Cancelled);
        assert!(site.root_is_empty() && lock(&site.artifacts.running).is_empty());
        let done = site.acquire(&wanted).await.unwrap();
        assert_eq!(site.placed(&done, "m"), bytes(400_000));
        assert!(site.ranges().iter().flatten().next().is_some(), "it was resumed");
    }
}

#[tokio::test]
async fn a_host_without_a_thread_to_spare_fails_one_download_and_nothing_stands_still() {
    let mut site = Site::new();
    let wanted = site.wanted(&[("m", &bytes(1000))]);
    let usual = site.artifacts.stack;
    // More than any host has.
    Arc::get_mut(&mut site.artifacts).unwrap().stack = 1 << 60;
    let failure = site.acquire(&wanted).await.unwrap_err();
    assert_eq!(failure.reason, Reason::Internal);
    assert!(failure.retry() && failure.says.starts_with("no thread for a download"), "{failure}");
    assert!(lock(&site.artifacts.running).is_empty());

    Arc::get_mut(&mut site.artifacts).unwrap().stack = usual;
    let done = site.acquire(&wanted).await.unwrap();
    assert_eq!(site.placed(&done, "m"), bytes(1000));
}
