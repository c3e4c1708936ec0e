//! The site's enrollment tokens, and how often an address may guess.
//!
//! Owns the stored row and its states. Leaves the claim's rules to `umbel_wire::enroll` and the one conditional
//! write to the shell. Invariant: a row is applied here only after it was committed.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use umbel_store::Position;
use umbel_wire::clock::Wall;
use umbel_wire::enroll::TokenRow;
use umbel_wire::{Code, Error};

/// Tokens kept, used and expired ones included: a site's largest roll-out and a year of single hosts.
pub(crate) const TOKENS_MAX: usize = 10_000;
/// Wrong guesses from one address within [`GUESS_WINDOW`].
pub(crate) const GUESSES: u32 = 10;
/// The time in which they are counted.
pub(crate) const GUESS_WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are watched; beyond it the one whose window ends first is forgotten.
pub(crate) const GUESSERS_MAX: usize = 4_096;

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
}

impl EnrollmentRow {
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
}

impl Tokens {
    /// A committed row.
    pub(crate) fn apply(&mut self, row: EnrollmentRow, position: Position) {
        let id = row.token.token_id.clone();
        if self.rows.get(&id).is_none_or(|(_, old)| *old < position) {
            self.rows.insert(id, (row, position));
        }
    }

    /// A change that could not be stored and takes force all the same, until a restart.
    pub(crate) fn apply_in_memory(&mut self, row: EnrollmentRow) {
        if let Some((kept, _)) = self.rows.get_mut(&row.token.token_id) {
            *kept = row;
        }
    }

    /// A removed row.
    pub(crate) fn remove(&mut self, id: &str) {
        self.rows.remove(id);
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

    /// Tokens whose time ended after `since` and until `now` without anybody using or revoking them.
    pub(crate) fn expired(&self, since: Wall, now: Wall) -> Vec<String> {
        let ended = |row: &EnrollmentRow| Wall(row.token.expires_at_unix_ms);
        self.rows
            .values()
            .filter(|(row, _)| ended(row) > since && ended(row) <= now && row.state(now) == "expired")
            .map(|(row, _)| row.token.token_id.clone())
            .collect()
    }

    /// What has to go so that one more fits: the oldest that nobody can use any more.
    pub(crate) fn room(&self, now: Wall) -> Result<Option<String>, Error> {
        if self.rows.len() < TOKENS_MAX {
            return Ok(None);
        }
        self.rows
            .values()
            .filter(|(row, _)| row.state(now) != "open")
            .min_by_key(|(row, _)| row.token.created_at_unix_ms)
            .map(|(row, _)| Some(row.token.token_id.clone()))
            .ok_or_else(|| {
                Error::new(
                    Code::ResourceExhausted,
                    "TOO_MANY_TOKENS",
                    format!("{TOKENS_MAX} enrollment tokens are open; revoke some or let them expire"),
                )
            })
    }
}

/// Refused attempts that are audited one by one within [`GUESS_WINDOW`]; the rest is folded into a number.
pub(crate) const AUDITED: u32 = 60;

/// Counts wrong guesses by address, and keeps them from filling the audit.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    seen: HashMap<IpAddr, (u32, Instant)>,
    audited: u32,
    folded: u64,
    window_ends: Option<Instant>,
}

impl Guesses {
    /// Whether this address may try now; else how long it has to wait.
    pub(crate) fn allowed(&mut self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        match self.seen.get(&address) {
            Some((count, until)) if *count >= GUESSES && *until > now => Err(*until - now),
            Some((_, until)) if *until <= now => {
                self.seen.remove(&address);
                Ok(())
            }
            _ => Ok(()),
        }
    }

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

    /// A wrong guess.
    pub(crate) fn wrong(&mut self, address: IpAddr, now: Instant) {
        if self.seen.len() >= GUESSERS_MAX && !self.seen.contains_key(&address) {
            self.seen.retain(|_, (_, until)| *until > now);
            if self.seen.len() >= GUESSERS_MAX
                && let Some(first) =
                    self.seen.iter().min_by_key(|(_, (_, until))| *until).map(|(one, _)| *one)
            {
                self.seen.remove(&first);
            }
        }
        let entry = self.seen.entry(address).or_insert((0, now + GUESS_WINDOW));
        if entry.1 <= now {
            *entry = (0, now + GUESS_WINDOW);
        }
        entry.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guessing_is_slow_and_forgotten() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        let address = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..GUESSES {
            assert!(guesses.allowed(address, now).is_ok());
            guesses.wrong(address, now);
        }
        assert!(guesses.allowed(address, now).is_err());
        assert!(guesses.allowed(IpAddr::from([192, 0, 2, 2]), now).is_ok());
        assert!(guesses.allowed(address, now + GUESS_WINDOW).is_ok());
    }

    #[test]
    fn a_flood_of_refusals_is_folded() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        let told = (0..1_000).filter(|_| guesses.audit(now).is_some()).count();
        assert_eq!(told, AUDITED as usize);
        assert_eq!(guesses.audit(now + GUESS_WINDOW), Some(1_000 - u64::from(AUDITED)));
        assert_eq!(guesses.audit(now + GUESS_WINDOW), Some(0));
    }

    #[test]
    fn a_flood_of_addresses_is_bounded() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for n in 0..2 * GUESSERS_MAX as u32 {
            guesses.wrong(IpAddr::from(n.to_be_bytes()), now + Duration::from_millis(u64::from(n)));
        }
        assert!(guesses.seen.len() <= GUESSERS_MAX);
    }
}
