//! Admission against a model that looks at everyone each time: the same turns, the same choice, the same refusals.

use std::collections::HashMap;

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

/// Up to five providers: a second declared with another capacity, another context, with and without long slots.
const PROVIDERS: u8 = 5;
const THRESHOLD: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    Ask { key: u32, class: u8, tokens: u64, again: bool, avoid_last: bool, prefix: u8 },
    End(usize),
    Withdraw(usize),
    Declare { number: u8, capacity: u32, long: u32, limit: u32 },
    State(u8, ProviderState),
    Used { key: u32, class: u8, estimated: u64, used: u64 },
    Pass(u64),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let number = u8::arbitrary(g) % PROVIDERS;
        let (key, class) = (u32::arbitrary(g) % 3, u8::arbitrary(g) % 2);
        let tokens = *g.choose(&[0, 1, 10, 90, 150, 250, 350, 900]).unwrap();
        match u8::arbitrary(g) % 20 {
            0..=8 => Self::Ask {
                key,
                class,
                tokens,
                again: u8::arbitrary(g) % 6 == 0,
                avoid_last: u8::arbitrary(g) % 6 == 0,
                prefix: u8::arbitrary(g) % 8,
            },
            9..=13 => Self::End(usize::arbitrary(g)),
            14 => Self::Withdraw(usize::arbitrary(g)),
            15 => {
                let capacity = u32::arbitrary(g) % 4;
                let long = u32::arbitrary(g) % (capacity + 1);
                Self::Declare { number, capacity, long, limit: *g.choose(&[0, 200, 200, 300]).unwrap() }
            }
            16 => {
                let states = [ProviderState::Available, ProviderState::Available, ProviderState::Unavailable];
                Self::State(number, *g.choose(&states).unwrap())
            }
            17 if u8::arbitrary(g) % 4 == 0 => Self::State(number, ProviderState::Draining),
            17 | 18 => Self::Used { key, class, estimated: tokens, used: u64::arbitrary(g) % 2_000 },
            _ => Self::Pass(u64::arbitrary(g) % 4),
        }
    }
}

#[derive(Clone)]
struct Plain {
    index: ProviderIndex,
    state: ProviderState,
    capacity: u32,
    long: u32,
    limit: u64,
    opened: u32,
    leases: Vec<(LeaseId, bool)>,
}

impl Plain {
    fn open(&self) -> bool {
        self.state == ProviderState::Available
    }

    fn long_leases(&self) -> usize {
        self.leases.iter().filter(|(_, long)| *long).count()
    }
}

#[derive(Clone)]
struct Waits {
    ticket: Ticket,
    class: u8,
    key: Option<u32>,
    avoid: Option<Avoid>,
    since: Instant,
    tokens: u64,
    long: bool,
    prefix: Prefix,
}

/// One model, kept as plainly as possible.
struct Reference {
    now: Instant,
    providers: Vec<Plain>,
    waiting: Vec<Waits>,
    starts: HashMap<(u8, u32), u64>,
    turn: HashMap<u8, u64>,
    long_since: HashMap<u8, Instant>,
    seen: HashMap<u64, Avoid>,
}

impl Reference {
    fn longest(&self, long: bool) -> u64 {
        let takes = |one: &&Plain| one.long > 0 || !long;
        self.providers.iter().filter(takes).map(|one| one.limit).max().unwrap_or(0)
    }

    fn fits(&self, one: &Plain, tokens: u64, long: bool) -> bool {
        one.limit >= tokens.min(self.longest(long)) && (one.long > 0 || !long)
    }

    fn has_room(&self, one: &Plain, tokens: u64, long: bool) -> bool {
        one.open()
            && self.fits(one, tokens, long)
            && one.leases.len() < one.capacity as usize
            && (!long || one.long_leases() < one.long as usize)
    }

    fn choose(&self, ask: &Waits) -> Option<(ProviderIndex, bool)> {
        let (tokens, long) = (ask.tokens, ask.long);
        let is_avoided = |one: &Plain| ask.avoid.is_some_and(|avoid| avoid.applies(one.index, one.opened));
        let candidates =
            || self.providers.iter().filter(|one| self.has_room(one, tokens, long) && !is_avoided(one));
        let seen = ask.prefix.hashes().iter().rev().find_map(|hash| {
            let avoid = self.seen.get(hash)?;
            self.providers.iter().find(|one| one.open() && avoid.applies(one.index, one.opened))
        });
        let open = || self.providers.iter().filter(|one| one.open());
        let total: usize = open().map(|one| one.leases.len()).sum();
        let capacity: u32 = open().map(|one| one.capacity).sum();
        if let Some(one) = seen
            && candidates().any(|other| other.index == one.index)
        {
            let share = 1.25 * (total as f64 + 1.0) * f64::from(one.capacity) / f64::from(capacity);
            if one.leases.len() as f64 + 1.0 <= share.ceil() {
                return Some((one.index, true));
            }
        }
        let load = |one: &Plain| (one.leases.len() as u64 * 1_000_000) / u64::from(one.capacity);
        candidates().min_by_key(|one| (load(one), one.limit, one.index)).map(|one| (one.index, false))
    }

    fn next(&self) -> Option<(usize, ProviderIndex, bool)> {
        let rank = |one: &Waits| {
            let overdue = || {
                self.long_since
                    .get(&one.class)
                    .is_some_and(|since| self.now - *since >= Duration::from_secs(5))
            };
            let turn = match one.key {
                None => 0,
                Some(_) if one.long && overdue() => 1,
                Some(_) => 2,
            };
            let start = one.key.map_or(0, |key| self.starts.get(&(one.class, key)).copied().unwrap_or(0));
            (one.class, turn, start, one.ticket)
        };
        let fitting =
            self.waiting.iter().enumerate().filter_map(|(at, one)| Some((at, one, self.choose(one)?)));
        fitting
            .min_by_key(|(_, one, _)| rank(one))
            .map(|(at, _, (provider, affinity))| (at, provider, affinity))
    }

    fn charge(&mut self, class: u8, key: u32, tokens: u64) {
        let turn = self.turn.entry(class).or_default();
        let start = self.starts.entry((class, key)).or_default();
        *turn = (*turn).max(*start);
        *start = *turn + tokens.max(1);
    }

    fn lease(&mut self, ask: &Waits, grant: Grant) {
        for hash in ask.prefix.hashes() {
            self.seen.insert(*hash, grant.avoid);
        }
        let one = self.providers.iter_mut().find(|one| one.index == grant.provider).unwrap();
        one.leases.push((grant.lease, ask.long));
    }

    /// Whoever waits in vain is refused, whoever fits is served: in exactly this order.
    fn follow(&mut self, outputs: Vec<Output>) {
        let mut outputs = outputs.into_iter().peekable();
        loop {
            while let Some(Output::Refused(ticket, refusal)) = outputs.peek().copied() {
                let at = self.waiting.iter().position(|one| one.ticket == ticket).unwrap();
                let one = self.waiting.remove(at);
                let wanted = |plain: &Plain| {
                    plain.state != ProviderState::Draining && self.fits(plain, one.tokens, one.long)
                };
                match refusal.reason {
                    RefusalReason::TooLong { limit, .. } => {
                        assert!(one.tokens > 2 * self.longest(one.long) && limit == self.longest(one.long));
                    }
                    RefusalReason::NoneWanted => assert!(!self.providers.iter().any(wanted)),
                    other => panic!("{other:?}"),
                }
                outputs.next();
            }
            let Some((at, provider, affinity)) = self.next() else { break };
            let Some(Output::Granted(ticket, grant)) = outputs.next() else {
                panic!("{:?} stands beside a free slot", self.waiting[at].ticket)
            };
            let one = self.waiting.remove(at);
            assert_eq!((ticket, grant.provider, grant.affinity), (one.ticket, provider, affinity));
            assert_eq!((grant.long, grant.estimated_tokens), (one.long, one.tokens));
            if one.long {
                self.long_since.insert(one.class, self.now);
            }
            if let Some(key) = one.key {
                self.charge(one.class, key, one.tokens);
            }
            self.lease(&one, grant);
            self.forget();
        }
        assert_eq!(outputs.next(), None);
        self.forget();
    }

    /// Nobody waits: nobody is before another.
    fn forget(&mut self) {
        if self.waiting.is_empty() {
            self.starts.clear();
            self.turn.clear();
            self.long_since.clear();
        }
        for class in 0..2 {
            if !self.waiting.iter().any(|one| one.class == class && one.long) {
                self.long_since.remove(&class);
            }
        }
    }
}

struct Pair {
    site: Site,
    plain: Reference,
    last: Option<Avoid>,
}

fn declared(number: u8, capacity: u32, long: u32, limit: u32) -> ProviderSpec {
    ProviderSpec {
        max_context_tokens: limit,
        long_context_threshold_tokens: u32::try_from(THRESHOLD).unwrap(),
        long_context_capacity: long,
        ..spec(number, "e", "m", capacity)
    }
}

impl Pair {
    fn new() -> Self {
        let now = Instant::now();
        let day = Duration::from_secs(86_400);
        let limits = Limits { waiting: 1_000, max_wait: 100 * day, ..Limits::default() };
        let mut admission = Admission::new(limits, 1);
        let mut providers = Vec::new();
        for number in 0..PROVIDERS {
            let (capacity, long, limit) =
                [(1, 1, 0), (2, 1, 200), (3, 0, 200), (2, 2, 300), (1, 0, 0)][usize::from(number)];
            admission.node_eligible(now, node(number), true);
            let spec = declared(number, capacity, long, limit);
            let index = admission.provider_up(now, spec, Generation(1), ProviderState::Available).unwrap();
            admission.node_ready(now, node(number), Generation(1), true);
            let limit = if limit == 0 { u64::MAX } else { u64::from(limit) };
            let state = ProviderState::Available;
            providers.push(Plain { index, state, capacity, long, limit, opened: 1, leases: Vec::new() });
        }
        let model = admission.resolve("m").unwrap();
        let plain = Reference {
            now,
            providers,
            waiting: Vec::new(),
            starts: HashMap::new(),
            turn: HashMap::new(),
            long_since: HashMap::new(),
            seen: HashMap::new(),
        };
        Self { site: Site { now, admission, model }, plain, last: None }
    }

    fn ask(&mut self, ask: &Ask, one: Waits) {
        let decision = self.site.admit(ask);
        let wanted = |plain: &Plain| {
            plain.state != ProviderState::Draining && self.plain.fits(plain, one.tokens, one.long)
        };
        match decision {
            Decision::Granted(grant) => {
                let chosen = self.plain.choose(&one).expect("no slot fits it");
                assert_eq!((grant.provider, grant.affinity), chosen);
                self.last = Some(grant.avoid);
                if let Some(key) = one.key.filter(|_| {
                    self.plain.waiting.iter().any(|other| other.class == one.class)
                        || self.plain.turn.contains_key(&one.class)
                }) {
                    self.plain.charge(one.class, key, one.tokens);
                }
                self.plain.lease(&one, grant);
            }
            Decision::Waiting(ticket) => {
                assert_eq!(self.plain.choose(&one), None, "a slot was free");
                if one.long {
                    self.plain.long_since.entry(one.class).or_insert(self.plain.now);
                }
                let turn = *self.plain.turn.entry(one.class).or_default();
                if let Some(key) = one.key
                    && !self
                        .plain
                        .waiting
                        .iter()
                        .any(|other| (other.class, other.key) == (one.class, Some(key)))
                {
                    let start = self.plain.starts.entry((one.class, key)).or_default();
                    *start = (*start).max(turn);
                }
                self.plain.waiting.push(Waits { ticket, ..one });
            }
            Decision::Refused(refusal) => match refusal.reason {
                RefusalReason::TooLong { .. } => assert!(one.tokens > 2 * self.plain.longest(one.long)),
                RefusalReason::NoneWanted => assert!(!self.plain.providers.iter().any(wanted)),
                other => panic!("{other:?}"),
            },
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.site.now;
        match *step {
            Step::Ask { key, class, tokens, again, avoid_last, prefix } => {
                let avoid = self.last.filter(|_| avoid_last);
                let again = again || avoid.is_some();
                let prompt: Vec<u8> =
                    (0..prefix / 2).flat_map(|block| vec![block ^ (prefix % 2); 1_024]).collect();
                let prefix = Prefix::of(5, &prompt);
                let mut ask = Ask::new(self.site.model, KeyNumber(key), Class(class));
                (ask.avoid, ask.at_head, ask.prompt_bytes, ask.prefix) =
                    (avoid, again, 4 * tokens, prefix.clone());
                let key = (!again).then_some(key);
                let long = tokens > THRESHOLD;
                let since = now;
                self.ask(&ask, Waits { ticket: Ticket(0), class, key, avoid, since, tokens, long, prefix });
            }
            Step::End(choice) => {
                let leases: Vec<LeaseId> = self
                    .plain
                    .providers
                    .iter()
                    .flat_map(|one| one.leases.iter().map(|(lease, _)| *lease))
                    .collect();
                if let Some(lease) = leases.get(choice % leases.len().max(1)).copied() {
                    for one in &mut self.plain.providers {
                        one.leases.retain(|(other, _)| *other != lease);
                    }
                    assert!(self.site.admission.end(now, lease));
                }
            }
            Step::Withdraw(choice) => {
                let count = self.plain.waiting.len();
                if count > 0 {
                    let one = self.plain.waiting.remove(choice % count);
                    assert!(self.site.admission.withdraw(one.ticket));
                    self.plain.forget();
                }
            }
            Step::Declare { number, capacity, long, limit } => {
                let one = &mut self.plain.providers[usize::from(number)];
                (one.capacity, one.long) = (capacity, long);
                one.limit = if limit == 0 { u64::MAX } else { u64::from(limit) };
                self.site.admission.declare(now, declared(number, capacity, long, limit)).unwrap();
            }
            Step::State(number, state) => {
                let one = &mut self.plain.providers[usize::from(number)];
                one.opened += u32::from(state == ProviderState::Available && !one.open());
                one.state = state;
                let id = self.site.id(number);
                self.site.admission.provider_state(now, &id, Generation(1), state);
            }
            Step::Used { key, class, estimated, used } => self.used(key, class, estimated, used),
            Step::Pass(seconds) => {
                self.site.now += Duration::from_secs(seconds);
                self.plain.now = self.site.now;
                for one in &mut self.plain.waiting {
                    // Where nobody else took it in a second it goes back.
                    one.avoid = one.avoid.filter(|_| one.since + SECOND > self.site.now);
                }
                self.site.admission.expire(self.site.now);
            }
        }
        let outputs = self.site.outputs();
        self.plain.follow(outputs);
    }

    fn used(&mut self, key: u32, class: u8, estimated: u64, used: u64) {
        let usage = Usage { prompt_tokens: used, source: UsageSource::Counted, ..Usage::default() };
        self.site.admission.used(self.site.model, (KeyNumber(key), Class(class)), 0, estimated, &usage);
        let Some(&turn) = self.plain.turn.get(&class).filter(|_| !self.plain.waiting.is_empty()) else {
            return;
        };
        let known = self.plain.starts.get(&(class, key)).copied();
        let start = known.unwrap_or(turn);
        let corrected = if used > estimated {
            start.max(turn) + (used - estimated)
        } else {
            start.saturating_sub(estimated - used).max(turn.min(start))
        };
        if known.is_some() || corrected > turn {
            self.plain.starts.insert((class, key), corrected);
        }
    }
}

quickcheck! {
    fn turns_and_choices_are_those_of_the_plain_model(steps: Vec<Step>) -> bool {
        let mut pair = Pair::new();
        for step in steps.iter().chain(&steps) {
            pair.step(step);
        }
        true
    }
}
