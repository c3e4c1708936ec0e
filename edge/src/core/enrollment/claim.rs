//! What the claim of a token makes: a new node, or a new credential for one that was lost.
//!
//! Owns the one conditional write and what stands against it. Leaves the token's own rules to `umbel_wire::enroll`,
//! signing and committing to the shell. Invariants: a key belongs to one node and to it only once; whoever takes a
//! node's place ends the credential it had in the same write; a tombstone has no successor; a host whose answer was
//! lost for good comes in with a new token, as the node that it already is.

use std::sync::Arc;

use umbel_store::{AuditRecord, Commit, Position};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::ClaimRow;
use umbel_wire::{Code, Error, KeyHash, NodeId};

use super::{ENROLLMENTS, EnrollmentRow};
use crate::core::registry::node::{Credential, KeyState, Lifecycle, Node, NodeRow};
use crate::core::registry::{NODES, Registry};
use crate::core::tombstones::{TOMBSTONES, Tombstone};

/// Whom a claim makes.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A node that was not there.
    New,
    /// This key's own node, which never came: the answer that made it was lost, and its host asks again.
    Again(Arc<Node>),
    /// A node whose place is taken.
    Of(Arc<Node>),
}

/// Whether a host with this key may use a token that is good.
///
/// # Errors
/// CONFLICT `KEY_IN_USE`; GONE when the node that it would replace is not there any more.
pub(crate) fn place<H: Clone>(
    registry: &Registry<H>,
    row: &EnrollmentRow,
    key: &KeyHash,
) -> Result<Place, Error> {
    if let Some(node) = registry.by_key(key) {
        return again(node, row, key);
    }
    if registry.tombstones.has(key) {
        return Err(key_in_use("was ended for good"));
    }
    let Some(replaces) = &row.replaces else { return Ok(Place::New) };
    let node = NodeId::parse(replaces).ok().and_then(|id| registry.node(&id).cloned());
    node.filter(|node| !node.is_tombstone()).map(Place::Of).ok_or_else(|| {
        Error::new(
            Code::Gone,
            "NODE_DECOMMISSIONED",
            "the node that this token replaces was decommissioned for good; mint a token of its own for this host",
        )
    })
}

/// A key that belongs to a node already. Had the node ever come, its host would have its certificate: then this is
/// another one's copy, or a host that lost it and needs a new key.
fn again(node: &Arc<Node>, row: &EnrollmentRow, key: &KeyHash) -> Result<Place, Error> {
    let never_came = node.report.last_seen_at_unix_ms == 0;
    let in_use = node.row.admits() && node.row.key(key) == Some(KeyState::InUse);
    if never_came && in_use && row.replaces.is_none() {
        return Ok(Place::Again(Arc::clone(node)));
    }
    let whose = if node.is_tombstone() { "was decommissioned for good" } else { "is another host's" };
    Err(key_in_use(whose))
}

fn key_in_use(whose: &str) -> Error {
    let message = format!(
        "this host's key is that of a node of this site which {whose}; give this host a state directory of its own, or \
         remove the key file in it so that it makes a new key"
    );
    Error::new(Code::Conflict, "KEY_IN_USE", message)
}

/// A host that holds the key, and the certificate that was signed for it.
pub(crate) struct Claimant<'a> {
    /// The token as it was judged.
    pub(crate) row: &'a EnrollmentRow,
    pub(crate) position: Position,
    /// A new id, or that of `place`.
    pub(crate) id: NodeId,
    pub(crate) place: Place,
    /// What a node that has no name yet is called: the token's, or one like it that is free.
    pub(crate) name: &'a str,
    pub(crate) credential: Credential,
    /// DER, leaf first.
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) wall: Wall,
}

/// Both rows as they are once `commit` is done.
pub(crate) struct Claimed {
    pub(crate) token: EnrollmentRow,
    pub(crate) node: NodeRow,
    pub(crate) commit: Commit,
}

/// The one conditional write of a claim: whoever changes the token's row first wins.
pub(crate) fn claimed(claimant: Claimant<'_>) -> Claimed {
    let Claimant { row, position, id, place, name, credential, chain, wall } = claimant;
    let token_id = row.token.token_id.clone();
    let mut token = row.clone();
    token.token.claim = Some(ClaimRow {
        key_hash: credential.key_sha256.clone(),
        claimed_at_unix_ms: wall.unix_ms(),
        subject: id.to_string(),
        certificate_chain: chain,
        void: false,
    });
    let (by, key) = (format!("token:{token_id}"), id.to_string());
    let record = |action: &str, subject: &str| AuditRecord::new(action, subject, "succeeded").by(&by);
    let mut commit = Commit::new().require_at(ENROLLMENTS, token_id.clone(), position);
    commit = match &place {
        Place::New => commit.require_absent(NODES, key.clone()),
        Place::Again(old) | Place::Of(old) => commit.require_at(NODES, key.clone(), old.position),
    };
    let node = match place {
        // Nobody has seen it yet: it is what the newest token says.
        Place::New | Place::Again(_) => {
            let mut node = NodeRow::enrolled(name, &token_id, credential, wall);
            node.labels.clone_from(&row.labels);
            node.eligible = row.eligible;
            let enrolled = record("node.enrolled", &key).because(format!("name {}", node.name));
            commit = commit.audit(record("token.used", &token_id)).audit(enrolled);
            node
        }
        Place::Of(old) => {
            let mut node = old.row.clone();
            node.replace(token_id.clone(), credential, wall.unix_ms());
            let replaced = record("node.replaced", &key).because(format!("name {}", node.name));
            commit = commit.audit(record("token.used", &token_id)).audit(replaced);
            if old.row.credential.revoked_at_unix_ms.is_none() {
                let why = "another host took the node's place";
                commit = commit.audit(record("node.credential.revoked", &key).because(why));
            }
            node
        }
    };
    let commit = match Tombstone::of(&node) {
        Some(stone) => commit.put_json(TOMBSTONES, key.clone(), &stone),
        None => commit,
    };
    let commit = commit.put_json(ENROLLMENTS, token_id, &token).put_json(NODES, key, &node);
    Claimed { token, node, commit }
}

/// Whether the certificate that a claim gave may be given again: its answer was lost.
pub(crate) fn may_repeat(node: &NodeRow, claim: &ClaimRow) -> bool {
    let credential = &node.credential;
    node.lifecycle != Lifecycle::Decommissioned
        && credential.revoked_at_unix_ms.is_none()
        && credential.key_sha256 == claim.key_hash
}
