//! A node's hardware for people: what a preflight found, and what the running agent sees.
//!
//! Leaves finding out to the node. Invariant: a figure that the driver does not give is `-`, never 0, and one that is
//! not of this moment has its age beside it.

use serde_json::Value;
use umbel_node::Preflight;

use super::report::plain;
use crate::output::{ColorChoice, Column, Style, Table, age_ms, bytes, details, width};

/// From this age on, figures are not of this moment: twice the usual interval.
const OLD_MS: u64 = 10_000;

/// What a preflight found.
pub(super) fn found(found: &Preflight) -> String {
    let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "none".to_owned());
    let mut text = details(&[
        ("accelerator", found.accelerator.clone()),
        ("driver", version(&found.driver_version)),
        ("cuda", version(&found.cuda_version)),
        ("gpus", if found.gpus.is_empty() { "none".to_owned() } else { found.gpus.len().to_string() }),
        (
            "unreadable",
            if found.unreadable.is_empty() { "none".to_owned() } else { found.unreadable.join("; ") },
        ),
    ]);
    let mut table = Table::new(["#", "NAME", "UUID", "MEMORY", "MIG", "GIVES"].map(Column::text).into());
    for gpu in &found.gpus {
        table.row(vec![
            gpu.index.to_string(),
            gpu.name.clone(),
            gpu.uuid.clone(),
            gpu.memory_bytes.map_or_else(|| "the host's".to_owned(), bytes),
            gpu.mig_instances.len().to_string(),
            gpu.figures.join(" "),
        ]);
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.render(false, width(), Style::stdout(ColorChoice::Auto)));
    }
    text
}

/// What the running agent says of itself, with its GPUs as a table of their own.
pub(super) fn status(mut status: Value) -> String {
    let taken = status.as_object_mut().map(|members| (members.remove("gpus"), members.remove("host")));
    let (gpus, host) = taken.unwrap_or_default();
    let mut text = plain(&status);
    if let Some(host) = &host {
        text.push_str("\nhost\n");
        text.push_str(&details(&host_lines(host)));
    }
    let gpus = gpus.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !gpus.is_empty() {
        let titles =
            ["#", "NAME", "UUID", "STATE", "UTIL", "MEMORY", "TEMP", "POWER", "CLOCK", "ENGINES", "NOTES"];
        let mut table = Table::new(titles.map(Column::text).into());
        gpus.iter().for_each(|gpu| table.row(row(gpu)));
        text.push_str("\ngpus\n");
        text.push_str(&table.render(false, width(), Style::stdout(ColorChoice::Auto)));
    }
    text
}

fn host_lines(host: &Value) -> Vec<(&'static str, String)> {
    let size = |key: &str| number(host, key).map_or_else(|| "-".to_owned(), bytes);
    let mut lines = vec![
        ("cpus", number(host, "cpu_count").unwrap_or_default().to_string()),
        (
            "load",
            host.get("load_1m").and_then(Value::as_f64).map(|load| format!("{load:.2}")).unwrap_or_default(),
        ),
        ("memory", format!("{} of {} used", size("memory_used_bytes"), size("memory_bytes"))),
    ];
    for root in host.get("storage").and_then(Value::as_array).into_iter().flatten() {
        let size =
            |key: &str| number(root, key).filter(|size| *size > 0).map_or_else(|| "-".to_owned(), bytes);
        lines.push((
            "disk",
            format!("{}: {} of {} free", word(root, "name"), size("free_bytes"), size("total_bytes")),
        ));
    }
    lines
}

fn row(gpu: &Value) -> Vec<String> {
    let figure =
        |key: &str, unit: &str| number(gpu, key).map_or_else(|| "-".to_owned(), |n| format!("{n}{unit}"));
    let total = number(gpu, "memory_bytes").map_or_else(|| "-".to_owned(), bytes);
    let memory = number(gpu, "memory_used_bytes")
        .map_or_else(|| format!("-/{total}"), |used| format!("{}/{total}", bytes(used)));
    let power =
        number(gpu, "power_milliwatts").map_or_else(|| "-".to_owned(), |power| format!("{}W", power / 1000));
    let list = |key: &str| gpu.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
    let engines: Vec<String> = list("engines")
        .iter()
        .map(|engine| {
            format!(
                "{} {}",
                word(engine, "engine"),
                bytes(number(engine, "memory_bytes").unwrap_or_default())
            )
        })
        .collect();
    let mut notes = Vec::new();
    if word(gpu, "state") == "lost" {
        notes.push(format!("seen {}", word(gpu, "seen_at")));
    } else if let Some(age) = number(gpu, "age_ms").filter(|age| *age >= OLD_MS) {
        notes.push(format!("{} old", age_ms(Some(age))));
    }
    notes.extend(list("throttle_reasons").iter().filter_map(Value::as_str).map(str::to_owned));
    if let (Some(count), Some(last)) = (number(gpu, "xid_count"), number(gpu, "xid_last")) {
        notes.push(format!("Xid {last} ({count} in all)"));
    }
    if let Some(errors) = number(gpu, "ecc_uncorrected").filter(|errors| *errors > 0) {
        notes.push(format!("{errors} uncorrected ECC"));
    }
    notes.extend(list("mig_instances").iter().map(|mig| word(mig, "profile")));
    if gpu.get("memory_is_host").and_then(Value::as_bool) == Some(true) {
        notes.push("memory is the host's".to_owned());
    }
    vec![
        number(gpu, "index").unwrap_or_default().to_string(),
        word(gpu, "name"),
        word(gpu, "uuid"),
        word(gpu, "state"),
        figure("utilization_percent", "%"),
        memory,
        figure("temperature_celsius", "C"),
        power,
        figure("sm_clock_mhz", "MHz"),
        engines.join(", "),
        notes.join(", "),
    ]
}

fn number(object: &Value, key: &str) -> Option<u64> {
    object.get(key).and_then(Value::as_u64)
}

fn word(object: &Value, key: &str) -> String {
    object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_is_no_zero_and_what_is_old_says_so() {
        let text = status(json!({
            "name": "gpu-1",
            "host": { "cpu_count": 8, "load_1m": 0.5, "memory_bytes": 1 << 30, "memory_used_bytes": 1 << 20,
                "storage": [{ "name": "state", "total_bytes": 1 << 30, "free_bytes": null }] },
            "gpus": [
                { "uuid": "GPU-a", "name": "H200", "index": 0, "state": "ok", "memory_bytes": 1 << 30, "age_ms": 12000,
                  "utilization_percent": null, "memory_used_bytes": null, "temperature_celsius": 61,
                  "xid_count": 2, "xid_last": 94, "engines": [{ "engine": "chat", "memory_bytes": 1 << 20 }] },
                { "uuid": "GPU-b", "name": "H200", "index": 1, "state": "lost", "seen_at": "2026-01-01T00:00:00Z" },
            ],
        }));
        for wanted in [
            "state: - of 1.0 GiB free",
            "GPU-a",
            "61C",
            "-/1.0 GiB",
            "12s old",
            "Xid 94 (2 in all)",
            "chat 1.0 MiB",
            "lost",
            "seen 2026",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        assert!(!text.contains("0%") && !text.contains("0W"), "{text}");
    }
}
