//! Ten times what the engines can take, and one engine of three that is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::site::{Client, Engine, Outcome, Site, percentile};
use crate::{Row, row};

const ENGINES: usize = 3;
const CAPACITY: u32 = 8;
const MAX_WAIT_MS: f64 = 2_000.0;
/// One answer of an engine.
const ANSWER_MS: f64 = 250.0;

/// So many requests a second for a while, whatever becomes of them.
async fn arrivals(site: &Site, key: &str, a_second: f64, secs: u64, stream: bool) -> Vec<Outcome> {
    let (client, address) = (Client::default(), Arc::new(site.edge.api.to_string()));
    let began = Instant::now();
    let mut tasks = Vec::new();
    // Above this the generator itself is the limit.
    let (out, request) = (Arc::new(AtomicUsize::new(0)), site.request(key, 200, stream, 20));
    let mut sent = 0.0;
    while began.elapsed() < Duration::from_secs(secs) {
        while sent < began.elapsed().as_secs_f64() * a_second {
            sent += 1.0;
            let (client, address, request, out) =
                (client.clone(), Arc::clone(&address), Arc::clone(&request), Arc::clone(&out));
            assert!(out.fetch_add(1, Ordering::Relaxed) < 20_000, "the edge answers nobody");
            tasks.push(tokio::spawn(async move {
                let outcome = client.ask(&address, &request, Duration::from_secs(60)).await;
                out.fetch_sub(1, Ordering::Relaxed);
                outcome
            }));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut outcomes = Vec::with_capacity(tasks.len());
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

fn whole(outcomes: &[Outcome]) -> Vec<f64> {
    outcomes.iter().filter(|one| one.status == 200).map(|one| one.whole_ms).collect()
}

fn engines(words: &[&str]) -> Vec<Engine> {
    (0..ENGINES).map(|_| Engine::start(words)).collect()
}

pub(crate) async fn run(secs: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    let queue = format!("[queue]\nmax_requests = 200\nmax_wait = \"{}ms\"\n", MAX_WAIT_MS);
    let site = Site::new(engines(&["--first-us", "250000", "--tokens", "1"]), CAPACITY, "", &queue);
    let key = site.edge.key.clone();
    let full = ENGINES as f64 * f64::from(CAPACITY) * 1e3 / ANSWER_MS;
    let _ = arrivals(&site, &key, full, 2, false).await;
    // Just what they can take, as a base.
    let base = arrivals(&site, &key, full * 0.98, secs.min(20), false).await;
    let base_rate = whole(&base).len() as f64 / secs.min(20) as f64;
    let over = arrivals(&site, &key, 10.0 * full, secs, false).await;
    let peaks: Vec<u64> = site.engines.iter().map(|engine| engine.peak()).collect();
    let whole_over = whole(&over);
    rows.push(row("answers a second at what the engines can take", base_rate, 0.0));
    rows.push(row(
        "  at ten times that, of the base, %",
        100.0 * whole_over.len() as f64 / secs as f64 / base_rate,
        -95.0,
    ));
    rows.push(row(
        "requests at once at an engine, at most",
        peaks.iter().max().copied().unwrap_or(0) as f64,
        f64::from(CAPACITY),
    ));
    let bound = MAX_WAIT_MS + ANSWER_MS;
    rows.push(row(
        "an admitted request, ms, p99 (waiting time plus one answer)",
        percentile(&whole_over, 99),
        1.1 * bound,
    ));
    let refused = over.iter().filter(|one| one.status == 429).count();
    rows.push(row("refused with 429", refused as f64, 0.0));
    rows.push(row("anything but 200 and 429", (over.len() - refused - whole_over.len()) as f64, 0.01));
    drop(site);
    rows.extend(frozen(secs).await);
    rows
}

/// Two fifths of what three engines can take; one of them is stopped.
async fn frozen(secs: u64) -> Vec<Row> {
    let words = ["--first-us", "50000", "--delay-us", "5000", "--tokens", "20"];
    let site = Site::new(engines(&words), CAPACITY, "", "[upstream]\nfirst_byte_timeout = \"60s\"\n");
    let key = site.edge.key.clone();
    let rate = 0.4 * ENGINES as f64 * f64::from(CAPACITY) * 1e3 / 150.0;
    let secs = secs.clamp(10, 30);
    let _ = arrivals(&site, &key, rate, 2, true).await;
    let base = arrivals(&site, &key, rate, secs, true).await;
    site.engines[2].signal(Signal::STOP);
    let (during, ejected) = tokio::join!(arrivals(&site, &key, rate, secs, true), async {
        tokio::time::sleep(Duration::from_secs(secs - 1)).await;
        // The stopped engine goes on while the last arrivals are out, so that every one gets its answer.
        site.engines[2].signal(Signal::CONT);
    });
    let () = ejected;
    let begun = site.engines[2].begun();
    let after = arrivals(&site, &key, rate, 5, true).await;
    let taken_back = site.engines[2].begun() > begun && after.iter().all(|one| one.status == 200);
    let (before, stopped): (Vec<f64>, Vec<f64>) = (whole(&base), whole(&during));
    // Those that the stopped engine held ended when it went on, long after their peers.
    let held = stopped.iter().filter(|ms| **ms > 3_000.0).count();
    let others: Vec<f64> = stopped.iter().copied().filter(|ms| *ms <= 3_000.0).collect();
    vec![
        row("three engines: whole answers, ms, p99", percentile(&before, 99), 0.0),
        row("  one of them stopped: the others' p99", percentile(&others, 99), 1.2 * percentile(&before, 99)),
        row("  requests that it held", held as f64, f64::from(CAPACITY)),
        row("  answers that did not come", (during.len() - stopped.len()) as f64, 0.01),
        row("  taken back after it went on (1: yes)", f64::from(u8::from(taken_back)), -1.0),
        row(
            "  whole answers, ms, p99, after that",
            percentile(&whole(&after), 99),
            1.2 * percentile(&before, 99),
        ),
    ]
}
