//! Waiting: queueing, hand-over of freed slots, and what time does to those who wait.
//!
//! Owns the life of a waiter between [`Decision::Waiting`] and its one output or its withdrawal.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::Admission;
use super::choice::Size;
use super::lease::LeaseId;
use super::queue::{KeyNumber, Spot, Ticket, Who};
use super::words::{Ask, Decision, ModelIndex, Output, ProviderIndex, Refusal, RefusalReason};

/// What a deadline is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A waiter has waited its time.
    Wait(Ticket),
    /// A reset lease should have been confirmed.
    Confirm(LeaseId),
    /// A waiter has looked for another provider long enough.
    Again(Ticket),
    /// Silent providers of a model are looked for.
    Look(ModelIndex),
    /// A provider that is passed over may be tried again.
    Retry(ProviderIndex),
}

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) ask: Ask,
    pub(super) size: Size,
    pub(super) arrived: Instant,
    until: Instant,
    /// Until then it does not go back to the provider that it avoids.
    elsewhere_until: Option<Instant>,
}

/// How long a request that comes back waits for another provider than the one that refused it: where there is no other, or
/// none comes free, the same one is tried again. An engine that was started anew takes about that long.
const ELSEWHERE: Duration = Duration::from_secs(1);

impl Waiter {
    fn spot(&self) -> Spot {
        let who = if self.ask.at_head || self.ask.avoid.is_some() {
            Who::Again(self.ask.avoid)
        } else {
            Who::Key(self.ask.key)
        };
        Spot { class: self.ask.class, who, lane: self.size.lane }
    }
}

impl Admission {
    pub(super) fn wait(&mut self, now: Instant, ask: &Ask, size: Size) -> Decision {
        let limit = self.limits.waiting;
        let ticket = Ticket(self.next_ticket);
        let Some(model) = self.models.get_mut(ask.model.0 as usize) else {
            return Decision::Refused(Refusal { reason: RefusalReason::NoneWanted, retry_after: None });
        };
        if model.queue.len() >= limit && !ask.at_head {
            let contended = model.open > 0;
            let reason = RefusalReason::QueueFull { limit, contended };
            return Decision::Refused(self.refuse(now, ask.model, reason));
        }
        self.next_ticket += 1;
        let until = now + self.limits.max_wait;
        let elsewhere_until = ask.avoid.map(|_| now + ELSEWHERE);
        self.timers.extend(elsewhere_until.map(|at| (at, Timer::Again(ticket))));
        let waiter = Waiter { ask: ask.clone(), size, arrived: now, until, elsewhere_until };
        model.queue.push(now, waiter.spot(), ticket);
        self.timers.insert((until, Timer::Wait(ticket)));
        self.waiters.insert(ticket, waiter);
        Decision::Waiting(ticket)
    }

    /// The client of a waiting request is gone. False if it no longer waits.
    pub(crate) fn withdraw(&mut self, ticket: Ticket) -> bool {
        let Some(waiter) = self.leave(ticket) else { return false };
        if let Some(model) = self.models.get_mut(waiter.ask.model.0 as usize) {
            model.queue.remove(waiter.spot(), ticket);
        }
        true
    }

    /// Takes a waiter out of everything but its queue.
    fn leave(&mut self, ticket: Ticket) -> Option<Waiter> {
        let waiter = self.waiters.remove(&ticket)?;
        self.timers.remove(&(waiter.until, Timer::Wait(ticket)));
        if let Some(at) = waiter.elsewhere_until {
            self.timers.remove(&(at, Timer::Again(ticket)));
        }
        Some(waiter)
    }

    /// Gives free slots of a model to those who wait, best first, until no one who fits is left.
    pub(super) fn hand_over(&mut self, now: Instant, index: ModelIndex) {
        self.seat(now, index);
        if self.has_planted("a freed slot is given to nobody") {
            return;
        }
        while let Some(ticket) = self.next_waiter(now, index) {
            let Some(waiter) = self.leave(ticket) else { return };
            let cost = self.cost(waiter.size);
            let Some(model) = self.models.get_mut(index.0 as usize) else { return };
            model.queue.serve(now, waiter.spot(), ticket, cost);
            let waited = now.saturating_duration_since(waiter.arrived);
            match self.grant(now, &waiter.ask, waiter.size, waited) {
                Some(grant) => self.outputs.push_back(Output::Granted(ticket, grant)),
                None => return,
            }
        }
    }

    fn next_waiter(&self, now: Instant, index: ModelIndex) -> Option<Ticket> {
        let model = self.models.get(index.0 as usize)?;
        if model.queue.is_empty() || model.open == 0 {
            return None;
        }
        model.queue.next(now, |lane, avoid| self.is_free(index, lane, avoid))
    }

    /// Refuses everyone who waits for providers of which none is wanted any more.
    pub(super) fn refuse_unwanted(&mut self, now: Instant, index: ModelIndex) {
        let Some(model) = self.models.get(index.0 as usize) else { return };
        if model.queue.is_empty() {
            return;
        }
        let unwanted = model.queue.lanes().filter(|lane| model.wanted == 0 || !model.pool.is_wanted(*lane));
        let mut tickets: Vec<Ticket> = unwanted.flat_map(|lane| model.queue.tickets_of(lane)).collect();
        tickets.sort_unstable();
        for ticket in tickets {
            self.refuse_waiter(now, index, ticket, RefusalReason::NoneWanted);
        }
    }

    /// Refuses all that a key has waiting: it was revoked.
    pub(crate) fn refuse_key(&mut self, now: Instant, key: KeyNumber) {
        let of_key = self.waiters.iter().filter(|(_, waiter)| waiter.ask.key == key);
        let mut tickets: Vec<_> = of_key.map(|(ticket, waiter)| (*ticket, waiter.ask.model)).collect();
        tickets.sort_unstable();
        for (ticket, model) in tickets {
            self.refuse_waiter(now, model, ticket, RefusalReason::KeyRevoked);
        }
    }

    /// Refuses all that waits: the edge ends.
    pub(crate) fn refuse_all(&mut self, now: Instant) {
        let mut tickets: Vec<_> =
            self.waiters.iter().map(|(ticket, waiter)| (*ticket, waiter.ask.model)).collect();
        tickets.sort_unstable();
        for (ticket, model) in tickets {
            self.refuse_waiter(now, model, ticket, RefusalReason::NoneWanted);
        }
    }

    pub(super) fn refuse_waiter(
        &mut self,
        now: Instant,
        index: ModelIndex,
        ticket: Ticket,
        reason: RefusalReason,
    ) {
        if self.withdraw(ticket) {
            let refusal = self.refuse(now, index, reason);
            self.outputs.push_back(Output::Refused(ticket, refusal));
        }
    }

    /// Counts a refusal and says when trying again makes sense.
    pub(super) fn refuse(&mut self, now: Instant, index: ModelIndex, reason: RefusalReason) -> Refusal {
        let Some(model) = self.models.get_mut(index.0 as usize) else {
            return Refusal { reason, retry_after: None };
        };
        model.shed.note(reason);
        let retry_after = match reason {
            RefusalReason::QueueFull { contended: true, .. } | RefusalReason::WaitedTooLong(_) => {
                model.time_to_drain(now)
            }
            _ => None,
        };
        Refusal { reason, retry_after }
    }

    /// Applies all deadlines up to `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<LeaseId> {
        let (mut unconfirmed, mut gone_back) = (Vec::new(), BTreeSet::new());
        while let Some(&(at, timer)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Wait(ticket) => self.waited_its_time(now, ticket),
                Timer::Confirm(lease) => unconfirmed.extend(self.not_confirmed(lease).then_some(lease)),
                Timer::Again(ticket) => gone_back.extend(self.go_back(now, ticket)),
                Timer::Look(model) => self.look(now, model),
                Timer::Retry(provider) => self.retry(now, provider),
            }
        }
        // Once all are in their lines: who is first of them does not depend on whose time was over first.
        for model in gone_back {
            self.hand_over(now, model);
        }
        unconfirmed
    }

    /// Nobody else took it: from now on the provider that it avoided may. Gives its model.
    fn go_back(&mut self, now: Instant, ticket: Ticket) -> Option<ModelIndex> {
        let waiter = self.waiters.get_mut(&ticket)?;
        let before = waiter.spot();
        (waiter.ask.avoid, waiter.elsewhere_until) = (None, None);
        let (after, index) = (waiter.spot(), waiter.ask.model);
        if let Some(model) = self.models.get_mut(index.0 as usize) {
            // In this order: a queue that is empty for a moment would forget everybody's turns.
            model.queue.push(now, after, ticket);
            model.queue.remove(before, ticket);
        }
        Some(index)
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
            let fits = |seat| model.pool.fits(waiter.size.lane, seat);
            provider.is_some_and(|one| one.open && fits(one.seat) && !avoided(one.opened))
        });
        let waited = now.saturating_duration_since(waiter.arrived);
        let reason = match (contended, loading) {
            (true, _) => RefusalReason::WaitedTooLong(waited),
            (false, true) => RefusalReason::StillLoading(waited),
            (false, false) => RefusalReason::NoneCame(waited),
        };
        self.refuse_waiter(now, index, ticket, reason);
    }

    /// How long the one that waits longest for a model has waited.
    pub(super) fn oldest(&self, now: Instant, index: ModelIndex) -> Duration {
        let Some(model) = self.models.get(index.0 as usize) else { return Duration::ZERO };
        let arrived = model.queue.tickets().filter_map(|ticket| Some(self.waiters.get(&ticket)?.arrived));
        arrived.min().map_or(Duration::ZERO, |arrived| now.saturating_duration_since(arrived))
    }
}
