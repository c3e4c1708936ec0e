//! Metrics of jobs: those that have not ended, what became of the others, how long they took.
//!
//! Owns names and help; leaves counting to `core/jobs`. Invariant: they are the table's own numbers at the moment of a scrape.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use umbel_contracts::daemon::exposition::{counter, counters, gauges, whole};

use crate::core::jobs::tally::{BUCKETS, KINDS};
use crate::shell::site::Site;

/// States of a job that has not ended.
const STATES: [&str; 3] = ["queued", "leased", "running"];

/// All jobs of a site.
pub(crate) struct Gauges {
    /// Weak: the metrics must not keep the site alive.
    pub(crate) site: Weak<Site>,
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(site) = self.site.upgrade() else { return Ok(()) };
        let (open, queued, tally) = {
            let table = site.jobs.table();
            (table.open_by_kind(), table.queued_since(), table.tally().clone())
        };
        let all = KINDS.into_iter().flat_map(|kind| STATES.map(|state| (kind, state)));
        let series = all.map(|(kind, state)| {
            ([("kind", kind), ("state", state)], whole(open.get(&(kind, state)).copied().unwrap_or(0)))
        });
        gauges(&mut encoder, "umbel_edge_jobs", "Jobs of nodes that have not ended", series)?;
        let now = site.wall().unix_ms();
        let waits = |kind| queued.get(kind).map_or(0, |since| now.saturating_sub(since.unix_ms()).max(0));
        let series =
            KINDS.into_iter().map(|kind| ([("kind", kind)], whole(waits(kind).unsigned_abs()) / 1_000.0));
        let help = "How long the one that waits longest for its node to have room has waited";
        gauges(&mut encoder, "umbel_edge_jobs_queued_seconds", help, series)?;
        let by = |label: &'static str| {
            move |((kind, word), count): (&(&'static str, &'static str), &u64)| {
                ([("kind", *kind), (label, *word)], *count)
            }
        };
        let help = "Jobs that came to their end since the start";
        counters(&mut encoder, "umbel_edge_jobs_ended", help, tally.ended.iter().map(by("outcome")))?;
        let help = "Attempts of jobs that came to nothing since the start, by what nodes called it";
        counters(&mut encoder, "umbel_edge_job_failures", help, tally.failures.iter().map(by("code")))?;
        let help = "Bytes that nodes fetched for artifacts since the start, of jobs that succeeded";
        counter(&mut encoder, "umbel_edge_artifact_fetched_bytes", help, tally.fetched_bytes)?;
        let help = "From the first lease of a job to its end";
        let name = "umbel_edge_job_duration_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (kind, told) in &tally.durations {
            let labels = [("kind", *kind)];
            let ends = BUCKETS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(told.counts).collect();
            let mut series = family.encode_family(&labels)?;
            series.encode_histogram::<NoLabelSet>(told.sum, told.counts.iter().sum(), &buckets, None)?;
        }
        Ok(())
    }
}
