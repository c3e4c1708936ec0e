//! Long and short requests, and turns by tokens.

use super::*;

/// One provider with four slots of which one may be long; long is above 1,000 tokens, 100,000 fit.
fn site(capacity: u32, long: u32) -> Site {
    let mut site = Site::with_limits(&[capacity], Limits { waiting: 1_000, ..Limits::default() });
    site.admission.declare(site.now, sized(0, capacity, long, 100_000)).unwrap();
    site
}

fn sized(number: u8, capacity: u32, long: u32, longest: u32) -> ProviderSpec {
    ProviderSpec {
        max_context_tokens: longest,
        long_context_threshold_tokens: 1_000,
        long_context_capacity: long,
        ..spec(number, "e", "m", capacity)
    }
}

impl Site {
    /// By the first ratio of four bytes a token.
    fn of(&self, key: u32, tokens: u64) -> Ask {
        Ask { key: KeyNumber(key), prompt_bytes: 4 * tokens, ..self.ask() }
    }

    fn granted_to(&mut self, ask: &Ask) -> Grant {
        match self.admit(ask) {
            Decision::Granted(grant) => grant,
            other => panic!("no slot: {other:?}"),
        }
    }

    /// Ends a lease, whose slot goes to one waiter.
    fn handed_on(&mut self, lease: LeaseId) -> (Ticket, Grant) {
        self.admission.end(self.now, lease);
        match self.outputs()[..] {
            [Output::Granted(ticket, grant)] => (ticket, grant),
            ref other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_long_request_that_waits_for_a_long_slot_blocks_no_short_one() {
    let mut site = site(4, 1);
    let (long, short) = (site.of(1, 50_000), site.of(1, 10));
    let first = site.granted_to(&long);
    assert!(first.long && first.estimated_tokens == 50_000);
    let waits = [site.waiting(&long), site.waiting(&long)];
    for _ in 0..3 {
        assert!(!site.granted_to(&short).long, "slots are free, and short ones fit them");
    }
    assert_eq!(site.admission.queues(site.now)[0].long_waiting, 2);
    assert_eq!(site.admission.figures(&site.id(0)).unwrap().long_in_flight, 1);
    assert_eq!(site.handed_on(first.lease).0, waits[0]);
}

#[test]
fn a_prompt_that_no_provider_takes_is_refused_with_both_numbers_and_a_doubtful_one_is_the_engines_to_judge() {
    let mut site = site(1, 1);
    let Decision::Refused(refusal) = site.admit(site.of(1, 250_000)) else { panic!("admitted") };
    assert_eq!(refusal.reason, RefusalReason::TooLong { estimated: 250_000, limit: 100_000 });
    assert_eq!(site.admission.queues(site.now)[0].shed.too_long, 1);
    assert!(site.granted_to(&site.of(1, 150_000)).long);
    // A provider that takes more comes: only it is a candidate for what the other does not take.
    site.admission.node_eligible(site.now, node(1), true);
    site.admission
        .provider_up(site.now, sized(1, 9, 9, 400_000), Generation(1), ProviderState::Available)
        .unwrap();
    site.admission.node_ready(site.now, node(1), Generation(1), true);
    for _ in 0..9 {
        let grant = site.granted_to(&site.of(1, 250_000));
        assert_eq!(site.admission.spec(grant.provider).unwrap().node_id, node(1));
    }
    // It goes for good: who waits for it is told at once.
    let waits = site.waiting(site.of(1, 300_000));
    site.admission.undeclare(site.now, &site.id(1));
    let [Output::Refused(ticket, refusal)] = site.outputs()[..] else { panic!() };
    assert_eq!((ticket, refusal.reason), (waits, RefusalReason::NoneWanted));
    let Decision::Refused(refusal) = site.admit(site.of(1, 300_000)) else { panic!("admitted") };
    assert_eq!(refusal.reason, RefusalReason::TooLong { estimated: 300_000, limit: 100_000 });
}

#[test]
fn row_65_beside_a_flood_of_long_prompts_a_key_waits_for_one_release_at_most() {
    let mut site = site(2, 2);
    let flood = site.of(1, 100_000);
    let mut running = [site.granted_to(&flood), site.granted_to(&flood)].map(|grant| grant.lease);
    for _ in 0..500 {
        site.waiting(&flood);
    }
    // Again and again, even though the flood's long requests have been waiting for longer than they are passed over.
    for turn in 0..200u64 {
        site.now += Duration::from_millis(10);
        let short = site.waiting(site.of(2, 50));
        let first = site.handed_on(running[0]);
        running[0] = first.1.lease;
        if first.0 != short {
            assert_eq!(turn % 100, 0, "kept for a long one once in five seconds");
            site.now += Duration::from_millis(1);
            let second = site.handed_on(running[1]);
            running[1] = second.1.lease;
            assert_eq!(second.0, short);
        }
        site.now += Duration::from_millis(40);
    }
}

#[test]
fn a_long_request_is_passed_over_for_five_seconds_at_most() {
    let mut site = site(1, 1);
    // Its key has used its turns up.
    let mut lease = site.granted_to(&site.of(1, 100_000)).lease;
    let first = site.waiting(site.of(1, 100_000));
    let second = site.waiting(site.of(1, 100_000));
    let handed = site.handed_on(lease);
    assert_eq!(handed.0, first);
    lease = handed.1.lease;
    let began = site.now;
    loop {
        site.waiting(site.of(2, 10));
        site.now += Duration::from_millis(100);
        let handed = site.handed_on(lease);
        lease = handed.1.lease;
        if handed.0 == second {
            break;
        }
    }
    assert_eq!(site.now - began, Duration::from_secs(5));
}

#[test]
fn a_key_is_charged_with_what_it_used_and_nonsense_ends_no_ones_turns() {
    let mut site = site(1, 1);
    let (model, class) = (site.model, Class::default());
    let (a, b) = (site.of(1, 100), site.of(2, 100));
    let mut lease = site.granted_to(&a).lease;
    let of_a: Vec<Ticket> = (0..3).map(|_| site.waiting(&a)).collect();
    let of_b: Vec<Ticket> = (0..3).map(|_| site.waiting(&b)).collect();
    let usage =
        |tokens| Usage { completion_tokens: tokens, source: UsageSource::Counted, ..Usage::default() };
    let mut order = Vec::new();
    for _ in 0..6 {
        let handed = site.handed_on(lease);
        lease = handed.1.lease;
        order.push(handed.0);
        if handed.0 == of_a[0] {
            // It wrote ten times as much as its prompt: two turns of the other are due.
            site.admission.used(model, (KeyNumber(1), class), 400, 100, &usage(260));
        }
    }
    assert_eq!(order, [of_a[0], of_b[0], of_b[1], of_b[2], of_a[1], of_a[2]]);
    // An engine says that its request used all there is.
    site.waiting(&b);
    site.admission.used(model, (KeyNumber(1), class), 400, 100, &usage(u64::MAX));
    let again = site.waiting(&a);
    let turns = (0..4_000).position(|_| {
        site.waiting(&b);
        let handed = site.handed_on(lease);
        lease = handed.1.lease;
        handed.0 == again
    });
    assert!(turns.is_some(), "the key got no turn any more");
}

#[test]
fn estimates_follow_what_engines_report() {
    let mut site = site(1, 1);
    let (model, of) = (site.model, (KeyNumber(1), Class::default()));
    assert_eq!(site.admission.estimate(model, 4_000), 1_000);
    let reported = Usage { prompt_tokens: 2_000, source: UsageSource::Reported, ..Usage::default() };
    for _ in 0..100 {
        site.admission.used(model, of, 4_000, 1_000, &reported);
    }
    assert!((1_900..=2_000).contains(&site.admission.estimate(model, 4_000)));
    let queue = &site.admission.queues(site.now)[0];
    assert!(
        queue.bytes_per_token < 2_100 && queue.estimate_error.is_some_and(|error| error < 100),
        "{queue:?}"
    );
    // What is only counted says nothing of prompts.
    let counted = Usage { prompt_tokens: 9, source: UsageSource::Counted, ..Usage::default() };
    site.admission.used(model, of, 4_000, 1_000, &counted);
    assert!(site.admission.estimate(model, 4_000) > 1_900);
}

#[test]
fn what_waits_of_a_revoked_key_is_refused_at_once_and_nobody_elses() {
    let mut site = site(1, 1);
    site.granted();
    let (gone, back) = (site.of(1, 10), Ask { at_head: true, ..site.of(1, 10) });
    let (gone, stays, back) = (site.waiting(&gone), site.waiting(site.of(2, 10)), site.waiting(&back));
    site.admission.refuse_key(site.now, KeyNumber(1));
    let refused: Vec<_> = site
        .outputs()
        .into_iter()
        .map(|output| match output {
            Output::Refused(ticket, refusal) => (ticket, refusal.reason),
            Output::Granted(..) => panic!("{output:?}"),
        })
        .collect();
    assert_eq!(refused, [(gone, RefusalReason::KeyRevoked), (back, RefusalReason::KeyRevoked)]);
    assert!(site.admission.withdraw(stays));
}

#[test]
fn row_63_an_operator_can_release_an_unconfirmed_lease_and_no_other() {
    let mut site = Site::new(&[1]);
    let lease = site.granted().lease;
    assert_eq!(site.admission.release(site.now, lease), Released::NotUnconfirmed);
    site.admission.resetting(site.now, lease);
    assert_eq!(site.admission.release(site.now, lease), Released::NotUnconfirmed);
    site.now += 5 * SECOND;
    site.admission.expire(site.now);
    let ask = site.ask();
    let waits = site.waiting(&ask);
    assert_eq!(site.admission.release(site.now, lease), Released::Free);
    assert_eq!(site.served(), [waits]);
    assert_eq!(site.admission.release(site.now, lease), Released::Unknown);
    assert!(!site.admission.end(site.now, lease), "its late terminal frame ends nothing else");
    assert_eq!(site.in_flight(0), 1);
}

#[test]
fn for_a_provider_wait_only_those_whom_it_could_take() {
    let mut site = site(1, 1);
    site.admission.node_eligible(site.now, node(1), true);
    site.admission
        .provider_up(site.now, sized(1, 1, 0, 8_000), Generation(1), ProviderState::Available)
        .unwrap();
    site.admission.node_ready(site.now, node(1), Generation(1), true);
    let (long, short) = (site.of(1, 50_000), site.of(2, 10));
    let leases = [site.granted_to(&short).lease, site.granted_to(&short).lease];
    let _waiting = [site.waiting(&long), site.waiting(&short)];
    let queued = |site: &Site, number| site.admission.figures(&site.id(number)).unwrap().queued;
    assert_eq!((queued(&site, 0), queued(&site, 1)), (2, 1));

    // A provider that takes other prompts from now on sorts those who wait anew.
    site.admission.declare(site.now, sized(1, 1, 1, 100_000)).unwrap();
    assert_eq!((queued(&site, 0), queued(&site, 1)), (2, 2));
    assert_eq!(site.admission.queues(site.now)[0].long_waiting, 1);
    for lease in leases {
        site.handed_on(lease);
    }
    assert_eq!((queued(&site, 0), queued(&site, 1)), (0, 0));
    assert_eq!(site.admission.queues(site.now)[0].long_waiting, 0);
}

/// Names are bounded, and those that nobody declares or asks for give way; what is asked for stays.
#[test]
fn names_that_nobody_needs_give_way_to_new_ones() {
    let mut site = Site::new(&[1]);
    site.admission.limits.names = 4;
    let spec = |model: &str| {
        let mut spec = site.admission.spec(ProviderIndex(0)).unwrap().clone();
        (spec.provider_id, spec.model) = (format!("other/{model}").into(), model.to_owned());
        spec
    };
    let specs: Vec<ProviderSpec> = (0..100).map(|n| spec(&format!("model-{n}"))).collect();
    let kept = site.admission.resolve("m").unwrap();
    let mut told = Vec::new();
    for spec in specs {
        let (id, model) = (Arc::clone(&spec.provider_id), spec.model.clone());
        site.admission.declare(site.now, spec).unwrap();
        let index = site.admission.resolve(&model).unwrap();
        assert!(!told.contains(&index), "an index means one model");
        site.admission.undeclare(site.now, &id);
        assert!(site.admission.canonical.len() <= 4 && site.admission.names.len() <= 4);
        told.extend(site.admission.take_forgotten());
        // Whoever still holds it is told that nobody is wanted.
        let ask = Ask::new(index, KeyNumber(1), Class::default());
        assert!(matches!(site.admission.admit(site.now, &ask), Decision::Refused(_)));
    }
    assert!(told.len() >= 96 && !told.contains(&kept));
    assert_eq!(site.admission.resolve("m"), Some(kept));
    let grant = site.granted();
    site.admission.end(site.now, grant.lease);
}
