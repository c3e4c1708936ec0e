//! The beginning of each request: what is asked for, who asks, and whether its body comes.
//!
//! Owns the order of checks, and everything that needs no engine. Leaves paths to [`super::routes`], bodies to
//! [`super::body`], and what an engine is asked for to [`super::inference`]. Invariants: no slot is taken before
//! caller and body are there; every request is answered, and every answer has its id.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use http::{Method, Response};
use umbel_wire::clock;

use super::answer::Answer;
use super::body::{Held, collect, discard};
use super::connection::{Peer, Service};
use super::error::Failure;
use super::exchange::Arrived;
use super::h1::Head;
use super::headers::Said;
use super::incoming::Incoming;
use super::inference::{Inference, Opening};
use super::routes::endpoint;
use super::socket::Socket;
use super::{Front, headers, health, limits, models};
use crate::core::keys::{Caller, KeyRefusal};
use crate::metrics::{Route, UNKNOWN_MODEL};

/// What applications are given on one connection.
pub(super) struct Applications {
    pub(super) front: Arc<Front>,
    pub(super) peer: Peer,
}

/// How a request begins: what its head comes to, before anything of its body is read.
enum Begun {
    /// Somebody else could read another request out of it.
    Ambiguous,
    /// It asks for no inference.
    Beside(Box<Head>),
    /// It is refused, and who it is all the same.
    Refused { route: Route, failure: Box<Failure>, caller: Option<Caller> },
    /// An engine is to be asked.
    Inference(Box<Opening>),
}

/// A request of which the body is here, or is not wanted.
pub(super) struct Received {
    begun: Begun,
    request_id: HeaderValue,
    /// Of inference.
    body: Result<Bytes, Box<Failure>>,
    held: Held,
}

impl Service for Applications {
    type Received = Received;

    async fn receive<S: Socket>(&self, head: Head, incoming: &mut Incoming<'_, '_, S>) -> Received {
        let arrived = Arrived::now();
        let request_id = self.front.request_ids.of(arrived.at_wall, &head.fields);
        let begun = self.begin(head, arrived, &request_id);
        let key = if let Begun::Inference(opening) = &begun { opening.caller.key() } else { None };
        let mut held = Held::new(&self.front, key);
        let mut body = Ok(Bytes::new());
        match &begun {
            // Nothing behind it is read.
            Begun::Ambiguous => {}
            Begun::Beside(_) | Begun::Refused { .. } => discard(incoming).await,
            Begun::Inference(_) => body = collect(&self.front, incoming, &mut held).await.map_err(Box::new),
        }
        Received { begun, request_id, body, held }
    }

    async fn answer(&self, received: Received) -> Response<Answer> {
        let Self { front, peer } = self;
        let Received { begun, request_id, body, mut held } = received;
        let mut response = match begun {
            Begun::Ambiguous => refuse(front, Route::Other, &Failure::malformed()),
            Begun::Beside(head) => beside(front, peer, &head),
            Begun::Refused { route, failure, caller } => refuse_told(front, route, &failure, caller.as_ref()),
            Begun::Inference(mut opening) => {
                let opening = &mut *opening;
                let mut inference = Inference { front, peer, request_id: &request_id, opening };
                match body {
                    Ok(body) => inference.run(&body, &mut held).await,
                    Err(failure) => inference.refuse(&failure),
                }
            }
        };
        response.headers_mut().insert(headers::REQUEST_ID, request_id);
        response
    }
}

impl Applications {
    fn begin(&self, head: Head, arrived: Arrived, request_id: &HeaderValue) -> Begun {
        let said = Said::of(&head.fields);
        if said.is_ambiguous(&head) {
            return Begun::Ambiguous;
        }
        let Some(endpoint) = endpoint(head.path()) else {
            return Begun::Beside(Box::new(head));
        };
        let caller = caller(&self.front, &self.peer, &head, &said);
        match (caller, not_now(&self.front, &head)) {
            (Ok(caller), None) => {
                let opening = Opening::new(endpoint, caller, arrived, &head, &said, request_id);
                Begun::Inference(Box::new(opening))
            }
            (Ok(caller), Some(failure)) => {
                Begun::Refused { route: endpoint.route, failure: Box::new(failure), caller: Some(caller) }
            }
            (Err(refusal), failure) => {
                let failure = failure.unwrap_or_else(|| Failure::key(refusal));
                Begun::Refused { route: endpoint.route, failure: Box::new(failure), caller: None }
            }
        }
    }
}

/// Why nobody is served on an engine's route like this, or now.
fn not_now(front: &Front, head: &Head) -> Option<Failure> {
    if head.method != Method::POST {
        return Some(Failure::method_not_allowed("POST"));
    }
    front.is_draining().then(Failure::draining)
}

/// Everything but inference: models, health, and what does not exist.
fn beside(front: &Arc<Front>, peer: &Peer, head: &Head) -> Response<Answer> {
    let path = head.path();
    if let Some(response) = health::answer(front, &head.method, path, head.query()) {
        return response;
    }
    let Some(id) = models::requested(path) else {
        let caller = caller(front, peer, head, &Said::of(&head.fields)).ok();
        return refuse_told(front, Route::Other, &Failure::unknown_url(), caller.as_ref());
    };
    match caller(front, peer, head, &Said::of(&head.fields)) {
        caller if head.method != Method::GET => {
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

fn caller(front: &Front, peer: &Peer, head: &Head, said: &Said<'_>) -> Result<Caller, KeyRefusal> {
    // A proxy on this host speaks for callers elsewhere, and so does a web page.
    let of_this_host = || peer.is_loopback && headers::is_of_this_host(&head.fields);
    front.keys.check_again(&peer.shown, said.authorization, of_this_host)
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
