//! A host becomes a node: one token, one key, one conditional write.
//!
//! Owns the exchange and the audit of refusals. Leaves the token's rules to `umbel_wire::enroll`, what a claim writes to
//! `core/enrollment/claim.rs`. Invariant: whoever changes the token's row wins; unknown, expired and revoked look the
//! same from outside and cost the same.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message;
use umbel_contracts::bounds;
use umbel_contracts::proto::node::{NodeEnrollRequest, NodeEnrollResponse};
use umbel_store::{AuditRecord, CommitError, Position};
use umbel_wire::ca;
use umbel_wire::enroll::{Claim, ClaimRow, Refusal, claim};
use umbel_wire::guesses::host_of;
use umbel_wire::secret::Secret;
use umbel_wire::{Code, Error, KeyHash, Newcomer, NodeId, clock};

use super::rejection;
use crate::core::door;
use crate::core::enrollment::EnrollmentRow;
use crate::core::enrollment::claim::{Claimant, Claimed, Place, claimed, may_repeat, place};
use crate::core::registry::node::{Credential, NodeRow, ReportRow};
use crate::shell::events::Happened;
use crate::shell::names::Name;
use crate::shell::site::{ENROLLMENTS, NODES, Site};

/// How often a claim is proposed again when what it is about changed in the same moment.
const TRIES: usize = 8;

pub(super) async fn enroll(site: &Arc<Site>, newcomer: Newcomer) {
    if let Err(rejection) = door::protocol(newcomer.hello().versions) {
        return newcomer.reject(*rejection);
    }
    match answer(site, &newcomer).await {
        Ok(response) => newcomer.answer(response.encode_to_vec()),
        Err(error) => {
            if let Some(repeats) = site.refusal_is_news(newcomer.address(), &error) {
                tracing::info!(address = %newcomer.address(), reason = %error.reason, repeats, "an enrollment was refused");
            }
            let rejection = rejection(&newcomer, error);
            newcomer.reject(rejection);
        }
    }
}

async fn answer(site: &Arc<Site>, newcomer: &Newcomer) -> Result<NodeEnrollResponse, Error> {
    let address = host_of(newcomer.address().ip());
    let wait = site.guesses.lock().unwrap_or_else(PoisonError::into_inner).wait(&address, clock::now());
    wait.map_or(Ok(()), |wait| Err(too_many(wait)))?;
    let request = bounds::decode::<NodeEnrollRequest>(&newcomer.hello().payload)?;
    let rival = (address, request.token_id.clone());
    let wait = site.spent.lock().unwrap_or_else(PoisonError::into_inner).wait(&rival, clock::now());
    wait.map_or(Ok(()), |wait| Err(too_many(wait)))?;
    let secret = Secret::from_slice(&request.token_secret).ok_or_else(malformed)?;
    let signing = ca::Request::read(&request.signing_request).map_err(|error| {
        Error::new(
            Code::InvalidArgument,
            "SIGNING_REQUEST",
            format!("the signing request is not usable: {error}"),
        )
    })?;
    let key = signing.key_hash();
    let asked = Asked { request, signing, secret, key };
    if !matches!(ruled(site, &asked), Claim::Fresh) {
        return settled(site, newcomer, &asked);
    }
    // Rivals for one token, and a host's own second try, wait here instead of signing what cannot win. The token's turn
    // comes first everywhere, and who has a key's waits for no token's.
    let _token = site.turns.take(asked.request.token_id.clone()).await;
    let _key = site.turns.take(asked.key.to_string()).await;
    for _ in 0..TRIES {
        let (Claim::Fresh, Some((row, position))) = judged(site, &asked) else {
            return settled(site, newcomer, &asked);
        };
        match fresh(site, &asked, &row, position).await {
            Ok(Some(response)) => return Ok(response),
            // It or the node that it replaces was changed in the same moment: judged anew, as it stands on disk.
            Ok(None) => reread(site, &row).await,
            Err(error) => {
                audit_refusal(site, &asked.request.token_id, &error.reason.to_lowercase());
                return Err(error);
            }
        }
    }
    let message = "the node that this token replaces changes all the time; the token is not spent, try again";
    Err(Error::new(Code::Unavailable, "CHANGED_MEANWHILE", message))
}

/// What a host asks for.
struct Asked {
    request: NodeEnrollRequest,
    signing: ca::Request,
    secret: Secret,
    key: KeyHash,
}

/// What the token's rules say now.
fn ruled(site: &Site, asked: &Asked) -> Claim {
    let tokens = site.tokens.lock().unwrap_or_else(PoisonError::into_inner);
    let row = tokens.get(&asked.request.token_id).map(|(row, _)| &row.token);
    claim(site.wall(), row, &asked.secret, &asked.key)
}

/// The same, and the row that it is said of.
fn judged(site: &Site, asked: &Asked) -> (Claim, Option<(EnrollmentRow, Position)>) {
    let id = &asked.request.token_id;
    let row = site.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
    let claim = claim(site.wall(), row.as_ref().map(|(row, _)| &row.token), &asked.secret, &asked.key);
    (claim, row)
}

/// The answer where nothing is to be written.
fn settled(site: &Site, newcomer: &Newcomer, asked: &Asked) -> Result<NodeEnrollResponse, Error> {
    let id = &asked.request.token_id;
    let (claim, row) = judged(site, asked);
    match (&claim, row) {
        (Claim::Replay(claimed), Some((row, _))) => replay(site, &row, claimed).ok_or_else(|| {
            let void = Refusal::CredentialVoid;
            refused(site, newcomer, id, void, true);
            Claim::Refused(void).error().unwrap_or_else(malformed)
        }),
        (Claim::Refused(refusal), row) => {
            refused(site, newcomer, id, *refusal, row.is_some());
            Err(claim.error().unwrap_or_else(malformed))
        }
        _ => {
            let rival = (host_of(newcomer.address().ip()), id.clone());
            site.spent.lock().unwrap_or_else(PoisonError::into_inner).wrong(rival, clock::now());
            audit_refusal(site, id, "used by another key");
            Err(Claim::Conflict.error().unwrap_or_else(malformed))
        }
    }
}

/// Takes up the token and the node that it replaces as they stand on disk: whoever was faster may not have applied it.
async fn reread(site: &Site, row: &EnrollmentRow) {
    let id = row.token.token_id.clone();
    if let Ok(Some(stored)) = site.store.get(ENROLLMENTS, id).await
        && let Ok(row) = stored.json::<EnrollmentRow>()
    {
        site.tokens.lock().unwrap_or_else(PoisonError::into_inner).apply(row, stored.position);
    }
    let Some(node) = row.replaces.as_deref().and_then(|id| NodeId::parse(id).ok()) else { return };
    if let Ok(Some(stored)) = site.store.get(NODES, node.to_string()).await
        && let Ok(row) = stored.json::<NodeRow>()
    {
        site.change(|registry| registry.reread(node, row, stored.position));
    }
}

fn refused(site: &Site, newcomer: &Newcomer, token_id: &str, refusal: Refusal, known: bool) {
    // Whatever the reason: one that does not count would tell that the token was good once.
    let address = host_of(newcomer.address().ip());
    site.guesses.lock().unwrap_or_else(PoisonError::into_inner).wrong(address, clock::now());
    // An id that nobody minted is whatever a stranger wrote: it is not repeated.
    audit_refusal(site, if known { token_id } else { "unknown" }, refusal.name());
}

fn too_many(wait: Duration) -> Error {
    let message = "too many tokens from this address that open nothing; wait a minute and check the token";
    Error::new(Code::ResourceExhausted, "TOO_MANY_GUESSES", message).with_retry_after(wait)
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

/// Signs and writes. `None`: something changed in the same moment.
async fn fresh(
    site: &Arc<Site>,
    asked: &Asked,
    row: &EnrollmentRow,
    position: Position,
) -> Result<Option<NodeEnrollResponse>, Error> {
    let place = site.read(|registry| place(registry, row, &asked.key))?;
    let wall = site.wall();
    let (id, known) = match &place {
        Place::New => (NodeId::random(), false),
        Place::Again(node) | Place::Of(node) => (node.id, true),
    };
    let replaces = matches!(place, Place::Of(_));
    let held = site.authorities.held();
    let issued = held
        .signing()
        .sign_read_node(&asked.signing, &site.edge_id, id, wall, ca::CLIENT_VALIDITY)
        .map_err(|error| Error::new(Code::InvalidArgument, "SIGNING_REQUEST", error.to_string()))?;
    let credential = Credential::new(&issued, wall);
    let chain = issued.chain;
    // Another may have taken it since the token was minted. Of a node that is replaced the name stays.
    let name = (!replaces).then(|| Name::reserve_like(site, id, &row.name));
    let name = name.as_ref().map_or("", Name::as_str);
    let claimant = Claimant { row, position, id, place, name, credential, chain: chain.clone(), wall };
    let Claimed { token, node, commit } = claimed(claimant);
    let position = match site.gather.commit(commit).await {
        Ok(position) => position,
        Err(CommitError::Conflict(_)) => return Ok(None),
        Err(error) => return Err(unavailable(&error)),
    };
    site.tokens.lock().unwrap_or_else(PoisonError::into_inner).apply(token, position);
    let trusts = vec![data_encoding::HEXLOWER.encode(&held.named(&row.ca_sha256).digest())];
    let response = response(site, id, row, &node, chain);
    let (kind, what) = if replaces {
        ("node_replaced", "another host takes its place")
    } else {
        ("node_enrolled", "enrolled")
    };
    let message = format!("{}: {what}", node.name);
    site.change(|registry| {
        if known {
            registry.moved_host(id, node, position, trusts);
        } else {
            registry.insert(id, node, position, ReportRow { trusts, ..ReportRow::default() });
        }
    });
    site.events.tell(Happened { kind, node_id: id.to_string(), message, ..Happened::default() });
    Ok(Some(response))
}

// Revoked, rotated, replaced or gone since: nothing is given out again.
fn replay(site: &Site, row: &EnrollmentRow, claimed: &ClaimRow) -> Option<NodeEnrollResponse> {
    let id = NodeId::parse(&claimed.subject).ok()?;
    let node = site.read(|registry| registry.node(&id).cloned());
    let node = node.filter(|node| may_repeat(&node.row, claimed))?;
    Some(response(site, id, row, &node.row, claimed.certificate_chain.clone()))
}

fn response(
    site: &Site,
    id: NodeId,
    row: &EnrollmentRow,
    node: &NodeRow,
    certificate_chain: Vec<Vec<u8>>,
) -> NodeEnrollResponse {
    // The one that the token's text names: the host compares. The others follow with its first hello.
    let held = site.authorities.held();
    let told = held.named(&row.ca_sha256);
    NodeEnrollResponse {
        node_id: id.to_string(),
        edge_id: site.edge_id.to_string(),
        name: node.name.clone(),
        certificate_chain,
        ca_certificate: told.certificate_der().to_vec(),
        not_after_unix_ms: node.credential.not_after_unix_ms,
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
