//! Requests that run and the last ones that ended: who asked for what, how long each phase took, and how it ended.
//!
//! Owns the records and their bounds. Leaves the account of a request to `http::exchange` and slots to
//! [`super::admission`]. Invariants: no content and no client's address is in a record; both tables are bounded; a
//! record ends exactly once; the oldest one's memory is the next one's, so that a request in a busy edge allocates none.

mod id;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::usage::Usage;
pub(crate) use id::Id;

/// Ended requests that are kept.
pub(crate) const KEPT: usize = 2_048;
/// Running requests that are recorded: above what the listeners take in connections. More run unrecorded.
pub(crate) const RUNNING_MAX: usize = 20_000;
/// Tries recorded of one request; the rules of second tries allow fewer.
const TRIES_MAX: usize = 4;
/// Records that were let go of and are used again.
const SPARE_MAX: usize = 64;

/// A request as it is known when its model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    /// The correlation id: the client's own or one of ours.
    pub(crate) request_id: Id,
    /// Whose it is; `None` for a caller on this host without a key.
    pub(crate) key_id: Option<Arc<str>>,
    /// The canonical model; `None` where nobody serves what was asked for.
    pub(crate) model: Option<Arc<str>>,
    /// The route's template.
    pub(crate) route: &'static str,
    /// An event stream was asked for.
    pub(crate) stream: bool,
    /// Bytes of the body.
    pub(crate) body_bytes: u64,
    /// Bytes of the prompt in it; 0 where they were not looked for.
    pub(crate) prompt_bytes: u64,
    /// When its head was here.
    pub(crate) at: Instant,
    /// The same by the wall clock.
    pub(crate) at_unix_ms: i64,
}

/// Where a running request is, or where one ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It waits for a slot.
    Queued,
    /// It has a slot and no head from the engine.
    Prefill,
    /// The engine's answer flows.
    Streaming,
}

impl Phase {
    /// In metrics, lists and answers.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Prefill => "prefill",
            Self::Streaming => "streaming",
        }
    }
}

/// A slot that a request was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// Whose slot: `NODE_ID/NAME`.
    pub(crate) provider_id: Arc<str>,
    /// The lease.
    pub(crate) lease: u64,
    /// Prompt tokens by estimate.
    pub(crate) estimated_tokens: u64,
    /// It counted as long.
    pub(crate) long: bool,
    /// The provider was chosen since it saw the prompt's prefix last.
    pub(crate) affinity: bool,
}

/// One try at an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Try {
    /// Whose slot: `NODE_ID/NAME`.
    pub(crate) provider_id: Arc<str>,
    /// The lease.
    pub(crate) lease: u64,
    /// The provider was chosen since it saw the prompt's prefix last.
    pub(crate) affinity: bool,
    /// How it failed; `None` while it runs or if it is the one that answered.
    pub(crate) miss: Option<&'static str>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// What the client was told; 499 if it left.
    pub(crate) status: u16,
    /// The machine reason where the edge refused or failed it, or broke its stream.
    pub(crate) reason: Option<&'static str>,
    /// Tokens.
    pub(crate) usage: Usage,
    /// Bytes of the answer that passed.
    pub(crate) answer_bytes: u64,
}

/// All that is kept of one request.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    /// Grows with each request of this process.
    pub(crate) number: u64,
    /// What was asked for.
    pub(crate) started: Started,
    /// Where it is, or was when it ended.
    pub(crate) phase: Phase,
    /// Since when it is there.
    since: Instant,
    /// Time in each phase so far, by [`Phase`]; that of the present one is added at its end.
    spent: [Duration; 3],
    /// Prompt tokens by estimate, once it had a slot.
    pub(crate) estimated_tokens: Option<u64>,
    /// It counted as long.
    pub(crate) long: bool,
    /// Tries at engines, oldest first.
    pub(crate) tries: Vec<Try>,
    /// How it ended, and when.
    pub(crate) ended: Option<(Instant, End)>,
}

impl RequestRecord {
    /// A record of this request, in the memory of one that nobody asks for any more.
    fn begin(spare: Option<Box<Self>>, number: u64, started: Started) -> Box<Self> {
        match spare {
            Some(mut record) => {
                let mut tries = std::mem::take(&mut record.tries);
                tries.clear();
                *record = Self::new(number, started, tries);
                record
            }
            None => Box::new(Self::new(number, started, Vec::new())),
        }
    }

    fn new(number: u64, started: Started, tries: Vec<Try>) -> Self {
        let since = started.at;
        Self {
            number,
            started,
            phase: Phase::Queued,
            since,
            spent: [Duration::ZERO; 3],
            estimated_tokens: None,
            long: false,
            tries,
            ended: None,
        }
    }

    fn moves(&mut self, now: Instant, to: Phase) {
        self.spend(now);
        self.phase = to;
    }

    fn spend(&mut self, now: Instant) {
        if let Some(spent) = self.spent.get_mut(self.phase as usize) {
            *spent = spent.saturating_add(now.saturating_duration_since(self.since));
        }
        self.since = now;
    }

    /// Time in a phase, up to `now` where it is in it.
    pub(crate) fn spent(&self, phase: Phase, now: Instant) -> Duration {
        let spent = self.spent.get(phase as usize).copied().unwrap_or_default();
        let runs = self.ended.is_none() && self.phase == phase;
        spent.saturating_add(if runs { now.saturating_duration_since(self.since) } else { Duration::ZERO })
    }

    /// From its head to its end, or up to `now`.
    pub(crate) fn took(&self, now: Instant) -> Duration {
        let end = self.ended.map_or(now, |(at, _)| at);
        end.saturating_duration_since(self.started.at)
    }
}

/// A running request's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    slot: u32,
    number: u64,
}

impl Place {
    /// The number of the request.
    pub(crate) fn number(self) -> u64 {
        self.number
    }
}

/// What is asked of the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Of this model only.
    pub(crate) model: Option<String>,
    /// Of this key only.
    pub(crate) key_id: Option<String>,
    /// Of this correlation id only.
    pub(crate) request_id: Option<String>,
    /// Running ones, or ended ones, only.
    pub(crate) running: Option<bool>,
    /// With statuses in this range only, both ends included: ended ones.
    pub(crate) status: Option<(u16, u16)>,
    /// That take or took at least this.
    pub(crate) slower_than: Option<Duration>,
    /// Older than this number.
    pub(crate) before: Option<u64>,
}

impl Filter {
    fn takes(&self, record: &RequestRecord, now: Instant) -> bool {
        let same = |wanted: &Option<String>, has: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| has == Some(wanted))
        };
        let status = record.ended.map(|(_, end)| end.status);
        same(&self.model, record.started.model.as_deref())
            && same(&self.key_id, record.started.key_id.as_deref())
            && same(&self.request_id, Some(record.started.request_id.as_str()))
            && self.running.is_none_or(|running| running == record.ended.is_none())
            && self.status.is_none_or(|(low, high)| status.is_some_and(|is| (low..=high).contains(&is)))
            && self.slower_than.is_none_or(|least| record.took(now) >= least)
            && self.before.is_none_or(|before| record.number < before)
    }
}

/// The running requests and the last ended ones.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    running: Vec<Option<Box<RequestRecord>>>,
    free: Vec<u32>,
    ended: VecDeque<Box<RequestRecord>>,
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<RequestRecord>>,
    next: u64,
    unrecorded: u64,
}

impl Ring {
    /// A request begins. Without a place in the table it still has a number, and nothing of it is kept.
    pub(crate) fn start(&mut self, started: Started) -> Place {
        self.next += 1;
        let number = self.next;
        let free = self.free.pop();
        if free.is_none() && self.running.len() >= RUNNING_MAX {
            self.unrecorded += 1;
            return Place { slot: u32::MAX, number };
        }
        let record = Some(RequestRecord::begin(self.spare.pop(), number, started));
        match free.and_then(|slot| Some((slot, self.running.get_mut(slot as usize)?))) {
            Some((slot, free)) => {
                *free = record;
                Place { slot, number }
            }
            None => {
                let slot = u32::try_from(self.running.len()).unwrap_or(u32::MAX);
                self.running.push(record);
                Place { slot, number }
            }
        }
    }

    fn at(&mut self, place: Place) -> Option<&mut RequestRecord> {
        let record = self.running.get_mut(place.slot as usize)?.as_deref_mut()?;
        (record.number == place.number).then_some(record)
    }

    /// It waits for a slot, perhaps again.
    pub(crate) fn queue(&mut self, now: Instant, place: Place) {
        if let Some(record) = self.at(place) {
            record.moves(now, Phase::Queued);
        }
    }

    /// It has a slot.
    pub(crate) fn give(&mut self, now: Instant, place: Place, given: Given) {
        let Some(record) = self.at(place) else { return };
        record.moves(now, Phase::Prefill);
        record.estimated_tokens = Some(given.estimated_tokens);
        record.long = given.long;
        if record.tries.len() < TRIES_MAX {
            let Given { provider_id, lease, affinity, .. } = given;
            record.tries.push(Try { provider_id, lease, affinity, miss: None });
        }
    }

    /// The engine's head is here.
    pub(crate) fn stream(&mut self, now: Instant, place: Place) {
        if let Some(record) = self.at(place) {
            record.moves(now, Phase::Streaming);
        }
    }

    /// The present try failed.
    pub(crate) fn miss(&mut self, place: Place, how: &'static str) {
        if let Some(last) = self.at(place).and_then(|record| record.tries.last_mut()) {
            last.miss = Some(how);
        }
    }

    /// It is over. Only the first end counts.
    pub(crate) fn end(&mut self, now: Instant, place: Place, end: End) {
        if self.at(place).is_none() {
            return;
        }
        let Some(mut record) = self.running.get_mut(place.slot as usize).and_then(Option::take) else {
            return;
        };
        self.free.push(place.slot);
        record.spend(now);
        record.ended = Some((now, end));
        if self.ended.len() >= KEPT
            && let Some(oldest) = self.ended.pop_front()
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(oldest);
        }
        self.ended.push_back(record);
    }

    /// The records that `filter` takes, newest first, at most `limit`.
    pub(crate) fn list(&self, now: Instant, filter: &Filter, limit: usize) -> Vec<RequestRecord> {
        let all = self.running.iter().flatten().chain(&self.ended);
        let mut taken: Vec<&RequestRecord> =
            all.map(Box::as_ref).filter(|record| filter.takes(record, now)).collect();
        taken.sort_unstable_by_key(|record| std::cmp::Reverse(record.number));
        taken.into_iter().take(limit).cloned().collect()
    }

    /// The request that was given this lease, if its record is still here.
    pub(crate) fn of_lease(&self, lease: u64) -> Option<RequestRecord> {
        let all = self.running.iter().flatten().chain(&self.ended);
        all.map(Box::as_ref).find(|record| record.tries.iter().any(|one| one.lease == lease)).cloned()
    }

    /// Requests that run: recorded ones.
    pub(crate) fn running(&self) -> usize {
        self.running.len() - self.free.len()
    }

    /// Requests since the start that found no place.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.unrecorded
    }
}

#[cfg(test)]
mod tests;
