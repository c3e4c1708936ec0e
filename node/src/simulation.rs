//! The node's cores in a hand-made process, for a simulated world (feature `simulation`).
//!
//! Owns what the shell otherwise does around them: dialing and its pauses, joining, hello, reports, streams; and which
//! of it a crash forgets. Leaves the network and all clocks to the world. Invariant: nothing here reads a clock, a
//! file or chance; what must outlive the process stands in [`NodeDisk`] before it is used.

mod downloads;
mod engines;
mod jobs;
mod machine;
mod reports;
mod rotation;
mod settings;
mod streams;
mod trust;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{Artifact, NodeEnrollRequest, NodeEnrollResponse, NodeHelloResponse};
use umbel_contracts::{NODE_PROTOCOL, bounds, method};
use umbel_wire::backoff::Backoff;
use umbel_wire::ca::{BACKDATED, CLIENT_VALIDITY};
use umbel_wire::clock::Wall;
use umbel_wire::peer::{PeerCertificate, PeerName};
use umbel_wire::simulation::{Chance, End, Heard, Kept, Keys, LinkId, Linked, Renewal, take_bytes};
use umbel_wire::{
    Attempt, CloseReason, Code, EdgeId, Error, Generation, GoawayReason, InstanceId, KeyHash, NodeId,
    Purpose, Rejection, Welcome,
};

use crate::core::deployments::Kept as KeptEngine;
use crate::core::identity::{FORMAT, Identity};
use crate::core::sequence::Sequence;
use crate::core::settings::Record;

pub use jobs::Begun;
pub use machine::{Machine, Process};
pub use trust::Token;

/// From the beginning of a certificate, which is backdated, to its end.
const VALIDITY_MS: i64 = (CLIENT_VALIDITY.as_secs() + BACKDATED.as_secs()) as i64 * 1_000;

/// What one host is.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Its edge.
    pub edge_id: EdgeId,
    /// The model of its one engine.
    pub model: String,
    /// How many requests that takes at once.
    pub capacity: u32,
    /// From how many tokens a request is long, and how many of those at once.
    pub long: (u32, u32),
    /// How long its engine works on one.
    pub work: Duration,
    /// UUIDs of its GPUs.
    pub gpus: Vec<String>,
    /// Faults of the program itself that the world switches on to see its invariants fail.
    pub mutation: Option<&'static str>,
}

/// The state directory: what a crash leaves, and what a careless copy doubles.
#[derive(Clone, Debug, Default)]
pub struct NodeDisk {
    identity: Option<Identity>,
    keys: Keys,
    /// The token that made it somebody.
    joined_with: String,
    settings: Record,
    sequences: [u64; 2],
    full: bool,
    /// The list of engines of deployments.
    deployments: Vec<KeptEngine>,
    /// Artifacts that are whole and in place, by digest.
    artifacts: BTreeMap<String, Artifact>,
    quarantine: BTreeMap<String, downloads::Part>,
    /// Of those in place, the ones that are not what was wanted.
    spoiled: Vec<String>,
}

impl NodeDisk {
    /// From now on writes fail, or succeed again.
    pub fn full(&mut self, full: bool) {
        self.full = full;
    }

    /// Who it is, if it is somebody.
    #[must_use]
    pub fn node_id(&self) -> Option<String> {
        self.identity.as_ref().map(|identity| identity.node_id.to_string())
    }
}

/// A dial that is due.
#[derive(Clone, Debug)]
pub struct Dial {
    /// What it shows in TLS.
    pub certificate: Option<PeerCertificate>,
}

struct Link {
    end: End,
    generation: Generation,
    spread: Duration,
    since: Instant,
    welcomed: bool,
}

impl Linked for Link {
    fn end(&mut self) -> &mut End {
        &mut self.end
    }
}

/// One process of an agent.
pub struct Node {
    setup: NodeSetup,
    disk: NodeDisk,
    machine: Machine,
    engines: engines::Engines,
    jobs: jobs::Jobs,
    /// Artifacts are to be told.
    artifacts_news: bool,
    instance: InstanceId,
    attempt: u64,
    backoff: Backoff,
    dial_at: Option<Instant>,
    token: Option<Token>,
    /// Nobody whom it trusts vouched for the edge that it dialed last.
    distrusts: bool,
    links: BTreeMap<LinkId, Link>,
    current: Option<LinkId>,
    dialing: Option<LinkId>,
    /// TCP and TLS of a dial are under way.
    reaching: bool,
    events: Arc<AtomicU64>,
    sequences: [Sequence; 2],
    reports: reports::Reports,
    rotation: Renewal,
    trial: settings::Trial,
    streams: streams::Streams,
    last_rejection: Option<Error>,
    luck: Chance,
}

impl Node {
    /// Starts on a state directory, on a host.
    #[must_use]
    pub fn start(setup: NodeSetup, disk: NodeDisk, machine: Machine, luck: u64, now: Instant) -> Self {
        let mut instance = [0; 16];
        instance[..8].copy_from_slice(&luck.to_be_bytes());
        let sequences = disk.sequences.map(Sequence::after_start);
        let mut node = Self {
            setup,
            disk,
            machine,
            engines: engines::Engines::default(),
            jobs: jobs::Jobs::default(),
            artifacts_news: false,
            instance: InstanceId(instance),
            attempt: 0,
            backoff: Backoff::new(),
            dial_at: None,
            token: None,
            distrusts: false,
            links: BTreeMap::new(),
            current: None,
            dialing: None,
            reaching: false,
            events: Arc::default(),
            sequences,
            reports: reports::Reports::default(),
            rotation: Renewal::default(),
            trial: settings::Trial::default(),
            streams: streams::Streams::default(),
            last_rejection: None,
            luck: Chance::new(luck),
        };
        if node.disk.identity.is_some() {
            node.dial_at = Some(now);
        }
        node.reserve();
        node.start_settings(now);
        node.start_engines(now);
        node
    }

    /// The process is killed: only its state directory is left, and what runs on its host.
    #[must_use]
    pub fn crash(self) -> (NodeDisk, Machine) {
        (self.disk, self.machine)
    }

    /// The state directory.
    #[must_use]
    pub fn disk(&mut self) -> &mut NodeDisk {
        &mut self.disk
    }

    /// Somebody runs `umbel node enroll`.
    pub fn join(&mut self, token: &Token, now: Instant) {
        if self.disk.identity.is_none() {
            self.token = Some(token.clone());
            if self.dialing.is_none() && !self.reaching {
                self.dial_at = Some(now);
            }
        }
    }

    /// Who it is, if it is somebody.
    #[must_use]
    pub fn identity(&self) -> Option<String> {
        self.disk.node_id()
    }

    /// The token that made it somebody.
    #[must_use]
    pub fn joined_with(&self) -> &str {
        &self.disk.joined_with
    }

    /// Keys that it could show, in lower-case hexadecimal.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.disk.keys.shown()
    }

    /// Somebody removes the key of a node that is nobody.
    pub fn forget_key(&mut self) {
        if self.disk.identity.is_none() {
            self.disk.keys.key = None;
        }
    }

    /// Why its last dial was refused, if it was.
    #[must_use]
    pub fn last_rejection(&self) -> Option<&Error> {
        self.last_rejection.as_ref()
    }

    /// The generation of the connection that gives it work.
    #[must_use]
    pub fn generation(&self) -> Option<u64> {
        self.current.and_then(|link| self.links.get(&link)).map(|link| link.generation.0)
    }

    /// The next dial, if one is due now. The world answers with [`Node::connected`] or [`Node::unreachable`].
    pub fn dial(&mut self, now: Instant) -> Option<Dial> {
        if self.dialing.is_some() || self.reaching || self.dial_at.is_none_or(|at| at > now) {
            return None;
        }
        self.dial_at = None;
        self.attempt += 1;
        if self.disk.identity.is_none() && self.disk.keys.key.is_none() {
            if self.disk.full {
                self.again(now);
                return None;
            }
            // On the disk before it is used: a lost answer is asked for again with it.
            self.disk.keys.key = Some(self.luck.bytes());
        }
        self.reaching = true;
        Some(Dial { certificate: self.certificate() })
    }

    fn certificate(&mut self) -> Option<PeerCertificate> {
        let Kept { key, not_after } = self.rotation.shows(&self.disk.keys)?;
        let identity = self.disk.identity.as_ref()?;
        let edge = EdgeId::parse(&identity.edge_id).ok()?;
        Some(PeerCertificate {
            key_hash: KeyHash(key),
            serial: "01".to_owned(),
            name: Some(PeerName::Node(edge, NodeId(identity.node_id))),
            not_before: Wall(not_after - VALIDITY_MS),
            not_after: Wall(not_after),
        })
    }

    /// TCP and TLS of a dial are done, and these authorities vouch for who answers. False: the host trusts none of them.
    #[must_use]
    pub fn connected(&mut self, link: LinkId, vouching: &[String], now: Instant, wall: Wall) -> bool {
        self.reaching = false;
        self.distrusts = !self.believes(vouching);
        if self.distrusts {
            self.again(now);
            return false;
        }
        let (purpose, payload) = match (&self.disk.identity, &self.token) {
            (None, Some(token)) => {
                let request = NodeEnrollRequest {
                    token_id: token.token_id.clone(),
                    token_secret: token.secret.to_vec(),
                    signing_request: self.disk.keys.key.unwrap_or_default().to_vec(),
                    name: String::new(),
                    software_version: String::new(),
                };
                (Purpose::Enroll, request.encode_to_vec())
            }
            _ => (Purpose::Hello, self.hello(wall).encode_to_vec()),
        };
        let events = Arc::clone(&self.events);
        let attempt = Attempt(self.attempt);
        if let Ok(end) = End::dial(now, purpose, NODE_PROTOCOL, self.instance, attempt, &payload, events) {
            let generation = Generation::default();
            let spread = Duration::from_millis(200);
            self.links.insert(link, Link { end, generation, spread, since: now, welcomed: false });
            self.dialing = Some(link);
        }
        true
    }

    /// A dial came to nothing.
    pub fn unreachable(&mut self, now: Instant) {
        self.reaching = false;
        self.again(now);
    }

    fn again(&mut self, now: Instant) {
        self.rotation.failed(false);
        let luck = self.luck.draw();
        self.dial_at = Some(now + self.backoff.failed(luck));
    }

    /// Bytes arrived.
    pub fn receive(&mut self, link: LinkId, bytes: &[u8], now: Instant, wall: Wall) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.receive(now, bytes);
        self.heard(link, heard, now, wall);
        self.drive_jobs(now);
        self.tell_news(now);
    }

    /// The transport ended.
    pub fn lost(&mut self, link: LinkId, now: Instant, wall: Wall) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.lost(None);
        self.heard(link, heard, now, wall);
        self.links.remove(&link);
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
    pub fn next_deadline(&self) -> Option<Instant> {
        let ends = self.links.values().filter_map(|link| link.end.next_deadline());
        let dial = self.dial_at.filter(|_| self.dialing.is_none() && !self.reaching);
        let reports = self.current.and_then(|_| self.reports.next_deadline());
        let own = self.rotation.next_deadline().into_iter().chain(self.streams.next_deadline());
        let own = own.chain(self.trial.next_deadline());
        let own = own.chain(self.engines_deadline()).chain(self.jobs_deadline());
        ends.chain(dial).chain(reports).chain(own).min()
    }

    /// Does what is due; dials are asked for by [`Node::dial`].
    pub fn tick(&mut self, now: Instant, wall: Wall) {
        for link in self.links() {
            let Some(entry) = self.links.get_mut(&link) else { continue };
            let heard = entry.end.tick(now);
            self.heard(link, heard, now, wall);
        }
        self.end_streams(now);
        self.leave_old(now, wall);
        self.go_on(now);
        self.end_trial(now);
        self.drive_engines(now);
        self.report(now, wall);
        self.drive_jobs(now);
        self.tell_news(now);
    }

    // An old connection that the edge asked to leave ends once its streams are done.
    fn leave_old(&mut self, now: Instant, wall: Wall) {
        let Some(current) = self.current else { return };
        let old = self.links.iter().filter(|(link, entry)| {
            **link != current && Some(**link) != self.dialing && entry.welcomed && entry.end.is_idle()
        });
        for link in old.map(|(link, _)| *link).collect::<Vec<_>>() {
            let Some(entry) = self.links.get_mut(&link) else { continue };
            let heard = entry.end.close(CloseReason::Reconnect);
            self.heard(link, heard, now, wall);
        }
    }

    fn heard(&mut self, link: LinkId, heard: Vec<Heard>, now: Instant, wall: Wall) {
        for one in heard {
            match one {
                Heard::Welcome(welcome) => self.welcomed(link, &welcome, now, wall),
                Heard::Rejected(rejection) => self.rejected(&rejection, now),
                Heard::Stream(stream, _, message) => self.take_stream(link, stream, &message, now),
                Heard::Reset(stream) => self.cancel_stream(link, stream, now),
                Heard::Answer(call, answer) => self.answered(link, call, answer, now),
                Heard::Goaway(goaway) => {
                    let reconnect = !goaway.closing && goaway.reason == GoawayReason::Reconnect.name();
                    // A dial that is under way is the answer to it.
                    let dials = self.dial_at.is_some() || self.dialing.is_some() || self.reaching;
                    if reconnect && self.current == Some(link) && !dials {
                        self.dial_at = Some(now);
                    }
                }
                Heard::Request(asked, method::NODE_ROTATE, _) => {
                    self.rotation.rotate(now);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.respond(asked, Ok(Vec::new()));
                    }
                }
                Heard::Request(asked, method::NODE_TRUST, payload) => {
                    let answer = self.told_whom_to_trust(link, &payload);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.respond(asked, answer);
                    }
                }
                Heard::Request(asked, method::NODE_SETTINGS, payload) => {
                    let answer = self.settings_offered(&payload, now);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.respond(asked, answer);
                    }
                }
                Heard::Request(asked, method::NODE_JOB_LEASE, payload) => {
                    self.job_leased(link, asked, &payload, now);
                }
                Heard::Request(asked, ..) => {
                    let unknown = Error::new(Code::Unimplemented, "UNKNOWN_METHOD", "not simulated");
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.respond(asked, Err(unknown));
                    }
                }
                Heard::Acknowledged(event, result) => self.acknowledged(event, result),
                Heard::Closed(reason) => self.closed(link, &reason, now),
                Heard::Event(..) | Heard::Hello(_) | Heard::Terminal(..) | Heard::Data(..) => {}
            }
        }
    }

    fn welcomed(&mut self, link: LinkId, welcome: &Welcome, now: Instant, wall: Wall) {
        self.dialing = None;
        self.last_rejection = None;
        if self.disk.identity.is_none() {
            return self.enrolled(link, welcome, now);
        }
        let Ok(hello) = bounds::decode::<NodeHelloResponse>(&welcome.payload) else { return };
        self.raise([hello.inventory_sequence, hello.telemetry_sequence]);
        if let Some(entry) = self.links.get_mut(&link) {
            entry.generation = welcome.generation;
            entry.spread = welcome.reconnect_spread;
            entry.since = now;
            entry.welcomed = true;
        }
        self.current = Some(link);
        // What cannot be kept now is told again.
        let _ = self.trust(hello.ca_certificates);
        self.rotation.accepted(now);
        if hello.rotate_credential {
            self.rotation.rotate(now);
        }
        self.reports.begin(now, welcome.intervals);
        self.talk_of_jobs(now);
        self.report(now, wall);
    }

    fn enrolled(&mut self, link: LinkId, welcome: &Welcome, now: Instant) {
        self.links.remove(&link);
        let answer = bounds::decode::<NodeEnrollResponse>(&welcome.payload).ok();
        let node_id = answer.as_ref().and_then(|answer| NodeId::parse(&answer.node_id).ok());
        let pinned = |answer: &NodeEnrollResponse| {
            self.token.as_ref().is_some_and(|token| token.ca_sha256 == trust::digest(&answer.ca_certificate))
        };
        let answer = answer.filter(pinned);
        let (Some(answer), Some(node_id), false) = (answer, node_id, self.disk.full) else {
            return self.again(now);
        };
        self.disk.keys.not_after = answer.not_after_unix_ms;
        self.disk.identity = Some(Identity {
            format: FORMAT,
            node_id: node_id.0,
            edge_id: answer.edge_id,
            name: answer.name,
            addresses: vec!["edge".to_owned()],
            certificate_chain: vec!["simulated".to_owned()],
            ca_certificate: trust::digest(&answer.ca_certificate),
            ca_certificates: Vec::new(),
            key_file: "node.key".to_owned(),
            not_after_unix_ms: answer.not_after_unix_ms,
        });
        self.disk.joined_with = self.token.take().map(|token| token.token_id).unwrap_or_default();
        self.dial_at = Some(now);
    }

    fn rejected(&mut self, rejection: &Rejection, now: Instant) {
        if let Some(link) = self.dialing.take() {
            self.links.remove(&link);
        }
        let error = &rejection.error;
        if self.rotation.failed(true) {
            self.dial_at = Some(now);
            return;
        }
        let luck = self.luck.draw();
        self.dial_at = Some(now + self.backoff.rejected(error.code, error.retry_after, luck));
        self.last_rejection = Some(error.clone());
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason, now: Instant) {
        self.streams.lost(link, now);
        if self.current.is_some_and(|current| current != link) || self.streams.carries_of(link) {
            self.reports.orphaned.push(link);
            self.name_orphans(now);
        }
        if self.dialing == Some(link) {
            self.dialing = None;
            return self.again(now);
        }
        if self.current != Some(link) {
            return;
        }
        self.current = None;
        let Some(entry) = self.links.get(&link) else { return };
        let lived = now.saturating_duration_since(entry.since);
        let spread = entry.spread;
        let luck = self.luck.draw();
        let hint = match reason {
            CloseReason::ByPeer(goaway) => goaway.retry_after.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        let pause = self.backoff.lost(lived, spread, luck).max(hint);
        let again = self.setup.mutation != Some("a lost connection is not dialed again");
        if again && self.dial_at.is_none() && self.dialing.is_none() && !self.reaching {
            self.dial_at = Some(now + pause);
        }
    }
}
