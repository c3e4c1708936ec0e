//! API keys of the running edge: on disk in the store, in memory for each request.
//!
//! Owns creating, listing, changing and revoking them. Leaves the check to [`crate::core::keys`], what is used to
//! [`usage`]. Invariant: what is in memory was committed, except a revocation that could not be written: it is in force
//! all the same.

#[cfg(test)]
mod tests;
pub(crate) mod usage;

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::Mutex;
use umbel_store::{AuditRecord, Commit, CommitError, Owed, ReadError, Store};
use umbel_wire::secret::SecretHash;
use umbel_wire::{Code, Error};

use crate::core::admission::KeyNumber;
pub(crate) use crate::core::keys::{Caller, KeyRefusal, KeyRow, Shown};
use crate::core::keys::{Key, KeyTable, MAX_KEY_MODELS, MAX_KEYS, MAX_PRIORITY};
use crate::shell::owing::{not_kept, once_written, store_trouble};

/// The table of the store.
pub(crate) const TABLE: &str = "api_keys";

/// Who asks for a change, for the audit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Actor {
    /// Name of the operator or of the local socket's user.
    pub(crate) name: String,
    /// The command, if one was given.
    pub(crate) command_id: String,
    /// The request it came with.
    pub(crate) correlation_id: String,
    /// Why, in the asker's words.
    pub(crate) reason: String,
}

/// The site's API keys.
pub(crate) struct Keys {
    store: Store,
    table: ArcSwap<KeyTable>,
    /// Keys at most.
    most: usize,
    /// One change at a time: each is made from the table it replaces.
    changing: Mutex<()>,
    /// Keys whose revocation is in force and not on disk.
    unwritten: Arc<std::sync::Mutex<HashSet<String>>>,
    writing: usage::Writing,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("keys", &self.table.load().len()).finish_non_exhaustive()
    }
}

/// How a revocation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Revoked {
    /// In force and on disk.
    Durable,
    /// In force, but the store cannot be written: it is written as soon as it can be, and lost by a restart before.
    NotDurable,
}

impl Keys {
    /// Reads all keys from the store.
    ///
    /// # Errors
    /// If the store cannot be read or a row does not decode.
    pub(crate) async fn load(store: Store) -> Result<Arc<Self>, ReadError> {
        let rows = store.load_json::<KeyRow>(TABLE).await?;
        let table = KeyTable::of(rows.into_iter().map(|(_, row)| row));
        let keys = Arc::new(Self {
            store: store.clone(),
            table: ArcSwap::from_pointee(table),
            most: MAX_KEYS,
            changing: Mutex::new(()),
            unwritten: Arc::default(),
            writing: usage::Writing::default(),
        });
        usage::Writing::open(&store, &keys).await?;
        Ok(keys)
    }

    /// Judges a caller by its `Authorization` header, and while there is no key by whether it is one of this host's own.
    /// `shown` is what its connection showed before.
    ///
    /// # Errors
    /// Why it is not let in.
    pub(crate) fn check_again(
        &self,
        shown: &std::sync::Mutex<Option<Shown>>,
        authorization: Option<&[u8]>,
        of_this_host: impl FnOnce() -> bool,
    ) -> Result<Caller, KeyRefusal> {
        let table = self.table.load();
        let mut shown = lock(shown);
        let again = shown.as_ref().zip(authorization).and_then(|(shown, text)| shown.again(&table, text));
        if let Some(key) = again {
            return Ok(Caller::Key(key));
        }
        let authorization = authorization.and_then(|text| std::str::from_utf8(text).ok());
        let caller = table.check(authorization, of_this_host);
        if let (Ok(Caller::Key(key)), Some(text)) = (&caller, authorization) {
            *shown = Shown::new(text, key);
        }
        caller
    }

    /// The same of a connection that showed nothing before.
    #[cfg(test)]
    pub(crate) fn check(
        &self,
        authorization: Option<&str>,
        of_this_host: impl FnOnce() -> bool,
    ) -> Result<Caller, KeyRefusal> {
        self.check_again(&std::sync::Mutex::default(), authorization.map(str::as_bytes), of_this_host)
    }

    /// All keys, revoked ones included, by name.
    pub(crate) fn list(&self) -> Vec<KeyRow> {
        self.table.load().rows()
    }

    /// A key by its number in admission.
    pub(crate) fn numbered(&self, number: KeyNumber) -> Option<Arc<Key>> {
        self.table.load().numbered(number).cloned()
    }

    /// What people call a key; `None` if there is none of this id.
    pub(crate) fn name_of(&self, key_id: &str) -> Option<String> {
        self.table.load().get(key_id).map(|key| key.row.name.clone())
    }

    /// Whether a key's revocation is in force and not on disk.
    pub(crate) fn is_unwritten(&self, key_id: &str) -> bool {
        lock(&self.unwritten).contains(key_id)
    }

    /// Whether the store takes writes, and everything that is in force stands in it.
    pub(crate) fn store_is_sound(&self) -> bool {
        store_trouble(&self.store).is_none()
    }

    /// Adds a key, and commits `also` with it. The same key again is accepted: the answer to the first may have
    /// been lost.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed row, `CONFLICT` if the id exists with other content or a precondition
    /// of `also` fails, `RESOURCE_EXHAUSTED` where all keys of the bound may be used, `INSUFFICIENT_STORAGE` if the store cannot be written.
    pub(crate) async fn create(&self, row: KeyRow, actor: &Actor, also: Commit) -> Result<KeyRow, Error> {
        validate(&row)?;
        let _one = self.changing.lock().await;
        let mut table = self.table.load_full();
        if let Some(known) = table.get(&row.key_id) {
            if !same_key(&known.row, &row) {
                return Err(exists());
            }
            self.store.commit(also).await.map_err(|error| store_error(&error, false))?;
            return Ok(known.row.clone());
        }
        let mut commit = Commit::new();
        if table.len() >= self.most {
            // A revocation that is still owed to the disk would bring the row back.
            let Some(old) =
                table.to_forget(|key_id| !self.is_unwritten(key_id)).map(|old| old.key_id.clone())
            else {
                let message = format!("this edge has {} keys, its bound, and none is revoked", self.most);
                return Err(Error::new(Code::ResourceExhausted, "TOO_MANY_KEYS", message));
            };
            commit = commit.remove(TABLE, old.clone()).remove(usage::USAGE, old.clone());
            table = Arc::new(table.without(&old));
        }
        let commit = Commit::new()
            .require_absent(TABLE, row.key_id.clone())
            .put_json(TABLE, row.key_id.clone(), &row)
            .audit(audit("apikey.create", &row.key_id, actor))
            .and(commit)
            .and(also);
        self.store.commit(commit).await.map_err(|error| store_error(&error, true))?;
        self.table.store(Arc::new(table.with(row.clone())));
        Ok(row)
    }

    /// Puts another row in a key's place, and commits `also` with it. Requests that come from then on are judged by it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a malformed row, `CONFLICT` if the key was revoked or changed meanwhile or a precondition
    /// of `also` fails, `INSUFFICIENT_STORAGE` if the store cannot be written; nothing has changed then.
    pub(crate) async fn change(&self, before: &KeyRow, after: KeyRow, also: Commit) -> Result<(), Error> {
        validate(&after)?;
        let _one = self.changing.lock().await;
        let table = self.table.load_full();
        if table.get(&after.key_id).is_none_or(|known| known.row != *before) {
            let message = "this key changed in the same moment; look again and repeat";
            return Err(Error::new(Code::Conflict, "CHANGED_MEANWHILE", message));
        }
        let commit = Commit::new().put_json(TABLE, after.key_id.clone(), &after).and(also);
        self.store.commit(commit).await.map_err(|error| store_error(&error, false))?;
        self.table.store(Arc::new(table.with(after)));
        Ok(())
    }

    /// A key's row.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id.
    pub(crate) fn row(&self, key_id: &str) -> Result<KeyRow, Error> {
        self.table.load().get(key_id).map(|key| key.row.clone()).ok_or_else(unknown)
    }

    /// Revokes a key, at once, and commits `also` with it. Revoking it again changes nothing. `in_force` is called when
    /// the key opens nothing any more, before anything is written.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id; `CONFLICT` if a precondition of `also` fails (the key is revoked all the
    /// same); `INSUFFICIENT_STORAGE`, NOT_DURABLE, if it took force and cannot even be kept for later.
    pub(crate) async fn revoke(
        &self,
        key_id: &str,
        now_unix_ms: i64,
        actor: &Actor,
        also: Commit,
        in_force: impl FnOnce(KeyNumber) + Send,
    ) -> Result<Revoked, Error> {
        let _one = self.changing.lock().await;
        let table = self.table.load_full();
        let Some(known) = table.get(key_id) else {
            return Err(unknown());
        };
        let revoked_at = known.row.revoked_at_unix_ms.unwrap_or(now_unix_ms);
        let row = KeyRow { revoked_at_unix_ms: Some(revoked_at), ..known.row.clone() };
        // In force before it is on disk: a full disk must not keep a leaked key alive.
        self.table.store(Arc::new(table.with(row.clone())));
        in_force(known.number);
        let commit =
            || Commit::new().put_json(TABLE, key_id, &row).audit(audit("apikey.revoke", key_id, actor));
        match self.store.commit(commit().and(also.clone())).await {
            Ok(_) => Ok(Revoked::Durable),
            Err(error @ CommitError::Conflict(_)) => {
                // Only `also` has conditions. What it told of is refused; the revocation stands.
                match self.store.commit(commit()).await {
                    Ok(_) => {}
                    Err(CommitError::ReadOnly(_)) => self.owe(key_id, commit())?,
                    Err(error) => return Err(store_error(&error, false)),
                }
                Err(store_error(&error, false))
            }
            Err(CommitError::ReadOnly(_)) => {
                self.owe(key_id, commit().and(also))?;
                Ok(Revoked::NotDurable)
            }
            Err(error) => Err(store_error(&error, false)),
        }
    }

    // Until it is written nothing else changes the row, so that the whole of it can be written later: changes are refused
    // while the store takes no writes, and what is owed is written before anything else.
    fn owe(&self, key_id: &str, commit: Commit) -> Result<(), Error> {
        // Revoked once more, nothing more is owed.
        if self.is_unwritten(key_id) {
            return Ok(());
        }
        let settled = self.store.owe(Owed::new().with(commit)).map_err(not_kept)?;
        lock(&self.unwritten).insert(key_id.to_owned());
        let (unwritten, key_id) = (Arc::clone(&self.unwritten), key_id.to_owned());
        once_written(&self.store, settled, move |_| {
            lock(&unwritten).remove(&key_id);
        });
        Ok(())
    }
}

fn lock<T>(mutex: &std::sync::Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When and by whom it was asked for does not make another key.
fn same_key(known: &KeyRow, row: &KeyRow) -> bool {
    let comparable = KeyRow {
        created_at_unix_ms: known.created_at_unix_ms,
        created_by: known.created_by.clone(),
        ..row.clone()
    };
    comparable == *known
}

fn audit(action: &str, key_id: &str, actor: &Actor) -> AuditRecord {
    AuditRecord::new(action, key_id, "succeeded")
        .by(actor.name.clone())
        .of(actor.command_id.clone(), actor.correlation_id.clone())
        .because(actor.reason.clone())
}

/// Whether a row can be a key's.
///
/// # Errors
/// `INVALID_ARGUMENT`, with the field and its bound.
pub(crate) fn validate(row: &KeyRow) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::new(Code::InvalidArgument, "INVALID_KEY", message));
    if !umbel_wire::token::is_token_id(&row.key_id) {
        return refuse("key_id is not an id as `ctl key create` makes it".to_owned());
    }
    if SecretHash::from_hex(&row.secret_sha256).is_none() {
        return refuse("secret_sha256 must be 64 hex digits".to_owned());
    }
    if row.name.is_empty() || row.name.len() > 128 {
        return refuse("name must have 1 to 128 bytes".to_owned());
    }
    if row.priority > MAX_PRIORITY {
        return refuse(format!("priority must be 0 to {MAX_PRIORITY}"));
    }
    if let Some(models) = &row.models
        && (models.len() > MAX_KEY_MODELS || models.iter().any(|model| model.is_empty() || model.len() > 256))
    {
        return refuse(format!("models must be at most {MAX_KEY_MODELS} names of 1 to 256 bytes"));
    }
    if let Some((name, most)) = row.limits.out_of_range() {
        return refuse(format!("{name} must be 1 to {most}; a key that may do nothing is to be revoked"));
    }
    Ok(())
}

fn unknown() -> Error {
    Error::new(Code::NotFound, "UNKNOWN_KEY", "no key has this id; list the keys")
}

fn exists() -> Error {
    Error::new(Code::Conflict, "KEY_EXISTS", "a key with this id exists; ask for a new one")
}

/// `first_is_ours`: the first precondition is that the key is new, the others are the caller's.
fn store_error(error: &CommitError, first_is_ours: bool) -> Error {
    match error {
        CommitError::Conflict(0) if first_is_ours => exists(),
        CommitError::Conflict(_) => {
            let message = "this command id was used for something else; use a new one";
            Error::new(Code::Conflict, "COMMAND_ID", message)
        }
        other => crate::shell::commands::store_error(other),
    }
}
