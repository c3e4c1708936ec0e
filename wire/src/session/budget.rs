//! The receive windows of all streams of this process, reserved when a stream opens.
//!
//! Invariant: what is reserved is given back exactly once, by the reservation's drop.

use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits;

/// A number of bytes that streams share.
#[derive(Debug)]
pub(crate) struct Budget {
    size: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { size, used: AtomicUsize::new(0) })
    }

    /// The process's own: 512 MiB.
    pub(crate) fn process() -> Arc<Self> {
        static PROCESS: LazyLock<Arc<Budget>> = LazyLock::new(|| Budget::new(limits::RECEIVE_BUDGET));
        PROCESS.clone()
    }

    /// Bytes reserved now.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Reserves bytes, if there are so many left.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let take = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.size);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Reservation { budget: self.clone(), bytes })
    }
}

/// Bytes taken from a budget until it is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_it_took() {
        let budget = Budget::new(10);
        let first = budget.reserve(6);
        assert!(first.is_some() && budget.reserve(5).is_none());
        drop(first);
        assert!(budget.reserve(10).is_some_and(|all| all.budget.used() == 10));
        assert_eq!(budget.used(), 0);
    }
}
