//! Which descriptions of models stand, with a real admission behind what the registry tells.

use super::*;
use crate::core::admission::{
    Admission, Ask, Class, Decision, KeyNumber, Limits, NORMAL_CLASS, Output, Refusal, RefusalReason,
};
use crate::core::providers::{apply, id as provider_id};
use crate::core::registry::node::{self, ProviderState};

/// A site of three nodes and the admission that believes what it is told.
struct World {
    site: Site,
    admission: Admission,
    ids: Vec<NodeId>,
    attempt: u64,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let now = Instant::now();
        let mut world = Self {
            site: site(now),
            admission: Admission::new(Limits::default(), 1),
            ids: (0..3).map(|_| NodeId::random()).collect(),
            attempt: 0,
            now,
        };
        for (number, id) in world.ids.iter().enumerate() {
            world.site.insert(*id, row(&format!("n{number}")), Position(1), ReportRow::default());
        }
        world.tell();
        world
    }

    /// As the shell does.
    fn tell(&mut self) {
        for call in self.site.take_calls() {
            apply(&mut self.admission, self.now, &call).unwrap();
        }
    }

    fn declare(&mut self, node: usize, engines: Vec<DeclaredEngine>, wall: i64) {
        self.attempt += 1;
        connect(&mut self.site, self.ids[node], self.attempt, hello(engines), self.now, wall);
        self.tell();
    }

    fn state(&self, node: usize, engine: &str) -> ProviderState {
        self.site.node(&self.ids[node]).unwrap().engine_state(engine).0
    }

    /// Whoever is shown as available can be given work, and nobody else; a name leads to who has it.
    fn check(&self) {
        for id in &self.ids {
            let node = self.site.node(id).unwrap();
            for engine in &node.report.engines {
                let shown = node.connected() && node.engine_state(&engine.name).0 == ProviderState::Available;
                let figures = self.admission.figures(&provider_id(*id, &engine.name));
                assert_eq!(figures.is_some_and(|figures| figures.open), shown, "{node:#?}");
                for name in std::iter::once(&engine.model).chain(&engine.aliases).filter(|_| shown) {
                    let model = self.admission.resolve(name).unwrap();
                    assert_eq!(**self.admission.model_name(model).unwrap(), *engine.model, "{name}");
                }
            }
        }
    }

    fn refused(&self) -> Vec<(NodeId, &'static str, String)> {
        let nodes = self.site.all();
        let of = |node: &std::sync::Arc<node::Node>| {
            let keys = node.problems.keys().map(|(code, subject)| (node.id, *code, subject.clone()));
            keys.collect::<Vec<_>>()
        };
        let mut refused: Vec<_> = nodes.iter().flat_map(of).collect();
        refused.sort();
        refused
    }
}

fn called(name: &str, model: &str, aliases: &[&str], threshold: u32) -> DeclaredEngine {
    DeclaredEngine {
        aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
        ..engine(name, model, threshold)
    }
}

#[test]
fn nodes_that_follow_each_other_to_a_new_description_are_all_served() {
    let mut world = World::new();
    for node in 0..3 {
        world.declare(node, vec![engine("e", "m", 0)], 10);
    }
    for node in 0..3 {
        world.declare(node, vec![called("e", "m", &["x"], 8_192)], 20 + i64::try_from(node).unwrap());
        world.check();
    }
    for node in 0..3 {
        assert_eq!(world.state(node, "e"), ProviderState::Available);
    }
    assert_eq!(world.refused(), []);
}

#[test]
fn aliases_are_a_set() {
    let mut world = World::new();
    world.declare(0, vec![called("e", "m", &["a", "b"], 0)], 10);
    world.declare(1, vec![called("e", "m", &["b", "a", "b"], 0)], 11);
    assert_eq!(world.refused(), []);
    world.check();
}

#[test]
fn a_name_that_another_model_has_is_a_problem_until_it_is_free() {
    let mut world = World::new();
    world.declare(0, vec![called("e", "m", &["fast"], 0)], 10);
    world.declare(1, vec![called("e", "k", &["fast"], 0)], 11);
    assert_eq!(world.state(1, "e"), ProviderState::Failed);
    let problem = world.site.node(&world.ids[1]).unwrap().problems.values().next().unwrap().clone();
    assert_eq!(problem.code, problems::NAME_TAKEN);
    assert!(problem.message.contains("fast, which means model m of node n0 already"), "{}", problem.message);
    world.check();
    world.declare(0, vec![called("e", "m", &[], 0)], 12);
    assert_eq!(world.state(1, "e"), ProviderState::Available);
    assert_eq!(world.refused(), []);
    world.check();
}

#[test]
fn a_name_that_no_model_may_have_is_a_problem() {
    for name in ["_unknown", "a\u{202e}b"] {
        let mut world = World::new();
        world.declare(0, vec![called("e", name, &[], 0)], 10);
        world.declare(1, vec![called("e", "m", &[name], 0)], 11);
        let mut nodes: Vec<NodeId> = Vec::new();
        for (node, code, _) in world.refused() {
            assert_eq!(code, problems::MODEL_NAME);
            nodes.push(node);
        }
        assert_eq!(nodes.len(), 2);
        assert!(world.admission.model_names().is_empty());
        world.check();
    }
}

/// A node that people keep out is nobody's hope: it does not come back by itself.
#[test]
fn nobody_waits_for_a_node_that_may_not_come_in() {
    let mut world = World::new();
    world.declare(0, vec![engine("e", "m", 0)], 10);
    let model = world.admission.resolve("m").unwrap();
    let ask = Ask::new(model, KeyNumber(0), Class(NORMAL_CLASS));
    let id = world.ids[0];
    let mut position = 1;
    let mut set = |world: &mut World, change: &dyn Fn(&mut NodeRow)| {
        let mut row = world.site.node(&id).unwrap().row.clone();
        change(&mut row);
        position += 1;
        world.site.apply(id, row, Position(position));
        world.tell();
    };
    let none_wanted = |world: &mut World| {
        let decision = world.admission.admit(world.now, &ask);
        matches!(decision, Decision::Refused(Refusal { reason: RefusalReason::NoneWanted, .. }))
    };
    for _ in 0..2 {
        assert!(matches!(world.admission.admit(world.now, &ask), Decision::Granted(_)));
    }
    let Decision::Waiting(_) = world.admission.admit(world.now, &ask) else { panic!("both slots are taken") };
    set(&mut world, &|row| row.revoke(7));
    let Some(Output::Refused(_, refusal)) = world.admission.next_output() else { panic!("it still waits") };
    assert_eq!(refusal.reason, RefusalReason::NoneWanted);
    assert!(none_wanted(&mut world));
    set(&mut world, &|row| row.credential.revoked_at_unix_ms = None);
    assert!(!none_wanted(&mut world), "it may come");
    set(&mut world, &|row| row.disable(node::Decision::default()));
    assert!(none_wanted(&mut world));
}

#[test]
fn admission_keeps_nothing_of_a_node_that_is_gone_for_good() {
    let mut world = World::new();
    world.declare(0, vec![engine("e", "m", 0)], 10);
    world.declare(1, vec![engine("e", "m", 7)], 11);
    let known = world.admission.nodes_known();
    for node in 0..2 {
        let mut gone = world.site.node(&world.ids[node]).unwrap().row.clone();
        gone.lifecycle = Lifecycle::Decommissioned;
        world.site.apply(world.ids[node], gone, Position(9));
        world.tell();
    }
    assert_eq!((known, world.admission.nodes_known()), (3, 1));
    assert!(world.admission.model_names().is_empty());
}

#[derive(Clone, Debug)]
struct Declares {
    node: usize,
    engines: Vec<(u8, u8, u8)>,
}

impl Arbitrary for Declares {
    fn arbitrary(g: &mut Gen) -> Self {
        let engines = usize::arbitrary(g) % 3;
        let engine = |g: &mut Gen| (u8::arbitrary(g) % 3, u8::arbitrary(g) % 6, u8::arbitrary(g) % 2);
        Self { node: usize::arbitrary(g) % 3, engines: (0..engines).map(|_| engine(g)).collect() }
    }
}

quickcheck! {
    /// Row 6: whoever a snapshot shows as available is open in admission, whatever nodes declare in whatever order; and a
    /// restart, which loads nodes in the order of their ids, decides the same.
    fn who_is_shown_as_available_is_served(steps: Vec<Declares>) -> bool {
        let mut world = World::new();
        for (wall, step) in (10..).zip(&steps) {
            let engines = step.engines.iter().enumerate().map(|(number, (model, alias, threshold))| {
                // The last two aliases are other models' own names.
                let alias = [&["x"][..], &["y"], &["x", "y"], &[], &["m0"], &["m1"]][usize::from(*alias)];
                called(&format!("e{number}"), &format!("m{model}"), alias, u32::from(*threshold))
            });
            world.declare(step.node, engines.collect(), wall);
            world.check();
        }
        let mut restarted = site(world.now);
        for node in world.site.all().into_iter().rev() {
            restarted.insert(node.id, node.row.clone(), Position(1), node.report.clone());
        }
        let again = World { site: restarted, admission: Admission::new(Limits::default(), 1), ..World::new() };
        assert_eq!(again.refused(), world.refused());
        true
    }
}
