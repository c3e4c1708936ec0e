//! What an edge says of its own site: summary, providers, queues, problems. Nodes stand beside this file.
//!
//! Each object has exactly one conversion from its message. Absent and "not reported" are `null`, never zero.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fleet::timestamp;
use super::words::{ProviderHealth, ProviderState, StoreState};
use super::{DeploymentFiguresObject, JobFiguresObject};
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
    /// Its deployments; absent from an edge that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployments: Option<DeploymentFiguresObject>,
    /// Its jobs that have not ended; absent from an edge that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<JobFiguresObject>,
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
            deployments: summary.deployments.map(DeploymentFiguresObject::from_proto),
            jobs: summary.jobs.map(JobFiguresObject::from_proto),
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
    /// The deployment that it is of; absent if its node's own file declares it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<String>,
    /// Which replica of it, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
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
            deployment: some(provider.deployment),
            replica: (provider.replica > 0).then_some(provider.replica),
        }
    }
}

/// An empty text of the wire is nothing.
pub(super) fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
