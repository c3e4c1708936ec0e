//! What an edge says of its own site: summary, nodes, providers, queues, problems, readiness.
//!
//! Each object has exactly one conversion from its message. Absent and "not reported" are `null`, never zero.

use std::collections::BTreeMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fleet::timestamp;
use super::words::{CheckResult, NodeLifecycle, NodeLiveness, ProviderHealth, ProviderState, StoreState};
use crate::proto::control;

/// Something that is wrong and wants a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemObject {
    /// In capitals: `DUPLICATE_IDENTITY`.
    pub code: String,
    /// What is wrong and what to do.
    pub message: String,
    /// Since when.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// A node id or provider id; absent for the site itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

impl ProblemObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(problem: control::Problem) -> Self {
        Self {
            code: problem.code,
            message: problem.message,
            since: timestamp(problem.since_unix_ms),
            subject: some(problem.subject),
        }
    }
}

/// The state of a site's registry that a reading belongs to. Different incarnations cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RevisionObject {
    /// Of the edge's store.
    pub incarnation: String,
    /// Grows with each change.
    pub number: u64,
}

/// Figures of one site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SummaryObject {
    /// The state of the registry they belong to.
    pub revision: Option<RevisionObject>,
    /// Version of the edge.
    pub software_version: String,
    /// How long it has been running.
    pub uptime_ms: u64,
    /// Whether its disk takes writes.
    pub store: StoreState,
    /// Version of its settings.
    pub settings_version: u64,
    /// Nodes that are not decommissioned.
    pub nodes_total: u32,
    /// Of them: heard lately.
    pub nodes_online: u32,
    /// Of them: not heard for the stale time.
    pub nodes_stale: u32,
    /// Of them: not heard for the offline time.
    pub nodes_offline: u32,
    /// Providers of all nodes.
    pub providers_total: u32,
    /// Of them: take requests.
    pub providers_available: u32,
    /// Requests that hold a lease.
    pub requests_in_flight: u64,
    /// Requests that wait.
    pub requests_queued: u64,
    /// At most 32.
    pub problems: Vec<ProblemObject>,
    /// All of them.
    pub problems_total: u32,
    /// Last entry of the edge's audit.
    pub audit_sequence: u64,
    /// Hash that the audit's chain has there, in hexadecimal.
    pub audit_hash: String,
}

impl SummaryObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(summary: control::EdgeSummary) -> Self {
        let facts = summary.facts.unwrap_or_default();
        Self {
            revision: summary.revision.map(|revision| RevisionObject {
                incarnation: revision.incarnation,
                number: revision.number,
            }),
            software_version: facts.software_version,
            uptime_ms: facts.uptime_ms,
            store: StoreState::from_number(facts.store),
            settings_version: facts.settings_version,
            nodes_total: summary.nodes_total,
            nodes_online: summary.nodes_online,
            nodes_stale: summary.nodes_stale,
            nodes_offline: summary.nodes_offline,
            providers_total: summary.providers_total,
            providers_available: summary.providers_available,
            requests_in_flight: summary.requests_in_flight,
            requests_queued: summary.requests_queued,
            problems: summary.problems.into_iter().map(ProblemObject::from_proto).collect(),
            problems_total: summary.problems_total,
            audit_sequence: summary.audit_sequence,
            audit_hash: data_encoding::HEXLOWER.encode(&summary.audit_hash),
        }
    }
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

/// One engine (or endpoint, or tool) on one node, serving one model. While its node cannot be dispatched to, it is
/// unavailable and offline and every figure is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderObject {
    /// `NODE_ID/NAME`.
    pub provider_id: String,
    /// The model it serves.
    pub model: String,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// `local_inference`, `api` or `cli`.
    pub category: String,
    /// `sim`, `external`, `llama-server`.
    pub engine_kind: String,
    /// Whether it takes requests.
    pub status: ProviderState,
    /// How well it does.
    pub health: ProviderHealth,
    /// Requests at once.
    pub capacity: u32,
    /// Leases held, the long ones included.
    pub in_flight: u32,
    /// Requests waiting for which it is a candidate.
    pub queued: u32,
    /// Longest prompt and answer together.
    pub max_context_tokens: u32,
    /// From here on a request is a long one.
    pub long_context_threshold_tokens: u32,
    /// Long requests at once.
    pub long_context_capacity: u32,
    /// Leases of long requests.
    pub long_context_in_flight: u32,
    /// Why it is unavailable or failed.
    pub cause: Option<String>,
}

impl ProviderObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(provider: control::ProviderSnapshot) -> Self {
        Self {
            provider_id: provider.provider_id,
            model: provider.model,
            aliases: provider.aliases,
            category: provider.category,
            engine_kind: provider.engine_kind,
            status: ProviderState::from_number(provider.status),
            health: ProviderHealth::from_number(provider.health),
            capacity: provider.capacity,
            in_flight: provider.in_flight,
            queued: provider.queued,
            max_context_tokens: provider.max_context_tokens,
            long_context_threshold_tokens: provider.long_context_threshold_tokens,
            long_context_capacity: provider.long_context_capacity,
            long_context_in_flight: provider.long_context_in_flight,
            cause: some(provider.cause),
        }
    }
}

/// The queue of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueObject {
    /// The model.
    pub model: String,
    /// Requests that wait.
    pub depth: u32,
    /// How long the first of them has been waiting.
    pub oldest_age_ms: u64,
    /// Requests that got a lease since the edge's start.
    pub admitted_total: u64,
    /// Requests that were refused since the edge's start.
    pub shed_total: u64,
    /// Leases held.
    pub in_flight: u32,
    /// The edge's time of the reading.
    #[schemars(with = "String")]
    pub observed_at: Timestamp,
}

impl QueueObject {
    /// From the wire.
    #[must_use]
    pub fn from_proto(queue: control::QueueSnapshot) -> Self {
        Self {
            model: queue.model,
            depth: queue.depth,
            oldest_age_ms: queue.oldest_age_ms,
            admitted_total: queue.admitted_total,
            shed_total: queue.shed_total,
            in_flight: queue.in_flight,
            observed_at: timestamp(queue.observed_at_unix_ms),
        }
    }
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
