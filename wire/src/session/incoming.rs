//! Frames in: what each kind does to the session.
//!
//! Validates before it changes anything. Invariant: nothing a peer sends panics, or makes this side keep more
//! than was granted; what breaks the rules closes the session with a reason.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::close::{CloseReason, Goaway};
use crate::error::Error;
use crate::frame::{self, CRITICAL, END, Frame, FrameError};
use crate::limits;
use crate::proto::{self, Kind};
use crate::session::answerer::StreamIn;
use crate::session::requests::RequestIn;
use crate::session::stream::{Inflow, Outflow, Role, Terminal};
use crate::session::table::{Key, Named};
use crate::session::timers::Timer;
use crate::session::{Session, Side};

/// What the owner of the connection must see.
pub(crate) enum Output {
    /// A request to answer.
    Request(RequestIn),
    /// An event to acknowledge.
    Event {
        /// Its number in the peer's sequence.
        sequence: u64,
        /// Number of the boundary's event.
        event: u32,
        /// Its key.
        key: String,
        /// Its typed message.
        payload: Vec<u8>,
    },
    /// An event of this side was acknowledged.
    Ack {
        /// Number of the boundary's event.
        event: u32,
        /// Its key.
        key: Arc<str>,
        /// Absent: taken.
        error: Option<Error>,
    },
    /// A stream to answer.
    Stream(StreamIn),
    /// The peer drains or closes.
    Goaway(Goaway),
}

/// A rule that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub &'static str);

impl From<FrameError> for Violation {
    fn from(_: FrameError) -> Self {
        Self("a frame is malformed")
    }
}

impl Session {
    /// Reads all complete frames of `bytes`; returns how many bytes they took. A closed session takes everything.
    pub(crate) fn read(&mut self, now: Instant, bytes: &[u8], outputs: &mut Vec<Output>) -> usize {
        self.keepalive.heard(now);
        self.arrivals += 1;
        self.effects.wakes.append(&mut self.probes);
        let mut rest = bytes;
        while self.ending.closed.is_none() {
            let result = match frame::split(rest, limits::FRAME_MAX) {
                Ok(None) => break,
                Ok(Some((body, used))) => {
                    rest = rest.get(used..).unwrap_or_default();
                    self.stats.frames_in += 1;
                    self.frame(now, body, outputs)
                }
                Err(error) => Err(error.to_string()),
            };
            if let Err(what) = result {
                self.close(CloseReason::Protocol(what));
            }
        }
        let used = if self.ending.closed.is_some() { bytes.len() } else { bytes.len() - rest.len() };
        self.stats.bytes_in += used as u64;
        used
    }

    fn frame(&mut self, now: Instant, body: &[u8], outputs: &mut Vec<Output>) -> Result<(), String> {
        let frame = Frame::decode(body).map_err(|error| error.to_string())?;
        self.dispatch(now, &frame, outputs).map_err(|Violation(what)| what.to_owned())
    }

    fn dispatch(
        &mut self,
        now: Instant,
        frame: &Frame<'_>,
        outputs: &mut Vec<Output>,
    ) -> Result<(), Violation> {
        let kind = i32::try_from(frame.kind).ok().and_then(|kind| Kind::try_from(kind).ok());
        match kind {
            Some(Kind::Data) => self.on_data(now, frame),
            Some(Kind::Credit) => self.on_credit(frame),
            Some(Kind::Ping) => {
                self.outbox.pong = Some(frame.id);
                self.wake_writer();
                Ok(())
            }
            Some(Kind::Pong) => {
                self.keepalive.pong(frame.id, now);
                Ok(())
            }
            Some(Kind::Request) => {
                self.new_id(frame.id)?;
                self.on_request(now, frame, outputs)
            }
            Some(Kind::Response) => match self.named(frame.id)? {
                Some(Named::CallOut(key)) => self.on_response(key, frame),
                Some(_) => Err(Violation("a response to what is no request of mine")),
                None => Ok(()),
            },
            Some(Kind::Cancel) => match self.named(frame.id)? {
                Some(Named::CallIn(key)) => {
                    self.on_cancel(key);
                    Ok(())
                }
                Some(_) => Err(Violation("a cancel of what is no request of yours")),
                None => Ok(()),
            },
            Some(Kind::Event) => self.on_event(frame, outputs),
            Some(Kind::Ack) => self.on_ack(frame, outputs),
            Some(Kind::Open) => {
                self.new_id(frame.id)?;
                self.on_open(now, frame, outputs)
            }
            Some(Kind::Head) => self.on_head(now, frame),
            Some(Kind::Reset) => self.on_reset(frame),
            Some(Kind::End) => self.on_end(frame),
            Some(Kind::Goaway) => self.on_goaway(frame, outputs),
            Some(Kind::Hello | Kind::Welcome | Kind::Reject) => {
                Err(Violation("a handshake frame in a session"))
            }
            Some(Kind::Unspecified) => Err(Violation("a frame without a kind")),
            None if frame.flags & CRITICAL != 0 => Err(Violation("a critical frame of an unknown kind")),
            None => {
                self.stats.unknown_kinds += 1;
                Ok(())
            }
        }
    }

    fn is_own(&self, id: u64) -> bool {
        (id % 2 == 1) == (self.settings.side == Side::Dialer)
    }

    /// Takes the id of an opening.
    fn new_id(&mut self, id: u64) -> Result<(), Violation> {
        if id == 0 || self.is_own(id) || id <= self.highest_peer {
            return Err(Violation("an opening has an id that is not the peer's next"));
        }
        self.highest_peer = id;
        Ok(())
    }

    /// What the id names. `None`: it is over, the frame is late. Ids nobody gave yet are a violation.
    #[inline]
    fn named(&mut self, id: u64) -> Result<Option<Named>, Violation> {
        if let Some(named) = self.ids.get(&id) {
            return Ok(Some(*named));
        }
        let given = if self.is_own(id) { id < self.next_id } else { id <= self.highest_peer };
        if id == 0 || !given {
            return Err(Violation("a frame for an id that was never opened"));
        }
        self.stats.late_frames += 1;
        Ok(None)
    }

    fn stream_named(&mut self, id: u64) -> Result<Option<Key>, Violation> {
        match self.named(id)? {
            Some(Named::Stream(key)) => Ok(Some(key)),
            Some(Named::CallIn(_) | Named::CallOut(_)) => Err(Violation("a stream's frame for a request")),
            None => Ok(None),
        }
    }

    fn on_data(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), Violation> {
        let end = frame.flags & END != 0;
        if frame.payload.len() > limits::DATA_MAX {
            return Err(Violation("data larger than a data frame may be"));
        }
        if frame.payload.is_empty() && !end {
            return Err(Violation("empty data"));
        }
        let Some(key) = self.stream_named(frame.id)? else { return Ok(()) };
        self.accept_data(now, key, frame.payload)?;
        if end {
            self.body_ended(key)?;
        }
        Ok(())
    }

    /// Bytes of the peer's direction, from DATA or inline.
    pub(super) fn accept_data(&mut self, now: Instant, key: Key, bytes: &[u8]) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        if stream.inflow == Inflow::Ended {
            return Err(Violation("data after the end"));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let keep = stream.inflow == Inflow::Open && stream.answerer().is_none_or(|part| part.reset.is_none());
        stream.receiving.arrived(bytes, keep).map_err(|_| Violation("data beyond the credit"))?;
        if !keep {
            return Ok(());
        }
        let waker = stream.recv_waker.take();
        if stream.waiting_since.is_none() {
            stream.waiting_since = Some(now);
            if stream.slow_at.is_none() {
                let due = now + limits::SLOW_READER;
                stream.slow_at = Some(due);
                self.enter_timer(due, Timer::Slow(key));
            }
        }
        self.effects.wakes.extend(waker);
        Ok(())
    }

    /// The flag END: only an opener's direction ends by it.
    pub(super) fn body_ended(&mut self, key: Key) -> Result<(), Violation> {
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        if stream.answerer().is_none() {
            return Err(Violation("the answering side ends a stream with END only"));
        }
        stream.inflow = Inflow::Ended;
        self.effects.wakes.extend(stream.recv_waker.take());
        Ok(())
    }

    fn on_credit(&mut self, frame: &Frame<'_>) -> Result<(), Violation> {
        let Some(key) = self.stream_named(frame.id)? else { return Ok(()) };
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sending.credit(frame.limit);
            self.make_ready(key);
        }
        Ok(())
    }

    fn on_head(&mut self, now: Instant, frame: &Frame<'_>) -> Result<(), Violation> {
        if frame.payload.len() > limits::INLINE_MAX {
            return Err(Violation("an inline answer larger than allowed"));
        }
        let Some(key) = self.stream_named(frame.id)? else { return Ok(()) };
        let message = frame.head()?;
        if message.len() > limits::HEAD_MESSAGE_MAX {
            return Err(Violation("a head larger than allowed"));
        }
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        let Role::Opener(opener) = &mut stream.role else {
            return Err(Violation("a head from the opening side"));
        };
        if std::mem::replace(&mut opener.head_seen, true) {
            return Err(Violation("a second head"));
        }
        if stream.inflow == Inflow::Open {
            opener.head = Some(Bytes::copy_from_slice(message));
            self.effects.wakes.extend(stream.recv_waker.take());
        }
        self.accept_data(now, key, frame.payload)
    }

    fn on_reset(&mut self, frame: &Frame<'_>) -> Result<(), Violation> {
        let part: proto::Reset = frame.part(26)?;
        let Some(key) = self.stream_named(frame.id)? else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        match &stream.role {
            Role::Answerer(_) => {
                let error = part.error.map_or_else(Error::cancelled, Error::from_proto);
                self.reset_in(key, error);
            }
            Role::Opener(_) => {
                stream.stop_sending();
                stream.outflow = Outflow::Done;
                self.effects.wakes.extend(stream.send_waker.take());
            }
        }
        Ok(())
    }

    fn on_end(&mut self, frame: &Frame<'_>) -> Result<(), Violation> {
        let part: proto::End = frame.part(25)?;
        let Some(key) = self.stream_named(frame.id)? else { return Ok(()) };
        if self.streams.get_mut(key).is_some_and(|stream| stream.opener().is_none()) {
            return Err(Violation("an END from the opening side"));
        }
        self.terminate(
            key,
            Terminal::Ended {
                error: part.error.map(Error::from_proto),
                not_processed: part.not_processed,
                payload: Bytes::copy_from_slice(frame.payload),
            },
        );
        Ok(())
    }

    fn on_event(&mut self, frame: &Frame<'_>, outputs: &mut Vec<Output>) -> Result<(), Violation> {
        let part: proto::Event = frame.part(21)?;
        if part.key.len() > limits::EVENT_KEY_MAX {
            return Err(Violation("an event's key is too long"));
        }
        self.stats.event_gaps += self.events.arrived(frame.id);
        outputs.push(Output::Event {
            sequence: frame.id,
            event: part.event,
            key: part.key,
            payload: frame.payload.to_vec(),
        });
        Ok(())
    }

    fn on_ack(&mut self, frame: &Frame<'_>, outputs: &mut Vec<Output>) -> Result<(), Violation> {
        let part: proto::Ack = frame.part(22)?;
        if let Some((event, key)) = self.events.acknowledged(frame.id) {
            outputs.push(Output::Ack { event, key, error: part.error.map(Error::from_proto) });
        }
        Ok(())
    }

    fn on_goaway(&mut self, frame: &Frame<'_>, outputs: &mut Vec<Output>) -> Result<(), Violation> {
        let goaway = Goaway::from_proto(frame.part(27)?);
        outputs.push(Output::Goaway(goaway.clone()));
        if goaway.closing {
            self.close(CloseReason::ByPeer(goaway));
        } else {
            self.ending.peer_draining.get_or_insert(goaway);
            self.effects.notify = true;
        }
        Ok(())
    }
}
