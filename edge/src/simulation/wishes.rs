//! What a world looks at to judge deployments and jobs: rows in memory and on the disk, and what each round ordered.
//!
//! Owns plain values. Invariant: looking changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use umbel_store::simulation::Disk;

use super::Edge;
use crate::core::deployments::{
    DEPLOYMENTS, Deployments as Table, EngineWord, Facts, Outcome, REPLICAS, ReplicaRow, ReplicaState,
    Standing, Work,
};
use crate::core::jobs::{JOBS, JobRow};

/// Rows of one process.
#[derive(Clone, Debug, Default)]
pub struct WishesView {
    /// Deployments, as their rows are written.
    pub deployments: BTreeMap<String, serde_json::Value>,
    /// Replicas by their engines' names, as their rows are written.
    pub replicas: BTreeMap<String, serde_json::Value>,
    /// Jobs by id.
    pub jobs: BTreeMap<String, JobView>,
    /// Nothing is on its way to the disk.
    pub rests: bool,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// Its node.
    pub node: String,
    /// Its kind.
    pub kind: String,
    /// What it is about.
    pub subject: String,
    /// It has come to this end.
    pub ended: Option<String>,
    /// Attempts that came to nothing.
    pub failures: u32,
    /// The lease in force.
    pub lease: Option<String>,
    /// Somebody wants its end.
    pub cancelled: bool,
}

/// What a round was told, and what it came to.
#[derive(Clone, Debug)]
pub struct RoundView {
    /// By the edge's clock.
    pub now: Instant,
    /// Nodes: lost, gone, draining.
    pub nodes: BTreeMap<String, (bool, bool, bool)>,
    /// Engines that their nodes call ready, by node and name.
    pub ready: Vec<(String, String)>,
    /// Deployments before: replicas that are wanted, paused.
    pub wanted: BTreeMap<String, (u32, bool)>,
    /// Replicas before.
    pub replicas: BTreeMap<String, ReplicaView>,
    /// Engines that are to be drained or unloaded.
    pub orders: Vec<Ordered>,
    /// Replicas that were begun.
    pub begun: Vec<String>,
    /// Replicas that go from now on, or are gone.
    pub ended: Vec<String>,
}

/// A replica before a round.
#[derive(Clone, Debug, Default)]
pub struct ReplicaView {
    /// Its deployment.
    pub deployment: String,
    /// Its node.
    pub node: String,
    /// Its GPUs, if they are not free for others.
    pub gpus: Vec<String>,
    /// It is lost.
    pub lost: bool,
    /// It is ready.
    pub ready: bool,
    /// It is on its way out.
    pub goes: bool,
    /// It is outdated, or an operator wants it to go.
    pub unwanted: bool,
}

/// An order that takes an engine away.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// Where.
    pub node: String,
    /// Which.
    pub engine: String,
}

impl RoundView {
    pub(super) fn before(table: &Table, facts: &Facts) -> Self {
        let mut view = Self {
            now: facts.now,
            nodes: BTreeMap::new(),
            ready: Vec::new(),
            wanted: BTreeMap::new(),
            replicas: BTreeMap::new(),
            orders: Vec::new(),
            begun: Vec::new(),
            ended: Vec::new(),
        };
        for (id, node) in &facts.nodes {
            let standing = (node.standing == Standing::Lost, node.standing == Standing::Gone, node.draining);
            view.nodes.insert(id.to_string(), standing);
            let ready = node.engines.iter().filter(|(_, engine)| engine.state == EngineWord::Ready);
            view.ready.extend(ready.map(|(name, _)| (id.to_string(), name.clone())));
        }
        for (name, row) in &table.rows {
            view.wanted.insert(name.clone(), (row.wanted(), row.paused && !row.deleting));
        }
        for row in table.replicas.values() {
            let outdated = table.rows.get(&row.deployment).is_some_and(|deployment| deployment.outdates(row));
            let replica = ReplicaView {
                deployment: row.deployment.clone(),
                node: row.node.to_string(),
                gpus: if row.holds() { row.gpus.clone() } else { Vec::new() },
                lost: row.state == ReplicaState::Lost,
                ready: row.state == ReplicaState::Ready,
                goes: row.state.goes(),
                unwanted: outdated || row.leave_ms.is_some(),
            };
            view.replicas.insert(row.engine(), replica);
        }
        view
    }

    /// Nodes that are lost.
    #[must_use]
    pub fn lost(&self) -> BTreeSet<String> {
        self.nodes.iter().filter(|(_, (lost, ..))| *lost).map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn and(mut self, outcome: &Outcome) -> Self {
        let ends = outcome.orders.iter().filter_map(|order| match &order.work {
            Work::Unload { engine } | Work::Drain { engine, .. } => {
                Some(Ordered { node: order.node.to_string(), engine: engine.clone() })
            }
            Work::Load { .. } | Work::Acquire { .. } => None,
        });
        self.orders = ends.collect();
        let goes = |row: &Option<ReplicaRow>| row.as_ref().is_none_or(|row| row.state.goes());
        let (ended, stays): (Vec<_>, Vec<_>) = outcome.replicas.iter().partition(|(_, row)| goes(row));
        self.ended = ended.iter().map(|(key, _)| key.engine()).collect();
        let stays = stays.iter().map(|(key, _)| key.engine());
        self.begun = stays.filter(|engine| !self.replicas.contains_key(engine)).collect();
        self
    }
}

fn job(row: &JobRow) -> JobView {
    JobView {
        node: row.node.clone(),
        kind: row.kind.clone(),
        subject: row.subject.clone(),
        ended: row.state.is_end().then(|| row.state.as_str().to_owned()),
        failures: row.failures,
        lease: row.lease.as_ref().map(|lease| lease.id.clone()),
        cancelled: row.cancel_requested,
    }
}

impl Edge {
    /// Grows whenever something of it is different.
    #[must_use]
    pub fn wishes_version(&self) -> u64 {
        self.deployments.version + self.jobs.version
    }

    /// Rows as this process has them.
    #[must_use]
    pub fn wishes(&self) -> WishesView {
        let table = &self.deployments.table;
        WishesView {
            deployments: table.rows.iter().map(|(name, row)| (name.clone(), value(row))).collect(),
            replicas: table.replicas.values().map(|row| (row.engine(), value(row))).collect(),
            jobs: self
                .jobs
                .table
                .list(|_| true)
                .iter()
                .map(|view| (view.id.clone(), job(&view.row)))
                .collect(),
            rests: !self.deployments.turn && self.jobs_rest(),
        }
    }

    /// Why a deployment has fewer replicas than it wants.
    #[must_use]
    pub fn unplaced(&self, name: &str) -> Option<String> {
        self.deployments.table.unplaced(name).map(|unplaced| unplaced.reason.clone())
    }

    /// One job.
    #[must_use]
    pub fn job(&self, id: &str) -> Option<JobView> {
        self.jobs.table.view(id).map(|view| job(&view.row))
    }
}

fn value(row: &impl serde::Serialize) -> serde_json::Value {
    serde_json::to_value(row).unwrap_or_default()
}

/// The same as they stand on a disk.
#[must_use]
pub fn stored_wishes(disk: &mut Disk) -> WishesView {
    let mut values = |table: &str| {
        let rows = disk.load(table).unwrap_or_default();
        rows.into_iter()
            .filter_map(|row| Some((row.key.clone(), row.json::<serde_json::Value>().ok()?)))
            .collect::<BTreeMap<_, _>>()
    };
    let (deployments, replicas) = (values(DEPLOYMENTS), values(REPLICAS));
    let rows = disk.load(JOBS).unwrap_or_default();
    let jobs = rows.into_iter().filter_map(|row| Some((row.key.clone(), job(&row.json::<JobRow>().ok()?))));
    WishesView { deployments, replicas, jobs: jobs.collect(), rests: true }
}
