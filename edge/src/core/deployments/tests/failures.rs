//! Replicas that do not come up, or fall over: where and when they are tried again, and what is said meanwhile.

use serde_json::json;
use umbel_contracts::objects::DeploymentState;

use super::world::{World, spec};
use crate::core::deployments::change::Ask;
use crate::core::deployments::{EngineWord, JobFact, ReplicaState, Stands, Work};

use ReplicaState::{Failed, Loading, Lost, Ready, Stopped};

fn stands(world: &World) -> Stands {
    world.deployments.stands(&world.deployments.rows["chat"])
}

/// Where each load that was asked for went, in the order of asking.
fn loads(world: &World) -> Vec<u8> {
    let mut loads: Vec<(u64, u8)> = Vec::new();
    for (id, (order, _)) in &world.jobs {
        if matches!(order.work, Work::Load { .. }) {
            let number = (1..=9).find(|number| super::world::node(*number) == order.node).unwrap();
            loads.push((id.trim_start_matches("job-").parse().unwrap(), number));
        }
    }
    loads.sort_unstable();
    loads.into_iter().map(|(_, node)| node).collect()
}

/// A driver that is reset, a port that is taken, memory that is not free yet: tried again for ever, later each time, and
/// always where it failed longest ago.
#[test]
fn what_may_be_over_is_tried_again_for_ever_and_later_each_time() {
    let mut world = World::new(&[1, 1]);
    world.failing.insert("chat.r1".to_owned(), u32::MAX);
    world.apply(spec("chat", json!({})));
    world.run();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        let row = world.replicas("chat")[0].clone();
        assert_eq!((row.state, row.cause.as_str()), (Failed, "out of memory"));
        let pause = u64::try_from(row.retry_at_unix_ms.unwrap() - row.since_unix_ms).unwrap() / 1_000;
        pauses.push(pause);
        let before = loads(&world).len();
        world.pass(pause);
        world.run();
        assert_eq!(loads(&world).len(), before + 1, "once after each pause");
    }
    assert_eq!(pauses[..5], [10, 30, 90, 270, 600]);
    assert_eq!(loads(&world)[..6], [1, 2, 1, 2, 1, 2]);
    assert!(!world.was_told("replica_given_up"));
    assert_ne!(stands(&world).state, DeploymentState::Failed);
    world.failing.clear();
    world.pass(600);
    world.run();
    assert_eq!(world.shown("chat")[0].2, Ready);
}

/// A crash loop of an engine that ran well for long is nothing that follows from its failures of before.
#[test]
fn one_that_was_ready_for_long_starts_anew_with_its_count() {
    let mut world = World::new(&[1]);
    world.failing.insert("chat.r1".to_owned(), 3);
    world.apply(spec("chat", json!({})));
    let fall = |world: &mut World| {
        for word in [EngineWord::Coming, EngineWord::Failed] {
            world.host(1).engines.insert("chat.r1".to_owned(), word);
            world.settle();
        }
        let row = world.replicas("chat")[0].clone();
        assert_eq!(row.state, Failed);
        (row.failures, (row.retry_at_unix_ms.unwrap() - row.since_unix_ms) / 1_000)
    };
    for _ in 0..3 {
        world.run();
        world.pass(600);
    }
    world.run();
    assert_eq!(world.shown("chat")[0].2, Ready);
    world.pass(599);
    world.run();
    assert_eq!(world.replicas("chat")[0].failures, 3);
    assert_eq!(fall(&mut world), (4, 270));
    for _ in 0..2 {
        world.pass(600);
        world.run();
    }
    let row = &world.replicas("chat")[0];
    assert_eq!((row.state, row.failures, row.failed_at().len()), (Ready, 0, 0));
    assert_eq!(fall(&mut world), (1, 10));
}

/// What lasts is tried once on each node, and then stays failed with its cause: until somebody acts, or a node comes.
#[test]
fn what_lasts_is_tried_once_on_each_node_and_given_up_by_name() {
    let mut world = World::new(&[1, 1, 0]);
    (world.lasting, world.failing) = (true, [("chat.r1".to_owned(), u32::MAX)].into());
    world.apply(spec("chat", json!({})));
    for _ in 0..5 {
        world.run();
        world.pass(600);
    }
    assert_eq!(loads(&world), [1, 2]);
    assert!(world.replicas("chat")[0].given_up());
    assert_eq!(world.told.iter().filter(|(kind, _)| *kind == "replica_given_up").count(), 1);
    let Stands { state, message, .. } = stands(&world);
    assert_eq!(state, DeploymentState::Failed);
    // Each node's own cause, not the last one's.
    let mut row = world.replicas("chat")[0].clone();
    assert_eq!((row.failed_at().len(), row.causes.len()), (2, 2));
    let nodes: Vec<_> = row.failed_at().into_iter().collect();
    row.causes.insert(nodes[0].to_string(), "no such file".to_owned());
    assert_eq!(row.failed_on(&nodes[0]), "chat.r1 failed there: no such file");
    assert_eq!(row.failed_on(&nodes[1]), "chat.r1 failed there: out of memory");
    for part in ["chat.r1: out of memory", "umbel ctl job show job-", "umbel ctl model load chat"] {
        assert!(message.contains(part), "{message}");
    }
    // A node with room that it was not tried on.
    world.host(3).gpus = 1;
    world.failing.clear();
    world.run();
    world.pass(60);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 3, Ready)]);
}

#[test]
fn an_operator_has_it_tried_again_where_it_failed() {
    let mut world = World::new(&[1]);
    (world.lasting, world.failing) = (true, [("chat.r1".to_owned(), 1)].into());
    world.apply(spec("chat", json!({})));
    world.run();
    assert!(world.replicas("chat")[0].given_up());
    let change = world.deployments.ask("chat", Ask::Load, world.wall()).unwrap();
    world.take(change);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
}

#[test]
fn it_is_given_up_after_five_nodes_however_many_there_are() {
    let mut world = World::new(&[1; 8]);
    (world.lasting, world.failing) = (true, [("chat.r1".to_owned(), u32::MAX)].into());
    world.apply(spec("chat", json!({})));
    for _ in 0..10 {
        world.run();
        world.pass(600);
    }
    assert_eq!(loads(&world).len(), 5);
}

/// While its job still waits for it to get ready.
#[test]
fn a_crash_loop_is_told_while_the_job_runs() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.settle();
    world.work(0);
    world.settle();
    assert_eq!(stands(&world).message, "chat.r1 is loading: its engine starts");
    let cause = "exited with code 1: \"FINAL: because\"; started again in 8 s";
    world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Coming);
    world.host(1).says.insert("chat.r1".to_owned(), cause.to_owned());
    world.settle();
    assert_eq!(world.replicas("chat")[0].cause, cause);
    let Stands { state, message, .. } = stands(&world);
    assert_eq!((state, message), (DeploymentState::Loading, format!("chat.r1 is loading: {cause}")));
}

#[test]
fn one_that_an_operator_stops_stays_so_and_says_how_it_is_started() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.host(1).says.insert("chat.r1".to_owned(), "stopped by an operator".to_owned());
    for word in [EngineWord::Ending, EngineWord::Stopped] {
        world.host(1).engines.insert("chat.r1".to_owned(), word);
        world.pass(600);
        world.run();
        assert_eq!(world.shown("chat"), [(1, 1, Stopped)]);
        let Stands { state, message, ready } = stands(&world);
        assert_eq!((state, ready), (DeploymentState::Degraded, 0));
        assert!(
            message.ends_with("stopped by an operator; umbel ctl engine restart chat.r1 starts it"),
            "{message}"
        );
    }
    world.host(1).says.clear();
    world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Coming);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Loading)]);
}

/// The same while it was on its way up: the job that started it fails, and nobody starts it anew.
#[test]
fn one_that_is_stopped_while_it_loads_stays_so() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.settle();
    world.work(0);
    world.settle();
    world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Stopped);
    let load = world.jobs.values_mut().find(|(order, _)| matches!(order.work, Work::Load { .. })).unwrap();
    load.1 = JobFact::Failed { message: "it was stopped".to_owned(), retryable: true, differs: false };
    world.run();
    world.pass(600);
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Stopped)]);
}

/// The job that gives an engine other figures comes to nothing.
fn figures_fail(world: &mut World, retryable: bool, differs: bool) {
    let (_, fact) = world.jobs.values_mut().find(|(_, fact)| *fact == JobFact::Open).unwrap();
    *fact = JobFact::Failed { message: "the disk is full".to_owned(), retryable, differs };
}

/// One that serves goes on with its old figures whatever its node says of the new ones, also over a start of the edge.
#[test]
fn figures_that_are_not_taken_end_nothing_and_are_asked_again_later_each_time() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.apply(spec("chat", json!({ "capacity": 9 })));
    for pause in [10, 30] {
        world.settle();
        figures_fail(&mut world, pause == 10, false);
        world.settle();
        world.restart();
        world.pass(pause - 1);
        world.settle();
        assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
        let row = world.replicas("chat")[0];
        assert_eq!((row.version, row.condemned), (1, false));
        assert_eq!(row.cause, "it did not take its new figures: the disk is full");
        assert!(world.jobs.values().all(|(_, fact)| *fact != JobFact::Open), "{:?}", world.jobs);
        world.pass(1);
    }
    assert_eq!(world.told.iter().filter(|(kind, _)| *kind == "replica_figures_failed").count(), 1);
    world.run();
    let row = world.replicas("chat")[0];
    assert_eq!((row.version, row.cause.as_str(), row.not_taken), (2, "", None));
    assert!(world.jobs.values().all(|(order, _)| !matches!(order.work, Work::Unload { .. })));
}

/// Its node was offline when they failed.
#[test]
fn figures_that_fail_while_a_node_is_away_end_nothing() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.apply(spec("chat", json!({ "capacity": 9 })));
    world.settle();
    world.host(1).standing = crate::core::deployments::Standing::Lost;
    world.settle();
    assert_eq!(world.shown("chat"), [(1, 1, Lost)]);
    figures_fail(&mut world, false, false);
    world.host(1).standing = crate::core::deployments::Standing::Here;
    world.settle();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
    world.pass(10);
    world.run();
    assert_eq!(world.replicas("chat")[0].version, 2);
    assert!(world.jobs.values().all(|(order, _)| !matches!(order.work, Work::Unload { .. })));
}

/// What runs as something else takes no figures until it was ended: another one comes first.
#[test]
fn an_engine_that_runs_as_something_else_is_replaced_as_in_a_change() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.apply(spec("chat", json!({ "capacity": 9 })));
    world.settle();
    figures_fail(&mut world, true, true);
    world.settle();
    assert!(world.shown("chat").contains(&(1, 1, Ready)), "{:?}", world.shown("chat"));
    world.run();
    assert_eq!(world.shown("chat"), [(2, 2, Ready)]);
}

/// Loads run on a node that is not eligible; what is ready there takes no requests, and no other one goes for it.
#[test]
fn on_a_node_that_is_not_eligible_it_loads_and_does_not_count() {
    let mut world = World::new(&[1, 1]);
    world.host(2).eligible = false;
    world.apply(spec("chat", json!({ "replicas": 2 })));
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready), (2, 2, Ready)]);
    let Stands { state, message, ready } = stands(&world);
    assert_eq!((state, ready), (DeploymentState::Degraded, 1));
    assert!(
        message.contains("chat.r2 is ready on") && message.contains("umbel ctl node eligible"),
        "{message}"
    );
    world.host(2).eligible = true;
    world.run();
    assert_eq!(stands(&world).state, DeploymentState::Ready);
    // A change does not take down what serves for what does not.
    world.host(2).gpus = 2;
    world.host(2).eligible = false;
    world.apply(spec("chat", json!({ "replicas": 1, "model": "other" })));
    world.run();
    let serving = world.replicas("chat").into_iter().filter(|row| world.deployments.serves(row)).count();
    assert_eq!(serving, 1, "{:?}", world.shown("chat"));
    assert!(world.deployments.unplaced("chat").unwrap().reason.contains("not eligible"));
    world.host(2).eligible = true;
    world.run();
    assert_eq!(world.replicas("chat").len(), 1);
    assert_eq!(stands(&world).state, DeploymentState::Ready);
}

/// A deployment that was deleted while its node was away, and applied anew as another model: what is left of the first never
/// stands in the way of the second, and goes.
#[test]
fn a_name_that_goes_over_meets_nothing_of_what_had_it() {
    for edge_restarts in [false, true] {
        let mut world = World::new(&[2]);
        world.apply(spec("chat", json!({})));
        world.run();
        world.host(1).standing = crate::core::deployments::Standing::Lost;
        let change = world.deployments.ask("chat", Ask::Delete, world.wall()).unwrap();
        world.take(change);
        world.run();
        assert!(world.deployments.rows.is_empty(), "its node is offline: nothing is waited for");
        world.apply(spec("chat", json!({ "model": "another" })));
        if edge_restarts {
            world.killed(Some(0));
        }
        world.host(1).standing = crate::core::deployments::Standing::Here;
        world.run();
        world.pass(600);
        world.run();
        assert_eq!(world.differed, 0);
        assert_eq!(world.shown("chat").len(), 1);
        assert_eq!(stands(&world).state, DeploymentState::Ready);
        assert_eq!(world.host(1).engines.len(), 1, "{:?}", world.host(1));
    }
}

/// The edge ends after it stored that a replica goes, and before it said so to the job that brings it up.
#[test]
fn a_job_that_was_to_be_cancelled_is_cancelled_by_the_next_edge() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    world.settle();
    world.work(0);
    world.settle();
    let change = world.deployments.ask("chat", Ask::Delete, world.wall()).unwrap();
    world.take(change);
    world.killed(Some(0));
    world.settle();
    let load = world.jobs.values().find(|(order, _)| matches!(order.work, Work::Load { .. })).unwrap();
    assert_eq!(load.1, JobFact::Ending);
    world.run();
    assert!(world.deployments.rows.is_empty());
}

/// Row 96: a GPU that does not answer takes its replica out; after the delay another one comes, and what is left there goes.
#[test]
fn row_96_a_replica_whose_gpu_is_lost_takes_no_requests_and_is_replaced() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({ "replace_delay": "60s" })));
    world.run();
    let gpu = world.replicas("chat")[0].gpus[0].clone();
    world.host(1).absent.insert(gpu.clone());
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Lost)]);
    assert!(stands(&world).message.contains("does not answer, or is gone"), "{:?}", stands(&world));
    world.host(1).absent.clear();
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)], "it is back in time");
    world.host(1).absent.insert(gpu);
    world.run();
    world.pass(60);
    world.run();
    assert_eq!(world.shown("chat"), [(2, 2, Ready)]);
    assert!(world.host(1).engines.is_empty());
}

/// An engine that was told to end and did not: its GPU is not given to anybody, and it is told again until it is gone.
#[test]
fn one_that_is_given_up_is_told_to_end_until_it_has_ended() {
    let mut world = World::new(&[1]);
    (world.lasting, world.failing) = (true, [("chat.r1".to_owned(), u32::MAX)].into());
    world.apply(spec("chat", json!({})));
    let unloads = |world: &World| {
        world.jobs.values().filter(|(order, _)| matches!(order.work, Work::Unload { .. })).count()
    };
    while unloads(&world) == 0 {
        world.settle();
        assert!(world.work(0) || unloads(&world) > 0);
        world.settle();
    }
    let failed = JobFact::Failed { message: "it does not end".to_owned(), retryable: true, differs: false };
    for (order, fact) in world.jobs.values_mut() {
        if matches!(order.work, Work::Unload { .. }) {
            *fact = failed.clone();
        }
    }
    world.settle();
    assert!(world.replicas("chat")[0].given_up() && world.replicas("chat")[0].holds());
    assert_eq!(unloads(&world), 1);
    world.pass(60);
    world.settle();
    assert_eq!(unloads(&world), 2);
    world.run();
    assert!(world.host(1).engines.is_empty());
    assert!(world.replicas("chat")[0].given_up() && !world.replicas("chat")[0].holds());
}

/// The edge ends between a replica's drain and its unloading, and its node comes back when its row is gone already.
#[test]
fn an_engine_that_is_drained_and_whose_row_is_gone_is_ended() {
    let mut world = World::new(&[1, 1]);
    world.host(1).engines.insert("gone.r1".to_owned(), EngineWord::Ending);
    world.run();
    assert!(world.host(1).engines.is_empty());
}

/// A document that no longer lets a replica run where it is: another one comes first, and then it goes.
#[test]
fn a_replica_that_is_not_let_run_where_it_is_moves() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    world.host(1).selected = false;
    for _ in 0..50 {
        world.settle();
        assert!(world.replicas("chat").iter().any(|row| row.state == Ready), "{:?}", world.shown("chat"));
        if !world.work(0) {
            break;
        }
    }
    world.run();
    assert_eq!(world.shown("chat"), [(2, 2, Ready)]);
    world.host(2).selected = false;
    world.run();
    assert_eq!(world.shown("chat"), [(2, 2, Ready)], "with no place that it may have it goes on");
    let Stands { state, message, .. } = stands(&world);
    assert!(state == DeploymentState::Changing && message.contains("the change waits"), "{message}");
    let says = |world: &World| {
        let row = world.replicas("chat")[0];
        (world.deployments.is_misplaced(row), world.deployments.cause(row).contains("leaves its node out"))
    };
    assert_eq!(says(&world), (true, true));
    let change = world.deployments.ask("chat", Ask::Pause(true), world.wall()).unwrap();
    world.take(change);
    world.run();
    let Stands { state, message, .. } = stands(&world);
    assert!(state == DeploymentState::Changing && message.ends_with("1 replica is replaced"), "{message}");
    world.host(2).selected = true;
    world.run();
    assert_eq!(says(&world), (false, false));
}

/// What goes is waited for, and nothing is said to fit nowhere meanwhile.
#[test]
fn what_waits_for_another_to_end_says_so() {
    let mut world = World::new(&[1]);
    world.apply(spec("old", json!({ "model": "old" })));
    world.run();
    let change = world.deployments.ask("old", Ask::Delete, world.wall()).unwrap();
    world.take(change);
    world.settle();
    world.apply(spec("chat", json!({})));
    world.settle();
    let Stands { state, message, .. } = stands(&world);
    assert_eq!(state, DeploymentState::Loading);
    assert!(
        message.starts_with("it waits for old.r1 on ") && !world.was_told("deployment_unplaced"),
        "{message}"
    );
    world.run();
    assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
}

/// What keeps a replica from coming up is that it fits nowhere, and not what it failed for while it did.
#[test]
fn a_failed_replica_that_fits_nowhere_any_more_says_so() {
    for lasting in [false, true] {
        let mut world = World::new(&[1]);
        world.lasting = lasting;
        world.failing.insert("chat.r1".to_owned(), 1);
        world.apply(spec("chat", json!({})));
        world.run();
        let says = |world: &World| world.deployments.stands(&world.deployments.rows["chat"]).message;
        assert!(says(&world).starts_with("chat.r1: out of memory; umbel ctl job show"), "{}", says(&world));
        world.host(1).gpus = 0;
        for _ in 0..3 {
            world.pass(60);
            world.run();
        }
        let nowhere = "it fits nowhere now (no GPU is free); it failed before: out of memory";
        assert!(says(&world).starts_with(&format!("chat.r1: {nowhere}")), "{}", says(&world));
        assert_eq!(world.deployments.cause(world.replicas("chat")[0]), nowhere);
        world.host(1).gpus = 1;
        world.pass(60);
        world.run();
        assert!(!says(&world).contains("nowhere"), "{}", says(&world));
    }
}

/// A server that nobody here starts is left with its node, which asks it: it serves as soon as it answers, whatever the pause.
#[test]
fn an_external_server_serves_as_soon_as_it_answers_again() {
    for lasting in [false, true] {
        let mut world = World::new(&[1]);
        world.lasting = lasting;
        let engine = json!({ "kind": "external", "profile": { "endpoint": "hub" } });
        world.apply(spec("chat", json!({ "engine": engine, "gpus": { "count": 0 }, "artifact": null })));
        world.run();
        assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
        world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Failed);
        world.settle();
        assert_eq!(world.shown("chat"), [(1, 1, Failed)]);
        let Stands { message, .. } = stands(&world);
        assert!(message.contains("its node asks it again") && !message.contains("engine logs"), "{message}");
        // The pauses between loads grow, and are not what it waits for.
        world.failing.insert("chat.r1".to_owned(), 99);
        for _ in 0..8 {
            world.pass(300);
            world.run();
        }
        assert_eq!(world.shown("chat"), [(1, 1, Failed)]);
        world.host(1).engines.insert("chat.r1".to_owned(), EngineWord::Ready);
        world.settle();
        assert_eq!(world.shown("chat"), [(1, 1, Ready)]);
        assert!(!world.jobs.values().any(|(order, _)| matches!(order.work, Work::Unload { .. })));
    }
}
