//! Frames out: what waits to be written, and in which order a batch takes it.
//!
//! Invariants: control frames go first; messages take at most `BATCH_MESSAGES` before data gets its turn; data goes
//! round-robin in quanta, at most `BATCH_DATA` a batch, never beyond the credit, never before OPEN or HEAD.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use crate::close::Goaway;
use crate::error::Error;
use crate::frame::{self, END, Header};
use crate::limits;
use crate::proto::{self, Kind};
use crate::session::Session;
use crate::session::requests::CallState;
use crate::session::stream::{Inflow, Outflow, Role};
use crate::session::table::{Key, Named};

/// An answer to a request of the peer.
pub(crate) struct Response {
    pub(crate) id: u64,
    pub(crate) answer: Result<Vec<u8>, Error>,
}

/// An opening that has no id yet.
pub(crate) enum Opening {
    Request { key: Key, method: u32, payload: Bytes, timeout_ms: u32 },
    Stream(Key),
}

/// What waits to be written.
#[derive(Default)]
pub(crate) struct Outbox {
    /// WELCOME, as bytes.
    pub(crate) first: Vec<u8>,
    pub(crate) ping: bool,
    pub(crate) pong: Option<u64>,
    pub(crate) credits: VecDeque<Key>,
    pub(crate) cancels: VecDeque<u64>,
    pub(crate) resets: VecDeque<Key>,
    pub(crate) goaway: Option<Goaway>,
    pub(crate) responses: VecDeque<Response>,
    pub(crate) refusals: VecDeque<(u64, Error)>,
    pub(crate) openings: VecDeque<Opening>,
    pub(crate) heads: VecDeque<Key>,
    pub(crate) acks: VecDeque<(u64, Option<Error>)>,
    pub(crate) ready: VecDeque<Key>,
}

impl Outbox {
    /// Takes a request out that was not written.
    pub(crate) fn remove_request(&mut self, call: Key) {
        self.remove_opening(|opening| matches!(opening, Opening::Request { key, .. } if *key == call));
    }

    /// Takes an OPEN out that was not written.
    pub(crate) fn remove_stream(&mut self, stream: Key) {
        self.remove_opening(|opening| matches!(opening, Opening::Stream(key) if *key == stream));
    }

    fn remove_opening(&mut self, same: impl Fn(&Opening) -> bool) {
        // From the back: what is cancelled unwritten was mostly added just now.
        if let Some(at) = self.openings.iter().rposition(same) {
            self.openings.remove(at);
        }
    }

    /// Nothing but a farewell is written from now on (and WELCOME before it).
    pub(crate) fn close(&mut self, farewell: Option<Goaway>) {
        *self = Self { first: std::mem::take(&mut self.first), goaway: farewell, ..Self::default() };
    }
}

impl Session {
    /// Whether `fill` would write something.
    pub(crate) fn has_output(&self) -> bool {
        let out = &self.outbox;
        !(out.first.is_empty()
            && !out.ping
            && out.pong.is_none()
            && out.credits.is_empty()
            && out.cancels.is_empty()
            && out.resets.is_empty()
            && out.goaway.is_none()
            && out.responses.is_empty()
            && out.refusals.is_empty()
            && out.openings.is_empty()
            && out.heads.is_empty()
            && out.acks.is_empty()
            && self.events.is_empty()
            && out.ready.is_empty())
    }

    /// Appends one batch to `out`.
    pub(crate) fn fill(&mut self, now: Instant, out: &mut Vec<u8>) {
        let start = out.len();
        out.append(&mut self.outbox.first);
        self.fill_control(now, out);
        let messages = out.len();
        self.fill_messages(out, messages + limits::BATCH_MESSAGES);
        self.fill_data(out);
        if out.len() > start {
            self.stats.batches_out += 1;
            self.stats.bytes_out += (out.len() - start) as u64;
            self.keepalive.writing(now);
        }
    }

    fn fill_control(&mut self, now: Instant, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.outbox.ping) {
            let id = self.keepalive.ping(now);
            self.put(out, Header { kind: Kind::Ping as u32, id, ..Header::default() });
        }
        if let Some(id) = self.outbox.pong.take() {
            self.put(out, Header { kind: Kind::Pong as u32, id, ..Header::default() });
        }
        while let Some(key) = self.outbox.credits.pop_front() {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            stream.crediting = false;
            if stream.inflow == Inflow::Open {
                let (id, limit) = (stream.id, stream.receiving.granted());
                self.put(out, Header { kind: Kind::Credit as u32, id, limit, ..Header::default() });
            }
        }
        while let Some(id) = self.outbox.cancels.pop_front() {
            self.put(out, Header { kind: Kind::Cancel as u32, id, ..Header::default() });
        }
        while let Some(key) = self.outbox.resets.pop_front() {
            let Some(stream) = self.streams.get_mut(key) else { continue };
            if let Some(error) = stream.reset_out.take()
                && stream.inflow != Inflow::Ended
            {
                let part = proto::Reset { error: Some(error.to_proto()) };
                let id = stream.id;
                self.put_with(out, Header { kind: Kind::Reset as u32, id, ..Header::default() }, 26, &part);
            }
        }
        if let Some(goaway) = self.outbox.goaway.take() {
            let header = Header { kind: Kind::Goaway as u32, ..Header::default() };
            self.put_with(out, header, 27, &goaway.to_proto());
        }
    }

    fn fill_messages(&mut self, out: &mut Vec<u8>, until: usize) {
        while out.len() < until {
            if let Some(response) = self.outbox.responses.pop_front() {
                self.put_response(out, &response);
            } else if let Some((id, error)) = self.outbox.refusals.pop_front() {
                let part = proto::End { error: Some(error.to_proto()), not_processed: true };
                self.put_with(out, Header { kind: Kind::End as u32, id, ..Header::default() }, 25, &part);
            } else if let Some(opening) = self.outbox.openings.pop_front() {
                self.put_opening(out, opening);
            } else if let Some(key) = self.outbox.heads.pop_front() {
                self.put_head(out, key);
            } else if let Some((id, error)) = self.outbox.acks.pop_front() {
                let part = proto::Ack { error: error.map(|error| error.to_proto()) };
                self.put_with(out, Header { kind: Kind::Ack as u32, id, ..Header::default() }, 22, &part);
            } else if let Some((id, event, key, payload)) = self.events.next() {
                let part = proto::Event { event, key: key.to_string() };
                let header = Header { kind: Kind::Event as u32, id, payload: &payload, ..Header::default() };
                self.put_with(out, header, 21, &part);
            } else {
                break;
            }
        }
    }

    fn put_response(&mut self, out: &mut Vec<u8>, response: &Response) {
        let (payload, error) = match &response.answer {
            Ok(payload) => (payload.as_slice(), None),
            Err(error) => (&[][..], Some(error.to_proto())),
        };
        let header = Header { kind: Kind::Response as u32, id: response.id, payload, ..Header::default() };
        self.put_with(out, header, 20, &proto::Response { error });
    }

    /// Ids are given here, so that they are in the order of the wire.
    fn put_opening(&mut self, out: &mut Vec<u8>, opening: Opening) {
        let id = self.next_id;
        match opening {
            Opening::Request { key, method, payload, timeout_ms } => {
                let Some(call) = self.calls_out.get_mut(key) else { return };
                if !matches!(call.state, CallState::Waiting(_)) {
                    return;
                }
                call.id = id;
                self.ids.insert(id, Named::CallOut(key));
                let header =
                    Header { kind: Kind::Request as u32, id, payload: &payload, ..Header::default() };
                self.put_with(out, header, 19, &proto::Request { method, timeout_ms });
            }
            Opening::Stream(key) => {
                let Some(stream) = self.streams.get_mut(key) else { return };
                let Some(part) = stream.opener().and_then(|opener| opener.opening.take()) else { return };
                stream.id = id;
                stream.held = false;
                let room = limits::inline_room(part.message.len());
                let fits = stream.sending.waiting() <= room;
                let mut flags = 0;
                if fits && stream.outflow == Outflow::Ending {
                    stream.outflow = Outflow::Done;
                    flags = END;
                }
                let kind = Kind::Open as u32;
                stream.sending.drain(room, |payload| {
                    let header = Header { kind, id, flags, payload, ..Header::default() };
                    frame::put_with(out, header, 23, &part);
                });
                self.stats.frames_out += 1;
                self.effects.wakes.extend(stream.send_waker.take());
                self.ids.insert(id, Named::Stream(key));
                self.make_ready(key);
            }
        }
        self.next_id += 2;
    }

    fn put_head(&mut self, out: &mut Vec<u8>, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let id = stream.id;
        let Role::Answerer(part) = &mut stream.role else { return };
        let Some((message, inline)) = part.head.take() else { return };
        stream.held = false;
        stream.sending.sent_inline(inline.len());
        let header = Header { kind: Kind::Head as u32, id, payload: &inline, ..Header::default() };
        self.put_with(out, header, 24, &proto::Head { message });
        self.make_ready(key);
    }

    fn fill_data(&mut self, out: &mut Vec<u8>) {
        let mut left = limits::BATCH_DATA;
        while left > 0 {
            let Some(key) = self.outbox.ready.pop_front() else { break };
            let Some(stream) = self.streams.get_mut(key) else { continue };
            stream.ready = false;
            if !stream.writable() {
                continue;
            }
            let (id, opener) = (stream.id, matches!(stream.role, Role::Opener(_)));
            let size = stream.sending.sendable().min(limits::QUANTUM).min(left);
            let last = opener && stream.outflow == Outflow::Ending;
            let rest = stream.sending.waiting();
            if size > 0 || last {
                // A body longer than its first piece needs a further frame for the end.
                let count = stream.sending.drain_with(size, |payload, all| {
                    let flags = if last && all { END } else { 0 };
                    if !payload.is_empty() || flags != 0 {
                        frame::put(
                            out,
                            Header { kind: Kind::Data as u32, id, flags, payload, ..Header::default() },
                        );
                    }
                });
                left -= count.min(left);
                self.stats.frames_out += 1;
                if last && count == rest {
                    stream.outflow = Outflow::Done;
                }
                self.effects.wakes.extend(stream.send_waker.take());
            }
            if !opener && stream.outflow == Outflow::Ending && stream.sending.waiting() == 0 {
                self.put_end(out, key);
                continue;
            }
            if stream.writable() {
                stream.ready = true;
                if left == 0 {
                    self.outbox.ready.push_front(key);
                } else {
                    self.outbox.ready.push_back(key);
                }
            }
        }
    }

    /// The one END: the stream is over for this side.
    fn put_end(&mut self, out: &mut Vec<u8>, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let id = stream.id;
        if let Some((part, payload)) = stream.answerer().and_then(|part| part.end.take()) {
            let header = Header { kind: Kind::End as u32, id, payload: &payload, ..Header::default() };
            self.put_with(out, header, 25, &part);
        }
        self.ids.remove(&id);
        self.drop_stream(key);
        self.streams_in -= 1;
        self.note_idle();
    }

    fn put(&mut self, out: &mut Vec<u8>, header: Header<'_>) {
        frame::put(out, header);
        self.stats.frames_out += 1;
    }

    fn put_with<M: prost::Message>(&mut self, out: &mut Vec<u8>, header: Header<'_>, field: u32, part: &M) {
        frame::put_with(out, header, field, part);
        self.stats.frames_out += 1;
    }
}
