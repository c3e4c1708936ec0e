//! What the control plane counts: names, labels and the handles of those who count.
//!
//! Leaves what is read at each scrape to [`crate::shell::vitals`], and how text is written to `umbel_contracts`. Invariant:
//! a label value is a word of this program or a name that an operator gave, never what a peer said.

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use umbel_contracts::daemon::exposition::{TextFormat, declare, encode_to};
use umbel_contracts::operations::Class;
use umbel_contracts::serve::Answered;
use umbel_wire::error::{Code, Error};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    purpose: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RelayedLabels {
    class: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    method: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

/// From a request's head to its answer's head: what waits for sites and commands is among them.
fn answer_buckets() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0])
}

/// Everything that is counted where it happens.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: RwLock<Registry>,
    pub(crate) events: Counter,
    pub(crate) events_lost: Counter,
    pub(crate) audited: Counter,
    pub(crate) enrolled: Counter,
    refused: Family<RefusedLabels, Counter>,
    relayed: Family<RelayedLabels, Counter>,
    ended: Family<OutcomeLabel, Counter>,
    requests: Family<RequestLabels, Counter>,
    durations: Family<RouteLabel, Histogram, fn() -> Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: RwLock::default(),
            events: Counter::default(),
            events_lost: Counter::default(),
            audited: Counter::default(),
            enrolled: Counter::default(),
            refused: Family::default(),
            relayed: Family::default(),
            ended: Family::default(),
            requests: Family::default(),
            durations: Family::new_with_constructor(answer_buckets),
        };
        metrics.register(|to| {
            let plain = [
                ("umbel_cp_events", "Events of edges and of this control plane", &metrics.events),
                ("umbel_cp_events_lost", "Events of edges that were lost on their way", &metrics.events_lost),
                ("umbel_cp_audit_records", "Audit entries written since the start", &metrics.audited),
                ("umbel_cp_enrolled", "Edges enrolled since the start", &metrics.enrolled),
            ];
            for (name, help, counter) in plain {
                declare(to, name, help, counter.clone());
            }
            let help = "Connections of edges that were refused, by what they came for and why";
            declare(to, "umbel_cp_connections_refused", help, metrics.refused.clone());
            let help = "Operations relayed to edges, by class and what came of sending them";
            declare(to, "umbel_cp_commands", help, metrics.relayed.clone());
            let help = "Relayed commands that came to their end, by outcome";
            declare(to, "umbel_cp_commands_ended", help, metrics.ended.clone());
            let help = "Requests of operators answered, over TLS and the local socket";
            declare(to, "umbel_cp_api_requests", help, metrics.requests.clone());
            let help = "From a request of an operator to the head of its answer";
            declare(to, "umbel_cp_api_request_duration_seconds", help, metrics.durations.clone());
        });
        metrics
    }
}

impl Metrics {
    /// Adds what is read at each scrape.
    pub(crate) fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.registry.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// The exposition; `None` if a collector fails.
    pub(crate) fn encode(&self, format: TextFormat) -> Option<String> {
        let mut text = String::new();
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        encode_to(&registry, format, &mut text).ok().map(|()| text)
    }

    /// An edge's hello (`hello`) or enrollment (`enroll`) was refused.
    pub(crate) fn refused(&self, purpose: &'static str, error: &Error) {
        // Reasons are words of this program; one that was put together is not told apart.
        let reason = match &error.reason {
            Cow::Borrowed(reason) => reason,
            Cow::Owned(_) => "OTHER",
        };
        self.refused.get_or_create(&RefusedLabels { purpose, reason }).inc();
    }

    /// An operation was sent to its edge, or could not be; `accepted` and ended ones are `answered`.
    pub(crate) fn relayed(&self, class: Class, failed: Option<Code>) {
        let result = failed.map_or("answered", Code::name);
        self.relayed.get_or_create(&RelayedLabels { class: class.as_str(), result }).inc();
    }

    /// A relayed command has come to this end; what stands behind a colon is for people.
    pub(crate) fn ended(&self, outcome: &str) {
        let word = outcome.split(':').next().unwrap_or_default();
        let known = ["succeeded", "failed", "cancelled", "timed_out", "refused", "lost"];
        let outcome = known.into_iter().find(|known| *known == word).unwrap_or("other");
        self.ended.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// An operator's request was answered.
    pub(crate) fn answered(&self, told: &Answered<'_>) {
        let route = told.route.to_owned();
        let labels = RequestLabels { route: route.clone(), method: told.method, code: told.status };
        self.requests.get_or_create(&labels).inc();
        self.durations.get_or_create(&RouteLabel { route }).observe(told.seconds);
    }
}
