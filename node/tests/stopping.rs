//! Stopping: running streams end well, nothing new begins, and a second signal is obeyed at once.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use umbel_contracts::proto::node::{EngineState, InferenceOutcome as Outcome};
use umbel_wire::Code;

use crate::{
    agent::Folder,
    edge::{Ask, Edge},
    engine::program,
    joining::SIM,
    relay::Bench,
    until,
};

/// Row 93: running streams flow to their end, new ones are refused as not processed, and the exit code is 0.
#[tokio::test]
async fn row_93_running_streams_end_well() {
    let mut bench = Bench::start().await;
    let mut streams = Vec::new();
    for _ in 0..20 {
        let mut stream = bench.ask("{}").await;
        let mut exchange = bench.engine.request().await;
        exchange.start_events().await;
        stream.head().await;
        streams.push((stream, exchange));
    }
    bench.agent.signal(Signal::TERM);
    until("the node to say that it drains", async || {
        bench.edge.heard(|heard| (heard.goaways > 0).then_some(()))
    })
    .await;
    bench.edge.engine("ext", EngineState::Draining).await;
    for (stream, mut exchange) in streams {
        exchange.chunk(b"data: late\n\n").await;
        exchange.end_chunks().await;
        let (bytes, end) = stream.rest().await;
        assert_eq!((bytes.as_slice(), end.outcome), (b"data: late\n\n".as_slice(), Outcome::Complete));
    }
    assert_eq!(bench.agent.ended().await, Some(0));
    assert!(!bench.folder.path("state/node.sock").exists());
}

/// Row 93: what does not end within the drain gets an error; an idle agent ends at once.
#[tokio::test]
async fn row_93_stragglers_and_idle_ends() {
    let edge = Edge::start().await;
    let folder = Folder::new(&format!("[shutdown]\ndrain = \"200ms\"\n{}token_delay = \"1h\"\n", SIM));
    folder.enroll(edge.token()).await.unwrap();
    let mut agent = folder.start();
    edge.engine("sim", EngineState::Ready).await;
    let mut stream = edge.open(Ask::new("sim", r#"{"stream":true,"messages":[]}"#)).await;
    stream.head().await;
    agent.signal(Signal::TERM);
    let (_, end) = stream.rest().await;
    assert_eq!((end.outcome, end.error.unwrap().code), (Outcome::Cancelled, Code::Unavailable));
    assert_eq!(agent.ended().await, Some(0));

    let mut agent = folder.start();
    edge.connection().await;
    folder.status().await;
    let asked = Instant::now();
    agent.signal(Signal::INT);
    assert_eq!(agent.ended().await, Some(0));
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

/// Row 93: a second SIGTERM ends fast, whatever still runs.
#[tokio::test]
async fn row_93_a_second_signal_ends_fast() {
    let mut bench = Bench::start().await;
    let mut stream = bench.ask("{}").await;
    let mut exchange = bench.engine.request().await;
    bench.agent.signal(Signal::TERM);
    until("the node to say that it drains", async || {
        bench.edge.heard(|heard| (heard.goaways > 0).then_some(()))
    })
    .await;
    bench.agent.signal(Signal::TERM);
    assert_eq!(bench.agent.ended().await, Some(0));
    exchange.left().await;
    assert_eq!(stream.ended().await.error.unwrap().code, Code::Unavailable);
}

/// Row 93: a stop while an engine is loading leaves none behind.
#[tokio::test]
async fn row_93_a_stop_while_loading() {
    let edge = Edge::start().await;
    let folder = Folder::new("");
    let text = std::fs::read_to_string(folder.path("node.toml")).unwrap();
    // Listens, and lists another model.
    let lines = program(folder.path("").as_path(), "plain").replace("model = \"m\"", "model = \"other\"");
    std::fs::write(folder.path("node.toml"), format!("{text}{lines}")).unwrap();
    folder.enroll(edge.token()).await.unwrap();
    let mut agent = folder.start();
    let report = until("the engine's cause", async || {
        edge.heard(|heard| {
            heard.engines.iter().find(|status| status.cause.contains("does not list")).cloned()
        })
    })
    .await;
    assert_eq!(report.state(), EngineState::Loading);
    let record = std::fs::read(folder.path("state/engines/own.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", record["pid"]));
    assert!(stat.is_err() || !stat.unwrap().contains(&record["start_time"].to_string()));
    assert!(!folder.path("state/engines/own.json").exists());
}
