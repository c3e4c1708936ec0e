//! Places where a test makes the running edge break off, to see what is left of it. In service there are none.

use super::Site;

impl Site {
    /// Panics if a test has asked for it here.
    #[cfg(test)]
    #[allow(clippy::panic, reason = "that is what it is for")]
    pub(crate) fn trip(&self, place: &'static str) {
        let asked = {
            let mut trips = self.trips.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            trips.iter().position(|one| *one == place).map(|at| trips.swap_remove(at))
        };
        if let Some(place) = asked {
            panic!("a test trips the edge: {place}");
        }
    }

    /// Nothing, outside of tests.
    #[cfg(not(test))]
    pub(crate) fn trip(&self, _place: &'static str) {}
}
