//! A node as its edge tells of it, at one revision.
//!
//! Owns the shape of what leaves the site. Invariant: a configured node or provider never disappears because it
//! is not connected; a provider that cannot be dispatched to shows zero in every numeric field; no address or
//! secret is in it (R4).

use umbel_contracts::proto::control::{
    self, ArtifactSummary, CheckResult, CredentialSummary, EdgeNodeSnapshot, NodeConfig, NodeDetail,
    ProviderHealth, ProviderSnapshot, ProviderStatus, RuntimeSummary,
};
use umbel_contracts::proto::node::EngineState;
use umbel_wire::liveness::State;

use super::Moment;
use super::gpus::Absence;
use super::node::{Declared, Lifecycle, Node, ProviderState};
use super::problems::{ENGINE_FAILED, GPU_LOST, GPU_MISSING, NODE_OFFLINE, PROBLEMS_MAX, SETTINGS_REFUSED};
use super::readiness;

mod hardware;

pub(crate) use hardware::{FIGURES_AGE, Reports};

/// A provider's counts as admission holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) capacity: u32,
    pub(crate) in_flight: u32,
    pub(crate) queued: u32,
    pub(crate) long_capacity: u32,
    pub(crate) long_in_flight: u32,
    pub(crate) unconfirmed: u32,
}

/// Everything of a node that a reader may see.
pub(crate) fn node(
    node: &Node,
    moment: Moment,
    figures: &dyn Fn(&str) -> Option<Figures>,
) -> EdgeNodeSnapshot {
    let reports = Reports::of(node);
    let readiness = readiness::checks(node, &reports, moment);
    let streams = [node.streams.inventory, node.streams.telemetry];
    let ready = readiness.iter().all(|check| check.result() != CheckResult::Failed);
    EdgeNodeSnapshot {
        node_id: node.id.to_string(),
        name: node.row.name.clone(),
        labels: node.all_labels().into_iter().collect(),
        lifecycle: lifecycle(node.row.lifecycle).into(),
        liveness: liveness(node.liveness).into(),
        connected: node.connected(),
        generation: node.generation.0,
        eligible: node.row.eligible,
        draining: node.row.draining,
        last_seen_at_unix_ms: node.report.last_seen_at_unix_ms,
        agent_version: node.report.agent_version.clone(),
        protocol: node.protocol,
        protocol_verdict: if node.protocol == 0 { String::new() } else { "COMPATIBLE".to_owned() },
        config: Some(config(node)),
        telemetry: hardware::telemetry(node, &reports, moment),
        inventory: hardware::inventory(node, reports, moment),
        providers: node.report.engines.iter().map(|engine| provider(node, engine, figures)).collect(),
        capabilities: node.capabilities.clone(),
        problems: shown_problems(node),
        readiness,
        ready,
        credential: Some(credential(node)),
        enrolled_at_unix_ms: node.row.enrolled_at_unix_ms,
        decommissioned_at_unix_ms: node.row.decommissioned.as_ref().map_or(0, |one| one.at_unix_ms),
        heartbeat_sequence: node.report.heartbeat_sequence,
        clock_skew_ms: node.clock_skew_ms,
        reports_refused: streams.map(|stream| stream.refused).iter().sum(),
        reports_missed: streams.map(|stream| stream.missed).iter().sum(),
        detail: None,
    }
}

/// What it can run and which files it has, as it last said; its jobs are not among what is known here.
pub(crate) fn detail(node: &Node) -> NodeDetail {
    let runtimes = node.report.runtimes.iter().map(|one| RuntimeSummary {
        kind: one.kind.clone(),
        engine_version: one.engine_version.clone(),
        adapter_version: one.adapter_version.clone(),
    });
    let artifacts = node.report.artifacts.iter().map(|one| ArtifactSummary {
        repository: one.repository.clone(),
        revision: one.revision.clone(),
        digest: one.digest.clone(),
        bytes: one.bytes,
        files: one.files,
        root: one.root.clone(),
        folder: one.path.clone(),
    });
    NodeDetail { runtimes: runtimes.collect(), artifacts: artifacts.collect(), jobs: Vec::new() }
}

/// Which settings it was given and has applied; never what they say.
fn config(node: &Node) -> NodeConfig {
    node.settings_config()
}

/// What it shows at this edge; never a key.
fn credential(node: &Node) -> CredentialSummary {
    let credential = &node.row.credential;
    CredentialSummary {
        not_after_unix_ms: credential.not_after_unix_ms,
        revoked_at_unix_ms: credential.revoked_at_unix_ms.unwrap_or(0),
        rotating: node.row.rotate.is_some() || node.row.pending.is_some(),
        lacks_authority: node.lacks_authority,
    }
}

/// One provider as its node's snapshot has it; `None` if the node does not declare it.
pub(crate) fn one_provider(
    node: &Node,
    provider_id: &str,
    figures: &dyn Fn(&str) -> Option<Figures>,
) -> Option<ProviderSnapshot> {
    let engine = node.report.engines.iter().find(|engine| node.provider_id(&engine.name) == provider_id)?;
    Some(provider(node, engine, figures))
}

fn provider(node: &Node, engine: &Declared, figures: &dyn Fn(&str) -> Option<Figures>) -> ProviderSnapshot {
    let provider_id = node.provider_id(&engine.name);
    let base = ProviderSnapshot {
        provider_id: provider_id.clone(),
        model: engine.model.clone(),
        aliases: engine.aliases.clone(),
        category: engine.category.clone(),
        engine_kind: engine.kind.clone(),
        deployment: engine.deployment.clone(),
        replica: engine.replica(),
        ..ProviderSnapshot::default()
    };
    if !node.connected() {
        return ProviderSnapshot {
            status: ProviderStatus::Unavailable.into(),
            health: ProviderHealth::Offline.into(),
            cause: format!("its node is {}", away(node)),
            ..base
        };
    }
    let (state, mut cause) = node.engine_state(&engine.name);
    if node.row.draining && cause.is_empty() {
        cause = "its node is draining".to_owned();
    }
    let figures = figures(&provider_id).unwrap_or_default();
    let status = match state {
        ProviderState::Failed => ProviderStatus::Failed,
        _ if node.row.draining => ProviderStatus::Draining,
        ProviderState::Available => ProviderStatus::Available,
        ProviderState::Loading => ProviderStatus::Loading,
        ProviderState::Draining | ProviderState::Leaving => ProviderStatus::Draining,
        ProviderState::Unavailable => ProviderStatus::Unavailable,
    };
    let health = match state {
        ProviderState::Unavailable if node.absent_gpu_of(&engine.name).is_some() => ProviderHealth::Offline,
        ProviderState::Available if figures.unconfirmed > 0 => ProviderHealth::Degraded,
        ProviderState::Available | ProviderState::Draining | ProviderState::Leaving => ProviderHealth::Ok,
        ProviderState::Loading | ProviderState::Unavailable => ProviderHealth::Unknown,
        ProviderState::Failed => ProviderHealth::Offline,
    };
    ProviderSnapshot {
        status: status.into(),
        health: health.into(),
        capacity: figures.capacity,
        in_flight: figures.in_flight,
        queued: figures.queued,
        max_context_tokens: engine.max_context_tokens,
        long_context_threshold_tokens: engine.long_context_threshold_tokens,
        long_context_capacity: figures.long_capacity,
        long_context_in_flight: figures.long_in_flight,
        cause,
        ..base
    }
}

fn away(node: &Node) -> &'static str {
    match (node.row.lifecycle, node.liveness) {
        (Lifecycle::Enrolled, State::Online) if node.session.is_some() => "completing its connection",
        (Lifecycle::Enrolled, State::Online) => "not connected",
        _ => node.state(),
    }
}

/// Everything that is wrong with a node: what the edge found, then what the node says.
pub(crate) fn problems(node: &Node) -> Vec<control::Problem> {
    let problem = |one: &super::problems::Problem| control::Problem {
        code: one.code.clone(),
        message: one.message.clone(),
        since_unix_ms: one.since_unix_ms,
        subject: one.subject.clone(),
    };
    let kept = node.problems.values().map(problem).chain(node.reported.iter().map(problem));
    let found = offline(node).into_iter().chain(settings_refused(node));
    found.chain(absent_gpus(node)).chain(failed_engines(node)).chain(kept).collect()
}

/// As many as one snapshot holds.
fn shown_problems(node: &Node) -> Vec<control::Problem> {
    let mut problems = problems(node);
    problems.truncate(PROBLEMS_MAX);
    problems
}

/// Follows from what the node last said of its settings; it goes on with those before.
fn settings_refused(node: &Node) -> Option<control::Problem> {
    let (version, why) = node.settings_refusal()?;
    let name = &node.row.name;
    let why: String = why.chars().take(512).collect();
    Some(control::Problem {
        code: SETTINGS_REFUSED.to_owned(),
        message: format!(
            "{name} refused settings version {version} and goes on with those before: {why}. Correct them (umbel ctl \
             settings set agents.nodes.{name}...) or take them back (umbel ctl settings rollback)"
        ),
        since_unix_ms: node.refused_since.unwrap_or(node.report.last_seen_at_unix_ms),
        subject: node.id.to_string(),
    })
}

/// Follows from what the node last said of its GPUs, also while it is away.
fn absent_gpus(node: &Node) -> impl Iterator<Item = control::Problem> {
    let of_a_site = node.row.lifecycle != Lifecycle::Decommissioned;
    node.report.absent.iter().filter(move |_| of_a_site).map(|gpu| {
        let name = &node.row.name;
        let words = gpu.words();
        let (code, message) = match gpu.why {
            Absence::Lost => (
                GPU_LOST,
                format!(
                    "{words} of {name} does not answer: look for its Xid with `dmesg` on the host; a reset \
                     (nvidia-smi --gpu-reset) or a reboot may bring it back"
                ),
            ),
            Absence::Missing => (
                GPU_MISSING,
                format!(
                    "{words} of {name} is gone: look at `nvidia-smi -L` and `dmesg` on the host; if it was taken out, \
                     this goes away by itself after 30 days"
                ),
            ),
        };
        control::Problem {
            code: code.to_owned(),
            message,
            since_unix_ms: gpu.since_unix_ms,
            subject: gpu.uuid.clone(),
        }
    })
}

/// Follows from the liveness, so it is kept nowhere.
fn offline(node: &Node) -> Option<control::Problem> {
    let lost = node.row.lifecycle == Lifecycle::Enrolled && node.liveness == State::Offline;
    let name = &node.row.name;
    let message = match node.row.credential.revoked_at_unix_ms {
        Some(_) => format!(
            "{name} is offline and its credential is revoked: it comes back with a new one, umbel ctl token create \
             --replace {name}, then `umbel node enroll` on its host, where it stands"
        ),
        None => format!(
            "{name} is offline: look whether its host and its agent run, then at `umbel node doctor` there"
        ),
    };
    lost.then(|| control::Problem {
        code: NODE_OFFLINE.to_owned(),
        message,
        since_unix_ms: node.report.last_seen_at_unix_ms,
        subject: node.id.to_string(),
    })
}

/// Follows from what the node last said of its engines, while somebody says it.
fn failed_engines(node: &Node) -> impl Iterator<Item = control::Problem> {
    let heard = node.connected().then_some(node);
    heard.into_iter().flat_map(|node| {
        let failed = node.engines.iter().filter(|(_, status)| status.state() == EngineState::Failed);
        failed.map(|(name, status)| control::Problem {
            code: ENGINE_FAILED.to_owned(),
            message: format!("engine {name} of {} has failed: {}", node.row.name, status.cause),
            since_unix_ms: node.by_our_clock(status.since_unix_ms),
            subject: node.provider_id(name),
        })
    })
}

/// Counts of the whole site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) nodes_total: u32,
    pub(crate) nodes_online: u32,
    pub(crate) nodes_stale: u32,
    pub(crate) nodes_offline: u32,
    pub(crate) providers_total: u32,
    pub(crate) providers_available: u32,
}

/// Counts nodes that are not decommissioned, by liveness, and their providers.
pub(crate) fn counts<'a>(nodes: impl Iterator<Item = &'a Node>) -> Counts {
    let mut counts = Counts::default();
    for node in nodes.filter(|node| node.row.lifecycle != Lifecycle::Decommissioned) {
        counts.nodes_total += 1;
        let revoked = node.row.credential.revoked_at_unix_ms.is_some();
        match (node.row.lifecycle, node.liveness) {
            // It was heard a moment ago, and nothing lets it in again.
            (Lifecycle::Enrolled, State::Online | State::Stale) if revoked => counts.nodes_offline += 1,
            (Lifecycle::Enrolled, State::Online) => counts.nodes_online += 1,
            (Lifecycle::Enrolled, State::Stale) => counts.nodes_stale += 1,
            (Lifecycle::Enrolled, State::Offline) => counts.nodes_offline += 1,
            // A disabled one is none of these, whatever was heard of it.
            _ => {}
        }
        for engine in &node.report.engines {
            counts.providers_total += 1;
            let serves = node.connected() && node.row.eligible && !node.row.draining;
            if serves && node.engine_state(&engine.name).0 == ProviderState::Available {
                counts.providers_available += 1;
            }
        }
    }
    counts
}

fn lifecycle(lifecycle: Lifecycle) -> control::Lifecycle {
    match lifecycle {
        Lifecycle::Enrolled => control::Lifecycle::Enrolled,
        Lifecycle::Disabled => control::Lifecycle::Disabled,
        Lifecycle::Decommissioned => control::Lifecycle::Decommissioned,
    }
}

fn liveness(state: State) -> control::Liveness {
    match state {
        State::Never => control::Liveness::Never,
        State::Unknown => control::Liveness::Unknown,
        State::Online => control::Liveness::Online,
        State::Stale => control::Liveness::Stale,
        State::Offline => control::Liveness::Offline,
    }
}
