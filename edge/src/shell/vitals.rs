//! Metrics of the edge itself: what runs, since when, its links, certificates, settings and store, and its process.
//!
//! Leaves requests to [`crate::metrics`], queues to `dispatch`, nodes to [`super::gauges`]. Invariant: everything is read
//! when it is asked for; names of control planes and certificates are the operator's own, never a peer's.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use umbel_contracts::daemon::{BUILD, process_figures};
use umbel_store::COMMIT_BUCKETS;
use umbel_wire::clock::Wall;

use super::site::Site;
use crate::app::STORE_FILE;

/// The edge itself.
pub(crate) struct Vitals {
    /// Weak: the metrics must not keep the site alive.
    site: Weak<Site>,
    started: Wall,
}

impl Vitals {
    /// Of a site that starts now.
    pub(crate) fn new(site: Weak<Site>) -> Self {
        Self { site, started: Wall::now() }
    }
}

impl fmt::Debug for Vitals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vitals")
    }
}

/// Milliseconds of the wall clock in seconds.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of this era are exact")]
fn seconds(wall: Wall) -> f64 {
    wall.unix_ms() as f64 / 1e3
}

impl Collector for Vitals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "What runs";
        let mut family = encoder.encode_descriptor("umbel_build_info", help, None, MetricType::Gauge)?;
        let [version, revision, rustc] = BUILD;
        let labels = [version, revision, rustc, ("role", "edge")];
        ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        let help = "When it was started";
        let started =
            encoder.encode_descriptor("umbel_start_timestamp_seconds", help, None, MetricType::Gauge)?;
        ConstGauge::new(seconds(self.started)).encode(started)?;
        for figure in process_figures() {
            let kind = if figure.is_counter { MetricType::Counter } else { MetricType::Gauge };
            let series = encoder.encode_descriptor(figure.name, figure.help, None, kind)?;
            if figure.is_counter {
                ConstCounter::new(figure.value).encode(series)?;
            } else {
                ConstGauge::new(figure.value).encode(series)?;
            }
        }
        let Some(site) = self.site.upgrade() else { return Ok(()) };
        settings(&mut encoder, &site)?;
        peers(&mut encoder, &site)?;
        store(&mut encoder, &site)
    }
}

fn settings(encoder: &mut DescriptorEncoder<'_>, site: &Site) -> Result<(), fmt::Error> {
    let help = "Version of the settings in force";
    let mut family = encoder.encode_descriptor("umbel_config_revision", help, None, MetricType::Gauge)?;
    ConstGauge::new(site.settings.version()).encode(family.encode_family(&[("scope", "site")])?)
}

fn peers(encoder: &mut DescriptorEncoder<'_>, site: &Site) -> Result<(), fmt::Error> {
    let ends = site.expiries.ends();
    let help = "Whether a control plane is connected";
    let mut family = encoder.encode_descriptor("umbel_peer_up", help, None, MetricType::Gauge)?;
    for name in ends.iter().filter_map(|(name, _)| name.strip_prefix("control-plane/")) {
        let labels = [("peer", "control_plane"), ("name", name)];
        ConstGauge::new(i64::from(site.events.is_linked(name))).encode(family.encode_family(&labels)?)?;
    }
    let help = "When a certificate of the edge itself ends";
    let name = "umbel_certificate_expiry_timestamp_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (name, end) in &ends {
        ConstGauge::new(seconds(*end)).encode(family.encode_family(&[("cert", name.as_str())])?)?;
    }
    Ok(())
}

fn store(encoder: &mut DescriptorEncoder<'_>, site: &Site) -> Result<(), fmt::Error> {
    let file = site.settings.in_force().state_dir.join(STORE_FILE);
    if let Ok(about) = std::fs::metadata(file) {
        let help = "Size of its store";
        let size = encoder.encode_descriptor("umbel_store_size_bytes", help, None, MetricType::Gauge)?;
        ConstGauge::new(about.len()).encode(size)?;
    }
    let help = "Time of durable transactions of its store";
    let mut series =
        encoder.encode_descriptor("umbel_store_commit_seconds", help, None, MetricType::Histogram)?;
    let times = site.store.commit_times();
    let ends = COMMIT_BUCKETS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = ends.zip(times.counts).collect();
    series.encode_histogram::<NoLabelSet>(times.sum, times.counts.iter().sum(), &buckets, None)
}
