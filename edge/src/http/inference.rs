//! A request whose body is here: a slot, a try at an engine, and what comes of it.
//!
//! Owns the rules of second tries. Leaves slots to [`Dispatch`], answers to [`super::answer`], the account to
//! [`super::exchange`]. Invariants: a request is tried elsewhere only before the engine's head, never after a
//! time-out; a dropped future resets the stream in every phase.
//!
//! [`Dispatch`]: crate::shell::dispatch::Dispatch

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;
use http::header::HeaderValue;
use umbel_contracts::inference;
use umbel_contracts::proto::node;
use umbel_wire::{Open, OutgoingStream, clock};

use super::answer::{Answer, from_engine};
use super::body::Held;
use super::connection::Peer;
use super::error::Failure;
use super::exchange::{self, Arrived, Exchange, Miss, judge, told};
use super::h1::Head;
use super::headers::Said;
use super::openai::refuse;
use super::request::{self, Asked, BadRequest};
use super::routes::Endpoint;
use super::{Front, StreamUsage, headers, limits};
use crate::core::keys::{Caller, KeyRefusal};
use crate::core::usage::Usage;
use crate::shell::dispatch::{Admitted, Ask, Known, Slot};
use crate::shell::requests::End;

/// Tries elsewhere after an engine did not take the request.
const TRIES_ELSEWHERE: u32 = 2;
/// Tries elsewhere after an engine was lost with the request.
const TRIES_AFTER_LOSS: u32 = 1;
/// Above this a body is parsed on another thread: it would hold up every stream of this one.
const PARSE_HERE_MAX: usize = 256 * 1024;

/// What a request's head says, as far as it is needed behind it.
pub(super) struct Opening {
    endpoint: Endpoint,
    pub(super) caller: Caller,
    arrived: Arrived,
    /// Its client says that it tries once more.
    retried: bool,
    /// What kind of form its body is, where it has to be one.
    form: Option<Vec<u8>>,
    /// What a node is told of it; the rest of it belongs to each try.
    asked: inference::Asked,
}

impl Opening {
    pub(super) fn new(
        endpoint: Endpoint,
        caller: Caller,
        arrived: Arrived,
        head: &Head,
        said: &Said<'_>,
        request_id: &HeaderValue,
    ) -> Self {
        let kind = || head.fields.get("content-type").unwrap_or_default();
        let passed = headers::to_engine(&head.fields);
        let asked = inference::Asked::new("POST", endpoint.path, passed, request_id.as_bytes());
        Self {
            endpoint,
            caller,
            arrived,
            retried: said.retry_count.is_some_and(|count| count != b"0"),
            form: endpoint.takes_a_form().then(|| kind().to_vec()),
            asked,
        }
    }
}

/// A request whose body is here.
pub(super) struct Inference<'a> {
    pub(super) front: &'a Arc<Front>,
    pub(super) peer: &'a Peer,
    pub(super) request_id: &'a HeaderValue,
    pub(super) opening: &'a mut Opening,
}

impl Inference<'_> {
    pub(super) async fn run(&mut self, body: &Bytes, held: &mut Held) -> Response<Answer> {
        let asked = match self.read(body).await {
            Ok(asked) => asked,
            Err(bad) => return self.refuse(&Failure::bad_request(bad)),
        };
        let known = self.front.dispatch.resolve(&asked.model);
        let may_use = |known: &Known| {
            let means = |name: &str| self.front.dispatch.means(name, known.model);
            self.opening.caller.may_use(&asked.model, &known.name, means)
        };
        let Some(known) = known.filter(may_use) else {
            return self.refuse(&Failure::model_not_found(&asked.model));
        };
        if self.opening.retried {
            known.metrics.client_retried();
        }
        let request = self.request(asked.stream, body.len() as u64, asked.prompt_bytes);
        let mut exchange = Exchange::new(Arc::clone(self.front), known, request);
        let now = clock::now();
        if let Err(limit) = exchange.enter(now) {
            return refused(&mut exchange, |_| Failure::key_limit(&limit));
        }
        self.exchange(now, &asked, body, held, exchange).await
    }

    fn request(&self, stream: bool, body_bytes: u64, prompt_bytes: u64) -> exchange::Request {
        let (route, id) = (self.opening.endpoint.route, self.request_id.clone());
        let (caller, arrived) = (self.opening.caller.clone(), self.opening.arrived);
        exchange::Request { route, id, stream, body_bytes, prompt_bytes, caller, arrived }
    }

    /// A refusal of a caller whose model is not known.
    pub(super) fn refuse(&self, failure: &Failure) -> Response<Answer> {
        let status = failure.status.as_u16();
        let caller = &self.opening.caller;
        self.front.keys.refused(caller, &Arc::from(""));
        let started = self.request(false, 0, 0).started(None);
        let (reason, usage) = (Some(failure.reason), Usage::default());
        self.front.dispatch.requests().refused(started, End { status, reason, usage, answer_bytes: 0 });
        let mut response = refuse(self.front, self.opening.endpoint.route, failure);
        limits::tell(&caller.standing(clock::now()), response.headers_mut());
        response
    }

    async fn read(&self, body: &Bytes) -> Result<Asked, BadRequest> {
        let form = self.opening.form.clone();
        let read = move |body: &Bytes| match form {
            Some(kind) => request::form::read(&kind, body),
            None => request::read(body),
        };
        if body.len() <= PARSE_HERE_MAX {
            return read(body);
        }
        let body = body.clone();
        let parsed = tokio::task::spawn_blocking(move || read(&body)).await;
        parsed.unwrap_or_else(|_| Err(BadRequest::NotJson("the body could not be read".to_owned())))
    }

    /// Asks one engine after the other, as the rules of second tries allow.
    async fn exchange(
        &mut self,
        mut now: Instant,
        asked: &Asked,
        body: &Bytes,
        held: &mut Held,
        mut exchange: Box<Exchange>,
    ) -> Response<Answer> {
        let caller = &self.opening.caller;
        let mut ask = Ask {
            prompt_bytes: asked.prompt_bytes,
            prefix: self.front.dispatch.prefix(asked.prompt(body)),
            events: asked.stream,
            request: exchange.number(),
            ..Ask::new(exchange.known.model, caller.number(), caller.class())
        };
        let take_usage = self.opening.endpoint.can_tell_usage()
            && asked.can_take_usage()
            && self.front.options().stream_usage == StreamUsage::Always;
        let (mut elsewhere, mut after_loss) = (0, 0);
        loop {
            if exchange.is_revoked() {
                return refused(&mut exchange, |_| Failure::key(KeyRefusal::Invalid));
            }
            if self.front.is_over() {
                return refused(&mut exchange, |_| Failure::draining());
            }
            exchange.queued();
            let since = now;
            let admitted = match self.front.dispatch.admit(since, &ask) {
                Admitted::Slot(slot) => Ok(slot),
                Admitted::Waiting(waiting) => {
                    let admitted = waiting.await;
                    now = clock::now();
                    admitted
                }
                Admitted::Refused(refusal) => Err(refusal),
            };
            let mut slot = match admitted {
                Ok(slot) => slot,
                Err(_) if self.front.is_over() => continue,
                Err(refusal) => {
                    exchange.waited_in_vain(now.saturating_duration_since(since));
                    let jitter = u64::from(self.opening.arrived.at.elapsed().subsec_nanos());
                    let answer_tokens = asked.answer_tokens;
                    return refused(&mut exchange, |name| {
                        Failure::refused(name, &refusal, answer_tokens, jitter)
                    });
                }
            };
            if exchange.is_revoked() {
                return refused(&mut exchange, |_| Failure::key(KeyRefusal::Invalid));
            }
            exchange.uses(now, &slot);
            let miss = match self.attempt(now, &mut slot, asked, body, take_usage).await {
                Ok((head, stream)) => {
                    let now = clock::now();
                    exchange.streaming(now);
                    held.release();
                    let way = exchange.way(now);
                    let answer = from_engine(now, &head, stream, slot, exchange, take_usage);
                    let mut response = Box::pin(answer).await;
                    way.tell(response.headers_mut());
                    return response;
                }
                Err(miss) => miss,
            };
            exchange.missed(miss);
            slot.report(miss.outcome());
            ask.avoid = Some(slot.avoid());
            ask.at_head = true;
            drop(slot);
            now = clock::now();
            if self.front.is_over() {
                continue;
            }
            let (tries, limit) = match miss {
                Miss::NotProcessed => (&mut elsewhere, TRIES_ELSEWHERE),
                Miss::Lost if !self.opening.endpoint.has_effects() => (&mut after_loss, TRIES_AFTER_LOSS),
                _ => (&mut after_loss, 0),
            };
            if *tries >= limit || !self.may_retry(&exchange) {
                return refused(&mut exchange, |_| miss.failure());
            }
            *tries += 1;
        }
    }

    fn may_retry(&self, exchange: &Exchange) -> bool {
        let allowed = self.front.dispatch.may_retry();
        exchange.known.metrics.retried(if allowed { "tried" } else { "budget" });
        allowed
    }

    /// One try at one engine, up to its head.
    async fn attempt(
        &mut self,
        now: Instant,
        slot: &mut Slot,
        asked: &Asked,
        body: &Bytes,
        take_usage: bool,
    ) -> Result<(Bytes, OutgoingStream), Miss> {
        let options = self.front.options.load_full();
        let open = {
            let body = asked.body_for(body, slot.model(), take_usage);
            let message = self.opening.asked.open(&inference::Try {
                provider_id: slot.provider_id(),
                lease_id: slot.lease().0,
                generation: slot.generation().0,
                first_byte_timeout_ms: millis(options.first_byte_timeout),
                idle_timeout_ms: millis(options.idle_timeout),
                body_bytes: body.len() as u64,
            });
            let method = node::Method::Inference as u32;
            // A stream has no total time; the engine's silence is what ends it.
            Open { method, message, body, end: true, timeout: Duration::ZERO }
        };
        let mut stream = slot.open(open).map_err(|_| Miss::NotProcessed)?;
        let limit = options.first_byte_timeout.saturating_add(options.grace);
        let mut patience = self.peer.patience(now.into(), limit);
        let head = patience.over(stream.head()).await;
        self.peer.keep(patience);
        match head {
            Some(Ok(head)) => Ok((head, stream)),
            Some(Err(terminal)) => {
                slot.ended();
                // Without a head even a clean end is none.
                Err(judge(&terminal, told(&terminal).as_ref()).unwrap_or(Miss::BadAnswer))
            }
            None => Err(Miss::TimedOut),
        }
    }
}

/// The edge's own answer, with what a client may know of its way.
fn refused(exchange: &mut Exchange, failure: impl FnOnce(&str) -> Failure) -> Response<Answer> {
    let failure = failure(&exchange.known.name);
    let way = exchange.way(clock::now());
    let mut response = exchange.failed(&failure);
    way.tell(response.headers_mut());
    response
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}
