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

/// Somebody who wants it, and all that was said meanwhile.
struct Wisher {
    cancel: CancellationToken,
    said: Arc<Mutex<Vec<Progress>>>,
    end: tokio::task::JoinHandle<Result<Done, Failure>>,
}

impl Wisher {
    fn new(site: &Site, wanted: &Wanted, source: &str) -> Self {
        let (cancel, said) = (CancellationToken::new(), Arc::<Mutex<Vec<Progress>>>::default());
        let wanted = Wanted { source: source.into(), ..wanted.clone() };
        let (artifacts, own, seen) = (Arc::clone(&site.artifacts), cancel.clone(), Arc::clone(&said));
        let end = tokio::spawn(async move {
            artifacts.acquire(wanted, |progress| seen.lock().unwrap().push(progress), &own).await
        });
        Self { cancel, said, end }
    }

    fn done(&self) -> u64 {
        self.said.lock().unwrap().last().map_or(0, |progress| progress.bytes_done)
    }

    /// Whether a sentence with these words was told.
    fn was_told(&self, words: &str) -> bool {
        self.said.lock().unwrap().iter().any(|progress| job::sentence(progress).contains(words))
    }
}

/// With the times that downloads have: a source that is silent is not given up within a test.
fn patient(site: Site) -> Site {
    let artifacts = Arc::new(Artifacts::new(site.artifacts.settings.clone()));
    Site { artifacts, ..site }
}

/// Without anything to do the clock of the test goes on to the next moment that somebody waits for.
#[tokio::test(start_paused = true)]
async fn another_source_takes_over_where_nothing_comes() {
    let site = patient(Site::new());
    let model = bytes(400_000);
    let wanted = site.wanted(&[("m", &model)]);
    site.hub.fault("/resolve/r1/m", Fault::Hold(150_000), 1);
    let first = Wisher::new(&site, &wanted, "hub");
    wait_until("a part has come", || first.done() == 150_000).await;
    // Held at first, so that the first one can leave meanwhile.
    site.hub.fault("name/r1/m", Fault::Hold(150_000), 1);
    let second = Wisher::new(&site, &wanted, "mirror");
    wait_until("the other source is asked", || second.done() == 300_000).await;
    let seen = site.hub.seen();
    assert_eq!(seen[1].path, "/org/name/r1/m");
    assert_eq!(seen[1].headers["range"], "bytes=150000-");
    assert!(!seen[1].headers.contains_key("if-range"), "the tag was the other source's");
    // Who was there first waits for what comes now, is told so, and may leave.
    wait_until("the first one is told", || first.was_told("from source mirror, for another job")).await;
    first.cancel.cancel();
    assert_eq!(first.end.await.unwrap().unwrap_err().reason, Reason::Cancelled);
    site.hub.let_go();
    let done = second.end.await.unwrap().unwrap();
    assert_eq!(site.placed(&done, "m"), model);
    assert_eq!((done.fetched, site.hub.seen().len()), (250_000, 2));
    assert!(lock(&site.artifacts.running).is_empty() && site.quarantine().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_source_that_brings_something_is_waited_for() {
    let site = patient(Site::new());
    let model = bytes(400_000);
    let wanted = site.wanted(&[("m", &model)]);
    site.hub.fault("/resolve/r1/m", Fault::Hold(100_000), 1);
    // The clock stands as long as something blocks.
    let (stands, goes) = std::sync::mpsc::sync_channel::<()>(0);
    let clock = tokio::task::spawn_blocking(move || {
        let _ = goes.recv();
    });
    let first = Wisher::new(&site, &wanted, "hub");
    until("a part has come", || first.done() == 100_000).await;
    let second = Wisher::new(&site, &wanted, "mirror");
    until("it is told what it waits for", || {
        second.was_told("from source hub, for another job; source mirror is asked if nothing comes for 10 s")
    })
    .await;
    tokio::time::advance(Duration::from_secs(9)).await;
    site.hub.let_go();
    for one in [first, second] {
        assert_eq!(one.end.await.unwrap().unwrap().fetched, 400_000);
    }
    assert_eq!(site.hub.seen().len(), 1);
    drop(stands);
    clock.await.unwrap();
}

/// Without the test's clock.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "{what}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_ends_with_what_its_own_source_says() {
    for (other, succeeds) in [(Fault::Status(404), false), (Fault::Chunked, true)] {
        let site = Site::new();
        let wanted = site.wanted(&[("m", &bytes(1000))]);
        site.hub.fault("/resolve/r1/m", Fault::Silent, 99);
        site.hub.fault("name/r1/m", other, 1);
        let first = Wisher::new(&site, &wanted, "hub");
        wait_until("it has begun", || !site.hub.seen().is_empty()).await;
        let second = Wisher::new(&site, &wanted, "mirror");
        let (one, two) = (first.end.await.unwrap().unwrap_err(), second.end.await.unwrap());
        assert_eq!(one.reason, Reason::SourceUnreachable, "{one}");
        assert_eq!(two.as_ref().is_ok_and(|done| done.fetched == 1000), succeeds, "{two:?}");
        let refused = two.err().map(|failure| (failure.reason, failure.says.contains("source mirror")));
        assert_eq!(refused, (!succeeds).then_some((Reason::SourceRefused, true)));
    }
}

#[tokio::test]
async fn why_nothing_comes_is_told() {
    let site = Site::new();
    let wanted = site.wanted(&[("m", &bytes(1000))]);
    site.hub.fault("/m", Fault::Status(503), 1);
    site.hub.fault("/m", Fault::Silent, 1);
    let one = Wisher::new(&site, &wanted, "hub");
    wait_until("it is whole", || one.end.is_finished()).await;
    assert!(one.was_told("source hub answers 503 for \"m\"; tried again in 1 s; 0 of 1 files"));
    assert!(one.was_told("source hub has not answered yet; 0 of 1 files"));
    one.end.await.unwrap().unwrap();
}
