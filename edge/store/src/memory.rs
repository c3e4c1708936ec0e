//! The in-memory engine: the same behaviour without a disk, for tests and the conformance suite.
//!
//! Owns a map of bytes and a switch that makes writes fail as a full disk does. Invariant: a failed
//! transaction leaves the map as it was.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{Backend, Failure, Look, Pair, Space, Transaction, View, Work};

/// Makes the writes of a store fail, as if its disk were full. For tests of what happens then.
#[derive(Clone, Debug, Default)]
pub struct WriteSwitch(Arc<AtomicBool>);

impl WriteSwitch {
    /// From now on writes fail (`true`) or succeed again.
    pub fn full(&self, full: bool) {
        self.0.store(full, Ordering::SeqCst);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

#[derive(Default)]
pub(crate) struct Memory {
    pairs: BTreeMap<Key, Vec<u8>>,
    switch: WriteSwitch,
}

impl Memory {
    pub(crate) fn with_switch(switch: WriteSwitch) -> Self {
        Self { pairs: BTreeMap::new(), switch }
    }
}

type Key = (Space, Vec<u8>);

struct Session<'a> {
    pairs: &'a mut BTreeMap<Key, Vec<u8>>,
    // What a key held before this transaction touched it, for the way back.
    before: Vec<(Key, Option<Vec<u8>>)>,
}

impl Backend for Memory {
    fn write(&mut self, work: Work<'_>) -> Result<(), Failure> {
        let mut session = Session { pairs: &mut self.pairs, before: Vec::new() };
        let mut result = work(&mut session);
        if result.is_ok() && self.switch.is_full() {
            result = Err(Failure("no space left on device".to_owned()));
        }
        if result.is_err() {
            while let Some((key, value)) = session.before.pop() {
                match value {
                    Some(value) => session.pairs.insert(key, value),
                    None => session.pairs.remove(&key),
                };
            }
        }
        result
    }

    fn read(&mut self, look: Look<'_>) -> Result<(), Failure> {
        look(&Session { pairs: &mut self.pairs, before: Vec::new() })
    }

    fn reopen(&mut self) -> Result<(), Failure> {
        if self.switch.is_full() { Err(Failure("no space left on device".to_owned())) } else { Ok(()) }
    }
}

impl View for Session<'_> {
    fn get(&self, space: Space, key: &[u8]) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.pairs.get(&(space, key.to_vec())).cloned())
    }

    fn scan(
        &self,
        space: Space,
        from: &[u8],
        to: &[u8],
        limit: usize,
        newest_first: bool,
    ) -> Result<Vec<Pair>, Failure> {
        let bounds = (Bound::Included((space, from.to_vec())), Bound::Excluded((space, to.to_vec())));
        let range = self.pairs.range(bounds).map(|((_, key), value)| (key.clone(), value.clone()));
        Ok(if newest_first { range.rev().take(limit).collect() } else { range.take(limit).collect() })
    }
}

impl Transaction for Session<'_> {
    fn put(&mut self, space: Space, key: &[u8], value: &[u8]) -> Result<(), Failure> {
        let key = (space, key.to_vec());
        let old = self.pairs.insert(key.clone(), value.to_vec());
        self.before.push((key, old));
        Ok(())
    }

    fn remove(&mut self, space: Space, key: &[u8]) -> Result<(), Failure> {
        let key = (space, key.to_vec());
        let old = self.pairs.remove(&key);
        self.before.push((key, old));
        Ok(())
    }
}
