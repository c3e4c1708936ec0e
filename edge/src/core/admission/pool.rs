//! The candidates of one model, by what fits them and how loaded they are.
//!
//! Owns lanes (who fits where) and the least loaded provider of a lane, in time that grows with the logarithm of the
//! providers. Leaves who may be given work to [`super::node`] and [`super::outliers`], which tell it through
//! [`Pool::set`]. Invariant: a seat shows what its provider's [`Room`] said last.

use super::provider::Provider;
use super::words::ProviderIndex;

/// Which slots a request fits: those of providers that take prompts as long as its own, and of these only the long
/// ones if it is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Lane {
    pub(super) long: bool,
    /// The number of the shortest context that is long enough, of those that the model's providers have.
    tier: u32,
}

/// A provider's part in its model's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    /// How loaded it is, for a request that is not long; `None` if it takes none now.
    pub(super) load: Option<u64>,
    /// The same for a long request.
    pub(super) long_load: Option<u64>,
    /// It counts as a wanted replica.
    pub(super) wanted: bool,
    /// Its slots, if it is a candidate.
    pub(super) capacity: u32,
    /// Its leases, if it is a candidate.
    pub(super) in_flight: u32,
}

/// Providers that take prompts of at least so many tokens begin at this seat.
#[derive(Clone, Copy, Debug)]
struct Tier {
    limit: u64,
    from: usize,
}

#[derive(Clone, Copy, Debug)]
struct Seat {
    provider: ProviderIndex,
    limit: u64,
    takes_long: bool,
    room: Room,
}

#[derive(Debug, Default)]
pub(super) struct Pool {
    /// By the longest prompt they take, then by their number.
    seats: Vec<Seat>,
    tiers: Vec<Tier>,
    least: Tree,
    least_long: Tree,
    /// Sums over the candidates.
    capacity: u64,
    in_flight: u64,
    /// A provider came, went, or takes other prompts: the seats are to be made anew.
    stale: bool,
}

/// A bit of a provider's number that orders equal loads. 65,536 providers at most.
const SEAT_BITS: u32 = 20;

impl Pool {
    /// A provider came, went, or takes other prompts than before.
    pub(super) fn changed(&mut self) {
        self.stale = true;
    }

    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    /// Makes the seats anew, and tells each provider its own.
    pub(super) fn seat(&mut self, members: &[ProviderIndex], providers: &mut [Provider]) {
        self.stale = false;
        self.seats.clear();
        for &provider in members {
            if let Some(known) = providers.get(provider.0 as usize) {
                let takes_long = known.spec.long_context_capacity > 0;
                self.seats.push(Seat { provider, limit: known.limit(), takes_long, room: known.room() });
            }
        }
        self.seats.sort_unstable_by_key(|seat| (seat.limit, seat.provider));
        self.tiers.clear();
        (self.capacity, self.in_flight) = (0, 0);
        for (at, seat) in self.seats.iter().enumerate() {
            if let Some(provider) = providers.get_mut(seat.provider.0 as usize) {
                provider.seat = at;
            }
            if self.tiers.last().is_none_or(|tier| tier.limit < seat.limit) {
                self.tiers.push(Tier { limit: seat.limit, from: at });
            }
            self.capacity += u64::from(seat.room.capacity);
            self.in_flight += u64::from(seat.room.in_flight);
        }
        self.least = Tree::new(self.seats.iter().map(|seat| seat.room.load));
        self.least_long = Tree::new(self.seats.iter().map(|seat| seat.room.long_load));
    }

    /// What a provider's seat shows from now on. One that is no longer declared has none.
    pub(super) fn set(&mut self, provider: ProviderIndex, at: usize, room: Room) {
        if self.stale {
            return;
        }
        let Some(seat) = self.seats.get_mut(at).filter(|seat| seat.provider == provider) else { return };
        let before = std::mem::replace(&mut seat.room, room);
        self.capacity = self.capacity + u64::from(room.capacity) - u64::from(before.capacity);
        self.in_flight = self.in_flight + u64::from(room.in_flight) - u64::from(before.in_flight);
        if before.load != room.load {
            self.least.set(at, room.load);
        }
        if before.long_load != room.long_load {
            self.least_long.set(at, room.long_load);
        }
    }

    /// The lane of a request with so many tokens. `Err`: the longest prompt that any provider takes is shorter.
    pub(super) fn lane(&self, tokens: u64, long: bool) -> Result<Lane, u64> {
        let takes = |seat: &&Seat| seat.takes_long || !long;
        let longest = self.seats.iter().rev().find(takes).map_or(0, |seat| seat.limit);
        if tokens > longest.saturating_mul(TRUSTED) {
            return Err(longest);
        }
        let tokens = tokens.min(longest);
        let tier = self.tiers.partition_point(|tier| tier.limit < tokens);
        Ok(Lane { long, tier: u32::try_from(tier).unwrap_or(u32::MAX) })
    }

    /// The seats from which on providers fit the lane.
    fn from(&self, lane: Lane) -> usize {
        self.tiers.get(lane.tier as usize).map_or(self.seats.len(), |tier| tier.from)
    }

    /// A provider at this seat could serve the lane, if it had a slot free.
    pub(super) fn fits(&self, lane: Lane, at: usize) -> bool {
        at >= self.from(lane) && self.seats.get(at).is_some_and(|seat| seat.takes_long || !lane.long)
    }

    /// A provider that is wanted, there or not, could serve the lane.
    pub(super) fn is_wanted(&self, lane: Lane) -> bool {
        let seats = self.seats.get(self.from(lane)..).unwrap_or_default();
        seats.iter().any(|seat| seat.room.wanted && (seat.takes_long || !lane.long))
    }

    /// The least loaded provider with a slot that the lane fits, but for the one at `but`.
    pub(super) fn least_loaded(&self, lane: Lane, but: Option<usize>) -> Option<ProviderIndex> {
        let tree = if lane.long { &self.least_long } else { &self.least };
        let from = self.from(lane);
        let at = match but.filter(|but| *but >= from) {
            None => tree.least(from, self.seats.len()),
            Some(but) => tree.least(from, but).min(tree.least(but + 1, self.seats.len())),
        };
        at.seat().and_then(|at| self.seats.get(at)).map(|seat| seat.provider)
    }

    /// The provider at this seat has a slot that the lane fits.
    pub(super) fn has_room(&self, lane: Lane, at: usize) -> bool {
        let load = |seat: &Seat| if lane.long { seat.room.long_load } else { seat.room.load };
        at >= self.from(lane) && self.seats.get(at).is_some_and(|seat| load(seat).is_some())
    }

    /// One more request at this seat keeps it within a quarter above its share of all that is in flight.
    pub(super) fn is_within_bound(&self, at: usize) -> bool {
        let Some(room) = self.seats.get(at).map(|seat| seat.room) else { return false };
        // in_flight + 1 <= ceil(1.25 x (total + 1) x its capacity / total capacity), without fractions.
        let (own, total) = (u128::from(room.in_flight), u128::from(self.in_flight));
        4 * own * u128::from(self.capacity) < 5 * (total + 1) * u128::from(room.capacity)
    }
}

/// An estimate is trusted to this factor: up to it above the longest context the engine itself decides, since some
/// text has twice as many bytes a token as other.
const TRUSTED: u64 = 2;

/// The least of a range of keys, each with its place.
#[derive(Debug, Default)]
struct Tree {
    /// Of keys: a power of two.
    width: usize,
    /// The root at 1, the keys from `width` on.
    nodes: Vec<Key>,
}

/// A load, then a seat; the greatest is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(u64);

const NOBODY: Key = Key(u64::MAX);

impl Key {
    fn new(load: Option<u64>, at: usize) -> Self {
        load.map_or(NOBODY, |load| Self(load << SEAT_BITS | at as u64))
    }

    fn seat(self) -> Option<usize> {
        (self != NOBODY).then_some((self.0 & ((1 << SEAT_BITS) - 1)) as usize)
    }
}

impl Tree {
    fn new(loads: impl ExactSizeIterator<Item = Option<u64>>) -> Self {
        let width = loads.len().next_power_of_two();
        let mut nodes = vec![NOBODY; width];
        nodes.extend(loads.enumerate().map(|(at, load)| Key::new(load, at)));
        nodes.resize(2 * width, NOBODY);
        let mut tree = Self { width, nodes };
        for at in (1..width).rev() {
            tree.renew(at);
        }
        tree
    }

    fn key(&self, at: usize) -> Key {
        self.nodes.get(at).copied().unwrap_or(NOBODY)
    }

    fn renew(&mut self, at: usize) {
        let least = self.key(2 * at).min(self.key(2 * at + 1));
        if let Some(node) = self.nodes.get_mut(at) {
            *node = least;
        }
    }

    fn set(&mut self, at: usize, load: Option<u64>) {
        let mut node = self.width + at;
        if let Some(key) = self.nodes.get_mut(node) {
            *key = Key::new(load, at);
        }
        while node > 1 {
            node /= 2;
            self.renew(node);
        }
    }

    /// The least key of the seats `from..to`.
    fn least(&self, from: usize, to: usize) -> Key {
        let (mut from, mut to) = (from + self.width, to + self.width);
        let mut least = NOBODY;
        while from < to {
            if from % 2 == 1 {
                least = least.min(self.key(from));
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                least = least.min(self.key(to));
            }
            (from, to) = (from / 2, to / 2);
        }
        least
    }
}

/// How loaded a provider is: leases a slot, as a fraction of 2^32, above 0.
pub(super) fn load(in_flight: u32, capacity: u32) -> u64 {
    1 + (u64::from(in_flight) << 32) / u64::from(capacity.max(1))
}

/// The load of a provider that is to be tried next.
pub(super) const TRY_NEXT: u64 = 0;

#[cfg(test)]
mod tests {
    use quickcheck::quickcheck;

    use super::*;

    quickcheck! {
        fn the_tree_agrees_with_looking_at_all(loads: Vec<Option<u16>>, changes: Vec<(usize, Option<u16>)>) -> bool {
            let mut loads: Vec<Option<u64>> = loads.into_iter().map(|load| load.map(u64::from)).collect();
            let mut tree = Tree::new(loads.iter().copied());
            let agrees = |tree: &Tree, loads: &[Option<u64>]| {
                (0..=loads.len()).all(|from| {
                    (from..=loads.len()).all(|to| {
                        let all = loads.iter().enumerate().take(to).skip(from);
                        let least = all.filter_map(|(at, load)| load.map(|load| (load, at))).min();
                        tree.least(from, to).seat() == least.map(|(_, at)| at)
                    })
                })
            };
            if !agrees(&tree, &loads) {
                return false;
            }
            for (at, load) in changes {
                if !loads.is_empty() {
                    let at = at % loads.len();
                    loads[at] = load.map(u64::from);
                    tree.set(at, load.map(u64::from));
                }
            }
            agrees(&tree, &loads)
        }
    }

    #[test]
    fn equal_loads_of_different_capacities_are_equal() {
        assert_eq!(load(1, 2), load(8, 16));
        assert!(load(1, 3) < load(1, 2) && load(0, 1) > TRY_NEXT);
        assert!(load(u32::MAX - 1, u32::MAX) < 1 << (64 - SEAT_BITS));
    }
}
