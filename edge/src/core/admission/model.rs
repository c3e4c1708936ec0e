//! One model: its providers, its queue, its counts, and how fast it drains.
//!
//! Leaves every decision to [`super::Admission`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::estimate::Ratio;
use super::lease::Phases;
use super::outliers::Heads;
use super::pool::Pool;
use super::queue::Queue;
use super::words::{ModelIndex, ProviderIndex, RefusalReason};

/// How many ends of leases the drain rate looks back on.
const LOOK_BACK: usize = 32;
/// A queue whose last end lies further back does not drain.
const STANDSTILL: Duration = Duration::from_secs(60);

/// What one queue looks like now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueFigures {
    /// The model.
    pub(crate) model: Arc<str>,
    /// Its index.
    pub(crate) index: ModelIndex,
    /// Requests waiting.
    pub(crate) depth: usize,
    /// Of those, the long ones.
    pub(crate) long_waiting: usize,
    /// The bound of `depth`.
    pub(crate) limit: usize,
    /// How long the one that waits longest has waited.
    pub(crate) oldest: Duration,
    /// Leases granted since the start.
    pub(crate) admitted_total: u64,
    /// Requests refused since the start, for whatever reason of this queue.
    pub(crate) shed_total: u64,
    /// Of those, by reason.
    pub(crate) shed: Shed,
    /// Leases held.
    pub(crate) in_flight: u32,
    /// Of those, the ones without a head from the engine.
    pub(crate) without_head: u32,
    /// Leases by phase.
    pub(crate) phases: Phases,
    /// Slots of all open providers.
    pub(crate) capacity: u32,
    /// Providers that may be given work, passed over ones included.
    pub(crate) open_providers: u32,
    /// Of those, the ones that are passed over since they fail or stall more than their peers.
    pub(crate) ejected_providers: u32,
    /// How often a slot came free of late; `None` while nothing drains.
    pub(crate) drains_every: Option<Duration>,
    /// Thousandths of a byte a token: how prompts are estimated.
    pub(crate) bytes_per_token: u64,
    /// Mean distance of the estimates from what engines reported, in thousandths of it; `None` before a report.
    pub(crate) estimate_error: Option<u64>,
    /// Providers that are wanted, there or not.
    pub(crate) wanted_providers: u32,
}

/// Refusals of one queue by reason, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shed {
    /// The queue was at its bound.
    pub(crate) queue_full: u64,
    /// They waited their time.
    pub(crate) queue_timeout: u64,
    /// The model was still loading.
    pub(crate) loading: u64,
    /// No provider came, or none was wanted.
    pub(crate) unavailable: u64,
    /// Their prompts were too long.
    pub(crate) too_long: u64,
    /// Their keys were revoked while they waited.
    pub(crate) key_revoked: u64,
}

impl Shed {
    pub(super) fn note(&mut self, reason: RefusalReason) {
        let count = match reason {
            RefusalReason::QueueFull { .. } => &mut self.queue_full,
            RefusalReason::WaitedTooLong(_) => &mut self.queue_timeout,
            RefusalReason::StillLoading(_) => &mut self.loading,
            RefusalReason::NoneCame(_) | RefusalReason::NoneWanted => &mut self.unavailable,
            RefusalReason::TooLong { .. } => &mut self.too_long,
            RefusalReason::KeyRevoked => &mut self.key_revoked,
        };
        *count += 1;
    }

    /// All of them.
    pub(crate) fn total(&self) -> u64 {
        self.queue_full
            + self.queue_timeout
            + self.loading
            + self.unavailable
            + self.too_long
            + self.key_revoked
    }
}

/// All models by index. A name keeps its index as long as anybody may hold it, so that the place of one that was forgotten
/// stays empty: eight bytes for each model that a site ever had.
#[derive(Debug, Default)]
pub(super) struct Models(Vec<Option<Box<Model>>>);

impl Models {
    pub(super) fn get(&self, at: usize) -> Option<&Model> {
        self.0.get(at)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Model> {
        self.0.get_mut(at)?.as_deref_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ModelIndex, &Model)> {
        (0u32..).zip(&self.0).filter_map(|(at, model)| Some((ModelIndex(at), model.as_deref()?)))
    }

    pub(super) fn add(&mut self, model: Model) -> ModelIndex {
        let index = ModelIndex(u32::try_from(self.0.len()).unwrap_or(u32::MAX));
        self.0.push(Some(Box::new(model)));
        index
    }

    pub(super) fn forget(&mut self, index: ModelIndex) -> Option<Box<Model>> {
        self.0.get_mut(index.0 as usize)?.take()
    }
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) name: Arc<str>,
    /// Of the provider that was declared first.
    pub(super) aliases: Vec<Arc<str>>,
    pub(super) providers: Vec<ProviderIndex>,
    /// From how many tokens a request is long; 0: never. Of all its providers.
    pub(super) long_threshold: u32,
    pub(super) pool: Pool,
    pub(super) queue: Queue,
    pub(super) ratio: Ratio,
    pub(super) heads: Heads,
    pub(super) in_flight: u32,
    pub(super) phases: Phases,
    pub(super) open: u32,
    pub(super) wanted: u32,
    pub(super) loading: u32,
    pub(super) admitted_total: u64,
    /// Open providers that are passed over.
    pub(super) passed_over: u32,
    pub(super) shed: Shed,
    ends: VecDeque<Instant>,
}

impl Model {
    pub(super) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            aliases: Vec::new(),
            providers: Vec::new(),
            long_threshold: 0,
            pool: Pool::default(),
            queue: Queue::default(),
            ratio: Ratio::default(),
            heads: Heads::default(),
            in_flight: 0,
            phases: Phases::default(),
            open: 0,
            wanted: 0,
            loading: 0,
            admitted_total: 0,
            passed_over: 0,
            shed: Shed::default(),
            ends: VecDeque::with_capacity(LOOK_BACK),
        }
    }

    /// Nobody declares it, and nothing waits for it or runs on it.
    pub(super) fn is_over(&self) -> bool {
        self.providers.is_empty() && self.queue.is_empty() && self.in_flight == 0
    }

    pub(super) fn note_end(&mut self, now: Instant) {
        if self.ends.len() == LOOK_BACK {
            self.ends.pop_front();
        }
        self.ends.push_back(now);
    }

    /// How often a slot came free of late; `None` while nothing drains.
    pub(super) fn drains_every(&self, now: Instant) -> Option<Duration> {
        let (first, last) = (self.ends.front()?, self.ends.back()?);
        if now.saturating_duration_since(*last) > STANDSTILL {
            return None;
        }
        let ends = u32::try_from(self.ends.len()).unwrap_or(u32::MAX).max(1);
        Some(now.saturating_duration_since(*first) / ends)
    }

    /// How long until a request at the end of the queue would be served; `None` while nothing drains.
    pub(super) fn time_to_drain(&self, now: Instant) -> Option<Duration> {
        let ahead = u32::try_from(self.queue.len()).unwrap_or(u32::MAX).saturating_add(1);
        Some(self.drains_every(now)?.saturating_mul(ahead))
    }
}
