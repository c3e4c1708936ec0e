//! Requests on their way through a simulated node: an engine that works for a while, and stops a little later than asked.
//!
//! Invariant: a stream gets one END, when its engine's request is gone; until then its lease is named to the edge.

use std::time::{Duration, Instant};

use umbel_contracts::bounds;
use umbel_contracts::proto::node::InferenceOpen;
use umbel_wire::simulation::{Incoming, LinkId};
use umbel_wire::{Code, Error};

use super::Node;
use crate::core::supervisor::State;

/// How long an engine takes to notice that nobody listens.
const STOPS: Duration = Duration::from_millis(300);

/// The engine of the node's own file.
const OWN: &str = "engine";

struct Relayed {
    link: LinkId,
    stream: Incoming,
    engine: String,
    lease: u64,
    ends: Instant,
    cancelled: bool,
    fails: bool,
}

#[derive(Default)]
pub(super) struct Streams {
    relayed: Vec<Relayed>,
    /// Its engine answers with an error.
    fails: bool,
}

impl Streams {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.relayed.iter().map(|one| one.ends).min()
    }

    /// Leases of older connections than this.
    pub(super) fn carried(&self, current: LinkId) -> Vec<u64> {
        self.relayed.iter().filter(|one| one.link != current).map(|one| one.lease).collect()
    }

    pub(super) fn lost(&mut self, link: LinkId, now: Instant) {
        self.stop(now, |one| one.link == link);
    }

    /// Whether a stream of this connection is not over.
    pub(super) fn carries_of(&self, link: LinkId) -> bool {
        self.relayed.iter().any(|one| one.link == link)
    }

    pub(super) fn cancel(&mut self, leases: &[u64], now: Instant) {
        self.stop(now, |one| leases.contains(&one.lease));
    }

    /// Requests that this engine works on.
    pub(super) fn count_on(&self, engine: &str) -> u32 {
        u32::try_from(self.relayed.iter().filter(|one| one.engine == engine).count()).unwrap_or(u32::MAX)
    }

    pub(super) fn is_on(&self, engine: &str) -> bool {
        self.relayed.iter().any(|one| one.engine == engine)
    }

    /// Its process is gone: so is what it worked on.
    pub(super) fn engine_exited(&mut self, engine: &str, now: Instant) {
        for one in self.relayed.iter_mut().filter(|one| one.engine == engine) {
            (one.fails, one.ends) = (true, now);
        }
    }

    fn stop(&mut self, now: Instant, which: impl Fn(&Relayed) -> bool) {
        for one in self.relayed.iter_mut().filter(|one| which(one) && !one.cancelled) {
            one.cancelled = true;
            one.ends = one.ends.min(now + STOPS);
        }
    }
}

impl Node {
    /// Requests that its own engine works on: lease, connection, and whether it was cancelled.
    #[must_use]
    pub fn work(&self) -> Vec<(u64, LinkId, bool)> {
        let own = self.streams.relayed.iter().filter(|one| one.engine == OWN);
        own.map(|one| (one.lease, one.link, one.cancelled)).collect()
    }

    /// From now on its engine fails what it is given, or serves again.
    pub fn engine_fails(&mut self, fails: bool) {
        self.streams.fails = fails;
    }

    pub(super) fn take_stream(&mut self, link: LinkId, stream: Incoming, message: &[u8], now: Instant) {
        let open = bounds::decode::<InferenceOpen>(message).ok();
        let current = self.current == Some(link);
        let engine = open.as_ref().and_then(|open| open.provider_id.split_once('/'));
        let engine = engine.map(|(_, engine)| engine.to_owned()).unwrap_or_default();
        let deployed = self.engines.list.iter().find(|one| one.kept.engine == engine);
        if engine != OWN && deployed.is_none_or(|one| one.leaving || one.state() != State::Ready) {
            let error = Error::new(Code::Unavailable, "PROVIDER_NOT_READY", "it takes no requests now");
            if let Some(entry) = self.links.get_mut(&link) {
                entry.end.end(stream, Some(error), true);
            }
            return;
        }
        let Some(entry) = self.links.get_mut(&link) else { return };
        match open.filter(|open| current && open.generation == entry.generation.0) {
            Some(open) => {
                let fails = self.streams.fails && engine == OWN;
                let ends = now + if fails { STOPS } else { self.setup.work };
                let lease = open.lease_id;
                self.streams.relayed.push(Relayed {
                    link,
                    stream,
                    engine,
                    lease,
                    ends,
                    cancelled: false,
                    fails,
                });
            }
            None => {
                let error =
                    Error::new(Code::Conflict, "STALE_GENERATION", "a newer connection has taken over");
                entry.end.end(stream, Some(error), true);
            }
        }
    }

    pub(super) fn cancel_stream(&mut self, link: LinkId, stream: Incoming, now: Instant) {
        self.streams.stop(now, |one| one.link == link && one.stream == stream);
    }

    pub(super) fn end_streams(&mut self, now: Instant) {
        let (over, left) =
            std::mem::take(&mut self.streams.relayed).into_iter().partition(|one| one.ends <= now);
        self.streams.relayed = left;
        let over: Vec<Relayed> = over;
        for one in over {
            if let Some(entry) = self.links.get_mut(&one.link) {
                let cancelled = || Error::new(Code::Cancelled, "CANCELLED", "it was reset");
                let failed = || Error::new(Code::Unavailable, "ENGINE_FAILED", "the engine answered 500");
                let error = one.cancelled.then(cancelled).or_else(|| one.fails.then(failed));
                entry.end.end(one.stream, error, false);
            }
        }
        self.name_orphans(now);
    }
}
