//! The edges' port: judges who says hello, registers the connection, and takes what it says from then on.
//!
//! Invariant: registry check, slot and view change in one step under one lock; the order is register, WELCOME, event;
//! a connection's end counts only if it still owns the slot.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use prost::Message;
use umbel_contracts::CONTROL_PROTOCOL;
use umbel_contracts::bounds::decode;
use umbel_contracts::names::moves_text;
use umbel_contracts::objects::{CommandEventObject, EventObject};
use umbel_contracts::proto::control::{
    EdgeCommandEvent, EdgeHeartbeat, EdgeHeartbeatAck, EdgeHelloRequest, EdgeHelloResponse, EdgeNodeEvent,
};
use umbel_contracts::{event, method};
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::{EdgeId, Generation, KeyHash};
use umbel_wire::io::handle::BoxFuture;
use umbel_wire::{
    CloseReason, Connection, Door, GoawayReason, Handler, IncomingRequest, Intervals, Newcomer, Purpose,
    Rejection, UnderWay, WelcomeOut, attend, clock, limits,
};

use super::plane::{Link, Plane};
use super::{enrollment, relay, rotation, settle};
use crate::core::edges::HelloFacts;
use crate::core::fleet::{Accept, Entered, Knocking};
use crate::core::views::{Taken, clip};
use crate::core::witness::{answer, place};

/// How long a second newcomer's question to the first connection may take.
const PROBE: Duration = Duration::from_secs(1);
/// How long a connection that a newer one of the same process replaced may finish what it carries.
const REPLACED: Duration = Duration::from_secs(30);

/// The door of the edges' port.
pub(crate) struct EdgeDoor(pub(crate) Arc<Plane>);

impl Door for EdgeDoor {
    fn knows(&self, key: &KeyHash) -> bool {
        self.0.fleet().edges.knows(key)
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        let plane = Arc::clone(&self.0);
        Box::pin(async move {
            match newcomer.hello().purpose {
                Purpose::Hello => hello(plane, newcomer).await,
                Purpose::Enroll => enrollment::answer(plane, newcomer).await,
            }
        })
    }
}

/// First redial after a loss: as long as it takes this many peers to come back without a crowd.
pub(super) fn reconnect_spread(peers: usize) -> Duration {
    let spread = Duration::from_millis(5).saturating_mul(u32::try_from(peers).unwrap_or(u32::MAX));
    spread.max(Duration::from_millis(200))
}

pub(super) fn rejection(error: Error, newcomer: &Newcomer) -> Rejection {
    Rejection { error, verdict: None, yours: newcomer.hello().versions, mine: CONTROL_PROTOCOL }
}

async fn hello(plane: Arc<Plane>, newcomer: Newcomer) {
    let hello: EdgeHelloRequest = match decode(&newcomer.hello().payload) {
        Ok(hello) => hello,
        Err(error) => {
            let rejection = rejection(error, &newcomer);
            return newcomer.reject(rejection);
        }
    };
    if let Err(error) = rotation::shown(&plane, &newcomer, &hello).await {
        let rejection = rejection(error, &newcomer);
        return newcomer.reject(rejection);
    }
    let connection = newcomer.connection();
    let entered = plane.fleet().knock(knocking(&plane, &newcomer, &hello), connection);
    let judged = match entered {
        Ok(Entered::Yes(entered)) => Ok(entered),
        Ok(Entered::Probe(edge_id, probe, old)) => {
            // Without the lock: others may knock and be told to come back in a second.
            let answered = old.handle.probe(PROBE).await;
            let (connection, knocking) = (newcomer.connection(), knocking(&plane, &newcomer, &hello));
            plane.fleet().probed(knocking, &edge_id, probe, answered, connection)
        }
        Err(refusal) => Err(refusal),
    };
    match judged {
        Ok(entered) => welcome(&plane, newcomer, entered),
        Err(refusal) => {
            plane.metrics.refused("hello", &refusal.error);
            if let Some(repeats) = plane.refusal_is_news(newcomer.address(), &refusal.error) {
                tracing::warn!(address = %newcomer.address(), edge = %clip(&hello.edge_id), code = refusal.error.code.name(),
                    reason = %refusal.error.reason, repeats, "an edge's hello was refused");
            }
            let mut rejection = rejection(refusal.error, &newcomer);
            rejection.verdict = refusal.verdict;
            newcomer.reject(rejection);
        }
    }
}

fn knocking<'a>(plane: &Plane, newcomer: &Newcomer, hello: &'a EdgeHelloRequest) -> Knocking<'a> {
    let said = newcomer.hello();
    Knocking {
        facts: facts(plane, newcomer, hello),
        hello,
        instance: said.instance,
        attempt: said.attempt,
        now: clock::now(),
        at_unix_ms: plane.clock.now().unix_ms(),
    }
}

fn facts<'a>(plane: &Plane, newcomer: &Newcomer, hello: &'a EdgeHelloRequest) -> HelloFacts<'a> {
    HelloFacts {
        edge_id: &hello.edge_id,
        certificate: newcomer.certificate().map(|shown| (shown.key_hash, shown.not_after.unix_ms())),
        versions: newcomer.hello().versions,
        now_unix_ms: plane.clock.plausible().map(clock::Wall::unix_ms),
    }
}

fn welcome(plane: &Arc<Plane>, newcomer: Newcomer, accept: Accept<Connection>) {
    let Accept { edge_id, protocol, generation, superseded, same_process, peers } = accept;
    let response = EdgeHelloResponse {
        control_plane_id: plane.settings.name.clone(),
        fleet_name: plane.settings.fleet_name.clone(),
        renew_now: rotation::is_due(plane, &edge_id),
        audit_witnessed: plane.witness().ask(&edge_id),
    };
    let welcome = WelcomeOut {
        protocol,
        generation,
        intervals: Intervals { heartbeat: plane.settings.heartbeat, ..Intervals::default() },
        reconnect_spread: reconnect_spread(peers),
        max_streams: limits::STREAMS_CONTROL,
        payload: response.encode_to_vec(),
    };
    let handler = EdgeHandler {
        plane: Arc::clone(plane),
        edge_id: edge_id.clone(),
        generation,
        asking: Arc::default(),
    };
    tracing::info!(edge = %edge_id, %generation, address = %newcomer.address(), "edge connected");
    let connection = newcomer.accept(welcome, Arc::new(handler));
    plane.tell(&edge_id, "edge_connected", Some(generation), "The edge's connection is up.");
    if let Some(old) = superseded {
        retire(old.handle, same_process);
    }
    let settling =
        settle::settle(Arc::clone(plane), Link { edge_id, generation, connection: connection.clone() });
    attend(&connection, settling);
}

/// Ends a connection that no longer owns its slot: at once if it was found dead, else when it has finished.
fn retire(old: Connection, may_finish: bool) {
    if !may_finish {
        return old.close(CloseReason::Superseded);
    }
    old.goaway(GoawayReason::Reconnect, "A newer connection of this process took over.", None);
    tokio::spawn(async move {
        // Whether it drained in time or not, it ends now.
        let _ = tokio::time::timeout(REPLACED, old.drained()).await;
        old.close(CloseReason::Superseded);
    });
}

/// What an accepted edge says.
struct EdgeHandler {
    plane: Arc<Plane>,
    edge_id: EdgeId,
    generation: Generation,
    /// It asks for a certificate now.
    asking: Arc<AtomicBool>,
}

impl EdgeHandler {
    fn heartbeat(&self, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let heartbeat: EdgeHeartbeat = decode(payload)?;
        let now = clock::now();
        let mut fleet = self.plane.fleet();
        match heartbeat.summary {
            Some(summary) => {
                let at = heartbeat.observed_at_unix_ms;
                let place = place(&summary);
                let answer = heartbeat.audit_witnessed.as_ref().and_then(answer);
                let taken = fleet.views.summary(now, &self.edge_id, self.generation, at, summary)?;
                drop(fleet);
                if let (Taken::Yes, Some(place)) = (taken, place) {
                    self.plane.witnessed(&self.edge_id, self.generation, place, answer);
                }
                fleet = self.plane.fleet();
            }
            None => fleet.views.heard(now, &self.edge_id, self.generation),
        }
        let spread = reconnect_spread(fleet.slots.owners().count());
        drop(fleet);
        let ack = EdgeHeartbeatAck {
            received_at_unix_ms: self.plane.clock.now().unix_ms(),
            reconnect_spread_ms: u32::try_from(spread.as_millis()).unwrap_or(u32::MAX),
        };
        Ok(ack.encode_to_vec())
    }

    fn credential(&self, request: IncomingRequest) {
        // One at a time: each is a signature and a write.
        let Some(asking) = UnderWay::take(&self.asking) else {
            let message = "This edge's last request for a certificate is not answered yet.";
            let error = Error::new(Code::ResourceExhausted, "ASKING_ALREADY", message);
            return request.respond(Err(error.with_retry_after(Duration::from_secs(1))));
        };
        let (plane, edge_id, generation) = (Arc::clone(&self.plane), self.edge_id.clone(), self.generation);
        tokio::spawn(async move {
            let answer = rotation::give(&plane, &edge_id, generation, &request.payload).await;
            drop(asking);
            request.respond(answer);
        });
    }

    fn node_event(&self, payload: &[u8]) -> Result<(), Error> {
        let told: EdgeNodeEvent = decode(payload)?;
        let lost =
            self.plane.fleet().views.event(clock::now(), &self.edge_id, self.generation, told.sequence);
        let Some(lost) = lost else {
            return Ok(());
        };
        if lost > 0 {
            self.plane.metrics.events_lost.inc_by(lost);
            self.plane.tell(
                &self.edge_id,
                "events_lost",
                Some(self.generation),
                format!("{lost} events of the edge were lost on their way."),
            );
        }
        let mut event = EventObject::from_proto(told);
        // An edge speaks for itself only, and its words are short.
        event.edge_id = self.edge_id.to_string();
        event.kind = clip(&event.kind);
        event.message = clip_long(&event.message);
        event.node_id = event.node_id.map(|id| clip(&id));
        event.provider_id = event.provider_id.map(|id| clip(&id));
        self.plane.publish(event);
        Ok(())
    }

    fn command_event(&self, payload: &[u8]) -> Result<(), Error> {
        let told: EdgeCommandEvent = decode(payload)?;
        let key = (self.edge_id.clone(), told.command_id.clone());
        let Some(step) = CommandEventObject::from_proto(told) else {
            return Ok(());
        };
        let now = clock::now();
        self.plane.fleet().views.heard(now, &self.edge_id, self.generation);
        let ended = self.plane.commands().step(now, &key, step);
        self.plane.commands_moved();
        if let Some(ended) = ended {
            let plane = Arc::clone(&self.plane);
            tokio::spawn(async move { relay::record_end(&plane, ended).await });
        }
        Ok(())
    }
}

/// A sentence of an edge, for the ring of events.
fn clip_long(text: &str) -> String {
    text.chars().filter(|letter| !moves_text(*letter)).take(256).collect()
}

impl Handler for EdgeHandler {
    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        if request.method == method::EDGE_CREDENTIAL {
            return self.credential(request);
        }
        let answer = match request.method {
            method::EDGE_HEARTBEAT => self.heartbeat(&request.payload),
            _ => Err(Error::new(
                Code::Unimplemented,
                "UNKNOWN_METHOD",
                "This control plane does not know the method; it may be older than the edge.",
            )),
        };
        request.respond(answer);
    }

    fn on_event(
        &self,
        _connection: &Connection,
        event: u32,
        _key: &str,
        payload: &[u8],
    ) -> Result<(), Error> {
        match event {
            event::EDGE_NODE => self.node_event(payload),
            event::EDGE_COMMAND => self.command_event(payload),
            _ => Err(Error::new(
                Code::Unimplemented,
                "UNKNOWN_EVENT",
                "This control plane does not know the event.",
            )),
        }
    }

    fn on_closed(&self, _connection: &Connection, reason: &CloseReason) {
        let cleared = self.plane.fleet().closed(&self.edge_id, self.generation);
        // The close of a connection that a newer one replaced is nobody's disconnect.
        if cleared {
            tracing::info!(edge = %self.edge_id, generation = %self.generation, "edge disconnected: {reason}");
            let message = format!("The edge's connection ended ({}).", reason.name());
            self.plane.tell(&self.edge_id, "edge_disconnected", Some(self.generation), message);
        }
    }
}
