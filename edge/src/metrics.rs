//! Metrics of the edge's application traffic.
//!
//! Owns names, labels and buckets, and the handles that the request path holds. Leaves queue and lease gauges
//! to a collector over [`crate::shell::dispatch::Dispatch`], so that they are the numbers admission decides
//! by. Invariant: a label value never comes from a client; unknown models count as `_unknown`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use umbel_contracts::daemon::exposition::{TextFormat, declare, encode_to};

use crate::core::usage::Usage;

/// The model label of requests whose model nobody serves.
pub(crate) use umbel_contracts::names::UNKNOWN_MODEL;

/// The routes that have metrics of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/responses`.
    Responses,
    /// `/v1/rerank`.
    Rerank,
    /// `/v1/audio/transcriptions`.
    Transcriptions,
    /// `/v1/models` and `/v1/models/{id}`.
    Models,
    /// Everything else.
    Other,
}

/// Routes that an engine answers.
const INFERENCE_ROUTES: usize = Route::INFERENCE.len();

impl Route {
    /// Those that an engine answers.
    const INFERENCE: [Self; 6] = [
        Self::Chat,
        Self::Completions,
        Self::Embeddings,
        Self::Responses,
        Self::Rerank,
        Self::Transcriptions,
    ];

    /// The label: the route's template.
    pub(crate) fn template(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Responses => "/v1/responses",
            Self::Rerank => "/v1/rerank",
            Self::Transcriptions => "/v1/audio/transcriptions",
            Self::Models => "/v1/models",
            Self::Other => "other",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    model: String,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    route: &'static str,
    model: String,
    stream: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    model: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    model: String,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    model: String,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamLabels {
    model: String,
    node: String,
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    model: String,
    outcome: &'static str,
}

type Histograms<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// Buckets of the OpenTelemetry conventions for a request's duration, extended to the longest streams.
fn duration_buckets() -> Histogram {
    Histogram::new([
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
        327.68, 655.36,
    ])
}

/// vLLM's own buckets for the first token, extended to cold starts.
fn first_token_buckets() -> Histogram {
    Histogram::new([
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
        40.0, 80.0, 160.0, 640.0, 2560.0,
    ])
}

/// Buckets of the OpenTelemetry conventions for the time between two tokens.
fn output_token_buckets() -> Histogram {
    Histogram::new([0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5])
}

fn wait_buckets() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 110.0])
}

/// All metrics of the edge's application traffic.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: RwLock<Registry>,
    requests: Family<RequestLabels, Counter>,
    durations: Histograms<DurationLabels>,
    first_token: Histograms<ModelLabel>,
    per_output_token: Histograms<ModelLabel>,
    queue_wait: Histograms<ModelLabel>,
    cached_tokens: Family<ModelLabel, Counter>,
    tokens: Family<DirectionLabels, Counter>,
    rejections: Family<ReasonLabels, Counter>,
    disconnects: Family<PhaseLabels, Counter>,
    upstream_errors: Family<UpstreamLabels, Counter>,
    upstream_retries: Family<OutcomeLabels, Counter>,
    client_retries: Family<ModelLabel, Counter>,
    streams_broken: Family<ReasonLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// All metrics, at zero.
    pub(crate) fn new() -> Self {
        let metrics = Self {
            registry: RwLock::new(Registry::default()),
            requests: Family::default(),
            durations: Family::new_with_constructor(duration_buckets),
            first_token: Family::new_with_constructor(first_token_buckets),
            per_output_token: Family::new_with_constructor(output_token_buckets),
            queue_wait: Family::new_with_constructor(wait_buckets),
            cached_tokens: Family::default(),
            tokens: Family::default(),
            rejections: Family::default(),
            disconnects: Family::default(),
            upstream_errors: Family::default(),
            upstream_retries: Family::default(),
            client_retries: Family::default(),
            streams_broken: Family::default(),
        };
        metrics.register(|to| {
            declare(to, "umbel_edge_requests", "Requests answered", metrics.requests.clone());
            declare(
                to,
                "umbel_edge_request_duration_seconds",
                "From the request's head to the answer's end",
                metrics.durations.clone(),
            );
            declare(
                to,
                "umbel_edge_time_to_first_token_seconds",
                "From the request's head, its body included, to the first bytes of an event stream",
                metrics.first_token.clone(),
            );
            declare(
                to,
                "umbel_edge_time_per_output_token_seconds",
                "Of an event stream behind its first token, by the tokens of the whole answer",
                metrics.per_output_token.clone(),
            );
            declare(
                to,
                "umbel_edge_cached_input_tokens",
                "Tokens of prompts that the engines had cached",
                metrics.cached_tokens.clone(),
            );
            declare(to, "umbel_edge_queue_wait_seconds", "Time in the queue", metrics.queue_wait.clone());
            declare(
                to,
                "umbel_edge_tokens",
                "Tokens as the engines count them, else by estimate and events",
                metrics.tokens.clone(),
            );
            declare(to, "umbel_edge_rejections", "Requests that ended with an error instead of an answer, as their clients were told: refusals, and engines that failed", metrics.rejections.clone());
            declare(
                to,
                "umbel_edge_client_disconnects",
                "Clients that left before their answer was whole",
                metrics.disconnects.clone(),
            );
            declare(
                to,
                "umbel_edge_upstream_errors",
                "Failures between this edge and the engines",
                metrics.upstream_errors.clone(),
            );
            declare(to, "umbel_edge_upstream_retries", "Second tries", metrics.upstream_retries.clone());
            declare(
                to,
                "umbel_edge_client_retries",
                "Requests that the client marked as its retry",
                metrics.client_retries.clone(),
            );
            declare(
                to,
                "umbel_edge_streams_broken",
                "Answers that ended with an error after their head",
                metrics.streams_broken.clone(),
            );
        });
        metrics
    }

    /// Adds metrics of other parts of the edge to the same exposition.
    pub(crate) fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Writes the exposition. It walks all nodes: not for the runtime's thread.
    ///
    /// # Errors
    /// If `out` takes no more, or a collector fails; then it lacks its end.
    pub(crate) fn encode_to(&self, format: TextFormat, out: &mut impl fmt::Write) -> fmt::Result {
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        encode_to(&registry, format, out)
    }

    /// The same as one text.
    #[cfg(test)]
    pub(crate) fn encode(&self, format: TextFormat) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail; a collector that does leaves what was written so far.
        let _ = self.encode_to(format, &mut out);
        out
    }

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

    /// Counts an answered request.
    pub(crate) fn answered(&self, route: Route, model: &str, code: u16) {
        let labels = RequestLabels { route: route.template(), model: model.to_owned(), code };
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a request that this edge refused itself.
    pub(crate) fn rejected(&self, model: &str, reason: &'static str) {
        self.rejections.get_or_create(&ReasonLabels { model: model.to_owned(), reason }).inc();
    }

    /// Counts a client that left.
    pub(crate) fn disconnected(&self, model: &str, phase: &'static str) {
        self.disconnects.get_or_create(&PhaseLabels { model: model.to_owned(), phase }).inc();
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
