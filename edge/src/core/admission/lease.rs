//! Provider leases: a slot of a provider held by one request.
//!
//! Owns what a lease is, its phases and its one end. Leaves whom a slot goes to to [`super::waiting`].
//!
//! ```text
//! granted --head--> streaming --+
//!    |                          +--reset--> resetting --5 s--> unconfirmed
//!    +--------------------------+               |                  |
//!    +---- terminal frame, generation cleared, or by hand, once ---+--> gone
//! ```
//!
//! One whose connection breaks beside a newer one of its node is `resetting` from then on: it ends when the node names
//! its leases without it, or with the node.

use std::sync::Arc;
use std::time::Instant;

use umbel_wire::ids::{Generation, NodeId};

use super::Admission;
use super::waiting::Timer;
use super::words::{ModelIndex, ProviderIndex, Released};

/// Names a lease at the edge and at the node. Not reused while the node can still carry an older one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LeaseId(pub(crate) u64);

/// How far a lease is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeasePhase {
    /// No head from the engine yet.
    Granted,
    /// The engine's answer flows.
    Streaming,
    /// The edge reset the stream and waits for the node's terminal frame until then.
    Resetting(Instant),
    /// The terminal frame did not come in time. The slot stays taken.
    Unconfirmed,
}

/// A slot of a provider held by one request.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) provider: ProviderIndex,
    pub(super) model: ModelIndex,
    pub(super) node: NodeId,
    pub(super) generation: Generation,
    pub(super) phase: LeasePhase,
    /// Its connection is lost beside a newer one of its node: no terminal frame can come any more.
    pub(super) orphan: bool,
    /// It takes one of the provider's long slots.
    pub(super) long: bool,
    /// What is expected of its head.
    pub(super) kind: usize,
    /// Its answer stands still, for much longer than it ever did before.
    pub(super) stalled: bool,
    pub(super) granted_at: Instant,
    /// The request's number in the ring.
    pub(super) request: u64,
}

/// Leases of one model by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Phases {
    /// Without a head from the engine.
    pub(crate) prefill: u32,
    /// Their answers flow.
    pub(crate) streaming: u32,
    /// Reset, to be confirmed.
    pub(crate) ending: u32,
    /// Their confirmation did not come in time.
    pub(crate) unconfirmed: u32,
}

impl Phases {
    pub(super) fn of(&mut self, phase: LeasePhase) -> &mut u32 {
        match phase {
            LeasePhase::Granted => &mut self.prefill,
            LeasePhase::Streaming => &mut self.streaming,
            LeasePhase::Resetting(_) => &mut self.ending,
            LeasePhase::Unconfirmed => &mut self.unconfirmed,
        }
    }
}

impl Admission {
    /// The engine's head arrived for this lease.
    pub(crate) fn streaming(&mut self, now: Instant, lease: LeaseId) {
        if self.phase(lease) == Some(LeasePhase::Granted)
            && let Some(held) = self.enter(lease, LeasePhase::Streaming)
        {
            self.head_settled(now, &held, true);
        }
    }

    /// The edge reset the stream of this lease: the node has the confirmation time to end it.
    pub(crate) fn resetting(&mut self, now: Instant, lease: LeaseId) {
        let Some(before @ (LeasePhase::Granted | LeasePhase::Streaming)) = self.phase(lease) else { return };
        let until = now + self.limits.confirm;
        if let Some(held) = self.enter(lease, LeasePhase::Resetting(until)) {
            self.timers.insert((until, Timer::Confirm(lease)));
            if before == LeasePhase::Granted {
                self.head_settled(now, &held, false);
            }
        }
    }

    /// The confirmation time of a reset lease is over.
    pub(super) fn not_confirmed(&mut self, lease: LeaseId) -> bool {
        if !matches!(self.phase(lease), Some(LeasePhase::Resetting(_))) {
            return false;
        }
        if let Some(held) = self.enter(lease, LeasePhase::Unconfirmed)
            && let Some(provider) = self.providers.get_mut(held.provider.0 as usize)
        {
            provider.unconfirmed += 1;
        }
        true
    }

    /// Gives a lease another phase, and counts it there.
    fn enter(&mut self, lease: LeaseId, phase: LeasePhase) -> Option<Lease> {
        let held = self.leases.get_mut(&lease)?;
        let before = std::mem::replace(&mut held.phase, phase);
        if let Some(model) = self.models.get_mut(held.model.0 as usize) {
            for phases in [&mut model.phases, &mut self.phases] {
                *phases.of(before) = phases.of(before).saturating_sub(1);
                *phases.of(phase) += 1;
            }
        }
        Some(held.clone())
    }

    /// Ends a lease: its stream's terminal frame came, or it was never used. The slot goes to the best waiter.
    /// False if it had ended before, which changes nothing.
    pub(crate) fn end(&mut self, now: Instant, lease: LeaseId) -> bool {
        let Some(model) = self.drop_lease(now, lease) else { return false };
        self.hand_over(now, model);
        true
    }

    /// Takes the lease out of all counts, without handing its slot over.
    fn drop_lease(&mut self, now: Instant, lease: LeaseId) -> Option<ModelIndex> {
        let held = self.leases.remove(&lease)?;
        if let LeasePhase::Resetting(until) = held.phase {
            self.timers.remove(&(until, Timer::Confirm(lease)));
        }
        if let Some(model) = self.models.get_mut(held.model.0 as usize) {
            model.in_flight = model.in_flight.saturating_sub(1);
            for phases in [&mut model.phases, &mut self.phases] {
                *phases.of(held.phase) = phases.of(held.phase).saturating_sub(1);
            }
            model.note_end(now);
        }
        if let Some(provider) = self.providers.get_mut(held.provider.0 as usize) {
            provider.in_flight = provider.in_flight.saturating_sub(1);
            provider.long_in_flight = provider.long_in_flight.saturating_sub(u32::from(held.long));
            let unconfirmed = u32::from(held.phase == LeasePhase::Unconfirmed);
            provider.unconfirmed = provider.unconfirmed.saturating_sub(unconfirmed);
            if let Some(model) = self.models.get_mut(provider.model.0 as usize) {
                model.pool.set(held.provider, provider.seat, provider.room());
            }
        }
        if held.stalled {
            self.stall_over(held.provider);
        }
        if let Some(node) = self.nodes.get_mut(&held.node) {
            node.in_flight = node.in_flight.saturating_sub(1);
            if node.is_over() {
                self.nodes.remove(&held.node);
            }
        }
        if held.phase == LeasePhase::Granted {
            self.head_settled(now, &held, false);
        }
        self.try_over(now, lease, held.provider);
        Some(held.model)
    }

    /// Ends an unconfirmed lease by hand.
    pub(crate) fn release(&mut self, now: Instant, lease: LeaseId) -> Released {
        match self.phase(lease) {
            None => Released::Unknown,
            Some(LeasePhase::Unconfirmed) => {
                self.end(now, lease);
                Released::Free
            }
            Some(_) => Released::NotUnconfirmed,
        }
    }

    /// How far a lease is; `None` once it ended.
    pub(crate) fn phase(&self, lease: LeaseId) -> Option<LeasePhase> {
        self.leases.get(&lease).map(|held| held.phase)
    }

    /// Whether the loss of a lease's connection was told before: it has ended, or waits for its node's word.
    pub(crate) fn lost_before(&self, lease: LeaseId) -> bool {
        self.leases.get(&lease).is_none_or(|held| held.orphan)
    }

    /// The provider of a lease that is held.
    pub(crate) fn provider_of(&self, lease: LeaseId) -> Option<&Arc<str>> {
        let held = self.leases.get(&lease)?;
        self.providers.get(held.provider.0 as usize).map(|provider| &provider.spec.provider_id)
    }

    /// Leases whose end is not confirmed, with their providers.
    #[cfg(test)]
    pub(crate) fn unconfirmed(&self) -> Vec<(LeaseId, Arc<str>)> {
        let unconfirmed = self.leases.iter().filter(|(_, held)| held.phase == LeasePhase::Unconfirmed);
        let mut list: Vec<_> = unconfirmed
            .filter_map(|(lease, held)| {
                Some((*lease, Arc::clone(&self.providers.get(held.provider.0 as usize)?.spec.provider_id)))
            })
            .collect();
        list.sort_unstable();
        list
    }
}
