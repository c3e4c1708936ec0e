//! Admission against examples, and against a plain model under random histories.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::collections::{BTreeMap, BTreeSet};

use quickcheck::{Arbitrary, Gen, quickcheck};
use uuid::Uuid;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn node(number: u8) -> NodeId {
    NodeId(Uuid::from_u128(u128::from(number) + 1))
}

fn spec(number: u8, name: &str, model: &str, capacity: u32) -> ProviderSpec {
    ProviderSpec {
        provider_id: Arc::from(format!("{}/{name}", node(number))),
        node_id: node(number),
        model: model.to_owned(),
        aliases: Vec::new(),
        category: Category::LocalInference,
        capacity,
        max_context_tokens: 0,
        long_context_threshold_tokens: 0,
        long_context_capacity: 0,
    }
}

/// A site with one ready node per capacity, all serving `m`.
struct Site {
    now: Instant,
    admission: Admission,
    model: ModelIndex,
}

impl Site {
    fn new(capacities: &[u32]) -> Self {
        Self::with_limits(capacities, Limits { waiting: 4, ..Limits::default() })
    }

    fn with_limits(capacities: &[u32], limits: Limits) -> Self {
        let now = Instant::now();
        let mut admission = Admission::new(limits, 1);
        for (number, capacity) in (0u8..).zip(capacities) {
            admission.node_eligible(now, node(number), true);
            admission
                .provider_up(now, spec(number, "e", "m", *capacity), Generation(1), ProviderState::Available)
                .unwrap();
            admission.node_ready(now, node(number), Generation(1), true);
        }
        let model = admission.resolve("m").unwrap();
        Self { now, admission, model }
    }

    fn ask(&self) -> Ask {
        Ask { model: self.model, key: KeyNumber(1), class: Class::default(), avoid: None, at_head: false }
    }

    fn admit(&mut self, ask: Ask) -> Decision {
        self.admission.admit(self.now, ask)
    }

    fn granted(&mut self) -> Grant {
        let ask = self.ask();
        match self.admit(ask) {
            Decision::Granted(grant) => grant,
            other => panic!("no slot: {other:?}"),
        }
    }

    fn waiting(&mut self, ask: Ask) -> Ticket {
        match self.admit(ask) {
            Decision::Waiting(ticket) => ticket,
            other => panic!("it does not wait: {other:?}"),
        }
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.admission.next_output()).collect()
    }

    fn served(&mut self) -> Vec<Ticket> {
        self.outputs()
            .into_iter()
            .map(|output| match output {
                Output::Granted(ticket, _) => ticket,
                Output::Refused(..) => panic!("{output:?}"),
            })
            .collect()
    }

    fn id(&self, number: u8) -> String {
        format!("{}/e", node(number))
    }

    fn in_flight(&self, number: u8) -> u32 {
        self.admission.figures(&self.id(number)).unwrap().in_flight
    }
}

#[test]
fn a_freed_slot_goes_to_the_one_that_waits_longest() {
    let mut site = Site::new(&[1]);
    let first = site.granted();
    let ask = site.ask();
    let (one, two) = (site.waiting(ask), site.waiting(ask));
    site.now += SECOND;
    assert!(site.admission.end(site.now, first.lease));
    assert!(!site.admission.end(site.now, first.lease), "a lease ends once");
    let outputs = site.outputs();
    let [Output::Granted(ticket, grant)] = outputs[..] else { panic!("{outputs:?}") };
    assert_eq!((ticket, grant.waited), (one, SECOND));
    assert!(site.admission.withdraw(two) && !site.admission.withdraw(two));
    assert!(site.admission.end(site.now, grant.lease));
    assert!(site.outputs().is_empty());
    assert_eq!(site.in_flight(0), 0);
}

#[test]
fn the_least_loaded_provider_is_chosen_by_its_share() {
    let mut site = Site::new(&[2, 8]);
    let granted: Vec<Grant> = (0..10).map(|_| site.granted()).collect();
    let on_first = granted.iter().filter(|grant| grant.provider == granted[0].provider).count();
    assert_eq!((on_first, site.in_flight(0), site.in_flight(1)), (2, 2, 8));
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_back() {
    let mut site = Site::new(&[1]);
    let lease = site.granted();
    site.now += SECOND;
    site.admission.end(site.now, lease.lease);
    site.granted();
    let ask = site.ask();
    for _ in 0..4 {
        site.waiting(ask);
    }
    site.now += SECOND;
    let Decision::Refused(refusal) = site.admit(ask) else { panic!("queued") };
    assert_eq!(refusal.reason, RefusalReason::QueueFull { limit: 4, contended: true });
    assert_eq!(refusal.retry_after, Some(5 * SECOND), "one a second, five ahead");
    site.now += 120 * SECOND;
    let Decision::Refused(refusal) = site.admit(ask) else { panic!("queued") };
    assert_eq!(refusal.retry_after, None, "it does not drain");
    // One that had a slot before is not turned away.
    site.waiting(Ask { at_head: true, ..ask });
}

#[test]
fn who_waited_its_time_is_told_why() {
    let mut site = Site::new(&[1]);
    site.granted();
    let ask = site.ask();
    let ticket = site.waiting(ask);
    assert_eq!(site.admission.next_deadline(), Some(site.now + 30 * SECOND));
    site.now += 30 * SECOND;
    site.admission.expire(site.now);
    let [Output::Refused(refused, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!((refused, refusal.reason), (ticket, RefusalReason::WaitedTooLong(30 * SECOND)));

    let (id, generation) = (site.id(0), Generation(1));
    site.admission.provider_state(site.now, &id, generation, ProviderState::Loading);
    site.waiting(ask);
    site.now += 30 * SECOND;
    site.admission.expire(site.now);
    assert!(site.outputs().is_empty(), "a loading model gets more time");
    site.now += 80 * SECOND;
    site.admission.expire(site.now);
    let [Output::Refused(_, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!(refusal.reason, RefusalReason::StillLoading(110 * SECOND));

    site.admission.provider_state(site.now, &id, generation, ProviderState::Unavailable);
    site.waiting(ask);
    site.now += 30 * SECOND;
    site.admission.expire(site.now);
    let [Output::Refused(_, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!(refusal.reason, RefusalReason::NoneCame(30 * SECOND));
}

#[test]
fn row_68_a_returning_provider_serves_who_waited_and_an_unwanted_model_refuses_at_once() {
    let mut site = Site::new(&[1]);
    assert_eq!(site.admission.resolve("other"), None);
    site.admission.node_lost(site.now, node(0), Generation(1));
    let ask = site.ask();
    let ticket = site.waiting(ask);
    site.now += 5 * SECOND;
    site.admission
        .provider_up(site.now, spec(0, "e", "m", 1), Generation(2), ProviderState::Available)
        .unwrap();
    assert!(site.outputs().is_empty(), "the node is not complete yet");
    site.admission.node_ready(site.now, node(0), Generation(2), true);
    assert_eq!(site.served(), [ticket]);

    let waits = site.waiting(ask);
    site.admission.node_draining(site.now, node(0), true);
    let [Output::Refused(refused, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!((refused, refusal.reason), (waits, RefusalReason::NoneWanted));
    assert!(matches!(
        site.admit(ask),
        Decision::Refused(Refusal { reason: RefusalReason::NoneWanted, retry_after: None })
    ));
    assert_eq!(site.admission.node_in_flight(node(0)), 1, "draining leaves what runs");
}

#[test]
fn row_67_capacity_changes_at_once_and_is_never_negative() {
    let mut site = Site::new(&[8]);
    let leases: Vec<Grant> = (0..8).map(|_| site.granted()).collect();
    site.admission.declare(site.now, spec(0, "e", "m", 2)).unwrap();
    let ask = site.ask();
    let waits = site.waiting(ask);
    for grant in &leases[..6] {
        site.admission.end(site.now, grant.lease);
        assert!(site.outputs().is_empty(), "no new start at {} in flight", site.in_flight(0));
    }
    site.admission.end(site.now, leases[6].lease);
    assert_eq!(site.served(), [waits]);
    let more = site.waiting(ask);
    site.admission.declare(site.now, spec(0, "e", "m", 8)).unwrap();
    assert_eq!(site.served(), [more], "a raise acts at once");
}

#[test]
fn row_65_a_flood_of_one_key_delays_neither_another_key_nor_another_model() {
    let mut site = Site::with_limits(&[1], Limits { waiting: 1_000, ..Limits::default() });
    site.admission.node_eligible(site.now, node(9), true);
    site.admission
        .provider_up(site.now, spec(9, "e", "other", 1), Generation(1), ProviderState::Available)
        .unwrap();
    site.admission.node_ready(site.now, node(9), Generation(1), true);
    let mut lease = site.granted().lease;
    let ask = site.ask();
    for _ in 0..500 {
        site.waiting(ask);
    }
    let other = site.admission.resolve("other").unwrap();
    assert!(matches!(site.admit(Ask { model: other, ..ask }), Decision::Granted(_)));
    let second = site.waiting(Ask { key: KeyNumber(2), ..ask });
    for turn in 1.. {
        site.admission.end(site.now, lease);
        let [Output::Granted(ticket, grant)] = site.outputs()[..] else { panic!() };
        lease = grant.lease;
        if ticket == second {
            assert!(turn <= 2, "served at turn {turn}");
            break;
        }
    }
}

#[test]
fn keys_take_turns_a_higher_class_goes_first_and_leaving_gains_nothing() {
    let mut site = Site::with_limits(&[1], Limits { waiting: 100, ..Limits::default() });
    let mut lease = site.granted().lease;
    let ask = site.ask();
    let key = |number| Ask { key: KeyNumber(number), ..ask };
    let a = [site.waiting(key(1)), site.waiting(key(1)), site.waiting(key(1))];
    let b = [site.waiting(key(2)), site.waiting(key(2))];
    let urgent = site.waiting(Ask { class: Class(0), ..key(3) });
    site.admission.withdraw(b[0]);
    let back = site.waiting(Ask { at_head: true, ..key(1) });
    let mut order = Vec::new();
    while let [Output::Granted(ticket, grant)] = {
        site.admission.end(site.now, lease);
        site.outputs()
    }[..]
    {
        order.push(ticket);
        lease = grant.lease;
    }
    assert_eq!(order, [urgent, back, a[0], b[1], a[1], a[2]]);
}

#[test]
fn a_lost_node_ends_its_leases_and_its_requests_go_to_the_head_elsewhere() {
    let mut site = Site::new(&[1, 1]);
    let (one, two) = (site.granted(), site.granted());
    let ask = site.ask();
    let waits = site.waiting(ask);
    let lost = site.admission.spec(one.provider).unwrap().node_id;
    assert_eq!(site.admission.node_lost(site.now, lost, Generation(1)), 1);
    assert!(site.outputs().is_empty(), "the other one is full, the lost one is gone");
    let again = site.waiting(Ask { avoid: Some(one.avoid), at_head: true, ..ask });
    site.admission.end(site.now, two.lease);
    assert_eq!(site.served(), [again]);
    assert!(site.admission.withdraw(waits));
    assert_eq!(site.admission.node_lost(site.now, lost, Generation(1)), 0, "a late close changes nothing");
}

#[test]
fn a_provider_is_avoided_until_it_has_closed_and_opened_again() {
    let mut site = Site::new(&[2]);
    let failed = site.granted();
    site.admission.end(site.now, failed.lease);
    let ask = site.ask();
    let again = site.waiting(Ask { avoid: Some(failed.avoid), at_head: true, ..ask });
    // It blocks nobody else.
    site.granted();
    let id = site.id(0);
    for state in [ProviderState::Unavailable, ProviderState::Loading, ProviderState::Available] {
        assert!(site.outputs().is_empty());
        site.admission.provider_state(site.now, &id, Generation(1), state);
    }
    assert_eq!(site.served(), [again]);
}

#[test]
fn row_63_a_reset_without_its_end_is_marked_and_keeps_its_slot() {
    let mut site = Site::new(&[1]);
    let grant = site.granted();
    site.admission.streaming(grant.lease);
    site.admission.resetting(site.now, grant.lease);
    site.now += 5 * SECOND;
    site.admission.expire(site.now);
    assert_eq!(site.admission.phase(grant.lease), Some(LeasePhase::Unconfirmed));
    assert_eq!(site.admission.unconfirmed(), [(grant.lease, Arc::from(site.id(0)))]);
    let figures = site.admission.figures(&site.id(0)).unwrap();
    assert_eq!((figures.in_flight, figures.unconfirmed), (1, 1));
    let ask = site.ask();
    let waits = site.waiting(ask);
    assert!(site.admission.release_unconfirmed(site.now, grant.lease));
    assert_eq!(site.served(), [waits]);
    assert!(!site.admission.end(site.now, grant.lease), "the late terminal frame changes nothing");
    assert_eq!(site.admission.figures(&site.id(0)).unwrap().unconfirmed, 0);
}

#[test]
fn a_returning_node_keeps_what_it_names_and_must_end_what_it_no_longer_owns() {
    let mut site = Site::new(&[3]);
    let (kept, lapsed, _) = (site.granted().lease, site.granted().lease, site.granted());
    site.admission.node_ready(site.now, node(0), Generation(2), false);
    let stranger = LeaseId(9_999);
    assert_eq!(site.admission.carried(site.now, node(0), Generation(2), &[kept, stranger]), [stranger]);
    assert_eq!(site.admission.phase(lapsed), None);
    assert_eq!(site.in_flight(0), 1);
    // The draining older connection may still end its own lease; its loss ends nothing of the new one.
    let (before, _) = (site.admission.lease_counts(), ());
    assert_eq!(before.in_flight(), 1);
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(1)), 1);
    site.admission
        .provider_up(site.now, spec(0, "e", "m", 3), Generation(2), ProviderState::Available)
        .unwrap();
    site.admission.node_ready(site.now, node(0), Generation(2), true);
    site.granted();
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(1)), 0);
    assert!(site.admission.figures(&site.id(0)).unwrap().open);
    site.admission.node_ready(site.now, node(0), Generation(1), false);
    assert!(site.admission.figures(&site.id(0)).unwrap().open, "an older generation says nothing");
}

#[test]
fn nothing_goes_to_a_node_that_is_not_eligible_and_conflicts_are_refused() {
    let now = Instant::now();
    let mut admission = Admission::new(Limits::default(), 1);
    let up = |admission: &mut Admission, spec| {
        admission.provider_up(now, spec, Generation(1), ProviderState::Available)
    };
    let aliased = ProviderSpec { aliases: vec!["a".to_owned()], ..spec(0, "e", "m", 1) };
    up(&mut admission, aliased.clone()).unwrap();
    admission.node_ready(now, node(0), Generation(1), true);
    let model = admission.resolve("a").unwrap();
    let ask = Ask { model, key: KeyNumber(0), class: Class::default(), avoid: None, at_head: false };
    assert!(matches!(admission.admit(now, ask), Decision::Refused(_)));
    admission.node_eligible(now, node(0), true);
    assert!(matches!(admission.admit(now, ask), Decision::Granted(_)));

    assert_eq!(up(&mut admission, spec(1, "e", "m", 1)).unwrap_err(), ProviderConflict::Aliases);
    assert_eq!(
        up(&mut admission, spec(1, "e", "a", 1)).unwrap_err(),
        ProviderConflict::NameTaken("a".to_owned())
    );
    let threshold = ProviderSpec {
        long_context_threshold_tokens: 7,
        node_id: node(1),
        provider_id: Arc::from("x/e"),
        ..aliased
    };
    let conflict = up(&mut admission, threshold).unwrap_err();
    assert_eq!(conflict, ProviderConflict::Threshold { stands: 0, declared: 7 });
    assert_eq!(admission.model_names().len(), 2);
    admission.undeclare(now, &format!("{}/e", node(0)));
    assert!(admission.model_names().is_empty() && admission.resolve("a").is_none());
    up(&mut admission, spec(1, "e", "a", 1)).unwrap();
}

#[test]
fn retries_stay_at_a_fifth_of_the_requests() {
    let mut budget = RetryBudget::default();
    let stock = (0..).take_while(|_| budget.spend()).count();
    assert!(stock <= 64, "{stock}");
    let mut tries = 0;
    for _ in 0..1_000 {
        budget.earn();
        tries += u32::from(budget.spend());
    }
    assert_eq!(tries, 200);
}

// ---- Random histories.

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
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let states = [
            ProviderState::Available,
            ProviderState::Loading,
            ProviderState::Unavailable,
            ProviderState::Draining,
            ProviderState::Failed,
        ];
        let node = u8::arbitrary(g) % 3;
        match u8::arbitrary(g) % 20 {
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
    last: Option<Avoid>,
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
        self.last = Some(grant.avoid);
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

    fn step(&mut self, step: &Step) {
        let now = self.site.now;
        let admission = &mut self.site.admission;
        match *step {
            Step::Ask { key, class, at_head, avoid_last } => {
                let avoid = if avoid_last { self.last } else { None };
                // As in the edge: only what comes back to the head avoids anything.
                let at_head = at_head || avoid.is_some();
                let ask =
                    Ask { model: self.site.model, key: KeyNumber(key), class: Class(class), avoid, at_head };
                match admission.admit(now, ask) {
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
                    self.site.admission.streaming(lease);
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
                let held = |model: &Model, history: &History| -> Vec<LeaseId> {
                    model
                        .leases
                        .iter()
                        .filter(|(_, (provider, of))| {
                            *of == generation && history.number(*provider) == number
                        })
                        .map(|(lease, _)| *lease)
                        .collect()
                };
                let lost = held(&self.model, self);
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
            let free = figures.open && figures.in_flight < figures.capacity;
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
        self.waiters.values().filter(|waiter| waiter.avoids_nothing()).count()
    }

    fn states_agree(&self) -> bool {
        let model = &self.models[0];
        let count = |which: fn(&Provider) -> bool| -> u32 {
            self.providers.iter().filter(|provider| which(provider)).count().try_into().unwrap()
        };
        let loading = |provider: &Provider| provider.wanted && provider.state == ProviderState::Loading;
        let streaming = self.leases.values().filter(|held| held.phase == LeasePhase::Streaming).count();
        (model.open, model.wanted, model.loading, model.streaming as usize)
            == (count(|one| one.open), count(|one| one.wanted), count(loading), streaming)
    }

    fn timers_agree(&self) -> bool {
        let resetting =
            self.leases.values().filter(|held| matches!(held.phase, LeasePhase::Resetting(_))).count();
        self.timers.len() == self.waiters.len() + resetting
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
