//! Streams that the peer opened: the application's calls.
//!
//! Invariant: whatever happens, one END is written for each OPEN that was read, unless the connection ends first.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::frame::{END, Frame};
use crate::limits;
use crate::proto;
use crate::session::Session;
use crate::session::credit::{Receiving, Sending};
use crate::session::incoming::{Output, Violation};
use crate::session::stream::{Answerer, Inflow, Outflow, Reset, Role, Stream};
use crate::session::table::{Key, Named};
use crate::session::timers::Timer;

/// A stream of the peer, as the handler gets it.
pub(crate) struct StreamIn {
    pub(crate) key: Key,
    pub(crate) id: u64,
    pub(crate) method: u32,
    pub(crate) message: Vec<u8>,
    pub(crate) timeout: Duration,
}

impl Session {
    /// Takes what has arrived of the body; `None` at its end.
    pub(crate) fn poll_body(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Reset>> {
        let Some(stream) = self.streams.get_mut(key) else { return Poll::Ready(Err(over())) };
        if let Role::Answerer(part) = &stream.role
            && let Some(reset) = &part.reset
        {
            return Poll::Ready(Err(reset.clone()));
        }
        if stream.receiving.waiting() > 0 {
            return Poll::Ready(Ok(self.take(key)));
        }
        if stream.inflow != Inflow::Open {
            return Poll::Ready(Ok(None));
        }
        if !stream.recv_waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            stream.recv_waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// No more of the body is wanted: RESET stops the opener's direction only.
    pub(crate) fn refuse_body(&mut self, key: Key, error: Error) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        stream.receiving.discard();
        stream.waiting_since = None;
        if self.ending.closed.is_some() || stream.inflow != Inflow::Open {
            return;
        }
        stream.inflow = Inflow::Unwanted;
        stream.reset_out = Some(error);
        self.outbox.resets.push_back(key);
        self.wake_writer();
    }

    /// Puts HEAD into the outbox.
    ///
    /// # Errors
    /// `TOO_LARGE`; `CONFLICT` if one was given before, or data went ahead of it.
    pub(crate) fn send_head(&mut self, key: Key, message: Vec<u8>, inline: &[u8]) -> Result<(), Error> {
        if message.len() > limits::HEAD_MESSAGE_MAX || inline.len() > limits::INLINE_MAX {
            return Err(Error::new(
                Code::TooLarge,
                "HEAD_TOO_LARGE",
                "the answer's head does not fit into a frame",
            ));
        }
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        let untouched = stream.sending.sent() == 0 && stream.sending.waiting() == 0;
        let Role::Answerer(part) = &mut stream.role else { return Ok(()) };
        if part.reset.is_some() {
            return Ok(());
        }
        if part.head_given || !untouched {
            return Err(Error::new(Code::Conflict, "SECOND_HEAD", "the head was sent before"));
        }
        part.head_given = true;
        part.head = Some((message, inline.to_vec()));
        stream.held = true;
        self.outbox.heads.push_back(key);
        self.wake_writer();
        Ok(())
    }

    /// Ready once the stream is over for this side.
    pub(crate) fn poll_reset(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<Reset> {
        let Some(part) = self.streams.get_mut(key).and_then(|stream| stream.answerer()) else {
            return Poll::Ready(over());
        };
        if let Some(reset) = &part.reset {
            return Poll::Ready(reset.clone());
        }
        if !part.reset_waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            part.reset_waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Why the stream is over for this side, if it is.
    pub(crate) fn reset_reason(&self, key: Key) -> Option<Reset> {
        match self.streams.get(key).map(|stream| &stream.role) {
            Some(Role::Answerer(part)) => part.reset.clone(),
            _ => None,
        }
    }

    /// The one END, in its place after what was sent.
    pub(crate) fn end(&mut self, key: Key, error: Option<Error>, not_processed: bool, payload: &[u8]) {
        let closed = self.ending.closed.is_some();
        let Some(stream) = self.streams.get_mut(key) else { return };
        if closed {
            self.drop_stream(key);
            return;
        }
        let Role::Answerer(part) = &mut stream.role else { return };
        if part.end.is_some() {
            return;
        }
        let (error, payload) = if payload.len() > limits::MESSAGE_MAX {
            let text = "the end of the answer does not fit into a frame";
            (Some(Error::new(Code::Internal, "END_TOO_LARGE", text)), Vec::new())
        } else {
            (error, payload.to_vec())
        };
        let end = proto::End { error: error.map(|error| error.to_proto()), not_processed };
        part.end = Some((end, payload));
        stream.outflow = Outflow::Ending;
        self.make_ready(key);
    }

    /// Takes an OPEN, or refuses it as not processed.
    pub(super) fn on_open(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Violation> {
        if frame.payload.len() > limits::INLINE_MAX {
            return Err(Violation("an inline body larger than allowed"));
        }
        let (method, timeout_ms, message) = frame.open()?;
        let end = frame.flags & END != 0;
        let refusal = if self.ending.draining {
            Some(Error::new(Code::Unavailable, "DRAINING", "this side is draining and takes no new streams"))
        } else if self.streams_in >= self.settings.max_streams as usize {
            Some(Error::new(
                Code::Unavailable,
                "TOO_MANY_STREAMS",
                "too many streams are open on this connection",
            ))
        } else {
            None
        };
        let reservation = if end { None } else { self.settings.budget.reserve(limits::REQUEST_WINDOW) };
        let refusal = refusal.or_else(|| {
            let text = "this process has no receive buffer left";
            (!end && reservation.is_none()).then(|| Error::new(Code::Unavailable, "RECEIVE_BUDGET", text))
        });
        if let Some(error) = refusal {
            if self.outbox.refusals.len() >= limits::REFUSALS_MAX {
                return Err(Violation("openings without end, and the answers are not read"));
            }
            self.outbox.refusals.push_back((frame.id, error));
            self.wake_writer();
            return Ok(());
        }
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        let deadline = (timeout_ms > 0).then(|| now + timeout);
        let key = self.streams.insert(Stream {
            id: frame.id,
            held: false,
            deadline,
            reservation,
            ..Stream::new(
                Sending::new(limits::RESPONSE_WINDOW, Bytes::new()),
                Receiving::new(limits::REQUEST_WINDOW),
                Role::Answerer(Answerer::default()),
            )
        });
        self.streams_in += 1;
        self.ids.insert(frame.id, Named::Stream(key));
        if let Some(at) = deadline {
            self.enter_timer(at, Timer::Stream(key));
        }
        self.accept_data(now, key, frame.payload)?;
        if end {
            self.body_ended(key)?;
        }
        let (id, message) = (frame.id, message.to_vec());
        outputs.push(Output::Stream(StreamIn { key, id, method, message, timeout }));
        Ok(())
    }

    /// The opener (or its deadline, or this side's) ends the stream: what waits is thrown away, the work shall stop.
    pub(super) fn reset_in(&mut self, key: Key, error: Error) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let Role::Answerer(part) = &mut stream.role else { return };
        if part.reset.is_some() {
            return;
        }
        part.reset = Some(Reset { error });
        if part.head.take().is_some() {
            stream.held = false;
        }
        self.effects.wakes.extend(part.reset_waker.take());
        self.effects.wakes.extend(stream.send_waker.take());
        self.effects.wakes.extend(stream.recv_waker.take());
        stream.stop_sending();
        stream.receiving.discard();
        stream.waiting_since = None;
        self.make_ready(key);
    }
}

fn over() -> Reset {
    Reset { error: Error::cancelled() }
}
