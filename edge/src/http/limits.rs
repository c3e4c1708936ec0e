//! Headers that tell where a key stands with its limits by the minute, as OpenAI has them.
//!
//! Invariant: they are there only for a limit that is set.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::core::keys::{Standing, Window};

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

/// Tells them.
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

/// `12ms`, `7s`, `6m0s`; never less than what is meant.
fn duration(of: Duration) -> String {
    let ms = of.as_micros().div_ceil(1_000);
    let seconds = ms.div_ceil(1_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 if seconds < 60 => format!("{seconds}s"),
        _ => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        for (ms, text) in
            [(0, "0ms"), (12, "12ms"), (1_000, "1s"), (1_001, "2s"), (59_500, "1m0s"), (360_000, "6m0s")]
        {
            assert_eq!(duration(Duration::from_millis(ms)), text);
        }
    }
}
