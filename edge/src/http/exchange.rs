//! A request's account: how tries ended, in which phase it is, and what the metrics are told.
//!
//! Owns the one function that tells everybody of a request's end. Leaves the words for ends to [`outcome`], what follows
//! for the client to [`super::inference`] and [`super::relay`]. Invariant: an account is settled exactly once, by an
//! answer, a failure, or the client's leaving.

mod outcome;

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Response};
use umbel_contracts::proto::node::InferenceEnd;
use umbel_wire::Terminal;
use umbel_wire::clock::{self, Wall};

use outcome::Outcome;
pub(super) use outcome::{Miss, is_unread, judge, told};

use super::answer::Answer;
use super::error::Failure;
use super::limits::Way;
use super::{Front, FrontOptions};
use crate::core::keys::{Caller, KeyLimit, KeyPermit};
use crate::core::usage::{Usage, UsageSource};
use crate::metrics::Route;
use crate::shell::dispatch::{Known, Slot};
use crate::shell::requests::{End, Given, Running, Started};

/// Who asked for what.
pub(super) struct Request {
    pub(super) route: Route,
    /// The correlation id: what an operator searches for.
    pub(super) id: HeaderValue,
    /// The client asked for an event stream.
    pub(super) stream: bool,
    /// Bytes of the body, and of the prompt as they count.
    pub(super) body_bytes: u64,
    pub(super) prompt_bytes: u64,
    pub(super) caller: Caller,
    pub(super) arrived: Arrived,
}

/// When a request's head was here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) at: Instant,
    pub(super) at_wall: Wall,
}

impl Arrived {
    pub(super) fn now() -> Self {
        Self { at: clock::now(), at_wall: Wall::now() }
    }
}

impl Request {
    /// What its record begins with; `model` is the canonical one, where there is one.
    pub(super) fn started(&self, model: Option<Arc<str>>) -> Started {
        Started {
            // Ids are ASCII.
            request_id: self.id.to_str().unwrap_or_default().into(),
            key_id: self.caller.key().map(|key| Arc::clone(&key.state.key_id)),
            model,
            route: self.route.template(),
            stream: self.stream,
            body_bytes: self.body_bytes,
            prompt_bytes: self.prompt_bytes,
            at: self.arrived.at,
            at_unix_ms: self.arrived.at_wall.unix_ms(),
        }
    }
}

/// A request's account: it is settled exactly once, by an answer, a failure, or the client's leaving (a drop).
pub(super) struct Exchange {
    front: Arc<Front>,
    pub(super) known: Known,
    pub(super) request: Request,
    /// The request's record: it knows where the request is and which slot it was given.
    running: Running,
    /// Time in queues, of all tries.
    waited: Duration,
    /// Engines that were asked.
    attempts: u32,
    /// The engine that is asked now may be working on it, and one that was asked before may have been.
    at_work: bool,
    has_worked: bool,
    /// Of the answer's body, passed to the client.
    answer_bytes: u64,
    /// When the first bytes of an event stream passed.
    first_bytes: Option<Instant>,
    /// The client has all that makes its answer whole; only the engine's end is awaited.
    complete: Option<Instant>,
    usage: Usage,
    /// Counts against the key's limits as long as the request runs.
    permit: Option<KeyPermit>,
    settled: bool,
}

impl Exchange {
    /// Boxed: it is handed on, and a request that waits shall be small.
    pub(super) fn new(front: Arc<Front>, known: Known, request: Request) -> Box<Self> {
        let running = front.dispatch.requests().started(request.started(Some(Arc::clone(&known.name))));
        Box::new(Self {
            front,
            known,
            request,
            running,
            waited: Duration::ZERO,
            attempts: 0,
            at_work: false,
            has_worked: false,
            answer_bytes: 0,
            first_bytes: None,
            complete: None,
            usage: Usage::default(),
            permit: None,
            settled: false,
        })
    }

    /// Charges the key for the request.
    ///
    /// # Errors
    /// The limit that the key is at.
    pub(super) fn enter(&mut self, now: Instant) -> Result<(), KeyLimit> {
        let estimate = self.front.dispatch.estimate(self.known.model, self.request.prompt_bytes);
        self.permit = Some(self.request.caller.enter(now, estimate)?);
        Ok(())
    }

    /// The key was revoked since: a request that has no engine gets none.
    pub(super) fn is_revoked(&self) -> bool {
        self.permit.as_ref().is_some_and(KeyPermit::is_revoked)
    }

    /// The request's number in this process.
    pub(super) fn number(&self) -> u64 {
        self.running.number()
    }

    /// The edge is going down.
    pub(super) fn is_draining(&self) -> bool {
        self.front.is_draining()
    }

    /// It asks for a slot, perhaps again.
    pub(super) fn queued(&mut self) {
        self.running.queued();
    }

    /// It waited so long for a slot and was given none.
    pub(super) fn waited_in_vain(&mut self, time: Duration) {
        self.waited = self.waited.saturating_add(time);
    }

    /// The engine's head is here.
    pub(super) fn streaming(&mut self, now: Instant) {
        self.running.streaming(now);
    }

    /// A slot of this provider is used now.
    pub(super) fn uses(&mut self, now: Instant, slot: &Slot) {
        let given = Given {
            provider_id: Arc::clone(slot.provider_id()),
            lease: slot.lease().0,
            estimated_tokens: slot.estimated_tokens(),
            long: slot.is_long(),
            affinity: slot.has_affinity(),
        };
        self.running.granted(now, given);
        self.attempts += 1;
        self.at_work = true;
        self.waited = self.waited.saturating_add(slot.waited());
        self.known.metrics.waited(slot.waited().as_secs_f64());
    }

    /// Counts a failure between this edge and the engine.
    pub(super) fn missed(&mut self, miss: Miss) {
        self.at_work = false;
        self.has_worked |= miss != Miss::NotProcessed;
        let provider = self.running.given().map_or("", |given| &given.provider_id);
        let node = provider.split_once('/').map_or("", |(node, _)| node);
        self.known.metrics.upstream_error(node, miss.kind());
        self.running.missed(miss.kind());
        let (request_id, kind) = (self.request_id(), miss.kind());
        tracing::info!(request_id, model = &*self.known.name, provider, kind, "an engine failed a request");
    }

    fn request_id(&self) -> &str {
        // Ids are ASCII.
        self.request.id.to_str().unwrap_or_default()
    }

    pub(super) fn options(&self) -> arc_swap::Guard<Arc<FrontOptions>> {
        self.front.options()
    }

    /// An answer broke behind its head: counts it, and against the provider; what the client is told.
    pub(super) fn broke(&mut self, slot: &mut Slot, miss: Miss) -> Failure {
        self.missed(miss);
        slot.report(miss.behind_head());
        match miss {
            Miss::TimedOut => Failure::engine_timeout(),
            // The edge itself gave the connection up.
            Miss::Lost if self.is_draining() => Failure::cut_by_shutdown(),
            _ => Failure::engine_truncated(),
        }
    }

    /// Reads the terminal of an answer whose head came: `None` if it is whole. Notes tokens.
    pub(super) fn judge(&mut self, terminal: Option<&Terminal>) -> Option<Miss> {
        let terminal = terminal?;
        let end = told(terminal);
        if let Some(end) = &end {
            self.reported(end);
        }
        judge(terminal, end.as_ref())
    }

    /// What the engine said of its tokens, if it did.
    fn reported(&mut self, end: &InferenceEnd) {
        if end.prompt_tokens.is_none() && end.completion_tokens.is_none() {
            return;
        }
        self.usage = Usage {
            prompt_tokens: u64::from(end.prompt_tokens.unwrap_or(0)),
            completion_tokens: u64::from(end.completion_tokens.unwrap_or(0)),
            cached_tokens: u64::from(end.cached_tokens.unwrap_or(0)),
            source: UsageSource::Reported,
        };
    }

    /// Tokens that the prompt was taken for when it was given its last slot.
    fn estimated_tokens(&self) -> u64 {
        self.running.given().map_or(0, |given| given.estimated_tokens)
    }

    /// Tokens that this edge saw in the events of a stream; what an engine reports goes before it.
    pub(super) fn counted(&mut self, completion_tokens: u64) {
        if self.usage.source != UsageSource::Reported {
            let prompt_tokens = self.estimated_tokens();
            let source = UsageSource::Counted;
            self.usage = Usage { prompt_tokens, completion_tokens, cached_tokens: 0, source };
        }
    }

    /// The first bytes of an event stream pass.
    pub(super) fn first_bytes(&mut self) {
        if self.first_bytes.is_none() {
            let now = clock::now();
            self.first_bytes = Some(now);
            self.known.metrics.first_token(now.duration_since(self.request.arrived.at).as_secs_f64());
        }
    }

    /// The client has a whole answer, whatever the engine does from now on.
    pub(super) fn complete(&mut self) {
        self.complete.get_or_insert_with(clock::now);
    }

    /// The answer is whole, or on its way as a whole.
    pub(super) fn answered(&mut self, status: u16) {
        self.settle(Outcome::Answered(status));
    }

    /// The edge answers with a failure of its own.
    pub(super) fn failed(&mut self, failure: &Failure) -> Response<Answer> {
        self.settle(Outcome::Failed { status: failure.status.as_u16(), reason: failure.reason });
        failure.response()
    }

    /// The answer ended with an error after its head.
    pub(super) fn broken(&mut self, miss: Miss) {
        self.settle(Outcome::Broken(miss));
    }

    /// The client left.
    pub(super) fn left(&mut self) {
        let phase = self.running.phase();
        let outcome = if self.complete.is_some() { Outcome::Answered(200) } else { Outcome::Left(phase) };
        self.settle(outcome);
    }

    /// The one place where a request ends: tells, once and in this order, the dispatch, the key, the metrics and the
    /// ring of requests.
    fn settle(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        // An engine that worked and had no chance to say how much has used what the prompt was taken for.
        let worked = match outcome {
            Outcome::Answered(_) => false,
            Outcome::Failed { .. } | Outcome::Broken(_) => self.has_worked,
            Outcome::Left(_) => self.has_worked || self.at_work,
        };
        if worked && self.usage.source == UsageSource::None {
            self.counted(0);
        }
        let (status, request, usage, now) = (outcome.status(), &self.request, self.usage, clock::now());
        let complete = self.complete.unwrap_or(now);
        let seconds = complete.duration_since(request.arrived.at).as_secs_f64();
        let (key, class) = (request.caller.number(), request.caller.class());
        let (prompt_bytes, estimated) = (request.prompt_bytes, self.estimated_tokens());
        if self.attempts > 0 {
            self.front.dispatch.used(self.known.model, key, class, prompt_bytes, estimated, &usage);
        }
        let no_use = !self.has_worked && !self.at_work;
        match (outcome, self.permit.take()) {
            // No engine worked on it: that is no use of the key.
            (Outcome::Failed { .. } | Outcome::Left(_), _) if no_use => {
                self.front.keys.refused(&request.caller, &self.known.name);
            }
            (_, Some(permit)) => {
                let wall = request.arrived.at_wall + now.duration_since(request.arrived.at);
                self.front.keys.used((now, wall), permit, &self.known.name, &usage);
            }
            (_, None) => {}
        }
        let metrics = &self.known.metrics;
        match outcome {
            Outcome::Answered(_) => {}
            Outcome::Failed { reason, .. } => metrics.rejected(reason),
            Outcome::Broken(miss) => metrics.broken(miss.kind()),
            Outcome::Left(phase) => metrics.disconnected(phase.word()),
        }
        metrics.answered(request.route, status, request.stream, seconds);
        metrics.tokens(&usage);
        if let (Some(first), None) = (self.first_bytes, outcome.reason()) {
            metrics.output_tokens(complete.duration_since(first).as_secs_f64(), usage.completion_tokens);
        }
        let end = End { status, reason: outcome.reason(), usage, answer_bytes: self.answer_bytes };
        self.running.ended(now, end);
        let (request_id, stream) = (self.request_id(), self.request.stream);
        tracing::debug!(request_id, model = &*self.known.name, status, stream, seconds, "a request is over");
    }

    /// So many bytes of the answer's body go to the client.
    pub(super) fn passed(&mut self, bytes: usize) {
        self.answer_bytes = self.answer_bytes.saturating_add(bytes as u64);
    }

    /// What the client may know of its request's way.
    pub(super) fn way(&self, now: Instant) -> Way {
        let standing = self.request.caller.standing(now);
        Way { attempts: self.attempts, waited: self.waited, standing }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.left();
    }
}
