//! Gauges of queues and leases, read from admission at each scrape.
//!
//! Invariants: they are the numbers that decisions are made by, and nothing is counted beside them; those of one scrape
//! are one reading, so that they can be held against each other.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{ChoiceFigures, Dispatch, Figures, ProviderState, QueueReading, Reading};

#[derive(Debug)]
pub(super) struct Gauges {
    /// Weak: the registry must not keep the dispatch alive.
    pub(super) dispatch: Weak<Dispatch>,
}

type Value = fn(&QueueReading) -> i64;

fn count(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Name, help, value: each a gauge with one series a model.
const BY_MODEL: [(&str, &str, Value); 8] = [
    ("umbel_edge_queue_depth", "Requests waiting", |queue| count(queue.figures.depth)),
    ("umbel_edge_queue_limit", "Most requests that may wait", |queue| count(queue.figures.limit)),
    ("umbel_edge_queue_keys", "API keys whose requests wait", |queue| count(queue.keys.len())),
    ("umbel_edge_queue_long", "Long requests waiting", |queue| count(queue.figures.long_waiting)),
    (
        "umbel_edge_providers_ejected",
        "Providers passed over since they fail more than their peers",
        |queue| i64::from(queue.figures.ejected_providers),
    ),
    ("umbel_edge_slots", "Slots of providers that may be given work", |queue| count(queue.figures.capacity)),
    ("umbel_edge_providers_open", "Providers that may be given work", |queue| {
        count(queue.figures.open_providers)
    }),
    ("umbel_edge_models_unplaced", "One while fewer providers may be given work than are wanted", |queue| {
        i64::from(queue.figures.open_providers < queue.figures.wanted_providers)
    }),
];

/// Name, help, label, its words with the value of each: a gauge with one series a model and word.
type Set = (&'static str, &'static str, &'static str, &'static [(&'static str, Value)]);

const SETS: [Set; 3] = [
    (
        "umbel_edge_requests_in_flight",
        "Requests by phase",
        "phase",
        &[
            ("queued", |queue| count(queue.figures.depth)),
            ("prefill", |queue| count(queue.leases.without_head)),
            ("streaming", |queue| count(queue.leases.streaming)),
        ],
    ),
    (
        "umbel_edge_leases",
        "Slots held, by phase; those that end are of clients that left, and their nodes have yet to confirm it",
        "phase",
        &[
            ("prefill", |queue| count(queue.leases.without_head)),
            ("streaming", |queue| count(queue.leases.streaming)),
            ("ending", |queue| count(queue.leases.resetting)),
            ("unconfirmed", |queue| count(queue.leases.unconfirmed)),
        ],
    ),
    (
        "umbel_edge_engines",
        "Engines that nodes declare, by state",
        "state",
        &[
            ("available", |queue| engines(queue, |one| one.open)),
            ("loading", |queue| engines(queue, |one| one.state == ProviderState::Loading)),
            ("draining", |queue| {
                engines(queue, |one| matches!(one.state, ProviderState::Draining | ProviderState::Leaving))
            }),
            ("failed", |queue| engines(queue, |one| one.state == ProviderState::Failed)),
            ("unavailable", |queue| {
                engines(queue, |one| {
                    matches!(one.state, ProviderState::Available | ProviderState::Unavailable) && !one.open
                })
            }),
        ],
    ),
];

fn engines(queue: &QueueReading, is: impl Fn(&Figures) -> bool) -> i64 {
    count(queue.providers.iter().filter(|(_, _, figures)| is(figures)).count())
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(dispatch) = self.dispatch.upgrade() else { return Ok(()) };
        encode(&dispatch.reading(), &mut encoder)?;
        let help = "Requests that found no place in the table of running ones";
        let name = "umbel_edge_requests_unrecorded";
        let series = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(dispatch.requests().counts().1).encode(series)?;
        choices(&dispatch.choice_figures(), &mut encoder)
    }
}

/// What prefix affinity and the passing over of providers came to.
fn choices(figures: &ChoiceFigures, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help =
        "Requests with a prompt that is long enough, by whether they went where its beginning was seen last";
    let mut family = encoder.encode_descriptor("umbel_edge_affinity", help, None, MetricType::Counter)?;
    for (result, value) in [("hit", figures.prefix_hits), ("miss", figures.prefix_misses)] {
        ConstCounter::new(value).encode(family.encode_family(&[("result", result)])?)?;
    }
    let table = figures.prefix_table;
    let gauges = [
        ("umbel_edge_affinity_entries", "Beginnings of prompts remembered", count(table.entries)),
        ("umbel_edge_affinity_bytes", "Memory of the beginnings of prompts", count(table.bytes)),
    ];
    for (name, help, value) in gauges {
        let series = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(series)?;
    }
    let help = "How often a provider was passed over for a while";
    let name = "umbel_edge_providers_ejections";
    let series = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    ConstCounter::new(figures.passed_over_total).encode(series)
}

/// How prompts are estimated, and how far that was from what engines reported.
fn estimates(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let help = "Bytes of a prompt that are taken for one token";
    let name = "umbel_edge_prompt_bytes_per_token";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for queue in &reading.queues {
        let labels = [("model", &*queue.figures.model)];
        let series = family.encode_family(&labels)?;
        ConstGauge::new(thousandths(queue.figures.bytes_per_token)).encode(series)?;
    }
    let help = "Mean distance of estimated prompt tokens from those that engines reported, of the reported";
    let name = "umbel_edge_estimate_error_ratio";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for queue in &reading.queues {
        let Some(error) = queue.figures.estimate_error else { continue };
        let labels = [("model", &*queue.figures.model)];
        ConstGauge::new(thousandths(error)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn thousandths(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX)) / 1e3
}

fn encode(reading: &Reading, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    for (name, help, value) in BY_MODEL {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for queue in &reading.queues {
            let labels = [("model", &*queue.figures.model)];
            ConstGauge::new(value(queue)).encode(family.encode_family(&labels)?)?;
        }
    }
    for (name, help, label, words) in SETS {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for queue in &reading.queues {
            for (word, value) in words {
                let labels = [("model", &*queue.figures.model), (label, word)];
                ConstGauge::new(value(queue)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    let help = "Longest wait in the queue";
    let name = "umbel_edge_queue_oldest_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for queue in &reading.queues {
        let labels = [("model", &*queue.figures.model)];
        ConstGauge::new(queue.figures.oldest.as_secs_f64()).encode(family.encode_family(&labels)?)?;
    }
    estimates(reading, encoder)?;
    let unconfirmed: i64 = reading.queues.iter().map(|queue| i64::from(queue.leases.unconfirmed)).sum();
    let help = "Leases whose end their node has not confirmed in time";
    let series = encoder.encode_descriptor("umbel_edge_leases_unconfirmed", help, None, MetricType::Gauge)?;
    ConstGauge::new(unconfirmed).encode(series)
}
