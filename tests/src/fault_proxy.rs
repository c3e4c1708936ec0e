//! The TCP fault proxy (rig R1): black hole per direction, reset, half-close, pieces, delay, rate, a cut at byte N.
//!
//! Each connection carries its own [`Faults`], taken from the proxy's default when it was accepted and changeable while
//! it lives, so that an old connection can hang while a new one works. A black-holed direction is simply not read: the
//! sender's bytes wait, as they would for retransmission, and flow again when the hole is closed.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt;

use crate::engine::locked;

/// How soon a changed fault takes force.
const STEP: Duration = Duration::from_millis(10);

/// What happens when a direction has carried its number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Both sides are reset.
    Rst,
    /// Both sides are closed with FIN.
    Fin,
    /// Only this direction is closed.
    HalfClose,
}

/// The faults of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Direction {
    /// Nothing passes.
    pub black_hole: bool,
    /// Added before each piece, in milliseconds.
    pub delay_ms: u64,
    /// Bytes in one write; 0: as they come.
    pub piece: usize,
    /// Bytes a second; 0: no limit.
    pub rate: u64,
    /// After so many bytes.
    pub cut: Option<(u64, Cut)>,
}

/// How a new connection is met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    /// It is connected through.
    #[default]
    Open,
    /// It is accepted and reset.
    Reset,
    /// It is accepted and never answered.
    Silent,
    /// It is answered with a load balancer's HTML page.
    Html,
}

/// The faults of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// From the dialer to the upstream.
    pub up: Direction,
    /// From the upstream to the dialer.
    pub down: Direction,
    /// For new connections.
    pub door: Door,
}

impl Faults {
    /// Nothing passes in either direction, and new connections hang.
    #[must_use]
    pub fn black_hole() -> Self {
        let hole = Direction { black_hole: true, ..Direction::default() };
        Self { up: hole, down: hole, door: Door::Silent }
    }
}

/// One connection through the proxy.
pub struct Link {
    faults: Mutex<Faults>,
    dialer: TcpStream,
    upstream: Mutex<Option<TcpStream>>,
    closed: AtomicBool,
    up_bytes: AtomicU64,
    down_bytes: AtomicU64,
}

impl Link {
    /// Changes its faults.
    pub fn set(&self, faults: Faults) {
        *locked(&self.faults) = faults;
    }

    /// Whether either side has closed it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Bytes that passed, from the dialer and to the dialer.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.up_bytes.load(Ordering::SeqCst), self.down_bytes.load(Ordering::SeqCst))
    }

    /// Ends it now.
    pub fn end(&self, how: Cut) {
        self.closed.store(true, Ordering::SeqCst);
        let upstream = locked(&self.upstream);
        for side in [Some(&self.dialer), upstream.as_ref()].into_iter().flatten() {
            if how == Cut::Rst {
                let _ = sockopt::set_socket_linger(side, Some(Duration::ZERO));
            }
            let _ = side.shutdown(Shutdown::Both);
        }
    }

    fn faults(&self) -> Faults {
        *locked(&self.faults)
    }
}

struct Shared {
    default: Mutex<Faults>,
    upstream: Mutex<SocketAddr>,
    links: Mutex<Vec<Arc<Link>>>,
    stopping: AtomicBool,
}

/// A running proxy; it ends with all its connections when dropped.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Proxy {
    /// Starts one on a loopback port that the kernel chooses.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            default: Mutex::default(),
            upstream: Mutex::new(upstream),
            links: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        Ok(Self { shared, address })
    }

    /// Where dialers find it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections to come go elsewhere.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *locked(&self.shared.upstream) = upstream;
    }

    /// Faults of connections to come.
    pub fn set_default(&self, faults: Faults) {
        *locked(&self.shared.default) = faults;
    }

    /// Faults of all connections, those to come included.
    pub fn set_all(&self, faults: Faults) {
        self.set_default(faults);
        for link in self.links() {
            link.set(faults);
        }
    }

    /// All connections so far, oldest first.
    #[must_use]
    pub fn links(&self) -> Vec<Arc<Link>> {
        locked(&self.shared.links).clone()
    }

    /// The connections that live.
    #[must_use]
    pub fn live(&self) -> Vec<Arc<Link>> {
        self.links().into_iter().filter(|l| !l.is_closed()).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
        for link in self.links() {
            link.end(Cut::Rst);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(dialer) = stream else { continue };
        let _ = dialer.set_nodelay(true);
        let faults = *locked(&shared.default);
        let link = Arc::new(Link {
            faults: Mutex::new(faults),
            dialer,
            upstream: Mutex::default(),
            closed: AtomicBool::new(false),
            up_bytes: AtomicU64::new(0),
            down_bytes: AtomicU64::new(0),
        });
        locked(&shared.links).push(Arc::clone(&link));
        let shared = Arc::clone(shared);
        std::thread::spawn(move || meet(&link, &shared, faults.door));
    }
}

fn meet(link: &Arc<Link>, shared: &Shared, door: Door) {
    match door {
        Door::Open => {}
        Door::Reset => return link.end(Cut::Rst),
        Door::Silent => {
            // Like a host that is not there: nothing is dialled until the door opens.
            while link.faults().door == Door::Silent {
                if shared.stopping.load(Ordering::SeqCst) || link.is_closed() || left(&link.dialer) {
                    return link.end(Cut::Rst);
                }
                std::thread::sleep(STEP);
            }
        }
        Door::Html => {
            let page = "<html><body>503 Service Unavailable</body></html>";
            let _ = (&link.dialer).write_all(
                format!("HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n{page}", page.len()).as_bytes(),
            );
            return link.end(Cut::Fin);
        }
    }
    let target = *locked(&shared.upstream);
    let Ok(upstream) = TcpStream::connect_timeout(&target, Duration::from_secs(2)) else {
        return link.end(Cut::Rst);
    };
    let _ = upstream.set_nodelay(true);
    let (Ok(up_to), Ok(down_from), Ok(up_from), Ok(down_to)) =
        (upstream.try_clone(), upstream.try_clone(), link.dialer.try_clone(), link.dialer.try_clone())
    else {
        return link.end(Cut::Rst);
    };
    *locked(&link.upstream) = Some(upstream);
    let other = Arc::clone(link);
    let down = std::thread::spawn(move || pump(&other, &down_from, &down_to, false));
    pump(link, &up_from, &up_to, true);
    let _ = down.join();
    link.closed.store(true, Ordering::SeqCst);
}

/// Whether a silent dialer has closed its side.
fn left(stream: &TcpStream) -> bool {
    let mut one = [0_u8; 1];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(stream, &mut one, flags), Ok((_, 0)))
}

fn pump(link: &Link, mut from: &TcpStream, mut to: &TcpStream, up: bool) {
    let _ = from.set_read_timeout(Some(STEP));
    let mut buffer = vec![0_u8; 16 << 10];
    let mut passed = 0_u64;
    loop {
        if link.is_closed() {
            return;
        }
        let faults = link.faults();
        let mine = if up { faults.up } else { faults.down };
        if mine.black_hole {
            std::thread::sleep(STEP);
            continue;
        }
        let n = match from.read(&mut buffer) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(n) => n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) =>
            {
                continue;
            }
            Err(_) => return link.end(Cut::Rst),
        };
        // A hole that opened while the read waited swallows nothing: it holds these bytes back.
        while (if up { link.faults().up } else { link.faults().down }).black_hole {
            if link.is_closed() {
                return;
            }
            std::thread::sleep(STEP);
        }
        let allowed =
            mine.cut.map_or(n, |(at, _)| usize::try_from(at.saturating_sub(passed)).unwrap_or(n).min(n));
        let bytes = buffer.get(..allowed).unwrap_or_default();
        for part in bytes.chunks(if mine.piece == 0 { bytes.len().max(1) } else { mine.piece }) {
            if mine.delay_ms > 0 {
                std::thread::sleep(Duration::from_millis(mine.delay_ms));
            }
            if let Some(us) = (part.len() as u64 * 1_000_000).checked_div(mine.rate) {
                std::thread::sleep(Duration::from_micros(us));
            }
            if to.write_all(part).is_err() {
                return link.end(Cut::Rst);
            }
        }
        passed += allowed as u64;
        let counter = if up { &link.up_bytes } else { &link.down_bytes };
        counter.store(passed, Ordering::SeqCst);
        if let Some((at, how)) = mine.cut
            && passed >= at
        {
            if how == Cut::HalfClose {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            return link.end(how);
        }
    }
}
