//! Which provider a request goes to.
//!
//! Owns the rule: where its prompt's beginning was seen last, as long as that provider stays within a quarter above its
//! share of the load, else the least loaded by leases a slot. Leaves who is a candidate to [`super::pool`].

use std::time::Instant;

use super::Admission;
use super::pool::Lane;
use super::prefix::Prefix;
use super::words::{Avoid, ModelIndex, ProviderIndex, RefusalReason};

/// A request as its slot has to fit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) tokens: u64,
    pub(super) lane: Lane,
}

impl Size {
    /// What it costs its key in virtual time.
    pub(super) fn cost(self) -> u64 {
        self.tokens.max(1)
    }
}

impl Admission {
    /// How a request of so many bytes has to be fitted.
    ///
    /// # Errors
    /// If no provider of the model takes prompts as long as that.
    pub(super) fn size(&self, index: ModelIndex, prompt_bytes: u64) -> Result<Size, RefusalReason> {
        let none = RefusalReason::NoneWanted;
        let model = self.models.get(index.0 as usize).ok_or(none)?;
        let tokens = model.ratio.tokens(prompt_bytes);
        self.lane(index, tokens).map(|lane| Size { tokens, lane })
    }

    pub(super) fn lane(&self, index: ModelIndex, tokens: u64) -> Result<Lane, RefusalReason> {
        let model = self.models.get(index.0 as usize).ok_or(RefusalReason::NoneWanted)?;
        let threshold = u64::from(model.long_threshold);
        let long = threshold > 0 && tokens > threshold;
        model.pool.lane(tokens, long).map_err(|limit| {
            // Without a long slot anywhere the threshold is what bounds a prompt.
            let limit = if limit == 0 { threshold } else { limit };
            RefusalReason::TooLong { estimated: tokens, limit }
        })
    }

    /// The provider for a request, and whether its prefix was seen there; `None` if no slot fits it now.
    pub(super) fn choose(
        &self,
        index: ModelIndex,
        lane: Lane,
        avoid: Option<Avoid>,
        prefix: &Prefix,
    ) -> Option<(ProviderIndex, bool)> {
        let pool = &self.models.get(index.0 as usize)?.pool;
        let but = self.avoided_seat(avoid);
        let least = pool.least_loaded(lane, but)?;
        let seen = self.seen.by(index, prefix.hashes(), |provider, opened| {
            let known = self.providers.get(provider.0 as usize);
            known.is_some_and(|known| known.open && known.opened == opened && known.model == index)
        });
        let seat = |provider: ProviderIndex| self.providers.get(provider.0 as usize).map(|known| known.seat);
        if let Some(provider) = seen
            && let Some(seat) = seat(provider)
            && Some(seat) != but
            && pool.has_room(lane, seat)
            && pool.is_within_bound(seat)
        {
            return Some((provider, true));
        }
        Some((least, false))
    }

    /// The seat of a provider that is still to be avoided.
    fn avoided_seat(&self, avoid: Option<Avoid>) -> Option<usize> {
        let avoid = avoid?;
        let provider = self.providers.get(avoid.provider.0 as usize)?;
        avoid.applies(avoid.provider, provider.opened).then_some(provider.seat)
    }

    /// Some provider has a slot that the lane fits, but for an avoided one.
    pub(super) fn is_free(&self, index: ModelIndex, lane: Lane, avoid: Option<Avoid>) -> bool {
        let Some(model) = self.models.get(index.0 as usize) else { return false };
        model.pool.least_loaded(lane, self.avoided_seat(avoid)).is_some()
    }

    /// Brings a model's seats up to date after providers came, went or changed what prompts they take; who waits gets
    /// the lane that fits now, or is refused if none does.
    pub(super) fn seat(&mut self, now: Instant, index: ModelIndex) {
        let Some(model) = self.models.get_mut(index.0 as usize) else { return };
        if !model.pool.is_stale() {
            return;
        }
        model.pool.seat(&model.providers, &mut self.providers);
        if model.queue.is_empty() || model.providers.is_empty() {
            return;
        }
        let mut tickets: Vec<_> = model.queue.tickets().collect();
        tickets.sort_unstable();
        for ticket in tickets {
            let Some(size) = self.waiters.get(&ticket).map(|waiter| waiter.size) else { continue };
            let Some(model) = self.models.get(index.0 as usize) else { return };
            let lane = model.pool.lane(size.tokens, size.lane.long);
            match (lane, self.waiters.get_mut(&ticket)) {
                (Ok(lane), Some(waiter)) => waiter.size.lane = lane,
                (Err(limit), _) => {
                    let reason = RefusalReason::TooLong { estimated: size.tokens, limit };
                    self.refuse_waiter(now, index, ticket, reason);
                }
                (Ok(_), None) => {}
            }
        }
        let waiters = &self.waiters;
        if let Some(model) = self.models.get_mut(index.0 as usize) {
            model.queue.relane(|ticket| waiters.get(&ticket).map(|waiter| waiter.size.lane));
        }
    }
}
