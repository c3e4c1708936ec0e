//! What operators may ask.

use serde_json::json;

use super::world::{World, spec};
use crate::core::deployments::ReplicaState;
use crate::core::deployments::change::{Ask, AskReplica};

#[test]
fn the_same_document_again_changes_nothing() {
    let mut world = World::new(&[1]);
    world.apply(spec("chat", json!({})));
    let again = world.deployments.propose(spec("chat", json!({})), None, "bob", 9).unwrap();
    assert!(again.is_empty());
    let other = world.deployments.propose(spec("chat", json!({ "capacity": 9 })), Some(1), "bob", 9).unwrap();
    assert_eq!((other.row.version, other.row.applied_by.as_str()), (2, "bob"));
    assert_eq!(other.sentence, "capacity not set -> 9");
    let stale = world.deployments.propose(spec("chat", json!({ "capacity": 9 })), Some(7), "bob", 9);
    assert_eq!(stale.unwrap_err().reason, "CHANGED_MEANWHILE");
}

#[test]
fn a_name_means_one_model() {
    let mut world = World::new(&[1]);
    world.apply(spec("one", json!({ "model": "m", "aliases": ["small"] })));
    for (more, taken) in [
        (json!({ "model": "small" }), true),
        (json!({ "model": "other", "aliases": ["m"] }), true),
        (json!({ "model": "m" }), true),
        (json!({ "model": "m", "aliases": ["small"] }), false),
        (json!({ "model": "other" }), false),
    ] {
        let proposed = world.deployments.propose(spec("two", more.clone()), None, "ada", 0);
        assert_eq!(proposed.is_err_and(|error| error.reason == "MODEL_NAME_TAKEN"), taken, "{more}");
    }
}

/// Deployments of one model change how they describe it while one of them rests: the model is served all the time.
#[test]
fn deployments_of_one_model_change_its_aliases_one_after_the_other() {
    let mut world = World::new(&[1, 1]);
    for name in ["one", "two"] {
        world.apply(spec(name, json!({ "model": "m" })));
    }
    world.run();
    let with = |name: &str| spec(name, json!({ "model": "m", "aliases": ["small"] }));
    let refused = world.deployments.propose(with("one"), None, "ada", 0).unwrap_err();
    assert_eq!(refused.reason, "MODEL_NAME_TAKEN");
    assert!(refused.message.contains("umbel ctl model drain two -m 'other aliases'"), "{}", refused.message);
    let ask =
        |world: &mut World, ask: Ask| world.deployments.ask("two", ask, 0).map(|change| world.take(change));
    ask(&mut world, Ask::Unload { leave_ms: None }).unwrap();
    assert!(world.deployments.propose(with("one"), None, "ada", 0).is_err(), "its replica still serves");
    world.run();
    world.apply(with("one"));
    let refused = ask(&mut world, Ask::Load).unwrap_err();
    assert!(refused.message.contains("apply a document of two with the same"), "{}", refused.message);
    world.apply(with("two"));
    ask(&mut world, Ask::Load).unwrap();
    world.run();
    for name in ["one", "two"] {
        assert_eq!(world.shown(name).iter().filter(|one| one.2 == ReplicaState::Ready).count(), 1, "{name}");
    }
}

/// A model that gets another name keeps the one before as an alias, unless others still serve it under that.
#[test]
fn a_changed_model_may_keep_its_name_as_an_alias() {
    let mut world = World::new(&[1]);
    world.apply(spec("one", json!({ "model": "m", "aliases": ["small"] })));
    let renamed = || spec("one", json!({ "model": "next", "aliases": ["m", "small"] }));
    let change = world.deployments.propose(renamed(), None, "ada", 0).unwrap();
    assert_eq!(change.sentence, "aliases [\"small\"] -> [\"m\",\"small\"], model \"m\" -> \"next\"");
    // Another deployment of the same model: its names would mean two models.
    world.apply(spec("two", json!({ "model": "m", "aliases": ["small"] })));
    for (aliases, taken) in [(json!(["m", "small"]), "m"), (json!(["small"]), "small"), (json!([]), "")] {
        let spec = spec("one", json!({ "model": "next", "aliases": aliases }));
        match (world.deployments.propose(spec, None, "ada", 0), taken) {
            (Ok(_), "") => {}
            (Err(error), taken) => assert_eq!(
                (&*error.reason, error.message),
                ("MODEL_NAME_TAKEN", format!("\"{taken}\" means m already, which deployment two serves"))
            ),
            (Ok(change), taken) => panic!("{taken}: {change:?}"),
        }
    }
}

#[test]
fn what_is_not_there_is_not_found_and_what_goes_is_not_changed() {
    let mut world = World::new(&[1]);
    assert_eq!(world.deployments.ask("x", Ask::Load, 0).unwrap_err().reason, "DEPLOYMENT_UNKNOWN");
    world.apply(spec("chat", json!({})));
    let unknown = world.deployments.ask_replica("chat", 7, AskReplica::Restart, 0);
    assert_eq!(unknown.unwrap_err().reason, "REPLICA_UNKNOWN");
    let change = world.deployments.ask("chat", Ask::Delete, 0).unwrap();
    world.take(change);
    assert_eq!(world.deployments.ask("chat", Ask::Load, 0).unwrap_err().reason, "DEPLOYMENT_DELETING");
    let again = world.deployments.propose(spec("chat", json!({})), None, "ada", 0);
    assert_eq!(again.unwrap_err().reason, "DEPLOYMENT_DELETING");
}

#[test]
fn one_replica_goes_and_another_comes() {
    let mut world = World::new(&[1, 1]);
    world.apply(spec("chat", json!({})));
    world.run();
    let change = world.deployments.ask_replica("chat", 1, AskReplica::Leave { leave_ms: None }, 0).unwrap();
    world.take(change);
    world.run();
    assert_eq!(world.shown("chat").iter().map(|one| one.0).collect::<Vec<_>>(), [2]);
    let change = world.deployments.ask_replica("chat", 2, AskReplica::Restart, 0).unwrap();
    world.take(change);
    world.run();
    assert_eq!(world.shown("chat").iter().map(|one| one.0).collect::<Vec<_>>(), [1]);
}
