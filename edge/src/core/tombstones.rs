//! Identities and keys that open nothing any more, kept apart from the nodes' rows.
//!
//! Owns the stored tombstone, what of a row makes one, and what refuses those whose row was lost. Leaves known nodes
//! to their rows. Invariant: an identity that was decommissioned and a key that was ended stay so, also when the
//! node's row is damaged; a tombstone is written in the transaction that ends what it stands for.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use umbel_wire::{Code, Error, KeyHash, NodeId};

use super::registry::identity::{Lifecycle, NodeRow, Retired, Retirement};
use super::registry::key_hash;

/// Table of tombstones, by node id.
pub(crate) const TOMBSTONES: &str = "tombstones";

/// What of a node is over for ever.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tombstone {
    /// Keys that open nothing any more: SHA-256 of the public key, in lower-case hexadecimal.
    pub(crate) keys: BTreeSet<String>,
    /// When the last of them was ended.
    pub(crate) at_unix_ms: i64,
    /// The identity itself is over, not only these keys.
    #[serde(default)]
    pub(crate) decommissioned: bool,
}

impl Tombstone {
    /// What of this row is over; `None`: nothing.
    pub(crate) fn of(row: &NodeRow) -> Option<Self> {
        let decommissioned = row.lifecycle == Lifecycle::Decommissioned;
        let revoked = row.credential.revoked_at_unix_ms;
        let mut keys: BTreeSet<_> = row.retired.iter().map(|one| one.key_sha256.clone()).collect();
        if decommissioned || revoked.is_some() {
            keys.insert(row.credential.key_sha256.clone());
            keys.extend(row.pending.iter().map(|one| one.key_sha256.clone()));
        }
        let decided = row.decommissioned.as_ref().map(|decision| decision.at_unix_ms);
        let retired = row.retired.iter().map(|one| one.at_unix_ms).max();
        let at_unix_ms = decided.or(revoked).or(retired).unwrap_or(0);
        (decommissioned || !keys.is_empty()).then_some(Self { keys, at_unix_ms, decommissioned })
    }

    /// What a change of a row ends; `None`: nothing that was not over before.
    pub(crate) fn made_by(old: &NodeRow, new: &NodeRow) -> Option<Self> {
        Self::of(new).filter(|made| Self::of(old).as_ref() != Some(made))
    }

    /// Whether it holds all that the other does.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.decommissioned >= other.decommissioned && self.keys.is_superset(&other.keys)
    }

    /// Its keys, for the row of a node that is let in again under its old id.
    pub(crate) fn retired(&self) -> Vec<Retired> {
        let one = |key: &String| Retired {
            key_sha256: key.clone(),
            at_unix_ms: self.at_unix_ms,
            cause: Retirement::Replaced,
        };
        self.keys.iter().map(one).collect()
    }
}

/// Tombstones of nodes whose rows were lost.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    nodes: HashMap<NodeId, Tombstone>,
    keys: HashMap<KeyHash, NodeId>,
}

/// What a node hears that was decommissioned. The records of engines that run lie in the state directory: whoever moves it away
/// before they have ended leaves them running unknown.
pub(crate) fn gone_for_good() -> Error {
    Error::new(
        Code::Gone,
        "NODE_DECOMMISSIONED",
        "this node was decommissioned for good, and ends its engines of deployments. To enroll the host anew: stop the agent, \
         end every engine that is left with `umbel node stop-engines`, and only then move the state directory away",
    )
}

impl Tombstones {
    /// A stored one.
    pub(crate) fn insert(&mut self, id: NodeId, stone: Tombstone) {
        self.keys.extend(stone.keys.iter().filter_map(|text| key_hash(text)).map(|key| (key, id)));
        self.nodes.insert(id, stone);
    }

    /// That of a node.
    pub(crate) fn get(&self, id: &NodeId) -> Option<&Tombstone> {
        self.nodes.get(id)
    }

    /// Whether a key stands here.
    pub(crate) fn has(&self, key: &KeyHash) -> bool {
        self.keys.contains_key(key)
    }

    /// Refuses a key that was ended, and an identity that was.
    ///
    /// # Errors
    /// GONE `NODE_DECOMMISSIONED`; UNAUTHENTICATED `CREDENTIAL_REVOKED` for a key whose node may come back with another.
    pub(crate) fn check(&self, key: &KeyHash, named: Option<&NodeId>) -> Result<(), Error> {
        let holder = self.keys.get(key);
        let gone = |id: &NodeId| self.nodes.get(id).is_some_and(|stone| stone.decommissioned);
        if holder.into_iter().chain(named).any(gone) {
            return Err(gone_for_good());
        }
        match holder {
            None => Ok(()),
            Some(_) => Err(Error::new(
                Code::Unauthenticated,
                "CREDENTIAL_REVOKED",
                "this key was revoked or replaced, and opens nothing any more; enroll the host anew",
            )),
        }
    }
}
