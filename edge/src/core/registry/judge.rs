//! Problems that follow from comparing nodes with each other: one model described in two ways, one GPU at two
//! hosts, and a clock that is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use umbel_contracts::names::MODEL_IS;
use umbel_contracts::proto::node::NodeInventory;
use umbel_wire::NodeId;

use super::catalog::{NAMES_MAX, Verdict};
use super::kept::Kept;
use super::node::Declared;
use super::problems::{
    CARRIED_SHOWN, CLOCK_AHEAD, CLOCK_BEHIND, DUPLICATE_IDENTITY, DUPLICATE_SHOWN, LEASES_CARRIED,
    MODEL_MISMATCH, MODEL_NAME, NAME_TAKEN, Problem, REFUSALS, SAME_HARDWARE, TOO_MANY_MODELS,
};
use super::{Registry, clock};

/// Reports that were made within this time may come in another order.
const REORDERED_MS: i64 = 1_000;
/// A skew that changed by less is told as before.
const CLOCK_NEWS_MS: u64 = 2_000;

/// The UUIDs of an inventory's GPUs.
pub(super) fn uuids(inventory: NodeInventory) -> BTreeSet<String> {
    inventory.gpus.into_iter().map(|gpu| gpu.uuid).collect()
}

impl<H: Clone> Registry<H> {
    /// Replaces what a node declares; engines that stay as they were keep their time.
    pub(super) fn declare(&mut self, id: NodeId, engines: Vec<Declared>) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.report.engines == engines {
            return;
        }
        let node = Arc::make_mut(node);
        let mut models = self.catalog.concerned(node.report.engines.iter());
        node.report.engines.iter().for_each(|engine| self.catalog.remove(id, engine));
        node.report.engines = engines;
        node.report.engines.iter().for_each(|engine| self.catalog.add(id, engine));
        models.extend(self.catalog.concerned(node.report.engines.iter()));
        self.judge_models(&models, id);
        self.unsaved.insert(id);
    }

    /// Takes up a node's engines that were stored.
    pub(super) fn declared_before(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get(&id) else { return };
        node.report.engines.iter().for_each(|engine| self.catalog.add(id, engine));
        let models = self.catalog.concerned(node.report.engines.iter());
        self.judge_models(&models, id);
    }

    /// Puts what the catalog decides of these models on the nodes, and so before admission.
    fn judge_models(&mut self, models: &BTreeSet<String>, changed: NodeId) {
        let nodes = &self.nodes;
        let declared =
            |id: &NodeId, name: &str| nodes.get(id)?.report.engines.iter().find(|engine| engine.name == name);
        let own = nodes.get(&changed).map(|node| node.report.engines.as_slice()).unwrap_or_default();
        let mut of_nodes: BTreeMap<NodeId, Vec<(String, Verdict)>> = BTreeMap::from([(changed, Vec::new())]);
        for (id, name, verdict) in self.catalog.judge(models, (changed, own), declared) {
            of_nodes.entry(id).or_default().push((name, verdict));
        }
        for (id, verdicts) in of_nodes {
            self.refuse_engines(id, verdicts, id == changed);
        }
    }

    /// One node's engines that stand or do not, as one change: admission is never told what does not stand.
    fn refuse_engines(&mut self, id: NodeId, verdicts: Vec<(String, Verdict)>, all: bool) {
        let Some(node) = self.nodes.get(&id) else { return };
        let mut refused = Vec::new();
        let mut judged = BTreeSet::new();
        for (name, verdict) in verdicts {
            let subject = node.provider_id(&name);
            let engine = node.report.engines.iter().find(|engine| engine.name == name);
            if let Some((code, message)) = engine.and_then(|engine| self.refusal(engine, verdict)) {
                let key = (code, subject.clone());
                let first = engine.map_or(0, |engine| engine.since_unix_ms);
                let since_unix_ms = node.problems.get(&key).map_or(first, |old| old.since_unix_ms);
                let (code, subject) = (code.to_owned(), subject.clone());
                refused.push((key, Problem { code, message, since_unix_ms, subject, until: None }));
            }
            judged.insert(subject);
        }
        // All engines of a node that changed were judged, so that what else stands there is of engines that are gone.
        let stays = |(code, subject): &(&'static str, String)| {
            !REFUSALS.contains(code) || !(all || judged.contains(subject))
        };
        let same = refused.iter().all(|(key, problem)| node.problems.get(key) == Some(problem))
            && node.problems.keys().filter(|key| !stays(key)).count() == refused.len();
        if same && !all {
            return;
        }
        self.change(id, |node| {
            node.problems.retain(|key, _| stays(key));
            node.problems.extend(refused);
        });
    }

    /// Why an engine's description does not stand, and what to do.
    fn refusal(&self, declared: &Declared, verdict: Verdict) -> Option<(&'static str, String)> {
        let (engine, model) = (&declared.name, &declared.model);
        let named = |id: NodeId| self.node(&id).map_or_else(|| "?".to_owned(), |node| node.row.name.clone());
        match verdict {
            Verdict::Stands => None,
            Verdict::Mismatch { with } => {
                let message = format!(
                    "{engine} describes model {model} with another long-context threshold or other aliases than node {} \
                     does; make both alike",
                    named(with)
                );
                Some((MODEL_MISMATCH, message))
            }
            Verdict::NameTaken { name, model, with } => {
                let by = with.map_or_else(String::new, |id| format!(" of node {}", named(id)));
                let message = format!(
                    "{engine} is to be called {name}, which means model {model}{by} already; give one of the two \
                     another name"
                );
                Some((NAME_TAKEN, message))
            }
            Verdict::NotAName { name } => {
                let message = format!(
                    "{engine} is to be called {name}: a model's name {MODEL_IS}; give it another one and update the agent"
                );
                Some((MODEL_NAME, message))
            }
            Verdict::TooMany => {
                let message = format!(
                    "{engine} is not served: this site has {NAMES_MAX} names of models and aliases already; take away \
                     some that nobody needs"
                );
                Some((TOO_MANY_MODELS, message))
            }
        }
    }

    /// A GPU that stands in two nodes' inventories is a problem on both; nothing is merged.
    pub(super) fn judge_hardware(&mut self, id: NodeId, inventory: &NodeInventory, wall: i64) {
        let old = self.nodes.get(&id).and_then(|node| node.inventory()).map(uuids).unwrap_or_default();
        let new: BTreeSet<String> = inventory.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        // What an incomplete one leaves out is still this node's.
        let gone = old.difference(&new).filter(|_| inventory.complete);
        self.release_gpus(id, gone);
        self.claim_gpus(id, new, wall);
    }

    /// These GPUs are not this node's any more.
    pub(super) fn release_gpus<'a>(&mut self, id: NodeId, uuids: impl Iterator<Item = &'a String>) {
        for uuid in uuids {
            let left = self.hardware.release(uuid, id);
            self.solved(id, SAME_HARDWARE, uuid);
            if let [other] = left[..] {
                self.solved(other, SAME_HARDWARE, uuid);
            }
        }
    }

    /// These GPUs are this node's; what another node claims too is a problem on both.
    pub(super) fn claim_gpus(&mut self, id: NodeId, uuids: BTreeSet<String>, wall: i64) {
        for uuid in uuids {
            let holders = self.hardware.claim(&uuid, id);
            if holders.is_empty() {
                continue;
            }
            let names: Vec<_> = holders
                .iter()
                .filter_map(|id| self.node(id))
                .map(|node| node.row.name.clone())
                .take(4)
                .collect();
            let names = names.join(", ");
            for holder in holders {
                let message = format!(
                    "GPU {uuid} is reported by more than one node ({names}): a state directory was copied or is not durable; \
                     keep one of them and enroll the other host with a token of its own"
                );
                self.problem(holder, SAME_HARDWARE, uuid.clone(), message, wall, None);
            }
        }
    }

    /// Compares a report's time with the last good one and shows what is wrong. True if it counts.
    pub(super) fn judge_clock(&mut self, id: NodeId, observed_at: i64, last_good: i64, wall: i64) -> bool {
        let judged = clock::judge(observed_at, last_good, wall, self.allowed_skew);
        self.show_clock(id, judged, wall);
        judged.good
    }

    /// A heartbeat replaces nothing; its time only shows whether the clock is right.
    pub(super) fn watch_clock(&mut self, id: NodeId, observed_at: i64, wall: i64) {
        let Some(node) = self.nodes.get(&id).filter(|_| observed_at != 0) else { return };
        let report = &node.report;
        let last_good = [
            report.inventory.as_ref().map_or(0, Kept::last_good),
            report.telemetry.as_ref().map_or(0, Kept::last_good),
        ];
        // A telemetry report may have been made a moment later and come first.
        let last_good = last_good.into_iter().max().unwrap_or(0).saturating_sub(REORDERED_MS);
        let judged = clock::judge(observed_at, last_good, wall, self.allowed_skew);
        self.show_clock(id, judged, wall);
    }

    /// By which clock the times in what follows are told. What a heartbeat's way takes is no news.
    pub(super) fn note_clock(&mut self, id: NodeId, observed_at: i64, wall: i64) {
        let ahead = observed_at.saturating_sub(wall);
        let Some(node) = self.nodes.get_mut(&id).filter(|_| observed_at != 0) else { return };
        if ahead.abs_diff(node.clock_ahead_ms) >= CLOCK_NEWS_MS {
            Arc::make_mut(node).clock_ahead_ms = ahead;
        }
    }

    fn show_clock(&mut self, id: NodeId, judged: clock::Judged, wall: i64) {
        let subject = id.to_string();
        let seconds = judged.skew_ms.unsigned_abs() / 1_000;
        let shown = self.nodes.get(&id).and_then(|node| node.clock_skew_ms);
        let (code, other, message) = match judged.wrong {
            None => {
                self.solved(id, CLOCK_BEHIND, &subject);
                self.solved(id, CLOCK_AHEAD, &subject);
                if shown.is_some() {
                    self.change(id, |node| node.clock_skew_ms = None);
                }
                return;
            }
            Some(clock::Wrong::Ahead) => {
                let message = format!(
                    "the node's clock is {seconds} s ahead of this edge's, so its reports do not count: let it follow \
                     a time server (timedatectl set-ntp true)"
                );
                (CLOCK_AHEAD, CLOCK_BEHIND, message)
            }
            Some(clock::Wrong::Late) => {
                let message = format!(
                    "the node's clock is {seconds} s behind this edge's: let it follow a time server (timedatectl \
                     set-ntp true)"
                );
                (CLOCK_BEHIND, CLOCK_AHEAD, message)
            }
            Some(clock::Wrong::WentBack(by)) => {
                let message = format!(
                    "the node's clock went back by {} s (it is now {seconds} s {} this edge's), so its reports do not \
                     count until it is past the last good one: let it follow a time server (timedatectl set-ntp true)",
                    by / 1_000,
                    if judged.skew_ms > 0 { "ahead of" } else { "behind" }
                );
                (CLOCK_BEHIND, CLOCK_AHEAD, message)
            }
        };
        self.solved(id, other, &subject);
        // What drifts by less than this is no news, so that it does not raise the revision with each report.
        let told =
            self.nodes.get(&id).is_some_and(|node| node.problems.contains_key(&(code, subject.clone())));
        if told && shown.is_some_and(|shown| shown.abs_diff(judged.skew_ms) < CLOCK_NEWS_MS) {
            return;
        }
        self.change(id, |node| node.clock_skew_ms = Some(judged.skew_ms));
        self.problem(id, code, subject, message, wall, None);
    }

    /// A second copy of an identity was refused. True if that is news, so that one entry a period is audited.
    pub(crate) fn duplicate(&mut self, id: NodeId, now: Instant, wall: i64) -> bool {
        let subject = id.to_string();
        let known = self.nodes.get(&id).is_some_and(|node| {
            node.problems
                .get(&(DUPLICATE_IDENTITY, subject.clone()))
                .and_then(|problem| problem.until)
                // Shown for 90 s after each try; a try within 30 s of the last is the same period.
                .is_some_and(|until| until > now + DUPLICATE_SHOWN * 2 / 3)
        });
        let message = "another process shows this node's identity while it is connected: a copied state directory; \
                       remove the copy and enroll that host with a token of its own";
        self.problem(id, DUPLICATE_IDENTITY, subject, message.to_owned(), wall, Some(now + DUPLICATE_SHOWN));
        !known
    }

    /// It still carries leases that it was told to end, long after it named them.
    pub(crate) fn carries(&mut self, id: NodeId, left: usize, now: Instant, wall: i64) {
        let message = format!(
            "it still carries {left} streams of an older connection that it was told to end, and their engines may be \
             busy with them: it gets no work until they have ended; restart its agent if that lasts"
        );
        self.problem(id, LEASES_CARRIED, id.to_string(), message, wall, Some(now + CARRIED_SHOWN));
    }
}
