//! The beginning of each request: what is asked for, who asks, and whether its body comes.
//!
//! Owns the order of checks, and everything that needs no engine. Leaves paths to [`super::routes`], bodies to
//! [`super::body`], and what an engine is asked for to [`super::inference`]. Invariants: no slot is taken before
//! caller and body are there; every request is answered, and every answer has its id.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, Version};

use super::answer::{Answer, Answered};
use super::body::{Announced, Held, collect, discard};
use super::connection::{Peer, Upload};
use super::error::Failure;
use super::inference::Inference;
use super::routes::endpoint;
use super::{Front, headers, health, limits, models};
use crate::core::keys::{Caller, KeyRefusal};
use crate::metrics::{Route, UNKNOWN_MODEL};

/// Answers one request. What the future holds is held as long as the request waits, so it takes the request apart before.
pub(super) fn answer(
    front: Arc<Front>,
    peer: Peer,
    request: Request<Upload>,
) -> impl Future<Output = Answered> {
    let request_id = front.request_ids.of(request.headers());
    let (parts, body) = request.into_parts();
    async move {
        let mut response = route(&front, peer, &parts, body, &request_id).await;
        response.headers_mut().insert(headers::REQUEST_ID, request_id);
        Ok(response)
    }
}

async fn route(
    front: &Arc<Front>,
    peer: Peer,
    parts: &Parts,
    body: Upload,
    request_id: &HeaderValue,
) -> Response<Answer> {
    let announced = Announced::of(&parts.headers);
    if is_ambiguous(parts) {
        // Its body has no sure end: nothing behind it is read.
        return refuse(front, Route::Other, &Failure::malformed());
    }
    let Some(endpoint) = endpoint(parts.uri.path()) else {
        discard(body, announced).await;
        return beside(front, peer, parts);
    };
    // Who asks is known before anything of the body is read.
    let caller = match (caller(front, parts, peer), not_now(front, parts)) {
        (Ok(caller), None) => caller,
        (Err(refusal), None) => {
            discard(body, announced).await;
            return refuse(front, endpoint.route, &Failure::key(refusal));
        }
        (caller, Some(failure)) => {
            discard(body, announced).await;
            return refuse_told(front, endpoint.route, &failure, caller.ok().as_ref());
        }
    };
    let mut held = Held::new(front, caller.key());
    let inference = Inference { front, endpoint, parts, request_id, caller, started: Instant::now() };
    match collect(front, body, announced, &mut held).await {
        Ok(body) => inference.run(body, held).await,
        Err(failure) => inference.refuse(&failure),
    }
}

/// Whether another server could read another request out of the same head: a host said never or twice, credentials said
/// twice, a transfer coding that is not taken off (RFC 9112, sections 3.2 and 6.1).
fn is_ambiguous(parts: &Parts) -> bool {
    let count = |name| parts.headers.get_all(name).iter().count();
    let hosts = count(header::HOST);
    let codings = parts.headers.get_all(header::TRANSFER_ENCODING);
    hosts > 1
        || (hosts == 0 && parts.version == Version::HTTP_11)
        || count(header::AUTHORIZATION) > 1
        || codings.iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        || codings.iter().count() > 1
}

/// Why nobody is served on an engine's route like this, or now.
fn not_now(front: &Front, parts: &Parts) -> Option<Failure> {
    if parts.method != Method::POST {
        return Some(Failure::method_not_allowed("POST"));
    }
    front.is_draining().then(Failure::draining)
}

/// Everything but inference: models, health, and what does not exist.
fn beside(front: &Arc<Front>, peer: Peer, parts: &Parts) -> Response<Answer> {
    let path = parts.uri.path();
    if let Some(response) = health::answer(front, &parts.method, path, parts.uri.query()) {
        return response;
    }
    let Some(id) = models::requested(path) else {
        let caller = caller(front, parts, peer).ok();
        return refuse_told(front, Route::Other, &Failure::unknown_url(), caller.as_ref());
    };
    match caller(front, parts, peer) {
        caller if parts.method != Method::GET => {
            let failure = Failure::method_not_allowed("GET");
            refuse_told(front, Route::Models, &failure, caller.ok().as_ref())
        }
        Err(refusal) => refuse(front, Route::Models, &Failure::key(refusal)),
        Ok(caller) => {
            let mut response = match models::answer(front, &caller, id) {
                Ok(response) => {
                    front.metrics.answered(Route::Models, UNKNOWN_MODEL, 200);
                    response
                }
                Err(failure) => refuse(front, Route::Models, &failure),
            };
            limits::tell(&caller.standing(Instant::now()), response.headers_mut());
            response
        }
    }
}

fn caller(front: &Front, parts: &Parts, peer: Peer) -> Result<Caller, KeyRefusal> {
    let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // A proxy on this host speaks for callers elsewhere, and so does a web page.
    front.keys.check(authorization, || peer.is_loopback && headers::is_of_this_host(&parts.headers))
}

/// A refusal of a caller who may be known: every answer to a limited key says where it stands.
fn refuse_told(front: &Front, route: Route, failure: &Failure, caller: Option<&Caller>) -> Response<Answer> {
    let mut response = refuse(front, route, failure);
    if let Some(caller) = caller {
        limits::tell(&caller.standing(Instant::now()), response.headers_mut());
    }
    response
}

/// A refusal before the model is known.
pub(super) fn refuse(front: &Front, route: Route, failure: &Failure) -> Response<Answer> {
    front.metrics.answered(route, UNKNOWN_MODEL, failure.status.as_u16());
    front.metrics.rejected(UNKNOWN_MODEL, failure.reason);
    failure.response()
}
