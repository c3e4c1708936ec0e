//! What waits for the disk: commits in their order, what follows from each, and marks that only grow.
//!
//! Owns the queue between a proposal and its answer; a crash forgets it, whatever of it was written. Leaves when it is
//! written, and when the answer is heard, to the world. Invariant: nothing is applied before its commit was answered.

use std::collections::VecDeque;
use std::time::Instant;

use umbel_contracts::proto::control::AuditPlace;
use umbel_store::simulation::{Disk, Observing, weight};
use umbel_store::{AuditAt, AuditHead, AuditRecord, Change, Commit, CommitError, Owed, Position};
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::HelloIn;
use umbel_wire::simulation::Asked;
use umbel_wire::{KeyHash, NodeId};

use super::{Edge, LinkId, NODES, REPORTS, SELF, WALL};
use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::NodeRow;
use crate::core::settings::Proposal;

/// Who says what is only observed.
pub const OBSERVER: &str = "observer";

/// What follows from a commit.
pub(super) enum Then {
    /// Observations are in the audit, or kept for later.
    Observed,
    /// A block of a mark is reserved.
    Reserved(&'static str),
    /// What nodes reported is written, and the clock.
    Flushed(Vec<NodeId>, Wall),
    /// A host has become a node.
    Enrolled(Box<Enrolling>),
    /// A hello showed the pending credential, which is the one in use now.
    Shown(Box<Showing>),
    /// A node is given a credential for a new key.
    Given(Box<Giving>),
    /// The settings are stored under a newer version.
    Renumbered(Box<Proposal>),
    /// An operator's command.
    Command(String),
    /// A job's new row.
    Job(Box<super::jobs::Writing>),
    /// What a round of the reconciler came to.
    Round(Box<super::deployments::Decided>),
}

pub(super) struct Enrolling {
    pub(super) link: LinkId,
    pub(super) tries: u32,
    pub(super) request: umbel_contracts::proto::node::NodeEnrollRequest,
    pub(super) token: EnrollmentRow,
    pub(super) id: NodeId,
    pub(super) node: NodeRow,
    pub(super) known: bool,
}

pub(super) struct Showing {
    pub(super) link: LinkId,
    pub(super) said: HelloIn,
    pub(super) id: NodeId,
    pub(super) row: NodeRow,
    pub(super) tries: u32,
}

pub(super) struct Giving {
    pub(super) link: LinkId,
    pub(super) asked: Asked,
    pub(super) key: KeyHash,
    pub(super) id: NodeId,
    pub(super) row: NodeRow,
    pub(super) tries: u32,
}

enum Write {
    Commit(Commit),
    Reserve(u64),
}

/// Proposals and answers.
#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<(Write, Then)>,
    written: VecDeque<(Result<u64, CommitError>, Option<Commit>, Then)>,
    /// With the observations in each.
    owed: VecDeque<(Owed, u64)>,
    settled: Vec<Vec<Change>>,
    pub(super) observing: Observing,
    mutation: Option<&'static str>,
    batches: u64,
    /// The audit's newest entry, as of the last write that was heard of.
    pub(super) head: AuditHead,
    /// The entry of the audit that the control plane asked for; 0: none.
    pub(super) asked: u64,
    /// What stands there.
    pub(super) place: Option<AuditPlace>,
}

impl Queue {
    pub(super) fn new(mutation: Option<&'static str>, head: AuditHead) -> Self {
        Self { mutation, head, ..Self::default() }
    }

    // Looks for what the control plane asked for.
    fn look(&mut self, disk: &mut Disk) {
        let at = if self.asked == 0 { None } else { disk.audit_at(self.asked).ok() };
        let hash = match at {
            Some(AuditAt::Entry(hash)) => hash.to_vec(),
            _ => Vec::new(),
        };
        let aged = at == Some(AuditAt::Aged);
        self.place = at.map(|_| AuditPlace { sequence: self.asked, hash, aged });
    }

    pub(super) fn propose(&mut self, commit: Commit, then: Then) {
        self.waiting.push_back((Write::Commit(commit), then));
    }

    fn reserve(&mut self, name: &'static str, block: u64) {
        self.waiting.push_back((Write::Reserve(block), Then::Reserved(name)));
    }

    /// In force already; written first of all once that works.
    pub(super) fn owe(&mut self, owed: Owed) {
        self.owed.push_back((owed, 0));
    }

    /// Observations that are on their way and not on the disk.
    fn on_the_way(&self) -> u64 {
        let of = |commit: &Commit| commit.audit.iter().map(weight).sum::<u64>();
        let waiting = self.waiting.iter().filter_map(|(write, then)| match (write, then) {
            (Write::Commit(commit), Then::Observed) => Some(of(commit)),
            _ => None,
        });
        let refused = self.written.iter().filter_map(|(result, commit, then)| match (result, then) {
            (Err(_), Then::Observed) => commit.as_ref().map(of),
            _ => None,
        });
        waiting.sum::<u64>() + refused.sum::<u64>() + self.owed.iter().map(|(_, count)| count).sum::<u64>()
    }

    /// Observations told in this process, and those that are not in the audit yet.
    pub(super) fn observations(&self) -> (u64, u64) {
        (self.observing.told(), self.observing.held() + self.on_the_way())
    }

    // Observations that could not be written.
    fn keep(&mut self, refused: &CommitError, commit: Commit) {
        let count = commit.audit.iter().map(weight).sum();
        if self.observing.keeps(refused, &commit, self.owed.len()) {
            self.owed.push_back((Owed::new().with(commit), count));
        }
    }

    fn gap(&self, wall: Wall) -> Option<AuditRecord> {
        let told = self.mutation != Some("a gap is not told");
        self.observing.gap(self.owed.len(), wall.unix_ms()).filter(|_| told)
    }

    /// Whether something is in force and not on disk.
    pub(super) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }
}

/// A number that only grows, reserved on disk in blocks.
#[derive(Debug)]
pub struct Mark {
    name: &'static str,
    block: u64,
    next: u64,
    end: u64,
    following: Option<(u64, u64)>,
    asking: bool,
}

impl Mark {
    pub(super) fn open(disk: &mut Disk, name: &'static str, block: u64) -> Result<Self, String> {
        let first = disk.reserve(name, block).map_err(|error| error.to_string())?;
        Ok(Self { name, block, next: first, end: first + block, following: None, asking: false })
    }

    // As if nothing had ever been reserved.
    pub(super) fn begin_anew(&mut self) {
        (self.next, self.end) = (1, self.block);
    }

    pub(super) fn last(&self) -> u64 {
        self.next.saturating_sub(1)
    }

    pub(super) fn take(&mut self, disk: &mut Queue) -> u64 {
        if self.next >= self.end
            && let Some((first, end)) = self.following.take()
        {
            self.next = first.max(self.next);
            self.end = end;
        }
        let number = self.next;
        self.next += 1;
        let low = self.end.saturating_sub(self.next) <= self.block / 2;
        if low && self.following.is_none() && !std::mem::replace(&mut self.asking, true) {
            disk.reserve(self.name, self.block);
        }
        number
    }

    fn reserved(&mut self, first: Option<u64>) {
        self.asking = false;
        if let Some(first) = first {
            self.following = Some((first, first + self.block));
        }
    }
}

impl Edge {
    /// Whether something waits to be written.
    #[must_use]
    pub fn wants_disk(&self) -> bool {
        !self.disk.waiting.is_empty()
    }

    /// One group commit: everything that waits is written (or fails) now; nobody in the process knows yet.
    pub fn write(&mut self, disk: &mut Disk, wall: Wall) {
        let queue = &mut self.disk;
        queue.batches += 1;
        if queue.batches == 30 && queue.mutation == Some("an audit entry goes missing") {
            disk.lose_an_entry();
        }
        while let Some((owed, _)) = queue.owed.front() {
            let gap = queue.gap(wall);
            match disk.settle(gap.as_ref(), owed, wall.unix_ms()) {
                Ok(changes) => {
                    queue.settled.push(changes);
                    queue.owed.pop_front();
                    queue.observing.wrote();
                }
                Err(_) => break,
            }
        }
        let blocked = queue.owes();
        while let Some((write, then)) = queue.waiting.pop_front() {
            let (result, commit) = match (write, &then) {
                (Write::Commit(commit), _) => {
                    let result = match blocked {
                        // What is owed goes first: nothing is told to be durable before it.
                        true => Err(CommitError::ReadOnly("something is owed".to_owned())),
                        false => disk.commit_after(queue.gap(wall).as_ref(), &commit, wall.unix_ms()),
                    };
                    match &result {
                        Ok(_) => queue.observing.wrote(),
                        Err(CommitError::Conflict(_)) => {}
                        Err(_) => queue.observing.refused(Some(&commit), wall.unix_ms()),
                    }
                    (result.map(|position| position.0), Some(commit))
                }
                (Write::Reserve(_), _) if blocked => {
                    (Err(CommitError::ReadOnly("something is owed".to_owned())), None)
                }
                (Write::Reserve(block), Then::Reserved(name)) => (disk.reserve(name, block), None),
                (Write::Reserve(_), _) => (Ok(0), None),
            };
            queue.written.push_back((result, commit, then));
        }
    }

    /// The process hears what became of what was written.
    pub fn written(&mut self, disk: &mut Disk, now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        self.disk.head = disk.audit_head().unwrap_or(self.disk.head);
        self.disk.look(disk);
        for changes in std::mem::take(&mut self.disk.settled) {
            self.settled(changes, now);
        }
        while let Some((result, commit, then)) = self.disk.written.pop_front() {
            match then {
                Then::Observed => {
                    if let (Err(error), Some(commit)) = (result, commit) {
                        self.disk.keep(&error, commit);
                    }
                }
                Then::Reserved(name) => {
                    let mark = if name == self.generations.name {
                        &mut self.generations
                    } else {
                        &mut self.revisions
                    };
                    mark.reserved(result.ok());
                }
                Then::Flushed(ids, at) => match result {
                    Ok(_) => self.wall_stored = self.wall_stored.max(at),
                    Err(_) => self.registry.keep_unsaved(ids),
                },
                Then::Enrolled(enrolling) => {
                    self.enrolled(*enrolling, result.map(Position), disk, now, wall);
                }
                Then::Shown(showing) => self.promoted(*showing, result.map(Position), now, wall),
                Then::Given(giving) => self.given(*giving, result.map(Position), now, wall),
                Then::Renumbered(proposal) => {
                    self.renumbered(*proposal, result.ok().map(Position), now);
                }
                Then::Job(writing) => self.job_written(*writing, result.map(drop), now, wall),
                Then::Round(decided) => self.round_written(*decided, result.map(drop), now, wall),
                Then::Command(id) => self.command_written(&id, result.map(Position), now, wall),
            }
        }
        self.open_granted(now);
    }

    fn settled(&mut self, changes: Vec<Change>, now: Instant) {
        for change in changes {
            let Some(row) = change.row else { continue };
            if change.table == NODES {
                if let (Ok(id), Ok(stored)) = (NodeId::parse(&change.key), row.json()) {
                    self.change(now, |registry| registry.written(id, stored, row.position));
                }
            } else if let Ok(stored) = row.json::<EnrollmentRow>() {
                self.tokens.apply(stored, row.position);
            }
        }
    }

    /// Observations go into the audit soon, repeats folded. Marked, so that the world can count them.
    pub(super) fn observe(&mut self, now: Instant, records: Vec<AuditRecord>) {
        let records = records.into_iter().map(|record| record.by(OBSERVER)).collect();
        let told = self.disk.observing.tell(now, records);
        self.append(told);
    }

    /// Counts of repeats whose time has ended.
    pub(super) fn end_folds(&mut self, now: Instant) {
        let ended = self.disk.observing.tick(now);
        if !self.is("repeats are dropped") {
            self.append(ended);
        }
    }

    fn append(&mut self, records: Vec<AuditRecord>) {
        if !records.is_empty() {
            let commit = records.into_iter().fold(Commit::new(), Commit::audit);
            self.disk.propose(commit, Then::Observed);
        }
    }

    /// Writes what nodes reported since the last time, and the wall clock.
    pub(super) fn flush(&mut self, wall: Wall) {
        let expired = self.tokens.expired(self.wall_stored, wall);
        let mut commit = Commit::new().put_json(SELF, WALL, &wall.unix_ms());
        for id in expired {
            commit = commit.audit(AuditRecord::new("token.expired", id, "observed").by("edge"));
        }
        let unsaved = self.registry.take_unsaved(500);
        let ids = unsaved.iter().map(|(id, _)| *id).collect();
        for (id, report) in &unsaved {
            commit = commit.put_json(REPORTS, id.to_string(), report);
        }
        self.disk.propose(commit, Then::Flushed(ids, wall));
    }
}
