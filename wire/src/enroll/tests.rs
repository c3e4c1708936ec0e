//! The claim rules: the table, and a model that must agree on every history.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

const MINTED: i64 = 1_800_000_000_000;
const LIFE_MS: i64 = 900_000;

fn key(number: u8) -> KeyHash {
    KeyHash([number; 32])
}

fn secret(number: u8) -> Secret {
    Secret::from_slice(&[number; 32]).unwrap()
}

fn row() -> TokenRow {
    TokenRow {
        token_id: "t-00000001".to_owned(),
        secret_hash: secret(1).hash(),
        created_at_unix_ms: MINTED,
        expires_at_unix_ms: MINTED + LIFE_MS,
        revoked_at_unix_ms: None,
        claim: None,
    }
}

fn claimed(by: u8, at: i64) -> TokenRow {
    let claim = ClaimRow {
        key_hash: key(by).to_string(),
        claimed_at_unix_ms: at,
        subject: "node-1".to_owned(),
        certificate_chain: vec![vec![by]],
        void: false,
    };
    TokenRow { claim: Some(claim), ..row() }
}

fn decide(now: i64, row: Option<&TokenRow>, secret_of: u8, key_of: u8) -> Claim {
    claim(Wall(now), row, &secret(secret_of), &key(key_of))
}

#[test]
fn a_stored_chain_is_base64_and_one_from_before_that_still_decodes() {
    let mut row = claimed(7, MINTED);
    row.claim.as_mut().unwrap().certificate_chain = vec![vec![0, 1, 255], vec![]];
    let stored = serde_json::to_value(&row).unwrap();
    assert_eq!(stored["claim"]["certificate_chain"], serde_json::json!(["AAH/", ""]));
    assert_eq!(serde_json::from_value::<TokenRow>(stored.clone()).unwrap(), row);
    let mut old = stored;
    old["claim"]["certificate_chain"] = serde_json::json!([[0, 1, 255], []]);
    assert_eq!(serde_json::from_slice::<TokenRow>(old.to_string().as_bytes()).unwrap(), row);
    for bad in [serde_json::json!(["AAH"]), serde_json::json!([[256]]), serde_json::json!([7])] {
        old["claim"]["certificate_chain"] = bad;
        assert!(serde_json::from_value::<TokenRow>(old.clone()).is_err());
    }
}

#[test]
fn a_fresh_token_is_claimed_once_and_replayed_to_the_same_key() {
    let fresh = row();
    assert_eq!(decide(MINTED, Some(&fresh), 1, 7), Claim::Fresh);
    let used = claimed(7, MINTED + 1000);
    let claim = used.claim.clone().unwrap();
    assert_eq!(decide(MINTED + 2000, Some(&used), 1, 7), Claim::Replay(claim));
    assert_eq!(decide(MINTED + 2000, Some(&used), 1, 8), Claim::Conflict);
}

#[test]
fn the_replay_ends_at_the_later_of_expiry_and_ten_minutes_after_the_claim() {
    let early = claimed(7, MINTED);
    assert!(matches!(decide(MINTED + LIFE_MS - 1, Some(&early), 1, 7), Claim::Replay(_)));
    assert_eq!(decide(MINTED + LIFE_MS, Some(&early), 1, 7), Claim::Refused(Refusal::Expired));
    let late = claimed(7, MINTED + LIFE_MS - 1);
    assert!(matches!(decide(MINTED + LIFE_MS + 599_998, Some(&late), 1, 7), Claim::Replay(_)));
    assert_eq!(decide(MINTED + LIFE_MS + 599_999, Some(&late), 1, 7), Claim::Refused(Refusal::Expired));
    // Another key after the expiry is told nothing about the claim.
    assert_eq!(decide(MINTED + LIFE_MS, Some(&late), 1, 8), Claim::Refused(Refusal::Expired));
}

#[test]
fn unknown_wrong_revoked_and_expired_read_the_same_and_differ_in_the_audit() {
    let revoked = TokenRow { revoked_at_unix_ms: Some(MINTED), ..row() };
    let fresh = row();
    let void = {
        let mut row = claimed(7, MINTED);
        row.claim.as_mut().unwrap().void = true;
        row
    };
    let refusals = [
        (decide(MINTED, None, 1, 7), Refusal::Unknown),
        (decide(MINTED, Some(&fresh), 2, 7), Refusal::WrongSecret),
        (decide(MINTED, Some(&revoked), 1, 7), Refusal::Revoked),
        (decide(MINTED + LIFE_MS, Some(&fresh), 1, 7), Refusal::Expired),
        (decide(MINTED, Some(&void), 1, 7), Refusal::CredentialVoid),
        // A wrong secret learns nothing of a claim either.
        (decide(MINTED, Some(&claimed(7, MINTED)), 2, 8), Refusal::WrongSecret),
    ];
    let told: Vec<_> = refusals.iter().map(|(claim, _)| claim.error().unwrap()).collect();
    assert!(told.windows(2).all(|pair| pair.first() == pair.last()));
    for (claim, reason) in refusals {
        assert_eq!(claim, Claim::Refused(reason));
    }
}

/// One thing that happens to a token.
#[derive(Clone, Debug)]
enum Step {
    Use { secret: u8, key: u8 },
    Revoke,
    Void,
    Wait { seconds: u16 },
}

impl Arbitrary for Step {
    fn arbitrary(g: &mut Gen) -> Self {
        match u8::arbitrary(g) % 12 {
            0..8 => Self::Use { secret: u8::arbitrary(g) % 4 / 3 + 1, key: u8::arbitrary(g) % 3 },
            8 => Self::Revoke,
            9 => Self::Void,
            _ => Self::Wait { seconds: u16::arbitrary(g) % 700 },
        }
    }
}

quickcheck! {
    /// At most one key ever gets a certificate, always the same bytes, never after the end, never with a wrong secret.
    fn one_token_gives_one_credential(steps: Vec<Step>) -> bool {
        let mut now = MINTED;
        let mut row = row();
        let mut winner: Option<(u8, i64)> = None;
        steps.into_iter().all(|step| {
            match step {
                Step::Wait { seconds } => now += i64::from(seconds) * 1000,
                Step::Revoke => row.revoked_at_unix_ms = Some(now),
                Step::Void => {
                    if let Some(claim) = &mut row.claim {
                        claim.void = true;
                    }
                }
                Step::Use { secret: secret_of, key: key_of } => {
                    match decide(now, Some(&row), secret_of, key_of) {
                        Claim::Fresh => {
                            let first = winner.is_none();
                            winner = Some((key_of, now));
                            row.claim = claimed(key_of, now).claim;
                            return first && secret_of == 1 && now < MINTED + LIFE_MS && row.revoked_at_unix_ms.is_none();
                        }
                        Claim::Replay(claim) => {
                            let (by, at) = winner.unwrap();
                            return by == key_of
                                && secret_of == 1
                                && claim.certificate_chain == vec![vec![key_of]]
                                && now < (MINTED + LIFE_MS).max(at + 600_000);
                        }
                        Claim::Conflict => return secret_of == 1 && winner.is_some_and(|(by, _)| by != key_of),
                        Claim::Refused(_) => {}
                    }
                }
            }
            true
        })
    }
}
