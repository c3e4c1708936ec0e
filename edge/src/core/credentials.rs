//! Whether a certificate opens the nodes' port now.
//!
//! Owns the judgement: TLS has only shown that the peer holds the key, so chain, time and status are judged here
//! by the key's hash against the registry, and each refusal can say why. Invariant: whatever the registry does
//! not know is refused.

use std::time::Duration;

use umbel_wire::clock::Wall;
use umbel_wire::peer::{PeerCertificate, PeerName};
use umbel_wire::rotation::acceptor::lost;
use umbel_wire::{Code, EdgeId, Error, NodeId};

use super::registry::node::{KeyState, Lifecycle, NodeRow, Retirement};
use super::tombstones::gone_for_good;

/// Before this the clock is wrong: this program did not exist (2026-01-01).
pub(crate) const CLOCK_FLOOR: Wall = Wall(1_767_225_600_000);

/// Who enables a node looks for it to come back: it asks this often while it is disabled.
const ENABLED_SOON: Duration = Duration::from_secs(20);
/// A refusal that waits for people asks to be tried again after this.
pub(super) const MINUTES: Duration = Duration::from_secs(300);

/// A good credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Good {
    /// In its time.
    Valid,
    /// Over, within the grace time: the node shows a problem.
    Expired,
}

/// Judges the certificate of a connection. `known` is the node that holds its key.
pub(crate) fn judge(
    certificate: Option<&PeerCertificate>,
    known: Option<(NodeId, &NodeRow)>,
    edge: &EdgeId,
    now: Wall,
) -> Result<Good, Error> {
    let Some(certificate) = certificate else {
        return Err(refuse(
            Code::Unauthenticated,
            "CERTIFICATE_MISSING",
            "this port asks for a node's certificate; enroll this host with `umbel node enroll`",
        ));
    };
    let Some((id, row)) = known else {
        return Err(unknown(certificate, edge));
    };
    if certificate.name != Some(PeerName::Node(edge.clone(), id)) {
        return Err(refuse(
            Code::PermissionDenied,
            "CERTIFICATE_NAME",
            "the certificate names another peer than the one that holds its key; enroll this host anew",
        ));
    }
    let state = row.key(&certificate.key_hash).ok_or_else(|| unknown(certificate, edge))?;
    allowed(row, state)?;
    // A clock that is certainly wrong must not lock a site out.
    let credential = row.credential_of(&certificate.key_hash).unwrap_or(&row.credential);
    let ends = Wall(credential.not_after_unix_ms);
    let expired = now >= CLOCK_FLOOR && now > ends;
    if !expired {
        return Ok(Good::Valid);
    }
    if lost(ends, now) {
        return Err(refuse(
            Code::Unauthenticated,
            "CERTIFICATE_EXPIRED",
            "this node's certificate ended more than 30 days ago; enroll the host with a token that replaces the node",
        ));
    }
    Ok(Good::Expired)
}

/// Whether people let a node in, and this key of it.
fn allowed(row: &NodeRow, key: KeyState) -> Result<(), Error> {
    if row.lifecycle == Lifecycle::Decommissioned {
        return Err(gone_for_good().with_retry_after(MINUTES));
    }
    match key {
        KeyState::Retired(Retirement::Rotated) => Err(refuse(
            Code::Unauthenticated,
            "CREDENTIAL_RETIRED",
            "this node has a newer key than the one shown: an old copy of its state directory; use the newer one, or \
             enroll the host with a token that replaces the node",
        )),
        KeyState::Retired(Retirement::Replaced) => Err(refuse(
            Code::Unauthenticated,
            "CREDENTIAL_REPLACED",
            "another enrollment took this node's place; if this host is wanted too, enroll it with a token of its own",
        )),
        KeyState::InUse | KeyState::Pending if row.lifecycle == Lifecycle::Disabled => Err(refuse(
            Code::PermissionDenied,
            "NODE_DISABLED",
            "this node is disabled at its edge; an operator can enable it again",
        )
        .with_retry_after(ENABLED_SOON)),
        _ if row.credential.revoked_at_unix_ms.is_some() => Err(refuse(
            Code::Unauthenticated,
            "CREDENTIAL_REVOKED",
            "this node's credential was revoked; enroll the host with a token that replaces the node",
        )),
        KeyState::InUse | KeyState::Pending => Ok(()),
    }
}

fn unknown(certificate: &PeerCertificate, edge: &EdgeId) -> Error {
    match &certificate.name {
        Some(PeerName::Node(other, _)) if other != edge => refuse(
            Code::Unauthenticated,
            "CERTIFICATE_FOREIGN",
            format!(
                "this certificate is of site {other}, and this is site {edge}: dial the edge that enrolled this \
                 host, or enroll it here with a state directory of its own"
            ),
        ),
        Some(PeerName::Edge(_)) => refuse(
            Code::Unauthenticated,
            "CERTIFICATE_KIND",
            "this is the nodes' port, and the certificate is an edge's; edges dial their control plane",
        ),
        _ => refuse(
            Code::Unauthenticated,
            "CERTIFICATE_UNKNOWN",
            "this edge does not know this node's key; enroll the host with `umbel node enroll`",
        ),
    }
}

fn refuse(code: Code, reason: &'static str, message: impl Into<String>) -> Error {
    Error::new(code, reason, message).with_retry_after(MINUTES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use umbel_wire::KeyHash;

    use super::super::registry::node::Credential;
    use super::*;

    fn row(lifecycle: Lifecycle, not_after: Wall, revoked: bool) -> NodeRow {
        let credential = Credential {
            key_sha256: KeyHash([7; 32]).to_string(),
            not_after_unix_ms: not_after.unix_ms(),
            revoked_at_unix_ms: revoked.then_some(5),
            issued_at_unix_ms: 1,
            issuer: String::new(),
        };
        NodeRow { lifecycle, eligible: true, ..NodeRow::enrolled("n", "t", credential, Wall(1)) }
    }

    fn certificate(name: Option<PeerName>) -> PeerCertificate {
        PeerCertificate {
            key_hash: KeyHash([7; 32]),
            serial: "01".into(),
            name,
            not_before: Wall(0),
            not_after: Wall(0),
        }
    }

    #[test]
    fn every_refusal_has_its_own_reason() {
        let edge = EdgeId::parse("ber1").unwrap();
        let other = EdgeId::parse("muc1").unwrap();
        let id = NodeId::random();
        let now = CLOCK_FLOOR + Duration::from_secs(1_000_000);
        let later = now + Duration::from_secs(1);
        let good = certificate(Some(PeerName::Node(edge.clone(), id)));
        let ask = |certificate: Option<&PeerCertificate>, row: Option<&NodeRow>| {
            judge(certificate, row.map(|row| (id, row)), &edge, now)
        };
        let reason = |result: Result<Good, Error>| result.unwrap_err().reason.into_owned();

        let fine = row(Lifecycle::Enrolled, later, false);
        assert_eq!(ask(Some(&good), Some(&fine)).unwrap(), Good::Valid);
        assert_eq!(reason(ask(None, None)), "CERTIFICATE_MISSING");
        assert_eq!(reason(ask(Some(&good), None)), "CERTIFICATE_UNKNOWN");
        let foreign = certificate(Some(PeerName::Node(other, id)));
        assert_eq!(reason(ask(Some(&foreign), None)), "CERTIFICATE_FOREIGN");
        let edges = certificate(Some(PeerName::Edge(edge.clone())));
        assert_eq!(reason(ask(Some(&edges), None)), "CERTIFICATE_KIND");
        assert_eq!(reason(ask(Some(&certificate(None)), Some(&fine))), "CERTIFICATE_NAME");
        let disabled = row(Lifecycle::Disabled, later, false);
        assert_eq!(reason(ask(Some(&good), Some(&disabled))), "NODE_DISABLED");
        let gone = row(Lifecycle::Decommissioned, later, false);
        assert_eq!(ask(Some(&good), Some(&gone)).unwrap_err().code, Code::Gone);
        let revoked = row(Lifecycle::Enrolled, later, true);
        assert_eq!(reason(ask(Some(&good), Some(&revoked))), "CREDENTIAL_REVOKED");
        let expired = row(Lifecycle::Enrolled, Wall(now.unix_ms() - 1), false);
        assert_eq!(ask(Some(&good), Some(&expired)).unwrap(), Good::Expired);
        let ended = row(Lifecycle::Enrolled, Wall(now.unix_ms() - 31 * 24 * 3_600_000), false);
        assert_eq!(reason(ask(Some(&good), Some(&ended))), "CERTIFICATE_EXPIRED");
        let mut rotated = row(Lifecycle::Enrolled, later, false);
        let next = |byte| Credential {
            key_sha256: KeyHash([byte; 32]).to_string(),
            not_after_unix_ms: later.unix_ms(),
            ..Credential::default()
        };
        rotated.pending = Some(next(8));
        assert_eq!(
            ask(Some(&good), Some(&rotated)).unwrap(),
            Good::Valid,
            "both open until the new one is shown"
        );
        let newer = PeerCertificate { key_hash: KeyHash([8; 32]), ..good.clone() };
        assert_eq!(ask(Some(&newer), Some(&rotated)).unwrap(), Good::Valid);
        assert!(rotated.promote(1) && !rotated.promote(2));
        assert_eq!(reason(ask(Some(&good), Some(&rotated))), "CREDENTIAL_RETIRED");
        assert_eq!(ask(Some(&newer), Some(&rotated)).unwrap(), Good::Valid);
        let mut replaced = row(Lifecycle::Disabled, later, true);
        replaced.replace("t2".into(), next(9), 1);
        assert_eq!(reason(ask(Some(&good), Some(&replaced))), "CREDENTIAL_REPLACED");
        // Row 19: with a clock from before this program, nothing is called expired.
        assert_eq!(judge(Some(&good), Some((id, &ended)), &edge, Wall(0)).unwrap(), Good::Valid);
    }
}
