//! What an edge says of one node: identity, state, credential, settings, readiness. Its hardware stands in `hardware`.
//!
//! Each object has exactly one conversion from its message. Absent and "not reported" are `null`, never zero.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fleet::timestamp;
use super::site::{ProblemObject, ProviderObject, some};
use super::words::{CheckResult, NodeLifecycle, NodeLiveness};
use crate::proto::control;

mod detail;
mod hardware;

pub use detail::*;
pub use hardware::*;

/// The problem of a node whose certificate opens nothing any more: what was measured says less of it than this.
const CREDENTIAL_EXPIRED: &str = "CREDENTIAL_EXPIRED";

/// A time of the wire that is 0 where there is none.
fn when(unix_ms: i64) -> Option<Timestamp> {
    (unix_ms > 0).then(|| timestamp(unix_ms))
}

/// One node as its edge describes it. It stays in the list while it is not connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeObject {
    /// Given at enrollment; the node keeps it.
    pub node_id: String,
    /// For people.
    pub name: String,
    /// From the node's file and from operators.
    pub labels: BTreeMap<String, String>,
    /// One word for people: decommissioned, else disabled, else credential_revoked, else credential_expired, else the liveness.
    pub state: String,
    /// What people decided.
    pub lifecycle: NodeLifecycle,
    /// What the edge measured.
    pub liveness: NodeLiveness,
    /// This edge can dispatch to it now.
    pub connected: bool,
    /// All readiness checks that are reported have passed.
    pub ready: bool,
    /// Number of its connection; grows with each accepted one.
    pub generation: u64,
    /// It may get application traffic.
    pub eligible: bool,
    /// It takes no new work.
    pub draining: bool,
    /// When the edge last heard of it; `null` if never.
    #[schemars(with = "Option<String>")]
    pub last_seen_at: Option<Timestamp>,
    /// Version of its agent, from its last hello.
    pub agent_version: String,
    /// Protocol of its connection; 0 if it never connected.
    pub protocol: u32,
    /// `compatible`, `too_old`, `too_new` or `unknown`; empty before its first hello.
    pub protocol_verdict: String,
    /// Which settings it was given and has applied.
    pub config: Option<NodeConfigObject>,
    /// What hardware it has; `null` if it never said.
    pub inventory: Option<InventoryObject>,
    /// Its last figures; `null` if it never gave any.
    pub telemetry: Option<TelemetryObject>,
    /// Its providers.
    pub providers: Vec<ProviderObject>,
    /// What work it can take; names that the edge does not know are kept.
    pub capabilities: Vec<String>,
    /// What is wrong with it.
    pub problems: Vec<ProblemObject>,
    /// Five checks, each with its next step.
    pub readiness: Vec<ReadinessObject>,
    /// Number of the last heartbeat that the edge took; it stops with them.
    #[serde(default)]
    pub heartbeat_sequence: u64,
    /// What it shows at its edge; never a key.
    #[serde(default)]
    pub credential: Option<NodeCredentialObject>,
    /// How far its clock is ahead (behind: negative) while that is more than is allowed, in milliseconds.
    #[serde(default)]
    pub clock_skew_ms: Option<i64>,
    /// When it joined the site.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub enrolled_at: Option<Timestamp>,
    /// When it was retired for good.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub decommissioned_at: Option<Timestamp>,
    /// Reports that were refused or dropped since the edge started: replayed, or more than one a second.
    #[serde(default)]
    pub reports_refused: u64,
    /// Reports that never arrived, since the edge started.
    #[serde(default)]
    pub reports_missed: u64,
    /// What it can run, has and does; only in `node.show` and where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<NodeDetailObject>,
}

fn is_revoked(node: &control::EdgeNodeSnapshot) -> bool {
    node.credential.as_ref().is_some_and(|credential| credential.revoked_at_unix_ms > 0)
}

impl NodeObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(node: control::EdgeNodeSnapshot) -> Self {
        let lifecycle = NodeLifecycle::from_number(node.lifecycle);
        let liveness = NodeLiveness::from_number(node.liveness);
        let state = match lifecycle {
            NodeLifecycle::Enrolled if is_revoked(&node) => "credential_revoked",
            NodeLifecycle::Enrolled if node.problems.iter().any(|one| one.code == CREDENTIAL_EXPIRED) => {
                "credential_expired"
            }
            NodeLifecycle::Enrolled => liveness.as_str(),
            other => other.as_str(),
        };
        Self {
            node_id: node.node_id,
            name: node.name,
            labels: node.labels,
            state: state.to_owned(),
            lifecycle,
            liveness,
            connected: node.connected,
            ready: node.ready,
            generation: node.generation,
            eligible: node.eligible,
            draining: node.draining,
            last_seen_at: when(node.last_seen_at_unix_ms),
            agent_version: node.agent_version,
            protocol: node.protocol,
            protocol_verdict: node.protocol_verdict,
            config: node.config.map(NodeConfigObject::from_proto),
            inventory: node.inventory.map(InventoryObject::from_proto),
            telemetry: node.telemetry.map(TelemetryObject::from_proto),
            providers: node.providers.into_iter().map(ProviderObject::from_proto).collect(),
            capabilities: node.capabilities,
            problems: node.problems.into_iter().map(ProblemObject::from_proto).collect(),
            readiness: node.readiness.into_iter().map(ReadinessObject::from_proto).collect(),
            heartbeat_sequence: node.heartbeat_sequence,
            credential: node.credential.map(NodeCredentialObject::from_proto),
            clock_skew_ms: node.clock_skew_ms,
            enrolled_at: when(node.enrolled_at_unix_ms),
            decommissioned_at: when(node.decommissioned_at_unix_ms),
            reports_refused: node.reports_refused,
            reports_missed: node.reports_missed,
            detail: node.detail.map(NodeDetailObject::from_proto),
        }
    }
}

/// What a node shows at its edge; never a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCredentialObject {
    /// End of its certificate.
    #[schemars(with = "Option<String>")]
    pub not_after: Option<Timestamp>,
    /// A new certificate was asked for and has not been shown yet.
    pub rotating: bool,
    /// When it was revoked.
    #[schemars(with = "Option<String>")]
    pub revoked_at: Option<Timestamp>,
    /// It does not trust the site's newest certificate authority yet.
    pub lacks_authority: bool,
}

impl NodeCredentialObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(credential: control::CredentialSummary) -> Self {
        Self {
            not_after: when(credential.not_after_unix_ms),
            rotating: credential.rotating,
            revoked_at: when(credential.revoked_at_unix_ms),
            lacks_authority: credential.lacks_authority,
        }
    }
}

/// Which settings a node was given and has applied; never what they say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeConfigObject {
    /// What it should have.
    pub desired_version: u64,
    /// What it has.
    pub applied_version: u64,
    /// SHA-256 of the desired ones.
    pub digest: String,
    /// Why it refused them.
    pub refusal: Option<String>,
    /// Which it refused last; `null` if it did not.
    #[serde(default)]
    pub refused_version: Option<u64>,
    /// They are applied and not yet proved to work: they are taken back by themselves if they do not.
    #[serde(default)]
    pub confirming: bool,
    /// Keys that its agent does not know.
    #[serde(default)]
    pub ignored_keys: Vec<String>,
    /// Engines that take their new settings with their next start.
    #[serde(default)]
    pub waits_for_restart: Vec<String>,
}

impl NodeConfigObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(config: control::NodeConfig) -> Self {
        Self {
            desired_version: config.desired_version,
            applied_version: config.applied_version,
            digest: config.digest,
            refusal: some(config.refusal),
            refused_version: (config.refused_version > 0).then_some(config.refused_version),
            confirming: config.confirming,
            ignored_keys: config.ignored_keys,
            waits_for_restart: config.waits_for_restart,
        }
    }
}

/// One thing that a node must have before it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadinessObject {
    /// `connection`, `inventory`, `protocol`, `agent` or `telemetry`.
    pub name: String,
    /// How it came out.
    pub result: CheckResult,
    /// Whether it came out well.
    pub passed: bool,
    /// What was found.
    pub message: String,
    /// What to do, if it did not pass.
    pub next_step: Option<String>,
}

impl ReadinessObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(check: control::ReadinessCheck) -> Self {
        let result = CheckResult::from_number(check.result);
        Self {
            name: check.name,
            result,
            passed: result == CheckResult::Passed,
            message: check.message,
            next_step: some(check.next_step),
        }
    }
}
