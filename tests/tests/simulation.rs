//! A site in a hand-made world: the cores of edge and nodes with a network, disks, clocks and people out of a seed.
//!
//! `cargo test -p umbel-tests simulation` runs 60 seeds; `scripts/simulate` runs thousands, or one again with its
//! history. After each step every named invariant is checked, and at the end that everybody has got on. A history is
//! the same whenever its seed is the same.

mod admins;
mod authority;
mod crews;
mod fate;
mod history;
mod invariants;
mod keepers;
mod luck;
mod mutations;
mod network;
mod people;
mod plane;
mod progress;
mod turns;
mod wishes;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use history::Failure;
use world::World;

/// Seeds of the test run: about 35 seconds of one core.
const SEEDS: u64 = 60;
/// Where a planted fault is looked for that its own seed does not show any more.
const OTHERS: u64 = 60;

/// Runs one seed to its end.
fn run(seed: u64, mutation: Option<&'static str>, loud: bool) -> Result<u64, Box<Failure>> {
    let mut world = World::new(seed, mutation, loud);
    world.live()?;
    world.settle_down()?;
    Ok(world.history.digest())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `UMBEL_SEED` runs that one, loudly; `UMBEL_SEEDS` runs so many from a chosen start instead of the usual 60.
#[test]
fn every_promise_holds_in_every_world() {
    if let Some(seed) = number("UMBEL_SEED") {
        match run(seed, None, true) {
            Ok(digest) => println!("seed {seed}: fine, history {digest:016x}"),
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let first = number("UMBEL_FIRST").unwrap_or(1);
    let next = AtomicU64::new(first);
    let end = first + number("UMBEL_SEEDS").unwrap_or(SEEDS);
    let work = || -> Result<(), Box<Failure>> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return Ok(());
            }
            // The first failure ends the others too.
            run(seed, None, false).inspect_err(|_| next.store(end, Ordering::Relaxed))?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().filter_map(|one| one.join().unwrap().err()).collect()
    });
    if let Some(failure) = failures.first() {
        panic!("{failure}\nagain: scripts/simulate 1 {}", failure.seed);
    }
}

#[test]
fn a_seed_has_one_history() {
    for seed in [7, 8, 9] {
        let first = run(seed, None, false).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(run(seed, None, false).ok(), Some(first), "seed {seed}");
    }
}

/// Each fault of the program that can be switched on is found by the invariant that is there for it. `UMBEL_MUTATION`: only
/// those whose names contain it. `UMBEL_SEEDS`: says which of so many seeds, from `UMBEL_FIRST` on, finds each soonest.
#[test]
fn each_invariant_can_fail() {
    let mut wrong = Vec::new();
    let only = std::env::var("UMBEL_MUTATION").unwrap_or_default();
    let most = number("UMBEL_SEEDS");
    for (mutation, invariant, seed) in mutations::MUTATIONS.iter().filter(|(name, ..)| name.contains(&only)) {
        let (found, otherwise) = match most {
            Some(most) => soonest(mutation, invariant, most),
            None => find(mutation, invariant, std::iter::once(*seed).chain(1..=OTHERS)),
        };
        match found {
            Some(seed) if most.is_some() => println!("    (\"{mutation}\", \"{invariant}\", {seed}),"),
            Some(_) => {}
            None => wrong.push(format!("`{mutation}` was not found by `{invariant}`, but: {otherwise:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// The first seed in which the invariant finds it, and by what else it was found before.
fn find(
    mutation: &'static str,
    invariant: &str,
    mut seeds: impl Iterator<Item = u64>,
) -> (Option<u64>, BTreeMap<&'static str, u64>) {
    let mut otherwise = BTreeMap::new();
    let found = seeds.find(|seed| match run(*seed, Some(mutation), false) {
        Err(failure) if failure.invariant == invariant => true,
        Err(failure) => {
            otherwise.entry(failure.invariant).or_insert(*seed);
            false
        }
        Ok(_) => false,
    });
    (found, otherwise)
}

fn soonest(mutation: &'static str, invariant: &str, most: u64) -> (Option<u64>, BTreeMap<&'static str, u64>) {
    let mut best: Option<(Duration, u64)> = None;
    let mut others = BTreeMap::new();
    let first = number("UMBEL_FIRST").unwrap_or(1);
    for seed in first..first.saturating_add(most) {
        let begin = Instant::now();
        let (found, otherwise) = find(mutation, invariant, std::iter::once(seed));
        others.extend(otherwise);
        let took = begin.elapsed();
        if found.is_some() && best.is_none_or(|(before, _)| took < before) {
            best = Some((took, seed));
        }
        // It does not get much better.
        if best.is_some_and(|(took, _)| took < Duration::from_millis(150)) {
            break;
        }
    }
    (best.map(|(_, seed)| seed), others)
}

/// An invariant that no fault of the program breaks may say nothing at all.
#[test]
fn each_invariant_has_a_fault_that_it_finds() {
    let sources = [
        include_str!("simulation/authority.rs"),
        include_str!("simulation/invariants.rs"),
        include_str!("simulation/invariants/audit.rs"),
        include_str!("simulation/progress.rs"),
        include_str!("simulation/turns.rs"),
        include_str!("simulation/wishes.rs"),
        include_str!("simulation/world.rs"),
    ];
    let mut names = std::collections::BTreeSet::new();
    for source in sources {
        let parts: Vec<_> = source.split('"').collect();
        for place in parts.windows(3) {
            let [before, name, after] = place else { continue };
            let after = after.strip_prefix(',').map(str::trim_start);
            if before.ends_with("failure(") || after.is_some_and(|after| after.starts_with("||")) {
                names.insert(*name);
            }
        }
    }
    assert!(names.len() > 50, "only {names:?} were found");
    let found: std::collections::BTreeSet<_> =
        mutations::MUTATIONS.iter().map(|(_, name, _)| *name).collect();
    let missing: Vec<_> = names.difference(&found).collect();
    assert!(missing.is_empty(), "no fault is planted for {missing:?}");
    let unknown: Vec<_> = found.difference(&names).collect();
    assert!(unknown.is_empty(), "no invariant is called {unknown:?}");
}
