//! One thing at a time: placing, sharing files, failing, losing, changing.

use serde_json::json;

use super::world::{SHA, World, spec};
use crate::core::deployments::change::Ask;
use crate::core::deployments::{EngineWord, JobFact, Order, ReplicaState, Standing, Work};

use ReplicaState::{Draining, Failed, Loading, Lost, Ready, Unloading};

#[test]
fn a_deployment_is_placed_fetched_loaded_and_ready() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready), (2, 2, Ready)]);
    assert_eq!(world.deployments.unplaced("chat"), None);
    for kind in ["replica_placed", "replica_loading", "replica_ready"] {
        assert!(world.was_told(kind), "{kind}");
    }
}

#[test]
fn replicas_on_one_node_share_one_download() {
    let mut world = World::new(&[3]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.apply(spec("other", json!({ "replicas": 1 })));
    world.settle();
    let acquires =
        world.jobs.values().filter(|(order, _)| matches!(order.work, Work::Acquire { .. })).count();
    assert_eq!(acquires, 1);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready), (2, 1, Ready)]);
    assert_eq!(world.shown("other"), [(1, 1, Ready)]);
}

/// The same files of another revision, or of another repository, lie in another folder of a node.
#[test]
fn files_of_another_revision_are_fetched_although_their_content_is_the_same() {
    let mut world = World::new(&[3]);
    let of = |repository: &str, revision: &str| {
        let files = json!([{ "path": "m", "bytes": 1, "sha256": SHA }]);
        json!({ "artifact": { "repository": repository, "revision": revision, "source": "hub", "files": files } })
    };
    world.apply(spec("one", of("a/b", "r1")));
    world.apply(spec("two", of("a/b", "r2")));
    world.apply(spec("three", of("a/c", "r1")));
    world.run();
    let acquires = world.jobs.values().filter(|(order, _)| matches!(order.work, Work::Acquire { .. }));
    assert_eq!(acquires.count(), 3);
    for name in ["one", "two", "three"] {
        assert_eq!(world.shown(name), [(1, 1, Ready)], "{name}");
    }
    // A change of nothing but the revision.
    world.apply(spec("one", of("a/b", "r3")));
    world.host(1).gpus = 4;
    world.run();
    assert_eq!(world.shown("one"), [(2, 1, Ready)]);
}

#[test]
fn what_fits_nowhere_is_said_and_placed_when_there_is_room() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    assert_eq!(world.deployments.unplaced("chat").unwrap().reason, "no GPU is free");
    assert_eq!(world.told.iter().filter(|(kind, _)| *kind == "deployment_unplaced").count(), 1);
    world.host(1).gpus = 2;
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready), (2, 1, Ready)]);
    assert_eq!(world.deployments.unplaced("chat"), None);
}

#[test]
fn a_lost_node_is_waited_for_and_then_replaced() {
    let mut world = World::new(&[1, 1, 1]);
    world.apply(spec("chat", json!({ "replicas": 1 })));
    world.run();
    world.host(1).standing = Standing::Lost;
    world.run();
    world.pass(299);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Lost)]);
    world.pass(1);
    world.run();
    assert_eq!(world.shown("chat"), [(2, 2, Ready)]);
    // It comes back with its engine, which nobody wants now.
    world.host(1).standing = Standing::Here;
    world.run();
    assert!(world.host(1).engines.is_empty());
    assert!(world.was_told("replica_unwanted"));
}

#[test]
fn a_node_that_comes_back_in_time_goes_on() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.host(1).standing = Standing::Away;
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)], "nothing follows from a node that is away");
    world.host(1).standing = Standing::Lost;
    world.run();
    world.pass(200);
    world.host(1).standing = Standing::Here;
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    assert_eq!(world.jobs.values().filter(|(order, _)| matches!(order.work, Work::Load { .. })).count(), 1);
}

#[test]
fn many_nodes_lost_together_are_not_replaced() {
    let mut world = World::new(&[2, 2, 2, 2, 2]);
    world.apply(spec("chat", json!({ "replicas": 5 })));
    world.run();
    for lost in [1, 2] {
        world.host(lost).standing = Standing::Lost;
    }
    world.run();
    world.pass(3_600);
    world.run();
    assert!(world.was_told("deployments_held"));
    assert_eq!(world.shown("chat").iter().filter(|one| one.2 == Lost).count(), 2);
    assert!(world.deployments.unplaced("chat").unwrap().reason.contains("lost together"));
    // One is back: no more than a third is lost, and that one is replaced.
    world.host(1).standing = Standing::Here;
    world.run();
    assert_eq!(world.shown("chat").iter().filter(|one| one.2 == Ready).count(), 5);
    assert!(world.was_told("deployments_released"));
}

/// A disk that is full for an hour does not make one loss of two that were far apart, nor two of one.
#[test]
fn what_is_lost_while_nothing_can_be_stored_is_remembered() {
    for (apart, held) in [(2_400, false), (0, true)] {
        let mut world = World::new(&[1, 1, 1, 1, 1]);
        world.apply(spec("chat", json!({ "replicas": 2 })));
        world.run();
        world.host(1).standing = Standing::Lost;
        world.refused();
        world.pass(apart);
        world.host(2).standing = Standing::Lost;
        world.refused();
        world.pass(3_600 - apart);
        world.refused();
        world.run();
        assert_eq!(world.was_told("deployments_held"), held);
        let ready = world.shown("chat").iter().filter(|one| one.2 == Ready).count();
        assert_eq!(ready, if held { 0 } else { 2 }, "{:?}", world.shown("chat"));
    }
}

#[test]
fn an_engine_that_gives_up_fails_its_replica_and_one_that_restarts_does_not() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Coming);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Loading)]);
    world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Ready);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Failed);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Failed)]);
    assert_eq!(world.replicas("chat")[0].cause, "CUDA error");
    world.pass(10);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
}

#[test]
fn an_engine_that_is_gone_is_loaded_again() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.host(1).engines.clear();
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
}

#[test]
fn a_change_brings_the_new_up_before_the_old_goes_down() {
    let mut world = World::new(&[1, 1, 1]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    world.apply(spec("chat", json!({ "replicas": 2, "model": "other" })));
    for _ in 0..100 {
        world.settle();
        let ready = world.replicas("chat").iter().filter(|row| row.state == Ready).count();
        assert!(ready >= 2, "{:?} {:#?}", world.shown("chat"), world.told);
        assert!(world.replicas("chat").len() <= 3);
        if !world.work(0) {
            break;
        }
    }
    let digest = world.deployments.rows["chat"].engine_digest.clone();
    assert_eq!(world.replicas("chat").len(), 2);
    assert!(world.replicas("chat").iter().all(|row| row.state == Ready && row.engine_digest == digest));
    assert!(!world.was_told("deployment_one_by_one"));
}

#[test]
fn without_room_a_change_says_so_and_goes_on_one_by_one() {
    let mut world = World::new(&[2]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    world.apply(spec("chat", json!({ "replicas": 2, "model": "other" })));
    world.settle();
    assert!(world.deployments.is_one_by_one("chat"));
    assert_eq!(world.replicas("chat").iter().filter(|row| row.state == Draining).count(), 1);
    world.run();
    let digest = world.deployments.rows["chat"].engine_digest.clone();
    assert!(world.replicas("chat").iter().all(|row| row.state == Ready && row.engine_digest == digest));
    assert!(!world.deployments.is_one_by_one("chat"));
    assert_eq!(world.told.iter().filter(|(kind, _)| *kind == "deployment_one_by_one").count(), 1);
}

#[test]
fn a_change_that_does_not_come_up_takes_no_old_replica_down() {
    let mut world = World::new(&[1, 1, 1]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    world.failing.insert("chat.r3".to_owned(), u32::MAX);
    world.apply(spec("chat", json!({ "replicas": 2, "model": "other" })));
    for _ in 0..10 {
        world.run();
        world.pass(600);
    }
    assert_eq!(world.replicas("chat").iter().filter(|row| row.state == Ready).count(), 2);
    assert!(world.deployments.unplaced("chat").unwrap().reason.contains("stands still: chat.r3 failed"));
    // Back to what it was: the failed one goes.
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    assert_eq!(world.shown("chat").iter().map(|one| one.0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn figures_are_changed_without_a_new_engine() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.apply(spec("chat", json!({ "capacity": 9 })));
    world.settle();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    let (order, _) = world.jobs.values().find(|(_, fact)| *fact == JobFact::Open).unwrap();
    assert!(matches!(&order.work, Work::Load { spec, .. } if spec.capacity == Some(9)), "{order:?}");
    world.run();
    assert_eq!(world.replicas("chat")[0].version, 2);
}

#[test]
fn fewer_are_wanted_and_then_none() {
    let mut world = World::new(&[2, 1]);
    world.apply(spec("chat", json!({ "replicas": 3 })));
    world.run();
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    assert_eq!(world.shown("chat").iter().map(|one| one.1).collect::<Vec<_>>(), [1, 2], "of the fuller node");
    let change = world.deployments.ask("chat", Ask::Unload { leave_ms: Some(0) }, world.wall()).unwrap();
    world.take(change);
    world.settle();
    assert!(world.shown("chat").iter().all(|one| one.2 == Unloading), "without waiting");
    world.run();
    assert_eq!(world.shown("chat"), []);
    let change = world.deployments.ask("chat", Ask::Load, world.wall()).unwrap();
    world.take(change);
    world.run();
    assert_eq!(world.shown("chat").len(), 2);
    let change = world.deployments.ask("chat", Ask::Delete, world.wall()).unwrap();
    world.take(change);
    world.run();
    assert!(world.deployments.rows.is_empty() && world.deployments.replicas.is_empty());
    assert!(world.hosts.values().all(|host| host.engines.is_empty()));
}

#[test]
fn a_drained_node_gives_its_replicas_to_others() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.host(1).draining = true;
    world.settle();
    assert_eq!(
        world.shown("chat").iter().map(|one| one.2).collect::<Vec<_>>(),
        [Draining, ReplicaState::Acquiring]
    );
    world.run();
    assert_eq!(world.shown("chat"), [(2, 2, Ready)]);
    assert!(world.host(1).engines.is_empty());
}

/// One that lost its GPU is still a process on its node.
#[test]
fn a_drained_node_keeps_no_engine_without_its_gpu_either() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.run();
    let gpu = world.replicas("chat")[0].gpus[0].clone();
    world.host(1).absent.insert(gpu);
    world.settle();
    assert_eq!(world.shown("chat"), [(1, 1, Lost)]);
    world.host(1).draining = true;
    world.settle();
    assert_eq!(world.shown("chat"), [(1, 1, Unloading)]);
    assert!(world.jobs.values().any(|(order, _)| matches!(order.work, Work::Unload { .. })));
    world.run();
    assert!(world.host(1).engines.is_empty() && world.shown("chat").is_empty());
}

#[test]
fn while_it_is_paused_nothing_is_begun_and_nothing_taken_away() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    let change = world.deployments.ask("chat", Ask::Pause(true), world.wall()).unwrap();
    world.take(change);
    let jobs = world.jobs.len();
    world.apply(spec("chat", json!({ "replicas": 2, "model": "other" })));
    world.host(1).engines.clear();
    world.pass(3_600);
    world.run();
    assert_eq!(world.jobs.len(), jobs);
    let says = |world: &World| world.deployments.stands(&world.deployments.rows["chat"]).message;
    let waits =
        "it is paused; after umbel ctl model pause chat --off, 1 replica is replaced, 1 replica is placed";
    assert_eq!(says(&world), waits);
    let change = world.deployments.ask("chat", Ask::Pause(false), world.wall()).unwrap();
    world.take(change);
    world.run();
    assert_eq!(world.shown("chat").iter().filter(|one| one.2 == Ready).count(), 2);
}

/// Each new replica counts those that stay alone, or the first node would get all.
#[test]
fn a_restart_leaves_replicas_spread_over_their_nodes() {
    for replicas in 2..5 {
        let mut world = World::new(&[4, 4]);
        world.apply(spec("chat", json!({ "replicas": replicas })));
        world.run();
        let spread = |world: &World| {
            let mut counts = [1, 2].map(|at| world.shown("chat").iter().filter(|one| one.1 == at).count());
            counts.sort_unstable();
            counts
        };
        let before = spread(&world);
        assert!(before[1] - before[0] <= 1);
        for _ in 0..3 {
            let change = world.deployments.ask("chat", Ask::Restart, world.wall()).unwrap();
            world.take(change);
            world.run();
            assert_eq!(spread(&world), before, "{:?}", world.shown("chat"));
        }
    }
}

/// All in which a paused deployment differs from its document.
#[test]
fn what_a_pause_holds_up_is_said() {
    let mut world = World::new(&[2, 2]);
    world.apply(spec("chat", json!({ "replicas": 3 })));
    world.run();
    let ask = |world: &mut World, ask: Ask| {
        let change = world.deployments.ask("chat", ask, world.wall()).unwrap();
        world.take(change);
        world.run();
    };
    let says = |world: &World| world.deployments.stands(&world.deployments.rows["chat"]).message;
    let waits = |what: &str| format!("it is paused; after umbel ctl model pause chat --off, {what}");
    ask(&mut world, Ask::Pause(true));
    assert_eq!(says(&world), "it is paused");
    world.apply(spec("chat", json!({ "replicas": 3, "capacity": 9 })));
    world.run();
    assert_eq!(says(&world), waits("3 replicas are given the new figures"));
    world.apply(spec("chat", json!({ "replicas": 1 })));
    world.run();
    assert!(says(&world).starts_with(&waits("2 replicas are taken away")), "{}", says(&world));
    world.apply(spec("chat", json!({ "replicas": 4, "model": "other" })));
    world.run();
    assert_eq!(says(&world), waits("3 replicas are replaced, 1 replica is placed"));
    ask(&mut world, Ask::Unload { leave_ms: None });
    assert!(says(&world).starts_with(&waits("3 replicas are taken away")), "{}", says(&world));
    ask(&mut world, Ask::Load);
    ask(&mut world, Ask::Pause(false));
    assert_eq!(says(&world), "");
}

#[test]
fn a_restart_is_rolling_and_an_edge_that_restarts_goes_on_in_the_middle() {
    let mut world = World::new(&[1, 1, 1]);
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    let change = world.deployments.ask("chat", Ask::Restart, world.wall()).unwrap();
    world.take(change);
    for _ in 0..100 {
        world.settle();
        world.restart();
        assert!(world.replicas("chat").iter().filter(|row| row.state == Ready).count() >= 2);
        if !world.work(0) {
            break;
        }
    }
    world.run();
    assert!(world.replicas("chat").iter().all(|row| row.restarts == 1 && row.state == Ready));
}

#[test]
fn a_job_that_was_never_stored_is_ordered_again_under_its_id() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.settle();
    let lost: Vec<String> = world.jobs.keys().cloned().collect();
    world.jobs.clear();
    world.restart();
    world.settle();
    assert_eq!(world.jobs.keys().cloned().collect::<Vec<_>>(), lost);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
}

/// A job that cannot be stored is asked for in each round, and nothing is stored for that.
#[test]
fn a_job_that_is_not_taken_is_asked_for_again_without_a_write() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    assert!(world.decide_and_drop_orders().stores());
    for _ in 0..3 {
        let outcome = world.decide_and_drop_orders();
        assert!(!outcome.stores() && outcome.orders.len() == 1 && !outcome.is_empty(), "{outcome:?}");
    }
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
}

/// A node that takes long to end what nobody wants is asked once, not again and again.
#[test]
fn an_unwanted_engine_is_asked_to_end_again_only_when_its_job_has_ended() {
    let mut world = World::new(&[1]);
    world.host(1).engines.insert("gone.r1".to_owned(), EngineWord::Ready);
    for _ in 0..5 {
        world.settle();
        world.pass(60);
    }
    assert_eq!(world.jobs.len(), 1);
    let failed = JobFact::Failed { message: "it does not end".to_owned(), retryable: true, differs: false };
    world.jobs.values_mut().for_each(|(_, fact)| *fact = failed.clone());
    world.settle();
    assert_eq!(world.jobs.len(), 2);
    world.run();
    assert_eq!(world.host(1).engines.len(), 0);
}

/// Nothing of the guard is a row, and yet the audit has it.
#[test]
fn what_is_only_told_is_committed_where_the_audit_has_to_have_it() {
    let mut world = World::new(&[1, 1, 1]);
    world.host(1).standing = Standing::Lost;
    world.host(2).standing = Standing::Lost;
    assert!(world.round());
    assert!(world.was_told("deployments_held"));
    assert!(!world.round(), "once");
    world.host(2).standing = Standing::Here;
    assert!(world.round());
    assert!(world.was_told("deployments_released"));
    assert!(!world.round());
}

#[test]
fn rows_that_could_not_be_read_make_nothing_unwanted() {
    let mut world = World::new(&[1]);
    world.host(1).engines.insert("gone.r1".to_owned(), EngineWord::Ready);
    world.deployments.unreadable = true;
    world.run();
    assert_eq!(world.host(1).engines.len(), 1);
    world.deployments.unreadable = false;
    world.run();
    assert_eq!(world.host(1).engines.len(), 0);
}

/// A node that has more artifacts than it can tell of: loads name the folder that the job told which brought them.
#[test]
fn files_that_a_node_does_not_tell_of_are_where_their_job_brought_them() {
    let mut world = World::new(&[1]);
    world.host(1).tells_nothing = true;
    world.apply(spec("chat", json!({})));
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    world.restart();
    world.apply(spec("chat", json!({ "capacity": 9 })));
    world.run();
    let files = |order: &Order| match &order.work {
        Work::Load { files, .. } => Some(files.clone().map(|at| at.root)),
        _ => None,
    };
    let loads: Vec<_> = world.jobs.values().filter_map(|(order, _)| files(order)).collect();
    assert_eq!(loads, [Some("models".to_owned()), Some("models".to_owned())]);
}
