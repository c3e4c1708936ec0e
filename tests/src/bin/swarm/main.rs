//! Ten thousand nodes on one edge: a real edge process, and a swarm in this one that speaks the real protocol.
//!
//! Prints what enrolling many at once costs, what they cost while nothing happens, how long a status and a scrape of all of
//! them take and hold others up, and how long settings take to reach a thousand. Figures of CPU are the edge's own, so
//! that they hold on a busy machine.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "a benchmark's rig ends at the first surprise"
)]

mod node;
mod rig;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use umbel_tests::fleet::Fleet;

use node::Node;
use rig::{Cost, Rig};

#[derive(Debug, Parser)]
struct Options {
    /// Nodes in all.
    #[arg(long, default_value_t = 10_000)]
    nodes: u32,
    /// Nodes that enroll at once, in each round.
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
    /// Ends after the enrollments.
    #[arg(long)]
    only_enroll: bool,
    /// Writes the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The figures, printed as they come.
#[derive(Default)]
struct Table(serde_json::Map<String, serde_json::Value>);

impl Table {
    fn row(&mut self, name: impl Into<String>, value: f64, limit: f64) {
        let name = name.into();
        let bound = if limit.is_finite() { format!("{limit:>8.0}") } else { " ".repeat(8) };
        println!("{name:<58} {value:>10.2} {bound}{}", if value <= limit { "" } else { "  ABOVE" });
        let _ = std::io::stdout().flush();
        self.0.insert(name, json!(value));
    }

    /// Without a limit.
    fn tell(&mut self, name: impl Into<String>, value: f64) {
        self.row(name, value, f64::INFINITY);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) }
}

/// Enrolls all of them in rounds, each beside as many bare handshakes.
async fn enrollments(rig: &Rig, options: &Options, table: &mut Table) -> Vec<Node> {
    let at_once = options.at_once.min(options.nodes);
    let mut all = Vec::new();
    let (mut ratios, mut each, mut bare, mut seconds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut commits: f64 = 0.0;
    for first in (0..options.nodes).step_by(at_once as usize) {
        let newcomers = rig.newcomers(first..options.nodes.min(first + at_once));
        let count = newcomers.len() as f64;
        // Warm caches, then one half before and one half after: what drifts falls on both alike.
        rig.handshakes(80);
        let half = at_once / 16 * 8;
        let before = rig.handshakes(half);
        let (durable, start, used) = (rig.transactions(), Instant::now(), rig.cpu());
        all.extend(rig.enroll(newcomers).await);
        let (took, used) = (start.elapsed().as_secs_f64(), rig.cpu() - used);
        commits = commits.max(rig.transactions() - durable);
        let handshake = (before + rig.handshakes(half)) / f64::from(half * 2);
        ratios.push(used / count / handshake);
        each.push(used * 1e3 / count);
        bare.push(handshake * 1e3);
        seconds.push(took);
        eprintln!(
            "round from {first}: {:.3} ms an enrollment, {:.3} ms a handshake, x {:.2}; {took:.2} s",
            used * 1e3 / count,
            handshake * 1e3,
            used / count / handshake
        );
    }
    let n = ratios.len();
    table.row(
        format!("{at_once} enrollments at once: most commits"),
        commits,
        f64::from(at_once) / 64.0 + 10.0,
    );
    table.row(format!("their CPU over that of as many handshakes, of {n} rounds"), median(ratios), 2.0);
    table.tell("their CPU, ms each", median(each));
    table.tell("CPU of a bare handshake, ms", median(bare));
    table.tell("all done after, s", median(seconds));
    all
}

async fn run(options: &Options) {
    let fleet = Fleet::new();
    let mut rig = Rig::new(&fleet, options.gpus);
    let mut table = Table::default();
    println!("{:<58} {:>10} {:>8}", "figure", "measured", "limit");
    let idle_kb = rig.resident_kb();
    let nodes = enrollments(&rig, options, &mut table).await;
    if !options.only_enroll {
        // A fresh process: what the storm left free in its heap would hide what a node costs.
        rig.restart();
        living(&rig, options, nodes, idle_kb, &mut table).await;
    }
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::Value::Object(table.0).to_string()).unwrap();
    }
    rig.edge.daemon.kill();
}

/// All of them connected: what they cost, and what looking at all of them does.
async fn living(rig: &Rig, options: &Options, nodes: Vec<Node>, idle_kb: f64, table: &mut Table) {
    let count = options.nodes;
    let (start, used) = (Instant::now(), rig.cpu());
    rig.connect(nodes).await;
    table.tell(format!("all {count} connected after a restart, s"), start.elapsed().as_secs_f64());
    table.tell("CPU of a hello, ms", (rig.cpu() - used) * 1e3 / f64::from(count));
    // Each has reported a few times.
    tokio::time::sleep(Duration::from_secs(25)).await;
    let each = (rig.resident_kb() - idle_kb) / f64::from(count);
    table.row(format!("edge, KiB a connected node with {} GPUs, all told", options.gpus), each, 40.0);
    let (start, used) = (Instant::now(), rig.cpu());
    tokio::time::sleep(Duration::from_secs(options.steady)).await;
    let cores = (rig.cpu() - used) / start.elapsed().as_secs_f64();
    table.row(format!("{count} nodes in steady state, cores"), cores, 1.0);

    let quiet = tokio::task::block_in_place(|| rig.quiet(Duration::from_secs(5)));
    table.tell("longest wait of a small request in 5 s, ms", quiet * 1e3);
    let status = best(|| rig.status());
    table.row(format!("status of all {count} nodes, s (best of 5)"), status.seconds, 1.0);
    asked(table, "status", status);
    let scrape = best(|| rig.scrape());
    table.tell(format!("scrape of all {count} nodes, s (best of 5)"), scrape.seconds);
    asked(table, "scrape", scrape);
    let each = (rig.resident_kb() - idle_kb) / f64::from(count);
    table.tell("KiB a node after all these", each);
    settings(rig, options, table).await;
}

fn asked(table: &mut Table, what: &str, cost: Cost) {
    table.tell(format!("{what}: the edge's CPU, s"), cost.cpu);
    table.tell(format!("{what}: MiB"), cost.bytes as f64 / f64::from(1 << 20));
    table.tell(format!("{what}: longest wait of a small request, ms"), cost.wait * 1e3);
}

/// Of five: the shortest time, the least CPU, the median of the waits.
fn best(ask: impl Fn() -> Cost) -> Cost {
    tokio::task::block_in_place(|| {
        let all: Vec<Cost> = (0..5).map(|_| ask()).collect();
        let least = |figure: fn(&Cost) -> f64| all.iter().map(figure).fold(f64::INFINITY, f64::min);
        Cost {
            seconds: least(|one| one.seconds),
            cpu: least(|one| one.cpu),
            bytes: all[0].bytes,
            wait: median(all.iter().map(|one| one.wait).collect()),
        }
    })
}

/// A change of `agents.default` reaches every connected node; timed is the first thousand.
async fn settings(rig: &Rig, options: &Options, table: &mut Table) {
    let wanted = u64::from(options.settings.min(options.nodes));
    let args = json!({ "changes": [{ "path": "agents.default.log.level", "value": "debug" }] });
    let start = Instant::now();
    tokio::task::block_in_place(|| rig.command("settings.set", &args));
    while rig.site.told.load(Ordering::SeqCst) < wanted {
        let told = rig.site.told.load(Ordering::SeqCst);
        assert!(start.elapsed() < Duration::from_secs(60), "{told} of {wanted}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    table.row(format!("settings reach {wanted} nodes after, s"), start.elapsed().as_secs_f64(), 3.0);
}

fn main() {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(run(&options));
}
