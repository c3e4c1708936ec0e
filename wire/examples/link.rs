//! What one link costs, over real TLS on loopback, beside what is asked of it (10-wire, costs): prints a table, and with
//! `--json FILE` writes the figures there. Each end has a thread of its own, as two processes would.
//!
//! Not a test: figures depend on the machine. `cargo run --release -p umbel-wire --example link`
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement stops at the first surprise and prints its result"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use umbel_wire::ca::{Authority, CLIENT_VALIDITY, SERVER_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::frame::{self, Frame, Header};
use umbel_wire::tls::{ClientIdentity, KeyPair, TlsServer, Trust, wire_client, wire_server};
use umbel_wire::{
    BoxFuture, Connection, DialTarget, Door, EdgeId, Generation, Handler, HelloOut, IncomingRequest,
    IncomingStream, InstanceId, KeyHash, Newcomer, NoHandler, NodeId, Open, Purpose, VersionRange,
    WelcomeOut, dial_once, serve,
};

const CHUNK: usize = 256;
const SERVER: &str = "site-1.umbel";
/// Methods of the answering end.
const FLOOD: u32 = 1;
const PACED: u32 = 2;

fn main() {
    let pki = Pki::new();
    let address = start_acceptor(pki.server);
    let target =
        DialTarget { addresses: vec![address.to_string()], server_name: SERVER.to_owned(), tls: pki.client };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let throughput = throughput(&target).await;
        let bare = bare().await;
        let latency = latency(&target).await;
        let stalled = stalled(&target).await;
        let request = requests(&target).await;
        let idle = idle(&target).await;
        [throughput, bare, latency, stalled, request, idle].concat()
    });
    let figures = [report, codec()].concat();
    print(&figures);
    if let Some(file) = std::env::args().skip_while(|arg| arg != "--json").nth(1) {
        let parts: Vec<_> = figures.iter().map(|(name, value)| format!("\"{name}\":{value:.1}")).collect();
        std::fs::write(file, format!("{{{}}}\n", parts.join(","))).unwrap();
    }
}

/// What is asked of a figure: at least or at most.
const ASKED: &[(&str, char, f64)] = &[
    ("chunks_per_s", '>', 500_000.0),
    ("ping_saturated_p99_us", '<', 5_000.0),
    ("added_p50_us", '<', 50.0),
    ("added_p99_us", '<', 250.0),
    ("stalled_stream_bytes", '<', 81_920.0),
    ("idle_connection_bytes_an_end", '<', 40_960.0),
    ("encode_data_ns", '<', 100.0),
    ("encode_credit_ns", '<', 100.0),
    ("decode_data_ns", '<', 100.0),
    ("decode_credit_ns", '<', 100.0),
];

fn print(figures: &Figures) {
    let value = |wanted: &str| figures.iter().find(|(name, _)| *name == wanted).map_or(f64::NAN, |f| f.1);
    let added = [
        ("added_p50_us", value("latency_p50_us") - value("bare_p50_us")),
        ("added_p99_us", value("latency_p99_us") - value("bare_p99_us")),
    ];
    println!("{:<30} {:>14} {:>14}  met", "figure", "measured", "asked");
    for (name, value) in figures.iter().chain(&added) {
        let Some((_, side, bound)) = ASKED.iter().find(|(asked, ..)| asked == name) else {
            println!("{name:<30} {value:>14.1}");
            continue;
        };
        let met = if *side == '>' { value >= bound } else { value <= bound };
        let asked = format!("{side}= {bound}");
        println!("{name:<30} {value:>14.1} {asked:>14}  {}", if met { "yes" } else { "NO" });
    }
}

type Figures = Vec<(&'static str, f64)>;

/// As many chunks of 256 B as one link carries, and what a PING waits meanwhile.
async fn throughput(target: &DialTarget) -> Figures {
    let link = dial(target).await;
    let count = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let mut stream = link.open(open(FLOOD), |_| ()).unwrap();
            let count = count.clone();
            tokio::spawn(async move {
                while let Some(bytes) = stream.data().await {
                    count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, started) = (count.load(Ordering::Relaxed), Instant::now());
    let mut pings = Vec::new();
    while started.elapsed() < Duration::from_secs(3) {
        link.probe(Duration::from_secs(1)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        pings.extend(link.stats().round_trip);
    }
    let chunks =
        (count.load(Ordering::Relaxed) - before) as f64 / CHUNK as f64 / started.elapsed().as_secs_f64();
    let stats = link.stats();
    for reader in readers {
        reader.abort();
    }
    link.drained().await;
    vec![
        ("chunks_per_s", chunks),
        ("chunks_per_frame", stats.bytes_in as f64 / CHUNK as f64 / stats.frames_in as f64),
        ("ping_saturated_p50_us", percentile(&mut pings, 0.5)),
        ("ping_saturated_p99_us", percentile(&mut pings, 0.99)),
    ]
}

/// 25,000 chunks a second from 500 streams: from the call that sends to the call that returns it.
async fn latency(target: &DialTarget) -> Figures {
    let link = dial(target).await;
    let samples = Arc::new(Mutex::new(Vec::with_capacity(200_000)));
    let readers: Vec<_> = (0..500)
        .map(|_| {
            let mut stream = link.open(open(PACED), |_| ()).unwrap();
            let samples = samples.clone();
            tokio::spawn(async move {
                while let Some(bytes) = stream.data().await {
                    let now = nanos();
                    for chunk in bytes.chunks(CHUNK) {
                        let sent = u64::from_le_bytes(chunk.get(..8).unwrap().try_into().unwrap());
                        samples.lock().unwrap().push(Duration::from_nanos(now.saturating_sub(sent)));
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    samples.lock().unwrap().clear();
    let started = Instant::now();
    let before = link.stats();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let rate = samples.lock().unwrap().len() as f64 / started.elapsed().as_secs_f64();
    let after = link.stats();
    for reader in readers {
        reader.abort();
    }
    link.drained().await;
    let mut samples = std::mem::take(&mut *samples.lock().unwrap());
    vec![
        ("paced_chunks_per_s", rate),
        ("paced_frames_per_s", (after.frames_in - before.frames_in) as f64 / 3.0),
        ("latency_p50_us", percentile(&mut samples, 0.5)),
        ("latency_p99_us", percentile(&mut samples, 0.99)),
    ]
}

/// The same chunks on the same timers over a bare TCP connection, without TLS and without streams: what the kernel and
/// two threads cost alone.
async fn bare() -> Figures {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let producer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let socket = Arc::new(tokio::net::TcpStream::connect(address).await.unwrap());
            socket.set_nodelay(true).unwrap();
            for id in 0..500 {
                let socket = socket.clone();
                tokio::spawn(async move {
                    let mut ticks = paced(id).await;
                    let mut chunk = [7; CHUNK];
                    loop {
                        ticks.tick().await;
                        chunk.get_mut(..8).unwrap().copy_from_slice(&nanos().to_le_bytes());
                        // A chunk that does not fit whole would shift all later ones.
                        assert_eq!(socket.try_write(&chunk).unwrap(), CHUNK);
                    }
                });
            }
            stopped.cancelled().await;
        });
    });
    let (mut socket, _) = listener.accept().await.unwrap();
    let (mut samples, mut buffer, mut filled) = (Vec::new(), vec![0; 64 * 1024], 0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        filled += socket.read(buffer.get_mut(filled..).unwrap()).await.unwrap();
        let now = nanos();
        let whole = filled - filled % CHUNK;
        for chunk in buffer.get(..whole).unwrap().chunks(CHUNK) {
            let sent = u64::from_le_bytes(chunk.get(..8).unwrap().try_into().unwrap());
            if started.elapsed() > Duration::from_secs(1) {
                samples.push(Duration::from_nanos(now.saturating_sub(sent)));
            }
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
    stop.cancel();
    producer.join().unwrap();
    vec![("bare_p50_us", percentile(&mut samples, 0.5)), ("bare_p99_us", percentile(&mut samples, 0.99))]
}

/// 50 a second, phases spread over the period.
async fn paced(id: u64) -> tokio::time::Interval {
    tokio::time::sleep(Duration::from_micros(id * 7_919 % 20_000)).await;
    tokio::time::interval(Duration::from_millis(20))
}

/// A stream nobody reads: both ends' buffers.
async fn stalled(target: &DialTarget) -> Figures {
    let link = dial(target).await;
    let stream = link.open(open(FLOOD), |_| ()).unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let held = link.stats().received_waiting + umbel_wire::limits::SEND_BUFFER;
    drop(stream);
    link.drained().await;
    vec![("stalled_stream_bytes", held as f64)]
}

/// Round trips of small requests, one at a time and 64 at a time.
async fn requests(target: &DialTarget) -> Figures {
    let link = dial(target).await;
    let mut trips = Vec::new();
    for _ in 0..5_000 {
        let started = Instant::now();
        link.request(1, Bytes::from_static(&[7; 64]), Duration::from_secs(5)).await.unwrap();
        trips.push(started.elapsed());
    }
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let link = link.clone();
        tasks.spawn(async move {
            for _ in 0..2_000 {
                link.request(1, Bytes::from_static(&[7; 64]), Duration::from_secs(5)).await.unwrap();
            }
        });
    }
    while tasks.join_next().await.is_some() {}
    let rate = 64.0 * 2_000.0 / started.elapsed().as_secs_f64();
    vec![
        ("request_p50_us", percentile(&mut trips, 0.5)),
        ("request_p99_us", percentile(&mut trips, 0.99)),
        ("requests_per_s", rate),
    ]
}

/// Memory of an idle link, both ends in this process.
async fn idle(target: &DialTarget) -> Figures {
    const LINKS: usize = 500;
    let mut links = Vec::new();
    for _ in 0..50 {
        links.push(dial(target).await);
    }
    let before = resident();
    for _ in 0..LINKS {
        links.push(dial(target).await);
    }
    for link in &links {
        link.request(1, Bytes::from_static(b"x"), Duration::from_secs(5)).await.unwrap();
    }
    let each = (resident() - before) / LINKS as f64 / 2.0;
    vec![("idle_connection_bytes_an_end", each)]
}

/// Nanoseconds to encode and decode single frames.
fn codec() -> Figures {
    let payload = [7; CHUNK];
    let data = Header { kind: 11, id: 4_711, payload: &payload, ..Header::default() };
    let credit = Header { kind: 12, id: 4_711, limit: 1 << 20, ..Header::default() };
    let mut out = Vec::with_capacity(1 << 16);
    let mut encode = |header: Header<'_>| {
        time(|| {
            out.clear();
            frame::put(&mut out, std::hint::black_box(header));
            std::hint::black_box(&out);
        })
    };
    let (encode_data, encode_credit) = (encode(data), encode(credit));
    let decode = |header: Header<'_>| {
        let mut bytes = Vec::new();
        frame::put(&mut bytes, header);
        let body = bytes.split_off(frame::PREFIX);
        time(|| {
            let _ = std::hint::black_box(Frame::decode(std::hint::black_box(&body)));
        })
    };
    vec![
        ("encode_data_ns", encode_data),
        ("encode_credit_ns", encode_credit),
        ("decode_data_ns", decode(data)),
        ("decode_credit_ns", decode(credit)),
    ]
}

fn time(mut work: impl FnMut()) -> f64 {
    const ROUNDS: u32 = 2_000_000;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        work();
    }
    started.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}

fn percentile(samples: &mut [Duration], at: f64) -> f64 {
    samples.sort_unstable();
    let index = (samples.len() as f64 * at) as usize;
    samples
        .get(index.min(samples.len().saturating_sub(1)))
        .map_or(f64::NAN, |sample| sample.as_nanos() as f64 / 1e3)
}

fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok()).unwrap_or(f64::NAN) * 4096.0
}

fn nanos() -> u64 {
    static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn open(method: u32) -> Open {
    Open { method, end: true, ..Open::default() }
}

async fn dial(target: &DialTarget) -> Connection {
    let hello = HelloOut {
        purpose: Purpose::Hello,
        versions: VersionRange::ONE,
        instance: InstanceId([7; 16]),
        payload: Vec::new(),
    };
    dial_once(target.clone(), hello, |_, _| Ok(Arc::new(NoHandler))).await.unwrap().0
}

/// The other end, on a thread of its own.
fn start_acceptor(tls: Arc<TlsServer>) -> SocketAddr {
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            serve(listener, tls, Arc::new(Everyone), CancellationToken::new()).await;
        });
    });
    receiver.recv().unwrap()
}

struct Everyone;

impl Door for Everyone {
    fn knows(&self, _: &KeyHash) -> bool {
        true
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            newcomer.accept(
                WelcomeOut { generation: Generation(1), ..WelcomeOut::default() },
                Arc::new(Producer),
            );
        })
    }
}

struct Producer;

impl Handler for Producer {
    fn on_request(&self, _: &Connection, request: IncomingRequest) {
        let payload = request.payload.to_vec();
        request.respond(Ok(payload));
    }

    fn on_stream(&self, _: &Connection, stream: IncomingStream) {
        tokio::spawn(async move {
            let mut chunk = [7; CHUNK];
            if stream.method() == FLOOD {
                while stream.send(&chunk).await.is_ok() {}
                return;
            }
            let mut ticks = paced(stream.id()).await;
            loop {
                ticks.tick().await;
                chunk.get_mut(..8).unwrap().copy_from_slice(&nanos().to_le_bytes());
                if stream.send(&chunk).await.is_err() {
                    return;
                }
            }
        });
    }
}

struct Pki {
    server: Arc<TlsServer>,
    client: Arc<rustls::ClientConfig>,
}

impl Pki {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("umbel-link-{}", std::process::id()));
        let now = Wall::now();
        let authority = Authority::create(&dir, "bench", now).unwrap();
        let server = authority.issue_server(&[SERVER.to_owned()], now, SERVER_VALIDITY).unwrap();
        let key = KeyPair::generate().unwrap();
        let edge = EdgeId::parse("site-1").unwrap();
        let request = key.signing_request().unwrap();
        let issued = authority.sign_node(&request, &edge, NodeId::random(), now, CLIENT_VALIDITY).unwrap();
        let chain = issued.chain.into_iter().map(Into::into).collect();
        let trust = Trust::Ca(vec![authority.certificate_der().clone()]);
        let client = wire_client(trust, Some(ClientIdentity::new(chain, key.private_key()))).unwrap();
        let _ = std::fs::remove_dir_all(&dir);
        Self { server: wire_server(server.chain, server.key.private_key()).unwrap(), client }
    }
}
