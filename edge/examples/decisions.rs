//! What a decision of admission costs: nanoseconds by number of waiting requests and of providers, with and without
//! prefixes. With `--json FILE` the figures go there too.
//!
//! Not a test: figures depend on the machine. `cargo run --release -p umbel-edge --features simulation --example decisions`
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a measurement stops at the first surprise and prints its result"
)]

use std::time::Instant;

use umbel_edge::crowd::Crowd;

const TURNS: usize = 200_000;

/// Median and 99th percentile, in nanoseconds.
fn sorted(mut all: Vec<u64>) -> [u64; 2] {
    all.sort_unstable();
    [all[all.len() / 2], all[all.len() * 99 / 100]]
}

fn timed(what: impl FnOnce()) -> u64 {
    let began = Instant::now();
    what();
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn main() {
    println!(
        "{:>9} {:>8} {:>7} {:>9} {:>22} {:>22} {:>12}",
        "providers", "waiting", "blocks", "handed, %", "release, hand-over ns", "arrival ns", "mean ns"
    );
    println!(
        "{:>9} {:>8} {:>7} {:>9} {:>22} {:>22} {:>12}",
        "", "", "", "", "p50 / p99", "p50 / p99", "a decision"
    );
    let mut rows = Vec::new();
    for (providers, waiting, blocks) in [
        (4, 0, 0),
        (256, 0, 0),
        (256, 100, 0),
        (256, 1_000, 0),
        (256, 10_000, 0),
        (256, 100_000, 0),
        (4, 10_000, 0),
        (256, 10_000, 8),
        (256, 10_000, 64),
    ] {
        let mut crowd = Crowd::new(providers, waiting, blocks);
        if waiting == 0 {
            // Half of the slots are taken.
            for _ in 0..providers * 4 {
                crowd.arrive();
            }
        }
        let (mut released, mut arrived) = (Vec::with_capacity(TURNS), Vec::with_capacity(TURNS));
        let mut handed = 0usize;
        for _ in 0..TURNS / 10 {
            let _ = crowd.release();
            let _ = crowd.arrive();
        }
        for _ in 0..TURNS {
            released.push(timed(|| handed += usize::from(crowd.release())));
            arrived.push(timed(|| {
                crowd.arrive();
            }));
        }
        let sum: u64 = released.iter().chain(&arrived).sum();
        let mean = sum as f64 / (2 * TURNS) as f64;
        let ([r50, r99], [a50, a99]) = (sorted(released), sorted(arrived));
        println!(
            "{providers:>9} {waiting:>8} {blocks:>7} {:>9} {:>22} {:>22} {mean:>12.0}",
            handed * 100 / TURNS,
            format!("{r50} / {r99}"),
            format!("{a50} / {a99}")
        );
        rows.push(format!("{{\"providers\":{providers},\"waiting\":{waiting},\"blocks\":{blocks},\"release_p50_ns\":{r50},\"release_p99_ns\":{r99},\"arrival_p50_ns\":{a50},\"arrival_p99_ns\":{a99},\"mean_ns\":{mean:.0}}}"));
    }
    let mut words = std::env::args().skip_while(|word| word != "--json");
    if let Some(path) = words.nth(1) {
        std::fs::write(path, format!("[{}]\n", rows.join(","))).unwrap();
    }
}
