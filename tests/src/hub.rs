//! A hub of models on loopback, that answers as it should or lies as it is told to.
//!
//! Owns both layouts (a hub's and a plain mirror's), ranges, entity tags, and every way to fail that a download has to bear.
//! It knows nothing of this crate, so that a unit test elsewhere can take this file as its own module.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// What is done to one answer instead of the right thing.
#[derive(Clone, Debug)]
pub enum Fault {
    /// The connection ends after so many bytes of the body.
    Cut(u64),
    /// So many bytes of the body, then nothing; the connection stays open.
    Stall(u64),
    /// So many bytes of the body, then nothing until the hub lets it go on.
    Hold(u64),
    /// A byte now and then.
    Drip,
    /// No answer at all.
    Silent,
    /// This status, without a body.
    Status(u16),
    /// The length that is said is so much larger.
    Longer(u64),
    /// Chunked, and more bytes than there are, for ever.
    Endless,
    /// Chunked, and right.
    Chunked,
    /// One byte is another.
    WrongByte,
    /// The whole file, whatever part was asked for.
    IgnoreRange,
    /// A part that begins elsewhere than was asked for.
    WrongPart,
    /// It says that it is packed.
    Packed,
    /// Elsewhere: a whole address, or a path.
    Redirect(String),
    /// A version of its own: the tag changes.
    Tag(String),
}

/// A request that came.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// What was asked for.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    /// By path below both layouts: `REPOSITORY/REVISION/FILE`.
    files: Mutex<BTreeMap<String, Arc<Vec<u8>>>>,
    /// Of those, what is told of their content, as hubs do of large files.
    digests: Mutex<BTreeMap<String, String>>,
    /// By end of the path: what the next answers are like.
    faults: Mutex<Vec<(String, Fault, usize)>>,
    seen: Mutex<Vec<Seen>>,
    /// Nothing is held any more.
    let_go: AtomicBool,
    ended: AtomicBool,
}

/// It runs until it is dropped.
pub struct Hub {
    /// Where it listens.
    pub address: SocketAddr,
    state: Arc<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Starts one on a port of the kernel's choice.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn start() -> std::io::Result<Self> {
        Self::at(SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// Starts one at an address.
    ///
    /// # Errors
    /// If it cannot listen there.
    pub fn at(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.ended.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let _ = serve(stream, &shared);
                });
            }
        });
        Ok(Self { address, state })
    }

    /// Adds a file.
    pub fn add(&self, repository: &str, revision: &str, path: &str, content: impl Into<Vec<u8>>) {
        lock(&self.state.files).insert(format!("{repository}/{revision}/{path}"), Arc::new(content.into()));
    }

    /// Has the list of files tell the SHA-256 of one, as hubs do of large files.
    pub fn tell(&self, repository: &str, revision: &str, path: &str, sha256: &str) {
        lock(&self.state.digests).insert(format!("{repository}/{revision}/{path}"), sha256.to_owned());
    }

    /// The next `times` answers for paths that end so are like that.
    pub fn fault(&self, path: &str, fault: Fault, times: usize) {
        lock(&self.state.faults).push((path.to_owned(), fault, times));
    }

    /// What is held goes on, and nothing is held from now on.
    pub fn let_go(&self) {
        self.state.let_go.store(true, Ordering::Relaxed);
    }

    /// What was asked so far.
    #[must_use]
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.state.seen).clone()
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, state: &State) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some(seen) = head(&mut reader)? {
        lock(&state.seen).push(seen.clone());
        answer(&mut stream, &mut reader, &seen, state)?;
    }
    Ok(())
}

fn head(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<Seen>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = unescaped(line.split(' ').nth(1).unwrap_or_default());
    let mut seen = Seen { path, ..Seen::default() };
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(Some(seen));
        }
        if let Some((name, value)) = line.split_once(':') {
            seen.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
}

fn unescaped(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, behind @ ..] = rest {
        let hex = (*first == b'%').then(|| behind.get(..2)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What one answer is to be like.
fn fault(path: &str, state: &State) -> Option<Fault> {
    let mut faults = lock(&state.faults);
    let at = faults.iter().position(|(of, _, times)| path.ends_with(of.as_str()) && *times > 0)?;
    let (_, fault, times) = faults.get_mut(at)?;
    *times -= 1;
    Some(fault.clone())
}

fn answer(
    stream: &mut TcpStream,
    reader: &mut BufReader<TcpStream>,
    seen: &Seen,
    state: &State,
) -> std::io::Result<()> {
    let path = seen.path.trim_start_matches('/');
    if let Some(tree) = path.strip_prefix("api/models/") {
        let asked = tree.split('?').next().unwrap_or_default();
        return match asked.split_once("/revision/") {
            // A name is a commit of its own here.
            Some((_, revision)) => json(stream, &format!(r#"{{"sha":"{revision}"}}"#)),
            None => list(stream, asked, state),
        };
    }
    let fault = fault(path, state);
    match &fault {
        Some(Fault::Status(status)) => return status_only(stream, *status, ""),
        Some(Fault::Redirect(to)) => return status_only(stream, 302, &format!("Location: {to}\r\n")),
        Some(Fault::Silent) => return wait_for_the_end(reader),
        _ => {}
    }
    let found = lock(&state.files).get(&path.replacen("/resolve/", "/", 1)).cloned();
    let Some(content) = found else { return status_only(stream, 404, "") };
    let tag = match &fault {
        Some(Fault::Tag(tag)) => tag.clone(),
        _ => format!("\"{}\"", content.len()),
    };
    let asked = seen
        .headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let same = seen.headers.get("if-range").is_none_or(|of| *of == tag);
    let from = match asked {
        Some(from) if same && !matches!(fault, Some(Fault::IgnoreRange)) => from,
        _ => 0_usize,
    };
    if from > content.len() {
        return status_only(stream, 416, "");
    }
    let mut body = content.get(from..).unwrap_or_default().to_vec();
    if matches!(fault, Some(Fault::WrongByte))
        && let Some(byte) = body.first_mut()
    {
        *byte ^= 1;
    }
    let mut head =
        String::from(if from > 0 { "HTTP/1.1 206 Partial Content\r\n" } else { "HTTP/1.1 200 OK\r\n" });
    let _ = write!(head, "ETag: {tag}\r\n");
    if from > 0 {
        let first = if matches!(fault, Some(Fault::WrongPart)) { from - 1 } else { from };
        let _ = write!(
            head,
            "Content-Range: bytes {first}-{}/{}\r\n",
            content.len().saturating_sub(1),
            content.len()
        );
    }
    if matches!(fault, Some(Fault::Packed)) {
        head.push_str("Content-Encoding: gzip\r\n");
    }
    send(stream, reader, &mut head, &body, fault.as_ref(), state)
}

fn send(
    stream: &mut TcpStream,
    reader: &mut BufReader<TcpStream>,
    head: &mut String,
    body: &[u8],
    fault: Option<&Fault>,
    state: &State,
) -> std::io::Result<()> {
    if matches!(fault, Some(Fault::Endless | Fault::Chunked)) {
        let _ = write!(head, "Transfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        for chunk in body.chunks(1000) {
            write!(stream, "{:x}\r\n", chunk.len())?;
            stream.write_all(chunk)?;
            stream.write_all(b"\r\n")?;
        }
        if matches!(fault, Some(Fault::Endless)) {
            loop {
                stream.write_all(b"1\r\nx\r\n")?;
            }
        }
        return stream.write_all(b"0\r\n\r\n");
    }
    let more = if let Some(Fault::Longer(more)) = fault { *more } else { 0 };
    let _ = write!(head, "Content-Length: {}\r\n\r\n", body.len() as u64 + more);
    stream.write_all(head.as_bytes())?;
    let part = |bytes: u64| body.get(..usize::try_from(bytes).unwrap_or(usize::MAX)).unwrap_or(body);
    match fault {
        Some(Fault::Cut(bytes)) => {
            stream.write_all(part(*bytes))?;
            stream.shutdown(std::net::Shutdown::Both)
        }
        Some(Fault::Stall(bytes)) => {
            stream.write_all(part(*bytes))?;
            wait_for_the_end(reader)
        }
        Some(Fault::Hold(bytes)) => {
            stream.write_all(part(*bytes))?;
            while !state.let_go.load(Ordering::Relaxed) && !state.ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
            }
            stream.write_all(body.get(part(*bytes).len()..).unwrap_or_default())
        }
        Some(Fault::Drip) => {
            for byte in body {
                stream.write_all(std::slice::from_ref(byte))?;
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        }
        _ => stream.write_all(body),
    }
}

/// Until the other side has had enough.
fn wait_for_the_end(reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut byte = [0];
    while reader.read(&mut byte)? > 0 {}
    Err(std::io::ErrorKind::ConnectionAborted.into())
}

fn status_only(stream: &mut TcpStream, status: u16, more: &str) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status} x\r\n{more}Content-Length: 0\r\n\r\n")
}

/// The tree of `REPOSITORY/tree/REVISION`, as a hub lists it.
fn list(stream: &mut TcpStream, path: &str, state: &State) -> std::io::Result<()> {
    let below = format!("{}/", path.replacen("/tree/", "/", 1));
    let digests = lock(&state.digests).clone();
    let mut entries = Vec::new();
    for (whole, content) in lock(&state.files).iter() {
        let Some(name) = whole.strip_prefix(&below) else { continue };
        let size = content.len();
        let large = digests.get(whole).map(|oid| format!(r#","lfs":{{"oid":"{oid}","size":{size}}}"#));
        let large = large.unwrap_or_default();
        entries.push(format!(r#"{{"type":"file","oid":"0","path":{name:?},"size":{size}{large}}}"#));
    }
    json(stream, &format!("[{}]", entries.join(",")))
}

fn json(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}
