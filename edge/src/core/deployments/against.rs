//! A document held against the deployment of its name: what would be different, and which replicas would stay.
//!
//! Owns what a plan is told of what is there already. Leaves places to the placement, and changes to [`super::change`].
//! Invariant: a replica stays if the document, applied, would leave it where it is as it runs.

use std::collections::{BTreeMap, BTreeSet};

use umbel_contracts::deployment::DeploymentSpec;
use umbel_wire::NodeId;

use super::Deployments;
use super::change::differences;
use super::rows::{DeploymentRow, ReplicaRow, ReplicaState};

/// What a document comes to beside what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Against {
    /// Fields that become another.
    pub(crate) changes: Vec<String>,
    /// Replicas that stay, by node.
    pub(crate) stay: BTreeMap<NodeId, u32>,
    /// Engines that go, or whose place is theirs: their GPUs count as free.
    pub(crate) displaces: BTreeSet<String>,
    /// Nodes where a replica of just this document failed, and why.
    pub(crate) avoid: BTreeMap<NodeId, String>,
}

impl Deployments {
    /// What a document would change of the deployment of its name; `None` if there is none, or none of it is wanted.
    /// `selects`: whether the document lets replicas run on a node.
    pub(crate) fn against(
        &self,
        spec: &DeploymentSpec,
        selects: impl Fn(&NodeId) -> bool,
    ) -> Option<Against> {
        let row = self.rows.get(&spec.name).filter(|row| row.wanted() > 0)?;
        let mut against = Against { changes: differences(&row.spec, spec), ..Against::default() };
        let after = match against.changes.is_empty() {
            true => row.clone(),
            false => DeploymentRow { engine_digest: spec.engine_digest(), ..row.clone() },
        };
        let stays = |one: &ReplicaRow| {
            let up = !one.state.goes() && !matches!(one.state, ReplicaState::Failed | ReplicaState::Lost);
            up && one.leave_ms.is_none() && !after.outdates(one) && selects(&one.node)
        };
        for one in self.replicas_of(&spec.name) {
            if stays(one) {
                *against.stay.entry(one.node).or_insert(0) += 1;
                continue;
            }
            against.displaces.insert(one.engine());
            if one.state == ReplicaState::Failed && !after.outdates(one) {
                let failed = one.failed_at().into_iter().map(|node| (node, one.failed_on(&node)));
                against.avoid.extend(failed);
            }
        }
        Some(against)
    }
}
