//! Sending nodes their settings.
//!
//! A reconciler: woken by a change, a node's hello or a timer it compares what each node should have with what it
//! says it has, and acts the same way each time. Invariants: at most [`AT_ONCE`] are being sent, at most one to a node;
//! what a node refused is not sent again before its version changes (row 78); a send that breaks off frees its node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::task::JoinSet;
use tokio::time::Instant;
use umbel_contracts::proto::node::{NodeSettings, NodeSettingsResult};
use umbel_contracts::{bounds, method};
use umbel_store::{AuditRecord, Commit};
use umbel_wire::{Error, NodeId};

use super::lock;
use crate::core::settings::renumber;
use crate::shell::site::Site;

/// Nodes that are sent their settings at the same time.
const AT_ONCE: usize = 64;
/// Changes that come together are sent together.
const GATHER: Duration = Duration::from_secs(1);
/// A node's answer: it checks and writes them, and starts no engine before it answers.
const PATIENCE: Duration = Duration::from_secs(30);
/// Everybody is looked at again, whatever was missed.
const LOOK: Duration = Duration::from_secs(30);

struct Sender {
    site: Arc<Site>,
    queue: VecDeque<NodeId>,
    queued: BTreeSet<NodeId>,
    // By task, so that one that breaks off is known by it.
    sending: BTreeMap<tokio::task::Id, NodeId>,
    sends: JoinSet<()>,
}

/// Keeps every node's settings as they should be, for ever.
pub(crate) async fn keep(site: Arc<Site>) {
    let mut sender = Sender {
        site,
        queue: VecDeque::new(),
        queued: BTreeSet::new(),
        sending: BTreeMap::new(),
        sends: JoinSet::new(),
    };
    let mut gathered: Option<Instant> = None;
    let mut look = Instant::now() + LOOK;
    loop {
        sender.fill();
        let gathering = gathered.unwrap_or(look);
        tokio::select! {
            () = sender.site.settings.wake.notified() => {
                if sender.woken() {
                    gathered = gathered.or_else(|| Some(Instant::now() + GATHER));
                }
            }
            () = tokio::time::sleep_until(gathering), if gathered.is_some() => {
                gathered = None;
                sender.all();
            }
            () = tokio::time::sleep_until(look) => {
                look = Instant::now() + LOOK;
                sender.all();
            }
            Some(sent) = sender.sends.join_next_with_id(), if !sender.sends.is_empty() => {
                let id = sent.map_or_else(|broken| broken.id(), |(id, ())| id);
                sender.sending.remove(&id);
            }
        }
        above_all_seen(&sender.site).await;
    }
}

impl Sender {
    /// Takes up who has said hello; true if the document changed.
    fn woken(&mut self) -> bool {
        let nudged = std::mem::take(&mut *lock(&self.site.settings.nudged));
        for node in nudged.nodes {
            self.enqueue(node);
        }
        nudged.changed
    }

    fn all(&mut self) {
        for node in self.site.read(crate::core::registry::Registry::lacking_settings) {
            self.enqueue(node);
        }
    }

    fn enqueue(&mut self, node: NodeId) {
        if self.queued.insert(node) {
            self.queue.push_back(node);
        }
    }

    fn fill(&mut self) {
        // One that is being sent older ones stays in the queue until that is over.
        for _ in 0..self.queue.len() {
            if self.sends.len() >= AT_ONCE {
                return;
            }
            let Some(node) = self.queue.pop_front() else { return };
            if self.sending.values().any(|one| *one == node) {
                self.queue.push_back(node);
                continue;
            }
            self.queued.remove(&node);
            if self.site.read(|registry| registry.lacks_settings(&node).is_some()) {
                let site = Arc::clone(&self.site);
                let task = self.sends.spawn(async move {
                    site.trip("settings");
                    if let Err(error) = send(&site, node).await {
                        tracing::debug!(%node, code = error.code.name(), reason = %error.reason, "NodeSettings");
                    }
                });
                self.sending.insert(task.id(), node);
            }
        }
    }
}

/// Sends one node its settings and takes its answer.
async fn send(site: &Site, node: NodeId) -> Result<(), Error> {
    let Some((generation, connection)) = site.read(|registry| registry.lacks_settings(&node)) else {
        return Ok(());
    };
    let (desired, settings_json) = site.settings.document().sent_to(&node);
    let message = NodeSettings { version: desired.version, digest: desired.digest.to_vec(), settings_json };
    let answer = connection.request(method::NODE_SETTINGS, message.encode_to_vec(), PATIENCE).await?;
    let state = bounds::decode::<NodeSettingsResult>(&answer)?.state.unwrap_or_default();
    // An answer of a connection that has been replaced says nothing: the newer one's hello did.
    let _ = site.change(|registry| registry.settings_said(node, generation, state));
    Ok(())
}

/// A node has a version that this edge never made: it was restored from a backup, and goes on above.
async fn above_all_seen(site: &Site) {
    let seen = site.read(crate::core::registry::Registry::settings_seen);
    if seen <= site.settings.version() {
        return;
    }
    let _turn = site.settings.turn().await;
    let Some(proposal) = renumber(&site.settings.document(), seen, site.wall().unix_ms()) else { return };
    let version = proposal.row.version;
    tracing::warn!(seen, version, "a node has settings that this edge does not know; it sends its own anew");
    let record = AuditRecord::new("settings.renumbered", format!("version {version}"), "succeeded")
        .by("edge")
        .because(proposal.version.reason.clone());
    if let Err(error) = site.set_settings(proposal, Commit::new().audit(record)).await {
        tracing::warn!(%error, "the settings could not be stored under a newer version");
    }
}
