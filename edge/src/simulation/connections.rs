//! The nodes' connections: hello, arbitration, naming of leases, reports, the end.
//!
//! Owns what `shell/nodes.rs` waits for, as steps. Leaves the order of what is judged and taken up to `core/door` and
//! `core/session`, which both call.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::NodeHelloRequest;
use umbel_contracts::{NODE_PROTOCOL, event, method};
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::{HelloIn, WelcomeOut};
use umbel_wire::peer::PeerCertificate;
use umbel_wire::simulation::{End, Heard, take_bytes};
use umbel_wire::slots::{Accepted, Knock, Owner, Probe, Refusal};
use umbel_wire::{CloseReason, Code, Error, GoawayReason, Intervals, NodeId, Purpose, Rejection, limits};

use super::{Edge, Link, LinkId};
use crate::core::admission::LeaseId;
use crate::core::door::{self, NAMING, Named, Over, Replaced, Shown};
use crate::core::registry::{StaleGeneration, reports};
use crate::core::session::{Moment, Naming, NotTaken, Said, Session, named};

const PROBE: Duration = Duration::from_secs(1);
const TELEMETRY: Duration = Duration::from_secs(5);
const INVENTORY: Duration = Duration::from_secs(600);

/// Greeting -> Serving | Probing -> Serving; Greeting -> Enrolling; each -> Over.
pub(super) enum State {
    /// TLS is done, the hello is awaited.
    Greeting,
    /// The owner is asked for a sign of life until then.
    Probing(Box<Probing>),
    /// A commit is awaited.
    Enrolling,
    /// Accepted as this generation.
    Serving(Serving),
    /// Nothing is expected any more.
    Over,
}

pub(super) struct Probing {
    id: NodeId,
    probe: Probe,
    old: LinkId,
    arrivals: u64,
    until: Instant,
    said: HelloIn,
    hello: NodeHelloRequest,
    protocol: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Serving {
    pub(super) own: Session,
    named: Option<Named>,
    naming_until: Option<Instant>,
    /// Replaced by a newer one of the same process: it ends when it is idle, or then.
    retiring: Option<Instant>,
}

impl Link {
    /// When something is due here.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let own = match &self.state {
            State::Probing(probing) => Some(probing.until),
            State::Serving(serving) => serving.naming_until.into_iter().chain(serving.retiring).min(),
            _ => None,
        };
        self.end.next_deadline().into_iter().chain(own).min()
    }
}

impl Edge {
    /// A newcomer's TCP and TLS are done; it proved to hold the certificate's key.
    pub fn connect(&mut self, link: LinkId, certificate: Option<PeerCertificate>, now: Instant) {
        self.links.insert(link, Link { end: End::accept(now), certificate, state: State::Greeting });
    }

    /// Bytes arrived.
    pub fn receive(&mut self, link: LinkId, bytes: &[u8], now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.receive(now, bytes);
        self.heard(link, heard, now, wall);
        self.open_granted(now);
    }

    /// The transport ended.
    pub fn lost(&mut self, link: LinkId, now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.lost(None);
        self.heard(link, heard, now, wall);
        self.gone(link, now);
        self.open_granted(now);
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

    // A newcomer that goes away frees its probe; a known end is forgotten.
    fn gone(&mut self, link: LinkId, now: Instant) {
        if let Some(Link { state: State::Probing(probing), .. }) = self.links.remove(&link) {
            self.change(now, |registry| registry.slots.abandon(&probing.id, probing.probe));
        }
    }

    pub(super) fn tick_link(&mut self, link: LinkId, now: Instant, wall: Wall) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.tick(now);
        self.heard(link, heard, now, wall);
        self.answer_probe(link, now, wall);
        let Some(Link { state: State::Serving(serving), end, .. }) = self.links.get_mut(&link) else {
            return;
        };
        let (retiring, naming) = (serving.retiring, serving.naming_until);
        if retiring.is_some_and(|until| until <= now || end.is_idle()) {
            let heard = end.close(CloseReason::Superseded);
            return self.heard(link, heard, now, wall);
        }
        if naming.is_some_and(|until| until <= now) {
            serving.naming_until = None;
            let serving = *serving;
            self.naming_is_over(link, serving, now, wall);
        }
    }

    fn naming_is_over(&mut self, link: LinkId, serving: Serving, now: Instant, wall: Wall) {
        let Session { id, generation } = serving.own;
        let named = serving.named;
        let over =
            self.change(now, |registry| door::naming_is_over(registry, id, generation, named, now, wall));
        match (over, self.links.get_mut(&link)) {
            (Over::Close(reason), _) => self.close_link(link, reason, now, wall),
            (Over::Again, Some(Link { state: State::Serving(serving), .. })) => {
                serving.naming_until = Some(now + NAMING);
            }
            _ => {}
        }
    }

    pub(super) fn close_link(&mut self, link: LinkId, reason: CloseReason, now: Instant, wall: Wall) {
        let Some(entry) = self.links.get_mut(&link) else { return };
        let heard = entry.end.close(reason);
        self.heard(link, heard, now, wall);
    }

    fn heard(&mut self, link: LinkId, heard: Vec<Heard>, now: Instant, wall: Wall) {
        for one in heard {
            match one {
                Heard::Hello(said) => self.hello(link, said, now, wall),
                Heard::Request(asked, method::NODE_CREDENTIAL, payload) => {
                    self.credential_wanted(link, asked, &payload, wall);
                }
                Heard::Request(
                    asked,
                    number @ (method::NODE_JOB_READY
                    | method::NODE_JOB_PROGRESS
                    | method::NODE_JOB_COMPLETE
                    | method::NODE_JOB_FAIL),
                    payload,
                ) => self.job_said(link, asked, (number, &payload), now, wall),
                Heard::Request(asked, number, payload) => {
                    let answer = self.request(link, number, &payload, now, wall);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.respond(asked, answer);
                    }
                }
                Heard::Event(sequence, number, _, payload) => {
                    let result = self.event(link, number, &payload, now, wall);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.acknowledge(sequence, result);
                    }
                }
                Heard::Terminal(stream, terminal) => self.terminal(link, stream, &terminal, now),
                Heard::Goaway(goaway) => {
                    if let Some(serving) = self.serving(link) {
                        self.change(now, |registry| serving.own.drains(registry, &goaway));
                    }
                }
                Heard::Closed(reason) => self.closed(link, &reason, now),
                Heard::Answer(call, answer) if self.told.get(&link) == Some(&call) => {
                    self.trust_answered(link, answer, now);
                }
                Heard::Answer(call, answer) => {
                    if !self.lease_answered(link, call, &answer, now, wall) {
                        self.settings_answered(link, call, answer, now);
                    }
                }
                Heard::Acknowledged(..) => {}
                Heard::Stream(stream, ..) => {
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.end(stream, Some(malformed_stream()), true);
                    }
                }
                Heard::Reset(_) | Heard::Data(..) | Heard::Welcome(_) | Heard::Rejected(_) => {}
            }
        }
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason, now: Instant) {
        self.sent.remove(&link);
        self.told.remove(&link);
        self.jobs_link_closed(link, now);
        let state = self.links.get_mut(&link).map(|entry| std::mem::replace(&mut entry.state, State::Over));
        match state {
            Some(State::Serving(serving)) => {
                let Session { id, mut generation } = serving.own;
                if self.is("a late close ends the newest") {
                    generation = self.registry.slots.owner(&id).map_or(generation, |owner| owner.generation);
                }
                if self.is("a slot is cleared and its node not told") {
                    self.change(now, |registry| {
                        registry.slots.clear(&id, generation);
                    });
                    return;
                }
                self.change(now, |registry| registry.closed(id, generation, reason.name()));
            }
            Some(State::Probing(probing)) => {
                self.change(now, |registry| registry.slots.abandon(&probing.id, probing.probe));
            }
            _ => {}
        }
    }

    pub(super) fn serving(&self, link: LinkId) -> Option<Serving> {
        match self.links.get(&link).map(|entry| &entry.state) {
            Some(State::Serving(serving)) => Some(*serving),
            _ => None,
        }
    }

    pub(super) fn refuse(&mut self, link: LinkId, error: Error) {
        self.reject(link, Rejection { error, verdict: None, yours: NODE_PROTOCOL, mine: NODE_PROTOCOL });
    }

    fn reject(&mut self, link: LinkId, rejection: Rejection) {
        if let Some(entry) = self.links.get_mut(&link) {
            entry.end.reject(&rejection);
            entry.state = State::Over;
        }
    }

    fn hello(&mut self, link: LinkId, said: HelloIn, now: Instant, wall: Wall) {
        if said.purpose == Purpose::Enroll {
            return self.enroll(link, said, now, wall);
        }
        self.meet(link, said, 0, now, wall);
    }

    pub(super) fn meet(&mut self, link: LinkId, said: HelloIn, tries: u32, now: Instant, wall: Wall) {
        if let Err(rejection) = self.judge(link, said, tries, now, wall) {
            self.reject(link, *rejection);
        }
    }

    fn judge(
        &mut self,
        link: LinkId,
        said: HelloIn,
        tries: u32,
        now: Instant,
        wall: Wall,
    ) -> Result<(), Box<Rejection>> {
        let refuse = |error: Error| {
            Box::new(Rejection { error, verdict: None, yours: said.versions, mine: NODE_PROTOCOL })
        };
        let certificate = self.links.get(&link).and_then(|entry| entry.certificate.clone());
        let edge = self.setup.edge_id.clone();
        let shown = Shown {
            certificate: certificate.as_ref(),
            instance: said.instance,
            attempt: said.attempt,
            edge: &edge,
            now,
            wall,
        };
        let credential = door::credential(&self.registry, shown);
        let (versions, payload) = (said.versions, said.payload.clone());
        let door::Read { protocol, hello, named } =
            door::read(credential, || self.withheld(link, now, wall), versions, &payload)?;
        if let (Some(certificate), Some(named)) = (&certificate, named)
            && let Some(error) = self.shows(link, &said, named, certificate.key_hash, tries, wall)
        {
            return error.map_or(Ok(()), |error| Err(refuse(error)));
        }
        let (id, knock) = self
            .change(now, |registry| door::knock(registry, shown, &hello.node_id, link))
            .map_err(refuse)?;
        match knock {
            Knock::Accept(accepted) => self.accept(link, id, protocol, accepted, &said, hello, now, wall),
            Knock::Refuse(refusal) => return Err(refuse(refusal.error())),
            Knock::Probe { probe, old } => {
                let old = old.handle;
                let arrivals = self.links.get_mut(&old).map_or(0, |entry| {
                    entry.end.ping();
                    entry.end.arrivals()
                });
                let until = now + PROBE;
                let probing = Probing { id, probe, old, arrivals, until, said, hello, protocol };
                if let Some(entry) = self.links.get_mut(&link) {
                    entry.state = State::Probing(Box::new(probing));
                }
            }
        }
        Ok(())
    }

    // The old connection said something, or the probe's time is over.
    fn answer_probe(&mut self, link: LinkId, now: Instant, wall: Wall) {
        let Some(Link { state: State::Probing(probing), .. }) = self.links.get(&link) else { return };
        let answered = self.links.get(&probing.old).is_some_and(|old| old.end.arrivals() > probing.arrivals);
        if !answered && now < probing.until {
            return;
        }
        let Some(entry) = self.links.get_mut(&link) else { return };
        let certificate = entry.certificate.clone();
        let State::Probing(probing) = std::mem::replace(&mut entry.state, State::Greeting) else { return };
        let Probing { id, probe, said, hello, protocol, .. } = *probing;
        let edge = self.setup.edge_id.clone();
        let shown = Shown {
            certificate: certificate.as_ref(),
            instance: said.instance,
            attempt: said.attempt,
            edge: &edge,
            now,
            wall,
        };
        let answered = answered && !self.is("a probe's answer is not waited for");
        match self.change(now, |registry| door::probed(registry, shown, id, probe, answered, link)) {
            Ok(Ok(accepted)) => self.accept(link, id, protocol, accepted, &said, hello, now, wall),
            Ok(Err(refusal)) => {
                if refusal == Refusal::Duplicate {
                    let record = self.change(now, |registry| door::duplicate(registry, id, now, wall));
                    self.observe(now, record.into_iter().collect());
                }
                self.refuse(link, refusal.error());
            }
            Err(error) => self.refuse(link, error),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a hello has come to")]
    fn accept(
        &mut self,
        link: LinkId,
        id: NodeId,
        protocol: u32,
        accepted: Accepted<LinkId>,
        said: &HelloIn,
        hello: NodeHelloRequest,
        now: Instant,
        wall: Wall,
    ) {
        let generation = accepted.generation;
        let certificate = self.links.get(&link).and_then(|entry| entry.certificate.clone());
        let (instance, attempt, edge) = (said.instance, said.attempt, self.setup.edge_id.clone());
        let shown = Shown { certificate: certificate.as_ref(), instance, attempt, edge: &edge, now, wall };
        let authority = self.held.row.clone();
        let own = (id, generation, protocol);
        let greeted = self.change(now, |registry| door::greeted(registry, shown, own, hello, &authority));
        let mut answer = match greeted {
            Ok(greeted) => greeted.answer,
            Err(error) => return self.refuse(link, error),
        };
        answer.ca_certificates = self.bundle();
        let welcome = WelcomeOut {
            protocol,
            generation,
            intervals: Intervals {
                heartbeat: self.setup.heartbeat,
                telemetry: TELEMETRY,
                inventory: INVENTORY,
            },
            reconnect_spread: self.spread(),
            max_streams: limits::STREAMS_NODE,
            payload: answer.encode_to_vec(),
        };
        let serving = Serving {
            own: Session { id, generation },
            named: None,
            naming_until: Some(now + NAMING),
            retiring: None,
        };
        let Some(entry) = self.links.get_mut(&link) else { return };
        entry.state = State::Serving(serving);
        let heard = entry.end.welcome(now, &welcome);
        self.heard(link, heard, now, wall);
        if let Some(old) = accepted.superseded {
            self.retire(old, said, now, wall);
        }
    }

    // An old connection of the same process finishes its streams; one of another process is told and closed.
    fn retire(&mut self, old: Owner<LinkId>, said: &HelloIn, now: Instant, wall: Wall) {
        if door::replaced(old.instance, said.instance) == Replaced::Closes {
            return self.close_link(old.handle, CloseReason::Superseded, now, wall);
        }
        if let Some(Link { state: State::Serving(serving), end, .. }) = self.links.get_mut(&old.handle) {
            end.goaway(GoawayReason::Reconnect);
            serving.retiring = Some(now + limits::DRAIN_STREAMS);
        }
    }

    fn spread(&self) -> Duration {
        let nodes = u32::try_from(self.registry.len()).unwrap_or(u32::MAX);
        (Duration::from_millis(5) * nodes).max(Duration::from_millis(200))
    }

    fn request(
        &mut self,
        link: LinkId,
        number: u32,
        payload: &[u8],
        now: Instant,
        wall: Wall,
    ) -> Result<Vec<u8>, Error> {
        let serving = self.serving(link).ok_or_else(reports::stale_error)?;
        let answer = Said::request(number, payload).map_err(NotTaken::from).and_then(|said| match said {
            Said::Leases(leases) => named(&mut Names { edge: self, link, own: serving.own, now }, &leases),
            said => self.says(serving.own, said, now, wall),
        });
        self.taken(link, serving.own, answer, now, wall)
    }

    fn event(
        &mut self,
        link: LinkId,
        number: u32,
        payload: &[u8],
        now: Instant,
        wall: Wall,
    ) -> Result<(), Error> {
        let own = self.serving(link).ok_or_else(reports::stale_error)?.own;
        let taken = Said::event(number, payload).map_err(NotTaken::from);
        let taken = taken.and_then(|said| self.says(own, said, now, wall));
        if number == event::NODE_TELEMETRY {
            self.spoil(own.id, now);
        }
        self.taken(link, own, taken, now, wall).map(drop)
    }

    fn says(&mut self, own: Session, said: Said, now: Instant, wall: Wall) -> Result<Vec<u8>, NotTaken> {
        let spread = self.spread();
        self.change(now, |registry| own.says(registry, said, Moment { now, wall, spread }))
    }

    fn taken<T>(
        &mut self,
        link: LinkId,
        own: Session,
        result: Result<T, NotTaken>,
        now: Instant,
        wall: Wall,
    ) -> Result<T, Error> {
        result.map_err(|not| match not {
            NotTaken::Refused(error) => error,
            NotTaken::Stale => {
                let (error, close) = own.stale(&self.registry);
                close.into_iter().for_each(|reason| self.close_link(link, reason, now, wall));
                error
            }
        })
    }
}

/// A connection that names its leases.
struct Names<'a> {
    edge: &'a mut Edge,
    link: LinkId,
    own: Session,
    now: Instant,
}

impl Naming for Names<'_> {
    fn is_current(&mut self) -> bool {
        self.edge.registry.slots.is_current(&self.own.id, self.own.generation)
    }

    fn carried(&mut self, named: &[u64]) -> Vec<u64> {
        let (id, generation) = (self.own.id, self.own.generation);
        let named: Vec<_> = named.iter().copied().map(LeaseId).collect();
        let cancel = self.edge.admission.carried(self.now, id, generation, &named);
        self.edge.settle(self.now);
        if let Some(Link { state: State::Serving(serving), .. }) = self.edge.links.get_mut(&self.link) {
            serving.named = Some(Named { at: self.now, left: cancel.len() });
        }
        let free = self.edge.is("slots are free before their streams ended");
        cancel.into_iter().filter(|_| !free).map(|lease| lease.0).collect()
    }

    fn complete(&mut self) -> Result<(), StaleGeneration> {
        let (id, generation) = (self.own.id, self.own.generation);
        self.edge.change(self.now, |registry| registry.complete(id, generation))
    }
}

impl Edge {
    // Faults that only the world switches on.
    fn spoil(&mut self, id: NodeId, now: Instant) {
        self.spoil.1 += 1;
        if !self.spoil.1.is_multiple_of(9) {
            return;
        }
        let Some(mutation) = self.setup.mutation else { return };
        self.change(now, |registry| {
            registry.spoil(id, |node| match mutation {
                "a cursor goes back" => {
                    node.report.inventory_sequence = node.report.inventory_sequence.saturating_sub(1)
                }
                "an old report is taken for the last good one" => {
                    if let Some(kept) = &mut node.report.telemetry {
                        kept.observed_at_unix_ms -= 1;
                    }
                }
                "the last sign of life is forgotten" => node.report.last_seen_at_unix_ms -= 1,
                _ => {}
            });
        });
        if mutation == "a summary is kept for later" {
            let nodes = self.registry.all();
            let counts: crate::core::registry::snapshot::Counts =
                crate::core::registry::snapshot::counts(nodes.iter().map(AsRef::as_ref));
            self.spoil.0 = Some(counts.nodes_online);
        }
    }
}

fn malformed_stream() -> Error {
    Error::new(Code::Unimplemented, "UNKNOWN_METHOD", "this edge does not know the method")
}
