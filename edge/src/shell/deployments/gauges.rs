//! Metrics of deployments: what is wanted, what there is of it, what stands in the way.
//!
//! Owns names and help. Invariants: they follow from the rows and states that operators see at the same moment; a deployment is
//! a label only while it is there.

use std::fmt;
use std::sync::Weak;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::EncodeMetric as _;
use umbel_contracts::daemon::exposition::{gauge, gauges, whole};
use umbel_contracts::objects::DeploymentState;

use crate::core::deployments::{DeploymentRow, Deployments, ReplicaState};
use crate::shell::site::Site;

/// Every state that a deployment may be in.
const STATES: [DeploymentState; 9] = [
    DeploymentState::Ready,
    DeploymentState::Loading,
    DeploymentState::Changing,
    DeploymentState::Degraded,
    DeploymentState::Failed,
    DeploymentState::Unplaced,
    DeploymentState::Unloading,
    DeploymentState::Unloaded,
    DeploymentState::Deleting,
];

/// Every state that a replica may be in.
const OF_REPLICAS: [ReplicaState; 8] = [
    ReplicaState::Acquiring,
    ReplicaState::Loading,
    ReplicaState::Ready,
    ReplicaState::Stopped,
    ReplicaState::Draining,
    ReplicaState::Unloading,
    ReplicaState::Failed,
    ReplicaState::Lost,
];

/// All deployments of a site.
pub(crate) struct Gauges {
    /// Weak: the metrics must not keep the site alive.
    pub(crate) site: Weak<Site>,
}

impl fmt::Debug for Gauges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gauges")
    }
}

/// Figures of one deployment.
struct Of {
    name: String,
    state: DeploymentState,
    wanted: u32,
    ready: u64,
    given_up: u64,
    replicas: [u64; OF_REPLICAS.len()],
    unplaced_since: Option<i64>,
}

impl Of {
    fn new(table: &Deployments, row: &DeploymentRow) -> Self {
        let name = row.spec.name.clone();
        let count = |is: &dyn Fn(ReplicaState) -> bool| {
            table.replicas_of(&name).filter(|one| is(one.state)).count() as u64
        };
        let stands = table.stands(row);
        Self {
            state: stands.state,
            ready: stands.ready as u64,
            wanted: row.wanted(),
            given_up: table.replicas_of(&name).filter(|one| one.given_up()).count() as u64,
            replicas: OF_REPLICAS.map(|state| count(&|one| one == state)),
            unplaced_since: table.unplaced(&name).map(|unplaced| unplaced.since_unix_ms),
            name,
        }
    }
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(site) = self.site.upgrade() else { return Ok(()) };
        let (all, held) = site.deployments.read(|table| {
            let all: Vec<Of> = table.rows.values().map(|row| Of::new(table, row)).collect();
            (all, table.held().is_some())
        });
        let encoder = &mut encoder;
        let states = STATES.map(|state| {
            let count = all.iter().filter(|one| one.state == state).count();
            ([("state", state.as_str())], whole(count as u64))
        });
        gauges(encoder, "umbel_edge_deployments", "Deployments by state", states)?;
        let help = "Whether lost replicas are not replaced, since many nodes were lost together";
        gauge(encoder, "umbel_edge_deployments_held", help, f64::from(u8::from(held)))?;
        let by_name = |one: &Of| [("deployment", one.name.clone())];
        let wanted = all.iter().map(|one| (by_name(one), f64::from(one.wanted)));
        gauges(encoder, "umbel_edge_deployment_replicas_wanted", "Replicas that are wanted now", wanted)?;
        let ready = all.iter().map(|one| (by_name(one), whole(one.ready)));
        gauges(encoder, "umbel_edge_deployment_replicas_ready", "Replicas that take requests", ready)?;
        let given_up = all.iter().map(|one| (by_name(one), whole(one.given_up)));
        let help = "Failed replicas that nobody tries again by himself";
        gauges(encoder, "umbel_edge_deployment_replicas_given_up", help, given_up)?;
        let replicas = all.iter().flat_map(|one| {
            OF_REPLICAS.into_iter().zip(one.replicas).map(|(state, count)| {
                ([("deployment", one.name.clone()), ("state", state.as_str().to_owned())], whole(count))
            })
        });
        gauges(encoder, "umbel_edge_deployment_replicas", "Replicas by state", replicas)?;
        let now = site.wall().unix_ms();
        let unplaced = all.iter().filter_map(|one| {
            let waited = u64::try_from(now.saturating_sub(one.unplaced_since?)).unwrap_or(0);
            Some((by_name(one), whole(waited) / 1e3))
        });
        let help = "For how long it has wanted more replicas than fit; no series while they fit";
        gauges(encoder, "umbel_edge_deployment_unplaced_seconds", help, unplaced)?;
        let help = "Time of deciding a round of the reconciler, looking for places included";
        let kind = site.deployments.rounds.metric_type();
        let series = encoder.encode_descriptor("umbel_edge_deployment_round_seconds", help, None, kind)?;
        site.deployments.rounds.encode(series)
    }
}
