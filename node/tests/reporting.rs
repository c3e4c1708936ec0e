//! Order and time of reports: a lost counter, a pause, a clock that jumps. Rows are those of the fault catalogue.

use rustix::process::Signal;
use umbel_contracts::proto::node::EngineState;

use crate::{
    agent::Folder,
    edge::{Ask, Edge},
    joining, stub_library, until,
};

/// Row 73: the counter was lost; the edge's answer brings it back, and what was not taken is told again.
#[tokio::test]
async fn row_73_a_lost_counter_continues_above_the_edges() {
    let edge = Edge::start().await;
    let folder = Folder::new(joining::SIM);
    folder.enroll(edge.token()).await.unwrap();
    edge.set_cursors(5_000_000, 7_000_000);
    let _agent = folder.start();
    let inventory =
        until("an inventory", async || edge.heard(|heard| heard.inventories.first().cloned())).await;
    assert!(inventory.sequence > 5_000_000, "{}", inventory.sequence);
    let telemetry = until("telemetry", async || edge.heard(|heard| heard.telemetries.first().cloned())).await;
    assert!(telemetry.sequence > 7_000_000, "{}", telemetry.sequence);
    // And it is on the disk before it is used.
    let kept = std::fs::read_to_string(folder.path("state/sequences.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert!(kept["inventory"].as_u64() >= Some(inventory.sequence));
    assert!(kept["telemetry"].as_u64() >= Some(telemetry.sequence));
}

/// Row 16: after a pause one heartbeat and one report, not all that were missed.
#[tokio::test]
async fn row_16_a_pause_is_not_made_up_for() {
    let edge = Edge::start().await;
    let folder = Folder::new(joining::SIM);
    folder.enroll(edge.token()).await.unwrap();
    let agent = folder.start();
    until("reports", async || edge.heard(|heard| (heard.telemetries.len() > 1).then_some(()))).await;
    agent.signal(Signal::STOP);
    let stopped = umbel_wire::clock::Wall::now().unix_ms();
    // Long enough for a dozen heartbeats and two reports to be missed.
    let missed = umbel_wire::clock::Wall::now();
    until("the pause", async || {
        (umbel_wire::clock::Wall::now().unix_ms() - missed.unix_ms() > 2500).then_some(())
    })
    .await;
    agent.signal(Signal::CONT);
    let after = |heard: &crate::edge::Heard| {
        heard.beats_unix_ms.iter().copied().filter(|at| *at > stopped + 2000).collect::<Vec<_>>()
    };
    let beats = until("heartbeats", async || {
        let beats = edge.heard(|heard| after(heard));
        (beats.len() >= 4).then_some(beats)
    })
    .await;
    // 200 ms apart as before the pause, by the agent's own stamps.
    assert!(beats.windows(2).all(|pair| pair[1] - pair[0] >= 100), "{beats:?}");
    let reports = until("reports", async || {
        edge.heard(|heard| {
            let late = heard
                .telemetries
                .iter()
                .map(|told| told.observed_at_unix_ms)
                .filter(|at| *at > stopped + 2000);
            let late: Vec<_> = late.collect();
            (late.len() >= 3).then_some(late)
        })
    })
    .await;
    assert!(reports.windows(2).all(|pair| pair[1] - pair[0] >= 900), "{reports:?}");
}

/// Row 17, the node's side: its wall clock goes back three hours and on by a day while it streams. Heartbeats and
/// telemetry keep their pace, the stream goes on, and what is told of the time is what the clock says.
#[tokio::test]
async fn row_17_the_clock_jumps() {
    let edge = Edge::start().await;
    let folder = Folder::new(
        "[[engine]]\nname = \"slow\"\nkind = \"sim\"\nmodel = \"m\"\ntokens = 400\ntoken_delay = \"20ms\"\n",
    );
    folder.enroll(edge.token()).await.unwrap();
    let clock = folder.path("clock");
    std::fs::write(&clock, "0").unwrap();
    let library = stub_library::build("tests/shifted-clock/clock.rs", "shifted-clock");
    let _agent = folder.start_in(&[("LD_PRELOAD", &library), ("UMBEL_TEST_CLOCK", &clock)]);
    edge.engine("slow", EngineState::Ready).await;
    let stream = edge.open(Ask::new("slow", r#"{"stream":true,"messages":[]}"#)).await;
    for hours in [-3, 24] {
        std::fs::write(&clock, (hours * 3600_i64).to_string()).unwrap();
        let wanted = umbel_wire::clock::Wall::now().unix_ms() + hours * 3_600_000;
        let near = |at: i64| (at - wanted).abs() < 1_800_000;
        // Five heartbeats and two reports of the new time: no timer waits for the old one.
        until("heartbeats and telemetry", async || {
            edge.heard(|heard| {
                let beats = heard.beats_unix_ms.iter().filter(|at| near(**at)).count();
                let reports = heard.telemetries.iter().filter(|told| near(told.observed_at_unix_ms)).count();
                (beats >= 5 && reports >= 2).then_some(())
            })
        })
        .await;
    }
    let (head, _, end) = stream.whole().await;
    assert_eq!((head.status, end.error), (200, None));
    assert_eq!(edge.heard(|heard| heard.hellos.len()), 1, "the connection was kept");
}
