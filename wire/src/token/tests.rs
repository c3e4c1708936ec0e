//! Tokens and keys: round trips, and every way of getting one wrong told apart without repeating it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

use quickcheck::quickcheck;

use super::*;

fn token() -> EnrollmentToken {
    EnrollmentToken {
        kind: TokenKind::Node,
        edge_id: EdgeId::parse("ber1").unwrap(),
        token_id: "0123456789abcdef".to_owned(),
        ca_digest: [7; 32],
        addresses: vec!["edge.example:7451".to_owned(), "[2001:db8::1]:7451".to_owned()],
        secret: Secret::from_slice(&[0x5a; 32]).unwrap(),
    }
}

#[test]
fn a_token_survives_its_text() {
    let text = token().to_text().unwrap();
    assert!(text.expose().starts_with("umbel1_") && !text.expose().contains(char::is_whitespace));
    let back = EnrollmentToken::parse(&format!("  {}\n", text.expose())).unwrap();
    assert_eq!(back.kind, TokenKind::Node);
    assert_eq!(back.edge_id, token().edge_id);
    assert_eq!(back.token_id, token().token_id);
    assert_eq!(back.ca_digest, token().ca_digest);
    assert_eq!(back.addresses, token().addresses);
    assert_eq!(back.secret.expose(), token().secret.expose());
}

#[test]
fn each_mistake_has_its_own_sentence() {
    let whole = token().to_text().unwrap();
    let text = whole.expose();
    let parse = |text: &str| EnrollmentToken::parse(text).unwrap_err();
    assert_eq!(parse(" \n"), TokenError::Empty);
    assert_eq!(parse("hello"), TokenError::NotOurs { expected: PREFIX });
    assert_eq!(parse(&text.replace("umbel1_", "umbel2_")), TokenError::OtherVersion);
    let want = text.len();
    assert_eq!(parse(&text[..want - 9]), TokenError::Truncated { have: want - 9, want });
    assert_eq!(parse(&format!("{text}abc")), TokenError::TooLong { have: want + 3, want });
    assert!(parse(&text.replacen(&text[40..41], " ", 1)).to_string().contains("position"));
    let key = mint_bearer(BearerKind::ApiKey).1;
    assert!(matches!(parse(key.expose()), TokenError::OtherKind { found: "an API key", .. }));
}

#[test]
fn a_bad_address_or_id_never_gets_into_a_token() {
    for address in
        ["", "host", "host:0", "host:65536", ":1", "ho st:1", "::1:7", "[::g]:7", "http://h:1", "h:+1"]
    {
        let bad = EnrollmentToken { addresses: vec![address.to_owned()], ..token() };
        assert_eq!(bad.to_text().unwrap_err(), TokenError::Field { field: "addresses" }, "{address}");
    }
    let bad = EnrollmentToken { token_id: "a/../b".to_owned(), ..token() };
    assert_eq!(bad.to_text().unwrap_err(), TokenError::Field { field: "id" });
}

#[test]
fn a_key_survives_its_text_and_opens_one_kind_of_door() {
    let (id, text, hash) = mint_bearer(BearerKind::ApiKey);
    let bearer = parse_bearer(text.expose(), BearerKind::ApiKey).unwrap();
    assert_eq!(bearer.id, id);
    assert!(SecretHash::check(Some(&hash), &bearer.secret));
    let error = parse_bearer(text.expose(), BearerKind::OperatorToken).unwrap_err();
    assert_eq!(error.to_string(), "this is an API key, and an operator token is needed here");
    assert!(matches!(parse_bearer("sk-abc", BearerKind::ApiKey), Err(TokenError::NotOurs { .. })));
    let short = &text.expose()[..text.expose().len() - 1];
    assert!(matches!(parse_bearer(short, BearerKind::ApiKey), Err(TokenError::Truncated { .. })));
}

quickcheck! {
    /// Any one changed character is found, and no error repeats any part of the token.
    fn a_changed_character_is_found(at: usize, to: char) -> bool {
        let text = token().to_text().unwrap();
        let mut changed: Vec<char> = text.expose().chars().collect();
        let at = PREFIX.len() + at % (changed.len() - PREFIX.len());
        if changed[at] == to {
            return true;
        }
        changed[at] = to;
        let changed: String = changed.into_iter().collect();
        match EnrollmentToken::parse(&changed) {
            // White space put at the very end is trimmed and thus a truncation.
            Ok(_) => false,
            Err(error) => !error.to_string().contains(&text.expose()[PREFIX.len()..PREFIX.len() + 8]),
        }
    }

    fn a_changed_key_is_found(at: usize, to: char) -> bool {
        let (_, text, _) = mint_bearer(BearerKind::ApiKey);
        let mut changed: Vec<char> = text.expose().chars().collect();
        let at = at % changed.len();
        if changed[at] == to {
            return true;
        }
        changed[at] = to;
        let changed: String = changed.into_iter().collect();
        parse_bearer(&changed, BearerKind::ApiKey).is_err()
    }

    fn arbitrary_text_never_panics(text: String, behind: String) -> bool {
        let _ = EnrollmentToken::parse(&text);
        let _ = EnrollmentToken::parse(&format!("{PREFIX}{behind}"));
        let _ = parse_bearer(&format!("umk_{behind}"), BearerKind::ApiKey);
        let _ = parse_bearer(&text, BearerKind::OperatorToken);
        true
    }
}
