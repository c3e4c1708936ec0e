//! A plain HTTP/1.1 client for tests: it shows the raw body, when each piece came, and whether the body ended whole.
//!
//! Connections are not reused and nothing is decoded beyond chunked framing, so that what a proxy adds, drops or cuts
//! is seen as it is.

mod answer;

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt;
use rustls::{ClientConnection, StreamOwned};

pub use self::answer::{Answer, BodyEnd, Whole};
use self::answer::{Framing, line};
use crate::peer::{Manner, Peer};

/// No test waits longer than this for one read.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// Where to ask.
#[derive(Clone, Debug)]
pub enum Target {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
    /// HTTPS at an address, asking for a name; the certificate is not verified.
    Tls(SocketAddr, String),
}

enum Socket {
    Tcp(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    Unix(UnixStream),
}

impl Read for Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.read(buf),
            Self::Tls(s) => s.read(buf),
            Self::Unix(s) => s.read(buf),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(s) => s.write(buf),
            Self::Tls(s) => s.write(buf),
            Self::Unix(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if let Self::Tls(s) = self { s.flush() } else { Ok(()) }
    }
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Ask {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    limit: Duration,
}

impl Ask {
    /// A GET.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            limit: READ_LIMIT,
        }
    }

    /// A POST of JSON.
    #[must_use]
    pub fn post(path: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut ask = Self::get(path);
        "POST".clone_into(&mut ask.method);
        ask.body = body.into();
        ask.header("content-type", "application/json")
    }

    /// A body that is not JSON.
    #[must_use]
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Another method.
    #[must_use]
    pub fn method(mut self, method: &str) -> Self {
        method.clone_into(&mut self.method);
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a bearer credential.
    #[must_use]
    pub fn bearer(self, secret: &str) -> Self {
        self.header("authorization", &format!("Bearer {secret}"))
    }

    /// Limits each read.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The bytes of the request.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = format!("{} {} HTTP/1.1\r\nHost: test\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            out.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() || self.method == "POST" {
            out.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        out.push_str("\r\n");
        let mut out = out.into_bytes();
        out.extend_from_slice(&self.body);
        out
    }

    /// Sends it on a new connection without waiting for the answer.
    ///
    /// # Errors
    /// When the connection or the write fails.
    pub fn send(&self, target: &Target) -> io::Result<Sent> {
        let mut socket = match target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, Duration::from_secs(5))?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(self.limit))?;
                Socket::Tcp(stream)
            }
            Target::Tls(address, name) => {
                let manner = Manner { name, identity: None, alpn: b"http/1.1" };
                let stream = Peer::connect(*address, &manner)?.into_stream();
                stream.sock.set_read_timeout(Some(self.limit))?;
                Socket::Tls(Box::new(stream))
            }
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(self.limit))?;
                Socket::Unix(stream)
            }
        };
        socket.write_all(&self.bytes())?;
        socket.flush()?;
        Ok(Sent { socket: BufReader::new(socket) })
    }

    /// Sends it and reads the answer's head.
    ///
    /// # Errors
    /// When the connection ends or is silent before the head, or the head is not HTTP.
    pub fn ask(&self, target: &Target) -> io::Result<Answer> {
        self.send(target)?.head()
    }

    /// Sends it and reads the whole answer.
    ///
    /// # Errors
    /// As [`Ask::ask`].
    pub fn whole(&self, target: &Target) -> io::Result<Whole> {
        self.ask(target).map(Answer::rest)
    }
}

/// A request whose answer has not been looked at.
pub struct Sent {
    socket: BufReader<Socket>,
}

impl Sent {
    /// Reads the answer's head.
    ///
    /// # Errors
    /// When the connection ends or is silent first, or the head is not HTTP.
    pub fn head(mut self) -> io::Result<Answer> {
        loop {
            let status = line(&mut self.socket)?;
            let status = status.split(' ').nth(1).and_then(|s| s.parse().ok()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("no status line: {status:?}"))
            })?;
            let mut headers = Vec::new();
            loop {
                let line = line(&mut self.socket)?;
                if line.is_empty() {
                    break;
                }
                if let Some((name, value)) = line.split_once(':') {
                    headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
                }
            }
            if status == 100 {
                continue;
            }
            let find = |name: &str| {
                headers.iter().find(|(n, _)| n == name).map(|(_, v): &(String, String)| v.clone())
            };
            let framing = if find("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
                Framing::Chunked
            } else if let Some(length) = find("content-length").and_then(|v| v.parse().ok()) {
                Framing::Length(length)
            } else if status == 204 || status == 304 {
                Framing::Length(0)
            } else {
                Framing::ToEnd
            };
            return Ok(Answer { status, headers, socket: self.socket, framing, end: None });
        }
    }

    /// Leaves: with FIN, or with RST.
    pub fn leave(self, reset: bool) {
        leave(self.socket, reset);
    }
}

fn leave(socket: BufReader<Socket>, reset: bool) {
    let stream = match socket.get_ref() {
        Socket::Tcp(stream) => Some(stream),
        Socket::Tls(tls) => Some(&tls.sock),
        Socket::Unix(_) => None,
    };
    if let (true, Some(stream)) = (reset, stream) {
        let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
    }
}
