//! One model: its providers, its queue, its counts, and how fast it drains.
//!
//! Leaves every decision to [`super::Admission`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ProviderIndex;
use super::queue::Queue;

/// How many ends of leases the drain rate looks back on.
const LOOK_BACK: usize = 32;
/// A queue whose last end lies further back does not drain.
const STANDSTILL: Duration = Duration::from_secs(60);

/// What one queue looks like now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueFigures {
    /// The model.
    pub(crate) model: Arc<str>,
    /// Requests waiting.
    pub(crate) depth: usize,
    /// The bound of `depth`.
    pub(crate) limit: usize,
    /// How long the one that waits longest has waited.
    pub(crate) oldest: Duration,
    /// Leases granted since the start.
    pub(crate) admitted_total: u64,
    /// Requests refused since the start, for whatever reason of this queue.
    pub(crate) shed_total: u64,
    /// Leases held.
    pub(crate) in_flight: u32,
    /// Of those, the ones without a head from the engine.
    pub(crate) without_head: u32,
    /// Slots of all open providers.
    pub(crate) capacity: u32,
    /// Providers that may be given work.
    pub(crate) open_providers: u32,
    /// Providers that are wanted, there or not.
    pub(crate) wanted_providers: u32,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: Arc<str>,
    /// Of the provider that was declared first.
    pub(super) aliases: Vec<Arc<str>>,
    pub(super) providers: Vec<ProviderIndex>,
    pub(super) queue: Queue,
    pub(super) in_flight: u32,
    pub(super) streaming: u32,
    pub(super) open: u32,
    pub(super) wanted: u32,
    pub(super) loading: u32,
    pub(super) admitted_total: u64,
    pub(super) shed_total: u64,
    ends: VecDeque<Instant>,
}

impl Model {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            aliases: Vec::new(),
            providers: Vec::new(),
            queue: Queue::default(),
            in_flight: 0,
            streaming: 0,
            open: 0,
            wanted: 0,
            loading: 0,
            admitted_total: 0,
            shed_total: 0,
            ends: VecDeque::with_capacity(LOOK_BACK),
        }
    }

    pub(super) fn note_end(&mut self, now: Instant) {
        if self.ends.len() == LOOK_BACK {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
    }

    /// How long until a request at the end of the queue would be served; `None` while nothing drains.
    pub(super) fn time_to_drain(&self, now: Instant) -> Option<Duration> {
        let (first, last) = (self.ends.front()?, self.ends.back()?);
        if now.saturating_duration_since(*last) > STANDSTILL {
            return None;
        }
        let ends = u32::try_from(self.ends.len()).unwrap_or(u32::MAX).max(1);
        let spacing = now.saturating_duration_since(*first) / ends;
        let ahead = u32::try_from(self.queue.len()).unwrap_or(u32::MAX).saturating_add(1);
        Some(spacing.saturating_mul(ahead))
    }
}
