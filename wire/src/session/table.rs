//! Where a session keeps what is open: slots that handles name by key, and ids on the wire that name slots.
//!
//! Invariant: a key names one thing for ever; after its removal it finds nothing, also if the slot is used again.

use crate::numbered::Numbered;

/// Names a slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    index: u32,
    serial: u64,
}

/// Empty slots that stay; a burst's do not.
const KEPT: usize = 4;

/// Slots. Contents are boxed, so that a burst of streams leaves only words behind.
pub(crate) struct Table<T> {
    slots: Vec<Option<(u64, Box<T>)>>,
    free: Vec<u32>,
    serial: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), serial: 0 }
    }
}

impl<T> Table<T> {
    /// Number of things in it.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a thing in.
    pub(crate) fn insert(&mut self, thing: T) -> Key {
        self.serial += 1;
        let content = Some((self.serial, Box::new(thing)));
        let index = match self.free.pop() {
            Some(index) => {
                if let Some(slot) = self.slots.get_mut(index as usize) {
                    *slot = content;
                }
                index
            }
            None => {
                self.slots.push(content);
                // At most a few thousand slots: openings are limited.
                (self.slots.len() - 1) as u32
            }
        };
        Key { index, serial: self.serial }
    }

    /// The thing, if it is still there.
    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.slots.get(key.index as usize) {
            Some(Some((serial, thing))) if *serial == key.serial => Some(thing),
            _ => None,
        }
    }

    /// The thing, if it is still there.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.slots.get_mut(key.index as usize) {
            Some(Some((serial, thing))) if *serial == key.serial => Some(thing),
            _ => None,
        }
    }

    /// Takes the thing out.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Box<T>> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.as_ref().is_none_or(|(serial, _)| *serial != key.serial) {
            return None;
        }
        let (_, thing) = slot.take()?;
        self.free.push(key.index);
        // One lone stream after the other does not make the table anew each time.
        if self.free.len() == self.slots.len() && self.slots.len() > KEPT {
            self.slots = Vec::new();
            self.free = Vec::new();
        }
        Some(thing)
    }

    /// All things with their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            slot.as_ref().map(|(serial, thing)| (Key { index: index as u32, serial: *serial }, &**thing))
        })
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.iter().map(|(key, _)| key).collect()
    }
}

/// What an id on the wire names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A request of this side.
    CallOut(Key),
    /// A request of the peer.
    CallIn(Key),
    /// A stream, whoever opened it.
    Stream(Key),
}

/// Ids on the wire to what they name. Ids grow by two and at most a few thousand are open, so a multiplication
/// spreads them well enough; a peer that picks worse ones slows its own connection.
pub(crate) type Ids = Numbered<u64, Named>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_never_reused() {
        let mut table = Table::default();
        let first = table.insert(1);
        let second = table.insert(2);
        assert_eq!(table.remove(first), Some(Box::new(1)));
        assert_eq!(table.remove(first), None);
        let third = table.insert(3);
        assert_eq!((table.get(first), table.get(second), table.get(third)), (None, Some(&2), Some(&3)));
        assert_eq!(table.len(), 2);
        table.remove(second);
        table.remove(third);
        assert_eq!(table.len(), 0);
        let fourth = table.insert(4);
        assert_eq!(table.get(third), None);
        assert_eq!(table.get_mut(fourth), Some(&mut 4));
    }
}
