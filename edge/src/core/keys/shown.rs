//! A credential that was shown and found sound, so that the next request of its connection is judged without a digest.
//!
//! Leaves the judgement to [`super::KeyTable`]. Invariants: it opens nothing that the table would not open now: any change
//! of the key's row, its revocation first of all, makes it worthless; its text is held in one place, as long as the
//! connection, is never shown, and is wiped when it is let go of.

use std::sync::Arc;

use umbel_wire::secret::SecretText;

use super::{Key, KeyTable};

/// Bytes of a text that is kept: a credential of ours has less than half of it, but there may be any number of spaces
/// before it, and every connection keeps one.
const TEXT_MAX: usize = 256;

/// What a connection showed last.
#[derive(Debug)]
pub(crate) struct Shown {
    authorization: SecretText,
    key: Arc<Key>,
}

impl Shown {
    /// The table let it in with this key. Nothing is kept of what is longer than any credential need be.
    pub(crate) fn new(authorization: &str, key: &Arc<Key>) -> Option<Self> {
        let kept = || Self { authorization: SecretText::new(authorization.to_owned()), key: Arc::clone(key) };
        (authorization.len() <= TEXT_MAX).then(kept)
    }

    /// The key, if the same is shown again and the table has the key as it was.
    pub(crate) fn again(&self, table: &KeyTable, authorization: &[u8]) -> Option<Arc<Key>> {
        let key = table.get(&self.key.row.key_id)?;
        (self.authorization.is(authorization) && Arc::ptr_eq(key, &self.key)).then(|| Arc::clone(key))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use umbel_wire::token::{BearerKind, mint_bearer};

    use super::*;
    use crate::core::keys::{Caller, KeyRow};

    fn row(key_id: &str, hash: &umbel_wire::secret::SecretHash) -> KeyRow {
        let row = serde_json::json!({
            "key_id": key_id, "name": "app", "secret_sha256": hash.to_hex(), "created_at_unix_ms": 1
        });
        serde_json::from_value(row).unwrap()
    }

    #[test]
    fn what_was_shown_opens_what_it_opened_as_long_as_its_key_is_the_same() {
        let (id, text, hash) = mint_bearer(BearerKind::ApiKey);
        let (other_id, other, other_hash) = mint_bearer(BearerKind::ApiKey);
        let table = KeyTable::of([row(&id, &hash), row(&other_id, &other_hash)]);
        let text = format!("Bearer {}", text.expose());
        let Ok(Caller::Key(key)) = table.check(Some(&text), || false) else { unreachable!() };
        let long = format!("Bearer {}{}", " ".repeat(TEXT_MAX), &text["Bearer ".len()..]);
        assert!(table.check(Some(&long), || false).is_ok() && Shown::new(&long, &key).is_none());
        let shown = Shown::new(&text, &key).unwrap();
        assert!(!format!("{shown:?}").contains(&text));
        assert!(Arc::ptr_eq(&shown.again(&table, text.as_bytes()).unwrap(), &key));

        let other = format!("Bearer {}", other.expose());
        for wrong in [&other, "", &text[1..], &format!("{text} "), &text.replace("Bearer", "bearer")] {
            assert!(shown.again(&table, wrong.as_bytes()).is_none(), "{wrong}");
        }
        let beside = table.with(KeyRow { name: "another".to_owned(), ..row(&other_id, &other_hash) });
        assert!(shown.again(&beside, text.as_bytes()).is_some(), "another key's change is none of this one");
        let changed = table.with(KeyRow { priority: 1, ..row(&id, &hash) });
        assert!(shown.again(&changed, text.as_bytes()).is_none());
        let revoked = table.with(KeyRow { revoked_at_unix_ms: Some(2), ..row(&id, &hash) });
        assert!(shown.again(&revoked, text.as_bytes()).is_none());
        assert!(shown.again(&table.without(&id), text.as_bytes()).is_none());
    }
}
