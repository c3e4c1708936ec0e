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

    /// Whether it runs where its document does not let it any more, and is to move.
    pub(crate) fn is_misplaced(&self, one: &ReplicaRow) -> bool {
        !one.state.goes() && self.misplaced.contains(&one.key())
    }

    /// Why a replica is as it is, for people; empty if there is nothing to say.
    pub(crate) fn cause(&self, one: &ReplicaRow) -> String {
        let cause = one.cause.as_str();
        if let Some(why) = self.nowhere.get(&one.key()).filter(|_| one.state == ReplicaState::Failed) {
            return format!("it fits nowhere now ({why}); it failed before: {cause}");
        }
        if self.is_misplaced(one) {
            let moves = "the selector leaves its node out: it moves when there is room where it may run";
            return if cause.is_empty() { moves.to_owned() } else { format!("{cause}; {moves}") };
        }
        cause.to_owned()
    }

    /// How a deployment stands.
    pub(crate) fn stands(&self, row: &DeploymentRow) -> Stands {
        let replicas: Vec<&ReplicaRow> = self.replicas_of(&row.spec.name).collect();
        let ready = replicas.iter().filter(|one| self.serves(one)).count();
        let (state, why) = self.state(row, &replicas, ready);
        let paused = (row.paused && !row.deleting).then(|| self.paused(row, &replicas));
        let message = paused.into_iter().chain(why).collect::<Vec<_>>().join("; ");
        Stands { state, message, ready }
    }

    fn state(
        &self,
        row: &DeploymentRow,
        replicas: &[&ReplicaRow],
        ready: usize,
    ) -> (DeploymentState, Option<String>) {
        let wanted = usize::try_from(row.wanted()).unwrap_or(usize::MAX);
        let unplaced = self.unplaced(&row.spec.name).map(|unplaced| unplaced.reason.clone());
        let waits = self.unplaced(&row.spec.name).is_some_and(|unplaced| unplaced.waits);
        if row.deleting {
            return (DeploymentState::Deleting, Some("its replicas go, and then it goes".to_owned()));
        }
        if wanted == 0 {
            return match replicas.len() {
                0 => (DeploymentState::Unloaded, Some("no replica is wanted".to_owned())),
                left => (DeploymentState::Unloading, Some(format!("{left} replicas are still there"))),
            };
        }
        let why_failed =
            replicas.iter().find(|one| one.state == ReplicaState::Failed).map(|one| self.failed(row, one));
        let coming = replicas.iter().find(|one| one.state.comes()).map(|one| comes(one));
        if replicas.iter().any(|one| row.outdates(one) || self.is_misplaced(one)) {
            let one_by_one = (self.is_one_by_one(&row.spec.name) && !row.paused)
                .then(|| "one by one, for want of room".to_owned());
            return (DeploymentState::Changing, unplaced.or(coming).or(one_by_one));
        }
        if ready >= wanted {
            // A replica that may not stay where it is gives way to another one.
            let why = unplaced.or(coming);
            let state = if why.is_some() { DeploymentState::Changing } else { DeploymentState::Ready };
            return (state, why);
        }
        if let Some(coming) = coming {
            return (DeploymentState::Loading, Some(why_failed.unwrap_or(coming)));
        }
        if let Some(why) = unplaced.clone().filter(|_| waits) {
            return (DeploymentState::Loading, Some(why));
        }
        let all_failed = !replicas.is_empty() && replicas.iter().all(|one| one.given_up());
        match (ready, why_failed, unplaced) {
            (0, Some(why), _) if all_failed => {
                // Who cancelled it has nothing to mend, and is told in `why` what goes on.
                let mend = replicas.iter().any(|one| one.cancelled_by.is_none());
                let load = format!("; mend that, then umbel ctl model load {}", row.spec.name);
                (DeploymentState::Failed, Some(if mend { why + &load } else { why }))
            }
            (0, None, Some(why)) if replicas.is_empty() => (DeploymentState::Unplaced, Some(why)),
            (0, None, None) if replicas.is_empty() => (DeploymentState::Loading, None),
            (_, failed, unplaced) => {
                let other = || replicas.iter().find_map(|one| self.held_up(one));
                (DeploymentState::Degraded, failed.or(unplaced).or_else(other))
            }
        }
    }

    /// What a paused deployment waits with: all in which it differs from its document.
    fn paused(&self, row: &DeploymentRow, replicas: &[&ReplicaRow]) -> String {
        let live: Vec<&ReplicaRow> = replicas.iter().copied().filter(|one| !one.state.goes()).collect();
        let count = |is: &dyn Fn(&ReplicaRow) -> bool| live.iter().filter(|one| is(one)).count();
        let wanted = usize::try_from(row.wanted()).unwrap_or(usize::MAX);
        let asked = count(&|one| one.leave_ms.is_some());
        let outdated = |one: &ReplicaRow| row.outdates(one) || self.is_misplaced(one);
        let figures = |one: &ReplicaRow| {
            one.state == ReplicaState::Ready && one.version != row.version && !outdated(one)
        };
        let stays = |one: &ReplicaRow| one.leave_ms.is_none() && wanted > 0;
        let again = |one: &ReplicaRow| one.state == ReplicaState::Failed && one.retry_at_unix_ms.is_some();
        let parts = [
            (count(&|one| stays(one) && outdated(one)), "replaced"),
            (wanted.saturating_sub(live.len() - asked), "placed"),
            (asked.max(live.len().saturating_sub(wanted)), "taken away"),
            (count(&|one| stays(one) && figures(one)), "given the new figures"),
            (count(&|one| stays(one) && again(one) && !outdated(one)), "tried again"),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| {
                let is = if *count == 1 { "replica is" } else { "replicas are" };
                format!("{count} {is} {what}")
            })
            .collect();
        if parts.is_empty() {
            return "it is paused".to_owned();
        }
        let name = &row.spec.name;
        format!("it is paused; after umbel ctl model pause {name} --off, {}", parts.join(", "))
    }

    /// What it failed for, and where that stands in full.
    fn failed(&self, row: &DeploymentRow, one: &ReplicaRow) -> String {
        let (engine, cause) = (one.engine(), self.cause(one));
        if one.cancelled_by.is_some() {
            return format!("{engine}: {cause}; umbel ctl model load {} goes on", one.deployment);
        }
        match &one.failed_job {
            Some(job) => {
                let job = umbel_wire::text::beginning(job, SHORT);
                format!("{engine}: {cause}; umbel ctl job show {job} tells more")
            }
            // It has no output here, and nothing is to be done here.
            None if row.is_only_asked() => {
                format!(
                    "{engine}: {cause}; its node asks it again every few seconds, and it serves once it answers"
                )
            }
            None => format!("{engine}: {cause}; umbel ctl engine logs {engine} has its output"),
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
