//! Deployments as operators, placement and admission see them.
//!
//! Invariant: a state follows from rows and from what the round last found alone; it is worked out, not stored.

use std::collections::BTreeMap;

use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::objects::{
    DeploymentObject, DeploymentState, ReplicaJobObject, ReplicaObject, timestamp,
};
use umbel_wire::NodeId;

use crate::core::admission::ProviderSpec;
use crate::core::deployments::{DeploymentRow, Deployments, JobKind, ReplicaRow, ReplicaState};
use crate::core::placement::candidate::Given;
use crate::core::providers;
use crate::shell::site::Site;

/// A deployment of the site, as far as placement is concerned.
pub(crate) struct Known {
    pub(crate) spec: DeploymentSpec,
    /// Replicas that are wanted now: none of one that is unloaded.
    pub(crate) wanted: u32,
    pub(crate) placed: BTreeMap<NodeId, u32>,
    pub(crate) avoid: BTreeMap<NodeId, String>,
    pub(crate) waiting_since_unix_ms: Option<i64>,
}

impl super::Deployments {
    /// A deployment as placement explains it.
    pub(crate) fn known(&self, name: &str) -> Option<Known> {
        self.read(|table| {
            let row = table.rows.get(name)?;
            let (mut placed, mut avoid) = (BTreeMap::new(), BTreeMap::new());
            for replica in table.replicas_of(name) {
                if replica.state == ReplicaState::Failed {
                    let why = format!("{} failed there: {}", replica.engine(), replica.cause);
                    avoid.extend(replica.avoid.iter().map(|node| (*node, why.clone())));
                } else if !replica.state.goes() {
                    *placed.entry(replica.node).or_insert(0) += 1;
                }
            }
            let waiting_since_unix_ms = table.unplaced(name).map(|unplaced| unplaced.since_unix_ms);
            Some(Known { spec: row.spec.clone(), wanted: row.wanted(), placed, avoid, waiting_since_unix_ms })
        })
    }

    /// The engines of a deployment's replicas.
    pub(crate) fn engines_of(&self, name: &str) -> std::collections::BTreeSet<String> {
        self.read(|table| table.replicas_of(name).map(ReplicaRow::engine).collect())
    }

    /// What the site has given away to replicas.
    pub(crate) fn given(&self) -> Given {
        self.read(super::facts::given)
    }
}

/// Models of which a replica is wanted and none is ready on a node that is `here`: providers that are not there yet. After a
/// restart a row says that a replica is ready before its node has said hello.
pub(super) fn expected(table: &Deployments, here: impl Fn(&NodeId) -> bool) -> Vec<ProviderSpec> {
    let mut expected = Vec::new();
    for row in table.rows.values().filter(|row| row.wanted() > 0) {
        let (mut ready, mut all, mut given_up) = (false, 0, 0);
        for replica in table.replicas_of(&row.spec.name) {
            ready |= replica.state == ReplicaState::Ready && here(&replica.node);
            all += 1;
            given_up += usize::from(replica.given_up());
        }
        if !ready && (all == 0 || given_up < all) {
            expected.push(providers::expected(&row.spec));
        }
    }
    expected
}

/// A deployment as operators see it; with its document if it is asked for.
pub(crate) fn object(site: &Site, table: &Deployments, row: &DeploymentRow, whole: bool) -> DeploymentObject {
    let spec = &row.spec;
    let replicas: Vec<&ReplicaRow> = table.replicas_of(&spec.name).collect();
    let ready = replicas.iter().filter(|one| one.state == ReplicaState::Ready).count();
    let (state, message) = state(table, row, &replicas, ready);
    let document = serde_json::to_value(spec).ok().and_then(|value| value.as_object().cloned());
    DeploymentObject {
        name: spec.name.clone(),
        model: spec.model().to_owned(),
        aliases: spec.aliases.clone(),
        engine_kind: spec.engine.kind.as_str().to_owned(),
        state,
        message,
        wanted: row.wanted(),
        ready: u32::try_from(ready).unwrap_or(u32::MAX),
        version: row.version,
        digest: spec.digest(),
        paused: row.paused,
        unloaded: row.unloaded,
        created_at: timestamp(row.created_at_unix_ms),
        applied_at: timestamp(row.applied_at_unix_ms),
        applied_by: row.applied_by.clone(),
        unplaced_since: table.unplaced(&spec.name).map(|unplaced| timestamp(unplaced.since_unix_ms)),
        replicas: replicas.into_iter().map(|one| replica(site, row, one)).collect(),
        document: document.filter(|_| whole),
    }
}

fn state(
    table: &Deployments,
    row: &DeploymentRow,
    replicas: &[&ReplicaRow],
    ready: usize,
) -> (DeploymentState, String) {
    let wanted = usize::try_from(row.wanted()).unwrap_or(usize::MAX);
    let unplaced = table.unplaced(&row.spec.name).map(|unplaced| unplaced.reason.clone());
    let failed = replicas.iter().find(|one| one.state == ReplicaState::Failed);
    let why_failed = failed.map(|one| format!("{}: {}", one.engine(), one.cause));
    let coming = replicas.iter().find(|one| one.state.comes() || one.state == ReplicaState::Stopped);
    let outdated = replicas.iter().any(|one| row.outdates(one));
    let paused = if row.paused { "it is paused" } else { "" };
    let or_paused = |why: Option<String>| why.unwrap_or_else(|| paused.to_owned());
    if row.deleting {
        return (DeploymentState::Deleting, "its replicas go, and then it goes".to_owned());
    }
    if wanted == 0 {
        return match replicas.len() {
            0 => (DeploymentState::Unloaded, "no replica is wanted".to_owned()),
            left => (DeploymentState::Unloading, or_paused(Some(format!("{left} replicas are still there")))),
        };
    }
    if outdated {
        let how = if table.is_one_by_one(&row.spec.name) { "one by one, for want of room" } else { "" };
        return (DeploymentState::Changing, unplaced.unwrap_or_else(|| or_paused(Some(how.to_owned()))));
    }
    if ready >= wanted {
        return (DeploymentState::Ready, paused.to_owned());
    }
    if let Some(coming) = coming {
        let cause = format!("{} is {}: {}", coming.engine(), coming.state.as_str(), coming.cause);
        return (DeploymentState::Loading, why_failed.unwrap_or(cause));
    }
    let all_failed = !replicas.is_empty() && replicas.iter().all(|one| one.given_up());
    match (ready, why_failed, unplaced) {
        (0, Some(why), _) if all_failed => (DeploymentState::Failed, why),
        (0, None, Some(why)) if replicas.is_empty() => (DeploymentState::Unplaced, why),
        (0, None, None) if replicas.is_empty() => (DeploymentState::Loading, or_paused(None)),
        (_, failed, unplaced) => {
            let lost = replicas.iter().find(|one| one.state == ReplicaState::Lost);
            let lost = lost.map(|one| format!("{} is lost: {}", one.engine(), one.cause));
            (DeploymentState::Degraded, or_paused(failed.or(unplaced).or(lost)))
        }
    }
}

fn replica(site: &Site, row: &DeploymentRow, replica: &ReplicaRow) -> ReplicaObject {
    let node = site.read(|registry| registry.node(&replica.node).map(|node| node.row.name.clone()));
    ReplicaObject {
        engine: replica.engine(),
        number: replica.number,
        node_id: replica.node.to_string(),
        node: node.unwrap_or_default(),
        gpus: replica.gpus.clone(),
        state: replica.state.as_str().to_owned(),
        since: timestamp(replica.since_unix_ms),
        cause: replica.cause.clone(),
        version: replica.version,
        outdated: row.outdates(replica),
        failures: replica.failures,
        retry_at: replica.retry_at_unix_ms.filter(|_| replica.state == ReplicaState::Failed).map(timestamp),
        job: replica.job.as_ref().map(|job| {
            let view = site.jobs.view(&job.id);
            let progress = view.and_then(|view| view.progress).unwrap_or_default();
            ReplicaJobObject {
                job_id: job.id.clone(),
                kind: match job.kind {
                    JobKind::Acquire => "acquire",
                    JobKind::Load => "load",
                    JobKind::Drain => "drain",
                    JobKind::Unload => "unload",
                }
                .to_owned(),
                phase: progress.phase,
                message: progress.message,
                done: progress.done,
                total: progress.total,
                unit: progress.unit,
            }
        }),
    }
}
