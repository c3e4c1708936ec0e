//! What goes wrong, when, and how long: all out of the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umbel_edge::simulation::{restore, stored};

use super::network::Path;
use super::world::{Clocks, World};

/// What ends a fault.
#[derive(Clone, Copy, Debug)]
enum Undo {
    StartEdge,
    StartNode(usize),
    ResumeEdge,
    ResumeNode(usize),
    Path(usize),
    EdgeClock,
    NodeClock(usize),
    DiskFull,
    DiskFrozen,
    NodeDisk(usize),
    Gpu(usize),
    Engine(usize),
}

/// Faults to come.
#[derive(Debug, Default)]
pub(crate) struct Fates {
    next: Duration,
    over: bool,
    undo: BTreeMap<(Duration, u64), Undo>,
    count: u64,
}

impl Fates {
    pub(crate) fn next(&self) -> Duration {
        let undo = self.undo.first_key_value().map(|((at, _), _)| *at);
        let next = if self.over { Duration::MAX } else { self.next };
        undo.map_or(next, |undo| undo.min(next))
    }

    fn later(&mut self, at: Duration, undo: Undo) {
        self.count += 1;
        self.undo.insert((at, self.count), undo);
    }

    /// It did not start; somebody tries again.
    pub(crate) fn start_edge_again(&mut self, now: Duration) {
        self.later(now + Duration::from_secs(2), Undo::StartEdge);
    }
}

impl World {
    pub(crate) fn fate(&mut self) {
        let undo = self.fates.undo.first_key_value().map(|(key, undo)| (*key, *undo));
        if let Some((key, undo)) = undo.filter(|((at, _), _)| *at <= self.time) {
            self.fates.undo.remove(&key);
            return self.undo(undo);
        }
        self.fates.next = self.time + Duration::from_millis(self.luck.between(500, 25_000));
        self.strike();
    }

    fn for_a_while(&mut self, most: u64, undo: Undo) {
        let long = Duration::from_millis(self.luck.between(100, most * 1_000));
        self.fates.later(self.time + long, undo);
    }

    fn strike(&mut self) {
        let number = self.luck.between(0, self.hosts.len() as u64) as usize;
        match self.luck.between(0, 32) {
            0 | 1 if self.edge.process.is_some() => {
                let power = self.luck.one_in(3);
                self.tell(if power { "edge loses power" } else { "edge is killed" });
                self.kill_edge(power);
                self.for_a_while(60, Undo::StartEdge);
            }
            2 | 3 if self.hosts[number].process.is_some() => {
                let power = self.luck.one_in(3);
                self.tell(format!("node {number} {}", if power { "loses power" } else { "is killed" }));
                self.kill_node(number, power);
                self.for_a_while(30, Undo::StartNode(number));
            }
            4 if self.edge.process.is_some() && !self.edge.paused => {
                self.tell("edge is paused");
                self.edge.paused = true;
                self.for_a_while(100, Undo::ResumeEdge);
            }
            5 if self.hosts[number].process.is_some() && !self.hosts[number].paused => {
                self.tell(format!("node {number} is paused"));
                self.hosts[number].paused = true;
                self.for_a_while(120, Undo::ResumeNode(number));
            }
            6..=9 => self.cut(number),
            10 | 11 => {
                let delay = Duration::from_millis(self.luck.between(1, 800));
                let loss = *self.luck.pick(&[0, 3, 10]);
                self.tell(format!("path {number}: {} ms, one in {loss} lost", delay.as_millis()));
                let path = &mut self.network.paths[number];
                (path.delay, path.loss) = (delay, loss);
                self.for_a_while(60, Undo::Path(number));
            }
            12 => {
                let wrong = self.wrong_clock();
                self.tell(format!("the edge's wall clock is wrong by {wrong} ms"));
                self.edge.clocks.wrong = wrong;
                self.for_a_while(90, Undo::EdgeClock);
            }
            13 => {
                let wrong = self.wrong_clock();
                self.tell(format!("node {number}'s wall clock is wrong by {wrong} ms"));
                self.hosts[number].clocks.wrong = wrong;
                self.for_a_while(90, Undo::NodeClock(number));
            }
            14 => self.jump(number),
            15 => {
                self.tell("the edge's disk is full");
                self.edge.disk.full(true);
                self.for_a_while(60, Undo::DiskFull);
            }
            16 => {
                self.tell("the edge's disk stands still");
                self.edge.frozen = true;
                self.for_a_while(30, Undo::DiskFrozen);
            }
            17 => {
                self.tell(format!("node {number}'s disk is full"));
                self.node_disk(number, true);
                self.for_a_while(60, Undo::NodeDisk(number));
            }
            18 => {
                self.tell(format!("node {number} loses a GPU"));
                let uuid = self.hosts[number].setup.gpus[0].clone();
                self.with_node(number, |node, now, _| node.gpu_missing(&uuid, true, now));
                self.for_a_while(60, Undo::Gpu(number));
            }
            28..=30 => {
                self.tell(format!("node {number}'s engine fails"));
                self.with_node(number, |node, _, _| node.engine_fails(true));
                self.for_a_while(60, Undo::Engine(number));
            }
            19 | 20 => self.reset_one(number),
            21 => self.copy(number),
            23 | 24 if self.edge.process.is_some() => self.back_up(),
            25 if self.edge.process.is_some() && self.luck.one_in(2) => self.restore(),
            22 if self.edge.process.is_some() && self.luck.one_in(2) => self.cut_audit(),
            _ => {}
        }
    }

    fn back_up(&mut self) {
        let wall = self.wall(self.edge.clocks);
        self.tell("the edge's store is backed up");
        self.edge.backup = Some(self.edge.disk.back_up(wall.unix_ms()));
    }

    // Whatever happened since the backup never was, as far as the edge knows.
    fn restore(&mut self) {
        let Some(backup) = self.edge.backup.take() else { return };
        self.kill_edge(false);
        let wall = self.wall(self.edge.clocks);
        // Some may hear only later who they are.
        let known: BTreeSet<_> = stored(&mut self.edge.disk).nodes.into_iter().map(|(id, ..)| id).collect();
        if restore(&mut self.edge.disk, &backup, wall, self.mutation) {
            self.tell(format!("the edge is restored from its backup of {}", backup.made_unix_ms()));
            self.restored(known);
            self.reinstall();
        }
        self.edge.backup = Some(backup);
        self.for_a_while(20, Undo::StartEdge);
    }

    // Somebody sets a host up anew, with a token that was left over.
    fn reinstall(&mut self) {
        let Some((token, secret)) = self.people.spare.clone() else { return };
        let number = self.luck.between(0, self.hosts.len() as u64) as usize;
        if self.hosts[number].copy || self.hosts[number].copied {
            return;
        }
        self.wipe(number);
        let token = self.token(&token, secret);
        self.with_node(number, |node, now, _| node.join(&token, now));
    }

    // Somebody who can write the edge's files takes the newest entries out of its audit.
    fn cut_audit(&mut self) {
        self.kill_edge(false);
        let entries = self.luck.between(1, 12);
        if self.edge.disk.cut_audit(entries) {
            self.tell(format!("{entries} entries of the edge's audit are cut off"));
            self.judge.cut(&mut self.edge.disk);
        }
        self.for_a_while(10, Undo::StartEdge);
    }

    fn wrong_clock(&mut self) -> i64 {
        let size = *self.luck.pick(&[2_000, 240_000, 400_000, 3_600_000, 40 * 86_400_000, 70 * 86_400_000]);
        if self.luck.one_in(2) { size } else { -size }
    }

    fn cut(&mut self, number: usize) {
        let which = self.luck.between(0, 4);
        self.tell(format!("path {number} is cut: {}", ["up", "down", "both", "both"][which as usize]));
        let path = &mut self.network.paths[number];
        (path.cut_up, path.cut_down) = (which != 1, which != 0);
        self.for_a_while(150, Undo::Path(number));
    }

    /// Most of the site is cut off at once: a switch, or the power of a row.
    pub(crate) fn cut_most(&mut self, left: usize, long: Duration) {
        self.tell(format!("all paths but {left}'s are cut"));
        for number in (0..self.hosts.len()).filter(|number| *number != left) {
            let path = &mut self.network.paths[number];
            (path.cut_up, path.cut_down) = (true, true);
            self.fates.later(self.time + long, Undo::Path(number));
        }
    }

    fn jump(&mut self, number: usize) {
        let ahead = Duration::from_millis(self.luck.between(100, 200_000));
        let clocks = if self.luck.one_in(2) { &mut self.edge.clocks } else { &mut self.hosts[number].clocks };
        clocks.ahead += ahead;
        self.tell(format!("a monotonic clock jumps by {} ms", ahead.as_millis()));
    }

    fn node_disk(&mut self, number: usize, full: bool) {
        let host = &mut self.hosts[number];
        if let Some(disk) = host.process.as_mut().map(|node| node.disk()).or(host.disk.as_mut()) {
            disk.full(full);
        }
    }

    fn reset_one(&mut self, number: usize) {
        let open = |of: usize| {
            let wires = self.network.wires.iter();
            let links = wires.filter(move |(_, wire)| wire.host == of && wire.upper_has && wire.lower_has);
            links.map(|(link, _)| *link).collect::<Vec<_>>()
        };
        // Rather one that drains beside a newer one.
        let both = (0..self.hosts.len()).map(open).find(|links| links.len() > 1);
        let link = both.unwrap_or_else(|| open(number)).first().copied();
        if let Some(link) = link {
            self.tell(format!("connection {link} is reset"));
            use super::network::{Packet, Way};
            self.network.send(link, Way::Up, Packet::End, self.time, &mut self.luck);
            self.network.send(link, Way::Down, Packet::End, self.time, &mut self.luck);
        }
    }

    // Somebody copies a state directory to another machine and starts an agent on it.
    fn copy(&mut self, number: usize) {
        if self.hosts.iter().any(|host| host.copy) || self.hosts[number].process.is_none() {
            return;
        }
        let original = &mut self.hosts[number];
        let Some(disk) = original.process.as_mut().map(|node| node.disk().clone()) else { return };
        if disk.node_id().is_none() {
            return;
        }
        let setup = original.setup.clone();
        original.copied = true;
        self.tell(format!("node {number}'s state directory is copied to host {}", self.hosts.len()));
        self.hosts.push(super::world::Host {
            setup,
            process: None,
            disk: Some(disk),
            machine: None,
            starts: 0,
            clocks: Clocks::default(),
            paused: false,
            copy: true,
            copied: true,
            unknown: false,
        });
        self.network.paths.push(Path::default());
        self.start_node(self.hosts.len() - 1);
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::StartEdge if self.edge.process.is_none() => self.start_edge(),
            Undo::StartEdge => {}
            Undo::StartNode(number) => self.start_node(number),
            Undo::ResumeEdge => {
                if std::mem::take(&mut self.edge.paused) {
                    self.tell("edge goes on");
                }
            }
            Undo::ResumeNode(number) => {
                if std::mem::take(&mut self.hosts[number].paused) {
                    self.tell(format!("node {number} goes on"));
                }
            }
            Undo::Path(number) => {
                self.tell(format!("path {number} is whole"));
                self.network.paths[number] = Path::default();
            }
            Undo::EdgeClock => {
                self.tell("the edge's wall clock is right");
                self.edge.clocks.wrong = 0;
            }
            Undo::NodeClock(number) => {
                self.tell(format!("node {number}'s wall clock is right"));
                self.hosts[number].clocks.wrong = 0;
            }
            Undo::DiskFull => {
                self.tell("the edge's disk has room");
                self.edge.disk.full(false);
            }
            Undo::DiskFrozen => {
                self.tell("the edge's disk moves");
                self.edge.frozen = false;
            }
            Undo::NodeDisk(number) => {
                self.tell(format!("node {number}'s disk has room"));
                self.node_disk(number, false);
            }
            Undo::Engine(number) => {
                self.tell(format!("node {number}'s engine serves"));
                self.with_node(number, |node, _, _| node.engine_fails(false));
            }
            Undo::Gpu(number) => {
                self.tell(format!("node {number}'s GPU is back"));
                let uuid = self.hosts[number].setup.gpus[0].clone();
                self.with_node(number, |node, now, _| node.gpu_missing(&uuid, false, now));
            }
        }
    }

    /// Everything that was broken is mended, and nothing more breaks.
    pub(crate) fn mend(&mut self) {
        self.fates.over = true;
        self.mend_plane();
        for (_, undo) in std::mem::take(&mut self.fates.undo) {
            self.undo(undo);
        }
        for number in 0..self.hosts.len() {
            let host = &mut self.hosts[number];
            let machine = host.process.as_mut().map(|node| node.machine()).or(host.machine.as_mut());
            if let Some(machine) = machine {
                machine.calm();
            }
            if self.hosts[number].copy {
                self.kill_node(number, false);
                (self.hosts[number].disk, self.hosts[number].machine) = (None, None);
            }
        }
    }
}
