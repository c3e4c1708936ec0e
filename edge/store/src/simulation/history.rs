//! A disk's past: copies of it, one put in its place, and an audit whose end somebody cuts off.
//!
//! Owns the exchange only; what makes a copy another incarnation is the real store's rule ([`crate::restore`]).

use crate::audit;
use crate::backend::{Backend, Failure, Space};
use crate::chain;
use crate::core;
use crate::memory::Memory;
use crate::opening::Origin;
use crate::restore::reborn;

use super::Disk;

/// A consistent copy.
pub struct Backup {
    memory: Memory,
    made_unix_ms: i64,
}

impl Backup {
    /// When it was made.
    #[must_use]
    pub fn made_unix_ms(&self) -> i64 {
        self.made_unix_ms
    }
}

impl Disk {
    /// A copy of it as it is.
    #[must_use]
    pub fn back_up(&self, now_unix_ms: i64) -> Backup {
        Backup { memory: self.memory.copy(self.switch.clone()), made_unix_ms: now_unix_ms }
    }

    /// A backup takes its place, as another incarnation. False: it cannot be written.
    pub fn restore(&mut self, backup: &Backup, now_unix_ms: i64) -> bool {
        let mut memory = backup.memory.copy(self.switch.clone());
        let origin = Origin {
            state_of_unix_ms: backup.made_unix_ms,
            placed_unix_ms: now_unix_ms,
            ..Origin::default()
        };
        let above = self.read(core::above_marks).unwrap_or(0);
        if memory.write(&mut |tx| reborn(tx, &origin, above, now_unix_ms)).is_err() {
            return false;
        }
        self.memory = memory;
        self.followed = None;
        self.commits += 1;
        true
    }

    /// When the state was current with which it was restored.
    #[must_use]
    pub fn restored_unix_ms(&self) -> Option<i64> {
        let mut origin = None;
        let read = self.memory.reader().read(&mut |view| {
            origin = view.get(Space::Meta, b"origin")?;
            Ok(())
        });
        let origin: Origin = read.ok().and(origin).and_then(|bytes| serde_json::from_slice(&bytes).ok())?;
        Some(origin.state_of_unix_ms)
    }

    /// Somebody takes the newest entries out of the audit, so well that the rest of it is whole. False: there are not
    /// that many, or it cannot be written.
    pub fn cut_audit(&mut self, entries: u64) -> bool {
        let mut cut = false;
        let written = self.memory.write(&mut |tx| {
            let head = chain::head(tx)?;
            if head.sequence <= chain::checkpoint(tx)?.sequence + entries {
                return Ok(());
            }
            let last = head.sequence - entries;
            for sequence in last + 1..=head.sequence {
                tx.remove(Space::Audit, &sequence.to_be_bytes())?;
            }
            let bytes = tx.get(Space::Audit, &last.to_be_bytes())?;
            let entry = bytes.and_then(|bytes| audit::decode(&bytes));
            let entry = entry.ok_or_else(|| Failure("there is none".to_owned()))?;
            chain::put_head(tx, crate::AuditHead { sequence: last, hash: entry.hash })?;
            cut = true;
            Ok(())
        });
        self.followed = None;
        self.commits += 1;
        written.is_ok() && cut
    }

    /// An entry within the audit is lost.
    pub fn lose_an_entry(&mut self) {
        let _ = self.memory.write(&mut |tx| {
            let head = chain::head(tx)?;
            if head.sequence > chain::checkpoint(tx)?.sequence + 2 {
                tx.remove(Space::Audit, &(head.sequence - 1).to_be_bytes())?;
            }
            Ok(())
        });
        self.followed = None;
        self.commits += 1;
    }

    /// Follows the audit's chain from where it was followed before; how it breaks, if it does.
    pub fn follow_audit(&mut self) -> Option<String> {
        let mut followed = self.followed.take();
        let read = self.memory.reader().read(&mut |view| {
            loop {
                let checked = chain::check(view, followed.take())?;
                let done = checked.done;
                followed = Some(chain::Checked { done: false, ..checked });
                if done {
                    return Ok(());
                }
            }
        });
        let broken = followed.as_ref().and_then(|checked| checked.broken.clone());
        self.followed = followed.filter(|checked| checked.broken.is_none());
        match (read, broken) {
            (Err(Failure(why)), _) => Some(why),
            (Ok(()), Some((at, how))) => Some(format!("{at}: {how}")),
            (Ok(()), None) => None,
        }
    }
}
