//! Edges' connections: hello, arbitration, heartbeats, events, the end; and what is shown of a site.
//!
//! Owns the order that `shell/edges.rs` has, as steps. Leaves every verdict to `core/fleet` and the views.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::objects::EdgeConnection;
use umbel_contracts::proto::control::{
    EdgeHeartbeat, EdgeHeartbeatAck, EdgeHelloRequest, EdgeHelloResponse, EdgeNodeEvent, EdgeSummary,
};
use umbel_contracts::{CONTROL_PROTOCOL, bounds, event, method};
use umbel_store::Commit;
use umbel_store::simulation::Disk;
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::{HelloIn, WelcomeOut};
use umbel_wire::simulation::Heard;
use umbel_wire::slots::Probe;
use umbel_wire::{
    CloseReason, Code, EdgeId, Error, Generation, GoawayReason, Intervals, Purpose, Rejection, limits,
};

use super::{BLOCK, GENERATION, Link, LinkId, Plane};
use crate::core::edges::{HelloFacts, HelloRefusal};
use crate::core::fleet::{Accept, Entered, Knocking};
use crate::core::views::{Taken, age_ms};

const PROBE: Duration = Duration::from_secs(1);
const REPLACED: Duration = Duration::from_secs(30);
const KEPT: &str = "mutation";

/// Greeting -> Serving | Probing -> Serving; each -> Over.
pub(super) enum State {
    Greeting,
    /// The owner is asked for a sign of life until then.
    Probing(Box<Probing>),
    Serving(Serving),
    Over,
}

pub(super) struct Probing {
    pub(super) edge_id: EdgeId,
    pub(super) probe: Probe,
    old: LinkId,
    arrivals: u64,
    until: Instant,
    said: HelloIn,
    hello: EdgeHelloRequest,
}

#[derive(Clone)]
pub(super) struct Serving {
    pub(super) edge_id: EdgeId,
    pub(super) generation: Generation,
    /// Replaced by a newer one of the same process: it ends when it is idle, or then.
    retiring: Option<Instant>,
}

/// What is shown of a site, beside what its slot holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The edge's credential is revoked.
    pub revoked: bool,
    /// The token that its credential came of, and the keys that open the door for it.
    pub opening: (String, Vec<String>),
    /// Hellos that this process accepted.
    pub accepted: u64,
    /// Whether the connection is up, as operators see it.
    pub connected: bool,
    /// Nothing was heard since the start.
    pub never: bool,
    /// The generation that owns the slot, and the one that owns the view.
    pub owners: (Option<u64>, Option<u64>),
    /// The newest generation whose connection is alive.
    pub alive: Option<u64>,
    /// Revision, the edge's wall clock, and the age in milliseconds of what it last said.
    pub summary: Option<(u64, i64, u64)>,
}

impl Link {
    pub(super) fn deadline(&self) -> Option<Instant> {
        let own = match &self.state {
            State::Probing(probing) => Some(probing.until),
            State::Serving(serving) => serving.retiring,
            _ => None,
        };
        self.end.next_deadline().into_iter().chain(own).min()
    }
}

impl Plane {
    /// Looks at a site.
    #[must_use]
    pub fn shown(&self, edge_id: &EdgeId, now: Instant) -> Shown {
        let view = self.fleet.views.get(edge_id);
        let connection = self.fleet.views.connection(edge_id);
        let alive = self.links.values().filter(|link| !link.end.is_over());
        let alive = alive.filter_map(|link| match &link.state {
            // One that was replaced by a newer one only finishes.
            State::Serving(Serving { edge_id: own, generation, retiring: None }) if own == edge_id => {
                Some(generation.0)
            }
            _ => None,
        });
        let said = |summary: &crate::core::views::Summary| {
            let revision = summary.said.revision.as_ref().map_or(0, |revision| revision.number);
            (revision, summary.observed_at_unix_ms, age_ms(now, summary.received))
        };
        let known = self.fleet.edges.get(edge_id).map(|known| known.row.clone());
        let keys = known.iter().flat_map(|row| {
            let pending = row.pending.as_ref().map(|pending| pending.key_sha256.clone());
            std::iter::once(row.key_sha256.clone()).chain(pending)
        });
        let keys = keys.collect();
        Shown {
            revoked: known.as_ref().is_some_and(|row| row.revoked.is_some()),
            opening: (known.map(|row| row.token_id).unwrap_or_default(), keys),
            accepted: self.accepted,
            connected: connection == EdgeConnection::Connected,
            never: connection == EdgeConnection::Never,
            owners: (
                self.fleet.slots.owner(edge_id).map(|owner| owner.generation.0),
                view.and_then(|view| view.generation).map(|generation| generation.0),
            ),
            alive: alive.max(),
            summary: view.and_then(|view| view.summary.as_ref()).map(said),
        }
    }

    pub(super) fn serving(&self, link: LinkId) -> Option<Serving> {
        match self.links.get(&link).map(|entry| &entry.state) {
            Some(State::Serving(serving)) => Some(serving.clone()),
            _ => None,
        }
    }

    pub(super) fn heard(
        &mut self,
        link: LinkId,
        heard: Vec<Heard>,
        disk: &mut Disk,
        now: Instant,
        wall: Wall,
    ) {
        for one in heard {
            match one {
                Heard::Hello(said) => self.hello(link, said, disk, now, wall),
                Heard::Request(asked, number, payload) => {
                    let answer = self.request(link, number, &payload, disk, now, wall);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.respond(asked, answer);
                    }
                }
                Heard::Event(sequence, number, _, payload) => {
                    let result = self.event(link, number, &payload, now);
                    if let Some(entry) = self.links.get_mut(&link) {
                        entry.end.acknowledge(sequence, result);
                    }
                }
                Heard::Data(stream, data) => self.data(link, stream, &data),
                Heard::Terminal(stream, terminal) => self.terminal(link, stream, &terminal, disk, now, wall),
                Heard::Closed(reason) => self.closed(link, &reason),
                _ => {}
            }
        }
    }

    fn closed(&mut self, link: LinkId, _: &CloseReason) {
        let state = self.links.get_mut(&link).map(|entry| std::mem::replace(&mut entry.state, State::Over));
        match state {
            Some(State::Serving(Serving { edge_id, mut generation, .. })) => {
                if self.is("a stale close clears the new view") {
                    let owner = self.fleet.slots.owner(&edge_id);
                    generation = owner.map_or(generation, |owner| owner.generation);
                }
                if self.is("a slot is cleared and its view is not") {
                    self.fleet.slots.clear(&edge_id, generation);
                } else {
                    self.fleet.closed(&edge_id, generation);
                }
            }
            Some(State::Probing(probing)) => self.fleet.slots.abandon(&probing.edge_id, probing.probe),
            _ => {}
        }
    }

    fn hello(&mut self, link: LinkId, said: HelloIn, disk: &mut Disk, now: Instant, wall: Wall) {
        if said.purpose == Purpose::Enroll {
            return self.enroll(link, &said, disk, wall);
        }
        let hello = match bounds::decode::<EdgeHelloRequest>(&said.payload) {
            Ok(hello) => hello,
            Err(error) => return self.reject(link, &said, HelloRefusal { error, verdict: None }),
        };
        let key = self.links.get(&link).and_then(|entry| Some(entry.certificate.as_ref()?.key_hash));
        if let Err(error) = self.shown_key(&hello.edge_id, key, disk, wall) {
            return self.reject(link, &said, HelloRefusal { error, verdict: None });
        }
        let knocking = self.knocking(link, &said, &hello, now, wall);
        match self.fleet.knock(knocking, link) {
            Ok(Entered::Yes(accept)) => self.welcome(link, accept, disk, now, wall),
            Ok(Entered::Probe(edge_id, probe, old)) => {
                let old = old.handle;
                let arrivals = self.links.get_mut(&old).map_or(0, |entry| {
                    entry.end.ping();
                    entry.end.arrivals()
                });
                let probing = Probing { edge_id, probe, old, arrivals, until: now + PROBE, said, hello };
                if let Some(entry) = self.links.get_mut(&link) {
                    entry.state = State::Probing(Box::new(probing));
                }
            }
            Err(refusal) => self.reject(link, &said, refusal),
        }
    }

    fn knocking<'a>(
        &self,
        link: LinkId,
        said: &HelloIn,
        hello: &'a EdgeHelloRequest,
        now: Instant,
        wall: Wall,
    ) -> Knocking<'a> {
        let shown = self.links.get(&link).and_then(|entry| entry.certificate.as_ref());
        Knocking {
            facts: HelloFacts {
                edge_id: &hello.edge_id,
                certificate: shown.map(|shown| (shown.key_hash, shown.not_after.unix_ms())),
                versions: said.versions,
                now_unix_ms: Some(wall.unix_ms()),
            },
            hello,
            instance: said.instance,
            attempt: said.attempt,
            now,
            at_unix_ms: wall.unix_ms(),
        }
    }

    // Old connections said something, or their probes' time is over.
    pub(super) fn answer_probes(&mut self, disk: &mut Disk, now: Instant, wall: Wall) {
        for link in self.links() {
            let Some(Link { state: State::Probing(probing), .. }) = self.links.get(&link) else { continue };
            let old = self.links.get(&probing.old);
            let answered = old.is_some_and(|old| old.end.arrivals() > probing.arrivals);
            if !answered && now < probing.until {
                continue;
            }
            let Some(entry) = self.links.get_mut(&link) else { continue };
            let State::Probing(probing) = std::mem::replace(&mut entry.state, State::Greeting) else {
                continue;
            };
            let Probing { edge_id, probe, said, hello, .. } = *probing;
            let knocking = self.knocking(link, &said, &hello, now, wall);
            match self.fleet.probed(knocking, &edge_id, probe, answered, link) {
                Ok(accept) => self.welcome(link, accept, disk, now, wall),
                Err(refusal) => self.reject(link, &said, refusal),
            }
        }
    }

    fn reject(&mut self, link: LinkId, said: &HelloIn, refusal: HelloRefusal) {
        let HelloRefusal { error, verdict } = refusal;
        if let Some(entry) = self.links.get_mut(&link) {
            entry.end.reject(&Rejection { error, verdict, yours: said.versions, mine: CONTROL_PROTOCOL });
            entry.state = State::Over;
        }
    }

    fn welcome(&mut self, link: LinkId, accept: Accept<LinkId>, disk: &mut Disk, now: Instant, wall: Wall) {
        let Accept { edge_id, protocol, generation, superseded, same_process, .. } = accept;
        self.accepted += 1;
        if generation.0 + BLOCK / 2 >= self.reserved {
            self.reserved = disk.reserve(GENERATION, BLOCK).map_or(self.reserved, |first| first + BLOCK - 1);
        }
        let due = self.fleet.edges.get(&edge_id).is_some_and(|known| known.row.is_due(wall.unix_ms()));
        let asked = self.witness.ask(&edge_id);
        let answer = EdgeHelloResponse {
            control_plane_id: "plane".to_owned(),
            renew_now: due,
            audit_witnessed: asked,
            ..EdgeHelloResponse::default()
        };
        let welcome = WelcomeOut {
            protocol,
            generation,
            intervals: Intervals { heartbeat: self.setup.heartbeat, ..Intervals::default() },
            reconnect_spread: Duration::from_millis(200),
            max_streams: limits::STREAMS_CONTROL,
            payload: answer.encode_to_vec(),
        };
        let Some(entry) = self.links.get_mut(&link) else { return };
        entry.state = State::Serving(Serving { edge_id: edge_id.clone(), generation, retiring: None });
        let heard = entry.end.welcome(now, &welcome);
        self.heard(link, heard, disk, now, wall);
        self.send_later(&edge_id, disk, now, wall);
        let Some(old) = superseded else { return };
        let Some(Link { state: State::Serving(serving), end, .. }) = self.links.get_mut(&old.handle) else {
            return;
        };
        if same_process {
            end.goaway(GoawayReason::Reconnect);
            serving.retiring = Some(now + REPLACED);
        } else {
            let heard = end.close(CloseReason::Superseded);
            self.heard(old.handle, heard, disk, now, wall);
        }
    }

    pub(super) fn retire(&mut self, link: LinkId, disk: &mut Disk, now: Instant, wall: Wall) {
        let Some(Link { state: State::Serving(serving), end, .. }) = self.links.get_mut(&link) else {
            return;
        };
        if serving.retiring.is_some_and(|until| until <= now || end.is_idle()) {
            let heard = end.close(CloseReason::Superseded);
            self.heard(link, heard, disk, now, wall);
        }
    }

    fn request(
        &mut self,
        link: LinkId,
        number: u32,
        payload: &[u8],
        disk: &mut Disk,
        now: Instant,
        wall: Wall,
    ) -> Result<Vec<u8>, Error> {
        let unknown = || Error::new(Code::Unimplemented, "UNKNOWN_METHOD", "not simulated");
        let serving = self.serving(link).ok_or_else(unknown)?;
        if number == method::EDGE_CREDENTIAL {
            if !self.fleet.slots.is_current(&serving.edge_id, serving.generation) {
                return Err(Error::new(Code::Conflict, "STALE_GENERATION", "it was replaced"));
            }
            return self.give(&serving.edge_id, payload, disk, wall);
        }
        if number != method::EDGE_HEARTBEAT {
            return Err(unknown());
        }
        let heartbeat = bounds::decode::<EdgeHeartbeat>(payload)?;
        if self.is("a view is kept over a restart") {
            let _ = disk.commit(&Commit::new().put_json(KEPT, serving.edge_id.to_string(), &payload), 0);
        }
        let (edge_id, generation) = (&serving.edge_id, serving.generation);
        match heartbeat.summary {
            Some(mut summary) => {
                let at = heartbeat.observed_at_unix_ms;
                self.falsify(&mut summary);
                let said = summary.clone();
                let taken = self.fleet.views.summary(now, edge_id, generation, at, summary)?;
                if taken == Taken::Yes {
                    self.witnessed(edge_id, &said, heartbeat.audit_witnessed.as_ref(), disk, wall);
                }
                self.repeat(edge_id, generation, at, said, now);
            }
            None => self.fleet.views.heard(now, edge_id, generation),
        }
        Ok(EdgeHeartbeatAck { received_at_unix_ms: wall.unix_ms(), reconnect_spread_ms: 200 }.encode_to_vec())
    }

    fn event(&mut self, link: LinkId, number: u32, payload: &[u8], now: Instant) -> Result<(), Error> {
        let unknown = || Error::new(Code::Unimplemented, "UNKNOWN_EVENT", "not simulated");
        let serving = self.serving(link).filter(|_| number == event::EDGE_NODE).ok_or_else(unknown)?;
        let told = bounds::decode::<EdgeNodeEvent>(payload)?;
        self.fleet.views.event(now, &serving.edge_id, serving.generation, told.sequence);
        Ok(())
    }

    // The mutation: what is shown was never said.
    fn falsify(&self, summary: &mut EdgeSummary) {
        if let Some(revision) = &mut summary.revision
            && self.is("a revision is shown that was never said")
        {
            revision.number += 1;
        }
    }

    // The mutations: what was said before is taken for what is said now.
    fn repeat(&mut self, edge_id: &EdgeId, generation: Generation, at: i64, said: EdgeSummary, now: Instant) {
        self.spoil.1 += 1;
        let first = self.spoil.0.get_or_insert((at, said)).clone();
        let views = &mut self.fleet.views;
        if self.setup.mutation == Some("an old summary is taken") && self.spoil.1.is_multiple_of(5) {
            views.disconnected(edge_id, generation);
            views.connected(now, edge_id, generation, 1, &EdgeHelloRequest::default());
            let _ = views.summary(now, edge_id, generation, first.0, first.1);
        }
    }

    // The mutation: what was said long ago is taken for news.
    pub(super) fn refresh(&mut self, now: Instant) {
        if !self.is("what is old is called new") {
            return;
        }
        let owned: Vec<_> =
            self.fleet.slots.owners().map(|(id, owner)| (id.clone(), owner.generation)).collect();
        for (edge_id, generation) in owned {
            let view = self.fleet.views.get(&edge_id).and_then(|view| view.summary.clone());
            let Some(summary) = view else { continue };
            self.fleet.views.disconnected(&edge_id, generation);
            self.fleet.views.connected(now, &edge_id, generation, 1, &EdgeHelloRequest::default());
            let (at, said) = (summary.observed_at_unix_ms, (*summary.said).clone());
            let _ = self.fleet.views.summary(now, &edge_id, generation, at, said);
        }
    }

    // The mutation: what an earlier process was told is taken for what the edge says now.
    pub(super) fn recall(&mut self, disk: &mut Disk, now: Instant) {
        for row in disk.load(KEPT).unwrap_or_default() {
            let said = row.json::<Vec<u8>>().ok().and_then(|payload| EdgeHeartbeat::decode(&*payload).ok());
            let (Some(said), Ok(edge_id)) = (said, EdgeId::parse(&row.key)) else { continue };
            let generation = Generation(0);
            self.fleet.views.connected(now, &edge_id, generation, 1, &EdgeHelloRequest::default());
            let (at, summary) = (said.observed_at_unix_ms, said.summary.unwrap_or_default());
            let _ = self.fleet.views.summary(now, &edge_id, generation, at, summary);
        }
    }
}
