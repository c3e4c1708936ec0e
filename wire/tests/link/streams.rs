//! Streams: bodies, answers, credit, resets, drains.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use umbel_wire::{CloseReason, Code, Error, GoawayReason, IncomingStream, Open, Terminal, limits};

use crate::rig::{Recorder, echo_stream, link, nobody, read_all, some_bytes, until, within};

type Terminals = Arc<Mutex<Vec<Terminal>>>;

fn note(terminals: &Terminals) -> impl FnOnce(Terminal) + Send + 'static {
    let terminals = terminals.clone();
    move |terminal| terminals.lock().unwrap().push(terminal)
}

fn ended(terminals: &Terminals, at: usize) -> (Option<Error>, bool, Bytes) {
    match terminals.lock().unwrap()[at].clone() {
        Terminal::Ended { error, not_processed, payload } => (error, not_processed, payload),
        Terminal::Lost(reason) => panic!("lost: {reason}"),
    }
}

#[tokio::test]
async fn bodies_of_all_sizes_are_echoed() {
    let link = link(nobody(), Recorder::streams(echo_stream)).await;
    for size in [0, 1, 16 * 1024, 16 * 1024 + 1, 256 * 1024, 256 * 1024 + 1, 3_000_000] {
        let terminals = Terminals::default();
        let body = some_bytes(size);
        let open =
            Open { method: 3, message: b"m".to_vec(), body: body.clone(), end: true, ..Open::default() };
        let mut stream = link.dialer.open(open, note(&terminals)).unwrap();
        assert_eq!(within("head", stream.head()).await.unwrap(), "head");
        assert_eq!(within("data", read_all(&mut stream)).await, body, "{size}");
        assert_eq!(ended(&terminals, 0), (None, false, Bytes::from_static(b"end")));
        assert!(matches!(stream.terminal(), Some(Terminal::Ended { error: None, .. })));
        drop(stream);
        assert_eq!(terminals.lock().unwrap().len(), 1);
    }
    until("gauges at base", || link.dialer.stats().streams_out + link.acceptor.stats().streams_in == 0).await;
}

/// The message comes first in the frame: the larger it is, the less of the body is beside it.
#[tokio::test]
async fn messages_of_all_sizes_come_with_their_bodies() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let seen = seen.clone();
        Recorder::streams(move |stream| {
            seen.lock().unwrap().push(stream.message().to_vec());
            echo_stream(stream);
        })
    };
    let link = link(nobody(), handler).await;
    let ask = |size: usize, body: &Bytes| {
        let message = some_bytes(size).to_vec();
        link.dialer
            .open(Open { method: 3, message, body: body.clone(), end: true, ..Open::default() }, |_| ())
    };
    let largest = limits::OPEN_MESSAGE_MAX;
    for size in [0, 44 * 1024, 44 * 1024 + 1, largest - 1, largest] {
        for body in [0, 1, 16 * 1024, 16 * 1024 + 1].map(some_bytes) {
            let mut stream = ask(size, &body).unwrap();
            assert_eq!(within("data", read_all(&mut stream)).await, body, "{size} and {}", body.len());
            assert_eq!(seen.lock().unwrap().pop().unwrap(), some_bytes(size));
        }
    }
    assert_eq!(ask(largest + 1, &Bytes::new()).err().unwrap().reason, "OPEN_TOO_LARGE");
    let mut stream = ask(1, &Bytes::new()).unwrap();
    assert_eq!(within("the connection goes on", read_all(&mut stream)).await, b"");
}

#[tokio::test]
async fn a_body_can_follow_in_parts() {
    let link = link(Recorder::streams(echo_stream), nobody()).await;
    let open = Open { method: 3, ..Open::default() };
    let mut stream = link.acceptor.open(open, |_| ()).unwrap();
    let body = some_bytes(2_000_000);
    let write = async {
        for part in body.chunks(7_001) {
            stream_send(&stream, part).await;
        }
    };
    // The echo fills its window while nobody reads, so the writer gets stuck at the sum of all windows.
    let stuck = until("the writer is stuck", || {
        let stats = link.acceptor.stats();
        (stats.received_waiting, stats.send_waiting) == (64 * 1024, 16 * 1024)
    });
    tokio::select! {
        () = write => panic!("the windows have no end"),
        () = stuck => {}
    }
    stream.reset(Error::new(Code::Cancelled, "ENOUGH", ""));
    assert_eq!(within("end", read_all(&mut stream)).await, b"");
    until("gauges at base", || link.acceptor.stats().streams_out + link.dialer.stats().streams_in == 0).await;

    let mut stream = link.acceptor.open(Open { method: 3, ..Open::default() }, |_| ()).unwrap();
    for part in body.chunks(1_000).take(50) {
        stream_send(&stream, part).await;
    }
    stream.finish_body();
    assert!(stream.send_body(b"x").await.is_err());
    assert_eq!(within("data", read_all(&mut stream)).await, body[..50_000]);
}

async fn stream_send(stream: &umbel_wire::OutgoingStream, part: &[u8]) {
    stream.send_body(part).await.unwrap();
}

#[tokio::test]
async fn a_failure_comes_after_what_was_produced() {
    let handler = Recorder::streams(|stream| {
        tokio::spawn(async move {
            stream.send_head(b"", b"inline ").unwrap();
            stream.send(&some_bytes(100_000)).await.unwrap();
            stream.fail(Error::new(Code::BadGateway, "ENGINE_DIED", "the engine died"), false, b"why");
        });
    });
    let link = link(nobody(), handler).await;
    let terminals = Terminals::default();
    let open = Open { method: 3, end: true, ..Open::default() };
    let mut stream = link.dialer.open(open, note(&terminals)).unwrap();
    let all = within("data", read_all(&mut stream)).await;
    assert_eq!((&all[..7], all.len()), (&b"inline "[..], 100_007));
    let (error, not_processed, payload) = ended(&terminals, 0);
    assert_eq!((error.unwrap().code, not_processed, &payload[..]), (Code::BadGateway, false, &b"why"[..]));
}

#[tokio::test]
async fn refused_before_any_work() {
    let link = link(nobody(), nobody()).await;
    let terminals = Terminals::default();
    let mut stream = link.dialer.open(Open { method: 9, ..Open::default() }, note(&terminals)).unwrap();
    assert!(within("end", stream.head()).await.is_err());
    let (error, not_processed, _) = ended(&terminals, 0);
    assert_eq!((error.unwrap().code, not_processed), (Code::Unimplemented, true));
}

/// Cancel reaches the answering side, and its END comes also after that.
#[tokio::test]
async fn dropping_a_stream_resets_it() {
    let reset = Arc::new(AtomicUsize::new(0));
    let seen = reset.clone();
    let handler = Recorder::streams(move |stream| {
        let seen = seen.clone();
        tokio::spawn(async move {
            stream.send_head(b"", b"").unwrap();
            let writing = async { while stream.send(&[1; 1_000]).await.is_ok() {} };
            tokio::join!(writing, async {
                assert_eq!(stream.reset().await.error.code, Code::Cancelled);
                seen.fetch_add(1, Ordering::Relaxed);
            });
            assert!(stream.body().await.is_err());
        });
    });
    let link = link(nobody(), handler).await;
    let terminals = Terminals::default();
    let mut stream = link.dialer.open(Open { method: 3, ..Open::default() }, note(&terminals)).unwrap();
    assert!(stream.data().await.is_some());
    drop(stream);
    until("the other side hears it", || reset.load(Ordering::Relaxed) == 1).await;
    until("one terminal", || terminals.lock().unwrap().len() == 1).await;
    assert_eq!(ended(&terminals, 0).0.unwrap().code, Code::Cancelled);
    until("gauges at base", || link.dialer.stats().streams_out + link.acceptor.stats().streams_in == 0).await;
}

/// Fault row 46, streams: ten thousand cancelled in the middle of a body, then a normal one.
#[tokio::test]
async fn ten_thousand_cancelled_streams() {
    let link = link(nobody(), Recorder::streams(echo_stream)).await;
    let terminals = Arc::new(AtomicUsize::new(0));
    for round in 0..100 {
        let mut streams = Vec::new();
        for _ in 0..100 {
            let count = terminals.clone();
            let open = Open { method: 3, body: some_bytes(20_000), ..Open::default() };
            let tell = move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            };
            streams.push(link.dialer.open(open, tell).unwrap());
        }
        if round % 2 == 0 {
            assert!(streams[0].data().await.is_some());
        }
        drop(streams);
        until("all ended", || terminals.load(Ordering::Relaxed) == (round + 1) * 100).await;
    }
    let body = some_bytes(100_000);
    let open = Open { method: 3, body: body.clone(), end: true, ..Open::default() };
    let mut stream = link.dialer.open(open, |_| ()).unwrap();
    assert_eq!(within("data", read_all(&mut stream)).await, body);
    drop(stream);
    until("gauges at base", || {
        let (here, there) = (link.dialer.stats(), link.acceptor.stats());
        here.streams_out
            + there.streams_in
            + here.received_waiting
            + there.received_waiting
            + here.send_waiting
            == 0
            && here.timers + there.timers == 0
    })
    .await;
}

fn flood(stream: IncomingStream) {
    tokio::spawn(async move {
        stream.send_head(b"", b"").unwrap();
        while stream.send(&[5; 256]).await.is_ok() {}
    });
}

/// Fault row 44: a reader that stops costs its window and the send buffer behind it; the others go on.
#[tokio::test]
async fn a_stalled_stream_slows_nobody() {
    let link = link(nobody(), Recorder::streams(flood)).await;
    let open = || Open { method: 3, end: true, ..Open::default() };
    let stalled = link.dialer.open(open(), |_| ()).unwrap();
    until("the window is full", || link.dialer.stats().received_waiting == 64 * 1024).await;
    until("its producer waits", || link.acceptor.stats().send_waiting == 16 * 1024).await;
    for _ in 0..4 {
        let mut other = link.dialer.open(open(), |_| ()).unwrap();
        let mut count = 0;
        while count < 1_000_000 {
            count += within("data", other.data()).await.unwrap().len();
        }
    }
    assert!(within("a ping", link.dialer.probe(Duration::from_secs(5))).await);
    assert_eq!(link.dialer.stats().received_waiting, 64 * 1024);
    drop(stalled);
    until("gauges at base", || link.dialer.stats().streams_out + link.acceptor.stats().streams_in == 0).await;
}

#[tokio::test]
async fn at_most_1024_streams() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = held.clone();
    let link = link(nobody(), Recorder::streams(move |stream| keep.lock().unwrap().push(stream))).await;
    let open = || Open { method: 3, end: true, ..Open::default() };
    let streams: Vec<_> = (0..1024).map(|_| link.dialer.open(open(), |_| ()).unwrap()).collect();
    assert_eq!(link.dialer.open(open(), |_| ()).err().unwrap().code, Code::ResourceExhausted);
    until("all are held", || held.lock().unwrap().len() == 1024).await;
    drop(streams);
    held.lock().unwrap().clear();
    until("gauges at base", || link.dialer.stats().streams_out + link.acceptor.stats().streams_in == 0).await;
    assert!(link.dialer.open(open(), |_| ()).is_ok());
}

#[tokio::test]
async fn draining_refuses_new_streams_and_keeps_old_ones() {
    let link = link(Recorder::requests(crate::rig::echo), Recorder::streams(echo_stream)).await;
    let mut old = link.dialer.open(Open { method: 3, ..Open::default() }, |_| ()).unwrap();
    within("head", old.head()).await.unwrap();
    link.acceptor.goaway(GoawayReason::Shutdown, "upgrade", Some(Duration::from_secs(3)));
    // Before GOAWAY arrives, an OPEN may cross it: refused there as not processed. After it: refused here.
    let terminals = Terminals::default();
    if let Ok(mut crossing) = link.dialer.open(Open { method: 3, ..Open::default() }, note(&terminals)) {
        assert!(within("refusal", crossing.head()).await.is_err());
        assert!(ended(&terminals, 0).1);
    }
    let goaway = within("goaway", link.dialer.peer_drains()).await.unwrap();
    assert_eq!((goaway.reason.as_str(), goaway.retry_after), ("shutdown", Some(Duration::from_secs(3))));
    assert_eq!(link.dialer.open(Open::default(), |_| ()).err().unwrap().code, Code::Unavailable);
    assert_eq!(link.acceptor.request(1, Bytes::from_static(b"x"), crate::rig::LIMIT).await.unwrap(), "x");
    old.send_body(b"still here").await.unwrap();
    old.finish_body();
    assert_eq!(within("data", read_all(&mut old)).await, b"still here");
    drop(old);
    within("drained", link.acceptor.drained()).await;
    link.acceptor.close(CloseReason::Shutdown);
    let CloseReason::ByPeer(goaway) = within("the end", link.dialer.closed()).await else {
        panic!("no farewell")
    };
    assert_eq!((goaway.reason.as_str(), goaway.closing), ("shutdown", true));
    within("sockets closed", async { tokio::join!(link.dialer.gone(), link.acceptor.gone()) }).await;
}

#[tokio::test]
async fn a_lost_connection_ends_every_stream_once() {
    let (reasons, lost) = (Terminals::default(), Arc::new(AtomicUsize::new(0)));
    let count = lost.clone();
    let handler = Recorder::streams(move |stream| {
        let count = count.clone();
        tokio::spawn(async move {
            assert_eq!(stream.reset().await.error.code, Code::Unavailable);
            count.fetch_add(1, Ordering::Relaxed);
        });
    });
    let link = link(nobody(), handler).await;
    let kept = link.dialer.open(Open { method: 3, ..Open::default() }, note(&reasons)).unwrap();
    drop(link.dialer.open(Open { method: 3, ..Open::default() }, |_| ()).unwrap());
    until("it is there", || link.acceptor.stats().streams_in == 1).await;
    link.dialer.close(CloseReason::Superseded);
    assert!(matches!(reasons.lock().unwrap()[..], [Terminal::Lost(CloseReason::Superseded)]));
    assert!(kept.send_body(b"x").await.is_err());
    until("the other side", || lost.load(Ordering::Relaxed) == 1).await;
    let CloseReason::ByPeer(goaway) = within("the end", link.acceptor.closed()).await else {
        panic!("no farewell")
    };
    assert_eq!(goaway.reason, "superseded");
    drop(kept);
    assert_eq!(reasons.lock().unwrap().len(), 1);
    within("sockets closed", async { tokio::join!(link.dialer.gone(), link.acceptor.gone()) }).await;
}

#[tokio::test]
async fn an_early_answer_stops_the_body() {
    let handler = Recorder::streams(|stream| {
        tokio::spawn(async move {
            stream.refuse_body();
            assert_eq!(stream.body().await, Ok(None));
            stream.send_head(b"413", b"").unwrap();
            stream.finish(b"");
        });
    });
    let link = link(nobody(), handler).await;
    let open = Open { method: 3, body: some_bytes(1_000_000), ..Open::default() };
    let mut stream = link.dialer.open(open, |_| ()).unwrap();
    assert_eq!(within("head", stream.head()).await.unwrap(), "413");
    assert_eq!(stream.data().await, None);
    assert!(stream.send_body(b"x").await.is_err());
    assert_eq!(link.dialer.stats().send_waiting, 0);
}
