//! Headers that tell a client of its request's way: engines that were asked, the time in queues, and where its key
//! stands with its limits by the minute, as OpenAI has them.
//!
//! Invariant: those of a limit are there only if it is set.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::core::keys::{Standing, Window};

/// How many engines were asked.
const ATTEMPTS: HeaderName = HeaderName::from_static("x-umbel-attempts");
/// How long the request waited for slots, in milliseconds.
const QUEUE_MS: HeaderName = HeaderName::from_static("x-umbel-queue-ms");

/// Limit, what is left of it, and when all of it is back.
type Names = [HeaderName; 3];

const REQUESTS: Names = [
    HeaderName::from_static("x-ratelimit-limit-requests"),
    HeaderName::from_static("x-ratelimit-remaining-requests"),
    HeaderName::from_static("x-ratelimit-reset-requests"),
];
const TOKENS: Names = [
    HeaderName::from_static("x-ratelimit-limit-tokens"),
    HeaderName::from_static("x-ratelimit-remaining-tokens"),
    HeaderName::from_static("x-ratelimit-reset-tokens"),
];

/// What a client may know of its request's way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) attempts: u32,
    pub(super) waited: Duration,
    pub(super) standing: Standing,
}

impl Way {
    /// Tells it: engines that were asked, the time in queues, and where the key stands with its limits.
    pub(super) fn tell(self, headers: &mut HeaderMap) {
        headers.insert(ATTEMPTS, number(u64::from(self.attempts)));
        headers.insert(QUEUE_MS, number(u64::try_from(self.waited.as_millis()).unwrap_or(u64::MAX)));
        tell(&self.standing, headers);
    }
}

/// Almost always 0 or 1.
fn number(value: u64) -> HeaderValue {
    match value {
        0 => HeaderValue::from_static("0"),
        1 => HeaderValue::from_static("1"),
        more => HeaderValue::from(more),
    }
}

/// Tells where a key stands.
pub(super) fn tell(standing: &Standing, headers: &mut HeaderMap) {
    let mut put = |[limit, remaining, reset]: Names, window: &Window| {
        headers.insert(limit, HeaderValue::from(window.limit));
        headers.insert(remaining, HeaderValue::from(window.remaining));
        if let Ok(value) = HeaderValue::try_from(duration(window.reset)) {
            headers.insert(reset, value);
        }
    };
    if let Some(window) = &standing.requests {
        put(REQUESTS, window);
    }
    if let Some(window) = &standing.tokens {
        put(TOKENS, window);
    }
}

/// `12ms`, `1.5s`, `6m0s`; never less than what is meant.
fn duration(of: Duration) -> String {
    let ms = of.as_micros().div_ceil(1_000);
    let seconds = ms.div_ceil(1_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if ms.is_multiple_of(1_000) => format!("{seconds}s"),
        1_000..60_000 => {
            let text = format!("{}.{:03}", ms / 1_000, ms % 1_000);
            format!("{}s", text.trim_end_matches('0'))
        }
        _ => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        for (ms, text) in
            [(0, "0ms"), (12, "12ms"), (1_000, "1s"), (1_500, "1.5s"), (59_001, "59.001s"), (359_500, "6m0s")]
        {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
    }
}
