//! What waits for the disk: commits in their order, what follows from each, and marks that only grow.
//!
//! Owns the queue between a proposal and its answer; a crash forgets it, whatever of it was written. Leaves when it is
//! written, and when the answer is heard, to the world. Invariant: nothing is applied before its commit was answered.

use std::collections::VecDeque;
use std::time::Instant;

use umbel_store::simulation::Disk;
use umbel_store::{AuditRecord, Change, Commit, CommitError, Owed, Position};
use umbel_wire::clock::Wall;
use umbel_wire::io::accept::HelloIn;
use umbel_wire::simulation::Asked;
use umbel_wire::{KeyHash, NodeId};

use super::{Edge, LinkId, NODES, REPORTS, SELF, WALL};
use crate::core::enrollment::EnrollmentRow;
use crate::core::registry::node::NodeRow;

/// What follows from a commit.
pub(super) enum Then {
    /// Nothing.
    Nothing,
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
    /// An operator's command.
    Command(String),
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
    written: VecDeque<(Result<u64, CommitError>, Then)>,
    owed: VecDeque<Owed>,
    settled: Vec<Vec<Change>>,
}

impl Queue {
    pub(super) fn propose(&mut self, commit: Commit, then: Then) {
        self.waiting.push_back((Write::Commit(commit), then));
    }

    fn reserve(&mut self, name: &'static str, block: u64) {
        self.waiting.push_back((Write::Reserve(block), Then::Reserved(name)));
    }

    /// In force already; written first of all once that works.
    pub(super) fn owe(&mut self, owed: Owed) {
        self.owed.push_back(owed);
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
        while let Some(owed) = self.disk.owed.front() {
            match disk.settle(owed, wall.unix_ms()) {
                Ok(changes) => {
                    self.disk.settled.push(changes);
                    self.disk.owed.pop_front();
                }
                Err(_) => break,
            }
        }
        let blocked = self.disk.owes();
        while let Some((write, then)) = self.disk.waiting.pop_front() {
            let result = match (write, &then) {
                // What is owed goes first: nothing is told to be durable before it.
                _ if blocked => Err(CommitError::ReadOnly("something is owed".to_owned())),
                (Write::Commit(commit), _) => disk.commit(&commit, wall.unix_ms()).map(|position| position.0),
                (Write::Reserve(block), Then::Reserved(name)) => disk.reserve(name, block),
                (Write::Reserve(_), _) => Ok(0),
            };
            self.disk.written.push_back((result, then));
        }
    }

    /// The process hears what became of what was written.
    pub fn written(&mut self, disk: &mut Disk, now: Instant, wall: Wall) {
        let wall = self.wall(wall);
        for changes in std::mem::take(&mut self.disk.settled) {
            self.settled(changes, now);
        }
        while let Some((result, then)) = self.disk.written.pop_front() {
            match then {
                Then::Nothing => {}
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
