//! The site under pressure: an edge, a node, and mock engines as processes of their own, so that they can be stopped.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions};

use crate::conn::Conn;

pub(crate) struct Engine {
    child: Child,
    pub(crate) address: String,
}

impl Engine {
    pub(crate) fn start(words: &[&str]) -> Self {
        let path = std::env::current_exe().unwrap().with_file_name("mock-engine");
        let mut child = Command::new(path).args(words).stdout(Stdio::piped()).spawn().expect("mock-engine");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { child, address: line.trim().to_owned() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Requests that it had at once at most.
    pub(crate) fn peak(&self) -> u64 {
        self.load("peak")
    }

    /// Requests that it ever began.
    pub(crate) fn begun(&self) -> u64 {
        self.load("begun")
    }

    fn load(&self, of: &str) -> u64 {
        let address = self.address.parse().unwrap();
        let body = umbel_tests::http::Ask::get("/busy")
            .whole(&umbel_tests::http::Target::Tcp(address))
            .unwrap()
            .json();
        body[of].as_u64().unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) struct Site {
    pub(crate) engines: Vec<Engine>,
    pub(crate) edge: Edge,
    _node: Node,
    _fleet: Fleet,
}

impl Site {
    /// `more` is added to each engine's table, `queue` to the edge's file.
    pub(crate) fn new(engines: Vec<Engine>, capacity: u32, more: &str, queue: &str) -> Self {
        let fleet = Fleet::new();
        let options = EdgeOptions { more: queue.to_owned(), metrics: true, ..EdgeOptions::default() };
        let mut edge = fleet.edge("pressure", None, &options);
        edge.daemon.kill();
        quiet(&edge.config);
        edge.start();
        let declared = engines.iter().enumerate().map(|(at, engine)| {
            let url = format!("http://{}", engine.address);
            let mut declared = EngineDeclaration::external(&format!("e{at}"), "mock", &url, capacity);
            declared.toml += more;
            declared
        });
        let mut node =
            fleet.node_files("one", &NodeOptions { engines: declared.collect(), ..NodeOptions::default() });
        quiet(&node.config);
        let _ = node.enroll(&edge.token("one")).ok();
        node.daemon.start();
        edge.wait_serving("one");
        Self { engines, edge, _node: node, _fleet: fleet }
    }

    pub(crate) fn key(&self, name: &str) -> String {
        self.edge.ctl(&["key", "create", name]).ok().out.trim().to_owned()
    }

    /// A chat request with a prompt of so many bytes.
    pub(crate) fn request(&self, key: &str, bytes: usize, stream: bool, tokens: usize) -> Arc<Vec<u8>> {
        // Not one letter over and over: every prompt begins differently.
        let prompt = format!("{} {}", uuid::Uuid::new_v4(), "words ".repeat(bytes / 6));
        let body = format!(
            "{{\"model\":\"mock\",\"messages\":[{{\"role\":\"user\",\"content\":\"{prompt}\"}}],\"max_tokens\":{tokens},\"stream\":{stream}}}"
        );
        Arc::new(
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nAuthorization: Bearer {key}\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                self.edge.api,
                body.len()
            )
            .into_bytes(),
        )
    }
}

fn quiet(path: &std::path::Path) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, text.replace("level = \"debug\"", "level = \"warn\"")).unwrap();
}

/// What one request came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// 0: no answer.
    pub(crate) status: u16,
    /// Milliseconds to the first event, or to the whole answer.
    pub(crate) first_ms: f64,
    pub(crate) whole_ms: f64,
}

/// Connections that are kept between requests.
#[derive(Clone, Default)]
pub(crate) struct Client(Arc<Mutex<Vec<Conn>>>);

impl Client {
    pub(crate) async fn ask(&self, address: &str, request: &[u8], limit: Duration) -> Outcome {
        let kept = self.0.lock().unwrap().pop();
        let began = Instant::now();
        let nothing = Outcome { status: 0, first_ms: 0.0, whole_ms: 0.0 };
        let Ok(mut conn) = (match kept {
            Some(conn) => Ok(conn),
            None => Conn::open(address).await,
        }) else {
            return nothing;
        };
        let mut gaps = Vec::new();
        match tokio::time::timeout(limit, conn.ask(began, request, &mut gaps)).await {
            Ok(Ok(answer)) if answer.status != 200 || answer.whole => {
                let whole_ms = began.elapsed().as_secs_f64() * 1e3;
                if !answer.close {
                    self.0.lock().unwrap().push(conn);
                }
                let first_ms = answer.first_us.map_or(whole_ms, |micros| micros / 1e3);
                Outcome { status: answer.status, first_ms, whole_ms }
            }
            _ => nothing,
        }
    }
}

/// The value below which so many percent are.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
