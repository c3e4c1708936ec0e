//! Who knocks, who owns an edge's slot, and what the end of a connection changes: the steps that are one.
//!
//! Owns registry, views and slots together, so that a credential is checked and a connection registered in one step
//! that a revocation cannot slip into. Leaves carrying bytes, and waiting for a probe, to the caller. Invariant: a
//! connection's end counts only if it still owns the slot; slot and view name the same connection.

use std::time::Instant;

use umbel_contracts::proto::control::EdgeHelloRequest;
use umbel_store::Position;
use umbel_wire::Attempt;
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::{EdgeId, Generation, InstanceId};
use umbel_wire::slots::{Accepted, Knock, Owner, Probe, Refusal, Slots};

use super::edges::{EdgeRow, Edges, HelloFacts, HelloRefusal};
use super::views::Views;

/// Registry, views and connections.
pub(crate) struct Fleet<H> {
    pub(crate) edges: Edges,
    pub(crate) views: Views,
    pub(crate) slots: Slots<EdgeId, H>,
}

/// A newcomer, by everything that it shows.
#[derive(Clone, Copy)]
pub(crate) struct Knocking<'a> {
    pub(crate) facts: HelloFacts<'a>,
    pub(crate) hello: &'a EdgeHelloRequest,
    pub(crate) instance: InstanceId,
    pub(crate) attempt: Attempt,
    pub(crate) now: Instant,
    pub(crate) at_unix_ms: i64,
}

/// It is registered as the owner.
pub(crate) struct Accept<H> {
    pub(crate) edge_id: EdgeId,
    pub(crate) protocol: u32,
    pub(crate) generation: Generation,
    pub(crate) superseded: Option<Owner<H>>,
    /// The one before was alive as far as anyone knew: same process, which dialed anew.
    pub(crate) same_process: bool,
    /// How many are connected now.
    pub(crate) peers: usize,
}

/// What a hello comes to, if it is not refused.
pub(crate) enum Entered<H> {
    /// It owns the slot.
    Yes(Accept<H>),
    /// The present owner is to be asked for a sign of life, then [`Fleet::probed`].
    Probe(EdgeId, Probe, Owner<H>),
}

impl<H: Clone> Fleet<H> {
    /// Judges and registers in one step.
    pub(crate) fn knock(&mut self, newcomer: Knocking<'_>, handle: H) -> Result<Entered<H>, HelloRefusal> {
        let (edge_id, protocol) = self.edges.judge(newcomer.facts)?;
        match self.slots.knock(newcomer.now, &edge_id, newcomer.instance, newcomer.attempt, handle) {
            Knock::Accept(accepted) => {
                Ok(Entered::Yes(self.register(newcomer, edge_id, protocol, accepted, true)))
            }
            Knock::Probe { probe, old } => Ok(Entered::Probe(edge_id, probe, old)),
            Knock::Refuse(refusal) => Err(self.refused(newcomer, &edge_id, refusal)),
        }
    }

    /// The same after the probe: the credential may have been revoked meanwhile.
    pub(crate) fn probed(
        &mut self,
        newcomer: Knocking<'_>,
        edge_id: &EdgeId,
        probe: Probe,
        answered: bool,
        handle: H,
    ) -> Result<Accept<H>, HelloRefusal> {
        let protocol = match self.edges.judge(newcomer.facts) {
            Ok((_, protocol)) => protocol,
            Err(refusal) => {
                self.slots.abandon(edge_id, probe);
                return Err(refusal);
            }
        };
        match self.slots.probed(edge_id, probe, answered, newcomer.instance, newcomer.attempt, handle) {
            Ok(accepted) => Ok(self.register(newcomer, edge_id.clone(), protocol, accepted, false)),
            Err(refusal) => Err(self.refused(newcomer, edge_id, refusal)),
        }
    }

    fn register(
        &mut self,
        newcomer: Knocking<'_>,
        edge_id: EdgeId,
        protocol: u32,
        accepted: Accepted<H>,
        same_process: bool,
    ) -> Accept<H> {
        let Accepted { generation, superseded } = accepted;
        self.views.connected(newcomer.now, &edge_id, generation, protocol, newcomer.hello);
        let peers = self.slots.owners().count();
        Accept { edge_id, protocol, generation, superseded, same_process, peers }
    }

    fn refused(&mut self, newcomer: Knocking<'_>, edge_id: &EdgeId, refusal: Refusal) -> HelloRefusal {
        if refusal == Refusal::Duplicate {
            self.views.duplicate(newcomer.now, edge_id, newcomer.at_unix_ms);
        }
        HelloRefusal { error: refusal.error(), verdict: None }
    }

    /// A connection ended. True if it was the edge's; the close of one that a newer one replaced is nobody's
    /// disconnect.
    pub(crate) fn closed(&mut self, edge_id: &EdgeId, generation: Generation) -> bool {
        self.slots.clear(edge_id, generation);
        self.views.disconnected(edge_id, generation)
    }

    /// A credential was revoked: whose connection is to be closed.
    pub(crate) fn revoked(&mut self, edge_id: &EdgeId, row: EdgeRow, position: Position) -> Option<Owner<H>> {
        self.edges.apply(row, position);
        let evicted = self.slots.evict(edge_id);
        if let Some(owner) = &evicted {
            self.views.disconnected(edge_id, owner.generation);
        }
        evicted
    }

    /// The connection of an edge that a caller named. NOT_FOUND, or UNAVAILABLE at once.
    pub(crate) fn link(
        &self,
        edge_id: &str,
        is_open: impl Fn(&H) -> bool,
    ) -> Result<(EdgeId, Generation, H), Error> {
        let (edge_id, _) = self.edges.find(edge_id)?;
        match self.slots.owner(&edge_id).filter(|owner| is_open(&owner.handle)) {
            Some(owner) => Ok((edge_id, owner.generation, owner.handle.clone())),
            None => Err(not_connected(&edge_id)),
        }
    }
}

/// The edge's own words are not to be had now.
pub(crate) fn not_connected(edge_id: &EdgeId) -> Error {
    Error::new(
        Code::Unavailable,
        "EDGE_NOT_CONNECTED",
        format!(
            "Edge `{edge_id}` is not connected; nothing was sent, and nothing is kept for later. Its own host can \
             still be asked: `umbel ctl --socket` there."
        ),
    )
}
