//! Sites for benchmarks, from the same harness as the tests.
//!
//! `footprint figures` measures start, idle memory and memory a connected node; `footprint site ENGINE_URL DIR` starts
//! an edge and a node before an engine, writes `site.json` and the key to DIR, and runs until its standard input ends.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    reason = "a benchmark's rig ends at the first surprise"
)]

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use umbel_tests::fleet::{Edge, EdgeOptions, EngineDeclaration, Fleet, Node, NodeOptions, resident_kb};
use umbel_tests::wait;

#[derive(Debug, Parser)]
enum Command {
    /// Start, idle memory, memory a connected node.
    Figures {
        /// Nodes connected for the memory of each.
        #[arg(long, default_value_t = 200)]
        nodes: usize,
        /// Writes the figures to this file.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// An edge and a node before an engine.
    Site {
        /// `http://host:port`.
        engine: String,
        /// Where `site.json` and `key` go.
        dir: PathBuf,
        /// Requests at once.
        #[arg(long, default_value_t = 512)]
        capacity: u32,
    },
}

/// No debug log, and the usual heartbeats.
fn quiet(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.replace("level = \"debug\"", "level = \"warn\"");
    let text = text
        .replace("\"1s\"\nstale = \"3s\"\noffline = \"10s\"", "\"10s\"\nstale = \"30s\"\noffline = \"90s\"");
    std::fs::write(path, text).unwrap();
}

fn quiet_edge(fleet: &Fleet) -> Edge {
    let mut edge = fleet.edge("bench", None, &EdgeOptions::default());
    edge.daemon.kill();
    quiet(&edge.config);
    edge.start();
    edge
}

fn quiet_node(fleet: &Fleet, edge: &Edge, name: &str, options: &NodeOptions) -> Node {
    let mut node = fleet.node_files(name, options);
    quiet(&node.config);
    let _ = node.enroll(&edge.token(name)).ok();
    node.daemon.start();
    node
}

/// Milliseconds from the start of a process to the first sign of service, the median of several starts.
fn start_ms(mut start: impl FnMut() -> Duration) -> f64 {
    let mut all: Vec<f64> = (0..9).map(|_| start().as_secs_f64() * 1e3).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn poll(limit: Duration, mut look: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !look() {
        assert!(start.elapsed() < limit, "not within {limit:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
    start.elapsed()
}

fn settled_kb(pid: u32) -> u64 {
    // Two equal readings a second apart: what start-up allocated has been given back.
    let mut last = resident_kb(pid);
    for _ in 0..20 {
        std::thread::sleep(Duration::from_secs(1));
        let now = resident_kb(pid);
        if now == last {
            break;
        }
        last = now;
    }
    last
}

#[allow(clippy::cast_precision_loss, reason = "figures of a benchmark")]
fn figures(nodes: usize, json: Option<PathBuf>) {
    let fleet = Fleet::new();
    let mut edge = quiet_edge(&fleet);
    let sim = NodeOptions {
        engines: vec![EngineDeclaration::sim("s", "sim-model", "tokens = 3")],
        ..NodeOptions::default()
    };
    let mut first = quiet_node(&fleet, &edge, "first", &sim);
    edge.wait_serving("first");
    let agent_kb = settled_kb(first.daemon.pid());

    let node_start = start_ms(|| {
        first.daemon.stop(Duration::from_secs(10));
        let socket = first.state.join("node.sock");
        let _ = std::fs::remove_file(&socket);
        first.daemon.start();
        poll(Duration::from_secs(10), || std::os::unix::net::UnixStream::connect(&socket).is_ok())
    });
    first.daemon.stop(Duration::from_secs(10));
    let edge_start = start_ms(|| {
        edge.daemon.stop(Duration::from_secs(20));
        edge.daemon.start();
        poll(Duration::from_secs(10), || std::net::TcpStream::connect(edge.api).is_ok())
    });
    let edge_kb = settled_kb(edge.daemon.pid());

    let wait_all = |count: usize| {
        wait::until_some("all nodes are connected", Duration::from_secs(120), || {
            let online = edge.nodes().iter().filter(|n| n["connected"] == true).count();
            if online >= count { Ok(()) } else { Err(format!("{online} of {count}")) }
        });
        settled_kb(edge.daemon.pid())
    };
    let some = nodes.div_ceil(5);
    let mut swarm: Vec<Node> = (0..some).map(|n| quiet_node(&fleet, &edge, &format!("n{n}"), &sim)).collect();
    let few_kb = wait_all(some);
    swarm.extend((some..some + nodes).map(|n| quiet_node(&fleet, &edge, &format!("n{n}"), &sim)));
    let many_kb = wait_all(some + nodes);
    let each_kb = (many_kb as f64 - few_kb as f64) / nodes as f64;

    let rows = [
        ("node: start to its socket, ms", node_start, 100.0),
        ("edge: start to its API, ms", edge_start, 100.0),
        ("idle agent, resident MiB", agent_kb as f64 / 1024.0, 30.0),
        ("idle edge, resident MiB", edge_kb as f64 / 1024.0, 50.0),
        ("edge, KiB a connected node", each_kb, 40.0),
    ];
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "\n# footprint (medians of 9 starts; {nodes} nodes for the last row)\n{:<32} {:>10} {:>8}",
        "figure", "measured", "limit"
    )
    .unwrap();
    for (name, value, limit) in rows {
        let mark = if value <= limit { "" } else { "  ABOVE" };
        writeln!(out, "{name:<32} {value:>10.1} {limit:>8.0}{mark}").unwrap();
    }
    if let Some(path) = json {
        let map: serde_json::Map<_, _> =
            rows.iter().map(|(n, v, _)| ((*n).to_owned(), serde_json::json!(v))).collect();
        std::fs::write(path, serde_json::Value::Object(map).to_string()).unwrap();
    }
    for mut node in swarm {
        node.daemon.kill();
    }
}

fn site(engine: &str, dir: &Path, capacity: u32) {
    let fleet = Fleet::new();
    let edge = quiet_edge(&fleet);
    let options = NodeOptions {
        engines: vec![EngineDeclaration::external("e", "mock", engine, capacity)],
        ..NodeOptions::default()
    };
    let node = quiet_node(&fleet, &edge, "bench-1", &options);
    edge.wait_serving("bench-1");
    std::fs::write(dir.join("key"), &edge.key).unwrap();
    let site = serde_json::json!({"api": edge.api.to_string(), "edge_pid": edge.daemon.pid(), "node_pid": node.daemon.pid()});
    std::fs::write(dir.join("site.json.new"), site.to_string()).unwrap();
    std::fs::rename(dir.join("site.json.new"), dir.join("site.json")).unwrap();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn main() {
    match Command::parse() {
        Command::Figures { nodes, json } => figures(nodes, json),
        Command::Site { engine, dir, capacity } => site(&engine, &dir, capacity),
    }
}
