//! Admission against examples.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

mod choosing;
mod histories;
mod reference;
mod sizes;

use std::borrow::Borrow;

use umbel_wire::ids::Generation;
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
        Ask::new(self.model, KeyNumber(1), Class::default())
    }

    fn admit(&mut self, ask: impl Borrow<Ask>) -> Decision {
        self.admission.admit(self.now, ask.borrow())
    }

    fn granted(&mut self) -> Grant {
        let ask = self.ask();
        match self.admit(ask) {
            Decision::Granted(grant) => grant,
            other => panic!("no slot: {other:?}"),
        }
    }

    fn waiting(&mut self, ask: impl Borrow<Ask>) -> Ticket {
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
    let (one, two) = (site.waiting(&ask), site.waiting(&ask));
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
        site.waiting(&ask);
    }
    site.now += SECOND;
    let Decision::Refused(refusal) = site.admit(&ask) else { panic!("queued") };
    assert_eq!(refusal.reason, RefusalReason::QueueFull { limit: 4, contended: true });
    assert_eq!(refusal.retry_after, Some(5 * SECOND), "one a second, five ahead");
    site.now += 120 * SECOND;
    let Decision::Refused(refusal) = site.admit(&ask) else { panic!("queued") };
    assert_eq!(refusal.retry_after, None, "it does not drain");
    // One that had a slot before is not turned away.
    site.waiting(Ask { at_head: true, ..ask.clone() });
}

#[test]
fn who_waited_its_time_is_told_why() {
    let mut site = Site::new(&[1]);
    site.granted();
    let ask = site.ask();
    let ticket = site.waiting(&ask);
    assert_eq!(site.admission.next_deadline(), Some(site.now + 30 * SECOND));
    site.now += 30 * SECOND;
    site.admission.expire(site.now);
    let [Output::Refused(refused, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!((refused, refusal.reason), (ticket, RefusalReason::WaitedTooLong(30 * SECOND)));

    let (id, generation) = (site.id(0), Generation(1));
    site.admission.provider_state(site.now, &id, generation, ProviderState::Loading);
    site.waiting(&ask);
    site.now += 30 * SECOND;
    site.admission.expire(site.now);
    assert!(site.outputs().is_empty(), "a loading model gets more time");
    site.now += 80 * SECOND;
    site.admission.expire(site.now);
    let [Output::Refused(_, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!(refusal.reason, RefusalReason::StillLoading(110 * SECOND));

    site.admission.provider_state(site.now, &id, generation, ProviderState::Unavailable);
    site.waiting(&ask);
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
    let ticket = site.waiting(&ask);
    site.now += 5 * SECOND;
    site.admission
        .provider_up(site.now, spec(0, "e", "m", 1), Generation(2), ProviderState::Available)
        .unwrap();
    assert!(site.outputs().is_empty(), "the node is not complete yet");
    site.admission.node_ready(site.now, node(0), Generation(2), true);
    assert_eq!(site.served(), [ticket]);

    let waits = site.waiting(&ask);
    site.admission.node_draining(site.now, node(0), true);
    let [Output::Refused(refused, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!((refused, refusal.reason), (waits, RefusalReason::NoneWanted));
    assert!(matches!(
        site.admit(&ask),
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
    let waits = site.waiting(&ask);
    for grant in &leases[..6] {
        site.admission.end(site.now, grant.lease);
        assert!(site.outputs().is_empty(), "no new start at {} in flight", site.in_flight(0));
    }
    site.admission.end(site.now, leases[6].lease);
    assert_eq!(site.served(), [waits]);
    let more = site.waiting(&ask);
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
        site.waiting(&ask);
    }
    let other = site.admission.resolve("other").unwrap();
    assert!(matches!(site.admit(Ask { model: other, ..ask.clone() }), Decision::Granted(_)));
    let second = site.waiting(Ask { key: KeyNumber(2), ..ask.clone() });
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
    let key = |number| Ask { key: KeyNumber(number), ..ask.clone() };
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
    let waits = site.waiting(&ask);
    let lost = site.admission.spec(one.provider).unwrap().node_id;
    assert_eq!(site.admission.node_lost(site.now, lost, Generation(1)), 1);
    assert!(site.outputs().is_empty(), "the other one is full, the lost one is gone");
    let again = site.waiting(Ask { avoid: Some(one.avoid), at_head: true, ..ask.clone() });
    site.admission.end(site.now, two.lease);
    assert_eq!(site.served(), [again]);
    assert!(site.admission.withdraw(waits));
    assert_eq!(site.admission.node_lost(site.now, lost, Generation(1)), 0, "a late close changes nothing");
}

#[test]
fn whoever_finds_no_other_provider_goes_back_after_a_second_in_the_order_of_arrival() {
    let mut site = Site::new(&[1]);
    let failed = site.granted();
    let ask = site.ask();
    let avoiding = Ask { avoid: Some(failed.avoid), at_head: true, ..ask.clone() };
    let first = site.waiting(avoiding.clone());
    let second = site.waiting(avoiding);
    let head = site.waiting(Ask { at_head: true, ..ask.clone() });
    let newcomer = site.waiting(&ask);
    site.now += SECOND;
    site.admission.expire(site.now);
    let mut last = failed.lease;
    for waits in [first, second, head, newcomer] {
        site.admission.end(site.now, last);
        let [Output::Granted(ticket, grant)] = site.outputs()[..] else { panic!("one slot, one grant") };
        assert_eq!(ticket, waits);
        last = grant.lease;
    }
    site.admission.end(site.now, last);
    assert_eq!(site.in_flight(0), 0);
}

#[test]
fn a_provider_is_avoided_until_it_has_closed_and_opened_again() {
    let mut site = Site::new(&[2]);
    let failed = site.granted();
    site.admission.end(site.now, failed.lease);
    let ask = site.ask();
    let again = site.waiting(Ask { avoid: Some(failed.avoid), at_head: true, ..ask.clone() });
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
    site.admission.streaming(site.now, grant.lease);
    site.admission.resetting(site.now, grant.lease);
    site.now += 5 * SECOND;
    assert_eq!(site.admission.expire(site.now), [grant.lease], "told once");
    assert_eq!(site.admission.expire(site.now), []);
    assert_eq!(site.admission.phase(grant.lease), Some(LeasePhase::Unconfirmed));
    assert_eq!(site.admission.unconfirmed(), [(grant.lease, Arc::from(site.id(0)))]);
    let figures = site.admission.figures(&site.id(0)).unwrap();
    assert_eq!((figures.in_flight, figures.unconfirmed), (1, 1));
    let ask = site.ask();
    let waits = site.waiting(&ask);
    assert!(site.admission.end(site.now, grant.lease), "the late terminal frame still ends it");
    assert_eq!(site.served(), [waits]);
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
    // The draining older connection is lost: the engine may still work, so that the slot is taken until the node says.
    assert!(!site.admission.lost_before(kept));
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(1)), 0);
    assert!(site.admission.lost_before(kept), "its other streams need not tell it again");
    assert!(matches!(site.admission.phase(kept), Some(LeasePhase::Resetting(_))));
    assert_eq!(site.admission.carried(site.now, node(0), Generation(2), &[kept]), []);
    assert_eq!(site.in_flight(0), 1, "it carries it still");
    assert_eq!(site.admission.carried(site.now, node(0), Generation(2), &[]), []);
    assert_eq!(site.in_flight(0), 0);
    site.admission
        .provider_up(site.now, spec(0, "e", "m", 3), Generation(2), ProviderState::Available)
        .unwrap();
    site.admission.node_ready(site.now, node(0), Generation(2), true);
    let orphan = site.granted().lease;
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(1)), 0);
    assert!(site.admission.figures(&site.id(0)).unwrap().open);
    site.admission.node_ready(site.now, node(0), Generation(1), false);
    assert!(site.admission.figures(&site.id(0)).unwrap().open, "an older generation says nothing");
    // Who could confirm it is gone as well: it ends with the node.
    site.admission.node_ready(site.now, node(0), Generation(3), false);
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(2)), 0);
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(3)), 1);
    assert_eq!(site.admission.phase(orphan), None);
}

#[test]
fn nothing_goes_to_a_node_that_is_not_eligible_and_names_lead_to_who_has_them() {
    let now = Instant::now();
    let mut admission = Admission::new(Limits::default(), 1);
    let up = |admission: &mut Admission, spec| {
        admission.provider_up(now, spec, Generation(1), ProviderState::Available)
    };
    let aliased = ProviderSpec { aliases: vec!["a".to_owned()], ..spec(0, "e", "m", 1) };
    up(&mut admission, aliased.clone()).unwrap();
    admission.node_ready(now, node(0), Generation(1), true);
    let model = admission.resolve("a").unwrap();
    let ask = Ask::new(model, KeyNumber(0), Class::default());
    assert!(matches!(admission.admit(now, &ask), Decision::Refused(_)));
    admission.node_eligible(now, node(0), true);
    assert!(matches!(admission.admit(now, &ask), Decision::Granted(_)));

    assert_eq!(admission.model_names().len(), 2);
    admission.undeclare(now, &format!("{}/e", node(0)));
    assert!(admission.model_names().is_empty() && admission.resolve("a").is_none());
    // A name that was an alias becomes a model's own, and back.
    up(&mut admission, spec(1, "e", "a", 1)).unwrap();
    let own = admission.resolve("a").unwrap();
    assert_ne!(own, model);
    admission.undeclare(now, &format!("{}/e", node(1)));
    up(&mut admission, aliased).unwrap();
    assert_eq!(admission.resolve("a"), Some(model));
    admission.undeclare(now, &format!("{}/e", node(0)));
    up(&mut admission, spec(1, "e", "a", 1)).unwrap();
    assert_eq!(admission.resolve("a"), Some(own));
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

#[test]
fn row_21_a_holder_that_wakes_after_its_lease_passed_on_frees_nothing_a_second_time() {
    let mut site = Site::new(&[1]);
    let paused = site.granted();
    let ask = site.ask();
    let waits = site.waiting(&ask);
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(1)), 1);
    site.admission
        .provider_up(site.now, spec(0, "e", "m", 1), Generation(2), ProviderState::Available)
        .unwrap();
    site.admission.node_ready(site.now, node(0), Generation(2), true);
    assert_eq!(site.served(), [waits]);
    // It wakes: everything that it says of its old lease comes late.
    site.admission.streaming(site.now, paused.lease);
    site.admission.resetting(site.now, paused.lease);
    site.admission.report(site.now, paused.avoid, paused.lease, Outcome::Failed, false);
    assert!(!site.admission.end(site.now, paused.lease));
    assert_eq!(site.admission.node_lost(site.now, node(0), Generation(1)), 0);
    assert_eq!(site.admission.carried(site.now, node(0), Generation(2), &[paused.lease]), [paused.lease]);
    assert_eq!((site.in_flight(0), site.admission.lease_counts().in_flight()), (1, 1));
    site.waiting(&ask);
    assert!(site.outputs().is_empty(), "no slot is free");
}
