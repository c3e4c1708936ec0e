//! High-water marks: numbers that only grow, also over a crash, without a write for each.
//!
//! Owns the block in use and asks the store for the next one before it ends. Invariant: a number is
//! never given twice while the store can be written; when it cannot, numbers go on in memory, because a
//! node must be able to reconnect to an edge whose disk is full.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::CommitError;
use crate::handle::Store;
use crate::writer::now_unix_ms;

/// A source of growing numbers, reserved on disk in blocks. Cheap to clone; clones share the numbers.
#[derive(Clone)]
pub struct HighWater(Arc<Inner>);

struct Inner {
    store: Store,
    name: &'static str,
    block: u64,
    range: Mutex<Range>,
    asking: AtomicBool,
    last: AtomicU64,
}

struct Range {
    next: u64,
    end: u64,
    // A reserved block that follows, once the store has answered.
    following: Option<(u64, u64)>,
}

impl HighWater {
    /// Reserves a first block of at least two numbers. Blocks that a crash leaves unused are skipped. A store that
    /// cannot be written gives numbers of the present time, far above those that were reserved.
    pub async fn open(store: &Store, name: &'static str, block: u64) -> Result<Self, CommitError> {
        let block = block.max(2);
        let (first, end) = match store.reserve(name, block).await {
            Ok(first) => (first, first + block),
            Err(CommitError::ReadOnly(_)) => {
                let first = unwritten(store, name).await?;
                (first, first)
            }
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Inner {
            store: store.clone(),
            name,
            block,
            range: Mutex::new(Range { next: first, end, following: None }),
            asking: AtomicBool::new(false),
            last: AtomicU64::new(first.saturating_sub(1)),
        })))
    }

    /// The next number, above every one given before by any process with this store.
    pub fn take(&self) -> u64 {
        let inner = &self.0;
        let (number, low) = {
            let mut range = inner.range.lock().unwrap_or_else(PoisonError::into_inner);
            if range.next >= range.end
                && let Some((first, end)) = range.following.take()
            {
                range.next = first.max(range.next);
                range.end = end;
            }
            let number = range.next;
            range.next += 1;
            let left = range.end.saturating_sub(range.next);
            (number, range.following.is_none() && left <= inner.block / 2)
        };
        inner.last.fetch_max(number, Ordering::SeqCst);
        if low && !inner.asking.swap(true, Ordering::SeqCst) {
            self.ask(number + 1);
        }
        number
    }

    /// The number given last; 0 before the first of a new store.
    pub fn last(&self) -> u64 {
        self.0.last.load(Ordering::SeqCst)
    }

    fn ask(&self, above: u64) {
        let mark = self.clone();
        let asked = self.0.store.reserve_soon(self.0.name, self.0.block, above, move |answer| {
            if let Ok(first) = answer {
                let mut range = mark.0.range.lock().unwrap_or_else(PoisonError::into_inner);
                range.following = Some((first, first + mark.0.block));
            }
            mark.0.asking.store(false, Ordering::SeqCst);
        });
        // The queue is full or the store closed: the next number asks again.
        if !asked {
            self.0.asking.store(false, Ordering::SeqCst);
        }
    }
}

// Above what an earlier process may have given that could not write either: a second has fewer than 65,536 numbers.
async fn unwritten(store: &Store, name: &'static str) -> Result<u64, CommitError> {
    let stored = store.unreserved(name).await.map_err(|error| CommitError::ReadOnly(error.to_string()))?;
    Ok(stored.max(of_this_time(now_unix_ms())))
}

/// Numbers of a moment: above those of every earlier one, as long as the clock does not go back.
pub(crate) fn of_this_time(unix_ms: i64) -> u64 {
    (unix_ms.max(0).unsigned_abs() / 1_000) << 16
}

impl std::fmt::Debug for HighWater {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("HighWater").field("name", &self.0.name).field("last", &self.last()).finish()
    }
}
