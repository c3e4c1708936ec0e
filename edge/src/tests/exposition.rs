//! The metrics' text is what Prometheus' own tools take: names, types, labels, no series twice; in both formats.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::process::{Command, Stdio};

use super::rig::{Edge, run, until};
use crate::metrics::TextFormat;

/// One line of an exposition.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) name: String,
    labels: Vec<(String, String)>,
    pub(super) value: f64,
}

impl Sample {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

fn is_name(text: &str) -> bool {
    let mut letters = text.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_' || letter == b':')
}

/// `{a="b",...}`: strict, with its escapes.
fn labels(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("labels {text}"));
        assert!(is_name(name), "label {name} in {text}");
        let (mut value, mut letters) = (String::new(), after.char_indices());
        let closed = loop {
            match letters.next().unwrap_or_else(|| panic!("labels {text}")) {
                (at, '"') => break at,
                (_, '\\') => match letters.next().unwrap().1 {
                    'n' => value.push('\n'),
                    kept @ ('\\' | '"') => value.push(kept),
                    other => panic!("escape {other} in {text}"),
                },
                (_, '\n') => panic!("a line break in {text}"),
                (_, other) => value.push(other),
            }
        };
        assert!(!found.iter().any(|(known, _)| known == name), "{name} twice in {text}");
        found.push((name.to_owned(), value));
        rest = &after[closed + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    found
}

/// Reads OpenMetrics text, and panics at everything that it must not be.
pub(super) fn parse(text: &str) -> Vec<Sample> {
    let body = text.strip_suffix("# EOF\n").expect("an end mark");
    let mut types: BTreeMap<String, String> = BTreeMap::new();
    let mut helped: HashSet<String> = HashSet::new();
    let (mut samples, mut seen) = (Vec::new(), HashSet::new());
    let mut family = String::new();
    for line in body.lines() {
        if let Some(about) = line.strip_prefix("# ") {
            let mut words = about.splitn(3, ' ');
            let (what, name, rest) =
                (words.next().unwrap(), words.next().unwrap(), words.next().unwrap_or_default());
            assert!(is_name(name), "{line}");
            match what {
                "HELP" => assert!(helped.insert(name.to_owned()) && rest.len() > 3, "{line}"),
                "TYPE" => {
                    assert!(types.insert(name.to_owned(), rest.to_owned()).is_none(), "twice: {line}");
                    assert!(["counter", "gauge", "histogram"].contains(&rest), "{line}");
                    assert!(helped.contains(name), "no help: {line}");
                    assert!(!name.ends_with("_total"), "{line}");
                    family = name.to_owned();
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, of) = series.split_once('{').map_or((series, ""), |(name, rest)| {
            (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("{line}")))
        });
        assert!(is_name(name) && seen.insert(series.to_owned()), "twice, or no name: {line}");
        let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} in {family}"));
        let fits = match types[&family].as_str() {
            "counter" => suffix == "_total",
            "gauge" => suffix.is_empty(),
            _ => ["_bucket", "_sum", "_count"].contains(&suffix),
        };
        assert!(fits, "{line} in {family}");
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        samples.push(Sample { name: name.to_owned(), labels: labels(of), value });
    }
    samples
}

/// Prometheus' own judge, where `scripts/test` has installed it.
fn promtool(text: &str) {
    let Some(program) = std::env::var_os("UMBEL_PROMTOOL") else { return };
    let mut child = Command::new(program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().is_empty(), "promtool: {said}");
}

/// Names, types and labels as dashboards of others expect them.
const EXPECTED: [(&str, &str, &[&str]); 44] = [
    ("umbel_build_info", "gauge", &["version", "revision", "role", "rustc"]),
    ("umbel_start_timestamp_seconds", "gauge", &[]),
    ("process_cpu_seconds", "counter", &[]),
    ("process_resident_memory_bytes", "gauge", &[]),
    ("process_open_fds", "gauge", &[]),
    ("process_max_fds", "gauge", &[]),
    ("process_start_time_seconds", "gauge", &[]),
    ("umbel_config_revision", "gauge", &["scope"]),
    ("umbel_certificate_expiry_timestamp_seconds", "gauge", &["cert"]),
    ("umbel_store_size_bytes", "gauge", &[]),
    ("umbel_store_commit_seconds", "histogram", &[]),
    ("umbel_edge_requests", "counter", &["route", "model", "code"]),
    ("umbel_edge_requests_in_flight", "gauge", &["model", "phase"]),
    ("umbel_edge_request_duration_seconds", "histogram", &["route", "model", "stream"]),
    ("umbel_edge_time_to_first_token_seconds", "histogram", &["model"]),
    ("umbel_edge_time_per_output_token_seconds", "histogram", &["model"]),
    ("umbel_edge_queue_depth", "gauge", &["model"]),
    ("umbel_edge_queue_limit", "gauge", &["model"]),
    ("umbel_edge_queue_wait_seconds", "histogram", &["model"]),
    ("umbel_edge_tokens", "counter", &["model", "direction"]),
    ("umbel_edge_cached_input_tokens", "counter", &["model"]),
    ("umbel_edge_rejections", "counter", &["model", "reason"]),
    ("umbel_edge_affinity", "counter", &["result"]),
    ("umbel_edge_affinity_entries", "gauge", &[]),
    ("umbel_edge_affinity_bytes", "gauge", &[]),
    ("umbel_edge_providers_ejected", "gauge", &["model"]),
    ("umbel_edge_prompt_bytes_per_token", "gauge", &["model"]),
    ("umbel_edge_leases", "gauge", &["model", "phase"]),
    ("umbel_edge_leases_unconfirmed", "gauge", &[]),
    ("umbel_edge_engines", "gauge", &["model", "state"]),
    ("umbel_edge_models_unplaced", "gauge", &["model"]),
    ("umbel_edge_nodes", "gauge", &["state"]),
    // It has a series a joined control plane.
    ("umbel_peer_up", "gauge", &[]),
    ("umbel_edge_client_disconnects", "counter", &["model", "phase"]),
    ("umbel_edge_upstream_errors", "counter", &["model", "node", "kind"]),
    ("umbel_edge_upstream_retries", "counter", &["model", "outcome"]),
    ("umbel_edge_client_retries", "counter", &["model"]),
    ("umbel_edge_streams_broken", "counter", &["model", "reason"]),
    ("umbel_edge_slots", "gauge", &["model"]),
    ("umbel_edge_providers_open", "gauge", &["model"]),
    ("umbel_edge_queue_keys", "gauge", &["model"]),
    ("umbel_edge_queue_oldest_seconds", "gauge", &["model"]),
    ("umbel_edge_requests_unrecorded", "counter", &[]),
    ("umbel_edge_store_transactions", "counter", &[]),
];

#[test]
fn every_metric_has_its_name_type_and_labels_and_prometheus_takes_them_all() {
    run(async {
        let edge = Edge::start().await;
        let node = edge.node("n").await;
        let _connection = node.connect(&edge).await;
        until("it serves", || edge.slot().is_some()).await;
        // Something of each kind, so that there is a series of it.
        let metrics = edge.running.front.metrics();
        let model = metrics.model("Qwen/\"odd\\name\"");
        model.rejected("queue_full");
        model.answered(crate::metrics::Route::Chat, 200, true, 1.0);
        model.disconnected("prefill");
        model.upstream_error("a-node", "reset");
        model.retried("tried");
        model.client_retried();
        model.broken("reset");
        let text = metrics.encode(TextFormat::OpenMetrics);
        let samples = parse(&text);
        for (family, kind, labels) in EXPECTED {
            let declared = text.lines().any(|line| line == format!("# TYPE {family} {kind}"));
            assert!(declared, "no {kind} {family}");
            let of = |one: &&Sample| {
                one.name.strip_prefix(family).is_some_and(|rest| ["", "_total", "_count"].contains(&rest))
            };
            let Some(one) = samples.iter().find(of) else {
                assert!(labels.is_empty(), "no series of {family}");
                continue;
            };
            let has: Vec<&str> = one.labels.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(has.len(), labels.len(), "{family}: {has:?}");
            assert!(labels.iter().all(|label| has.contains(label)), "{family}: {has:?}");
        }
        assert!(
            samples.iter().any(|one| one.label("model") == Some("Qwen/\"odd\\name\"")),
            "a name as it is"
        );
        let plain = metrics.encode(TextFormat::Plain);
        assert!(!plain.contains("# EOF") && plain.contains("# TYPE umbel_edge_requests_total counter\n"));
        assert_eq!(plain.lines().filter(|line| !line.starts_with('#')).count(), samples.len());
        promtool(&plain);
        edge.running.drain(super::rig::TIME).await;
    });
}
