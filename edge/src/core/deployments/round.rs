//! One round of the reconciler: every replica a step on, then every deployment nearer to what is wanted.
//!
//! Owns the outcome, what is looked at in which order, and engines that nobody wants. Leaves one replica's steps to
//! [`super::replica`] and the counts to [`super::balance`]. Invariant: nothing is told or ordered that the outcome's rows do
//! not say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umbel_contracts::deployment::{ArtifactSpec, DeploymentSpec};
use umbel_contracts::proto::node::job_lease::Body;
use umbel_store::{AuditRecord, Commit};
use umbel_wire::NodeId;

use super::facts::{Facts, JobFact, Places, Standing};
use super::rows::{DeploymentRow, JobKind, JobRef, ReplicaKey, ReplicaRow, ReplicaState};
use super::{DEPLOYMENTS, Deployments, REPLICAS, STEPS_A_ROUND};
use crate::core::jobs::{self, FilesAt};

/// Who is named in the audit for what follows from the rows.
const ACTOR: &str = "edge";

/// A stray engine's end is asked for again no sooner than this, and not while its job has not ended.
const AGAIN: Duration = Duration::from_secs(60);

/// What a job is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Fetch the files.
    Acquire { artifact: Box<ArtifactSpec> },
    /// Start the engine, or give it other figures.
    Load { spec: Box<DeploymentSpec>, number: u32, gpus: Vec<String>, files: Option<FilesAt> },
    /// Take no new request and wait for those that run.
    Drain { engine: String, deadline: Duration },
    /// End the engine.
    Unload { engine: String },
}

/// A job to submit, under an id that a row names already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) node: NodeId,
    /// The deployment it is for.
    pub(crate) deployment: String,
    pub(crate) work: Work,
}

impl Order {
    /// The same, as jobs have it.
    pub(crate) fn of_job(&self, body: Body) -> jobs::Order {
        jobs::Order {
            id: Some(self.id.clone()),
            node: self.node,
            body,
            owner: format!("deployment/{}", self.deployment),
            actor: ACTOR.to_owned(),
            reason: String::new(),
        }
    }
}

/// What people are told once it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) kind: &'static str,
    /// The engine's name, or the deployment's.
    pub(crate) subject: String,
    pub(crate) node: Option<NodeId>,
    pub(crate) message: String,
    /// It also stands in the audit.
    pub(crate) audited: bool,
}

/// What a round comes to: committed first, then applied, then carried out and told.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// New rows; `None`: the row goes.
    pub(crate) replicas: BTreeMap<ReplicaKey, Option<ReplicaRow>>,
    /// Deployments that have gone.
    pub(crate) gone: Vec<String>,
    pub(crate) orders: Vec<Order>,
    /// Jobs whose end nobody wants any more.
    pub(crate) cancels: Vec<String>,
    pub(crate) told: Vec<Told>,
}

impl Outcome {
    /// Whether nothing is different, and nothing has to be kept of it.
    pub(crate) fn is_empty(&self) -> bool {
        !self.stores() && self.orders.is_empty() && self.cancels.is_empty()
    }

    /// Whether something has to be kept of it. What is only asked for (again) is not different after it.
    pub(crate) fn stores(&self) -> bool {
        !self.replicas.is_empty() || !self.gone.is_empty() || self.told.iter().any(|one| one.audited)
    }

    /// All of it as one write, with what the audit is told.
    pub(crate) fn commit(&self) -> Commit {
        let mut commit = Commit::new();
        for (key, row) in &self.replicas {
            commit = match row {
                Some(row) => commit.put_json(REPLICAS, key.engine(), row),
                None => commit.remove(REPLICAS, key.engine()),
            };
        }
        for name in &self.gone {
            commit = commit.remove(DEPLOYMENTS, name.clone());
        }
        for told in self.told.iter().filter(|told| told.audited) {
            let record = AuditRecord::new(told.kind, told.subject.clone(), "observed");
            commit = commit.audit(record.by(ACTOR).because(told.message.clone()));
        }
        commit
    }
}

/// A round under way.
pub(super) struct Round<'a> {
    pub(super) state: &'a mut Deployments,
    /// The replicas as this round leaves them.
    pub(super) work: BTreeMap<ReplicaKey, ReplicaRow>,
    pub(super) facts: &'a Facts,
    /// Now, as [`super::clock`] has it.
    pub(super) wall: i64,
    pub(super) places: &'a mut dyn Places,
    pub(super) ids: &'a mut dyn FnMut() -> String,
    pub(super) out: Outcome,
}

impl Deployments {
    /// What to do next. `ids` gives ids for jobs. Only what is known in memory changes here, of a copy that counts once the
    /// outcome is committed; rows change when it is [`Deployments::applied`].
    pub(crate) fn decide(
        &mut self,
        facts: &Facts,
        places: &mut dyn Places,
        ids: &mut dyn FnMut() -> String,
    ) -> Outcome {
        let work = self.replicas.clone();
        let rows: Vec<DeploymentRow> = self.rows.values().cloned().collect();
        let stored = || work.values().map(|row| row.since_unix_ms).max().unwrap_or(i64::MIN);
        let wall = self.clock.read(facts.now, facts.wall, stored);
        let mut round = Round { state: self, work, facts, wall, places, ids, out: Outcome::default() };
        round.look_at_nodes();
        let given_up = |key: &ReplicaKey| round.work.get(key).is_some_and(ReplicaRow::given_up);
        round.state.looked.retain(|key, _| given_up(key));
        let failed =
            |key: &ReplicaKey| round.work.get(key).is_some_and(|row| row.state == ReplicaState::Failed);
        round.state.nowhere.retain(|key, _| failed(key));
        round.strays();
        let keys: Vec<ReplicaKey> = round.work.keys().cloned().collect();
        for key in keys {
            if round.is_full() {
                break;
            }
            if let Some(row) = round.work.get(&key).cloned() {
                round.step(row);
            }
        }
        for row in &rows {
            if !round.is_full() {
                round.balance(row);
            }
        }
        round.out
    }
}

impl Round<'_> {
    pub(super) fn is_full(&self) -> bool {
        self.out.orders.len() >= STEPS_A_ROUND
    }

    fn look_at_nodes(&mut self) {
        let facts = self.facts;
        let carry: BTreeSet<NodeId> = self.work.values().map(|row| row.node).collect();
        let idle =
            carry.into_iter().filter(|node| !facts.eligible(node)).map(|node| (node, facts.name(&node)));
        self.state.idle = idle.collect();
        self.state.lost.retain(|node, _| facts.standing(node) == Standing::Lost);
        for (node, fact) in &facts.nodes {
            if fact.standing == Standing::Lost {
                self.state.lost.entry(*node).or_insert(facts.now);
            }
        }
        if self.state.guard.look(&self.state.lost, facts) {
            let (kind, message) = match self.state.guard.held() {
                Some(held) => ("deployments_held", held.sentence()),
                None => (
                    "deployments_released",
                    "enough nodes are back: lost replicas are replaced again".to_owned(),
                ),
            };
            self.out.told.push(Told { kind, subject: String::new(), node: None, message, audited: true });
        }
    }

    /// Engines of deployments that no row wants where they are.
    fn strays(&mut self) {
        let facts = self.facts;
        let present = |(node, engine): &(NodeId, String)| {
            facts.engine(node, engine).is_some() && facts.nodes.contains_key(node)
        };
        self.state.strays.retain(|at, _| present(at));
        if self.state.unreadable {
            return;
        }
        // One that has failed wants no engine, and its own may have outlasted the order to end it; a server that nobody here
        // starts is left with its node.
        let wants = |row: &&ReplicaRow| {
            row.state != ReplicaState::Failed || row.job.is_some() || self.is_only_asked(row)
        };
        let wanted: BTreeSet<(NodeId, String)> =
            self.work.values().filter(wants).map(|row| (row.node, row.engine())).collect();
        for (node, fact) in facts.nodes.iter().filter(|(_, fact)| fact.standing == Standing::Here) {
            // One that is drained or on its way down too: whoever wanted that may have ended before it was unloaded.
            for engine in fact.engines.keys() {
                let at = (*node, engine.clone());
                let lately = self.state.strays.get(&at).is_some_and(|(id, since)| {
                    matches!(facts.job(id), JobFact::Open | JobFact::Ending)
                        || facts.now.saturating_duration_since(*since) < AGAIN
                });
                if wanted.contains(&at) || lately || self.is_full() {
                    continue;
                }
                let id = (self.ids)();
                self.state.strays.insert(at, (id.clone(), facts.now));
                let deployment = engine.split('.').next().unwrap_or_default().to_owned();
                let work = Work::Unload { engine: engine.clone() };
                self.out.orders.push(Order { id, node: *node, deployment, work });
                let message = format!("{engine} on {} is wanted by nobody: it is unloaded", fact.name);
                self.tell("replica_unwanted", engine.clone(), Some(*node), message, true);
            }
        }
    }

    /// The replicas of a deployment as the round has them.
    pub(super) fn of(&self, name: &str) -> Vec<ReplicaRow> {
        let first = ReplicaKey { deployment: name.to_owned(), number: 0 };
        let rows = self.work.range(first..).take_while(|(key, _)| key.deployment == name);
        rows.map(|(_, row)| row.clone()).collect()
    }

    pub(super) fn tell(
        &mut self,
        kind: &'static str,
        subject: String,
        node: Option<NodeId>,
        message: String,
        audited: bool,
    ) {
        self.out.told.push(Told { kind, subject, node, message, audited });
    }

    /// The row as this round leaves it.
    pub(super) fn put(&mut self, row: ReplicaRow) {
        let key = row.key();
        if self.state.replicas.get(&key) == Some(&row) {
            self.out.replicas.remove(&key);
        } else {
            self.out.replicas.insert(key.clone(), Some(row.clone()));
        }
        self.work.insert(key, row);
    }

    /// The row goes.
    pub(super) fn forget(&mut self, row: &ReplicaRow) {
        let key = row.key();
        self.state.gone_at = Some(self.facts.now);
        self.work.remove(&key);
        if self.state.replicas.contains_key(&key) {
            self.out.replicas.insert(key, None);
        } else {
            self.out.replicas.remove(&key);
        }
    }

    /// Orders a job for a replica under a new id.
    pub(super) fn order(&mut self, row: &mut ReplicaRow, kind: JobKind, work: Work) {
        let id = (self.ids)();
        row.job = Some(JobRef { id: id.clone(), kind, figures: None });
        row.asked_at_unix_ms = None;
        self.out.orders.push(Order { id, node: row.node, deployment: row.deployment.clone(), work });
    }
}
