//! A server of the operator API with canned answers, on a local socket.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use crate::run::{Ran, umbel};

/// A request that was made.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) line: String,
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

struct Answer {
    status: u16,
    kind: &'static str,
    body: String,
}

/// The server; it ends with the test's process.
pub(crate) struct Server {
    _dir: tempfile::TempDir,
    pub(crate) socket: PathBuf,
    answers: Arc<Mutex<HashMap<String, Answer>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let answers: Arc<Mutex<HashMap<String, Answer>>> = Arc::default();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (for_answers, for_asked) = (answers.clone(), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                answer(stream, &for_answers, &for_asked);
            }
        });
        Server { _dir: dir, socket, answers, asked }
    }

    /// `line` is `GET /path`, without the query when that does not matter.
    pub(crate) fn on(&self, line: &str, status: u16, body: impl Into<String>) -> &Self {
        let kind = if status < 400 { "application/json" } else { "application/problem+json" };
        self.answers.lock().unwrap().insert(line.to_owned(), Answer { status, kind, body: body.into() });
        self
    }

    /// The same for one operation of those that are asked under the same `line`.
    pub(crate) fn on_operation(&self, line: &str, operation: &str, body: impl Into<String>) -> &Self {
        self.on(&format!("{line} {operation}"), 200, body)
    }

    /// A stream of events that ends.
    pub(crate) fn stream(&self, line: &str, body: impl Into<String>) -> &Self {
        let answer = Answer { status: 200, kind: "text/event-stream", body: body.into() };
        self.answers.lock().unwrap().insert(line.to_owned(), answer);
        self
    }

    /// Runs `umbel ctl` against this server.
    pub(crate) fn ctl(&self, words: &[&str]) -> Ran {
        umbel().arg("ctl").arg("--socket").arg(&self.socket).args(words).output().unwrap().into()
    }

    /// Everything that was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(stream: UnixStream, answers: &Mutex<HashMap<String, Answer>>, asked: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut headers = Vec::new();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        let header = header.trim_end().to_owned();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        headers.push(header);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let operation: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
    let operation =
        operation.and_then(|body| body["operation"].as_str().map(str::to_owned)).unwrap_or_default();
    asked.lock().unwrap().push(Asked { line: line.clone(), headers, body: String::from_utf8(body).unwrap() });
    let answers = answers.lock().unwrap();
    let bare = line.split('?').next().unwrap();
    let missing = Answer {
        status: 404,
        kind: "application/problem+json",
        body: format!(
            r#"{{"title":"NOT_FOUND","status":404,"detail":"nothing is canned for {line}","code":"NOT_FOUND"}}"#
        ),
    };
    let of_operation = answers.get(&format!("{bare} {operation}"));
    let answer =
        of_operation.or_else(|| answers.get(&line)).or_else(|| answers.get(bare)).unwrap_or(&missing);
    let mut stream = stream;
    let _ = write!(
        stream,
        "HTTP/1.1 {} X\r\ncontent-type: {}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{}",
        answer.status,
        answer.kind,
        answer.body.len(),
        answer.body
    );
}
