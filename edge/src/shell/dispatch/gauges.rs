//! Gauges of queues and leases, read from admission at each scrape.
//!
//! Invariant: they are the numbers that decisions are made by; nothing is counted beside them.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{Dispatch, QueueFigures};

#[derive(Debug)]
pub(super) struct Gauges {
    /// Weak: the registry must not keep the dispatch alive.
    pub(super) dispatch: Weak<Dispatch>,
}

type Value = fn(&QueueFigures) -> i64;

fn count(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// Name, help, value: each a gauge with one series a model.
const BY_MODEL: [(&str, &str, Value); 5] = [
    ("umbel_edge_queue_depth", "Requests waiting", |queue| count(queue.depth)),
    ("umbel_edge_queue_limit", "Most requests that may wait", |queue| count(queue.limit)),
    ("umbel_edge_queue_oldest_milliseconds", "Longest wait in the queue", |queue| {
        count(queue.oldest.as_millis())
    }),
    ("umbel_edge_slots", "Slots of providers that may be given work", |queue| count(queue.capacity)),
    ("umbel_edge_providers_open", "Providers that may be given work", |queue| count(queue.open_providers)),
];

const PHASES: [(&str, Value); 3] = [
    ("queued", |queue| count(queue.depth)),
    ("prefill", |queue| count(queue.without_head)),
    ("streaming", |queue| count(queue.in_flight.saturating_sub(queue.without_head))),
];

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(dispatch) = self.dispatch.upgrade() else { return Ok(()) };
        let queues = dispatch.queues();
        for (name, help, value) in BY_MODEL {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for queue in &queues {
                let labels = [("model", &*queue.model)];
                let series = family.encode_family(&labels)?;
                ConstGauge::new(value(queue)).encode(series)?;
            }
        }
        let help = "Requests by phase";
        let mut family =
            encoder.encode_descriptor("umbel_edge_requests_in_flight", help, None, MetricType::Gauge)?;
        for queue in &queues {
            for (phase, value) in PHASES {
                let labels = [("model", &*queue.model), ("phase", phase)];
                let series = family.encode_family(&labels)?;
                ConstGauge::new(value(queue)).encode(series)?;
            }
        }
        let unconfirmed = dispatch.totals().unconfirmed;
        let help = "Leases whose end their node has not confirmed in time";
        let series =
            encoder.encode_descriptor("umbel_edge_leases_unconfirmed", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(unconfirmed)).encode(series)
    }
}
