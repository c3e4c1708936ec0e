//! A pair in a box: two sessions joined by byte pipes, with a clock turned by hand.
//!
//! No task, no socket, no real time: a history is a list of operations, so a failing one can be shrunk and replayed.
//! Invariant: `check` holds after each operation, whatever the history.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test stops at the first surprise"
)]

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::close::CloseReason;
use crate::error::Error;
use crate::limits;
use crate::session::budget::Budget;
use crate::session::incoming::Output;
use crate::session::opener::Open;
use crate::session::stream::{OnTerminal, Terminal};
use crate::session::table::Key;
use crate::session::{Session, Settings, Side};

mod histories;
mod rules;

/// One end: a session, what waits to be delivered to it, and what its application holds.
pub(crate) struct End {
    pub(crate) session: Session,
    /// Bytes on their way to this end.
    pub(crate) pipe: Vec<u8>,
    pub(crate) own: Vec<Own>,
    pub(crate) theirs: Vec<Theirs>,
    pub(crate) calls: Vec<Call>,
    pub(crate) requests: Vec<Key>,
    pub(crate) events: usize,
}

/// A stream this end opened.
pub(crate) struct Own {
    pub(crate) key: Key,
    pub(crate) held: bool,
    pub(crate) terminals: Arc<Mutex<Vec<Terminal>>>,
    pub(crate) sent: usize,
    pub(crate) read: usize,
    pub(crate) granted: u64,
}

/// A stream this end answers.
pub(crate) struct Theirs {
    pub(crate) key: Key,
    pub(crate) sent: usize,
    pub(crate) read: usize,
}

/// A request of this end.
pub(crate) struct Call {
    pub(crate) key: Key,
    pub(crate) answers: usize,
    pub(crate) cancelled: bool,
}

/// Both ends. `ends.0` dialed.
pub(crate) struct Pair {
    pub(crate) ends: [End; 2],
    pub(crate) now: Instant,
    unsettled: Duration,
    pub(crate) budget: Arc<Budget>,
}

/// The byte at a place of every body and answer: shows loss, doubling and disorder.
pub(crate) fn pattern(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at % 251) as u8).collect()
}

impl End {
    fn new(side: Side, now: Instant, budget: &Arc<Budget>) -> Self {
        let settings = Settings { budget: budget.clone(), max_streams: 8, ..Settings::new(side) };
        Self {
            session: Session::new(settings, now),
            pipe: Vec::new(),
            own: Vec::new(),
            theirs: Vec::new(),
            calls: Vec::new(),
            requests: Vec::new(),
            events: 0,
        }
    }

    /// Carries out what the session wants done outside its lock.
    fn effects(&mut self) {
        let effects = std::mem::take(&mut self.session.effects);
        for (tell, terminal) in effects.terminals {
            tell(terminal);
        }
    }

    fn outputs(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Request(request) => self.requests.push(request.key),
                Output::Stream(stream) => self.theirs.push(Theirs { key: stream.key, sent: 0, read: 0 }),
                Output::Event { sequence, .. } => {
                    self.events += 1;
                    self.session.acknowledge(sequence, None);
                }
                Output::Ack { .. } | Output::Goaway(_) => {}
            }
        }
    }
}

impl Pair {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let budget = Budget::new(32 * limits::REQUEST_WINDOW);
        let ends = [End::new(Side::Dialer, now, &budget), End::new(Side::Acceptor, now, &budget)];
        Self { ends, now, unsettled: Duration::ZERO, budget }
    }

    /// One batch of an end goes into the pipe.
    pub(crate) fn write(&mut self, from: usize) -> usize {
        let mut batch = Vec::new();
        let now = self.now;
        let [dialer, acceptor] = &mut self.ends;
        let (here, there) = if from == 0 { (dialer, acceptor) } else { (acceptor, dialer) };
        here.session.fill(now, &mut batch);
        here.session.written();
        here.effects();
        there.pipe.extend_from_slice(&batch);
        batch.len()
    }

    /// Up to `count` bytes of the pipe reach an end; what is no whole frame stays.
    pub(crate) fn deliver(&mut self, to: usize, count: usize) -> usize {
        let now = self.now;
        let end = &mut self.ends[to];
        let count = count.min(end.pipe.len());
        let mut outputs = Vec::new();
        let used = end.session.read(now, &end.pipe[..count], &mut outputs);
        end.pipe.drain(..used);
        end.outputs(outputs);
        end.effects();
        used
    }

    /// Everything flows until nothing more does.
    pub(crate) fn settle(&mut self) {
        self.unsettled = Duration::ZERO;
        loop {
            let mut moved = 0;
            for end in [0, 1] {
                moved += self.write(end);
                moved += self.deliver(1 - end, usize::MAX);
            }
            if moved == 0 {
                return;
            }
        }
    }

    /// Turns the clock. Whatever is on its way longer than 8 s arrives before: the pipes are slow, not dead.
    pub(crate) fn advance(&mut self, by: Duration) {
        self.unsettled += by;
        if self.unsettled > Duration::from_secs(8) {
            self.settle();
        }
        self.now += by;
        let now = self.now;
        for end in &mut self.ends {
            if end.session.next_deadline() <= now {
                end.session.tick(now);
            }
            end.effects();
        }
    }

    pub(crate) fn open(&mut self, at: usize, body: usize, finished: bool, timeout: Duration) -> bool {
        let terminals = Arc::new(Mutex::new(Vec::new()));
        let note = terminals.clone();
        let tell: OnTerminal = Box::new(move |terminal| note.lock().unwrap().push(terminal));
        let open = Open {
            method: 1,
            message: vec![1; 10],
            body: Bytes::from(pattern(0, body)),
            end: finished,
            timeout,
        };
        let now = self.now;
        let end = &mut self.ends[at];
        let opened = end.session.open(now, open, tell);
        end.effects();
        if let Ok(key) = opened {
            end.own.push(Own { key, held: true, terminals, sent: body, read: 0, granted: 0 });
        }
        opened.is_ok()
    }

    /// What every state of every history must satisfy.
    pub(crate) fn check(&mut self) {
        for end in &mut self.ends {
            let stats = end.session.stats();
            assert!(stats.streams_out <= 8 && stats.streams_in <= 8, "{stats:?}");
            assert!(stats.requests_out <= limits::REQUESTS_MAX && stats.requests_in <= limits::REQUESTS_MAX);
            assert!(stats.received_waiting <= 16 * limits::REQUEST_WINDOW);
            for own in &mut end.own {
                assert!(own.terminals.lock().unwrap().len() <= 1, "a stream has more than one terminal");
                let (waiting, granted) = end.session.receiving(own.key).unwrap_or((0, own.granted));
                assert!(waiting <= limits::RESPONSE_WINDOW, "{waiting} bytes wait");
                assert!(granted >= own.granted, "a limit went down");
                own.granted = granted;
            }
            for theirs in &end.theirs {
                let (waiting, _) = end.session.receiving(theirs.key).unwrap_or_default();
                assert!(waiting <= limits::REQUEST_WINDOW, "{waiting} bytes wait");
            }
            assert!(end.calls.iter().all(|call| call.answers <= 1), "a call has more than one answer");
            match end.session.closed() {
                None | Some(CloseReason::Shutdown | CloseReason::ByPeer(_)) => {}
                Some(other) => panic!("the session closed itself: {other}"),
            }
        }
    }

    /// The answering side ends what it was told of, also if its stream was forgotten here.
    pub(crate) fn finish_all(&mut self) {
        for end in &mut self.ends {
            for key in end.session.stream_keys() {
                end.session.end(key, None, false, b"");
            }
        }
        self.settle();
    }

    /// The application lets go of everything; then everything must have ended exactly once.
    pub(crate) fn finish(&mut self) {
        for _ in 0..4 {
            for end in &mut self.ends {
                for own in &mut end.own {
                    if std::mem::take(&mut own.held) {
                        end.session.release(own.key);
                    }
                }
                for theirs in end.theirs.drain(..) {
                    end.session.end(theirs.key, None, false, b"");
                }
                for key in end.requests.drain(..) {
                    end.session.respond(key, Err(Error::internal()));
                }
                end.effects();
            }
            self.settle();
        }
        for end in &mut self.ends {
            let mut cx = Context::from_waker(Waker::noop());
            for call in end.calls.iter_mut().filter(|call| !call.cancelled && call.answers == 0) {
                let Poll::Ready(_) = end.session.poll_call(call.key, &mut cx) else {
                    panic!("a call has no answer")
                };
                call.answers += 1;
            }
            for own in &end.own {
                assert_eq!(own.terminals.lock().unwrap().len(), 1, "a stream has no terminal");
            }
            let stats = end.session.stats();
            assert!(end.session.is_idle(), "{stats:?}");
            assert_eq!((stats.timers, stats.received_waiting, stats.send_waiting), (0, 0, 0));
        }
        assert_eq!(self.budget.used(), 0, "the budget leaks");
    }
}
