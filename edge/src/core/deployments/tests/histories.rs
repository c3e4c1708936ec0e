//! Random histories: whatever happens in whatever order, the invariants hold in each round, and once nothing more happens
//! the site comes to exactly what is wanted.

use std::collections::{BTreeMap, BTreeSet};

use quickcheck::{QuickCheck, TestResult};
use serde_json::json;

use super::world::{World, node, spec};
use crate::core::deployments::change::Ask;
use crate::core::deployments::{EngineWord, JobFact, ReplicaKey, ReplicaState, Standing, Work};

const NODES: u8 = 4;

fn happen(world: &mut World, what: u8, with: u8) {
    let number = with % NODES + 1;
    let name = if with.is_multiple_of(2) { "one" } else { "two" };
    let mut apply = |more: serde_json::Value| {
        if let Ok(change) = world.deployments.propose(spec(name, more), None, "ada", world.wall()) {
            world.take(change);
        }
    };
    match what % 22 {
        0 => apply(json!({ "replicas": with % 4, "model": name })),
        1 => apply(json!({ "replicas": with % 4, "model": format!("{name}-{}", with % 3) })),
        2 => apply(json!({ "replicas": with % 4, "model": name, "capacity": with % 5 + 1 })),
        3 => world.host(number).standing = Standing::Lost,
        4 => world.host(number).standing = Standing::Away,
        5 | 6 => world.host(number).standing = Standing::Here,
        7 => world.host(number).draining = with.is_multiple_of(3),
        8 => world.pass(u64::from(with) * 10),
        9 => {
            if let Some(state) = world.host(number).engines.values_mut().next() {
                *state = EngineWord::Failed;
            }
        }
        10 => world.restart(),
        11 => {
            let ask = [Ask::Load, Ask::Unload { leave_ms: None }, Ask::Restart, Ask::Pause(with > 128)];
            operator_asks(world, name, ask[usize::from(with) % 4]);
        }
        12 => drop(world.failing.insert(format!("{name}.r{}", with % 3 + 1), u32::from(with % 3))),
        // Names that go over: gone with its replicas, and applied anew as something else.
        13 => operator_asks(world, name, Ask::Delete),
        14 => world.host(number).standing = Standing::Gone,
        15 => world.host(number).eligible = with > 99,
        16 => world.killed(None),
        17 => world.killed(Some(usize::from(with % 3))),
        18 => world.lasting = with > 128,
        _ => {
            world.work(usize::from(with));
        }
    }
}

fn operator_asks(world: &mut World, name: &str, ask: Ask) {
    if let Ok(change) = world.deployments.ask(name, ask, world.wall()) {
        world.take(change);
    }
}

fn invariants(world: &World, before: &BTreeSet<ReplicaKey>) -> Result<(), String> {
    let mut loading = BTreeMap::new();
    for (order, fact) in world.jobs.values() {
        if let (Work::Load { spec, number, .. }, JobFact::Open) = (&order.work, fact) {
            *loading.entry(spec.engine_name(*number, None)).or_insert(0) += 1;
        }
    }
    if let Some((engine, times)) = loading.iter().find(|(_, times)| **times > 1) {
        return Err(format!("{engine} is loaded {times} times at once"));
    }
    let mut ready = BTreeMap::new();
    for (node, host) in &world.hosts {
        for engine in
            host.engines.iter().filter(|(_, state)| **state == EngineWord::Ready).map(|(engine, _)| engine)
        {
            if let Some(other) = ready.insert(engine.clone(), *node) {
                return Err(format!("two engines of {engine} run, on {other} and {node}"));
            }
        }
    }
    let mut held = BTreeMap::new();
    for row in world.deployments.replicas.values().filter(|row| row.holds()) {
        for gpu in &row.gpus {
            if let Some(other) = held.insert(gpu.clone(), row.engine()) {
                return Err(format!("{gpu} is held by {other} and {}", row.engine()));
            }
        }
    }
    for (name, row) in &world.deployments.rows {
        let begun = world.deployments.replicas_of(name).any(|one| !before.contains(&one.key()));
        let here = counted(world, name);
        if begun && here > usize::try_from(row.wanted()).unwrap() + 1 {
            return Err(format!("{name} has {here} of {}: {:?}", row.wanted(), world.shown(name)));
        }
    }
    Ok(())
}

/// Replicas on nodes that can be counted on.
fn counted(world: &World, name: &str) -> usize {
    let rows = world.deployments.replicas_of(name);
    rows.filter(|row| row.state != ReplicaState::Lost && !world.hosts[&row.node].draining).count()
}

fn comes_to_rest(world: &mut World) -> Result<(), String> {
    for number in 1..=NODES {
        let host = world.host(number);
        (host.standing, host.draining, host.eligible) = (Standing::Here, false, true);
        host.gpus = 4;
    }
    world.failing.clear();
    for name in ["one", "two"] {
        for ask in [Ask::Pause(false), Ask::Load] {
            if let Ok(change) = world.deployments.ask(name, ask, world.wall()) {
                world.take(change);
            }
        }
    }
    for _ in 0..8 {
        world.run();
        world.pass(600);
    }
    for (name, row) in &world.deployments.rows {
        let ready = |one: &&crate::core::deployments::ReplicaRow| {
            one.state == ReplicaState::Ready
                && one.engine_digest == row.engine_digest
                && one.version == row.version
                && one.restarts == row.restarts
        };
        let rows: Vec<_> = world.deployments.replicas_of(name).collect();
        let wanted = usize::try_from(row.wanted()).unwrap();
        if rows.len() != wanted || !rows.iter().all(ready) {
            return Err(format!("{name} wants {wanted}: {rows:#?}, {:?}", world.deployments.unplaced(name)));
        }
    }
    let engines: usize = world.hosts.values().map(|host| host.engines.len()).sum();
    if engines != world.deployments.replicas.len() {
        return Err(format!(
            "an engine runs that no row has: {:?} {:#?} {:?}",
            world.hosts, world.jobs, world.told
        ));
    }
    Ok(())
}

fn history(events: Vec<(u8, u8)>) -> TestResult {
    let mut world = World::new(&[2, 1, 2, 1]);
    assert_eq!(world.hosts.len(), usize::from(NODES));
    assert!(world.hosts.contains_key(&node(NODES)));
    for (what, with) in events {
        happen(&mut world, what, with);
        let before = world.deployments.replicas.keys().cloned().collect();
        world.round();
        if let Err(why) = invariants(&world, &before) {
            return TestResult::error(why);
        }
    }
    match comes_to_rest(&mut world) {
        Ok(()) => TestResult::passed(),
        Err(why) => TestResult::error(why),
    }
}

#[test]
fn whatever_happens_the_site_comes_to_what_is_wanted() {
    QuickCheck::new().tests(200).quickcheck(history as fn(Vec<(u8, u8)>) -> TestResult);
}
