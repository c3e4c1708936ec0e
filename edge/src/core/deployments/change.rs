//! What operators change of deployments: checked against the others, and as rows to commit.
//!
//! Leaves storing and telling to the shell. Invariants: a name of a model means one model over all deployments; what says
//! nothing new changes nothing; whatever is asked, a replica that was given up is tried again when its deployment changes; who
//! asks for what was cancelled is heard, also before the cancelled job has ended.

use std::collections::BTreeMap;

use serde_json::Value;
use umbel_contracts::deployment::DeploymentSpec;
use umbel_contracts::settings::diff;
use umbel_store::Commit;
use umbel_wire::{Code, Error};

use super::rows::{DeploymentRow, JobKind, ReplicaRow, ReplicaState};
use super::{DEPLOYMENTS, Deployments, MAX_DEPLOYMENTS, REPLICAS};

/// Bytes of a field's value that the audit is told in full.
const LONGEST_VALUE: usize = 120;

/// A change to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) row: DeploymentRow,
    /// The row it is made from; `None` for a new deployment.
    pub(crate) before: Option<DeploymentRow>,
    /// Replicas that change with it.
    pub(crate) replicas: Vec<ReplicaRow>,
    /// For the audit.
    pub(crate) sentence: String,
}

impl Change {
    /// Whether anything is different after it.
    pub(crate) fn is_empty(&self) -> bool {
        self.before.as_ref() == Some(&self.row) && self.replicas.is_empty()
    }

    /// What it writes.
    pub(crate) fn commit(&self) -> Commit {
        let mut commit = Commit::new();
        if self.before.as_ref() != Some(&self.row) {
            commit = commit.put_json(DEPLOYMENTS, self.row.spec.name.clone(), &self.row);
        }
        for row in &self.replicas {
            commit = commit.put_json(REPLICAS, row.engine(), row);
        }
        commit
    }
}

/// What an operator asks of a deployment that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Its replicas are wanted again, and what was given up is tried again.
    Load,
    /// Its replicas go; their requests may take so long (the document's deadline unless said).
    Unload { leave_ms: Option<u64> },
    /// Nothing is begun and nothing taken away until it is taken back.
    Pause(bool),
    /// Its replicas are replaced one after the other.
    Restart,
    /// It goes for good.
    Delete,
}

/// What an operator asks of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskReplica {
    /// It goes; another one comes if it is wanted.
    Leave { leave_ms: Option<u64> },
    /// It is replaced, or tried again if it was given up.
    Restart,
}

impl Deployments {
    /// A change that was committed.
    pub(crate) fn changed(&mut self, change: &Change) {
        self.apply(change.row.clone());
        for row in &change.replicas {
            self.replicas.insert(row.key(), row.clone());
        }
    }

    /// A document that is checked already, as a change.
    ///
    /// # Errors
    /// CONFLICT: with another deployment's names, with one that is going, with another version than the one named.
    pub(crate) fn propose(
        &self,
        spec: DeploymentSpec,
        if_version: Option<u64>,
        author: &str,
        wall: i64,
    ) -> Result<Change, Error> {
        let before = self.rows.get(&spec.name).cloned();
        let version = before.as_ref().map_or(0, |row| row.version);
        if if_version.is_some_and(|wanted| wanted != version) {
            let message = format!("deployment {} is at version {version} now; look again", spec.name);
            return Err(Error::new(Code::Conflict, "CHANGED_MEANWHILE", message));
        }
        if before.as_ref().is_some_and(|row| row.deleting) {
            let message =
                format!("deployment {} is being deleted; apply it again when it is gone", spec.name);
            return Err(Error::new(Code::Conflict, "DEPLOYMENT_DELETING", message));
        }
        if before.is_none() && self.rows.len() >= MAX_DEPLOYMENTS {
            let message =
                format!("a site has at most {MAX_DEPLOYMENTS} deployments; delete those that are over");
            return Err(Error::new(Code::ResourceExhausted, "TOO_MANY_DEPLOYMENTS", message));
        }
        self.check_names(&spec)?;
        let changed = before.as_ref().is_none_or(|row| row.spec != spec);
        let sentence = match &before {
            None => format!("new: {} replicas of {}", spec.replicas, spec.model()),
            Some(row) if changed => differences(&row.spec, &spec).join(", "),
            Some(_) => "nothing is different".to_owned(),
        };
        let row = match &before {
            Some(row) if !changed => row.clone(),
            Some(row) => DeploymentRow {
                engine_digest: spec.engine_digest(),
                spec,
                version: version + 1,
                applied_at_unix_ms: wall,
                applied_by: author.to_owned(),
                ..row.clone()
            },
            None => DeploymentRow {
                engine_digest: spec.engine_digest(),
                spec,
                version: 1,
                created_at_unix_ms: wall,
                applied_at_unix_ms: wall,
                applied_by: author.to_owned(),
                paused: false,
                unloaded: false,
                deleting: false,
                restarts: 0,
                leave_ms: None,
            },
        };
        let mut replicas = self.tried_again(&row.spec.name, wall);
        if !changed {
            // Who says again what is wanted wants what was cancelled.
            let cancelled = |row: &ReplicaRow| {
                let before = self.replicas.get(&row.key());
                before.is_some_and(|before| before.cancelled_by.is_some() || before.cancelled_figures())
            };
            replicas.retain(cancelled);
        }
        Ok(Change { row, before, replicas, sentence })
    }

    /// What is asked of a deployment, as a change.
    ///
    /// # Errors
    /// NOT_FOUND; CONFLICT if it is going already.
    pub(crate) fn ask(&self, name: &str, ask: Ask, wall: i64) -> Result<Change, Error> {
        let before = self.existing(name)?.clone();
        if before.deleting && ask != Ask::Delete {
            let message = format!("deployment {name} is being deleted");
            return Err(Error::new(Code::Conflict, "DEPLOYMENT_DELETING", message));
        }
        let mut row = before.clone();
        let mut replicas = Vec::new();
        let there = self.replicas_of(name).count();
        let sentence = match ask {
            Ask::Load => {
                if before.unloaded {
                    self.check_description(&before.spec)?;
                }
                (row.unloaded, row.leave_ms) = (false, None);
                replicas = self.tried_again(name, wall);
                match (before.unloaded, replicas.len()) {
                    (true, _) => "its replicas were not wanted, and are".to_owned(),
                    (false, 0) => "its replicas are wanted, as they were".to_owned(),
                    (false, again) => {
                        format!("its replicas are wanted; failed ones are tried again: {again}")
                    }
                }
            }
            Ask::Unload { leave_ms } => {
                (row.unloaded, row.leave_ms) = (true, leave_ms);
                let requests = match leave_ms {
                    Some(0) => "are broken off".to_owned(),
                    Some(ms) => format!("may take {} s", ms / 1_000),
                    None => "may take as long as the document says".to_owned(),
                };
                format!("its {there} replicas are not wanted until it is loaded; their requests {requests}")
            }
            Ask::Pause(paused) => {
                row.paused = paused;
                let said = if paused { "nothing is begun or taken away for it" } else { "it goes on" };
                said.to_owned()
            }
            Ask::Restart => {
                row.restarts += 1;
                format!("its {there} replicas are replaced one after the other")
            }
            Ask::Delete => {
                row.deleting = true;
                format!("its {there} replicas go, and then it goes")
            }
        };
        Ok(Change { row, before: Some(before), replicas, sentence })
    }

    /// Somebody says that a deployment is wanted: what was cancelled of it before, and has not ended or was not heard of yet,
    /// holds nothing back. `cancelled`: whether an operator cancelled that job.
    pub(crate) fn wanted_again(&self, change: &mut Change, wall: i64, cancelled: impl Fn(&str) -> bool) {
        let brings_up = |row: &ReplicaRow| {
            let job = row.job.as_ref().filter(|job| matches!(job.kind, JobKind::Acquire | JobKind::Load));
            job.is_some_and(|job| cancelled(&job.id))
        };
        let again = |row: &ReplicaRow| ReplicaRow { asked_at_unix_ms: Some(wall), ..row.clone() };
        let known = |row: &ReplicaRow| change.replicas.iter().any(|other| other.key() == row.key());
        let waits = self.replicas_of(&change.row.spec.name).filter(|row| brings_up(row) && !known(row));
        let waits: Vec<_> = waits.map(again).collect();
        if !waits.is_empty() {
            change.sentence += &format!("; what was cancelled is begun again: {}", waits.len());
            change.replicas.extend(waits);
        }
    }

    /// What is asked of one replica, as a change.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub(crate) fn ask_replica(
        &self,
        name: &str,
        number: u32,
        ask: AskReplica,
        wall: i64,
    ) -> Result<Change, Error> {
        let row = self.existing(name)?.clone();
        let Some(replica) = self.replicas_of(name).find(|one| one.number == number) else {
            let message =
                format!("deployment {name} has no replica {number}; show it to see which there are");
            return Err(Error::new(Code::NotFound, "REPLICA_UNKNOWN", message));
        };
        let mut replica = replica.clone();
        let sentence = match ask {
            AskReplica::Leave { leave_ms } => {
                replica.leave_ms = Some(leave_ms.unwrap_or_else(|| {
                    u64::try_from(row.spec.drain_deadline.0.as_millis()).unwrap_or(u64::MAX)
                }));
                format!("{} goes", replica.engine())
            }
            AskReplica::Restart if replica.state == ReplicaState::Failed => {
                replica = again(&replica, wall);
                format!("{} is tried again", replica.engine())
            }
            AskReplica::Restart => {
                replica.condemned = true;
                format!("{} is replaced", replica.engine())
            }
        };
        Ok(Change { before: Some(row.clone()), row, replicas: vec![replica], sentence })
    }

    /// A deployment of this name.
    ///
    /// # Errors
    /// NOT_FOUND.
    pub(crate) fn existing(&self, name: &str) -> Result<&DeploymentRow, Error> {
        self.rows.get(name).ok_or_else(|| {
            let message = format!("this site has no deployment {name}; list them to see which there are");
            Error::new(Code::NotFound, "DEPLOYMENT_UNKNOWN", message)
        })
    }

    fn tried_again(&self, name: &str, wall: i64) -> Vec<ReplicaRow> {
        let stuck = |row: &&ReplicaRow| row.state == ReplicaState::Failed || row.cancelled_figures();
        let stuck = self.replicas_of(name).filter(stuck);
        stuck.map(|row| again(row, wall)).filter(|new| self.replicas.get(&new.key()) != Some(new)).collect()
    }

    /// Each name of a model means one model, described the same way by all who serve it.
    fn check_names(&self, spec: &DeploymentSpec) -> Result<(), Error> {
        for other in self.rows.values().map(|row| &row.spec).filter(|other| other.name != spec.name) {
            if other.model() == spec.model() {
                continue;
            }
            let names = |spec: &DeploymentSpec| {
                std::iter::once(spec.model().to_owned()).chain(spec.aliases.clone()).collect::<Vec<String>>()
            };
            let theirs = names(other);
            if let Some(taken) = names(spec).into_iter().find(|name| theirs.contains(name)) {
                return Err(name_taken(format!(
                    "\"{taken}\" means {} already, which deployment {} serves",
                    other.model(),
                    other.name
                )));
            }
        }
        let Some(other) = self.described_otherwise(spec) else { return Ok(()) };
        Err(name_taken(format!(
            "deployment {other} serves {} too, and with other aliases or another long_context_threshold_tokens; they have to be \
             the same. To change them, have {other} rest meanwhile: umbel ctl model drain {other} -m 'other aliases', apply this \
             document, apply that of {other} with the same, umbel ctl model load {other}",
            spec.model(),
        )))
    }

    /// One that rested may have been left behind: the others describe the model otherwise by now.
    fn check_description(&self, spec: &DeploymentSpec) -> Result<(), Error> {
        let Some(other) = self.described_otherwise(spec) else { return Ok(()) };
        Err(name_taken(format!(
            "deployment {other} serves {} with other aliases or another long_context_threshold_tokens by now; apply a document \
             of {} with the same, and load it then",
            spec.model(),
            spec.name
        )))
    }

    /// A deployment that serves the same model and describes it otherwise. One that is not wanted and has no replica serves
    /// nobody: what it says counts again when it is loaded.
    fn described_otherwise(&self, spec: &DeploymentSpec) -> Option<&str> {
        let described = |spec: &DeploymentSpec| {
            let mut aliases = spec.aliases.clone();
            aliases.sort();
            (aliases, spec.long_context_threshold_tokens)
        };
        let serves =
            |row: &&DeploymentRow| row.wanted() > 0 || self.replicas_of(&row.spec.name).next().is_some();
        let others = self.rows.values().filter(|row| row.spec.name != spec.name).filter(serves);
        let mut others = others.map(|row| &row.spec).filter(|other| other.model() == spec.model());
        others.find(|other| described(other) != described(spec)).map(|other| other.name.as_str())
    }
}

fn name_taken(message: String) -> Error {
    Error::new(Code::Conflict, "MODEL_NAME_TAKEN", message)
}

/// A failed replica that is tried again at once, or one that is asked again to take its figures.
fn again(row: &ReplicaRow, wall: i64) -> ReplicaRow {
    if row.state != ReplicaState::Failed {
        return ReplicaRow { not_taken: None, cause: String::new(), ..row.clone() };
    }
    ReplicaRow {
        failures: 0,
        retry_at_unix_ms: Some(wall),
        ruled_out: Vec::new(),
        causes: BTreeMap::new(),
        avoid: Vec::new(),
        cancelled_by: None,
        ..row.clone()
    }
}

/// The fields that became another, with what they were: a text of bounded length for each.
pub(super) fn differences(before: &DeploymentSpec, after: &DeploymentSpec) -> Vec<String> {
    let fields = |spec: &DeploymentSpec| serde_json::to_value(spec).unwrap_or_default();
    let said = diff(&fields(before), &fields(after)).into_iter().map(|one| {
        // A list of files, and any text that would fill the entry alone.
        let long = |value: &Value| value.to_string().len() > LONGEST_VALUE;
        match long(&one.from) || long(&one.to) {
            true => format!("{} is another", one.path),
            false => format!("{} {} -> {}", one.path, word(&one.from), word(&one.to)),
        }
    });
    said.collect()
}

fn word(value: &Value) -> String {
    if value.is_null() { "not set".to_owned() } else { value.to_string() }
}
