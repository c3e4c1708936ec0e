//! The metrics' text is what Prometheus' own tools take: names, types, labels, no series twice; in both formats.

use std::io::Write;
use std::process::{Command, Stdio};

use umbel_contracts::daemon::exposition::{TextFormat, read};

use super::rig::{Edge, run, until};

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
const EXPECTED: [(&str, &str, &[&str]); 59] = [
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
    // They have a series a joined control plane.
    ("umbel_peer_up", "gauge", &[]),
    ("umbel_peer_last_contact_timestamp_seconds", "gauge", &[]),
    ("umbel_config_reload", "counter", &["scope", "result"]),
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
    ("umbel_edge_deployments", "gauge", &["state"]),
    ("umbel_edge_deployments_held", "gauge", &[]),
    // A series a deployment, or a job that ended, or an engine that failed.
    ("umbel_edge_deployment_replicas", "gauge", &[]),
    ("umbel_edge_deployment_replicas_wanted", "gauge", &[]),
    ("umbel_edge_deployment_replicas_ready", "gauge", &[]),
    ("umbel_edge_deployment_unplaced_seconds", "gauge", &[]),
    ("umbel_edge_deployment_round_seconds", "histogram", &[]),
    ("umbel_edge_jobs", "gauge", &["kind", "state"]),
    ("umbel_edge_jobs_ended", "counter", &[]),
    ("umbel_edge_job_failures", "counter", &[]),
    ("umbel_edge_job_duration_seconds", "histogram", &[]),
    ("umbel_edge_engine_restarts", "counter", &["node", "node_id", "engine"]),
    ("umbel_edge_engine_failed", "gauge", &[]),
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
        let gone = metrics.model("gone");
        let series =
            |metrics: &crate::metrics::Metrics| metrics.encode(TextFormat::OpenMetrics).contains("gone");
        gone.rejected("queue_full");
        gone.answered(crate::metrics::Route::Chat, 200, true, 1.0);
        gone.answered(crate::metrics::Route::Chat, 502, true, 1.0);
        gone.disconnected("prefill");
        gone.upstream_error("a-node", "reset");
        gone.retried("tried");
        gone.client_retried();
        gone.broken("reset");
        assert!(series(metrics));
        gone.forget();
        assert!(!series(metrics), "nothing is left of a model that is forgotten");
        let text = metrics.encode(TextFormat::OpenMetrics);
        let (samples, kinds) = read(&text).unwrap();
        for (family, kind, labels) in EXPECTED {
            let whole = if kind == "counter" { format!("{family}_total") } else { family.to_owned() };
            assert_eq!(kinds.get(&whole).map(String::as_str), Some(kind), "{family}");
            let of = |one: &&umbel_contracts::daemon::exposition::Sample| {
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
        let (plain_samples, plain_kinds) = read(&plain).unwrap();
        assert!(!plain.contains("# EOF") && plain_kinds == kinds && plain_samples.len() == samples.len());
        promtool(&plain);
        edge.running.drain(super::rig::TIME).await;
    });
}
