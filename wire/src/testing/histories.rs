//! Random histories of two sessions, and random bytes into one.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use quickcheck::{Arbitrary, Gen, QuickCheck};

use super::{Call, Pair, pattern};
use crate::close::{CloseReason, Goaway};
use crate::error::{Code, Error};
use crate::frame::{self, Header};
use crate::limits;
use crate::proto;
use crate::session::stream::Terminal;
use crate::session::table::Key;

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
    let mut cx = Context::from_waker(Waker::noop());
    let now = pair.now;
    let secs = Duration::from_secs;
    let end = &mut pair.ends[at];
    let session = &mut end.session;
    match op {
        Op::Open { body, finished, timeout } => {
            pair.open(at, body, finished, secs(timeout));
            return;
        }
        Op::Push { which, count } => {
            if let Some(own) = pick(&mut end.own, which).filter(|own| own.held)
                && let Poll::Ready(Ok(count)) = session.poll_push(own.key, &pattern(own.sent, count), &mut cx)
            {
                own.sent += count;
            }
        }
        Op::FinishBody(which) => {
            if let Some(own) = pick(&mut end.own, which) {
                session.finish_body(own.key);
            }
        }
        Op::Read(which) => {
            if let Some(own) = pick(&mut end.own, which).filter(|own| own.held) {
                let _ = session.poll_head(own.key, &mut cx);
                if let Poll::Ready(Some(bytes)) = session.poll_data(own.key, &mut cx) {
                    assert_eq!(bytes, pattern(own.read, bytes.len()), "the answer is damaged");
                    own.read += bytes.len();
                }
            }
        }
        Op::Reset(which) => {
            if let Some(own) = pick(&mut end.own, which).filter(|own| own.held) {
                session.abandon(own.key, Error::cancelled());
            }
        }
        Op::Release(which) => {
            if let Some(own) = pick(&mut end.own, which).filter(|own| own.held) {
                own.held = false;
                session.release(own.key);
            }
        }
        Op::Head { which, inline } => {
            if let Some(theirs) = pick(&mut end.theirs, which)
                && session.reset_reason(theirs.key).is_none()
                && session.send_head(theirs.key, b"head", &pattern(theirs.sent, inline)).is_ok()
            {
                theirs.sent += inline;
            }
        }
        Op::Answer { which, count } => {
            if let Some(theirs) = pick(&mut end.theirs, which)
                && let Poll::Ready(Ok(count)) =
                    session.poll_push(theirs.key, &pattern(theirs.sent, count), &mut cx)
            {
                theirs.sent += count;
            }
        }
        Op::ReadBody(which) => {
            if let Some(theirs) = pick(&mut end.theirs, which)
                && let Poll::Ready(Ok(Some(bytes))) = session.poll_body(theirs.key, &mut cx)
            {
                assert_eq!(bytes, pattern(theirs.read, bytes.len()), "the body is damaged");
                theirs.read += bytes.len();
            }
        }
        Op::RefuseBody(which) => {
            if let Some(theirs) = pick(&mut end.theirs, which) {
                session.refuse_body(theirs.key, Error::cancelled());
            }
        }
        Op::End(which) => {
            if !end.theirs.is_empty() {
                let theirs = end.theirs.swap_remove(which % end.theirs.len());
                session.end(theirs.key, None, false, b"end");
            }
        }
        Op::Call { count, timeout } => {
            if let Ok(key) = session.call(now, 1, Bytes::from(pattern(0, count)), secs(timeout)) {
                end.calls.push(Call { key, answers: 0, cancelled: false });
            }
        }
        Op::Cancel(which) => {
            if let Some(call) =
                pick(&mut end.calls, which).filter(|call| call.answers == 0 && !call.cancelled)
            {
                call.cancelled = true;
                session.cancel_call(call.key);
            }
        }
        Op::TakeAnswer(which) => {
            if let Some(call) =
                pick(&mut end.calls, which).filter(|call| call.answers == 0 && !call.cancelled)
                && session.poll_call(call.key, &mut cx).is_ready()
            {
                call.answers += 1;
            }
        }
        Op::Respond(which) => {
            if !end.requests.is_empty() {
                let key = end.requests.swap_remove(which % end.requests.len());
                session.respond(key, Ok(vec![1; 100 * which]));
            }
        }
        Op::Event(which) => session.event(1, &which.to_string(), Bytes::from_static(b"event")),
        Op::Write => {
            pair.write(at);
            return;
        }
        Op::Deliver(count) => {
            pair.deliver(at, count);
            return;
        }
        Op::Advance(millis) => {
            pair.advance(Duration::from_millis(millis));
            return;
        }
        Op::Goaway => session.goaway(Goaway { reason: "shutdown".into(), ..Goaway::default() }),
        Op::Close => session.close(CloseReason::Shutdown),
    }
    end.effects();
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
        pair.ends[1].calls.extend([]);
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

fn raw<M: prost::Message>(header: Header<'_>, field: u32, part: &M) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_with(&mut out, header, field, part);
    out
}

fn flat(header: Header<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put(&mut out, header);
    out
}

/// Each broken rule ends the session with `protocol`; late frames and unknown kinds do not.
#[test]
fn broken_rules_close() {
    let open = |id| raw(Header { kind: 9, id, ..Header::default() }, 23, &proto::Open::default());
    let data = |id, count| {
        let payload = vec![1; count];
        flat(Header { kind: 11, id, payload: &payload, ..Header::default() })
    };
    let kind = |kind, id, flags| flat(Header { kind, id, flags, ..Header::default() });
    let broken: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("kind 0", vec![kind(0, 1, 1)]),
        ("unknown and critical", vec![kind(99, 1, 2)]),
        ("id of the wrong side", vec![open(1)]),
        ("id 0", vec![open(0)]),
        ("id used twice", vec![open(2), open(2)]),
        ("id that went back", vec![open(6), open(4)]),
        ("data for nothing", vec![data(2, 5)]),
        ("data of mine for nothing", vec![data(1, 5)]),
        ("data too large", vec![open(2), data(2, 16 * 1024 + 1)]),
        ("empty data", vec![open(2), data(2, 0)]),
        ("data after the end", vec![open(2), kind(11, 2, 1), data(2, 5)]),
        (
            "response to a stream",
            vec![
                open(2),
                raw(Header { kind: 5, id: 2, ..Header::default() }, 20, &proto::Response::default()),
            ],
        ),
        (
            "head from the opener",
            vec![open(2), raw(Header { kind: 10, id: 2, ..Header::default() }, 24, &proto::Head::default())],
        ),
        (
            "end from the opener",
            vec![open(2), raw(Header { kind: 14, id: 2, ..Header::default() }, 25, &proto::End::default())],
        ),
        ("hello again", vec![kind(1, 0, 0)]),
        ("wrong part", vec![raw(Header { kind: 9, id: 2, ..Header::default() }, 25, &proto::End::default())]),
        ("beyond the credit", std::iter::once(open(2)).chain((0..17).map(|_| data(2, 16 * 1024))).collect()),
        ("length 0", vec![vec![0, 0, 0, 0]]),
        ("length too large", vec![vec![0, 1, 0, 1]]),
    ];
    for (what, frames) in broken {
        let mut pair = Pair::new();
        pair.ends[0].pipe = frames.concat();
        pair.deliver(0, usize::MAX);
        assert!(matches!(pair.ends[0].session.closed(), Some(CloseReason::Protocol(_))), "{what}");
        let mut farewell = Vec::new();
        let now = pair.now;
        pair.ends[0].session.fill(now, &mut farewell);
        let (body, _) = frame::split(&farewell, limits::FRAME_MAX).unwrap().unwrap();
        let goaway: proto::Goaway = frame::Frame::decode(body).unwrap().part(27).unwrap();
        assert_eq!((goaway.closing, goaway.reason.as_str()), (true, "protocol"), "{what}");
    }
    let mut pair = Pair::new();
    pair.ends[0].pipe =
        [kind(99, 1, 0), open(2), kind(11, 2, 1), open(8), data(4, 1), kind(15, 7, 0)].concat();
    pair.deliver(0, usize::MAX);
    assert_eq!(pair.ends[0].session.closed(), None);
    assert_eq!(
        (pair.ends[0].session.stats().unknown_kinds, pair.ends[0].session.stats().late_frames),
        (1, 1)
    );
}

fn terminal(pair: &Pair, at: usize) -> Option<Terminal> {
    pair.ends[0].own[at].terminals.lock().unwrap().first().cloned()
}

fn code(terminal: Option<Terminal>) -> Option<(Code, bool)> {
    match terminal? {
        Terminal::Ended { error, not_processed, .. } => error.map(|error| (error.code, not_processed)),
        Terminal::Lost(_) => None,
    }
}

fn theirs(pair: &Pair) -> Key {
    pair.ends[1].theirs[0].key
}

/// The stream's own deadline ends it on both sides, by one END.
#[test]
fn a_stream_has_a_deadline() {
    let mut pair = Pair::new();
    pair.open(0, 10, true, Duration::from_secs(2));
    pair.settle();
    pair.advance(Duration::from_secs(2));
    pair.settle();
    let reset = pair.ends[1].session.reset_reason(theirs(&pair));
    assert_eq!(reset.map(|reset| reset.error.code), Some(Code::DeadlineExceeded));
    assert!(terminal(&pair, 0).is_none());
    pair.ends[1].theirs.clear();
    let key = Key::clone(&pair.ends[0].own[0].key);
    assert!(pair.ends[0].session.terminal(key).is_some());
    pair.finish_all();
    pair.finish();
}

/// Nothing taken for 60 s resets a stream; one that is read now and then lives.
#[test]
fn a_slow_reader_is_reset() {
    let mut pair = Pair::new();
    let mut cx = Context::from_waker(Waker::noop());
    pair.open(0, 10, true, Duration::ZERO);
    pair.open(0, 10, true, Duration::ZERO);
    pair.settle();
    let keys: Vec<_> = pair.ends[1].theirs.iter().map(|theirs| theirs.key).collect();
    for round in 0..4 {
        for key in &keys {
            let end = &mut pair.ends[1];
            assert!(end.session.poll_push(*key, &[1; 100], &mut cx).is_ready() || round > 2);
        }
        pair.settle();
        let end = &mut pair.ends[0];
        let _ = end.session.poll_data(end.own[0].key, &mut cx);
        for _ in 0..29 {
            pair.advance(Duration::from_secs(1));
            pair.settle();
        }
    }
    let ended = |at: usize| {
        let end = &pair.ends[0];
        end.session.terminal(end.own[at].key)
    };
    assert!(ended(0).is_none());
    assert_eq!(code(ended(1)).map(|(code, _)| code), Some(Code::DeadlineExceeded));
    pair.finish();
}

/// The budget refuses an opening here, and an opening of the peer as not processed.
#[test]
fn the_budget_bounds_openings() {
    let mut pair = Pair::new();
    let hold = pair.budget.reserve(32 * limits::REQUEST_WINDOW - limits::RESPONSE_WINDOW);
    assert!(pair.open(0, 10, false, Duration::ZERO));
    assert!(!pair.open(0, 10, false, Duration::ZERO));
    pair.settle();
    assert_eq!(code(terminal(&pair, 0)), Some((Code::Unavailable, true)));
    drop(hold);
    pair.finish();
}

/// Fault row 3: a PING, a CREDIT and a RESET stand before all data of a full outbox, and messages before data.
#[test]
fn control_goes_first() {
    let mut pair = Pair::new();
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..8 {
        pair.open(0, 200_000, true, Duration::ZERO);
    }
    // 32 KiB of openings a batch: four batches for eight inline bodies.
    for _ in 0..5 {
        pair.write(0);
    }
    let now = pair.now;
    let end = &mut pair.ends[0];
    assert!(end.session.call(now, 1, Bytes::from_static(b"beat"), Duration::ZERO).is_ok());
    end.session.ping();
    let key = end.own[3].key;
    end.session.abandon(key, Error::cancelled());
    let _ = end.session.poll_data(end.own[0].key, &mut cx);
    let mut batch = Vec::new();
    end.session.fill(now, &mut batch);
    end.effects();
    let mut kinds = Vec::new();
    let mut rest = batch.as_slice();
    while let Some((body, used)) = frame::split(rest, limits::FRAME_MAX).unwrap() {
        kinds.push(frame::Frame::decode(body).unwrap().kind);
        rest = &rest[used..];
    }
    assert_eq!(kinds[..3], [15, 13, 4]);
    assert!(kinds[3..].iter().all(|kind| *kind == 11));
    assert!(batch.len() <= limits::BATCH_DATA + limits::BATCH_MESSAGES + 4096);
    assert_eq!(kinds.len(), 3 + 4, "four quanta of four streams share the batch");
}

/// An opening cancelled before it was written leaves no trace on the wire.
#[test]
fn unwritten_openings_vanish() {
    let mut pair = Pair::new();
    pair.open(0, 10, true, Duration::ZERO);
    let now = pair.now;
    let end = &mut pair.ends[0];
    let call = end.session.call(now, 1, Bytes::new(), Duration::ZERO).unwrap();
    end.session.cancel_call(call);
    let key = end.own[0].key;
    end.session.release(key);
    end.own[0].held = false;
    end.effects();
    assert_eq!(code(terminal(&pair, 0)), Some((Code::Cancelled, true)));
    assert_eq!(pair.write(0), 0);
    pair.finish();
}
