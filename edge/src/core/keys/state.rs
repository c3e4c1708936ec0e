//! What one key does now, and its permits.
//!
//! Owns requests at once, held bytes, the meter of its limits, and its ledger; all locks are held for a few
//! instructions. Invariant: a permit ends its request's place exactly once, by its drop; what it charged as an
//! estimate is corrected or given back, never both.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use umbel_contracts::operations::KeyLimits;

use super::ledger::Ledger;
use super::limits::{KeyLimit, Limit, Meter, Standing};

/// When to ask again at the limit of requests at once: nobody knows when one of them ends.
const AT_ONCE_RETRY: Duration = Duration::from_secs(1);

/// What a key does now and what was used with it. It outlives every change of the key's row.
#[derive(Debug)]
pub(crate) struct KeyState {
    /// Whose it is.
    pub(crate) key_id: Arc<str>,
    /// Bytes of its requests that the edge holds now.
    pub(crate) held: AtomicU64,
    at_once: AtomicU64,
    revoked: AtomicBool,
    meter: Mutex<Meter>,
    /// Those in force now: what runs settles with them.
    limits: Mutex<KeyLimits>,
    ledger: Mutex<Ledger>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KeyState {
    pub(super) fn new(key_id: &str) -> Self {
        Self {
            key_id: Arc::from(key_id),
            held: AtomicU64::new(0),
            at_once: AtomicU64::new(0),
            revoked: AtomicBool::new(false),
            meter: Mutex::default(),
            limits: Mutex::default(),
            ledger: Mutex::default(),
        }
    }

    pub(super) fn enter(
        state: &Arc<Self>,
        limits: KeyLimits,
        now: Instant,
        tokens: u64,
    ) -> Result<KeyPermit, KeyLimit> {
        let running = state.at_once.fetch_add(1, Ordering::Relaxed);
        // From here on the drop gives back what was taken.
        let mut permit = KeyPermit { state: Arc::clone(state), charged: 0 };
        if let Some(value) = limits.requests_at_once.filter(|most| running >= *most) {
            let standing = state.standing(&limits, now);
            return Err(KeyLimit {
                limit: Limit::RequestsAtOnce,
                value,
                retry_after: AT_ONCE_RETRY,
                standing,
            });
        }
        if limits.requests_per_minute.is_some() || limits.tokens_per_minute.is_some() {
            permit.charged = lock(&state.meter).enter(&limits, now, tokens)?;
        }
        Ok(permit)
    }

    pub(super) fn standing(&self, limits: &KeyLimits, now: Instant) -> Standing {
        if limits.requests_per_minute.is_none() && limits.tokens_per_minute.is_none() {
            return Standing::default();
        }
        lock(&self.meter).standing(limits, now)
    }

    /// Other limits are in force.
    pub(super) fn limit(&self, limits: KeyLimits) {
        *lock(&self.limits) = limits;
    }

    pub(super) fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    /// What was used with it.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }
}

/// A request of a key that was let in. Its drop ends its place among the requests at once.
#[derive(Debug)]
#[must_use]
pub(crate) struct KeyPermit {
    state: Arc<KeyState>,
    charged: u64,
}

impl KeyPermit {
    /// Whether the key was revoked since: what has no engine yet gets none.
    pub(crate) fn is_revoked(&self) -> bool {
        self.state.revoked.load(Ordering::Acquire)
    }

    /// What the key does and has used.
    pub(crate) fn state(&self) -> &Arc<KeyState> {
        &self.state
    }

    /// The request is over: so many tokens were used in all, instead of the estimate.
    pub(crate) fn settle(mut self, now: Instant, tokens: u64) {
        let limits = *lock(&self.state.limits);
        let charged = std::mem::take(&mut self.charged);
        if charged > 0 || limits.tokens_per_minute.is_some() {
            lock(&self.state.meter).correct(&limits, now, charged, tokens);
        }
    }
}

impl Drop for KeyPermit {
    fn drop(&mut self) {
        self.state.at_once.fetch_sub(1, Ordering::Relaxed);
        if self.charged > 0 {
            lock(&self.state.meter).give_back(self.charged);
        }
    }
}
