//! What an edge says of one node: identity, state, hardware, figures, readiness.
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

/// One node as its edge describes it. It stays in the list while it is not connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeObject {
    /// Given at enrollment; the node keeps it.
    pub node_id: String,
    /// For people.
    pub name: String,
    /// From the node's file and from operators.
    pub labels: BTreeMap<String, String>,
    /// One word for people: decommissioned, else disabled, else the liveness.
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
}

impl NodeObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(node: control::EdgeNodeSnapshot) -> Self {
        let lifecycle = NodeLifecycle::from_number(node.lifecycle);
        let liveness = NodeLiveness::from_number(node.liveness);
        let state = match lifecycle {
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
            last_seen_at: (node.last_seen_at_unix_ms > 0).then(|| timestamp(node.last_seen_at_unix_ms)),
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
        }
    }
}

/// A node's hardware, as it last reported it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InventoryObject {
    /// A label, not an identity.
    pub hostname: String,
    /// Operating system.
    pub os: String,
    /// Kernel release.
    pub kernel: String,
    /// Model of its processors.
    pub cpu_model: String,
    /// Processors that the agent may use.
    pub cpu_count: u32,
    /// Memory of the host.
    pub memory_bytes: u64,
    /// Its GPUs.
    pub gpus: Vec<GpuObject>,
    /// Everything could be read.
    pub complete: bool,
    /// What could not be read.
    pub incomplete_reason: Option<String>,
    /// Age of the report by the edge's clock.
    pub age_ms: u64,
}

impl InventoryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(inventory: control::InventorySummary) -> Self {
        Self {
            hostname: inventory.hostname,
            os: inventory.os,
            kernel: inventory.kernel,
            cpu_model: inventory.cpu_model,
            cpu_count: inventory.cpu_count,
            memory_bytes: inventory.memory_bytes,
            gpus: inventory.gpus.into_iter().map(GpuObject::from_proto).collect(),
            complete: inventory.complete,
            incomplete_reason: some(inventory.incomplete_reason),
            age_ms: inventory.age_ms,
        }
    }
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuObject {
    /// The driver's UUID.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its index now; changes with the host's state.
    pub index: u32,
}

impl GpuObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(gpu: control::GpuSummary) -> Self {
        Self { uuid: gpu.uuid, name: gpu.name, memory_bytes: gpu.memory_bytes, index: gpu.index }
    }
}

/// A node's last figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TelemetryObject {
    /// Age of the report by the edge's clock.
    pub age_ms: u64,
    /// Memory in use.
    pub memory_used_bytes: u64,
    /// Load average of one minute, in thousandths.
    pub load_1m_milli: u32,
    /// Free space of its storage roots together.
    pub storage_free_bytes: u64,
}

impl TelemetryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(telemetry: control::TelemetrySummary) -> Self {
        Self {
            age_ms: telemetry.age_ms,
            memory_used_bytes: telemetry.memory_used_bytes,
            load_1m_milli: telemetry.load_1m_milli,
            storage_free_bytes: telemetry.storage_free_bytes,
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
