//! The site's settings in the running edge: stored, in force here, and on their way to the nodes.
//!
//! Owns the one document in memory, the order of changes, and putting the edge's own part in force. Leaves what is
//! valid and what follows to `core::settings`, sending to [`send`]. Invariants: changes are made one after the other;
//! what is in force was committed before; settings that cannot lie over an edited file leave the file in force and are
//! a problem, so that a good change can always follow (row 81).

mod send;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use umbel_contracts::daemon::set_log_level;
use umbel_contracts::proto::control::Problem;
use umbel_contracts::settings::{self, EdgeSettings, Fault};
use umbel_store::{Commit, CommitError, Position, ReadError, Store};
use umbel_wire::NodeId;
use umbel_wire::clock::Wall;
use umbel_wire::liveness::Times;

use crate::Config;
use crate::core::settings::{CURRENT, DocumentRow, HISTORY, Proposal, SETTINGS, Targets, VersionRow};
use crate::http::Front;
use crate::shell::events::Happened;
use crate::shell::site::Site;

pub(crate) use send::keep;

/// The edge runs on its file alone, because its settings do not fit on it.
const SETTINGS_NOT_IN_FORCE: &str = "SETTINGS_NOT_IN_FORCE";

/// The document and where it stands in the store.
#[derive(Clone, Debug, Default)]
struct Stored {
    row: Arc<DocumentRow>,
    position: Option<Position>,
}

/// The site's settings.
pub(crate) struct Settings {
    store: Store,
    file: Config,
    stored: Mutex<Stored>,
    in_force: ArcSwap<Config>,
    trouble: Mutex<Option<(Fault, i64)>>,
    changes: Mutex<Changes>,
    /// One change after the other.
    turn: tokio::sync::Mutex<()>,
    front: OnceLock<Arc<Front>>,
    /// Who has to be looked at by the task that sends.
    nudged: Mutex<Nudged>,
    wake: Notify,
}

/// What became of changes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    /// Versions that were made.
    pub(crate) applied: u64,
    /// Changes that were judged and not made.
    pub(crate) refused: u64,
}

/// Why the sending task was woken.
#[derive(Debug, Default)]
struct Nudged {
    nodes: BTreeSet<NodeId>,
    /// The document changed: after the time of gathering everybody is looked at.
    changed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The edge's own part of a document, over its file.
fn over(file: &Config, document: &serde_json::Value) -> Result<Config, Fault> {
    let own: EdgeSettings = serde_json::from_value(settings::edge_of(document))
        .map_err(|error| Fault::new("edge", format!("cannot be read: {error}")))?;
    file.with_settings(&own)
}

impl Settings {
    /// Takes up what is stored.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub(crate) async fn load(store: Store, file: Config) -> Result<Self, ReadError> {
        let (stored, damaged) = match store.get(SETTINGS, CURRENT).await? {
            None => (Stored::default(), None),
            Some(row) => match row.json::<DocumentRow>() {
                Ok(document) => (Stored { row: Arc::new(document), position: Some(row.position) }, None),
                Err(error) => {
                    // Numbers go on above every version that was ever made; nodes keep what they have.
                    let made = store.load(HISTORY).await?.iter().filter_map(|row| row.key.parse().ok()).max();
                    let row = Stored {
                        row: Arc::new(DocumentRow { version: made.unwrap_or(0), ..DocumentRow::default() }),
                        position: Some(row.position),
                    };
                    (row, Some(Fault::new("", format!("the stored settings cannot be read: {error}"))))
                }
            },
        };
        let (in_force, trouble) = match over(&file, &stored.row.document) {
            Ok(config) => (config, damaged.map(|fault| (fault, Wall::now().unix_ms()))),
            Err(fault) => {
                tracing::error!(%fault, "the settings do not fit on the edge's file: it runs on the file alone");
                (file.clone(), Some((fault, Wall::now().unix_ms())))
            }
        };
        Ok(Self {
            store,
            file,
            stored: Mutex::new(stored),
            in_force: ArcSwap::from_pointee(in_force),
            trouble: Mutex::new(trouble),
            changes: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            front: OnceLock::new(),
            nudged: Mutex::default(),
            wake: Notify::new(),
        })
    }

    /// What the edge runs on: its file with the settings on top.
    pub(crate) fn in_force(&self) -> Arc<Config> {
        self.in_force.load_full()
    }

    /// Where requests of applications learn of new bounds; given once, when it is built.
    pub(crate) fn serve(&self, front: &Arc<Front>) {
        let _ = self.front.set(Arc::clone(front));
    }

    /// What nodes should have.
    pub(crate) fn targets(&self) -> Targets {
        Targets::new(&lock(&self.stored).row)
    }

    /// The newest document.
    pub(crate) fn document(&self) -> Arc<DocumentRow> {
        Arc::clone(&lock(&self.stored).row)
    }

    /// The newest version; 0 before the first change.
    pub(crate) fn version(&self) -> u64 {
        lock(&self.stored).row.version
    }

    /// The versions that are kept, newest first.
    pub(crate) async fn history(&self) -> Result<Vec<VersionRow>, ReadError> {
        let rows = self.store.load(HISTORY).await?;
        // One that does not decode is left out: the others are still of use.
        Ok(rows.iter().rev().filter_map(|row| row.json().ok()).collect())
    }

    /// Makes sure that nobody else changes the settings while it is held.
    pub(crate) async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Whether a document can be in force here.
    ///
    /// # Errors
    /// The field that cannot be together with the edge's file.
    pub(crate) fn fits(&self, document: &serde_json::Value) -> Result<(), Fault> {
        over(&self.file, document).map(drop)
    }

    /// A change was judged and not made.
    pub(crate) fn refused(&self) {
        lock(&self.changes).refused += 1;
    }

    /// What became of changes since the start.
    pub(crate) fn changes(&self) -> Changes {
        *lock(&self.changes)
    }

    /// A node is complete: it is looked at now.
    pub(crate) fn nudge(&self, node: NodeId) {
        lock(&self.nudged).nodes.insert(node);
        self.wake.notify_one();
    }

    /// What is wrong with the settings of the edge itself.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let trouble = lock(&self.trouble);
        trouble.as_ref().map(|(fault, since)| Problem {
            code: SETTINGS_NOT_IN_FORCE.to_owned(),
            message: format!("the edge runs on its file alone: {fault}; correct the file, or this setting"),
            since_unix_ms: *since,
            subject: String::new(),
        })
    }
}

impl Site {
    /// Commits a new version, together with what asked for it, and puts it in force. The caller holds the turn.
    ///
    /// # Errors
    /// The store's; nothing has changed then.
    pub(crate) async fn set_settings(&self, proposal: Proposal, also: Commit) -> Result<(), CommitError> {
        let position = lock(&self.settings.stored).position;
        let position = self.store.commit(proposal.commit(position).and(also)).await?;
        // What was wrong with the document before is judged anew, whatever this one changes.
        let changes_edge = proposal.changes_edge() || lock(&self.settings.trouble).is_some();
        let targets = {
            let mut stored = lock(&self.settings.stored);
            *stored = Stored { row: Arc::new(proposal.row), position: Some(position) };
            Targets::new(&stored.row)
        };
        lock(&self.settings.changes).applied += 1;
        self.change(|registry| registry.set_targets(targets));
        if changes_edge {
            self.put_in_force();
        }
        lock(&self.settings.nudged).changed = true;
        self.settings.wake.notify_one();
        Ok(())
    }

    /// The edge's own part takes effect, without touching what runs.
    fn put_in_force(&self) {
        let row = self.settings.document();
        let config = match over(&self.settings.file, &row.document) {
            Ok(config) => config,
            Err(fault) => {
                // It was judged before it was committed, so this is a file that was wrong from the start.
                *lock(&self.settings.trouble) = Some((fault, self.wall().unix_ms()));
                return;
            }
        };
        *lock(&self.settings.trouble) = None;
        if let Ok(times) = Times::new(config.liveness.stale, config.liveness.offline) {
            self.change(|registry| {
                registry.set_times(times);
                registry.set_allowed_skew(config.clock.allowed_skew);
            });
        }
        let waiting = usize::try_from(config.queue.max_requests).unwrap_or(usize::MAX);
        self.dispatch.set_queue_limits(waiting, config.queue.max_wait, config.queue.max_wait_loading);
        if let Some(front) = self.settings.front.get() {
            front.set_options(|options| {
                options.body_max = usize::try_from(config.api.body_max).unwrap_or(usize::MAX);
                options.held_max = config.api.held_max;
                options.stream_usage = config.api.stream_usage;
                options.keepalive = config.api.keepalive;
                options.first_byte_timeout = config.upstream.first_byte_timeout;
                options.idle_timeout = config.upstream.idle_timeout;
            });
        }
        self.store.keep_audit(config.audit.max_entries, config.audit.keep);
        if let Err(error) = set_log_level(&config.log.level) {
            tracing::warn!(%error, "the log's level could not be changed");
        }
        self.settings.in_force.store(Arc::new(config));
        self.events.tell(Happened {
            kind: "settings_applied",
            message: format!("the edge's own settings of version {} are in force", row.version),
            ..Happened::default()
        });
    }
}
