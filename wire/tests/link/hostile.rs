//! Peers that are silent, slow, broken or malicious, and transports that cut bytes apart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use umbel_wire::frame::{self, Frame, Header};
use umbel_wire::proto::{self, Kind};
use umbel_wire::{CloseReason, Code, Open, dial_once, limits};

use crate::rig::{
    LIMIT, Pki, Recorder, SERVER, Server, echo, echo_stream, hello, link, link_through, nobody, read_all,
    some_bytes, until, within,
};

/// TLS without any of our session code above it.
async fn raw(address: SocketAddr, tls: Arc<rustls::ClientConfig>) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(tls).connect(SERVER.try_into().unwrap(), tcp).await.unwrap()
}

/// Reads to the end: the frames, as far as they are whole.
async fn last_words(stream: &mut TlsStream<TcpStream>) -> Vec<proto::Frame> {
    let mut bytes = Vec::new();
    let _ = within("the end", stream.read_to_end(&mut bytes)).await;
    let (mut rest, mut frames) = (bytes.as_slice(), Vec::new());
    while let Ok(Some((body, used))) = frame::split(rest, limits::FRAME_MAX) {
        frames.push(proto::Frame::decode(body).unwrap());
        rest = &rest[used..];
    }
    frames
}

fn hello_bytes() -> Vec<u8> {
    let part =
        proto::Hello { purpose: 1, protocol_min: 1, protocol_max: 1, instance_id: vec![3; 16], attempt: 1 };
    let mut out = Vec::new();
    frame::put_with(&mut out, Header { kind: Kind::Hello as u32, ..Header::default() }, 16, &part);
    out
}

async fn joins(server: &Server) -> bool {
    let dialed = within("a real node", dial_once(server.target(), hello(), |_, _| Ok(nobody()))).await;
    let (connection, _) = dialed.unwrap();
    connection.request(1, "x", LIMIT).await.is_ok_and(|answer| answer == "x")
}

/// Fault row 36: connections that say nothing do not keep a real node out, and are closed.
#[tokio::test]
async fn silent_connections_hold_nobody_up() {
    let (server, _accepted) = Server::accepting(Recorder::requests(echo)).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert!(joins(&server).await);
    for mut stream in silent {
        let mut buffer = [0; 1];
        let read = within("it is closed", stream.read(&mut buffer)).await;
        assert!(matches!(read, Ok(0) | Err(_)));
    }
}

/// Fault row 37: after TLS: silence, garbage, an oversized first frame. Each is told why; others go on.
#[tokio::test]
async fn strangers_after_tls() {
    let (server, _accepted) = Server::accepting(Recorder::requests(echo)).await;
    let mut silent = raw(server.address, server.pki.client.clone()).await;
    let mut garbage = raw(server.address, server.pki.client.clone()).await;
    garbage.write_all(&[0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]).await.unwrap();
    let mut large = raw(server.address, server.pki.client.clone()).await;
    large.write_all(&(16 * 1024 * 1024u32).to_be_bytes()).await.unwrap();
    let mut unknown = raw(server.address, server.pki.stranger()).await;
    unknown.write_all(&(16 * 1024 * 1024u32).to_be_bytes()).await.unwrap();
    let mut other = raw(server.address, server.pki.client.clone()).await;
    let mut ping = Vec::new();
    frame::put(&mut ping, Header { kind: Kind::Ping as u32, id: 1, ..Header::default() });
    other.write_all(&ping).await.unwrap();
    assert!(joins(&server).await);

    let reject = |frames: Vec<proto::Frame>| match frames.into_iter().next().and_then(|frame| frame.meta) {
        Some(proto::frame::Meta::Reject(reject)) => Code::from_number(reject.error.unwrap().code),
        other => panic!("no rejection: {other:?}"),
    };
    assert_eq!(reject(last_words(&mut garbage).await), Code::InvalidArgument);
    assert_eq!(reject(last_words(&mut unknown).await), Code::Unauthenticated);
    assert_eq!(reject(last_words(&mut other).await), Code::InvalidArgument);
    assert_eq!(reject(last_words(&mut silent).await), Code::DeadlineExceeded);
    let words = last_words(&mut large).await;
    let Some(proto::frame::Meta::Goaway(goaway)) = &words[0].meta else { panic!("no farewell") };
    assert_eq!((goaway.closing, goaway.reason.as_str()), (true, "protocol"));
}

/// Fault row 37: one byte a second of a hello is not a hello.
#[tokio::test]
async fn a_dripping_hello_is_closed() {
    let (server, _accepted) = Server::accepting(Recorder::requests(echo)).await;
    let stream = raw(server.address, server.pki.client.clone()).await;
    let (mut read, mut write) = tokio::io::split(stream);
    let drip = async {
        for byte in hello_bytes() {
            if write.write_all(&[byte]).await.is_err() || write.flush().await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        std::future::pending::<()>().await;
    };
    let end = async {
        let mut bytes = Vec::new();
        let _ = read.read_to_end(&mut bytes).await;
        bytes
    };
    let bytes = tokio::select! {
        bytes = within("it is closed", end) => bytes,
        () = drip => Vec::new(),
    };
    let (body, _) = frame::split(&bytes, limits::FRAME_MAX).unwrap().unwrap();
    assert_eq!(Frame::decode(body).unwrap().kind, Kind::Reject as u32);
    assert!(joins(&server).await);
}

/// Fault row 38: lengths at and beyond the bound, inside a session.
#[tokio::test]
async fn lengths_in_a_session() {
    let (server, mut accepted) = Server::accepting(Recorder::requests(echo)).await;
    for length in [0, 64 * 1024 + 1, u32::MAX] {
        let mut stream = raw(server.address, server.pki.client.clone()).await;
        stream.write_all(&hello_bytes()).await.unwrap();
        let connection = within("accept", accepted.recv()).await.unwrap();
        stream.write_all(&length.to_be_bytes()).await.unwrap();
        let words = last_words(&mut stream).await;
        assert!(matches!(within("the end", connection.closed()).await, CloseReason::Protocol(_)));
        let Some(proto::frame::Meta::Goaway(goaway)) = &words.last().unwrap().meta else {
            panic!("no farewell")
        };
        assert_eq!(goaway.reason, "protocol");
    }
    // A frame of exactly the bound is taken.
    let mut stream = raw(server.address, server.pki.client.clone()).await;
    stream.write_all(&hello_bytes()).await.unwrap();
    let connection = within("accept", accepted.recv()).await.unwrap();
    let payload = vec![0; limits::FRAME_MAX - 10];
    let header = |payload| Header { kind: Kind::Ping as u32, id: 3, payload, ..Header::default() };
    let mut out = Vec::new();
    frame::put(&mut out, header(&payload));
    let over = out.len() - frame::PREFIX - limits::FRAME_MAX.min(out.len() - frame::PREFIX);
    out.clear();
    frame::put(&mut out, header(&payload[over..]));
    stream.write_all(&out).await.unwrap();
    until("it is read", || connection.stats().frames_in == 1).await;
    assert!(!connection.is_closed());
}

/// Fault row 39: the input ends at any byte of a conversation, with FIN or RST and without a TLS farewell: the session
/// ends as truncated, and nothing partial is delivered.
#[tokio::test]
async fn a_cut_at_any_place_is_truncated() {
    let answered = Arc::new(std::sync::Mutex::new(Vec::new()));
    let note = answered.clone();
    let handler = Recorder::requests(move |request| {
        note.lock().unwrap().push(request.payload.len());
        echo(request);
    });
    for place in 0..24 {
        answered.lock().unwrap().clear();
        let (link, proxy) = link_through(nobody(), handler.clone()).await;
        proxy.cut_after.store(place * 173, Ordering::Relaxed);
        let call = link.dialer.request(1, vec![7; 3_000], LIMIT);
        let result = within("the call", call).await;
        assert!(place * 173 > 3_000 || result.is_err());
        let ends = async { (link.dialer.closed().await, link.acceptor.closed().await) };
        if result.is_err() {
            let (_, there) = within("both ends", ends).await;
            assert!(matches!(there, CloseReason::Truncated | CloseReason::Transport(_)), "{there:?}");
        }
        assert!(answered.lock().unwrap().iter().all(|size| *size == 3_000));
    }
}

/// Fault row 40: one byte a write in both directions, while requests, events and streams go both ways.
#[tokio::test]
async fn byte_by_byte() {
    let far = Arc::new(Recorder {
        request: Some(Box::new(echo)),
        stream: Some(Box::new(echo_stream)),
        ..Recorder::default()
    });
    let (link, proxy) = link_through(Recorder::requests(echo), far.clone()).await;
    proxy.one_byte.store(true, Ordering::Relaxed);
    let body = some_bytes(40_000);
    let open = Open { method: 3, body: body.clone(), end: true, ..Open::default() };
    let mut stream = link.dialer.open(open, |_| ()).unwrap();
    let calls = async {
        for number in 0..40u32 {
            let payload = number.to_be_bytes().repeat(number as usize + 1);
            link.dialer.event(1, &number.to_string(), payload.clone());
            let (here, there) = tokio::join!(
                link.dialer.request(1, payload.clone(), LIMIT),
                link.acceptor.request(1, payload.clone(), LIMIT)
            );
            assert_eq!((here.unwrap(), there.unwrap()), (payload.clone().into(), payload.into()));
        }
    };
    let (_, read) = within("all of it", async { tokio::join!(calls, read_all(&mut stream)) }).await;
    assert_eq!(read, body);
    until("every event came", || far.events.lock().unwrap().len() == 40).await;
    assert_eq!((link.acceptor.stats().event_gaps, link.dialer.is_closed()), (0, false));
}

/// Fault row 42: a small frame after a full socket leaves with no more traffic behind it.
#[tokio::test]
async fn a_small_frame_is_flushed() {
    let (server, mut accepted) = Server::accepting(Recorder::requests(echo)).await;
    let mut stream = raw(server.address, server.pki.client.clone()).await;
    stream.write_all(&hello_bytes()).await.unwrap();
    let connection = within("accept", accepted.recv()).await.unwrap();
    // The peer does not read: the sockets fill up.
    let mut streams = Vec::new();
    for _ in 0..100 {
        let open = Open { method: 3, body: some_bytes(200_000), end: true, ..Open::default() };
        streams.push(connection.open(open, |_| ()).unwrap());
    }
    let mut last = connection.stats().bytes_out;
    within("it is stuck", async {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = connection.stats().bytes_out;
            if now == last {
                return;
            }
            last = now;
        }
    })
    .await;
    drop(streams);
    connection.event(7, "last", b"word".to_vec());
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    within("the event", async {
        loop {
            let count = stream.read(&mut buffer).await.unwrap();
            bytes.extend_from_slice(&buffer[..count]);
            let mut rest = bytes.as_slice();
            while let Some((body, used)) = frame::split(rest, limits::FRAME_MAX).unwrap() {
                if Frame::decode(body).unwrap().kind == Kind::Event as u32 {
                    return;
                }
                rest = &rest[used..];
            }
            bytes = rest.to_vec();
        }
    })
    .await;
}

/// Fault row 3: while streams fill the link, beats and pings get through.
#[tokio::test]
async fn beats_pass_a_full_link() {
    let link = link(
        nobody(),
        Arc::new(Recorder {
            request: Some(Box::new(echo)),
            stream: Some(Box::new(|stream| {
                tokio::spawn(async move { while stream.send(&[5; 4_096]).await.is_ok() {} });
            })),
            ..Recorder::default()
        }),
    )
    .await;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut stream = link.dialer.open(Open { method: 3, end: true, ..Open::default() }, |_| ()).unwrap();
        readers.spawn(async move { while stream.data().await.is_some() {} });
    }
    for _ in 0..100 {
        assert_eq!(link.acceptor.request(1, "beat", LIMIT).await.unwrap_err().code, Code::Unimplemented);
        assert_eq!(link.dialer.request(1, "beat", LIMIT).await.unwrap(), "beat");
        assert!(link.dialer.probe(LIMIT).await);
    }
    assert!(!link.dialer.is_closed() && !link.acceptor.is_closed());
}

/// Fault row 48: at the descriptor limit accepting pauses and goes on; sessions live. The limit is the process's, so
/// this test runs itself in a process of its own.
#[test]
fn the_descriptor_limit_is_survived() {
    const INSIDE: &str = "UMBEL_TEST_DESCRIPTORS";
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(at_the_descriptor_limit());
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::the_descriptor_limit_is_survived"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

async fn at_the_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let (server, _accepted) = Server::accepting(Recorder::requests(echo)).await;
    let (connection, _) = dial_once(server.target(), hello(), |_, _| Ok(nobody())).await.unwrap();
    let before = getrlimit(Resource::Nofile);
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(used + 20), maximum: before.maximum }).unwrap();
    let mut hungry = Vec::new();
    // Both ends are this process's: the connects fail first, then each closed one gives accept a descriptor.
    while let Ok(stream) = TcpStream::connect(server.address).await {
        hungry.push(stream);
        tokio::task::yield_now().await;
    }
    assert_eq!(connection.request(1, "x", LIMIT).await.unwrap(), "x");
    drop(hungry);
    setrlimit(Resource::Nofile, before).unwrap();
    assert!(joins(&server).await);
}

/// Fault row 43: ten thousand nested groups end one session only.
#[tokio::test]
async fn hostile_nesting() {
    let (server, mut accepted) = Server::accepting(Recorder::requests(echo)).await;
    let pki: &Pki = &server.pki;
    for body in [vec![0x33; 10_000], [vec![0x82, 0x01, 0xff, 0x7f], vec![0x0a; 16_000]].concat()] {
        let mut stream = raw(server.address, pki.client.clone()).await;
        stream.write_all(&hello_bytes()).await.unwrap();
        let connection = within("accept", accepted.recv()).await.unwrap();
        stream.write_all(&(body.len() as u32).to_be_bytes()).await.unwrap();
        stream.write_all(&body).await.unwrap();
        assert!(matches!(within("the end", connection.closed()).await, CloseReason::Protocol(_)));
    }
    assert!(joins(&server).await);
}
