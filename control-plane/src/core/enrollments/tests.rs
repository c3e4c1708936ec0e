//! Who may use an edge's token (fault rows 22 and 24, the rules; the race itself is tested with the store).
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use umbel_store::Position;

use super::super::edges::{EdgeRow, Revoked};
use super::*;

const NOW: Wall = Wall(1_000_000);

fn request(secret: &Secret) -> EdgeEnrollmentRequest {
    EdgeEnrollmentRequest {
        token_id: "0123456789abcdef".into(),
        secret_sha256: secret.hash().to_hex(),
        edge_id: "ber1".into(),
        expires_in_seconds: None,
    }
}

fn row(secret: &Secret) -> EnrollmentRow {
    new_row(&request(secret), "ada", NOW).unwrap().1
}

fn used(secret: &Secret, key: KeyHash) -> EnrollmentRow {
    let mut row = row(secret);
    row.token.claim = Some(ClaimRow {
        key_hash: key.to_string(),
        claimed_at_unix_ms: NOW.unix_ms(),
        subject: "ber1".into(),
        certificate_chain: vec![vec![1]],
        void: false,
    });
    row
}

fn enrolled(revoked: bool) -> Known {
    let revoked = revoked.then(|| Revoked { at_unix_ms: 0, by: "ada".into(), reason: "lost".into() });
    let row = EdgeRow {
        edge_id: "ber1".into(),
        display_name: String::new(),
        key_sha256: KeyHash([9; 32]).to_string(),
        not_after_unix_ms: 0,
        enrolled_at_unix_ms: 0,
        token_id: "t".into(),
        issued_at_unix_ms: 0,
        pending: None,
        revoked,
    };
    Known { row, position: Position(1) }
}

fn refusal(judged: Judged) -> (Code, Option<&'static str>) {
    match judged {
        Judged::Refused { error, truth } => (error.code, truth),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_token_is_for_one_edge_and_one_key() {
    let secret = Secret::generate();
    let (key, other) = (KeyHash([1; 32]), KeyHash([2; 32]));
    let fresh = row(&secret);
    assert_eq!(judge(NOW, Some(&fresh), "ber1", &secret, &key, None), Judged::Sign);
    let judged = judge(NOW, Some(&fresh), "ham1", &secret, &key, None);
    assert_eq!(refusal(judged), (Code::PermissionDenied, Some("another_edge")));
    let used = used(&secret, key);
    assert!(matches!(judge(NOW, Some(&used), "ber1", &secret, &key, None), Judged::Replay(_)));
    let judged = judge(NOW, Some(&used), "ber1", &secret, &other, None);
    assert_eq!(refusal(judged), (Code::Conflict, Some("used")));
}

#[test]
fn without_the_secret_nothing_is_told() {
    let secret = Secret::generate();
    let row = row(&secret);
    let key = KeyHash([1; 32]);
    let wrong = judge(NOW, Some(&row), "ham1", &Secret::generate(), &key, Some(&enrolled(false)));
    let unknown = judge(NOW, None, "ber1", &secret, &key, None);
    let (Judged::Refused { error: wrong, truth }, Judged::Refused { error: unknown, truth: nothing }) =
        (wrong, unknown)
    else {
        panic!("both are refused");
    };
    assert_eq!(wrong, unknown);
    assert_eq!((wrong.code, truth, nothing), (Code::Unauthenticated, Some("wrong_secret"), None));
}

#[test]
fn an_enrolled_edge_is_not_enrolled_twice_unless_it_was_revoked() {
    let secret = Secret::generate();
    let row = row(&secret);
    let key = KeyHash([1; 32]);
    let judged = judge(NOW, Some(&row), "ber1", &secret, &key, Some(&enrolled(false)));
    assert_eq!(refusal(judged), (Code::Conflict, Some("already_enrolled")));
    assert_eq!(judge(NOW, Some(&row), "ber1", &secret, &key, Some(&enrolled(true))), Judged::Sign);
}

#[test]
fn what_an_admin_sends_is_checked() {
    let secret = Secret::generate();
    let good = request(&secret);
    let bad = [
        EdgeEnrollmentRequest { edge_id: "Ber 1".into(), ..good.clone() },
        EdgeEnrollmentRequest { token_id: "a/b".into(), ..good.clone() },
        EdgeEnrollmentRequest { secret_sha256: "x".repeat(64), ..good.clone() },
        EdgeEnrollmentRequest { expires_in_seconds: Some(0), ..good.clone() },
        EdgeEnrollmentRequest { expires_in_seconds: Some(86_401), ..good.clone() },
    ];
    for request in bad {
        assert_eq!(new_row(&request, "ada", NOW).unwrap_err().code, Code::InvalidArgument, "{request:?}");
    }
}

#[test]
fn a_tokens_state_follows_its_life() {
    let secret = Secret::generate();
    let mut row = row(&secret);
    assert_eq!(state(&row, NOW), EnrollmentState::Open);
    assert_eq!(state(&row, NOW + DEFAULT_LIFE), EnrollmentState::Expired);
    row.token.revoked_at_unix_ms = Some(1);
    assert_eq!(state(&row, NOW), EnrollmentState::Revoked);
    assert_eq!(state(&used(&secret, KeyHash([1; 32])), NOW), EnrollmentState::Used);
}
