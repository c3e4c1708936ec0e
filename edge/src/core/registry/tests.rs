//! The registry under random histories, and the rules that compare nodes with each other.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use quickcheck::{Arbitrary, Gen, quickcheck};
use umbel_contracts::proto::node::{
    DeclaredEngine, EngineState, EngineStatus, Gpu, NodeHeartbeat, NodeHelloRequest, NodeInventory,
};
use umbel_store::Position;
use umbel_wire::liveness::Times;
use umbel_wire::slots::Knock;
use umbel_wire::{Attempt, CloseReason, Generation, InstanceId, NodeId};

use crate::core::door::{NAMING, Named, Over, naming_is_over};

use super::node::{Credential, Lifecycle, NodeRow, ReportRow};
use super::{Call, Registry, clock, problems};

mod models;
mod reports;
use umbel_wire::clock::Wall;

type Site = Registry<u64>;

const STALE: Duration = Duration::from_secs(30);
const OFFLINE: Duration = Duration::from_secs(90);
const PERIOD: Duration = Duration::from_secs(5);
const SKEW_MS: i64 = clock::SKEW_ALLOWED.as_secs() as i64 * 1_000;

fn site(now: Instant) -> Site {
    Registry::new(Times::new(STALE, OFFLINE).unwrap(), PERIOD, Generation(0), now)
}

fn row(name: &str) -> NodeRow {
    let credential = Credential {
        key_sha256: "00".repeat(32),
        not_after_unix_ms: 0,
        revoked_at_unix_ms: None,
        issued_at_unix_ms: 0,
        issuer: String::new(),
    };
    NodeRow { eligible: true, ..NodeRow::enrolled(name, "t", credential, Wall(1)) }
}

fn engine(name: &str, model: &str, threshold: u32) -> DeclaredEngine {
    DeclaredEngine {
        name: name.into(),
        kind: "sim".into(),
        model: model.into(),
        capacity: 2,
        long_context_threshold_tokens: threshold,
        status: Some(EngineStatus {
            name: name.into(),
            state: EngineState::Ready.into(),
            ..Default::default()
        }),
        ..DeclaredEngine::default()
    }
}

fn hello(engines: Vec<DeclaredEngine>) -> NodeHelloRequest {
    NodeHelloRequest { engines, ..NodeHelloRequest::default() }
}

fn connect(
    site: &mut Site,
    id: NodeId,
    attempt: u64,
    hello: NodeHelloRequest,
    now: Instant,
    wall: i64,
) -> Generation {
    let Knock::Accept(accepted) = site.slots.knock(now, &id, InstanceId([1; 16]), Attempt(attempt), attempt)
    else {
        panic!("not accepted");
    };
    site.registered(id, accepted.generation);
    site.greet(id, accepted.generation, 1, hello, now, wall).unwrap();
    site.complete(id, accepted.generation).unwrap();
    accepted.generation
}

#[derive(Clone, Debug)]
enum Step {
    Connect(u8),
    Complete(u8),
    Close { node: u8, back: u8 },
    Beat { node: u8, back: u8 },
    Leave(u8),
    Drain(u8, bool),
    Disable(u8, bool),
    Wait(u8),
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        let node = u8::arbitrary(g) % 3;
        let back = u8::arbitrary(g) % 3;
        match u8::arbitrary(g) % 10 {
            0 | 1 => Step::Connect(node),
            2 | 3 => Step::Complete(node),
            4 => Step::Close { node, back },
            5 | 6 => Step::Beat { node, back },
            7 => Step::Leave(node),
            8 if bool::arbitrary(g) => Step::Drain(node, bool::arbitrary(g)),
            8 => Step::Disable(node, bool::arbitrary(g)),
            _ => Step::Wait(u8::arbitrary(g)),
        }
    }
}

/// What admission believes, from nothing but what it is told.
#[derive(Default)]
struct Believed {
    ready: HashMap<NodeId, (Generation, bool)>,
    up: HashMap<(NodeId, String), Generation>,
    lost: Vec<(NodeId, Generation)>,
}

impl Believed {
    fn take(&mut self, call: Call) {
        match call {
            Call::Ready { node, generation, ready } => drop(self.ready.insert(node, (generation, ready))),
            Call::Up { node, generation, engine, .. } => {
                self.up.insert((node, engine.name), generation);
            }
            Call::State { node, generation, engine, .. } => {
                assert_eq!(self.up.get(&(node, engine)), Some(&generation), "a state of what is not up");
            }
            Call::Down { node, engine } => drop(self.up.remove(&(node, engine))),
            Call::Lost { node, generation } => {
                self.lost.push((node, generation));
                if self.ready.get(&node).is_some_and(|(ready, _)| *ready == generation) {
                    self.ready.remove(&node);
                }
            }
            Call::Declare { .. } | Call::Draining { .. } | Call::Eligible { .. } | Call::Gone { .. } => {}
        }
    }
}

struct World {
    site: Site,
    ids: Vec<NodeId>,
    given: HashMap<NodeId, Vec<Generation>>,
    believed: Believed,
    now: Instant,
    attempt: u64,
    position: u64,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let mut site = site(now);
        let ids: Vec<_> = (0..3).map(|_| NodeId::random()).collect();
        for id in &ids {
            site.insert(*id, row("n"), Position(1), ReportRow::default());
        }
        Self { site, ids, given: HashMap::new(), believed: Believed::default(), now, attempt: 0, position: 1 }
    }

    /// The newest but `back` of a node's generations.
    fn generation(&self, id: NodeId, back: u8) -> Option<Generation> {
        self.given.get(&id)?.iter().rev().nth(back.into()).copied()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Connect(n) => {
                let id = self.ids[usize::from(n)];
                self.attempt += 1;
                let attempt = Attempt(self.attempt);
                let Knock::Accept(accepted) =
                    self.site.slots.knock(self.now, &id, InstanceId([1; 16]), attempt, self.attempt)
                else {
                    panic!("the same process dials again and is let in");
                };
                self.given.entry(id).or_default().push(accepted.generation);
                self.site.registered(id, accepted.generation);
                let hello = hello(vec![engine("e", "m", 0)]);
                self.site.greet(id, accepted.generation, 1, hello, self.now, 1).unwrap();
            }
            Step::Complete(n) => {
                let id = self.ids[usize::from(n)];
                if let Some(generation) = self.generation(id, 0) {
                    let _ = self.site.complete(id, generation);
                }
            }
            Step::Close { node, back } => {
                let id = self.ids[usize::from(node)];
                if let Some(generation) = self.generation(id, back) {
                    let owner = self.site.slots.is_current(&id, generation);
                    assert_eq!(self.site.closed(id, generation, "test").is_some(), owner);
                }
            }
            Step::Beat { node, back } => {
                let id = self.ids[usize::from(node)];
                if let Some(generation) = self.generation(id, back) {
                    let owner = self.site.slots.is_current(&id, generation);
                    let taken = self.site.heartbeat(id, generation, NodeHeartbeat::default(), self.now, 1);
                    assert_eq!(taken.is_ok(), owner, "only the owner's word counts");
                }
            }
            Step::Leave(n) => {
                let id = self.ids[usize::from(n)];
                if let Some(generation) = self.generation(id, 0) {
                    self.site.leaving(id, generation);
                }
            }
            Step::Drain(n, draining) => self.set(n, |row| row.draining = draining),
            Step::Disable(n, disabled) => self.set(n, |row| {
                row.lifecycle = if disabled { Lifecycle::Disabled } else { Lifecycle::Enrolled };
            }),
            Step::Wait(seconds) => {
                for _ in 0..seconds / 5 {
                    self.now += PERIOD;
                    self.site.sweep(self.now);
                }
            }
        }
        for call in self.site.take_calls() {
            self.believed.take(call);
        }
    }

    fn set(&mut self, n: u8, change: impl Fn(&mut NodeRow)) {
        let id = self.ids[usize::from(n)];
        let mut row = self.site.node(&id).unwrap().row.clone();
        change(&mut row);
        self.position += 1;
        self.site.apply(id, row, Position(self.position));
    }

    fn check(&self) {
        for id in &self.ids {
            let node = self.site.node(id).unwrap();
            let owner = self.site.slots.owner(id).map(|owner| owner.generation);
            let ready = self.believed.ready.get(id).copied();
            // Row 6: what admission believes and what a snapshot says are the same thing.
            assert_eq!(node.connected(), ready.is_some_and(|(_, ready)| ready), "{node:?}");
            if node.connected() {
                assert_eq!(owner, ready.map(|(generation, _)| generation));
                assert_eq!(self.believed.up.get(&(*id, "e".to_owned())).copied(), owner);
            }
            if owner.is_none() {
                assert!(node.session.is_none());
            }
        }
    }
}

quickcheck! {
    /// Rows 4, 6 and 8: whatever comes in whatever order, admission and snapshot agree, and only owners count.
    fn admission_and_snapshot_agree(steps: Vec<Step>) -> bool {
        let mut world = World::new();
        for step in &steps {
            let before: Vec<_> = world.ids.iter().map(|id| world.site.node(id).unwrap().connected()).collect();
            world.site.take_changed();
            world.step(step);
            let after: Vec<_> = world.ids.iter().map(|id| world.site.node(id).unwrap().connected()).collect();
            assert!(before == after || world.site.take_changed(), "a visible change raises the revision");
            world.check();
        }
        true
    }
}

#[test]
fn where_nodes_differ_the_first_stored_stands() {
    let now = Instant::now();
    let mut site = site(now);
    let (a, b) = (NodeId::random(), NodeId::random());
    site.insert(a, row("a"), Position(1), ReportRow::default());
    site.insert(b, row("b"), Position(2), ReportRow::default());
    connect(&mut site, a, 1, hello(vec![engine("e", "m", 1_000)]), now, 10);
    connect(&mut site, b, 1, hello(vec![engine("e", "m", 2_000)]), now, 20);
    let state = |site: &Site, id: &NodeId| site.node(id).unwrap().engine_state("e").0;
    assert_eq!(state(&site, &a), super::node::ProviderState::Available);
    assert_eq!(state(&site, &b), super::node::ProviderState::Failed);
    // The same again keeps its place; a change of the first one's makes it the later one.
    connect(&mut site, a, 2, hello(vec![engine("e", "m", 1_000)]), now, 30);
    assert_eq!(state(&site, &b), super::node::ProviderState::Failed);
    connect(&mut site, a, 3, hello(vec![engine("e", "m", 3_000)]), now, 40);
    assert_eq!(state(&site, &b), super::node::ProviderState::Available);
    assert_eq!(state(&site, &a), super::node::ProviderState::Failed);
    // It agrees again, or is gone: nothing is wrong any more.
    connect(&mut site, a, 4, hello(vec![engine("e", "m", 2_000)]), now, 50);
    assert_eq!(state(&site, &a), super::node::ProviderState::Available);
    connect(&mut site, a, 5, hello(vec![engine("other", "x", 0)]), now, 60);
    assert!(site.node(&a).unwrap().problems.is_empty());
    assert!(site.take_calls().iter().any(|call| matches!(call, Call::Down { engine, .. } if engine == "e")));
}

#[test]
fn one_gpu_at_two_hosts_is_a_problem_on_both() {
    let now = Instant::now();
    let mut site = site(now);
    let with = |uuid: &str, sequence: u64| NodeInventory {
        sequence,
        complete: true,
        gpus: vec![Gpu { uuid: uuid.into(), ..Gpu::default() }],
        ..NodeInventory::default()
    };
    let (a, b) = (NodeId::random(), NodeId::random());
    site.insert(a, row("a"), Position(1), ReportRow::default());
    site.insert(b, row("b"), Position(2), ReportRow::default());
    let first = connect(&mut site, a, 1, hello(vec![]), now, 1);
    let second = connect(&mut site, b, 1, hello(vec![]), now, 1);
    site.inventory(a, first, with("GPU-1", 1), now, 1).unwrap();
    site.inventory(b, second, with("GPU-1", 1), now, 1).unwrap();
    let marked = |site: &Site, id: &NodeId| {
        site.node(id).unwrap().problems.keys().any(|(code, _)| *code == problems::SAME_HARDWARE)
    };
    assert!(marked(&site, &a) && marked(&site, &b));
    site.inventory(b, second, with("GPU-2", 2), now, 1).unwrap();
    assert!(!marked(&site, &a) && !marked(&site, &b));
}

#[test]
fn a_failed_engine_and_an_offline_node_are_problems_while_they_are() {
    let mut now = Instant::now();
    let mut site = site(now);
    let id = NodeId::random();
    site.insert(id, row("a"), Position(1), ReportRow::default());
    let generation = connect(&mut site, id, 1, hello(vec![engine("e", "m", 0)]), now, 1);
    let codes = |site: &Site| -> Vec<_> {
        let problems = super::snapshot::problems(site.node(&id).unwrap());
        problems.into_iter().map(|problem| (problem.code, problem.subject)).collect()
    };
    assert_eq!(codes(&site), []);
    let mut status = engine("e", "m", 0).status.unwrap();
    status.set_state(EngineState::Failed);
    let failed = NodeHeartbeat { health: 2, engines: vec![status], ..NodeHeartbeat::default() };
    site.heartbeat(id, generation, failed, now, 2).unwrap();
    assert_eq!(codes(&site), [(problems::ENGINE_FAILED.to_owned(), format!("{id}/e"))]);
    for _ in 0..OFFLINE.as_secs() / PERIOD.as_secs() + 1 {
        now += PERIOD;
        site.sweep(now);
    }
    assert_eq!(codes(&site), [(problems::NODE_OFFLINE.to_owned(), id.to_string())]);
}

#[test]
fn heartbeats_that_say_nothing_new_keep_the_revision() {
    let now = Instant::now();
    let mut site = site(now);
    let id = NodeId::random();
    site.insert(id, row("a"), Position(1), ReportRow::default());
    let generation = connect(&mut site, id, 1, hello(vec![engine("e", "m", 0)]), now, 1);
    let beat = NodeHeartbeat {
        health: 1,
        engines: vec![engine("e", "m", 0).status.unwrap()],
        ..NodeHeartbeat::default()
    };
    site.heartbeat(id, generation, beat.clone(), now, 2).unwrap();
    site.take_changed();
    site.heartbeat(id, generation, beat, now, 3).unwrap();
    assert!(!site.take_changed());
}

/// A node that was told to end leases gets no work however long they last: it is looked at again and again, is a problem,
/// and goes only when it does not name them any more (row 63).
#[test]
fn row_63_slots_are_not_free_while_older_leases_run() {
    let now = Instant::now();
    let mut site = site(now);
    let id = NodeId(uuid::Uuid::from_u128(1));
    site.insert(id, row("n"), Position(1), ReportRow::default());
    let Knock::Accept(accepted) = site.slots.knock(now, &id, InstanceId([1; 16]), Attempt(1), 1) else {
        panic!("not accepted");
    };
    let generation = accepted.generation;
    site.registered(id, generation);
    site.greet(id, generation, 1, hello(vec![engine("e", "m", 0)]), now, 1).unwrap();
    let over = |site: &mut Site, named, now| naming_is_over(site, id, generation, named, now, Wall(1));
    assert!(matches!(over(&mut site, None, now), Over::Close(_)), "it named nothing at all");
    let problem = |site: &Site| {
        site.node(&id).unwrap().problems.keys().any(|(code, _)| *code == problems::LEASES_CARRIED)
    };
    for turn in 1..20 {
        let at = now + NAMING * turn;
        let named = Some(Named { at: at - Duration::from_secs(2), left: 3 });
        assert_eq!(over(&mut site, named, at), Over::Again);
        assert!(!site.node(&id).unwrap().session.as_ref().unwrap().named && problem(&site));
        site.sweep(at);
    }
    let late = now + NAMING * 20;
    let silent = over(&mut site, Some(Named { at: late - NAMING, left: 3 }), late);
    assert!(matches!(silent, Over::Close(CloseReason::Protocol(_))), "{silent:?}");
    site.complete(id, generation).unwrap();
    assert_eq!(over(&mut site, Some(Named { at: now, left: 0 }), late), Over::Done);
    assert!(site.node(&id).unwrap().session.as_ref().unwrap().named && !problem(&site));
    // An older connection is nobody's concern, as long as somebody owns the node.
    let Knock::Accept(next) = site.slots.knock(late, &id, InstanceId([1; 16]), Attempt(2), 2) else {
        panic!("not accepted");
    };
    site.registered(id, next.generation);
    assert_eq!(over(&mut site, Some(Named { at: late, left: 3 }), late), Over::Done);
    site.slots.clear(&id, next.generation);
    assert_eq!(
        over(&mut site, Some(Named { at: late, left: 3 }), late),
        Over::Close(CloseReason::Superseded)
    );
}
