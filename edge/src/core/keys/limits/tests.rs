//! Limits by the minute against a plain model of them, and their edges.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Enter(u64),
    Settle(usize, u64),
    Drop(usize),
    Pass(u32),
    Limits(Option<u64>, Option<u64>),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let small = |g: &mut Gen, most: u64| u64::arbitrary(g) % most;
        match u8::arbitrary(g) % 12 {
            0..=5 => Self::Enter(small(g, 40)),
            6 | 7 => Self::Settle(usize::arbitrary(g), small(g, 400)),
            8 => Self::Drop(usize::arbitrary(g)),
            9 | 10 => Self::Pass(u32::arbitrary(g) % 20_000),
            _ => {
                let limit = |g: &mut Gen| bool::arbitrary(g).then(|| 1 + u64::arbitrary(g) % 50);
                Self::Limits(limit(g), limit(g))
            }
        }
    }
}

/// The same in thousandths of a millisecond's share, without anything of the implementation.
#[derive(Clone, Copy, Default)]
struct Plain {
    used: i128,
}

impl Plain {
    const ONE: i128 = 60_000;

    fn pass(&mut self, limit: u64, ms: u32) {
        let used = self.used.min(i128::from(limit) * 11 * Self::ONE);
        self.used = (used - i128::from(limit) * i128::from(ms)).max(0);
    }

    fn fits(&self, limit: u64, amount: u64) -> bool {
        self.used + i128::from(amount.clamp(1, limit)) * Self::ONE <= i128::from(limit) * Self::ONE
    }

    fn take(&mut self, limit: u64, amount: u64) -> u64 {
        let room = (i128::from(limit) * 11 * Self::ONE - self.used).max(0) / Self::ONE;
        let amount = amount.min(u64::try_from(room).unwrap());
        self.used += i128::from(amount) * Self::ONE;
        amount
    }

    fn give_back(&mut self, amount: u64) {
        self.used = (self.used - i128::from(amount) * Self::ONE).max(0);
    }
}

fn limits(requests: Option<u64>, tokens: Option<u64>) -> KeyLimits {
    KeyLimits { requests_per_minute: requests, tokens_per_minute: tokens, requests_at_once: None }
}

quickcheck! {
    /// Every decision is the plain model's, and a refusal says when it would be another.
    fn decisions_are_those_of_a_plain_model(steps: Vec<Step>) -> bool {
        let mut now = Instant::now();
        let mut meter = Meter::default();
        let (mut requests, mut tokens) = (Plain::default(), Plain::default());
        let (mut of_requests, mut of_tokens) = (Some(5), Some(30));
        let mut running: Vec<u64> = Vec::new();
        for step in steps {
            let set = limits(of_requests, of_tokens);
            match step {
                Step::Limits(r, t) => {
                    // A limit that is not there has nothing to let come back.
                    (of_requests, of_tokens) = (r, t);
                    of_requests.iter().for_each(|limit| requests.pass(*limit, 0));
                    of_tokens.iter().for_each(|limit| tokens.pass(*limit, 0));
                    meter.standing(&limits(r, t), now);
                }
                Step::Pass(ms) => {
                    now += Duration::from_millis(u64::from(ms));
                    of_requests.iter().for_each(|limit| requests.pass(*limit, ms));
                    of_tokens.iter().for_each(|limit| tokens.pass(*limit, ms));
                    meter.standing(&set, now);
                    if of_requests.is_none() || of_tokens.is_none() {
                        // Nobody looked at it; both sides forget.
                        if of_requests.is_none() { requests = Plain::default(); meter.requests = Bucket::default(); }
                        if of_tokens.is_none() { tokens = Plain::default(); meter.tokens = Bucket::default(); }
                    }
                }
                Step::Enter(amount) => {
                    let fits = of_requests.is_none_or(|limit| requests.fits(limit, 1))
                        && of_tokens.is_none_or(|limit| tokens.fits(limit, amount));
                    match meter.enter(&set, now, amount) {
                        Ok(charged) => {
                            if !fits { return false; }
                            of_requests.map(|limit| requests.take(limit, 1));
                            if charged != of_tokens.map_or(0, |limit| tokens.take(limit, amount)) { return false; }
                            running.push(charged);
                        }
                        Err(at) => {
                            let micro = Duration::from_micros(1);
                            let then = now + at.retry_after;
                            let (mut sooner, mut later) = (meter, meter);
                            if fits || at.retry_after.is_zero()
                                || sooner.enter(&set, then - micro, amount).is_ok()
                                || later.enter(&set, then, amount).is_err() { return false; }
                        }
                    }
                }
                Step::Settle(at, used) if !running.is_empty() => {
                    let charged = running.swap_remove(at % running.len());
                    meter.correct(&set, now, charged, used);
                    tokens.give_back(charged);
                    of_tokens.map(|limit| tokens.take(limit, used));
                }
                Step::Drop(at) if !running.is_empty() => {
                    let charged = running.swap_remove(at % running.len());
                    meter.give_back(charged);
                    tokens.give_back(charged);
                }
                Step::Settle(..) | Step::Drop(_) => {}
            }
        }
        true
    }

    /// Whatever comes when: no stretch of time sees more than the limit and what came back in it.
    fn no_stretch_of_time_sees_more_than_it_may(gaps: Vec<u32>, limit: u8) -> bool {
        let limit = u64::from(limit).clamp(1, 40);
        let set = limits(Some(limit), None);
        let (mut now, mut meter) = (Instant::now(), Meter::default());
        let mut admitted: Vec<Instant> = Vec::new();
        for gap in gaps {
            now += Duration::from_nanos(u64::from(gap) % 3_000_000_000);
            if meter.enter(&set, now, 0).is_ok() {
                admitted.push(now);
            }
        }
        (0..admitted.len()).all(|first| (first..admitted.len()).all(|last| {
            let time = admitted[last].duration_since(admitted[first]).as_nanos();
            let came_back = u128::from(limit) * time / 60_000_000_000;
            (last - first + 1) as u128 <= u128::from(limit) + came_back
        }))
    }
}

#[test]
fn a_quiet_minute_may_be_used_at_once_and_then_comes_back_evenly() {
    let (set, start) = (limits(Some(60), None), Instant::now());
    let mut meter = Meter::default();
    assert_eq!((0..100).filter(|_| meter.enter(&set, start, 0).is_ok()).count(), 60);
    let at = meter.enter(&set, start, 0).unwrap_err();
    assert_eq!((at.limit, at.value, at.retry_after), (Limit::RequestsPerMinute, 60, Duration::from_secs(1)));
    let window = at.standing.requests.unwrap();
    assert_eq!((window.remaining, window.reset, at.standing.tokens), (0, Duration::from_secs(60), None));
    assert!(meter.enter(&set, start + Duration::from_secs(1), 0).is_ok());
    assert!(meter.enter(&set, start + Duration::from_secs(1), 0).is_err());
}

#[test]
fn a_request_above_the_limit_waits_for_all_of_it_and_leaves_a_bounded_debt() {
    let (set, start) = (limits(None, Some(1_000)), Instant::now());
    let mut meter = Meter::default();
    let charged = meter.enter(&set, start, 5_000).unwrap();
    assert_eq!(charged, 5_000);
    let at = meter.enter(&set, start, 10).unwrap_err();
    // 4,010 tokens have to come back.
    assert_eq!(at.retry_after, Duration::from_micros(240_600_000));
    meter.correct(&set, start, charged, u64::MAX);
    let window = meter.standing(&set, start).tokens.unwrap();
    assert_eq!(
        (window.remaining, window.reset),
        (0, Duration::from_secs(660)),
        "ten minutes of debt at most"
    );
    let later = start + Duration::from_secs(660);
    assert!(meter.enter(&set, later, 1_000).is_ok() && meter.enter(&set, later, 0).is_err());
}

#[test]
fn a_lowered_limit_shuts_nobody_out_for_longer_than_its_own_debt() {
    let (high, low, start) =
        (limits(Some(600), Some(1_000_000)), limits(Some(1), Some(1_000)), Instant::now());
    let mut meter = Meter::default();
    for _ in 0..600 {
        meter.enter(&high, start, 1_500).unwrap();
    }
    let at = meter.enter(&low, start, 0).unwrap_err();
    assert!(at.retry_after <= Duration::from_secs(60 * (DEBT_MINUTES + 1)), "{at:?}");
    let (of_requests, of_tokens) = (at.standing.requests.unwrap(), at.standing.tokens.unwrap());
    let most = Duration::from_secs(660);
    assert_eq!((of_requests.reset, of_tokens.reset), (most, most), "ten minutes of debt at most");
    assert!(meter.enter(&low, start + most, 0).is_ok());
    // What still ran under the higher limit settles with the one in force.
    meter.correct(&low, start + most, 0, 5_000_000);
    assert_eq!(meter.standing(&low, start + most).tokens.unwrap().reset, most);
}

#[test]
fn an_estimate_that_was_too_high_comes_back_and_another_limit_counts_at_once() {
    let (set, now) = (limits(None, Some(1_000)), Instant::now());
    let mut meter = Meter::default();
    let charged = meter.enter(&set, now, 900).unwrap();
    assert!(meter.enter(&set, now, 200).is_err());
    meter.correct(&set, now, charged, 100);
    let charged = meter.enter(&set, now, 200).unwrap();
    meter.give_back(charged);
    assert_eq!(meter.standing(&set, now).tokens.unwrap().remaining, 900);
    let lower = limits(Some(1), Some(90));
    assert!(meter.enter(&lower, now, 1).is_err(), "what was used of the old limit counts for the new one");
    assert_eq!(meter.standing(&lower, now).tokens.unwrap().remaining, 0);
    assert!(meter.enter(&limits(None, None), now, 1 << 60).is_ok());
}
