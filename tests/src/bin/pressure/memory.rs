//! What a thousand waiting requests take at the edge beside their bodies.

use std::time::Duration;

use umbel_tests::fleet::resident_kb;

use crate::site::{Client, Engine, Site};
use crate::{Row, row};

const WAITING: usize = 1_000;
const BODY: usize = 100_000;

async fn waiting(site: &Site, count: usize) {
    for _ in 0..300 {
        let metrics = site.edge.metrics();
        let depth = metrics.lines().find(|line| line.starts_with("umbel_edge_queue_depth{"));
        if depth.and_then(|line| line.rsplit(' ').next()).is_some_and(|depth| depth == count.to_string()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("not {count} waiting");
}

pub(crate) async fn run() -> Vec<Row> {
    let engine = vec![Engine::start(&["--first-us", "600000000"])];
    let queue = "[queue]\nmax_requests = 2000\nmax_wait = \"600s\"\n";
    let site = Site::new(engine, 1, "", queue);
    let pid = site.edge.daemon.pid();
    let address = site.edge.api.to_string();
    // The queue's waiters may hold a quarter of 256 MiB a key: two keys.
    let keys = [site.key("one"), site.key("two")];
    let send = |bytes: usize, count: usize| {
        let tasks: Vec<_> = (0..count)
            .map(|at| {
                let (address, request) = (address.clone(), site.request(&keys[at % 2], bytes, false, 1));
                tokio::spawn(async move {
                    let _ = Client::default().ask(&address, &request, Duration::from_secs(900)).await;
                })
            })
            .collect();
        tasks
    };
    let taken = send(100, 1);
    waiting(&site, 0).await;
    let idle = resident_kb(pid);
    // The same number of connections with hardly a body: what a connection costs is not the queue's.
    let small = send(100, WAITING);
    waiting(&site, WAITING).await;
    let without = resident_kb(pid);
    for task in small {
        task.abort();
    }
    waiting(&site, 0).await;
    let large = send(BODY, WAITING);
    waiting(&site, WAITING).await;
    let with = resident_kb(pid);
    for task in large.into_iter().chain(taken) {
        task.abort();
    }
    let kb = (WAITING * BODY / 1_024) as f64;
    vec![
        row("idle edge with one request running, KiB", idle as f64, 0.0),
        row("1,000 waiting with small bodies, KiB each", (without - idle) as f64 / WAITING as f64, 0.0),
        row(
            "1,000 waiting with bodies of 100 KB, of their bodies, %",
            100.0 * (with - idle) as f64 / kb,
            110.0,
        ),
    ]
}
