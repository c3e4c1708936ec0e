//! A host becomes a node, as `shell/nodes/enrollment.rs` does it, in steps.
//!
//! A signing request is the 32 bytes of the key's hash and a certificate is the same again: nothing is signed here.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::proto::node::{NodeEnrollRequest, NodeEnrollResponse};
use umbel_store::simulation::Disk;
use umbel_store::{AuditRecord, CommitError, Position};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::{self, Claim, ClaimRow, Refusal};
use umbel_wire::io::accept::HelloIn;
use umbel_wire::secret::Secret;
use umbel_wire::{Code, Error, KeyHash, NodeId, ca};

use super::authority::certificate;
use super::connections::State;
use super::disk::{Enrolling, Then};
use super::{ENROLLMENTS, Edge, LinkId, NODES};
use crate::core::door;
use crate::core::enrollment::EnrollmentRow;
use crate::core::enrollment::claim::{self, Claimant, Claimed, Place};
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
        if let Some(wait) = self.guesses.wait(&ADDRESS, now) {
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
        let mut judged = enroll::claim(wall, row.as_ref().map(|(row, _)| &row.token), &secret, &key);
        if self.is("a used token opens again") && judged == Claim::Conflict {
            judged = Claim::Fresh;
        }
        match (judged, row) {
            (Claim::Fresh, Some((row, position))) if tries < 3 => {
                let place = match claim::place(&self.registry, &row, &key) {
                    Ok(place) => place,
                    Err(error) => return self.refuse(link, error),
                };
                let (id, known) = match &place {
                    Place::New => (self.node_id(), false),
                    Place::Again(node) | Place::Of(node) => (node.id, true),
                };
                let (credential, chain) = (self.credential(key, wall), vec![key.0.to_vec()]);
                let name = self.registry.free_name(id, &row.name);
                let claimant =
                    Claimant { row: &row, position, id, place, name: &name, credential, chain, wall };
                let Claimed { token, node, commit } = claim::claimed(claimant);
                let enrolling = Enrolling { link, tries, request, token, id, node, known };
                self.disk.propose(commit, Then::Enrolled(Box::new(enrolling)));
                if let Some(entry) = self.links.get_mut(&link) {
                    entry.state = State::Enrolling;
                }
            }
            (Claim::Replay(claimed), Some((token, _))) => match self.replayed(&claimed) {
                Some((id, row)) => self.hand_out(link, id, &token, &row, claimed.certificate_chain),
                None => {
                    let error = Claim::Refused(Refusal::CredentialVoid).error().unwrap_or_else(malformed);
                    self.refuse(link, error);
                }
            },
            (Claim::Refused(refusal), _) => {
                self.guesses.wrong(ADDRESS, now);
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
            self.observe(now, vec![record]);
        }
    }

    // The node of a claim, if its certificate may be given out again.
    fn replayed(&self, claimed: &ClaimRow) -> Option<(NodeId, NodeRow)> {
        let id = NodeId::parse(&claimed.subject).ok()?;
        let node = self.registry.node(&id).filter(|node| claim::may_repeat(&node.row, claimed))?;
        Some((id, node.row.clone()))
    }

    pub(super) fn enrolled(
        &mut self,
        enrolling: Enrolling,
        result: Result<Position, CommitError>,
        disk: &mut Disk,
        now: Instant,
        wall: Wall,
    ) {
        let Enrolling { link, tries, request, token, id, node, known } = enrolling;
        match result {
            Ok(position) => {
                let chain = token.token.claim.as_ref().map(|claim| claim.certificate_chain.clone());
                self.tokens.apply(token.clone(), position);
                let row = node.clone();
                let trusts = vec![self.held.row.named(&token.ca_sha256).to_owned()];
                self.change(now, |registry| {
                    if known {
                        registry.moved_host(id, node, position, trusts);
                    } else {
                        registry.insert(id, node, position, ReportRow { trusts, ..ReportRow::default() });
                    }
                });
                self.hand_out(link, id, &token, &row, chain.unwrap_or_default());
            }
            // Somebody else was faster: taken up as it stands on the disk, and judged anew.
            Err(CommitError::Conflict(_)) => {
                self.reread(&token, disk, now);
                self.try_enroll(link, request, tries + 1, now, wall);
            }
            Err(_) => {
                self.refuse(link, Error::new(Code::Unavailable, "STORE_READ_ONLY", "the token is not spent"));
            }
        }
    }

    fn reread(&mut self, token: &EnrollmentRow, disk: &mut Disk, now: Instant) {
        if let Ok(Some(stored)) = disk.get(ENROLLMENTS, &token.token.token_id)
            && let Ok(row) = stored.json::<EnrollmentRow>()
        {
            self.tokens.apply(row, stored.position);
        }
        let Some(node) = token.replaces.as_deref().and_then(|id| NodeId::parse(id).ok()) else { return };
        if let Ok(Some(stored)) = disk.get(NODES, &node.to_string())
            && let Ok(row) = stored.json::<NodeRow>()
        {
            self.change(now, |registry| registry.reread(node, row, stored.position));
        }
    }

    fn hand_out(
        &mut self,
        link: LinkId,
        id: NodeId,
        token: &EnrollmentRow,
        row: &NodeRow,
        certificate_chain: Vec<Vec<u8>>,
    ) {
        let response = NodeEnrollResponse {
            node_id: id.to_string(),
            edge_id: self.setup.edge_id.to_string(),
            name: row.name.clone(),
            certificate_chain,
            ca_certificate: certificate(self.held.row.named(&token.ca_sha256)),
            not_after_unix_ms: row.credential.not_after_unix_ms,
        };
        if let Some(entry) = self.links.get_mut(&link) {
            entry.end.answer(response.encode_to_vec());
            entry.state = State::Over;
        }
    }
}

impl Edge {
    /// The credential of a key that is signed now.
    pub(super) fn credential(&self, key: KeyHash, wall: Wall) -> Credential {
        let validity: Duration = ca::CLIENT_VALIDITY;
        Credential {
            key_sha256: key.to_string(),
            not_after_unix_ms: (wall + validity).unix_ms(),
            revoked_at_unix_ms: None,
            issued_at_unix_ms: wall.unix_ms(),
            issuer: self.held.row.signing.clone(),
        }
    }
}
