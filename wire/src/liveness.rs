//! Who is alive, judged by when the receiver heard from them.
//!
//! Owns: the measured state of each peer and its transitions. Leaves to others: lifecycle (decided by people),
//! whether a connection stands, and telling anyone.
//! Invariant: only the receiver's monotonic time counts (a peer's clock cannot make it live or dead), and time
//! during which this process could not have heard anybody (before its start, or while it was paused) never
//! counts against a peer.
//!
//! ```text
//!   never ---heartbeat---> online --stale--> stale --offline--> offline
//!   unknown --heartbeat----^  ^----------------+-------heartbeat---+
//!      `-- offline time since the start --> offline
//! ```

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// The measured state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// No heartbeat ever came.
    Never,
    /// This process has just started and cannot judge yet.
    Unknown,
    /// Heard within the stale time.
    Online,
    /// Not heard for the stale time.
    Stale,
    /// Not heard for the offline time.
    Offline,
}

impl State {
    /// In lower case, as objects and documents write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Unknown => "unknown",
            Self::Online => "online",
            Self::Stale => "stale",
            Self::Offline => "offline",
        }
    }
}

/// After how long without a heartbeat a peer counts as stale and as offline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    stale: Duration,
    offline: Duration,
}

impl Times {
    /// # Errors
    /// A sentence that says what is wrong: stale must be above zero and offline above stale.
    pub fn new(stale: Duration, offline: Duration) -> Result<Self, String> {
        if stale.is_zero() {
            return Err("stale must be longer than 0".to_owned());
        }
        if offline <= stale {
            return Err(format!("offline ({offline:?}) must be longer than stale ({stale:?})"));
        }
        Ok(Self { stale, offline })
    }

    /// Without a heartbeat for this long: stale.
    #[must_use]
    pub const fn stale(self) -> Duration {
        self.stale
    }

    /// Without a heartbeat for this long: offline.
    #[must_use]
    pub const fn offline(self) -> Duration {
        self.offline
    }
}

impl Default for Times {
    /// Three and nine missed heartbeats of ten seconds.
    fn default() -> Self {
        Self { stale: Duration::from_secs(30), offline: Duration::from_secs(90) }
    }
}

/// A peer's state changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition<K> {
    /// Whose.
    pub peer: K,
    /// What it was.
    pub from: State,
    /// What it is now.
    pub to: State,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    state: State,
    /// The last heartbeat, or since when silence counts. Moved forward by pauses of this process.
    reference: Instant,
}

/// The liveness of every peer of one acceptor. Grows only with [`Liveness::insert`], so the registry bounds it.
#[derive(Debug)]
pub struct Liveness<K> {
    times: Times,
    period: Duration,
    started: Instant,
    last_sweep: Instant,
    peers: HashMap<K, Peer>,
}

impl<K: Clone + Eq + Hash> Liveness<K> {
    /// `period` is how often the owner means to call [`Liveness::sweep`].
    #[must_use]
    pub fn new(times: Times, period: Duration, now: Instant) -> Self {
        Self { times, period, started: now, last_sweep: now, peers: HashMap::new() }
    }

    /// A peer of the registry. `seen_before` says whether any earlier process heard from it. A known one is left as it is.
    pub fn insert(&mut self, peer: K, seen_before: bool) {
        let state = if seen_before { State::Unknown } else { State::Never };
        let reference = self.started;
        self.peers.entry(peer).or_insert(Peer { state, reference });
    }

    /// The peer left the registry.
    pub fn remove(&mut self, peer: &K) {
        self.peers.remove(peer);
    }

    /// A heartbeat or an accepted hello came. Returning to online is immediate. Unknown peers are ignored.
    pub fn heard(&mut self, peer: &K, now: Instant) -> Option<Transition<K>> {
        let entry = self.peers.get_mut(peer)?;
        let from = entry.state;
        entry.reference = entry.reference.max(now);
        entry.state = State::Online;
        (from != State::Online).then(|| Transition { peer: peer.clone(), from, to: State::Online })
    }

    /// This side has ended the peer's connection and lets it in no more: it is stale from now on, not only when the
    /// silence has lasted.
    pub fn cut_off(&mut self, peer: &K) -> Option<State> {
        let entry = self.peers.get_mut(peer).filter(|entry| entry.state == State::Online)?;
        entry.state = State::Stale;
        let silent = self.last_sweep.checked_sub(self.times.stale).unwrap_or(self.last_sweep);
        entry.reference = entry.reference.min(silent);
        Some(State::Stale)
    }

    /// Judges every peer. A call that comes later than twice its period means that this process was paused: silence
    /// meanwhile was ours, and every deadline moves by the gap. One period of it still counts, so that a process
    /// that is merely always late judges slowly rather than never.
    pub fn sweep(&mut self, now: Instant) -> Vec<Transition<K>> {
        let elapsed = now.saturating_duration_since(self.last_sweep);
        let gap = if elapsed > self.period * 2 { elapsed - self.period } else { Duration::ZERO };
        self.last_sweep = self.last_sweep.max(now);
        let mut changed = Vec::new();
        for (peer, entry) in &mut self.peers {
            // What was heard after the pause must not be moved into the future.
            entry.reference = (entry.reference + gap).min(now.max(entry.reference));
            let silence = now.saturating_duration_since(entry.reference);
            let to = match entry.state {
                State::Never => State::Never,
                State::Unknown if silence < self.times.offline => State::Unknown,
                _ if silence >= self.times.offline => State::Offline,
                _ if silence >= self.times.stale => State::Stale,
                _ => State::Online,
            };
            let from = std::mem::replace(&mut entry.state, to);
            if from != to {
                changed.push(Transition { peer: peer.clone(), from, to });
            }
        }
        changed
    }

    /// When [`Liveness::sweep`] is next wanted.
    #[must_use]
    pub fn next_deadline(&self) -> Instant {
        self.last_sweep + self.period
    }

    /// New times hold from the next sweep on.
    pub fn set_times(&mut self, times: Times) {
        self.times = times;
    }

    /// The peer's state; `None` if it is not in the registry.
    #[must_use]
    pub fn state(&self, peer: &K) -> Option<State> {
        self.peers.get(peer).map(|entry| entry.state)
    }
}

#[cfg(test)]
mod tests;
