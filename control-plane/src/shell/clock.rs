//! The wall clock, which never runs backwards here and may be found not plausible.
//!
//! Invariant: it decides nothing but the end of certificates and tokens; liveness and ages are monotonic.

use std::sync::atomic::{AtomicI64, Ordering};

use umbel_wire::clock::Wall;

/// No host that runs this build has an earlier date: 2026-11-01.
const BUILT: Wall = Wall(1_793_491_200_000);

/// The host's clock with a floor.
#[derive(Debug)]
pub(crate) struct WallClock {
    /// The latest time that was persisted or read.
    floor: AtomicI64,
}

impl WallClock {
    /// `persisted` is the latest time that stands in the store.
    pub(crate) fn new(persisted: Wall) -> Self {
        Self { floor: AtomicI64::new(persisted.0.max(BUILT.0)) }
    }

    /// Now, and never before an earlier answer.
    pub(crate) fn now(&self) -> Wall {
        let read = Wall::now().0;
        Wall(self.floor.fetch_max(read, Ordering::Relaxed).max(read))
    }

    /// Now, or `None` while the host's clock is behind what it cannot be behind: nothing expires then.
    pub(crate) fn plausible(&self) -> Option<Wall> {
        let read = Wall::now();
        (read.0 >= self.floor.load(Ordering::Relaxed)).then(|| self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_behind_its_floor_is_not_plausible_and_does_not_run_backwards() {
        let ahead = Wall::now() + std::time::Duration::from_secs(3600);
        let clock = WallClock::new(ahead);
        assert_eq!(clock.now(), ahead);
        assert_eq!(clock.plausible(), None);
        let clock = WallClock::new(Wall(0));
        assert!(clock.plausible().is_some());
        assert!(clock.now() >= BUILT);
    }
}
