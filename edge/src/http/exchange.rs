//! A request's account: how tries ended, in which phase it is, and what the metrics are told.
//!
//! Owns the reading of terminals. Leaves what follows from it to [`super::openai`] and [`super::relay`].
//! Invariant: an account is settled exactly once, by an answer, a failure, or the client's leaving.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Response};
use umbel_contracts::bounds::decode;
use umbel_contracts::proto::node::{InferenceEnd, InferenceOutcome};
use umbel_wire::{Code, Terminal};

use super::answer::Answer;
use super::error::Failure;
use super::{Front, FrontOptions};
use crate::core::usage::{Usage, UsageSource};
use crate::metrics::{ModelMetrics, Route};
use crate::shell::dispatch::Slot;
pub(super) use crate::shell::requests::Phase;
use crate::shell::requests::{CLIENT_LEFT, End, Given, Running};

/// How a try at an engine failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Nothing was sent to an engine.
    NotProcessed,
    /// The node's connection or the engine's process is gone, and the work with it.
    Lost,
    /// The engine closed or broke its connection; it may have done the work.
    Broke,
    /// The engine was silent for too long.
    TimedOut,
    /// The engine's answer is none.
    BadAnswer,
}

impl Miss {
    pub(super) fn failure(self) -> Failure {
        match self {
            Self::NotProcessed => Failure::engine_refused(),
            Self::Lost | Self::Broke => Failure::engine_lost(),
            Self::TimedOut => Failure::engine_timeout(),
            Self::BadAnswer => Failure::engine_bad_answer("The engine's answer could not be read."),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::NotProcessed => "connect",
            Self::Lost => "lost",
            Self::Broke => "reset",
            Self::TimedOut => "timeout",
            Self::BadAnswer => "protocol",
        }
    }
}

/// What a terminal says; `None` if the engine's request came to its end.
pub(super) fn judge(terminal: &Terminal) -> Option<Miss> {
    let (error, not_processed, payload) = match terminal {
        Terminal::Lost(_) => return Some(Miss::Lost),
        Terminal::Ended { error, not_processed, payload } => (error, *not_processed, payload),
    };
    if not_processed {
        return Some(Miss::NotProcessed);
    }
    let outcome = decode::<InferenceEnd>(payload).map_or(InferenceOutcome::Unspecified, |end| end.outcome());
    match (outcome, error) {
        (InferenceOutcome::Complete, None) => None,
        (InferenceOutcome::EngineRefused, _) => Some(Miss::NotProcessed),
        (InferenceOutcome::EngineGone, _) => Some(Miss::Lost),
        (InferenceOutcome::TimedOut, _) => Some(Miss::TimedOut),
        (InferenceOutcome::BadAnswer, _) => Some(Miss::BadAnswer),
        (_, Some(error)) if error.code == Code::DeadlineExceeded => Some(Miss::TimedOut),
        _ => Some(Miss::Broke),
    }
}

/// A request's account: it is settled exactly once, by an answer, a failure, or the client's leaving (a drop).
pub(super) struct Exchange {
    front: Arc<Front>,
    pub(super) metrics: Arc<ModelMetrics>,
    route: Route,
    /// The correlation id: what an operator searches for.
    request_id: HeaderValue,
    /// The client asked for an event stream.
    pub(super) stream: bool,
    started: Instant,
    phase: Phase,
    /// The provider that answers.
    provider: Option<Arc<str>>,
    first_bytes: bool,
    settled: bool,
    /// The request's record, and how it ends there: when the account is dropped, so that the engine's word on tokens
    /// that comes behind its last event is in it.
    running: Running,
    end: End,
}

impl Exchange {
    pub(super) fn new(
        front: Arc<Front>,
        metrics: Arc<ModelMetrics>,
        route: Route,
        request_id: HeaderValue,
        stream: bool,
        (started, running): (Instant, Running),
    ) -> Self {
        Self {
            front,
            metrics,
            route,
            request_id,
            stream,
            started,
            phase: Phase::Queued,
            provider: None,
            first_bytes: false,
            settled: false,
            running,
            end: End { status: CLIENT_LEFT, reason: None, usage: Usage::default(), answer_bytes: 0 },
        }
    }

    /// The edge is going down.
    pub(super) fn is_draining(&self) -> bool {
        self.front.is_draining()
    }

    /// It asks for a slot, perhaps again.
    pub(super) fn queued(&mut self) {
        if self.phase != Phase::Queued {
            self.phase = Phase::Queued;
            self.running.queued();
        }
    }

    /// The engine's head is here.
    pub(super) fn streaming(&mut self) {
        self.phase = Phase::Streaming;
        self.running.streaming();
    }

    /// A slot of this provider is used now.
    pub(super) fn uses(&mut self, slot: &Slot) {
        let provider_id = Arc::clone(slot.provider_id());
        self.provider = Some(Arc::clone(&provider_id));
        self.phase = Phase::Prefill;
        self.running.granted(Given {
            provider_id,
            lease: slot.lease().0,
            estimated_tokens: 0,
            long: false,
            affinity: false,
        });
        self.metrics.waited(slot.waited().as_secs_f64());
    }

    /// Counts a failure between this edge and the engine.
    pub(super) fn missed(&self, miss: Miss) {
        let provider = self.provider.as_deref().unwrap_or_default();
        let node = provider.split_once('/').map_or("", |(node, _)| node);
        self.metrics.upstream_error(node, miss.kind());
        self.running.missed(miss.kind());
        let (request_id, kind) = (self.request_id(), miss.kind());
        tracing::info!(request_id, model = self.metrics.name(), provider, kind, "an engine failed a request");
    }

    fn request_id(&self) -> &str {
        // Ids are ASCII.
        self.request_id.to_str().unwrap_or_default()
    }

    pub(super) fn options(&self) -> arc_swap::Guard<Arc<FrontOptions>> {
        self.front.options()
    }

    /// Reads the terminal of an answer whose head came: `None` if it is whole. Counts tokens and failures.
    pub(super) fn judge(&mut self, terminal: Option<&Terminal>) -> Option<Miss> {
        let terminal = terminal?;
        if let Terminal::Ended { payload, .. } = terminal
            && let Ok(end) = decode::<InferenceEnd>(payload)
        {
            let (input, output) = (end.prompt_tokens.unwrap_or(0), end.completion_tokens.unwrap_or(0));
            self.metrics.tokens(u64::from(input), u64::from(output));
            if end.prompt_tokens.is_some() {
                self.end.usage = Usage {
                    prompt_tokens: input.into(),
                    completion_tokens: output.into(),
                    cached_tokens: 0,
                    source: UsageSource::Reported,
                };
            }
        }
        let miss = judge(terminal)?;
        self.missed(miss);
        Some(miss)
    }

    /// The first bytes of an event stream pass.
    pub(super) fn first_bytes(&mut self) {
        if !self.first_bytes {
            self.first_bytes = true;
            self.metrics.first_token(self.started.elapsed().as_secs_f64());
        }
    }

    /// The answer is whole, or on its way as a whole.
    pub(super) fn answered(&mut self, status: u16) {
        if !self.settled {
            self.settled = true;
            self.end.status = status;
            let seconds = self.started.elapsed().as_secs_f64();
            self.metrics.answered(self.route, status, self.stream, seconds);
            let (request_id, stream) = (self.request_id(), self.stream);
            tracing::debug!(
                request_id,
                model = self.metrics.name(),
                status,
                stream,
                seconds,
                "a request is over"
            );
        }
    }

    /// The edge answers with a failure of its own.
    pub(super) fn failed(&mut self, failure: &Failure) -> Response<Answer> {
        if !self.settled {
            self.metrics.rejected(failure.reason);
            self.end.reason = Some(failure.reason);
        }
        self.answered(failure.status.as_u16());
        failure.response()
    }

    /// The answer ended with an error after its head.
    pub(super) fn broken(&mut self, miss: Miss) {
        if !self.settled {
            self.metrics.broken(miss.kind());
            self.end.reason = Some(miss.kind());
        }
        self.answered(200);
    }

    /// The client left.
    pub(super) fn left(&mut self, phase: Phase) {
        if !self.settled {
            self.metrics.disconnected(phase.word());
        }
        self.answered(CLIENT_LEFT);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let phase = self.phase;
        self.left(phase);
        self.running.ended(self.end);
    }
}
