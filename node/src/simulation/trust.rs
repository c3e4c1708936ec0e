//! Whom a simulated node trusts for its edge: by its token first, then as it is told.
//!
//! A certificate of an authority is its digest. Invariant: what is trusted stands on the disk, one bundle in place of the
//! other; only the connection in force changes it.

use data_encoding::HEXLOWER;
use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::proto::node::{NodeTrust, NodeTrustAck};
use umbel_wire::simulation::LinkId;
use umbel_wire::{Code, Error};

use super::Node;

/// What stands in a token's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Names it.
    pub token_id: String,
    /// Its 32 bytes.
    pub secret: [u8; 32],
    /// The authority that its host believes.
    pub ca_sha256: String,
}

/// A certificate's digest.
pub(super) fn digest(certificate: &[u8]) -> String {
    HEXLOWER.encode(certificate)
}

pub(super) fn certificate(digest: &str) -> Vec<u8> {
    HEXLOWER.decode(digest.as_bytes()).unwrap_or_default()
}

impl Node {
    /// Whom it trusts for its edge.
    #[must_use]
    pub fn trusts(&self) -> Vec<String> {
        self.disk.identity.as_ref().map_or_else(Vec::new, |identity| identity.trusted().to_vec())
    }

    /// Nobody whom it trusts vouched for the edge that it dialed last.
    #[must_use]
    pub fn distrusts(&self) -> bool {
        self.distrusts
    }

    pub(super) fn believes(&self, vouching: &[String]) -> bool {
        match (&self.disk.identity, &self.token) {
            (Some(identity), _) => identity.trusted().iter().any(|one| vouching.contains(one)),
            (None, Some(token)) => vouching.contains(&token.ca_sha256),
            (None, None) => false,
        }
    }

    pub(super) fn told_whom_to_trust(&mut self, link: LinkId, payload: &[u8]) -> Result<Vec<u8>, Error> {
        if self.current != Some(link) {
            return Err(Error::new(Code::Conflict, "STALE_GENERATION", "a newer connection has taken over"));
        }
        let told = bounds::decode::<NodeTrust>(payload)?;
        let trusted_ca_sha256 = self.trust(told.ca_certificates)?;
        Ok(NodeTrustAck { trusted_ca_sha256 }.encode_to_vec())
    }

    /// Keeps exactly these; says which it has now.
    pub(super) fn trust(&mut self, bundle: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, Error> {
        let wanted: Vec<String> = bundle.iter().map(|one| digest(one)).collect();
        let refused = |why: &'static str| Error::new(Code::InvalidArgument, "TRUST", why);
        let Some(identity) = &self.disk.identity else { return Ok(bundle) };
        let Some(changed) = identity.trusting(wanted).map_err(refused)? else { return Ok(bundle) };
        if self.disk.full {
            return Err(Error::new(Code::Internal, "STATE_DIRECTORY", "it cannot be kept"));
        }
        self.disk.identity = Some(changed);
        Ok(bundle)
    }
}
