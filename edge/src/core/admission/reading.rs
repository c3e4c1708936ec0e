//! One reading of everything that waits and runs, for operators and for metrics.
//!
//! Owns what is told of it. Invariant: all of it is read in one call, so that queues, providers, keys and leases of one
//! reading agree; the leases are counted one by one here and the counters that decisions are made by beside them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_wire::ids::NodeId;

use super::lease::{LeaseId, LeasePhase};
use super::model::QueueFigures;
use super::provider::Figures;
use super::{Admission, Class, KeyNumber, LeaseCounts, ModelIndex};

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
    pub(crate) providers: Vec<(Arc<str>, NodeId, Figures)>,
}

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

impl Admission {
    /// Reads everything at once.
    pub(crate) fn reading(&self, now: Instant) -> Reading {
        let mut counts: HashMap<ModelIndex, LeaseCounts> = HashMap::new();
        let mut leases = Vec::with_capacity(self.leases.len());
        for (&lease, held) in &self.leases {
            let of = counts.entry(held.model).or_default();
            match held.phase {
                LeasePhase::Granted => of.without_head += 1,
                LeasePhase::Streaming => of.streaming += 1,
                LeasePhase::Resetting(_) => of.resetting += 1,
                LeasePhase::Unconfirmed => of.unconfirmed += 1,
            }
            let provider_id = self.providers.get(held.provider.0 as usize);
            let provider_id = provider_id.map(|provider| Arc::clone(&provider.spec.provider_id));
            let provider_id = provider_id.unwrap_or_else(|| Arc::from(""));
            leases.push(LeaseReading { lease, provider_id, request: held.request, phase: held.phase });
        }
        leases.sort_unstable_by_key(|one| one.lease);
        let mut keys: HashMap<(ModelIndex, KeyNumber, Class), WaitingKey> = HashMap::new();
        let mut oldest_long: HashMap<ModelIndex, Duration> = HashMap::new();
        for waiter in self.waiters.values() {
            let (ask, waited) = (&waiter.ask, now.saturating_duration_since(waiter.arrived));
            counts.entry(ask.model).or_default().waiting += 1;
            let new = WaitingKey { key: ask.key, class: ask.class, waiting: 0, long: 0, oldest: waited };
            let of = keys.entry((ask.model, ask.key, ask.class)).or_insert(new);
            of.waiting += 1;
            if waiter.size.lane.long {
                of.long += 1;
                let oldest = oldest_long.entry(ask.model).or_default();
                *oldest = waited.max(*oldest);
            }
            of.oldest = of.oldest.max(waited);
        }
        let queues = self.queues(now).into_iter().filter_map(|figures| {
            let index = *self.canonical.get(&figures.model)?;
            let mut keys: Vec<_> = keys.iter().filter(|(of, _)| of.0 == index).map(|(_, key)| *key).collect();
            keys.sort_unstable_by_key(|one| (std::cmp::Reverse(one.waiting), one.key.0));
            let model = self.models.get(index.0 as usize)?;
            let providers = model.providers.iter().filter_map(|provider| {
                let spec = &self.providers.get(provider.0 as usize)?.spec;
                Some((Arc::clone(&spec.provider_id), spec.node_id, self.figures(&spec.provider_id)?))
            });
            let leases = counts.get(&index).copied().unwrap_or_default();
            Some(QueueReading {
                figures,
                leases,
                loading: model.loading,
                oldest_long: oldest_long.get(&index).copied().unwrap_or_default(),
                keys,
                providers: providers.collect(),
            })
        });
        Reading { queues: queues.collect(), leases }
    }
}
