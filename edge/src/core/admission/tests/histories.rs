//! Admission against a plain model, under random histories.

use std::collections::{BTreeMap, BTreeSet};

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Ask { key: u32, class: u8, at_head: bool, avoid_last: bool },
    End(usize),
    Head(usize),
    Reset(usize),
    Withdraw(usize),
    Capacity(u8, u32),
    State(u8, ProviderState),
    Lost(u8),
    Back(u8),
    Drain(u8, bool),
    Pass(u64),
    Report(Outcome),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let states = [
            ProviderState::Available,
            ProviderState::Loading,
            ProviderState::Unavailable,
            ProviderState::Draining,
            ProviderState::Leaving,
            ProviderState::Failed,
        ];
        let node = u8::arbitrary(g) % 3;
        match u8::arbitrary(g) % 22 {
            0..=7 => Self::Ask {
                key: u32::arbitrary(g) % 3,
                class: u8::arbitrary(g) % 2,
                at_head: u8::arbitrary(g) % 6 == 0,
                avoid_last: u8::arbitrary(g) % 6 == 0,
            },
            8..=11 => Self::End(usize::arbitrary(g)),
            12 => Self::Head(usize::arbitrary(g)),
            13 => Self::Reset(usize::arbitrary(g)),
            14 => Self::Withdraw(usize::arbitrary(g)),
            15 => Self::Capacity(node, u32::arbitrary(g) % 5),
            16 => Self::State(node, *g.choose(&states).unwrap()),
            17 => Self::Lost(node),
            18 => Self::Back(node),
            20 | 21 => Self::Report(
                *g.choose(&[Outcome::Answered, Outcome::Failed, Outcome::Failed, Outcome::TimedOut]).unwrap(),
            ),
            _ if bool::arbitrary(g) => Self::Drain(node, u8::arbitrary(g) % 4 == 0),
            _ => Self::Pass(u64::arbitrary(g) % 20),
        }
    }
}

/// What must be true, kept apart from the implementation.
#[derive(Default)]
struct Model {
    leases: BTreeMap<LeaseId, (ProviderIndex, Generation)>,
    waiting: BTreeSet<Ticket>,
    answered: BTreeSet<Ticket>,
    all_leases: BTreeSet<LeaseId>,
    admitted: u64,
    shed: u64,
}

struct History {
    site: Site,
    model: Model,
    capacity: [u32; 3],
    generation: [u64; 3],
    up: [bool; 3],
    last: Option<(Avoid, LeaseId)>,
}

impl History {
    fn new() -> Self {
        Self {
            site: Site::new(&[1, 2, 3]),
            model: Model::default(),
            capacity: [1, 2, 3],
            generation: [1; 3],
            up: [true; 3],
            last: None,
        }
    }

    fn number(&self, provider: ProviderIndex) -> u8 {
        let spec = self.site.admission.spec(provider).unwrap();
        (0..3).find(|number| node(*number) == spec.node_id).unwrap()
    }

    fn grant(&mut self, grant: Grant) {
        let number = self.number(grant.provider);
        assert!(self.model.all_leases.insert(grant.lease), "a lease id was given twice");
        self.model.leases.insert(grant.lease, (grant.provider, grant.generation));
        self.model.admitted += 1;
        self.last = Some((grant.avoid, grant.lease));
        assert!(self.up[usize::from(number)], "a slot of a node that is away");
        let held = self.model.leases.values().filter(|(provider, _)| *provider == grant.provider).count();
        let capacity = self.capacity[usize::from(number)];
        assert!(held <= capacity as usize, "{held} leases at a capacity of {capacity}");
    }

    fn settle(&mut self) {
        for output in self.site.outputs() {
            let ticket = match output {
                Output::Granted(ticket, grant) => {
                    self.grant(grant);
                    ticket
                }
                Output::Refused(ticket, _) => {
                    self.model.shed += 1;
                    ticket
                }
            };
            assert!(self.model.waiting.remove(&ticket), "{ticket:?} did not wait");
            assert!(self.model.answered.insert(ticket), "{ticket:?} was answered twice");
        }
    }

    fn pick(&self, choice: usize) -> Option<LeaseId> {
        let count = self.model.leases.len();
        (count > 0).then(|| *self.model.leases.keys().nth(choice % count).unwrap())
    }

    /// Leases of a node's connection.
    fn held(&self, number: u8, generation: Generation) -> Vec<LeaseId> {
        let of = |(provider, of): &(ProviderIndex, Generation)| {
            *of == generation && self.number(*provider) == number
        };
        self.model.leases.iter().filter(|(_, held)| of(held)).map(|(lease, _)| *lease).collect()
    }

    fn step(&mut self, step: &Step) {
        let now = self.site.now;
        let admission = &mut self.site.admission;
        match *step {
            Step::Ask { key, class, at_head, avoid_last } => {
                let avoid = self.last.filter(|_| avoid_last).map(|(avoid, _)| avoid);
                // As in the edge: only what comes back to the head avoids anything.
                let at_head = at_head || avoid.is_some();
                let ask = Ask { avoid, at_head, ..Ask::new(self.site.model, KeyNumber(key), Class(class)) };
                match admission.admit(now, &ask) {
                    Decision::Granted(grant) => self.grant(grant),
                    Decision::Waiting(ticket) => assert!(self.model.waiting.insert(ticket)),
                    Decision::Refused(_) => self.model.shed += 1,
                }
            }
            Step::End(choice) => {
                if let Some(lease) = self.pick(choice) {
                    assert!(self.site.admission.end(now, lease));
                    self.model.leases.remove(&lease);
                    assert!(!self.site.admission.end(now, lease));
                }
            }
            Step::Head(choice) => {
                if let Some(lease) = self.pick(choice) {
                    self.site.admission.streaming(now, lease);
                }
            }
            Step::Reset(choice) => {
                if let Some(lease) = self.pick(choice) {
                    self.site.admission.resetting(now, lease);
                }
            }
            Step::Withdraw(choice) => {
                let count = self.model.waiting.len();
                if count > 0 {
                    let ticket = *self.model.waiting.iter().nth(choice % count).unwrap();
                    assert!(admission.withdraw(ticket));
                    self.model.waiting.remove(&ticket);
                    self.model.answered.insert(ticket);
                }
            }
            Step::Capacity(number, capacity) => {
                // Raised before, lowered after: what is granted in between is within the larger one.
                let old = self.capacity[usize::from(number)];
                self.capacity[usize::from(number)] = old.max(capacity);
                admission.declare(now, spec(number, "e", "m", capacity)).unwrap();
                self.settle();
                self.capacity[usize::from(number)] = capacity;
            }
            Step::State(number, state) => {
                let (id, generation) = (self.site.id(number), self.generation[usize::from(number)]);
                self.site.admission.provider_state(now, &id, Generation(generation), state);
            }
            Step::Lost(number) => {
                let generation = Generation(self.generation[usize::from(number)]);
                self.up[usize::from(number)] = false;
                let lost = self.held(number, generation);
                let ended = self.site.admission.node_lost(now, node(number), generation);
                assert_eq!(ended, lost.len());
                for lease in lost {
                    self.model.leases.remove(&lease);
                }
            }
            Step::Back(number) => {
                let at = usize::from(number);
                if self.up[at] {
                    return;
                }
                self.generation[at] += 1;
                self.up[at] = true;
                let generation = Generation(self.generation[at]);
                let spec = spec(number, "e", "m", self.capacity[at]);
                admission.provider_up(now, spec, generation, ProviderState::Available).unwrap();
                admission.node_ready(now, node(number), generation, true);
            }
            Step::Drain(number, draining) => admission.node_draining(now, node(number), draining),
            Step::Report(outcome) => {
                if let Some((avoid, lease)) = self.last {
                    admission.report(now, avoid, lease, outcome, false);
                }
            }
            Step::Pass(seconds) => {
                self.site.now += Duration::from_secs(seconds);
                self.site.admission.expire(self.site.now);
            }
        }
        self.settle();
    }

    fn check(&self) {
        let admission = &self.site.admission;
        let counts = admission.lease_counts();
        assert_eq!(counts.in_flight() as usize, self.model.leases.len(), "leases held");
        assert_eq!(counts.waiting as usize, self.model.waiting.len(), "waiting");
        let mut in_flight = 0;
        for number in 0..3 {
            let figures = admission.figures(&self.site.id(number)).unwrap();
            let held =
                self.model.leases.values().filter(|(provider, _)| self.number(*provider) == number).count();
            assert_eq!(figures.in_flight as usize, held, "provider {number}");
            assert_eq!(admission.node_in_flight(node(number)), figures.in_flight);
            in_flight += figures.in_flight;
            // Nobody stands beside a free slot, but those who must not go back to it.
            let free = figures.open && !figures.ejected && figures.in_flight < figures.capacity;
            if free {
                let ask = Ask { avoid: None, ..self.site.ask() };
                let all_avoid = admission.waiters_without_avoid() == 0;
                assert!(all_avoid, "{ask:?} waits beside a free slot of {number}");
            }
        }
        let queue = &admission.queues(self.site.now)[0];
        assert_eq!((queue.depth, queue.in_flight), (self.model.waiting.len(), in_flight));
        assert_eq!((queue.admitted_total, queue.shed_total), (self.model.admitted, self.model.shed));
        assert_eq!(queue.without_head, counts.without_head + counts.resetting + counts.unconfirmed);
        assert!(admission.timers_agree());
        assert!(admission.states_agree());
    }
}

impl Admission {
    fn waiters_without_avoid(&self) -> usize {
        self.waiters.values().filter(|waiter| waiter.ask.avoid.is_none()).count()
    }

    fn states_agree(&self) -> bool {
        let model = self.models.get(0).unwrap();
        let count = |which: fn(&Provider) -> bool| -> u32 {
            self.providers.iter().filter(|provider| which(provider)).count().try_into().unwrap()
        };
        let loading = |provider: &Provider| provider.wanted && provider.state == ProviderState::Loading;
        let streaming = self.leases.values().filter(|held| held.phase == LeasePhase::Streaming).count();
        (model.open, model.wanted, model.loading, model.phases.streaming as usize)
            == (count(|one| one.open), count(|one| one.wanted), count(loading), streaming)
            && model.passed_over == count(Provider::is_ejected)
            && (model.passed_over == 0 || count(|one| one.open && !one.is_ejected()) > 0)
    }

    fn timers_agree(&self) -> bool {
        let resetting =
            self.leases.values().filter(|held| matches!(held.phase, LeasePhase::Resetting(_))).count();
        let of_requests = |timer: &Timer| matches!(timer, Timer::Wait(_) | Timer::Confirm(_));
        self.timers.iter().filter(|(_, timer)| of_requests(timer)).count() == self.waiters.len() + resetting
    }
}

quickcheck! {
    fn random_histories_keep_every_promise(steps: Vec<Step>) -> bool {
        let mut history = History::new();
        for step in &steps {
            history.step(step);
            history.check();
        }
        // Let everything come to its end: every waiter is answered, every lease ends.
        while let Some(lease) = history.pick(0) {
            history.step(&Step::End(0));
            assert!(!history.model.leases.contains_key(&lease));
        }
        for _ in 0..10 {
            history.step(&Step::Pass(60));
            while history.pick(0).is_some() {
                history.step(&Step::End(0));
            }
        }
        history.check();
        assert!(history.model.waiting.is_empty());
        true
    }
}
