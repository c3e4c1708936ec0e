//! Ten thousand nodes on one edge: a real edge process, and a swarm in this one that speaks the real protocol.
//!
//! Prints what enrolling many at once costs, what they cost while nothing happens, how long a status of all of them takes,
//! and how long settings take to reach a thousand. Figures of CPU are the edge's own, so that they hold on a busy machine.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a benchmark's rig ends at the first surprise"
)]

mod node;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use tokio::task::JoinSet;
use umbel_tests::fleet::{Edge, EdgeOptions, Fleet, free_address, resident_kb};
use umbel_tests::http::{Ask, Target};
use umbel_tests::peer::{ALPN, Manner, Peer};
use umbel_wire::secret::Secret;
use umbel_wire::{tls, token};

use node::{Newcomer, Node, Site};

#[derive(Debug, Parser)]
struct Options {
    /// Nodes in all.
    #[arg(long, default_value_t = 10_000)]
    nodes: u32,
    /// Nodes that enroll at once.
    #[arg(long, default_value_t = 1_000)]
    at_once: u32,
    /// GPUs of each.
    #[arg(long, default_value_t = 8)]
    gpus: usize,
    /// Seconds of steady state.
    #[arg(long, default_value_t = 60)]
    steady: u64,
    /// Nodes that a settings change has to reach.
    #[arg(long, default_value_t = 1_000)]
    settings: u32,
    /// Writes the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Processor seconds that a process has used.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    // Linux tells these in hundredths on every machine.
    ticks / 100.0
}

struct Rig {
    edge: Edge,
    metrics: Target,
    site: Arc<Site>,
    rows: Vec<(String, f64, f64)>,
}

impl Rig {
    fn new(fleet: &Fleet, options: &Options) -> Self {
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
            gpus: options.gpus,
            told: Arc::new(AtomicU64::new(0)),
        };
        Self { edge, metrics: Target::Tcp(metrics), site: Arc::new(site), rows: Vec::new() }
    }

    fn pid(&self) -> u32 {
        self.edge.daemon.pid()
    }

    fn row(&mut self, name: impl Into<String>, value: f64, limit: f64) {
        let name = name.into();
        println!("{name:<58} {value:>10.2} {limit:>8.0}{}", if value <= limit { "" } else { "  ABOVE" });
        let _ = std::io::stdout().flush();
        self.rows.push((name, value, limit));
    }

    /// Durable transactions since the edge's start.
    fn transactions(&self) -> f64 {
        let text = Ask::get("/metrics").limit(Duration::from_secs(30)).whole(&self.metrics).unwrap().text();
        let line = text.lines().find(|line| line.starts_with("umbel_edge_store_transactions_total "));
        line.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
    }

    fn newcomers(&self, numbers: std::ops::Range<u32>) -> Vec<Newcomer> {
        let make = |number: u32| {
            let (id, secret) = (token::new_id(), Secret::generate());
            let args = json!({
                "token_id": id, "secret_sha256": secret.hash().to_hex(), "name": format!("n{number:05}"),
                "expires_in_seconds": 3600, "eligible": true,
            });
            let command = uuid::Uuid::new_v4().to_string();
            let made = self.edge.command(&command, "enrollment.create", "", &args);
            assert_eq!(made.status, 200, "{}", made.text());
            Newcomer::new(number, id, secret).unwrap()
        };
        numbers.map(make).collect()
    }

    /// Server-authenticated handshakes alone, as an enrollment has one.
    fn handshakes(&self, count: u32) -> f64 {
        let before = cpu(self.pid());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..count / 8 {
                        let manner = Manner { name: "bench.umbel", identity: None, alpn: ALPN };
                        Peer::connect(self.edge.nodes, &manner).unwrap().leave(false);
                    }
                });
            }
        });
        cpu(self.pid()) - before
    }

    async fn enroll(&self, newcomers: Vec<Newcomer>) -> Vec<Node> {
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
    async fn connect(&self, nodes: Vec<Node>) {
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

    /// Resident memory once each node has reported a few times.
    async fn settled_kb(&self) -> f64 {
        tokio::time::sleep(Duration::from_secs(25)).await;
        resident_kb(self.pid()) as f64
    }

    fn status(&self) -> (f64, f64, usize) {
        let (start, before) = (Instant::now(), cpu(self.pid()));
        let ask = Ask::get("/api/v1/nodes").limit(Duration::from_secs(60));
        let whole = ask.whole(&Target::Unix(self.edge.socket.clone())).unwrap();
        assert_eq!(whole.status, 200, "{}", whole.text());
        (start.elapsed().as_secs_f64(), cpu(self.pid()) - before, whole.body.len())
    }
}

async fn enrollments(rig: &mut Rig, count: u32) -> Vec<Node> {
    let newcomers = rig.newcomers(0..count);
    rig.handshakes(80);
    let alone = rig.handshakes(count);
    let (before, start, used) = (rig.transactions(), Instant::now(), cpu(rig.pid()));
    let nodes = rig.enroll(newcomers).await;
    let (took, used) = (start.elapsed().as_secs_f64(), cpu(rig.pid()) - used);
    let commits = rig.transactions() - before;
    rig.row(format!("{count} enrollments at once: commits"), commits, f64::from(count) / 64.0 + 10.0);
    rig.row("their CPU over that of as many handshakes", used / alone, 2.0);
    rig.row("their CPU, ms each", used * 1e3 / f64::from(count), f64::INFINITY);
    rig.row("all done after, s", took, f64::INFINITY);
    nodes
}

async fn run(options: &Options) {
    let fleet = Fleet::new();
    let mut rig = Rig::new(&fleet, options);
    println!("{:<58} {:>10} {:>8}", "figure", "measured", "limit");
    let at_once = options.at_once.min(options.nodes);
    let idle_kb = resident_kb(rig.pid()) as f64;
    let mut few = enrollments(&mut rig, at_once).await;
    let mut rest = Vec::new();
    for first in (at_once..options.nodes).step_by(1_000) {
        let newcomers = rig.newcomers(first..options.nodes.min(first + 1_000));
        rest.extend(rig.enroll(newcomers).await);
    }
    // A fresh process: what the storm left free in its heap would hide what a node costs.
    rig.edge.daemon.stop(Duration::from_secs(30));
    rig.edge.start();
    few.extend(rest);
    let (start, used) = (Instant::now(), cpu(rig.pid()));
    rig.connect(few).await;
    rig.row(
        format!("all {} connected after a restart, s", options.nodes),
        start.elapsed().as_secs_f64(),
        f64::INFINITY,
    );
    let each = (cpu(rig.pid()) - used) * 1e3 / f64::from(options.nodes);
    rig.row("CPU of a hello, ms", each, f64::INFINITY);
    let all_kb = rig.settled_kb().await;
    let each = (all_kb - idle_kb) / f64::from(options.nodes);
    rig.row(format!("edge, KiB a connected node with {} GPUs, all told", options.gpus), each, 40.0);
    let (start, used) = (Instant::now(), cpu(rig.pid()));
    tokio::time::sleep(Duration::from_secs(options.steady)).await;
    let cores = (cpu(rig.pid()) - used) / start.elapsed().as_secs_f64();
    rig.row(format!("{} nodes in steady state, cores", options.nodes), cores, 1.0);

    let mut best = (f64::INFINITY, f64::INFINITY, 0);
    for _ in 0..5 {
        let once = tokio::task::block_in_place(|| rig.status());
        best = if once.0 < best.0 { once } else { best };
    }
    rig.row(format!("status of all {} nodes, s (best of 5)", options.nodes), best.0, 1.0);
    rig.row("of it the edge's CPU, s", best.1, f64::INFINITY);
    rig.row("its JSON, MiB", best.2 as f64 / f64::from(1 << 20), f64::INFINITY);

    settings(&mut rig, options).await;
    if let Some(path) = &options.json {
        let rows: serde_json::Map<_, _> =
            rig.rows.iter().map(|(name, value, _)| (name.clone(), json!(value))).collect();
        std::fs::write(path, serde_json::Value::Object(rows).to_string()).unwrap();
    }
    rig.edge.daemon.kill();
}

/// A change of `agents.default` reaches every connected node; timed is the first thousand.
async fn settings(rig: &mut Rig, options: &Options) {
    let wanted = u64::from(options.settings.min(options.nodes));
    let args = json!({ "changes": [{ "path": "agents.default.log.level", "value": "debug" }] });
    let start = Instant::now();
    let command = uuid::Uuid::new_v4().to_string();
    let made = tokio::task::block_in_place(|| rig.edge.command(&command, "settings.set", "", &args));
    assert_eq!(made.status, 200, "{}", made.text());
    while rig.site.told.load(Ordering::SeqCst) < wanted {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} of {wanted}",
            rig.site.told.load(Ordering::SeqCst)
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = start.elapsed().as_secs_f64();
    rig.row(format!("settings reach {wanted} nodes after, s"), took, 3.0);
}

fn main() {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(&options));
}
