//! The in-memory engine: the same behaviour without a disk, for tests and the conformance suite.
//!
//! Owns a map of bytes and a switch that makes writes fail as a full disk does. Invariant: a failed
//! transaction leaves the map as it was, and nobody reads one that is not committed.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use crate::backend::{Backend, Failure, Look, Pair, Reader, Space, Transaction, View, Work};
use crate::switch::WriteSwitch;

type Key = (Space, Vec<u8>);
type Pairs = BTreeMap<Key, Vec<u8>>;

#[derive(Default)]
pub(crate) struct Memory {
    // None once it is closed.
    pairs: Arc<RwLock<Option<Pairs>>>,
    switch: WriteSwitch,
}

impl Memory {
    pub(crate) fn with_switch(switch: WriteSwitch) -> Self {
        Self { pairs: Arc::new(RwLock::new(Some(Pairs::new()))), switch }
    }
}

#[cfg(feature = "simulation")]
impl Memory {
    /// A map of its own with the same in it.
    pub(crate) fn copy(&self, switch: WriteSwitch) -> Self {
        let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner).clone();
        Self { pairs: Arc::new(RwLock::new(pairs)), switch }
    }
}

struct Shared(Arc<RwLock<Option<Pairs>>>);

struct Reading<'a>(&'a Pairs);

struct Session<'a> {
    pairs: &'a Pairs,
    // What this transaction changed, laid over the map until it is committed.
    changed: BTreeMap<Key, Option<Vec<u8>>>,
}

fn closed() -> Failure {
    Failure("the store is closed".to_owned())
}

impl Reader for Shared {
    fn read(&self, look: Look<'_>) -> Result<(), Failure> {
        let pairs = self.0.read().unwrap_or_else(PoisonError::into_inner);
        look(&Reading(pairs.as_ref().ok_or_else(closed)?))
    }
}

impl Backend for Memory {
    fn write(&mut self, work: Work<'_>) -> Result<(), Failure> {
        self.switch.stands();
        let changed = {
            let pairs = self.pairs.read().unwrap_or_else(PoisonError::into_inner);
            let mut session = Session { pairs: pairs.as_ref().ok_or_else(closed)?, changed: BTreeMap::new() };
            work(&mut session)?;
            session.changed
        };
        // As a disk is slow: readers go on meanwhile.
        self.switch.sync().map_err(|_| Failure("no space left on device".to_owned()))?;
        let mut pairs = self.pairs.write().unwrap_or_else(PoisonError::into_inner);
        let pairs = pairs.as_mut().ok_or_else(closed)?;
        for (key, value) in changed {
            match value {
                Some(value) => pairs.insert(key, value),
                None => pairs.remove(&key),
            };
        }
        Ok(())
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(Shared(Arc::clone(&self.pairs)))
    }

    fn read_only(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        if self.switch.is_full() { Err(Failure("no space left on device".to_owned())) } else { Ok(()) }
    }

    fn close(&mut self) {
        *self.pairs.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn bounds(space: Space, from: &[u8], to: &[u8]) -> (Bound<Key>, Bound<Key>) {
    (Bound::Included((space, from.to_vec())), Bound::Excluded((space, to.to_vec())))
}

fn ends<T>(pairs: impl DoubleEndedIterator<Item = T>, limit: usize, newest_first: bool) -> Vec<T> {
    if newest_first { pairs.rev().take(limit).collect() } else { pairs.take(limit).collect() }
}

impl View for Reading<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.0.get(&(space, key.to_vec())).cloned())
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        let range = self.0.range(bounds(space, from, to));
        Ok(ends(range.map(|((_, key), value)| (key.clone(), value.clone())), limit, newest_first))
    }
}

impl View for Session<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        let key = (space, key.to_vec());
        match self.changed.get(&key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.pairs.get(&key).cloned()),
        }
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        // Enough of the map that what was removed here does not shorten the answer.
        let range = bounds(space, from, to);
        let removed = self.changed.range(range.clone()).filter(|(_, value)| value.is_none()).count();
        let below = ends(self.pairs.range(range.clone()), limit.saturating_add(removed), newest_first);
        let mut merged: BTreeMap<&Key, Option<&Vec<u8>>> =
            below.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for (key, value) in self.changed.range(range) {
            merged.insert(key, value.as_ref());
        }
        let pairs = merged.into_iter().filter_map(|((_, key), value)| Some((key.clone(), value?.clone())));
        Ok(ends(pairs, limit, newest_first))
    }
}

impl Transaction for Session<'_> {
    fn put(&mut self, space: Space, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        self.changed.insert((space, key.to_vec()), Some(value.to_vec()));
        Ok(())
    }

    fn remove(&mut self, space: Space, key: &[u8]) -> Result<(), Failure> {
        self.changed.insert((space, key.to_vec()), None);
        Ok(())
    }
}
