//! The beginning of each request: what is asked for, who asks, and whether its body comes.
//!
//! Owns the order of checks, and everything that needs no engine. Leaves paths to [`super::routes`], bodies to
//! [`super::body`], and what an engine is asked for to [`super::inference`]. Invariants: no slot is taken before
//! caller and body are there; every request is answered, and every answer has its id.

use std::future::Future;
use std::sync::Arc;

use http::header::HeaderValue;
use http::request::Parts;
use http::{Method, Request, Response};
use umbel_wire::clock;

use super::answer::{Answer, Answered};
use super::body::{Announced, Held, Text, collect, discard};
use super::connection::{Peer, Upload};
use super::error::Failure;
use super::exchange::Arrived;
use super::headers::Said;
use super::inference::{Inference, Opening};
use super::routes::endpoint;
use super::{Front, headers, health, limits, models};
use crate::core::keys::{Caller, KeyRefusal};
use crate::metrics::{Route, UNKNOWN_MODEL};

/// How a request begins: what its head comes to, before anything of its body is read.
enum Begun {
    /// Its body has no sure end.
    Ambiguous,
    /// It asks for no inference.
    Beside(Box<Parts>),
    /// It is refused, and who it is all the same.
    Refused { route: Route, failure: Box<Failure>, caller: Option<Caller> },
    /// An engine is to be asked.
    Inference(Opening),
}

/// Answers one request. What the future holds is held as long as the request waits, so it takes the request apart before.
pub(super) fn answer(
    front: Arc<Front>,
    peer: Arc<Peer>,
    request: Request<Upload>,
) -> impl Future<Output = Answered> {
    let arrived = Arrived::now();
    let request_id = front.request_ids.of(arrived.at_wall, request.headers());
    let (parts, body) = request.into_parts();
    let said = Said::of(&parts.headers);
    let announced = Announced::of(&said);
    let mut begun = if said.is_ambiguous(parts.version) {
        Begun::Ambiguous
    } else if let Some(endpoint) = endpoint(parts.uri.path()) {
        let caller = caller(&front, &peer, &parts, &said);
        match (caller, not_now(&front, &parts)) {
            (Ok(caller), None) => {
                Begun::Inference(Opening::new(endpoint, caller, arrived, &parts, &said, &request_id))
            }
            (Ok(caller), Some(failure)) => {
                Begun::Refused { route: endpoint.route, failure: Box::new(failure), caller: Some(caller) }
            }
            (Err(refusal), failure) => {
                let failure = failure.unwrap_or_else(|| Failure::key(refusal));
                Begun::Refused { route: endpoint.route, failure: Box::new(failure), caller: None }
            }
        }
    } else {
        Begun::Beside(Box::new(parts))
    };
    async move {
        let mut response = match &mut begun {
            // Nothing behind it is read.
            Begun::Ambiguous => refuse(&front, Route::Other, &Failure::malformed()),
            Begun::Beside(parts) => {
                discard(body, announced).await;
                beside(&front, &peer, parts)
            }
            Begun::Refused { route, failure, caller } => {
                discard(body, announced).await;
                refuse_told(&front, *route, failure, caller.as_ref())
            }
            Begun::Inference(opening) => {
                let (mut held, mut text) = (Held::new(&front, opening.caller.key()), Text::default());
                let mut inference =
                    Inference { front: &front, peer: &peer, request_id: &request_id, opening };
                if let Err(failure) = collect(&front, body, announced, &mut held, &mut text).await {
                    inference.refuse(&failure)
                } else {
                    inference.run(&mut text, &mut held).await
                }
            }
        };
        response.headers_mut().insert(headers::REQUEST_ID, request_id);
        Ok(response)
    }
}

/// Why nobody is served on an engine's route like this, or now.
fn not_now(front: &Front, parts: &Parts) -> Option<Failure> {
    if parts.method != Method::POST {
        return Some(Failure::method_not_allowed("POST"));
    }
    front.is_draining().then(Failure::draining)
}

/// Everything but inference: models, health, and what does not exist.
fn beside(front: &Arc<Front>, peer: &Peer, parts: &Parts) -> Response<Answer> {
    let path = parts.uri.path();
    if let Some(response) = health::answer(front, &parts.method, path, parts.uri.query()) {
        return response;
    }
    let Some(id) = models::requested(path) else {
        let caller = caller(front, peer, parts, &Said::of(&parts.headers)).ok();
        return refuse_told(front, Route::Other, &Failure::unknown_url(), caller.as_ref());
    };
    match caller(front, peer, parts, &Said::of(&parts.headers)) {
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
            limits::tell(&caller.standing(clock::now()), response.headers_mut());
            response
        }
    }
}

fn caller(front: &Front, peer: &Peer, parts: &Parts, said: &Said<'_>) -> Result<Caller, KeyRefusal> {
    let authorization = said.authorization.map(HeaderValue::as_bytes);
    // A proxy on this host speaks for callers elsewhere, and so does a web page.
    let of_this_host = || peer.is_loopback && headers::is_of_this_host(&parts.headers);
    front.keys.check_again(&peer.shown, authorization, of_this_host)
}

/// A refusal of a caller who may be known: every answer to a limited key says where it stands.
fn refuse_told(front: &Front, route: Route, failure: &Failure, caller: Option<&Caller>) -> Response<Answer> {
    let mut response = refuse(front, route, failure);
    if let Some(caller) = caller {
        limits::tell(&caller.standing(clock::now()), response.headers_mut());
    }
    response
}

/// A refusal before the model is known.
pub(super) fn refuse(front: &Front, route: Route, failure: &Failure) -> Response<Answer> {
    front.metrics.answered(route, UNKNOWN_MODEL, failure.status.as_u16());
    front.metrics.rejected(UNKNOWN_MODEL, failure.reason);
    failure.response()
}
