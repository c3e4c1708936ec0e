//! The order in which a model's waiting requests are served.
//!
//! Owns who is next: strict priority class, then requests that come back after a slot, then fair turns between keys
//! (start-time fair queueing by tokens), then arrival. Leaves slots and time to [`super::Admission`]. Invariants: each
//! waiting ticket stands in exactly one line; a line that stands in the order is never empty; what does not fit blocks
//! nobody, and neither gains nor loses turns for it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::pool::Lane;
use super::words::Avoid;

/// A waiting request. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// The number of an API key in this process; 0 is a caller without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyNumber(pub(crate) u32);

/// Priority class: a lower one is served first, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Class(pub(crate) u8);

impl Default for Class {
    fn default() -> Self {
        Self(NORMAL_CLASS)
    }
}

/// The class of a key that says nothing: the middle, so that keys can be put before and behind it.
pub(crate) const NORMAL_CLASS: u8 = 128;

/// A class whose long requests wait and got no slot for so long gives its next fitting slot to the first of them,
/// whatever is before it in the class. Once in this time: a flood of long requests holds the others up no further.
pub(crate) const PASSED_OVER_MAX: Duration = Duration::from_secs(5);

/// Whose turn a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Who {
    /// Those who had a slot and come back, by the provider that they do not go back to.
    Again(Option<Avoid>),
    /// A key's new requests.
    Key(KeyNumber),
}

/// Where a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) class: Class,
    pub(super) who: Who,
    pub(super) lane: Lane,
}

/// A line's place in the order of its lane: class, virtual start time (who comes back is before all), first ticket.
type Place = (Class, Option<u64>, Ticket, Who);

fn place(class: Class, start: u64, first: Ticket, who: Who) -> Place {
    (class, matches!(who, Who::Key(_)).then_some(start), first, who)
}

/// One account's turn, and its lines: one a lane, each in the order of arrival.
#[derive(Debug, Default)]
struct Account {
    /// Virtual time from which its next request counts.
    start: u64,
    lines: BTreeMap<Lane, BTreeSet<Ticket>>,
}

#[derive(Clone, Copy, Debug)]
struct OfClass {
    /// Virtual time: the start of the account served last.
    now: u64,
    long_waiting: usize,
    /// Since when long requests wait without any of them being served.
    long_since: Instant,
}

/// One model's waiting requests.
#[derive(Debug, Default)]
pub(super) struct Queue {
    accounts: HashMap<(Class, Who), Account>,
    order: BTreeMap<Lane, BTreeSet<Place>>,
    classes: BTreeMap<Class, OfClass>,
    /// Accounts without anyone waiting that are still ahead of their class's time.
    idle: BTreeSet<(Class, u64, Who)>,
    /// How many wait in each lane.
    depths: BTreeMap<Lane, usize>,
    len: usize,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Of those who wait, the long ones.
    pub(super) fn long_waiting(&self) -> usize {
        self.classes.values().map(|class| class.long_waiting).sum()
    }

    /// Of those who wait, the ones whose slot may be of these lanes.
    pub(super) fn waiting_in(&self, fits: impl Fn(Lane) -> bool) -> usize {
        self.depths.iter().filter(|(lane, _)| fits(**lane)).map(|(_, depth)| depth).sum()
    }

    /// Adds a ticket: one that is newer than all before it, or one that waited in another line.
    pub(super) fn push(&mut self, now: Instant, spot: Spot, ticket: Ticket) {
        let Spot { class, who, lane } = spot;
        let of_class =
            self.classes.entry(class).or_insert(OfClass { now: 0, long_waiting: 0, long_since: now });
        if lane.long {
            if of_class.long_waiting == 0 {
                of_class.long_since = now;
            }
            of_class.long_waiting += 1;
        }
        let virtual_now = of_class.now;
        let account = self.accounts.entry((class, who)).or_default();
        if account.lines.is_empty() && matches!(who, Who::Key(_)) {
            self.idle.remove(&(class, account.start, who));
            // One that was away gains nothing for it.
            account.start = account.start.max(virtual_now);
        }
        let line = account.lines.entry(lane).or_default();
        let first = line.first().copied();
        line.insert(ticket);
        self.len += 1;
        *self.depths.entry(lane).or_default() += 1;
        if line.first() == Some(&ticket) {
            let order = self.order.entry(lane).or_default();
            if let Some(first) = first {
                order.remove(&place(class, account.start, first, who));
            }
            order.insert(place(class, account.start, ticket, who));
        }
    }

    /// Takes a ticket out unserved: nothing is charged. False if it was not there.
    pub(super) fn remove(&mut self, spot: Spot, ticket: Ticket) -> bool {
        let there = self.take(spot, ticket);
        self.tidy(spot.class, spot.who);
        there
    }

    /// Takes a ticket out to be served, and charges its account.
    pub(super) fn serve(&mut self, now: Instant, spot: Spot, ticket: Ticket, cost: u64) -> bool {
        if !self.take(spot, ticket) {
            return false;
        }
        if let Some(of_class) = self.classes.get_mut(&spot.class)
            && spot.lane.long
        {
            of_class.long_since = now;
        }
        self.charge(spot.class, spot.who, cost);
        true
    }

    /// Charges a key for a request that got a slot without waiting while others wait for slots that fit them.
    pub(super) fn charge(&mut self, class: Class, who: Who, cost: u64) {
        if self.len > 0
            && matches!(who, Who::Key(_))
            && let Some(of_class) = self.classes.get_mut(&class)
        {
            let account = self.accounts.entry((class, who)).or_default();
            let before = account.start;
            // Whoever lagged behind since nothing fitted has had its turn now, and no more than that.
            let start = before.max(of_class.now);
            of_class.now = start;
            self.restart(class, who, start.saturating_add(cost));
        }
        self.tidy(class, who);
    }

    /// A request of this key used so many tokens more (or less) than it was charged for.
    pub(super) fn correct(&mut self, class: Class, key: KeyNumber, tokens: i64) {
        let who = Who::Key(key);
        let Some(of_class) = self.classes.get(&class).copied().filter(|_| self.len > 0) else { return };
        let start = self.accounts.get(&(class, who)).map_or(of_class.now, |account| account.start);
        // What is given back puts nobody before those whose turn it is.
        let corrected = if tokens > 0 {
            start.max(of_class.now).saturating_add_signed(tokens)
        } else {
            start.saturating_add_signed(tokens).max(of_class.now.min(start))
        };
        if corrected > of_class.now || self.accounts.contains_key(&(class, who)) {
            self.accounts.entry((class, who)).or_default();
            self.restart(class, who, corrected);
        }
        self.tidy(class, who);
    }

    /// Gives an account another start, in all lines where it stands.
    fn restart(&mut self, class: Class, who: Who, start: u64) {
        let Some(account) = self.accounts.get_mut(&(class, who)) else { return };
        let before = std::mem::replace(&mut account.start, start);
        if account.lines.is_empty() {
            self.idle.remove(&(class, before, who));
            self.idle.insert((class, start, who));
            return;
        }
        for (lane, line) in &account.lines {
            if let (Some(order), Some(first)) = (self.order.get_mut(lane), line.first()) {
                order.remove(&place(class, before, *first, who));
                order.insert(place(class, start, *first, who));
            }
        }
    }

    fn take(&mut self, spot: Spot, ticket: Ticket) -> bool {
        let Spot { class, who, lane } = spot;
        let Some(account) = self.accounts.get_mut(&(class, who)) else { return false };
        let Some(line) = account.lines.get_mut(&lane) else { return false };
        let first = line.first().copied();
        if !line.remove(&ticket) {
            return false;
        }
        self.len -= 1;
        if let Some(depth) = self.depths.get_mut(&lane) {
            *depth -= 1;
            if *depth == 0 {
                self.depths.remove(&lane);
            }
        }
        if lane.long
            && let Some(of_class) = self.classes.get_mut(&class)
        {
            of_class.long_waiting = of_class.long_waiting.saturating_sub(1);
        }
        if first == Some(ticket)
            && let Some(order) = self.order.get_mut(&lane)
        {
            order.remove(&place(class, account.start, ticket, who));
            if let Some(next) = line.first() {
                order.insert(place(class, account.start, *next, who));
            }
            if order.is_empty() {
                self.order.remove(&lane);
            }
        }
        if line.is_empty() {
            account.lines.remove(&lane);
            if account.lines.is_empty() && matches!(who, Who::Key(_)) {
                self.idle.insert((class, account.start, who));
            }
        }
        true
    }

    /// Forgets accounts that are owed nothing and owe nothing.
    fn tidy(&mut self, class: Class, who: Who) {
        if self.len == 0 {
            // Nobody waits, so nobody is before another.
            self.accounts.clear();
            self.order.clear();
            self.classes.clear();
            self.idle.clear();
            return;
        }
        if matches!(who, Who::Again(_))
            && self.accounts.get(&(class, who)).is_some_and(|account| account.lines.is_empty())
        {
            self.accounts.remove(&(class, who));
        }
        let now = self.classes.get(&class).map_or(0, |of_class| of_class.now);
        while let Some(&(of, start, idle)) = self.idle.range((class, 0, Who::Again(None))..).next()
            && of == class
            && start <= now
        {
            self.idle.remove(&(of, start, idle));
            self.accounts.remove(&(of, idle));
        }
    }

    /// The ticket that is next among those for whom `is_free` finds a slot. It is asked for lanes, and for a lane but
    /// for one provider.
    pub(super) fn next(&self, now: Instant, is_free: impl Fn(Lane, Option<Avoid>) -> bool) -> Option<Ticket> {
        let rank = |lane: Lane, (class, start, ticket, who): Place| {
            let turn = match who {
                Who::Again(_) => 0,
                Who::Key(_) if lane.long && self.is_long_overdue(now, class) => 1,
                Who::Key(_) => 2,
            };
            (class, turn, start, ticket)
        };
        let lanes = self.order.iter().filter(|(lane, _)| is_free(**lane, None));
        lanes
            .filter_map(|(lane, order)| {
                // Whoever avoids the only provider with a slot is passed over; all who do so stand in one line.
                let place = order.iter().find(|(_, _, _, who)| match who {
                    Who::Again(avoid @ Some(_)) => is_free(*lane, *avoid),
                    _ => true,
                })?;
                Some(rank(*lane, *place))
            })
            .min()
            .map(|(_, _, _, ticket)| ticket)
    }

    fn is_long_overdue(&self, now: Instant, class: Class) -> bool {
        self.classes.get(&class).is_some_and(|of_class| {
            of_class.long_waiting > 0 && now.saturating_duration_since(of_class.long_since) >= PASSED_OVER_MAX
        })
    }

    /// All tickets, in no promised order.
    pub(super) fn tickets(&self) -> impl Iterator<Item = Ticket> + '_ {
        self.accounts.values().flat_map(|account| account.lines.values().flatten().copied())
    }

    /// The tickets of one lane, in no promised order.
    pub(super) fn tickets_of(&self, lane: Lane) -> impl Iterator<Item = Ticket> + '_ {
        self.accounts.values().filter_map(move |account| account.lines.get(&lane)).flatten().copied()
    }

    /// The lanes in which someone waits.
    pub(super) fn lanes(&self) -> impl Iterator<Item = Lane> + '_ {
        self.order.keys().copied()
    }

    /// Moves everyone to the lane that `lane_of` says.
    pub(super) fn relane(&mut self, lane_of: impl Fn(Ticket) -> Option<Lane>) {
        self.order.clear();
        self.depths.clear();
        for of_class in self.classes.values_mut() {
            of_class.long_waiting = 0;
        }
        for ((class, who), account) in &mut self.accounts {
            for (before, line) in std::mem::take(&mut account.lines) {
                for ticket in line {
                    let lane = lane_of(ticket).unwrap_or(before);
                    account.lines.entry(lane).or_default().insert(ticket);
                }
            }
            for (lane, line) in &account.lines {
                *self.depths.entry(*lane).or_default() += line.len();
                if let (true, Some(of_class)) = (lane.long, self.classes.get_mut(class)) {
                    of_class.long_waiting += line.len();
                }
                if let Some(first) = line.first() {
                    let place = place(*class, account.start, *first, *who);
                    self.order.entry(*lane).or_default().insert(place);
                }
            }
        }
    }
}
