//! The identifiers both hops share, a type each, so that mixing two does not compile.
//!
//! Invariant: an `EdgeId` is a DNS label of at most 63 characters, so it is safe in names, paths and metrics.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use uuid::{Builder, Uuid};

use crate::clock::Wall;
use crate::secret::random_bytes;

/// Name of a site: a lower-case DNS label.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EdgeId(String);

/// Why a text is not an [`EdgeId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an edge id is 1 to 63 characters of a-z, 0-9 and '-', not starting or ending with '-'")]
pub struct InvalidEdgeId;

impl EdgeId {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// If it is not a lower-case DNS label.
    pub fn parse(text: &str) -> Result<Self, InvalidEdgeId> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let sound = (1..=63).contains(&text.len())
            && text.bytes().all(legal)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if sound { Ok(Self(text.to_owned())) } else { Err(InvalidEdgeId) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for EdgeId {
    type Err = InvalidEdgeId;
    fn from_str(text: &str) -> Result<Self, InvalidEdgeId> {
        Self::parse(text)
    }
}

impl fmt::Display for EdgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for EdgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identity of a node, given by its edge at enrollment and kept by the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub Uuid);

/// Why a text is not a [`NodeId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node id is a UUID")]
pub struct InvalidNodeId;

impl NodeId {
    /// A new random one, with the time of its making in front (version 7): nodes that enroll in one roll-out stand side by
    /// side in their edge's store and are written in the same pages.
    pub fn random() -> Self {
        let mut random = [0; 10];
        random_bytes(&mut random);
        let now = u64::try_from(Wall::now().unix_ms()).unwrap_or_default();
        Self(Builder::from_unix_timestamp_millis(now, &random).into_uuid())
    }

    /// Reads a UUID in its hyphenated lower-case form.
    ///
    /// # Errors
    /// If it is anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidNodeId> {
        let id = Uuid::try_parse(text).map_err(|_| InvalidNodeId)?;
        // One spelling only: ids are compared as text in certificates and keys of tables.
        if id.hyphenated().to_string() == text { Ok(Self(id)) } else { Err(InvalidNodeId) }
    }
}

impl FromStr for NodeId {
    type Err = InvalidNodeId;
    fn from_str(text: &str) -> Result<Self, InvalidNodeId> {
        Self::parse(text)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// Drawn at random at each process start: tells a restart from a second copy of the same credential.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub [u8; 16]);

impl InstanceId {
    /// A new random one (zeros if the system has no random source, which then fails elsewhere, loudly).
    pub fn random() -> Self {
        Self(Uuid::new_v4().into_bytes())
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).simple().fmt(f)
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).simple().fmt(f)
    }
}

/// Counts the dials of one process, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Attempt(pub u64);

/// Grows with each accepted connection of the same identity. Whatever carries an older one is stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// SHA-256 of a public key's SubjectPublicKeyInfo, DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At once: a registry's rows, its log and its audit are full of them.
        f.write_str(HEXLOWER.encode_mut_str(&self.0, &mut [0; 64]))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edge_ids_are_dns_labels() {
        for good in ["a", "site-7", "0", &"x".repeat(63)] {
            assert!(EdgeId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "ä", &"x".repeat(64)] {
            assert!(EdgeId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_of_one_roll_out_stand_side_by_side() {
        let ids: Vec<_> = (0..1_000).map(|_| NodeId::random()).collect();
        let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        let before = NodeId(Builder::from_unix_timestamp_millis(0, &[0xFF; 10]).into_uuid());
        assert!(ids.iter().all(|id| *id > before && id.0.get_version_num() == 7));
    }

    #[test]
    fn node_ids_have_one_spelling() {
        let id = NodeId::random();
        assert_eq!(NodeId::parse(&id.to_string()), Ok(id));
        assert!(NodeId::parse(&id.to_string().to_uppercase()).is_err());
        assert!(NodeId::parse(&id.0.simple().to_string()).is_err());
    }
}
