//! What each edge last said, in memory only, with its age by this host's own clock.
//!
//! Owns the views and their bounds. Leaves identities to `edges` and connections to `wire::slots`. Invariant: a view
//! is never stored, never older than this process, and at most [`SUMMARY_MAX`] bytes of what the edge said.
//!
//! ```text
//!   never --hello--> connected --stale time--> stale --offline time--> disconnected
//!                      ^  ^---------heartbeat----+                        |
//!                      `--------------------hello------------------------'
//!                      `--close of the current generation--> disconnected
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use umbel_contracts::names::moves_text;
use umbel_contracts::objects::EdgeConnection;
use umbel_contracts::operations::Class;
use umbel_contracts::proto::control::{EdgeHelloRequest, EdgeSummary};
use umbel_wire::error::{Code, Error};
use umbel_wire::ids::{EdgeId, Generation};
use umbel_wire::liveness::{Liveness, State, Times};

/// Encoded bytes of a summary that are kept for an edge: 10,000 edges then cost 160 MB at the very worst.
pub(crate) const SUMMARY_MAX: usize = 16 * 1024;
/// Operations that an edge may name; the design lists about sixty.
pub(crate) const OPERATIONS_MAX: usize = 256;
/// Bytes of a name or version that an edge tells.
const TEXT_MAX: usize = 128;

/// A copied credential is a problem for so long after its last try; the copy tries every half minute.
const DUPLICATE_SHOWN: Duration = Duration::from_secs(600);
/// How often silence is judged.
pub(crate) const SWEEP: Duration = Duration::from_secs(1);

/// One edge's view.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) display_name: String,
    pub(crate) software_version: String,
    pub(crate) operations: Arc<Vec<(String, Class)>>,
    pub(crate) protocol: u32,
    /// The connection that owns the view now.
    pub(crate) generation: Option<Generation>,
    /// The last connection's, kept after its end.
    pub(crate) last_generation: Option<Generation>,
    pub(crate) heard: Option<Instant>,
    pub(crate) summary: Option<Summary>,
    /// Sequence of the last event of the current connection.
    event_sequence: u64,
    pub(crate) events_lost: u64,
    /// Another process showed this edge's credential while it was connected.
    duplicate: Option<Duplicate>,
    /// It did not answer the last question in time: others are asked before it.
    pub(crate) slow: bool,
}

/// A second process with the credential of a connected edge, which knocks again and again.
#[derive(Clone, Copy, Debug)]
struct Duplicate {
    since_unix_ms: i64,
    last: Instant,
}

/// The last figures of an edge.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) said: Arc<EdgeSummary>,
    pub(crate) received: Instant,
    pub(crate) observed_at_unix_ms: i64,
}

impl View {
    /// Since when another process has been knocking with this edge's credential; `None` once it has given up.
    pub(crate) fn duplicate_since(&self, now: Instant) -> Option<i64> {
        let knocking = |seen: &Duplicate| now.saturating_duration_since(seen.last) < DUPLICATE_SHOWN;
        self.duplicate.filter(knocking).map(|seen| seen.since_unix_ms)
    }

    /// Milliseconds since anything was heard.
    pub(crate) fn heard_ms(&self, now: Instant) -> Option<u64> {
        self.heard.map(|heard| age_ms(now, heard))
    }

    /// The class that the edge named for an operation.
    pub(crate) fn class(&self, operation: &str) -> Option<Class> {
        self.operations.iter().find(|(name, _)| name == operation).map(|(_, class)| *class)
    }
}

/// Whole milliseconds from `then` to `now`.
pub(crate) fn age_ms(now: Instant, then: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
}

/// The views of all edges that said something since the start.
#[derive(Debug)]
pub(crate) struct Views {
    views: HashMap<EdgeId, View>,
    liveness: Liveness<EdgeId>,
}

/// What a heartbeat or event of an edge comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It counted.
    Yes,
    /// It came over a connection that is no longer the edge's.
    Stale,
}

impl Views {
    /// No view at all: this process has just started.
    pub(crate) fn new(times: Times, now: Instant) -> Self {
        Self { views: HashMap::new(), liveness: Liveness::new(times, SWEEP, now) }
    }

    /// Whether an edge's connection is up. Time in which this process could not have heard anybody does not count.
    pub(crate) fn connection(&self, edge_id: &EdgeId) -> EdgeConnection {
        match (self.views.get(edge_id), self.liveness.state(edge_id)) {
            (None, _) => EdgeConnection::Never,
            (Some(view), _) if view.generation.is_none() => EdgeConnection::Disconnected,
            (Some(_), Some(State::Stale)) => EdgeConnection::Stale,
            (Some(_), Some(State::Offline)) => EdgeConnection::Disconnected,
            (Some(_), _) => EdgeConnection::Connected,
        }
    }

    /// Judges silence: every connected edge whose state changed, with what happened.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<(EdgeId, Generation, &'static str)> {
        let changed = self.liveness.sweep(now);
        let told = |to| match to {
            State::Stale => Some("edge_stale"),
            State::Offline => Some("edge_offline"),
            _ => None,
        };
        let views = &self.views;
        changed
            .into_iter()
            .filter_map(|change| {
                let generation = views.get(&change.peer)?.generation?;
                Some((change.peer, generation, told(change.to)?))
            })
            .collect()
    }

    pub(crate) fn get(&self, edge_id: &EdgeId) -> Option<&View> {
        self.views.get(edge_id)
    }

    /// An accepted hello: called once the connection owns its slot.
    pub(crate) fn connected(
        &mut self,
        now: Instant,
        edge_id: &EdgeId,
        generation: Generation,
        protocol: u32,
        hello: &EdgeHelloRequest,
    ) {
        self.liveness.insert(edge_id.clone(), false);
        self.liveness.heard(edge_id, now);
        let view = self.views.entry(edge_id.clone()).or_default();
        view.display_name = clip(&hello.display_name);
        view.software_version = clip(&hello.software_version);
        view.operations = Arc::new(operations(hello));
        view.protocol = protocol;
        view.generation = Some(generation);
        view.last_generation = Some(generation);
        view.heard = Some(now);
        view.event_sequence = 0;
        view.slow = false;
    }

    /// The end of a connection; changes nothing unless it is the current one.
    pub(crate) fn disconnected(&mut self, edge_id: &EdgeId, generation: Generation) -> bool {
        match self.views.get_mut(edge_id) {
            Some(view) if view.generation == Some(generation) => {
                view.generation = None;
                true
            }
            _ => false,
        }
    }

    /// A heartbeat or a fresh answer with the edge's figures.
    pub(crate) fn summary(
        &mut self,
        now: Instant,
        edge_id: &EdgeId,
        generation: Generation,
        observed_at_unix_ms: i64,
        said: EdgeSummary,
    ) -> Result<Taken, Error> {
        if said.encoded_len() > SUMMARY_MAX {
            return Err(Error::new(
                Code::TooLarge,
                "SUMMARY_TOO_LARGE",
                format!("A summary has at most {SUMMARY_MAX} bytes; shorten the problems' texts."),
            ));
        }
        let Some(view) = self.alive(now, edge_id, generation) else {
            return Ok(Taken::Stale);
        };
        view.slow = false;
        view.summary = Some(Summary { said: Arc::new(said), received: now, observed_at_unix_ms });
        Ok(Taken::Yes)
    }

    /// Anything else that shows the edge alive.
    pub(crate) fn heard(&mut self, now: Instant, edge_id: &EdgeId, generation: Generation) {
        if let Some(view) = self.alive(now, edge_id, generation) {
            view.slow = false;
        }
    }

    /// It let a question's deadline pass.
    pub(crate) fn slow(&mut self, edge_id: &EdgeId, generation: Generation) {
        if let Some(view) = self.current(edge_id, generation) {
            view.slow = true;
        }
    }

    /// An event with the edge's sequence: how many before it never came. `None` over a stale connection.
    pub(crate) fn event(
        &mut self,
        now: Instant,
        edge_id: &EdgeId,
        generation: Generation,
        sequence: u64,
    ) -> Option<u64> {
        let view = self.alive(now, edge_id, generation)?;
        // The first one of a connection starts the count: what came before it went to another connection.
        let expected = if view.event_sequence == 0 { sequence } else { view.event_sequence + 1 };
        view.event_sequence = view.event_sequence.max(sequence);
        let lost = sequence.saturating_sub(expected);
        view.events_lost = view.events_lost.saturating_add(lost);
        Some(lost)
    }

    /// A newcomer with this edge's credential was refused because the edge is alive.
    pub(crate) fn duplicate(&mut self, now: Instant, edge_id: &EdgeId, at_unix_ms: i64) {
        if let Some(view) = self.views.get_mut(edge_id) {
            let since_unix_ms = view.duplicate_since(now).unwrap_or(at_unix_ms);
            view.duplicate = Some(Duplicate { since_unix_ms, last: now });
        }
    }

    /// The view, if this connection owns it.
    fn current(&mut self, edge_id: &EdgeId, generation: Generation) -> Option<&mut View> {
        self.views.get_mut(edge_id).filter(|view| view.generation == Some(generation))
    }

    /// The view, if this connection owns it, and it was heard from now.
    fn alive(&mut self, now: Instant, edge_id: &EdgeId, generation: Generation) -> Option<&mut View> {
        let view = self.views.get_mut(edge_id).filter(|view| view.generation == Some(generation))?;
        self.liveness.heard(edge_id, now);
        view.heard = Some(now);
        Some(view)
    }
}

fn operations(hello: &EdgeHelloRequest) -> Vec<(String, Class)> {
    hello
        .operations
        .iter()
        .filter(|operation| !operation.name.is_empty() && operation.name.len() <= 64)
        .take(OPERATIONS_MAX)
        .map(|operation| (operation.name.clone(), Class::from_number(operation.class)))
        .collect()
}

/// A text of an edge, short and without control characters: it goes to operators' terminals.
pub(crate) fn clip(text: &str) -> String {
    text.chars().filter(|letter| !moves_text(*letter)).take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests;
