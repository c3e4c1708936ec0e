//! Deployments as operators, placement and admission see them.
//!
//! Invariant: a state follows from rows and from what the round last found alone; it is worked out, not stored.

use std::collections::{BTreeMap, BTreeSet};

use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::objects::{DeploymentObject, DeploymentState};
use umbel_contracts::proto::control::{self, DeploymentSnapshot, ReplicaJob, ReplicaSnapshot};
use umbel_contracts::selector::Selector;
use umbel_wire::NodeId;
use umbel_wire::text::beginning;

use crate::core::deployments::reading::given;
use crate::core::deployments::{
    Against, DeploymentRow, Deployments, JobKind, ReplicaRow, ReplicaState, Stands,
};
use crate::core::placement::candidate::Given;
use crate::core::registry::selecting;
use crate::shell::site::Site;

/// A sentence as it leaves the site: an engine may say much.
const SENTENCE: usize = 1024;

/// A deployment of the site, as far as placement is concerned.
pub(crate) struct Known {
    pub(crate) spec: DeploymentSpec,
    /// Replicas that are wanted now: none of one that is unloaded.
    pub(crate) wanted: u32,
    pub(crate) placed: BTreeMap<NodeId, u32>,
    /// Engines of replicas that are lost: wanted somewhere, and what they hold is theirs.
    pub(crate) lost: BTreeSet<String>,
    pub(crate) avoid: BTreeMap<NodeId, String>,
    pub(crate) waiting_since_unix_ms: Option<i64>,
}

/// What the site has given away to replicas.
pub(crate) fn given_away(site: &Site) -> Given {
    site.deployments.read(|table| given(table, |id| site.jobs.view(id)))
}

/// What a document would change of the deployment of its name.
pub(crate) fn against(site: &Site, spec: &DeploymentSpec) -> Option<Against> {
    let selector = spec.selector.as_deref().map(Selector::parse).and_then(Result::ok);
    let selects = |id: &NodeId| {
        let chosen = |selector: &Selector| {
            site.read(|registry| registry.node(id).is_none_or(|node| selecting::matches(selector, node)))
        };
        selector.as_ref().is_none_or(chosen)
    };
    site.deployments.read(|table| table.against(spec, selects))
}

/// Replicas of a deployment that are where its document does not let them run, each in a sentence.
pub(crate) fn misplaced(site: &Site, name: &str) -> Vec<String> {
    let found: Vec<(String, NodeId)> = site.deployments.read(|table| {
        let misplaced = table.replicas_of(name).filter(|one| table.is_misplaced(one));
        misplaced.map(|one| (one.engine(), one.node)).collect()
    });
    let sentence = |(engine, id): (String, NodeId)| {
        let node = site.read(|registry| registry.node(&id).map(|node| node.row.name.clone()));
        let node = node.unwrap_or_else(|| id.to_string());
        format!(
            "{engine} is on {node}, which the selector leaves out: it stays until another one is ready elsewhere"
        )
    };
    found.into_iter().map(sentence).collect()
}

impl super::Deployments {
    /// A deployment as placement explains it.
    pub(crate) fn known(&self, name: &str) -> Option<Known> {
        self.read(|table| {
            let row = table.rows.get(name)?;
            let (mut placed, mut avoid, mut lost) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
            for replica in table.replicas_of(name) {
                if replica.state == ReplicaState::Failed {
                    avoid
                        .extend(replica.failed_at().into_iter().map(|node| (node, replica.failed_on(&node))));
                } else if replica.state == ReplicaState::Lost {
                    lost.insert(replica.engine());
                } else if !replica.state.goes() {
                    *placed.entry(replica.node).or_insert(0) += 1;
                }
            }
            let waiting_since_unix_ms = table.unplaced(name).map(|unplaced| unplaced.since_unix_ms);
            let (spec, wanted) = (row.spec.clone(), row.wanted());
            Some(Known { spec, wanted, placed, lost, avoid, waiting_since_unix_ms })
        })
    }

    /// The engines of a deployment's replicas.
    pub(crate) fn engines_of(&self, name: &str) -> BTreeSet<String> {
        self.read(|table| table.replicas_of(name).map(ReplicaRow::engine).collect())
    }
}

/// A deployment as operators see it; with its document if it is asked for.
pub(crate) fn object(site: &Site, table: &Deployments, row: &DeploymentRow, whole: bool) -> DeploymentObject {
    let document = serde_json::to_value(&row.spec).ok().and_then(|value| value.as_object().cloned());
    DeploymentObject {
        document: document.filter(|_| whole),
        ..DeploymentObject::from_proto(snapshot(site, table, row))
    }
}

/// A deployment as it leaves the site.
pub(crate) fn snapshot(site: &Site, table: &Deployments, row: &DeploymentRow) -> DeploymentSnapshot {
    let spec = &row.spec;
    let replicas: Vec<&ReplicaRow> = table.replicas_of(&spec.name).collect();
    let Stands { state, message, ready } = table.stands(row);
    DeploymentSnapshot {
        name: spec.name.clone(),
        model: spec.model().to_owned(),
        aliases: spec.aliases.clone(),
        engine_kind: spec.engine.kind.as_str().to_owned(),
        state: number(state).into(),
        message: beginning(&message, SENTENCE).to_owned(),
        wanted: row.wanted(),
        ready: u32::try_from(ready).unwrap_or(u32::MAX),
        version: row.version,
        digest: table.digest(&spec.name).to_owned(),
        paused: row.paused,
        unloaded: row.unloaded,
        created_at_unix_ms: row.created_at_unix_ms,
        applied_at_unix_ms: row.applied_at_unix_ms,
        applied_by: row.applied_by.clone(),
        unplaced_since_unix_ms: table.unplaced(&spec.name).map_or(0, |unplaced| unplaced.since_unix_ms),
        replicas: replicas.into_iter().map(|one| replica(site, table, row, one)).collect(),
    }
}

/// For the wire.
pub(super) const fn number(state: DeploymentState) -> control::DeploymentState {
    use control::DeploymentState as Number;
    match state {
        DeploymentState::Ready => Number::Ready,
        DeploymentState::Loading => Number::Loading,
        DeploymentState::Changing => Number::Changing,
        DeploymentState::Degraded => Number::Degraded,
        DeploymentState::Failed => Number::Failed,
        DeploymentState::Unplaced => Number::Unplaced,
        DeploymentState::Unloading => Number::Unloading,
        DeploymentState::Unloaded => Number::Unloaded,
        DeploymentState::Deleting => Number::Deleting,
        DeploymentState::Other => Number::Unspecified,
    }
}

fn replica(site: &Site, table: &Deployments, row: &DeploymentRow, replica: &ReplicaRow) -> ReplicaSnapshot {
    let node = site.read(|registry| registry.node(&replica.node).map(|node| node.row.name.clone()));
    ReplicaSnapshot {
        engine: replica.engine(),
        number: replica.number,
        node_id: replica.node.to_string(),
        node_name: node.unwrap_or_default(),
        gpu_uuids: replica.gpus.clone(),
        state: replica.state.as_str().to_owned(),
        since_unix_ms: replica.since_unix_ms,
        cause: beginning(&table.cause(replica), SENTENCE).to_owned(),
        version: replica.version,
        outdated: row.outdates(replica) || table.is_misplaced(replica),
        failures: replica.failures,
        retry_at_unix_ms: replica
            .retry_at_unix_ms
            .filter(|_| replica.state == ReplicaState::Failed)
            .unwrap_or(0),
        job: replica.job.as_ref().map(|job| ReplicaJob {
            job_id: job.id.clone(),
            kind: match job.kind {
                JobKind::Acquire => "acquire",
                JobKind::Load => "load",
                JobKind::Drain => "drain",
                JobKind::Unload => "unload",
            }
            .to_owned(),
            step: site
                .jobs
                .view(&job.id)
                .and_then(|view| view.progress)
                .as_ref()
                .map(crate::shell::jobs::step),
        }),
    }
}
