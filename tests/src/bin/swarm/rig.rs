//! The edge under the swarm: a real process, what it is asked to do, and what that costs it.
//!
//! Owns the measuring. CPU is the edge's own, to the nanosecond, ended threads included; a wait is that of a small request
//! beside whatever else is asked.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, cpu_seconds, free_address, resident_kb};
use umbel_tests::http::{Ask, Target};
use umbel_tests::peer::{ALPN, Manner, Peer};
use umbel_wire::secret::Secret;
use umbel_wire::{tls, token};

use super::node::{Newcomer, Node, Site};

/// Tokens that one command makes.
const TOKENS_AT_ONCE: usize = umbel_contracts::operations::TOKENS_AT_ONCE;
/// Connections that do bare handshakes at a time.
const HANDSHAKES_AT_ONCE: u32 = 8;

/// An edge that is measured.
pub(crate) struct Rig {
    pub(crate) edge: Edge,
    pub(crate) site: Arc<Site>,
    metrics: Target,
}

/// What one answer cost.
#[derive(Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    pub(crate) bytes: usize,
    /// Longest wait of a small request meanwhile, in seconds.
    pub(crate) wait: f64,
}

impl Rig {
    /// An edge whose nodes beat as the product's do, with the metrics' listener on.
    pub(crate) fn new(fleet: &Fleet, gpus: usize) -> Self {
        let mut edge = fleet.edge("bench", None, &EdgeOptions::default());
        edge.daemon.kill();
        let metrics = free_address();
        let text = std::fs::read_to_string(&edge.config).unwrap();
        let text = text
            .replace("level = \"debug\"", "level = \"warn\"")
            .replace(
                "\"1s\"\nstale = \"3s\"\noffline = \"10s\"",
                "\"10s\"\nstale = \"30s\"\noffline = \"90s\"",
            )
            .replace("metrics = \"\"", &format!("metrics = \"{metrics}\""));
        std::fs::write(&edge.config, text).unwrap();
        edge.start();
        let ca = std::fs::read(edge.state.join("ca/ca.pem")).unwrap();
        let site = Site {
            address: edge.nodes,
            name: "bench".to_owned(),
            ca: tls::parse_chain(&ca).unwrap(),
            gpus,
            told: Arc::new(AtomicU64::new(0)),
        };
        Self { edge, metrics: Target::Tcp(metrics), site: Arc::new(site) }
    }

    /// Processor seconds that the edge has used.
    pub(crate) fn cpu(&self) -> f64 {
        cpu_seconds(self.edge.daemon.pid())
    }

    pub(crate) fn resident_kb(&self) -> f64 {
        resident_kb(self.edge.daemon.pid()) as f64
    }

    /// A fresh process on the same store.
    pub(crate) fn restart(&mut self) {
        self.edge.daemon.stop(Duration::from_secs(60));
        self.edge.start();
    }

    /// Durable transactions since the edge's start.
    pub(crate) fn transactions(&self) -> f64 {
        let text = Ask::get("/metrics").limit(Duration::from_secs(60)).whole(&self.metrics).unwrap().text();
        let line = text.lines().find(|line| line.starts_with("umbel_edge_store_transactions_total "));
        line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    /// Asks the edge's own socket for a change.
    pub(crate) fn command(&self, operation: &str, args: &Value) {
        let command = uuid::Uuid::new_v4().to_string();
        let made = self.edge.command(&command, operation, "", args);
        assert_eq!(made.status, 200, "{}", made.text());
    }

    /// Hosts with a token, a key and a signing request each.
    pub(crate) fn newcomers(&self, numbers: Range<u32>) -> Vec<Newcomer> {
        let numbers: Vec<u32> = numbers.collect();
        let mut all = Vec::new();
        for part in numbers.chunks(TOKENS_AT_ONCE) {
            let made: Vec<_> =
                part.iter().map(|number| (*number, token::new_id(), Secret::generate())).collect();
            let one = |(number, id, secret): &(u32, String, Secret)| json!({ "token_id": id, "secret_sha256": secret.hash().to_hex(), "name": format!("n{number:05}") });
            let mut args = one(&made[0]);
            args["more"] = made[1..].iter().map(one).collect();
            (args["expires_in_seconds"], args["eligible"]) = (3_600.into(), true.into());
            self.command("enrollment.create", &args);
            all.extend(
                made.into_iter().map(|(number, id, secret)| Newcomer::new(number, id, secret).unwrap()),
            );
        }
        all
    }

    /// CPU of server-authenticated handshakes alone, as an enrollment has one.
    pub(crate) fn handshakes(&self, count: u32) -> f64 {
        let before = self.cpu();
        std::thread::scope(|scope| {
            for _ in 0..HANDSHAKES_AT_ONCE {
                scope.spawn(|| {
                    for _ in 0..count / HANDSHAKES_AT_ONCE {
                        let manner = Manner { name: "bench.umbel", identity: None, alpn: ALPN };
                        Peer::connect(self.edge.nodes, &manner).unwrap().leave(false);
                    }
                });
            }
        });
        self.cpu() - before
    }

    pub(crate) async fn enroll(&self, newcomers: Vec<Newcomer>) -> Vec<Node> {
        let mut all = JoinSet::new();
        for newcomer in newcomers {
            let site = Arc::clone(&self.site);
            all.spawn(async move { newcomer.enroll(&site).await });
        }
        let mut nodes = Vec::new();
        while let Some(node) = all.join_next().await {
            nodes.push(node.unwrap().unwrap());
        }
        nodes
    }

    /// Connects nodes, a few hundred at a time, and lets them live.
    pub(crate) async fn connect(&self, nodes: Vec<Node>) {
        let gate = Arc::new(tokio::sync::Semaphore::new(200));
        let mut all = JoinSet::new();
        for node in nodes {
            let (site, gate) = (Arc::clone(&self.site), Arc::clone(&gate));
            all.spawn(async move {
                let _place = gate.acquire().await;
                let connection = node.connect(&site).await?;
                tokio::spawn(node.live(site, connection, Duration::from_secs(10), Duration::from_secs(5)));
                Ok::<_, String>(())
            });
        }
        while let Some(done) = all.join_next().await {
            done.unwrap().unwrap();
        }
    }

    /// A status of all nodes at the local socket.
    pub(crate) fn status(&self) -> Cost {
        self.cost("/api/v1/nodes", &Target::Unix(self.edge.socket.clone()))
    }

    /// A scrape.
    pub(crate) fn scrape(&self) -> Cost {
        self.cost("/metrics", &self.metrics)
    }

    /// Small requests alone for so long: what their longest wait is when nothing else is asked.
    pub(crate) fn quiet(&self, length: Duration) -> f64 {
        self.beside(|| std::thread::sleep(length)).1
    }

    fn cost(&self, path: &str, target: &Target) -> Cost {
        let (start, before) = (Instant::now(), self.cpu());
        let ask = Ask::get(path).limit(Duration::from_secs(60));
        let (whole, wait) = self.beside(|| ask.whole(target).unwrap());
        assert_eq!(whole.status, 200, "{}", whole.text());
        let seconds = start.elapsed().as_secs_f64();
        Cost { seconds, cpu: self.cpu() - before, bytes: whole.body.len(), wait }
    }

    /// Does something while another thread asks whether the edge lives, and tells its longest wait in seconds.
    fn beside<T>(&self, work: impl FnOnce() -> T) -> (T, f64) {
        let (target, over) = (self.edge.target(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                let mut longest: f64 = 0.0;
                while !over.load(Ordering::SeqCst) {
                    let start = Instant::now();
                    let alive = Ask::get("/livez").limit(Duration::from_secs(60)).whole(&target).unwrap();
                    assert_eq!(alive.status, 200);
                    longest = longest.max(start.elapsed().as_secs_f64());
                    std::thread::sleep(Duration::from_millis(1));
                }
                longest
            });
            let done = work();
            over.store(true, Ordering::SeqCst);
            (done, asking.join().unwrap())
        })
    }
}
