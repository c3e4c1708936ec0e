//! Records: phases add up, bounds hold, filters choose.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

fn started(id: &str, at: Instant) -> Started {
    Started {
        request_id: id.into(),
        key_id: Some("key-1".into()),
        model: Some("m".into()),
        route: "/v1/chat/completions",
        stream: true,
        body_bytes: 100,
        prompt_bytes: 80,
        at,
        at_unix_ms: 1_000,
    }
}

fn given(lease: u64) -> Given {
    Given { provider_id: "node/engine".into(), lease, estimated_tokens: 20, long: false, affinity: false }
}

fn end(status: u16) -> End {
    End { status, reason: None, usage: Usage::default(), answer_bytes: 0 }
}

fn ids(ring: &Ring, now: Instant, filter: &Filter) -> Vec<String> {
    ring.list(now, filter, 10).into_iter().map(|record| record.started.request_id.to_string()).collect()
}

#[test]
fn phases_add_up_over_a_second_try() {
    let mut ring = Ring::default();
    let zero = Instant::now();
    let at = |ms: u64| zero + Duration::from_millis(ms);
    let place = ring.start(started("a", zero));
    ring.give(at(10), place, given(1));
    ring.miss(place, "lost");
    ring.queue(at(30), place);
    ring.give(at(70), place, given(2));
    ring.stream(at(100), place);
    let running = ring.list(at(150), &Filter::default(), 1).pop().unwrap();
    assert_eq!(running.spent(Phase::Streaming, at(150)), Duration::from_millis(50));
    assert!(running.ended.is_none());
    ring.end(at(200), place, end(200));
    // The second end is none.
    ring.end(at(900), place, end(499));
    let record = ring.list(at(999), &Filter::default(), 1).pop().unwrap();
    let spent = [Phase::Queued, Phase::Prefill, Phase::Streaming].map(|phase| record.spent(phase, at(999)));
    assert_eq!(spent, [50, 50, 100].map(Duration::from_millis));
    assert_eq!(record.took(at(999)), Duration::from_millis(200));
    assert_eq!(record.ended.unwrap().1.status, 200);
    let misses: Vec<_> = record.tries.iter().map(|one| one.miss).collect();
    assert_eq!(misses, [Some("lost"), None]);
    assert_eq!(ring.of_lease(1).unwrap().number, record.number);
    assert!(ring.of_lease(3).is_none());
    assert_eq!(ring.running(), 0);
}

#[test]
fn both_tables_are_bounded_and_a_place_is_used_again() {
    let mut ring = Ring::default();
    let now = Instant::now();
    let places: Vec<Place> = (0..RUNNING_MAX + 5).map(|n| ring.start(started(&n.to_string(), now))).collect();
    assert_eq!((ring.running(), ring.unrecorded()), (RUNNING_MAX, 5));
    for place in places {
        // Those without a place end like all others.
        ring.end(now, place, end(200));
    }
    assert_eq!((ring.running(), ring.ended.len()), (0, KEPT));
    let place = ring.start(started("again", now));
    assert_eq!((ring.running(), ring.running.len()), (1, RUNNING_MAX));
    ring.end(now, place, end(200));
    assert_eq!(ids(&ring, now, &Filter::default()).first().unwrap(), "again");
}

#[test]
fn an_old_records_memory_is_used_again_and_nothing_of_it_is_left() {
    let mut ring = Ring::default();
    let now = Instant::now();
    let run = |ring: &mut Ring, id: &str, tries: u64| {
        let place = ring.start(started(id, now));
        (0..tries).for_each(|lease| ring.give(now, place, given(lease)));
        ring.end(now, place, end(200));
    };
    (0..KEPT).for_each(|_| run(&mut ring, "old", 4));
    run(&mut ring, "one more", 1);
    assert_eq!((ring.ended.len(), ring.spare.len()), (KEPT, 1));
    let place = ring.start(started("new", now));
    assert!(ring.spare.is_empty());
    let record = ring.list(now, &Filter::default(), 1).pop().unwrap();
    assert_eq!((record.number, record.tries.len(), record.ended), (place.number(), 0, None));
    assert_eq!((record.estimated_tokens, record.phase), (None, Phase::Queued));
    assert_eq!(record.started, started("new", now));
}

#[test]
fn a_late_word_of_an_older_request_does_not_touch_the_newer_one_in_its_place() {
    let mut ring = Ring::default();
    let now = Instant::now();
    let old = ring.start(started("old", now));
    ring.end(now, old, end(200));
    let new = ring.start(started("new", now));
    ring.stream(now, old);
    ring.end(now, old, end(499));
    assert_eq!(ring.list(now, &Filter { running: Some(true), ..Filter::default() }, 9).len(), 1);
    ring.end(now, new, end(200));
    assert_eq!(ids(&ring, now, &Filter::default()), ["new", "old"]);
}

#[test]
fn filters_choose_and_pages_go_on() {
    let mut ring = Ring::default();
    let now = Instant::now();
    let later = now + Duration::from_secs(5);
    let a = ring.start(started("a", now));
    ring.end(now, a, end(429));
    let b = ring.start(Started { model: Some("other".into()), key_id: None, ..started("b", now) });
    ring.end(later, b, end(200));
    ring.start(started("a", now));
    let with = |change: fn(&mut Filter)| {
        let mut filter = Filter::default();
        change(&mut filter);
        ids(&ring, later, &filter)
    };
    assert_eq!(with(|_| ()), ["a", "b", "a"]);
    assert_eq!(with(|filter| filter.model = Some("other".into())), ["b"]);
    assert_eq!(with(|filter| filter.key_id = Some("key-1".into())), ["a", "a"]);
    assert_eq!(with(|filter| filter.request_id = Some("b".into())), ["b"]);
    assert_eq!(with(|filter| filter.status = Some((400, 499))), ["a"]);
    assert_eq!(with(|filter| filter.running = Some(true)), ["a"]);
    assert_eq!(with(|filter| filter.slower_than = Some(Duration::from_secs(5))), ["a", "b"]);
    assert_eq!(with(|filter| filter.before = Some(2)), ["a"]);
}
