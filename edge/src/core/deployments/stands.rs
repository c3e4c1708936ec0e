//! How a deployment stands, in one word and one sentence.
//!
//! Owns which of all that is wrong is said, and what to do about it where people have to act. Invariants: it follows from rows
//! and from what the round last found alone; what an engine says of its failure is said as soon as a replica has it.

use umbel_contracts::objects::DeploymentState;

use super::Deployments;
use super::rows::{DeploymentRow, ReplicaRow, ReplicaState};

/// A job's id as people need it: `ctl job show` takes the beginning of one.
const SHORT: usize = 13;

/// How a deployment stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stands {
    pub(crate) state: DeploymentState,
    /// Why, for people; empty if there is nothing to say.
    pub(crate) message: String,
    /// Replicas that take requests.
    pub(crate) ready: usize,
}

impl Deployments {
    /// Whether requests may go to a replica.
    pub(crate) fn serves(&self, one: &ReplicaRow) -> bool {
        one.state == ReplicaState::Ready && !self.idle.contains_key(&one.node)
    }

    /// How a deployment stands.
    pub(crate) fn stands(&self, row: &DeploymentRow) -> Stands {
        let replicas: Vec<&ReplicaRow> = self.replicas_of(&row.spec.name).collect();
        let ready = replicas.iter().filter(|one| self.serves(one)).count();
        let (state, message) = self.state(row, &replicas, ready);
        Stands { state, message, ready }
    }

    fn state(
        &self,
        row: &DeploymentRow,
        replicas: &[&ReplicaRow],
        ready: usize,
    ) -> (DeploymentState, String) {
        let wanted = usize::try_from(row.wanted()).unwrap_or(usize::MAX);
        let unplaced = self.unplaced(&row.spec.name).map(|unplaced| unplaced.reason.clone());
        let waits = self.unplaced(&row.spec.name).is_some_and(|unplaced| unplaced.waits);
        let paused = if row.paused { "it is paused" } else { "" };
        let or_paused = |why: Option<String>| why.unwrap_or_else(|| paused.to_owned());
        if row.deleting {
            return (DeploymentState::Deleting, "its replicas go, and then it goes".to_owned());
        }
        if wanted == 0 {
            return match replicas.len() {
                0 => (DeploymentState::Unloaded, "no replica is wanted".to_owned()),
                left => {
                    (DeploymentState::Unloading, or_paused(Some(format!("{left} replicas are still there"))))
                }
            };
        }
        let why_failed = replicas.iter().find(|one| one.state == ReplicaState::Failed).map(|one| failed(one));
        if replicas.iter().any(|one| row.outdates(one)) {
            let one_by_one =
                self.is_one_by_one(&row.spec.name).then(|| "one by one, for want of room".to_owned());
            let coming = replicas.iter().find(|one| one.state.comes()).map(|one| comes(one));
            let why = unplaced.or(coming).unwrap_or_else(|| or_paused(one_by_one));
            return (DeploymentState::Changing, why);
        }
        let coming = replicas.iter().find(|one| one.state.comes()).map(|one| comes(one));
        if ready >= wanted {
            // A replica that may not stay where it is gives way to another one.
            return match unplaced.or(coming) {
                Some(why) => (DeploymentState::Changing, why),
                None => (DeploymentState::Ready, paused.to_owned()),
            };
        }
        if let Some(coming) = coming {
            return (DeploymentState::Loading, why_failed.unwrap_or(coming));
        }
        if let Some(why) = unplaced.clone().filter(|_| waits) {
            return (DeploymentState::Loading, why);
        }
        let all_failed = !replicas.is_empty() && replicas.iter().all(|one| one.given_up());
        match (ready, why_failed, unplaced) {
            (0, Some(why), _) if all_failed => {
                // Who cancelled it has nothing to mend, and is told in `why` what goes on.
                let mend = replicas.iter().any(|one| one.cancelled_by.is_none());
                let load = format!("; mend that, then umbel ctl model load {}", row.spec.name);
                (DeploymentState::Failed, if mend { why + &load } else { why })
            }
            (0, None, Some(why)) if replicas.is_empty() => (DeploymentState::Unplaced, why),
            (0, None, None) if replicas.is_empty() => (DeploymentState::Loading, or_paused(None)),
            (_, failed, unplaced) => {
                let other = replicas.iter().find_map(|one| self.held_up(one));
                (DeploymentState::Degraded, or_paused(failed.or(unplaced).or(other)))
            }
        }
    }

    /// Why a replica that neither failed nor comes takes no requests.
    fn held_up(&self, one: &ReplicaRow) -> Option<String> {
        let engine = one.engine();
        match one.state {
            ReplicaState::Lost => Some(format!("{engine} is lost: {}", one.cause)),
            ReplicaState::Stopped if one.cause.is_empty() => {
                Some(format!("{engine} is stopped; umbel ctl engine restart {engine} starts it"))
            }
            ReplicaState::Stopped => Some(format!(
                "{engine} is stopped: {}; umbel ctl engine restart {engine} starts it",
                one.cause
            )),
            ReplicaState::Ready => self.idle.get(&one.node).map(|node| {
                format!(
                    "{engine} is ready on {node}, which is not eligible: it gets no requests until umbel ctl node eligible {node}"
                )
            }),
            _ => None,
        }
    }
}

fn comes(one: &ReplicaRow) -> String {
    let (engine, state) = (one.engine(), one.state.as_str());
    if one.cause.is_empty() {
        format!("{engine} is {state}")
    } else {
        format!("{engine} is {state}: {}", one.cause)
    }
}

/// What it failed for, and where that stands in full.
fn failed(one: &ReplicaRow) -> String {
    let engine = one.engine();
    if one.cancelled_by.is_some() {
        return format!("{engine}: {}; umbel ctl model load {} goes on", one.cause, one.deployment);
    }
    match &one.failed_job {
        Some(job) => {
            let job = umbel_wire::text::beginning(job, SHORT);
            format!("{engine}: {}; umbel ctl job show {job} tells more", one.cause)
        }
        None => format!("{engine}: {}; umbel ctl engine logs {engine} has its output", one.cause),
    }
}
