//! The exposition of a daemon's metrics: both text formats, and the figures that each daemon gives of itself.
//!
//! Owns names and help of what every tier has (build, process, peers, certificates, settings, store) and how a family is
//! written; leaves each tier's own metrics to it. Invariant: one encoder escapes every label value and every family is
//! declared once, so that Prometheus' own tools take the text of all three.

mod plain;
mod reading;
mod vitals;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use umbel_wire::clock::Wall;

use plain::PlainText;
pub use plain::TextFormat;
pub use reading::{Sample, read};
pub use vitals::Vitals;

/// Writes everything that is registered.
///
/// # Errors
/// If `out` takes no more, or a collector fails; then the text lacks its end.
pub fn encode_to(registry: &Registry, format: TextFormat, out: &mut impl fmt::Write) -> fmt::Result {
    match format {
        TextFormat::OpenMetrics => text::encode(out, registry),
        TextFormat::Plain => text::encode(&mut PlainText::new(out), registry),
    }
}

/// A metric that is declared in every exposition, also while it has no series.
#[derive(Debug)]
struct Declared<M> {
    name: &'static str,
    help: &'static str,
    metric: M,
}

impl<M: EncodeMetric + fmt::Debug + Send + Sync + 'static> Collector for Declared<M> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let kind = self.metric.metric_type();
        self.metric.encode(encoder.encode_descriptor(self.name, self.help, None, kind)?)
    }
}

/// Registers a metric so that it is in every exposition, also while it has no series: whoever builds on its name finds it.
pub fn declare<M: EncodeMetric + fmt::Debug + Send + Sync + 'static>(
    to: &mut Registry,
    name: &'static str,
    help: &'static str,
    metric: M,
) {
    to.register_collector(Box::new(Declared { name, help, metric }));
}

/// Writes a gauge with a series for each set of labels; it is declared even where there is none.
///
/// # Errors
/// If the text takes no more.
pub fn gauges<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Writes a counter with a series for each set of labels; `name` is without `_total`.
///
/// # Errors
/// If the text takes no more.
pub fn counters<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in series {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Writes a gauge that has one series.
///
/// # Errors
/// If the text takes no more.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> fmt::Result {
    ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
}

/// Writes a counter that has one series; `name` is without `_total`.
///
/// # Errors
/// If the text takes no more.
pub fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)
}

/// A count as a gauge's value.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "no figure here is above 2^53, where it would be rounded")]
pub fn whole(count: u64) -> f64 {
    count as f64
}

/// A moment in seconds since 1970.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "milliseconds of this era are exact")]
pub fn seconds(wall: Wall) -> f64 {
    wall.unix_ms() as f64 / 1e3
}

/// Another daemon that this one is, or should be, connected with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name as the operator gave it: a control plane's, an edge's.
    pub name: String,
    /// The connection is up.
    pub up: bool,
    /// When anything was last heard of it, if that was since the start.
    pub heard: Option<Wall>,
}

/// Writes the peers of one kind (`control_plane` or `edge`).
///
/// # Errors
/// If the text takes no more.
pub fn peers(encoder: &mut DescriptorEncoder<'_>, kind: &str, peers: &[Peer]) -> fmt::Result {
    let labels = |peer: &Peer| [("peer", kind.to_owned()), ("name", peer.name.clone())];
    let up = peers.iter().map(|peer| (labels(peer), f64::from(u8::from(peer.up))));
    gauges(encoder, "umbel_peer_up", "Whether the connection with a peer is up", up)?;
    let heard = peers.iter().filter_map(|peer| Some((labels(peer), seconds(peer.heard?))));
    let help = "When anything was last heard of a peer; no series before the first word since the start";
    gauges(encoder, "umbel_peer_last_contact_timestamp_seconds", help, heard)
}

/// Writes when certificates of the daemon itself end; `name` is what each is for.
///
/// # Errors
/// If the text takes no more.
pub fn certificates<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    ends: impl IntoIterator<Item = (&'a str, Wall)>,
) -> fmt::Result {
    let series = ends.into_iter().map(|(name, end)| ([("cert", name)], seconds(end)));
    let name = "umbel_certificate_expiry_timestamp_seconds";
    gauges(encoder, name, "When a certificate of the daemon itself ends", series)
}

/// What became of changes of a daemon's settings since it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reloads {
    /// `site`: the site's settings document, which an edge keeps and its nodes get; `file`: the daemon's own file.
    pub scope: &'static str,
    /// Changes that took force.
    pub applied: u64,
    /// Changes that were refused or taken back.
    pub refused: u64,
}

/// Writes the version of the site's settings that is in force here, and what became of changes.
///
/// # Errors
/// If the text takes no more.
pub fn settings(encoder: &mut DescriptorEncoder<'_>, revision: u64, reloads: &[Reloads]) -> fmt::Result {
    let help = "Version of the site's settings that is in force here; 0 while there are none";
    gauges(encoder, "umbel_config_revision", help, [([("scope", "site")], whole(revision))])?;
    let help = "Changes of the site's settings, and of the daemon's file, that took force or were refused";
    let series = reloads.iter().flat_map(|of| {
        let labels = |result| [("scope", of.scope), ("result", result)];
        [(labels("ok"), of.applied), (labels("rejected"), of.refused)]
    });
    counters(encoder, "umbel_config_reload", help, series)
}

/// Writes the store's size and the time of its durable transactions: bounds and counts of buckets, the last of them
/// without a bound, and the sum in seconds.
///
/// # Errors
/// If the text takes no more.
pub fn store(
    encoder: &mut DescriptorEncoder<'_>,
    file: &std::path::Path,
    bounds: &[f64],
    counts: &[u64],
    sum: f64,
) -> fmt::Result {
    if let Ok(about) = std::fs::metadata(file) {
        gauge(encoder, "umbel_store_size_bytes", "Size of its store", whole(about.len()))?;
    }
    let help = "Time of durable transactions of its store";
    let mut series =
        encoder.encode_descriptor("umbel_store_commit_seconds", help, None, MetricType::Histogram)?;
    let ends = bounds.iter().copied().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = ends.zip(counts.iter().copied()).collect();
    series.encode_histogram::<NoLabelSet>(sum, counts.iter().sum(), &buckets, None)
}

#[cfg(test)]
mod tests;
