//! The hello's refusals, one row each, in their order.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

const GRACE_MS: i64 = 30 * 24 * 3_600_000;

fn row(edge_id: &str, key: u8) -> EdgeRow {
    EdgeRow {
        edge_id: edge_id.into(),
        display_name: edge_id.into(),
        key_sha256: KeyHash([key; 32]).to_string(),
        not_after_unix_ms: 1_000,
        enrolled_at_unix_ms: 0,
        token_id: "t".into(),
        issued_at_unix_ms: 0,
        pending: None,
        revoked: None,
    }
}

fn edges() -> Edges {
    let mut edges = Edges::default();
    edges.apply(row("ber1", 1), Position(1));
    let revoked = Revoked { at_unix_ms: 5, by: "ada".into(), reason: "lost".into() };
    edges.apply(EdgeRow { revoked: Some(revoked), ..row("ham1", 2) }, Position(2));
    edges
}

const GOOD: VersionRange = VersionRange { min: 1, max: 1 };

fn judge(
    edge_id: &str,
    key: Option<u8>,
    versions: VersionRange,
    now: Option<i64>,
) -> Result<String, (Code, String)> {
    let certificate = key.map(|key| (KeyHash([key; 32]), 1_000));
    edges()
        .judge(HelloFacts { edge_id, certificate, versions, now_unix_ms: now })
        .map(|(edge_id, _)| edge_id.to_string())
        .map_err(|refusal| (refusal.error.code, refusal.error.reason.into_owned()))
}

#[test]
fn every_refusal_has_its_code_and_comes_in_the_contracts_order() {
    let bad = VersionRange { min: 7, max: 9 };
    let no = |code, reason: &str| Err((code, reason.to_owned()));
    // Everything is wrong in the first row of each group: the earlier check wins.
    assert_eq!(judge("", None, bad, Some(0)), no(Code::InvalidArgument, "EDGE_ID_EMPTY"));
    assert_eq!(judge("No Such", None, bad, Some(0)), no(Code::InvalidArgument, "EDGE_ID_MALFORMED"));
    assert_eq!(judge("ber1", None, bad, Some(0)), no(Code::Unauthenticated, "CERTIFICATE_MISSING"));
    assert_eq!(judge("ber1", Some(9), bad, Some(0)), no(Code::Unauthenticated, "CERTIFICATE_UNKNOWN"));
    assert_eq!(judge("ber1", Some(2), bad, Some(0)), no(Code::Unauthenticated, "CREDENTIAL_REVOKED"));
    assert_eq!(
        judge("ber1", Some(1), bad, Some(GRACE_MS + 1_001)),
        no(Code::Unauthenticated, "CERTIFICATE_EXPIRED")
    );
    assert_eq!(judge("ham1", Some(1), bad, Some(0)), no(Code::PermissionDenied, "EDGE_ID_NOT_YOURS"));
    assert_eq!(judge("ber1", Some(1), bad, Some(0)), no(Code::Conflict, "VERSION_INCOMPATIBLE"));
    assert_eq!(judge("ber1", Some(1), GOOD, Some(0)), Ok("ber1".into()));
}

#[test]
fn an_expired_certificate_is_let_in_while_the_clock_is_not_plausible() {
    assert_eq!(judge("ber1", Some(1), GOOD, None), Ok("ber1".into()));
}

#[test]
fn versions_get_their_verdict_and_its_remedy() {
    let verdict = |min, max| {
        let certificate = Some((KeyHash([1; 32]), 1_000));
        let facts = HelloFacts {
            edge_id: "ber1",
            certificate,
            versions: VersionRange { min, max },
            now_unix_ms: Some(0),
        };
        let refusal = edges().judge(facts).unwrap_err();
        (refusal.verdict.unwrap(), refusal.error.message)
    };
    let (too_new, remedy) = verdict(2, 3);
    assert_eq!(too_new, Verdict::TooNew);
    assert!(remedy.contains("Upgrade the control plane"), "{remedy}");
    for (min, max) in [(0, 0), (3, 2)] {
        assert_eq!(verdict(min, max).0, Verdict::Unknown);
    }
}

#[test]
fn a_new_key_replaces_the_old_one() {
    let mut edges = edges();
    edges.apply(row("ham1", 3), Position(3));
    assert!(!edges.knows(&KeyHash([2; 32])));
    assert!(edges.knows(&KeyHash([3; 32])));
    assert_eq!(edges.len(), 2);
}

#[test]
fn an_edge_that_a_caller_names_is_checked() {
    let edges = edges();
    assert_eq!(edges.find("../x").unwrap_err().code, Code::InvalidArgument);
    assert_eq!(edges.find("nope").unwrap_err().code, Code::NotFound);
    assert_eq!(edges.find("ber1").unwrap().0.as_str(), "ber1");
}

#[test]
fn row_30_an_expired_certificate_is_let_in_for_its_grace() {
    assert_eq!(judge("ber1", Some(1), GOOD, Some(GRACE_MS + 1_000)), Ok("ber1".into()));
}

#[test]
fn a_renewed_credential_is_given_then_shown_and_the_old_one_is_retired() {
    let (first, second, other) = (KeyHash([1; 32]), KeyHash([3; 32]), KeyHash([4; 32]));
    let mut edges = edges();
    let ber1 = EdgeId::parse("ber1").unwrap();
    let row = edges.get(&ber1).unwrap().row.clone();
    assert!(row.shown(&first).is_none() && !row.is_due(600) && row.is_due(667));
    let ham1 = EdgeId::parse("ham1").unwrap();
    assert_eq!(row.may_have(&second, Some(&ham1)).unwrap_err().reason, "KEY_IN_USE");
    assert_eq!(row.may_have(&first, Some(&ber1)).unwrap_err().reason, "KEY_UNCHANGED");
    row.may_have(&second, None).unwrap();
    let pending =
        Pending { key_sha256: second.to_string(), not_after_unix_ms: 9_000, issued_at_unix_ms: 900 };
    edges.apply(EdgeRow { pending: Some(pending), ..row }, Position(3));
    assert!(edges.knows(&first) && edges.knows(&second) && !edges.knows(&other));
    let given = edges.get(&ber1).unwrap().row.clone();
    given.may_have(&second, Some(&ber1)).unwrap();
    assert!(given.shown(&first).is_none());
    let shown = given.shown(&second).unwrap();
    assert_eq!((shown.not_after_unix_ms, shown.is_due(1_000), shown.pending.clone()), (9_000, false, None));
    edges.apply(shown, Position(4));
    assert!(!edges.knows(&first) && edges.knows(&second));
}
