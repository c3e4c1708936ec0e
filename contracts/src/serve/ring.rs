//! The latest events, in memory, for readers that come and go. A reader holds a cursor and never a queue: one
//! that is slow or late is told how many it missed, and memory stays what it is.
//!
//! Ids are `INCARNATION.NUMBER`: after a restart the numbers start anew, and a reader with an old id is told that
//! it missed an unknown number.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::watch;

use super::Follow;
use crate::objects::{EventGap, EventObject};

/// A stream of answers; dropping it ends the work behind it.
pub type Feed<T> = Pin<Box<dyn Stream<Item = T> + Send>>;

/// What a reader of events is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Something happened.
    Event {
        /// What to send back as `Last-Event-ID`.
        id: String,
        /// What happened.
        event: Arc<EventObject>,
    },
    /// Some were missed.
    Gap {
        /// The id to go on from.
        id: String,
        /// How many.
        gap: EventGap,
    },
}

/// The latest events, at most as many as it was made for.
#[derive(Debug)]
pub struct EventRing {
    incarnation: String,
    room: usize,
    kept: Mutex<Kept>,
    /// Number of the next event; closed by dropping nothing: `u64::MAX` says that no more come.
    head: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    next: u64,
    events: VecDeque<Arc<EventObject>>,
}

impl Kept {
    fn first(&self) -> u64 {
        self.next - self.events.len() as u64
    }
}

const CLOSED: u64 = u64::MAX;

impl EventRing {
    /// An empty ring that keeps `room` events. `incarnation` is drawn at random for each process.
    #[must_use]
    pub fn new(incarnation: impl Into<String>, room: usize) -> Arc<Self> {
        Arc::new(Self {
            incarnation: incarnation.into(),
            room: room.max(1),
            kept: Mutex::default(),
            head: watch::Sender::new(0),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event and wakes the readers.
    pub fn publish(&self, event: EventObject) {
        let next = {
            let mut kept = self.kept();
            if kept.events.len() == self.room {
                kept.events.pop_front();
            }
            kept.events.push_back(Arc::new(event));
            kept.next += 1;
            kept.next
        };
        self.head.send_if_modified(|head| {
            let open = *head != CLOSED;
            if open {
                *head = next;
            }
            open
        });
    }

    /// Ends every reader's feed once it has read what is kept.
    pub fn close(&self) {
        self.head.send_replace(CLOSED);
    }

    /// A feed from where the reader wants to begin.
    #[must_use]
    pub fn follow(self: &Arc<Self>, follow: &Follow) -> Feed<Told> {
        let (cursor, unknown_gap) = self.begin(follow);
        let reader = Reader {
            ring: Arc::clone(self),
            head: self.head.subscribe(),
            cursor,
            unknown_gap,
            live: follow.live,
        };
        Box::pin(unfold(reader, |mut reader| async move {
            let told = reader.next().await?;
            Some((told, reader))
        }))
    }

    /// Where to begin, and whether an unknown number was missed before.
    fn begin(&self, follow: &Follow) -> (u64, bool) {
        let kept = self.kept();
        let Some(after) = &follow.after else {
            let recent = follow.recent.min(kept.events.len()) as u64;
            return (kept.next - recent, false);
        };
        let seen = after
            .rsplit_once('.')
            .filter(|(incarnation, _)| *incarnation == self.incarnation)
            .and_then(|(_, number)| number.parse::<u64>().ok())
            .filter(|number| *number < kept.next);
        match seen {
            Some(number) => (number + 1, false),
            None => (kept.first(), true),
        }
    }
}

struct Reader {
    ring: Arc<EventRing>,
    head: watch::Receiver<u64>,
    cursor: u64,
    unknown_gap: bool,
    live: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Told> {
        loop {
            let head = *self.head.borrow_and_update();
            if let Some(told) = self.read() {
                return Some(told);
            }
            if head == CLOSED || !self.live {
                return None;
            }
            self.head.changed().await.ok()?;
        }
    }

    fn read(&mut self) -> Option<Told> {
        let kept = self.ring.kept();
        let first = kept.first();
        let id = |number: u64| format!("{}.{number}", self.ring.incarnation);
        if self.unknown_gap {
            self.unknown_gap = false;
            self.cursor = self.cursor.max(first);
            // The id before the first kept one, so that a reader cut off right here starts in the same place.
            let id = self.cursor.checked_sub(1).map_or_else(String::new, id);
            return Some(Told::Gap { id, gap: EventGap { lost: None } });
        }
        if self.cursor < first {
            let lost = first - self.cursor;
            self.cursor = first;
            return Some(Told::Gap { id: id(first - 1), gap: EventGap { lost: Some(lost) } });
        }
        let place = usize::try_from(self.cursor - first).ok()?;
        let event = Arc::clone(kept.events.get(place)?);
        let id = id(self.cursor);
        self.cursor += 1;
        Some(Told::Event { id, event })
    }
}
