//! Deployments: what the site wants served, which replicas there are, and what to do next about the difference.
//!
//! Owns the rows of both, and the reconciler: a pure step from (what is wanted, what nodes report, how jobs ended, where a
//! replica would fit) to the next jobs. Leaves where something fits to the placement, jobs to their own core, storing and
//! clocks to the shell. Invariants: an engine's name stands for one row, and a row has at most one job; no more replicas
//! than wanted and one are begun; whatever is lost of what was told in memory, a round from the rows goes on.
//!
//! ```text
//!   (place) --> acquiring --> loading --> ready --> draining --> unloading --> (gone)
//!                   |            |          | node lost: lost --> ready, or (gone) after a delay
//!                   `------------+----------+--> failed --> acquiring | loading, later and given up in the end
//!                                                  `-----> ready, of a server that is only asked, once it answers
//! ```

mod against;
mod balance;
pub(crate) mod bodies;
pub(crate) mod change;
mod clock;
mod ending;
pub(crate) mod facts;
mod failing;
mod files;
mod guard;
pub(crate) mod reading;
mod replica;
mod round;
pub(crate) mod rows;
mod stands;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use umbel_wire::NodeId;

pub(crate) use against::Against;
pub(crate) use facts::{EngineFact, EngineWord, Facts, JobFact, NodeFact, Place, Places, Standing, Wanted};
pub(crate) use files::NeededFiles;
pub(crate) use guard::Held;
pub(crate) use round::{Order, Outcome, Told, Work};
pub(crate) use rows::{DeploymentRow, JobKind, ReplicaKey, ReplicaRow, ReplicaState};
pub(crate) use stands::Stands;

/// Table of what is wanted, by name.
pub(crate) const DEPLOYMENTS: &str = "deployments";
/// Table of what there is of it, by the engine's name.
pub(crate) const REPLICAS: &str = "replicas";
/// Deployments of a site: each is looked at in each round.
pub(crate) const MAX_DEPLOYMENTS: usize = 512;
/// Replicas that one round begins something for: a round is one commit.
const STEPS_A_ROUND: usize = 256;

/// Why a deployment has fewer replicas than it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unplaced {
    /// For people.
    pub(crate) reason: String,
    /// It comes by itself, when what goes has gone.
    pub(crate) waits: bool,
    /// When that began, by the wall clock.
    pub(crate) since_unix_ms: i64,
}

/// All deployments of the site.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deployments {
    pub(crate) rows: BTreeMap<String, DeploymentRow>,
    /// Of whole documents, by name: told with each status, and worked out when one is applied.
    digests: BTreeMap<String, String>,
    pub(crate) replicas: BTreeMap<ReplicaKey, ReplicaRow>,
    /// Rows that could not be read: what a node runs may be theirs, so nothing is taken for unwanted.
    pub(crate) unreadable: bool,
    /// Nodes that are offline, and since when this process knows it.
    lost: BTreeMap<NodeId, Instant>,
    guard: guard::Guard,
    /// Jobs that take away what no row wants, and when they were ordered.
    strays: BTreeMap<(NodeId, String), (String, Instant)>,
    unplaced: BTreeMap<String, Unplaced>,
    /// Replicas that were given up, and when another place was looked for last.
    looked: BTreeMap<ReplicaKey, Instant>,
    /// Replicas on nodes that their documents leave out now, and that are to move.
    misplaced: BTreeSet<ReplicaKey>,
    /// Failed replicas that fit nowhere now, also where they failed before, and why they do not.
    nowhere: BTreeMap<ReplicaKey, String>,
    /// Nodes with replicas to which no requests go, with their names.
    idle: BTreeMap<NodeId, String>,
    clock: clock::Clock,
    /// When a replica last went: what it held may not be told free yet.
    gone_at: Option<Instant>,
    /// Changes that go on one by one, for want of room.
    one_by_one: BTreeSet<String>,
}

impl Deployments {
    /// What is stored.
    pub(crate) fn of(
        rows: impl IntoIterator<Item = DeploymentRow>,
        replicas: impl IntoIterator<Item = ReplicaRow>,
    ) -> Self {
        let replicas = replicas.into_iter().map(|row| (row.key(), row)).collect();
        let mut table = Self { replicas, ..Self::default() };
        rows.into_iter().for_each(|row| table.apply(row));
        table
    }

    /// A deployment's row that was committed.
    pub(crate) fn apply(&mut self, row: DeploymentRow) {
        self.unplaced.remove(&row.spec.name);
        if self.rows.get(&row.spec.name).is_none_or(|before| before.spec != row.spec) {
            self.digests.insert(row.spec.name.clone(), row.spec.digest());
        }
        self.rows.insert(row.spec.name.clone(), row);
    }

    /// What a round changes was committed.
    pub(crate) fn applied(&mut self, outcome: &Outcome) {
        for (key, row) in &outcome.replicas {
            match row {
                Some(row) => drop(self.replicas.insert(key.clone(), row.clone())),
                None => {
                    self.replicas.remove(key);
                    self.misplaced.remove(key);
                }
            }
        }
        for name in &outcome.gone {
            self.rows.remove(name);
            self.digests.remove(name);
            self.unplaced.remove(name);
            self.one_by_one.remove(name);
        }
    }

    /// What a round saw whose outcome could not be stored: since when nodes are lost is true all the same, and how the time goes on.
    pub(crate) fn saw(&mut self, round: Self) {
        let Self { lost, guard, clock, .. } = round;
        (self.lost, self.clock) = (lost, clock);
        self.guard.saw(guard.held().cloned());
    }

    /// The replicas of one deployment, by number.
    pub(crate) fn replicas_of(&self, name: &str) -> impl Iterator<Item = &ReplicaRow> {
        let first = ReplicaKey { deployment: name.to_owned(), number: 0 };
        self.replicas.range(first..).take_while(move |(key, _)| key.deployment == name).map(|(_, row)| row)
    }

    /// SHA-256 of a deployment's document, in hexadecimal.
    pub(crate) fn digest(&self, name: &str) -> &str {
        self.digests.get(name).map(String::as_str).unwrap_or_default()
    }

    /// Why it has fewer replicas than it wants.
    pub(crate) fn unplaced(&self, name: &str) -> Option<&Unplaced> {
        self.unplaced.get(name)
    }

    /// Whether its change goes on one by one, for want of room.
    pub(crate) fn is_one_by_one(&self, name: &str) -> bool {
        self.one_by_one.contains(name)
    }

    /// What holds replacements up.
    pub(crate) fn held(&self) -> Option<&Held> {
        self.guard.held()
    }

    /// GPUs that replicas hold, with the engine that holds each.
    pub(crate) fn holdings(&self) -> BTreeMap<String, String> {
        let holders = self.replicas.values().filter(|row| row.holds());
        holders.flat_map(|row| row.gpus.iter().map(|gpu| (gpu.clone(), row.engine()))).collect()
    }

    /// Replicas that have a place, on each node, by their engines' names.
    pub(crate) fn placed(&self) -> BTreeMap<NodeId, Vec<String>> {
        let mut placed: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
        for row in self.replicas.values().filter(|row| row.holds()) {
            placed.entry(row.node).or_default().push(row.engine());
        }
        placed
    }

    /// Every job that a round asks after.
    pub(crate) fn jobs(&self) -> Vec<String> {
        let of_replicas = self.replicas.values().filter_map(|row| row.job.as_ref().map(|job| job.id.clone()));
        of_replicas.chain(self.strays.values().map(|(id, _)| id.clone())).collect()
    }
}
