//! Edges joining: a token is claimed, a certificate signed and an identity written in one conditional commit.
//!
//! Invariant: of any number that try one token at once exactly one gets in (the store's precondition decides), and
//! the same key gets the same bytes again.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message;
use umbel_contracts::proto::control::{EdgeEnrollRequest, EdgeEnrollResponse};
use umbel_store::CommitError;
use umbel_wire::ca::{CLIENT_VALIDITY, request_key_hash};
use umbel_wire::error::{Code, Error};
use umbel_wire::guesses::host_of;
use umbel_wire::ids::{EdgeId, KeyHash};
use umbel_wire::secret::Secret;
use umbel_wire::token::is_token_id;
use umbel_wire::{Newcomer, clock};

use super::edges::rejection;
use super::plane::{Plane, unreadable};
use crate::core::edges::EDGES_MAX;
use crate::core::enrollments::{ENROLLMENTS, EnrollmentRow, Judged, judge};
use crate::core::identities::{self, Signed};
use crate::core::views::clip;

/// Tries of one request when another one's commit came between: the second finds the token used.
const TRIES: usize = 3;

/// Answers or rejects a newcomer that enrolls.
pub(super) async fn answer(plane: Arc<Plane>, newcomer: Newcomer) {
    let address = host_of(newcomer.address().ip());
    let wait = plane.guesses.lock().unwrap_or_else(PoisonError::into_inner).wait(&address, clock::now());
    let answered = match wait {
        Some(wait) => Err(too_many(wait)),
        None => enroll(&plane, &newcomer).await,
    };
    match answered {
        Ok(response) => {
            plane.metrics.enrolled.inc();
            newcomer.answer(response.encode_to_vec());
        }
        Err(error) => {
            plane.metrics.refused("enroll", &error);
            if error.code == Code::Unauthenticated {
                plane.guesses.lock().unwrap_or_else(PoisonError::into_inner).wrong(address, clock::now());
            }
            if let Some(repeats) = plane.refusal_is_news(newcomer.address(), &error) {
                tracing::warn!(address = %newcomer.address(), code = error.code.name(), reason = %error.reason, repeats,
                    "an enrollment was refused");
            }
            let rejection = rejection(error, &newcomer);
            newcomer.reject(rejection);
        }
    }
}

fn too_many(wait: Duration) -> Error {
    Error::new(
        Code::ResourceExhausted,
        "TOO_MANY_GUESSES",
        "Too many wrong tokens came from this address. Wait a minute and check the token.",
    )
    .with_retry_after(wait)
}

/// A request, taken apart and found well-formed.
struct Asked {
    token_id: String,
    secret: Secret,
    edge_id: String,
    display_name: String,
    signing_request: Vec<u8>,
    key: KeyHash,
}

async fn enroll(plane: &Arc<Plane>, newcomer: &Newcomer) -> Result<EdgeEnrollResponse, Error> {
    // An edge too old or too new to say hello afterwards is told so before its token is spent.
    umbel_wire::negotiate(umbel_contracts::CONTROL_PROTOCOL, newcomer.hello().versions).map_err(
        |verdict| {
            let message =
                format!("The edge's protocol does not fit ({}). Upgrade the older side.", verdict.name());
            Error::new(Code::Conflict, "VERSION_INCOMPATIBLE", message)
        },
    )?;
    let asked = asked(&newcomer.hello().payload)?;
    for _ in 0..TRIES {
        if let Some(response) = attempt(plane, &asked).await? {
            return Ok(response);
        }
    }
    Err(Error::new(Code::Conflict, "TOKEN_BUSY", "Others use this token at the same time. Try again.")
        .with_retry_after(Duration::from_secs(1)))
}

fn asked(payload: &[u8]) -> Result<Asked, Error> {
    let wrong = |reason: &'static str, message: &str| Error::new(Code::InvalidArgument, reason, message);
    let request: EdgeEnrollRequest = umbel_contracts::bounds::decode(payload)?;
    if request.edge_id.is_empty() {
        return Err(wrong(
            "EDGE_ID_EMPTY",
            "The request names no edge_id. Set [edge] site in the edge's file.",
        ));
    }
    if let Err(error) = EdgeId::parse(&request.edge_id) {
        return Err(wrong("EDGE_ID_MALFORMED", &format!("{error}.")));
    }
    let secret = Secret::from_slice(&request.token_secret)
        .ok_or_else(|| wrong("TOKEN_MALFORMED", "The token's secret has not 32 bytes."))?;
    if !is_token_id(&request.token_id) {
        return Err(wrong("TOKEN_MALFORMED", "The token's id is malformed."));
    }
    let key = request_key_hash(&request.signing_request)
        .map_err(|error| wrong("SIGNING_REQUEST_MALFORMED", &format!("{error}.")))?;
    Ok(Asked {
        token_id: request.token_id,
        secret,
        edge_id: request.edge_id,
        display_name: clip(&request.display_name),
        signing_request: request.signing_request,
        key,
    })
}

/// One try; `None` if something else was committed in between.
async fn attempt(plane: &Arc<Plane>, asked: &Asked) -> Result<Option<EdgeEnrollResponse>, Error> {
    let stored = plane.store().get(ENROLLMENTS, asked.token_id.as_str()).await.map_err(unreadable)?;
    let row = stored.as_ref().map(umbel_store::Row::json::<EnrollmentRow>).transpose().map_err(unreadable)?;
    let now = plane.clock.now();
    let (edge_id, enrolled) = {
        let fleet = plane.fleet();
        let edge_id = EdgeId::parse(&asked.edge_id)
            .map_err(|error| Error::new(Code::InvalidArgument, "EDGE_ID_MALFORMED", error.to_string()))?;
        let enrolled = fleet.edges.get(&edge_id).cloned();
        if enrolled.is_none() && fleet.edges.len() >= EDGES_MAX {
            return Err(Error::new(
                Code::ResourceExhausted,
                "TOO_MANY_EDGES",
                format!("This control plane has {EDGES_MAX} edges, which is the most."),
            ));
        }
        (edge_id, enrolled)
    };
    let judged = judge(now, row.as_ref(), &asked.edge_id, &asked.secret, &asked.key, enrolled.as_ref());
    let (row, position) = match (judged, row, stored) {
        (Judged::Sign, Some(row), Some(stored)) => (row, stored.position),
        (Judged::Replay(claim), ..) => {
            return Ok(Some(response(plane, &asked.edge_id, claim.certificate_chain)));
        }
        (Judged::Refused { error, truth }, ..) => {
            if let Some(truth) = truth {
                tell_refusal(plane, asked, truth);
            }
            return Err(error);
        }
        // A token that may be signed for was read; the compiler cannot know.
        (Judged::Sign, ..) => return Ok(None),
    };
    let issued =
        plane.keys.authority.sign_edge(&asked.signing_request, &edge_id, now, CLIENT_VALIDITY).map_err(
            |error| Error::new(Code::InvalidArgument, "SIGNING_REQUEST_REFUSED", format!("{error}.")),
        )?;
    let signed = Signed { key: issued.key_hash, chain: issued.chain.clone(), not_after: issued.not_after };
    let (edge, commit) =
        identities::claimed((row, position), enrolled.as_ref(), &asked.display_name, &signed, now);
    match plane.store().commit(commit).await {
        Ok(position) => {
            plane.metrics.audited.inc();
            plane.fleet().edges.apply(edge, position);
            plane.witness().forget(&edge_id);
            tracing::info!(edge = %edge_id, token = %asked.token_id, "edge enrolled");
            plane.tell(&edge_id, "edge_enrolled", None, "The edge was enrolled.");
            Ok(Some(response(plane, &asked.edge_id, issued.chain)))
        }
        Err(CommitError::Conflict(_)) => Ok(None),
        Err(error) => {
            tracing::error!("an enrollment cannot be written: {error}");
            Err(Error::new(
                Code::InsufficientStorage,
                "STORE_READ_ONLY",
                "The control plane's store cannot be written now. The token is still good: try again later.",
            )
            .with_retry_after(Duration::from_secs(30)))
        }
    }
}

fn response(plane: &Plane, edge_id: &str, certificate_chain: Vec<Vec<u8>>) -> EdgeEnrollResponse {
    let leaf = certificate_chain.first().and_then(|der| umbel_wire::peer::PeerCertificate::parse(der).ok());
    EdgeEnrollResponse {
        edge_id: edge_id.to_owned(),
        control_plane_id: plane.settings.name.clone(),
        not_after_unix_ms: leaf.map_or(0, |leaf| leaf.not_after.unix_ms()),
        certificate_chain,
        ca_certificate: plane.keys.authority.certificate_der().to_vec(),
    }
}

/// Audits why a known token was refused; anybody can try as often as he likes, so that repeats are folded.
fn tell_refusal(plane: &Plane, asked: &Asked, truth: &'static str) {
    plane.audit_soon(&identities::by_token(&asked.token_id, &asked.edge_id, format!("refused: {truth}")));
}
