//! Gauges of nodes and their GPUs, read from the snapshots at each scrape.
//!
//! Owns names, labels and units. Invariant: they are what a snapshot of the same moment says, so that no view disagrees with
//! another; a value that was not given, or is too old, has no series.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use umbel_contracts::daemon::exposition::whole;
use umbel_contracts::objects::{GpuObject, NodeObject};

use super::site::Site;
use super::status;

mod engines;

/// All nodes of a site.
pub(crate) struct Gauges {
    /// Weak: the metrics must not keep the site alive.
    pub(crate) site: Weak<Site>,
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

/// Figures of one node, small enough to hold for a whole site.
struct NodeFigures {
    name: String,
    id: String,
    state: String,
    decommissioned: bool,
    values: [Option<f64>; NODE.len()],
    counts: [u64; COUNTS.len()],
    roots: Vec<Root>,
    gpus: Vec<GpuFigures>,
    engines: Vec<engines::Figures>,
}

struct GpuFigures {
    index: String,
    uuid: String,
    name: String,
    state: &'static str,
    values: [Option<f64>; GPU.len()],
    counts: [Option<u64>; GPU_COUNTS.len()],
    engines: Vec<(String, u64)>,
    throttled: Vec<String>,
}

/// A storage root: name, size, what is free.
type Root = (String, u64, Option<u64>);
/// Name, help, value of a gauge with one series a root.
type RootGauge = (&'static str, &'static str, fn(&Root) -> Option<u64>);
/// Name, label, value of a gauge that is one for what a GPU is.
type GpuSet = (&'static str, &'static str, fn(&GpuFigures) -> &str);
/// Name, help, value of a gauge with one series a node.
type Row<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

const NODE: [Row<NodeObject>; 13] = [
    ("umbel_edge_node_connected", "This edge can dispatch to it now", |node| flag(node.connected)),
    ("umbel_edge_node_ready", "No readiness check failed", |node| flag(node.ready)),
    ("umbel_edge_node_eligible", "It may get application traffic", |node| flag(node.eligible)),
    ("umbel_edge_node_draining", "It takes no new work", |node| flag(node.draining)),
    ("umbel_edge_node_problems", "What is wrong with it", |node| Some(small(node.problems.len()))),
    ("umbel_edge_node_last_seen_timestamp_seconds", "When it was last heard", |node| {
        node.last_seen_at.map(|at| milli(at.as_millisecond()))
    }),
    ("umbel_edge_node_clock_skew_seconds", "How far its clock is ahead, while that is a problem", |node| {
        node.clock_skew_ms.map(milli)
    }),
    ("umbel_edge_node_memory_bytes", "Memory of the host", |node| {
        node.inventory.as_ref().map(|host| whole(host.memory_bytes))
    }),
    ("umbel_edge_node_inventory_age_seconds", "Since its last inventory", |node| {
        node.inventory.as_ref().map(|host| whole(host.age_ms) / 1e3)
    }),
    ("umbel_edge_node_telemetry_age_seconds", "Since its last telemetry", |node| {
        node.telemetry.as_ref().map(|told| whole(told.age_ms) / 1e3)
    }),
    ("umbel_edge_node_memory_used_bytes", "Memory in use", |node| {
        fresh(node).map(|told| whole(told.memory_used_bytes))
    }),
    ("umbel_edge_node_certificate_expiry_timestamp_seconds", "When its certificate ends", |node| {
        Some(milli(node.credential.as_ref()?.not_after?.as_millisecond()))
    }),
    ("umbel_edge_node_load1", "Load average of one minute", |node| {
        fresh(node).map(|told| f64::from(told.load_1m_milli) / 1e3)
    }),
];

/// Name, help, value of a counter with one series a node.
type Count = (&'static str, &'static str, fn(&NodeObject) -> u64);

const COUNTS: [Count; 2] = [
    ("umbel_edge_node_reports_refused", "Reports that were replayed or too many", |node| {
        node.reports_refused
    }),
    ("umbel_edge_node_reports_missed", "Reports that never arrived", |node| node.reports_missed),
];

const GPU: [Row<GpuObject>; 8] = [
    ("umbel_edge_gpu_memory_total_bytes", "Its memory", |gpu| {
        Some(whole(gpu.figures.as_ref().and_then(|told| told.memory_total_bytes).unwrap_or(gpu.memory_bytes)))
    }),
    ("umbel_edge_gpu_memory_used_bytes", "Memory in use", |gpu| {
        gpu.figures.as_ref()?.memory_used_bytes.map(whole)
    }),
    ("umbel_edge_gpu_utilization_ratio", "Of its time, 0 to 1", |gpu| {
        gpu.figures.as_ref()?.utilization_percent.map(|percent| f64::from(percent) / 100.0)
    }),
    ("umbel_edge_gpu_temperature_celsius", "Of the chip", |gpu| {
        gpu.figures.as_ref()?.temperature_celsius.map(f64::from)
    }),
    ("umbel_edge_gpu_power_watts", "Drawn now", |gpu| {
        gpu.figures.as_ref()?.power_milliwatts.map(|power| f64::from(power) / 1e3)
    }),
    ("umbel_edge_gpu_sm_clock_hertz", "Of its processors", |gpu| {
        gpu.figures.as_ref()?.sm_clock_mhz.map(|clock| f64::from(clock) * 1e6)
    }),
    ("umbel_edge_gpu_memory_clock_hertz", "Of its memory", |gpu| {
        gpu.figures.as_ref()?.memory_clock_mhz.map(|clock| f64::from(clock) * 1e6)
    }),
    ("umbel_edge_gpu_last_seen_timestamp_seconds", "When it last answered", |gpu| {
        gpu.last_seen_at.map(|at| milli(at.as_millisecond()))
    }),
];

/// Name, help, value of a counter with one series a GPU.
type GpuCount = (&'static str, &'static str, fn(&GpuObject) -> Option<u64>);

const GPU_COUNTS: [GpuCount; 3] = [
    ("umbel_edge_gpu_ecc_corrected_errors", "Since the driver was loaded", |gpu| {
        gpu.figures.as_ref()?.ecc_corrected
    }),
    ("umbel_edge_gpu_ecc_uncorrected_errors", "Since the driver was loaded", |gpu| {
        gpu.figures.as_ref()?.ecc_uncorrected
    }),
    ("umbel_edge_gpu_xid_errors", "Since its agent started", |gpu| gpu.figures.as_ref()?.xid_count),
];

/// Every word that a node's state may be.
const STATES: [&str; 9] = [
    "online",
    "stale",
    "offline",
    "never",
    "unknown",
    "credential_revoked",
    "credential_expired",
    "disabled",
    "decommissioned",
];

/// Telemetry older than three intervals says nothing of now.
fn fresh(node: &NodeObject) -> Option<&umbel_contracts::objects::TelemetryObject> {
    let limit = crate::core::registry::snapshot::FIGURES_AGE.as_millis();
    node.telemetry.as_ref().filter(|told| u128::from(told.age_ms) <= limit)
}

fn flag(value: bool) -> Option<f64> {
    Some(if value { 1.0 } else { 0.0 })
}

#[allow(clippy::cast_precision_loss, reason = "milliseconds of this era are exact")]
fn milli(value: i64) -> f64 {
    value as f64 / 1e3
}

fn small(value: usize) -> f64 {
    f64::from(u32::try_from(value).unwrap_or(u32::MAX))
}

impl NodeFigures {
    fn new(node: NodeObject, engines: Vec<engines::Figures>) -> Self {
        let values = NODE.map(|(_, _, value)| value(&node));
        let counts = COUNTS.map(|(_, _, value)| value(&node));
        let decommissioned = node.decommissioned_at.is_some() || node.state == "decommissioned";
        let host = node.inventory;
        let (roots, gpus) = host.map(|host| (host.storage, host.gpus)).unwrap_or_default();
        Self {
            name: node.name,
            id: node.node_id,
            state: node.state,
            decommissioned,
            values,
            counts,
            roots: roots
                .into_iter()
                .filter(|root| root.total_bytes > 0)
                .map(|root| (root.name, root.total_bytes, root.free_bytes))
                .collect(),
            gpus: gpus.into_iter().map(GpuFigures::new).collect(),
            engines,
        }
    }

    fn labels(&self) -> [(&'static str, &str); 2] {
        [("node", &self.name), ("node_id", &self.id)]
    }
}

impl GpuFigures {
    fn new(gpu: GpuObject) -> Self {
        let values = GPU.map(|(_, _, value)| value(&gpu));
        let counts = GPU_COUNTS.map(|(_, _, value)| value(&gpu));
        let (engines, mut throttled) =
            gpu.figures.map(|told| (told.engines, told.throttle_reasons)).unwrap_or_default();
        // What an agent says twice would be two series of one name.
        throttled.sort();
        throttled.dedup();
        let mut engines: Vec<_> = engines.into_iter().map(|memory| (memory.engine, memory.bytes)).collect();
        engines.sort();
        engines.dedup_by(|a, b| a.0 == b.0);
        Self {
            index: gpu.index.to_string(),
            uuid: gpu.uuid,
            name: gpu.name,
            state: gpu.state.as_str(),
            values,
            counts,
            engines,
            throttled,
        }
    }

    /// With the node's id: names are not unique, and two agents may see one GPU.
    fn labels<'a>(&'a self, node: &'a NodeFigures) -> [(&'static str, &'a str); 4] {
        [("node", &node.name), ("node_id", &node.id), ("gpu", &self.index), ("uuid", &self.uuid)]
    }

    fn with<'a>(
        &'a self,
        node: &'a NodeFigures,
        label: &'static str,
        value: &'a str,
    ) -> [(&'static str, &'a str); 5] {
        let [a, b, c, d] = self.labels(node);
        [a, b, c, d, (label, value)]
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(site) = self.site.upgrade() else { return Ok(()) };
        let (_, nodes) = site.nodes();
        let told = nodes.iter().map(|node| {
            NodeFigures::new(NodeObject::from_proto(status::node(&site, node)), engines::of(node))
        });
        let nodes: Vec<NodeFigures> = told.collect();
        let help = "Durable transactions of its store";
        let store =
            encoder.encode_descriptor("umbel_edge_store_transactions", help, None, MetricType::Counter)?;
        ConstCounter::new(site.store.transactions()).encode(store)?;
        states(&mut encoder, &nodes)?;
        let serving: Vec<&NodeFigures> = nodes.iter().filter(|node| !node.decommissioned).collect();
        by_node(&mut encoder, &serving)?;
        engines::encode(&mut encoder, &serving)?;
        by_gpu(&mut encoder, &serving)
    }
}

fn states(encoder: &mut DescriptorEncoder<'_>, nodes: &[NodeFigures]) -> Result<(), fmt::Error> {
    let mut family =
        encoder.encode_descriptor("umbel_edge_nodes", "Nodes by state", None, MetricType::Gauge)?;
    for state in STATES {
        let count = nodes.iter().filter(|node| node.state == state).count();
        let labels = [("state", state)];
        ConstGauge::new(small(count)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn by_node(encoder: &mut DescriptorEncoder<'_>, nodes: &[&NodeFigures]) -> Result<(), fmt::Error> {
    for (at, (name, help, _)) in NODE.iter().enumerate() {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for node in nodes {
            let Some(value) = node.values.get(at).copied().flatten() else { continue };
            ConstGauge::new(value).encode(family.encode_family(&node.labels())?)?;
        }
    }
    for (at, (name, help, _)) in COUNTS.iter().enumerate() {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for node in nodes {
            let Some(value) = node.counts.get(at).copied() else { continue };
            ConstCounter::new(value).encode(family.encode_family(&node.labels())?)?;
        }
    }
    let help = "One for the state that it is in";
    let mut family = encoder.encode_descriptor("umbel_edge_node_state", help, None, MetricType::Gauge)?;
    for node in nodes {
        let [a, b] = node.labels();
        let labels = [a, b, ("state", node.state.as_str())];
        ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
    }
    let roots: [RootGauge; 2] = [
        ("umbel_edge_node_storage_bytes", "Size of a storage root", |root| Some(root.1)),
        ("umbel_edge_node_storage_free_bytes", "What is free there", |root| root.2),
    ];
    for (name, help, value) in roots {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for node in nodes {
            for root in &node.roots {
                let Some(value) = value(root) else { continue };
                let [a, b] = node.labels();
                let labels = [a, b, ("root", root.0.as_str())];
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

fn by_gpu(encoder: &mut DescriptorEncoder<'_>, nodes: &[&NodeFigures]) -> Result<(), fmt::Error> {
    let gpus = || nodes.iter().flat_map(|node| node.gpus.iter().map(move |gpu| (*node, gpu)));
    for (at, (name, help, _)) in GPU.iter().enumerate() {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (node, gpu) in gpus() {
            let Some(value) = gpu.values.get(at).copied().flatten() else { continue };
            ConstGauge::new(value).encode(family.encode_family(&gpu.labels(node))?)?;
        }
    }
    for (at, (name, help, _)) in GPU_COUNTS.iter().enumerate() {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (node, gpu) in gpus() {
            let Some(value) = gpu.counts.get(at).copied().flatten() else { continue };
            ConstCounter::new(value).encode(family.encode_family(&gpu.labels(node))?)?;
        }
    }
    let sets: [GpuSet; 2] = [
        ("umbel_edge_gpu_info", "name", |gpu| &gpu.name),
        ("umbel_edge_gpu_state", "state", |gpu| gpu.state),
    ];
    for (name, label, value) in sets {
        let mut family = encoder.encode_descriptor(name, "One for what it is", None, MetricType::Gauge)?;
        for (node, gpu) in gpus() {
            let labels = gpu.with(node, label, value(gpu));
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Memory of an engine on it";
    let name = "umbel_edge_gpu_engine_memory_bytes";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (node, gpu) in gpus() {
        for (engine, bytes) in &gpu.engines {
            let labels = gpu.with(node, "engine", engine);
            ConstGauge::new(*bytes).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "One for each reason that holds its clocks down";
    let mut family = encoder.encode_descriptor("umbel_edge_gpu_throttled", help, None, MetricType::Gauge)?;
    for (node, gpu) in gpus() {
        for reason in &gpu.throttled {
            let labels = gpu.with(node, "reason", reason);
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}
