//! Arbitration: the table, and random histories checked against what may never happen.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::collections::HashSet;

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

type World = Slots<u8, u32>;

fn instance(number: u8) -> InstanceId {
    InstanceId([number; 16])
}

fn accept(slots: &mut World, who: u8, attempt: u64) -> Accepted<u32> {
    match slots.knock(Instant::now(), &1, instance(who), Attempt(attempt), 0) {
        Knock::Accept(accepted) => accepted,
        other => panic!("expected Accept, got {other:?}"),
    }
}

fn probe(slots: &mut World, who: u8) -> Probe {
    match slots.knock(Instant::now(), &1, instance(who), Attempt(1), 0) {
        Knock::Probe { probe, .. } => probe,
        other => panic!("expected Probe, got {other:?}"),
    }
}

#[test]
fn the_same_process_replaces_its_older_connection_and_a_late_dial_does_not() {
    let mut slots = World::new(Generation(41));
    let first = accept(&mut slots, 1, 1);
    assert_eq!((first.generation, first.superseded), (Generation(42), None));
    let second = accept(&mut slots, 1, 2);
    assert_eq!(second.superseded.unwrap().generation, Generation(42));
    let late = slots.knock(Instant::now(), &1, instance(1), Attempt(1), 0);
    assert_eq!(late, Knock::Refuse(Refusal::Late));
    // The superseded connection's close comes last and changes nothing.
    assert_eq!(slots.clear(&1, Generation(42)), None);
    assert!(slots.is_current(&1, Generation(43)));
}

#[test]
fn a_silent_owner_gives_way_and_a_living_one_stays() {
    let mut slots = World::new(Generation(0));
    accept(&mut slots, 1, 1);
    let held = probe(&mut slots, 2);
    assert_eq!(slots.probed(&1, held, true, instance(2), Attempt(1), 0), Err(Refusal::Duplicate));
    assert!(slots.is_current(&1, Generation(1)));
    let held = probe(&mut slots, 2);
    let accepted = slots.probed(&1, held, false, instance(2), Attempt(1), 0).unwrap();
    assert_eq!(accepted.superseded.unwrap().generation, Generation(1));
    assert!(slots.is_current(&1, Generation(2)));
}

#[test]
fn a_third_newcomer_waits_and_a_vanished_prober_does_not_block_for_ever() {
    let mut slots = World::new(Generation(0));
    let now = Instant::now();
    accept(&mut slots, 1, 1);
    let vanished = probe(&mut slots, 2);
    let third = slots.knock(now, &1, instance(3), Attempt(1), 0);
    assert_eq!(third, Knock::Refuse(Refusal::Busy));
    // Not even the owner's own process slips past a judgement.
    assert_eq!(slots.knock(now, &1, instance(1), Attempt(2), 0), Knock::Refuse(Refusal::Busy));
    let later = now + PROBE_HOLDS + Duration::from_secs(1);
    assert!(matches!(slots.knock(later, &1, instance(3), Attempt(1), 0), Knock::Probe { .. }));
    assert_eq!(slots.probed(&1, vanished, false, instance(2), Attempt(1), 0), Err(Refusal::Busy));
}

#[test]
fn an_owner_that_closes_while_it_is_probed_leaves_the_slot_to_the_newcomer() {
    let mut slots = World::new(Generation(0));
    accept(&mut slots, 1, 1);
    let held = probe(&mut slots, 2);
    assert!(slots.clear(&1, Generation(1)).is_some());
    assert!(slots.probed(&1, held, true, instance(2), Attempt(1), 0).is_ok());
}

#[test]
fn a_revocation_ends_owner_and_probe() {
    let mut slots = World::new(Generation(0));
    accept(&mut slots, 1, 1);
    let held = probe(&mut slots, 2);
    assert_eq!(slots.evict(&1).unwrap().generation, Generation(1));
    assert_eq!(slots.probed(&1, held, false, instance(2), Attempt(1), 0), Err(Refusal::Busy));
    assert_eq!(slots.owners().count(), 0);
}

#[test]
fn each_refusal_says_when_to_come_back() {
    for (refusal, reason) in [
        (Refusal::Busy, "IDENTITY_BUSY"),
        (Refusal::Late, "SUPERSEDED"),
        (Refusal::Duplicate, "DUPLICATE_IDENTITY"),
    ] {
        let error = refusal.error();
        assert_eq!((error.code, error.reason.as_ref()), (Code::Conflict, reason));
        assert!(error.retry_after.is_some());
    }
}

/// One thing that happens at an acceptor. Numbers are taken modulo what exists.
#[derive(Clone, Debug)]
enum Step {
    Knock { id: u8, instance: u8, attempt: u8 },
    Probed { which: usize, answered: bool },
    Abandon { which: usize },
    Close { which: usize },
    Evict { id: u8 },
    Wait { seconds: u8 },
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let id = u8::arbitrary(g) % 2;
        match u8::arbitrary(g) % 12 {
            0..5 => Self::Knock { id, instance: u8::arbitrary(g) % 3, attempt: u8::arbitrary(g) % 5 },
            5..7 => Self::Probed { which: usize::arbitrary(g), answered: bool::arbitrary(g) },
            7 => Self::Abandon { which: usize::arbitrary(g) },
            8..10 => Self::Close { which: usize::arbitrary(g) },
            10 => Self::Evict { id },
            _ => Self::Wait { seconds: u8::arbitrary(g) % 8 },
        }
    }
}

/// What the checks remember of a history.
struct History {
    slots: World,
    now: Instant,
    /// Every generation ever given, with its identity.
    given: Vec<(u8, Generation)>,
    probes: Vec<(u8, Probe, u8, u8)>,
    /// The owner that the rules allow, by identity.
    owner: [Option<Generation>; 2],
}

impl History {
    fn accepted(&mut self, id: u8, accepted: &Accepted<u32>) -> bool {
        let grew = self.given.iter().all(|(_, generation)| *generation < accepted.generation);
        let expected = self.owner[usize::from(id)];
        let told = accepted.superseded.as_ref().map(|owner| owner.generation);
        self.given.push((id, accepted.generation));
        self.owner[usize::from(id)] = Some(accepted.generation);
        grew && told == expected
    }

    fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::Knock { id, instance: who, attempt } => {
                match self.slots.knock(self.now, &id, instance(who), Attempt(attempt.into()), 0) {
                    Knock::Accept(accepted) => return self.accepted(id, &accepted),
                    Knock::Probe { probe, old } => {
                        self.probes.push((id, probe, who, attempt));
                        return self.owner[usize::from(id)] == Some(old.generation)
                            && old.instance != instance(who);
                    }
                    Knock::Refuse(refusal) => return refusal != Refusal::Duplicate,
                }
            }
            Step::Probed { which, answered } if !self.probes.is_empty() => {
                let (id, probe, who, attempt) = self.probes[which % self.probes.len()];
                let attempt = Attempt(attempt.into());
                if let Ok(accepted) = self.slots.probed(&id, probe, answered, instance(who), attempt, 0) {
                    return self.accepted(id, &accepted);
                }
            }
            Step::Abandon { which } if !self.probes.is_empty() => {
                let (id, probe, ..) = self.probes[which % self.probes.len()];
                self.slots.abandon(&id, probe);
            }
            Step::Close { which } if !self.given.is_empty() => {
                let (id, generation) = self.given[which % self.given.len()];
                let cleared = self.slots.clear(&id, generation).is_some();
                let was_owner = self.owner[usize::from(id)] == Some(generation);
                if was_owner {
                    self.owner[usize::from(id)] = None;
                }
                // A stale close never clears a newer one, and an owner's close always clears.
                return cleared == was_owner;
            }
            Step::Evict { id } => {
                let evicted = self.slots.evict(&id).map(|owner| owner.generation);
                return evicted == self.owner[usize::from(id)].take();
            }
            Step::Wait { seconds } => self.now += Duration::from_secs(seconds.into()),
            _ => {}
        }
        true
    }

    fn holds(&self) -> bool {
        let owners: Vec<_> = self.slots.owners().map(|(id, owner)| (*id, owner.generation)).collect();
        let distinct: HashSet<_> = owners.iter().map(|(id, _)| id).collect();
        distinct.len() == owners.len()
            && (0..2)
                .all(|id| self.slots.owner(&id).map(|owner| owner.generation) == self.owner[usize::from(id)])
    }
}

quickcheck! {
    fn no_history_gives_two_owners_or_lets_a_stale_close_win(steps: Vec<Step>) -> bool {
        let mut history = History {
            slots: World::new(Generation(7)),
            now: Instant::now(),
            given: Vec::new(),
            probes: Vec::new(),
            owner: [None; 2],
        };
        steps.iter().all(|step| history.step(step) && history.holds())
    }
}
