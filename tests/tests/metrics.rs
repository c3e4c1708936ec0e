//! Metrics of all three tiers as processes: what Prometheus' own tools take, what contracts/metrics.md says, and what the
//! dashboard and the alerts in deploy/ build on.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use umbel_contracts::daemon::exposition::{Sample, read};
use umbel_tests::fleet::{EdgeOptions, Fleet, NodeOptions, free_address, run, scraped};
use umbel_tests::http::{Ask, Target};
use umbel_tests::wait;

use crate::clients::installed;
use crate::sites::{SHORT, external, skipped};

/// What one tier says: its families with their kinds, and its samples.
type Said = (Vec<Sample>, BTreeMap<String, String>);

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn text_of(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// `promtool` with these words; what it says where it is not content.
fn promtool(words: &[&str], input: &str) {
    let Some(program) = installed("UMBEL_PROMTOOL", "promtool/usr/bin/promtool") else {
        skipped("metrics", "promtool is not installed: scripts/test does it");
        return;
    };
    let mut child = Command::new(program)
        .args(words)
        .current_dir(root().join("deploy/prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that reads nothing has ended before.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("lint"), "promtool {words:?}: {said}");
}

/// One row of contracts/metrics.md.
#[derive(Debug)]
struct Row {
    kind: String,
    tiers: BTreeSet<String>,
    labels: BTreeSet<String>,
}

/// The rows of the tables: name, kind, tiers, labels, meaning.
fn documented() -> BTreeMap<String, Row> {
    let text = text_of("contracts/metrics.md");
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, tiers, labels, meaning] = cells[..] else { panic!("five cells: {line}") };
        let words = |cell: &str| -> BTreeSet<String> {
            cell.split(',')
                .map(|word| word.trim().trim_matches('`').to_owned())
                .filter(|word| !word.is_empty())
                .collect()
        };
        assert!(meaning.len() > 3, "{line}");
        let row = Row { kind: kind.to_owned(), tiers: words(tiers), labels: words(labels) };
        assert!(rows.insert(name.trim_matches('`').to_owned(), row).is_none(), "twice: {line}");
    }
    rows
}

/// Every word of `text` that names a metric of ours, without a histogram's suffix.
fn names_in(text: &str, rows: &BTreeMap<String, Row>) -> BTreeSet<String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.split(|c| !letters(c))
        .filter(|word| word.starts_with("umbel_") || word.starts_with("process_"))
        .map(|word| {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| word.strip_suffix(suffix));
            base.filter(|base| rows.get(*base).is_some_and(|row| row.kind == "histogram"))
                .unwrap_or(word)
                .to_owned()
        })
        .collect()
}

/// A fleet of one site that has had some traffic, and what each tier says then.
fn said() -> BTreeMap<&'static str, (String, Said)> {
    let fleet = Fleet::new();
    let engine = umbel_tests::engine::Engine::start(&["m"]).unwrap();
    let plane = fleet.control_plane();
    let more = "[metrics]\nkeys = true\n".to_owned();
    let edge =
        fleet.edge("berlin", Some(&plane), &EdgeOptions { metrics: true, more, ..EdgeOptions::default() });
    let collectors = free_address();
    let options =
        NodeOptions { more: format!("[listen]\nmetrics = \"{collectors}\"\n"), ..external(&engine, 2) };
    let node = fleet.node(&edge, "gpu-1", &options);
    plane.wait_fresh("berlin");
    for stream in [true, false] {
        let got = edge.chat("m", "counted", stream, &json!({})).whole(&edge.target()).unwrap();
        assert_eq!(got.status, 200, "{}", got.text());
    }
    assert_eq!(edge.chat("nobody's", "x", false, &json!({})).whole(&edge.target()).unwrap().status, 404);
    let asked = plane.command(
        "berlin",
        "00000000-0000-4000-8000-000000000001",
        "node.drain",
        "node:gpu-1",
        &json!({}),
    );
    assert_eq!(asked.status, 200, "{}", asked.text());
    wait::until("the edge is heard", SHORT, || {
        edge.metrics().contains("umbel_peer_last_contact_timestamp_seconds{")
            && scraped(&Target::Tcp(collectors)).contains("umbel_node_heartbeat_age_seconds{")
    });
    // The same on the local socket; and nothing but metrics for whoever comes over loopback.
    let local = scraped(&Target::Unix(node.state.join("node.sock")));
    assert!(local.contains("umbel_node_engine_state{"), "{local}");
    let status = Ask::get("/api/v1/status").whole(&Target::Tcp(collectors)).unwrap();
    assert_eq!(status.status, 404, "{}", status.text());
    let texts = [
        ("control_plane", plane.metrics()),
        ("edge", edge.metrics()),
        ("node", scraped(&Target::Tcp(collectors))),
    ];
    let said = |text: &str| read(text).unwrap_or_else(|why| panic!("{why}"));
    texts.into_iter().map(|(tier, text)| (tier, (text.clone(), said(&text)))).collect()
}

/// The names are a contract: they are documented, all of them and no others, and what is built on them finds them.
#[test]
fn every_metric_is_documented_and_what_is_built_on_them_finds_them() {
    let (rows, said) = (documented(), said());
    let mut missing = Vec::new();
    for (tier, (text, (samples, kinds))) in &said {
        promtool(&["check", "metrics"], text);
        for (name, kind) in kinds {
            match rows.get(name) {
                Some(row) if row.kind == *kind && row.tiers.contains(*tier) => {}
                other => missing.push(format!("{tier} says {kind} {name}, the document {other:?}")),
            }
        }
        for (name, row) in &rows {
            if row.tiers.contains(*tier) && !kinds.contains_key(name) {
                missing.push(format!("{tier} does not say {name}"));
            }
        }
        for sample in samples {
            let base = ["", "_bucket", "_sum", "_count"].iter().find_map(|suffix| {
                rows.get_key_value(sample.name.strip_suffix(suffix)?)
                    .filter(|(_, row)| suffix.is_empty() || row.kind == "histogram")
            });
            let Some((name, row)) = base else { continue };
            let labels: BTreeSet<String> =
                sample.labels.iter().map(|(label, _)| label.clone()).filter(|label| label != "le").collect();
            if labels != row.labels {
                missing.push(format!("{tier}: {name} has {labels:?}, the document {:?}", row.labels));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));

    // The dashboard: each panel's queries, and the variables' own.
    let dashboard: Value = serde_json::from_str(&text_of("deploy/grafana/umbel.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push(target["expr"].as_str().unwrap().to_owned());
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        queries.extend(variable["definition"].as_str().map(str::to_owned));
    }
    assert!(queries.len() > 50, "{}", queries.len());
    let alerts = text_of("deploy/prometheus/alerts.yml");
    queries.extend(alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ").map(str::to_owned)));
    for query in &queries {
        let names = names_in(query, &rows);
        assert!(!names.is_empty(), "a query of nothing: {query}");
        for name in names {
            let exists = said.values().any(|(_, (_, kinds))| kinds.contains_key(&name));
            assert!(exists, "no tier says {name}: {query}");
        }
    }
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["check", "config", "prometheus.yml"], "");
}

/// What one tier counted another one counted, too; and no label names a place in the network or on a disk.
#[test]
fn figures_of_the_tiers_agree_on_what_happened() {
    let said = said();
    let value = |tier: &str, name: &str, labels: &[(&str, &str)]| -> f64 {
        let samples = &said[tier].1.0;
        samples.iter().filter(|one| one.name == name && one.has(labels)).map(|one| one.value).sum()
    };
    assert_eq!(value("edge", "umbel_edge_key_requests_total", &[]), 3.0, "two answers and one refusal");
    let tokens = value("edge", "umbel_edge_key_tokens_total", &[("direction", "output")]);
    assert!(tokens > 0.0);
    assert_eq!(tokens, value("edge", "umbel_edge_tokens_total", &[("direction", "output")]));
    assert_eq!(
        value("edge", "umbel_edge_rejections_total", &[("model", "_unknown"), ("reason", "not_found")]),
        1.0
    );
    assert_eq!(value("control_plane", "umbel_peer_up", &[("peer", "edge"), ("name", "berlin")]), 1.0);
    assert_eq!(value("edge", "umbel_peer_up", &[("peer", "control_plane"), ("name", "cp")]), 1.0);
    assert_eq!(value("node", "umbel_peer_up", &[("peer", "edge"), ("name", "berlin")]), 1.0);
    assert_eq!(value("control_plane", "umbel_cp_sites", &[("state", "connected")]), 1.0);
    assert_eq!(value("control_plane", "umbel_cp_commands_ended_total", &[("outcome", "succeeded")]), 1.0);
    let posted = [("route", "/api/v1/edges/{edge}/commands"), ("method", "POST"), ("code", "200")];
    assert_eq!(value("control_plane", "umbel_cp_api_requests_total", &posted), 1.0);
    assert_eq!(value("node", "umbel_node_connections_total", &[]), 1.0);
    assert_eq!(value("node", "umbel_node_engine_state", &[("engine", "e"), ("state", "ready")]), 1.0);
    for (tier, (_, (samples, _))) in &said {
        let version = samples.iter().find(|one| one.name == "umbel_build_info").unwrap();
        assert_eq!(version.label("role"), Some(*tier));
        // No address, port or path leaves its host.
        for (_, value) in samples.iter().flat_map(|one| &one.labels) {
            assert!(!value.contains("127.0.0.1") && !value.contains("/tmp"), "{tier}: {value}");
        }
    }
}

/// A node listens to no other host, for metrics neither: an address that would is refused with its place.
#[test]
fn a_node_refuses_to_show_metrics_to_other_hosts() {
    let fleet = Fleet::new();
    for (address, code) in
        [("0.0.0.0:7469", 78), ("[::]:7469", 78), ("10.0.0.1:7469", 78), ("7469", 78), ("[::1]:7469", 0)]
    {
        let more = format!("[listen]\nmetrics = \"{address}\"\n");
        let node = fleet.node_files("gpu-1", &NodeOptions { more, ..NodeOptions::default() });
        let got = run(&["config", "check", &node.config.to_string_lossy()]);
        assert_eq!(got.code, code, "{address}: {got:?}");
        assert!(code == 0 || got.err.contains("listen.metrics"), "{got:?}");
    }
}
