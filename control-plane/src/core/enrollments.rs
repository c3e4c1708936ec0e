//! Edges' enrollment tokens: who may use one, and what is shown of them.
//!
//! The claim itself (secret, expiry, replay) is `wire::enroll`'s; here is what it does not know: that a token is for
//! one edge, and that an enrolled edge is not enrolled twice. Invariant: every refusal before the secret was found
//! right is the same to the outside.

use serde::{Deserialize, Serialize};
use umbel_contracts::objects::{EdgeEnrollmentObject, EdgeEnrollmentRequest, EnrollmentState};
use umbel_wire::clock::Wall;
use umbel_wire::enroll::{Claim, ClaimRow, DEFAULT_LIFE, LONGEST_LIFE, TokenRow, claim};
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::{EdgeId, KeyHash};
use umbel_wire::secret::{Secret, SecretHash};
use umbel_wire::token::is_token_id;

use super::edges::Known;

/// Table of [`EnrollmentRow`]s, keyed by token id.
pub(crate) const ENROLLMENTS: &str = "edge_enrollments";
/// Tokens kept: those of a week of enrolling a large fleet.
pub(crate) const ENROLLMENTS_MAX: usize = 10_000;
/// Tokens whose time was over for so long are forgotten when new ones are minted.
pub(crate) const KEPT_MS: i64 = 7 * 24 * 3600 * 1000;

/// An enrollment token, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrollmentRow {
    pub(crate) edge_id: String,
    pub(crate) created_by: String,
    pub(crate) token: TokenRow,
}

impl EnrollmentRow {
    /// As a restore from a backup leaves it; `None` if it was not open.
    pub(crate) fn voided(mut self, now_unix_ms: i64) -> Option<Self> {
        self.token.void(now_unix_ms).then_some(self)
    }
}

/// What becomes of an edge's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// Sign it and write it down, on condition that nothing changed meanwhile.
    Sign,
    /// The answer was lost: the same one again.
    Replay(ClaimRow),
    /// No. `truth` is for the audit; `None` where nobody is to be told (no such token).
    Refused { error: Error, truth: Option<&'static str> },
}

/// Judges a request to enroll. `enrolled` is the registry's row of the edge that the token is for.
pub(crate) fn judge(
    now: Wall,
    row: Option<&EnrollmentRow>,
    edge_id: &str,
    secret: &Secret,
    key: &KeyHash,
    enrolled: Option<&Known>,
) -> Judged {
    let claim = claim(now, row.map(|row| &row.token), secret, key);
    let refused = |error, truth| Judged::Refused { error, truth: Some(truth) };
    let for_another = row.is_some_and(|row| row.edge_id != edge_id);
    match claim {
        Claim::Fresh | Claim::Replay(_) | Claim::Conflict if for_another => refused(
            Error::new(
                Code::PermissionDenied,
                "TOKEN_FOR_ANOTHER_EDGE",
                "This token is for another edge_id. Mint one for this edge.",
            ),
            "another_edge",
        ),
        Claim::Replay(earlier) => Judged::Replay(earlier),
        Claim::Fresh if enrolled.is_some_and(|known| known.row.revoked.is_none()) => refused(
            Error::new(
                Code::Conflict,
                "EDGE_ALREADY_ENROLLED",
                "This edge_id is already enrolled here. If its credential is lost, revoke it first and then mint a \
                 new token; if this is another site, give it another name.",
            ),
            "already_enrolled",
        ),
        Claim::Fresh => Judged::Sign,
        Claim::Conflict | Claim::Refused(_) => {
            let truth = match (&claim, row) {
                (_, None) => None,
                (Claim::Refused(refusal), _) => Some(refusal.name()),
                _ => Some("used"),
            };
            // Both kinds have an error; the other one is only there for the type.
            let error = claim.error().unwrap_or_else(|| Error::new(Code::Internal, "CLAIM", "no claim"));
            Judged::Refused { error, truth }
        }
    }
}

/// Checks what an admin sent and makes the row.
pub(crate) fn new_row(
    request: &EdgeEnrollmentRequest,
    created_by: &str,
    now: Wall,
) -> Result<(EdgeId, EnrollmentRow), Error> {
    let wrong = |reason: &'static str, message: String| Error::new(Code::InvalidArgument, reason, message);
    let edge_id =
        EdgeId::parse(&request.edge_id).map_err(|error| wrong("EDGE_ID_MALFORMED", format!("{error}.")))?;
    if !is_token_id(&request.token_id) {
        return Err(wrong(
            "TOKEN_ID_MALFORMED",
            "`token_id` is 8 to 36 characters of a-z, 0-9 and `-`.".into(),
        ));
    }
    let secret_hash = SecretHash::from_hex(&request.secret_sha256)
        .ok_or_else(|| wrong("SECRET_HASH_MALFORMED", "`secret_sha256` is 64 hexadecimal digits.".into()))?;
    let seconds = request.expires_in_seconds.unwrap_or(DEFAULT_LIFE.as_secs());
    if seconds == 0 || seconds > LONGEST_LIFE.as_secs() {
        return Err(wrong(
            "EXPIRY_OUT_OF_RANGE",
            format!("`expires_in_seconds` is 1 to {}.", LONGEST_LIFE.as_secs()),
        ));
    }
    let token = TokenRow {
        token_id: request.token_id.clone(),
        secret_hash,
        created_at_unix_ms: now.unix_ms(),
        expires_at_unix_ms: (now + std::time::Duration::from_secs(seconds)).unix_ms(),
        revoked_at_unix_ms: None,
        claim: None,
    };
    Ok((
        edge_id,
        EnrollmentRow { edge_id: request.edge_id.clone(), created_by: created_by.to_owned(), token },
    ))
}

/// Where a token stands.
pub(crate) fn state(row: &EnrollmentRow, now: Wall) -> EnrollmentState {
    if row.token.claim.is_some() {
        EnrollmentState::Used
    } else if row.token.revoked_at_unix_ms.is_some() {
        EnrollmentState::Revoked
    } else if now.unix_ms() >= row.token.expires_at_unix_ms {
        EnrollmentState::Expired
    } else {
        EnrollmentState::Open
    }
}

/// What operators see of a token.
pub(crate) fn object(row: &EnrollmentRow, now: Wall) -> EdgeEnrollmentObject {
    use super::audit::timestamp;
    EdgeEnrollmentObject {
        token_id: row.token.token_id.clone(),
        edge_id: row.edge_id.clone(),
        state: state(row, now),
        created_at: timestamp(row.token.created_at_unix_ms),
        created_by: row.created_by.clone(),
        expires_at: timestamp(row.token.expires_at_unix_ms),
        used_at: row.token.claim.as_ref().map(|claim| timestamp(claim.claimed_at_unix_ms)),
        addresses: Vec::new(),
        ca_sha256: None,
    }
}

#[cfg(test)]
mod tests;
