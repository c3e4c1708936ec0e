//! A disk without a thread or a file, for a simulated world (feature `simulation`).
//!
//! Owns what has been committed. It is the in-memory engine under the same rules ([`crate::core`]) as the writer
//! thread's, called step by step, with the time as an argument. Leaves to the simulation when a commit reaches it,
//! and when its answer is heard. Invariant: what was answered stays, whatever process dies.

use crate::audit::{AuditAt, AuditEntry, AuditHead, AuditRecord};
use crate::backend::{Backend, Failure, Reader, View};
use crate::commit::{Commit, Position, Row};
use crate::error::{CommitError, ReadError};
use crate::memory::Memory;
use crate::owed::Owed;
use crate::switch::WriteSwitch;
use crate::{chain, core, opening, outage, owed};

mod history;
mod observing;

pub use history::Backup;
pub use observing::{Observing, weight};

/// The disk of one process; it outlives that.
pub struct Disk {
    memory: Memory,
    switch: WriteSwitch,
    commits: u64,
    /// How far the audit's chain was followed.
    followed: Option<chain::Checked>,
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

impl Disk {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        let switch = WriteSwitch::default();
        let mut memory = Memory::with_switch(switch.clone());
        // An empty map is always claimed.
        let mut keep = |_: &dyn Reader, _| Ok(());
        let _ = opening::claim(&mut memory, "simulation", "simulated".to_owned(), true, &mut keep);
        Self { memory, switch, commits: 0, followed: None }
    }

    /// From now on writes fail (`true`) or succeed again.
    pub fn full(&self, full: bool) {
        self.switch.full(full);
    }

    /// How many transactions were written.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// All of it or nothing.
    ///
    /// # Errors
    /// As `Store::commit`.
    pub fn commit(&mut self, commit: &Commit, now_unix_ms: i64) -> Result<Position, CommitError> {
        self.commit_after(None, commit, now_unix_ms)
    }

    /// The same, after the entry that tells of an outage.
    ///
    /// # Errors
    /// As `Store::commit`.
    pub fn commit_after(
        &mut self,
        gap: Option<&AuditRecord>,
        commit: &Commit,
        now_unix_ms: i64,
    ) -> Result<Position, CommitError> {
        commit.check()?;
        let mut outcome = Ok(Position::default());
        let gap: Vec<_> = gap.cloned().into_iter().collect();
        let written = self.memory.write(&mut |tx| {
            chain::append(tx, &gap, now_unix_ms)?;
            outcome = core::apply(tx, commit, now_unix_ms)?;
            Ok(())
        });
        written.map_err(|Failure(cause)| CommitError::ReadOnly(cause))?;
        self.commits += 1;
        outcome.map_err(CommitError::Conflict)
    }

    /// Writes what took force already; the rows as they stand then.
    ///
    /// # Errors
    /// [`CommitError::ReadOnly`]: it is still owed.
    pub fn settle(
        &mut self,
        gap: Option<&AuditRecord>,
        owed: &Owed,
        now_unix_ms: i64,
    ) -> Result<Vec<crate::Change>, CommitError> {
        let mut changes = Vec::new();
        let gap: Vec<_> = gap.cloned().into_iter().collect();
        let written = self.memory.write(&mut |tx| {
            chain::append(tx, &gap, now_unix_ms)?;
            changes = core::settle(tx, owed, now_unix_ms)?;
            Ok(())
        });
        written.map_err(|Failure(cause)| CommitError::ReadOnly(cause))?;
        self.commits += 1;
        Ok(changes)
    }

    /// Reserves the next numbers of a mark; the first of them.
    ///
    /// # Errors
    /// As a commit.
    pub fn reserve(&mut self, name: &str, block: u64) -> Result<u64, CommitError> {
        let mut first = 0;
        let written = self.memory.write(&mut |tx| {
            first = core::reserve(tx, name, block, 0)?;
            Ok(())
        });
        written.map_err(|Failure(cause)| CommitError::ReadOnly(cause))?;
        Ok(first)
    }

    fn read<T>(&mut self, look: impl Fn(&dyn View) -> Result<T, Failure>) -> Result<T, ReadError> {
        let mut found = Err(Failure("nothing was read".to_owned()));
        let read = self.memory.reader().read(&mut |view| {
            found = look(view);
            Ok(())
        });
        read.and(found).map_err(|Failure(cause)| ReadError::Failed(cause))
    }

    /// All rows of a table in the order of their keys.
    ///
    /// # Errors
    /// If a row does not decode.
    pub fn load(&mut self, table: &str) -> Result<Vec<Row>, ReadError> {
        self.read(|view| Ok(core::load(view, table)?.0))
    }

    /// One row.
    ///
    /// # Errors
    /// If it does not decode.
    pub fn get(&mut self, table: &str, key: &str) -> Result<Option<Row>, ReadError> {
        self.read(|view| Ok(core::row(view, table, key)?.and_then(Result::ok)))
    }

    /// The newest position.
    ///
    /// # Errors
    /// If it does not decode.
    pub fn position(&mut self) -> Result<Position, ReadError> {
        self.read(core::position)
    }

    /// The audit's newest number and hash.
    ///
    /// # Errors
    /// If it does not decode.
    pub fn audit_head(&mut self) -> Result<AuditHead, ReadError> {
        self.read(chain::head)
    }

    /// What stands at one number of the audit.
    ///
    /// # Errors
    /// If an end of the audit does not decode.
    pub fn audit_at(&mut self, sequence: u64) -> Result<AuditAt, ReadError> {
        self.read(|view| chain::at(view, sequence))
    }

    /// At most `limit` audit entries after a sequence.
    ///
    /// # Errors
    /// If one does not match its hash.
    pub fn audit_after(&mut self, sequence: u64, limit: usize) -> Result<Vec<AuditEntry>, ReadError> {
        self.read(|view| chain::after(view, sequence, limit))
    }
}
