//! What all parts of the control plane share: the settings, the store, and the state behind its locks.
//!
//! Invariant: no lock is held across an await, and [`Plane::fleet`] guards registry, views and slots together, so
//! that a credential is checked and a connection registered in one step that a revocation cannot slip into.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use umbel_contracts::objects::EventObject;
use umbel_contracts::serve::EventRing;
use umbel_store::{Change, Commit, CommitError, Health, Observed, Owed, Position, ReadError, Store};
use umbel_wire::error::{Code, Error};
use umbel_wire::guesses::{Guesses, host_of};
use umbel_wire::ids::{EdgeId, Generation};
use umbel_wire::liveness::Times;
use umbel_wire::repeats::Repeats;
use umbel_wire::slots::Slots;
use umbel_wire::{Broken, Connection, Parts, clock, contained};

use super::authority::Keys;
use super::clock::WallClock;
use super::status::Questions;
use crate::config::Backup;
use crate::core::audit::{Deed, timestamp};
use crate::core::commands::{Commands, PENDING, PendingRow};
use crate::core::edges::{EDGES, EdgeRow, Edges};
use crate::core::fleet::Fleet;
use crate::core::operators::{OPERATORS, OperatorRow, Operators};
use crate::core::views::{SWEEP, Views};
use crate::core::witness::{WITNESS, Witness, WitnessRow};
use crate::metrics::Metrics;
use crate::{Config, StartError};

/// Events kept for readers that come late: about 4 MiB.
const EVENTS_KEPT: usize = 8_192;

/// What does not change while the process runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) name: String,
    pub(crate) fleet_name: String,
    pub(crate) advertise: Vec<String>,
    pub(crate) heartbeat: Duration,
    pub(crate) silence: Times,
    pub(crate) status_deadline: Duration,
    pub(crate) backup: Backup,
}

impl Settings {
    /// What of the file concerns the running process.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            name: config.name.clone(),
            fleet_name: config.fleet_name.clone(),
            advertise: config.advertise.clone(),
            heartbeat: config.heartbeat,
            silence: config.silence,
            status_deadline: config.status_deadline,
            backup: config.backup.clone(),
        }
    }
}

/// Registry, views and connections.
pub(crate) type FleetState = Fleet<Connection>;

/// A connection that owns its edge's slot.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) edge_id: EdgeId,
    pub(crate) generation: Generation,
    pub(crate) connection: Connection,
}

/// The control plane.
pub(crate) struct Plane {
    pub(crate) settings: Settings,
    pub(crate) clock: WallClock,
    pub(crate) keys: Keys,
    pub(crate) events: Arc<EventRing>,
    pub(crate) metrics: Metrics,
    pub(crate) questions: Questions,
    /// Cancelled when the process begins to end: whatever only waits stops waiting.
    pub(crate) drain: CancellationToken,
    /// Counts up whenever anything is learnt of a command.
    pub(crate) commands_changed: watch::Sender<u64>,
    /// Counts up whenever an operator was revoked: what he has open looks whether it may go on.
    pub(crate) operators_changed: watch::Sender<u64>,
    /// Refusals and observations on their way into the audit.
    pub(crate) observed: Observed,
    store: Store,
    fleet: Mutex<FleetState>,
    operators: Mutex<Operators>,
    commands: Mutex<Commands>,
    witness: Mutex<Witness>,
    /// What of this process broke off.
    pub(crate) parts: Parts,
    pub(crate) guesses: Mutex<Guesses>,
    // Refusals in the log: a line a minute of each address and reason.
    refusals: Mutex<Repeats<(IpAddr, Cow<'static, str>)>>,
}

impl Plane {
    /// Loads what is stored. Generations continue above those of earlier processes: `above` is their mark.
    pub(crate) async fn load(
        settings: Settings,
        store: Store,
        keys: Keys,
        above: Generation,
    ) -> Result<Arc<Self>, StartError> {
        let read =
            |error: ReadError| StartError::State(format!("{error}. Restore the last backup of the store."));
        let mut edges = Edges::default();
        // One record that cannot be used is passed over and told; the others are the fleet.
        for (stored, row) in store.load_json::<EdgeRow>(EDGES).await.map_err(read)? {
            edges.apply(row, stored.position);
        }
        let mut operators = Operators::default();
        for (stored, row) in store.load_json::<OperatorRow>(OPERATORS).await.map_err(read)? {
            operators.apply(row, stored.position);
        }
        let mut commands = Commands::default();
        for (_, row) in store.load_json::<PendingRow>(PENDING).await.map_err(read)? {
            commands.restore(row);
        }
        let mut witness = Witness::default();
        for (stored, row) in store.load_json::<WitnessRow>(WITNESS).await.map_err(read)? {
            match EdgeId::parse(&stored.key) {
                Ok(edge_id) => witness.restore(edge_id, row),
                Err(_) => store.not_usable(WITNESS, &stored.key, "its key is no edge id"),
            }
        }
        let last = store.audit_tail(1).await.map_err(read)?;
        let persisted = last.last().map_or(0, |entry| entry.record.at_unix_ms);
        let fleet =
            FleetState { edges, views: Views::new(settings.silence, clock::now()), slots: Slots::new(above) };
        Ok(Arc::new(Self {
            settings,
            clock: WallClock::new(clock::Wall(persisted)),
            keys,
            events: EventRing::new(umbel_wire::token::new_id(), EVENTS_KEPT),
            metrics: Metrics::default(),
            questions: Questions::default(),
            drain: CancellationToken::new(),
            commands_changed: watch::Sender::new(0),
            operators_changed: watch::Sender::new(0),
            observed: Observed::new(&store),
            store,
            fleet: Mutex::new(fleet),
            operators: Mutex::new(operators),
            commands: Mutex::new(commands),
            witness: Mutex::new(witness),
            parts: Parts::default(),
            guesses: Mutex::default(),
            refusals: Mutex::default(),
        }))
    }

    pub(crate) fn fleet(&self) -> MutexGuard<'_, FleetState> {
        self.fleet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn operators(&self) -> MutexGuard<'_, Operators> {
        self.operators.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn commands(&self) -> MutexGuard<'_, Commands> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn witness(&self) -> MutexGuard<'_, Witness> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Something was learnt of a command: wakes those who wait for it.
    pub(crate) fn commands_moved(&self) {
        self.commands_changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// An operator's token opens nothing from now on, and what was opened with it ends.
    pub(crate) fn shut_out(&self, row: OperatorRow, position: Position) {
        self.operators().apply(row, position);
        self.operators_changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// The connection of an edge that a caller named. NOT_FOUND, or UNAVAILABLE at once.
    pub(crate) fn link(&self, edge_id: &str) -> Result<Link, Error> {
        let (edge_id, generation, connection) =
            self.fleet().link(edge_id, |connection| !connection.is_closed())?;
        Ok(Link { edge_id, generation, connection })
    }

    /// Tells what happened at an edge, after it did.
    pub(crate) fn tell(
        &self,
        edge_id: &EdgeId,
        kind: &str,
        generation: Option<Generation>,
        message: impl Into<String>,
    ) {
        self.publish(EventObject {
            edge_id: edge_id.to_string(),
            sequence: 0,
            at: timestamp(self.clock.now().unix_ms()),
            kind: kind.to_owned(),
            node_id: None,
            provider_id: None,
            generation: generation.map(|generation| generation.0),
            deployment: None,
            job_id: None,
            message: message.into(),
        });
    }

    /// Judges the edges' silence, until the drain.
    pub(crate) async fn sweep(self: Arc<Self>) {
        while self.drain.run_until_cancelled(tokio::time::sleep(SWEEP)).await.is_some() {
            let changed = self.fleet().views.sweep(clock::now());
            for (edge_id, generation, kind) in changed {
                self.tell(
                    &edge_id,
                    kind,
                    Some(generation),
                    "No heartbeat came, though the connection is up.",
                );
            }
            self.observed.tick(clock::now());
            // Nobody may ask for a write for long; what is in force is to be on disk as soon as there is room.
            if self.store.owed() > 0 || matches!(self.store.health(), Health::ReadOnly(_)) {
                self.store.check().await;
            }
        }
    }

    pub(crate) fn publish(&self, event: EventObject) {
        self.metrics.events.inc();
        self.events.publish(event);
    }

    /// Whether a refusal is told in the log, and how many like it were not since the last one.
    pub(crate) fn refusal_is_news(&self, address: SocketAddr, error: &Error) -> Option<u64> {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.tell((host_of(address.ip()), error.reason.clone()), clock::now())
    }

    /// Commits, and says in words why it could not.
    pub(crate) async fn commit(&self, commit: Commit) -> Result<Position, Error> {
        self.store.commit(commit).await.map_err(|error| match error {
            CommitError::Conflict(_) => Error::new(
                Code::Conflict,
                "CHANGED_MEANWHILE",
                "It was changed by someone else in the same moment. Look again, then repeat.",
            ),
            CommitError::ReadOnly(_) => read_only(),
            CommitError::TooLarge(what) => Error::new(Code::TooLarge, "ROW_TOO_LARGE", format!("{what}.")),
            error => Error::new(Code::Unavailable, "STORE_CLOSED", format!("{error}.")),
        })
    }

    /// Keeps for later what took force although the store could not be written; the caller's answer.
    pub(crate) fn owe(self: &Arc<Self>, what: &str, owed: Owed) -> Error {
        let message = match self.store.owe(owed) {
            Ok(settled) => {
                let plane = Arc::clone(self);
                tokio::spawn(async move {
                    // There may be room again already.
                    plane.store.check().await;
                    if let Ok(changes) = settled.await {
                        plane.settled(changes);
                    }
                });
                format!(
                    "{what} is revoked, but this control plane's store cannot be written: free space on its disk. It is \
                     written as soon as there is room; only a restart before that takes it back."
                )
            }
            Err(_) => format!(
                "{what} is revoked until this control plane restarts: its store cannot be written, and too much waits \
                 for it already. Free space on its disk and repeat."
            ),
        };
        Error::new(Code::InsufficientStorage, "NOT_DURABLE", message)
    }

    // It is on disk now: memory learns where.
    fn settled(&self, changes: Vec<Change>) {
        for change in changes {
            let Some(row) = change.row else { continue };
            match change.table.as_str() {
                EDGES => {
                    if let Ok(edge) = row.json::<EdgeRow>() {
                        self.fleet().edges.apply(edge, row.position);
                    }
                }
                OPERATORS => {
                    if let Ok(operator) = row.json::<OperatorRow>() {
                        self.operators().apply(operator, row.position);
                    }
                }
                _ => {}
            }
        }
    }

    /// Audits something that changes no row, before it is done.
    pub(crate) async fn audit(&self, deed: &Deed) -> Result<(), Error> {
        self.metrics.audited.inc();
        self.commit(Commit::new().audit(deed.record())).await.map(drop)
    }

    /// Audits something that changed no row: soon, and repeats as one entry and a count.
    pub(crate) fn audit_soon(&self, deed: &Deed) {
        self.metrics.audited.inc();
        self.observed.tell(clock::now(), vec![deed.record()]);
    }
}

/// Makes a change in a task of its own: a caller that goes away while it is written leaves it neither half done nor
/// stored and not in force. One that breaks off is INTERNAL.
pub(crate) async fn to_the_end<T: Send + 'static>(
    change: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    let ended = tokio::spawn(contained(change)).await;
    ended.unwrap_or(Err(Broken)).unwrap_or_else(|broken| Err(broken.into()))
}

fn read_only() -> Error {
    Error::new(
        Code::InsufficientStorage,
        "AUDIT_UNAVAILABLE",
        "The control plane's store cannot be written, so that this cannot be audited: nothing was done. Free space on \
         its disk, then repeat; the sites go on serving.",
    )
}

/// What cannot be read from the store.
pub(crate) fn unreadable(error: ReadError) -> Error {
    tracing::error!("the store cannot be read: {error}");
    Error::new(
        Code::Unavailable,
        "STORE_UNREADABLE",
        "The control plane's store cannot be read; its log says why.",
    )
}
