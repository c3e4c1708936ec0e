//! One reading of everything that waits and runs, for operators and for metrics.
//!
//! Owns what is told of it. Invariant: all of it is copied in one call, so that queues, providers, keys and leases of one
//! reading agree; the leases are counted one by one here and the counters that decisions are made by beside them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_wire::ids::NodeId;

use super::lease::{Lease, LeaseId, LeasePhase};
use super::model::QueueFigures;
use super::provider::Figures;
use super::waiting::Waiter;
use super::{Admission, Class, KeyNumber, LeaseCounts, ModelIndex};
use crate::core::providers::is_expected;

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The queues, in the order in which their models were first declared.
    pub(crate) queues: Vec<QueueReading>,
    /// Every lease held.
    pub(crate) leases: Vec<LeaseReading>,
}

/// One model's queue.
#[derive(Clone, Debug)]
pub(crate) struct QueueReading {
    /// The counters.
    pub(crate) figures: QueueFigures,
    /// Its leases, counted one by one; `waiting` is its waiters, counted the same way.
    pub(crate) leases: LeaseCounts,
    /// Providers that are on their way to be given work.
    pub(crate) loading: u32,
    /// How long the long one that waits longest has waited.
    pub(crate) oldest_long: Duration,
    /// Whose requests wait, the most first.
    pub(crate) keys: Vec<WaitingKey>,
    /// Its providers, in the order in which they were declared.
    pub(crate) providers: Providers,
}

/// Providers of one model: id, node, counts.
type Providers = Vec<(Arc<str>, NodeId, Figures)>;

/// The waiting requests of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingKey {
    /// Whose.
    pub(crate) key: KeyNumber,
    /// In which class.
    pub(crate) class: Class,
    /// How many.
    pub(crate) waiting: u32,
    /// The long ones of them.
    pub(crate) long: u32,
    /// How long the first of them has been waiting.
    pub(crate) oldest: Duration,
}

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseReading {
    /// Which.
    pub(crate) lease: LeaseId,
    /// Whose slot it is.
    pub(crate) provider_id: Arc<str>,
    /// The number of the request that was given it; 0 is none.
    pub(crate) request: u64,
    /// How far it is.
    pub(crate) phase: LeasePhase,
}

/// What a reading is made of, as it was at one moment. Copying it is all that holds admission up.
#[derive(Debug)]
pub(crate) struct Copied {
    leases: Vec<(ModelIndex, LeaseReading)>,
    waiters: Vec<(ModelIndex, bool, WaitingKey)>,
    queues: Vec<(QueueFigures, u32, Providers)>,
}

impl Admission {
    /// Copies everything at once.
    pub(crate) fn copied(&self, now: Instant) -> Copied {
        let lease = |(&lease, held): (&LeaseId, &Lease)| {
            let provider_id = &self.providers.get(held.provider.0 as usize)?.spec.provider_id;
            let (provider_id, request, phase) = (Arc::clone(provider_id), held.request, held.phase);
            Some((held.model, LeaseReading { lease, provider_id, request, phase }))
        };
        let waiter = |waiter: &Waiter| {
            let (ask, long) = (&waiter.ask, waiter.size.lane.long);
            let oldest = now.saturating_duration_since(waiter.arrived);
            let key =
                WaitingKey { key: ask.key, class: ask.class, waiting: 1, long: u32::from(long), oldest };
            (ask.model, long, key)
        };
        let queue = |figures: QueueFigures| {
            let model = self.models.get(figures.index.0 as usize)?;
            let providers = model.providers.iter().filter_map(|provider| {
                let provider = self.providers.get(provider.0 as usize)?;
                if is_expected(provider.spec.node_id) {
                    return None;
                }
                let figures = self.figures_of(provider)?;
                Some((Arc::clone(&provider.spec.provider_id), provider.spec.node_id, figures))
            });
            Some((figures, model.loading, providers.collect()))
        };
        Copied {
            leases: self.leases.iter().filter_map(lease).collect(),
            waiters: self.waiters.values().map(waiter).collect(),
            queues: self.queues(now).into_iter().filter_map(queue).collect(),
        }
    }
}

/// Of one model, counted one by one.
#[derive(Default)]
struct Counted {
    leases: LeaseCounts,
    oldest_long: Duration,
    keys: HashMap<(KeyNumber, Class), WaitingKey>,
}

impl Copied {
    /// The reading of it.
    pub(crate) fn told(self) -> Reading {
        let mut counted: HashMap<ModelIndex, Counted> = HashMap::new();
        let mut leases = Vec::with_capacity(self.leases.len());
        for (model, lease) in self.leases {
            let of = &mut counted.entry(model).or_default().leases;
            match lease.phase {
                LeasePhase::Granted => of.without_head += 1,
                LeasePhase::Streaming => of.streaming += 1,
                LeasePhase::Resetting(_) => of.resetting += 1,
                LeasePhase::Unconfirmed => of.unconfirmed += 1,
            }
            leases.push(lease);
        }
        leases.sort_unstable_by_key(|one| one.lease);
        for (model, long, one) in self.waiters {
            let of = counted.entry(model).or_default();
            of.leases.waiting += 1;
            if long {
                of.oldest_long = of.oldest_long.max(one.oldest);
            }
            let key =
                of.keys.entry((one.key, one.class)).or_insert(WaitingKey { waiting: 0, long: 0, ..one });
            key.waiting += 1;
            key.long += one.long;
            key.oldest = key.oldest.max(one.oldest);
        }
        let queues = self.queues.into_iter().map(|(figures, loading, providers)| {
            let Counted { leases, oldest_long, keys } = counted.remove(&figures.index).unwrap_or_default();
            let mut keys: Vec<WaitingKey> = keys.into_values().collect();
            keys.sort_unstable_by_key(|one| (std::cmp::Reverse(one.waiting), one.key.0));
            QueueReading { figures, leases, loading, oldest_long, keys, providers }
        });
        Reading { queues: queues.collect(), leases }
    }
}
