//! Jobs of the running edge: asked for, given to their nodes, followed, ended.
//!
//! Owns the order: a change of a job is decided, committed with its audit entry, applied and only then told; changes of one
//! job stand in a row. Leaves the rules to `core/jobs` and sending to [`give`]. Invariants: what [`submit`] returned is on
//! disk; the table's lock is never held across an await; whoever waits for an end sees it by [`Jobs::changes`].

mod answer;
pub(crate) mod gauges;
mod give;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use umbel_contracts::objects::{JobObject, JobState};
use umbel_contracts::proto::control::{JobFigures, JobSetback, JobSnapshot, JobStep};
use umbel_contracts::proto::node::JobProgress;
use umbel_store::{AuditRecord, Commit};
use umbel_wire::{Code, Error, Generation, NodeId, clock};

use crate::core::jobs::{ATTEMPTS, JOBS, JobRow, JobView, Jobs as Table, Order};
use crate::shell::commands::store_error;
use crate::shell::events::Happened;
use crate::shell::nodes::Turns;
use crate::shell::site::Site;

pub(crate) use answer::{is_ours, taken};
pub(crate) use give::keep;

/// All jobs of the site.
pub(crate) struct Jobs {
    table: Mutex<Table>,
    /// Changes of one job stand in a row.
    turns: Turns,
    /// Somebody may get something.
    wake: Notify,
    changed: watch::Sender<u64>,
}

impl Jobs {
    /// Takes up what is stored.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) async fn load(store: &umbel_store::Store) -> Result<Self, umbel_store::ReadError> {
        let mut table = Table::default();
        let now = clock::now();
        for (stored, row) in store.load_json::<JobRow>(JOBS).await? {
            if NodeId::parse(&row.node).is_err() {
                store.not_usable(JOBS, &stored.key, "its node is no node id");
                continue;
            }
            table.apply(&stored.key, row, now);
        }
        let changed = watch::Sender::new(0);
        Ok(Self { table: Mutex::new(table), turns: Turns::default(), wake: Notify::new(), changed })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ticks whenever a job was asked for, was given or has ended: look again.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Those that match, the newest first; without what only [`show`] has.
    pub(crate) fn list(&self, matches: impl Fn(&JobView) -> bool) -> Vec<JobView> {
        self.table().list(matches)
    }

    /// One job, without what only [`show`] has.
    pub(crate) fn view(&self, id: &str) -> Option<JobView> {
        self.table().view(id)
    }

    /// Those that have not ended, the newest first, at most `most`: of one node, or of all.
    pub(crate) fn open(&self, node: Option<NodeId>, most: usize) -> Vec<JobView> {
        self.table().open(node, most)
    }

    /// How many wait for their node to have room, and how many their node has.
    pub(crate) fn figures(&self) -> JobFigures {
        let (queued, running) = self.table().figures();
        JobFigures { queued, running }
    }

    /// A node's connection has ended.
    pub(crate) fn closed(&self, node: NodeId, generation: Generation) {
        self.table().closed(node, generation);
    }

    /// A node may be gone for good.
    pub(crate) fn look(&self) {
        self.wake.notify_one();
    }

    fn tick(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        self.wake.notify_one();
    }
}

/// A job as it leaves the site: without its report, its sentences short.
pub(crate) fn snapshot(site: &Site, view: &JobView) -> JobSnapshot {
    let row = &view.row;
    let name = |id: NodeId| site.read(|registry| registry.node(&id).map(|node| node.row.name.clone()));
    JobSnapshot {
        job_id: view.id.clone(),
        kind: row.kind.clone(),
        subject: row.subject.clone(),
        node_id: row.node.clone(),
        node_name: NodeId::parse(&row.node).ok().and_then(name).unwrap_or_default(),
        owner: row.owner.clone(),
        actor: row.actor.clone(),
        reason: row.reason.clone(),
        state: view.state.to_proto().into(),
        attempt: row.attempt(),
        attempts_max: ATTEMPTS,
        cancel_requested: row.cancel_requested && !row.state.is_end(),
        step: view.progress.as_ref().map(step),
        submitted_at_unix_ms: row.submitted_at_unix_ms,
        started_at_unix_ms: row.started_at_unix_ms.unwrap_or(0),
        ended_at_unix_ms: row.ended_at_unix_ms.unwrap_or(0),
        failure: row.failure.as_ref().map(|short| JobSetback {
            code: short.code.clone(),
            message: short.message.clone(),
            path: short.path.clone(),
            retry: short.retry,
        }),
    }
}

/// How far a job is, as it leaves the site.
pub(crate) fn step(said: &JobProgress) -> JobStep {
    JobStep {
        phase: said.phase.clone(),
        done: said.done,
        total: said.total,
        unit: said.unit.clone(),
        message: said.message.clone(),
    }
}

/// A job as operators see it.
pub(crate) fn object(site: &Site, view: &JobView) -> JobObject {
    JobObject::from_proto(snapshot(site, view))
}

/// One job with its report or failure in full, as they are on disk.
///
/// # Errors
/// NOT_FOUND; INTERNAL if the store cannot be read.
pub(crate) async fn show(site: &Site, id: &str) -> Result<JobObject, Error> {
    let unreadable =
        |error: umbel_store::ReadError| Error::new(Code::Internal, "STORE_UNREADABLE", error.to_string());
    let view = site.jobs.view(id).ok_or_else(|| {
        let message = "this edge has no such job; ended ones are kept for 7 days";
        Error::new(Code::NotFound, "UNKNOWN_JOB", message)
    })?;
    let mut object = object(site, &view);
    let stored = site.store.get(JOBS, id).await.map_err(unreadable)?;
    if let Some(row) = stored.map(|row| row.json::<JobRow>()).transpose().map_err(unreadable)? {
        object.failure = row.failure().or(object.failure);
        object.report = row.report();
    }
    Ok(object)
}

/// A new job's id.
pub(crate) fn new_id() -> String {
    uuid::Uuid::new_v4().hyphenated().to_string()
}

/// Queues a job for a node. It is on disk when this returns; an id that is known already is that job, whatever its state.
///
/// # Errors
/// A full queue, a node that is gone for good, a store that cannot be written: nothing is queued.
pub(crate) async fn submit(site: &Site, order: Order) -> Result<String, Error> {
    let id = order.id.clone().unwrap_or_else(new_id);
    let owner = order.owner.strip_prefix("deployment/").map(|name| format!(", for {name}"));
    let what = format!("{}{}", order.about(), on(site, Some(order.node)));
    let reason = Some(&order.reason).filter(|reason| !reason.is_empty()).map(|reason| format!(": {reason}"));
    let told = format!("{what}{}{}", owner.unwrap_or_default(), reason.unwrap_or_default());
    let record = AuditRecord::new("job.submit", &id, "succeeded").by(&order.actor).because(told);
    submit_with(site, &id, order, Commit::new().audit(record)).await?;
    Ok(id)
}

/// Queues a job under an id that the caller made, in one commit with what else it has to write.
///
/// # Errors
/// As [`submit`].
pub(crate) async fn submit_with(site: &Site, id: &str, order: Order, also: Commit) -> Result<(), Error> {
    let node = order.node;
    // Those of one node in a row, so that its queue's bound holds.
    let turn = site.jobs.turns.take(format!("node {node}")).await;
    if site.jobs.view(id).is_some() {
        return Ok(());
    }
    let row = proposed(site, order)?;
    store_new(site, vec![(id.to_owned(), row)], also).await?;
    drop(turn);
    Ok(())
}

/// Queues a job for each of several nodes in one commit with what else the caller has to write, which it makes of them.
///
/// # Errors
/// As [`submit`]; nothing is queued for any of them.
pub(crate) async fn submit_all(
    site: &Site,
    mut orders: Vec<Order>,
    also: impl FnOnce(&[JobObject]) -> Result<Commit, Error>,
) -> Result<(), Error> {
    // In one order for everybody, so that nobody waits for another who waits.
    orders.sort_by_key(|order| order.node);
    let mut turns = Vec::with_capacity(orders.len());
    for order in &orders {
        turns.push(site.jobs.turns.take(format!("node {}", order.node)).await);
    }
    let rows: Result<Vec<_>, Error> =
        orders.into_iter().map(|order| Ok((new_id(), proposed(site, order)?))).collect();
    let rows = rows?;
    let view = |(id, row): &(String, JobRow)| {
        let row = std::sync::Arc::new(row.clone());
        object(site, &JobView { id: id.clone(), state: row.state, row, progress: None })
    };
    let objects: Vec<_> = rows.iter().map(view).collect();
    let also = also(&objects)?;
    store_new(site, rows, also).await
}

/// The row of a new job, if its node can have it.
fn proposed(site: &Site, order: Order) -> Result<JobRow, Error> {
    let node = order.node;
    if site.read(|registry| registry.node(&node).is_none_or(|node| node.is_tombstone())) {
        let message = "this node was decommissioned, or never was one of this site";
        return Err(Error::new(Code::Gone, "NODE_DECOMMISSIONED", message));
    }
    site.jobs.table().submit(order, site.wall())
}

async fn store_new(site: &Site, rows: Vec<(String, JobRow)>, also: Commit) -> Result<(), Error> {
    let overdue = site.jobs.table().overdue(site.wall());
    let put = |commit: Commit, (id, row): &(String, JobRow)| {
        commit.require_absent(JOBS, id.clone()).put_json(JOBS, id.clone(), row)
    };
    let commit = rows.iter().fold(Commit::new(), put).and(also);
    let commit = overdue.iter().fold(commit, |commit, old| commit.remove(JOBS, old.clone()));
    site.store.commit(commit).await.map_err(|error| store_error(&error))?;
    let ids: Vec<_> = rows.iter().map(|(id, _)| id.clone()).collect();
    {
        let mut table = site.jobs.table();
        for old in &overdue {
            table.forget(old);
        }
        for (id, row) in rows {
            table.apply(&id, row, clock::now());
        }
    }
    for id in ids {
        tell(site, &id, "job_queued");
    }
    Ok(())
}

/// Asks for a job's end: one that waits is cancelled at once, one that runs is ended by its node. `by`: the operator who does,
/// whose word is kept whoever asked before; `None` for the edge itself.
///
/// # Errors
/// NOT_FOUND; CONFLICT if it came to another end; a store that cannot be written.
pub(crate) async fn cancel(site: &Site, id: &str, by: Option<&str>, also: Commit) -> Result<(), Error> {
    let turn = site.jobs.turns.take(id.to_owned()).await;
    let row = site.jobs.table().cancel(id, by, site.wall())?;
    let Some(row) = row else {
        // It was said before; what the caller writes stands by itself.
        return site.store.commit(also).await.map(drop).map_err(|error| store_error(&error));
    };
    change(site, id, row, also, clock::now()).await?;
    drop(turn);
    Ok(())
}

/// What a job does where, for the audit: `artifact.acquire org/name@revision on gpu-1`.
pub(crate) fn about(job: &JobObject) -> String {
    format!("{} {} on {}", job.kind, job.subject, job.node_name.as_ref().unwrap_or(&job.node_id))
}

fn on(site: &Site, node: Option<NodeId>) -> String {
    let name = node.and_then(|id| site.read(|registry| registry.node(&id).map(|node| node.row.name.clone())));
    name.map(|name| format!(" on {name}")).unwrap_or_default()
}

/// Stores a job's changed row, with the audit's entry of an end, applies it and tells of it. Its turn is taken.
async fn change(site: &Site, id: &str, row: JobRow, also: Commit, now: Instant) -> Result<(), Error> {
    let mut commit = Commit::new().put_json(JOBS, id, &row).and(also);
    if row.state.is_end() {
        let outcome = if row.state == JobState::Succeeded { "succeeded" } else { row.state.as_str() };
        let failure = row.failure.as_ref().filter(|_| row.state != JobState::Succeeded);
        let cause = failure.map(|failure| format!(": {}", failure.code)).unwrap_or_default();
        let about = format!("{} {}{}", row.kind, row.subject, on(site, NodeId::parse(&row.node).ok()));
        let record = AuditRecord::new("job.ended", id, outcome).by("edge");
        commit = commit.audit(record.because(format!("{about}{cause}")));
    }
    site.store.commit(commit).await.map_err(|error| store_error(&error))?;
    let same_lease = site.jobs.view(id).is_some_and(|before| before.row.lease == row.lease);
    let kind = match row.state {
        JobState::Succeeded => "job_succeeded",
        JobState::Failed => "job_failed",
        JobState::Cancelled => "job_cancelled",
        JobState::Queued => "job_queued",
        _ if row.cancel_requested && same_lease => "job_cancelling",
        _ => "job_leased",
    };
    site.jobs.table().apply(id, row, now);
    tell(site, id, kind);
    Ok(())
}

fn tell(site: &Site, id: &str, kind: &'static str) {
    site.jobs.tick();
    let Some(view) = site.jobs.view(id) else { return };
    let row = &view.row;
    let cause = row.failure.as_ref().filter(|_| row.state != JobState::Succeeded);
    let cause = cause.map(|failure| format!(": {}", failure.code)).unwrap_or_default();
    site.events.tell(Happened {
        kind,
        node_id: row.node.clone(),
        deployment: row.owner.strip_prefix("deployment/").unwrap_or_default().to_owned(),
        job_id: id.to_owned(),
        message: format!("job {id}, {} {}, attempt {}{cause}", row.kind, row.subject, row.attempt()),
        ..Happened::default()
    });
}
