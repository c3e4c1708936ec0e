//! What takes force in memory while the store cannot be written: it is owed to the disk, with its audit entry.
//!
//! Owns what follows once it is written, and what of the store is a problem of the site. Leaves the order of writing to
//! the store. Invariant: a change in force is either on disk, or owed to it and told as not durable.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umbel_contracts::objects::timestamp;
use umbel_contracts::proto::control::Problem;
use umbel_store::{Change, Commit, CommitError, Owed, Settled, Store};
use umbel_wire::clock::Wall;
use umbel_wire::{Code, Error, NodeId};

use crate::core::commands::CommandRow;
use crate::core::enrollment::{EnrollmentRow, Tokens};
use crate::core::registry::node::NodeRow;
use crate::core::tombstones::{TOMBSTONES, Tombstone};
use crate::shell::site::{ENROLLMENTS, NODES, Site};

/// What a revocation, a drain or its undoing does to a node's row.
pub(crate) trait Set: Fn(&mut NodeRow) + Clone + Send + 'static {}
impl<T: Fn(&mut NodeRow) + Clone + Send + 'static> Set for T {}

/// Calls `then` once it is on disk, with the rows as they stand there.
pub(crate) fn once_written(store: &Store, settled: Settled, then: impl FnOnce(Vec<Change>) + Send + 'static) {
    let store = store.clone();
    tokio::spawn(async move {
        // There may be room again already.
        store.check().await;
        if let Ok(changes) = settled.await {
            then(changes);
        }
    });
}

/// Writes what is in force already; while the store cannot be written, that is owed to it.
///
/// # Errors
/// `NOT_DURABLE`: it took force and is not kept for later. What else the store says.
pub(crate) async fn write_or_owe(store: &Store, commit: Commit) -> Result<(), Error> {
    match store.commit(commit.clone()).await {
        Ok(_) => Ok(()),
        Err(CommitError::ReadOnly(_)) => store.owe(Owed::new().with(commit)).map(drop).map_err(not_kept),
        Err(error) => Err(crate::shell::commands::store_error(&error)),
    }
}

fn lock(tokens: &Mutex<Tokens>) -> MutexGuard<'_, Tokens> {
    tokens.lock().unwrap_or_else(PoisonError::into_inner)
}

/// It is in force, and even the list of what has to be written later is full.
pub(crate) fn not_kept(_: CommitError) -> Error {
    Error::new(
        Code::InsufficientStorage,
        "NOT_DURABLE",
        "it is in force until the edge restarts, but the edge cannot write its store and too many changes wait for \
         that already: free space on its disk, then repeat it",
    )
}

/// A command's outcome as it is stored: on disk it is durable.
pub(crate) fn durable(row: &CommandRow) -> CommandRow {
    let mut row = row.clone();
    let nodes = row.result.as_mut().and_then(|result| result.get_mut("nodes")?.as_array_mut());
    for node in nodes.into_iter().flatten() {
        if let Some(node) = node.as_object_mut() {
            node.remove("not_durable");
        }
    }
    row
}

impl Site {
    /// Changes nodes' rows in memory; their change and `rest` are written when the store can be.
    ///
    /// # Errors
    /// `NOT_DURABLE`: it took force and is not kept for later.
    pub(crate) fn owe_nodes(
        self: &Arc<Self>,
        nodes: &[NodeId],
        set: impl Set,
        rest: Commit,
    ) -> Result<(), Error> {
        // Under the registry's lock, so that changes of one node are written in the order in which they took force.
        let settled = self.change(|registry| {
            let mut owed = Owed::new().with(rest);
            let before: Vec<_> = nodes.iter().filter_map(|id| registry.node(id).cloned()).collect();
            let changed: Vec<_> =
                nodes.iter().copied().filter(|id| registry.apply_in_memory(*id, &set)).collect();
            let mut ended = Commit::new();
            for old in &before {
                let made = registry.node(&old.id).and_then(|node| Tombstone::made_by(&old.row, &node.row));
                if let Some(stone) = made {
                    ended = ended.put_json(TOMBSTONES, old.id.to_string(), &stone);
                }
            }
            owed = owed.with(ended);
            for id in &changed {
                let set = set.clone();
                owed = owed.amend_json(NODES, id.to_string(), set);
            }
            let settled = self.store.owe(owed);
            if settled.is_err() {
                changed.iter().for_each(|id| registry.not_kept(*id));
            }
            settled
        });
        self.settle_later(settled.map_err(not_kept)?);
        Ok(())
    }

    /// Revokes a token in memory, and on disk when that can be written.
    ///
    /// # Errors
    /// `NOT_DURABLE`: it took force and is not kept for later.
    pub(crate) fn owe_token(self: &Arc<Self>, row: EnrollmentRow, rest: Commit) -> Result<(), Error> {
        let revoked_at = row.token.revoked_at_unix_ms;
        let revoke = move |row: &mut EnrollmentRow| {
            // One that was used in the same moment is the node's credential, not an open door.
            if row.token.claim.is_none() {
                row.token.revoked_at_unix_ms = revoked_at;
            }
        };
        let owed = Owed::new().with(rest).amend_json(ENROLLMENTS, row.token.token_id.clone(), revoke);
        let settled = {
            let mut tokens = lock(&self.tokens);
            tokens.apply_in_memory(row);
            self.store.owe(owed)
        };
        self.settle_later(settled.map_err(not_kept)?);
        Ok(())
    }

    fn settle_later(self: &Arc<Self>, settled: Settled) {
        let site = Arc::clone(self);
        once_written(&self.store, settled, move |changes| site.settled(changes));
    }

    fn settled(&self, changes: Vec<Change>) {
        for change in changes {
            let Some(row) = change.row else { continue };
            match change.table.as_str() {
                NODES => {
                    if let (Ok(id), Ok(stored)) = (NodeId::parse(&change.key), row.json()) {
                        self.change(|registry| registry.written(id, stored, row.position));
                    }
                }
                ENROLLMENTS => {
                    if let Ok(stored) = row.json() {
                        lock(&self.tokens).apply(stored, row.position);
                    }
                }
                _ => {}
            }
        }
    }

    /// Why the store cannot be written, if it cannot, and how much waits for it.
    pub(crate) fn store_trouble(&self) -> Option<String> {
        store_trouble(&self.store)
    }
}

/// Why a store cannot be written, if it cannot, and how much waits for it.
pub(crate) fn store_trouble(store: &Store) -> Option<String> {
    let owed = store.owed();
    match (store.health(), owed) {
        (umbel_store::Health::ReadOnly(cause), 0) => Some(cause),
        (umbel_store::Health::ReadOnly(cause), _) => {
            Some(format!("{cause}; {owed} changes are in force and not on disk yet"))
        }
        (umbel_store::Health::Ok, 0) => None,
        (umbel_store::Health::Ok, _) => Some(format!("{owed} changes are in force and not on disk yet")),
    }
}

/// A store that came from a backup or out of a damaged file is a problem for so long: who works here has seen it then.
const ORIGIN_SHOWN_MS: i64 = 7 * 24 * 3_600_000;

/// What is wrong with a store, as problems of the site.
pub(crate) fn store_problems(store: &Store, now: Wall) -> Vec<Problem> {
    let mut problems = Vec::new();
    if let Some(cause) = store_trouble(store) {
        problems.push(Problem {
            code: "STORE_READ_ONLY".to_owned(),
            message: format!(
                "the edge's store cannot be written ({cause}); the site serves, changes are refused"
            ),
            since_unix_ms: store.read_only_since().unwrap_or(now.unix_ms()),
            subject: String::new(),
        });
    }
    if let Some(origin) = store.origin()
        && now.unix_ms().saturating_sub(origin.placed_unix_ms) < ORIGIN_SHOWN_MS
    {
        let (code, message) = match origin.rescued {
            None => (
                "STORE_RESTORED",
                format!(
                    "the store was restored from a backup of {}: nodes enrolled or given a new certificate after that \
                     wait for approval, and open tokens are void",
                    timestamp(origin.state_of_unix_ms)
                ),
            ),
            Some(kept) => (
                "STORE_RESCUED",
                format!(
                    "the store's file was damaged and moved aside: {kept} records were read out of it, {} could not be \
                     used{}; compare nodes, keys and settings with what they should be, or restore a backup",
                    origin.unusable,
                    match origin.audit_lost_sentence() {
                        lost if lost.is_empty() => lost,
                        lost => format!(", and {lost}"),
                    }
                ),
            ),
        };
        problems.push(Problem {
            code: code.to_owned(),
            message,
            since_unix_ms: origin.placed_unix_ms,
            subject: String::new(),
        });
    }
    for record in store.unreadable() {
        problems.push(Problem {
            code: "RECORD_UNREADABLE".to_owned(),
            message: format!(
                "a stored record is passed over: {}; restore a backup, or remove what it was about and make it anew",
                record.cause
            ),
            since_unix_ms: now.unix_ms(),
            subject: format!("{}/{}", record.table, record.key),
        });
    }
    problems
}
