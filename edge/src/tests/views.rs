//! No two views of a node disagree: snapshot, operation, metrics, dispatch.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;
use umbel_contracts::event;
use umbel_contracts::proto::node::{
    EngineMemory, Gpu, GpuTelemetry, NodeHeartbeat, NodeInventory, NodeTelemetry, StorageFree, StorageRoot,
};
use umbel_contracts::{method, objects::NodeObject};
use umbel_wire::liveness::State;
use umbel_wire::{Connection, clock::Wall};

use super::rig::{Edge, FakeNode, TIME, beat, run, until};
use crate::metrics::Metrics;
use crate::shell::gauges::Gauges;
use crate::shell::status;

fn metrics(edge: &Edge) -> String {
    let metrics = Metrics::new();
    let gauges = Gauges { site: Arc::downgrade(&edge.running.site) };
    metrics.register(|to| to.register_collector(Box::new(gauges)));
    metrics.encode(umbel_contracts::daemon::exposition::TextFormat::OpenMetrics)
}

/// The value of a series of the node `n`.
fn series(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{node=\"n\"")))?;
    line.rsplit_once(' ').map(|(_, value)| value.to_owned())
}

/// Every view, read at one moment: all must say the same.
async fn agree(edge: &Edge, node: &FakeNode, state: &str) {
    let snapshot = status::node(&edge.running.site, &edge.view(node));
    let object = NodeObject::from_proto(snapshot.clone());
    assert_eq!(object.state, state);
    let serves = state == "online";
    assert_eq!(object.connected, serves, "snapshot of {state}");
    let text = metrics(edge);
    assert_eq!(series(&text, "umbel_edge_node_connected").unwrap(), if serves { "1.0" } else { "0.0" });
    assert!(text.contains(&format!("umbel_edge_nodes{{state=\"{state}\"}} 1.0")), "{text}");
    assert!(text.contains(&format!("state=\"{state}\"}} 1\n")), "{text}");
    let shown = edge.ask("node.show", "node:n", json!({})).await.unwrap().result.unwrap();
    assert_eq!(shown["nodes"][0]["state"], state);
    assert_eq!(shown["nodes"][0]["connected"], serves);
    assert_eq!(edge.slot().is_some(), serves, "dispatch of {state}");
    let counts = status::summary(&edge.running.site).await;
    assert_eq!(counts.providers_available, u32::from(serves));
    assert_eq!(counts.nodes_online, u32::from(serves));
    // Before its first hello nothing is known of its engines.
    let Some(provider) = object.providers.first() else { return assert_eq!(state, "never") };
    assert_eq!(provider.status.as_str() == "available", serves);
    assert_eq!(provider.capacity == 0, !serves);
}

/// Row 6: a node walks online, stale, online, stale, offline, online; after each step every view says the same.
#[test]
fn row_6_every_view_says_the_same() {
    run(async {
        // Heartbeats come when the test says so; a step is held by beats until it has been looked at.
        let times = "[liveness]\nheartbeat = \"100ms\"\nstale = \"900ms\"\noffline = \"1800ms\"\n";
        let edge = Edge::start_with(times).await;
        let node = edge.node("n").await;
        agree(&edge, &node, "never").await;
        let connection = node.connect(&edge).await;
        let mut sequence = 1;
        for away in [State::Stale, State::Stale, State::Offline] {
            sequence += 1;
            beat(&connection, sequence).await.unwrap();
            agree(&edge, &node, "online").await;
            until(away.name(), || edge.view(&node).liveness == away).await;
            agree(&edge, &node, away.name()).await;
        }
        beat(&connection, sequence + 1).await.unwrap();
        agree(&edge, &node, "online").await;
        assert_eq!(status::node(&edge.running.site, &edge.view(&node)).heartbeat_sequence, sequence + 1);
        edge.ask("node.disable", "node:n", json!({})).await.unwrap();
        agree(&edge, &node, "disabled").await;
        connection.closed().await;
        agree(&edge, &node, "disabled").await;
        // Nothing that was measured says as much of it as this.
        edge.ask("node.enable", "node:n", json!({})).await.unwrap();
        edge.ask("node.credential.revoke", "node:n", json!({})).await.unwrap();
        agree(&edge, &node, "credential_revoked").await;
        until("offline", || edge.view(&node).liveness == State::Offline).await;
        agree(&edge, &node, "credential_revoked").await;
        let problems = status::node(&edge.running.site, &edge.view(&node)).problems;
        let offline = problems.iter().find(|problem| problem.code == "NODE_OFFLINE").unwrap();
        assert!(offline.message.contains("token create --replace n"), "{}", offline.message);
    });
}

fn report(connection: &Connection, event: u32, payload: &impl prost::Message) {
    connection.event(event, "report", payload.encode_to_vec());
}

/// What an agent says of itself cannot break the exposition, and a GPU's figures reach every view under its UUID.
#[test]
fn figures_of_gpus_are_a_valid_exposition() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        let now = Wall::now().unix_ms();
        let name = "H100 \"x\"\\\n# TYPE y gauge";
        let gpu = |uuid: &str| Gpu {
            uuid: uuid.into(),
            name: name.into(),
            memory_bytes: 1 << 36,
            ..Gpu::default()
        };
        let root = || StorageRoot { name: "models".into(), total_bytes: 1 << 40, reserve_bytes: None };
        let inventory = NodeInventory {
            sequence: 2,
            observed_at_unix_ms: now,
            complete: true,
            gpus: vec![gpu("GPU-0"), gpu("GPU-1"), gpu("GPU-0")],
            storage: vec![root(), root()],
            ..NodeInventory::default()
        };
        report(&connection, event::NODE_INVENTORY, &inventory);
        let figures = GpuTelemetry {
            uuid: "GPU-0".into(),
            utilization_percent: Some(50),
            power_milliwatts: Some(350_500),
            ecc_uncorrected: Some(2),
            throttle_reasons: vec!["sw_power_cap".into(); 2],
            engines: vec![EngineMemory { engine: "e".into(), bytes: 7 }; 2],
            ..GpuTelemetry::default()
        };
        let telemetry = NodeTelemetry {
            sequence: 1,
            observed_at_unix_ms: now,
            memory_used_bytes: 9,
            storage: vec![StorageFree { name: "models".into(), free_bytes: 3 }],
            gpus: vec![figures],
            ..NodeTelemetry::default()
        };
        report(&connection, event::NODE_TELEMETRY, &telemetry);
        until("both came", || {
            edge.view(&node).telemetry().is_some()
                && edge.view(&node).inventory().is_some_and(|i| i.gpus.len() == 2)
        })
        .await;
        let text = metrics(&edge);
        let mut seen = BTreeSet::new();
        let mut help = BTreeSet::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.split(' ');
                let (kind, name) = (words.next().unwrap(), words.next().unwrap());
                assert!(matches!(kind, "HELP" | "TYPE"), "{line}");
                assert!(help.insert((kind, name)), "twice: {line}");
                continue;
            }
            let (labels, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            value.parse::<f64>().unwrap_or_else(|_| panic!("{line}"));
            assert!(labels.starts_with("umbel_edge_"), "{line}");
            assert!(seen.insert(labels), "twice: {line}");
        }
        let with = |name: &str| {
            let start = format!("{name}{{node=\"n\",node_id=\"");
            let of = |line: &&str| line.starts_with(&start) && line.contains(",gpu=\"0\",uuid=\"GPU-0\"");
            let line = text.lines().find(of)?;
            line.rsplit_once(' ').map(|(_, value)| value.to_owned())
        };
        assert_eq!(with("umbel_edge_gpu_utilization_ratio").as_deref(), Some("0.5"));
        assert_eq!(with("umbel_edge_gpu_power_watts").as_deref(), Some("350.5"));
        assert_eq!(with("umbel_edge_gpu_ecc_uncorrected_errors_total").as_deref(), Some("2"));
        assert_eq!(with("umbel_edge_gpu_engine_memory_bytes").as_deref(), Some("7"));
        assert_eq!(with("umbel_edge_gpu_temperature_celsius"), None, "what is not given has no series");
        assert!(text.contains("umbel_edge_node_storage_free_bytes{node=\"n\""));
        // Row 96: it falls off the bus. Its figures go, it does not.
        let beat = NodeHeartbeat {
            sequence: 5,
            health: 1,
            observed_at_unix_ms: now,
            lost_gpus: vec!["GPU-0".into()],
            ..NodeHeartbeat::default()
        };
        connection.request(method::NODE_HEARTBEAT, prost::Message::encode_to_vec(&beat), TIME).await.unwrap();
        let text = metrics(&edge);
        assert!(!text.contains("umbel_edge_gpu_power_watts{"), "{text}");
        assert!(text.contains("uuid=\"GPU-0\",state=\"lost\"} 1"), "{text}");
        assert!(edge.slot().is_none(), "the provider on it takes no work");
        while edge.audit("gpu_lost").await.is_empty() {
            tokio::task::yield_now().await;
        }
        let snapshot = status::node(&edge.running.site, &edge.view(&node));
        assert_eq!(
            snapshot.providers[0].cause,
            "GPU 0 (H100 \"x\"\\\n# TYPE y gauge, GPU-0) does not answer"
        );
    });
}

/// Rows 16 and 73: more reports than one a second are dropped, replayed ones refused, both counted; the connection stays
/// and the newest stands.
#[test]
fn replayed_and_hasty_reports_are_counted() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let connection = node.connect(&edge).await;
        let now = Wall::now().unix_ms();
        for sequence in [1, 4, 3, 5, 6, 7] {
            let telemetry = NodeTelemetry {
                sequence,
                observed_at_unix_ms: now,
                memory_used_bytes: sequence,
                ..NodeTelemetry::default()
            };
            // Each under a key of its own, or a newer one would replace one that waits to be sent.
            connection.event(
                event::NODE_TELEMETRY,
                &sequence.to_string(),
                prost::Message::encode_to_vec(&telemetry),
            );
        }
        until("all came", || edge.view(&node).report.telemetry_sequence == 7).await;
        let snapshot = status::node(&edge.running.site, &edge.view(&node));
        // 1 and 4 are taken, 2 and 3 were missed, 3 came too late, 5 to 7 came too fast.
        assert_eq!((snapshot.reports_refused, snapshot.reports_missed), (4, 2));
        assert_eq!(snapshot.telemetry.unwrap().memory_used_bytes, 4);
        assert!(edge.connected(&node));
        beat(&connection, 9).await.unwrap();
    });
}
