//! What a round is told of the site: nodes and engines from the registry, jobs from their table, places from placement.
//!
//! Leaves reading each of them to whoever runs the round. Invariant: all of one round is one reading of the nodes; the
//! reconciler's words are given here and nowhere else.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use umbel_contracts::artifact;
use umbel_contracts::causes::{self, Cause};
use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::objects::JobState;
use umbel_contracts::proto::node::EngineState;
use umbel_contracts::selector::Selector;
use umbel_wire::NodeId;
use umbel_wire::liveness::State;

use super::{
    DeploymentRow, Deployments, EngineFact, EngineWord, Facts, JobFact, NodeFact, Place, Places, ReplicaRow,
    ReplicaState, Standing, Wanted,
};
use crate::core::jobs::{FilesAt, JobView};
use crate::core::placement::candidate::{Given, candidates};
use crate::core::placement::explain::{funnel, sentence};
use crate::core::placement::{Fleet, Plan, Request, Shard};
use crate::core::providers::{self, Expected};
use crate::core::registry::Moment;
use crate::core::registry::abilities::ArtifactRow;
use crate::core::registry::node::{Lifecycle, Node};
use crate::core::registry::selecting;

/// The site as it is now. `job` looks one up by its id.
pub(crate) fn facts(
    nodes: &[Arc<Node>],
    job: impl Fn(&str) -> Option<JobView>,
    table: &Deployments,
    now: Instant,
    wall: i64,
) -> Facts {
    let living = nodes.iter().filter(|node| !node.is_tombstone());
    let (mut jobs, mut brought) = (BTreeMap::new(), BTreeMap::new());
    for id in table.jobs() {
        let view = job(&id);
        if let Some(at) = view.as_ref().and_then(|view| view.row.brought.clone()) {
            brought.insert(id.clone(), at);
        }
        jobs.insert(id, job_fact(view));
    }
    let mut facts = Facts::new(living.map(|node| (node.id, fact(node))).collect(), jobs, now, wall);
    facts.brought = brought;
    facts
}

fn job_fact(view: Option<JobView>) -> JobFact {
    let Some(view) = view else { return JobFact::Unknown };
    match view.state {
        JobState::Succeeded => JobFact::Done,
        JobState::Cancelled if view.row.cancelled_by.is_some() => {
            let by = view.row.cancelled_by.clone().unwrap_or_default();
            JobFact::Cancelled { by, at_unix_ms: view.row.cancelled_at_unix_ms.unwrap_or(i64::MAX) }
        }
        JobState::Failed | JobState::Cancelled => {
            let failure = view.row.failure();
            let message =
                failure.as_ref().map_or_else(|| "it was cancelled".to_owned(), |one| one.message.clone());
            let differs = failure.as_ref().is_some_and(|one| one.code == Cause::EngineDiffers.as_str());
            let retryable = failure.is_none_or(|one| one.retry || causes::passes(&one.code));
            JobFact::Failed { message, retryable, differs }
        }
        _ if view.row.cancel_requested => JobFact::Ending,
        JobState::Queued | JobState::Leased | JobState::Running | JobState::Unrecognized => JobFact::Open,
    }
}

fn fact(node: &Arc<Node>) -> NodeFact {
    let of_deployments = node.report.engines.iter().filter(|engine| !engine.deployment.is_empty());
    let absent = node.report.absent.iter();
    NodeFact {
        name: node.row.name.clone(),
        standing: standing(node),
        draining: node.row.draining,
        eligible: node.row.eligible,
        absent_gpus: absent.flat_map(|gpu| gpu.uuids().map(|uuid| (uuid.clone(), gpu.words()))).collect(),
        engines: of_deployments
            .map(|engine| (engine.name.clone(), engine_fact(node, &engine.name)))
            .collect(),
        artifacts: held(&node.report.artifacts),
    }
}

/// Where a node has each artifact: of several roots the first that it tells of.
fn held(told: &[ArtifactRow]) -> BTreeMap<String, FilesAt> {
    told.iter().rev().map(|one| (one.key(), one.at())).collect()
}

fn standing(node: &Node) -> Standing {
    let revoked = node.row.credential.revoked_at_unix_ms.is_some();
    if node.row.lifecycle != Lifecycle::Enrolled || revoked {
        return Standing::Gone;
    }
    let leaving = node.session.as_ref().is_some_and(|session| session.leaving);
    match node.liveness {
        _ if node.connected() && !leaving => Standing::Here,
        State::Offline => Standing::Lost,
        _ => Standing::Away,
    }
}

fn engine_fact(node: &Node, engine: &str) -> EngineFact {
    let Some(status) = node.engines.get(engine) else {
        return EngineFact { state: EngineWord::Unknown, cause: String::new(), passes: false };
    };
    let state = match status.state() {
        EngineState::Ready => EngineWord::Ready,
        EngineState::Validating | EngineState::Starting | EngineState::Loading => EngineWord::Coming,
        EngineState::Draining | EngineState::Stopping => EngineWord::Ending,
        EngineState::Stopped => EngineWord::Stopped,
        EngineState::Failed => EngineWord::Failed,
        EngineState::Unspecified => EngineWord::Unknown,
    };
    EngineFact { state, cause: status.cause.clone(), passes: causes::passes(&status.code) }
}

/// What the site has given away to replicas. `job` looks one up by its id.
pub(crate) fn given(table: &Deployments, job: impl Fn(&str) -> Option<JobView>) -> Given {
    let mut artifacts: BTreeMap<NodeId, Vec<(String, u64)>> = BTreeMap::new();
    let coming = table.replicas.values().filter(|row| row.state == ReplicaState::Acquiring);
    for row in coming {
        let spec = table.rows.get(&row.deployment).and_then(|row| row.spec.artifact.as_ref());
        let Some(spec) = spec.filter(|_| !row.artifact.is_empty()) else { continue };
        let key = artifact::key(&spec.repository, &spec.revision, &row.artifact);
        let of_node = artifacts.entry(row.node).or_default();
        if !of_node.iter().any(|(known, _)| *known == key) {
            let view = row.job.as_ref().and_then(|one| job(&one.id));
            // What is on its disk already is told as used.
            let bytes = view.and_then(|view| view.progress).filter(|progress| progress.unit == "bytes");
            let came = bytes.map_or(0, |progress| progress.done);
            of_node.push((key, spec.bytes().saturating_sub(came)));
        }
    }
    Given { gpus: table.holdings(), engines: table.placed(), artifacts }
}

/// The site's nodes as places for replicas; read when the first place is looked for, since most rounds look for none.
pub(crate) struct NodePlaces<'a> {
    nodes: &'a [Arc<Node>],
    by_id: OnceCell<HashMap<NodeId, &'a Arc<Node>>>,
    /// Selectors by their text: each is asked of every replica, several times a round.
    selectors: RefCell<HashMap<String, Option<Selector>>>,
    given: Given,
    moment: Moment,
    fleet: Option<Fleet>,
}

impl<'a> NodePlaces<'a> {
    /// `given`: what the site has given away already.
    pub(crate) fn of(nodes: &'a [Arc<Node>], given: Given, moment: Moment) -> Self {
        let (by_id, selectors) = (OnceCell::new(), RefCell::default());
        Self { nodes, by_id, selectors, given, moment, fleet: None }
    }

    fn fleet(&mut self) -> &mut Fleet {
        let Self { nodes, given, moment, fleet, .. } = self;
        fleet.get_or_insert_with(|| Fleet::of(candidates(nodes, given, *moment)))
    }

    fn node(&self, id: &NodeId) -> Option<&'a Arc<Node>> {
        let living = || self.nodes.iter().filter(|node| !node.is_tombstone());
        self.by_id.get_or_init(|| living().map(|node| (node.id, node)).collect()).get(id).copied()
    }
}

fn request(wanted: &Wanted<'_>) -> Request {
    let mut request = Request::from(wanted.spec);
    request.placed.clone_from(&wanted.placed);
    request.avoid.clone_from(&wanted.avoid);
    request.displaces = wanted.displaces.iter().cloned().collect::<BTreeSet<String>>();
    request
}

impl Places for NodePlaces<'_> {
    fn place(&mut self, wanted: &Wanted<'_>) -> Result<Place, String> {
        let request = request(wanted);
        let fleet = self.fleet();
        let Some(found) = fleet.plan(&request) else {
            return Err(sentence(&funnel(&request, fleet.nodes()), fleet.nodes().len()));
        };
        match <[Shard; 1]>::try_from(found.shards) {
            Ok([shard]) => Ok(Place { node: shard.node, gpus: shard.gpus }),
            Err(_) => Err("replicas over several nodes come with a later version".to_owned()),
        }
    }

    fn selects(&self, spec: &DeploymentSpec, node: &NodeId) -> bool {
        let Some(text) = &spec.selector else { return true };
        let mut known = self.selectors.borrow_mut();
        if !known.contains_key(text) {
            known.insert(text.clone(), Selector::parse(text).ok());
        }
        let (Some(Some(selector)), Some(node)) = (known.get(text), self.node(node)) else { return true };
        selecting::matches(selector, node)
    }

    fn take(&mut self, place: &Place, wanted: &Wanted<'_>) {
        let shard = Shard { node: place.node, gpus: place.gpus.clone(), acquire: true };
        self.fleet().take(&Plan { shards: vec![shard] }, &request(wanted), &wanted.engine);
    }
}

/// Models of which a replica is wanted and none is ready on a node that `takes` requests: providers that are not there yet.
/// After a restart a row says that a replica is ready before its node has said hello. What nobody brings up by himself does not
/// come: replicas that were given up or stopped, or that are on nodes that are not eligible.
pub(crate) fn expected(table: &Deployments, takes: impl Fn(&NodeId) -> bool) -> Vec<Expected> {
    let serves = |one: &ReplicaRow| one.state == ReplicaState::Ready && takes(&one.node);
    let hopeless = |one: &ReplicaRow| {
        one.given_up() || one.state == ReplicaState::Stopped || table.idle.contains_key(&one.node)
    };
    let of = |row: &DeploymentRow| {
        let replicas = || table.replicas_of(&row.spec.name);
        let comes = replicas().next().is_none() || !replicas().all(hopeless);
        let is_unserved = row.wanted() > 0 && !replicas().any(serves);
        is_unserved.then(|| providers::expected(&row.spec, comes))
    };
    table.rows.values().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_artifact_in_two_roots_the_first_is_taken() {
        let row = |repository: &str, root: &str| ArtifactRow {
            repository: repository.to_owned(),
            revision: "r1".to_owned(),
            digest: "0".repeat(64),
            root: root.to_owned(),
            ..ArtifactRow::default()
        };
        let told = [row("org/m", "first"), row("org/n", "first"), row("org/m", "second")];
        let held = held(&told);
        let roots: Vec<_> = told.iter().map(|one| held[&one.key()].root.as_str()).collect();
        assert_eq!(roots, ["first", "first", "first"]);
    }
}
