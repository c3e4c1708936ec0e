//! The control plane's machine, the path between it and the edge, and what goes wrong with both.
//!
//! It has chance of its own, so that the site's history hardly depends on it. Leaves judgement to `invariants`.

use std::collections::BTreeMap;
use std::time::Duration;

use umbel_control_plane::simulation::{Plane, Relayed, Setup, Shown};
use umbel_edge::simulation::{LIFE, Outcome, Said};
use umbel_store::simulation::Disk;
use umbel_wire::EdgeId;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::Times;

use super::admins::Admins;
use super::luck::Luck;
use super::network::{LinkId, Network, Packet, Path, Way};
use super::world::{Clocks, DIAL, World};

/// How often somebody asks how the site is.
const ASK: Duration = Duration::from_secs(17);

#[derive(Clone, Copy, Debug)]
enum Undo {
    Start,
    Resume,
    Path,
    Wall,
    Disk,
}

/// Its machine.
pub(crate) struct PlaneHost {
    pub(crate) process: Option<Plane>,
    pub(crate) disk: Disk,
    pub(crate) clocks: Clocks,
    pub(crate) paused: bool,
    pub(crate) network: Network,
    /// Everything that the edge ever said of the site, and how often: its wall clock may stand still.
    pub(crate) said: BTreeMap<Said, u32>,
    /// When anything arrived last.
    pub(crate) heard: Duration,
    /// What this process shows, and since when.
    pub(crate) shows: Option<(Said, Duration)>,
    luck: Luck,
    ask_at: Duration,
    fate_at: Duration,
    over: bool,
    undo: BTreeMap<(Duration, u64), Undo>,
    count: u64,
    pub(crate) admins: Admins,
    /// The place of the edge's audit that this process last showed.
    pub(crate) place: Option<(u64, String)>,
}

impl PlaneHost {
    /// Whether somebody goes by way of the control plane.
    pub(crate) fn is_chosen(&mut self) -> bool {
        self.luck.one_in(3)
    }

    /// Whether somebody lets a command be, or asks for one again although it is done.
    pub(crate) fn fancies(&mut self) -> bool {
        self.luck.one_in(2)
    }

    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        self.luck.between(low, high)
    }

    pub(crate) fn new(seed: u64) -> Self {
        Self {
            process: None,
            disk: Disk::new(),
            clocks: Clocks::default(),
            paused: false,
            network: Network { paths: vec![Path::default()], ..Network::default() },
            said: BTreeMap::new(),
            heard: Duration::ZERO,
            shows: None,
            luck: Luck::new(seed ^ 0x0C0F_FEE0),
            ask_at: ASK,
            fate_at: Duration::from_secs(15),
            over: false,
            undo: BTreeMap::new(),
            count: 0,
            admins: Admins::default(),
            place: None,
        }
    }

    fn awake(&self, edge: bool) -> impl Fn(usize, Way) -> bool {
        let own = !self.paused;
        move |_, way| if way == Way::Up { own } else { edge }
    }

    fn send(&mut self, link: LinkId, way: Way, packet: Packet, now: Duration) {
        self.network.send(link, way, packet, now, &mut self.luck);
    }
}

impl World {
    pub(crate) fn start_plane(&mut self) {
        let setup = Setup {
            heartbeat: Duration::from_secs(10),
            times: Times::default(),
            life: LIFE,
            mutation: self.mutation,
        };
        let now = self.now(self.plane.clocks);
        match Plane::start(setup, &mut self.plane.disk, now) {
            Ok(plane) => {
                self.tell("control plane starts");
                self.plane.process = Some(plane);
            }
            Err(why) => {
                self.tell(format!("control plane cannot start: {why}"));
                self.plane_later(2, Undo::Start);
            }
        }
        (self.plane.shows, self.plane.place) = (None, None);
    }

    fn kill_plane(&mut self, power: bool) {
        self.plane.process = None;
        self.plane.paused = false;
        (self.plane.shows, self.plane.place) = (None, None);
        self.plane.admins.plane_died();
        for wire in self.plane.network.wires.values_mut() {
            wire.upper_has = false;
        }
        if !power {
            let open: Vec<_> = self.plane.network.wires.keys().copied().collect();
            for link in open {
                self.plane.send(link, Way::Down, Packet::End, self.time);
            }
        }
    }

    /// The edge's process is gone.
    pub(crate) fn plane_loses_edge(&mut self, power: bool) {
        let mut gone = Vec::new();
        for (link, wire) in &mut self.plane.network.wires {
            wire.dialed_until = None;
            if std::mem::take(&mut wire.lower_has) {
                gone.push(*link);
            }
        }
        for link in gone.into_iter().filter(|_| !power) {
            self.plane.send(link, Way::Up, Packet::End, self.time);
        }
    }

    /// When something happens at the control plane or between it and the edge.
    pub(crate) fn plane_next(&self, edge_awake: bool) -> Option<Duration> {
        let host = &self.plane;
        let packet = host.network.next(host.awake(edge_awake)).map(|(at, ..)| at);
        let process = host.process.as_ref().filter(|_| !host.paused);
        let own = process.map(|plane| self.at(plane.next_deadline(), host.clocks));
        let dialed = host.network.wires.values().filter_map(|wire| wire.dialed_until).min();
        let undo = host.undo.first_key_value().map(|((at, _), _)| *at);
        let fate = (!host.over).then_some(host.fate_at);
        let all = [packet, own, dialed, undo, fate, Some(host.ask_at), Some(host.admins.next)];
        all.into_iter().flatten().min()
    }

    /// The first of it happens.
    pub(crate) fn work_plane(&mut self) {
        let now = self.time;
        let undo = self.plane.undo.first_key_value().map(|(key, undo)| (*key, *undo));
        if let Some((key, undo)) = undo.filter(|((at, _), _)| *at <= now) {
            self.plane.undo.remove(&key);
            return self.undo_plane(undo);
        }
        if !self.plane.over && self.plane.fate_at <= now {
            self.plane.fate_at = now + Duration::from_millis(self.plane.luck.between(3_000, 60_000));
            return self.strike_plane();
        }
        let packet = self.plane.network.next(self.plane.awake(!self.edge.paused));
        if let Some((_, link, way)) = packet.filter(|(at, ..)| *at <= now) {
            self.deliver_plane(link, way);
            return self.plane.network.forget();
        }
        let wires = &mut self.plane.network.wires;
        let unanswered = wires.values_mut().find(|wire| wire.dialed_until.is_some_and(|at| at <= now));
        if let Some(wire) = unanswered {
            (wire.dialed_until, wire.lower_has) = (None, false);
            self.plane.network.forget();
            return self.with_edge(|edge, now, _| edge.plane_unreachable(now));
        }
        if self.plane.admins.next <= now {
            return self.admins_act();
        }
        if self.plane.ask_at <= now {
            self.plane.ask_at = now + ASK;
            if !self.plane.paused {
                self.with_plane(|plane, _, now, _| {
                    plane.ask("site", now);
                });
            }
            return;
        }
        self.with_plane(|plane, disk, now, wall| plane.tick(disk, now, wall));
    }

    pub(crate) fn with_plane(&mut self, work: impl FnOnce(&mut Plane, &mut Disk, std::time::Instant, Wall)) {
        let (now, wall) = (self.now(self.plane.clocks), self.wall(self.plane.clocks));
        let host = &mut self.plane;
        let Some(plane) = &mut host.process else { return };
        work(plane, &mut host.disk, now, wall);
        for link in plane.links() {
            let (bytes, over) = plane.take_bytes(link, now);
            if !bytes.is_empty() {
                host.network.send(link, Way::Down, Packet::Bytes(bytes), self.time, &mut host.luck);
            }
            if over {
                plane.lost(link, &mut host.disk, now, wall);
                if let Some(wire) = host.network.wires.get_mut(&link) {
                    wire.upper_has = false;
                }
                host.network.send(link, Way::Down, Packet::End, self.time, &mut host.luck);
            }
        }
        let answers = plane.answers();
        for (id, told) in answers {
            self.history.tell(self.time, format!("command {id} through the control plane: {told:?}"));
            match told {
                Relayed::Done => self.people.outcome(&id, Outcome::Done),
                Relayed::Refused(reason) if reason == "NOT_DURABLE" => {
                    self.people.outcome(&id, Outcome::NotDurable);
                }
                // It was not sent: that it could not be audited here is no word of the edge.
                Relayed::Refused(reason) if reason == "AUDIT_UNAVAILABLE" => self.people.unavailable(&id),
                Relayed::Refused(reason) => self.people.outcome(&id, Outcome::Refused(reason)),
                Relayed::Unavailable => self.people.unavailable(&id),
                Relayed::Joined | Relayed::Unknown => {}
            }
        }
    }

    /// An operator's command by way of the control plane. False if nobody takes it.
    pub(crate) fn relay(&mut self, id: &str, operation: &umbel_edge::simulation::Operation) -> bool {
        if self.plane.process.is_none() || self.plane.paused || !self.shows_token() {
            return false;
        }
        let args = serde_json::to_vec(&BTreeMap::from([("operation", operation)])).unwrap();
        let name = operation.name();
        self.with_plane(|plane, disk, now, wall| plane.relay("site", id, name, &args, disk, now, wall));
        true
    }

    /// What the edge has for its control plane goes out.
    pub(crate) fn edge_speaks(&mut self) {
        let (now, wall) = (self.now(self.edge.clocks), self.wall(self.edge.clocks));
        let Some(edge) = &mut self.edge.process else { return };
        let host = &mut self.plane;
        if let Some((link, bytes, over)) = edge.plane_bytes(now) {
            if !bytes.is_empty() {
                host.network.send(link, Way::Up, Packet::Bytes(bytes), self.time, &mut host.luck);
            }
            if over {
                edge.plane_lost(link, now, wall);
                if let Some(wire) = host.network.wires.get_mut(&link) {
                    wire.lower_has = false;
                }
                host.network.send(link, Way::Up, Packet::End, self.time, &mut host.luck);
            }
        }
        for said in edge.said() {
            *host.said.entry(said).or_default() += 1;
        }
        if let Some(certificate) = edge.dials_plane(now) {
            let link = host.network.dial(0, self.time + DIAL);
            let open = Packet::Open(certificate.map(Box::new));
            host.network.send(link, Way::Up, open, self.time, &mut host.luck);
        }
    }

    fn deliver_plane(&mut self, link: LinkId, way: Way) {
        let Some(packet) = self.plane.network.take(link, way) else { return };
        let Some(wire) = self.plane.network.wires.get_mut(&link) else { return };
        match (way, packet) {
            (Way::Up, Packet::Open(certificate)) => {
                if self.plane.process.is_none() {
                    return self.plane.send(link, Way::Down, Packet::End, self.time);
                }
                wire.upper_has = true;
                self.plane.send(link, Way::Down, Packet::Opened(Vec::new()), self.time);
                let certificate = certificate.map(|shown| *shown);
                self.with_plane(|plane, _, now, _| plane.connect(link, certificate, now));
            }
            (Way::Up, Packet::Bytes(bytes)) if wire.upper_has => {
                self.plane.heard = self.time;
                self.with_plane(|plane, disk, now, wall| plane.receive(link, &bytes, disk, now, wall));
            }
            (Way::Up, Packet::End) if wire.upper_has => {
                wire.upper_has = false;
                self.with_plane(|plane, disk, now, wall| plane.lost(link, disk, now, wall));
            }
            (Way::Up, Packet::Bytes(_)) if wire.lower_has => {
                self.plane.send(link, Way::Down, Packet::End, self.time);
            }
            (Way::Down, Packet::Opened(_)) if wire.dialed_until.is_some() => {
                wire.dialed_until = None;
                self.with_edge(|edge, now, _| edge.plane_connected(link, now));
            }
            (Way::Down, Packet::End) if wire.dialed_until.is_some() => {
                (wire.dialed_until, wire.lower_has) = (None, false);
                self.with_edge(|edge, now, _| edge.plane_unreachable(now));
            }
            (Way::Down, Packet::Bytes(bytes)) if wire.lower_has => {
                self.with_edge(|edge, now, wall| edge.plane_said(link, &bytes, now, wall));
            }
            (Way::Down, Packet::End) if wire.lower_has => {
                wire.lower_has = false;
                self.with_edge(|edge, now, wall| edge.plane_lost(link, now, wall));
            }
            (Way::Down, Packet::Bytes(_) | Packet::Opened(_)) if wire.upper_has => {
                self.plane.send(link, Way::Up, Packet::End, self.time);
            }
            _ => {}
        }
    }

    fn plane_later(&mut self, most: u64, undo: Undo) {
        let host = &mut self.plane;
        let at = self.time + Duration::from_millis(host.luck.between(100, most * 1_000));
        host.count += 1;
        host.undo.insert((at, host.count), undo);
    }

    fn strike_plane(&mut self) {
        match self.plane.luck.between(0, 9) {
            0 | 1 if self.plane.process.is_some() => {
                let power = self.plane.luck.one_in(3);
                self.tell(if power { "control plane loses power" } else { "control plane is killed" });
                self.kill_plane(power);
                self.plane_later(60, Undo::Start);
            }
            2 if self.plane.process.is_some() => {
                self.tell("control plane is paused");
                self.plane.paused = true;
                self.plane_later(90, Undo::Resume);
            }
            3 | 4 => {
                let which = self.plane.luck.between(0, 4);
                self.tell(format!("the control plane's path is cut: {which}"));
                let path = &mut self.plane.network.paths[0];
                (path.cut_up, path.cut_down) = (which != 1, which != 0);
                self.plane_later(120, Undo::Path);
            }
            5 => {
                let delay = Duration::from_millis(self.plane.luck.between(1, 900));
                let loss = *self.plane.luck.pick(&[0, 3, 10]);
                self.tell(format!("the control plane's path: {} ms", delay.as_millis()));
                let path = &mut self.plane.network.paths[0];
                (path.delay, path.loss) = (delay, loss);
                self.plane_later(60, Undo::Path);
            }
            6 => {
                let ahead = Duration::from_millis(self.plane.luck.between(100, 120_000));
                self.tell(format!("the control plane's monotonic clock jumps by {} ms", ahead.as_millis()));
                self.plane.clocks.ahead += ahead;
            }
            7 => {
                let wrong = *self.plane.luck.pick(&[-3_600_000, 240_000, 40 * 86_400_000]);
                self.tell(format!("the control plane's wall clock is wrong by {wrong} ms"));
                self.plane.clocks.wrong = wrong;
                self.plane_later(60, Undo::Wall);
            }
            8 => {
                self.tell("the control plane's disk is full");
                self.plane.disk.full(true);
                self.plane_later(60, Undo::Disk);
            }
            _ => {}
        }
    }

    fn undo_plane(&mut self, undo: Undo) {
        match undo {
            Undo::Start if self.plane.process.is_none() => self.start_plane(),
            Undo::Start => {}
            Undo::Resume => {
                self.tell("control plane goes on");
                self.plane.paused = false;
            }
            Undo::Path => {
                self.tell("the control plane's path is whole");
                self.plane.network.paths[0] = Path::default();
            }
            Undo::Wall => self.plane.clocks.wrong = 0,
            Undo::Disk => {
                self.tell("the control plane's disk has room");
                self.plane.disk.full(false);
            }
        }
    }

    /// Nothing more breaks here.
    pub(crate) fn mend_plane(&mut self) {
        self.plane.over = true;
        self.plane.admins.rest();
        self.plane.disk.full(false);
        for (_, undo) in std::mem::take(&mut self.plane.undo) {
            self.undo_plane(undo);
        }
    }

    /// What it shows of the site, if it runs.
    pub(crate) fn plane_shows(&self) -> Option<Shown> {
        let plane = self.plane.process.as_ref()?;
        Some(plane.shown(&EdgeId::parse("site").unwrap(), self.now(self.plane.clocks)))
    }

    /// What the control plane does not know yet, though nothing is broken.
    pub(crate) fn plane_waits_for(&self) -> Option<String> {
        let Some(shown) = self.plane_shows() else {
            return Some("the control plane does not run".to_owned());
        };
        let fresh = shown.summary.is_some_and(|(_, _, age)| age <= 11_000);
        (!shown.connected || !fresh).then(|| format!("the control plane does not hear its edge: {shown:?}"))
    }
}
