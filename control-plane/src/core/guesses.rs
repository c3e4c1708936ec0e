//! How often an address may try tokens that open nothing. Guessing 256 bits is hopeless; this keeps the attempts
//! from costing signatures and log lines. The edge has the same rule for its nodes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong tokens from one address within [`WINDOW`].
const GUESSES: u32 = 10;
/// The time in which they are counted.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are watched; beyond it the one whose time ends first is forgotten.
const WATCHED: usize = 4_096;

/// Wrong tokens by address.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    seen: HashMap<IpAddr, (u32, Instant)>,
}

impl Guesses {
    /// How long this address has to wait; nothing if it may try now.
    pub(crate) fn wait(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let (count, until) = self.seen.get(&address)?;
        (*count >= GUESSES && *until > now).then(|| until.saturating_duration_since(now))
    }

    /// A wrong one.
    pub(crate) fn wrong(&mut self, address: IpAddr, now: Instant) {
        if self.seen.len() >= WATCHED && !self.seen.contains_key(&address) {
            self.seen.retain(|_, (_, until)| *until > now);
            let first = self.seen.iter().min_by_key(|(_, (_, until))| *until).map(|(address, _)| *address);
            if let Some(first) = first.filter(|_| self.seen.len() >= WATCHED) {
                self.seen.remove(&first);
            }
        }
        let (count, until) = self.seen.entry(address).or_insert((0, now + WINDOW));
        if *until <= now {
            (*count, *until) = (0, now + WINDOW);
        }
        *count = count.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_waits_and_others_do_not() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        let (one, other) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        for _ in 0..GUESSES {
            assert_eq!(guesses.wait(one, now), None);
            guesses.wrong(one, now);
        }
        assert_eq!(guesses.wait(one, now), Some(WINDOW));
        assert_eq!(guesses.wait(other, now), None);
        assert_eq!(guesses.wait(one, now + WINDOW), None);
        guesses.wrong(one, now + WINDOW);
        assert_eq!(guesses.wait(one, now + WINDOW), None, "the count starts anew");
    }

    #[test]
    fn a_flood_of_addresses_is_bounded() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for number in 0..2 * WATCHED as u32 {
            guesses.wrong(IpAddr::from(number.to_be_bytes()), now + Duration::from_millis(u64::from(number)));
        }
        assert!(guesses.seen.len() <= WATCHED);
    }
}
