//! What a peer's certificate says, as plain values.
//!
//! Owns: reading a certificate that a peer presented. Leaves to others: whether it is good (the acceptor's registry
//! judges by key hash at hello; the dialer's TLS verifier judges chain, name and time).
//! Invariant: reading never panics and never trusts a field; a name that is not exactly one of ours is no name.

use std::fmt;

use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::clock::Wall;
use crate::ids::{EdgeId, KeyHash, NodeId};
use crate::rotation::acceptor::due;

/// A certificate above this is not read; ours are below 1 KiB.
pub const LARGEST_CERTIFICATE: usize = 8 * 1024;

const TRUST_DOMAIN: &str = "spiffe://umbel/";

/// Whom a client certificate names (SAN URI).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerName {
    /// `spiffe://umbel/EDGE_ID`
    Edge(EdgeId),
    /// `spiffe://umbel/EDGE_ID/node/NODE_ID`
    Node(EdgeId, NodeId),
}

impl PeerName {
    /// Reads one of the two forms; anything else is no name.
    #[must_use]
    pub fn parse(uri: &str) -> Option<Self> {
        let path = uri.strip_prefix(TRUST_DOMAIN)?;
        match path.split_once("/node/") {
            None => EdgeId::parse(path).ok().map(Self::Edge),
            Some((edge, node)) => Some(Self::Node(EdgeId::parse(edge).ok()?, NodeId::parse(node).ok()?)),
        }
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Edge(edge) => write!(f, "{TRUST_DOMAIN}{edge}"),
            Self::Node(edge, node) => write!(f, "{TRUST_DOMAIN}{edge}/node/{node}"),
        }
    }
}

/// The certificate whose key the peer proved to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// SHA-256 of its public key: what registries know a peer by.
    pub key_hash: KeyHash,
    /// In lower-case hex.
    pub serial: String,
    /// Whom it names, if that is exactly one name of ours.
    pub name: Option<PeerName>,
    /// Not valid before.
    pub not_before: Wall,
    /// Not valid after.
    pub not_after: Wall,
}

/// A certificate that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate is malformed: {0}")]
pub struct MalformedCertificate(&'static str);

impl PeerCertificate {
    /// Reads a certificate, DER.
    ///
    /// # Errors
    /// If it is above [`LARGEST_CERTIFICATE`] or not a certificate.
    pub fn parse(der: &[u8]) -> Result<Self, MalformedCertificate> {
        if der.len() > LARGEST_CERTIFICATE {
            return Err(MalformedCertificate("it is above 8 KiB"));
        }
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|_| MalformedCertificate("not X.509"))?;
        if !rest.is_empty() {
            return Err(MalformedCertificate("bytes follow its end"));
        }
        let validity = certificate.validity();
        Ok(Self {
            key_hash: key_hash(certificate.public_key().raw),
            serial: data_encoding::HEXLOWER.encode(certificate.raw_serial()),
            name: name(&certificate),
            not_before: wall(validity.not_before.timestamp()),
            not_after: wall(validity.not_after.timestamp()),
        })
    }

    /// Whether `now` lies in its validity.
    #[must_use]
    pub fn valid_at(&self, now: Wall) -> bool {
        self.not_before <= now && now <= self.not_after
    }

    /// When two thirds of its life have passed: the time to rotate it.
    #[must_use]
    pub fn renew_at(&self) -> Wall {
        due(self.not_before, self.not_after)
    }
}

/// SHA-256 of a SubjectPublicKeyInfo, DER.
#[must_use]
pub fn key_hash(subject_public_key_info: &[u8]) -> KeyHash {
    KeyHash(Sha256::digest(subject_public_key_info).into())
}

fn name(certificate: &X509Certificate<'_>) -> Option<PeerName> {
    let names = certificate.subject_alternative_name().ok()??;
    let mut uris = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let first = uris.next()?;
    // Two names would let each reader believe another one.
    uris.next().is_none().then(|| PeerName::parse(first)).flatten()
}

fn wall(seconds: i64) -> Wall {
    Wall(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use super::*;

    #[test]
    fn names_go_both_ways_and_strangers_have_none() {
        let node = NodeId::random();
        for uri in ["spiffe://umbel/ber1".to_owned(), format!("spiffe://umbel/ber1/node/{node}")] {
            assert_eq!(PeerName::parse(&uri).unwrap().to_string(), uri);
        }
        for stranger in [
            "",
            "spiffe://umbel/",
            "spiffe://umbel/Ber1",
            "spiffe://umbel/ber1/",
            "spiffe://umbel/ber1/node/",
            "spiffe://umbel/ber1/node/x",
            "spiffe://other/ber1",
            "https://umbel/ber1",
        ] {
            assert_eq!(PeerName::parse(stranger), None, "{stranger}");
        }
    }

    quickcheck::quickcheck! {
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) -> bool {
            PeerCertificate::parse(&bytes).is_err()
        }
    }
}
