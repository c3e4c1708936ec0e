//! Random histories of two sessions, and random bytes into one.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::{Call, End, Pair, pattern};
use crate::close::{CloseReason, Goaway};
use crate::error::Error;

/// One thing that happens. Numbers that choose are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Open { body: usize, finished: bool, timeout: u64 },
    Push { which: usize, count: usize },
    FinishBody(usize),
    Read(usize),
    Reset(usize),
    Release(usize),
    Head { which: usize, inline: usize },
    Answer { which: usize, count: usize },
    ReadBody(usize),
    RefuseBody(usize),
    End(usize),
    Call { count: usize, timeout: u64 },
    Cancel(usize),
    Respond(usize),
    TakeAnswer(usize),
    Event(usize),
    Write,
    Deliver(usize),
    Advance(u64),
    Goaway,
    Close,
}

#[derive(Clone, Debug)]
struct Step {
    end: usize,
    op: Op,
}

fn size(g: &mut Gen) -> usize {
    const SIZES: [usize; 8] = [0, 1, 100, 5_000, 16_384, 16_385, 70_000, 300_000];
    *g.choose(&SIZES).unwrap()
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let which = usize::arbitrary(g) % 8;
        let op = match u8::arbitrary(g) % 40 {
            0..3 => Op::Open { body: size(g), finished: bool::arbitrary(g), timeout: u64::arbitrary(g) % 4 },
            3..5 => Op::Push { which, count: size(g) },
            5 => Op::FinishBody(which),
            6..9 => Op::Read(which),
            9 => Op::Reset(which),
            10 => Op::Release(which),
            11 => Op::Head { which, inline: size(g) },
            12..15 => Op::Answer { which, count: size(g) },
            15..18 => Op::ReadBody(which),
            18 => Op::RefuseBody(which),
            19..21 => Op::End(which),
            21..23 => Op::Call { count: size(g), timeout: u64::arbitrary(g) % 4 },
            23 => Op::Cancel(which),
            24 => Op::Respond(which),
            25 => Op::TakeAnswer(which),
            26 => Op::Event(which),
            27..32 => Op::Write,
            32..38 => Op::Deliver(size(g)),
            38 => Op::Advance(u64::arbitrary(g) % 4_000),
            _ if u8::arbitrary(g) % 8 == 0 => Op::Goaway,
            _ if u8::arbitrary(g) % 16 == 0 => Op::Close,
            _ => Op::Write,
        };
        Self { end: usize::from(bool::arbitrary(g)), op }
    }
}

fn pick<T>(things: &mut [T], which: usize) -> Option<&mut T> {
    let count = things.len();
    (count > 0).then(|| &mut things[which % count])
}

fn run(pair: &mut Pair, Step { end: at, op }: Step) {
    let now = pair.now;
    match op {
        Op::Open { body, finished, timeout } => {
            let _ = pair.open(at, body, finished, Duration::from_secs(timeout));
        }
        Op::Write => {
            let _ = pair.write(at);
        }
        Op::Deliver(count) => {
            let _ = pair.deliver(at, count);
        }
        Op::Advance(millis) => pair.advance(Duration::from_millis(millis)),
        op => {
            let end = &mut pair.ends[at];
            opener(end, &op);
            answerer(end, &op);
            caller(end, now, &op);
            match op {
                Op::Event(which) => end.session.event(1, &which.to_string(), Bytes::from_static(b"event")),
                Op::Goaway => end.session.goaway(Goaway { reason: "shutdown".into(), ..Goaway::default() }),
                Op::Close => end.session.close(CloseReason::Shutdown),
                _ => {}
            }
            end.effects();
        }
    }
}

/// What the application does with a stream it opened.
fn opener(end: &mut End, op: &Op) {
    let mut cx = Context::from_waker(Waker::noop());
    let (Op::Push { which, .. }
    | Op::FinishBody(which)
    | Op::Read(which)
    | Op::Reset(which)
    | Op::Release(which)) = op
    else {
        return;
    };
    let session = &mut end.session;
    let Some(own) = pick(&mut end.own, *which).filter(|own| own.held) else { return };
    match op {
        Op::Push { count, .. } => {
            if let Poll::Ready(Ok(count)) = session.poll_push(own.key, &pattern(own.sent, *count), &mut cx) {
                own.sent += count;
            }
        }
        Op::FinishBody(_) => session.finish_body(own.key),
        Op::Read(_) => {
            let _ = session.poll_head(own.key, &mut cx);
            if let Poll::Ready(Some(bytes)) = session.poll_data(own.key, &mut cx) {
                assert_eq!(bytes, pattern(own.read, bytes.len()), "the answer is damaged");
                own.read += bytes.len();
            }
        }
        Op::Reset(_) => session.abandon(own.key, Error::cancelled()),
        _ => {
            own.held = false;
            session.release(own.key);
        }
    }
}

/// What the application does with a stream of the peer.
fn answerer(end: &mut End, op: &Op) {
    let mut cx = Context::from_waker(Waker::noop());
    let session = &mut end.session;
    match op {
        Op::Head { which, inline } => {
            if let Some(theirs) = pick(&mut end.theirs, *which)
                && session.reset_reason(theirs.key).is_none()
                && session.send_head(theirs.key, b"head".to_vec(), &pattern(theirs.sent, *inline)).is_ok()
            {
                theirs.sent += inline;
            }
        }
        Op::Answer { which, count } => {
            if let Some(theirs) = pick(&mut end.theirs, *which)
                && let Poll::Ready(Ok(count)) =
                    session.poll_push(theirs.key, &pattern(theirs.sent, *count), &mut cx)
            {
                theirs.sent += count;
            }
        }
        Op::ReadBody(which) => {
            if let Some(theirs) = pick(&mut end.theirs, *which)
                && let Poll::Ready(Ok(Some(bytes))) = session.poll_body(theirs.key, &mut cx)
            {
                assert_eq!(bytes, pattern(theirs.read, bytes.len()), "the body is damaged");
                theirs.read += bytes.len();
            }
        }
        Op::RefuseBody(which) => {
            if let Some(theirs) = pick(&mut end.theirs, *which) {
                session.refuse_body(theirs.key, Error::cancelled());
            }
        }
        Op::End(which) if !end.theirs.is_empty() => {
            let theirs = end.theirs.swap_remove(which % end.theirs.len());
            session.end(theirs.key, None, false, b"end");
        }
        _ => {}
    }
}

/// Requests of both directions.
fn caller(end: &mut End, now: Instant, op: &Op) {
    let mut cx = Context::from_waker(Waker::noop());
    let session = &mut end.session;
    let open = |call: &&mut Call| call.answers == 0 && !call.cancelled;
    match op {
        Op::Call { count, timeout } => {
            if let Ok(key) =
                session.call(now, 1, Bytes::from(pattern(0, *count)), Duration::from_secs(*timeout))
            {
                end.calls.push(Call { key, answers: 0, cancelled: false });
            }
        }
        Op::Cancel(which) => {
            if let Some(call) = pick(&mut end.calls, *which).filter(open) {
                call.cancelled = true;
                session.cancel_call(call.key);
            }
        }
        Op::TakeAnswer(which) => {
            if let Some(call) = pick(&mut end.calls, *which).filter(open)
                && session.poll_call(call.key, &mut cx).is_ready()
            {
                call.answers += 1;
            }
        }
        Op::Respond(which) if !end.requests.is_empty() => {
            let key = end.requests.swap_remove(which % end.requests.len());
            session.respond(key, Ok(vec![1; 100 * which]));
        }
        _ => {}
    }
}

/// The invariants of credit, answers, terminals and bounds, over random histories with random cuts.
#[test]
fn histories_keep_the_invariants() {
    fn property(steps: Vec<Step>) {
        let mut pair = Pair::new();
        for step in steps {
            run(&mut pair, step);
            pair.check();
        }
        pair.finish();
        pair.check();
    }
    QuickCheck::new().rng(Gen::new(400)).tests(400).quickcheck(property as fn(Vec<Step>));
}

/// With live readers every stream moves on: all bytes of all streams arrive, whatever the cuts.
#[test]
fn every_stream_progresses() {
    fn property(streams: Vec<(u32, u32)>, cuts: Vec<u16>) {
        let mut pair = Pair::new();
        let mut cx = Context::from_waker(Waker::noop());
        let wanted: Vec<_> = streams
            .iter()
            .take(8)
            .map(|(body, answer)| ((*body % 150_000) as usize, (*answer % 150_000) as usize))
            .collect();
        for (body, _) in &wanted {
            assert!(pair.open(0, *body, true, Duration::ZERO));
        }
        let mut cuts = cuts.into_iter().map(usize::from).filter(|cut| *cut > 0).cycle();
        let mut rounds = 0;
        while pair.ends[0].own.iter().any(|own| own.terminals.lock().unwrap().is_empty()) {
            rounds += 1;
            assert!(rounds < 20_000, "no progress");
            for at in [0, 1] {
                pair.write(at);
                // A cut in the middle of a frame needs the rest before anything moves.
                if pair.deliver(1 - at, cuts.next().unwrap_or(usize::MAX)) == 0 {
                    pair.deliver(1 - at, usize::MAX);
                }
            }
            let end = &mut pair.ends[1];
            let mut done = Vec::new();
            for (at, theirs) in end.theirs.iter_mut().enumerate() {
                if let Poll::Ready(Ok(Some(bytes))) = end.session.poll_body(theirs.key, &mut cx) {
                    theirs.read += bytes.len();
                }
                let total = wanted[((end.session.stream_id(theirs.key) - 1) / 2) as usize].1;
                if let Poll::Ready(Ok(count)) = end.session.poll_push(
                    theirs.key,
                    &pattern(theirs.sent, (total - theirs.sent).min(40_000)),
                    &mut cx,
                ) {
                    theirs.sent += count;
                }
                if theirs.sent == total && end.session.poll_body(theirs.key, &mut cx) == Poll::Ready(Ok(None))
                {
                    done.push(at);
                }
            }
            for at in done.into_iter().rev() {
                let theirs = end.theirs.swap_remove(at);
                end.session.end(theirs.key, None, false, b"");
            }
            let end = &mut pair.ends[0];
            for own in &mut end.own {
                if let Poll::Ready(Some(bytes)) = end.session.poll_data(own.key, &mut cx) {
                    assert_eq!(bytes, pattern(own.read, bytes.len()));
                    own.read += bytes.len();
                }
            }
            pair.check();
        }
        let end = &mut pair.ends[0];
        for (own, (_, answer)) in end.own.iter_mut().zip(wanted) {
            while let Poll::Ready(Some(bytes)) = end.session.poll_data(own.key, &mut cx) {
                own.read += bytes.len();
            }
            assert_eq!(own.read, answer);
        }
        pair.finish();
    }
    QuickCheck::new().tests(20).quickcheck(property as fn(Vec<(u32, u32)>, Vec<u16>));
}

/// Fault rows 39 and 43: random bytes, and a real conversation damaged at one place, close the session or nothing.
#[test]
fn no_bytes_panic() {
    fn property(bytes: Vec<u8>, at: usize, framed: bool) {
        let mut pair = Pair::new();
        pair.open(1, 20_000, false, Duration::from_secs(1));
        let mut talk = Vec::new();
        let now = pair.now;
        pair.ends[1].session.fill(now, &mut talk);
        if framed {
            talk.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        }
        let place = at % (talk.len() + 1);
        for (offset, byte) in bytes.iter().enumerate() {
            match talk.get_mut(place + offset) {
                Some(slot) => *slot = *byte,
                None => talk.push(*byte),
            }
        }
        let mut outputs = Vec::new();
        pair.ends[0].session.read(now, &talk, &mut outputs);
        pair.ends[0].effects();
    }
    QuickCheck::new().tests(20_000).quickcheck(property as fn(Vec<u8>, usize, bool));
}
