//! The one place that knows the site's nodes: what is stored, who owns each identity, and what was heard.
//!
//! Owns identity and lifecycle rows, generations, liveness, reports and problems. Leaves storing to the shell
//! (a row is applied here only after it was committed) and admission to its own core, to which it says what is
//! new through [`Call`]. Invariant: only the owner's generation changes anything; whatever changes what a reader
//! sees raises the revision.

pub(crate) mod abilities;
pub(crate) mod catalog;
mod clock;
mod credentials;
pub(crate) mod gpus;
mod hardware;
pub(crate) mod identity;
mod inventory;
mod judge;
mod kept;
mod lifecycle;
pub(crate) mod node;
pub(crate) mod problems;
mod readiness;
pub(crate) mod reports;
pub(crate) mod selecting;
pub(crate) mod settings;
pub(crate) mod snapshot;
mod stream;
#[cfg(test)]
mod tests;
mod told;
mod unwritten;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_wire::liveness::{Liveness, State, Times};
use umbel_wire::slots::{Owner, Slots};
use umbel_wire::{Generation, KeyHash, NodeId};

use crate::core::authority::AuthorityRow;

use self::catalog::Catalog;
use self::hardware::Hardware;
pub(crate) use self::kept::Moment;
use self::node::{Lifecycle, Node, ReportRow};
use self::problems::Problem;
pub(crate) use self::told::Call;
use self::told::Told;
use crate::core::settings::Targets;
use crate::core::tombstones::Tombstones;

/// Table of the nodes' stored identities.
pub(crate) const NODES: &str = "nodes";
/// Table of what nodes last reported.
pub(crate) const REPORTS: &str = "reports";

/// What people are told after the state has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// In lower case with underscores: `node_ready`.
    pub(crate) kind: &'static str,
    pub(crate) node: NodeId,
    pub(crate) provider: Option<String>,
    pub(crate) generation: Generation,
    pub(crate) message: String,
    /// It also stands in the audit.
    pub(crate) audited: bool,
}

/// Every node of the site. `H` reaches a connection.
#[derive(Debug)]
pub(crate) struct Registry<H> {
    nodes: HashMap<NodeId, Arc<Node>>,
    keys: HashMap<KeyHash, NodeId>,
    /// Of nodes whose rows were lost.
    pub(crate) tombstones: Tombstones,
    pub(crate) slots: Slots<NodeId, H>,
    liveness: Liveness<NodeId>,
    told: HashMap<NodeId, Told>,
    catalog: Catalog,
    hardware: Hardware,
    calls: Vec<Call>,
    notices: Vec<Notice>,
    // Nodes whose report has to be written.
    unsaved: BTreeSet<NodeId>,
    // Connections that a changed row lets in no more.
    evicted: Vec<H>,
    // Which settings each node should have.
    targets: Targets,
    // What nodes are called that are no tombstones, with how many are.
    names: HashMap<String, u32>,
    // Names that a rename under way takes.
    reserved_names: BTreeSet<String>,
    // Which authorities there are; `None` until the site is open.
    authority: Option<AuthorityRow>,
    // How far a node's clock may be from this edge's.
    allowed_skew: Duration,
    settings_seen: u64,
    changed: bool,
    revision: u64,
}

/// A report of a connection that no longer owns its node: it changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleGeneration;

impl<H: Clone> Registry<H> {
    /// An empty site. `above` is the highest generation that any earlier process gave.
    pub(crate) fn new(times: Times, period: Duration, above: Generation, now: Instant) -> Self {
        Self {
            nodes: HashMap::new(),
            keys: HashMap::new(),
            tombstones: Tombstones::default(),
            slots: Slots::new(above),
            liveness: Liveness::new(times, period, now),
            told: HashMap::new(),
            catalog: Catalog::default(),
            hardware: Hardware::default(),
            calls: Vec::new(),
            notices: Vec::new(),
            unsaved: BTreeSet::new(),
            evicted: Vec::new(),
            targets: Targets::default(),
            names: HashMap::new(),
            reserved_names: BTreeSet::new(),
            authority: None,
            allowed_skew: clock::SKEW_ALLOWED,
            settings_seen: 0,
            changed: true,
            revision: 0,
        }
    }

    /// One node.
    pub(crate) fn node(&self, id: &NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(id)
    }

    /// All nodes, in the order of their names: sharing them, not copying.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<_> = self.nodes.values().cloned().collect();
        nodes.sort_by(|a, b| a.row.name.cmp(&b.row.name).then(a.id.cmp(&b.id)));
        nodes
    }

    /// How many nodes there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The node that holds this key, whatever its state.
    pub(crate) fn by_key(&self, key: &KeyHash) -> Option<&Arc<Node>> {
        self.keys.get(key).and_then(|id| self.nodes.get(id))
    }

    /// The revision that a reader under this lock sees.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether anything visible changed since the last call; then the shell gives the next revision.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// The revision of all changes so far.
    pub(crate) fn set_revision(&mut self, revision: u64) {
        self.revision = self.revision.max(revision);
    }

    /// What admission has to be told, oldest first.
    pub(crate) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// What people have to be told, oldest first.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Reports that have to be written, at most `limit`; what is not written stays for the next call.
    pub(crate) fn take_unsaved(&mut self, limit: usize) -> Vec<(NodeId, ReportRow)> {
        let ids: Vec<_> = self.unsaved.iter().take(limit).copied().collect();
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            self.unsaved.remove(&id);
            let Some(node) = self.nodes.get_mut(&id) else { continue };
            let mut row = node.report.clone();
            row.telemetry_sequence = inventory::on_disk(row.telemetry_sequence);
            Arc::make_mut(node).telemetry_on_disk = row.telemetry_sequence;
            rows.push((id, row));
        }
        rows
    }

    /// How far a node's clock may be from this edge's from now on.
    pub(crate) fn set_allowed_skew(&mut self, allowed: Duration) {
        self.allowed_skew = allowed;
    }

    /// Whether a report waits to be written.
    pub(crate) fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// From time to time what heartbeats moved is written too: when each connected node was last seen.
    pub(crate) fn save_connected(&mut self) {
        let connected = self.nodes.values().filter(|node| node.session.is_some()).map(|node| node.id);
        self.unsaved.extend(connected);
    }

    /// A report that could not be written.
    pub(crate) fn keep_unsaved(&mut self, ids: impl IntoIterator<Item = NodeId>) {
        self.unsaved.extend(ids.into_iter().filter(|id| self.nodes.contains_key(id)));
    }

    /// A newcomer owns its slot now: the old one gets no more work, the new one none before it is complete.
    pub(crate) fn registered(&mut self, id: NodeId, generation: Generation) {
        let told = self.told.entry(id).or_default();
        told.ready = Some((generation, false));
        self.calls.push(Call::Ready { node: id, generation, ready: false });
        self.change(id, |node| {
            node.generation = generation;
            node.session = None;
        });
    }

    /// The owner has named its leases and holds none that it should not: its providers come up, in one revision.
    pub(crate) fn complete(&mut self, id: NodeId, generation: Generation) -> Result<(), StaleGeneration> {
        if !self.slots.is_current(&id, generation) {
            return Err(StaleGeneration);
        }
        let mut fresh = false;
        self.change(id, |node| {
            if let Some(session) = node.session.as_mut().filter(|session| session.generation == generation) {
                fresh = !session.named;
                session.named = true;
            }
        });
        self.solved(id, problems::LEASES_CARRIED, &id.to_string());
        if fresh {
            self.notice(id, "node_ready", None, "connected, complete", false);
        }
        Ok(())
    }

    /// The owner said that it ends: its providers drain (row 93). An older connection's word changes nothing.
    pub(crate) fn leaving(&mut self, id: NodeId, generation: Generation) {
        if !self.slots.is_current(&id, generation) {
            return;
        }
        self.change(id, |node| {
            if let Some(session) = node.session.as_mut() {
                session.leaving = true;
            }
        });
        self.notice(id, "node_leaving", None, "its agent ends; running requests finish", false);
    }

    /// A connection ended. Only if it was the owner the node is disconnected; its leases end in any case.
    pub(crate) fn closed(&mut self, id: NodeId, generation: Generation, why: &str) -> Option<Owner<H>> {
        let owner = self.slots.clear(&id, generation);
        if owner.is_some() {
            self.disconnected(id, why);
        }
        self.calls.push(Call::Lost { node: id, generation });
        owner
    }

    fn disconnected(&mut self, id: NodeId, why: &str) {
        let mut was_complete = false;
        self.change(id, |node| {
            was_complete = node.session.take().is_some_and(|session| session.named);
        });
        if let Some(told) = self.told.get_mut(&id) {
            told.lost();
        }
        self.unsaved.insert(id);
        if was_complete {
            self.notice(id, "node_disconnected", None, &format!("the connection ended: {why}"), false);
        }
    }

    /// Judges everybody's liveness and lets old problems go.
    pub(crate) fn sweep(&mut self, now: Instant) {
        for transition in self.liveness.sweep(now) {
            self.moved(transition.peer, transition.from, transition.to);
        }
        let expired: Vec<_> = self
            .nodes
            .values()
            .filter(|node| node.problems.values().any(|one| one.until.is_some_and(|until| until <= now)))
            .map(|node| node.id)
            .collect();
        for id in expired {
            self.change(id, |node| {
                node.problems.retain(|_, one| one.until.is_none_or(|until| until > now));
            });
        }
    }

    /// New times of liveness, from the next sweep on.
    pub(crate) fn set_times(&mut self, times: Times) {
        self.liveness.set_times(times);
    }

    /// When [`Registry::sweep`] is next wanted.
    pub(crate) fn next_deadline(&self) -> Instant {
        self.liveness.next_deadline()
    }

    fn heard(&mut self, id: NodeId, now: Instant) {
        if let Some(transition) = self.liveness.heard(&id, now) {
            self.moved(id, transition.from, transition.to);
        }
    }

    fn moved(&mut self, id: NodeId, from: State, to: State) {
        self.change(id, |node| node.liveness = to);
        let kind = match to {
            State::Online => "node_online",
            State::Stale => "node_stale",
            State::Offline => "node_offline",
            State::Never | State::Unknown => return,
        };
        // A whole site comes back as `unknown` after a restart: that is no news of any node (row 5).
        let audited = from != State::Unknown;
        let lifecycle = self.nodes.get(&id).map(|node| node.row.lifecycle);
        if lifecycle == Some(Lifecycle::Enrolled) {
            self.notice(id, kind, None, &said(from, to), audited);
        }
    }

    /// Puts a problem on a node or renews it; its first time stays.
    pub(crate) fn problem(
        &mut self,
        id: NodeId,
        code: &'static str,
        subject: String,
        message: String,
        wall: i64,
        until: Option<Instant>,
    ) {
        self.change(id, |node| {
            let since = node.problems.get(&(code, subject.clone())).map_or(wall, |old| old.since_unix_ms);
            let problem = Problem {
                code: code.to_owned(),
                message,
                since_unix_ms: since,
                subject: subject.clone(),
                until,
            };
            node.problems.insert((code, subject), problem);
        });
    }

    /// Takes a problem away.
    pub(crate) fn solved(&mut self, id: NodeId, code: &'static str, subject: &str) {
        let key = (code, subject.to_owned());
        if self.nodes.get(&id).is_some_and(|node| node.problems.contains_key(&key)) {
            self.change(id, |node| drop(node.problems.remove(&key)));
        }
    }

    fn notice(
        &mut self,
        id: NodeId,
        kind: &'static str,
        provider: Option<String>,
        message: &str,
        audited: bool,
    ) {
        let Some(node) = self.nodes.get(&id) else { return };
        let message = format!("{}: {message}", node.row.name);
        self.notices.push(Notice { kind, node: id, provider, generation: node.generation, message, audited });
    }

    // Changes a node, a visible change, and lets admission know what follows from it.
    fn change(&mut self, id: NodeId, work: impl FnOnce(&mut Node)) {
        if let Some(node) = self.nodes.get_mut(&id) {
            work(Arc::make_mut(node));
            self.touch(id);
        }
    }

    /// A fault that a simulated world switches on.
    #[cfg(feature = "simulation")]
    pub(crate) fn spoil(&mut self, id: NodeId, work: impl FnOnce(&mut Node)) {
        self.change(id, work);
    }

    fn touch(&mut self, id: NodeId) {
        self.changed = true;
        self.reconcile(id);
    }
}

/// Reads a stored key hash.
pub(crate) fn key_hash(text: &str) -> Option<KeyHash> {
    let bytes = data_encoding::HEXLOWER.decode(text.as_bytes()).ok()?;
    bytes.try_into().ok().map(KeyHash)
}

/// A change of liveness in words.
fn said(from: State, to: State) -> String {
    match (from, to) {
        (State::Never, State::Online) => "online for the first time".to_owned(),
        (State::Unknown, to) => format!("{} since this edge started", to.name()),
        (from, to) => format!("{}, was {}", to.name(), from.name()),
    }
}
