//! One model's metrics: the handles that each of its requests holds.
//!
//! Owns which series a model has, and taking them out when the site does not know it any more. Leaves names, labels and buckets
//! to the parent. Invariant: what happens on each request costs no look-up; a series that seldom is needed is made when it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;

use super::{
    DirectionLabels, DurationLabels, Metrics, ModelLabel, OutcomeLabels, PhaseLabels, ReasonLabels,
    RequestLabels, Route, UpstreamLabels,
};
use crate::core::usage::Usage;

/// Routes that an engine answers.
const INFERENCE_ROUTES: usize = Route::INFERENCE.len();

impl Metrics {
    /// Handles of a model, to be kept as long as the model is known.
    pub(crate) fn model(self: &Arc<Self>, model: &str) -> ModelMetrics {
        let label = || ModelLabel { model: model.to_owned() };
        let tokens = |direction| {
            self.tokens.get_or_create_owned(&DirectionLabels { model: model.to_owned(), direction })
        };
        ModelMetrics {
            name: model.to_owned(),
            routes: Default::default(),
            first_token: self.first_token.get_or_create_owned(&label()),
            queue_wait: self.queue_wait.get_or_create_owned(&label()),
            per_output_token: self.per_output_token.get_or_create_owned(&label()),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
            cached_tokens: self.cached_tokens.get_or_create_owned(&label()),
            rejected: Mutex::default(),
            rare: Mutex::default(),
            all: Arc::clone(self),
        }
    }

    fn route(&self, route: Route, model: &str) -> RouteMetrics {
        let (route, model) = (route.template(), || model.to_owned());
        RouteMetrics {
            succeeded: self.requests.get_or_create_owned(&RequestLabels { route, model: model(), code: 200 }),
            duration: ["false", "true"].map(|stream| {
                self.durations.get_or_create_owned(&DurationLabels { route, model: model(), stream })
            }),
        }
    }
}

#[derive(Debug)]
struct RouteMetrics {
    succeeded: Counter,
    /// Without and with `stream`.
    duration: [Histogram; 2],
}

/// Handles of one model's metrics: resolved once, held by each request.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    name: String,
    /// Of the routes that the model was asked by.
    routes: [OnceLock<RouteMetrics>; INFERENCE_ROUTES],
    first_token: Histogram,
    queue_wait: Histogram,
    per_output_token: Histogram,
    input_tokens: Counter,
    output_tokens: Counter,
    cached_tokens: Counter,
    /// By reason, as far as one occurred.
    rejected: Mutex<Vec<(&'static str, Counter)>>,
    /// Series that are made when something goes wrong.
    rare: Mutex<BTreeSet<Rare>>,
    all: Arc<Metrics>,
}

/// A series of one model that is there only if that ever happened.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rare {
    Answered(&'static str, u16),
    Disconnected(&'static str),
    Upstream(String, &'static str),
    Retried(&'static str),
    Broken(&'static str),
    ClientRetried,
}

impl ModelMetrics {
    fn route(&self, route: Route) -> Option<&RouteMetrics> {
        let place = match route {
            Route::Chat => 0,
            Route::Completions => 1,
            Route::Embeddings => 2,
            Route::Responses => 3,
            Route::Rerank => 4,
            Route::Transcriptions => 5,
            Route::Models | Route::Other => return None,
        };
        Some(self.routes.get(place)?.get_or_init(|| self.all.route(route, &self.name)))
    }

    /// Counts an answered request and how long its answer took.
    pub(crate) fn answered(&self, route: Route, code: u16, stream: bool, seconds: f64) {
        match self.route(route) {
            Some(handles) if code == 200 => {
                handles.succeeded.inc();
                let [whole, streamed] = &handles.duration;
                if stream { streamed.observe(seconds) } else { whole.observe(seconds) }
            }
            _ => {
                self.happened(Rare::Answered(route.template(), code));
                self.all.answered(route, &self.name, code);
            }
        }
    }

    fn happened(&self, what: Rare) {
        self.rare.lock().unwrap_or_else(PoisonError::into_inner).insert(what);
    }

    /// Takes the model's series out of the exposition: the site does not know it any more.
    pub(crate) fn forget(&self) {
        let (all, model) = (&self.all, || self.name.clone());
        let label = ModelLabel { model: model() };
        for family in [&all.first_token, &all.per_output_token, &all.queue_wait] {
            family.remove(&label);
        }
        for family in [&all.cached_tokens, &all.client_retries] {
            family.remove(&label);
        }
        for direction in ["input", "output"] {
            all.tokens.remove(&DirectionLabels { model: model(), direction });
        }
        for route in Route::INFERENCE.map(Route::template) {
            all.requests.remove(&RequestLabels { route, model: model(), code: 200 });
            for stream in ["false", "true"] {
                all.durations.remove(&DurationLabels { route, model: model(), stream });
            }
        }
        for (reason, _) in self.rejected.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            all.rejections.remove(&ReasonLabels { model: model(), reason });
        }
        for rare in std::mem::take(&mut *self.rare.lock().unwrap_or_else(PoisonError::into_inner)) {
            match rare {
                Rare::Answered(route, code) => {
                    all.requests.remove(&RequestLabels { route, model: model(), code });
                }
                Rare::Disconnected(phase) => {
                    all.disconnects.remove(&PhaseLabels { model: model(), phase });
                }
                Rare::Upstream(node, kind) => {
                    all.upstream_errors.remove(&UpstreamLabels { model: model(), node, kind });
                }
                Rare::Retried(outcome) => {
                    all.upstream_retries.remove(&OutcomeLabels { model: model(), outcome });
                }
                Rare::Broken(reason) => {
                    all.streams_broken.remove(&ReasonLabels { model: model(), reason });
                }
                Rare::ClientRetried => {}
            }
        }
    }

    /// Observes the time to the first bytes of an event stream.
    pub(crate) fn first_token(&self, seconds: f64) {
        self.first_token.observe(seconds);
    }

    /// Observes the time in the queue, 0 for a slot at once.
    pub(crate) fn waited(&self, seconds: f64) {
        self.queue_wait.observe(seconds);
    }

    /// Observes how long a stream took from its first token to its end, for an answer of this many tokens.
    pub(crate) fn output_tokens(&self, seconds: f64, tokens: u64) {
        if let Some(between) = tokens.checked_sub(1).and_then(|between| u32::try_from(between).ok())
            && between > 0
        {
            self.per_output_token.observe(seconds / f64::from(between));
        }
    }

    /// Counts tokens, cached ones of the prompt among them.
    pub(crate) fn tokens(&self, usage: &Usage) {
        self.input_tokens.inc_by(usage.prompt_tokens);
        self.output_tokens.inc_by(usage.completion_tokens);
        self.cached_tokens.inc_by(usage.cached_tokens);
    }

    /// Counts a refusal.
    pub(crate) fn rejected(&self, reason: &'static str) {
        let mut counters = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        match counters.iter().find(|(known, _)| *known == reason) {
            Some((_, counter)) => {
                counter.inc();
            }
            None => {
                let labels = ReasonLabels { model: self.name.clone(), reason };
                let counter = self.all.rejections.get_or_create_owned(&labels);
                counter.inc();
                counters.push((reason, counter));
            }
        }
    }

    /// Refusals so far, by reason.
    pub(crate) fn rejections(&self) -> BTreeMap<String, u64> {
        let counters = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        counters.iter().map(|(reason, counter)| ((*reason).to_owned(), counter.get())).collect()
    }

    /// Counts a client that left while its request was in this phase.
    pub(crate) fn disconnected(&self, phase: &'static str) {
        self.happened(Rare::Disconnected(phase));
        self.all.disconnected(&self.name, phase);
    }

    /// Counts a failure between this edge and an engine.
    pub(crate) fn upstream_error(&self, node: &str, kind: &'static str) {
        self.happened(Rare::Upstream(node.to_owned(), kind));
        let labels = UpstreamLabels { model: self.name.clone(), node: node.to_owned(), kind };
        self.all.upstream_errors.get_or_create(&labels).inc();
    }

    /// Counts a second try, or one that the budget forbade.
    pub(crate) fn retried(&self, outcome: &'static str) {
        self.happened(Rare::Retried(outcome));
        self.all.upstream_retries.get_or_create(&OutcomeLabels { model: self.name.clone(), outcome }).inc();
    }

    /// Counts a request that its client marked as a retry.
    pub(crate) fn client_retried(&self) {
        self.happened(Rare::ClientRetried);
        self.all.client_retries.get_or_create(&ModelLabel { model: self.name.clone() }).inc();
    }

    /// Counts an answer that ended with an error after its head.
    pub(crate) fn broken(&self, reason: &'static str) {
        self.happened(Rare::Broken(reason));
        self.all.streams_broken.get_or_create(&ReasonLabels { model: self.name.clone(), reason }).inc();
    }
}
