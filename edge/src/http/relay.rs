//! An answer that flows from the engine to the client.
//!
//! Owns what is done at the end, at a failure and in silence. Leaves the bytes alone: they pass as they came.
//! Invariants: the edge adds bytes only at event boundaries, and takes out at most the usage that it asked for; the
//! event that ends a stream is the engine's own word, so a failure is one error event and an end without it, or a
//! broken connection; nothing passes after it; dropping the relay resets the stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Sleep, sleep};
use umbel_wire::OutgoingStream;

use super::exchange::{Exchange, Miss, is_unread};
use super::meter::Meter;
use super::quiet::{Due, Quiet};
use super::sse::{Ending, Grammar, Tracker};
use crate::shell::dispatch::Slot;

/// One newline: a comment with a blank line behind it breaks official clients.
const KEEPALIVE: Bytes = Bytes::from_static(b": keepalive\n");
/// How long the engine's end is waited for once its `[DONE]` has passed: it brings the token counts, and an
/// engine that is just closing is not to be reset.
const AFTER_DONE: Duration = Duration::from_secs(1);

/// The connection must break here: an end would look like success.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer broke off")]
pub(super) struct Broken;

/// An answer on its way.
pub(super) struct Relay {
    stream: OutgoingStream,
    slot: Slot,
    exchange: Box<Exchange>,
    /// Of an event stream.
    events: Option<Tracker>,
    meter: Meter,
    /// Bytes that came before the relay was made.
    before: Bytes,
    /// Of an answer that announced its length: what of it has not come.
    left: Option<u64>,
    over: bool,
    quiet: Quiet,
    /// Until the engine's end is not waited for any longer.
    rest: Option<Pin<Box<Sleep>>>,
}

impl Relay {
    /// An event stream, perhaps without the usage that only this edge asked for.
    pub(super) fn events(
        stream: OutgoingStream,
        slot: Slot,
        exchange: Box<Exchange>,
        grammar: Grammar,
        take_usage: bool,
    ) -> Self {
        let mut relay = Self::new(stream, slot, exchange, Some(Tracker::new(grammar)), Bytes::new());
        relay.meter = Meter::new(take_usage);
        relay
    }

    /// Any other answer, of which a part was read already; `announced` is its length, where it said so.
    pub(super) fn bytes(
        stream: OutgoingStream,
        slot: Slot,
        exchange: Box<Exchange>,
        before: Bytes,
        announced: Option<u64>,
    ) -> Self {
        let mut relay = Self::new(stream, slot, exchange, None, Bytes::new());
        relay.left = announced;
        relay.before = relay.counted_down(before);
        relay
    }

    fn new(
        stream: OutgoingStream,
        slot: Slot,
        exchange: Box<Exchange>,
        events: Option<Tracker>,
        before: Bytes,
    ) -> Self {
        let quiet = Quiet::default();
        let meter = Meter::default();
        Self { stream, slot, exchange, events, meter, before, left: None, over: false, quiet, rest: None }
    }

    /// The next bytes for the client.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        let next = self.poll_bytes(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &next
            && !self.over
        {
            self.exchange.passed(bytes.len());
        }
        next
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if !self.before.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.before))));
        }
        loop {
            match self.stream.poll_data(cx) {
                Poll::Ready(Some(chunk)) if chunk.is_empty() => {}
                // That was the last word, whatever the engine says after it.
                Poll::Ready(Some(_)) if self.is_done() => {}
                Poll::Ready(Some(chunk)) => {
                    let chunk = self.passing(chunk);
                    if self.quiet.ends() {
                        self.slot.goes_on();
                    }
                    if !chunk.is_empty() {
                        return Poll::Ready(Some(Ok(chunk)));
                    }
                }
                Poll::Ready(None) => {
                    let rest = self.meter.rest();
                    let rest = self.tracked(rest);
                    return if rest.is_empty() { self.finish() } else { Poll::Ready(Some(Ok(rest))) };
                }
                Poll::Pending if self.is_done() => return self.poll_rest(cx),
                Poll::Pending => return self.poll_quiet(cx),
            }
        }
    }

    /// What of the engine's bytes passes to the client now.
    fn passing(&mut self, chunk: Bytes) -> Bytes {
        if self.events.is_none() {
            return self.counted_down(chunk);
        }
        self.exchange.first_bytes();
        let chunk = self.meter.push(chunk);
        self.tracked(chunk)
    }

    fn counted_down(&mut self, chunk: Bytes) -> Bytes {
        if let Some(left) = &mut self.left
            && !chunk.is_empty()
        {
            *left = left.saturating_sub(chunk.len() as u64);
            if *left == 0 {
                self.exchange.complete();
            }
        }
        chunk
    }

    fn tracked(&mut self, mut chunk: Bytes) -> Bytes {
        if let Some(events) = &mut self.events {
            chunk.truncate(events.push(&chunk));
            if events.is_done() {
                self.exchange.complete();
            }
        }
        chunk
    }

    fn is_done(&self) -> bool {
        self.left == Some(0) || self.events.as_ref().is_some_and(Tracker::is_done)
    }

    /// Waits a little for the engine's end. Without it the stream is reset, which loses nothing but work that
    /// nobody would see.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        ready!(self.rest.get_or_insert_with(|| Box::pin(sleep(AFTER_DONE))).as_mut().poll(cx));
        Poll::Ready(self.succeed(""))
    }

    /// Nothing is there to pass on: keeps the client's connection alive, within the idle time.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Broken>>> {
        let options = self.exchange.options();
        let idle = options.idle_timeout.saturating_add(options.grace);
        loop {
            match ready!(self.quiet.poll(options.keepalive, options.stall, idle, cx)) {
                Due::Idle => {
                    return match self.events.as_ref().map(Tracker::ending) {
                        // Only its blank line is owed.
                        Some(Ending::Done(missing)) => Poll::Ready(self.succeed(missing)),
                        _ => self.fail(Miss::TimedOut),
                    };
                }
                Due::Stall => self.slot.stalls(),
                Due::Comment if self.events.as_ref().is_some_and(Tracker::at_boundary) => {
                    return Poll::Ready(Some(Ok(KEEPALIVE)));
                }
                Due::Comment => {}
            }
        }
    }

    /// The engine's part is over: was it whole?
    fn finish(&mut self) -> Poll<Option<Result<Bytes, Broken>>> {
        let terminal = self.stream.terminal();
        self.count();
        if terminal.as_ref().is_some_and(is_unread) {
            // This side gave it up since the client takes nothing: neither the engine's fault nor its end.
            self.over = true;
            self.exchange.left();
            return Poll::Ready(Some(Err(Broken)));
        }
        self.slot.ended();
        let miss = self.exchange.judge(terminal.as_ref());
        let ending = self.events.as_ref().map(Tracker::ending);
        let missing = match (ending, miss) {
            _ if self.left == Some(0) => "",
            (Some(Ending::Done(missing)), _) => missing,
            (None, None) => "",
            (_, Some(miss)) => return self.fail(miss),
            // An engine that ends without `[DONE]` has failed.
            (Some(_), None) => return self.fail(Miss::Broke),
        };
        // What the client has is complete, whatever happened to the connection behind it.
        if let Some(miss) = miss {
            self.exchange.missed(miss);
        }
        Poll::Ready(self.succeed(missing))
    }

    /// Tokens as far as this edge saw them, should the engine say nothing of them.
    fn count(&mut self) {
        self.exchange.counted(self.meter.tokens());
    }

    fn succeed(&mut self, missing: &'static str) -> Option<Result<Bytes, Broken>> {
        self.over = true;
        self.count();
        let last = Bytes::from_static(missing.as_bytes());
        self.exchange.passed(last.len());
        self.exchange.answered(200);
        (!last.is_empty()).then_some(Ok(last))
    }

    /// Ends the answer so that no client takes it for success.
    fn fail(&mut self, miss: Miss) -> Poll<Option<Result<Bytes, Broken>>> {
        self.over = true;
        self.count();
        let failure = self.exchange.broke(&mut self.slot, miss);
        self.exchange.broken(miss);
        let grammar = self.events.as_ref().map(Tracker::grammar).unwrap_or_default();
        let events = self.events.as_ref();
        Poll::Ready(match events.map(Tracker::ending) {
            Some(Ending::AtBoundary) if events.is_some_and(Tracker::ended_with_error) => None,
            Some(Ending::AtBoundary) => Some(Ok(failure.event(grammar))),
            Some(Ending::MissingBlank(blank)) => {
                Some(Ok(Bytes::from([blank.as_bytes(), &failure.event(grammar)].concat())))
            }
            _ => Some(Err(Broken)),
        })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if !self.over {
            self.count();
            self.exchange.left();
        }
    }
}
