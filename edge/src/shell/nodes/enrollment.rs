//! A host becomes a node: one token, one key, one conditional write.
//!
//! Owns the exchange and its audit. Leaves the rules of a claim to `umbel_wire::enroll`. Invariant: whoever
//! changes the token's row wins; unknown, expired and revoked look the same from outside and cost the same.

use std::sync::{Arc, PoisonError};

use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::proto::node::{NodeEnrollRequest, NodeEnrollResponse};
use umbel_store::{AuditRecord, Commit, CommitError, Position};
use umbel_wire::ca;
use umbel_wire::enroll::{Claim, ClaimRow, Refusal, claim};
use umbel_wire::secret::Secret;
use umbel_wire::{Code, Error, KeyHash, Newcomer, NodeId, clock};

use super::rejection;
use crate::core::door;
use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::{Credential, NodeRow, ReportRow};
use crate::shell::events::Happened;
use crate::shell::site::{ENROLLMENTS, NODES, Site};

pub(super) async fn enroll(site: &Arc<Site>, newcomer: Newcomer) {
    if let Err(rejection) = door::protocol(newcomer.hello().versions) {
        return newcomer.reject(*rejection);
    }
    match answer(site, &newcomer).await {
        Ok(response) => newcomer.answer(response.encode_to_vec()),
        Err(error) => {
            tracing::info!(address = %newcomer.address(), reason = %error.reason, "an enrollment was refused");
            let rejection = rejection(&newcomer, error);
            newcomer.reject(rejection);
        }
    }
}

async fn answer(site: &Arc<Site>, newcomer: &Newcomer) -> Result<NodeEnrollResponse, Error> {
    let address = newcomer.address().ip();
    let wait = site.guesses.lock().unwrap_or_else(PoisonError::into_inner).wait(address, clock::now());
    if let Some(wait) = wait {
        let message = "too many wrong tokens from this address; wait a minute and check the token";
        return Err(Error::new(Code::ResourceExhausted, "TOO_MANY_GUESSES", message).with_retry_after(wait));
    }
    let request = bounds::decode::<NodeEnrollRequest>(&newcomer.hello().payload)?;
    let secret = Secret::from_slice(&request.token_secret).ok_or_else(malformed)?;
    let key = ca::request_key_hash(&request.signing_request).map_err(|error| {
        Error::new(
            Code::InvalidArgument,
            "SIGNING_REQUEST",
            format!("the signing request is not usable: {error}"),
        )
    })?;
    // A lost race is judged anew: it is the winner's key or another's. Twice is enough, since a claim is final.
    for _ in 0..3 {
        let row = site.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(&request.token_id).cloned();
        let claim = claim(site.wall(), row.as_ref().map(|(row, _)| &row.token), &secret, &key);
        match (&claim, row) {
            (Claim::Fresh, Some((row, position))) => {
                if let Some(response) = fresh(site, &request, &key, row, position).await? {
                    return Ok(response);
                }
            }
            (Claim::Replay(claimed), Some((row, _))) => return replay(site, &row, claimed),
            (Claim::Refused(refusal), row) => {
                refused(site, newcomer, &request.token_id, *refusal, row.is_some());
                return Err(claim.error().unwrap_or_else(malformed));
            }
            _ => break,
        }
    }
    audit_refusal(site, &request.token_id, "used by another key");
    Err(Claim::Conflict.error().unwrap_or_else(malformed))
}

fn refused(site: &Site, newcomer: &Newcomer, token_id: &str, refusal: Refusal, known: bool) {
    if matches!(refusal, Refusal::Unknown | Refusal::WrongSecret) {
        let address = newcomer.address().ip();
        site.guesses.lock().unwrap_or_else(PoisonError::into_inner).wrong(address, clock::now());
    }
    // An id that nobody minted is whatever a stranger wrote: it is not repeated.
    audit_refusal(site, if known { token_id } else { "unknown" }, refusal.name());
}

fn audit_refusal(site: &Site, subject: &str, why: &str) {
    let folded = site.refusals.lock().unwrap_or_else(PoisonError::into_inner).audit(clock::now());
    let why = match folded {
        None => return,
        Some(0) => why.to_owned(),
        Some(more) => format!("{why}; {more} refusals before it have no entry of their own"),
    };
    let record = AuditRecord::new("token.refused", subject, "refused").by("edge");
    site.audit_soon(vec![record.because(why)]);
}

/// The one conditional write. `None`: somebody else was faster.
async fn fresh(
    site: &Arc<Site>,
    request: &NodeEnrollRequest,
    key: &KeyHash,
    row: EnrollmentRow,
    position: Position,
) -> Result<Option<NodeEnrollResponse>, Error> {
    if site.read(|registry| registry.by_key(key).is_some()) {
        let message = "this host's key already belongs to a node of this site; it needs no token";
        return Err(Error::new(Code::Conflict, "KEY_IN_USE", message));
    }
    let wall = site.wall();
    let id = NodeId::random();
    let held = site.authorities.held();
    let issued = held
        .signing()
        .sign_node(&request.signing_request, &site.edge_id, id, wall, ca::CLIENT_VALIDITY)
        .map_err(|error| Error::new(Code::InvalidArgument, "SIGNING_REQUEST", error.to_string()))?;
    let chain: Vec<Vec<u8>> = issued.chain.iter().map(|one| one.to_vec()).collect();
    let mut claimed = row.clone();
    claimed.token.claim = Some(ClaimRow {
        key_hash: key.to_string(),
        claimed_at_unix_ms: wall.unix_ms(),
        subject: id.to_string(),
        certificate_chain: chain.clone(),
        void: false,
    });
    let not_after = issued.not_after.unix_ms();
    let credential = Credential::new(&issued, wall);
    let node = NodeRow {
        labels: row.labels.clone(),
        eligible: row.eligible,
        ..NodeRow::enrolled(&row.name, &row.token.token_id, credential, wall)
    };
    let token_id = row.token.token_id.clone();
    let audit =
        AuditRecord::new("node.enrolled", id.to_string(), "succeeded").by(format!("token:{token_id}"));
    let commit = Commit::new()
        .require_at(ENROLLMENTS, token_id.clone(), position)
        .require_absent(NODES, id.to_string())
        .put_json(ENROLLMENTS, token_id, &claimed)
        .put_json(NODES, id.to_string(), &node)
        .audit(audit.because(format!("name {}", row.name)));
    let position = match site.store.commit(commit).await {
        Ok(position) => position,
        Err(CommitError::Conflict(_)) => return Ok(None),
        Err(error) => return Err(unavailable(&error)),
    };
    site.tokens.lock().unwrap_or_else(PoisonError::into_inner).apply(claimed, position);
    let trusts = vec![data_encoding::HEXLOWER.encode(&held.named(&row.ca_sha256).digest())];
    site.change(|registry| registry.insert(id, node, position, ReportRow { trusts, ..ReportRow::default() }));
    site.events.tell(Happened {
        kind: "node_enrolled",
        node_id: id.to_string(),
        message: format!("{}: enrolled", row.name),
        ..Happened::default()
    });
    Ok(Some(response(site, id.to_string(), &row, chain, not_after)))
}

fn replay(site: &Site, row: &EnrollmentRow, claimed: &ClaimRow) -> Result<NodeEnrollResponse, Error> {
    let id = NodeId::parse(&claimed.subject).map_err(|_| malformed())?;
    let node = site.read(|registry| registry.node(&id).cloned()).ok_or_else(malformed)?;
    // Revoked, disabled or gone since: nothing is given out again.
    let credential = &node.row.credential;
    if credential.revoked_at_unix_ms.is_some() || credential.key_sha256 != claimed.key_hash {
        return Err(Claim::Refused(Refusal::CredentialVoid).error().unwrap_or_else(malformed));
    }
    let not_after = credential.not_after_unix_ms;
    let chain = claimed.certificate_chain.clone();
    Ok(response(site, claimed.subject.clone(), row, chain, not_after))
}

fn response(
    site: &Site,
    node_id: String,
    row: &EnrollmentRow,
    certificate_chain: Vec<Vec<u8>>,
    not_after_unix_ms: i64,
) -> NodeEnrollResponse {
    // The one that the token's text names: the host compares. The others follow with its first hello.
    let held = site.authorities.held();
    let told = held.named(&row.ca_sha256);
    NodeEnrollResponse {
        node_id,
        edge_id: site.edge_id.to_string(),
        name: row.name.clone(),
        certificate_chain,
        ca_certificate: told.certificate_der().to_vec(),
        not_after_unix_ms,
    }
}

fn malformed() -> Error {
    Error::new(Code::InvalidArgument, "MALFORMED", "the enrollment does not decode; upgrade the agent")
}

fn unavailable(error: &CommitError) -> Error {
    tracing::error!(%error, "an enrollment could not be stored");
    Error::new(
        Code::Unavailable,
        "STORE_READ_ONLY",
        "the edge cannot write its store now; the token is not spent, try again when its disk has space",
    )
}
