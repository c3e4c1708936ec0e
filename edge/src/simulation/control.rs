//! The edge's connection to its control plane: dialing, hello, heartbeat, and the two streams that it answers.
//!
//! Owns the order that `shell/control/link.rs` has, as steps. Leaves what runs, and what is told, to the same cores as
//! the local socket. Invariant: the site needs none of it; what was said of the site is kept for the world to compare.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::objects::CommandPhase;
use umbel_contracts::operations::Class;
use umbel_contracts::proto::control::{
    EdgeCommandRequest, EdgeCommandResponse, EdgeFacts, EdgeHeartbeat, EdgeHelloRequest, EdgeNodeEvent,
    EdgeStatusRequest, EdgeStatusResponse, EdgeSummary, Operation as Named, Revision, StoreHealth,
};
use umbel_contracts::{CONTROL_PROTOCOL, bounds, event, method};
use umbel_wire::backoff::Backoff;
use umbel_wire::clock::Wall;
use umbel_wire::peer::PeerCertificate;
use umbel_wire::simulation::{Call, Chance, End, Heard, Incoming, Renewal};
use umbel_wire::{Attempt, CloseReason, Code, Error, Generation, InstanceId, Purpose};

use super::{Edge, LinkId, Operation, Outcome};
use crate::core::registry::snapshot::{self, Counts};

/// What was said of the site: the revision, and the edge's wall clock then.
pub type Said = (u64, i64);

struct Link {
    link: LinkId,
    end: End,
    generation: Option<Generation>,
    since: Instant,
    spread: Duration,
    interval: Duration,
    heartbeat_at: Option<Instant>,
}

/// The one connection and what travels over it.
pub(super) struct Uplink {
    link: Option<Link>,
    backoff: Backoff,
    dial_at: Option<Instant>,
    reaching: bool,
    attempt: u64,
    instance: InstanceId,
    sequence: u64,
    events: Arc<AtomicU64>,
    /// Streams that wait for the outcome of a command.
    carried: BTreeMap<String, Vec<Incoming>>,
    /// Commands that were asked for at the socket.
    pub(super) at_socket: BTreeSet<String>,
    said: Vec<Said>,
    pub(super) renewal: Renewal,
    /// Why its last dial was refused; empty: it was not.
    refusal: String,
    /// The dial after the end of this connection is due at once: it shows another certificate.
    at_once: bool,
    luck: Chance,
}

impl Uplink {
    pub(super) fn new(now: Instant, luck: u64) -> Self {
        // A chance of its own: the site's is the same whether it has a control plane or not.
        let mut luck = Chance::new(luck ^ 0x0C0F_FEE0);
        Self {
            link: None,
            backoff: Backoff::new(),
            dial_at: Some(now),
            reaching: false,
            attempt: 0,
            instance: InstanceId(luck.id()),
            sequence: 0,
            events: Arc::default(),
            carried: BTreeMap::new(),
            at_socket: BTreeSet::new(),
            said: Vec::new(),
            renewal: Renewal::default(),
            refusal: String::new(),
            at_once: false,
            luck,
        }
    }

    fn again(&mut self, now: Instant) {
        self.renewal.failed(false);
        let luck = self.luck.draw();
        self.dial_at = Some(now + self.backoff.failed(luck));
    }

    pub(super) fn key(&mut self) -> [u8; 32] {
        self.luck.bytes()
    }

    pub(super) fn refusal(&self) -> &str {
        &self.refusal
    }

    /// There is a token to be used.
    pub(super) fn dial_soon(&mut self, now: Instant) {
        self.refusal.clear();
        self.dial_anew(now);
    }

    /// The next dial shows another certificate.
    pub(super) fn dial_anew(&mut self, now: Instant) {
        match &mut self.link {
            // Its last bytes go out, then it is over.
            Some(own) => {
                self.at_once = true;
                own.end.close(CloseReason::Reconnect);
            }
            None => self.dial_at = Some(now),
        }
    }

    pub(super) fn request(
        &mut self,
        now: Instant,
        number: u32,
        message: Vec<u8>,
        timeout: Duration,
    ) -> Option<Call> {
        self.welcomed()?.end.request(now, number, message, timeout).ok()
    }

    fn welcomed(&mut self) -> Option<&mut Link> {
        self.link.as_mut().filter(|link| link.generation.is_some())
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let link = self.link.as_ref();
        let dial = self.dial_at.filter(|_| link.is_none() && !self.reaching);
        let beat = link.and_then(|link| link.heartbeat_at);
        let own = self.renewal.next_deadline();
        link.and_then(|link| link.end.next_deadline()).into_iter().chain(beat).chain(dial).chain(own).min()
    }
}

impl Edge {
    /// A dial of the control plane is due, with the certificate that it shows. The world answers with
    /// [`Edge::plane_connected`] or [`Edge::plane_unreachable`].
    pub fn dials_plane(&mut self, now: Instant) -> Option<Option<PeerCertificate>> {
        let due = self.uplink.dial_at.is_some_and(|at| at <= now);
        if !due || self.uplink.link.is_some() || self.uplink.reaching {
            return None;
        }
        self.uplink.dial_at = None;
        if !self.membership.may_dial() {
            return None;
        }
        self.uplink.reaching = true;
        Some(self.plane_certificate())
    }

    /// TCP and TLS are done.
    pub fn plane_connected(&mut self, link: LinkId, now: Instant) {
        let uplink = &mut self.uplink;
        uplink.reaching = false;
        uplink.attempt += 1;
        let named = |name: &str| Named { name: name.to_owned(), class: Class::Operate.to_proto().into() };
        let hello = EdgeHelloRequest {
            edge_id: self.setup.edge_id.to_string(),
            operations: vec![named("node.drain"), named("enrollment.create")],
            ..EdgeHelloRequest::default()
        };
        let (attempt, events) = (Attempt(uplink.attempt), Arc::clone(&uplink.events));
        let (purpose, payload) = match self.membership.enrolls(self.setup.edge_id.as_str()) {
            Some(enrolls) => (Purpose::Enroll, enrolls.encode_to_vec()),
            None => (Purpose::Hello, hello.encode_to_vec()),
        };
        let end = End::dial(now, purpose, CONTROL_PROTOCOL, uplink.instance, attempt, &payload, events);
        let Ok(end) = end else { return uplink.again(now) };
        let spread = Duration::from_millis(200);
        let (generation, heartbeat_at, interval) = (None, None, self.setup.heartbeat);
        uplink.link = Some(Link { link, end, generation, since: now, spread, interval, heartbeat_at });
    }

    /// A dial came to nothing.
    pub fn plane_unreachable(&mut self, now: Instant) {
        self.uplink.reaching = false;
        self.uplink.again(now);
    }

    /// Bytes of the control plane arrived.
    pub fn plane_said(&mut self, link: LinkId, bytes: &[u8], now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        let Some(own) = self.uplink.link.as_mut().filter(|own| own.link == link) else { return };
        let heard = own.end.receive(now, bytes);
        self.plane_heard(heard, now, wall);
        self.open_granted(now);
    }

    /// The transport ended.
    pub fn plane_lost(&mut self, link: LinkId, now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        let Some(own) = self.uplink.link.as_mut().filter(|own| own.link == link) else { return };
        let heard = own.end.lost(None);
        self.plane_heard(heard, now, wall);
        if self.uplink.link.as_ref().is_some_and(|own| own.link == link) {
            self.uplink.link = None;
            if std::mem::take(&mut self.uplink.at_once) {
                self.uplink.carried.clear();
                self.uplink.dial_at = Some(now);
            } else {
                self.uplink.again(now);
            }
        }
    }

    /// Bytes to send, by connection, and whether it is to be closed behind them.
    pub fn plane_bytes(&mut self, now: Instant) -> Option<(LinkId, Vec<u8>, bool)> {
        let own = self.uplink.link.as_mut()?;
        let (bytes, over) = (own.end.take_bytes(now), own.end.is_over());
        Some((own.link, bytes, over))
    }

    /// What was said of the site since the last time.
    pub fn said(&mut self) -> Vec<Said> {
        std::mem::take(&mut self.uplink.said)
    }

    /// The generation of its connection to the control plane.
    #[must_use]
    pub fn plane_generation(&self) -> Option<u64> {
        self.uplink.link.as_ref().and_then(|link| link.generation).map(|generation| generation.0)
    }

    pub(super) fn tick_plane(&mut self, now: Instant, wall: Wall) {
        let Some(own) = &mut self.uplink.link else { return self.renew(now) };
        let heard = own.end.tick(now);
        self.plane_heard(heard, now, wall);
        self.renew(now);
        let due = self.uplink.welcomed().is_some_and(|own| own.heartbeat_at.is_some_and(|at| at <= now));
        if !due {
            return;
        }
        let summary = self.summary(wall);
        self.uplink.sequence += 1;
        let sequence = self.uplink.sequence;
        let Some(own) = self.uplink.welcomed() else { return };
        // One after a pause, not a burst.
        own.heartbeat_at = Some(now + own.interval);
        let asked = self.disk.asked;
        let at = wall.unix_ms();
        let audit_witnessed = self.disk.place.clone().filter(|place| place.sequence == asked);
        let heartbeat =
            EdgeHeartbeat { sequence, observed_at_unix_ms: at, summary: Some(summary), audit_witnessed };
        let _ = own.end.request(now, method::EDGE_HEARTBEAT, heartbeat.encode_to_vec(), own.interval);
    }

    fn summary(&mut self, wall: Wall) -> EdgeSummary {
        let nodes = self.registry.all();
        let counts: Counts = snapshot::counts(nodes.iter().map(AsRef::as_ref));
        let number = self.registry.revision();
        self.uplink.said.push((number, wall.unix_ms()));
        EdgeSummary {
            revision: Some(Revision { incarnation: "simulated".to_owned(), number }),
            facts: Some(EdgeFacts {
                store: StoreHealth::Ok.into(),
                settings_version: self.settings.version(),
                ..EdgeFacts::default()
            }),
            nodes_total: counts.nodes_total,
            nodes_online: counts.nodes_online,
            nodes_stale: counts.nodes_stale,
            nodes_offline: counts.nodes_offline,
            audit_sequence: self.disk.head.sequence,
            audit_hash: self.disk.head.hash.to_vec(),
            providers_total: counts.providers_total,
            providers_available: counts.providers_available,
            ..EdgeSummary::default()
        }
    }

    fn plane_heard(&mut self, heard: Vec<Heard>, now: Instant, wall: Wall) {
        for one in heard {
            match one {
                Heard::Welcome(welcome) if self.membership.enrolls("").is_some() => {
                    self.joined(&welcome.payload);
                    self.uplink.link = None;
                    self.uplink.dial_at = Some(now);
                }
                Heard::Welcome(welcome) => {
                    self.uplink.refusal.clear();
                    self.plane_accepted(&welcome.payload, now, wall);
                    let Some(own) = &mut self.uplink.link else { continue };
                    own.generation = Some(welcome.generation);
                    (own.since, own.spread) = (now, welcome.reconnect_spread);
                    own.interval = welcome.intervals.heartbeat.max(Duration::from_secs(1));
                    own.heartbeat_at = Some(now);
                }
                Heard::Rejected(rejection) => {
                    self.uplink.link = None;
                    let (error, luck) = (rejection.error, self.uplink.luck.draw());
                    let again = matches!(error.code, Code::Unavailable | Code::InsufficientStorage);
                    if self.membership.enrolls("").is_some() {
                        if !again && error.reason != "TOKEN_BUSY" {
                            self.not_joined();
                        }
                    } else if self.uplink.renewal.failed(true) {
                        self.uplink.dial_at = Some(now);
                        continue;
                    }
                    self.uplink.refusal = error.reason.to_string();
                    let pause = self.uplink.backoff.rejected(error.code, error.retry_after, luck);
                    self.uplink.dial_at = Some(now + pause);
                }
                Heard::Stream(stream, method::EDGE_STATUS, message) => {
                    self.tell_status(stream, &message, wall);
                }
                Heard::Stream(stream, method::EDGE_COMMAND, message) => {
                    self.take_command(stream, &message, now, wall);
                }
                Heard::Reset(stream) => {
                    // The command goes on; only the answer is no longer wanted.
                    for streams in self.uplink.carried.values_mut() {
                        streams.retain(|one| *one != stream);
                    }
                    self.end_stream(stream, Error::new(Code::Cancelled, "CANCELLED", "not wanted any more"));
                }
                Heard::Goaway(_) => {}
                Heard::Answer(call, answer) => self.plane_gave(call, &answer, now),
                Heard::Closed(reason) => self.plane_closed(&reason, now),
                _ => {}
            }
        }
    }

    fn plane_closed(&mut self, _: &CloseReason, now: Instant) {
        let Some(own) = self.uplink.link.take() else { return };
        self.uplink.carried.clear();
        if own.generation.is_none() {
            return self.uplink.again(now);
        }
        let luck = self.uplink.luck.draw();
        let pause = self.uplink.backoff.lost(now.saturating_duration_since(own.since), own.spread, luck);
        self.uplink.dial_at = Some(now + pause);
    }

    fn end_stream(&mut self, stream: Incoming, error: Error) {
        if let Some(own) = &mut self.uplink.link {
            own.end.end(stream, Some(error), true);
        }
    }

    fn tell_status(&mut self, stream: Incoming, message: &[u8], wall: Wall) {
        let question = match bounds::decode::<EdgeStatusRequest>(message) {
            Ok(question) => question,
            Err(error) => return self.end_stream(stream, error),
        };
        let summary = self.summary(wall);
        let answer = EdgeStatusResponse {
            request_id: question.request_id,
            edge_id: self.setup.edge_id.to_string(),
            revision: summary.revision.clone(),
            observed_at_unix_ms: wall.unix_ms(),
            summary: Some(summary),
            ..EdgeStatusResponse::default()
        };
        if let Some(own) = &mut self.uplink.link {
            own.end.tell(stream, &answer.encode_length_delimited_to_vec());
        }
    }

    fn take_command(&mut self, stream: Incoming, message: &[u8], now: Instant, wall: Wall) {
        let asked = bounds::decode::<EdgeCommandRequest>(message).and_then(|request| {
            let operation = serde_json::from_slice::<BTreeMap<String, Operation>>(&request.args_json);
            let operation = operation.ok().and_then(|mut args| args.remove("operation"));
            let malformed = || Error::new(Code::InvalidArgument, "ARGS", "args must name an operation");
            Ok((request.command_id, operation.ok_or_else(malformed)?))
        });
        match asked {
            Err(error) => self.end_stream(stream, error),
            Ok((id, operation)) => {
                self.uplink.carried.entry(id.clone()).or_default().push(stream);
                if self.is("a relayed command is not looked up") {
                    self.commands.forget(&id);
                }
                self.begin_command(&id, &operation, now, wall);
            }
        }
    }

    /// A command has come to its end: whoever waits for it is told.
    pub(super) fn outcome(&mut self, id: &str, outcome: Outcome) {
        if self.uplink.at_socket.remove(id) {
            self.outcomes.push((id.to_owned(), outcome.clone()));
        }
        for stream in self.uplink.carried.remove(id).unwrap_or_default() {
            let Some(own) = self.uplink.link.as_mut() else { continue };
            let refusal = |code, reason: &str| Error::new(code, reason.to_owned(), "refused");
            match &outcome {
                Outcome::Done => {
                    let answer = EdgeCommandResponse {
                        command_id: id.to_owned(),
                        phase: CommandPhase::Succeeded.to_proto().into(),
                        ..EdgeCommandResponse::default()
                    };
                    own.end.tell(stream, &answer.encode_length_delimited_to_vec());
                }
                Outcome::NotDurable => {
                    let error = refusal(Code::InsufficientStorage, "NOT_DURABLE");
                    own.end.end(stream, Some(error), false);
                }
                Outcome::Refused(reason) => {
                    own.end.end(stream, Some(refusal(Code::Conflict, reason)), true);
                }
            }
        }
    }

    /// Tells what happened at the site, if anybody listens.
    pub(super) fn tell_plane(&mut self, sequence: u64, kind: &str, node_id: String, wall: Wall) {
        let edge_id = self.setup.edge_id.to_string();
        let Some(own) = self.uplink.welcomed() else { return };
        let told = EdgeNodeEvent {
            edge_id,
            sequence,
            at_unix_ms: wall.unix_ms(),
            kind: kind.to_owned(),
            node_id,
            ..EdgeNodeEvent::default()
        };
        own.end.event(event::EDGE_NODE, &sequence.to_string(), told.encode_to_vec());
    }
}
