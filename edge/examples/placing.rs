//! What placement costs: the registry read, one replica each of a hundred deployments placed, one explained that fits
//! nowhere; and whole rounds of the reconciler: the first one, one with nothing to do, one in which nothing fits. Milliseconds,
//! by number of nodes. With `--json FILE` the figures go there too.
//!
//! Not a test: figures depend on the machine. `cargo run --release -p umbel-edge --features simulation --example placing`
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement stops at the first surprise and prints its result"
)]

use std::time::Instant;

use umbel_contracts::daemon::memory;
use umbel_edge::placing::Placing;

/// What an edge runs with.
#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::ALLOCATOR;

const ROUNDS: usize = 21;
const GPUS: u32 = 8;
const DEPLOYMENTS: u32 = 100;
/// Nodes told of in full: as `placement.explain` does unless it is said, and its most.
const TOLD_OF: [usize; 2] = [32, 256];

/// Median and longest of some rounds, in milliseconds.
fn timed<T>(mut before: impl FnMut() -> T, mut what: impl FnMut(T)) -> [f64; 2] {
    let mut all: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let given = before();
            let began = Instant::now();
            what(given);
            began.elapsed().as_secs_f64() * 1_000.0
        })
        .collect();
    all.sort_by(f64::total_cmp);
    [all[ROUNDS / 2], all[ROUNDS - 1]]
}

/// What is measured, by its name.
fn figures(nodes: u32) -> Vec<(&'static str, [f64; 2])> {
    let mut site = Placing::new(nodes, GPUS, DEPLOYMENTS);
    let reading = site.read();
    let mut all = vec![("read", timed(|| (), |()| drop(site.read())))];
    let mut placed = 0;
    all.push(("place_all", timed(|| reading.clone(), |mut reading| placed = site.place_all(&mut reading))));
    assert_eq!(placed, DEPLOYMENTS as usize, "all of them fit");
    for (name, told_of) in ["explain", "explain_256"].into_iter().zip(TOLD_OF) {
        let explain = |()| {
            let _ = site.explain(&reading, told_of);
        };
        all.push((name, timed(|| (), explain)));
    }
    all.push(("first_round", timed(|| (), |()| assert_eq!(site.round(), DEPLOYMENTS as usize))));
    site.settle();
    all.push(("idle_round", timed(|| (), |()| assert_eq!(site.round(), 0))));
    all.push(("copy", timed(|| (), |()| site.copy())));
    let site = Placing::new(nodes, GPUS, DEPLOYMENTS).impossible();
    all.push(("round_without_room", timed(|| (), |()| assert_eq!(site.round(), 0))));
    all
}

fn main() {
    println!("{DEPLOYMENTS} deployments, {GPUS} GPUs a node; milliseconds, median / longest of {ROUNDS}");
    let mut rows = Vec::new();
    for nodes in [100, 1_000, 10_000] {
        let all = figures(nodes);
        println!("{nodes} nodes");
        let mut fields = format!("\"nodes\":{nodes}");
        for (name, [median, longest]) in all {
            println!("  {name:<20} {median:>8.2} / {longest:.2}");
            fields.push_str(&format!(",\"{name}_ms\":{median:.3}"));
        }
        rows.push(format!("{{{fields}}}"));
    }
    let mut words = std::env::args().skip_while(|word| word != "--json");
    if let Some(path) = words.nth(1) {
        std::fs::write(path, format!("[{}]\n", rows.join(","))).unwrap();
    }
}
