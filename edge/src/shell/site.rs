//! The site's state in one place: the registry under its lock, the store behind it, and who has to be told.
//!
//! Owns the order: a change is proposed, committed, applied under the lock, told to admission still under the
//! lock (so that admission sees changes in the order in which they happened), and only then to people.
//! Invariant: the lock is never held across an await.

mod keeping;
mod trips;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use umbel_store::{AuditRecord, BackupFolder, Commit, CommitError, HighWater, Observed, Store};
use umbel_wire::clock::{self, Wall};
use umbel_wire::guesses::{Guesses, host_of};
use umbel_wire::liveness::Times;
use umbel_wire::repeats::Repeats;
use umbel_wire::{CloseReason, Code, Connection, EdgeId, Error, Generation, NodeId, Parts, limits};

use crate::core::approval::Approvals;
use crate::core::authority::AuthorityRow;
use crate::core::enrollment::{EnrollmentRow, Refusals, Tokens};
use crate::core::registry::node::{Node, NodeRow, ReportRow};
use crate::core::registry::{Call, Notice, Registry};
use crate::core::tombstones::{TOMBSTONES, Tombstone};
use crate::shell::authority::{Authorities, Expiries};
use crate::shell::deployments::Deployments;
use crate::shell::dispatch::Dispatch;
use crate::shell::events::{Events, Happened};
use crate::shell::gather::Gather;
use crate::shell::jobs::Jobs;
use crate::shell::nodes::{Nudge, Turns};
use crate::shell::settings::Settings;

pub(crate) use crate::core::enrollment::ENROLLMENTS;
pub(crate) use crate::core::registry::{NODES, REPORTS};

/// Table of what this process has to remember of itself.
pub(crate) const SELF: &str = "self";
const WALL: &str = "wall";
/// Which certificate authorities there are.
pub(crate) const AUTHORITY: &str = "authority";

/// Generations reserved at a time: at one reconnect a second for each of 10,000 nodes still a rare write.
const GENERATIONS: u64 = 65_536;
/// Revisions reserved at a time.
const REVISIONS: u64 = 1_048_576;
/// Tombstones written in one commit at the start.
const TOMBSTONES_A_COMMIT: usize = 500;

/// What every part of the running edge shares.
pub(crate) struct Site {
    pub(crate) edge_id: EdgeId,
    pub(crate) name: String,
    pub(crate) advertise: Vec<String>,
    pub(crate) store: Store,
    pub(crate) observed: Observed,
    pub(crate) backups: BackupFolder,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) events: Events,
    pub(crate) heartbeat: Duration,
    pub(crate) authorities: Arc<Authorities>,
    pub(crate) rotations: Nudge,
    pub(crate) expiries: Expiries,
    pub(crate) settings: Settings,
    /// Work that nodes do for this edge.
    pub(crate) jobs: Jobs,
    /// What the site wants served.
    pub(crate) deployments: Deployments,
    pub(crate) started: Instant,
    /// What of this process broke off.
    pub(crate) parts: Parts,
    registry: Mutex<Registry<Connection>>,
    pub(crate) tokens: Mutex<Tokens>,
    pub(crate) guesses: Mutex<Guesses>,
    /// Tries of tokens that another host has used, by address and token.
    pub(crate) spent: Mutex<Guesses<(IpAddr, String)>>,
    // Refusals in the log: a line a minute of each address and reason.
    refused: Mutex<Repeats<(IpAddr, Cow<'static, str>)>>,
    pub(crate) refusals: Mutex<Refusals>,
    /// Certificates that wait for an operator, after a restore.
    pub(crate) approvals: Mutex<Approvals>,
    /// Claims write through it.
    pub(crate) gather: Arc<Gather>,
    /// Claims of one token, or by one key, stand in a row.
    pub(crate) turns: Turns,
    generations: HighWater,
    revisions: HighWater,
    wall_floor: Mutex<Wall>,
    // The wall clock as it stands on disk.
    wall_stored: Mutex<Wall>,
    // Where a test wants it to break off.
    #[cfg(test)]
    pub(crate) trips: Mutex<Vec<&'static str>>,
}

/// What a site is opened with.
pub(crate) struct Opening {
    pub(crate) edge_id: EdgeId,
    pub(crate) name: String,
    pub(crate) advertise: Vec<String>,
    pub(crate) store: Store,
    pub(crate) backups: BackupFolder,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) times: Times,
    pub(crate) heartbeat: Duration,
    pub(crate) authorities: Arc<Authorities>,
    pub(crate) settings: Settings,
}

/// Why the stored site could not be taken up.
fn unreadable(error: impl std::fmt::Display) -> Error {
    Error::new(Code::Internal, "STORE_UNREADABLE", format!("{error}; restore the last backup"))
}

impl Site {
    /// Takes up what is stored. Fails if the store cannot be read.
    pub(crate) async fn open(opening: Opening) -> Result<Arc<Self>, Error> {
        let Opening {
            edge_id,
            name,
            advertise,
            store,
            backups,
            dispatch,
            times,
            heartbeat,
            authorities,
            settings,
        } = opening;
        let row = store.get(SELF, AUTHORITY).await.map_err(unreadable)?;
        let row = row.map(|row| row.json::<AuthorityRow>()).transpose().map_err(unreadable)?;
        authorities.take_up(row).map_err(unreadable)?;
        let generations = mark(&store, "generation", GENERATIONS).await?;
        let revisions = mark(&store, "revision", REVISIONS).await?;
        let now = clock::now();
        let above = Generation(generations.last());
        let mut registry = Registry::new(times, keeping::sweep_period(heartbeat), above, now);
        registry.set_authority(authorities.held().row.clone());
        registry.set_targets(settings.targets());
        registry.set_allowed_skew(settings.in_force().clock.allowed_skew);
        let mut reports = std::collections::HashMap::new();
        // One record that cannot be used is passed over and told; the others are the site.
        for (row, report) in store.load_json::<ReportRow>(REPORTS).await.map_err(unreadable)? {
            reports.insert(row.key, report);
        }
        for (stored, row) in store.load_json::<NodeRow>(NODES).await.map_err(unreadable)? {
            let Ok(id) = NodeId::parse(&stored.key) else {
                store.not_usable(NODES, &stored.key, "its key is no node id");
                continue;
            };
            let report = reports.remove(&stored.key).unwrap_or_default();
            registry.insert(id, row, stored.position, report);
        }
        tombstones(&store, &mut registry).await?;
        let mut tokens = Tokens::default();
        for (stored, row) in store.load_json::<EnrollmentRow>(ENROLLMENTS).await.map_err(unreadable)? {
            tokens.apply(row, stored.position);
        }
        let jobs = Jobs::load(&store).await.map_err(unreadable)?;
        let deployments = Deployments::load(&store).await.map_err(unreadable)?;
        let floor = store.get(SELF, WALL).await.map_err(unreadable)?;
        let floor = floor.and_then(|row| row.json::<i64>().ok()).unwrap_or(0);
        tokens.forget_answers(Wall::now().max(Wall(floor)));
        let events = Events::new(edge_id.clone(), uuid::Uuid::new_v4().simple().to_string());
        let site = Arc::new(Self {
            edge_id,
            name,
            advertise,
            approvals: Mutex::default(),
            gather: Gather::new(store.clone()),
            turns: Turns::default(),
            observed: Observed::new(&store),
            store,
            backups,
            dispatch,
            events,
            heartbeat,
            authorities,
            rotations: Nudge::default(),
            expiries: Expiries::default(),
            settings,
            jobs,
            deployments,
            started: now,
            parts: Parts::default(),
            registry: Mutex::new(registry),
            tokens: Mutex::new(tokens),
            guesses: Mutex::default(),
            spent: Mutex::new(Guesses::allowing(limits::SPENT_TRIES)),
            refused: Mutex::default(),
            refusals: Mutex::default(),
            generations,
            revisions,
            wall_floor: Mutex::new(Wall(floor)),
            wall_stored: Mutex::new(Wall(floor)),
            #[cfg(test)]
            trips: Mutex::default(),
        });
        site.change(|_| ());
        Ok(site)
    }

    /// The wall clock, never below what was persisted.
    pub(crate) fn wall(&self) -> Wall {
        let mut floor = self.wall_floor.lock().unwrap_or_else(PoisonError::into_inner);
        *floor = (*floor).max(Wall::now());
        *floor
    }

    /// Changes the registry; admission and people learn what follows from it, in this order.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&mut Registry<Connection>) -> T) -> T {
        let (result, notices, evicted) = {
            let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            let result = work(&mut registry);
            for call in registry.take_calls() {
                self.call(&registry, &call);
            }
            // Generations come from the slots; the mark only has to stay above them.
            while self.generations.last() < registry.slots.highest().0 {
                self.generations.take();
            }
            if registry.take_changed() {
                let revision = self.revisions.take();
                registry.set_revision(revision);
                self.deployments.registry_changed();
            }
            (result, registry.take_notices(), registry.take_evicted())
        };
        // Outside the lock: closing wakes the session, which asks the registry.
        for connection in evicted {
            connection.close(CloseReason::Revoked);
        }
        self.notify(notices);
        result
    }

    /// Reads the registry without changing it.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Registry<Connection>) -> T) -> T {
        look(&self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Something that readers see beside the nodes has changed: it is of the next revision.
    pub(crate) fn raise(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let revision = self.revisions.take();
        registry.set_revision(revision);
    }

    /// All nodes and the revision at which they are so.
    pub(crate) fn nodes(&self) -> (u64, Vec<Arc<Node>>) {
        self.read(|registry| (registry.revision(), registry.all()))
    }

    /// Stores the new rows of nodes that were read before, then applies them. Nothing is applied if one of them
    /// changed meanwhile (then `None`: read again) or if the store refuses.
    pub(crate) async fn store_nodes(
        &self,
        changes: Vec<(Arc<Node>, NodeRow)>,
        also: Commit,
    ) -> Result<Option<()>, CommitError> {
        let mut commit = Commit::new();
        for (node, row) in &changes {
            let key = node.id.to_string();
            commit = commit.require_at(NODES, key.clone(), node.position).put_json(NODES, key.clone(), row);
            if let Some(stone) = Tombstone::made_by(&node.row, row) {
                commit = commit.put_json(TOMBSTONES, key, &stone);
            }
        }
        let own = changes.len();
        match self.store.commit(commit.and(also)).await {
            Ok(position) => {
                self.change(|registry| {
                    for (node, row) in changes {
                        registry.apply(node.id, row, position);
                    }
                });
                Ok(Some(()))
            }
            Err(CommitError::Conflict(index)) if index < own => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Appends audit entries without waiting, repeats folded; those of a time in which the store cannot be written
    /// follow when it can.
    pub(crate) fn audit_soon(&self, records: Vec<AuditRecord>) {
        self.observed.tell(clock::now(), records);
    }

    /// Whether a newcomer's refusal is told in the log, and how many like it were not since the last one.
    pub(crate) fn refusal_is_news(&self, address: SocketAddr, error: &Error) -> Option<u64> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.tell((host_of(address.ip()), error.reason.clone()), clock::now())
    }

    fn notify(&self, notices: Vec<Notice>) {
        let mut records = Vec::new();
        for notice in notices {
            if notice.audited {
                let record = AuditRecord::new(notice.kind, notice.node.to_string(), "observed");
                records.push(record.by("edge").because(notice.message.clone()));
            }
            self.events.tell(Happened {
                kind: notice.kind,
                node_id: notice.node.to_string(),
                provider_id: notice.provider.unwrap_or_default(),
                generation: notice.generation.0,
                message: notice.message,
                ..Happened::default()
            });
        }
        self.audit_soon(records);
    }

    // Under the registry's lock. Dispatch takes its own lock inside and calls nobody back.
    fn call(&self, registry: &Registry<Connection>, call: &Call) {
        let connection = match call {
            Call::Up { node, generation, .. } => {
                registry.slots.owner(node).filter(|owner| owner.generation == *generation)
            }
            _ => None,
        };
        if let Call::Up { node, engine, state, cause, .. } = call
            && !cause.is_empty()
        {
            tracing::debug!(%node, engine = %engine.name, ?state, cause, "a provider comes up with a cause");
        }
        if let Call::Gone { .. } = call {
            self.jobs.look();
        }
        if let Call::State { node, engine, state, cause, .. } = call {
            tracing::debug!(%node, engine, ?state, cause, "provider state");
        }
        if let (Err(why), Call::Declare { node, engine } | Call::Up { node, engine, .. }) =
            (self.dispatch.tell(call, connection.map(|owner| &owner.handle)), call)
        {
            tracing::warn!(%node, engine = %engine.name, %why, "a declared provider is not served");
        }
    }

    fn read_mut<T>(&self, work: impl FnOnce(&mut Registry<Connection>) -> T) -> T {
        work(&mut self.registry.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What a dialer may spread its first redial over: 5 ms for each node.
    pub(crate) fn reconnect_spread(&self) -> Duration {
        let nodes = u32::try_from(self.read(Registry::len)).unwrap_or(u32::MAX);
        (Duration::from_millis(5) * nodes).max(Duration::from_millis(200))
    }
}

/// Tombstones of nodes whose rows were lost are taken up, and those that rows of before this table make are written.
async fn tombstones(store: &Store, registry: &mut Registry<Connection>) -> Result<(), Error> {
    let mut kept = std::collections::HashMap::new();
    for (stored, stone) in store.load_json::<Tombstone>(TOMBSTONES).await.map_err(unreadable)? {
        let Ok(id) = NodeId::parse(&stored.key) else {
            store.not_usable(TOMBSTONES, &stored.key, "its key is no node id");
            continue;
        };
        if registry.node(&id).is_none() {
            registry.tombstones.insert(id, stone);
        } else {
            kept.insert(id, stone);
        }
    }
    let lacking = |node: &Arc<Node>| {
        let stone = Tombstone::of(&node.row)?;
        let stands = kept.get(&node.id).is_some_and(|kept| kept.covers(&stone));
        (!stands).then_some((node.id, stone))
    };
    let lacking: Vec<_> = registry.all().iter().filter_map(lacking).collect();
    for part in lacking.chunks(TOMBSTONES_A_COMMIT) {
        let put = |commit: Commit, (id, stone): &(NodeId, Tombstone)| {
            commit.put_json(TOMBSTONES, id.to_string(), stone)
        };
        if let Err(error) = store.commit(part.iter().fold(Commit::new(), put)).await {
            // The rows still say so; the next start tries again.
            tracing::warn!(%error, "tombstones could not be written apart from their nodes' rows");
            break;
        }
    }
    Ok(())
}

async fn mark(store: &Store, name: &'static str, block: u64) -> Result<HighWater, Error> {
    HighWater::open(store, name, block).await.map_err(|error| {
        Error::new(
            Code::Unavailable,
            "STORE_READ_ONLY",
            format!("the store cannot be written at the start: {error}"),
        )
    })
}
