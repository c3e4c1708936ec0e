//! One node as its edge knows it: what is stored, what it said, and what is measured.
//!
//! Owns the reports' shapes and the derived answers (dispatchable or not, state of a provider). Leaves the stored
//! identity to [`super::identity`] and every change to [`super::Registry`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use umbel_contracts::proto::node::{
    AgentHealth, DeclaredEngine, EngineState, EngineStatus, NodeInventory, NodeTelemetry,
};
use umbel_store::Position;
use umbel_wire::liveness;
use umbel_wire::{Generation, NodeId};

use super::abilities::{ArtifactRow, RuntimeRow};
use super::gpus::{Absence, AbsentGpu};
pub(crate) use super::identity::{Credential, Decision, KeyState, Lifecycle, NodeRow, Retirement, Wanted};
use super::kept::Kept;
#[cfg(feature = "simulation")]
use super::kept::Moment;
use super::problems::{CREDENTIAL_EXPIRED, Problem, REFUSALS};
use super::stream::Stream;
use crate::core::settings::NodeSettings;

/// Bytes of a node's name at most.
pub(crate) const NAME_MAX: usize = 63;

/// What a node last declared of an engine, and since when: where nodes differ on a model, the first stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    pub(crate) category: String,
    pub(crate) capacity: u32,
    pub(crate) max_context_tokens: u32,
    pub(crate) long_context_threshold_tokens: u32,
    pub(crate) long_context_capacity: u32,
    pub(crate) since_unix_ms: i64,
    /// UUIDs of the GPUs that it was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gpus: Vec<String>,
    /// The deployment that it is of; empty: the node's own file declares it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) deployment: String,
}

impl Declared {
    /// Which replica of its deployment, from 1; 0 where it is of none.
    pub(crate) fn replica(&self) -> u32 {
        let number = self.name.strip_prefix(&self.deployment).and_then(|rest| rest.strip_prefix(".r"));
        number.and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0)
    }

    pub(crate) fn new(engine: &DeclaredEngine, since_unix_ms: i64) -> Self {
        let category = if engine.category.is_empty() { "local_inference" } else { &engine.category };
        Self {
            name: engine.name.clone(),
            kind: engine.kind.clone(),
            model: engine.model.clone(),
            aliases: engine.aliases.clone(),
            category: category.to_owned(),
            capacity: engine.capacity,
            max_context_tokens: engine.max_context_tokens,
            long_context_threshold_tokens: engine.long_context_threshold_tokens,
            long_context_capacity: engine.long_context_capacity,
            since_unix_ms,
            gpus: engine.gpu_uuids.clone(),
            deployment: engine.deployment.clone(),
        }
    }
}

/// What a node said that must outlive the edge's process: table `reports`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ReportRow {
    #[serde(default)]
    pub(crate) last_seen_at_unix_ms: i64,
    #[serde(default)]
    pub(crate) inventory_sequence: u64,
    #[serde(default)]
    pub(crate) telemetry_sequence: u64,
    #[serde(default)]
    pub(crate) agent_version: String,
    /// SHA-256 of each authority's certificate that it trusts, in lower-case hexadecimal; empty: it never said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) trusts: Vec<String>,
    #[serde(default)]
    pub(crate) engines: Vec<Declared>,
    /// Engines that it can run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) runtimes: Vec<RuntimeRow>,
    /// Files of models that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) artifacts: Vec<ArtifactRow>,
    /// Of the last heartbeat that was taken.
    #[serde(default)]
    pub(crate) heartbeat_sequence: u64,
    /// GPUs that it had and that are gone or do not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) absent: Vec<AbsentGpu>,
    /// The last good inventory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inventory: Option<Kept<NodeInventory>>,
    /// The last good telemetry, as it was when the row was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) telemetry: Option<Kept<NodeTelemetry>>,
}

impl ReportRow {
    /// As after these reports.
    #[cfg(feature = "simulation")]
    pub(crate) fn told(&mut self, inventory: &NodeInventory, telemetry: &NodeTelemetry, moment: Moment) {
        self.inventory = Some(Kept::new(inventory, moment.wall, true, moment));
        self.telemetry = Some(Kept::new(telemetry, moment.wall, true, moment));
    }

    /// What a restore from a backup makes of it: whom the node trusted then says nothing of whom it trusts now, and the end
    /// of a change of authority must not be judged by it. `None`: it stays as it is.
    pub(crate) fn of_a_backup(mut self) -> Option<Self> {
        let said = !std::mem::take(&mut self.trusts).is_empty();
        said.then_some(self)
    }
}

/// The connection that owns a node now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) generation: Generation,
    pub(crate) protocol: u32,
    /// It named its leases, so that its providers may be dispatched to.
    pub(crate) named: bool,
    /// Its agent said that it ends: what runs goes on, nothing new comes.
    pub(crate) leaving: bool,
    /// It was given a bundle of authorities and has not said since whom it trusts: what it said before may be over.
    pub(crate) given_trust: bool,
}

/// The account of each report stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streams {
    pub(crate) inventory: Stream,
    pub(crate) telemetry: Stream,
}

/// A node. Cheap to share: a reader holds the whole of it at one revision.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) row: NodeRow,
    pub(crate) position: Position,
    /// Changes of the row that are in force and not on disk, because that takes no writes.
    pub(crate) unwritten: u32,
    pub(crate) report: ReportRow,
    /// Newest state of each engine by its name; empty until the node says it to this process.
    // Boxed: a map's node has room for eleven entries, and most nodes have one engine.
    pub(crate) engines: BTreeMap<String, Box<EngineStatus>>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) settings: NodeSettings,
    pub(crate) health: AgentHealth,
    pub(crate) streams: Streams,
    /// The telemetry's cursor as it stands in the store, above the true one.
    pub(crate) telemetry_on_disk: u64,
    /// How far its clock is ahead (behind: negative) while that is a problem, in milliseconds.
    pub(crate) clock_skew_ms: Option<i64>,
    /// How far its clock is ahead (behind: negative) by its last heartbeat, to the second, whether or not that is a problem.
    pub(crate) clock_ahead_ms: i64,
    /// Since when it is known that it refused its settings.
    pub(crate) refused_since: Option<i64>,
    pub(crate) session: Option<Session>,
    /// Protocol of the last connection, of any generation.
    pub(crate) protocol: u32,
    pub(crate) generation: Generation,
    pub(crate) liveness: liveness::State,
    /// It does not trust the newest authority yet.
    pub(crate) lacks_authority: bool,
    pub(crate) problems: BTreeMap<(&'static str, String), Problem>,
    /// What the node says of itself.
    pub(crate) reported: Vec<Problem>,
}

impl Node {
    pub(crate) fn new(id: NodeId, row: NodeRow, position: Position, report: ReportRow) -> Self {
        let telemetry_on_disk = report.telemetry_sequence;
        Self {
            id,
            row,
            position,
            unwritten: 0,
            report,
            engines: BTreeMap::new(),
            labels: BTreeMap::new(),
            capabilities: Vec::new(),
            settings: NodeSettings::default(),
            health: AgentHealth::Unspecified,
            streams: Streams::default(),
            telemetry_on_disk,
            clock_skew_ms: None,
            clock_ahead_ms: 0,
            refused_since: None,
            session: None,
            protocol: 0,
            generation: Generation(0),
            liveness: liveness::State::Never,
            lacks_authority: false,
            problems: BTreeMap::new(),
            reported: Vec::new(),
        }
    }

    /// Its hardware, as it last said and was believed.
    pub(crate) fn inventory(&self) -> Option<NodeInventory> {
        self.report.inventory.as_ref().map(Kept::report)
    }

    /// Its figures, as it last said and was believed.
    pub(crate) fn telemetry(&self) -> Option<NodeTelemetry> {
        self.report.telemetry.as_ref().map(Kept::report)
    }

    /// Its provider's id.
    pub(crate) fn provider_id(&self, engine: &str) -> String {
        format!("{}/{engine}", self.id)
    }

    /// This edge can dispatch to it now: complete, heard lately, and allowed.
    pub(crate) fn connected(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.named)
            && self.liveness == liveness::State::Online
            && self.row.lifecycle == Lifecycle::Enrolled
    }

    /// It was decommissioned: only its identity is left.
    pub(crate) fn is_tombstone(&self) -> bool {
        self.row.lifecycle == Lifecycle::Decommissioned
    }

    /// The labels people gave it over those of its own file.
    pub(crate) fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.extend(self.row.labels.clone());
        labels
    }

    /// One derived word for people.
    pub(crate) fn state(&self) -> &'static str {
        match self.row.lifecycle {
            Lifecycle::Decommissioned => "decommissioned",
            Lifecycle::Disabled => "disabled",
            Lifecycle::Enrolled if self.row.credential.revoked_at_unix_ms.is_some() => "credential_revoked",
            Lifecycle::Enrolled if self.credential_is_lost() => "credential_expired",
            Lifecycle::Enrolled => self.liveness.name(),
        }
    }

    /// Its certificate opens nothing any more: whatever its host does, it does not come back by itself (row 30).
    pub(crate) fn credential_is_lost(&self) -> bool {
        self.session.is_none() && self.problems.contains_key(&(CREDENTIAL_EXPIRED, self.id.to_string()))
    }

    /// Why one of its engines is given no work, whatever its state: what it declares does not stand at this site.
    pub(crate) fn refusal(&self, engine: &str) -> Option<&Problem> {
        if self.problems.is_empty() {
            return None;
        }
        let subject = self.provider_id(engine);
        REFUSALS.iter().find_map(|code| self.problems.get(&(*code, subject.clone())))
    }

    /// A moment that the node told by its own clock, by this edge's.
    pub(crate) const fn by_our_clock(&self, at_unix_ms: i64) -> i64 {
        at_unix_ms.saturating_sub(self.clock_ahead_ms)
    }

    /// How long ago a moment is that the node told by its own clock; `None` if it told none.
    pub(crate) fn age_ms(&self, at_unix_ms: i64, wall: i64) -> Option<u64> {
        let age = wall.saturating_sub(self.by_our_clock(at_unix_ms));
        (at_unix_ms > 0).then(|| u64::try_from(age).unwrap_or(0))
    }

    /// The state of one of its engines and why, as the node last said to this process.
    pub(crate) fn engine_state(&self, name: &str) -> (ProviderState, String) {
        if let Some(problem) = self.refusal(name) {
            return (ProviderState::Failed, problem.message.clone());
        }
        if self.session.as_ref().is_some_and(|session| session.leaving) {
            return (ProviderState::Leaving, "its agent ends; running requests finish".to_owned());
        }
        let Some(status) = self.engines.get(name) else {
            return (ProviderState::Unavailable, "the node has not said its state yet".to_owned());
        };
        if status.state() == EngineState::Ready
            && let Some(gpu) = self.absent_gpu_of(name)
        {
            let word = if gpu.why == Absence::Lost { "does not answer" } else { "is gone" };
            return (ProviderState::Unavailable, format!("{} {word}", gpu.words()));
        }
        let state = match status.state() {
            EngineState::Ready => ProviderState::Available,
            EngineState::Validating | EngineState::Starting | EngineState::Loading => ProviderState::Loading,
            EngineState::Draining | EngineState::Stopping => ProviderState::Draining,
            EngineState::Failed => ProviderState::Failed,
            EngineState::Stopped | EngineState::Unspecified => ProviderState::Unavailable,
        };
        (state, status.cause.clone())
    }
}

/// Whether a provider can take requests, as its engine's node says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProviderState {
    Available,
    Loading,
    Draining,
    /// Its node's agent ends, and the next one may take it up: shown as draining, and waited for.
    Leaving,
    Unavailable,
    Failed,
}
