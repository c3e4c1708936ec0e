//! How often an address may try tokens that open nothing, for whatever reason they do not.
//!
//! Guessing 256 bits is hopeless; this keeps the attempts from costing signatures and log lines. Owns the counts;
//! leaves to others what counts as wrong and what the peer is told. Invariant: at most [`GUESSERS_MAX`] addresses are
//! remembered, whatever arrives.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::limits::{GUESS_WINDOW, GUESSERS_MAX, GUESSES};

/// Whose address it is, where numbers of them are bounded: one host has a whole /64 of IPv6 addresses to come from, and
/// one address in both spellings is one.
#[must_use]
pub fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address @ IpAddr::V4(_) => address,
    }
}

/// Wrong tokens by [`host_of`] an address, or by whatever tells guessers apart.
#[derive(Debug)]
pub struct Guesses<K = IpAddr> {
    most: u32,
    seen: HashMap<K, (u32, Instant)>,
}

impl<K> Default for Guesses<K> {
    fn default() -> Self {
        Self::allowing(GUESSES)
    }
}

impl<K> Guesses<K> {
    /// So many within [`GUESS_WINDOW`].
    #[must_use]
    pub fn allowing(most: u32) -> Self {
        Self { most, seen: HashMap::new() }
    }
}

impl<K: Eq + Hash + Clone> Guesses<K> {
    /// How long this one has to wait; nothing if it may try now.
    #[must_use]
    pub fn wait(&self, who: &K, now: Instant) -> Option<Duration> {
        let (count, until) = self.seen.get(who)?;
        (*count >= self.most && *until > now).then(|| until.saturating_duration_since(now))
    }

    /// A wrong one.
    pub fn wrong(&mut self, who: K, now: Instant) {
        if self.seen.len() >= GUESSERS_MAX && !self.seen.contains_key(&who) {
            self.seen.retain(|_, (_, until)| *until > now);
            let first = self.seen.iter().min_by_key(|(_, (_, until))| *until).map(|(who, _)| who.clone());
            if let Some(first) = first.filter(|_| self.seen.len() >= GUESSERS_MAX) {
                self.seen.remove(&first);
            }
        }
        let (count, until) = self.seen.entry(who).or_insert((0, now + GUESS_WINDOW));
        if *until <= now {
            (*count, *until) = (0, now + GUESS_WINDOW);
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
            assert_eq!(guesses.wait(&one, now), None);
            guesses.wrong(one, now);
        }
        assert_eq!(guesses.wait(&one, now), Some(GUESS_WINDOW));
        assert_eq!(guesses.wait(&other, now), None);
        assert_eq!(guesses.wait(&one, now + GUESS_WINDOW), None);
        guesses.wrong(one, now + GUESS_WINDOW);
        assert_eq!(guesses.wait(&one, now + GUESS_WINDOW), None, "the count starts anew");
    }

    #[test]
    fn a_host_is_a_whole_network_of_ipv6() {
        let host = |text: &str| host_of(text.parse().unwrap_or(IpAddr::from([0, 0, 0, 0])));
        assert_eq!(host("2001:db8:1:2:aaaa::1"), host("2001:db8:1:2:bbbb::9"));
        assert_ne!(host("2001:db8:1:2::1"), host("2001:db8:1:3::1"));
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
    }

    #[test]
    fn a_flood_of_addresses_is_bounded() {
        let mut guesses = Guesses::default();
        let now = Instant::now();
        for number in 0..2 * GUESSERS_MAX as u32 {
            guesses.wrong(IpAddr::from(number.to_be_bytes()), now + Duration::from_millis(u64::from(number)));
        }
        assert!(guesses.seen.len() <= GUESSERS_MAX);
    }
}
