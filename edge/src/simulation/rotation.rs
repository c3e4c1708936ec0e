//! Credentials are replaced in two phases, as `shell/nodes/rotation.rs` does it, in steps.
//!
//! Leaves what each phase does to a row to `core/rotation`; here are only the commits between.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::node::{NodeCredentialRequest, NodeCredentialResponse, NodeRotate};
use umbel_contracts::{bounds, method};
use umbel_store::{Commit, CommitError, Position};
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::HelloIn;
use umbel_wire::simulation::Asked;
use umbel_wire::{Code, Error, KeyHash, NodeId};

use super::disk::{Giving, Showing, Then};
use super::enrollment::credential;
use super::{Edge, LinkId, NODES};
use crate::core::authority::AuthorityRow;
use crate::core::registry::node::NodeRow;
use crate::core::registry::reports;
use crate::core::rotation;

const AGAIN: Duration = Duration::from_secs(120);
const TIMEOUT: Duration = Duration::from_secs(10);
const TRIES: u32 = 3;

fn contended() -> Error {
    Error::new(Code::Unavailable, "CHANGED_MEANWHILE", "the node changes all the time; try again")
}

fn unavailable() -> Error {
    Error::new(Code::Unavailable, "STORE_READ_ONLY", "the edge cannot write its store now")
}

fn authority() -> AuthorityRow {
    AuthorityRow::first(String::new())
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
        let (id, generation) = (serving.id, serving.generation);
        let current = self.registry.slots.is_current(&id, generation);
        let node = self.registry.node(&id).filter(|_| current).ok_or_else(reports::stale_error)?;
        let holder = self.registry.by_key(&key).map(|holder| holder.id);
        rotation::may_have(node, &key, holder)?;
        let cause = rotation::wanted(&node.row, &authority(), wall);
        let (row, also) = rotation::give(node, credential(key, wall), cause, holder.is_some());
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

    /// Whether a new certificate is wanted of this node.
    pub(super) fn rotates(&self, id: NodeId, wall: Wall) -> bool {
        self.registry.node(&id).is_some_and(|node| rotation::wanted(&node.row, &authority(), wall).is_some())
    }

    /// Asks connected nodes for new certificates where they are wanted.
    pub(super) fn ask_rotations(&mut self, now: Instant, wall: Wall) {
        for link in self.links() {
            let Some(serving) = self.serving(link) else { continue };
            let fresh = serving.asked_at.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN);
            let current = self.registry.slots.is_current(&serving.id, serving.generation);
            if !fresh || !current || !self.rotates(serving.id, wall) {
                continue;
            }
            let message = NodeRotate { cause: "operator".to_owned() }.encode_to_vec();
            self.asked(link, now);
            if let Some(entry) = self.links.get_mut(&link) {
                // One that cannot be asked now is asked again.
                drop(entry.end.request(now, method::NODE_ROTATE, message, TIMEOUT));
            }
        }
    }
}

fn stored(id: NodeId, position: Position, row: &NodeRow) -> Commit {
    let key = id.to_string();
    Commit::new().require_at(NODES, key.clone(), position).put_json(NODES, key, row)
}
