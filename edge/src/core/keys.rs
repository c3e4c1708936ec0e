//! API keys: who may use which models, how much, and with what priority.
//!
//! Owns the rows, and the check of a presented key against them. Leaves limits to [`limits`], what was used to
//! [`ledger`], storing to `shell::keys`. Invariants: of a secret only its SHA-256 is held, but for what a connection showed last
//! ([`shown`]); an unknown id costs the same as a wrong secret; with no key ever configured (no row, revoked ones included) only
//! callers on loopback are let in.

pub(crate) mod change;
pub(crate) mod ledger;
pub(crate) mod limits;
mod shown;
pub(crate) mod state;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use umbel_contracts::operations::KeyLimits;
use umbel_wire::secret::SecretHash;
use umbel_wire::token::{BearerKind, parse_bearer};

use super::admission::{Class, KeyNumber, NORMAL_CLASS};
pub(crate) use limits::{KeyLimit, Limit, Standing, Window};
pub(crate) use shown::Shown;
pub(crate) use state::{KeyPermit, KeyState};

/// Highest priority of a key.
pub(crate) const MAX_PRIORITY: u8 = 100;
/// The priority of a key that says nothing.
pub(crate) const NORMAL_PRIORITY: u8 = 50;
/// Keys at one edge, revoked ones included: they are all held in memory. At the bound a new one takes the place of the
/// one that was revoked the longest ago.
pub(crate) const MAX_KEYS: usize = 10_000;
/// Models in one key's list.
pub(crate) const MAX_KEY_MODELS: usize = 256;
/// The id under which requests without a key are counted. No key can have it: ids have no `_`.
pub(crate) const LOOPBACK: &str = "_loopback";

/// A stored API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyRow {
    /// Names the key; may be logged.
    pub(crate) key_id: String,
    /// For people.
    pub(crate) name: String,
    /// SHA-256 of the secret, lower-case hex.
    pub(crate) secret_sha256: String,
    /// Models it may use, by canonical name or alias; `None` is all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) models: Option<Vec<String>>,
    /// 0 to 100; a higher one is served first, always.
    #[serde(default = "normal_priority")]
    pub(crate) priority: u8,
    /// How much it may use.
    #[serde(default, skip_serializing_if = "KeyLimits::is_none")]
    pub(crate) limits: KeyLimits,
    /// Wall time of its creation.
    pub(crate) created_at_unix_ms: i64,
    /// The operator who asked for it.
    #[serde(default)]
    pub(crate) created_by: String,
    /// Wall time of its revocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) revoked_at_unix_ms: Option<i64>,
}

fn normal_priority() -> u8 {
    NORMAL_PRIORITY
}

/// A key in use.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its row.
    pub(crate) row: KeyRow,
    /// Its number in this process, from 1.
    pub(crate) number: KeyNumber,
    /// What it does now and what was used with it: the same as long as the process lives, whatever its row says.
    pub(crate) state: Arc<KeyState>,
    hash: Option<SecretHash>,
}

impl Key {
    /// The class it queues in.
    pub(crate) fn class(&self) -> Class {
        class_of(self.row.priority)
    }

    /// Whether it may use a model, given the name the caller used and the canonical one; `means` says whether another
    /// name is one of this model's, too.
    pub(crate) fn may_use(&self, asked: &str, canonical: &str, means: impl Fn(&str) -> bool) -> bool {
        let Some(models) = &self.row.models else { return true };
        models.iter().any(|model| model == asked || model == canonical)
            || models.iter().any(|model| means(model))
    }
}

/// The class of a priority: higher priorities have lower classes, which are served first.
pub(crate) fn class_of(priority: u8) -> Class {
    Class(NORMAL_CLASS.saturating_add(NORMAL_PRIORITY).saturating_sub(priority.min(MAX_PRIORITY)))
}

/// Who sent a request.
#[derive(Clone, Debug)]
pub(crate) enum Caller {
    /// The bearer of a key.
    Key(Arc<Key>),
    /// Somebody on this host, while no key was ever configured.
    Loopback(Arc<KeyState>),
}

impl Caller {
    /// Whose turn in a queue it is.
    pub(crate) fn number(&self) -> KeyNumber {
        match self {
            Self::Key(key) => key.number,
            Self::Loopback(_) => KeyNumber(0),
        }
    }

    /// The class it queues in.
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Key(key) => key.class(),
            Self::Loopback(_) => class_of(NORMAL_PRIORITY),
        }
    }

    /// As [`Key::may_use`].
    pub(crate) fn may_use(&self, asked: &str, canonical: &str, means: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::Key(key) => key.may_use(asked, canonical, means),
            Self::Loopback(_) => true,
        }
    }

    /// Lets a request in, if the key's limits allow it now. `estimated_tokens` are those of its prompt; they are
    /// charged at once, and corrected by what the permit is settled with.
    ///
    /// # Errors
    /// The limit that it is at. Nothing is charged then.
    pub(crate) fn enter(&self, now: Instant, estimated_tokens: u64) -> Result<KeyPermit, KeyLimit> {
        KeyState::enter(self.state(), self.limits(), now, estimated_tokens)
    }

    /// Where the key stands with its limits by the minute: what every answer tells whom they apply to.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        self.state().standing(&self.limits(), now)
    }

    /// What it does now and what was used with it.
    pub(crate) fn state(&self) -> &Arc<KeyState> {
        match self {
            Self::Key(key) => &key.state,
            Self::Loopback(state) => state,
        }
    }

    fn limits(&self) -> KeyLimits {
        match self {
            Self::Key(key) => key.row.limits,
            Self::Loopback(_) => KeyLimits::default(),
        }
    }

    /// The key, if one was shown.
    pub(crate) fn key(&self) -> Option<&Arc<Key>> {
        match self {
            Self::Key(key) => Some(key),
            Self::Loopback(_) => None,
        }
    }
}

/// Why a caller is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyRefusal {
    /// No `Authorization: Bearer`.
    Missing,
    /// Not the text of an API key of ours: mistyped, cut, or another credential.
    NotAKey,
    /// Unknown, wrong or revoked.
    Invalid,
    /// No key was ever configured, and the caller is not on loopback.
    OnlyLoopback,
}

/// All keys, in memory.
#[derive(Debug)]
pub(crate) struct KeyTable {
    by_id: HashMap<String, Arc<Key>>,
    last_number: u32,
    loopback: Arc<KeyState>,
}

impl Default for KeyTable {
    fn default() -> Self {
        Self { by_id: HashMap::new(), last_number: 0, loopback: Arc::new(KeyState::new(LOOPBACK)) }
    }
}

impl KeyTable {
    /// Adds or replaces a row. What the process knows of the key (number, state) stays; a revoked row revokes it for
    /// requests that wait, too.
    pub(crate) fn with(&self, row: KeyRow) -> Self {
        let (by_id, last_number) = (self.by_id.clone(), self.last_number);
        let mut table = Self { by_id, last_number, loopback: Arc::clone(&self.loopback) };
        table.put(row);
        table
    }

    fn put(&mut self, row: KeyRow) {
        let (number, state) = match self.by_id.get(&row.key_id) {
            Some(old) => (old.number, Arc::clone(&old.state)),
            None => {
                self.last_number = self.last_number.saturating_add(1);
                (KeyNumber(self.last_number), Arc::new(KeyState::new(&row.key_id)))
            }
        };
        if row.revoked_at_unix_ms.is_some() {
            state.revoke();
        }
        state.limit(row.limits);
        let hash = SecretHash::from_hex(&row.secret_sha256);
        self.by_id.insert(row.key_id.clone(), Arc::new(Key { row, number, state, hash }));
    }

    /// All of these rows.
    pub(crate) fn of(rows: impl IntoIterator<Item = KeyRow>) -> Self {
        let mut table = Self::default();
        rows.into_iter().for_each(|row| table.put(row));
        table
    }

    /// The revoked key whose place a new one takes: the one that was revoked first, of those that `may` go.
    pub(crate) fn to_forget(&self, may: impl Fn(&str) -> bool) -> Option<&KeyRow> {
        let revoked = self.by_id.values().map(|key| &key.row).filter(|row| may(&row.key_id));
        revoked
            .filter_map(|row| Some((row.revoked_at_unix_ms?, row)))
            .min_by(|(a, first), (b, second)| (a, &first.key_id).cmp(&(b, &second.key_id)))
            .map(|(_, row)| row)
    }

    /// Without this key.
    pub(crate) fn without(&self, key_id: &str) -> Self {
        let mut by_id = self.by_id.clone();
        by_id.remove(key_id);
        Self { by_id, last_number: self.last_number, loopback: Arc::clone(&self.loopback) }
    }

    /// How many there are, revoked ones included.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether no key was ever configured.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// A key by its id.
    pub(crate) fn get(&self, key_id: &str) -> Option<&Arc<Key>> {
        self.by_id.get(key_id)
    }

    /// The state of a key, or of requests without one.
    pub(crate) fn state(&self, key_id: &str) -> Option<&Arc<KeyState>> {
        if key_id == LOOPBACK { Some(&self.loopback) } else { self.get(key_id).map(|key| &key.state) }
    }

    /// Every key's state, that of requests without a key included.
    pub(crate) fn states(&self) -> impl Iterator<Item = &Arc<KeyState>> {
        self.by_id.values().map(|key| &key.state).chain([&self.loopback])
    }

    /// A key by its number in this process.
    pub(crate) fn numbered(&self, number: KeyNumber) -> Option<&Arc<Key>> {
        self.by_id.values().find(|key| key.number == number)
    }

    /// All rows, by name and then by id.
    pub(crate) fn rows(&self) -> Vec<KeyRow> {
        let mut rows: Vec<KeyRow> = self.by_id.values().map(|key| key.row.clone()).collect();
        rows.sort_by(|a, b| (&a.name, &a.key_id).cmp(&(&b.name, &b.key_id)));
        rows
    }

    /// Judges a caller by its `Authorization` header and whether it is on loopback.
    ///
    /// # Errors
    /// Why it is not let in.
    pub(crate) fn check(
        &self,
        authorization: Option<&str>,
        of_this_host: impl FnOnce() -> bool,
    ) -> Result<Caller, KeyRefusal> {
        if self.is_empty() {
            // SDKs always send some key; while none is configured it means nothing.
            return if of_this_host() {
                Ok(Caller::Loopback(Arc::clone(&self.loopback)))
            } else {
                Err(KeyRefusal::OnlyLoopback)
            };
        }
        let text = authorization.and_then(bearer_text).ok_or(KeyRefusal::Missing)?;
        let bearer = parse_bearer(text, BearerKind::ApiKey).map_err(|_| KeyRefusal::NotAKey)?;
        let key = self.by_id.get(&bearer.id);
        let sound = SecretHash::check(key.and_then(|key| key.hash.as_ref()), &bearer.secret);
        match key {
            Some(key) if sound && key.row.revoked_at_unix_ms.is_none() => Ok(Caller::Key(Arc::clone(key))),
            _ => Err(KeyRefusal::Invalid),
        }
    }
}

/// The credential of an `Authorization` header; the scheme's case does not matter.
fn bearer_text(authorization: &str) -> Option<&str> {
    let (scheme, text) = authorization.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| text.trim())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use umbel_wire::token::mint_bearer;

    use super::*;

    fn row(key_id: &str, hash: &SecretHash) -> KeyRow {
        KeyRow {
            key_id: key_id.to_owned(),
            name: "app".to_owned(),
            secret_sha256: hash.to_hex(),
            models: None,
            priority: NORMAL_PRIORITY,
            limits: KeyLimits::default(),
            created_at_unix_ms: 1,
            created_by: "ada".to_owned(),
            revoked_at_unix_ms: None,
        }
    }

    #[test]
    fn without_any_key_only_loopback_is_let_in() {
        let table = KeyTable::default();
        assert!(matches!(table.check(None, || true), Ok(Caller::Loopback(_))));
        assert!(matches!(table.check(Some("Bearer sk-whatever"), || true), Ok(Caller::Loopback(_))));
        assert_eq!(table.check(None, || false).unwrap_err(), KeyRefusal::OnlyLoopback);
    }

    #[test]
    fn a_key_is_needed_once_one_was_configured_even_if_revoked() {
        let (id, text, hash) = mint_bearer(BearerKind::ApiKey);
        let table = KeyTable::default().with(row(&id, &hash));
        let header = format!("bearer {}", text.expose());
        assert!(matches!(table.check(Some(&header), || false), Ok(Caller::Key(_))));
        assert_eq!(table.check(None, || true).unwrap_err(), KeyRefusal::Missing);
        assert_eq!(table.check(Some("Bearer sk-x"), || true).unwrap_err(), KeyRefusal::NotAKey);

        let (_, other, _) = mint_bearer(BearerKind::ApiKey);
        let other = format!("Bearer {}", other.expose());
        assert_eq!(table.check(Some(&other), || true).unwrap_err(), KeyRefusal::Invalid);

        let revoked = table.with(KeyRow { revoked_at_unix_ms: Some(2), ..row(&id, &hash) });
        assert_eq!(revoked.check(Some(&header), || true).unwrap_err(), KeyRefusal::Invalid);
        assert_eq!(revoked.check(None, || true).unwrap_err(), KeyRefusal::Missing, "still closed");
    }

    #[test]
    fn an_operator_token_opens_no_model() {
        let (id, _, hash) = mint_bearer(BearerKind::ApiKey);
        let (_, operator, _) = mint_bearer(BearerKind::OperatorToken);
        let table = KeyTable::default().with(row(&id, &hash));
        let header = format!("Bearer {}", operator.expose());
        assert_eq!(table.check(Some(&header), || true).unwrap_err(), KeyRefusal::NotAKey);
    }

    #[test]
    fn models_are_allowed_by_either_name_and_priority_orders_classes() {
        let (id, _, hash) = mint_bearer(BearerKind::ApiKey);
        let table =
            KeyTable::default().with(KeyRow { models: Some(vec!["small".to_owned()]), ..row(&id, &hash) });
        let key = table.get(&id).unwrap();
        let may_use =
            |asked, canonical| key.may_use(asked, canonical, |name| (name, canonical) == ("small", "z"));
        assert!(may_use("small", "Qwen/Qwen3-8B") && may_use("x", "small") && may_use("x", "z"));
        assert!(!may_use("x", "y"));
        assert!(class_of(100) < class_of(50) && class_of(50) < class_of(0));
        assert_eq!(class_of(NORMAL_PRIORITY), Class::default());
    }
}
