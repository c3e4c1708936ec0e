//! Who may claim an enrollment token: the rules as one pure function.
//!
//! Owns: the decision (contracts/edge-node.md and contracts/control-edge.md, "Enrollment"). Leaves to others: the
//! conditional write that makes a claim happen once, signing, and limiting guesses
//! (`guesses`).
//! Invariant: a token gives at most one credential; the same key gets the same bytes again for a bounded time; to the
//! outside unknown, wrong, expired and revoked look and cost the same.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Wall;
use crate::error::{Code, Error};
use crate::ids::KeyHash;
use crate::secret::{Secret, SecretHash};

mod chain;

/// Longest life of a token.
pub const LONGEST_LIFE: Duration = Duration::from_secs(24 * 3600);
/// Life of a token when nothing else is asked.
pub const DEFAULT_LIFE: Duration = Duration::from_secs(15 * 60);
/// How long after the claim a lost answer can be asked for again, even if the token has expired meanwhile.
pub const REPLAY_WINDOW: Duration = Duration::from_secs(600);

/// What the issuer stores of a token. Times are the issuer's wall clock, unix milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRow {
    /// Names the token.
    pub token_id: String,
    /// All that is known of its secret.
    pub secret_hash: SecretHash,
    /// When it was minted.
    pub created_at_unix_ms: i64,
    /// From then on it cannot be claimed.
    pub expires_at_unix_ms: i64,
    /// Set when an operator revoked it.
    pub revoked_at_unix_ms: Option<i64>,
    /// Set by the one conditional write that used it.
    pub claim: Option<ClaimRow>,
}

impl TokenRow {
    /// What a restore from a backup does to it: whoever has a token that was open then may not be whom it was meant for
    /// any more. Whether it was open.
    #[must_use]
    pub fn void(&mut self, now_unix_ms: i64) -> bool {
        let open = self.claim.is_none() && self.revoked_at_unix_ms.is_none();
        self.revoked_at_unix_ms.get_or_insert(now_unix_ms);
        open
    }
}

/// How a token was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRow {
    /// SHA-256 of the public key that got the certificate, in hex.
    pub key_hash: String,
    /// When.
    pub claimed_at_unix_ms: i64,
    /// The node id or edge id that came of it.
    pub subject: String,
    /// The chain that was answered, DER, leaf first: the same bytes are answered again. Stored as base64; rows from before
    /// that hold arrays of numbers, and are read too.
    #[serde(with = "chain")]
    pub certificate_chain: Vec<Vec<u8>>,
    /// That credential was revoked, rotated or decommissioned since: it is not given out again.
    pub void: bool,
}

/// The decision about one attempt to use a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Claim it: sign, then write on condition that the row is unchanged.
    Fresh,
    /// The answer was lost: give the same one.
    Replay(ClaimRow),
    /// Another key has it, or this one lost the conditional write.
    Conflict,
    /// No; the reason is for the audit, never for the peer.
    Refused(Refusal),
}

/// The true reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such token.
    Unknown,
    /// The id exists, the secret is another.
    WrongSecret,
    /// An operator revoked it.
    Revoked,
    /// Its time is over.
    Expired,
    /// The credential that came of it must not be given out again.
    CredentialVoid,
}

impl Refusal {
    /// For the audit.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::WrongSecret => "wrong_secret",
            Self::Revoked => "revoked",
            Self::Expired => "expired",
            Self::CredentialVoid => "credential_void",
        }
    }
}

/// Decides. `row` is `None` if there is no token of that id; the secret is compared all the same.
#[must_use]
pub fn claim(now: Wall, row: Option<&TokenRow>, secret: &Secret, key: &KeyHash) -> Claim {
    let right = SecretHash::check(row.map(|row| &row.secret_hash), secret);
    let Some(row) = row else { return Claim::Refused(Refusal::Unknown) };
    if !right {
        return Claim::Refused(Refusal::WrongSecret);
    }
    if row.revoked_at_unix_ms.is_some() {
        return Claim::Refused(Refusal::Revoked);
    }
    let expired = now.unix_ms() >= row.expires_at_unix_ms;
    match &row.claim {
        None if expired => Claim::Refused(Refusal::Expired),
        None => Claim::Fresh,
        Some(earlier) if earlier.key_hash == key.to_string() => {
            let replayable =
                (Wall(earlier.claimed_at_unix_ms) + REPLAY_WINDOW).max(Wall(row.expires_at_unix_ms));
            if earlier.void {
                Claim::Refused(Refusal::CredentialVoid)
            } else if now < replayable {
                Claim::Replay(earlier.clone())
            } else {
                Claim::Refused(Refusal::Expired)
            }
        }
        Some(_) if expired => Claim::Refused(Refusal::Expired),
        Some(_) => Claim::Conflict,
    }
}

impl Claim {
    /// What the peer is told, if the answer is no.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        match self {
            Self::Fresh | Self::Replay(_) => None,
            Self::Conflict => Some(Error::new(
                Code::Conflict,
                "TOKEN_USED",
                "this token was already used by another key; mint a new one for this host",
            )),
            Self::Refused(_) => Some(Error::new(
                Code::Unauthenticated,
                "TOKEN_REFUSED",
                "this token is unknown, expired or revoked; mint a new one (the issuer's audit tells which it was)",
            )),
        }
    }
}

#[cfg(test)]
mod tests;
