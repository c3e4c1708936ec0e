//! Failures as clients see them.

use super::*;

fn refused(reason: RefusalReason) -> Response<Answer> {
    Failure::refused("m", &Refusal { reason, retry_after: None }, None, 7).response()
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
