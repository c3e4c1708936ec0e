//! Metrics of the node, read at each scrape: its engines, streams, jobs, artifacts, connection, GPUs, disks, settings and
//! problems.
//!
//! Owns names and labels; leaves the text to `umbel_contracts` and who may read it to `admin`. Invariants: they say what
//! `umbel node status` says at the same moment; what the driver does not give has no series and is never 0; every label
//! is a name of this host's own file, a word of this program or what the driver calls a GPU.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Instant,
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use umbel_contracts::{
    daemon::exposition::{
        self, Peer, Reloads, TextFormat, Vitals, counter, counters, encode_to, gauge, gauges, whole,
    },
    proto::node::GpuTelemetry,
};
use umbel_wire::clock::Wall;

use crate::{
    core::gpus::Shown,
    shell::{admin::Admin, settings::Tally},
};

/// Everything that is told of the node.
#[derive(Debug)]
pub(crate) struct Metrics(Registry);

struct Own(Weak<Admin>);

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl Metrics {
    /// Of this node, whose parts are read as long as they are there.
    pub(crate) fn new(admin: &Arc<Admin>) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Vitals::new("node")));
        registry.register_collector(Box::new(Own(Arc::downgrade(admin))));
        Self(registry)
    }

    /// The exposition; `None` if it could not be written.
    pub(crate) fn encode(&self, format: TextFormat) -> Option<String> {
        let mut text = String::new();
        encode_to(&self.0, format, &mut text).ok().map(|()| text)
    }
}

impl Collector for Own {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(admin) = self.0.upgrade() else { return Ok(()) };
        connection(&mut encoder, &admin)?;
        engines(&mut encoder, &admin)?;
        work(&mut encoder, &admin)?;
        host(&mut encoder, &admin)?;
        let gpus = admin.reports.watch().shown();
        gpu_figures(&mut encoder, &gpus)?;
        gpu_sets(&mut encoder, &gpus)
    }
}

fn connection(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let counts = admin.edge.counts();
    let peer = Peer {
        name: admin.identity.edge_id.clone(),
        up: admin.edge.is_connected(),
        heard: counts.heard.map(|at| at.1),
    };
    exposition::peers(encoder, "edge", &[peer])?;
    let help =
        "Since the edge last took the hello or answered a heartbeat; no series before the first connection";
    let age = counts.heard.map(|(at, _)| Instant::now().saturating_duration_since(at).as_secs_f64());
    gauges(encoder, "umbel_node_heartbeat_age_seconds", help, age.map(|age| ([("peer", "edge")], age)))?;
    let help = "Connections to the edge since the start: the first and every reconnect";
    counter(encoder, "umbel_node_connections", help, counts.connections)?;
    let help = "Dials that failed and connections that ended, by the step that they had come to";
    let failures = counts.failures.iter().map(|(step, count)| ([("step", *step)], *count));
    counters(encoder, "umbel_node_connection_failures", help, failures)?;
    let ends = Wall(admin.credentials.shown().not_after_unix_ms);
    exposition::certificates(encoder, [("link", ends)])?;
    let settings = admin.reports.settings();
    let changes = settings.changes();
    let reloads = |scope, of: Tally| Reloads { scope, applied: of.applied, refused: of.refused };
    let reloads = [reloads("site", changes.site), reloads("file", changes.file)];
    exposition::settings(encoder, settings.state().applied_version, &reloads)?;
    let problems: Vec<String> = {
        let mut codes: Vec<String> =
            admin.reports.problems().into_iter().map(|problem| problem.code).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    };
    let help = "One for each code of what is wrong here";
    gauges(encoder, "umbel_node_problem", help, problems.iter().map(|code| ([("code", code.as_str())], 1.0)))
}

fn engines(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let streams = whole(admin.relay.in_flight() as u64);
    gauge(encoder, "umbel_node_streams_in_flight", "Requests that are relayed now", streams)?;
    let all: Vec<_> = admin
        .engines
        .list()
        .iter()
        .map(|engine| (engine.view(), engine.in_force(), engine.in_flight()))
        .collect();
    let states = all.iter().map(|(view, config, _)| {
        let labels = [
            ("engine", config.name.clone()),
            ("model", config.model.clone()),
            ("kind", config.source.kind().to_owned()),
            ("state", view.state.to_string()),
        ];
        (labels, 1.0)
    });
    gauges(encoder, "umbel_node_engine_state", "One for the state that an engine is in", states)?;
    let by_name = |value: f64, name: &str| ([("engine", name.to_owned())], value);
    let in_flight = all.iter().map(|(_, config, count)| by_name(f64::from(*count), &config.name));
    gauges(encoder, "umbel_node_engine_in_flight", "Requests that an engine works on", in_flight)?;
    let capacity = all.iter().map(|(_, config, _)| by_name(f64::from(config.capacity), &config.name));
    gauges(encoder, "umbel_node_engine_capacity", "Requests at once of an engine", capacity)?;
    let since = all.iter().map(|(view, config, _)| by_name(exposition::seconds(view.since), &config.name));
    let name = "umbel_node_engine_state_since_timestamp_seconds";
    gauges(encoder, name, "Since when an engine is in its state", since)?;
    let restarts =
        all.iter().map(|(view, config, _)| ([("engine", config.name.clone())], view.restarts.into()));
    let help = "Starts of an engine after its process ended by itself";
    counters(encoder, "umbel_node_engine_restarts", help, restarts)?;
    let named = all.iter().filter_map(|(view, config, _)| Some((config.name.clone(), view.code?)));
    let codes = named.map(|(engine, code)| ([("engine", engine), ("code", code.as_str().to_owned())], 1.0));
    let help = "One for what an engine suffers from, where that has a name";
    gauges(encoder, "umbel_node_engine_trouble", help, codes)?;
    let help = "Engines that an earlier agent left, by what became of them: adopted, over (ended while no agent was there), ended";
    let fates = admin.engines.fates().map(|(word, count)| ([("result", word)], count));
    counters(encoder, "umbel_node_inherited_engines", help, fates)
}

/// Jobs and artifacts.
fn work(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let jobs = admin.jobs.figures();
    let states = [("running", jobs.running), ("untold", jobs.untold)];
    let series = states.map(|(state, count)| ([("state", state)], whole(count as u64)));
    let help = "Jobs that run, and those that ended and whose end the edge has not taken yet";
    gauges(encoder, "umbel_node_jobs", help, series)?;
    let ends = [("completed", jobs.completed), ("failed", jobs.failed)];
    let ends = ends.map(|(outcome, count)| ([("outcome", outcome)], count));
    let help = "Attempts of jobs that ended since the start; of those that failed the edge may give another";
    counters(encoder, "umbel_node_jobs_ended", help, ends)?;
    let artifacts = admin.artifacts.figures();
    let by_root = |value: fn(&(u64, u64)) -> u64| {
        artifacts.roots.iter().map(move |(root, both)| ([("root", root.as_str())], whole(value(both))))
    };
    let help = "Artifacts that are whole and in place";
    gauges(encoder, "umbel_node_artifacts", help, by_root(|both| both.0))?;
    gauges(encoder, "umbel_node_artifact_bytes", "Their bytes", by_root(|both| both.1))?;
    let running = whole(artifacts.running as u64);
    gauge(encoder, "umbel_node_downloads", "Downloads of artifacts that run", running)?;
    let help = "Bytes of artifacts that came since the start, those of broken off downloads included";
    counter(encoder, "umbel_node_artifact_fetched_bytes", help, artifacts.fetched)
}

fn host(encoder: &mut DescriptorEncoder<'_>, admin: &Admin) -> fmt::Result {
    let (inventory, told) = (admin.reports.watch().inventory(), admin.reports.watch().telemetry());
    let one = [
        ("umbel_node_cpus", "Processors of the host", f64::from(inventory.cpu_count)),
        ("umbel_node_memory_bytes", "Memory of the host", whole(inventory.memory_bytes)),
        ("umbel_node_memory_used_bytes", "Memory in use", whole(told.memory_used_bytes)),
        ("umbel_node_load1", "Load average of one minute", f64::from(told.load_1m_milli) / 1e3),
        (
            "umbel_node_inventory_complete",
            "Whether every device of the host could be looked at",
            f64::from(u8::from(inventory.complete)),
        ),
    ];
    for (name, help, value) in one {
        gauge(encoder, name, help, value)?;
    }
    let roots = inventory
        .storage
        .iter()
        .filter(|root| root.total_bytes > 0)
        .map(|root| ([("root", &*root.name)], whole(root.total_bytes)));
    gauges(encoder, "umbel_node_storage_bytes", "Size of a storage root", roots)?;
    let roots = told.storage.iter().map(|root| ([("root", &*root.name)], whole(root.free_bytes)));
    gauges(encoder, "umbel_node_storage_free_bytes", "What is free there", roots)
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// Labels as every GPU metric has them; `index` outlives them.
fn labels<'a>(gpu: &'a Shown, index: &'a str) -> Labels<'a> {
    vec![("gpu", index), ("uuid", &gpu.facts.uuid)]
}

/// Name, help, value of a gauge with one series a GPU.
type Row = (&'static str, &'static str, fn(&GpuTelemetry) -> Option<f64>);

const FIGURES: [Row; 6] = [
    ("umbel_node_gpu_memory_used_bytes", "Memory in use", |told| told.memory_used_bytes.map(whole)),
    ("umbel_node_gpu_utilization_ratio", "Of its time, 0 to 1", |told| {
        told.utilization_percent.map(|percent| f64::from(percent) / 100.0)
    }),
    ("umbel_node_gpu_temperature_celsius", "Of the chip", |told| told.temperature_celsius.map(f64::from)),
    ("umbel_node_gpu_power_watts", "Drawn now", |told| {
        told.power_milliwatts.map(|power| f64::from(power) / 1e3)
    }),
    ("umbel_node_gpu_sm_clock_hertz", "Of its processors", |told| {
        told.sm_clock_mhz.map(|clock| f64::from(clock) * 1e6)
    }),
    ("umbel_node_gpu_memory_clock_hertz", "Of its memory", |told| {
        told.memory_clock_mhz.map(|clock| f64::from(clock) * 1e6)
    }),
];

/// Name, help, value of a counter with one series a GPU.
type Count = (&'static str, &'static str, fn(&GpuTelemetry) -> Option<u64>);

const COUNTS: [Count; 3] = [
    ("umbel_node_gpu_ecc_corrected_errors", "Since the driver was loaded", |told| told.ecc_corrected),
    ("umbel_node_gpu_ecc_uncorrected_errors", "Since the driver was loaded", |told| told.ecc_uncorrected),
    ("umbel_node_gpu_xid_errors", "Errors that the driver raised, since this agent started", |told| {
        told.xid_count
    }),
];

fn indexes(gpus: &[Shown]) -> Vec<String> {
    gpus.iter().map(|gpu| gpu.facts.index.to_string()).collect()
}

fn gpu_figures(encoder: &mut DescriptorEncoder<'_>, gpus: &[Shown]) -> fmt::Result {
    let indexes = indexes(gpus);
    let all = || gpus.iter().zip(&indexes);
    for (name, help, value) in FIGURES {
        let series = all().filter_map(|(gpu, index)| Some((labels(gpu, index), value(&gpu.telemetry)?)));
        gauges(encoder, name, help, series)?;
    }
    let total = all().map(|(gpu, index)| {
        let bytes = gpu.telemetry.memory_total_bytes.unwrap_or(gpu.facts.memory_bytes);
        (labels(gpu, index), whole(bytes))
    });
    gauges(encoder, "umbel_node_gpu_memory_total_bytes", "Its memory", total)?;
    let ages = all()
        .filter(|(gpu, _)| gpu.seen_unix_ms > 0)
        .map(|(gpu, index)| (labels(gpu, index), f64::from(gpu.telemetry.age_ms) / 1e3));
    let help = "Since a GPU last answered; figures go away after three intervals";
    gauges(encoder, "umbel_node_gpu_age_seconds", help, ages)?;
    for (name, help, value) in COUNTS {
        let series = all().filter_map(|(gpu, index)| Some((labels(gpu, index), value(&gpu.telemetry)?)));
        counters(encoder, name, help, series)?;
    }
    Ok(())
}

fn gpu_sets(encoder: &mut DescriptorEncoder<'_>, gpus: &[Shown]) -> fmt::Result {
    let indexes = indexes(gpus);
    let all = || gpus.iter().zip(&indexes);
    let with = |gpu, index, label, value| {
        let mut labels: Labels<'_> = labels(gpu, index);
        labels.push((label, value));
        labels
    };
    let info = all().map(|(gpu, index)| {
        let mut labels: Labels<'_> = with(gpu, index, "name", &gpu.facts.name);
        labels.push(("pci_bus_id", &gpu.facts.pci_address));
        (labels, 1.0)
    });
    gauges(encoder, "umbel_node_gpu_info", "One for what it is", info)?;
    let state = |gpu: &Shown| if gpu.telemetry.lost { "lost" } else { "ok" };
    let states = all().map(|(gpu, index)| (with(gpu, index, "state", state(gpu)), 1.0));
    gauges(encoder, "umbel_node_gpu_state", "One for the state that it is in", states)?;
    let memory = all().flat_map(|(gpu, index)| {
        let engines = gpu.telemetry.engines.iter();
        engines.map(move |memory| (with(gpu, index, "engine", &memory.engine), whole(memory.bytes)))
    });
    gauges(encoder, "umbel_node_gpu_engine_memory_bytes", "Memory of an engine on it", memory)?;
    let throttled = all().flat_map(|(gpu, index)| {
        gpu.telemetry.throttle_reasons.iter().map(move |reason| (with(gpu, index, "reason", reason), 1.0))
    });
    let help = "One for each reason that holds its clocks down";
    gauges(encoder, "umbel_node_gpu_throttled", help, throttled)
}
