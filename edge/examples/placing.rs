//! What placement costs: the registry read, one replica each of a hundred deployments placed, one explained that fits
//! nowhere; milliseconds, by number of nodes. With `--json FILE` the figures go there too.
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

use umbel_edge::placing::Placing;

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

fn main() {
    println!("{DEPLOYMENTS} deployments, {GPUS} GPUs a node; milliseconds, median / longest of {ROUNDS}");
    println!(
        "{:>7} {:>18} {:>18} {:>8} {:>20} {:>20}",
        "nodes", "read", "place all", "placed", "explain, 32 told", "explain, 256 told"
    );
    let mut rows = Vec::new();
    for nodes in [100, 1_000, 10_000] {
        let site = Placing::new(nodes, GPUS, DEPLOYMENTS);
        let reading = site.read();
        let read = timed(|| (), |()| drop(site.read()));
        let mut placed = 0;
        let place = timed(|| reading.clone(), |mut reading| placed = site.place_all(&mut reading));
        let explain = TOLD_OF.map(|told_of| {
            timed(
                || (),
                |()| {
                    let _ = site.explain(&reading, told_of);
                },
            )
        });
        let shown = |[median, longest]: [f64; 2]| format!("{median:.2} / {longest:.2}");
        println!(
            "{nodes:>7} {:>18} {:>18} {placed:>8} {:>20} {:>20}",
            shown(read),
            shown(place),
            shown(explain[0]),
            shown(explain[1])
        );
        rows.push(format!(
            "{{\"nodes\":{nodes},\"read_ms\":{:.3},\"place_all_ms\":{:.3},\"placed\":{placed},\"explain_ms\":{:.3},\"explain_256_ms\":{:.3}}}",
            read[0], place[0], explain[0][0], explain[1][0]
        ));
    }
    let mut words = std::env::args().skip_while(|word| word != "--json");
    if let Some(path) = words.nth(1) {
        std::fs::write(path, format!("[{}]\n", rows.join(","))).unwrap();
    }
}
