//! What the site says of itself, at one revision: for control planes and the local socket alike.
//!
//! Owns the summary and each node's and queue's shape. Leaves questions and their answers to [`reading`]. Invariants: nothing
//! here leaves out a node because it is not connected; a summary never exceeds its bound, whatever the site has.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message;
use umbel_contracts::proto::control::{
    AuditPlace, EdgeFacts, EdgeNodeSnapshot, EdgeSummary, Problem, ProviderSnapshot, QueueSnapshot, Revision,
    StoreHealth,
};
use umbel_store::AuditAt;
use umbel_wire::text::shorten;
use umbel_wire::{Trouble, clock};

use crate::core::registry::Moment;
use crate::core::registry::node::{Lifecycle, Node};
use crate::core::registry::snapshot::{self, Figures};
use crate::shell::deployments;
use crate::shell::dispatch::QueueReading;
use crate::shell::owing::store_problems;
use crate::shell::site::Site;

mod reading;

pub(crate) use reading::{Question, Reading};

/// Problems in a summary.
const PROBLEMS: usize = 32;
/// Encoded bytes of a summary: its bound is 16 KiB, and a heartbeat has a few numbers of its own.
const SUMMARY: usize = 15 * 1024;
/// Jobs of one node that its detail names.
const JOBS_OF_A_NODE: usize = 64;
/// Encoded bytes of a node's detail: its bound is 256 KiB, and what nodes and people say of jobs may be long.
const DETAIL: usize = 240 * 1024;
/// Before an entry of a list: its field's number and its length.
const BEFORE_ENTRY: usize = 5;

/// One node as it is told.
pub(crate) fn node(site: &Site, node: &Node) -> EdgeNodeSnapshot {
    let moment = Moment { now: clock::now(), wall: site.wall().unix_ms() };
    snapshot::node(node, moment, &|provider| figures(site, provider))
}

/// One node with what it can run, has and does.
pub(crate) fn node_in_detail(site: &Site, one: &Node) -> EdgeNodeSnapshot {
    let mut detail = snapshot::detail(one);
    let mut room = DETAIL.saturating_sub(detail.encoded_len());
    for view in site.jobs.open(Some(one.id), JOBS_OF_A_NODE) {
        let job = crate::shell::jobs::snapshot(site, &view);
        let Some(left) = room.checked_sub(job.encoded_len() + BEFORE_ENTRY) else { break };
        room = left;
        detail.jobs.push(job);
    }
    EdgeNodeSnapshot { detail: Some(detail), ..node(site, one) }
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
    let mut of_deployments = deployments::Summary::of(site);
    problems.append(&mut of_deployments.problems);
    let serving = nodes.iter().filter(|node| node.row.lifecycle != Lifecycle::Decommissioned);
    problems.extend(serving.flat_map(|node| snapshot::problems(node)));
    let problems_total = u32::try_from(problems.len()).unwrap_or(u32::MAX);
    problems.truncate(PROBLEMS);
    for problem in &mut problems {
        shorten(&mut problem.message, 256);
    }
    let head = site.store.audit_head();
    let mut summary = EdgeSummary {
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
        jobs: Some(site.jobs.figures()),
        deployments: None,
    };
    let room = SUMMARY.saturating_sub(summary.encoded_len());
    summary.deployments = Some(of_deployments.figures(room));
    summary
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
