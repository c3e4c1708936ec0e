//! Affinity to prefixes, and passing over who fails or stalls.

use super::*;

fn prompt(block: u8) -> Prefix {
    Prefix::of(1, &vec![block; 8 * 1_024])
}

impl Site {
    fn with_prefix(&mut self, block: u8) -> Grant {
        let ask = Ask { prefix: prompt(block), ..self.ask() };
        match self.admit(&ask) {
            Decision::Granted(grant) => grant,
            other => panic!("no slot: {other:?}"),
        }
    }

    fn report(&mut self, grant: Grant, outcome: Outcome) {
        self.admission.report(self.now, grant.avoid, grant.lease, outcome, false);
    }

    fn ends(&mut self, grant: Grant, outcome: Outcome) {
        self.admission.end(self.now, grant.lease);
        self.report(grant, outcome);
    }

    /// A stream's head comes at once, and its end with it.
    fn answers(&mut self, grant: Grant) {
        self.admission.streaming(self.now, grant.lease);
        self.ends(grant, Outcome::Answered);
    }

    fn is_ejected(&self, number: u8) -> bool {
        self.admission.figures(&self.id(number)).unwrap().ejected
    }

    /// Time passes in steps of a tenth of a second.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(100);
            self.admission.expire(self.now);
        }
    }

    fn stream(&mut self) -> Grant {
        let ask = Ask { events: true, ..self.ask() };
        match self.admit(&ask) {
            Decision::Granted(grant) => grant,
            other => panic!("no slot: {other:?}"),
        }
    }

    fn number(&self, grant: Grant) -> u8 {
        let owner = self.admission.spec(grant.provider).unwrap().node_id;
        (0..3).find(|number| node(*number) == owner).unwrap()
    }
}

#[test]
fn a_prefix_goes_where_it_was_seen_while_the_load_is_within_its_bound() {
    let mut site = Site::new(&[8, 8]);
    let first = site.with_prefix(7);
    assert!(!first.affinity);
    // ceil(1.25 x (total + 1) / 2): 2 at a total of 1 and of 2, 3 at 3.
    let second = site.with_prefix(7);
    assert!(second.affinity && second.provider == first.provider);
    let third = site.with_prefix(7);
    assert!(
        !third.affinity && third.provider != first.provider,
        "it is above its share by more than a quarter"
    );
    // It was seen there last.
    let fourth = site.with_prefix(7);
    assert!(fourth.affinity && fourth.provider == third.provider);
    let figures = site.admission.choice_figures();
    assert_eq!((figures.prefix_hits, figures.prefix_misses, figures.prefix_table.entries), (2, 2, 8));
    // What its provider forgot when it closed is forgotten here.
    for grant in [first, second, third, fourth] {
        site.admission.end(site.now, grant.lease);
    }
    let (id, number) = (site.id(site.number(fourth)), site.number(fourth));
    for state in [ProviderState::Loading, ProviderState::Available] {
        site.admission.provider_state(site.now, &id, Generation(1), state);
    }
    let anew = site.with_prefix(7);
    assert!(!anew.affinity, "{number} has loaded the model anew");
}

#[test]
fn one_that_fails_more_than_its_peers_is_passed_over_and_tried_with_one_request() {
    let mut site = Site::new(&[2, 2, 2]);
    let mut failed = 0;
    while !site.is_ejected(0) {
        let grant = site.granted();
        let outcome = if site.number(grant) == 0 { Outcome::Failed } else { Outcome::Answered };
        failed += u32::from(outcome == Outcome::Failed);
        site.ends(grant, outcome);
        assert!(failed <= 3);
    }
    assert_eq!(site.admission.queues(site.now)[0].ejected_providers, 1);
    let others: Vec<Grant> = (0..4).map(|_| site.granted()).collect();
    assert!(others.iter().all(|grant| site.number(*grant) != 0));
    let ask = site.ask();
    let waits = site.waiting(&ask);
    site.pass(6 * SECOND);
    let [Output::Granted(ticket, tried)] = site.outputs()[..] else { panic!("one request tries it") };
    assert_eq!((ticket, site.number(tried)), (waits, 0));
    let more = site.waiting(&ask);
    // The client of that one leaves: another one tries it. That one fails: it is passed over for longer.
    site.admission.end(site.now, tried.lease);
    site.pass(2 * SECOND);
    let [Output::Granted(ticket, tried)] = site.outputs()[..] else { panic!() };
    assert_eq!((ticket, site.number(tried)), (more, 0));
    site.ends(tried, Outcome::Failed);
    let more = site.waiting(&ask);
    site.pass(9 * SECOND);
    assert!(site.outputs().is_empty() && site.is_ejected(0));
    site.pass(2 * SECOND);
    let [Output::Granted(ticket, tried)] = site.outputs()[..] else { panic!() };
    assert_eq!((ticket, site.number(tried)), (more, 0));
    site.ends(tried, Outcome::Answered);
    assert!(!site.is_ejected(0));
    let next = site.granted();
    assert_eq!(site.number(next), 0);
}

#[test]
fn neither_a_clients_errors_nor_everybodys_failures_nor_slowness_put_one_out_and_the_last_one_stays() {
    let mut site = Site::new(&[4, 4]);
    for _ in 0..50 {
        let grant = site.granted();
        site.ends(grant, Outcome::ClientError);
    }
    for _ in 0..50 {
        // Both fail alike.
        let (one, other) = (site.granted(), site.granted());
        assert_ne!(one.provider, other.provider);
        site.ends(one, Outcome::Failed);
        site.ends(other, Outcome::Failed);
    }
    assert!(!(site.is_ejected(0) && site.is_ejected(1)), "the last one stays");
    let mut site = Site::new(&[4, 4]);
    for _ in 0..100 {
        let (fast, slow) = (site.stream(), site.stream());
        site.pass(SECOND);
        site.answers(fast);
        site.pass(2 * SECOND);
        site.answers(slow);
    }
    assert!(!site.is_ejected(0) && !site.is_ejected(1), "slow is not silent");
    let mut alone = Site::new(&[1]);
    for _ in 0..20 {
        let grant = alone.granted();
        alone.ends(grant, Outcome::TimedOut);
    }
    assert!(!alone.is_ejected(0));
    // Two, of which one is put out; then the other goes away: the one that is left serves.
    let mut site = Site::new(&[1, 1]);
    for _ in 0..3 {
        let grant = site.granted();
        site.ends(grant, Outcome::Failed);
    }
    assert!(site.is_ejected(0));
    site.admission.node_ready(site.now, node(1), Generation(1), false);
    assert!(!site.is_ejected(0));
    // The same where the other one takes no long prompts any more.
    let mut site = Site::new(&[1, 1]);
    for _ in 0..3 {
        let grant = site.granted();
        site.ends(grant, Outcome::Failed);
    }
    assert!(site.is_ejected(0));
    let short = ProviderSpec { max_context_tokens: 100, ..spec(1, "e", "m", 1) };
    site.admission.declare(site.now, short).unwrap();
    assert!(!site.is_ejected(0));
}

#[test]
fn row_64_a_frozen_engine_is_noticed_by_its_silence_and_taken_back_with_its_first_answer() {
    let mut site = Site::new(&[4, 4, 4]);
    let mut hung = Vec::new();
    // 20 requests a second that take 50 ms; number 2 is frozen after two seconds.
    for turn in 0..200 {
        site.pass(Duration::from_millis(50));
        let grants: Vec<Grant> = (0..3).map(|_| site.stream()).collect();
        site.pass(Duration::from_millis(100));
        for grant in grants {
            if site.number(grant) == 2 && turn >= 20 {
                hung.push(grant);
            } else {
                site.answers(grant);
            }
        }
        if site.is_ejected(2) {
            break;
        }
    }
    assert!(site.is_ejected(2) && !site.is_ejected(0) && !site.is_ejected(1));
    assert!((1..=4).contains(&hung.len()), "only its slots are hit: {}", hung.len());
    // As long as its own requests hang, no other is sent after them.
    for _ in 0..300 {
        let grant = site.stream();
        assert_ne!(site.number(grant), 2);
        site.pass(Duration::from_millis(100));
        site.answers(grant);
    }
    // SIGCONT.
    site.admission.streaming(site.now, hung[0].lease);
    assert!(!site.is_ejected(2));
    for grant in hung {
        site.admission.end(site.now, grant.lease);
    }
    let grants: Vec<Grant> = (0..3).map(|_| site.stream()).collect();
    assert!(grants.iter().any(|grant| site.number(*grant) == 2));
}

#[test]
fn a_frozen_engine_whose_clients_left_is_tried_with_one_request_at_a_time() {
    let mut site = Site::new(&[2, 2]);
    let answer = |site: &mut Site, hung: &mut Vec<Grant>| {
        let grant = site.stream();
        site.pass(Duration::from_millis(100));
        if site.number(grant) == 1 { hung.push(grant) } else { site.answers(grant) }
    };
    let mut hung = Vec::new();
    while hung.is_empty() {
        // Both have work, so that both are chosen.
        let (one, two) = (site.stream(), site.stream());
        site.pass(Duration::from_millis(100));
        for grant in [one, two] {
            if site.number(grant) == 1 { hung.push(grant) } else { site.answers(grant) }
        }
    }
    while !site.is_ejected(1) {
        answer(&mut site, &mut hung);
    }
    for grant in std::mem::take(&mut hung) {
        site.admission.resetting(site.now, grant.lease);
        site.admission.end(site.now, grant.lease);
    }
    let mut tries = 0;
    for _ in 0..600 {
        answer(&mut site, &mut hung);
        // Clients give up after five seconds.
        if let Some(grant) = hung.pop() {
            tries += 1;
            assert!(hung.is_empty(), "one at a time");
            site.pass(5 * SECOND);
            site.ends(grant, Outcome::TimedOut);
        }
    }
    assert!((2..=5).contains(&tries), "{tries} in a minute and a half");
}

/// An answer that stands still counts at once, not when its time is over, and its next byte takes the provider back.
#[test]
fn one_whose_streams_stall_more_than_its_peers_is_passed_over_until_they_go_on() {
    let mut site = Site::new(&[4, 4]);
    let streams: Vec<Grant> = (0..4).map(|_| site.stream()).collect();
    for grant in &streams {
        site.admission.streaming(site.now, grant.lease);
        site.report(*grant, Outcome::Answered);
    }
    let of = |site: &Site, number| -> Vec<Grant> {
        streams.iter().copied().filter(|grant| site.number(*grant) == number).collect()
    };
    let (stuck, others) = (of(&site, 0), of(&site, 1));
    assert_eq!((stuck.len(), others.len()), (2, 2));
    site.admission.stalled(site.now, stuck[0].lease);
    assert!(!site.is_ejected(0), "one may have a reason of its own");
    site.admission.stalled(site.now, stuck[0].lease);
    site.admission.stalled(site.now, stuck[1].lease);
    assert!(site.is_ejected(0));
    // No other request is sent after those that stand still.
    site.pass(30 * SECOND);
    assert!(site.is_ejected(0));
    let next = site.stream();
    assert_eq!(site.number(next), 1);
    site.admission.goes_on(site.now, stuck[0].lease);
    assert!(!site.is_ejected(0));
    // Where everything stands still nobody is worse than the others.
    site.admission.stalled(site.now, stuck[0].lease);
    for grant in &others {
        site.admission.stalled(site.now, grant.lease);
    }
    assert!(!(site.is_ejected(0) && site.is_ejected(1)));
    for grant in streams {
        site.admission.end(site.now, grant.lease);
    }
    site.pass(200 * SECOND);
    let after = site.stream();
    site.answers(after);
}
