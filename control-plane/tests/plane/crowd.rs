//! Many silent edges at once: the live ones are not starved by them.

use std::sync::atomic::Ordering;

use serde_json::Value;

use crate::rig::{plane, until, within};
use crate::site::connected;

/// More silent edges than questions go out at once (fault row 75 in a crowd).
#[tokio::test]
async fn silent_edges_do_not_take_the_places_of_live_ones() {
    let plane = plane().await;
    let mut held = Vec::new();
    for group in 0..13 {
        let made = (0..20).map(|number| {
            let plane = &plane;
            async move { connected(plane, &format!("site-{}", group * 20 + number)).await }
        });
        held.extend(within(futures_util::future::join_all(made)).await);
    }
    held.iter().skip(20).for_each(|(site, _)| site.acts.silent.store(true, Ordering::SeqCst));
    let seen = |status: &Value, freshness: &str| {
        status["sites"].as_array().unwrap().iter().filter(|site| site["freshness"] == freshness).count()
    };
    // At first nobody knows which are silent, and some live ones may wait behind them.
    until("the live ones are fresh, every one, beside 240 silent ones", || async {
        let status = plane.get("/api/v1/status").await;
        assert_eq!(seen(&status, "fresh") + seen(&status, "timed_out"), 260);
        seen(&status, "fresh") == 20
    })
    .await;
}
