//! Where the beginning of a prompt was seen last.
//!
//! Owns a table of fixed size, set by set like a processor's cache: four entries a set, of which the one that was
//! written longest ago gives way. Leaves whether the provider may be used to [`super::choice`]. Invariants: its memory
//! is bounded whatever prompts come; an entry of a provider that has closed since is never used.

use super::words::{ModelIndex, ProviderIndex};

/// Entries a provider: 4 MiB of text in blocks, about what an engine's own prefix cache holds.
const PER_PROVIDER: usize = 4_096;
/// Entries in all: 16 MiB.
const ENTRIES_MAX: usize = 1 << 20;
const WAYS: usize = 4;

/// One block of one prompt's beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// The upper half of its hash; the lower half names the set.
    tag: u32,
    provider: u32,
    opened: u32,
    /// The table's clock when it was written; 0 is an empty entry.
    written: u32,
}

/// The size of the table, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixTable {
    /// Entries in use. Those of providers that closed count until they are overwritten.
    pub(crate) entries: usize,
    /// Most entries there can be now; it grows with the providers up to about a million.
    pub(crate) entries_max: usize,
    /// Memory of the table.
    pub(crate) bytes: usize,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    sets: Vec<[Entry; WAYS]>,
    clock: u32,
    used: usize,
}

impl Seen {
    /// Makes room for so many providers. Never shrinks; growing (when the providers double) forgets what was seen.
    pub(super) fn make_room(&mut self, providers: usize) {
        let entries = providers.saturating_mul(PER_PROVIDER).clamp(PER_PROVIDER, ENTRIES_MAX);
        let sets = (entries / WAYS).next_power_of_two();
        if sets <= self.sets.len() {
            return;
        }
        // An entry does not hold the half of its hash that would name its new set.
        self.sets = vec![[Entry::default(); WAYS]; sets];
        self.used = 0;
    }

    /// The provider that saw the longest beginning of this prompt, of those that `is_open` since then.
    pub(super) fn by(
        &self,
        model: ModelIndex,
        hashes: &[u64],
        is_open: impl Fn(ProviderIndex, u32) -> bool,
    ) -> Option<ProviderIndex> {
        hashes.iter().rev().find_map(|hash| {
            let hash = of_model(model, *hash);
            let set = self.sets.get(self.set_of(hash))?;
            set.iter()
                .filter(|entry| entry.written != 0 && entry.tag == tag_of(hash))
                .map(|entry| (ProviderIndex(entry.provider), entry.opened))
                .find(|(provider, opened)| is_open(*provider, *opened))
                .map(|(provider, _)| provider)
        })
    }

    /// This provider sees this prompt now.
    pub(super) fn note(&mut self, model: ModelIndex, hashes: &[u64], provider: ProviderIndex, opened: u32) {
        if hashes.is_empty() {
            return;
        }
        self.clock = self.clock.wrapping_add(1).max(1);
        for hash in hashes {
            let hash = of_model(model, *hash);
            let (at, tag, clock) = (self.set_of(hash), tag_of(hash), self.clock);
            let Some(set) = self.sets.get_mut(at) else { return };
            let known = set.iter().position(|entry| entry.written != 0 && entry.tag == tag);
            let age =
                |entry: &Entry| if entry.written == 0 { u32::MAX } else { clock.wrapping_sub(entry.written) };
            let oldest = || (0..WAYS).max_by_key(|way| set.get(*way).map_or(0, age));
            let Some(entry) = known.or_else(oldest).and_then(|way| set.get_mut(way)) else { return };
            self.used += usize::from(entry.written == 0);
            *entry = Entry { tag, provider: provider.0, opened, written: clock };
        }
    }

    fn set_of(&self, hash: u64) -> usize {
        // A power of two, or none at all.
        (hash as u32) as usize & self.sets.len().saturating_sub(1)
    }

    pub(super) fn table(&self) -> PrefixTable {
        let entries_max = self.sets.len() * WAYS;
        PrefixTable { entries: self.used, entries_max, bytes: entries_max * size_of::<Entry>() }
    }
}

/// The same prompt at two models is two prompts.
fn of_model(model: ModelIndex, hash: u64) -> u64 {
    hash ^ u64::from(model.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelIndex = ModelIndex(3);

    #[test]
    fn the_longest_beginning_counts_and_a_provider_that_closed_is_forgotten() {
        let mut seen = Seen::default();
        assert_eq!(seen.by(MODEL, &[1], |_, _| true), None, "an empty table knows nothing");
        seen.note(MODEL, &[1], ProviderIndex(0), 1);
        assert_eq!(seen.table().entries, 0, "a table without room keeps nothing");
        seen.make_room(2);
        seen.note(MODEL, &[1, 2, 3], ProviderIndex(0), 1);
        seen.note(MODEL, &[1, 2, 4], ProviderIndex(1), 1);
        let by = |hashes: &[u64]| seen.by(MODEL, hashes, |_, opened| opened == 1).map(|provider| provider.0);
        assert_eq!(by(&[1, 2, 3, 9]), Some(0));
        assert_eq!(by(&[1, 2, 9]), Some(1), "the last of those who saw it");
        assert_eq!(by(&[9, 1]), Some(1));
        assert_eq!(by(&[9]), None);
        assert_eq!(seen.by(ModelIndex(4), &[1, 2, 3], |_, _| true), None);
        let reopened = |provider: ProviderIndex, opened| opened == if provider.0 == 1 { 2 } else { 1 };
        assert_eq!(seen.by(MODEL, &[1, 2, 4], reopened), None);
        assert_eq!(seen.by(MODEL, &[1, 2, 3], reopened), Some(ProviderIndex(0)));
        assert_eq!(seen.table().entries, 4);
    }

    #[test]
    fn its_memory_is_bounded_and_the_oldest_give_way() {
        let mut seen = Seen::default();
        seen.make_room(1);
        let before = seen.table();
        let mut hash = 1u64;
        let mut last = Vec::new();
        for _ in 0..10_000 {
            last = (0..8)
                .map(|_| {
                    hash =
                        hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    hash ^ hash >> 29
                })
                .collect();
            seen.note(MODEL, &last, ProviderIndex(7), 1);
        }
        let after = seen.table();
        assert_eq!((after.bytes, after.entries_max), (before.bytes, 4_096));
        assert!(after.entries <= 4_096 && after.entries > 4_000, "{after:?}");
        assert_eq!(seen.by(MODEL, &last, |_, _| true), Some(ProviderIndex(7)));
        seen.make_room(1_000_000);
        assert_eq!(seen.table().entries_max, ENTRIES_MAX);
    }
}
