//! What is decided about downloads.

use super::*;

fn file(path: &str, bytes: u64) -> ArtifactFile {
    ArtifactFile { path: path.into(), bytes, sha256: "ab".repeat(32) }
}

fn wanted(files: Vec<ArtifactFile>) -> Wanted {
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

#[test]
fn names_and_digest_are_judged_before_anything_else() {
    wanted(vec![file("a", 1)]).check().unwrap();
    // Row 94.
    for (bad, reason) in [
        (Wanted { repository: "../x".into(), ..wanted(vec![file("a", 1)]) }, Reason::NameRefused),
        (Wanted { revision: "a/../..".into(), ..wanted(vec![file("a", 1)]) }, Reason::NameRefused),
        (wanted(vec![file("../a", 1)]), Reason::NameRefused),
        (wanted(vec![file("a", 1), file("A", 1)]), Reason::NameRefused),
        (Wanted { digest: "00".repeat(32), ..wanted(vec![file("a", 1)]) }, Reason::DigestMismatch),
    ] {
        assert_eq!(bad.check().unwrap_err().reason, reason, "{bad:?}");
    }
}

#[test]
fn what_an_earlier_try_left_is_used() {
    let file = file("a", 10);
    for (kept, step, missing) in [
        (None, Step::Fetch, 10),
        (Some(Kept::Part(0)), Step::Fetch, 10),
        (Some(Kept::Part(4)), Step::Resume(4), 6),
        (Some(Kept::Part(10)), Step::Resume(10), 0),
        (Some(Kept::Part(11)), Step::Fetch, 10),
        (Some(Kept::Verified), Step::Skip, 0),
    ] {
        let planned = Step::of(&file, kept);
        assert_eq!((planned, planned.missing(&file)), (step, missing));
    }
}

#[test]
fn room_is_what_nobody_else_was_promised() {
    room(100, 20, 30, 50).unwrap();
    let refused = room(100, 20, 30, 51).unwrap_err();
    assert!(refused.reason == Reason::Space && refused.retry());
    room(10, 20, 0, 1).unwrap_err();
    room(0, 0, u64::MAX, 0).unwrap();
}

#[test]
fn tries_end_unless_they_bring_something() {
    let mut tries = Tries::new(Patience::default());
    let pauses: Vec<_> =
        std::iter::from_fn(|| tries.failed(10, None, 0)).map(|pause| pause.as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60]);
    let mut tries = Tries::new(Patience::default());
    for _ in 0..100 {
        assert_eq!(tries.failed(WORTHWHILE, None, 0), Some(Duration::from_secs(1)));
    }
    // What the server asks for, but not for ever.
    assert_eq!(tries.failed(WORTHWHILE, Some(Duration::from_secs(20)), 0), Some(Duration::from_secs(20)));
    assert_eq!(tries.failed(WORTHWHILE, Some(Duration::from_secs(9999)), 0), Some(Duration::from_secs(60)));
    assert_eq!(tries.failed(WORTHWHILE, None, 255), Some(Duration::from_millis(1250)));
}

#[test]
fn a_drip_is_no_flow() {
    let (start, patience) = (Instant::now(), Patience::default());
    let mut drip = Drip::new(start);
    for second in 1..60 {
        assert!(drip.flows(1, start + Duration::from_secs(second), &patience));
    }
    assert!(!drip.flows(1, start + Duration::from_secs(60), &patience));
    assert!(drip.flows(patience.trickle, start + Duration::from_secs(120), &patience));
}

#[test]
fn a_rate_follows_the_last_seconds() {
    let start = Instant::now();
    let mut rate = Rate::new(start);
    for tenth in 1..=100 {
        rate.count(100, start + Duration::from_millis(tenth * 100));
    }
    let now = start + Duration::from_secs(10);
    assert!((900..=1100).contains(&rate.per_second(now)), "{}", rate.per_second(now));
    assert_eq!(rate.per_second(now + Duration::from_secs(20)), 0);
}

#[test]
fn the_oldest_goes_first_and_what_runs_stays() {
    let left = |name: &str, days: u64, bytes, running| Left {
        name: name.into(),
        age: Duration::from_secs(days * 24 * 3600),
        bytes,
        running,
    };
    let all = vec![
        left("new", 1, 10, false),
        left("old", 3, 10, false),
        left("ran", 30, 10, true),
        left("past", 8, 10, false),
    ];
    assert_eq!(outworn(all.clone(), 0), ["past"]);
    assert_eq!(outworn(all.clone(), 15), ["past", "old"]);
    assert_eq!(outworn(all, 1000), ["past", "old", "new"]);
}

#[test]
fn a_download_makes_way_when_it_has_stood_still_for_long() {
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let at = |stage, bytes_done| Progress { stage, bytes_done, ..Progress::default() };
    let mut headway = Headway::new(start);
    assert!(!headway.stands_still(start + STANDSTILL - second) && headway.stands_still(start + STANDSTILL));
    // A byte now and then is enough; the same figure told again is nothing, nor is one that begins anew.
    for (moment, bytes, since) in [(9, 1, 9), (18, 2, 18), (27, 2, 18), (27, 0, 18), (27, 1, 27)] {
        headway.seen(&at(Stage::Fetching, bytes), start + moment * second);
        assert_eq!(headway.deadline(), Some(start + since * second + STANDSTILL), "{moment} {bytes}");
    }
    // Hashing what is there is getting on, too; what goes to its place is left alone, however slow the disk is.
    headway.seen(&at(Stage::Verifying, 5), start + 60 * second);
    assert!(!headway.stands_still(start + 69 * second));
    headway.seen(&at(Stage::Promoting, 5), start + 60 * second);
    assert!(headway.deadline().is_none() && !headway.stands_still(start + 6000 * second));
}

#[test]
fn what_is_of_one_source_alone_is_not_of_another() {
    for reason in [Reason::Space, Reason::Disk, Reason::Cancelled, Reason::Internal, Reason::RootUnknown] {
        assert!(!reason.is_of_source(), "{reason:?}");
    }
    assert!(Reason::SourceRefused.is_of_source() && Reason::SourceUnreachable.is_of_source());
    assert!(Reason::SizeMismatch.is_of_source() && Reason::DigestMismatch.is_of_source());
}
