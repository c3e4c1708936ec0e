//! What a world looks at to judge an edge: its own snapshots beside what admission and the slots hold.
//!
//! Owns plain values. Invariant: looking changes nothing.

use std::time::Instant;

use umbel_contracts::proto::control::EdgeNodeSnapshot;
use umbel_store::simulation::Disk;

use super::{Edge, Own, RequestId};
use crate::core::admission::LeaseId;
use crate::core::registry::Moment;
use crate::core::registry::node::NodeRow;
use crate::core::registry::snapshot::{self, Counts, Figures};

/// Everything at one instant.
#[derive(Clone, Debug)]
pub struct View {
    /// Of the registry.
    pub revision: u64,
    /// Of the settings.
    pub settings_version: u64,
    /// The edge's own settings: in force, and as the newest version says.
    pub own: (Own, Result<Own, String>),
    /// The highest generation given.
    pub highest_generation: u64,
    /// Every node.
    pub nodes: Vec<NodeView>,
    /// Every token.
    pub tokens: Vec<TokenView>,
    /// Every lease whose stream is open.
    pub leases: Vec<LeaseView>,
    /// Leases that admission counts, and requests that wait there.
    pub held: (u32, u32),
    /// Leases whose connection broke beside a newer one and that their node has not confirmed.
    pub orphans: usize,
    /// Requests that wait here.
    pub waiting: Vec<RequestId>,
    /// How often a provider was passed over, in this process.
    pub passed_over: u64,
    /// Observations told by this process, and those that are not in the audit yet.
    pub observations: (u64, u64),
    /// Audited changes that the disk refused to this process, and of them those that no entry tells of yet.
    pub refusals: (u64, u64),
    /// Nodes online and providers available, as a summary says it.
    pub online_and_available: (u32, u32),
}

/// A node, from every side.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// As it is told.
    pub snapshot: EdgeNodeSnapshot,
    /// The owner of its slot.
    pub owner: Option<u64>,
    /// Keys that open the door for it now, in lower-case hexadecimal.
    pub opening_keys: Vec<String>,
    /// Keys that open nothing any more.
    pub retired_keys: Vec<String>,
    /// The token that its present host used.
    pub token_id: String,
    /// People let it in.
    pub admits: bool,
    /// An accepted connection of the newest generation is alive.
    pub newest_lives: bool,
    /// Its lifecycle's word.
    pub state: &'static str,
    /// Each provider, as dispatch sees it.
    pub dispatchable: Vec<ProviderView>,
    /// Cursors of inventory and telemetry.
    pub cursors: (u64, u64),
    /// When the last good telemetry was observed, by the node's clock.
    pub telemetry_observed: Option<i64>,
    /// Reports so far are on disk with this position of the row.
    pub position: u64,
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Which.
    pub token_id: String,
    /// Whose key used it, and the node that came of it.
    pub claim: Option<(String, String)>,
    /// Somebody revoked it.
    pub revoked: bool,
}

/// A provider, with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderView {
    /// `NODE_ID/NAME`.
    pub id: String,
    /// May be given a request now, if a slot is free and it is not passed over.
    pub open: bool,
    /// It fails more than its peers, and is passed over for a while.
    pub ejected: bool,
    /// Requests at once, and leases held.
    pub slots: (u32, u32),
    /// The same of long ones.
    pub long_slots: (u32, u32),
}

/// A lease with an open stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Of this request.
    pub request: RequestId,
    /// A slot of this provider.
    pub provider: String,
    /// Which.
    pub lease: u64,
    /// Admission counts it.
    pub counted: bool,
    /// Its connection still owns the node.
    pub current: bool,
}

impl Edge {
    /// Looks.
    #[must_use]
    pub fn view(&self, now: Instant) -> View {
        let nodes = self.registry.all();
        let counts: Counts = snapshot::counts(nodes.iter().map(AsRef::as_ref));
        let totals = self.admission.lease_counts();
        View {
            revision: self.registry.revision(),
            settings_version: self.settings.version(),
            own: (self.own, self.settings.own(&self.setup)),
            highest_generation: self.registry.slots.highest().0,
            nodes: nodes.iter().map(|node| self.node_view(node, now)).collect(),
            tokens: self.token_views(),
            leases: self
                .requests
                .open
                .iter()
                .map(|((link, _), held)| LeaseView {
                    request: held.request,
                    provider: held.provider.to_string(),
                    lease: held.grant.lease.0,
                    counted: self.counts(held.grant.lease),
                    current: self.serving(*link).is_some_and(|serving| {
                        self.registry.slots.is_current(&serving.own.id, serving.own.generation)
                    }),
                })
                .collect(),
            held: (totals.in_flight(), totals.waiting),
            orphans: self.orphans(),
            waiting: self.waiting_requests(),
            passed_over: self.admission.choice_figures().passed_over_total,
            observations: self.disk.observations(),
            refusals: self.disk.observing.refusals(),
            online_and_available: (self.spoil.0.unwrap_or(counts.nodes_online), counts.providers_available),
        }
    }

    fn counts(&self, lease: LeaseId) -> bool {
        self.admission.phase(lease).is_some()
    }

    fn token_views(&self) -> Vec<TokenView> {
        let mut views: Vec<_> = self
            .tokens
            .all()
            .into_iter()
            .map(|row| TokenView {
                claim: row.token.claim.map(|claim| (claim.key_hash, claim.subject)),
                revoked: row.token.revoked_at_unix_ms.is_some(),
                token_id: row.token.token_id,
            })
            .collect();
        views.sort_by(|a, b| a.token_id.cmp(&b.token_id));
        views
    }

    fn node_view(&self, node: &crate::core::registry::node::Node, now: Instant) -> NodeView {
        let figures = |provider: &str| {
            self.admission.figures(provider).map(|figures| Figures {
                capacity: figures.capacity,
                in_flight: figures.in_flight,
                queued: figures.queued,
                long_capacity: figures.long_capacity,
                long_in_flight: figures.long_in_flight,
                unconfirmed: figures.unconfirmed,
            })
        };
        let providers = node.report.engines.iter().map(|engine| node.provider_id(&engine.name));
        NodeView {
            snapshot: snapshot::node(node, Moment { now, wall: self.wall.unix_ms() }, &figures),
            owner: self.registry.slots.owner(&node.id).map(|owner| owner.generation.0),
            newest_lives: self.links.iter().any(|(link, entry)| {
                let serving = self.serving(*link);
                let newest =
                    serving.is_some_and(|one| one.own.id == node.id && one.own.generation == node.generation);
                newest && !entry.end.is_over()
            }),
            retired_keys: node.row.retired.iter().map(|one| one.key_sha256.clone()).collect(),
            token_id: node.row.token_id.clone(),
            admits: node.row.admits(),
            opening_keys: opening_keys(&node.row),
            state: node.state(),
            dispatchable: providers
                .filter_map(|id| {
                    let figures = self.admission.figures(&id)?;
                    Some(ProviderView {
                        id,
                        open: figures.open,
                        ejected: figures.ejected,
                        slots: (figures.capacity, figures.in_flight),
                        long_slots: (figures.long_capacity, figures.long_in_flight),
                    })
                })
                .collect(),
            cursors: (node.report.inventory_sequence, node.report.telemetry_sequence),
            telemetry_observed: node
                .report
                .telemetry
                .as_ref()
                .map(|kept| kept.last_good())
                .filter(|at| *at > 0),
            position: node.position.0,
        }
    }
}

fn opening_keys(row: &NodeRow) -> Vec<String> {
    let all = [Some(&row.credential), row.pending.as_ref()];
    let open = all.into_iter().flatten().filter(|_| row.admits());
    open.map(|credential| credential.key_sha256.clone()).collect()
}

/// What stands on a disk, whoever runs on it: nodes by id with name, eligible and draining; tokens that are used.
#[must_use]
pub fn stored(disk: &mut Disk) -> Stored {
    let mut stored = Stored::default();
    for row in disk.load(super::NODES).unwrap_or_default() {
        if let Ok(node) = row.json::<NodeRow>() {
            stored.nodes.push((row.key, node.name, node.eligible, node.draining));
        }
    }
    for row in disk.load(super::ENROLLMENTS).unwrap_or_default() {
        if let Ok(token) = row.json::<crate::core::enrollment::EnrollmentRow>() {
            let claim = token.token.claim.map(|claim| claim.key_hash);
            stored.tokens.push((row.key, claim, token.token.revoked_at_unix_ms.is_some()));
        }
    }
    stored.commands = disk.load(super::COMMANDS).unwrap_or_default().into_iter().map(|row| row.key).collect();
    stored
}

/// The authority that a stored token's text names.
#[must_use]
pub fn token_names(disk: &mut Disk, token_id: &str) -> Option<String> {
    let stored = disk.get(super::ENROLLMENTS, token_id).ok()??;
    stored.json::<crate::core::enrollment::EnrollmentRow>().ok().map(|row| row.ca_sha256)
}

/// What a disk holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stored {
    /// Id, name, eligible, draining.
    pub nodes: Vec<(String, String, bool, bool)>,
    /// Id, key that used it, revoked.
    pub tokens: Vec<(String, Option<String>, bool)>,
    /// Ids of commands.
    pub commands: Vec<String>,
}
