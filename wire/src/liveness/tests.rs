//! Liveness over hand-made time.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn world() -> (Liveness<&'static str>, Instant) {
    let start = Instant::now();
    let times = Times::new(SECOND * 30, SECOND * 90).unwrap();
    (Liveness::new(times, SECOND, start), start)
}

/// Sweeps once a second, as a running process does.
fn run(liveness: &mut Liveness<&'static str>, from: Instant, seconds: u32) -> Vec<(u32, State)> {
    (1..=seconds)
        .flat_map(|second| {
            liveness.sweep(from + SECOND * second).into_iter().map(move |change| (second, change.to))
        })
        .collect()
}

#[test]
fn silence_makes_stale_then_offline_and_a_heartbeat_online_at_once() {
    let (mut liveness, start) = world();
    liveness.insert("n", false);
    assert_eq!(liveness.heard(&"n", start).unwrap().to, State::Online);
    assert_eq!(run(&mut liveness, start, 100), [(30, State::Stale), (90, State::Offline)]);
    assert_eq!(liveness.heard(&"n", start + SECOND * 101).unwrap().from, State::Offline);
}

#[test]
fn after_a_start_nobody_is_offline_before_the_offline_time_has_passed() {
    let (mut liveness, start) = world();
    liveness.insert("seen", true);
    liveness.insert("new", false);
    assert_eq!(liveness.state(&"seen"), Some(State::Unknown));
    assert_eq!(run(&mut liveness, start, 100), [(90, State::Offline)]);
    assert_eq!(liveness.state(&"new"), Some(State::Never));
}

#[test]
fn a_paused_process_blames_nobody() {
    let (mut liveness, start) = world();
    for peer in ["quiet", "spoke"] {
        liveness.insert(peer, false);
        let _ = liveness.heard(&peer, start);
    }
    run(&mut liveness, start, 10);
    // Stopped for an hour; on waking one peer's frame is read before the sweep.
    let woken = start + SECOND * 3610;
    let _ = liveness.heard(&"spoke", woken);
    assert_eq!(liveness.sweep(woken), []);
    // 10 s of silence had passed before the pause, and one period of the pause counts: 19 more make it stale.
    assert_eq!(run(&mut liveness, woken, 25), [(19, State::Stale)]);
    assert_eq!(liveness.state(&"spoke"), Some(State::Online));
}

#[test]
fn an_unknown_peer_is_ignored_and_a_removed_one_forgotten() {
    let (mut liveness, start) = world();
    assert_eq!(liveness.heard(&"n", start), None);
    liveness.insert("n", false);
    liveness.remove(&"n");
    assert_eq!(liveness.state(&"n"), None);
}

#[test]
fn offline_must_exceed_stale() {
    assert!(Times::new(SECOND, SECOND).is_err());
    assert!(Times::new(Duration::ZERO, SECOND).is_err());
}

quickcheck::quickcheck! {
    /// Whatever the pauses, a peer that speaks before each sweep is never stale, and states only fall in order.
    fn pauses_never_hurt_a_speaking_peer(pauses: Vec<u16>) -> bool {
        let (mut liveness, start) = world();
        liveness.insert("n", true);
        let mut now = start;
        pauses.into_iter().all(|pause| {
            now += Duration::from_millis(u64::from(pause) * 100);
            let _ = liveness.heard(&"n", now);
            liveness.sweep(now).is_empty() && liveness.state(&"n") == Some(State::Online)
        })
    }
}
