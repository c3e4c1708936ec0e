//! The edge's cores in a hand-made process, for a simulated world (feature `simulation`).
//!
//! Owns what the shell otherwise does around them: the order of propose, write, apply, tell; connections as ends
//! that are stepped; and what a crash forgets. Every decision is the cores'. Leaves the network, the disk's timing and
//! all clocks to the world. Invariant: nothing here reads a clock, a file or chance: the same calls give the same
//! answers.

mod applications;
mod authority;
mod connections;
mod control;
mod deployments;
mod disk;
mod enrollment;
mod jobs;
mod membership;
mod operators;
mod restore;
mod rotation;
mod settings;
mod views;
mod wishes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use umbel_store::AuditRecord;
use umbel_store::simulation::Disk;
use umbel_wire::clock::Wall;
use umbel_wire::guesses::Guesses;
use umbel_wire::liveness::Times;
use umbel_wire::peer::PeerCertificate;
use umbel_wire::simulation::{Chance, End, LinkId, Linked};
use umbel_wire::{CloseReason, EdgeId, Generation, NodeId};

use crate::core::admission::{Admission, Limits, Output};
use crate::core::approval::{Approvals, Past};
use crate::core::commands::Commands;
use crate::core::enrollment::{EnrollmentRow, Refusals, Tokens};
use crate::core::providers;
use crate::core::registry::node::{Lifecycle, NodeRow, ProviderState, ReportRow};
use crate::core::registry::{Call, Registry};

pub use applications::{Answered, ENGINE_FAILED, RequestId, Turn, Wanted};
pub use authority::{Authorities, AuthorityView};
pub use control::Said;
pub use deployments::Wish;
pub use disk::{Mark, OBSERVER};
pub use jobs::JobHeard;
pub use membership::{LIFE, Membership};
pub use operators::{Operation, Outcome};
pub use restore::restore;
pub use settings::Own;
pub use views::{LeaseView, NodeView, ProviderView, Stored, TokenView, View, stored, token_names};
pub use wishes::{JobView, Ordered, ReplicaView, RoundView, WishesView, stored_wishes};

pub(crate) const NODES: &str = "nodes";
pub(crate) const REPORTS: &str = "reports";
pub(crate) const ENROLLMENTS: &str = "enrollments";
pub(crate) const COMMANDS: &str = "commands";
const SELF: &str = "self";
const WALL: &str = "wall";
/// How often the wall clock is written.
const WALL_EVERY: Duration = Duration::from_secs(60);
/// Small, so that a history meets many blocks.
const BLOCK: u64 = 32;

/// What outlives a process beside its store: its identity towards its control plane, and its authorities.
pub type Directory = (Membership, Authorities);

/// What an edge is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The site.
    pub edge_id: EdgeId,
    /// Heartbeats are wanted this often.
    pub heartbeat: Duration,
    /// After how long a node is stale, and offline.
    pub times: Times,
    /// Faults of the program itself that the world switches on to see its invariants fail.
    pub mutation: Option<&'static str>,
}

/// One connection.
struct Link {
    end: End,
    certificate: Option<PeerCertificate>,
    state: connections::State,
}

impl Linked for Link {
    fn end(&mut self) -> &mut End {
        &mut self.end
    }
}

/// One process of an edge.
pub struct Edge {
    setup: Setup,
    registry: Registry<LinkId>,
    admission: Admission,
    tokens: Tokens,
    commands: Commands,
    guesses: Guesses,
    refusals: Refusals,
    links: BTreeMap<LinkId, Link>,
    requests: applications::Requests,
    generations: Mark,
    revisions: Mark,
    disk: disk::Queue,
    outcomes: Vec<(String, Outcome)>,
    running: BTreeMap<String, operators::Running>,
    settings: settings::Document,
    renumbering: bool,
    /// Its own settings in force.
    own: Own,
    /// Settings that are on their way, by connection.
    sent: BTreeMap<LinkId, umbel_wire::simulation::Call>,
    wall: Wall,
    wall_stored: Wall,
    flushed: Instant,
    notices: u64,
    uplink: control::Uplink,
    membership: Membership,
    authorities: Authorities,
    held: authority::Held,
    asked: crate::core::rotation::Asked,
    /// Nodes that were told whom to trust and have not answered, by connection.
    told: BTreeMap<LinkId, umbel_wire::simulation::Call>,
    approvals: Approvals,
    past: Past,
    jobs: jobs::Jobs,
    deployments: deployments::Deployments,
    /// Commands that took force in memory; so told until nothing is owed any more.
    not_durable: BTreeSet<String>,
    /// Only mutations use it: what was online before, and a count.
    spoil: (Option<u32>, u64),
    /// Draws ids; from the seed.
    luck: Chance,
}

impl Edge {
    /// Takes up what is stored. `luck` is the chance of this process.
    ///
    /// # Errors
    /// Why it cannot start: the store cannot be read, or its marks cannot be written.
    pub fn start(
        setup: Setup,
        disk: &mut Disk,
        (membership, authorities): Directory,
        now: Instant,
        wall: Wall,
        luck: u64,
    ) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut generations = Mark::open(disk, "generation", BLOCK)?;
        let mut revisions = Mark::open(disk, "revision", BLOCK * 8)?;
        match setup.mutation {
            Some("the audit is cut at a start") => drop(disk.cut_audit(3)),
            Some("generations begin anew") => generations.begin_anew(),
            Some("revisions begin anew") => revisions.begin_anew(),
            _ => {}
        }
        let held = authority::Held::load(disk, &authorities)?;
        let period = (setup.heartbeat / 3).clamp(Duration::from_millis(100), Duration::from_secs(5));
        let mut registry = Registry::new(setup.times, period, Generation(generations.last()), now);
        registry.set_authority(held.row.clone());
        let mut reports = BTreeMap::new();
        for row in disk.load(REPORTS).map_err(|error| text(&error))? {
            reports.insert(row.key.clone(), row.json::<ReportRow>().map_err(|error| text(&error))?);
        }
        let rows = disk.load(NODES).map_err(|error| text(&error))?;
        for row in rows.iter().skip(usize::from(setup.mutation == Some("an identity is forgotten"))) {
            let id = NodeId::parse(&row.key).map_err(|error| text(&error))?;
            let report = reports.remove(&row.key).unwrap_or_default();
            let mut stored = row.json::<NodeRow>().map_err(|error| text(&error))?;
            if setup.mutation == Some("a tombstone is read as a node") {
                stored.lifecycle = Lifecycle::Enrolled;
            }
            registry.insert(id, stored, row.position, report);
        }
        let mut tokens = Tokens::default();
        for row in disk.load(ENROLLMENTS).map_err(|error| text(&error))? {
            tokens.apply(row.json::<EnrollmentRow>().map_err(|error| text(&error))?, row.position);
        }
        let floor = disk.get(SELF, WALL).map_err(|error| text(&error))?;
        let floor = Wall(floor.and_then(|row| row.json::<i64>().ok()).unwrap_or(0));
        let first_lease = (generations.last() + 1) << 20;
        let settings = settings::Document::load(disk)?;
        registry.set_targets(settings.targets());
        let mut edge = Self {
            registry,
            admission: Admission::new(Limits::default(), first_lease),
            tokens,
            commands: Commands::default(),
            guesses: Guesses::default(),
            refusals: Refusals::default(),
            links: BTreeMap::new(),
            requests: applications::Requests::default(),
            generations,
            revisions,
            disk: disk::Queue::new(setup.mutation, disk.audit_head().unwrap_or_default()),
            outcomes: Vec::new(),
            running: BTreeMap::new(),
            renumbering: false,
            own: settings.own(&setup)?,
            settings,
            sent: BTreeMap::new(),
            wall: floor.max(wall),
            wall_stored: floor,
            flushed: now,
            notices: 0,
            uplink: control::Uplink::new(now, luck),
            membership,
            authorities,
            held,
            asked: crate::core::rotation::Asked::default(),
            told: BTreeMap::new(),
            approvals: Approvals::default(),
            jobs: jobs::Jobs::default(),
            deployments: deployments::Deployments::default(),
            past: restore::past(disk),
            not_durable: BTreeSet::new(),
            spoil: (None, 0),
            luck: Chance::new(luck),
            setup,
        };
        edge.admission.plant(edge.setup.mutation);
        edge.load_commands(disk)?;
        edge.load_jobs(disk, now)?;
        edge.load_deployments(disk, now)?;
        edge.put_in_force(now);
        edge.spoil = (None, 0);
        Ok(edge)
    }

    /// The wall clock, never below what was stored.
    fn wall(&mut self, wall: Wall) -> Wall {
        self.wall = self.wall.max(wall);
        self.wall
    }

    fn is(&self, mutation: &str) -> bool {
        self.setup.mutation == Some(mutation)
    }

    fn node_id(&mut self) -> NodeId {
        NodeId(uuid::Builder::from_random_bytes(self.luck.id()).into_uuid())
    }

    /// Changes the registry; admission and people learn what follows from it, in this order.
    fn change<T>(&mut self, now: Instant, work: impl FnOnce(&mut Registry<LinkId>) -> T) -> T {
        let result = work(&mut self.registry);
        for call in self.registry.take_calls() {
            self.call(now, &call);
        }
        while self.generations.last() < self.registry.slots.highest().0 {
            self.generations.take(&mut self.disk);
        }
        if self.registry.take_changed() {
            let revision = self.revisions.take(&mut self.disk);
            self.registry.set_revision(revision);
            self.wake_round(now);
        }
        let evicted = self.registry.take_evicted();
        let mut notices = self.registry.take_notices();
        // The order of a sweep is a table's: nobody may depend on it.
        notices.sort_by_key(|notice| (notice.node, notice.generation));
        for notice in &notices {
            self.notices += 1;
            self.tell_plane(self.notices, notice.kind, notice.node.to_string(), self.wall);
        }
        let audited = notices.into_iter().filter(|notice| notice.audited);
        let records: Vec<_> = audited
            .map(|notice| AuditRecord::new(notice.kind, notice.node.to_string(), "observed"))
            .collect();
        if !records.is_empty() {
            self.observe(now, records);
        }
        if !self.is("an evicted connection is not closed") {
            for link in evicted {
                self.close_link(link, CloseReason::Revoked, now, self.wall);
            }
        }
        result
    }

    fn call(&mut self, now: Instant, call: &Call) {
        let stays = self.is("admission hears of nobody's silence");
        let eager = self.is("an engine that loads is given requests").then(|| eager(call)).flatten();
        if !(stays && matches!(call, Call::Ready { ready: false, .. })) {
            // Too many of something: then it is not served.
            let _ = providers::apply(&mut self.admission, now, eager.as_ref().unwrap_or(call));
        }
        self.settle(now);
    }

    // Lets everyone know whom admission decided on.
    fn settle(&mut self, now: Instant) {
        let mut decided = VecDeque::new();
        while let Some(output) = self.admission.next_output() {
            decided.push_back(output);
        }
        for output in decided {
            match output {
                Output::Granted(ticket, grant) => self.granted_waiter(now, ticket, grant),
                Output::Refused(ticket, _) => self.refused_waiter(ticket),
            }
        }
    }

    /// When something is due without anything arriving.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let ends = self.links.values().filter_map(|link| link.deadline());
        let others = [
            Some(self.registry.next_deadline()),
            self.admission.next_deadline(),
            self.uplink.next_deadline(),
            self.jobs_deadline(),
            self.round_deadline(),
        ];
        if self.is("a deadline is not taken down") && !self.links.is_empty() {
            return self.flushed;
        }
        let first = ends.chain(others.into_iter().flatten()).min();
        first.unwrap_or(self.flushed + WALL_EVERY)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.tick_link(link, now, wall);
        }
        self.tick_plane(now, wall);
        self.admission.expire(now);
        self.settle(now);
        self.open_granted(now);
        self.tick_jobs(now, wall);
        self.tick_round(now, wall);
        if self.registry.next_deadline() <= now {
            self.change(now, |registry| registry.sweep(now));
            self.end_folds(now);
            self.change(now, |registry| registry.judge_credentials(wall));
            self.catch_up(now);
            self.ask_nodes(now, wall);
            self.send_settings(now);
            self.abandon_jobs(now, wall);
            let due = now.saturating_duration_since(self.flushed) >= WALL_EVERY;
            if due || self.registry.has_unsaved() || self.disk.owes() {
                self.flushed = now;
                self.flush(wall);
            }
        }
    }
}

// A fault that only the world switches on: what loads is called ready.
fn eager(call: &Call) -> Option<Call> {
    let mut call = call.clone();
    match &mut call {
        Call::Up { state, .. } | Call::State { state, .. } if *state == ProviderState::Loading => {
            *state = ProviderState::Available;
        }
        _ => return None,
    }
    Some(call)
}
