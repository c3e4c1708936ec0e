//! What a session does because time passed: keepalive, timeouts, streams nobody reads, a transport that fails.
//!
//! Invariant: `tick` is called only after a read found nothing, so nothing that has arrived is judged as missing.

use std::time::Instant;

use crate::close::CloseReason;
use crate::error::{Code, Error, SLOW_READER};
use crate::limits;
use crate::session::Session;
use crate::session::keepalive::Check;
use crate::session::stream::Role;
use crate::session::table::Key;
use crate::session::timers::Timer;

impl Session {
    /// Bytes arrived at `at`, as the socket saw it.
    pub(crate) fn heard(&mut self, at: Instant) {
        self.keepalive.heard(at);
    }

    /// The socket accepted bytes at `at`.
    pub(crate) fn accepted(&mut self, at: Instant) {
        self.keepalive.accepted(at);
    }

    /// The socket took the whole batch.
    pub(crate) fn written(&mut self) {
        self.keepalive.written();
    }

    /// The socket took no more. What the peer may have said last is still read until `until`.
    pub(crate) fn failing(&mut self, until: Instant, what: String) {
        if self.ending.closed.is_none() && self.failing.is_none() {
            self.failing = Some((until, what));
            self.effects.wakes.extend(self.reader.take());
        }
    }

    /// The input ended; `what` if the transport says why.
    pub(crate) fn input_ended(&mut self, what: Option<String>) {
        let reason = match (self.failing.take(), what) {
            (Some((_, what)), _) | (None, Some(what)) => CloseReason::Transport(what),
            (None, None) => CloseReason::Truncated,
        };
        self.close(reason);
    }

    /// When `tick` has something to do.
    pub(crate) fn next_deadline(&self) -> Instant {
        let mut next = self.keepalive.deadline();
        if let Some(timer) = self.timers.next() {
            next = next.min(timer);
        }
        if let Some((until, _)) = self.failing {
            next = next.min(until);
        }
        next
    }

    /// Carries out what is due. Only to be called after a read found nothing.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.ending.closed.is_some() {
            return;
        }
        if let Some((_, what)) = self.failing.take_if(|(until, _)| *until <= now) {
            return self.close(CloseReason::Transport(what));
        }
        match self.keepalive.check(now) {
            Check::Fine => {}
            Check::Ping => self.ping(),
            Check::Silent => return self.close(CloseReason::Silent),
            Check::Stalled => return self.close(CloseReason::Stalled),
        }
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::CallOut(key) => self.call_timed_out(key),
                Timer::CallIn(key) => self.answer_timed_out(key),
                Timer::Stream(key) => self.stream_timed_out(key),
                Timer::Slow(key) => self.check_slow(key, now),
            }
        }
    }

    fn stream_timed_out(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.deadline = None;
        match &mut stream.role {
            Role::Opener(_) => self.abandon(key, Error::deadline()),
            Role::Answerer(_) => self.reset_in(key, Error::deadline()),
        }
    }

    fn check_slow(&mut self, key: Key, now: Instant) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.slow_at = None;
        let Some(since) = stream.waiting_since else { return };
        let due = since + limits::SLOW_READER;
        if due > now {
            stream.slow_at = Some(due);
            self.timers.add(due, Timer::Slow(key));
            return;
        }
        let text = "nothing was read from the stream for 60 s";
        let slow = Error::new(Code::DeadlineExceeded, SLOW_READER, text);
        match &stream.role {
            Role::Opener(_) => self.abandon(key, slow),
            Role::Answerer(_) => {
                self.refuse_body(key, slow.clone());
                self.reset_in(key, slow);
            }
        }
    }

    /// Enters a deadline; the reader is woken if it sleeps longer.
    pub(super) fn enter_timer(&mut self, at: Instant, timer: Timer) {
        self.timers.add(at, timer);
        if self.armed.is_some_and(|armed| at < armed) {
            self.armed = None;
            self.effects.wakes.extend(self.reader.take());
        }
    }
}
