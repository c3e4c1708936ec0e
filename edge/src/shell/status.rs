//! What the site says of itself, at one revision: for control planes and the local socket alike.
//!
//! Owns the reading: nodes are shared under the registry's lock at one revision, each model's figures are read
//! together under admission's. Invariant: nothing here leaves out a node because it is not connected.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message;
use umbel_contracts::proto::control::{
    AuditPlace, EdgeFacts, EdgeNodeSnapshot, EdgeStatusRequest, EdgeStatusResponse, EdgeSummary, Problem,
    ProviderSnapshot, QueueSnapshot, Revision, StoreHealth,
};
use umbel_contracts::selector::Selector;
use umbel_store::AuditAt;
use umbel_wire::text::shorten;
use umbel_wire::{Code, Error, Trouble, clock};

use crate::core::registry::Moment;
use crate::core::registry::node::{Lifecycle, Node};
use crate::core::registry::snapshot::{self, Figures};
use crate::shell::dispatch::QueueReading;
use crate::shell::operations::matches;
use crate::shell::owing::store_problems;
use crate::shell::site::Site;

/// Problems in a summary.
const PROBLEMS: usize = 32;
/// Nodes in one message of a status.
const NODES_A_PART: usize = 256;
/// A message is closed at this size, well below its bound, whatever its last node adds.
const PART_BYTES: usize = 128 * 1024;

/// One node as it is told.
pub(crate) fn node(site: &Site, node: &Node) -> EdgeNodeSnapshot {
    let moment = Moment { now: clock::now(), wall: site.wall().unix_ms() };
    snapshot::node(node, moment, &|provider| figures(site, provider))
}

fn figures(site: &Site, provider: &str) -> Option<Figures> {
    site.dispatch.figures(provider).map(|figures| Figures {
        capacity: figures.capacity,
        in_flight: figures.in_flight,
        queued: figures.queued,
        long_capacity: figures.long_capacity,
        long_in_flight: figures.long_in_flight,
        unconfirmed: figures.unconfirmed,
    })
}

/// One provider as the snapshot of its node has it.
pub(crate) fn provider(site: &Site, node: &Node, provider_id: &str) -> Option<ProviderSnapshot> {
    snapshot::one_provider(node, provider_id, &|provider| figures(site, provider))
}

/// The queue of each model.
pub(crate) fn queues(site: &Site) -> Vec<QueueSnapshot> {
    site.dispatch.reading().queues.iter().map(|reading| queue(site, reading)).collect()
}

/// One model's queue.
pub(crate) fn queue(site: &Site, reading: &QueueReading) -> QueueSnapshot {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let age = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (queue, leases) = (&reading.figures, reading.leases);
    QueueSnapshot {
        model: queue.model.to_string(),
        depth: count(queue.depth),
        oldest_age_ms: age(queue.oldest),
        admitted_total: queue.admitted_total,
        shed_total: queue.shed_total,
        in_flight: queue.in_flight,
        observed_at_unix_ms: site.wall().unix_ms(),
        limit: count(queue.limit),
        capacity: queue.capacity,
        long_waiting: count(queue.long_waiting),
        oldest_long_age_ms: age(reading.oldest_long),
        drain_per_minute: queue.drains_every.map_or(0, a_minute),
        keys_waiting: count(reading.keys.len()),
        providers_open: queue.open_providers,
        providers_loading: reading.loading,
        providers_wanted: queue.wanted_providers,
        leases_prefill: leases.without_head,
        leases_streaming: leases.streaming,
        leases_ending: leases.resetting,
        leases_unconfirmed: leases.unconfirmed,
        rejections: site.dispatch.rejections(queue.index),
    }
}

/// How often something happens in a minute that happens each `every`.
fn a_minute(every: Duration) -> u32 {
    let minute = Duration::from_secs(60).as_nanos();
    u32::try_from(minute / every.as_nanos().max(1)).unwrap_or(u32::MAX)
}

/// The site in figures, at most 16 KiB.
pub(crate) async fn summary(site: &Site) -> EdgeSummary {
    let (revision, nodes) = site.nodes();
    summary_of(site, revision, &nodes).await
}

// A part of the edge itself that broke off.
fn broke(trouble: &Trouble) -> Problem {
    Problem {
        code: Trouble::CODE.to_owned(),
        message: trouble.sentence("this edge"),
        since_unix_ms: trouble.since.unix_ms(),
        subject: String::new(),
    }
}

/// What stands at one entry of the audit; `None`: nobody asks (0), or it cannot be read now.
pub(crate) async fn audit_place(site: &Site, sequence: u64) -> Option<AuditPlace> {
    if sequence == 0 {
        return None;
    }
    let (hash, aged) = match site.store.audit_at(sequence).await.ok()? {
        AuditAt::Entry(hash) => (hash.to_vec(), false),
        AuditAt::Aged => (Vec::new(), true),
        AuditAt::Nothing => (Vec::new(), false),
    };
    Some(AuditPlace { sequence, hash, aged })
}

async fn summary_of(site: &Site, revision: u64, nodes: &[Arc<Node>]) -> EdgeSummary {
    let counts = snapshot::counts(nodes.iter().map(Arc::as_ref));
    let totals = site.dispatch.totals();
    let mut problems: Vec<Problem> = store_problems(&site.store, site.wall());
    problems.extend(site.parts.troubles().iter().map(broke));
    problems.extend(site.settings.problem());
    problems.extend(site.authorities.problem());
    problems.extend(site.expiries.problems(site.wall()));
    problems.extend(site.approvals.lock().unwrap_or_else(PoisonError::into_inner).problems(site.wall()));
    let serving = nodes.iter().filter(|node| node.row.lifecycle != Lifecycle::Decommissioned);
    problems.extend(serving.flat_map(|node| snapshot::problems(node)));
    let problems_total = u32::try_from(problems.len()).unwrap_or(u32::MAX);
    problems.truncate(PROBLEMS);
    for problem in &mut problems {
        shorten(&mut problem.message, 256);
    }
    let head = site.store.audit_head();
    EdgeSummary {
        revision: Some(revision_of(site, revision)),
        facts: Some(facts(site)),
        nodes_total: counts.nodes_total,
        nodes_online: counts.nodes_online,
        nodes_stale: counts.nodes_stale,
        nodes_offline: counts.nodes_offline,
        providers_total: counts.providers_total,
        providers_available: counts.providers_available,
        requests_in_flight: totals.in_flight().into(),
        requests_queued: totals.waiting.into(),
        problems,
        problems_total,
        audit_sequence: head.sequence,
        audit_hash: head.hash.to_vec(),
    }
}

fn facts(site: &Site) -> EdgeFacts {
    let uptime = clock::now().saturating_duration_since(site.started);
    EdgeFacts {
        software_version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_ms: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
        store: match site.store_trouble() {
            None => StoreHealth::Ok.into(),
            Some(_) => StoreHealth::ReadOnly.into(),
        },
        settings_version: site.settings.version(),
    }
}

fn revision_of(site: &Site, number: u64) -> Revision {
    Revision { incarnation: site.store.incarnation().to_owned(), number }
}

/// What a status question asks for, validated.
pub(crate) struct Question {
    selector: Selector,
    facts: bool,
    nodes: bool,
    queues: bool,
    decommissioned: bool,
    known: Option<Revision>,
    request_id: String,
}

impl Question {
    /// INVALID_ARGUMENT for a malformed selector or an unknown section.
    pub(crate) fn check(request: EdgeStatusRequest) -> Result<Self, Error> {
        let selector = match request.node_selector.as_str() {
            "" => Selector::all(),
            text => Selector::parse(text)
                .map_err(|error| Error::new(Code::InvalidArgument, "SELECTOR", error.to_string()))?,
        };
        let sections = &request.sections;
        let known = ["facts", "nodes", "queues"];
        if let Some(bad) = sections.iter().find(|section| !known.contains(&section.as_str())) {
            let message = format!("`{bad}` is no section; there are facts, nodes and queues");
            return Err(Error::new(Code::InvalidArgument, "SECTION_UNKNOWN", message));
        }
        let wants = |section: &str| sections.is_empty() || sections.iter().any(|one| one == section);
        Ok(Self {
            facts: wants("facts"),
            nodes: wants("nodes"),
            queues: wants("queues"),
            selector,
            decommissioned: request.include_decommissioned,
            known: request.known_revision,
            request_id: request.request_id,
        })
    }
}

/// One consistent reading, in parts that are made as they are sent: a site of 5,000 nodes is never whole in
/// memory twice.
pub(crate) struct Reading {
    first: Option<EdgeStatusResponse>,
    nodes: std::vec::IntoIter<Arc<Node>>,
}

impl Reading {
    /// Reads the site now.
    pub(crate) async fn new(site: &Site, question: Question) -> Self {
        let (revision, mut nodes) = site.nodes();
        let revision_now = revision_of(site, revision);
        let unchanged = question.known.as_ref() == Some(&revision_now);
        let mut first = EdgeStatusResponse {
            request_id: question.request_id.clone(),
            edge_id: site.edge_id.to_string(),
            revision: Some(revision_now),
            observed_at_unix_ms: site.wall().unix_ms(),
            unchanged,
            ..EdgeStatusResponse::default()
        };
        if unchanged {
            return Self { first: Some(first), nodes: Vec::new().into_iter() };
        }
        if question.queues {
            first.queues = queues(site);
        }
        if question.facts {
            first.summary = Some(summary_of(site, revision, &nodes).await);
        }
        nodes.retain(|node| {
            question.nodes
                && (question.decommissioned || node.row.lifecycle != Lifecycle::Decommissioned)
                && matches(&question.selector, node)
        });
        Self { first: Some(first), nodes: nodes.into_iter() }
    }

    /// The next part; `None` at the end. The first one has everything but nodes.
    pub(crate) fn next(&mut self, site: &Site) -> Option<EdgeStatusResponse> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let mut part = EdgeStatusResponse::default();
        let mut bytes = 0;
        while bytes < PART_BYTES && part.nodes.len() < NODES_A_PART {
            let Some(next) = self.nodes.next() else { break };
            let next = node(site, &next);
            bytes += next.encoded_len();
            part.nodes.push(next);
        }
        if part.nodes.is_empty() { None } else { Some(part) }
    }
}
