//! The stored identity of a node: its lifecycle, its credentials, and what people decided about it.
//!
//! Owns the row and every transition of it. Leaves storing to the shell, and who may come in with which key to
//! `core/credentials.rs`. Invariant: a node has at most one credential in use and one pending; a key that was retired
//! never opens anything again; a decommissioned row changes no more.
//!
//! ```text
//!   enrolled --disable--> disabled --enable--> enrolled          (any) --decommission--> decommissioned, for ever
//!   credential: in use --rotate: pending, then its first hello--> the pending one in use, the old one retired
//!                      `--revoke--> revoked --a token that replaces it is claimed--> a new one in use
//! ```

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use umbel_wire::KeyHash;
use umbel_wire::ca::Issued;
use umbel_wire::clock::Wall;

use super::key_hash;

/// Retired keys that a node remembers: five years of rotation. An older one is a stranger's.
pub(crate) const RETIRED_MAX: usize = 32;

/// Decided by people; never by a timer or a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Lifecycle {
    /// It may connect and serve.
    Enrolled,
    /// It keeps its identity and may not connect.
    Disabled,
    /// A tombstone.
    Decommissioned,
}

/// What a node shows at hello: the registry's word on it counts, not the certificate's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credential {
    /// SHA-256 of the public key, in lower-case hexadecimal.
    pub(crate) key_sha256: String,
    /// End of the certificate.
    pub(crate) not_after_unix_ms: i64,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked_at_unix_ms: Option<i64>,
    /// When it was issued; 0 in rows from before this was kept.
    #[serde(default)]
    pub(crate) issued_at_unix_ms: i64,
    /// SHA-256 of the authority's certificate that signed it, in lower-case hexadecimal; empty: the site's first.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) issuer: String,
}

impl Credential {
    /// One that was just signed.
    pub(crate) fn new(issued: &Issued, now: Wall) -> Self {
        Self {
            key_sha256: issued.key_hash.to_string(),
            not_after_unix_ms: issued.not_after.unix_ms(),
            revoked_at_unix_ms: None,
            issued_at_unix_ms: now.unix_ms(),
            issuer: HEXLOWER.encode(&issued.issuer),
        }
    }

    fn holds(&self, key: &KeyHash) -> bool {
        key_hash(&self.key_sha256) == Some(*key)
    }
}

/// A new certificate is wanted of a node, by people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    /// Since when.
    pub(crate) at_unix_ms: i64,
    /// By whom, for the audit.
    pub(crate) by: String,
}

/// A key that was a node's and opens nothing any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retired {
    pub(crate) key_sha256: String,
    pub(crate) at_unix_ms: i64,
    pub(crate) cause: Retirement,
}

/// Why a key was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Retirement {
    /// The node itself made a newer one.
    Rotated,
    /// Another host, or the same one wiped, took the node's place with a token.
    Replaced,
}

/// What somebody decided, when and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Decision {
    pub(crate) at_unix_ms: i64,
    pub(crate) by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

/// The stored identity of a node: table `nodes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) eligible: bool,
    pub(crate) draining: bool,
    pub(crate) enrolled_at_unix_ms: i64,
    /// The token that its present host enrolled with.
    pub(crate) token_id: String,
    /// The one in use.
    pub(crate) credential: Credential,
    /// Given during a rotation and not yet shown: the first hello with it retires the one above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pending: Option<Credential>,
    /// People want a new certificate; a node that is away is asked when it connects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rotate: Option<Wanted>,
    /// The newest last, at most [`RETIRED_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) retired: Vec<Retired>,
    /// While it is disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) disabled: Option<Decision>,
    /// For ever, once it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decommissioned: Option<Decision>,
}

/// What a key is to the node that it belongs or belonged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// It is the one in use.
    InUse,
    /// It was given and not shown yet.
    Pending,
    /// It opens nothing any more.
    Retired(Retirement),
}

impl NodeRow {
    /// A node that has just enrolled with `token_id`.
    pub(crate) fn enrolled(name: &str, token_id: &str, credential: Credential, now: Wall) -> Self {
        Self {
            name: name.to_owned(),
            labels: BTreeMap::new(),
            lifecycle: Lifecycle::Enrolled,
            eligible: false,
            draining: false,
            enrolled_at_unix_ms: now.unix_ms(),
            token_id: token_id.to_owned(),
            credential,
            pending: None,
            rotate: None,
            retired: Vec::new(),
            disabled: None,
            decommissioned: None,
        }
    }

    /// Every key that is or was this node's, the one in use first.
    pub(crate) fn keys(&self) -> impl Iterator<Item = KeyHash> {
        let given = [Some(&self.credential), self.pending.as_ref()].into_iter().flatten();
        let retired = self.retired.iter().map(|one| &one.key_sha256);
        given.map(|one| &one.key_sha256).chain(retired).filter_map(|text| key_hash(text))
    }

    /// The credential of this key, in use or pending.
    pub(crate) fn credential_of(&self, key: &KeyHash) -> Option<&Credential> {
        [Some(&self.credential), self.pending.as_ref()].into_iter().flatten().find(|one| one.holds(key))
    }

    /// Whether this key is the one that a rotation gave and the node has not shown yet.
    pub(crate) fn is_pending(&self, key: &KeyHash) -> bool {
        self.key(key) == Some(KeyState::Pending)
    }

    /// What a key is to it; `None` for a stranger's.
    pub(crate) fn key(&self, key: &KeyHash) -> Option<KeyState> {
        if self.credential.holds(key) {
            return Some(KeyState::InUse);
        }
        if self.pending.as_ref().is_some_and(|one| one.holds(key)) {
            return Some(KeyState::Pending);
        }
        let retired = self.retired.iter().find(|one| key_hash(&one.key_sha256) == Some(*key));
        retired.map(|one| KeyState::Retired(one.cause))
    }

    /// A credential of it may open the nodes' port: nothing that people decided is in the way.
    pub(crate) fn admits(&self) -> bool {
        self.lifecycle == Lifecycle::Enrolled && self.credential.revoked_at_unix_ms.is_none()
    }

    /// Keeps it out until it is enabled. No change if it is out already.
    pub(crate) fn disable(&mut self, decision: Decision) {
        if self.lifecycle == Lifecycle::Enrolled {
            self.lifecycle = Lifecycle::Disabled;
            self.disabled = Some(decision);
        }
    }

    /// Lets it in again. No change if it is not disabled.
    pub(crate) fn enable(&mut self) {
        if self.lifecycle == Lifecycle::Disabled {
            self.lifecycle = Lifecycle::Enrolled;
            self.disabled = None;
        }
    }

    /// Ends every credential of it. The first time stays.
    pub(crate) fn revoke(&mut self, now: i64) {
        self.credential.revoked_at_unix_ms.get_or_insert(now);
        self.rotate = None;
        if let Some(pending) = self.pending.take() {
            self.retire(pending.key_sha256, now, Retirement::Replaced);
        }
    }

    /// The pending credential was shown: it is the one in use from now on. `false`: there is none.
    pub(crate) fn promote(&mut self, now: i64) -> bool {
        let Some(pending) = self.pending.take() else { return false };
        let old = std::mem::replace(&mut self.credential, pending);
        self.retire(old.key_sha256, now, Retirement::Rotated);
        self.rotate = None;
        true
    }

    /// A host that claimed a token takes the node's place: name, labels, lifecycle and marks stay.
    pub(crate) fn replace(&mut self, token_id: String, credential: Credential, now: i64) {
        if let Some(pending) = self.pending.take() {
            self.retire(pending.key_sha256, now, Retirement::Replaced);
        }
        let old = std::mem::replace(&mut self.credential, credential);
        self.retire(old.key_sha256, now, Retirement::Replaced);
        self.token_id = token_id;
        self.rotate = None;
    }

    /// Makes a tombstone of it. No change if it is one.
    pub(crate) fn decommission(&mut self, decision: Decision) {
        if self.lifecycle != Lifecycle::Decommissioned {
            self.revoke(decision.at_unix_ms);
            self.lifecycle = Lifecycle::Decommissioned;
            self.disabled = None;
            self.eligible = false;
            self.decommissioned = Some(decision);
        }
    }

    fn retire(&mut self, key_sha256: String, at_unix_ms: i64, cause: Retirement) {
        if self.retired.len() >= RETIRED_MAX {
            self.retired.remove(0);
        }
        self.retired.push(Retired { key_sha256, at_unix_ms, cause });
    }

    /// Whether a change of the row ends the connection that was let in under the old one. A rotation does not: its old
    /// connection drains.
    pub(crate) fn ends_connections_of(&self, old: &Self) -> bool {
        !self.admits() || self.token_id != old.token_id
    }
}
