//! The edge's identity towards its control plane: enrollment with a token, and the certificate's renewal.
//!
//! Owns what stands in the membership's directory, which outlives the process. Leaves the steps of a renewal to the
//! wire, and every verdict to the control plane.

use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::proto::control::{
    EdgeCredentialRequest, EdgeCredentialResponse, EdgeEnrollRequest, EdgeEnrollResponse, EdgeHelloResponse,
};
use umbel_contracts::{bounds, method};
use umbel_wire::clock::Wall;
use umbel_wire::peer::{PeerCertificate, PeerName};
use umbel_wire::simulation::{Call, Keys, Next};
use umbel_wire::{Error, KeyHash};

use super::{Directory, Edge};

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a certificate of this world lasts.
pub const LIFE: Duration = Duration::from_secs(30 * 86_400);

/// The directory: what a crash leaves.
#[derive(Clone, Debug, Default)]
pub struct Membership {
    keys: Keys,
    /// The token that it was joined with; empty: it is nobody there.
    token_id: String,
    /// A token in use, with the key that it is to be for.
    joining: Option<(String, [u8; 32], [u8; 32])>,
}

impl Membership {
    /// Keys that it could show, in lower-case hexadecimal.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        self.keys.shown()
    }

    /// The token that it was joined with.
    #[must_use]
    pub fn token_id(&self) -> &str {
        &self.token_id
    }

    pub(super) fn may_dial(&self) -> bool {
        !self.token_id.is_empty() || self.joining.is_some()
    }

    /// What the next dial is for.
    pub(super) fn enrolls(&self, edge_id: &str) -> Option<EdgeEnrollRequest> {
        let (token_id, secret, key) = self.joining.as_ref()?;
        Some(EdgeEnrollRequest {
            token_id: token_id.clone(),
            token_secret: secret.to_vec(),
            edge_id: edge_id.to_owned(),
            signing_request: key.to_vec(),
            ..EdgeEnrollRequest::default()
        })
    }
}

impl Edge {
    /// Its directory.
    #[must_use]
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The process is killed: its directory is left, beside the store.
    #[must_use]
    pub fn crash(self) -> Directory {
        (self.membership, self.authorities)
    }

    /// Somebody runs `umbel edge enroll`.
    pub fn join_plane(&mut self, token_id: &str, secret: [u8; 32], now: Instant) {
        let key = self.uplink.key();
        self.membership.joining = Some((token_id.to_owned(), secret, key));
        self.uplink.dial_soon(now);
    }

    /// Why the control plane refused its last dial.
    #[must_use]
    pub fn plane_refusal(&self) -> &str {
        self.uplink.refusal()
    }

    /// The certificate of the next dial.
    pub(super) fn plane_certificate(&mut self) -> Option<PeerCertificate> {
        if self.membership.joining.is_some() {
            return None;
        }
        let kept = self.uplink.renewal.shows(&self.membership.keys)?;
        Some(PeerCertificate {
            key_hash: KeyHash(kept.key),
            serial: "01".to_owned(),
            name: Some(PeerName::Edge(self.setup.edge_id.clone())),
            not_before: Wall(0),
            not_after: Wall(kept.not_after),
        })
    }

    pub(super) fn joined(&mut self, payload: &[u8]) {
        let Some((token_id, _, key)) = self.membership.joining.take() else { return };
        let Ok(given) = bounds::decode::<EdgeEnrollResponse>(payload) else { return };
        self.membership.token_id = token_id;
        self.membership.keys = Keys { key: Some(key), not_after: given.not_after_unix_ms, ..Keys::default() };
        self.uplink.renewal = umbel_wire::simulation::Renewal::default();
    }

    /// The token came to nothing.
    pub(super) fn not_joined(&mut self) {
        self.membership.joining = None;
    }

    /// A hello was accepted: a new certificate is due when its control plane says so, or by this host's own clock.
    pub(super) fn plane_accepted(&mut self, payload: &[u8], now: Instant, wall: Wall) {
        let answer = bounds::decode::<EdgeHelloResponse>(payload).unwrap_or_default();
        let renew = answer.renew_now;
        self.disk.asked = answer.audit_witnessed;
        self.uplink.renewal.accepted(now);
        let third = i64::try_from(LIFE.as_millis() / 3).unwrap_or(i64::MAX);
        if renew || wall.unix_ms() >= self.membership.keys.not_after - third {
            self.uplink.renewal.rotate(now);
        }
    }

    /// Goes one step on with a renewal.
    pub(super) fn renew(&mut self, now: Instant) {
        if self.uplink.renewal.next_deadline().is_none_or(|at| at > now) {
            return;
        }
        let key = self.uplink.key();
        let early = self.is("an edge's key is replaced before it is accepted");
        match self.uplink.renewal.go_on(&mut self.membership.keys, now, false, || key) {
            Next::Nothing => {}
            Next::Dial => self.uplink.dial_anew(now),
            Next::Ask(key) => {
                let message = EdgeCredentialRequest { signing_request: key.to_vec() }.encode_to_vec();
                let call = self.uplink.request(now, method::EDGE_CREDENTIAL, message, TIMEOUT);
                self.uplink.renewal.asked(call, now);
            }
        }
        if early && self.membership.keys.spare == Some(key) {
            self.membership.keys.key = Some(key);
        }
    }

    pub(super) fn plane_gave(&mut self, call: Call, answer: &Result<bytes::Bytes, Error>, now: Instant) {
        if !self.uplink.renewal.is_asking(call) {
            return;
        }
        let given =
            answer.as_ref().ok().and_then(|bytes| bounds::decode::<EdgeCredentialResponse>(bytes).ok());
        let not_after = given.map(|given| given.not_after_unix_ms);
        self.uplink.renewal.given(&mut self.membership.keys, not_after, now);
    }
}
