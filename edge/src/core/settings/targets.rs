//! What each node should have: a version and a digest.
//!
//! Invariant: two nodes with equal settings have equal digests, and a node's version is that of the last change of
//! the default or of its own part, so that a change that is nobody's of it never sends it anything.

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};
use umbel_contracts::settings;
use umbel_wire::NodeId;

use super::DocumentRow;

/// What a node should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// 0: nothing was ever set for it.
    pub(crate) version: u64,
    /// SHA-256 of its effective settings, as they are sent.
    pub(crate) digest: [u8; 32],
}

/// What all nodes should have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    default: Desired,
    own: HashMap<NodeId, Desired>,
}

impl Targets {
    /// Of a document.
    pub(crate) fn new(row: &DocumentRow) -> Self {
        let desired = |version: u64, effective: &serde_json::Value| {
            let digest = if version == 0 { [0; 32] } else { Sha256::digest(bytes(effective)).into() };
            Desired { version, digest }
        };
        let own = row.node_versions.iter().filter_map(|(node, version)| {
            let id = NodeId::parse(node).ok()?;
            let version = row.default_version.max(*version);
            Some((id, desired(version, &settings::effective(&row.document, node))))
        });
        Self {
            default: desired(row.default_version, &settings::default_of(&row.document)),
            own: own.collect(),
        }
    }

    /// Of one node.
    pub(crate) fn of(&self, node: &NodeId) -> Desired {
        self.own.get(node).copied().unwrap_or(self.default)
    }
}

/// Effective settings as they are sent; keys are in their order.
pub(crate) fn bytes(effective: &serde_json::Value) -> Vec<u8> {
    serde_json::to_vec(effective).unwrap_or_default()
}

impl DocumentRow {
    /// What is sent to a node: version, digest, settings.
    pub(crate) fn sent_to(&self, node: &NodeId) -> (Desired, Vec<u8>) {
        let id = node.to_string();
        let json = bytes(&settings::effective(&self.document, &id));
        let own = self.node_versions.get(&id).copied().unwrap_or(0);
        let version = self.default_version.max(own);
        (Desired { version, digest: Sha256::digest(&json).into() }, json)
    }
}
