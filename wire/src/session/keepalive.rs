//! Whether the peer still lives: what was heard, sent and accepted last, and the PING in flight.
//!
//! Judges on bytes that arrived, not on frames that were understood. Invariant: silence is judged only by
//! `check`, which the driver calls after a read returned would-block; and a first suspicion waits a moment, so
//! that a paused process reads what has piled up before it judges.

use std::time::{Duration, Instant};

use crate::limits;

/// Between the first suspicion and the verdict: one more turn of the runtime's poller.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Nothing.
    Fine,
    /// Send a PING.
    Ping,
    /// Nothing arrived for too long.
    Silent,
    /// The socket accepted nothing for too long.
    Stalled,
}

/// The state.
#[derive(Debug)]
pub(crate) struct Keepalive {
    heard: Instant,
    sent: Instant,
    accepted: Instant,
    writing: bool,
    suspected: Option<Instant>,
    asked: bool,
    ping: Option<(u64, Instant)>,
    nonce: u64,
    round_trip: Option<Duration>,
}

impl Keepalive {
    /// A connection that has just been made.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            heard: now,
            sent: now,
            accepted: now,
            writing: false,
            suspected: None,
            asked: false,
            ping: None,
            nonce: 0,
            round_trip: None,
        }
    }

    /// Bytes arrived.
    pub(crate) fn heard(&mut self, now: Instant) {
        // The driver repeats the socket's last instant on every look: only a newer one is a sign of life.
        if now > self.heard {
            self.heard = now;
            self.suspected = None;
        }
    }

    /// A batch was handed to the socket.
    pub(crate) fn writing(&mut self, now: Instant) {
        self.sent = now;
        self.accepted = self.accepted.max(now);
        self.writing = true;
    }

    /// The socket took some of it.
    pub(crate) fn accepted(&mut self, at: Instant) {
        self.accepted = self.accepted.max(at);
    }

    /// The socket took all of it.
    pub(crate) fn written(&mut self) {
        self.writing = false;
    }

    /// The nonce of the PING to write now.
    pub(crate) fn ping(&mut self, now: Instant) -> u64 {
        self.asked = false;
        self.nonce += 1;
        self.ping = Some((self.nonce, now));
        self.nonce
    }

    /// A PONG came; one for an older PING says nothing about the time.
    pub(crate) fn pong(&mut self, nonce: u64, now: Instant) {
        if let Some((asked, at)) = self.ping
            && asked == nonce
        {
            self.round_trip = Some(now.saturating_duration_since(at));
            self.ping = None;
        }
    }

    /// Round trip of the last PING.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// When `check` has something to say.
    pub(crate) fn deadline(&self) -> Instant {
        let silence = match self.suspected {
            Some(since) => since + SECOND_LOOK,
            None => self.heard + limits::DEAD_AFTER,
        };
        let mut next = silence;
        if !self.asked {
            next = next.min(self.sent + limits::PING_AFTER);
        }
        if self.writing {
            next = next.min(self.accepted + limits::WRITE_STALL);
        }
        next
    }

    /// Judges.
    pub(crate) fn check(&mut self, now: Instant) -> Check {
        if self.writing && now >= self.accepted + limits::WRITE_STALL {
            return Check::Stalled;
        }
        if now >= self.heard + limits::DEAD_AFTER {
            match self.suspected {
                None => self.suspected = Some(now),
                Some(since) if now >= since + SECOND_LOOK => return Check::Silent,
                Some(_) => {}
            }
        }
        if !self.asked && now >= self.sent + limits::PING_AFTER {
            self.asked = true;
            return Check::Ping;
        }
        Check::Fine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn pings_when_quiet_and_judges_twice() {
        let start = Instant::now();
        let mut alive = Keepalive::new(start);
        assert_eq!(alive.deadline(), after(start, 5_000));
        assert_eq!(alive.check(after(start, 4_999)), Check::Fine);
        assert_eq!(alive.check(after(start, 5_000)), Check::Ping);
        assert_eq!(alive.check(after(start, 5_001)), Check::Fine);
        let nonce = alive.ping(after(start, 5_002));
        alive.writing(after(start, 5_002));
        alive.written();
        alive.pong(nonce, after(start, 5_012));
        assert_eq!(alive.round_trip(), Some(Duration::from_millis(10)));
        alive.heard(after(start, 5_012));
        assert_eq!(alive.check(after(start, 10_002)), Check::Ping);
        assert_eq!(alive.check(after(start, 20_012)), Check::Fine);
        assert_eq!(alive.check(after(start, 20_111)), Check::Fine);
        assert_eq!(alive.check(after(start, 20_112)), Check::Silent);
    }

    /// Fault row 16: after a long pause one PING is due, not one for each interval missed, and what arrived in the
    /// meantime is read before anyone is declared dead.
    #[test]
    fn a_pause_is_not_a_death() {
        let start = Instant::now();
        let mut alive = Keepalive::new(start);
        let awake = after(start, 600_000);
        assert_eq!(alive.check(awake), Check::Ping);
        assert_eq!(alive.check(awake), Check::Fine);
        alive.heard(awake);
        assert_eq!(alive.check(after(start, 600_200)), Check::Fine);
    }

    #[test]
    fn a_socket_that_accepts_nothing_is_stalled() {
        let start = Instant::now();
        let mut alive = Keepalive::new(start);
        alive.writing(after(start, 1_000));
        alive.heard(after(start, 15_000));
        alive.accepted(after(start, 2_000));
        assert_eq!(alive.check(after(start, 16_999)), Check::Ping);
        assert_eq!(alive.check(after(start, 17_000)), Check::Stalled);
    }
}
