//! The path of one request: who asks, for what, from which slot, and what comes of it.
//!
//! Owns routes, the order of checks, and the rules of second tries. Leaves slots to [`Dispatch`], bodies to
//! [`super::body`], answers to [`super::answer`]. Invariants: a request is tried elsewhere only before the
//! engine's head, never after a time-out; a dropped future or body resets the stream in every phase.
//!
//! [`Dispatch`]: crate::shell::dispatch::Dispatch

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response};
use prost::Message;
use umbel_contracts::proto::node::{self, InferenceOpen};
use umbel_wire::Open;
use umbel_wire::clock::Wall;

use super::answer::{Answer, Answered, from_engine};
use super::body::{Announced, Held, collect, discard};
use super::connection::{Peer, Upload};
use super::error::Failure;
use super::exchange::{Exchange, Miss, judge};
use super::request::{self, Asked};
use super::{Front, headers, health, models};
use crate::core::keys::{Caller, KeyRefusal};
use crate::metrics::{Route, UNKNOWN_MODEL};
use crate::shell::dispatch::{Admitted, Ask, Known, Slot};
use crate::shell::requests::Started;

/// How many engines were asked.
const ATTEMPTS: HeaderName = HeaderName::from_static("x-umbel-attempts");
/// Set by the official clients on their retries.
const CLIENT_RETRIES: HeaderName = HeaderName::from_static("x-stainless-retry-count");
/// Tries elsewhere after an engine did not take the request.
const TRIES_ELSEWHERE: u32 = 2;
/// Tries elsewhere after an engine was lost with the request.
const TRIES_AFTER_LOSS: u32 = 1;
/// Above this a body is parsed on another thread: it would hold up every stream of this one.
const PARSE_HERE_MAX: usize = 256 * 1024;

/// Answers one request.
pub(super) async fn answer(front: Arc<Front>, peer: Peer, request: Request<Upload>) -> Answered {
    let request_id = front.request_ids.of(request.headers());
    let mut response = route(&front, peer, request, &request_id).await;
    response.headers_mut().insert(headers::REQUEST_ID, request_id);
    Ok(response)
}

async fn route(
    front: &Arc<Front>,
    peer: Peer,
    request: Request<Upload>,
    request_id: &HeaderValue,
) -> Response<Answer> {
    let path = request.uri().path();
    let (route, engine_path) = match path {
        "/v1/chat/completions" => (Route::Chat, "/v1/chat/completions"),
        "/v1/completions" => (Route::Completions, "/v1/completions"),
        _ => return beside(front, peer, request).await,
    };
    let (parts, body) = request.into_parts();
    let announced = Announced::of(&parts.headers);
    let refusal = if parts.method != Method::POST {
        Some(Failure::method_not_allowed("POST"))
    } else if front.is_draining() {
        Some(Failure::draining())
    } else {
        None
    };
    let caller = match (refusal, caller(front, &parts, peer)) {
        (Some(failure), _) => Err(failure),
        (None, Err(refusal)) => Err(Failure::key(refusal)),
        (None, Ok(caller)) => Ok(caller),
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(failure) => {
            discard(body, announced).await;
            return refuse(front, route, &failure);
        }
    };
    let started = Instant::now();
    let mut held = Held::new(front, caller.key());
    let body = match collect(front, body, announced, &mut held).await {
        Ok(body) => body,
        Err(failure) => return refuse(front, route, &failure),
    };
    let inference = Inference { front, route, engine_path, parts: &parts, request_id, caller, started };
    inference.run(body, held).await
}

/// Everything but inference: models, health, and what does not exist.
async fn beside(front: &Arc<Front>, peer: Peer, request: Request<Upload>) -> Response<Answer> {
    let (parts, body) = request.into_parts();
    discard(body, Announced::of(&parts.headers)).await;
    let path = parts.uri.path();
    if let Some(response) = health::answer(front, &parts.method, path, parts.uri.query()) {
        return response;
    }
    let Some(id) = models::requested(path) else {
        return refuse(front, Route::Other, &Failure::unknown_url());
    };
    if parts.method != Method::GET {
        return refuse(front, Route::Models, &Failure::method_not_allowed("GET"));
    }
    match caller(front, &parts, peer) {
        Err(refusal) => refuse(front, Route::Models, &Failure::key(refusal)),
        Ok(caller) => match models::answer(front, &caller, id) {
            Ok(response) => {
                front.metrics.answered(Route::Models, UNKNOWN_MODEL, 200);
                response
            }
            Err(failure) => refuse(front, Route::Models, &failure),
        },
    }
}

fn caller(front: &Front, parts: &Parts, peer: Peer) -> Result<Caller, KeyRefusal> {
    let authorization = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    // A proxy on this host speaks for callers elsewhere.
    let forwarded =
        || parts.headers.contains_key(header::FORWARDED) || parts.headers.contains_key(FORWARDED_FOR);
    front.keys.check(authorization, peer.is_loopback && !forwarded())
}

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A refusal before the model is known.
fn refuse(front: &Front, route: Route, failure: &Failure) -> Response<Answer> {
    front.metrics.answered(route, UNKNOWN_MODEL, failure.status.as_u16());
    front.metrics.rejected(UNKNOWN_MODEL, failure.reason);
    failure.response()
}

/// A request whose body is here.
struct Inference<'a> {
    front: &'a Arc<Front>,
    route: Route,
    engine_path: &'static str,
    parts: &'a Parts,
    request_id: &'a HeaderValue,
    caller: Caller,
    started: Instant,
}

impl Inference<'_> {
    async fn run(self, body: Bytes, held: Held) -> Response<Answer> {
        let asked = match read(&body).await {
            Ok(asked) => asked,
            Err(failure) => return refuse(self.front, self.route, &failure),
        };
        let known = self.front.dispatch.resolve(&asked.model);
        let Some(known) = known.filter(|known| self.caller.may_use(&asked.model, &known.name)) else {
            return refuse(self.front, self.route, &Failure::model_not_found(&asked.model));
        };
        if self.parts.headers.get(CLIENT_RETRIES).is_some_and(|count| count != "0") {
            known.metrics.client_retried();
        }
        let (front, metrics) = (Arc::clone(self.front), Arc::clone(&known.metrics));
        let request_id = self.request_id.clone();
        let running = self.front.dispatch.requests().started(self.record(&asked, &known, body.len()));
        let account = (self.started, running);
        let exchange = Exchange::new(front, metrics, self.route, request_id, asked.stream, account);
        self.exchange(&asked, &known, &body, held, exchange).await
    }

    fn record(&self, asked: &Asked, known: &Known, body_bytes: usize) -> Started {
        Started {
            request_id: self.request_id.to_str().unwrap_or_default().into(),
            key_id: self.caller.key().map(|key| Arc::from(key.row.key_id.as_str())),
            model: Some(Arc::clone(&known.name)),
            route: self.route.template(),
            stream: asked.stream,
            body_bytes: body_bytes as u64,
            prompt_bytes: 0,
            at: self.started,
            at_unix_ms: Wall::now().unix_ms(),
        }
    }

    /// Asks one engine after the other, as the rules of second tries allow.
    async fn exchange(
        &self,
        asked: &Asked,
        known: &Known,
        body: &Bytes,
        held: Held,
        mut exchange: Exchange,
    ) -> Response<Answer> {
        let mut ask = Ask::new(known.model, self.caller.number(), self.caller.class());
        ask.events = asked.stream;
        let (mut attempts, mut elsewhere, mut after_loss) = (0u32, 0, 0);
        loop {
            exchange.queued();
            let admitted = match self.front.dispatch.admit(&ask) {
                Admitted::Slot(slot) => Ok(slot),
                Admitted::Waiting(waiting) => waiting.await,
                Admitted::Refused(refusal) => Err(refusal),
            };
            let mut slot = match admitted {
                Ok(slot) => slot,
                Err(refusal) => {
                    let jitter = u64::from(self.started.elapsed().subsec_nanos());
                    let failure = Failure::refused(&known.name, &refusal, jitter);
                    return with_attempts(exchange.failed(&failure), attempts);
                }
            };
            exchange.uses(&slot);
            attempts += 1;
            let miss = match self.attempt(&mut slot, asked, body).await {
                Ok((head, stream)) => {
                    slot.streaming();
                    exchange.streaming();
                    drop(held);
                    let response = Box::pin(from_engine(&head, stream, slot, exchange)).await;
                    return with_attempts(response, attempts);
                }
                Err(miss) => miss,
            };
            exchange.missed(miss);
            ask.avoid = Some(slot.avoid());
            ask.at_head = true;
            drop(slot);
            let (tries, limit) = match miss {
                Miss::NotProcessed => (&mut elsewhere, TRIES_ELSEWHERE),
                Miss::Lost => (&mut after_loss, TRIES_AFTER_LOSS),
                _ => (&mut after_loss, 0),
            };
            if *tries >= limit || !self.may_retry(&exchange) {
                return with_attempts(exchange.failed(&miss.failure()), attempts);
            }
            *tries += 1;
        }
    }

    fn may_retry(&self, exchange: &Exchange) -> bool {
        let allowed = self.front.dispatch.may_retry();
        exchange.metrics.retried(if allowed { "tried" } else { "budget" });
        allowed
    }

    /// One try at one engine, up to its head.
    async fn attempt(
        &self,
        slot: &mut Slot,
        asked: &Asked,
        body: &Bytes,
    ) -> Result<(Bytes, umbel_wire::OutgoingStream), Miss> {
        let options = self.front.options.load_full();
        let body = asked.body_for(body, slot.model());
        let message = InferenceOpen {
            provider_id: slot.provider_id().to_string(),
            lease_id: slot.lease().0,
            generation: slot.generation().0,
            method: "POST".to_owned(),
            path: self.engine_path.to_owned(),
            headers: headers::to_engine(&self.parts.headers),
            first_byte_timeout_ms: millis(options.first_byte_timeout),
            idle_timeout_ms: millis(options.idle_timeout),
            body_bytes: body.len() as u64,
            // Valid ids are ASCII.
            request_id: self.request_id.to_str().unwrap_or_default().to_owned(),
        };
        let open = Open {
            method: node::Method::Inference as u32,
            message: message.encode_to_vec(),
            body,
            end: true,
            // A stream has no total time; the engine's silence is what ends it.
            timeout: Duration::ZERO,
        };
        let mut stream = slot.open(open).map_err(|_| Miss::NotProcessed)?;
        let limit = options.first_byte_timeout.saturating_add(options.grace);
        match tokio::time::timeout(limit, stream.head()).await {
            Ok(Ok(head)) => Ok((head, stream)),
            Ok(Err(terminal)) => {
                slot.ended();
                // Without a head even a clean end is none.
                Err(judge(&terminal).unwrap_or(Miss::BadAnswer))
            }
            Err(_) => Err(Miss::TimedOut),
        }
    }
}

async fn read(body: &Bytes) -> Result<Asked, Failure> {
    let asked = if body.len() <= PARSE_HERE_MAX {
        request::read(body)
    } else {
        let body = body.clone();
        let parsed = tokio::task::spawn_blocking(move || request::read(&body)).await;
        parsed.unwrap_or_else(|_| Err(request::BadRequest::NotJson("the body could not be read".to_owned())))
    };
    asked.map_err(Failure::bad_request)
}

fn with_attempts(mut response: Response<Answer>, attempts: u32) -> Response<Answer> {
    let value = match attempts {
        0 => HeaderValue::from_static("0"),
        1 => HeaderValue::from_static("1"),
        more => HeaderValue::from(more),
    };
    response.headers_mut().insert(ATTEMPTS, value);
    response
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
