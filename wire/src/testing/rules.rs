//! Single rules of the session, each in the smallest history that shows it.

use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;

use super::Pair;
use crate::close::CloseReason;
use crate::error::{Code, Error};
use crate::frame::{self, Header};
use crate::limits;
use crate::proto;
use crate::session::stream::Terminal;
use crate::session::table::Key;

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
