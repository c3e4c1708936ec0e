//! The records of requests in the running edge: one short lock around the core, and a handle a request.
//!
//! Leaves what is kept to [`crate::core::requests`]. Invariant: a handle that is dropped, in whatever way, ends its
//! record; a client that left is what nobody told otherwise.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub(crate) use crate::core::requests::{End, Filter, Given, Phase, RequestRecord, Started};
use crate::core::requests::{Place, Ring};
use crate::core::usage::Usage;

/// What logs of proxies call a client that closed its request.
pub(crate) const CLIENT_LEFT: u16 = 499;

/// Requests that run, and the last ones that ended.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    ring: Mutex<Ring>,
}

impl Requests {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request whose model is known begins.
    pub(crate) fn started(self: &Arc<Self>, started: Started) -> Running {
        let place = self.ring().start(started);
        Running { requests: Arc::clone(self), place, phase: Phase::Queued, given: None, over: false }
    }

    /// A request that was refused before its model was known.
    pub(crate) fn refused(&self, started: Started, end: End) {
        let mut ring = self.ring();
        let place = ring.start(started);
        ring.end(now(), place, end);
    }

    /// The records that `filter` takes, newest first.
    pub(crate) fn list(&self, filter: &Filter, limit: usize) -> Vec<RequestRecord> {
        self.ring().list(now(), filter, limit)
    }

    /// The request that was given this lease, if its record is still here.
    pub(crate) fn of_lease(&self, lease: u64) -> Option<RequestRecord> {
        self.ring().of_lease(lease)
    }

    /// Requests that run, and how many since the start found no place in the table.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let ring = self.ring();
        (ring.running(), ring.unrecorded())
    }
}

/// A request that runs: where it is and what slot it was given last, told to its record. Held by its account; dropping it
/// ends the record as a client that left.
#[derive(Debug)]
pub(crate) struct Running {
    requests: Arc<Requests>,
    place: Place,
    phase: Phase,
    given: Option<Given>,
    over: bool,
}

impl Running {
    /// Names it in this process, never 0.
    pub(crate) fn number(&self) -> u64 {
        self.place.number()
    }

    /// Where it is.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// The slot that it was given last.
    pub(crate) fn given(&self) -> Option<&Given> {
        self.given.as_ref()
    }

    /// It waits for a slot, perhaps again.
    pub(crate) fn queued(&mut self) {
        if self.phase != Phase::Queued {
            self.phase = Phase::Queued;
            self.requests.ring().queue(now(), self.place);
        }
    }

    /// It has a slot.
    pub(crate) fn granted(&mut self, now: Instant, given: Given) {
        self.phase = Phase::Prefill;
        self.given = Some(given.clone());
        self.requests.ring().give(now, self.place, given);
    }

    /// The engine's head is here.
    pub(crate) fn streaming(&mut self, now: Instant) {
        self.phase = Phase::Streaming;
        self.requests.ring().stream(now, self.place);
    }

    /// The present try failed; `how` is the word of the metrics.
    pub(crate) fn missed(&self, how: &'static str) {
        self.requests.ring().miss(self.place, how);
    }

    /// It is over. Only the first end counts.
    pub(crate) fn ended(&mut self, now: Instant, end: End) {
        if !self.over {
            self.over = true;
            self.requests.ring().end(now, self.place, end);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nearly always it is over, and the clock is not read for nothing.
        if !self.over {
            let end = End { status: CLIENT_LEFT, reason: None, usage: Usage::default(), answer_bytes: 0 };
            self.ended(now(), end);
        }
    }
}

/// The clock of the accounts.
fn now() -> Instant {
    Instant::now()
}
