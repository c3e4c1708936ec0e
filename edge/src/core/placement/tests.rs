//! Placement against a model that tries everything, on small fleets; and the sentences of an explanation on one fleet.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

mod brute;
mod dice;
mod reasons;
mod words;

use std::collections::{BTreeMap, BTreeSet};

use quickcheck::{QuickCheck, TestResult};

use self::brute::{best, fits_somewhere, is_legal};
use self::dice::Dice;
use super::candidate::{Candidate, Room};
use super::explain::{Detail, Explanation, explain_some, funnel};
use super::remedy::{Remedy, Stocks};
use super::request::{Request, Strategy};
use super::{Fleet, Plan, plan};

fn all_seeds(tests: u64, property: fn(u64) -> TestResult) {
    QuickCheck::new().tests(tests).max_tests(tests * 4).quickcheck(property as fn(u64) -> TestResult);
}

/// Everything, of every node.
fn explain(request: &Request, fleet: &[Candidate]) -> Explanation {
    explain_some(request, fleet, Detail { most: 64, only: &|_| true })
}

/// A plan, or why there is none.
fn place(request: &Request, fleet: &[Candidate]) -> Result<Plan, Box<Explanation>> {
    plan(request, fleet).ok_or_else(|| Box::new(explain(request, fleet)))
}

/// The nodes after a plan took of them.
fn after_plan(plan: &Plan, request: &Request, holder: &str, fleet: Vec<Candidate>) -> Vec<Candidate> {
    let mut fleet = Fleet::of(fleet);
    fleet.take(plan, request, holder);
    fleet.nodes().to_vec()
}

/// The wish and the fleet after a remedy.
fn after(remedy: &Remedy, request: &Request, fleet: &[Candidate]) -> (Request, Vec<Candidate>) {
    let (mut request, mut fleet) = (request.clone(), fleet.to_vec());
    for step in &remedy.steps {
        let node = fleet.iter_mut().find(|node| node.id == step.node).unwrap();
        step.change.make(&mut request, node);
    }
    (request, fleet)
}

#[test]
fn a_plan_is_legal_and_what_fits_is_found() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (request, fleet) = (dice.request(), dice.fleet());
        match place(&request, &fleet) {
            Ok(plan) => TestResult::from_bool(is_legal(&plan, &request, &fleet)),
            Err(why) => TestResult::from_bool(!fits_somewhere(&request, &fleet) && why.plan.is_none()),
        }
    }
    all_seeds(4_000, property);
}

#[test]
fn of_what_fits_the_best_is_chosen() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (mut request, fleet) = (dice.request(), dice.fleet());
        request.nodes = 1;
        let chosen = plan(&request, &fleet).map(|plan| plan.shards[0].node);
        assert_eq!(chosen, best(&request, &fleet).map(|node| node.id));
        TestResult::from_bool(chosen.is_some() || !fits_somewhere(&request, &fleet))
    }
    all_seeds(4_000, property);
}

/// Deployments of one replica each, one after the other: equal nodes share them evenly, or one takes them all.
#[test]
fn deployments_spread_over_equal_nodes_and_pack_on_one() {
    for (strategy, expected) in [(Strategy::Spread, [4, 3, 3]), (Strategy::Pack, [10, 0, 0])] {
        let mut fleet: Vec<Candidate> = (0..3).map(dice::good_node).collect();
        // An engine of its own file counts like any other.
        fleet[1].engines.insert("chat".to_owned());
        for number in 0..9 {
            let request = Request { deployment: format!("m{number}"), strategy, ..Request::default() };
            let found = plan(&request, &fleet).unwrap();
            fleet = after_plan(&found, &request, &format!("m{number}.r1"), fleet);
        }
        let mut engines: Vec<usize> = fleet.iter().map(|node| node.engines.len()).collect();
        engines.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(engines, expected, "{strategy:?}");
    }
    // Engines equal: where most memory is free, or least.
    let mut fleet: Vec<Candidate> = (0..3).map(dice::good_node).collect();
    for (node, gib) in fleet.iter_mut().zip([64, 512, 16]) {
        node.free_memory_bytes = Some(gib * dice::GIB);
        node.engines.insert("chat".to_owned());
    }
    for (strategy, expected) in [(Strategy::Spread, 1), (Strategy::Pack, 2)] {
        let request = Request { strategy, ..Request::default() };
        assert_eq!(plan(&request, &fleet).unwrap().shards[0].node, dice::id(expected));
    }
}

/// A node that gets no requests yet takes a replica where no other can, and only then.
#[test]
fn nodes_without_requests_come_last() {
    let mut fleet: Vec<Candidate> = (0..2).map(dice::good_node).collect();
    fleet[0].eligible = false;
    let mut request = Request { deployment: "m".to_owned(), ..Request::default() };
    request.placed.insert(dice::id(1), 3);
    assert_eq!(plan(&request, &fleet).unwrap().shards[0].node, dice::id(1));
    fleet[1].draining = true;
    assert_eq!(plan(&request, &fleet).unwrap().shards[0].node, dice::id(0));
    let object = super::told::object(&explain(&request, &fleet), &[], &fleet, &Stocks::new());
    assert_eq!(
        object.nodes[0].remarks,
        ["not eligible: its requests wait until `umbel ctl node eligible node-0`"]
    );
}

#[test]
fn a_suggested_change_once_made_makes_it_fit() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (request, fleet) = (dice.request(), dice.fleet());
        let Err(why) = place(&request, &fleet) else { return TestResult::discard() };
        for remedy in &why.remedies {
            assert!(!remedy.steps.is_empty());
            let ends_its_own = |freed: &super::remedy::Freed| {
                let own = |holder: &String| holder.starts_with(&format!("{}.r", request.deployment));
                freed.holder.as_ref().is_some_and(own)
            };
            for step in &remedy.steps {
                let super::remedy::Change::FreeGpus(freed) = &step.change else { continue };
                assert!(!freed.iter().any(ends_its_own), "{remedy:?}");
            }
            let (request, fleet) = after(remedy, &request, &fleet);
            assert!(fits_somewhere(&request, &fleet), "{remedy:?}");
            let plan = place(&request, &fleet).unwrap();
            assert!(is_legal(&plan, &request, &fleet), "{remedy:?}");
        }
        for view in &why.nodes {
            for remedy in &view.remedies {
                // A node by itself: what others of its fabric lack is not its matter.
                let (mut request, fleet) = after(remedy, &request, &fleet);
                request.nodes = 1;
                let node: Vec<_> = fleet.into_iter().filter(|node| node.id == view.id).collect();
                assert!(fits_somewhere(&request, &node), "{}: {remedy:?}", view.name);
            }
        }
        TestResult::passed()
    }
    all_seeds(2_000, property);
}

/// Where one change of one kind is all that it takes, it is found.
#[test]
fn the_one_thing_in_the_way_is_named() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (mut request, mut fleet) = (dice.request(), dice.fleet());
        // It may choose by GPUs that are about to go.
        request.selector = None;
        let Ok(plan) = place(&request, &fleet) else { return TestResult::discard() };
        // Only the nodes of the plan are left, and something is put in the way of one of them.
        fleet.retain(|node| plan.shards.iter().any(|shard| shard.node == node.id));
        let at = dice.below(fleet.len());
        let word = dice.hinder(&plan, &mut fleet[at]);
        if place(&request, &fleet).is_ok() {
            return TestResult::discard();
        }
        let why = explain(&request, &fleet);
        let found = why.remedies.iter().any(|one| one.steps.len() == 1 && one.steps[0].change.word() == word);
        assert!(found, "{word}: {:?} of {:?}", why.remedies, why.nodes);
        TestResult::passed()
    }
    all_seeds(2_000, property);
}

/// What is worked out once for a whole round changes nothing: wish after wish, each finds the place that it finds among the same
/// nodes looked at anew.
#[test]
fn a_round_finds_what_each_wish_would_find_by_itself() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let mut nodes = dice.fleet();
        let mut fleet = Fleet::of(nodes.clone());
        let mut placed = 0;
        for number in 0..8 {
            let request = Request { deployment: format!("m{number}"), ..dice.request() };
            let found = fleet.plan(&request);
            assert_eq!(found, plan(&request, &nodes), "{request:?}");
            let cheap = funnel(&request, fleet.nodes());
            assert_eq!(cheap, funnel(&request, &nodes));
            let Some(found) = found else { continue };
            placed += 1;
            let holder = format!("m{number}.r1");
            fleet.take(&found, &request, &holder);
            nodes = after_plan(&found, &request, &holder, nodes);
            assert_eq!(fleet.nodes(), nodes);
        }
        if placed == 0 { TestResult::discard() } else { TestResult::passed() }
    }
    all_seeds(2_000, property);
}

#[test]
fn the_order_of_the_input_decides_nothing() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (request, fleet) = (dice.request(), dice.fleet());
        let mut other = fleet.clone();
        dice.shuffle(&mut other);
        assert_eq!(place(&request, &fleet), place(&request, &other));
        assert_eq!(explain(&request, &fleet), explain(&request, &other));
        TestResult::passed()
    }
    all_seeds(1_000, property);
}

#[test]
fn every_node_is_counted_once() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (request, fleet) = (dice.request(), dice.fleet());
        let told = explain_some(&request, &fleet, Detail { most: 2, only: &|_| true });
        let counted: usize = told.funnel.values().map(Vec::len).sum();
        assert_eq!(counted + told.left, told.total);
        assert_eq!(told.nodes.len() + told.left_off, told.total);
        assert!(told.nodes.len() <= 2);
        if request.nodes <= 1 {
            let cheap: BTreeMap<_, usize> = funnel(&request, &fleet)
                .into_iter()
                .map(|(reason, count)| (reason, count as usize))
                .collect();
            let told: BTreeMap<_, usize> =
                told.funnel.iter().map(|(reason, names)| (*reason, names.len())).collect();
            assert_eq!(cheap, told);
        }
        TestResult::passed()
    }
    all_seeds(1_000, property);
}

/// Replicas beside each other: no GPU twice, and on as many nodes as there are, or on as few.
#[test]
fn spread_spreads_and_pack_packs() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let mut request = dice.plain_request();
        let mut fleet = dice.plain_fleet();
        let room: Vec<usize> = fleet
            .iter()
            .map(|node| node.gpus.len() / request.gpus.count as usize)
            .filter(|room| *room > 0)
            .collect();
        let wanted = 1 + dice.below(8);
        let (mut gpus, mut nodes) = (BTreeSet::new(), BTreeMap::new());
        let mut placed = 0;
        while placed < wanted
            && let Ok(plan) = place(&request, &fleet)
        {
            placed += 1;
            assert!(is_legal(&plan, &request, &fleet));
            let in_use = |node: &Candidate| node.gpus.iter().any(|gpu| gpu.holder.is_some());
            let begun: Vec<_> = fleet.iter().filter(|node| in_use(node)).cloned().collect();
            if request.strategy == Strategy::Pack && fits_somewhere(&request, &begun) {
                assert!(begun.iter().any(|node| node.id == plan.shards[0].node), "a whole node was begun");
            }
            fleet = after_plan(&plan, &request, &format!("m.r{placed}"), fleet);
            let shard = &plan.shards[0];
            for gpu in &shard.gpus {
                assert!(gpus.insert(gpu.clone()), "{gpu} twice");
            }
            *nodes.entry(shard.node).or_insert(0) += 1;
            *request.placed.entry(shard.node).or_insert(0) += 1;
        }
        assert_eq!(placed, wanted.min(room.iter().sum()));
        match request.strategy {
            Strategy::Spread => assert_eq!(nodes.len(), room.len().min(placed)),
            Strategy::Pack => {}
        }
        TestResult::passed()
    }
    all_seeds(1_000, property);
}

/// Figures that no host has: nothing overflows.
#[test]
fn absurd_figures_are_survived() {
    fn property(seed: u64) -> TestResult {
        let mut dice = Dice::new(seed);
        let (mut request, mut fleet) = (dice.request(), dice.fleet());
        let absurd = [0, 1, u64::MAX, u64::MAX - 1];
        request.gpus.memory_bytes = absurd[dice.below(4)];
        request.nodes = [0, 1, u32::MAX][dice.below(3)];
        request.gpus.count = [0, 1, u32::MAX][dice.below(3)];
        if let Some(artifact) = &mut request.artifact {
            artifact.bytes = absurd[dice.below(4)];
        }
        for node in &mut fleet {
            let (free_bytes, reserve_bytes) = (absurd[dice.below(4)], absurd[dice.below(4)]);
            node.room = Some(Room { free_bytes, reserve_bytes });
            for gpu in &mut node.gpus {
                (gpu.memory_bytes, gpu.foreign_bytes) = (absurd[dice.below(4)], absurd[dice.below(4)]);
            }
        }
        let why = explain(&request, &fleet);
        for view in &why.nodes {
            let _ = view.obstacles.iter().map(super::obstacle::Obstacle::sentence).count();
        }
        TestResult::passed()
    }
    all_seeds(1_000, property);
}
