//! The session of one connection as a state machine: bytes, calls and the time go in; bytes, outputs and wake-ups
//! come out. No socket, no clock, no task.
//!
//! Owns everything between WELCOME and the end. Leaves bytes and tasks to `io`. Invariants: each request gets one
//! answer, each OPEN one terminal; nothing grows beyond `limits`; after `close` nothing changes any more.

pub(crate) mod answerer;
pub(crate) mod budget;
pub(crate) mod credit;
pub(crate) mod deadlines;
pub(crate) mod events;
pub(crate) mod handshake;
pub(crate) mod incoming;
pub(crate) mod keepalive;
pub(crate) mod opener;
pub(crate) mod outbox;
pub(crate) mod requests;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod timers;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::close::{CloseReason, Goaway};
use crate::error::{Code, Error};
use crate::limits;
use crate::session::budget::Budget;
use crate::session::events::Events;
use crate::session::keepalive::Keepalive;
use crate::session::outbox::Outbox;
use crate::session::requests::{CallIn, CallOut};
use crate::session::stream::{Inflow, OnTerminal, Outflow, Reset, Role, Stream, Terminal};
use crate::session::table::{Ids, Key, Table};
use crate::session::timers::Timers;

/// Who opened the connection: decides whose ids are odd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Odd ids.
    Dialer,
    /// Even ids.
    Acceptor,
}

/// What a session is told at its start.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Who opened the connection.
    pub(crate) side: Side,
    /// Streams open at once in each direction.
    pub(crate) max_streams: u32,
    /// Where receive windows are reserved.
    pub(crate) budget: Arc<Budget>,
    /// Numbers the events; shared by all sessions of one dialing role.
    pub(crate) sequence: Arc<AtomicU64>,
}

impl Settings {
    /// The usual ones.
    pub(crate) fn new(side: Side) -> Self {
        Self { side, max_streams: limits::STREAMS_NODE, budget: Budget::process(), sequence: Arc::default() }
    }
}

/// Gauges and counters of one connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Streams this side opened that have no terminal yet.
    pub streams_out: usize,
    /// Streams the peer opened that this side has not ended.
    pub streams_in: usize,
    /// Requests of this side without an answer (cancelled ones included).
    pub requests_out: usize,
    /// Requests of the peer whose handler is not done.
    pub requests_in: usize,
    /// Bytes received and not yet taken by the application.
    pub received_waiting: usize,
    /// Bytes accepted from the application and not yet written.
    pub send_waiting: usize,
    /// Bytes of frames received.
    pub bytes_in: u64,
    /// Bytes of frames written.
    pub bytes_out: u64,
    /// Frames received.
    pub frames_in: u64,
    /// Frames written.
    pub frames_out: u64,
    /// Batches written; `frames_out / batches_out` is the coalescing.
    pub batches_out: u64,
    /// Frames of kinds this build does not know, skipped.
    pub unknown_kinds: u64,
    /// Events the handler did not know.
    pub unknown_events: u64,
    /// Events missing in the peer's sequence.
    pub event_gaps: u64,
    /// Frames for streams or requests that were over, dropped.
    pub late_frames: u64,
    /// Acknowledgements and events dropped at a bound.
    pub dropped: u64,
    /// Round trip of the last PING.
    pub round_trip: Option<Duration>,
    /// Deadlines pending.
    pub timers: usize,
}

/// What must happen outside the session's lock.
#[derive(Default)]
pub(crate) struct Effects {
    /// The writer task, if it sleeps and has work.
    pub(crate) writer: Option<Waker>,
    /// Tasks of the application, and the reader.
    pub(crate) wakes: Vec<Waker>,
    /// Terminals to tell.
    pub(crate) terminals: Vec<(OnTerminal, Terminal)>,
    /// Closed or draining: whoever waits for that looks again.
    pub(crate) notify: bool,
    /// Nothing open any more, or closed: the same.
    pub(crate) idle: bool,
}

impl Effects {
    /// Nothing has to happen.
    pub(crate) fn is_empty(&self) -> bool {
        self.writer.is_none()
            && self.wakes.is_empty()
            && self.terminals.is_empty()
            && !self.notify
            && !self.idle
    }
}

/// Open -> Draining (by us, by the peer, or both) -> Closed; Open -> Closed.
#[derive(Debug, Default)]
struct Ending {
    draining: bool,
    peer_draining: Option<Goaway>,
    closed: Option<CloseReason>,
}

/// The state machine.
pub(crate) struct Session {
    settings: Settings,
    next_id: u64,
    highest_peer: u64,
    ids: Ids,
    streams: Table<Stream>,
    streams_out: usize,
    streams_in: usize,
    calls_out: Table<CallOut>,
    calls_in: Table<CallIn>,
    events: Events,
    outbox: Outbox,
    timers: Timers,
    keepalive: Keepalive,
    ending: Ending,
    writer: Option<Waker>,
    reader: Option<Waker>,
    armed: Option<Instant>,
    failing: Option<(Instant, String)>,
    probes: Vec<Waker>,
    arrivals: u64,
    stats: Stats,
    /// To be carried out after the lock is released.
    pub(crate) effects: Effects,
}

impl Session {
    /// A session that may write as soon as WELCOME is out (acceptor) or in (dialer).
    pub(crate) fn new(settings: Settings, now: Instant) -> Self {
        Self {
            next_id: if settings.side == Side::Dialer { 1 } else { 2 },
            highest_peer: 0,
            ids: Ids::default(),
            streams: Table::default(),
            streams_out: 0,
            streams_in: 0,
            calls_out: Table::default(),
            calls_in: Table::default(),
            events: Events::new(settings.sequence.clone()),
            outbox: Outbox::default(),
            timers: Timers::default(),
            keepalive: Keepalive::new(now),
            ending: Ending::default(),
            writer: None,
            reader: None,
            armed: None,
            failing: None,
            probes: Vec::new(),
            arrivals: 0,
            stats: Stats::default(),
            effects: Effects::default(),
            settings,
        }
    }

    /// Puts WELCOME in front of everything else and takes its limits.
    pub(crate) fn start(&mut self, now: Instant, welcome: Vec<u8>, max_streams: u32) {
        self.outbox.first = welcome;
        self.settings.max_streams = max_streams;
        self.keepalive = Keepalive::new(now);
        self.wake_writer();
    }

    /// Why it ended, if it did.
    pub(crate) fn closed(&self) -> Option<&CloseReason> {
        self.ending.closed.as_ref()
    }

    /// Whether no stream and no request is open in either direction.
    pub(crate) fn is_idle(&self) -> bool {
        self.running() == 0
    }

    /// Whether all that is written belongs to one stream or request.
    pub(crate) fn is_alone(&self) -> bool {
        self.running() <= 1
    }

    fn running(&self) -> usize {
        self.streams_out + self.streams_in + self.calls_out.len() + self.calls_in.len()
    }

    /// Gauges and counters.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.stats.clone();
        stats.streams_out = self.streams_out;
        stats.streams_in = self.streams_in;
        stats.requests_out = self.calls_out.len();
        stats.requests_in = self.calls_in.len();
        stats.round_trip = self.keepalive.round_trip();
        stats.timers = self.timers.len();
        for (_, stream) in self.streams.iter() {
            stats.received_waiting += stream.receiving.waiting();
            stats.send_waiting += stream.sending.waiting();
        }
        stats
    }

    /// Starts to drain: later streams of the peer are refused. Only the first call says so.
    pub(crate) fn goaway(&mut self, goaway: Goaway) {
        if self.ending.closed.is_some() || std::mem::replace(&mut self.ending.draining, true) {
            return;
        }
        self.outbox.goaway = Some(goaway);
        self.wake_writer();
    }

    /// Ends it. What this side can tell the peer becomes the last frame; all calls and streams end now.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        if self.ending.closed.is_some() {
            return;
        }
        let tell = !matches!(
            reason,
            CloseReason::ByPeer(_) | CloseReason::Truncated | CloseReason::Transport(_) | CloseReason::Silent
        );
        self.outbox.close(tell.then(|| Goaway::closing(&reason)));
        self.ending.closed = Some(reason.clone());
        self.events.clear();
        self.timers.clear();
        self.ids.clear();
        self.fail_calls();
        for key in self.streams.keys() {
            self.lose(key, &reason);
        }
        self.streams_in = 0;
        self.effects.wakes.append(&mut self.probes);
        self.effects.wakes.extend(self.reader.take());
        self.effects.notify = true;
        self.effects.idle = true;
        self.wake_writer();
    }

    /// Ends one stream because the connection ended.
    fn lose(&mut self, key: Key, reason: &CloseReason) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.outflow = Outflow::Done;
        stream.stop_sending();
        stream.inflow = Inflow::Ended;
        self.effects.wakes.extend(stream.send_waker.take());
        self.effects.wakes.extend(stream.recv_waker.take());
        match &mut stream.role {
            Role::Opener(_) => self.terminate(key, Terminal::Lost(reason.clone())),
            Role::Answerer(part) => {
                part.reset.get_or_insert(Reset { error: opener::lost(reason) });
                self.effects.wakes.extend(part.reset_waker.take());
                if part.end.is_some() {
                    self.streams.remove(key);
                }
            }
        }
    }

    /// What waits on a stream, and the limit given: for the invariants of tests.
    #[cfg(test)]
    pub(crate) fn receiving(&self, key: Key) -> Option<(usize, u64)> {
        self.streams.get(key).map(|stream| (stream.receiving.waiting(), stream.receiving.granted()))
    }

    /// All streams: for tests.
    #[cfg(test)]
    pub(crate) fn stream_keys(&self) -> Vec<Key> {
        self.streams.keys()
    }

    /// Asks for a PING; it goes ahead of everything else.
    pub(crate) fn ping(&mut self) {
        if self.ending.closed.is_some() {
            return;
        }
        self.outbox.ping = true;
        self.wake_writer();
    }

    /// How often bytes have arrived.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals
    }

    /// Registers to be woken by the next bytes that arrive, or by the end.
    pub(crate) fn await_arrival(&mut self, waker: &Waker) {
        if !self.probes.iter().any(|known| known.will_wake(waker)) {
            self.probes.push(waker.clone());
        }
    }

    /// Sends an event: the newest of its name wins.
    pub(crate) fn event(&mut self, event: u32, key: &str, payload: bytes::Bytes) {
        if self.ending.closed.is_some() {
            return;
        }
        if payload.len() > limits::MESSAGE_MAX || key.len() > limits::EVENT_KEY_MAX {
            self.stats.dropped += 1;
            return;
        }
        self.events.put(event, key, payload);
        self.wake_writer();
    }

    /// Answers an event.
    pub(crate) fn acknowledge(&mut self, sequence: u64, error: Option<Error>) {
        if self.ending.closed.is_some() {
            return;
        }
        if error.as_ref().is_some_and(|error| error.code == Code::Unimplemented) {
            self.stats.unknown_events += 1;
        }
        if self.outbox.acks.len() < limits::ACKS_MAX {
            self.outbox.acks.push_back((sequence, error));
            self.wake_writer();
        } else {
            self.stats.dropped += 1;
        }
    }

    /// The writer has nothing to do and sleeps.
    pub(crate) fn park_writer(&mut self, waker: &Waker) {
        if !self.writer.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.writer = Some(waker.clone());
        }
    }

    /// The reader sleeps until the socket, the next deadline (returned) or the end.
    pub(crate) fn park_reader(&mut self, waker: &Waker) -> Instant {
        if !self.reader.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.reader = Some(waker.clone());
        }
        let next = self.next_deadline();
        self.armed = Some(next);
        next
    }

    fn wake_writer(&mut self) {
        if self.effects.writer.is_none() {
            self.effects.writer = self.writer.take();
        }
    }

    fn note_idle(&mut self) {
        if self.is_idle() {
            self.effects.idle = true;
        }
    }

    /// The answer to calls on a closed session.
    fn gone(&self) -> Error {
        opener::lost(self.ending.closed.as_ref().unwrap_or(&CloseReason::Truncated))
    }

    /// Why the peer drains, if it does.
    pub(crate) fn peer_drains(&self) -> Option<&Goaway> {
        self.ending.peer_draining.as_ref()
    }
}
