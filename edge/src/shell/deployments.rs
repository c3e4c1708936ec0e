//! Deployments of the running edge: rounds of the reconciler, carried out.
//!
//! Owns the order: a round is decided on a copy, committed whole, applied, and only then carried out and told; rounds and
//! operators' changes stand in a row, and who reads meanwhile waits for neither. Leaves the rules to `core/deployments`, places to `core/placement`, jobs to `shell/jobs`.
//! Invariants: a row names its job before the job is asked for, so that nothing is done that no row knows of; what a store
//! refuses has not happened.

mod figures;
pub(crate) mod gauges;
mod view;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::Notify;
use umbel_store::{Commit, CommitError, ReadError, Store};
use umbel_wire::{Error, NodeId, clock};

use crate::core::deployments::change::Change;
use crate::core::deployments::reading::{self, NodePlaces};
use crate::core::deployments::{
    DEPLOYMENTS, DeploymentRow, Deployments as Table, Order, Outcome, REPLICAS, ReplicaRow, Told, bodies,
};
use crate::core::registry::Moment;
use crate::core::registry::abilities::ArtifactRow;
use crate::core::registry::node::Node;
use crate::shell::events::Happened;
use crate::shell::site::Site;

pub(crate) use figures::Summary;
pub(crate) use view::{against, given_away, misplaced, object, snapshot};

/// Without news everybody is looked at again this often: delays end, and what was missed is seen.
const LOOK: Duration = Duration::from_secs(5);
/// Rounds begin at most this often: many reports are one round.
const PAUSE: Duration = Duration::from_millis(250);
/// Rounds of a large site take so small a part of a core at most.
const SHARE: u32 = 10;
/// Rounds one after another before others have their turn.
const IN_A_ROW: usize = 16;
/// Buckets of a round's time, in seconds.
const ROUNDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];
/// Jobs that are written at the same time.
const AT_ONCE: usize = 32;

/// All deployments of the site.
pub(crate) struct Deployments {
    /// What whoever reads it sees; whoever changes it puts another one in its place.
    table: Mutex<Arc<Table>>,
    /// There are some: what nodes report may mean something for them.
    busy: AtomicBool,
    /// Rounds and changes stand in a row: each is made from the rows that it replaces.
    turn: tokio::sync::Mutex<()>,
    wake: Notify,
    /// How long rounds took to be decided.
    rounds: Histogram,
    refusals: Refusals,
}

impl Deployments {
    /// Takes up what is stored. A row that cannot be used is told; nothing that nodes run is taken for unwanted then.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) async fn load(store: &Store) -> Result<Self, ReadError> {
        let rows = store.load_json::<DeploymentRow>(DEPLOYMENTS).await?;
        let replicas = store.load_json::<ReplicaRow>(REPLICAS).await?;
        let mut table =
            Table::of(rows.iter().map(|(_, row)| row.clone()), replicas.iter().map(|(_, row)| row.clone()));
        let of_ours = |table: &str| table == DEPLOYMENTS || table == REPLICAS;
        table.unreadable = store.unreadable().iter().any(|one| of_ours(&one.table));
        let busy = AtomicBool::new(!rows.is_empty());
        Ok(Self {
            table: Mutex::new(Arc::new(table)),
            busy,
            turn: tokio::sync::Mutex::new(()),
            wake: Notify::new(),
            rounds: Histogram::new(ROUNDS),
            refusals: Refusals::default(),
        })
    }

    fn table(&self) -> Arc<Table> {
        Arc::clone(&self.table.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at them without changing anything, as they are now.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.table())
    }

    /// The table after a change that was committed, by whoever has the turn: made from the one that it replaces.
    fn put(&self, table: Table) {
        let mut current = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, Arc::new(table));
        drop(current);
        // Outside: it may be the last one that holds all of it.
        drop(before);
    }

    /// No round is decided while this is held.
    #[cfg(test)]
    pub(crate) async fn quiet(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Another table in its place, until the next round looks at it.
    #[cfg(test)]
    pub(crate) fn replace(&self, table: Table) {
        self.put(table);
    }

    /// Something about nodes is different: a round is due if there is anything to do at all.
    pub(crate) fn registry_changed(&self) {
        if self.busy.load(Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }

    /// Something may be different: a round is due.
    pub(crate) fn look(&self) {
        self.wake.notify_one();
    }
}

/// Brings the site nearer to what is wanted, for ever.
pub(crate) async fn keep(site: Arc<Site>) {
    let mut jobs = site.jobs.changes();
    loop {
        tokio::select! {
            () = site.deployments.wake.notified() => {}
            ended = jobs.changed() => if ended.is_err() { return },
            () = tokio::time::sleep(LOOK) => {}
        }
        let begun = clock::now();
        for _ in 0..IN_A_ROW {
            match round(&site).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    // The store says what is wrong with it.
                    tracing::warn!(%error, "a round of deployments could not be written; it is decided anew");
                    break;
                }
            }
        }
        let took = clock::now().saturating_duration_since(begun);
        tokio::time::sleep((took * SHARE).clamp(PAUSE, LOOK)).await;
    }
}

/// One round. Whether anything is different after it, so that another one may go on from there.
async fn round(site: &Arc<Site>) -> Result<bool, CommitError> {
    let _turn = site.deployments.turn.lock().await;
    let own = Arc::clone(site);
    // Of a large site it takes longer than other requests should wait.
    let Ok((outcome, mut after)) = tokio::task::spawn_blocking(move || decide(&own)).await else {
        tracing::error!("a round of deployments broke off");
        return Ok(false);
    };
    if outcome.is_empty() {
        site.deployments.put(after);
        expect(site);
        tell(site, &outcome.told);
        return Ok(false);
    }
    let stores = outcome.stores();
    if stores && let Err(error) = site.store.commit(outcome.commit()).await {
        let mut table = Table::clone(&site.deployments.table());
        table.saw(after);
        site.deployments.put(table);
        return Err(error);
    }
    after.applied(&outcome);
    site.deployments.put(after);
    site.raise();
    expect(site);
    carry_out(site, outcome).await;
    Ok(stores)
}

/// What a round comes to, and the table with what it found in memory: decided on a copy, so that who reads waits for nothing, and
/// what a store refuses has not happened.
fn decide(site: &Site) -> (Outcome, Table) {
    let (_, nodes) = site.nodes();
    let moment = Moment { now: clock::now(), wall: site.wall().unix_ms() };
    let mut table = Table::clone(&site.deployments.table());
    let job = |id: &str| site.jobs.view(id);
    let facts = reading::facts(&nodes, job, &table, moment.now, moment.wall);
    let mut places = NodePlaces::of(&nodes, reading::given(&table, job), moment);
    let outcome = table.decide(&facts, &mut places, &mut crate::shell::jobs::new_id);
    let took = clock::now().saturating_duration_since(moment.now);
    site.deployments.rounds.observe(took.as_secs_f64());
    (outcome, table)
}

async fn carry_out(site: &Arc<Site>, outcome: Outcome) {
    tell(site, &outcome.told);
    site.deployments.refusals.only(&outcome.orders);
    for some in outcome.orders.chunks(AT_ONCE) {
        join_all(some.iter().map(|order| submit(site, order))).await;
    }
    for id in &outcome.cancels {
        if let Err(error) = crate::shell::jobs::cancel(site, id, None, Commit::new()).await {
            tracing::debug!(job = %id, %error, "a job that nobody wants any more was not cancelled");
        }
    }
}

async fn submit(site: &Site, order: &Order) {
    let body = match bodies::of(order, &held(site, order.node)) {
        Ok(body) => body,
        Err(why) => {
            if site.deployments.refusals.is_new(&order.id, &why) {
                tracing::error!(deployment = %order.deployment, why, "a job has no body");
            }
            return;
        }
    };
    let job = order.of_job(body);
    // One that is not taken is asked for again: its row names it.
    if let Err(error) = crate::shell::jobs::submit(site, job).await
        && site.deployments.refusals.is_new(&order.id, &error.to_string())
    {
        tracing::warn!(deployment = %order.deployment, node = %order.node, %error, "a job was not taken");
    }
}

/// Why jobs were not taken that are asked for again and again: said once for each and each reason.
#[derive(Default)]
struct Refusals(Mutex<BTreeMap<String, String>>);

impl Refusals {
    /// Only these are asked for now.
    fn only(&self, orders: &[Order]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|id, _| orders.iter().any(|order| order.id == *id));
    }

    fn is_new(&self, id: &str, why: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id.to_owned(), why.to_owned()).is_none_or(|before| before != why)
    }
}

/// The artifacts of a node, as it last said.
pub(crate) fn held(site: &Site, node: NodeId) -> Vec<ArtifactRow> {
    site.read(|registry| registry.node(&node).map(|node| node.report.artifacts.clone())).unwrap_or_default()
}

fn tell(site: &Site, told: &[Told]) {
    for one in told {
        let is_engine = one.subject.contains('.');
        let provider = one.node.filter(|_| is_engine).map(|node| format!("{node}/{}", one.subject));
        // An engine's name begins with its deployment's, which has no dot.
        let deployment = one.subject.split('.').next().unwrap_or_default();
        site.events.tell(Happened {
            kind: one.kind,
            node_id: one.node.map(|node| node.to_string()).unwrap_or_default(),
            provider_id: provider.unwrap_or_default(),
            deployment: deployment.to_owned(),
            message: one.message.clone(),
            ..Happened::default()
        });
    }
}

/// Admission waits with requests for models of which a replica is wanted and none takes requests.
pub(crate) fn expect(site: &Site) {
    expect_without(site, &[]);
}

/// The same, as if no request went to these nodes any more: said before it is so, no request in between is refused.
pub(crate) fn expect_without(site: &Site, nodes: &[NodeId]) {
    let busy = site.deployments.read(|table| !table.rows.is_empty());
    site.deployments.busy.store(busy, Ordering::Relaxed);
    let takes = |id: &NodeId| {
        let works = |node: &Node| node.connected() && !node.row.draining;
        !nodes.contains(id) && site.read(|registry| registry.node(id).is_some_and(|node| works(node)))
    };
    let expected = site.deployments.read(|table| reading::expected(table, takes));
    site.dispatch.expect(expected);
}

/// A change by an operator: decided under the turn, committed with the command's own rows, applied; then a round is due.
///
/// # Errors
/// What decides it refuses, or the store; nothing is different then.
pub(crate) async fn change<T>(
    site: &Arc<Site>,
    decide: impl FnOnce(&Table) -> Result<(Change, T), Error>,
    also: impl FnOnce(&Change, &T) -> Result<Commit, Error>,
) -> Result<(Change, T), Error> {
    let _turn = site.deployments.turn.lock().await;
    let (change, with) = site.deployments.read(decide)?;
    let commit = also(&change, &with)?.and(change.commit());
    site.store.commit(commit).await.map_err(|error| crate::shell::commands::store_error(&error))?;
    let mut after = Table::clone(&site.deployments.table());
    after.changed(&change);
    site.deployments.put(after);
    site.raise();
    expect(site);
    site.deployments.look();
    Ok((change, with))
}

/// Tells what an operator changed.
pub(crate) fn tell_change(site: &Site, operation: &str, change: &Change) {
    let kind = match operation {
        "deployment.apply" => "deployment_applied",
        "deployment.delete" => "deployment_deleting",
        "deployment.load" => "deployment_loaded",
        "deployment.pause" => "deployment_paused",
        "deployment.restart" => "deployment_restarted",
        _ => "deployment_unloaded",
    };
    if !change.is_empty() {
        let deployment = change.row.spec.name.clone();
        let message = format!("{deployment}: {}", change.sentence);
        site.events.tell(Happened { kind, deployment, message, ..Happened::default() });
    }
}
