//! Streams that this side opens: the application's calls.
//!
//! Invariant: `on_terminal` is called exactly once for each stream that `open` returned.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::close::CloseReason;
use crate::error::{Code, Error, millis};
use crate::limits;
use crate::proto;
use crate::session::Session;
use crate::session::credit::{Receiving, Sending};
use crate::session::outbox::Opening;
use crate::session::stream::{Inflow, OnTerminal, Opener, Outflow, Role, Stream, Terminal};
use crate::session::table::Key;
use crate::session::timers::Timer;

/// What `open` sends.
#[derive(Clone, Default)]
pub struct Open {
    /// Number of the boundary's method.
    pub method: u32,
    /// The method's typed message, at most [`limits::OPEN_MESSAGE_MAX`].
    pub message: Vec<u8>,
    /// The whole body or its first part. Up to 16 KiB travel inside OPEN, the rest follows as DATA under credit.
    pub body: Bytes,
    /// The body is complete; `send_body` may not be called.
    pub end: bool,
    /// The stream is reset after this time; zero means never.
    pub timeout: Duration,
}

impl Session {
    /// Puts an OPEN into the FIFO of openings.
    ///
    /// # Errors
    /// `UNAVAILABLE` (closed, peer drains), `RESOURCE_EXHAUSTED` (streams, budget), `TOO_LARGE`. Nothing was sent
    /// and `on_terminal` will not be called.
    pub(crate) fn open(&mut self, now: Instant, open: Open, on_terminal: OnTerminal) -> Result<Key, Error> {
        if self.ending.closed.is_some() {
            return Err(self.gone());
        }
        if self.ending.peer_draining.is_some() {
            return Err(Error::new(
                Code::Unavailable,
                "DRAINING",
                "the peer is draining and takes no new streams",
            ));
        }
        if open.message.len() > limits::OPEN_MESSAGE_MAX {
            return Err(Error::new(
                Code::TooLarge,
                "OPEN_TOO_LARGE",
                "the request's head does not fit into a frame",
            ));
        }
        if self.streams_out >= self.settings.max_streams as usize {
            let text = "too many streams are open on this connection";
            return Err(Error::new(Code::ResourceExhausted, "TOO_MANY_STREAMS", text));
        }
        let Some(reservation) = self.settings.budget.reserve(limits::RESPONSE_WINDOW) else {
            let text = "this process has no receive buffer left; try again when other streams have ended";
            return Err(Error::new(Code::ResourceExhausted, "RECEIVE_BUDGET", text));
        };
        let timeout_ms = if open.timeout.is_zero() { 0 } else { millis(open.timeout) };
        let deadline = (timeout_ms > 0).then(|| now + Duration::from_millis(u64::from(timeout_ms)));
        let key = self.streams.insert(Stream {
            outflow: if open.end { Outflow::Ending } else { Outflow::Open },
            held: true,
            deadline,
            reservation: Some(reservation),
            ..Stream::new(
                Sending::new(limits::REQUEST_WINDOW, open.body),
                Receiving::new(limits::RESPONSE_WINDOW),
                Role::Opener(Opener {
                    opening: Some(proto::Open { method: open.method, timeout_ms, message: open.message }),
                    head: None,
                    head_seen: false,
                    abandoned: None,
                    terminal: None,
                    on_terminal: Some(on_terminal),
                    held: true,
                }),
            )
        });
        if let Some(at) = deadline {
            self.enter_timer(at, Timer::Stream(key));
        }
        self.streams_out += 1;
        self.outbox.openings.push_back(Opening::Stream(key));
        self.wake_writer();
        Ok(key)
    }

    /// The stream's id on the wire; 0 while OPEN is not written or once the stream is gone.
    pub(crate) fn stream_id(&self, key: Key) -> u64 {
        self.streams.get(key).map_or(0, |stream| stream.id)
    }

    /// Adds to the body (opener) or answer (answering side); ready with how much was taken.
    ///
    /// # Errors
    /// Nobody wants it any more.
    pub(crate) fn poll_push(
        &mut self,
        key: Key,
        bytes: &[u8],
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, Error>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(Error::cancelled())) };
        if let Some(error) = stream.refusal() {
            return Poll::Ready(Err(error));
        }
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let count = stream.sending.push(bytes);
        if count == 0 {
            if !stream.send_waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                stream.send_waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        self.make_ready(key);
        Poll::Ready(Ok(count))
    }

    /// The body is complete.
    pub(crate) fn finish_body(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.outflow == Outflow::Open {
            stream.outflow = Outflow::Ending;
            self.make_ready(key);
        }
    }

    /// Looks for HEAD.
    pub(crate) fn poll_head(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<Result<Bytes, Terminal>> {
        let Some(stream) = self.streams.get_mut(key) else {
            return Poll::Ready(Err(Terminal::local(Error::cancelled())));
        };
        let Some(part) = stream.opener() else {
            return Poll::Ready(Err(Terminal::local(Error::internal())));
        };
        if let Some(head) = part.head.take() {
            return Poll::Ready(Ok(head));
        }
        if let Some(terminal) = part.verdict() {
            return Poll::Ready(Err(terminal));
        }
        stream.recv_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Takes what has arrived. `None` once the terminal came (or this side wants no more) and nothing is left.
    pub(crate) fn poll_data(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(None) };
        if stream.receiving.waiting() > 0 {
            return Poll::Ready(self.take(key));
        }
        if stream.opener().is_none_or(|part| part.is_over()) {
            return Poll::Ready(None);
        }
        if !stream.recv_waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            stream.recv_waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Gives the application what waits and grants the peer more if it is time.
    pub(super) fn take(&mut self, key: Key) -> Option<Bytes> {
        let stream = self.streams.get_mut(key)?;
        let (bytes, grant) = stream.receiving.take();
        stream.waiting_since = None;
        if grant.is_some() && stream.inflow == Inflow::Open && !std::mem::replace(&mut stream.crediting, true)
        {
            self.outbox.credits.push_back(key);
            self.wake_writer();
        }
        Some(Bytes::from(bytes))
    }

    /// How the stream ended, as far as the consumer is concerned: its terminal, or why this side gave it up.
    pub(crate) fn terminal(&self, key: Key) -> Option<Terminal> {
        match &self.streams.get(key)?.role {
            Role::Opener(part) => part.verdict(),
            Role::Answerer(_) => None,
        }
    }

    /// This side wants no more: what has arrived is thrown away, RESET goes ahead of data, the terminal still comes.
    pub(crate) fn abandon(&mut self, key: Key, error: Error) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.opener().is_none_or(|part| part.is_over()) {
            return;
        }
        stream.receiving.discard();
        stream.waiting_since = None;
        stream.stop_sending();
        stream.inflow = Inflow::Unwanted;
        stream.outflow = Outflow::Done;
        self.effects.wakes.extend(stream.send_waker.take());
        self.effects.wakes.extend(stream.recv_waker.take());
        let Role::Opener(part) = &mut stream.role else { return };
        if part.opening.is_some() {
            self.outbox.remove_stream(key);
            self.terminate(
                key,
                Terminal::Ended { error: Some(error), not_processed: true, payload: Bytes::new() },
            );
            return;
        }
        part.abandoned = Some(error.clone());
        stream.reset_out = Some(error);
        self.outbox.resets.push_back(key);
        self.wake_writer();
    }

    /// The handle is gone.
    pub(crate) fn release(&mut self, key: Key) {
        if !self.streams.get_mut(key).and_then(Stream::opener).is_some_and(|part| part.is_over()) {
            self.abandon(key, Error::cancelled());
        }
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Some(part) = stream.opener() else { return };
        part.held = false;
        if part.terminal.is_some() {
            self.drop_stream(key);
        }
    }

    /// The one terminal of a stream of this side.
    pub(super) fn terminate(&mut self, key: Key, terminal: Terminal) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.outflow = Outflow::Done;
        stream.stop_sending();
        stream.inflow = Inflow::Ended;
        self.effects.wakes.extend(stream.send_waker.take());
        self.effects.wakes.extend(stream.recv_waker.take());
        if let Some(at) = stream.deadline.take() {
            self.timers.remove(at, Timer::Stream(key));
        }
        if stream.id != 0 {
            self.ids.remove(&stream.id);
        }
        let Role::Opener(part) = &mut stream.role else { return };
        if part.terminal.is_some() {
            return;
        }
        self.streams_out -= 1;
        if let Some(tell) = part.on_terminal.take() {
            self.effects.terminals.push((tell, terminal.clone()));
        }
        part.opening = None;
        part.terminal = Some(terminal);
        if !part.held {
            self.drop_stream(key);
        }
        self.note_idle();
    }

    /// Takes a stream out of the table, with its timers.
    pub(super) fn drop_stream(&mut self, key: Key) {
        let Some(stream) = self.streams.remove(key) else { return };
        if let Some(at) = stream.deadline {
            self.timers.remove(at, Timer::Stream(key));
        }
        if let Some(at) = stream.slow_at {
            self.timers.remove(at, Timer::Slow(key));
        }
    }

    /// Puts the stream into the outbox's round, if it has something to write.
    pub(super) fn make_ready(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        if stream.writable() && !stream.ready {
            stream.ready = true;
            self.outbox.ready.push_back(key);
        }
        if stream.ready {
            self.wake_writer();
        }
    }
}

/// The error of whatever a lost connection cut off.
pub(super) fn lost(reason: &CloseReason) -> Error {
    let text = format!("the connection was lost ({})", reason.name());
    Error::new(Code::Unavailable, "CONNECTION_LOST", text)
}

impl Terminal {
    /// An end this side came to by itself.
    pub(crate) fn local(error: Error) -> Self {
        Self::Ended { error: Some(error), not_processed: false, payload: Bytes::new() }
    }
}

impl Opener {
    /// Whether there is a verdict.
    fn is_over(&self) -> bool {
        self.terminal.is_some() || self.abandoned.is_some()
    }

    fn verdict(&self) -> Option<Terminal> {
        self.terminal.clone().or_else(|| self.abandoned.clone().map(Terminal::local))
    }
}

impl Stream {
    /// Why the application may not add to this side's direction.
    fn refusal(&self) -> Option<Error> {
        match &self.role {
            Role::Answerer(part) => {
                if let Some(reset) = &part.reset {
                    return Some(reset.error.clone());
                }
            }
            Role::Opener(part) => match (&part.abandoned, &part.terminal) {
                (Some(error), _) | (None, Some(Terminal::Ended { error: Some(error), .. })) => {
                    return Some(error.clone());
                }
                (None, Some(Terminal::Lost(reason))) => return Some(lost(reason)),
                (None, _) => {}
            },
        }
        let text = "the answering side takes no more of the body";
        (self.outflow != Outflow::Open).then(|| Error::new(Code::Cancelled, "BODY_NOT_WANTED", text))
    }
}
