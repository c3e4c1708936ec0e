//! What runs, since when, and its process: the same for every daemon.
//!
//! Leaves peers, settings and store to the daemon's own collector. Invariant: everything is read when it is asked for.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use umbel_wire::clock::Wall;

use super::{gauge, gauges, seconds};
use crate::daemon::{BUILD, process_figures};

/// The daemon's build, start and process.
#[derive(Debug)]
pub struct Vitals {
    role: &'static str,
    started: Wall,
}

impl Vitals {
    /// Of a daemon that starts now: `control_plane`, `edge` or `node`.
    #[must_use]
    pub fn new(role: &'static str) -> Self {
        Self { role, started: Wall::now() }
    }
}

impl Collector for Vitals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let [version, revision, rustc] = BUILD;
        let labels = [version, revision, rustc, ("role", self.role)];
        gauges(&mut encoder, "umbel_build_info", "What runs", [(labels, 1.0)])?;
        let name = "umbel_start_timestamp_seconds";
        gauge(&mut encoder, name, "When it was started", seconds(self.started))?;
        for figure in process_figures() {
            if figure.is_counter {
                let series =
                    encoder.encode_descriptor(figure.name, figure.help, None, MetricType::Counter)?;
                ConstCounter::new(figure.value).encode(series)?;
            } else {
                gauge(&mut encoder, figure.name, figure.help, figure.value)?;
            }
        }
        Ok(())
    }
}
