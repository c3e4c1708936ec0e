//! What an accepted connection of a node says, in the name of its generation: requests, events, its leaving and its end.
//!
//! Owns how each message is read and bounded, in which order it takes effect, and what an older connection is told. Leaves
//! answering, closing and the leases themselves to the shell. Invariant: once another generation has taken over, nothing
//! that is said here counts and the end changes nothing (row 8).

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{
    NodeArtifacts, NodeDeclared, NodeEngines, NodeHeartbeat, NodeHeartbeatAck, NodeInventory, NodeLeases,
    NodeLeasesAck, NodeTelemetry,
};
use umbel_contracts::{bounds, event, method};
use umbel_wire::clock::Wall;
use umbel_wire::{CloseReason, Code, Error, Generation, Goaway, GoawayReason, NodeId};

use super::registry::{Registry, StaleGeneration, reports};

/// Most leases that a node may say it carries: its streams, twice over.
const LEASES_MAX: usize = 2_048;

/// A connection of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    pub(crate) id: NodeId,
    pub(crate) generation: Generation,
}

/// A message, read and within its bounds.
#[derive(Debug)]
pub(crate) enum Said {
    Heartbeat(NodeHeartbeat),
    /// The leases that it carries of older connections.
    Leases(Vec<u64>),
    Inventory(NodeInventory),
    Telemetry(NodeTelemetry),
    Engines(NodeEngines),
    Declared(NodeDeclared),
    Artifacts(NodeArtifacts),
}

/// Why something that was said was not taken.
#[derive(Debug)]
pub(crate) enum NotTaken {
    Refused(Error),
    /// It came over an older connection.
    Stale,
}

impl From<Error> for NotTaken {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl From<StaleGeneration> for NotTaken {
    fn from(_: StaleGeneration) -> Self {
        Self::Stale
    }
}

/// When something was said, and what its answer says of the site.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) wall: Wall,
    /// Over how long nodes spread their next dials.
    pub(crate) spread: Duration,
}

impl Said {
    /// Reads a request.
    ///
    /// # Errors
    /// UNKNOWN_METHOD; what does not decode, or is beyond its bounds.
    pub(crate) fn request(number: u32, payload: &[u8]) -> Result<Self, Error> {
        match number {
            method::NODE_HEARTBEAT => {
                let heartbeat = bounds::decode::<NodeHeartbeat>(payload)?;
                at_most(heartbeat.engines.len(), reports::ENGINES_MAX, "TOO_MANY_ENGINES", || {
                    format!("a node has at most {} engines", reports::ENGINES_MAX)
                })?;
                Ok(Self::Heartbeat(heartbeat))
            }
            method::NODE_LEASES => {
                let leases = bounds::decode::<NodeLeases>(payload)?.lease_ids;
                at_most(leases.len(), LEASES_MAX, "TOO_MANY_LEASES", || {
                    format!("a node carries at most {LEASES_MAX} leases")
                })?;
                Ok(Self::Leases(leases))
            }
            _ => Err(Error::new(
                Code::Unimplemented,
                "UNKNOWN_METHOD",
                "this edge does not know the method; it may be older than the agent",
            )),
        }
    }

    /// Reads an event.
    ///
    /// # Errors
    /// UNKNOWN_EVENT, or what does not decode.
    pub(crate) fn event(number: u32, payload: &[u8]) -> Result<Self, Error> {
        match number {
            event::NODE_INVENTORY => bounds::decode(payload).map(Self::Inventory),
            event::NODE_TELEMETRY => bounds::decode(payload).map(Self::Telemetry),
            event::NODE_ENGINES => bounds::decode(payload).map(Self::Engines),
            event::NODE_DECLARED => bounds::decode(payload).map(Self::Declared),
            event::NODE_ARTIFACTS => bounds::decode(payload).map(Self::Artifacts),
            _ => Err(Error::new(Code::Unimplemented, "UNKNOWN_EVENT", "this edge does not know the event")),
        }
    }
}

fn at_most(
    count: usize,
    most: usize,
    reason: &'static str,
    says: impl FnOnce() -> String,
) -> Result<(), Error> {
    if count <= most { Ok(()) } else { Err(Error::new(Code::InvalidArgument, reason, says())) }
}

impl Session {
    /// Takes up what was said; the answer's bytes, where it has any. Leases are for [`named`].
    pub(crate) fn says<H: Clone>(
        self,
        registry: &mut Registry<H>,
        said: Said,
        moment: Moment,
    ) -> Result<Vec<u8>, NotTaken> {
        let Self { id, generation } = self;
        let (now, wall) = (moment.now, moment.wall.unix_ms());
        match said {
            Said::Heartbeat(mut heartbeat) => {
                let settings = heartbeat.settings.take();
                registry.heartbeat(id, generation, heartbeat, now, wall)?;
                if let Some(state) = settings {
                    registry.settings_said(id, generation, state)?;
                }
                let spread = u32::try_from(moment.spread.as_millis()).unwrap_or(u32::MAX);
                let ack = NodeHeartbeatAck {
                    received_at_unix_ms: wall,
                    desired_settings_version: registry.desired_settings(&id).version,
                    reconnect_spread_ms: spread,
                };
                return Ok(ack.encode_to_vec());
            }
            Said::Inventory(report) => registry.inventory(id, generation, report, now, wall)?,
            Said::Telemetry(report) => registry.telemetry(id, generation, report, now, wall)?,
            Said::Engines(report) => registry.engines(id, generation, report)?,
            Said::Declared(declared) => registry.redeclared(id, generation, declared, wall)?,
            Said::Artifacts(report) => registry.artifacts(id, generation, report)?,
            Said::Leases(_) => {}
        }
        Ok(Vec::new())
    }

    /// What an older connection is told that spoke. It may finish its streams where it was replaced; where nobody owns the
    /// node it is closed, so that the node dials anew: a heartbeat taken from it would keep the node visible nowhere
    /// (row 4).
    pub(crate) fn stale<H: Clone>(self, registry: &Registry<H>) -> (Error, Option<CloseReason>) {
        let replaced = registry.slots.owner(&self.id).is_some();
        (reports::stale_error(), (!replaced).then_some(CloseReason::Superseded))
    }

    /// The node drains this connection, or closes it.
    pub(crate) fn drains<H: Clone>(self, registry: &mut Registry<H>, goaway: &Goaway) {
        if !goaway.closing && goaway.reason == GoawayReason::Shutdown.name() {
            registry.leaving(self.id, self.generation);
        }
    }
}

/// What the naming of leases touches, one lock after the other.
pub(crate) trait Naming {
    /// The connection owns its node.
    fn is_current(&mut self) -> bool;
    /// The leases are named from now on. Those that the node has to end first.
    fn carried(&mut self, named: &[u64]) -> Vec<u64>;
    /// The connection is complete: its node may be given work.
    fn complete(&mut self) -> Result<(), StaleGeneration>;
}

/// A node names what it carries of older connections. The slots of leases that it must end first are not free yet: it names
/// them again when they are gone.
pub(crate) fn named(site: &mut impl Naming, leases: &[u64]) -> Result<Vec<u8>, NotTaken> {
    if !site.is_current() {
        return Err(NotTaken::Stale);
    }
    let cancel_lease_ids = site.carried(leases);
    if cancel_lease_ids.is_empty() {
        site.complete()?;
    }
    Ok(NodeLeasesAck { cancel_lease_ids }.encode_to_vec())
}
