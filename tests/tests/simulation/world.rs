//! The world: one edge, its control plane, some hosts, what lies between them, and the time.
//!
//! Owns the loop: the next thing that happens, to whom, and what it sends. Leaves faults to `fate`, operators and
//! applications to `people`, the control plane to `plane`, and judgement to `invariants`. Every process has clocks of its own.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use umbel_edge::simulation::{Directory, Edge, JobHeard, RoundView, Setup, Turn, View};
use umbel_node::simulation::{Machine, Node, NodeDisk, NodeSetup};
use umbel_store::simulation::{Backup, Disk};
use umbel_wire::EdgeId;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::Times;

use super::crews::Crews;
use super::history::{Failure, History};
use super::invariants::Judge;
use super::keepers::Keepers;
use super::luck::Luck;
use super::network::{LinkId, Network, Packet, Path, Way};
use super::people::People;
use super::plane::PlaneHost;
use super::turns::Turns;
use super::wishes::Wishes;

/// 2026-06-01, when every world begins.
pub(crate) const BEGIN: i64 = 1_780_272_000_000;
/// How long a host waits for TCP and TLS.
pub(crate) const DIAL: Duration = Duration::from_secs(5);

/// So much never happens at one instant.
const STANDSTILL: u32 = 5_000;

/// A machine's clocks, against the world's time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clocks {
    /// Its monotonic clock ran ahead by this.
    pub(crate) ahead: Duration,
    /// Its wall clock is wrong by so many milliseconds.
    pub(crate) wrong: i64,
}

/// The edge's machine.
pub(crate) struct EdgeHost {
    pub(crate) process: Option<Edge>,
    pub(crate) disk: Disk,
    pub(crate) clocks: Clocks,
    pub(crate) paused: bool,
    /// The disk takes no writes to their end.
    pub(crate) frozen: bool,
    pub(crate) starts: u64,
    /// The last backup.
    pub(crate) backup: Option<Backup>,
    /// Its directories, while no process has them.
    pub(crate) directory: Directory,
    /// Something is being written until then; then its answer comes.
    writing: Option<(Duration, bool)>,
}

impl EdgeHost {
    /// From now on the authorities' files cannot be used, or they can again.
    pub(crate) fn authorities_unusable(&mut self, unusable: bool) {
        self.directory.1.unusable(unusable);
        if let Some(edge) = &mut self.process {
            edge.authorities().unusable(unusable);
        }
    }
}

/// A node's machine.
pub(crate) struct Host {
    pub(crate) setup: NodeSetup,
    pub(crate) process: Option<Node>,
    pub(crate) disk: Option<NodeDisk>,
    /// What runs on it, while no agent does.
    pub(crate) machine: Option<Machine>,
    /// Agents that were started.
    pub(crate) starts: u64,
    pub(crate) clocks: Clocks,
    pub(crate) paused: bool,
    /// It runs a copy of another host's state directory.
    pub(crate) copy: bool,
    /// Its state directory was copied.
    pub(crate) copied: bool,
    /// Its edge was restored from a backup, and may not know its key.
    pub(crate) unknown: bool,
}

/// Everything.
pub(crate) struct World {
    pub(crate) base: Instant,
    pub(crate) time: Duration,
    pub(crate) luck: Luck,
    pub(crate) history: History,
    pub(crate) edge: EdgeHost,
    pub(crate) plane: PlaneHost,
    pub(crate) hosts: Vec<Host>,
    pub(crate) network: Network,
    pub(crate) people: People,
    pub(crate) keepers: Keepers,
    pub(crate) crews: Crews,
    pub(crate) wishes: Wishes,
    pub(crate) turns: Turns,
    /// Rounds and words about jobs that were not judged yet.
    pub(crate) rounds: Vec<RoundView>,
    pub(crate) job_words: Vec<JobHeard>,
    /// What happened at admission and was not judged yet.
    pub(crate) turned: Vec<Turn>,
    /// The edge as it was looked at last; none after it did something.
    pub(crate) viewed: Option<View>,
    /// Hosts that did something since.
    pub(crate) touched: BTreeSet<usize>,
    pub(crate) judge: Judge,
    pub(crate) mutation: Option<&'static str>,
    pub(crate) fates: super::fate::Fates,
    // Things that happened at this instant.
    stands: u32,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<&'static str>, loud: bool) -> Self {
        let mut luck = Luck::new(seed);
        let count = luck.between(2, 6) as usize;
        let base = Instant::now();
        let hosts: Vec<_> = (0..count).map(|number| host(number, &mut luck, mutation)).collect();
        let network = Network { paths: vec![Path::default(); count], ..Network::default() };
        let mut world = Self {
            base,
            time: Duration::ZERO,
            history: History::new(seed, loud),
            edge: EdgeHost {
                process: None,
                disk: Disk::new(),
                clocks: Clocks::default(),
                paused: false,
                frozen: false,
                starts: 0,
                backup: None,
                directory: Directory::default(),
                writing: None,
            },
            plane: PlaneHost::new(seed),
            people: People::new(count),
            keepers: Keepers::new(seed),
            crews: Crews::new(seed),
            wishes: Wishes::default(),
            rounds: Vec::new(),
            job_words: Vec::new(),
            turns: Turns::default(),
            turned: Vec::new(),
            viewed: None,
            touched: BTreeSet::new(),
            judge: Judge::new(),
            fates: super::fate::Fates::default(),
            stands: 0,
            hosts,
            network,
            luck,
            mutation,
        };
        world.start_plane();
        world.start_edge();
        for number in 0..count {
            world.start_node(number);
        }
        world
    }

    pub(crate) fn tell(&mut self, what: impl Into<String>) {
        self.history.tell(self.time, what.into());
    }

    pub(crate) fn now(&self, clocks: Clocks) -> Instant {
        self.base + self.time + clocks.ahead
    }

    pub(crate) fn wall(&self, clocks: Clocks) -> Wall {
        Wall(BEGIN + self.time.as_millis() as i64 + clocks.wrong)
    }

    // When a process's deadline comes, in the world's time.
    pub(crate) fn at(&self, deadline: Instant, clocks: Clocks) -> Duration {
        deadline.saturating_duration_since(self.base + clocks.ahead)
    }

    pub(crate) fn start_edge(&mut self) {
        self.edge.starts += 1;
        self.viewed = None;
        let setup = Setup {
            edge_id: EdgeId::parse("site").unwrap(),
            heartbeat: Duration::from_secs(10),
            times: Times::default(),
            mutation: self.mutation,
        };
        let (now, wall, luck) = (self.now(self.edge.clocks), self.wall(self.edge.clocks), self.luck.next());
        let directory = self.edge.directory.clone();
        self.wishes.starts_on(&mut self.edge.disk);
        match Edge::start(setup, &mut self.edge.disk, directory, now, wall, luck) {
            Ok(edge) => {
                self.tell("edge starts");
                self.edge.process = Some(edge);
                self.judge.restarted();
            }
            Err(why) => {
                self.tell(format!("edge cannot start: {why}"));
                self.fates.start_edge_again(self.time);
            }
        }
    }

    /// The edge's process is killed. Its kernel tells the peers, unless the power is gone.
    pub(crate) fn kill_edge(&mut self, power: bool) {
        self.viewed = None;
        if let Some(process) = self.edge.process.take() {
            self.edge.directory = process.crash();
        }
        self.edge.paused = false;
        self.edge.writing = None;
        self.people.edge_died();
        self.turns.edge_died();
        self.turned.clear();
        self.rounds.clear();
        self.job_words.clear();
        self.plane_loses_edge(power);
        let links: Vec<LinkId> =
            self.network.wires.iter().filter(|(_, wire)| wire.upper_has).map(|(link, _)| *link).collect();
        for link in links {
            self.hang_up(link, Way::Up, power);
        }
    }

    pub(crate) fn start_node(&mut self, number: usize) {
        let luck = self.luck.next();
        let (now, host) = (self.now(self.hosts[number].clocks), &mut self.hosts[number]);
        let Some(disk) = host.disk.take() else { return };
        let machine = host.machine.take().unwrap_or_else(|| Machine::new(luck));
        host.starts += 1;
        host.process = Some(Node::start(host.setup.clone(), disk, machine, luck, now));
        self.tell(format!("node {number} starts"));
        self.work_node(number);
    }

    pub(crate) fn kill_node(&mut self, number: usize, power: bool) {
        let host = &mut self.hosts[number];
        let Some(process) = host.process.take() else { return };
        let (disk, mut machine) = process.crash();
        if power {
            machine.loses_power();
        }
        (host.disk, host.machine) = (Some(disk), Some(machine));
        host.paused = false;
        let links: Vec<LinkId> = self
            .network
            .wires
            .iter()
            .filter(|(_, wire)| wire.host == number && wire.lower_has)
            .map(|(link, _)| *link)
            .collect();
        for link in links {
            self.hang_up(link, Way::Down, power);
        }
    }

    // One side is gone (`side`: the one that packets of that way would reach).
    pub(crate) fn hang_up(&mut self, link: LinkId, side: Way, silently: bool) {
        let Some(wire) = self.network.wires.get_mut(&link) else { return };
        let other = match side {
            Way::Up => {
                wire.upper_has = false;
                Way::Down
            }
            Way::Down => {
                wire.lower_has = false;
                wire.dialed_until = None;
                Way::Up
            }
        };
        if !silently {
            self.network.send(link, other, Packet::End, self.time, &mut self.luck);
        }
    }

    /// Lives until `until`, with whatever fate brings.
    pub(crate) fn run_until(&mut self, until: Duration) -> Result<(), Box<Failure>> {
        loop {
            let (edge_awake, awake) = (self.edge_awake(), self.awake());
            let packet = self.network.next(|host, way| match way {
                Way::Up => edge_awake,
                Way::Down => awake[host],
            });
            let mut next = until;
            let mut what = Next::End;
            let mut consider = |at: Duration, one: Next| {
                if at < next {
                    (next, what) = (at, one);
                }
            };
            if let Some((at, link, way)) = packet {
                consider(at, Next::Packet(link, way));
            }
            if let Some(edge) = self.edge.process.as_ref().filter(|_| !self.edge.paused) {
                consider(self.at(edge.next_deadline(), self.edge.clocks), Next::Edge);
            }
            for (number, host) in self.hosts.iter().enumerate() {
                if let Some(node) = host.process.as_ref().filter(|_| !host.paused)
                    && let Some(deadline) = node.next_deadline()
                {
                    consider(self.at(deadline, host.clocks), Next::Node(number));
                }
            }
            if let Some((at, _)) = self.edge.writing.filter(|_| !self.edge.frozen && edge_awake) {
                consider(at, Next::Disk);
            }
            for wire in self.network.wires.iter().filter_map(|(link, wire)| Some((*link, wire.dialed_until?)))
            {
                consider(wire.1, Next::Unanswered(wire.0));
            }
            if let Some(at) = self.plane_next(edge_awake) {
                consider(at, Next::Plane);
            }
            consider(self.fates.next(), Next::Fate);
            consider(self.people.next(), Next::People);
            consider(self.keepers.next, Next::Keepers);
            consider(self.crews.next, Next::Crews);
            self.stands = if next > self.time { 0 } else { self.stands + 1 };
            if self.stands > STANDSTILL {
                let what = format!("{what:?} is due again and again");
                return Err(self.history.failure("time goes on", what));
            }
            self.time = self.time.max(next);
            match what {
                Next::End => return Ok(()),
                Next::Packet(link, way) => self.deliver(link, way),
                Next::Edge => self.with_edge(|edge, now, wall| edge.tick(now, wall)),
                Next::Node(number) => self.work_node(number),
                Next::Disk => self.write(),
                Next::Unanswered(link) => self.unanswered(link),
                Next::Plane => self.work_plane(),
                Next::Fate => self.fate(),
                Next::People => self.people_act(),
                Next::Keepers => self.keepers_act(),
                Next::Crews => self.crews_act(),
            }
            self.network.forget();
            if matches!(what, Next::Plane) {
                // What it brought to the site is judged with the site's next step.
                self.look_at_plane()?;
            } else {
                self.look()?;
            }
        }
    }

    fn edge_awake(&self) -> bool {
        !self.edge.paused
    }

    fn awake(&self) -> Vec<bool> {
        self.hosts.iter().map(|host| !host.paused).collect()
    }

    /// Something happens in the edge's process; what it sends goes out.
    pub(crate) fn with_edge(&mut self, work: impl FnOnce(&mut Edge, Instant, Wall)) {
        let (now, wall) = (self.now(self.edge.clocks), self.wall(self.edge.clocks));
        let Some(edge) = &mut self.edge.process else { return };
        self.viewed = None;
        work(edge, now, wall);
        for link in edge.links() {
            let (bytes, over) = edge.take_bytes(link, now);
            if !bytes.is_empty() {
                self.network.send(link, Way::Down, Packet::Bytes(bytes), self.time, &mut self.luck);
            }
            if over {
                edge.lost(link, now, wall);
                if let Some(wire) = self.network.wires.get_mut(&link) {
                    wire.upper_has = false;
                }
                self.network.send(link, Way::Down, Packet::End, self.time, &mut self.luck);
            }
        }
        if edge.wants_disk() && self.edge.writing.is_none() {
            let takes = Duration::from_micros(self.luck.between(300, 9_000));
            self.edge.writing = Some((self.time + takes, false));
        }
        for (id, outcome) in edge.outcomes() {
            self.history.tell(self.time, format!("command {id}: {outcome:?}"));
            self.people.outcome(&id, outcome);
        }
        self.turned.extend(edge.turns());
        self.rounds.extend(edge.rounds());
        self.job_words.extend(edge.jobs_heard());
        for (request, answered) in edge.answered() {
            self.people.answered(request, answered);
        }
        self.edge_speaks();
    }

    fn write(&mut self) {
        let Some((_, written)) = self.edge.writing.take() else { return };
        let wall = self.wall(self.edge.clocks);
        let Some(edge) = &mut self.edge.process else { return };
        if written {
            return self.answer_writes();
        }
        self.viewed = None;
        edge.write(&mut self.edge.disk, wall);
        // It is on the disk; the process hears of it a little later, unless it dies before.
        let takes = Duration::from_micros(self.luck.between(50, 2_000));
        self.edge.writing = Some((self.time + takes, true));
    }

    // The process hears what was written, and may read what stands there.
    fn answer_writes(&mut self) {
        let mut disk = std::mem::take(&mut self.edge.disk);
        self.with_edge(|edge, now, wall| edge.written(&mut disk, now, wall));
        self.edge.disk = disk;
    }

    /// Something happens in a node's process; what it sends goes out, and it dials if that is due.
    pub(crate) fn with_node(&mut self, number: usize, work: impl FnOnce(&mut Node, Instant, Wall)) {
        let clocks = self.hosts[number].clocks;
        let (now, wall) = (self.now(clocks), self.wall(clocks));
        let Some(node) = &mut self.hosts[number].process else { return };
        self.touched.insert(number);
        let before =
            (node.generation(), node.last_rejection().map(|error| error.reason.clone()), node.trusts());
        work(node, now, wall);
        let after =
            (node.generation(), node.last_rejection().map(|error| error.reason.clone()), node.trusts());
        if before != after {
            let trusts: Vec<_> = after.2.iter().map(|one| one.get(..16)).collect();
            let what =
                format!("node {number}: generation {:?}, refused {:?}, trusts {trusts:?}", after.0, after.1);
            self.history.tell(self.time, what);
        }
        for link in node.links() {
            let (bytes, over) = node.take_bytes(link, now);
            if !bytes.is_empty() {
                self.network.send(link, Way::Up, Packet::Bytes(bytes), self.time, &mut self.luck);
            }
            if over {
                node.lost(link, now, wall);
                if let Some(wire) = self.network.wires.get_mut(&link) {
                    wire.lower_has = false;
                }
                self.network.send(link, Way::Up, Packet::End, self.time, &mut self.luck);
            }
        }
        if let Some(dial) = node.dial(now) {
            let link = self.network.dial(number, self.time + DIAL);
            let open = Packet::Open(dial.certificate.map(Box::new));
            self.network.send(link, Way::Up, open, self.time, &mut self.luck);
        }
    }

    pub(crate) fn work_node(&mut self, number: usize) {
        self.with_node(number, |node, now, wall| node.tick(now, wall));
    }

    fn unanswered(&mut self, link: LinkId) {
        let Some(wire) = self.network.wires.get_mut(&link) else { return };
        wire.dialed_until = None;
        wire.lower_has = false;
        let host = wire.host;
        self.with_node(host, |node, now, _| node.unreachable(now));
    }

    fn deliver(&mut self, link: LinkId, way: Way) {
        let Some(packet) = self.network.take(link, way) else { return };
        if let Packet::Bytes(bytes) = &packet {
            self.history.mix(self.time.as_micros() as u64 ^ bytes.len() as u64);
        }
        let Some(wire) = self.network.wires.get_mut(&link) else { return };
        let host = wire.host;
        match (way, packet) {
            (Way::Up, Packet::Open(certificate)) => {
                if self.edge.process.is_none() {
                    return self.network.send(link, Way::Down, Packet::End, self.time, &mut self.luck);
                }
                wire.upper_has = true;
                let vouching = self.edge.process.as_ref().map(|edge| edge.vouching()).unwrap_or_default();
                self.network.send(link, Way::Down, Packet::Opened(vouching), self.time, &mut self.luck);
                self.with_edge(|edge, now, _| edge.connect(link, certificate.map(|shown| *shown), now));
            }
            (Way::Up, Packet::Bytes(bytes)) if wire.upper_has => {
                self.with_edge(|edge, now, wall| edge.receive(link, &bytes, now, wall));
            }
            (Way::Up, Packet::End) if wire.upper_has => {
                wire.upper_has = false;
                self.with_edge(|edge, now, wall| edge.lost(link, now, wall));
            }
            // Whoever has it not open says so.
            (Way::Up, Packet::Bytes(_)) if wire.lower_has => {
                self.network.send(link, Way::Down, Packet::End, self.time, &mut self.luck);
            }
            (Way::Down, Packet::Opened(vouching)) if wire.dialed_until.is_some() => {
                wire.dialed_until = None;
                let mut trusted = true;
                self.with_node(host, |node, now, wall| {
                    trusted = node.connected(link, &vouching, now, wall);
                });
                if !trusted {
                    self.hang_up(link, Way::Down, false);
                }
            }
            (Way::Down, Packet::End) if wire.dialed_until.is_some() => {
                wire.dialed_until = None;
                wire.lower_has = false;
                self.with_node(host, |node, now, _| node.unreachable(now));
            }
            (Way::Down, Packet::Bytes(bytes)) if wire.lower_has => {
                self.with_node(host, |node, now, wall| node.receive(link, &bytes, now, wall));
            }
            (Way::Down, Packet::End) if wire.lower_has => {
                wire.lower_has = false;
                self.with_node(host, |node, now, wall| node.lost(link, now, wall));
            }
            (Way::Down, Packet::Bytes(_) | Packet::Opened(_)) if wire.upper_has => {
                self.network.send(link, Way::Up, Packet::End, self.time, &mut self.luck);
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Next {
    End,
    Packet(LinkId, Way),
    Edge,
    Node(usize),
    Disk,
    Unanswered(LinkId),
    Plane,
    Fate,
    People,
    Keepers,
    Crews,
}

fn host(number: usize, luck: &mut Luck, mutation: Option<&'static str>) -> Host {
    let capacity = luck.between(1, 4) as u32;
    Host {
        setup: NodeSetup {
            edge_id: EdgeId::parse("site").unwrap(),
            model: format!("m{}", number % 2),
            capacity,
            // The second model knows no long requests.
            long: if number.is_multiple_of(2) { (1_000, capacity / 2) } else { (0, 0) },
            work: Duration::from_millis(luck.between(50, 20_000)),
            gpus: vec![format!("GPU-{number}-a"), format!("GPU-{number}-b")],
            mutation,
        },
        process: None,
        disk: Some(NodeDisk::default()),
        machine: None,
        starts: 0,
        clocks: Clocks::default(),
        paused: false,
        copy: false,
        copied: false,
        unknown: false,
    }
}
