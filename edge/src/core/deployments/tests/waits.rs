//! Replicas that wait: for somebody's word after a job was cancelled, and by a clock that is wrong.

use serde_json::json;
use umbel_contracts::objects::DeploymentState;

use super::world::{SHA, World, spec};
use crate::core::deployments::change::Ask;
use crate::core::deployments::{JobFact, Order, ReplicaState, Work};

use ReplicaState::Ready;

/// The open job is cancelled by ann.
fn cancel(world: &mut World) {
    let at_unix_ms = world.wall();
    let (_, fact) = world.jobs.values_mut().find(|(_, fact)| *fact == JobFact::Open).unwrap();
    *fact = JobFact::Cancelled { by: "ann".to_owned(), at_unix_ms };
}

/// Somebody loads it while a cancelled job has not ended yet.
fn load_meanwhile(world: &mut World) {
    let wall = world.wall();
    let mut change = world.deployments.ask("chat", Ask::Load, wall).unwrap();
    world.deployments.wanted_again(&mut change, wall, |_| true);
    let said = "its replicas are wanted, as they were; what was cancelled is begun again: 1";
    assert_eq!(change.sentence, said);
    world.take(change);
}

fn said(world: &World) -> (DeploymentState, String) {
    let stands = world.deployments.stands(&world.deployments.rows["chat"]);
    (stands.state, stands.message)
}

fn jobs(world: &World) -> (usize, usize) {
    let loads = world.jobs.values().filter(|(order, _)| matches!(order.work, Work::Load { .. }));
    (world.jobs.len(), loads.count())
}

/// Days pass, the edge starts anew, another node is there: nothing is begun until somebody says again what is wanted.
#[test]
fn what_an_operator_cancels_stays_so_until_somebody_asks() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.settle();
    cancel(&mut world);
    for _ in 0..3 {
        world.run();
        world.pass(24 * 3600);
        world.restart();
    }
    world.run();
    assert_eq!(jobs(&world), (1, 0), "{:?}", world.jobs);
    let message = "chat.r1: its download was cancelled by ann; umbel ctl model load chat goes on";
    assert_eq!(said(&world), (DeploymentState::Failed, message.to_owned()));
    world.apply(spec("chat", json!({})));
    world.settle();
    world.work(0);
    world.settle();
    assert_eq!(jobs(&world), (3, 1));
    cancel(&mut world);
    world.run();
    world.pass(24 * 3600);
    world.run();
    assert_eq!(jobs(&world), (4, 1), "what is left of it there is unloaded: {:?}", world.jobs);
    let message = "chat.r1: its start was cancelled by ann; umbel ctl model load chat goes on";
    assert_eq!(said(&world), (DeploymentState::Failed, message.to_owned()));
    let change = world.deployments.ask("chat", Ask::Load, world.wall()).unwrap();
    world.take(change);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    assert_eq!(world.replicas("chat")[0].cancelled_by, None);
}

/// The last word counts: who loads while the node still ends what was cancelled, or is away, need not say it again.
#[test]
fn who_asks_before_what_was_cancelled_has_ended_is_heard() {
    for begun in [0, 1] {
        let mut world = World::new(&[1]);
        world.apply(spec("chat", json!({})));
        world.settle();
        for _ in 0..begun {
            world.work(0);
            world.settle();
        }
        let (_, loads) = jobs(&world);
        assert_eq!(loads, begun);
        let cancelled_at = world.wall();
        world.pass(1);
        load_meanwhile(&mut world);
        world.pass(1);
        world.settle();
        let (_, fact) = world.jobs.values_mut().find(|(_, fact)| *fact == JobFact::Open).unwrap();
        *fact = JobFact::Cancelled { by: "ann".to_owned(), at_unix_ms: cancelled_at };
        world.restart();
        world.run();
        assert_eq!(world.shown("chat"), [(1, 1, Ready)], "{:?}", world.jobs);
    }
}

/// Cancelled, loaded, and cancelled once more: it holds.
#[test]
fn who_cancels_after_somebody_asked_is_heard() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.settle();
    load_meanwhile(&mut world);
    world.pass(1);
    cancel(&mut world);
    for _ in 0..3 {
        world.run();
        world.pass(24 * 3600);
        world.restart();
    }
    assert_eq!(jobs(&world), (1, 0), "{:?}", world.jobs);
    assert_eq!(said(&world).0, DeploymentState::Failed);
}

/// An engine that serves goes on with the figures that it has.
#[test]
fn figures_that_an_operator_cancels_are_not_asked_for_again() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.apply(spec("chat", json!({ "capacity": 9 })));
    world.settle();
    let before = jobs(&world);
    cancel(&mut world);
    for _ in 0..3 {
        world.run();
        world.pass(3600);
        world.restart();
    }
    world.run();
    assert_eq!((jobs(&world), world.replicas("chat")[0].version), (before, 1));
    assert!(world.replicas("chat")[0].cause.contains("cancelled by ann; umbel ctl model load chat"));
    let change = world.deployments.ask("chat", Ask::Load, world.wall()).unwrap();
    world.take(change);
    world.run();
    let row = world.replicas("chat")[0];
    assert_eq!((row.version, row.cause.as_str(), row.not_taken), (2, "", None));
}

/// The wall clock was ahead for a while, and stands still until it is true again: waits end by the other clock, also those
/// that an earlier process stored.
#[test]
fn a_clock_that_stands_still_holds_nothing_up() {
    let mut world = World::new(&[1]);
    world.failing.insert("chat.r1".to_owned(), u32::MAX);
    world.apply(spec("chat", json!({})));
    world.run();
    world.stands_at = Some(70 * 24 * 3_600_000);
    world.run();
    assert_eq!(jobs(&world).1, 2, "what waited by the clock of before is over");
    for (pause, loads) in [(30, 3), (90, 4), (270, 5)] {
        world.pass(pause - 1);
        world.run();
        assert_eq!(jobs(&world).1, loads - 1);
        world.pass(1);
        world.run();
        assert_eq!(jobs(&world).1, loads);
        if loads == 4 {
            world.restart();
            world.run();
        }
    }
}

/// A download that is left in the very round in which somebody else wants the same files from the same source is not joined.
#[test]
fn a_download_that_is_left_is_not_joined_in_the_same_round() {
    let from = |name: &str, source: &str| {
        let files = json!([{ "path": "m", "bytes": 1, "sha256": SHA }]);
        let artifact = json!({ "repository": "a/b", "revision": "r1", "source": source, "files": files });
        spec(name, json!({ "artifact": artifact }))
    };
    let mut world = World::new(&[2]);
    world.apply(from("chat", "silent"));
    world.settle();
    world.apply(from("chat", "disk"));
    world.apply(from("other", "silent"));
    world.run();
    assert_eq!((world.shown("chat")[0].2, world.shown("other")[0].2), (Ready, Ready));
    assert!(!world.was_told("replica_failed"), "{:?}", world.told);
}

/// A source that never answers is waited for no longer once the document names another one.
#[test]
fn a_corrected_source_is_fetched_from_at_once() {
    let from = |source: &str| {
        let files = json!([{ "path": "m", "bytes": 1, "sha256": SHA }]);
        let artifact = json!({ "repository": "a/b", "revision": "r1", "source": source, "files": files });
        // Two replicas wait for one download.
        spec("chat", json!({ "artifact": artifact, "replicas": 2 }))
    };
    let mut world = World::new(&[2]);
    world.apply(from("silent"));
    world.settle();
    world.apply(from("disk"));
    world.settle();
    assert!(world.jobs.values().all(|(_, fact)| *fact == JobFact::Ending), "{:?}", world.jobs);
    world.run();
    let source = |order: &Order| match &order.work {
        Work::Acquire { artifact } => Some(artifact.source.clone()),
        _ => None,
    };
    let sources: Vec<String> = world.jobs.values().filter_map(|(order, _)| source(order)).collect();
    assert_eq!(
        (sources, world.shown("chat")),
        (vec!["silent".into(), "disk".into()], vec![(1, 1, Ready), (2, 1, Ready)])
    );
    assert!(!world.was_told("replica_failed"));
}
