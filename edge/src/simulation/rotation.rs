//! Credentials are replaced in two phases, as `shell/nodes/rotation.rs` does it, in steps.
//!
//! Leaves what each phase does to a row to `core/rotation`; here are only the commits between.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{
    NodeCredentialRequest, NodeCredentialResponse, NodeRotate, NodeTrust, NodeTrustAck,
};
use umbel_contracts::{bounds, method};
use umbel_store::{Commit, CommitError, Position};
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::HelloIn;
use umbel_wire::simulation::Asked;
use umbel_wire::{Code, Error, KeyHash, NodeId};

use super::disk::{Giving, Showing, Then};
use super::{Edge, LinkId, NODES};
use crate::core::authority::Phase;
use crate::core::registry::node::NodeRow;
use crate::core::registry::reports;
use crate::core::rotation::{self, Wish};
use crate::core::session::Session;

const TIMEOUT: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

fn contended() -> Error {
    Error::new(Code::Unavailable, "CHANGED_MEANWHILE", "the node changes all the time; try again")
}

fn unavailable() -> Error {
    Error::new(Code::Unavailable, "STORE_READ_ONLY", "the edge cannot write its store now")
}

impl Edge {
    /// A hello shows `key`. `None`: it is the active one, go on. `Some(None)`: a commit is awaited.
    pub(super) fn shows(
        &mut self,
        link: LinkId,
        said: &HelloIn,
        id: NodeId,
        key: KeyHash,
        tries: u32,
        wall: Wall,
    ) -> Option<Option<Error>> {
        let node = self.registry.node(&id)?;
        let (row, also) = rotation::shown(node, &key, wall)?;
        if tries >= TRIES {
            return Some(Some(contended()));
        }
        let commit = stored(id, node.position, &row).and(also);
        let showing = Showing { link, said: said.clone(), id, row, tries };
        self.disk.propose(commit, Then::Shown(Box::new(showing)));
        Some(None)
    }

    pub(super) fn promoted(
        &mut self,
        showing: Showing,
        result: Result<Position, CommitError>,
        now: Instant,
        wall: Wall,
    ) {
        let Showing { link, said, id, row, tries } = showing;
        match result {
            Ok(position) => {
                let mut row = row;
                if self.is("a retired key still opens") {
                    row.pending = self.registry.node(&id).map(|node| node.row.credential.clone());
                }
                self.change(now, |registry| registry.apply(id, row, position));
                self.meet(link, said, tries + 1, now, wall);
            }
            Err(CommitError::Conflict(_)) => self.meet(link, said, tries + 1, now, wall),
            Err(_) => self.refuse(link, unavailable()),
        }
    }

    pub(super) fn credential_wanted(&mut self, link: LinkId, asked: Asked, payload: &[u8], wall: Wall) {
        let request = bounds::decode::<NodeCredentialRequest>(payload);
        let key = request.ok().and_then(|request| request.signing_request.try_into().ok());
        let answer = match key {
            Some(key) => self.give(link, asked, KeyHash(key), 0, wall),
            None => Err(Error::new(Code::InvalidArgument, "SIGNING_REQUEST", "it is not usable")),
        };
        if let (Err(error), Some(entry)) = (answer, self.links.get_mut(&link)) {
            entry.end.respond(asked, Err(error));
        }
    }

    fn give(
        &mut self,
        link: LinkId,
        asked: Asked,
        key: KeyHash,
        tries: u32,
        wall: Wall,
    ) -> Result<(), Error> {
        let serving = self.serving(link).ok_or_else(reports::stale_error)?;
        let (id, generation) = (serving.own.id, serving.own.generation);
        let current = self.registry.slots.is_current(&id, generation);
        let node = self.registry.node(&id).filter(|_| current).ok_or_else(reports::stale_error)?;
        let holder = self.registry.by_key(&key).map(|holder| holder.id);
        rotation::may_have(node, &key, holder)?;
        let cause = rotation::wanted(&node.row, &self.held.row, wall);
        let (row, also) = rotation::give(node, self.credential(key, wall), cause, holder.is_some());
        let commit = stored(id, node.position, &row).and(also);
        let giving = Giving { link, asked, key, id, row, tries };
        self.disk.propose(commit, Then::Given(Box::new(giving)));
        Ok(())
    }

    pub(super) fn given(
        &mut self,
        giving: Giving,
        result: Result<Position, CommitError>,
        now: Instant,
        wall: Wall,
    ) {
        let Giving { link, asked, key, id, row, tries } = giving;
        let answer = match result {
            Ok(position) => {
                let not_after_unix_ms = row.pending.as_ref().map_or(0, |given| given.not_after_unix_ms);
                self.change(now, |registry| registry.apply(id, row, position));
                let certificate_chain = vec![key.0.to_vec()];
                let response = NodeCredentialResponse {
                    certificate_chain,
                    not_after_unix_ms,
                    ca_certificates: Vec::new(),
                };
                Ok(response.encode_to_vec())
            }
            Err(CommitError::Conflict(_)) if tries < TRIES => {
                match self.give(link, asked, key, tries + 1, wall) {
                    Ok(()) => return,
                    Err(error) => Err(error),
                }
            }
            Err(CommitError::Conflict(_)) => Err(contended()),
            Err(_) => Err(unavailable()),
        };
        if let Some(entry) = self.links.get_mut(&link) {
            entry.end.respond(asked, answer);
        }
    }

    /// Asks connected nodes for new certificates, and tells them whom to trust, where that is wanted.
    pub(super) fn ask_nodes(&mut self, now: Instant, wall: Wall) {
        self.asked.look(&self.held.row, now);
        for link in self.links() {
            let Some(Session { id, generation }) = self.serving(link).map(|serving| serving.own) else {
                continue;
            };
            let node = self.registry.node(&id).filter(|_| self.registry.slots.is_current(&id, generation));
            let wishes: Vec<_> =
                node.into_iter().flat_map(|node| rotation::wishes(node, &self.held.row, wall)).collect();
            for wish in wishes {
                let late = self.is("nodes are not told that a change is over");
                let untold = late && wish == Wish::Trust && self.held.row.phase() == Phase::Settled;
                if self.asked.may(id, generation, wish) && !untold {
                    self.asked.note(id, generation, wish, now);
                    if wish == Wish::Trust {
                        self.change(now, |registry| registry.given_trust(id, generation));
                    }
                    self.ask_node(link, wish, now);
                }
            }
        }
    }

    fn ask_node(&mut self, link: LinkId, wish: Wish, now: Instant) {
        let (number, message) = match wish {
            Wish::Rotate(cause) => {
                (method::NODE_ROTATE, NodeRotate { cause: cause.name().to_owned() }.encode_to_vec())
            }
            Wish::Trust => (method::NODE_TRUST, NodeTrust { ca_certificates: self.bundle() }.encode_to_vec()),
        };
        let Some(entry) = self.links.get_mut(&link) else { return };
        // One that cannot be asked now is asked again.
        if let (Ok(call), Wish::Trust) = (entry.end.request(now, number, message, TIMEOUT), wish) {
            self.told.insert(link, call);
        }
    }

    /// A node says whom it trusts now.
    pub(super) fn trust_answered(&mut self, link: LinkId, answer: Result<bytes::Bytes, Error>, now: Instant) {
        self.told.remove(&link);
        let ack = answer.and_then(|bytes| bounds::decode::<NodeTrustAck>(&bytes));
        if let (Some(serving), Ok(ack)) = (self.serving(link), ack) {
            let (own, trusts) = (serving.own, ack.trusted_ca_sha256);
            self.change(now, |registry| registry.trusts(own.id, own.generation, &trusts));
        }
    }
}

fn stored(id: NodeId, position: Position, row: &NodeRow) -> Commit {
    let key = id.to_string();
    Commit::new().require_at(NODES, key.clone(), position).put_json(NODES, key, row)
}
