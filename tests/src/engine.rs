//! The scripted engine (rig R2): an OpenAI-like HTTP server whose every answer is told by the request itself.
//!
//! A request's JSON field `x_script` (see [`Script`]) says how it is answered: events, pieces, delays, gates that the
//! test opens, deaths. Everything received is kept as [`Record`]s, in process or by `GET /_log`. It leaves real models
//! to `scripts/real-engine` and speed to `mock-engine`.

mod form;
mod routes;
mod script;
mod serve;

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use script::{Ending, Script};
use serde::Serialize;

use crate::wait;

/// How a request at the engine came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// Everything the script asked for was written.
    Complete,
    /// The client closed its connection first.
    ClientGone,
    /// The script had the engine break off.
    Died,
}

/// One request as the engine saw it.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Counts requests from 0.
    pub id: usize,
    /// Counts connections from 1.
    pub connection: u64,
    /// HTTP method.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Headers as received, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub body: String,
    /// Events of the stream written so far.
    pub events_sent: usize,
    /// Absent while it runs.
    pub end: Option<End>,
    /// Milliseconds since the engine's start.
    pub started_ms: u64,
    /// Milliseconds since the engine's start.
    pub ended_ms: Option<u64>,
}

impl Record {
    /// The first header of this name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

pub(crate) struct State {
    started: Instant,
    models: Vec<String>,
    records: Mutex<Vec<Record>>,
    gates: Mutex<HashSet<String>>,
    stopping: AtomicBool,
    connects: AtomicU64,
    open: AtomicU64,
    running: AtomicU64,
    /// Most at once.
    peak: AtomicU64,
    /// Connections without a request are closed after so many ms; 0 is never.
    idle_ms: AtomicU64,
    /// Its routes below `/v1` want this key.
    key: Mutex<Option<String>>,
    /// Models that it does not list are refused.
    strict: AtomicBool,
    /// Every inference is answered with 500.
    broken: AtomicBool,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn gate_is_open(&self, name: &str) -> bool {
        locked(&self.gates).contains(name)
    }

    fn change(&self, id: usize, change: impl FnOnce(&mut Record)) {
        if let Some(record) = locked(&self.records).get_mut(id) {
            change(record);
        }
    }

    fn begin(&self, record: impl FnOnce(usize) -> Record) -> usize {
        let mut records = locked(&self.records);
        let id = records.len();
        records.push(record(id));
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(running, Ordering::SeqCst);
        id
    }

    fn finish(&self, id: usize, end: End) {
        let at = self.now_ms();
        self.change(id, |r| {
            r.end = Some(end);
            r.ended_ms = Some(at);
        });
        self.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A running scripted engine; it ends when dropped.
pub struct Engine {
    state: Arc<State>,
    address: SocketAddr,
}

impl Engine {
    /// Starts one on a loopback port that the kernel chooses; `/v1/models` lists `models`.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start(models: &[&str]) -> std::io::Result<Self> {
        Self::listen("127.0.0.1:0", models)
    }

    /// Starts one on a given address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub fn listen(address: &str, models: &[&str]) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            started: Instant::now(),
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            records: Mutex::default(),
            gates: Mutex::default(),
            stopping: AtomicBool::new(false),
            connects: AtomicU64::new(0),
            open: AtomicU64::new(0),
            running: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            idle_ms: AtomicU64::new(0),
            key: Mutex::default(),
            strict: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || serve::accept(&listener, &accepting));
        Ok(Self { state, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://host:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All completion requests so far.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        locked(&self.state.records).clone()
    }

    /// Completion requests so far whose body contains `mark`.
    #[must_use]
    pub fn runs(&self, mark: &str) -> usize {
        locked(&self.state.records).iter().filter(|r| r.body.contains(mark)).count()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connects(&self) -> u64 {
        self.state.connects.load(Ordering::SeqCst)
    }

    /// Most requests that ran at once, since the start.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.state.peak.load(Ordering::SeqCst)
    }

    /// Requests running now.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.state.running.load(Ordering::SeqCst)
    }

    /// From now on it closes connections that have no request for so long, as uvicorn does after 5 s.
    pub fn close_idle_after(&self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.state.idle_ms.store(ms, Ordering::SeqCst);
    }

    /// From now on it answers only who shows this key.
    pub fn require_key(&self, key: &str) {
        *locked(&self.state.key) = Some(key.to_owned());
    }

    /// From now on it refuses models that it does not list, as vLLM does.
    pub fn refuse_other_models(&self) {
        self.state.strict.store(true, Ordering::SeqCst);
    }

    /// From now on it is healthy and answers no inference.
    pub fn break_inference(&self) {
        self.state.broken.store(true, Ordering::SeqCst);
    }

    /// Opens a gate for good.
    pub fn open_gate(&self, name: &str) {
        locked(&self.state.gates).insert(name.to_owned());
    }

    /// Waits for a record whose body contains `mark` and that fits.
    ///
    /// # Panics
    /// When none fits within `limit`.
    #[track_caller]
    pub fn wait_record(
        &self,
        mark: &str,
        what: &str,
        limit: Duration,
        fits: impl Fn(&Record) -> bool,
    ) -> Record {
        wait::until_some(&format!("engine record {mark:?}: {what}"), limit, || {
            let all = self.records();
            let mine: Vec<_> = all.into_iter().filter(|r| r.body.contains(mark)).collect();
            mine.iter().find(|r| fits(r)).cloned().ok_or_else(|| {
                format!("{:?}", mine.iter().map(|r| (r.id, r.events_sent, r.end)).collect::<Vec<_>>())
            })
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then lets go of the port.
        let _ = std::net::TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}
