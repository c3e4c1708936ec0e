//! A dialer's keys and certificates in a simulated state directory: the steps of [`crate::rotation`] with a moment
//! between any two.
//!
//! Owns what stands in the directory of them. Leaves the order to the core, and requests and dials to the caller.
//! Invariant: each step is one write, one request or one dial, and the process may be killed after any.

use std::time::{Duration, Instant};

use super::Call;
use crate::KeyHash;
use crate::rotation::{Dials, Held, Pending, Shows, Step, next};

/// Between two steps, so that a kill can come between them.
const STEP: Duration = Duration::from_millis(20);
/// What the acceptor or the disk refused is tried again after this.
const LATER: Duration = Duration::from_secs(30);

/// A certificate that was given and not yet accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Of this key.
    pub key: [u8; 32],
    /// Its end, in milliseconds since 1970.
    pub not_after: i64,
}

/// What stands in the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The identity's own.
    pub key: Option<[u8; 32]>,
    /// The end of its certificate.
    pub not_after: i64,
    /// The key that the identity does not name.
    pub spare: Option<[u8; 32]>,
    /// A certificate that is not the identity's yet.
    pub pending: Option<Kept>,
}

impl Keys {
    fn held(&self) -> Held {
        let pending = self.pending.map(|kept| match Some(kept.key) == self.key {
            true => Pending::Adopted,
            false => Pending::OfSpare,
        });
        Held { spare_key: self.spare.is_some(), pending }
    }

    /// Keys that it could show, in lower-case hexadecimal.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        let pending = self.pending.filter(|kept| self.spare == Some(kept.key)).map(|kept| kept.key);
        self.key.into_iter().chain(pending).map(|key| KeyHash(key).to_string()).collect()
    }
}

/// What the caller has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, or it is done.
    Nothing,
    /// Ask for a certificate of this key; then [`Renewal::asked`].
    Ask([u8; 32]),
    /// Dial anew.
    Dial,
}

/// What one process knows of its rotation.
#[derive(Debug, Default)]
pub struct Renewal {
    wanted: bool,
    dials: Dials,
    asking: Option<Call>,
    step_at: Option<Instant>,
}

impl Renewal {
    /// When [`Renewal::go_on`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.step_at
    }

    /// The key of the next dial, with the end of its certificate.
    pub fn shows(&mut self, keys: &Keys) -> Option<Kept> {
        let own = |kept: &Kept| keys.spare == Some(kept.key) && keys.key != Some(kept.key);
        let pending = keys.pending.filter(own);
        let shows = self.dials.next(pending.is_some());
        let active = keys.key.map(|key| Kept { key, not_after: keys.not_after });
        pending.filter(|_| shows == Shows::Pending).or(active)
    }

    /// A new certificate is wanted.
    pub fn rotate(&mut self, now: Instant) {
        self.wanted = true;
        self.step_at.get_or_insert(now + STEP);
    }

    /// A dial failed. True if the other certificate is to be tried at once.
    pub fn failed(&mut self, rejected: bool) -> bool {
        self.dials.failed(rejected)
    }

    /// The acceptor has taken a connection.
    pub fn accepted(&mut self, now: Instant) {
        self.dials.accepted();
        self.asking = None;
        self.step_at = Some(now + STEP);
    }

    /// Goes one step on. `full`: nothing can be written; `key`: a new one.
    pub fn go_on(
        &mut self,
        keys: &mut Keys,
        now: Instant,
        full: bool,
        key: impl FnOnce() -> [u8; 32],
    ) -> Next {
        if self.step_at.is_none_or(|at| at > now) {
            return Next::Nothing;
        }
        self.step_at = None;
        let Some(step) = next(keys.held(), self.wanted, self.dials.said()) else { return Next::Nothing };
        if full && !matches!(step, Step::Ask | Step::Show) {
            self.step_at = Some(now + LATER);
            return Next::Nothing;
        }
        match step {
            Step::MakeKey => keys.spare = Some(key()),
            Step::Ask => {
                return keys.spare.filter(|_| self.asking.is_none()).map_or(Next::Nothing, Next::Ask);
            }
            Step::Show => return Next::Dial,
            Step::Adopt => {
                if let Some(kept) = keys.pending {
                    keys.spare = keys.key.replace(kept.key);
                    keys.not_after = kept.not_after;
                }
            }
            Step::DropKey => keys.spare = None,
            Step::DropPending => {
                keys.pending = None;
                self.dials.renewed();
                self.wanted = false;
            }
        }
        self.step_at = Some(now + STEP);
        Next::Nothing
    }

    /// It was asked for; `None`: that cannot be done now.
    pub fn asked(&mut self, call: Option<Call>, now: Instant) {
        self.asking = call;
        if call.is_none() {
            self.step_at = Some(now + LATER);
        }
    }

    /// Whether that is the request for a certificate.
    #[must_use]
    pub fn is_asking(&self, call: Call) -> bool {
        self.asking == Some(call)
    }

    /// The end of the certificate that was given; `None`: none was, or it cannot be written.
    pub fn given(&mut self, keys: &mut Keys, not_after: Option<i64>, now: Instant) {
        self.asking = None;
        match (not_after, keys.spare) {
            (Some(not_after), Some(key)) => {
                keys.pending = Some(Kept { key, not_after });
                self.dials.renewed();
                self.step_at = Some(now + STEP);
            }
            _ => self.step_at = Some(now + LATER),
        }
    }
}
