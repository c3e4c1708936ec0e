//! Which edges may connect: their identities, and the checks of a hello in their fixed order.
//!
//! Owns the rows of enrolled edges and who holds which key. Leaves arbitration of duplicates to `wire::slots`, the
//! rules of a renewal that an edge has too to `wire::rotation::acceptor`, and storing to the shell. Invariant: a key
//! opens the door for one edge id, and a revoked one for none.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use umbel_contracts::CONTROL_PROTOCOL as PROTOCOL;
use umbel_store::Position;
use umbel_wire::clock::Wall;
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::{EdgeId, KeyHash};
use umbel_wire::rotation::acceptor::{self, Holder, Unfit, due, lost};
use umbel_wire::version::{Verdict, VersionRange};

/// Table of [`EdgeRow`]s, keyed by edge id.
pub(crate) const EDGES: &str = "edges";

/// Edges that one control plane takes: what the design measures it with. Beyond it enrollment is refused.
pub(crate) const EDGES_MAX: usize = 20_000;

/// An enrolled edge, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EdgeRow {
    pub(crate) edge_id: String,
    pub(crate) display_name: String,
    /// SHA-256 of the public key, in hexadecimal.
    pub(crate) key_sha256: String,
    pub(crate) not_after_unix_ms: i64,
    pub(crate) enrolled_at_unix_ms: i64,
    pub(crate) token_id: String,
    /// When the certificate in use was issued; 0: when the edge enrolled.
    #[serde(default)]
    pub(crate) issued_at_unix_ms: i64,
    /// Given during a renewal and not yet shown: the first hello with it retires the one above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<Pending>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked: Option<Revoked>,
}

/// A credential that was given and not yet shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(crate) key_sha256: String,
    pub(crate) not_after_unix_ms: i64,
    pub(crate) issued_at_unix_ms: i64,
}

impl EdgeRow {
    fn keys(&self) -> impl Iterator<Item = KeyHash> {
        let pending = self.pending.as_ref().map(|pending| &pending.key_sha256);
        [Some(&self.key_sha256), pending].into_iter().flatten().filter_map(|text| key_hash(text))
    }

    /// The end of the certificate of this key.
    fn not_after(&self, key: &KeyHash) -> i64 {
        let pending = self.pending.as_ref().filter(|pending| key_hash(&pending.key_sha256) == Some(*key));
        pending.map_or(self.not_after_unix_ms, |pending| pending.not_after_unix_ms)
    }

    /// Whether a new certificate is due: two thirds of the present one's life are over.
    pub(crate) fn is_due(&self, now_unix_ms: i64) -> bool {
        let begun =
            if self.issued_at_unix_ms > 0 { self.issued_at_unix_ms } else { self.enrolled_at_unix_ms };
        self.revoked.is_none() && Wall(now_unix_ms) >= due(Wall(begun), Wall(self.not_after_unix_ms))
    }

    /// Whether `key` may become this edge's next one. `holder`: the edge that has it already.
    pub(crate) fn may_have(&self, key: &KeyHash, holder: Option<&EdgeId>) -> Result<(), Error> {
        let holder = match holder {
            None => Holder::Nobody,
            Some(holder) if holder.as_str() != self.edge_id => Holder::Another,
            Some(_) if key_hash(&self.key_sha256) == Some(*key) => Holder::Itself,
            Some(_) => Holder::Pending,
        };
        acceptor::may_have(holder).map_err(|unfit| {
            unfit.error(match unfit {
                Unfit::Another => "The key of the signing request is another edge's.",
                Unfit::Unchanged => "The signing request has the key in use; a renewal needs a new one.",
            })
        })
    }

    /// A hello shows `key`. `None`: that is the one in use, nothing changes.
    pub(crate) fn shown(&self, key: &KeyHash) -> Option<Self> {
        let pending = self.pending.as_ref().filter(|pending| key_hash(&pending.key_sha256) == Some(*key))?;
        self.revoked.is_none().then(|| Self {
            key_sha256: pending.key_sha256.clone(),
            not_after_unix_ms: pending.not_after_unix_ms,
            issued_at_unix_ms: pending.issued_at_unix_ms,
            pending: None,
            ..self.clone()
        })
    }
}

/// When, by whom and why a credential was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Revoked {
    pub(crate) at_unix_ms: i64,
    pub(crate) by: String,
    pub(crate) reason: String,
}

/// A row and the commit that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) row: EdgeRow,
    pub(crate) position: Position,
}

/// Every enrolled edge.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    rows: HashMap<EdgeId, Known>,
    keys: HashMap<KeyHash, EdgeId>,
}

/// Why a hello is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HelloRefusal {
    pub(crate) error: Error,
    pub(crate) verdict: Option<Verdict>,
}

impl HelloRefusal {
    fn new(code: Code, reason: &'static str, message: impl Into<String>) -> Self {
        Self { error: Error::new(code, reason, message), verdict: None }
    }
}

/// What a hello shows before anything of it is believed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HelloFacts<'a> {
    pub(crate) edge_id: &'a str,
    /// The key of the certificate, proven in TLS, and the end of its validity.
    pub(crate) certificate: Option<(KeyHash, i64)>,
    pub(crate) versions: VersionRange,
    /// `None` while this host's clock is not plausible: then nothing expires.
    pub(crate) now_unix_ms: Option<i64>,
}

impl Edges {
    /// Takes a stored or just committed row; replaces the edge's former one.
    pub(crate) fn apply(&mut self, row: EdgeRow, position: Position) {
        let Ok(edge_id) = EdgeId::parse(&row.edge_id) else { return };
        if key_hash(&row.key_sha256).is_none() {
            return;
        }
        if let Some(former) = self.rows.get(&edge_id) {
            for key in former.row.keys() {
                self.keys.remove(&key);
            }
        }
        self.keys.extend(row.keys().map(|key| (key, edge_id.clone())));
        self.rows.insert(edge_id, Known { row, position });
    }

    /// Whether the registry holds this key, in whatever state.
    pub(crate) fn knows(&self, key: &KeyHash) -> bool {
        self.keys.contains_key(key)
    }

    /// The edge that holds a key, in whatever state.
    pub(crate) fn holder(&self, key: &KeyHash) -> Option<&EdgeId> {
        self.keys.get(key)
    }

    pub(crate) fn get(&self, edge_id: &EdgeId) -> Option<&Known> {
        self.rows.get(edge_id)
    }

    /// All of them, by name.
    pub(crate) fn sorted(&self) -> Vec<(&EdgeId, &Known)> {
        let mut all: Vec<_> = self.rows.iter().collect();
        all.sort_unstable_by_key(|(edge_id, _)| *edge_id);
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// An edge that a caller named. INVALID_ARGUMENT or NOT_FOUND.
    pub(crate) fn find(&self, edge_id: &str) -> Result<(EdgeId, &Known), Error> {
        let parsed = EdgeId::parse(edge_id)
            .map_err(|error| Error::new(Code::InvalidArgument, "EDGE_ID_MALFORMED", format!("{error}.")))?;
        match self.rows.get(&parsed) {
            Some(known) => Ok((parsed, known)),
            None => Err(Error::new(
                Code::NotFound,
                "EDGE_UNKNOWN",
                format!("No edge `{parsed}` is enrolled here; `umbel ctl edge` lists those that are."),
            )),
        }
    }

    /// The checks of a hello, in the order that the boundary's contract fixes.
    pub(crate) fn judge(&self, hello: HelloFacts<'_>) -> Result<(EdgeId, u32), HelloRefusal> {
        if hello.edge_id.is_empty() {
            return Err(HelloRefusal::new(
                Code::InvalidArgument,
                "EDGE_ID_EMPTY",
                "The hello names no edge_id. Set [edge] site in the edge's file.",
            ));
        }
        let edge_id = EdgeId::parse(hello.edge_id).map_err(|error| {
            HelloRefusal::new(
                Code::InvalidArgument,
                "EDGE_ID_MALFORMED",
                format!("The hello's edge_id is malformed: {error}. Correct [edge] site in the edge's file."),
            )
        })?;
        let owner = self.credential(hello.certificate, hello.now_unix_ms)?;
        if owner != edge_id {
            return Err(HelloRefusal::new(
                Code::PermissionDenied,
                "EDGE_ID_NOT_YOURS",
                format!(
                    "This certificate is for another edge than `{edge_id}`. Use the state directory that `{edge_id}` \
                     enrolled with, or enroll it with a token of its own."
                ),
            ));
        }
        let protocol =
            umbel_wire::version::negotiate(PROTOCOL, hello.versions).map_err(|verdict| HelloRefusal {
                error: Error::new(Code::Conflict, "VERSION_INCOMPATIBLE", version_remedy(verdict)),
                verdict: Some(verdict),
            })?;
        Ok((edge_id, protocol))
    }

    fn credential(
        &self,
        certificate: Option<(KeyHash, i64)>,
        now_unix_ms: Option<i64>,
    ) -> Result<EdgeId, HelloRefusal> {
        let refuse = |reason, message: &str| HelloRefusal::new(Code::Unauthenticated, reason, message);
        let (key, not_after) = certificate.ok_or_else(|| {
            refuse(
                "CERTIFICATE_MISSING",
                "No client certificate was shown. Enroll the edge: `umbel ctl edge token create NAME` here, then \
                 `umbel edge enroll` at the site.",
            )
        })?;
        let unknown = || {
            refuse(
                "CERTIFICATE_UNKNOWN",
                "This certificate's key is not enrolled at this control plane. Enroll the edge with a new token.",
            )
        };
        let edge_id = self.keys.get(&key).ok_or_else(unknown)?;
        let known = self.rows.get(edge_id).ok_or_else(unknown)?;
        if known.row.revoked.is_some() {
            return Err(refuse(
                "CREDENTIAL_REVOKED",
                "This edge's credential was revoked by an operator. Enroll the edge again with a new token.",
            ));
        }
        let ends = Wall(not_after.min(known.row.not_after(&key)));
        if now_unix_ms.is_some_and(|now| lost(ends, Wall(now))) {
            return Err(refuse(
                "CERTIFICATE_EXPIRED",
                "This edge's certificate ended more than 30 days ago. Revoke it and enroll the edge again with a new token.",
            ));
        }
        Ok(edge_id.clone())
    }
}

fn version_remedy(verdict: Verdict) -> String {
    let ours = format!("this control plane speaks {} to {}", PROTOCOL.min, PROTOCOL.max);
    match verdict {
        Verdict::TooOld => format!("The edge's protocol is too old: {ours}. Upgrade the edge."),
        Verdict::TooNew => {
            format!("The edge's protocol is too new: {ours}. Upgrade the control plane first.")
        }
        _ => format!("The edge names no usable protocol range: {ours}. Upgrade the edge."),
    }
}

/// Reads 64 hexadecimal digits.
pub(crate) fn key_hash(hex: &str) -> Option<KeyHash> {
    sha256(hex).map(KeyHash)
}

/// Reads a SHA-256 in hexadecimal, lower case.
pub(crate) fn sha256(hex: &str) -> Option<[u8; 32]> {
    data_encoding::HEXLOWER.decode(hex.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests;
