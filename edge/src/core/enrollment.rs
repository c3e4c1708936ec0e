//! The site's enrollment tokens, and which refusals the audit shows one by one.
//!
//! Owns the stored row and its states. Leaves the claim's rules to `umbel_wire::enroll`, what a claim writes to
//! [`claim`], guessing to `umbel_wire::guesses`. Invariant: a row is applied here only after it was committed.

pub(crate) mod claim;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use umbel_store::Position;
use umbel_wire::clock::Wall;
use umbel_wire::enroll::{REPLAY_WINDOW, TokenRow};
use umbel_wire::limits::GUESS_WINDOW;
use umbel_wire::{Code, Error};

/// Table of enrollment tokens.
pub(crate) const ENROLLMENTS: &str = "enrollments";
/// Tokens kept, used and expired ones included: a site's largest roll-out and a year of single hosts.
pub(crate) const TOKENS_MAX: usize = 10_000;
/// A stored token: table `enrollments`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnrollmentRow {
    pub(crate) token: TokenRow,
    /// Name of the node that it makes.
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) eligible: bool,
    pub(crate) created_by: String,
    /// The authority that its text names: SHA-256 of the certificate, in hexadecimal. Empty: the site's first.
    #[serde(default)]
    pub(crate) ca_sha256: String,
    /// The node whose place its host takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) replaces: Option<String>,
}

impl EnrollmentRow {
    /// As a restore from a backup leaves it; `None` if it was not open.
    pub(crate) fn voided(mut self, now_unix_ms: i64) -> Option<Self> {
        self.token.void(now_unix_ms).then_some(self)
    }

    /// `open`, `used`, `revoked` or `expired`.
    pub(crate) fn state(&self, now: Wall) -> &'static str {
        if self.token.claim.is_some() {
            "used"
        } else if self.token.revoked_at_unix_ms.is_some() {
            "revoked"
        } else if now.unix_ms() >= self.token.expires_at_unix_ms {
            "expired"
        } else {
            "open"
        }
    }
}

/// All tokens of the site.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    rows: BTreeMap<String, (EnrollmentRow, Position)>,
    // Changed in memory only.
    unwritten: BTreeSet<String>,
}

impl Tokens {
    /// A committed row.
    pub(crate) fn apply(&mut self, mut row: EnrollmentRow, position: Position) {
        if let Some(claim) = &mut row.token.claim {
            claim.certificate_chain.iter_mut().for_each(Vec::shrink_to_fit);
        }
        let id = row.token.token_id.clone();
        if self.rows.get(&id).is_none_or(|(_, old)| *old < position) {
            self.unwritten.remove(&id);
            self.rows.insert(id, (row, position));
        }
    }

    /// A change that could not be stored and takes force all the same; what is written later follows as committed.
    pub(crate) fn apply_in_memory(&mut self, row: EnrollmentRow) {
        if let Some((kept, _)) = self.rows.get_mut(&row.token.token_id) {
            self.unwritten.insert(row.token.token_id.clone());
            *kept = row;
        }
    }

    /// Answers that nobody can ask for again need no memory; the store keeps them.
    pub(crate) fn forget_answers(&mut self, now: Wall) {
        let window = i64::try_from(REPLAY_WINDOW.as_millis()).unwrap_or(i64::MAX);
        for (row, _) in self.rows.values_mut() {
            let expires = row.token.expires_at_unix_ms;
            if let Some(claim) = &mut row.token.claim
                && now.unix_ms() > expires.max(claim.claimed_at_unix_ms.saturating_add(window))
            {
                claim.certificate_chain = Vec::new();
            }
        }
    }

    /// A removed row.
    pub(crate) fn remove(&mut self, id: &str) {
        self.rows.remove(id);
        self.unwritten.remove(id);
    }

    /// One token.
    pub(crate) fn get(&self, id: &str) -> Option<&(EnrollmentRow, Position)> {
        self.rows.get(id)
    }

    /// All of them, newest first.
    pub(crate) fn all(&self) -> Vec<EnrollmentRow> {
        let mut rows: Vec<_> = self.rows.values().map(|(row, _)| row.clone()).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.token.created_at_unix_ms));
        rows
    }

    /// Whether a change of it is in force and not on disk.
    pub(crate) fn is_unwritten(&self, id: &str) -> bool {
        self.unwritten.contains(id)
    }

    /// Tokens whose time ended after `since` and until `now` without anybody using or revoking them.
    pub(crate) fn expired(&self, since: Wall, now: Wall) -> Vec<String> {
        let ended = |row: &EnrollmentRow| Wall(row.token.expires_at_unix_ms);
        self.rows
            .values()
            .filter(|(row, _)| ended(row) > since && ended(row) <= now && row.state(now) == "expired")
            .map(|(row, _)| row.token.token_id.clone())
            .collect()
    }

    /// What has to go so that `more` fit: the oldest that nobody can use any more.
    pub(crate) fn room(&self, more: usize, now: Wall) -> Result<Vec<String>, Error> {
        let over = (self.rows.len() + more).saturating_sub(TOKENS_MAX);
        if over == 0 {
            return Ok(Vec::new());
        }
        let ended = self.rows.values().map(|(row, _)| row).filter(|row| row.state(now) != "open");
        let mut ended: Vec<_> =
            ended.map(|row| (row.token.created_at_unix_ms, row.token.token_id.as_str())).collect();
        ended.sort_unstable();
        if ended.len() < over {
            return Err(Error::new(
                Code::ResourceExhausted,
                "TOO_MANY_TOKENS",
                format!(
                    "{TOKENS_MAX} enrollment tokens are kept, and too few of them have ended to make room for {more}; \
                     revoke some or let them expire"
                ),
            ));
        }
        Ok(ended.into_iter().take(over).map(|(_, id)| id.to_owned()).collect())
    }
}

/// Refused attempts that are audited one by one within [`GUESS_WINDOW`]; the rest is folded into a number.
pub(crate) const AUDITED: u32 = 60;

/// Keeps refused attempts from filling the audit.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    audited: u32,
    folded: u64,
    window_ends: Option<Instant>,
}

impl Refusals {
    /// Whether a refusal gets an audit entry of its own, and how many were folded before it.
    pub(crate) fn audit(&mut self, now: Instant) -> Option<u64> {
        if self.window_ends.is_none_or(|end| end <= now) {
            self.window_ends = Some(now + GUESS_WINDOW);
            self.audited = 0;
        }
        if self.audited >= AUDITED {
            self.folded += 1;
            return None;
        }
        self.audited += 1;
        Some(std::mem::take(&mut self.folded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_folded() {
        let mut refusals = Refusals::default();
        let now = Instant::now();
        let told = (0..1_000).filter(|_| refusals.audit(now).is_some()).count();
        assert_eq!(told, AUDITED as usize);
        assert_eq!(refusals.audit(now + GUESS_WINDOW), Some(1_000 - u64::from(AUDITED)));
        assert_eq!(refusals.audit(now + GUESS_WINDOW), Some(0));
    }
}
