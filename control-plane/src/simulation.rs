//! The control plane's cores in a hand-made process, for a simulated world (feature `simulation`).
//!
//! Owns what the shell otherwise does around them: the order of hello, register, welcome; a command's row before it is
//! sent; and what a crash forgets. Every decision is the cores'. Leaves the network and all clocks to the world; its
//! disk is written at once. Invariant: nothing here reads a clock, a file or chance.

mod identities;
mod relay;
mod sites;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use umbel_contracts::proto::control::EdgeSummary;
use umbel_store::Owed;
use umbel_store::simulation::Disk;
use umbel_wire::Generation;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::Times;
use umbel_wire::peer::PeerCertificate;
use umbel_wire::simulation::{End, LinkId, Linked, Outgoing, take_bytes};
use umbel_wire::slots::Slots;

use crate::core::commands::{Commands, PENDING, PendingRow};
use crate::core::edges::{EDGES, EdgeRow, Edges};
use crate::core::fleet::Fleet;
use crate::core::operators::Operators;
use crate::core::views::{SWEEP, Views};
use crate::core::witness::Witness;

pub use identities::{Change, Changed, Stored, stored};
pub use relay::Relayed;
pub use sites::Shown;

/// Small, so that a history meets many blocks.
const BLOCK: u64 = 16;
const GENERATION: &str = "generation";

/// What a control plane is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Heartbeats are wanted this often.
    pub heartbeat: Duration,
    /// After how long an edge is stale, and offline.
    pub times: Times,
    /// How long certificates last.
    pub life: Duration,
    /// Faults of the program itself that the world switches on to see its invariants fail.
    pub mutation: Option<&'static str>,
}

struct Link {
    end: End,
    certificate: Option<PeerCertificate>,
    state: sites::State,
}

impl Linked for Link {
    fn end(&mut self) -> &mut End {
        &mut self.end
    }
}

/// One process of a control plane.
pub struct Plane {
    setup: Setup,
    fleet: Fleet<LinkId>,
    commands: Commands,
    links: BTreeMap<LinkId, Link>,
    operators: Operators,
    witness: Witness,
    /// In force and not on the disk.
    owed: VecDeque<Owed>,
    places_at: Instant,
    /// Only mutations use it: the first that was said, and a count.
    spoil: (Option<(i64, EdgeSummary)>, u64),
    /// Generations up to here are reserved on disk.
    reserved: u64,
    sweep_at: Instant,
    accepted: u64,
    calls: BTreeMap<(LinkId, Outgoing), relay::Call>,
    answers: Vec<(String, Relayed)>,
    /// Only the mutation fills it.
    later: Vec<(String, String, Vec<u8>)>,
}

impl Plane {
    /// Takes up what is stored: identities and commands that have not ended, and nothing of any site.
    ///
    /// # Errors
    /// If the store cannot be read, or its mark not written.
    pub fn start(setup: Setup, disk: &mut Disk, now: Instant) -> Result<Self, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let mut edges = Edges::default();
        for row in disk.load(EDGES).map_err(|error| text(&error))? {
            edges.apply(row.json::<EdgeRow>().map_err(|error| text(&error))?, row.position);
        }
        let mut commands = Commands::default();
        for row in disk.load(PENDING).map_err(|error| text(&error))? {
            commands.restore(row.json::<PendingRow>().map_err(|error| text(&error))?);
        }
        let first = disk.reserve(GENERATION, BLOCK).map_err(|error| text(&error))?;
        let above =
            if setup.mutation == Some("a control plane's generations begin anew") { 1 } else { first };
        let views = Views::new(setup.times, now);
        let mut plane = Self {
            fleet: Fleet { edges, views, slots: Slots::new(Generation(above.saturating_sub(1))) },
            commands,
            links: BTreeMap::new(),
            operators: Operators::default(),
            witness: Witness::default(),
            owed: VecDeque::new(),
            places_at: now,
            spoil: (None, 0),
            reserved: first + BLOCK - 1,
            sweep_at: now + SWEEP,
            accepted: 0,
            calls: BTreeMap::new(),
            answers: Vec::new(),
            later: Vec::new(),
            setup,
        };
        plane.load_identities(disk)?;
        plane.recall(disk, now);
        Ok(plane)
    }

    fn is(&self, mutation: &str) -> bool {
        self.setup.mutation == Some(mutation)
    }

    /// A newcomer's TCP and TLS are done.
    pub fn connect(&mut self, link: LinkId, certificate: Option<PeerCertificate>, now: Instant) {
        let state = sites::State::Greeting;
        self.links.insert(link, Link { end: End::accept(now), certificate, state });
    }

    /// Bytes arrived.
    pub fn receive(&mut self, link: LinkId, bytes: &[u8], disk: &mut Disk, now: Instant, wall: Wall) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.receive(now, bytes);
        self.heard(link, heard, disk, now, wall);
        self.answer_probes(disk, now, wall);
    }

    /// The transport ended.
    pub fn lost(&mut self, link: LinkId, disk: &mut Disk, now: Instant, wall: Wall) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.lost(None);
        self.heard(link, heard, disk, now, wall);
        if let Some(Link { state: sites::State::Probing(probing), .. }) = self.links.remove(&link) {
            self.fleet.slots.abandon(&probing.edge_id, probing.probe);
        }
    }

    /// Bytes to send, and whether the connection is to be closed behind them.
    pub fn take_bytes(&mut self, link: LinkId, now: Instant) -> (Vec<u8>, bool) {
        take_bytes(&mut self.links, link, now)
    }

    /// Connections that exist.
    #[must_use]
    pub fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// When something is due without anything arriving.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        let ends = self.links.values().filter_map(Link::deadline);
        ends.min().map_or(self.sweep_at, |at| at.min(self.sweep_at))
    }

    /// Does what is due.
    pub fn tick(&mut self, disk: &mut Disk, now: Instant, wall: Wall) {
        for link in self.links() {
            let Some(entry) = self.links.get_mut(&link) else { continue };
            let heard = entry.end.tick(now);
            self.heard(link, heard, disk, now, wall);
            self.retire(link, disk, now, wall);
        }
        self.answer_probes(disk, now, wall);
        if self.sweep_at <= now {
            self.sweep_at = now + SWEEP;
            self.fleet.views.sweep(now);
            self.write_owed(disk, now, wall);
            self.refresh(now);
        }
    }
}
