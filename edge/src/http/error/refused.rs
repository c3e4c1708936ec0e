//! Refusals that come of counting: admission's, and those of a key's own limits.
//!
//! Owns their words and their seconds. Invariant: the sentence names the limit, its value and the key of the settings it
//! stands under.

use std::time::Duration;

use http::StatusCode;

use super::{Again, Failure, RETRY_AFTER_MAX};
use crate::core::admission::{Refusal, RefusalReason};
use crate::core::keys::{KeyLimit, KeyRefusal, Limit};

impl Failure {
    /// The key is at a limit of its own.
    pub(in crate::http) fn key_limit(at: &KeyLimit) -> Self {
        let (kind, what, name, reason) = match at.limit {
            Limit::RequestsPerMinute => {
                ("requests", "requests a minute", "requests_per_minute", "key_requests")
            }
            Limit::TokensPerMinute => ("tokens", "tokens a minute", "tokens_per_minute", "key_tokens"),
            Limit::RequestsAtOnce => ("requests", "requests at once", "requests_at_once", "key_at_once"),
        };
        let after = at.retry_after.as_millis().div_ceil(1_000);
        let after = u64::try_from(after).unwrap_or(RETRY_AFTER_MAX).clamp(1, RETRY_AFTER_MAX);
        let value = at.value;
        let message = format!(
            "Rate limit reached for this API key: {value} {what} ({name}). Please try again in {after}s."
        );
        let mut failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message)
            .because(reason)
            .again(Again::After(after));
        failure.kind = kind;
        failure
    }

    /// Admission's refusal. `answer_tokens` is what the client wants at most. `jitter` is any number: it spreads the
    /// clients' next tries.
    pub(in crate::http) fn refused(
        model: &str,
        refusal: &Refusal,
        answer_tokens: Option<u64>,
        jitter: u64,
    ) -> Self {
        let again = Again::After(retry_after(refusal.retry_after, jitter));
        match refusal.reason {
            RefusalReason::QueueFull { limit, contended } => {
                let message = format!(
                    "The queue of model `{model}` is full: {limit} of {limit} requests wait (queue.max_requests)."
                );
                let status =
                    if contended { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::SERVICE_UNAVAILABLE };
                Self::new(status, "overloaded", message).because("queue_full").server()
            }
            RefusalReason::WaitedTooLong(waited) => {
                let message = format!(
                    "No slot of model `{model}` became free within {} s, the limit (queue.max_wait).",
                    waited.as_secs()
                );
                Self::new(StatusCode::TOO_MANY_REQUESTS, "overloaded", message).because("queue_timeout").server()
            }
            RefusalReason::StillLoading(waited) => {
                let message = format!(
                    "Model `{model}` is still loading after {} s, the limit (queue.max_wait_loading).",
                    waited.as_secs()
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "model_loading", message).because("loading")
            }
            RefusalReason::NoneCame(waited) => {
                let message = format!(
                    "No provider of model `{model}` is online, and none came within {} s, the limit (queue.max_wait).",
                    waited.as_secs()
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "model_unavailable", message).because("unavailable")
            }
            RefusalReason::TooLong { estimated, limit } => {
                let answer = answer_tokens.map_or(String::new(), |tokens| format!(" and {tokens} for the answer"));
                let message = format!(
                    "This model's maximum context length is {limit} tokens (max_context_tokens). However, you \
                     requested about {estimated} tokens in the prompt{answer}, by this edge's estimate."
                );
                return Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
                    .because("too_long")
                    .about("messages");
            }
            RefusalReason::KeyRevoked => return Self::key(KeyRefusal::Invalid),
            RefusalReason::NoneWanted => {
                let message = format!(
                    "Model `{model}` is known, but nothing serves it now: its providers are drained, not eligible for \
                     traffic, or have failed."
                );
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "model_unavailable", message)
                    .because("unavailable")
                    .about("model")
                    .again(Again::Useless)
            }
        }
        .about("model")
        .again_unless_useless(again)
    }

    fn again_unless_useless(mut self, again: Again) -> Self {
        if self.again != Again::Useless {
            self.again = again;
        }
        self
    }
}

/// Whole seconds, 1 to 60, spread by up to a quarter; 60 where nothing drains.
pub(super) fn retry_after(estimate: Option<Duration>, jitter: u64) -> u64 {
    let Some(estimate) = estimate else { return RETRY_AFTER_MAX };
    let seconds = estimate.as_secs().saturating_add(1);
    seconds.saturating_add(jitter % (seconds / 4 + 1)).clamp(1, RETRY_AFTER_MAX)
}
