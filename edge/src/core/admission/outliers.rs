//! Passing over providers that fail, time out or stall while their peers do not.
//!
//! Owns what each provider's last tries came to, and who is passed over until when. Leaves the choice among the others
//! to [`super::choice`]. Invariants: nobody is passed over for being slow, nor for what clients did wrong, nor while
//! its model has nobody else who could do its work; a provider comes back by one request at a time.
//!
//! ```text
//! in --fails or stalls more than its peers, or is silent while they answer--> out --5 s, doubled up to 2 min--> due
//!  ^                                                                ^ |                                |
//!  +---- it answers (out for its silence: any answer) --------------|-+                     one request, tried
//!  +---- the one request is answered ---------------------------------|--------------------------------+
//!                                                                   +---- it is not ------------------+
//! ```

use std::time::{Duration, Instant};

use super::Admission;
use super::lease::{Lease, LeaseId, LeasePhase};
use super::provider::Provider;
use super::waiting::Timer;
use super::words::{Avoid, ModelIndex, Outcome, ProviderIndex};

/// How long one is passed over the first time; doubled each time, until it did well for a while.
const OUT_FIRST: Duration = Duration::from_secs(5);
const OUT_MAX: Duration = Duration::from_secs(120);
/// One that did well for so many times its last time out begins anew.
const FORGIVEN_AFTER: u32 = 5;
/// Failures in a row that make one suspect.
const IN_A_ROW: u32 = 3;
/// Tries that are remembered.
const REMEMBERED: u32 = u8::BITS;
/// How often silence is looked for.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Silence shorter than this is none.
const SILENCE: Duration = Duration::from_secs(2);
/// Nor is one shorter than so many times the slowest head of its peers: it may only be slow.
const SLOWER: u32 = 4;
/// Heads that peers must have given since it fell silent.
const PEERS_HEADS: u64 = 3;
/// After its end a tried request's report may still be on its way.
const REPORT: Duration = Duration::from_secs(1);

/// Whether a provider is among those who are chosen from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// As all others.
    #[default]
    In,
    /// Passed over until then.
    Out { until: Instant, silent: bool },
    /// It gets the next request, and only that.
    Due { silent: bool },
    /// It has that request. `until`: it is over, and its report is waited for.
    Tried { lease: LeaseId, silent: bool, until: Option<Instant> },
}

impl Standing {
    fn timer(self) -> Option<Instant> {
        match self {
            Self::Out { until, .. } => Some(until),
            Self::Tried { until, .. } => until,
            Self::In | Self::Due { .. } => None,
        }
    }

    fn is_for_silence(self) -> bool {
        match self {
            Self::In => false,
            Self::Out { silent, .. } | Self::Due { silent } | Self::Tried { silent, .. } => silent,
        }
    }
}

/// What is known of how a provider does.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    pub(super) standing: Standing,
    /// The last tries, the newest in the lowest bit: 1 is a failure.
    tries: u8,
    /// How many of the bits are tries.
    count: u32,
    /// Times out in a row.
    times: u32,
    last_out: Duration,
    back_since: Option<Instant>,
    /// Leases without a head, by what is expected of them.
    headless: [u32; KINDS],
    /// Leases whose answers stand still.
    stalled: u32,
    /// Since when it has such leases and gave no head, and how many heads its model had given then.
    silent_since: Option<(Instant, u64)>,
}

impl Health {
    fn note(&mut self, failed: bool) {
        self.tries = self.tries << 1 | u8::from(failed);
        self.count = (self.count + 1).min(REMEMBERED);
    }

    fn failures(&self) -> u32 {
        self.tries.count_ones()
    }

    fn is_suspect(&self) -> bool {
        self.tries.trailing_ones() >= IN_A_ROW
            || (self.count == REMEMBERED && self.failures() >= REMEMBERED / 2)
    }

    fn forget_tries(&mut self) {
        (self.tries, self.count) = (0, 0);
    }

    fn shows_life(&mut self, now: Instant, heads: u64) {
        let waits = self.headless.iter().any(|count| *count > 0);
        self.silent_since = waits.then_some((now, heads));
    }

    fn next_out(&mut self, now: Instant) -> Duration {
        let well = self.back_since.map(|since| now.saturating_duration_since(since));
        if well.is_some_and(|well| well >= self.last_out * FORGIVEN_AFTER) {
            self.times = 0;
        }
        self.last_out = OUT_FIRST.saturating_mul(1 << self.times.min(5)).min(OUT_MAX);
        self.times += 1;
        self.last_out
    }
}

/// Heads come at other times for streams than for whole answers, and for long prompts than for short ones.
const KINDS: usize = 4;

pub(super) fn kind(events: bool, long: bool) -> usize {
    usize::from(events) + 2 * usize::from(long)
}

/// How fast a model's heads come.
#[derive(Clone, Debug, Default)]
pub(super) struct Heads {
    count: u64,
    /// The slowest of late by kind, slowly forgotten.
    slowest: [Option<Duration>; KINDS],
    /// A look at the silent ones is due.
    pub(super) watched: bool,
}

impl Heads {
    fn note(&mut self, kind: usize, took: Duration) {
        self.count += 1;
        let Some(slowest) = self.slowest.get_mut(kind) else { return };
        *slowest = Some(match *slowest {
            // One head after a long freeze must not make every later freeze look ordinary.
            Some(before) if took > before => took.min(before * 2 + Duration::from_millis(100)),
            Some(before) => before - (before - took) / 8,
            None => took,
        });
    }

    /// Longer than this no healthy provider is silent that has such leases; `None` if nothing is known of them.
    fn patience(&self, headless: &[u32; KINDS]) -> Option<Duration> {
        let waited_for = headless.iter().zip(&self.slowest).filter(|(count, _)| **count > 0);
        let slowest = waited_for
            .map(|(_, slowest)| *slowest)
            .try_fold(Duration::ZERO, |most, one| one.map(|one| most.max(one)))?;
        Some(SILENCE.max(slowest.saturating_mul(SLOWER)))
    }
}

impl Admission {
    /// How a try at a provider went; `before` if the same try was reported already.
    pub(crate) fn report(&mut self, now: Instant, to: Avoid, lease: LeaseId, outcome: Outcome, before: bool) {
        let Some(provider) = self.providers.get_mut(to.provider.0 as usize) else { return };
        let Some(model) = self.models.get(provider.model.0 as usize) else { return };
        if provider.opened != to.opened || !provider.open {
            return;
        }
        let standing = provider.health.standing;
        let tried = matches!(standing, Standing::Tried { lease: tried, .. } if tried == lease);
        match outcome {
            Outcome::Answered | Outcome::ClientError => {
                provider.health.shows_life(now, model.heads.count);
                if outcome == Outcome::Answered {
                    provider.health.note(false);
                }
                let speaks = standing.is_for_silence();
                if tried || speaks {
                    self.take_back(now, to.provider);
                }
            }
            Outcome::Failed | Outcome::TimedOut | Outcome::Stalled => {
                provider.health.note(true);
                // A whole deadline lost weighs more; a success that was none is taken back.
                if outcome != Outcome::Failed || before {
                    provider.health.note(true);
                }
                if tried {
                    self.pass_over(now, to.provider, outcome != Outcome::Failed);
                } else if standing == Standing::In && self.is_worse_than_its_peers(to.provider) {
                    self.pass_over(now, to.provider, false);
                }
            }
        }
    }

    /// A lease's answer stands still, for much longer than it ever did before. It counts at once as what it will be told as
    /// when its time is over; one that is passed over for it comes back with its next byte.
    pub(crate) fn stalled(&mut self, now: Instant, lease: LeaseId) {
        let Some(held) = self.leases.get_mut(&lease).filter(|held| held.phase == LeasePhase::Streaming)
        else {
            return;
        };
        if std::mem::replace(&mut held.stalled, true) {
            return;
        }
        let index = held.provider;
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        provider.health.stalled += 1;
        provider.health.note(true);
        provider.health.note(true);
        let (standing, open) = (provider.health.standing, provider.open);
        let tried = matches!(standing, Standing::Tried { lease: tried, .. } if tried == lease);
        if tried || (standing == Standing::In && open && self.is_worse_than_its_peers(index)) {
            self.pass_over(now, index, true);
        }
    }

    /// The answer goes on.
    pub(crate) fn goes_on(&mut self, now: Instant, lease: LeaseId) {
        let Some(held) = self.leases.get_mut(&lease) else { return };
        if !std::mem::take(&mut held.stalled) {
            return;
        }
        let index = held.provider;
        self.stall_over(index);
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        provider.health.note(false);
        if provider.health.standing.is_for_silence() {
            self.take_back(now, index);
        }
    }

    /// One of its answers no longer stands still: it goes on, or is over.
    pub(super) fn stall_over(&mut self, index: ProviderIndex) {
        if let Some(provider) = self.providers.get_mut(index.0 as usize) {
            provider.health.stalled = provider.health.stalled.saturating_sub(1);
        }
    }

    fn is_worse_than_its_peers(&self, index: ProviderIndex) -> bool {
        let Some(own) = self.providers.get(index.0 as usize) else { return false };
        if !own.health.is_suspect() {
            return false;
        }
        let (mut failures, mut count) = (0u64, 0u64);
        for peer in self.peers(index) {
            failures += u64::from(peer.health.failures());
            count += u64::from(peer.health.count);
        }
        // Its rate is at least twice theirs and a tenth. Peers that were not tried are taken to be well.
        let (own_failures, own_count) = (u64::from(own.health.failures()), u64::from(own.health.count));
        10 * own_failures * count.max(1) >= 20 * failures * own_count + own_count * count.max(1)
    }

    /// The other open providers of its model.
    fn peers(&self, index: ProviderIndex) -> impl Iterator<Item = &Provider> {
        let own = self.providers.get(index.0 as usize);
        let members = own.and_then(|own| self.models.get(own.model.0 as usize)).map(|model| &model.providers);
        members
            .into_iter()
            .flatten()
            .filter(move |member| **member != index)
            .filter_map(|member| self.providers.get(member.0 as usize))
            .filter(|peer| peer.open)
    }

    /// Somebody else can do all that this provider could.
    fn is_replaced(&self, index: ProviderIndex) -> bool {
        let Some(own) = self.providers.get(index.0 as usize) else { return false };
        let long = own.spec.long_context_capacity > 0;
        self.peers(index).any(|peer| {
            peer.health.standing == Standing::In
                && peer.spec.capacity > 0
                && peer.limit() >= own.limit()
                && (peer.spec.long_context_capacity > 0 || !long)
        })
    }

    fn pass_over(&mut self, now: Instant, index: ProviderIndex, silent: bool) {
        if !self.is_replaced(index) {
            self.stand(now, index, Standing::In);
            return;
        }
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        let until = now + provider.health.next_out(now);
        self.passed_over_total += 1;
        self.stand(now, index, Standing::Out { until, silent });
    }

    fn take_back(&mut self, now: Instant, index: ProviderIndex) {
        if let Some(provider) = self.providers.get_mut(index.0 as usize) {
            provider.health.forget_tries();
            provider.health.back_since = Some(now);
        }
        self.stand(now, index, Standing::In);
    }

    /// Changes where a provider stands, with its timer, its seat, and those who wait for a slot.
    fn stand(&mut self, now: Instant, index: ProviderIndex, standing: Standing) {
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        let before = std::mem::replace(&mut provider.health.standing, standing);
        let Some(model) = self.models.get_mut(provider.model.0 as usize) else { return };
        model.pool.set(index, provider.seat, provider.room());
        model.passed_over = model.passed_over + u32::from(standing != Standing::In)
            - u32::from(before != Standing::In).min(model.passed_over);
        let model = provider.model;
        if let Some(at) = before.timer() {
            self.timers.remove(&(at, Timer::Retry(index)));
        }
        if let Some(at) = standing.timer() {
            self.timers.insert((at, Timer::Retry(index)));
        }
        if matches!(standing, Standing::In | Standing::Due { .. }) {
            self.hand_over(now, model);
        }
    }

    /// A provider that closes or opens stands with the others again, and what it did before is forgotten.
    pub(super) fn stand_anew(&mut self, now: Instant, index: ProviderIndex) {
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        let heads = self.models.get(provider.model.0 as usize).map_or(0, |model| model.heads.count);
        provider.health.forget_tries();
        provider.health.shows_life(now, heads);
        if provider.health.standing != Standing::In {
            self.stand(now, index, Standing::In);
        }
    }

    /// Takes back those of a model who are passed over and whom nobody replaces any more.
    pub(super) fn take_back_the_last(&mut self, now: Instant, model: ModelIndex) {
        let Some(model) = self.models.get(model.0 as usize).filter(|model| model.passed_over > 0) else {
            return;
        };
        for index in model.providers.clone() {
            let provider = self.providers.get(index.0 as usize);
            let out = provider.is_some_and(|one| one.open && one.health.standing != Standing::In);
            if out && !self.is_replaced(index) {
                self.take_back(now, index);
            }
        }
    }

    /// The time of one who is passed over, or of the report on its one request, is up.
    pub(super) fn retry(&mut self, now: Instant, index: ProviderIndex) {
        let Some(provider) = self.providers.get_mut(index.0 as usize) else { return };
        match provider.health.standing {
            // Its own old requests tell first: while they are silent no other is sent after them.
            Standing::Out { silent: true, .. }
                if provider.health.silent_since.is_some() || provider.health.stalled > 0 =>
            {
                self.stand(now, index, Standing::Out { until: now + OUT_FIRST, silent: true });
            }
            Standing::Out { silent, .. } | Standing::Tried { silent, .. } => {
                self.stand(now, index, Standing::Due { silent });
            }
            Standing::In | Standing::Due { .. } => {}
        }
    }

    /// A lease was made: its head is expected.
    pub(super) fn expect_head(&mut self, now: Instant, id: LeaseId, lease: &Lease) {
        let Some(provider) = self.providers.get_mut(lease.provider.0 as usize) else { return };
        let Some(model) = self.models.get_mut(lease.model.0 as usize) else { return };
        if let Some(count) = provider.health.headless.get_mut(lease.kind) {
            *count += 1;
        }
        provider.health.silent_since.get_or_insert((now, model.heads.count));
        if !model.heads.watched && model.open > 1 {
            model.heads.watched = true;
            self.timers.insert((now + LOOK, Timer::Look(lease.model)));
        }
        let standing = provider.health.standing;
        if let Standing::Due { silent } = standing
            && !self.has_planted("who is tried gets more")
        {
            let standing = Standing::Tried { lease: id, silent, until: None };
            self.stand(now, lease.provider, standing);
        }
    }

    /// A lease has no head to expect any more: it came, or the lease is over before it.
    pub(super) fn head_settled(&mut self, now: Instant, lease: &Lease, came: bool) {
        let Some(provider) = self.providers.get_mut(lease.provider.0 as usize) else { return };
        let Some(model) = self.models.get_mut(lease.model.0 as usize) else { return };
        if let Some(count) = provider.health.headless.get_mut(lease.kind) {
            *count = count.saturating_sub(1);
        }
        if came {
            model.heads.note(lease.kind, now.saturating_duration_since(lease.granted_at));
            provider.health.shows_life(now, model.heads.count);
            if provider.health.standing.is_for_silence() {
                self.take_back(now, lease.provider);
            }
        } else if provider.health.headless.iter().all(|count| *count == 0) {
            provider.health.silent_since = None;
        }
    }

    /// A lease ended; if it was the one request of a provider that is being tried, its report is due.
    pub(super) fn try_over(&mut self, now: Instant, id: LeaseId, index: ProviderIndex) {
        let Some(provider) = self.providers.get(index.0 as usize) else { return };
        if let Standing::Tried { lease, silent, until: None } = provider.health.standing
            && lease == id
        {
            self.stand(now, index, Standing::Tried { lease, silent, until: Some(now + REPORT) });
        }
    }

    /// Passes over the providers of a model that are silent while others answer.
    pub(super) fn look(&mut self, now: Instant, index: ModelIndex) {
        let Some(model) = self.models.get_mut(index.0 as usize) else { return };
        model.heads.watched = false;
        if model.open < 2 || model.in_flight <= model.phases.streaming {
            return;
        }
        model.heads.watched = true;
        self.timers.insert((now + LOOK, Timer::Look(index)));
        let is_silent = |provider: &Provider| {
            let health = &provider.health;
            let Some((since, heads)) = health.silent_since else { return false };
            let patience = model.heads.patience(&health.headless);
            provider.open
                && health.standing == Standing::In
                && model.heads.count >= heads + PEERS_HEADS
                && patience.is_some_and(|patience| now.saturating_duration_since(since) >= patience)
        };
        let silent: Vec<ProviderIndex> = model
            .providers
            .iter()
            .filter(|index| self.providers.get(index.0 as usize).is_some_and(is_silent))
            .copied()
            .collect();
        for index in silent {
            self.pass_over(now, index, true);
        }
    }
}
