//! The site's settings: versions that operators make, and what each node lacks of them, as `shell/settings` has it.
//!
//! Leaves what a version says and who lacks it to `core/settings` and the registry; here are the commit and the request.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::operations::{SettingsChange, SettingsSetArgs};
use umbel_contracts::proto::node::{NodeSettings, NodeSettingsResult};
use umbel_contracts::settings::EdgeSettings;
use umbel_contracts::{bounds, method};
use umbel_store::simulation::Disk;
use umbel_store::{Commit, Position};
use umbel_wire::clock::Wall;
use umbel_wire::liveness::Times;
use umbel_wire::simulation::Call;

use super::disk::Then;
use super::{Edge, LinkId, Setup};
use crate::core::settings::{
    Author, CURRENT, DocumentRow, Proposal, SETTINGS, Targets, propose, renumber, wanted,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The document as it stands on disk.
#[derive(Default)]
pub(super) struct Document {
    row: DocumentRow,
    position: Option<Position>,
}

impl Document {
    pub(super) fn load(disk: &mut Disk) -> Result<Self, String> {
        let stored = disk.get(SETTINGS, CURRENT).map_err(|error| error.to_string())?;
        let Some(stored) = stored else { return Ok(Self::default()) };
        let row = stored.json().map_err(|error| error.to_string())?;
        Ok(Self { row, position: Some(stored.position) })
    }

    pub(super) fn targets(&self) -> Targets {
        Targets::new(&self.row)
    }

    pub(super) fn version(&self) -> u64 {
        self.row.version
    }

    /// Its own part over what the edge was started with: when nodes are stale and offline, and how far their clocks may be.
    pub(super) fn own(&self, setup: &Setup) -> Result<Own, String> {
        own(setup, &self.row.document)
    }
}

/// The edge's own settings, as far as the world has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Without a heartbeat for so long a node is stale, and offline.
    pub silence: (Duration, Duration),
    /// How far a node's clock may be in the future.
    pub allowed_skew: Duration,
}

const STALE: Duration = Duration::from_secs(30);
const OFFLINE: Duration = Duration::from_secs(90);
const SKEW: Duration = Duration::from_secs(300);

fn own(setup: &Setup, document: &serde_json::Value) -> Result<Own, String> {
    let wanted: EdgeSettings = serde_json::from_value(umbel_contracts::settings::edge_of(document))
        .map_err(|error| error.to_string())?;
    let stale = wanted.liveness.stale.map_or(STALE, Into::into);
    let offline = wanted.liveness.offline.map_or(OFFLINE, Into::into);
    Times::new(stale, offline)?;
    if stale < setup.heartbeat * 2 {
        return Err("edge.liveness.stale: at least two heartbeats".to_owned());
    }
    Ok(Own { silence: (stale, offline), allowed_skew: wanted.clock.allowed_skew.map_or(SKEW, Into::into) })
}

impl Edge {
    pub(super) fn plan_settings(
        &self,
        path: &str,
        value: &str,
        wall: Wall,
    ) -> Result<(Commit, Proposal), String> {
        let changes = vec![SettingsChange { path: path.to_owned(), value: value.into() }];
        let args = SettingsSetArgs { changes, ..SettingsSetArgs::default() };
        let find = |name: &str| {
            let nodes = self.registry.all();
            nodes
                .iter()
                .find(|node| node.id.to_string() == name && !node.is_tombstone())
                .map(|_| name.to_owned())
        };
        let author =
            Author { name: "operator".to_owned(), reason: String::new(), at_unix_ms: wall.unix_ms() };
        let document = wanted(&self.settings.row, &args, &find).map_err(|error| error.reason.into_owned())?;
        own(&self.setup, &document)?;
        let proposal =
            propose(&self.settings.row, document, None, author).map_err(|error| error.reason.into_owned())?;
        let commit =
            if proposal.is_empty() { Commit::new() } else { proposal.commit(self.settings.position) };
        Ok((commit, proposal))
    }

    pub(super) fn settings_stored(&mut self, proposal: Proposal, position: Position, now: Instant) {
        if proposal.is_empty() || self.settings.position.is_some_and(|known| known >= position) {
            return;
        }
        self.settings = Document { row: proposal.row, position: Some(position) };
        let targets = self.settings.targets();
        self.change(now, |registry| registry.set_targets(targets));
        if !self.is("the edge's own settings are only stored") {
            self.put_in_force(now);
        }
    }

    /// The edge's own part takes effect.
    pub(super) fn put_in_force(&mut self, now: Instant) {
        // It was judged before it was stored.
        let Ok(own) = self.settings.own(&self.setup) else { return };
        self.own = own;
        if let Ok(times) = Times::new(own.silence.0, own.silence.1) {
            self.change(now, |registry| {
                registry.set_times(times);
                registry.set_allowed_skew(own.allowed_skew);
            });
        }
    }

    // A node has a version that this edge never made: it was restored from a backup, and goes on above.
    fn above_all_seen(&mut self, wall: Wall) {
        let seen = self.registry.settings_seen();
        if seen <= self.settings.version() || self.renumbering {
            return;
        }
        let Some(proposal) = renumber(&self.settings.row, seen, wall.unix_ms()) else { return };
        self.renumbering = true;
        let commit = proposal.commit(self.settings.position);
        self.disk.propose(commit, Then::Renumbered(Box::new(proposal)));
    }

    pub(super) fn renumbered(&mut self, proposal: Proposal, position: Option<Position>, now: Instant) {
        self.renumbering = false;
        if let Some(position) = position {
            self.settings = Document { row: proposal.row, position: Some(position) };
            let targets = self.settings.targets();
            self.change(now, |registry| registry.set_targets(targets));
        }
    }

    /// Sends each node what it lacks, one at a time.
    pub(super) fn send_settings(&mut self, now: Instant) {
        self.above_all_seen(self.wall);
        let mut lacking = self.registry.lacking_settings();
        lacking.sort_unstable();
        for id in lacking {
            let Some((_, link)) = self.registry.lacks_settings(&id) else { continue };
            if self.sent.contains_key(&link) {
                continue;
            }
            let (desired, settings_json) = self.settings.row.sent_to(&id);
            let message =
                NodeSettings { version: desired.version, digest: desired.digest.to_vec(), settings_json };
            let Some(entry) = self.links.get_mut(&link) else { continue };
            if let Ok(call) = entry.end.request(now, method::NODE_SETTINGS, message.encode_to_vec(), TIMEOUT)
            {
                self.sent.insert(link, call);
            }
        }
    }

    pub(super) fn settings_answered(
        &mut self,
        link: LinkId,
        call: Call,
        answer: Result<bytes::Bytes, umbel_wire::Error>,
        now: Instant,
    ) {
        if self.sent.get(&link) != Some(&call) {
            return;
        }
        self.sent.remove(&link);
        let result = answer.and_then(|bytes| bounds::decode::<NodeSettingsResult>(&bytes));
        if let (Some(serving), Some(state)) =
            (self.serving(link), result.ok().and_then(|result| result.state))
        {
            // From an older connection it says nothing.
            let _ = self.change(now, |registry| {
                registry.settings_said(serving.own.id, serving.own.generation, state)
            });
        }
    }
}
