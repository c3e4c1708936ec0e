//! A plain HTTP/1.1 client for tests: it shows the raw body, when each piece came, and whether the body ended whole.
//!
//! Connections are not reused and nothing is decoded beyond chunked framing, so that what a proxy adds, drops or cuts
//! is seen as it is.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::sockopt;
use rustls::{ClientConnection, StreamOwned};

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

fn line(socket: &mut BufReader<Socket>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if socket.read_until(b'\n', &mut bytes)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if bytes.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned())
}

#[derive(Clone, Copy)]
enum Framing {
    Chunked,
    Length(usize),
    ToEnd,
}

/// How a body ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// As its framing says.
    Whole,
    /// Cut: the sentence of the failed read.
    Cut(String),
}

/// An answer whose head was read.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    socket: BufReader<Socket>,
    framing: Framing,
    end: Option<BodyEnd>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// How it ended.
    pub end: BodyEnd,
}

impl Whole {
    /// The first header of this name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Answer {
    /// The first header of this name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The next bytes of the body; none at its end (see [`Answer::end`]).
    pub fn piece(&mut self) -> Option<Vec<u8>> {
        if self.end.is_some() {
            return None;
        }
        match self.read_piece() {
            Ok(Some(bytes)) => Some(bytes),
            Ok(None) => {
                self.end = Some(BodyEnd::Whole);
                None
            }
            Err(e) => {
                self.end = Some(BodyEnd::Cut(e.to_string()));
                None
            }
        }
    }

    fn read_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.framing {
            Framing::Chunked => {
                let size = line(&mut self.socket)?;
                let size = usize::from_str_radix(size.trim(), 16).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("chunk size {size:?}"))
                })?;
                let mut bytes = vec![0; size];
                self.socket.read_exact(&mut bytes)?;
                line(&mut self.socket)?;
                Ok((size > 0).then_some(bytes))
            }
            Framing::Length(0) => Ok(None),
            Framing::Length(left) => {
                let mut bytes = vec![0; left.min(64 << 10)];
                let n = self.socket.read(&mut bytes)?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.truncate(n);
                self.framing = Framing::Length(left - n);
                Ok(Some(bytes))
            }
            Framing::ToEnd => {
                let mut bytes = vec![0; 64 << 10];
                let n = self.socket.read(&mut bytes)?;
                bytes.truncate(n);
                Ok((n > 0).then_some(bytes))
            }
        }
    }

    /// Reads until the body so far contains `mark`; what was read is returned.
    ///
    /// # Errors
    /// When the body ends first; what was read stands in the message.
    pub fn read_to(&mut self, mark: &str) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(mark) {
            match self.piece() {
                Some(bytes) => all.extend_from_slice(&bytes),
                None => {
                    return Err(io::Error::other(format!(
                        "the body ended ({:?}) without {mark:?}: {}",
                        self.end,
                        String::from_utf8_lossy(&all)
                    )));
                }
            }
        }
        Ok(all)
    }

    /// How the body ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<&BodyEnd> {
        self.end.as_ref()
    }

    /// Reads the rest.
    #[must_use]
    pub fn rest(mut self) -> Whole {
        let mut body = Vec::new();
        while let Some(bytes) = self.piece() {
            body.extend_from_slice(&bytes);
        }
        let end = self.end.take().unwrap_or(BodyEnd::Whole);
        Whole { status: self.status, headers: self.headers, body, end }
    }

    /// Leaves before the end: with FIN, or with RST.
    pub fn leave(self, reset: bool) {
        leave(self.socket, reset);
    }
}
