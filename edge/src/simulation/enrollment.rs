//! A host becomes a node, as `shell/nodes/enrollment.rs` does it, in steps.
//!
//! A signing request is the 32 bytes of the key's hash and a certificate is the same again: nothing is signed here.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::proto::node::{NodeEnrollRequest, NodeEnrollResponse};
use umbel_store::{AuditRecord, Commit, CommitError, Position};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::{Claim, ClaimRow, Refusal, claim};
use umbel_wire::io::accept::HelloIn;
use umbel_wire::secret::Secret;
use umbel_wire::{Code, Error, KeyHash, NodeId, ca};

use super::connections::State;
use super::disk::{Enrolling, Then};
use super::{ENROLLMENTS, Edge, LinkId, NODES};
use crate::core::door;
use crate::core::registry::node::{Credential, NodeRow, ReportRow};

/// Everybody dials from one address: guesses of one are everybody's.
const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn malformed() -> Error {
    Error::new(Code::InvalidArgument, "MALFORMED", "the enrollment does not decode; upgrade the agent")
}

impl Edge {
    pub(super) fn enroll(&mut self, link: LinkId, said: HelloIn, now: Instant, wall: Wall) {
        if let Err(rejection) = door::protocol(said.versions) {
            return self.refuse(link, rejection.error);
        }
        if let Some(wait) = self.guesses.wait(ADDRESS, now) {
            let error =
                Error::new(Code::ResourceExhausted, "TOO_MANY_GUESSES", "wait").with_retry_after(wait);
            return self.refuse(link, error);
        }
        match bounds::decode::<NodeEnrollRequest>(&said.payload) {
            Ok(request) => self.try_enroll(link, request, 0, now, wall),
            Err(error) => self.refuse(link, error),
        }
    }

    fn try_enroll(&mut self, link: LinkId, request: NodeEnrollRequest, tries: u32, now: Instant, wall: Wall) {
        let Some(secret) = Secret::from_slice(&request.token_secret) else {
            return self.refuse(link, malformed());
        };
        let Ok(key) = <[u8; 32]>::try_from(request.signing_request.as_slice()).map(KeyHash) else {
            return self.refuse(link, malformed());
        };
        let row = self.tokens.get(&request.token_id).cloned();
        let mut judged = claim(wall, row.as_ref().map(|(row, _)| &row.token), &secret, &key);
        if self.is("a used token opens again") && judged == Claim::Conflict {
            judged = Claim::Fresh;
        }
        match (judged, row) {
            (Claim::Fresh, Some((mut row, position))) if tries < 3 => {
                if self.registry.by_key(&key).is_some() {
                    let error =
                        Error::new(Code::Conflict, "KEY_IN_USE", "this key already belongs to a node");
                    return self.refuse(link, error);
                }
                let id = self.node_id();
                let chain = vec![key.0.to_vec()];
                let name = row.name.clone();
                row.token.claim = Some(ClaimRow {
                    key_hash: key.to_string(),
                    claimed_at_unix_ms: wall.unix_ms(),
                    subject: id.to_string(),
                    certificate_chain: chain.clone(),
                    void: false,
                });
                let mut node = NodeRow::enrolled(&name, &row.token.token_id, credential(key, wall), wall);
                node.labels.clone_from(&row.labels);
                node.eligible = row.eligible;
                let token_id = row.token.token_id.clone();
                let commit = Commit::new()
                    .require_at(ENROLLMENTS, token_id.clone(), position)
                    .require_absent(NODES, id.to_string())
                    .put_json(ENROLLMENTS, token_id, &row)
                    .put_json(NODES, id.to_string(), &node)
                    .audit(AuditRecord::new("node.enrolled", id.to_string(), "succeeded"));
                let enrolling = Enrolling { link, tries, request, claimed: row, id, node, chain };
                self.disk.propose(commit, Then::Enrolled(Box::new(enrolling)));
                if let Some(entry) = self.links.get_mut(&link) {
                    entry.state = State::Enrolling;
                }
            }
            (Claim::Replay(claimed), Some((row, _))) => match self.replayed(&claimed) {
                Some(not_after) => {
                    let (id, chain) = (claimed.subject.clone(), claimed.certificate_chain);
                    self.hand_out(link, id, row.name, chain, not_after);
                }
                None => {
                    let error = Claim::Refused(Refusal::CredentialVoid).error().unwrap_or_else(malformed);
                    self.refuse(link, error);
                }
            },
            (Claim::Refused(refusal), _) => {
                if matches!(refusal, Refusal::Unknown | Refusal::WrongSecret) {
                    self.guesses.wrong(ADDRESS, now);
                }
                self.audit_refusal(refusal.name(), now);
                self.refuse(link, Claim::Refused(refusal).error().unwrap_or_else(malformed));
            }
            _ => {
                self.audit_refusal("used by another key", now);
                self.refuse(link, Claim::Conflict.error().unwrap_or_else(malformed));
            }
        }
    }

    fn audit_refusal(&mut self, why: &str, now: Instant) {
        if self.refusals.audit(now).is_some() {
            let record = AuditRecord::new("token.refused", "token", "refused").because(why);
            self.disk.propose(Commit::new().audit(record), Then::Nothing);
        }
    }

    // Until when the credential of a claim holds, if it may be given out again.
    fn replayed(&self, claimed: &ClaimRow) -> Option<i64> {
        let node = self.registry.node(&NodeId::parse(&claimed.subject).ok()?)?;
        let credential = &node.row.credential;
        let same = credential.revoked_at_unix_ms.is_none() && credential.key_sha256 == claimed.key_hash;
        same.then_some(credential.not_after_unix_ms)
    }

    pub(super) fn enrolled(
        &mut self,
        enrolling: Enrolling,
        result: Result<Position, CommitError>,
        now: Instant,
        wall: Wall,
    ) {
        let Enrolling { link, tries, request, claimed, id, node, chain } = enrolling;
        match result {
            Ok(position) => {
                let (name, not_after) = (claimed.name.clone(), node.credential.not_after_unix_ms);
                self.tokens.apply(claimed, position);
                self.change(now, |registry| registry.insert(id, node, position, ReportRow::default()));
                self.hand_out(link, id.to_string(), name, chain, not_after);
            }
            // Somebody else was faster: judged anew.
            Err(CommitError::Conflict(_)) => self.try_enroll(link, request, tries + 1, now, wall),
            Err(_) => {
                self.refuse(link, Error::new(Code::Unavailable, "STORE_READ_ONLY", "the token is not spent"));
            }
        }
    }

    fn hand_out(
        &mut self,
        link: LinkId,
        node_id: String,
        name: String,
        certificate_chain: Vec<Vec<u8>>,
        not_after_unix_ms: i64,
    ) {
        let response = NodeEnrollResponse {
            node_id,
            edge_id: self.setup.edge_id.to_string(),
            name,
            certificate_chain,
            ca_certificate: Vec::new(),
            not_after_unix_ms,
        };
        if let Some(entry) = self.links.get_mut(&link) {
            entry.end.answer(response.encode_to_vec());
            entry.state = State::Over;
        }
    }
}

/// The credential of a key that is signed now.
pub(super) fn credential(key: KeyHash, wall: Wall) -> Credential {
    let validity: Duration = ca::CLIENT_VALIDITY;
    Credential {
        key_sha256: key.to_string(),
        not_after_unix_ms: (wall + validity).unix_ms(),
        revoked_at_unix_ms: None,
        issued_at_unix_ms: wall.unix_ms(),
        issuer: String::new(),
    }
}
