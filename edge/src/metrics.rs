//! Metrics of the edge's application traffic: their names, labels and buckets.
//!
//! Leaves the handles of one model, which the request path holds, to [`model`], and queue and lease gauges to a collector over
//! [`crate::shell::dispatch::Dispatch`], so that they are the numbers admission decides by. Invariant: a label value never
//! comes from a client; unknown models count as `_unknown`.

mod model;

use std::fmt;
use std::sync::{PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use umbel_contracts::daemon::exposition::{TextFormat, declare, encode_to};

pub(crate) use model::ModelMetrics;

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
