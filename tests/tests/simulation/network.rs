//! Connections between hosts and the edge, and between it and its control plane, as the network sees them: bytes in order, late, held back, or cut off.
//!
//! TCP loses nothing while it lives: loss is delay, and a cut that lasts is silence. Each direction of each host's path
//! can be cut by itself.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use umbel_wire::peer::PeerCertificate;

use super::luck::Luck;

pub(crate) type LinkId = u64;

/// What travels.
#[derive(Debug)]
pub(crate) enum Packet {
    /// To the dialed side: TCP and TLS, with the certificate shown.
    Open(Option<Box<PeerCertificate>>),
    /// To the side that dials: both are done, and these authorities vouch for the other.
    Opened(Vec<String>),
    Bytes(Vec<u8>),
    /// The other side is gone, and its kernel says so.
    End,
}

/// Towards whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// One direction.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    packets: VecDeque<(Duration, Packet)>,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) host: usize,
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    /// The side has it open: the one that was dialed, and the one that dials.
    pub(crate) upper_has: bool,
    pub(crate) lower_has: bool,
    /// The side that dials waits for it no longer than this.
    pub(crate) dialed_until: Option<Duration>,
}

/// A host's path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) cut_up: bool,
    pub(crate) cut_down: bool,
    pub(crate) delay: Duration,
    /// One packet in so many is sent again after a while.
    pub(crate) loss: u64,
}

impl Default for Path {
    fn default() -> Self {
        Self { cut_up: false, cut_down: false, delay: Duration::from_millis(1), loss: 0 }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) wires: BTreeMap<LinkId, Wire>,
    pub(crate) paths: Vec<Path>,
    pub(crate) next_link: LinkId,
}

impl Network {
    pub(crate) fn dial(&mut self, host: usize, until: Duration) -> LinkId {
        self.next_link += 1;
        let wire = Wire {
            host,
            up: Pipe::default(),
            down: Pipe::default(),
            upper_has: false,
            lower_has: true,
            dialed_until: Some(until),
        };
        self.wires.insert(self.next_link, wire);
        self.next_link
    }

    pub(crate) fn send(&mut self, link: LinkId, way: Way, packet: Packet, now: Duration, luck: &mut Luck) {
        let Some(wire) = self.wires.get_mut(&link) else { return };
        let path = self.paths[wire.host];
        let mut due = now + path.delay;
        if path.loss > 0 && luck.one_in(path.loss) {
            due += Duration::from_millis(luck.between(200, 3_000));
        }
        let pipe = if way == Way::Up { &mut wire.up } else { &mut wire.down };
        if let Some((last, _)) = pipe.packets.back() {
            due = due.max(*last);
        }
        pipe.packets.push_back((due, packet));
    }

    fn open_way(&self, wire: &Wire, way: Way) -> bool {
        let path = self.paths[wire.host];
        // A cut direction also starves the other of acknowledgements, but what is in flight arrives.
        !(if way == Way::Up { path.cut_up } else { path.cut_down })
    }

    /// The next packet that arrives, with its time, among those that `awake` takes now.
    pub(crate) fn next(&self, awake: impl Fn(usize, Way) -> bool) -> Option<(Duration, LinkId, Way)> {
        let mut first: Option<(Duration, LinkId, Way)> = None;
        for (link, wire) in &self.wires {
            for (way, pipe) in [(Way::Up, &wire.up), (Way::Down, &wire.down)] {
                let Some((due, _)) = pipe.packets.front() else { continue };
                if self.open_way(wire, way) && awake(wire.host, way) && first.is_none_or(|(at, ..)| *due < at)
                {
                    first = Some((*due, *link, way));
                }
            }
        }
        first
    }

    pub(crate) fn take(&mut self, link: LinkId, way: Way) -> Option<Packet> {
        let wire = self.wires.get_mut(&link)?;
        let pipe = if way == Way::Up { &mut wire.up } else { &mut wire.down };
        pipe.packets.pop_front().map(|(_, packet)| packet)
    }

    /// Connections that nobody has open any more are forgotten.
    pub(crate) fn forget(&mut self) {
        self.wires.retain(|_, wire| wire.upper_has || wire.lower_has || wire.dialed_until.is_some());
    }
}
