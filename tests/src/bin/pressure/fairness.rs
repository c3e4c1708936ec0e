//! One key floods, another sends a short request now and then; and short requests beside full long slots.

use std::time::{Duration, Instant};

use crate::site::{Client, Engine, Site, percentile};
use crate::{Row, row};

const LIMIT: Duration = Duration::from_secs(60);
/// One answer: 20 ms to its first token, then 20 tokens 20 ms apart.
const ANSWER_MS: f64 = 420.0;

async fn firsts(address: &str, request: &[u8], secs: u64) -> Vec<f64> {
    let client = Client::default();
    let until = Instant::now() + Duration::from_secs(secs);
    let mut firsts = Vec::new();
    while Instant::now() < until {
        let outcome = client.ask(address, request, LIMIT).await;
        assert_eq!(outcome.status, 200, "{outcome:?}");
        firsts.push(outcome.first_ms);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    firsts
}

/// So many clients that send the same request over and over, until they are aborted.
fn flood(site: &Site, key: &str, clients: usize, bytes: usize) -> Vec<tokio::task::JoinHandle<()>> {
    let client = Client::default();
    (0..clients)
        .map(|_| {
            let (client, address) = (client.clone(), site.edge.api.to_string());
            let request = site.request(key, bytes, true, 20);
            tokio::spawn(async move {
                loop {
                    let _ = client.ask(&address, &request, LIMIT).await;
                }
            })
        })
        .collect()
}

async fn beside(site: &Site, clients: usize, secs: u64) -> (Vec<f64>, Vec<f64>) {
    let (a, b) = (site.key("floods"), site.key("short"));
    let address = site.edge.api.to_string();
    let short = site.request(&b, 100, true, 20);
    let alone = firsts(&address, &short, secs).await;
    // 100,000 tokens of about four bytes.
    let flooding = flood(site, &a, clients, 400_000);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let beside = firsts(&address, &short, secs).await;
    for client in flooding {
        client.abort();
    }
    (alone, beside)
}

pub(crate) async fn run(secs: u64) -> Vec<Row> {
    let engine = || vec![Engine::start(&["--first-us", "20000", "--delay-us", "20000", "--tokens", "20"])];
    let sizes = |long| {
        format!(
            "max_context_tokens = 200000\nlong_context_threshold_tokens = 8192\nlong_context_capacity = {long}\n"
        )
    };
    let mut rows = Vec::new();
    let site = Site::new(engine(), 2, &sizes(2), "[queue]\nmax_wait = \"60s\"\n");
    let (alone, flooded) = beside(&site, 16, secs).await;
    rows.push(row("two slots: key B's first token alone, ms, p50", percentile(&alone, 50), 0.0));
    rows.push(row(
        "  beside key A's 16 prompts of 100,000 tokens at once, p50",
        percentile(&flooded, 50),
        0.0,
    ));
    rows.push(row("  p95", percentile(&flooded, 95), percentile(&alone, 95) + ANSWER_MS));
    // A tenth for the scheduling of a shared machine.
    let most = percentile(&alone, 100) + 1.1 * ANSWER_MS;
    rows.push(row("  the longest: alone plus one slot's release (420 ms)", percentile(&flooded, 100), most));
    drop(site);
    let site = Site::new(engine(), 4, &sizes(1), "[queue]\nmax_wait = \"60s\"\n");
    let (alone, beside) = beside(&site, 4, secs).await;
    rows.push(row("four slots, one long: a short one's first token, ms, p50", percentile(&alone, 50), 0.0));
    let noise = 1.1 * percentile(&alone, 50) + 2.0;
    rows.push(row("  the long slot taken and three long ones waiting, p50", percentile(&beside, 50), noise));
    rows.push(row("  p95", percentile(&beside, 95), 1.25 * percentile(&alone, 95) + 5.0));
    rows
}
