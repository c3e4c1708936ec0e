//! Deployments at a simulated edge: rounds of the reconciler and operators' changes, in a row, each written before it counts.
//!
//! Owns the order that `shell/deployments` keeps around them. Leaves every decision to `core/deployments`, places to
//! `core/placement`, jobs to [`super::jobs`]. Invariant: a row names its job before the job is asked for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umbel_contracts::deployment::DeploymentSpec;
use umbel_store::CommitError;
use umbel_store::simulation::Disk;
use umbel_wire::NodeId;
use umbel_wire::clock::Wall;

use super::Edge;
use super::disk::Then;
use super::jobs::Act;
use super::operators::{Operation, Waiting};
use super::wishes::RoundView;
use crate::core::deployments::change::{Ask, AskReplica, Change};
use crate::core::deployments::reading::{self, NodePlaces};
use crate::core::deployments::{
    DEPLOYMENTS, DeploymentRow, Deployments as Table, Facts, NodeFact, Outcome, REPLICAS, ReplicaRow,
    Standing, Work, bodies,
};
use crate::core::providers;
use crate::core::registry::Moment;

/// Without news everybody is looked at again this often.
const LOOK: Duration = Duration::from_secs(5);
/// Rounds begin at most this often.
const PAUSE: Duration = Duration::from_millis(250);

/// What an operator asks of a deployment that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Its replicas are wanted again.
    Load,
    /// Its replicas go.
    Unload,
    /// Nothing is begun and nothing taken away, or again.
    Pause(bool),
    /// Its replicas are replaced one after the other.
    Restart,
    /// It goes for good.
    Delete,
    /// One replica goes; another one comes.
    Leave(u32),
    /// One replica is replaced, or tried again.
    Renew(u32),
}

/// A round on its way to the disk, and the table as it is once that is written.
pub(super) struct Decided {
    outcome: Outcome,
    after: Table,
}

/// The deployments of the process.
#[derive(Default)]
pub(super) struct Deployments {
    pub(super) table: Table,
    /// A round or a change is on its way.
    pub(super) turn: bool,
    pub(super) queue: VecDeque<Waiting>,
    round_at: Option<Instant>,
    expected: Vec<providers::Expected>,
    pub(super) rounds: Vec<RoundView>,
    /// Nodes that were lost in the last round that was told.
    lost: BTreeSet<String>,
    /// Something is different.
    pub(super) version: u64,
}

impl Edge {
    pub(super) fn load_deployments(&mut self, disk: &mut Disk, now: Instant) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let (mut rows, mut replicas) = (Vec::new(), Vec::new());
        for stored in disk.load(DEPLOYMENTS).map_err(|error| text(&error))? {
            rows.push(stored.json::<DeploymentRow>().map_err(|error| text(&error))?);
        }
        for stored in disk.load(REPLICAS).map_err(|error| text(&error))? {
            replicas.push(stored.json::<ReplicaRow>().map_err(|error| text(&error))?);
        }
        self.deployments.table = Table::of(rows, replicas);
        self.deployments.round_at = Some(now + PAUSE);
        self.expect(now);
        Ok(())
    }

    pub(super) fn wake_round(&mut self, now: Instant) {
        if !self.deployments.table.rows.is_empty() || !self.deployments.table.replicas.is_empty() {
            let soon = now + PAUSE;
            self.deployments.round_at = Some(self.deployments.round_at.map_or(soon, |at| at.min(soon)));
        }
    }

    pub(super) fn round_deadline(&self) -> Option<Instant> {
        self.deployments.round_at.filter(|_| !self.deployments.turn)
    }

    pub(super) fn tick_round(&mut self, now: Instant, wall: Wall) {
        if self.deployments.turn || self.deployments.round_at.is_none_or(|at| at > now) {
            return;
        }
        self.deployments.round_at = Some(now + LOOK);
        let nodes = self.registry.all();
        let moment = Moment { now, wall: wall.unix_ms() };
        let job = |id: &str| self.jobs.table.view(id);
        let mut facts = reading::facts(&nodes, job, &self.deployments.table, now, moment.wall);
        // As it is, not as a fault lets the program see it.
        let before = RoundView::before(&self.deployments.table, &facts);
        self.spoil_facts(&mut facts);
        let mut given = reading::given(&self.deployments.table, job);
        if self.is("a GPU is given twice") {
            drop(std::mem::take(&mut given));
        }
        let mut places = NodePlaces::of(&nodes, given, moment);
        // On a copy: what the store refuses has not happened in memory either.
        let mut after = self.deployments.table.clone();
        let luck = &mut self.luck;
        let mut ids = || uuid::Builder::from_random_bytes(luck.id()).into_uuid().hyphenated().to_string();
        let mut outcome = after.decide(&facts, &mut places, &mut ids);
        self.spoil_outcome(&mut outcome);
        let lost = before.lost();
        let anew = std::mem::replace(&mut self.deployments.lost, lost.clone()) != lost;
        let empty = outcome.is_empty();
        if anew || !empty {
            self.deployments.rounds.push(before.and(&outcome));
        }
        if empty {
            self.deployments.table = after;
            return self.expect(now);
        }
        self.deployments.turn = true;
        let mut commit = outcome.commit();
        if self.is("a replica's row is not stored")
            && let Some(key) = outcome.replicas.keys().next()
        {
            commit = commit.remove(REPLICAS, key.engine());
        }
        self.disk.propose(commit, Then::Round(Box::new(Decided { outcome, after })));
    }

    // Faults that only the world switches on.
    fn spoil_facts(&self, facts: &mut Facts) {
        let Some(model) = facts.nodes.values().next().cloned() else { return };
        let empty =
            |standing| NodeFact { standing, draining: true, engines: BTreeMap::new(), ..model.clone() };
        if self.is("the guard is ignored") {
            // It sees so many nodes that a few lost ones are not many.
            for number in 0..50_u128 {
                facts.nodes.insert(NodeId(uuid::Uuid::from_u128(number)), empty(Standing::Here));
            }
        }
        if self.is("a node that was taken away is waited for") {
            for node in facts.nodes.values_mut().filter(|node| node.standing == Standing::Gone) {
                node.standing = Standing::Away;
            }
            for row in self.deployments.table.replicas.values() {
                facts.nodes.entry(row.node).or_insert_with(|| empty(Standing::Away));
            }
        }
    }

    fn spoil_outcome(&self, outcome: &mut Outcome) {
        // While others are wanted, whoever applies it anew would see it first.
        let rows = &self.deployments.table.rows;
        let all = rows.len() > 2 && rows.values().all(|row| row.deleting);
        if self.is("a deleted deployment stays") && all {
            outcome.gone.clear();
        }
        if self.is("an unload is of another") {
            let others = self.deployments.table.replicas.values();
            for order in &mut outcome.orders {
                let Work::Unload { engine } = &mut order.work else { continue };
                let mut same = others.clone().filter(|row| row.node == order.node && row.engine() != *engine);
                if let Some(other) = same.next() {
                    *engine = other.engine();
                }
            }
        }
        if self.is("what is loaded is loaded again") {
            let again = |order: &crate::core::deployments::Order| crate::core::deployments::Order {
                id: order.id.replacen(order.id.get(..1).unwrap_or_default(), "f", 1),
                ..order.clone()
            };
            let loads = outcome.orders.iter().filter(|order| matches!(order.work, Work::Load { .. }));
            let more: Vec<_> = loads.map(again).collect();
            outcome.orders.extend(more);
        }
    }

    pub(super) fn round_written(
        &mut self,
        decided: Decided,
        result: Result<(), CommitError>,
        now: Instant,
        wall: Wall,
    ) {
        self.deployments.turn = false;
        let Decided { outcome, mut after } = decided;
        if result.is_ok() {
            after.applied(&outcome);
            self.deployments.table = after;
            self.deployments.version += 1;
            self.expect(now);
            for order in &outcome.orders {
                let held = self.registry.node(&order.node).map(|node| node.report.artifacts.clone());
                let Ok(body) = bodies::of(order, &held.unwrap_or_default()) else { continue };
                let order = order.of_job(body);
                self.submit_job(&order.id.clone().unwrap_or_default(), order, wall);
            }
            for id in &outcome.cancels {
                self.act(Act::Cancel(id.clone()), now, wall);
            }
            self.wake_round(now);
        } else {
            self.deployments.table.saw(after);
        }
        self.turn_is_over(now, wall);
    }

    /// The next one in the row.
    pub(super) fn turn_is_over(&mut self, now: Instant, wall: Wall) {
        self.deployments.turn = false;
        if let Some(waiting) = self.deployments.queue.pop_front() {
            self.carry_out_waiting(waiting, now, wall);
        }
    }

    /// What an operator wants of a deployment, as a change.
    pub(super) fn wished(&self, operation: &Operation, wall: Wall) -> Result<Change, String> {
        let table = &self.deployments.table;
        let at = wall.unix_ms();
        let text = |error: umbel_wire::Error| error.reason.into_owned();
        let cancelled =
            |id: &str| self.jobs.table.view(id).is_some_and(|view| view.row.cancelled_by.is_some());
        match operation {
            Operation::Apply(document) => {
                let value = serde_json::from_str(document).map_err(|error| error.to_string())?;
                let spec = DeploymentSpec::from_value(value).map_err(|fault| format!("{fault:?}"))?;
                let mut change = table.propose(spec, None, "operator", at).map_err(text)?;
                table.wanted_again(&mut change, at, cancelled);
                Ok(change)
            }
            Operation::Deployment(name, Wish::Load) => {
                let mut change = table.ask(name, Ask::Load, at).map_err(text)?;
                table.wanted_again(&mut change, at, cancelled);
                Ok(change)
            }
            Operation::Deployment(name, wish) => {
                let ask = match wish {
                    Wish::Load => Ask::Load,
                    Wish::Unload => Ask::Unload { leave_ms: None },
                    Wish::Pause(on) => Ask::Pause(*on),
                    Wish::Restart => Ask::Restart,
                    Wish::Delete => Ask::Delete,
                    Wish::Leave(number) => {
                        let leave = AskReplica::Leave { leave_ms: None };
                        return table.ask_replica(name, *number, leave, at).map_err(text);
                    }
                    Wish::Renew(number) => {
                        return table.ask_replica(name, *number, AskReplica::Restart, at).map_err(text);
                    }
                };
                table.ask(name, ask, at).map_err(text)
            }
            _ => Err("ARGS".to_owned()),
        }
    }

    /// It is written: it counts.
    pub(super) fn wish_written(&mut self, change: &Change, now: Instant) {
        self.deployments.table.changed(change);
        self.deployments.version += 1;
        self.expect(now);
        self.wake_round(now);
    }

    /// Admission waits with requests for models of which a replica is wanted and none is there yet.
    fn expect(&mut self, now: Instant) {
        let here = |node: &NodeId| self.registry.node(node).is_some_and(|node| node.connected());
        let expected = reading::expected(&self.deployments.table, here);
        providers::expect(&mut self.admission, now, &mut self.deployments.expected, expected);
        self.settle(now);
    }

    /// Rounds that came to something since the last time.
    pub fn rounds(&mut self) -> Vec<RoundView> {
        std::mem::take(&mut self.deployments.rounds)
    }
}
