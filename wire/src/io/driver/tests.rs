//! The tasks over an in-memory transport and a paused clock: silence, stalls, pauses, farewells.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::Mutex;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep};

use super::*;
use crate::frame::{self, Frame, Header};
use crate::io::socket::Socket;
use crate::proto::{self, Kind};
use crate::session::opener::Open;
use crate::session::{Settings, Side};

#[derive(Default)]
struct Note(Mutex<Vec<CloseReason>>);

impl Handler for Note {
    fn on_closed(&self, _: &Connection, reason: &CloseReason) {
        self.0.lock().unwrap().push(reason.clone());
    }
}

/// A connection on one end of a pipe; the other end is the test's.
fn one(room: usize) -> (Connection, Arc<Note>, DuplexStream) {
    let (near, far) = duplex(room);
    let (connection, note) = (Connection::new(Settings::new(Side::Dialer)), Arc::new(Note::default()));
    let traffic = Traffic::new();
    start(Socket::new(near, traffic.clone()), traffic, Vec::new(), &connection, note.clone());
    (connection, note, far)
}

/// Two connections on a pipe.
fn two(room: usize) -> [Connection; 2] {
    let (near, far) = duplex(room);
    [(near, Side::Dialer), (far, Side::Acceptor)].map(|(pipe, side)| {
        let connection = Connection::new(Settings::new(side));
        let traffic = Traffic::new();
        start(
            Socket::new(pipe, traffic.clone()),
            traffic,
            Vec::new(),
            &connection,
            Arc::new(Note::default()),
        );
        connection
    })
}

/// Reads whole frames off the pipe: their kinds, and the last GOAWAY.
async fn frames(pipe: &mut DuplexStream, until_end: bool) -> (Vec<u32>, Option<proto::Goaway>) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        match timeout(Duration::from_millis(1), pipe.read(&mut buffer)).await {
            Ok(Ok(0)) => break,
            Ok(Ok(count)) => bytes.extend_from_slice(&buffer[..count]),
            Err(_) if !until_end => break,
            Err(_) => {}
            Ok(Err(error)) => panic!("{error}"),
        }
    }
    let (mut kinds, mut goaway, mut rest) = (Vec::new(), None, bytes.as_slice());
    while let Some((body, used)) = frame::split(rest, limits::FRAME_MAX).unwrap() {
        let frame = Frame::decode(body).unwrap();
        if frame.kind == Kind::Goaway as u32 {
            goaway = Some(frame.part(27).unwrap());
        }
        kinds.push(frame.kind);
        rest = &rest[used..];
    }
    (kinds, goaway)
}

/// Fault row 1: the link goes dead without a FIN. This side pings, and closes after 15 s of silence.
#[tokio::test(start_paused = true)]
async fn silence_is_noticed() {
    let (connection, note, mut far) = one(1 << 20);
    let started = Instant::now();
    assert_eq!(connection.closed().await, CloseReason::Silent);
    let after = started.elapsed();
    assert!(after >= limits::DEAD_AFTER && after < limits::DEAD_AFTER + Duration::from_secs(1), "{after:?}");
    connection.gone().await;
    assert_eq!(*note.0.lock().unwrap(), [CloseReason::Silent]);
    let (kinds, goaway) = frames(&mut far, true).await;
    assert!(kinds.len() >= 2 && kinds.iter().all(|kind| *kind == Kind::Ping as u32), "{kinds:?}");
    assert_eq!(goaway, None);
}

/// Two live ends ping each other for ever, and one PING in 5 s is enough.
#[tokio::test(start_paused = true)]
async fn idle_ends_keep_each_other_alive() {
    let [dialer, acceptor] = two(4096);
    sleep(Duration::from_secs(3_600)).await;
    assert!(!dialer.is_closed() && !acceptor.is_closed());
    assert!(dialer.stats().frames_out <= 2 * 3_600 / 5 + 2, "{:?}", dialer.stats());
    assert!(dialer.stats().round_trip.is_some());
}

/// Any byte counts, also of a frame that takes a minute to arrive.
#[tokio::test(start_paused = true)]
async fn a_slow_frame_is_a_sign_of_life() {
    let (connection, _, mut far) = one(1 << 20);
    let mut ping = Vec::new();
    let payload = [1; 3];
    frame::put(&mut ping, Header { kind: Kind::Ping as u32, id: 9, payload: &payload, ..Header::default() });
    for byte in ping {
        sleep(Duration::from_secs(10)).await;
        far.write_all(&[byte]).await.unwrap();
        assert!(!connection.is_closed());
    }
}

/// Fault row 16: a paused process reads what has piled up before it judges, and sends one PING, not one for each
/// interval it missed.
#[tokio::test(start_paused = true)]
async fn a_pause_is_no_silence() {
    let (connection, _, mut far) = one(1 << 20);
    frames(&mut far, false).await;
    let mut pong = Vec::new();
    frame::put(&mut pong, Header { kind: Kind::Pong as u32, id: 77, ..Header::default() });
    far.write_all(&pong).await.unwrap();
    advance(Duration::from_secs(600)).await;
    yield_now().await;
    sleep(Duration::from_millis(500)).await;
    assert!(!connection.is_closed());
    assert_eq!(frames(&mut far, false).await.0, [Kind::Ping as u32]);
}

/// A peer that sends but never reads: the write makes no progress for 15 s.
#[tokio::test(start_paused = true)]
async fn a_stalled_write_closes() {
    let (connection, note, mut far) = one(100);
    let stream = connection
        .open(Open { method: 1, body: Bytes::from(vec![1; 50_000]), ..Open::default() }, |_| ())
        .unwrap();
    let mut ping = Vec::new();
    frame::put(&mut ping, Header { kind: Kind::Ping as u32, id: 9, ..Header::default() });
    let talk = async {
        loop {
            sleep(Duration::from_secs(1)).await;
            far.write_all(&ping).await.unwrap();
        }
    };
    let reason = tokio::select! {
        reason = connection.closed() => reason,
        () = talk => panic!("it talks for ever"),
    };
    assert_eq!(reason, CloseReason::Stalled);
    connection.gone().await;
    assert_eq!(*note.0.lock().unwrap(), [CloseReason::Stalled]);
    drop(stream);
}

/// Fault row 39: the input ends, inside a frame or between two, without a farewell: `truncated`.
#[tokio::test(start_paused = true)]
async fn an_end_without_a_farewell_is_truncated() {
    let mut open = Vec::new();
    let part = proto::Open { method: 1, timeout_ms: 0, message: vec![1; 30] };
    frame::put_with(
        &mut open,
        Header { kind: Kind::Open as u32, id: 2, flags: 1, ..Header::default() },
        23,
        &part,
    );
    for cut in 0..=open.len() {
        let (connection, note, mut far) = one(1 << 16);
        far.write_all(&open[..cut]).await.unwrap();
        drop(far);
        let _ = connection.closed().await;
        connection.gone().await;
        let reasons = note.0.lock().unwrap().clone();
        // A pipe whose other end is gone refuses the farewell or the answer: that may be noticed first.
        assert!(matches!(reasons[..], [CloseReason::Truncated | CloseReason::Transport(_)]), "{reasons:?}");
        assert_eq!(connection.stats().frames_in, u64::from(cut == open.len()));
    }
}

/// A closing side says why, half-closes, reads on, and is gone within 2 s also if the peer says nothing.
#[tokio::test(start_paused = true)]
async fn the_farewell_is_the_last_frame() {
    let (connection, note, mut far) = one(1 << 16);
    let started = Instant::now();
    connection.close(CloseReason::Revoked);
    connection.close(CloseReason::Shutdown);
    let (kinds, goaway) = frames(&mut far, true).await;
    assert_eq!(kinds, [Kind::Goaway as u32]);
    assert_eq!(goaway.map(|goaway| (goaway.closing, goaway.reason)), Some((true, "revoked".to_owned())));
    connection.gone().await;
    assert!(started.elapsed() <= limits::FAREWELL + Duration::from_millis(100));
    assert_eq!(*note.0.lock().unwrap(), [CloseReason::Revoked]);
}

/// The peer's last word is heard although this side can no longer write.
#[tokio::test(start_paused = true)]
async fn a_last_frame_is_read_after_a_write_error() {
    struct Deaf(DuplexStream);
    impl AsyncRead for Deaf {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buf)
        }
    }
    impl AsyncWrite for Deaf {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
            Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into()))
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    for told in [true, false] {
        let (near, mut far) = duplex(1 << 16);
        let (connection, note) = (Connection::new(Settings::new(Side::Dialer)), Arc::new(Note::default()));
        start(Deaf(near), Traffic::new(), Vec::new(), &connection, note.clone());
        connection.event(1, "", Bytes::new());
        sleep(Duration::from_millis(500)).await;
        assert!(!connection.is_closed());
        if told {
            let mut last = Vec::new();
            let part =
                proto::Goaway { closing: true, reason: "superseded".into(), ..proto::Goaway::default() };
            frame::put_with(&mut last, Header { kind: Kind::Goaway as u32, ..Header::default() }, 27, &part);
            far.write_all(&last).await.unwrap();
        }
        match connection.closed().await {
            CloseReason::ByPeer(goaway) if told => assert_eq!(goaway.reason, "superseded"),
            CloseReason::Transport(_) if !told => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(note.0.lock().unwrap().len(), 1);
    }
}

/// Fault row 9: a probe of a dead connection says so within its limit; of a live one at once.
#[tokio::test(start_paused = true)]
async fn a_probe_tells_dead_from_alive() {
    let (dead, _, _far) = one(1 << 16);
    let started = Instant::now();
    assert!(!dead.probe(Duration::from_secs(1)).await);
    assert_eq!(started.elapsed(), Duration::from_secs(1));
    let [dialer, _acceptor] = two(1 << 16);
    assert!(dialer.probe(Duration::from_secs(1)).await);
    dialer.close(CloseReason::Shutdown);
    assert!(!dialer.probe(Duration::from_secs(1)).await);
}

/// A handler that breaks off ends its connection: its peer comes again, instead of talking to nobody.
#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_ends_its_connection() {
    struct Breaks(Mutex<Vec<CloseReason>>);
    impl Handler for Breaks {
        fn on_event(&self, _: &Connection, _: u32, _: &str, _: &[u8]) -> Result<(), crate::Error> {
            panic!("a defect")
        }
        fn on_closed(&self, _: &Connection, reason: &CloseReason) {
            self.0.lock().unwrap().push(reason.clone());
            panic!("another one")
        }
    }
    let (near, far) = duplex(1 << 16);
    let breaks = Arc::new(Breaks(Mutex::default()));
    let handlers: [(DuplexStream, Side, Arc<dyn Handler>); 2] =
        [(near, Side::Dialer, Arc::new(Note::default())), (far, Side::Acceptor, breaks.clone())];
    let [dialer, acceptor] = handlers.map(|(pipe, side, handler)| {
        let connection = Connection::new(Settings::new(side));
        let traffic = Traffic::new();
        start(Socket::new(pipe, traffic.clone()), traffic, Vec::new(), &connection, handler);
        connection
    });
    dialer.event(1, "one", Vec::new());
    assert_eq!(acceptor.closed().await, CloseReason::Broke);
    acceptor.gone().await;
    assert!(matches!(dialer.closed().await, CloseReason::ByPeer(_)));
    assert_eq!(*breaks.0.lock().unwrap(), [CloseReason::Broke]);
}
