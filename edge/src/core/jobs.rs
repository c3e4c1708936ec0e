//! Jobs: work that one node does for its edge, given under a lease, tried at most [`ATTEMPTS`] times.
//!
//! Owns each node's queue, leases, attempts, who may end a job, and what is kept. Leaves sending to the shell, which commits
//! a row before it is applied here. Invariants: only the lease in force, or the one that ended the job, is heard; a lease
//! that ends without news is no attempt unless its process turns out to be lost, which is one, once; a job that has ended never
//! changes; a pause follows a failed attempt, and ends at the latest with the process of the edge.
//!
//! ```text
//!   queued --lease--> leased --claimed--> running --complete--> succeeded
//!     ^  `--cancel--> cancelled    |         |  `-----fail-----> failed | cancelled
//!     `----- refused, expired, a failure worth another attempt, a process lost ----'
//! ```

mod row;
pub(crate) mod tally;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umbel_contracts::objects::JobState;
use umbel_contracts::proto::node::job_lease::Body;
use umbel_contracts::proto::node::{JobProgress, JobReady};
use umbel_wire::clock::Wall;
use umbel_wire::{Code, Error, Generation, NodeId};

pub(crate) use row::{FilesAt, JOBS, JobRow, LeaseRow, capability};

/// A lease lasts so long without news.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// After so many attempts that came to nothing a job has failed.
pub(crate) const ATTEMPTS: u32 = 3;
/// What failed is not given again before this, after each further failure [`PAUSE_GROWS`] times as long: what passes (a full
/// disk, a process that is still leaving) does not use up all attempts at one moment.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// See [`PAUSE`].
const PAUSE_GROWS: u32 = 5;
/// Downloads that a node is given at once: it has room for 16 jobs, and a load of files that are there never waits for a
/// source that is slow.
pub(crate) const DOWNLOADS: usize = 12;
/// Jobs of one node that have not ended: a deployment has a handful a replica.
pub(crate) const QUEUE: usize = 256;
/// Jobs kept that have ended.
pub(crate) const KEPT: usize = 10_000;
/// One that has ended is readable for so long.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Old ones forgotten in one write.
const FORGOTTEN_AT_ONCE: usize = 100;

/// What somebody wants a node to do.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The job's id, a UUID, where whoever wants it has it in a row of its own already; the same again is the same job.
    pub(crate) id: Option<String>,
    pub(crate) node: NodeId,
    pub(crate) body: Body,
    /// Whose work it is: `deployment/NAME`; empty: a person's.
    pub(crate) owner: String,
    pub(crate) actor: String,
    pub(crate) reason: String,
}

impl Order {
    /// What is done, and with what: `artifact.acquire org/name@revision`.
    pub(crate) fn about(&self) -> String {
        format!("{} {}", row::kind(&self.body), row::subject(&self.body))
    }
}

/// Who speaks: a node's process over one of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Speaker {
    pub(crate) node: NodeId,
    pub(crate) instance: String,
    pub(crate) generation: Generation,
}

#[derive(Clone, Debug)]
struct Job {
    row: Arc<JobRow>,
    node: NodeId,
    // While it has a lease.
    until: Option<Instant>,
    claimed: bool,
    // It is not given before then: its last attempt has just failed.
    pause: Option<Instant>,
    // Its node said that it runs it, and has no lease for it: it gets one before all others.
    held: bool,
    // What its node had said of its room when it was given last.
    told: u64,
    progress: Option<JobProgress>,
}

impl Job {
    // With what its node has said and no row has.
    fn state(&self) -> JobState {
        if self.claimed && self.row.state == JobState::Leased { JobState::Running } else { self.row.state }
    }

    // With a further failure a pause begins; another change of a job that waits leaves it as it is.
    fn pause_after(&self, row: &JobRow, now: Instant) -> Option<Instant> {
        if row.state != JobState::Queued {
            return None;
        }
        if row.failures <= self.row.failures {
            return self.pause;
        }
        Some(now + PAUSE.saturating_mul(PAUSE_GROWS.saturating_pow(row.failures.saturating_sub(1))))
    }
}

/// What a node said last of its room.
#[derive(Clone, Debug, Default)]
struct Room {
    generation: Generation,
    // The process that said so.
    instance: String,
    slots: u32,
    // How often it said so.
    told: u64,
    // Of this node, not ended, in the order of the queue.
    jobs: BTreeSet<(u64, String)>,
}

/// A job and how far it is, for readers.
#[derive(Clone, Debug)]
pub(crate) struct JobView {
    pub(crate) id: String,
    pub(crate) row: Arc<JobRow>,
    pub(crate) state: JobState,
    pub(crate) progress: Option<JobProgress>,
}

/// What came of a node's naming of what it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// To be ended there: nobody waits for them.
    pub(crate) cancel: Vec<String>,
    /// They were given to it, and it has them no more: [`Jobs::lost`].
    pub(crate) lost: Vec<String>,
}

/// Every job that is kept.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    jobs: HashMap<String, Job>,
    rooms: HashMap<NodeId, Room>,
    ended: BTreeSet<(i64, String)>,
    sequence: u64,
    tally: tally::Tally,
}

impl Jobs {
    /// A stored row: at the start, or after its commit. A lease begins with the row that first has it.
    pub(crate) fn apply(&mut self, id: &str, row: JobRow, now: Instant) {
        let Ok(node) = NodeId::parse(&row.node) else { return };
        self.sequence = self.sequence.max(row.sequence);
        let before = self.jobs.get(id);
        if let Some(before) = before {
            self.tally.note(&before.row, &row);
        }
        let same_lease = before.is_some_and(|job| job.row.lease == row.lease);
        let room = self.rooms.entry(node).or_default();
        if let Some(ended) = row.ended_at_unix_ms {
            room.jobs.remove(&(row.sequence, id.to_owned()));
            self.ended.insert((ended, id.to_owned()));
        } else {
            room.jobs.insert((row.sequence, id.to_owned()));
        }
        let carried = before.filter(|_| same_lease);
        let job = Job {
            node,
            until: match carried {
                Some(job) => job.until,
                None => row.lease.as_ref().map(|_| now + LEASE),
            },
            claimed: carried.is_some_and(|job| job.claimed),
            pause: before.and_then(|before| before.pause_after(&row, now)),
            held: carried.is_some_and(|job| job.held),
            told: carried.map_or(0, |job| job.told),
            progress: before.and_then(|job| job.progress.clone()).filter(|_| !row.state.is_end()),
            row: Arc::new(row.in_memory()),
        };
        self.jobs.insert(id.to_owned(), job);
        self.tidy(node);
    }

    /// A row that was removed.
    pub(crate) fn forget(&mut self, id: &str) {
        if let Some(job) = self.jobs.remove(id) {
            if let Some(ended) = job.row.ended_at_unix_ms {
                self.ended.remove(&(ended, id.to_owned()));
            }
            if let Some(room) = self.rooms.get_mut(&job.node) {
                room.jobs.remove(&(job.row.sequence, id.to_owned()));
            }
            self.tidy(job.node);
        }
    }

    // A node that has no job and is not connected leaves nothing behind.
    fn tidy(&mut self, node: NodeId) {
        if self.rooms.get(&node).is_some_and(|room| room.jobs.is_empty() && room.generation.0 == 0) {
            self.rooms.remove(&node);
        }
    }

    /// The row of a new job. Its place in the order of all jobs is its own, whether or not it is stored in the end.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if the node's queue is full.
    pub(crate) fn submit(&mut self, order: Order, now: Wall) -> Result<JobRow, Error> {
        let Order { id: _, node, body, owner, actor, reason } = order;
        if self.rooms.get(&node).is_some_and(|room| room.jobs.len() >= QUEUE) {
            let message = format!("{QUEUE} jobs of this node have not ended; wait for some, or cancel them");
            let error = Error::new(Code::ResourceExhausted, "TOO_MANY_JOBS", message);
            return Err(error.with_retry_after(Duration::from_secs(5)));
        }
        self.sequence += 1;
        Ok(JobRow {
            node: node.to_string(),
            kind: row::kind(&body).to_owned(),
            subject: row::subject(&body),
            owner,
            actor,
            reason,
            body: row::stored(body),
            state: JobState::Queued,
            failures: 0,
            lease: None,
            unheard: None,
            ended_lease: String::new(),
            cancel_requested: false,
            cancelled_by: None,
            cancelled_at_unix_ms: None,
            sequence: self.sequence,
            submitted_at_unix_ms: now.unix_ms(),
            started_at_unix_ms: None,
            ended_at_unix_ms: None,
            failure: None,
            told: String::new(),
            brought: None,
        })
    }

    /// Those that have ended and are no longer kept, a bounded number a call.
    pub(crate) fn overdue(&self, now: Wall) -> Vec<String> {
        let week = i64::try_from(KEPT_FOR.as_millis()).unwrap_or(i64::MAX);
        let above = self.ended.len().saturating_sub(KEPT);
        let old = |index: usize, ended: i64| index < above || now.unix_ms().saturating_sub(ended) > week;
        let all = self.ended.iter().enumerate();
        all.take_while(|(index, (ended, _))| old(*index, *ended))
            .take(FORGOTTEN_AT_ONCE)
            .map(|(_, (_, id))| id.clone())
            .collect()
    }

    /// What a node says of its room and of what it runs, over a connection that owns it.
    pub(crate) fn ready(&mut self, speaker: &Speaker, ready: &JobReady) -> Named {
        let Speaker { node, instance, generation } = speaker;
        let room = self.rooms.entry(*node).or_default();
        if room.generation > *generation {
            // It was overtaken by what a newer connection says.
            return Named::default();
        }
        room.slots = ready.slots;
        room.told = room.told.wrapping_add(1);
        room.generation = *generation;
        room.instance.clone_from(instance);
        let waiting: Vec<_> = room.jobs.iter().map(|(_, id)| id.clone()).collect();
        let mut named = Named::default();
        let mut runs = HashSet::new();
        for running in &ready.running {
            let job = self.jobs.get_mut(&running.job_id).filter(|job| job.node == *node);
            let Some(job) = job.filter(|job| !job.row.state.is_end() && job.row.attempt() == running.attempt)
            else {
                named.cancel.push(running.job_id.clone());
                continue;
            };
            runs.insert(running.job_id.clone());
            let lease = job.row.lease.as_ref();
            job.held =
                !lease.is_some_and(|lease| lease.id == running.lease_id && lease.generation == generation.0);
        }
        for id in waiting {
            let Some(job) = self.jobs.get_mut(&id).filter(|_| !runs.contains(&id)) else { continue };
            job.held = false;
            // What was given over this connection may have been under way when it said so.
            if job.row.given_before(*generation).is_some() {
                named.lost.push(id);
            }
        }
        named
    }

    /// The connection has ended: nothing is given over it any more.
    pub(crate) fn closed(&mut self, node: NodeId, generation: Generation) {
        if let Some(room) = self.rooms.get_mut(&node).filter(|room| room.generation == generation) {
            room.generation = Generation(0);
            room.slots = 0;
            self.tidy(node);
        }
    }

    /// The job that a node gets next over this connection: what it runs already, then the oldest that waits.
    pub(crate) fn next(&self, node: NodeId, generation: Generation) -> Option<&str> {
        let room = self.rooms.get(&node).filter(|room| room.generation == generation)?;
        let job = |id: &str| self.jobs.get(id);
        let ids = || room.jobs.iter().map(|(_, id)| id.as_str());
        let held = ids().find(|id| job(id).is_some_and(|job| job.held));
        let is_download = |job: &Job| job.row.kind == row::ACQUIRE;
        let given = |id: &&str| job(id).is_some_and(|job| is_download(job) && job.row.lease.is_some());
        let downloads = ids().filter(given).count();
        let may = |job: &Job| {
            let row = &job.row;
            if downloads >= DOWNLOADS && is_download(job) {
                return false;
            }
            row.state == JobState::Queued && job.pause.is_none() && !row.is_unheard_by(&room.instance)
        };
        let waits = |id: &&str| job(id).is_some_and(may);
        held.or_else(|| ids().find(waits).filter(|_| room.slots > 0))
    }

    /// The nodes that get something next.
    pub(crate) fn wanting(&self) -> Vec<NodeId> {
        let wants = |(node, room): (&NodeId, &Room)| self.next(*node, room.generation).map(|_| *node);
        self.rooms.iter().filter(|(_, room)| room.generation.0 > 0).filter_map(wants).collect()
    }

    /// The nodes with jobs that have not ended.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.rooms.iter().filter(|(_, room)| !room.jobs.is_empty()).map(|(node, _)| *node).collect()
    }

    /// One job.
    pub(crate) fn view(&self, id: &str) -> Option<JobView> {
        self.jobs.get(id).map(|job| Self::viewed(id, job))
    }

    fn viewed(id: &str, job: &Job) -> JobView {
        let (row, progress) = (Arc::clone(&job.row), job.progress.clone());
        JobView { id: id.to_owned(), row, state: job.state(), progress }
    }

    /// Those that have not ended, the newest first, at most `most`: of one node, or of all.
    pub(crate) fn open(&self, node: Option<NodeId>, most: usize) -> Vec<JobView> {
        let mut ids: Vec<&(u64, String)> = match node {
            Some(node) => self.rooms.get(&node).into_iter().flat_map(|room| &room.jobs).collect(),
            None => self.rooms.values().flat_map(|room| &room.jobs).collect(),
        };
        ids.sort_unstable_by_key(|(sequence, _)| std::cmp::Reverse(*sequence));
        ids.into_iter().take(most).filter_map(|(_, id)| self.view(id)).collect()
    }

    /// What became of jobs since this process started.
    pub(crate) fn tally(&self) -> &tally::Tally {
        &self.tally
    }

    /// How many have not ended, by kind and state.
    pub(crate) fn open_by_kind(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut counts = BTreeMap::new();
        for (_, job) in self.not_ended() {
            let kind = tally::kind(&job.row.kind);
            *counts.entry((kind, job.state().as_str())).or_default() += 1;
        }
        counts
    }

    /// By kind: when that of those that wait for their nodes was asked for which waits longest.
    pub(crate) fn queued_since(&self) -> BTreeMap<&'static str, Wall> {
        let mut since = BTreeMap::new();
        for (_, job) in self.not_ended().filter(|(_, job)| job.row.state == JobState::Queued) {
            let asked = Wall(job.row.submitted_at_unix_ms);
            let first = since.entry(tally::kind(&job.row.kind)).or_insert(asked);
            *first = asked.min(*first);
        }
        since
    }

    /// How many wait for their node to have room, and how many their node has.
    pub(crate) fn figures(&self) -> (u32, u32) {
        let states = self.not_ended().map(|(_, job)| job.row.state);
        states.fold((0, 0), |(queued, running), state| match state {
            JobState::Queued => (queued + 1, running),
            _ => (queued, running + 1),
        })
    }

    /// Those that match, the newest first.
    pub(crate) fn list(&self, matches: impl Fn(&JobView) -> bool) -> Vec<JobView> {
        let all = self.jobs.iter().map(|(id, job)| Self::viewed(id, job));
        let mut found: Vec<_> = all.filter(|view| matches(view)).collect();
        found.sort_by_key(|view| std::cmp::Reverse(view.row.sequence));
        found
    }

    // Those that have not ended, which are few of those that are kept.
    fn not_ended(&self) -> impl Iterator<Item = (&str, &Job)> {
        let ids = self.rooms.values().flat_map(|room| &room.jobs);
        ids.filter_map(|(_, id)| Some((id.as_str(), self.jobs.get(id)?)))
    }

    /// When the first lease ends.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.not_ended().filter_map(|(_, job)| job.until).min()
    }

    /// When the first pause ends.
    pub(crate) fn first_pause_end(&self) -> Option<Instant> {
        self.not_ended().filter_map(|(_, job)| job.pause).min()
    }

    /// Pauses that are over by now end.
    pub(crate) fn end_pauses(&mut self, now: Instant) {
        for (_, id) in self.rooms.values().flat_map(|room| &room.jobs) {
            if let Some(job) = self.jobs.get_mut(id) {
                job.pause = job.pause.filter(|end| *end > now);
            }
        }
    }

    /// Leases that have ended without news.
    pub(crate) fn silent(&self, now: Instant) -> Vec<String> {
        let over = |job: &Job| job.until.is_some_and(|until| until <= now);
        self.not_ended().filter(|(_, job)| over(job)).map(|(id, _)| id.to_owned()).collect()
    }
}
