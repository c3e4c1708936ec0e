//! Who this node is, and when a token may make it somebody.
//!
//! Owns the identity's shape and the rules of joining; leaves files and keys to `shell/state`.
//! Invariant: an identity is never overwritten by one for another edge.

use serde::{Deserialize, Serialize};

/// What an edge gave this node, as it stands in `identity.json`. The key stands in a file of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Version of this file's shape.
    pub(crate) format: u32,
    pub(crate) node_id: uuid::Uuid,
    pub(crate) edge_id: String,
    /// The name the edge knows it by.
    pub(crate) name: String,
    /// Where the edge listens, `host:port` each.
    pub(crate) addresses: Vec<String>,
    /// The certificate chain, leaf first, each DER in base64.
    pub(crate) certificate_chain: Vec<String>,
    /// The CA certificate of the edge that signs now, DER in base64.
    pub(crate) ca_certificate: String,
    /// Every CA certificate that is trusted for the edge, the one above among them; empty: only that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ca_certificates: Vec<String>,
    /// The key's file in the state directory.
    pub(crate) key_file: String,
    /// End of the certificate, milliseconds since 1970.
    pub(crate) not_after_unix_ms: i64,
}

/// A certificate that was given and not yet accepted, as it stands in `pending.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingCredential {
    /// As in the identity.
    pub(crate) certificate_chain: Vec<String>,
    /// Its key's file in the state directory.
    pub(crate) key_file: String,
    pub(crate) not_after_unix_ms: i64,
}

/// The two names that a key's file has in turn.
pub(crate) const KEY_FILES: [&str; 2] = ["node.key", "node.2.key"];

/// Most CA certificates that are kept: the one that signs, the one before it, the next, and one to spare.
pub(crate) const TRUSTED_MAX: usize = 4;

/// The one shape of the file so far.
pub(crate) const FORMAT: u32 = 1;

/// What a token means for a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Joining {
    /// There is no identity yet.
    Fresh,
    /// It belongs to that edge already: the token is not needed and not sent while its credential opens the edge.
    Already,
    /// It belongs to another edge.
    Refused(String),
}

/// Whether a token for `edge_id` may be used by a node that is `present`.
pub(crate) fn joining(present: Option<&Identity>, edge_id: &str) -> Joining {
    match present {
        None => Joining::Fresh,
        Some(identity) if identity.edge_id == edge_id => Joining::Already,
        Some(identity) => Joining::Refused(format!(
            "this node belongs to edge '{}' as node {}; the token is for edge '{edge_id}'. To move it, give it another \
             state_dir, or remove this one after the old edge has decommissioned the node",
            identity.edge_id, identity.node_id
        )),
    }
}

/// Whether a credential is lost for good, by why the edge did not take it: then a token that the edge's people gave may
/// bring a new one. A node that is only kept out, and an edge that cannot be reached, lose nothing.
pub(crate) fn is_lost(reason: &str) -> bool {
    matches!(
        reason,
        "CREDENTIAL_REVOKED"
            | "CREDENTIAL_REPLACED"
            | "CREDENTIAL_RETIRED"
            | "CERTIFICATE_EXPIRED"
            | "CERTIFICATE_UNKNOWN"
    )
}

impl Identity {
    /// Every CA certificate that is trusted for the edge, DER in base64.
    pub(crate) fn trusted(&self) -> &[String] {
        match self.ca_certificates.is_empty() {
            true => std::slice::from_ref(&self.ca_certificate),
            false => &self.ca_certificates,
        }
    }

    /// The same node that trusts exactly these (each DER in base64, the one that signs now first); `None`: it does so already.
    ///
    /// # Errors
    /// Why such a bundle is not taken.
    pub(crate) fn trusting(&self, wanted: Vec<String>) -> Result<Option<Self>, &'static str> {
        if wanted == self.trusted() {
            return Ok(None);
        }
        if wanted.len() > TRUSTED_MAX {
            return Err("the bundle of CA certificates has too many");
        }
        let first = wanted.first().cloned().ok_or("the bundle of CA certificates is empty")?;
        Ok(Some(Self { ca_certificate: first, ca_certificates: wanted, ..self.clone() }))
    }

    /// The file of a key that is not the identity's.
    pub(crate) fn spare_key_file(&self) -> &'static str {
        let [first, second] = KEY_FILES;
        if self.key_file == first { second } else { first }
    }

    /// The same node with another certificate.
    pub(crate) fn with(&self, pending: &PendingCredential) -> Self {
        Self {
            certificate_chain: pending.certificate_chain.clone(),
            key_file: pending.key_file.clone(),
            not_after_unix_ms: pending.not_after_unix_ms,
            ..self.clone()
        }
    }

    /// Checks what was read from a file.
    pub(crate) fn validated(self) -> Result<Self, String> {
        if self.format != FORMAT {
            return Err(format!(
                "has format {}, and this agent reads {FORMAT}: it was written by another version",
                self.format
            ));
        }
        if umbel_wire::EdgeId::parse(&self.edge_id).is_err()
            || self.addresses.is_empty()
            || self.certificate_chain.is_empty()
        {
            return Err("is not complete".into());
        }
        // The name goes into a path.
        if self.key_file.is_empty() || self.key_file.contains(['/', '\0']) || self.key_file.starts_with('.') {
            return Err("names a key file outside the state directory".into());
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(edge: &str) -> Identity {
        Identity {
            format: FORMAT,
            node_id: uuid::Uuid::nil(),
            edge_id: edge.into(),
            name: "gpu-1".into(),
            addresses: vec!["edge.example:7451".into()],
            certificate_chain: vec!["AA==".into()],
            ca_certificate: "AA==".into(),
            ca_certificates: Vec::new(),
            key_file: "node.key".into(),
            not_after_unix_ms: 0,
        }
    }

    #[test]
    fn an_identity_is_not_overwritten() {
        assert_eq!(joining(None, "north"), Joining::Fresh);
        assert_eq!(joining(Some(&identity("north")), "north"), Joining::Already);
        assert!(matches!(joining(Some(&identity("north")), "south"), Joining::Refused(_)));
    }

    #[test]
    fn only_a_credential_that_will_never_open_again_is_lost() {
        assert!(is_lost("CREDENTIAL_REVOKED") && is_lost("CERTIFICATE_EXPIRED"));
        for kept in ["NODE_DISABLED", "NODE_DECOMMISSIONED", "DUPLICATE_IDENTITY", "CREDENTIAL_HELD", ""] {
            assert!(!is_lost(kept), "{kept}");
        }
    }

    #[test]
    fn what_a_file_says_is_checked() {
        assert!(identity("north").validated().is_ok());
        assert!(Identity { key_file: "../x".into(), ..identity("north") }.validated().is_err());
        assert!(Identity { format: 9, ..identity("north") }.validated().is_err());
        assert!(Identity { addresses: vec![], ..identity("north") }.validated().is_err());
    }
}
