//! Events to be sent: the newest of each key, in the order in which the keys became pending.
//!
//! Invariant: at most `EVENT_KEYS_MAX` wait and at most `EVENTS_UNACKED_MAX` await their acknowledgement.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::limits;

type Name = (u32, Arc<str>);

/// The queue of one session. The sequence is shared by all sessions of one dialing role.
#[derive(Debug)]
pub(crate) struct Events {
    order: VecDeque<Name>,
    newest: HashMap<Name, Bytes>,
    unacknowledged: VecDeque<(u64, Name)>,
    sequence: Arc<AtomicU64>,
    last_seen: u64,
}

impl Events {
    /// An empty queue that numbers by `sequence`.
    pub(crate) fn new(sequence: Arc<AtomicU64>) -> Self {
        Self {
            order: VecDeque::new(),
            newest: HashMap::new(),
            unacknowledged: VecDeque::new(),
            sequence,
            last_seen: 0,
        }
    }

    /// Puts an event in; replaces an unsent one of the same name. At the bound the oldest name goes.
    pub(crate) fn put(&mut self, event: u32, key: &str, payload: Bytes) {
        let name: Name = (event, key.into());
        if self.newest.insert(name.clone(), payload).is_none() {
            self.order.push_back(name);
        }
        if self.order.len() > limits::EVENT_KEYS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.newest.remove(&oldest);
        }
    }

    /// Whether one waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Takes the next one out, with the sequence it is sent under.
    pub(crate) fn next(&mut self) -> Option<(u64, u32, Arc<str>, Bytes)> {
        let name = self.order.pop_front()?;
        let payload = self.newest.remove(&name)?;
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        if self.unacknowledged.len() == limits::EVENTS_UNACKED_MAX {
            self.unacknowledged.pop_front();
        }
        self.unacknowledged.push_back((sequence, name.clone()));
        Some((sequence, name.0, name.1, payload))
    }

    /// Which event an acknowledgement is for, if it is still remembered.
    pub(crate) fn acknowledged(&mut self, sequence: u64) -> Option<(u32, Arc<str>)> {
        let at = self.unacknowledged.iter().position(|(sent, _)| *sent == sequence)?;
        self.unacknowledged.remove(at).map(|(_, name)| name)
    }

    /// Notes the peer's sequence; returns how many are missing before it.
    pub(crate) fn arrived(&mut self, sequence: u64) -> u64 {
        let gap = if self.last_seen == 0 { 0 } else { sequence.saturating_sub(self.last_seen + 1) };
        self.last_seen = self.last_seen.max(sequence);
        gap
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.order.clear();
        self.newest.clear();
        self.unacknowledged.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_wins_and_nothing_grows() {
        let mut events = Events::new(Arc::default());
        events.put(1, "a", Bytes::from_static(b"old"));
        events.put(1, "b", Bytes::from_static(b"b"));
        events.put(1, "a", Bytes::from_static(b"new"));
        let next =
            |events: &mut Events| events.next().map(|(sequence, _, key, payload)| (sequence, key, payload));
        assert_eq!(next(&mut events), Some((1, "a".into(), Bytes::from_static(b"new"))));
        assert_eq!(next(&mut events), Some((2, "b".into(), Bytes::from_static(b"b"))));
        assert_eq!(next(&mut events), None);
        assert_eq!(events.acknowledged(2), Some((1, "b".into())));
        assert_eq!(events.acknowledged(2), None);
        for number in 0..1_000 {
            events.put(2, &number.to_string(), Bytes::new());
        }
        assert_eq!(std::iter::from_fn(|| next(&mut events)).count(), limits::EVENT_KEYS_MAX);
        assert_eq!((events.arrived(5), events.arrived(6), events.arrived(9)), (0, 0, 2));
    }
}
