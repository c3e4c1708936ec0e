//! One end of a connection without socket, task or clock, for a simulated network (feature `simulation`).
//!
//! Owns the order of bytes and calls that `io` has around a session: HELLO and its answer within their time, then the
//! session, then the farewell. Leaves carrying bytes, and when, to the simulation. Invariant: what it tells
//! ([`Heard`]) is what a handler of the real driver would be told, in the same order.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::close::{CloseReason, Goaway, GoawayReason};
use crate::error::Error;
use crate::frame::{self, PREFIX};
use crate::ids::{Attempt, InstanceId};
use crate::limits;
use crate::session::budget::Budget;
use crate::session::handshake::{self, Answer, HelloIn, Purpose, Rejection, Welcome, WelcomeOut};
use crate::session::incoming::Output;
use crate::session::opener::Open;
use crate::session::stream::Terminal;
use crate::session::table::Key;
use crate::session::{Session, Settings, Side};
use crate::version::VersionRange;

mod chance;
mod credential;
mod links;

pub use chance::Chance;
pub use credential::{Kept, Keys, Next, Renewal};
pub use links::{LinkId, Linked, take_bytes};

/// A request of the peer, to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked(Key);

/// A stream of the peer, to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incoming(Key);

/// A request of this end; numbers only grow.
pub type Call = u64;
/// A stream of this end; numbers only grow.
pub type Outgoing = u64;

/// What an end is told.
#[derive(Clone)]
pub enum Heard {
    /// The dialer said hello: to be answered by [`End::welcome`] or [`End::reject`].
    Hello(HelloIn),
    /// The acceptor took this end in.
    Welcome(Welcome),
    /// The acceptor refused it.
    Rejected(Rejection),
    /// A request to answer.
    Request(Asked, u32, Bytes),
    /// An event: its number in the peer's sequence, which, its key and its message.
    Event(u64, u32, String, Vec<u8>),
    /// The peer took an event, or says why not.
    Acknowledged(u32, Result<(), Error>),
    /// The answer to a request of this end.
    Answer(Call, Result<Bytes, Error>),
    /// A stream to answer.
    Stream(Incoming, u32, Vec<u8>),
    /// A stream of the peer is not wanted any more; its END is still owed.
    Reset(Incoming),
    /// A part of the answer to a stream of this end.
    Data(Outgoing, Bytes),
    /// A stream of this end is over.
    Terminal(Outgoing, Terminal),
    /// The peer drains or closes.
    Goaway(Goaway),
    /// The connection is over; told once, last.
    Closed(CloseReason),
}

/// Dialing -> Session, Accepting -> Session; each -> Over.
enum Phase {
    Dialing,
    Accepting,
    Session(Box<Session>),
    Over,
}

/// One end.
pub struct End {
    phase: Phase,
    since: Instant,
    side: Side,
    sequence: Arc<AtomicU64>,
    partial: Vec<u8>,
    out: Vec<u8>,
    numbers: u64,
    calls: BTreeMap<Call, Key>,
    streams: BTreeMap<Outgoing, Key>,
    incoming: Vec<Key>,
    terminals: Arc<Mutex<Vec<(Outgoing, Terminal)>>>,
    told: bool,
}

impl End {
    /// Dials: HELLO is the first thing it writes. `sequence` numbers the events of one process.
    ///
    /// # Errors
    /// If the hello does not fit into a frame.
    pub fn dial(
        now: Instant,
        purpose: Purpose,
        versions: VersionRange,
        instance: InstanceId,
        attempt: Attempt,
        payload: &[u8],
        sequence: Arc<AtomicU64>,
    ) -> Result<Self, Error> {
        let hello = handshake::hello(purpose, versions, instance, attempt, payload)?;
        Ok(Self { out: hello, sequence, ..Self::new(now, Phase::Dialing, Side::Dialer) })
    }

    /// Waits for a HELLO.
    #[must_use]
    pub fn accept(now: Instant) -> Self {
        Self::new(now, Phase::Accepting, Side::Acceptor)
    }

    fn new(now: Instant, phase: Phase, side: Side) -> Self {
        Self {
            phase,
            since: now,
            side,
            sequence: Arc::default(),
            partial: Vec::new(),
            out: Vec::new(),
            numbers: 0,
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            incoming: Vec::new(),
            terminals: Arc::default(),
            told: false,
        }
    }

    /// Whether nothing can happen here any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match &self.phase {
            Phase::Over => true,
            Phase::Session(session) => session.closed().is_some(),
            Phase::Dialing | Phase::Accepting => false,
        }
    }

    /// Bytes to be sent now.
    pub fn take_bytes(&mut self, now: Instant) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.out);
        if let Phase::Session(session) = &mut self.phase {
            while session.has_output() {
                let before = out.len();
                session.fill(now, &mut out);
                session.written();
                if out.len() == before {
                    break;
                }
            }
        }
        out
    }

    /// Bytes arrived.
    pub fn receive(&mut self, now: Instant, bytes: &[u8]) -> Vec<Heard> {
        self.partial.extend_from_slice(bytes);
        let mut heard = Vec::new();
        if matches!(self.phase, Phase::Dialing | Phase::Accepting) {
            self.first_frame(now, &mut heard);
        }
        self.read(now, &mut heard);
        heard
    }

    fn read(&mut self, now: Instant, heard: &mut Vec<Heard>) {
        if let Phase::Session(session) = &mut self.phase {
            let mut outputs = Vec::new();
            let used = session.read(now, &self.partial, &mut outputs);
            self.partial.drain(..used);
            for output in outputs {
                match output {
                    Output::Request(request) => {
                        heard.push(Heard::Request(Asked(request.key), request.method, request.payload));
                    }
                    Output::Event { sequence, event, key, payload } => {
                        heard.push(Heard::Event(sequence, event, key, payload));
                    }
                    Output::Ack { event, error, .. } => {
                        heard.push(Heard::Acknowledged(event, error.map_or(Ok(()), Err)));
                    }
                    Output::Stream(stream) => {
                        self.incoming.push(stream.key);
                        heard.push(Heard::Stream(Incoming(stream.key), stream.method, stream.message));
                    }
                    Output::Goaway(goaway) => heard.push(Heard::Goaway(goaway)),
                }
            }
        }
        self.settle(heard);
    }

    fn first_frame(&mut self, now: Instant, heard: &mut Vec<Heard>) {
        let (body, used) = match frame::split(&self.partial, limits::FRAME_MAX) {
            Ok(None) => return,
            Ok(Some((body, used))) => (body.to_vec(), used),
            Err(error) => return self.fail(CloseReason::Protocol(error.to_string()), heard),
        };
        self.partial.drain(..used.max(PREFIX));
        if matches!(self.phase, Phase::Accepting) {
            match handshake::read_hello(&body) {
                Ok(hello) => heard.push(Heard::Hello(hello)),
                Err(error) => self.reject(&Rejection::new(error)),
            }
            return;
        }
        match handshake::read_answer(&body) {
            Ok(Answer::Welcome(welcome)) => {
                let settings = self.settings(welcome.max_streams);
                self.phase = Phase::Session(Box::new(Session::new(settings, now)));
                heard.push(Heard::Welcome(welcome));
            }
            Ok(Answer::Rejected(rejection)) => {
                heard.push(Heard::Rejected(rejection));
                self.phase = Phase::Over;
            }
            Err(error) => self.fail(CloseReason::Protocol(error.to_string()), heard),
        }
    }

    fn settings(&self, max_streams: u32) -> Settings {
        // A budget of its own: what other tests of this process hold must not be seen here.
        let budget = Budget::new(limits::RECEIVE_BUDGET);
        Settings { max_streams, budget, sequence: Arc::clone(&self.sequence), ..Settings::new(self.side) }
    }

    fn fail(&mut self, reason: CloseReason, heard: &mut Vec<Heard>) {
        self.phase = Phase::Over;
        if !std::mem::replace(&mut self.told, true) {
            heard.push(Heard::Closed(reason));
        }
    }

    // Answers and ends that the session has now, and its end.
    fn settle(&mut self, heard: &mut Vec<Heard>) {
        let Phase::Session(session) = &mut self.phase else { return };
        let mut cx = Context::from_waker(Waker::noop());
        for (number, key) in &self.streams {
            while let Poll::Ready(Some(data)) = session.poll_data(*key, &mut cx) {
                heard.push(Heard::Data(*number, data));
            }
        }
        for (tell, terminal) in std::mem::take(&mut session.effects).terminals {
            tell(terminal);
        }
        let terminals = std::mem::take(&mut *self.terminals.lock().unwrap_or_else(PoisonError::into_inner));
        for (number, terminal) in terminals {
            if let Some(key) = self.streams.remove(&number) {
                session.release(key);
            }
            heard.push(Heard::Terminal(number, terminal));
        }
        self.calls.retain(|call, key| match session.poll_call(*key, &mut cx) {
            Poll::Ready(answer) => {
                heard.push(Heard::Answer(*call, answer));
                false
            }
            Poll::Pending => true,
        });
        self.incoming.retain(|key| match session.poll_reset(*key, &mut cx) {
            Poll::Ready(_) => {
                heard.push(Heard::Reset(Incoming(*key)));
                false
            }
            Poll::Pending => true,
        });
        if let Some(reason) = session.closed().cloned()
            && !std::mem::replace(&mut self.told, true)
        {
            heard.push(Heard::Closed(reason));
        }
    }

    /// When [`End::tick`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Over => None,
            Phase::Dialing | Phase::Accepting => Some(self.since + limits::STEP_TIMEOUT),
            Phase::Session(session) => session.closed().is_none().then(|| session.next_deadline()),
        }
    }

    /// Carries out what is due. Only to be called when everything that arrived was received.
    pub fn tick(&mut self, now: Instant) -> Vec<Heard> {
        let mut heard = Vec::new();
        match &mut self.phase {
            Phase::Over => {}
            Phase::Dialing | Phase::Accepting => {
                if now >= self.since + limits::STEP_TIMEOUT {
                    self.fail(CloseReason::Silent, &mut heard);
                }
            }
            Phase::Session(session) => {
                session.tick(now);
                self.settle(&mut heard);
            }
        }
        heard
    }

    /// The transport ended: the peer's process is gone, or the network gave up. `what` if it said why.
    pub fn lost(&mut self, what: Option<String>) -> Vec<Heard> {
        let mut heard = Vec::new();
        match &mut self.phase {
            Phase::Over => {}
            Phase::Dialing | Phase::Accepting => self.fail(CloseReason::Truncated, &mut heard),
            Phase::Session(session) => {
                session.input_ended(what);
                self.settle(&mut heard);
            }
        }
        heard
    }

    /// Takes the dialer in.
    pub fn welcome(&mut self, now: Instant, welcome: &WelcomeOut) -> Vec<Heard> {
        let mut session = Session::new(self.settings(welcome.max_streams), now);
        session.start(now, handshake::welcome(welcome), welcome.max_streams);
        self.phase = Phase::Session(Box::new(session));
        let mut heard = Vec::new();
        self.read(now, &mut heard);
        heard
    }

    /// Refuses the dialer; this end is over once its bytes are sent.
    pub fn reject(&mut self, rejection: &Rejection) {
        self.out.extend(handshake::reject(rejection));
        self.phase = Phase::Over;
        self.told = true;
    }

    /// Ends the exchange of an enrollment: the answer, and nothing after it.
    pub fn answer(&mut self, payload: Vec<u8>) {
        self.out.extend(handshake::welcome(&WelcomeOut { payload, ..WelcomeOut::default() }));
        self.phase = Phase::Over;
        self.told = true;
    }

    fn session(&mut self) -> Option<&mut Session> {
        match &mut self.phase {
            Phase::Session(session) => Some(session),
            _ => None,
        }
    }

    /// Sends a request; its answer comes as [`Heard::Answer`].
    ///
    /// # Errors
    /// As a connection's `request`: nothing was sent.
    pub fn request(
        &mut self,
        now: Instant,
        method: u32,
        payload: Vec<u8>,
        timeout: Duration,
    ) -> Result<Call, Error> {
        let session = self.session().ok_or_else(Error::cancelled)?;
        let key = session.call(now, method, payload.into(), timeout)?;
        self.numbers += 1;
        self.calls.insert(self.numbers, key);
        Ok(self.numbers)
    }

    /// Answers a request of the peer.
    pub fn respond(&mut self, asked: Asked, answer: Result<Vec<u8>, Error>) {
        if let Some(session) = self.session() {
            session.respond(asked.0, answer);
        }
    }

    /// Sends an event; the newest of its key wins.
    pub fn event(&mut self, event: u32, key: &str, payload: Vec<u8>) {
        if let Some(session) = self.session() {
            session.event(event, key, payload.into());
        }
    }

    /// Acknowledges an event of the peer.
    pub fn acknowledge(&mut self, sequence: u64, result: Result<(), Error>) {
        if let Some(session) = self.session() {
            session.acknowledge(sequence, result.err());
        }
    }

    /// Opens a stream without a body; its end comes as [`Heard::Terminal`].
    ///
    /// # Errors
    /// As a connection's `open`: nothing was sent.
    pub fn open(
        &mut self,
        now: Instant,
        method: u32,
        message: Vec<u8>,
        timeout: Duration,
    ) -> Result<Outgoing, Error> {
        let number = self.numbers + 1;
        let terminals = Arc::clone(&self.terminals);
        let tell = Box::new(move |terminal| {
            terminals.lock().unwrap_or_else(PoisonError::into_inner).push((number, terminal));
        });
        let open = Open { method, message, body: Bytes::new(), end: true, timeout };
        let session = self.session().ok_or_else(Error::cancelled)?;
        let key = session.open(now, open, tell)?;
        self.numbers = number;
        self.streams.insert(number, key);
        Ok(number)
    }

    /// The opener wants no more of its stream; its terminal still comes.
    pub fn abandon(&mut self, stream: Outgoing) {
        if let Some(key) = self.streams.get(&stream).copied()
            && let Some(session) = self.session()
        {
            session.abandon(key, Error::cancelled());
        }
    }

    /// Answers a stream of the peer with what fits into its first window, and ends it.
    pub fn tell(&mut self, stream: Incoming, answer: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        let taken = self.session().map(|session| session.poll_push(stream.0, answer, &mut cx));
        let whole = matches!(taken, Some(Poll::Ready(Ok(count))) if count == answer.len());
        self.end(stream, (!whole).then(Error::internal), false);
    }

    /// Ends a stream of the peer.
    pub fn end(&mut self, stream: Incoming, error: Option<Error>, not_processed: bool) {
        self.incoming.retain(|key| *key != stream.0);
        if let Some(session) = self.session() {
            session.end(stream.0, error, not_processed, &[]);
        }
    }

    /// Begins to drain.
    pub fn goaway(&mut self, reason: GoawayReason) {
        let goaway = Goaway {
            closing: false,
            reason: reason.name().to_owned(),
            message: String::new(),
            retry_after: None,
        };
        if let Some(session) = self.session() {
            session.goaway(goaway);
        }
    }

    /// Ends it; what can be told becomes its last bytes.
    pub fn close(&mut self, reason: CloseReason) -> Vec<Heard> {
        let mut heard = Vec::new();
        match &mut self.phase {
            Phase::Session(session) => {
                session.close(reason);
                self.settle(&mut heard);
            }
            _ => self.fail(reason, &mut heard),
        }
        heard
    }

    /// Asks the peer for a sign of life.
    pub fn ping(&mut self) {
        if let Some(session) = self.session() {
            session.ping();
        }
    }

    /// How often bytes arrived: what a probe compares.
    #[must_use]
    pub fn arrivals(&self) -> u64 {
        match &self.phase {
            Phase::Session(session) => session.arrivals(),
            _ => 0,
        }
    }

    /// Whether no stream and no request is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        match &self.phase {
            Phase::Session(session) => session.is_idle(),
            _ => true,
        }
    }
}
