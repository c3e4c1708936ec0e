//! New certificates for edges, in two phases: given, then shown.
//!
//! Owns signing and storing of a pending credential, and retiring the old one at the first hello with it. Leaves the
//! rules to `core/edges`. Invariant: whatever is given is stored before it is answered, and a hello that shows it is
//! judged only after the old one is retired on disk.

use prost::Message;
use umbel_contracts::bounds::decode;
use umbel_contracts::proto::control::{EdgeCredentialRequest, EdgeCredentialResponse, EdgeHelloRequest};
use umbel_store::Commit;
use umbel_wire::Newcomer;
use umbel_wire::ca::{CLIENT_VALIDITY, request_key_hash};
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::{EdgeId, Generation};

use super::plane::Plane;
use crate::core::edges::EdgeRow;
use crate::core::identities::{self, Signed};

/// How often a row that changed in the same moment is read again.
const TRIES: usize = 4;

/// `false`: the row changed meanwhile.
async fn store(plane: &Plane, (row, commit): (EdgeRow, Commit)) -> Result<bool, Error> {
    match plane.commit(commit).await {
        Ok(position) => {
            plane.metrics.audited.inc();
            plane.fleet().edges.apply(row, position);
            Ok(true)
        }
        Err(error) if error.reason == "CHANGED_MEANWHILE" => Ok(false),
        Err(error) => Err(error),
    }
}

fn contended() -> Error {
    Error::new(Code::Unavailable, "CONTENDED", "The edge's row changes all the time. Try again.")
        .with_retry_after(std::time::Duration::from_secs(1))
}

/// A hello shows a key: if that is the pending one, the one before is retired.
pub(super) async fn shown(plane: &Plane, newcomer: &Newcomer, hello: &EdgeHelloRequest) -> Result<(), Error> {
    let (Some(certificate), Ok(edge_id)) = (newcomer.certificate(), EdgeId::parse(&hello.edge_id)) else {
        return Ok(());
    };
    // One of a version that is not spoken changes nothing.
    if umbel_wire::negotiate(umbel_contracts::CONTROL_PROTOCOL, newcomer.hello().versions).is_err() {
        return Ok(());
    }
    for _ in 0..TRIES {
        let Some(known) = plane.fleet().edges.get(&edge_id).cloned() else { return Ok(()) };
        let Some(change) = identities::shown(&known, &certificate.key_hash) else { return Ok(()) };
        if store(plane, change).await? {
            tracing::info!(edge = %edge_id, "it shows its new certificate; the one before is retired");
            return Ok(());
        }
    }
    Err(contended())
}

/// Whether an edge should ask for a new certificate now.
pub(super) fn is_due(plane: &Plane, edge_id: &EdgeId) -> bool {
    let Some(now) = plane.clock.plausible() else { return false };
    plane.fleet().edges.get(edge_id).is_some_and(|known| known.row.is_due(now.unix_ms()))
}

/// An edge asks for a certificate for a new key.
pub(super) async fn give(
    plane: &Plane,
    edge_id: &EdgeId,
    generation: Generation,
    payload: &[u8],
) -> Result<Vec<u8>, Error> {
    let request: EdgeCredentialRequest = decode(payload)?;
    let refused = |error: umbel_wire::ca::AuthorityError| {
        Error::new(Code::InvalidArgument, "SIGNING_REQUEST_REFUSED", format!("{error}."))
    };
    let key = request_key_hash(&request.signing_request).map_err(refused)?;
    for _ in 0..TRIES {
        let known = {
            let fleet = plane.fleet();
            let known = fleet.edges.get(edge_id).filter(|known| known.row.revoked.is_none()).cloned();
            let known = known.filter(|_| fleet.slots.is_current(edge_id, generation)).ok_or_else(|| {
                let message = "This connection was replaced or its credential revoked.";
                Error::new(Code::Conflict, "STALE_GENERATION", message)
            })?;
            known.row.may_have(&key, fleet.edges.holder(&key))?;
            known
        };
        let now = plane.clock.now();
        let issued = plane
            .keys
            .authority
            .sign_edge(&request.signing_request, edge_id, now, CLIENT_VALIDITY)
            .map_err(refused)?;
        let signed =
            Signed { key: issued.key_hash, chain: issued.chain.clone(), not_after: issued.not_after };
        if store(plane, identities::given(&known, &signed, now)).await? {
            return Ok(EdgeCredentialResponse {
                certificate_chain: issued.chain,
                not_after_unix_ms: issued.not_after.unix_ms(),
            }
            .encode_to_vec());
        }
    }
    Err(contended())
}
