//! One client connection of the load generator: hand-written HTTP/1.1, so that the generator costs little beside what
//! it measures. Counts server-sent events by their blank lines and notes when each arrived.

use std::io;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes kept of a body's end, to see `[DONE]` in.
const TAIL: usize = 32;

/// A kept-open connection.
pub(crate) struct Conn {
    socket: TcpStream,
    buffer: Vec<u8>,
    len: usize,
    pos: usize,
}

/// What one request gave.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Microseconds from the start to the first event.
    pub(crate) first_us: Option<f64>,
    pub(crate) events: u64,
    pub(crate) close: bool,
    /// The stream reached `[DONE]`, or the plain answer has a finish reason.
    pub(crate) whole: bool,
}

struct Body {
    events: Events,
    finish: bool,
    arrivals: Arrivals,
}

impl Body {
    fn feed(&mut self, bytes: &[u8], gaps: &mut Vec<f64>) {
        self.events.feed(bytes);
        if self.events.count == 0 {
            self.finish |= memchr::memmem::find(bytes, b"\"finish_reason\":").is_some();
        }
        self.arrivals.note(self.events.count, gaps);
    }
}

#[derive(Default)]
struct Framing {
    length: Option<usize>,
    chunked: bool,
    close: bool,
}

impl Conn {
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: vec![0; 64 << 10], len: 0, pos: 0 })
    }

    async fn fill(&mut self) -> io::Result<()> {
        if self.pos == self.len {
            self.pos = 0;
            self.len = 0;
        }
        if self.len == self.buffer.len() {
            self.buffer.copy_within(self.pos..self.len, 0);
            self.len -= self.pos;
            self.pos = 0;
            if self.len == self.buffer.len() {
                self.buffer.resize(self.len * 2, 0);
            }
        }
        let n = self.socket.read(&mut self.buffer[self.len..]).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.len += n;
        Ok(())
    }

    async fn line(&mut self) -> io::Result<(usize, usize)> {
        let mut from = self.pos;
        loop {
            if let Some(i) = memchr::memchr(b'\n', &self.buffer[from..self.len]) {
                let at = (self.pos, from + i);
                self.pos = from + i + 1;
                return Ok(at);
            }
            let seen = self.len - self.pos;
            self.fill().await?;
            from = self.pos + seen;
        }
    }

    async fn head(&mut self) -> io::Result<(u16, Framing)> {
        let (a, b) = self.line().await?;
        let status = std::str::from_utf8(&self.buffer[a..b])
            .ok()
            .and_then(|l| l.split(' ').nth(1))
            .and_then(|c| c.parse().ok())
            .unwrap_or(0);
        let mut framing = Framing::default();
        loop {
            let (a, b) = self.line().await?;
            let line = &self.buffer[a..b];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                return Ok((status, framing));
            }
            let Some(colon) = memchr::memchr(b':', line) else { continue };
            let value = line[colon + 1..].trim_ascii();
            match &line[..colon].to_ascii_lowercase()[..] {
                b"content-length" => {
                    framing.length = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok())
                }
                b"transfer-encoding" => framing.chunked = value.eq_ignore_ascii_case(b"chunked"),
                b"connection" => framing.close = value.eq_ignore_ascii_case(b"close"),
                _ => {}
            }
        }
    }

    async fn take(&mut self, mut left: usize, body: &mut Body, gaps: &mut Vec<f64>) -> io::Result<()> {
        while left > 0 {
            if self.pos == self.len {
                self.fill().await?;
            }
            let n = left.min(self.len - self.pos);
            body.feed(&self.buffer[self.pos..self.pos + n], gaps);
            self.pos += n;
            left -= n;
        }
        Ok(())
    }

    /// One request. The times between arrivals of later events go to `gaps`.
    pub(crate) async fn ask(
        &mut self,
        start: Instant,
        request: &[u8],
        gaps: &mut Vec<f64>,
    ) -> io::Result<Answer> {
        self.socket.write_all(request).await?;
        let (status, mut framing) = self.head().await?;
        let mut body = Body {
            events: Events { newline: false, count: 0, tail: [0; TAIL] },
            finish: false,
            arrivals: Arrivals { start, first_us: None, last: start, seen: 0 },
        };
        if framing.chunked {
            loop {
                let (a, b) = self.line().await?;
                let size = std::str::from_utf8(&self.buffer[a..b]).unwrap_or("").trim();
                let size = usize::from_str_radix(size.split(';').next().unwrap_or(""), 16)
                    .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
                self.take(size, &mut body, gaps).await?;
                self.line().await?;
                if size == 0 {
                    break;
                }
            }
        } else if let Some(length) = framing.length {
            self.take(length, &mut body, gaps).await?;
        } else {
            framing.close = true;
            loop {
                body.feed(&self.buffer[self.pos..self.len], gaps);
                self.pos = self.len;
                if self.fill().await.is_err() {
                    break;
                }
            }
        }
        let done = memchr::memmem::find(&body.events.tail, b"data: [DONE]").is_some();
        let whole = if body.events.count > 0 { done } else { body.finish };
        Ok(Answer {
            status,
            first_us: body.arrivals.first_us,
            events: body.events.count,
            close: framing.close,
            whole,
        })
    }
}

struct Arrivals {
    start: Instant,
    first_us: Option<f64>,
    last: Instant,
    seen: u64,
}

impl Arrivals {
    fn note(&mut self, count: u64, gaps: &mut Vec<f64>) {
        if count == self.seen {
            return;
        }
        let now = Instant::now();
        if self.first_us.is_none() {
            self.first_us = Some(micros(now - self.start));
        } else {
            gaps.push(micros(now - self.last));
        }
        self.last = now;
        self.seen = count;
    }
}

/// Microseconds with fractions.
pub(crate) fn micros(span: std::time::Duration) -> f64 {
    span.as_secs_f64() * 1e6
}

/// Counts blank lines over the pieces of a body.
struct Events {
    newline: bool,
    count: u64,
    tail: [u8; TAIL],
}

impl Events {
    fn feed(&mut self, bytes: &[u8]) {
        let keep = bytes.len().min(TAIL);
        self.tail.copy_within(keep.., 0);
        self.tail[TAIL - keep..].copy_from_slice(&bytes[bytes.len() - keep..]);
        let mut next = 0;
        for i in memchr::memchr_iter(b'\n', bytes) {
            if self.newline && (i == next || (i == next + 1 && bytes[next] == b'\r')) {
                self.count += 1;
                self.newline = false;
            } else {
                self.newline = true;
            }
            next = i + 1;
        }
        if next < bytes.len() && &bytes[next..] != b"\r" {
            self.newline = false;
        }
    }
}
