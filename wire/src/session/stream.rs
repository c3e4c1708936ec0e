//! What a session knows of one stream, for either side.
//!
//! Owns the states; the frames that move them are in `incoming` and `outbox`, the application's calls in
//! `opener` and `answerer`. Invariant: a stream leaves the table only after its one END was read or written
//! and its handle is gone (or with its connection).

use std::task::Waker;
use std::time::Instant;

use bytes::Bytes;

use crate::close::CloseReason;
use crate::error::Error;
use crate::proto;
use crate::session::budget::Reservation;
use crate::session::credit::{Receiving, Sending};

/// How a stream that this side opened ended. Told exactly once.
#[derive(Clone, Debug)]
pub enum Terminal {
    /// The answering side's END.
    Ended {
        /// Absent: it succeeded.
        error: Option<Error>,
        /// Refused before any work was done.
        not_processed: bool,
        /// The method's typed end message, or nothing.
        payload: Bytes,
    },
    /// The connection was lost first.
    Lost(CloseReason),
}

/// Called once with a stream's terminal.
pub(crate) type OnTerminal = Box<dyn FnOnce(Terminal) + Send>;

/// Why a stream is over for the answering side: the opener wants no more, its deadline passed, or the connection
/// is lost (`UNAVAILABLE`). Cancel the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// `CANCELLED`, `DEADLINE_EXCEEDED`, `UNAVAILABLE`, or what the opener said.
    pub error: Error,
}

/// This side's direction. Open -> Ending -> Done, or Open -> Done when nobody wants it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outflow {
    /// The application may add more.
    Open,
    /// It has added all; what waits and then the end are still to be written.
    Ending,
    /// The end was written, or is not wanted.
    Done,
}

/// The peer's direction. Open -> Ended, or Open -> Unwanted -> Ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inflow {
    /// More may come.
    Open,
    /// More may come and is thrown away.
    Unwanted,
    /// The peer's direction is complete.
    Ended,
}

/// One stream.
pub(crate) struct Stream {
    /// Id on the wire; 0 until OPEN is written.
    pub(crate) id: u64,
    pub(crate) sending: Sending,
    pub(crate) outflow: Outflow,
    /// OPEN or HEAD is not written yet, so no DATA may be.
    pub(crate) held: bool,
    /// Stands in the outbox's round.
    pub(crate) ready: bool,
    pub(crate) send_waker: Option<Waker>,
    pub(crate) receiving: Receiving,
    pub(crate) inflow: Inflow,
    pub(crate) recv_waker: Option<Waker>,
    /// A CREDIT stands in the outbox.
    pub(crate) crediting: bool,
    /// A RESET to be written.
    pub(crate) reset_out: Option<Error>,
    /// Since when data waits for the application.
    pub(crate) waiting_since: Option<Instant>,
    /// When the slow-reader timer fires.
    pub(crate) slow_at: Option<Instant>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) role: Role,
    /// Given back when the stream leaves the table.
    #[expect(dead_code, reason = "held for its drop")]
    pub(crate) reservation: Option<Reservation>,
}

/// What only one side has.
pub(crate) enum Role {
    Opener(Opener),
    Answerer(Answerer),
}

/// The opener's part.
pub(crate) struct Opener {
    /// Until it is written.
    pub(crate) opening: Option<proto::Open>,
    pub(crate) head: Option<Bytes>,
    pub(crate) head_seen: bool,
    /// Why this side wants no more, before the terminal came.
    pub(crate) abandoned: Option<Error>,
    pub(crate) terminal: Option<Terminal>,
    pub(crate) on_terminal: Option<OnTerminal>,
    /// The application still holds the handle.
    pub(crate) held: bool,
}

/// The answering side's part.
#[derive(Default)]
pub(crate) struct Answerer {
    /// Message and inline part, until they are written.
    pub(crate) head: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) head_given: bool,
    /// The END to write after what waits.
    pub(crate) end: Option<(proto::End, Vec<u8>)>,
    pub(crate) reset: Option<Reset>,
    pub(crate) reset_waker: Option<Waker>,
}

impl Stream {
    /// A stream in which nothing has happened.
    pub(crate) fn new(sending: Sending, receiving: Receiving, role: Role) -> Self {
        Self {
            id: 0,
            sending,
            outflow: Outflow::Open,
            held: false,
            ready: false,
            send_waker: None,
            receiving,
            inflow: Inflow::Open,
            recv_waker: None,
            crediting: false,
            reset_out: None,
            waiting_since: None,
            slow_at: None,
            deadline: None,
            role,
            reservation: None,
        }
    }

    /// Whether the outbox has something to write for it (data, or its end).
    pub(crate) fn writable(&self) -> bool {
        if self.held || self.outflow == Outflow::Done {
            return false;
        }
        self.sending.sendable() > 0 || (self.outflow == Outflow::Ending && self.sending.waiting() == 0)
    }

    /// This side's direction is not wanted any more.
    pub(crate) fn stop_sending(&mut self) {
        self.sending.discard();
    }

    pub(crate) fn opener(&mut self) -> Option<&mut Opener> {
        match &mut self.role {
            Role::Opener(part) => Some(part),
            Role::Answerer(_) => None,
        }
    }

    pub(crate) fn answerer(&mut self) -> Option<&mut Answerer> {
        match &mut self.role {
            Role::Answerer(part) => Some(part),
            Role::Opener(_) => None,
        }
    }
}
