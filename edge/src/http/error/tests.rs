//! Failures as clients see them.

use std::time::Duration;

use super::refused::retry_after;
use super::*;
use crate::core::admission::{Refusal, RefusalReason};

fn refused(reason: RefusalReason) -> Response<Answer> {
    Failure::refused("m", &Refusal { reason, retry_after: None }, Some(50), 7).response()
}

#[test]
fn contention_is_429_absence_is_503_and_both_say_when_to_come_back() {
    let second = Duration::from_secs(1);
    for (reason, status, word) in [
        (RefusalReason::QueueFull { limit: 3, contended: true }, 429, "queue_full"),
        (RefusalReason::QueueFull { limit: 3, contended: false }, 503, "queue_full"),
        (RefusalReason::WaitedTooLong(second), 429, "queue_timeout"),
        (RefusalReason::StillLoading(second), 503, "loading"),
        (RefusalReason::NoneCame(second), 503, "unavailable"),
    ] {
        let response = refused(reason);
        assert_eq!(response.status(), status, "{reason:?}");
        assert_eq!(response.headers()[REASON], word);
        assert_eq!(response.headers()[header::RETRY_AFTER], "60");
    }
    let response = refused(RefusalReason::NoneWanted);
    assert_eq!(
        (response.status().as_u16(), &response.headers()[SHOULD_RETRY]),
        (503, &HeaderValue::from_static("false"))
    );
    assert!(!response.headers().contains_key(header::RETRY_AFTER));
}

#[test]
fn behaviour_18_a_prompt_that_is_clearly_too_long_is_told_with_the_numbers() {
    let refusal =
        Refusal { reason: RefusalReason::TooLong { estimated: 9000, limit: 4096 }, retry_after: None };
    let failure = Failure::refused("m", &refusal, Some(50), 7);
    let json: serde_json::Value = serde_json::from_slice(&failure.body()).unwrap_or_default();
    assert_eq!((failure.status.as_u16(), &json["error"]["code"]), (400, &"context_length_exceeded".into()));
    let message = json["error"]["message"].as_str().unwrap_or_default();
    for said in ["maximum context length is 4096 tokens", "about 9000 tokens", "and 50 for the answer"] {
        assert!(message.contains(said), "{message}");
    }
    assert!(!failure.response().headers().contains_key(header::RETRY_AFTER));
}

#[test]
fn retry_after_stays_in_range() {
    assert_eq!(retry_after(None, 3), 60);
    for jitter in 0..50 {
        let soon = retry_after(Some(Duration::ZERO), jitter);
        let later = retry_after(Some(Duration::from_secs(19)), jitter);
        assert!(soon == 1 && (20..=25).contains(&later), "{soon} {later}");
        assert_eq!(retry_after(Some(Duration::from_secs(3600)), jitter), 60);
    }
}

#[test]
fn the_body_has_openais_four_keys() {
    let text = Failure::model_not_found("x\"y").body();
    let json: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    let error = json["error"].as_object().cloned().unwrap_or_default();
    assert_eq!(error.keys().collect::<Vec<_>>(), ["code", "message", "param", "type"]);
    assert_eq!((&error["code"], &error["param"]), (&"model_not_found".into(), &"model".into()));
    assert!(Failure::unknown_url().body().windows(12).any(|part| part == b"\"param\":null"));
}
