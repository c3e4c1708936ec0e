//! Waiting: queueing, hand-over of freed slots, and what time does to those who wait.
//!
//! Owns the life of a waiter between [`Decision::Waiting`] and its one output or its withdrawal.

use std::time::{Duration, Instant};

use super::lease::{LeaseId, LeasePhase};
use super::queue::{FlowId, Ticket};
use super::{Admission, Ask, Decision, ModelIndex, Output, Refusal, RefusalReason, choice};

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A waiter has waited its time.
    Wait(Ticket),
    /// A reset lease should have been confirmed.
    Confirm(LeaseId),
}

#[derive(Debug)]
pub(super) struct Waiter {
    ask: Ask,
    flow: FlowId,
    pub(super) arrived: Instant,
    until: Instant,
}

impl Waiter {
    /// What it asked for.
    pub(super) fn ask(&self) -> &Ask {
        &self.ask
    }
}

#[cfg(test)]
impl Waiter {
    pub(super) fn avoids_nothing(&self) -> bool {
        self.ask.avoid.is_none()
    }
}

impl Admission {
    pub(super) fn wait(&mut self, now: Instant, ask: &Ask) -> Decision {
        let limit = self.limits.waiting;
        let ticket = Ticket(self.next_ticket);
        let Some(model) = self.models.get_mut(ask.model.0 as usize) else {
            return Decision::Refused(Refusal { reason: RefusalReason::NoneWanted, retry_after: None });
        };
        if model.queue.len() >= limit && !ask.at_head {
            let contended = model.open > 0;
            return Decision::Refused(self.refuse(
                now,
                ask.model,
                RefusalReason::QueueFull { limit, contended },
            ));
        }
        self.next_ticket += 1;
        let flow = if ask.at_head { FlowId::at_head(ask.class) } else { FlowId::of_key(ask.class, ask.key) };
        model.queue.push(flow, ticket);
        let until = now + self.limits.max_wait;
        self.timers.insert((until, Timer::Wait(ticket)));
        self.waiters.insert(ticket, Waiter { ask: ask.clone(), flow, arrived: now, until });
        Decision::Waiting(ticket)
    }

    /// The client of a waiting request is gone. False if it no longer waits.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        self.unqueue(ticket, false).is_some()
    }

    fn unqueue(&mut self, ticket: Ticket, served: bool) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.timers.remove(&(waiter.until, Timer::Wait(ticket)));
        if let Some(model) = self.models.get_mut(waiter.ask.model.0 as usize) {
            if served {
                model.queue.serve(waiter.flow, ticket);
            } else {
                model.queue.remove(waiter.flow, ticket);
            }
        }
        Some(waiter)
    }

    /// Gives free slots of a model to those who wait, best first, until no one who fits is left.
    pub(super) fn hand_over(&mut self, now: Instant, index: ModelIndex) {
        while let Some((ticket, provider)) = self.best_waiter(index) {
            let Some(waiter) = self.unqueue(ticket, true) else { return };
            let waited = now.saturating_duration_since(waiter.arrived);
            match self.grant(provider, waited) {
                Some(grant) => self.outputs.push_back(Output::Granted(ticket, grant)),
                None => return,
            }
        }
    }

    fn best_waiter(&self, index: ModelIndex) -> Option<(Ticket, super::ProviderIndex)> {
        let model = self.models.get(index.0 as usize)?;
        if model.queue.is_empty() || model.open == 0 {
            return None;
        }
        let best = choice::choose(&model.providers, &self.providers, None)?;
        model.queue.candidates().find_map(|ticket| match self.waiters.get(&ticket)?.ask.avoid {
            None => Some((ticket, best)),
            avoid => Some((ticket, choice::choose(&model.providers, &self.providers, avoid)?)),
        })
    }

    /// Refuses everyone who waits for a model that nobody is wanted to serve any more.
    pub(super) fn refuse_unwanted(&mut self, now: Instant, index: ModelIndex) {
        let Some(model) = self.models.get(index.0 as usize) else { return };
        if model.wanted > 0 || model.queue.is_empty() {
            return;
        }
        let mut tickets: Vec<Ticket> = model.queue.tickets().collect();
        tickets.sort_unstable();
        for ticket in tickets {
            self.unqueue(ticket, false);
            let refusal = self.refuse(now, index, RefusalReason::NoneWanted);
            self.outputs.push_back(Output::Refused(ticket, refusal));
        }
    }

    /// Counts a refusal and says when trying again makes sense.
    pub(super) fn refuse(&mut self, now: Instant, index: ModelIndex, reason: RefusalReason) -> Refusal {
        let Some(model) = self.models.get_mut(index.0 as usize) else {
            return Refusal { reason, retry_after: None };
        };
        model.shed_total += 1;
        let retry_after = match reason {
            RefusalReason::QueueFull { contended: true, .. } | RefusalReason::WaitedTooLong(_) => {
                model.time_to_drain(now)
            }
            _ => None,
        };
        Refusal { reason, retry_after }
    }

    /// Applies all deadlines up to `now`.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                return;
            }
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Wait(ticket) => self.waited_its_time(now, ticket),
                Timer::Confirm(lease) => self.not_confirmed(lease),
            }
        }
    }

    fn waited_its_time(&mut self, now: Instant, ticket: Ticket) {
        let (max_wait, max_loading) = (self.limits.max_wait, self.limits.max_wait_loading);
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        let index = waiter.ask.model;
        let Some(model) = self.models.get(index.0 as usize) else { return };
        let loading = model.open == 0 && model.loading > 0;
        let longest = waiter.arrived + max_loading.max(max_wait);
        if loading && longest > now {
            waiter.until = longest;
            self.timers.insert((longest, Timer::Wait(ticket)));
            return;
        }
        // A provider that it must not go back to is no capacity for it.
        let contended = model.providers.iter().any(|index| {
            let provider = self.providers.get(index.0 as usize);
            let avoided = |opened| waiter.ask.avoid.is_some_and(|avoid| avoid.applies(*index, opened));
            provider.is_some_and(|provider| provider.open && !avoided(provider.opened))
        });
        let waited = now.saturating_duration_since(waiter.arrived);
        let reason = match (contended, loading) {
            (true, _) => RefusalReason::WaitedTooLong(waited),
            (false, true) => RefusalReason::StillLoading(waited),
            (false, false) => RefusalReason::NoneCame(waited),
        };
        self.unqueue(ticket, false);
        let refusal = self.refuse(now, index, reason);
        self.outputs.push_back(Output::Refused(ticket, refusal));
    }

    fn not_confirmed(&mut self, lease: LeaseId) {
        let Some(held) = self.leases.get_mut(&lease) else { return };
        if !matches!(held.phase, LeasePhase::Resetting(_)) {
            return;
        }
        held.phase = LeasePhase::Unconfirmed;
        self.unconfirmed += 1;
        if let Some(provider) = self.providers.get_mut(held.provider.0 as usize) {
            provider.unconfirmed += 1;
        }
    }

    /// How long the one that waits longest for a model has waited.
    pub(super) fn oldest(&self, now: Instant, index: ModelIndex) -> Duration {
        let Some(model) = self.models.get(index.0 as usize) else { return Duration::ZERO };
        let arrived = model.queue.tickets().filter_map(|ticket| Some(self.waiters.get(&ticket)?.arrived));
        arrived.min().map_or(Duration::ZERO, |arrived| now.saturating_duration_since(arrived))
    }
}
