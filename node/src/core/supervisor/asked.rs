//! Ends that somebody asked for: for good, to begin anew, or until somebody says otherwise.
//!
//! Owns what an asking means in each state; leaves crashes and starts to the parent. Invariant: whoever wants it gone for
//! good overrules an operator who wants it anew.

use std::time::{Duration, Instant};

use super::{Output, State, Stop, Supervisor, Then};

impl Supervisor {
    pub(super) fn asked_to_stop(
        &mut self,
        now: Instant,
        drain: Duration,
        grace: Duration,
        out: &mut Vec<Output>,
    ) {
        self.stop = Some(Stop { grace });
        match self.state {
            State::Ready if !drain.is_zero() => {
                self.enter(State::Draining, "asked to stop".into(), out);
                self.deadline = Some(now + drain);
            }
            State::Draining if !drain.is_zero() => {}
            State::Loading | State::Ready | State::Draining => self.end(now, "asked to stop", out),
            // The process is being made right now: `Started` decides.
            State::Starting if self.deadline.is_none() => {
                self.enter(State::Stopping, "asked to stop".into(), out);
            }
            // Already on its way; a second asking may shorten the grace.
            State::Restarting | State::Stopping => {
                if self.state == State::Restarting {
                    self.enter(State::Stopping, "asked to stop".into(), out);
                }
                let until = now + grace;
                if self.deadline.is_none_or(|at| at > until) {
                    self.deadline = Some(until);
                }
            }
            State::Validating | State::Starting | State::Failed | State::Stopped => self.stopped(out),
        }
    }

    /// An operator wants it anew, or stopped.
    pub(super) fn control(&mut self, now: Instant, then: Then, drain: Duration, out: &mut Vec<Output>) {
        let before = self.then.replace(then);
        match self.state {
            State::Loading | State::Ready if self.state == State::Loading || drain.is_zero() => {
                self.end(now, &self.why_ended(), out);
            }
            State::Ready | State::Loading => {
                self.enter(State::Draining, self.why_ended(), out);
                self.deadline = Some(now + drain);
            }
            // Already on its way, and ends otherwise than was wanted.
            State::Draining | State::Stopping => {
                if before != Some(then) {
                    self.enter(self.state, self.why_ended(), out);
                }
            }
            State::Restarting => self.enter(State::Stopping, self.why_ended(), out),
            // The process is being made right now: `Started` decides.
            State::Starting if self.deadline.is_none() => self.enter(State::Stopping, self.why_ended(), out),
            State::Validating | State::Starting | State::Failed | State::Stopped => self.ended(out),
        }
    }

    pub(super) fn why_ended(&self) -> String {
        match (self.stop, self.then) {
            (None, Some(Then::Again)) => "restarted by an operator".into(),
            (None, Some(Then::Park)) => "stopped by an operator".into(),
            _ => "asked to stop".into(),
        }
    }

    /// Nothing of it is left, as asked.
    pub(super) fn ended(&mut self, out: &mut Vec<Output>) {
        let then = self.then.take().filter(|_| self.stop.is_none());
        match then {
            None => self.stopped(out),
            Some(Then::Park) => {
                self.then = Some(Then::Park);
                self.enter(State::Stopped, self.why_ended(), out);
                (self.then, self.parked, self.deadline) = (None, true, None);
            }
            Some(Then::Fail) => {
                let cause = std::mem::take(&mut self.cause);
                (self.ready_since, self.deadline) = (None, None);
                self.enter(State::Failed, cause, out);
            }
            Some(Then::Again) => {
                self.parked = false;
                self.crashes.clear();
                (self.unstable, self.never_ready, self.ready_since, self.deadline) = (0, 0, None, None);
                self.enter(State::Validating, String::new(), out);
                out.push(Output::Validate);
            }
        }
    }

    /// Ends what runs.
    pub(super) fn end(&mut self, now: Instant, cause: &str, out: &mut Vec<Output>) {
        if self.traits.supervised {
            self.enter(State::Stopping, cause.to_owned(), out);
            self.terminate(now, out);
        } else {
            self.ended(out);
        }
    }

    pub(super) fn terminate(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.deadline = Some(now + self.grace());
        out.push(Output::Terminate);
    }

    pub(super) fn stopped(&mut self, out: &mut Vec<Output>) {
        self.parked = false;
        self.enter(State::Stopped, "asked to stop".into(), out);
        self.deadline = None;
    }
}
