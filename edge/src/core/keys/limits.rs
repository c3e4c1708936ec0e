//! How much a key may use: requests a minute, tokens a minute.
//!
//! Pure. Owns the arithmetic: one bucket a limit, which a minute fills from empty. Leaves requests at once, and who
//! asks, to [`super::state`]. Invariants: in any time t at most N + N t / 60 s are let in; a refusal's wait is exact,
//! to the microsecond above; numbers are integers, so that nothing is lost or gained by rounding over time.

use std::time::{Duration, Instant};

use umbel_contracts::operations::KeyLimits;

/// Parts of one request or token: with a limit of N a minute, N parts come back each microsecond.
const PARTS: u64 = 60_000_000;
/// How many minutes of its limit a key can be in debt for, when its answers were longer than anybody foresaw or its
/// limit was lowered: it is never shut out for longer than that.
const DEBT_MINUTES: u64 = 10;

/// A limit of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Requests a minute.
    RequestsPerMinute,
    /// Tokens a minute.
    TokensPerMinute,
    /// Requests at once, waiting ones included.
    RequestsAtOnce,
}

/// The limit that a key is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyLimit {
    /// Which.
    pub(crate) limit: Limit,
    /// What it is set to.
    pub(crate) value: u64,
    /// When the same request would be let in if nothing else came.
    pub(crate) retry_after: Duration,
    /// Where the key stands with its limits by the minute.
    pub(crate) standing: Standing,
}

/// Where a key stands with one limit by the minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// What it is set to.
    pub(crate) limit: u64,
    /// What may be used now.
    pub(crate) remaining: u64,
    /// Until all of it may be used again.
    pub(crate) reset: Duration,
}

/// Where a key stands with its limits by the minute; `None` where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Requests.
    pub(crate) requests: Option<Window>,
    /// Tokens.
    pub(crate) tokens: Option<Window>,
}

/// What was used of a limit by the minute and has not come back yet.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    used: u64,
    at: Option<Instant>,
}

impl Bucket {
    /// The most that can be used of a limit, debt included.
    fn most(limit: u64) -> u64 {
        limit.saturating_mul(PARTS).saturating_mul(1 + DEBT_MINUTES)
    }

    /// Lets come back what has come back. What was used of a higher limit is a debt of this one, within its bound.
    fn pass(&mut self, limit: u64, now: Instant) {
        self.used = self.used.min(Self::most(limit));
        let at = *self.at.get_or_insert(now);
        let micros = u64::try_from(now.saturating_duration_since(at).as_micros()).unwrap_or(u64::MAX);
        self.used = self.used.saturating_sub(limit.saturating_mul(micros));
        // The rest of a microsecond is kept for the next time.
        self.at = Some(if self.used == 0 { at.max(now) } else { at + Duration::from_micros(micros) });
    }

    /// How long until `amount` may be taken; one above the limit needs the whole bucket.
    fn wait(&self, limit: u64, amount: u64) -> Duration {
        let wanted = self.used.saturating_add(amount.clamp(1, limit).saturating_mul(PARTS));
        Duration::from_micros(wanted.saturating_sub(limit.saturating_mul(PARTS)).div_ceil(limit))
    }

    /// Takes, whatever there is; what was charged is given back.
    fn take(&mut self, limit: u64, amount: u64) -> u64 {
        let amount = amount.min(Self::most(limit).saturating_sub(self.used) / PARTS);
        self.used = self.used.saturating_add(amount.saturating_mul(PARTS));
        amount
    }

    fn give_back(&mut self, amount: u64) {
        self.used = self.used.saturating_sub(amount.saturating_mul(PARTS));
    }

    fn window(&self, limit: u64) -> Window {
        Window {
            limit,
            remaining: limit.saturating_mul(PARTS).saturating_sub(self.used) / PARTS,
            reset: Duration::from_micros(self.used.div_ceil(limit)),
        }
    }
}

/// What a key has used of its limits by the minute.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    requests: Bucket,
    tokens: Bucket,
}

impl Meter {
    /// Takes one request with so many tokens, and says how many of these it has charged.
    ///
    /// # Errors
    /// The limit that has to be waited for the longest. Nothing is taken then.
    pub(crate) fn enter(&mut self, limits: &KeyLimits, now: Instant, tokens: u64) -> Result<u64, KeyLimit> {
        self.pass(limits, now);
        let of = |limit, value: Option<u64>, bucket: &Bucket, amount| {
            let value = value.filter(|value| *value > 0)?;
            let retry_after = bucket.wait(value, amount);
            let standing = Standing::default();
            (!retry_after.is_zero()).then_some(KeyLimit { limit, value, retry_after, standing })
        };
        let requests = of(Limit::RequestsPerMinute, limits.requests_per_minute, &self.requests, 1);
        let of_tokens = of(Limit::TokensPerMinute, limits.tokens_per_minute, &self.tokens, tokens);
        if let Some(at) = requests.into_iter().chain(of_tokens).max_by_key(|at| at.retry_after) {
            return Err(KeyLimit { standing: self.shown(limits), ..at });
        }
        if let Some(limit) = limits.requests_per_minute {
            self.requests.take(limit, 1);
        }
        Ok(limits.tokens_per_minute.map_or(0, |limit| self.tokens.take(limit, tokens)))
    }

    /// What was charged as an estimate becomes what was used. `limits` are those in force now.
    pub(crate) fn correct(&mut self, limits: &KeyLimits, now: Instant, charged: u64, used: u64) {
        let Some(limit) = limits.tokens_per_minute else { return self.give_back(charged) };
        self.pass(limits, now);
        self.tokens.give_back(charged);
        self.tokens.take(limit, used);
    }

    /// An estimate was charged for nothing.
    pub(crate) fn give_back(&mut self, charged: u64) {
        self.tokens.give_back(charged);
    }

    /// Where it stands.
    pub(crate) fn standing(&mut self, limits: &KeyLimits, now: Instant) -> Standing {
        self.pass(limits, now);
        self.shown(limits)
    }

    fn shown(&self, limits: &KeyLimits) -> Standing {
        Standing {
            requests: limits.requests_per_minute.map(|limit| self.requests.window(limit.max(1))),
            tokens: limits.tokens_per_minute.map(|limit| self.tokens.window(limit.max(1))),
        }
    }

    fn pass(&mut self, limits: &KeyLimits, now: Instant) {
        if let Some(limit) = limits.requests_per_minute {
            self.requests.pass(limit, now);
        }
        if let Some(limit) = limits.tokens_per_minute {
            self.tokens.pass(limit, now);
        }
    }
}

#[cfg(test)]
mod tests;
