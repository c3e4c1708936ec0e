//! The life of one engine: which state it is in, when it is started again, when it has crashed too often.
//!
//! Owns states, deadlines and the crash count; leaves processes, probes and files to `shell/engines`, which carries
//! out the [`Output`]s and reports back. Invariant: `Start` is asked for only after everything of the process before
//! it is gone, and after [`CRASHES`] crashes in [`CRASH_WINDOW`] never again.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use umbel_contracts::causes::Cause;

mod asked;
mod naming;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use words::{Exit, Input, Output, State, Traits};

/// So many crashes within [`CRASH_WINDOW`], or so many starts in a row that never got ready, are a loop.
pub(crate) const CRASHES: usize = 5;
/// Ten minutes: the time in which [`CRASHES`] make a loop, and the uptime after which an engine counts as stable.
pub(crate) const CRASH_WINDOW: Duration = Duration::from_secs(600);
/// First wait before a new start; doubled with each crash until the engine was stable.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest wait before a new start.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Between two probes while loading: a small model is ready in a fraction of a second.
const PROBE_LOADING: Duration = Duration::from_millis(200);
/// Between two probes once ready.
const PROBE_READY: Duration = Duration::from_secs(5);
/// A ready engine is not ready any more after so many failed probes in a row: one may be lost in a busy moment.
const PROBE_FAILURES: u32 = 3;
/// An engine that is not ours to start is failed when it was not reachable for so long.
const UNREACHABLE_AFTER: Duration = Duration::from_secs(10);
/// Between two rounds of SIGKILL: a process may have been born between the look and the kill.
const KILL_AGAIN: Duration = Duration::from_millis(500);
/// A profile that did not validate is looked at again so often: a port may get free, a file may appear.
const REVALIDATE: Duration = Duration::from_secs(15);

/// The supervisor of one engine.
#[derive(Debug)]
pub(crate) struct Supervisor {
    traits: Traits,
    state: State,
    cause: String,
    /// What the cause is an instance of, if that has a name.
    code: Option<Cause>,
    tail: String,
    /// How the last process ended.
    exit: Option<Exit>,
    /// Next thing to do by time.
    deadline: Option<Instant>,
    /// While loading: after this it counts as crashed (supervised) or unreachable.
    loading_until: Option<Instant>,
    /// A probe is out.
    probing: bool,
    failed_probes: u32,
    /// Times of the crashes within the window.
    crashes: VecDeque<Instant>,
    /// Crashes since it was last stable: decides the wait.
    unstable: u32,
    /// Starts in a row that ended before ready.
    never_ready: usize,
    restarts: u32,
    ready_since: Option<Instant>,
    stop: Option<Stop>,
    /// What comes once nothing is left of the process.
    then: Option<Then>,
    /// Stopped by an operator: it is not over.
    parked: bool,
}

/// What comes after an end that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Again,
    Park,
    /// It may not run as it is: it has failed, until somebody changes something.
    Fail,
}

/// An asked-for end.
#[derive(Debug, Clone, Copy)]
struct Stop {
    grace: Duration,
}

impl Supervisor {
    /// A new engine, to be validated.
    pub(crate) fn new(traits: Traits) -> (Self, Vec<Output>) {
        let supervisor = Self {
            traits,
            state: State::Validating,
            cause: String::new(),
            code: None,
            tail: String::new(),
            exit: None,
            deadline: None,
            loading_until: None,
            probing: false,
            failed_probes: 0,
            crashes: VecDeque::new(),
            unstable: 0,
            never_ready: 0,
            restarts: 0,
            ready_since: None,
            stop: None,
            then: None,
            parked: false,
        };
        (supervisor, vec![Output::Validate, Output::Report])
    }

    /// One whose process runs already: an earlier agent started it, after so many restarts. It is asked at once whether it is
    /// ready.
    pub(crate) fn adopting(now: Instant, traits: Traits, restarts: u32) -> (Self, Vec<Output>) {
        let (mut supervisor, _) = Self::new(traits);
        supervisor.restarts = restarts;
        let mut out = Vec::new();
        supervisor.enter(State::Loading, String::new(), &mut out);
        supervisor.load(now, &mut out);
        (supervisor, out)
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// From SIGTERM to SIGKILL.
    pub(crate) fn grace(&self) -> Duration {
        self.stop.map_or(GRACE, |stop| stop.grace)
    }

    /// Why it is in this state: one sentence, or nothing.
    pub(crate) fn cause(&self) -> &str {
        &self.cause
    }

    /// What the cause is an instance of; of a crash loop what it crashed for, if that has a name.
    pub(crate) fn code(&self) -> Option<Cause> {
        self.code
    }

    /// How the last process ended.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.exit
    }

    /// It has failed, and is looked at again without anybody's doing.
    pub(crate) fn looks_again(&self) -> bool {
        self.state == State::Failed && self.deadline.is_some()
    }

    /// Last output of the process that ended last; empty once ready again.
    pub(crate) fn tail(&self) -> &str {
        &self.tail
    }

    /// Starts after a crash, in all.
    pub(crate) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// When [`Input::Tick`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Nothing will happen any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Stopped && !self.parked
    }

    /// Takes one input; what to do about it. Inputs that do not fit the state are late and change nothing.
    pub(crate) fn handle(&mut self, now: Instant, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        match (input, self.state) {
            (Input::Validated(Ok(())), State::Validating | State::Failed) if self.stop.is_none() => {
                self.validated(now, &mut out);
            }
            (Input::Validated(Err(cause)), State::Validating | State::Failed) if self.stop.is_none() => {
                let report = self.state != State::Failed || self.cause != cause;
                self.state = State::Failed;
                self.say(cause);
                self.deadline = Some(now + REVALIDATE);
                if report {
                    out.push(Output::Report);
                }
            }
            (Input::Started(Ok(())), State::Starting) => {
                self.enter(State::Loading, String::new(), &mut out);
                self.load(now, &mut out);
            }
            // A stop came while it was being started: the process is ended like any other.
            (Input::Started(Ok(())), State::Stopping) => self.terminate(now, &mut out),
            (Input::Started(Err(cause)), State::Starting) => {
                let code = naming::name(&cause);
                self.crashed(now, &cause, code, &mut out);
            }
            (Input::Started(Err(_)), State::Stopping) => self.ended(&mut out),
            (Input::Probed(result), State::Loading | State::Ready | State::Failed) if self.probing => {
                self.probing = false;
                self.probed(now, result, &mut out);
            }
            (Input::Exited(exit), State::Loading | State::Ready | State::Draining) => {
                self.exited(now, exit, &mut out);
            }
            (Input::Gone { tail }, State::Restarting) => {
                self.tail = tail;
                let (cause, code) = naming::crash(&std::mem::take(&mut self.cause), &self.tail);
                self.crashed(now, &cause, code, &mut out);
            }
            (Input::Gone { tail }, State::Stopping) => {
                self.tail = tail;
                self.ended(&mut out);
            }
            (Input::Unhealthy(cause), State::Ready) if self.traits.supervised => {
                self.enter(State::Restarting, cause, &mut out);
                self.terminate(now, &mut out);
            }
            (Input::Refused(cause), State::Loading | State::Ready) if self.traits.supervised => {
                self.then.get_or_insert(Then::Fail);
                self.end(now, &cause, &mut out);
            }
            (Input::Restart { drain }, _) if self.stop.is_none() => {
                self.control(now, Then::Again, drain, &mut out);
            }
            (Input::Park { drain }, _) if self.stop.is_none() => {
                self.control(now, Then::Park, drain, &mut out)
            }
            (Input::Stop { drain, grace }, _) => self.asked_to_stop(now, drain, grace, &mut out),
            (Input::Changed(traits), _) => self.changed(now, traits, &mut out),
            (Input::Drained, State::Draining) => self.end(now, &self.why_ended(), &mut out),
            (Input::Tick, _) if self.deadline.is_some_and(|at| at <= now) => self.tick(now, &mut out),
            _ => {}
        }
        out
    }

    /// Somebody acted: crashes of what it was say nothing of what it shall be.
    fn changed(&mut self, now: Instant, traits: Traits, out: &mut Vec<Output>) {
        self.traits = traits;
        if self.stop.is_some() {
            return;
        }
        let waits = self.state == State::Starting && self.deadline.is_some();
        if waits || self.state == State::Failed {
            self.crashes.clear();
            (self.unstable, self.never_ready) = (0, 0);
        }
        if waits {
            self.deadline = Some(now);
        } else if self.state == State::Failed {
            self.deadline = None;
            self.enter(State::Validating, String::new(), out);
            out.push(Output::Validate);
        }
    }

    fn validated(&mut self, now: Instant, out: &mut Vec<Output>) {
        if self.traits.supervised {
            self.enter(State::Starting, String::new(), out);
            out.push(Output::Start);
        } else {
            self.enter(State::Loading, String::new(), out);
            self.load(now, out);
        }
    }

    /// Begins to ask whether it is ready.
    fn load(&mut self, now: Instant, out: &mut Vec<Output>) {
        let limit = if self.traits.supervised { self.traits.start_timeout } else { UNREACHABLE_AFTER };
        self.loading_until = Some(now + limit);
        self.failed_probes = 0;
        self.probing = true;
        self.deadline = Some(now + limit);
        out.push(Output::Probe);
    }

    fn probed(&mut self, now: Instant, result: Result<(), String>, out: &mut Vec<Output>) {
        match (result, self.state) {
            (Ok(()), State::Ready) => {
                self.failed_probes = 0;
                if self.ready_since.is_some_and(|since| now.duration_since(since) >= CRASH_WINDOW) {
                    self.unstable = 0;
                }
                self.deadline = Some(now + PROBE_READY);
            }
            (Ok(()), _) => {
                self.enter(State::Ready, String::new(), out);
                self.tail.clear();
                self.failed_probes = 0;
                self.never_ready = 0;
                self.ready_since = Some(now);
                self.loading_until = None;
                self.deadline = Some(now + PROBE_READY);
            }
            (Err(cause), State::Ready) => {
                self.failed_probes += 1;
                self.deadline = Some(now + PROBE_LOADING);
                if self.failed_probes >= PROBE_FAILURES {
                    let limit =
                        if self.traits.supervised { self.traits.start_timeout } else { UNREACHABLE_AFTER };
                    self.enter(State::Loading, cause, out);
                    self.loading_until = Some(now + limit);
                    self.deadline = Some(now + PROBE_LOADING);
                }
            }
            (Err(cause), State::Loading) => {
                if self.loading_until.is_some_and(|until| until <= now) {
                    self.not_ready_in_time(now, &cause, out);
                } else {
                    if self.cause != cause {
                        self.say(cause);
                        out.push(Output::Report);
                    }
                    self.deadline = Some(now + PROBE_LOADING);
                }
            }
            (Err(_), _) => self.deadline = Some(now + PROBE_READY),
        }
    }

    fn not_ready_in_time(&mut self, now: Instant, cause: &str, out: &mut Vec<Output>) {
        let cause = if cause.is_empty() { "it does not answer" } else { cause };
        if self.traits.supervised {
            let limit = self.traits.start_timeout.as_secs();
            self.enter(State::Restarting, format!("was not ready within {limit} s: {cause}"), out);
            self.terminate(now, out);
        } else {
            let cause = format!("not reachable: {cause}");
            self.enter(State::Failed, cause, out);
            self.deadline = Some(now + PROBE_READY);
        }
    }

    fn exited(&mut self, now: Instant, exit: Exit, out: &mut Vec<Output>) {
        let next = if self.stop.is_some() { State::Stopping } else { State::Restarting };
        self.exit = Some(exit);
        self.enter(next, exit.to_string(), out);
        // Whatever it left behind gets no grace: its parent is gone.
        self.deadline = Some(now + KILL_AGAIN);
        out.push(Output::Kill);
    }

    /// One more crash, with nothing of the process left.
    fn crashed(&mut self, now: Instant, cause: &str, code: Option<Cause>, out: &mut Vec<Output>) {
        let was_stable = self.ready_since.is_some_and(|since| now.duration_since(since) >= CRASH_WINDOW);
        if was_stable {
            self.unstable = 0;
        }
        if self.ready_since.take().is_none() {
            self.never_ready += 1;
        }
        while self.crashes.front().is_some_and(|at| now.duration_since(*at) > CRASH_WINDOW) {
            self.crashes.pop_front();
        }
        self.crashes.push_back(now);
        self.loading_until = None;
        if self.crashes.len() >= CRASHES || self.never_ready >= CRASHES {
            let minutes = CRASH_WINDOW.as_secs() / 60;
            let cause = format!(
                "{}: crashed {CRASHES} times within {minutes} minutes or before it was ready; the last time it {cause}",
                Cause::CrashLoop
            );
            self.enter(State::Failed, cause, out);
            // What it falls over for says more than that it does.
            self.code = code.or(Some(Cause::CrashLoop));
            self.deadline = None;
            return;
        }
        let wait = BACKOFF_FIRST.saturating_mul(1 << self.unstable.min(6)).min(BACKOFF_MAX);
        self.unstable += 1;
        self.restarts = self.restarts.saturating_add(1);
        self.enter(State::Starting, format!("{cause}; started again in {} s", wait.as_secs()), out);
        self.code = code;
        self.deadline = Some(now + wait);
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.deadline = None;
        match self.state {
            State::Failed if !self.traits.supervised => {
                self.probing = true;
                self.deadline = Some(now + UNREACHABLE_AFTER);
                out.push(Output::Probe);
            }
            State::Failed => out.push(Output::Validate),
            State::Starting => {
                // The host may have changed since the last start: its profile is checked again.
                self.enter(State::Validating, self.cause.clone(), out);
                out.push(Output::Validate);
            }
            State::Loading | State::Ready => {
                if self.probing {
                    // The probe itself hangs.
                    if self.state == State::Loading && self.loading_until.is_some_and(|until| until <= now) {
                        self.probing = false;
                        self.not_ready_in_time(now, "it does not answer", out);
                    } else {
                        self.deadline = Some(now + PROBE_READY);
                    }
                } else {
                    self.probing = true;
                    let hang =
                        self.loading_until.map_or(now + PROBE_READY, |until| until.max(now + PROBE_LOADING));
                    self.deadline = Some(hang);
                    out.push(Output::Probe);
                }
            }
            State::Draining => {
                self.end(now, "running requests did not end within the time for draining", out)
            }
            State::Restarting | State::Stopping => {
                self.deadline = Some(now + KILL_AGAIN);
                out.push(Output::Kill);
            }
            State::Validating | State::Stopped => {}
        }
    }

    fn enter(&mut self, state: State, cause: String, out: &mut Vec<Output>) {
        self.state = state;
        self.say(cause);
        self.probing = false;
        out.push(Output::Report);
    }

    fn say(&mut self, cause: String) {
        self.code = naming::name(&cause);
        self.cause = cause;
    }
}

/// From SIGTERM to SIGKILL where nobody says otherwise: llama-server ends within a second or two of SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
