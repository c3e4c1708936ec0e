//! Engines that the tests play: one in this process that does what a test's own code says, and one as a program that
//! stands in for llama-server.

use std::{
    io::Write,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    sync::Mutex,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::soon;

/// A request as it came, on its connection.
pub(crate) struct Exchange {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    pub(crate) stream: TcpStream,
    /// Counts connections from 1.
    pub(crate) connection: usize,
}

impl Exchange {
    /// The head of an event stream.
    pub(crate) async fn start_events(&mut self) {
        self.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
        .await;
    }

    pub(crate) async fn chunk(&mut self, bytes: &[u8]) {
        let mut framed = format!("{:x}\r\n", bytes.len()).into_bytes();
        framed.extend_from_slice(bytes);
        framed.extend_from_slice(b"\r\n");
        self.write(&framed).await;
    }

    pub(crate) async fn end_chunks(&mut self) {
        self.write(b"0\r\n\r\n").await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        // Who has left is noticed by `left`.
        let _ = self.stream.write_all(bytes).await;
    }

    /// An answer in one piece.
    pub(crate) async fn whole(&mut self, status: &str, headers: &str, body: &[u8]) {
        let mut answer =
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len()).into_bytes();
        answer.extend_from_slice(body);
        self.write(&answer).await;
    }

    /// Resolves when the relay has closed its end.
    pub(crate) async fn left(&mut self) {
        let mut byte = [0; 1];
        soon("the relay to leave", async { while let Ok(1..) = self.stream.read(&mut byte).await {} }).await;
    }

    /// Breaks the connection with a reset.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// An engine in this process. Requests to its routes of completions are handed to the test, one after the other.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    requests: mpsc::Receiver<Exchange>,
    back: mpsc::Sender<(TcpStream, usize)>,
}

impl Engine {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, received) = mpsc::channel(64);
        let (back, mut given_back) = mpsc::channel::<(TcpStream, usize)>(64);
        tokio::spawn(async move {
            let mut count = 0;
            loop {
                let (stream, connection) = tokio::select! {
                    accepted = listener.accept() => {
                        count += 1;
                        (accepted.unwrap().0, count)
                    }
                    Some(kept) = given_back.recv() => kept,
                    // The test is over.
                    () = requests.closed() => return,
                };
                tokio::spawn(receive(stream, connection, requests.clone()));
            }
        });
        Self { address, requests: received, back }
    }

    /// The lines of the node's file for it.
    pub(crate) fn lines(&self) -> String {
        format!(
            "[[engine]]\nname = \"ext\"\nkind = \"external\"\nmodel = \"m\"\nurl = \"http://{}\"\n",
            self.address
        )
    }

    pub(crate) async fn request(&mut self) -> Exchange {
        soon("a request at the engine", self.requests.recv()).await.unwrap()
    }

    /// No request has come.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.requests.try_recv().is_err()
    }

    /// The connection may carry another request.
    pub(crate) async fn keep(&self, exchange: Exchange) {
        self.back.send((exchange.stream, exchange.connection)).await.unwrap();
    }
}

/// Reads one request; answers probes, hands on the rest.
async fn receive(mut stream: TcpStream, connection: usize, requests: mpsc::Sender<Exchange>) {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8(bytes).unwrap();
    let mut exchange = Exchange { head, body: Vec::new(), stream, connection };
    if exchange.head.starts_with("GET /health ") {
        return exchange.whole("200 OK", "", b"{}").await;
    }
    if exchange.head.starts_with("GET /v1/models ") {
        return exchange.whole("200 OK", "", br#"{"object":"list","data":[{"id":"m"}]}"#).await;
    }
    let length: usize = exchange.header("content-length").map_or(0, |value| value.parse().unwrap());
    // A test that wants to refuse the body reads none of it.
    if exchange.header("x-request-id").is_some() && length <= 256 * 1024 {
        while body.len() < length {
            if exchange.stream.read_buf(&mut body).await.unwrap_or(0) == 0 {
                return;
            }
        }
    }
    exchange.body = body;
    let _ = requests.send(exchange).await;
}

/// Writes a program that stands in for llama-server and behaves as `mode` says; the lines of the node's file for it.
pub(crate) fn program(folder: &Path, mode: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let binary = std::env::current_exe().unwrap();
    let program = folder.join("llama-server");
    let text = format!(
        "#!/bin/sh\nUMBEL_TEST_ENGINE='{mode}' UMBEL_TEST_ARGUMENTS=\"$*\" exec '{}' --exact engine::engine_process --ignored --nocapture\n",
        binary.display()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(folder.join("m.gguf"), b"GGUF0000").unwrap();
    format!(
        "[programs]\nllama_server = \"{}\"\n[[engine]]\nname = \"own\"\nkind = \"llama-server\"\nmodel = \"m\"\nmodel_file = \"{}\"\n",
        program.display(),
        folder.join("m.gguf").display()
    )
}

/// Becomes the engine when started by the script of [`program`].
#[test]
#[ignore = "a process that an agent starts"]
fn engine_process() {
    let Ok(mode) = std::env::var("UMBEL_TEST_ENGINE") else { return };
    let arguments = std::env::var("UMBEL_TEST_ARGUMENTS").unwrap();
    let mut words = arguments.split_ascii_whitespace();
    let port = words
        .by_ref()
        .find(|word| *word == "--port")
        .and_then(|_| words.next())
        .unwrap()
        .parse::<u16>()
        .unwrap();
    match mode.as_str() {
        "traceback" => {
            for line in 0..200 {
                eprintln!("  File \"model.py\", line {line}");
            }
            eprint!("ValueError: no such model");
            std::process::exit(1);
        }
        "flood" => flood(),
        "children" => children(),
        "orphans" => {
            for _ in 0..200 {
                // The child of the shell outlives it for a moment and is nobody's then.
                Command::new("/bin/sh").args(["-c", "sleep 0.05 &"]).status().unwrap();
            }
        }
        _ => {}
    }
    // One that does not do as it is told.
    let host = if mode == "exposed" { "0.0.0.0" } else { "127.0.0.1" };
    let listener = std::net::TcpListener::bind((host, port)).unwrap();
    if mode == "opens" {
        while !Path::new("open").exists() {
            answer(&listener, 1, &mode);
        }
        drop(listener);
        return answer(&std::net::TcpListener::bind(("0.0.0.0", port)).unwrap(), usize::MAX, &mode);
    }
    if mode == "short" {
        // Ready for a moment, then gone without a word.
        answer(&listener, 2, &mode);
        std::process::exit(0);
    }
    answer(&listener, usize::MAX, &mode);
}

fn flood() {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let line = [b'x'; 1024 * 1024];
    for _ in 0..50 {
        out.write_all(&line).unwrap();
    }
    let text = "progress\r\u{1b}[1mbold\u{1b}[0m \u{4e2d}\n".repeat(10_000);
    for _ in 0..100 {
        err.write_all(text.as_bytes()).unwrap();
        err.write_all(&[0xff, 0xfe]).unwrap();
        out.write_all(text.as_bytes()).unwrap();
    }
    out.write_all(b"\nthe last line\n").unwrap();
    out.flush().unwrap();
}

/// Two children, and one that leaves the process group and loses its parent.
fn children() {
    use std::os::unix::process::CommandExt;
    for _ in 0..2 {
        // Not waited for: they shall outlive this process.
        std::mem::forget(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    }
    let mut stray = Command::new("/bin/sh");
    stray.args(["-c", "trap '' TERM; (trap '' TERM; sleep 1000) &"]).process_group(0);
    stray.status().unwrap();
}

/// Answers so many requests of any kind; a completion with one event and then silence, `sick` ones with an error and `mute`
/// ones never.
fn answer(listener: &std::net::TcpListener, count: usize, mode: &str) {
    use std::io::Read;
    let open = Mutex::new(Vec::new());
    for stream in listener.incoming().take(count) {
        let mut stream = stream.unwrap();
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).unwrap_or(0);
        let request = String::from_utf8_lossy(&buffer[..read]).into_owned();
        if request.starts_with("GET ") {
            let body = r#"{"data":[{"id":"m"}]}"#;
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        } else if mode == "sick" {
            let _ = write!(stream, "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{{}}");
        } else if mode == "mute" {
            open.lock().unwrap().push(stream);
        } else {
            let key = request.to_lowercase().contains("authorization: bearer ");
            let event = format!("data: {{\"key\":{key}}}\n\n");
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
                event.len()
            );
            open.lock().unwrap().push(stream);
        }
    }
    std::thread::sleep(Duration::from_millis(1));
}
