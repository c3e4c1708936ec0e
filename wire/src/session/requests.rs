//! Requests of both directions: one answer each, whatever happens.
//!
//! Invariants: at most `REQUESTS_MAX` a direction, cancelled ones included until the peer has answered; an
//! answer after the answer goes nowhere.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Code, Error, millis};
use crate::frame::Frame;
use crate::limits;
use crate::proto;
use crate::session::Session;
use crate::session::incoming::{Output, Violation};
use crate::session::outbox::{Opening, Response};
use crate::session::table::{Key, Named};
use crate::session::timers::Timer;

/// A request of this side. Waiting -> Answered -> (taken); Waiting -> Abandoned (the caller went away, the answer
/// is awaited) -> (gone).
pub(crate) struct CallOut {
    /// Id on the wire; 0 until it is written.
    pub(crate) id: u64,
    pub(crate) state: CallState,
    pub(crate) deadline: Option<Instant>,
}

/// See [`CallOut`].
pub(crate) enum CallState {
    Waiting(Option<Waker>),
    Answered(Result<Bytes, Error>),
    Abandoned,
}

/// A request of the peer. It stays until its handler lets go, so that churn cannot pile up work.
pub(crate) struct CallIn {
    pub(crate) id: u64,
    pub(crate) answered: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) waker: Option<Waker>,
}

/// A request of the peer, as the handler gets it.
pub(crate) struct RequestIn {
    pub(crate) key: Key,
    pub(crate) method: u32,
    pub(crate) payload: Bytes,
    pub(crate) timeout: Duration,
}

impl Session {
    /// Puts a request into the FIFO of openings.
    ///
    /// # Errors
    /// `TOO_LARGE`, `RESOURCE_EXHAUSTED`, or the connection has ended; nothing was sent.
    pub(crate) fn call(
        &mut self,
        now: Instant,
        method: u32,
        payload: Bytes,
        timeout: Duration,
    ) -> Result<Key, Error> {
        if self.ending.closed.is_some() {
            return Err(self.gone());
        }
        if payload.len() > limits::MESSAGE_MAX {
            return Err(Error::new(
                Code::TooLarge,
                "REQUEST_TOO_LARGE",
                "the request does not fit into a frame",
            ));
        }
        if self.calls_out.len() >= limits::REQUESTS_MAX {
            let text = "too many requests wait for an answer on this connection";
            return Err(Error::new(Code::ResourceExhausted, "TOO_MANY_REQUESTS", text));
        }
        let timeout = if timeout.is_zero() { limits::REQUEST_TIMEOUT } else { timeout };
        let timeout_ms = millis(timeout);
        let deadline = now + Duration::from_millis(u64::from(timeout_ms));
        let key = self.calls_out.insert(CallOut {
            id: 0,
            state: CallState::Waiting(None),
            deadline: Some(deadline),
        });
        self.enter_timer(deadline, Timer::CallOut(key));
        self.outbox.openings.push_back(Opening::Request { key, method, payload, timeout_ms });
        self.wake_writer();
        Ok(key)
    }

    /// Looks for the answer.
    pub(crate) fn poll_call(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<Result<Bytes, Error>> {
        let gone = || Err(Error::internal());
        let Some(call) = self.calls_out.get_mut(key) else { return Poll::Ready(gone()) };
        match &mut call.state {
            CallState::Waiting(waker) => {
                if !waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
                    *waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            CallState::Answered(_) | CallState::Abandoned => {
                let call = self.calls_out.remove(key);
                self.note_idle();
                match call.map(|call| call.state) {
                    Some(CallState::Answered(answer)) => Poll::Ready(answer),
                    _ => Poll::Ready(gone()),
                }
            }
        }
    }

    /// The caller went away.
    pub(crate) fn cancel_call(&mut self, key: Key) {
        let Some(call) = self.calls_out.get_mut(key) else { return };
        if let Some(at) = call.deadline.take() {
            self.timers.remove(at, Timer::CallOut(key));
        }
        let answered = matches!(call.state, CallState::Answered(_));
        if call.id == 0 || answered {
            self.calls_out.remove(key);
            self.note_idle();
            if !answered {
                self.outbox.remove_request(key);
            }
        } else {
            call.state = CallState::Abandoned;
            let id = call.id;
            self.outbox.cancels.push_back(id);
            self.wake_writer();
        }
    }

    /// The call's time is over: the caller hears it now, the peer is told, its answer is still awaited.
    pub(super) fn call_timed_out(&mut self, key: Key) {
        let Some(call) = self.calls_out.get_mut(key) else { return };
        call.deadline = None;
        let CallState::Waiting(waker) = &mut call.state else { return };
        self.effects.wakes.extend(waker.take());
        let id = call.id;
        if id == 0 {
            call.state = CallState::Answered(Err(Error::deadline()));
            self.outbox.remove_request(key);
            return;
        }
        // The caller takes its answer from an entry of its own; this one awaits the peer's.
        call.state = CallState::Answered(Err(Error::deadline()));
        self.ids.remove(&id);
        let awaiting = self.calls_out.insert(CallOut { id, state: CallState::Abandoned, deadline: None });
        self.ids.insert(id, Named::CallOut(awaiting));
        self.outbox.cancels.push_back(id);
        self.wake_writer();
    }

    pub(super) fn on_response(&mut self, key: Key, frame: &Frame<'_>) -> Result<(), Violation> {
        let part: proto::Response = frame.part(20)?;
        self.ids.remove(&frame.id);
        let Some(call) = self.calls_out.get_mut(key) else { return Ok(()) };
        if let Some(at) = call.deadline.take() {
            self.timers.remove(at, Timer::CallOut(key));
        }
        match &mut call.state {
            CallState::Waiting(waker) => {
                self.effects.wakes.extend(waker.take());
                call.state = CallState::Answered(match part.error {
                    None => Ok(Bytes::copy_from_slice(frame.payload)),
                    Some(error) => Err(Error::from_proto(error)),
                });
            }
            CallState::Answered(_) => {}
            CallState::Abandoned => {
                self.calls_out.remove(key);
                self.note_idle();
            }
        }
        Ok(())
    }

    pub(super) fn on_request(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Violation> {
        let part: proto::Request = frame.part(19)?;
        if self.outbox.responses.len() >= limits::REFUSALS_MAX {
            return Err(Violation("requests without end, and the answers are not read"));
        }
        if self.calls_in.len() >= limits::REQUESTS_MAX {
            let text = "too many requests of yours are being worked on";
            let error = Error::new(Code::ResourceExhausted, "TOO_MANY_REQUESTS", text);
            self.outbox.responses.push_back(Response { id: frame.id, answer: Err(error) });
            self.wake_writer();
            return Ok(());
        }
        let timeout = match part.timeout_ms {
            0 => limits::REQUEST_TIMEOUT,
            some => Duration::from_millis(u64::from(some)),
        };
        let deadline = now + timeout;
        let call = CallIn { id: frame.id, answered: false, deadline: Some(deadline), waker: None };
        let key = self.calls_in.insert(call);
        self.ids.insert(frame.id, Named::CallIn(key));
        self.enter_timer(deadline, Timer::CallIn(key));
        outputs.push(Output::Request(RequestIn {
            key,
            method: part.method,
            payload: Bytes::copy_from_slice(frame.payload),
            timeout,
        }));
        Ok(())
    }

    /// The peer no longer wants an answer: it gets `CANCELLED` at once, the handler is told.
    pub(super) fn on_cancel(&mut self, key: Key) {
        self.answer(key, Err(Error::cancelled()));
    }

    pub(super) fn answer_timed_out(&mut self, key: Key) {
        if let Some(call) = self.calls_in.get_mut(key) {
            call.deadline = None;
        }
        self.answer(key, Err(Error::deadline()));
    }

    fn answer(&mut self, key: Key, answer: Result<Vec<u8>, Error>) {
        let Some(call) = self.calls_in.get_mut(key) else { return };
        self.effects.wakes.extend(call.waker.take());
        if std::mem::replace(&mut call.answered, true) {
            return;
        }
        if let Some(at) = call.deadline.take() {
            self.timers.remove(at, Timer::CallIn(key));
        }
        let id = call.id;
        self.ids.remove(&id);
        if self.ending.closed.is_some() {
            return;
        }
        let answer = match answer {
            Ok(payload) if payload.len() > limits::MESSAGE_MAX => {
                let text = "the answer does not fit into a frame; the method should be a stream";
                Err(Error::new(Code::Internal, "ANSWER_TOO_LARGE", text))
            }
            other => other,
        };
        self.outbox.responses.push_back(Response { id, answer });
        self.wake_writer();
    }

    /// The handler answers, or lets go.
    pub(crate) fn respond(&mut self, key: Key, answer: Result<Vec<u8>, Error>) {
        self.answer(key, answer);
        self.calls_in.remove(key);
        self.note_idle();
    }

    /// Ready when nobody waits for the answer any more.
    pub(crate) fn poll_cancelled(&mut self, key: Key, cx: &mut Context<'_>) -> Poll<()> {
        match self.calls_in.get_mut(key) {
            Some(call) if !call.answered => {
                call.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// The connection ended: every call fails at once.
    pub(super) fn fail_calls(&mut self) {
        for key in self.calls_out.keys() {
            let unsent = self.gone();
            let Some(call) = self.calls_out.get_mut(key) else { continue };
            call.deadline = None;
            match &mut call.state {
                CallState::Waiting(waker) => {
                    self.effects.wakes.extend(waker.take());
                    call.state = CallState::Answered(Err(if call.id == 0 {
                        unsent
                    } else {
                        let text = "the connection ended before the answer came: outcome unknown";
                        Error::new(Code::Unavailable, "OUTCOME_UNKNOWN", text)
                    }));
                }
                CallState::Answered(_) => {}
                CallState::Abandoned => drop(self.calls_out.remove(key)),
            }
        }
        for key in self.calls_in.keys() {
            if let Some(call) = self.calls_in.get_mut(key) {
                call.answered = true;
                call.deadline = None;
                self.effects.wakes.extend(call.waker.take());
            }
        }
    }
}
