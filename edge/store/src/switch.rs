//! A disk that a test can make full, slow or frozen.
//!
//! Owns the switch; engines ask it before they write and when they sync. In service it is never set.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Makes the writes of a store fail as a full disk does, take their time, or wait. For tests of what happens then.
#[derive(Clone, Debug, Default)]
pub struct WriteSwitch(Arc<State>);

#[derive(Debug, Default)]
struct State {
    full: AtomicBool,
    sync_ms: AtomicU64,
    frozen: Mutex<bool>,
    breaks: AtomicBool,
    thawed: Condvar,
}

impl WriteSwitch {
    /// From now on writes fail (`true`) or succeed again.
    pub fn full(&self, full: bool) {
        self.0.full.store(full, Ordering::SeqCst);
    }

    /// From now on each sync takes this much longer.
    pub fn slow(&self, sync: Duration) {
        let ms = u64::try_from(sync.as_millis()).unwrap_or(u64::MAX);
        self.0.sync_ms.store(ms, Ordering::SeqCst);
    }

    /// From now on syncs wait (`true`) until they are let go.
    pub fn freeze(&self, frozen: bool) {
        *self.0.frozen.lock().unwrap_or_else(PoisonError::into_inner) = frozen;
        self.0.thawed.notify_all();
    }

    /// The thread that writes breaks off at its next write.
    pub fn break_writer(&self) {
        self.0.breaks.store(true, Ordering::SeqCst);
    }

    /// What an engine's write asks before anything that catches its panics.
    #[allow(clippy::panic, reason = "that is what it is for")]
    pub(crate) fn stands(&self) {
        if self.0.breaks.load(Ordering::SeqCst) {
            panic!("a test breaks the store's thread");
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.full.load(Ordering::SeqCst)
    }

    /// What a write asks first.
    pub(crate) fn room(&self) -> std::io::Result<()> {
        if self.is_full() { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// What a sync does first; only ever on the store's own thread.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.room()?;
        let ms = self.0.sync_ms.load(Ordering::SeqCst);
        if ms > 0 {
            std::thread::sleep(Duration::from_millis(ms));
        }
        let frozen = self.0.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.thawed.wait_while(frozen, |frozen| *frozen).unwrap_or_else(PoisonError::into_inner));
        self.room()
    }
}
