//! What the site tells: to readers of the local socket and to every connected control plane.
//!
//! Owns the sequence of this process's events. Invariant: an event is told after the state it speaks of has
//! changed; a reader that is slow loses events and sees the gap, and memory stays what it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use umbel_contracts::event;
use umbel_contracts::objects::EventObject;
use umbel_contracts::proto::control::{EdgeCommandEvent, EdgeNodeEvent};
use umbel_contracts::serve::EventRing;
use umbel_wire::clock::Wall;
use umbel_wire::{Connection, EdgeId};

/// Events kept for readers of the local socket.
const KEPT: usize = 2_000;

/// Control planes by the name of their directory: those that are connected, and when each was last heard.
#[derive(Default)]
struct Links {
    connected: HashMap<String, Connection>,
    heard: HashMap<String, Wall>,
}

/// Where events go.
pub(crate) struct Events {
    edge: EdgeId,
    sequence: AtomicU64,
    ring: Arc<EventRing>,
    links: Mutex<Links>,
}

/// What happened, without what every event has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Happened {
    pub(crate) kind: &'static str,
    pub(crate) node_id: String,
    pub(crate) provider_id: String,
    pub(crate) generation: u64,
    pub(crate) deployment: String,
    pub(crate) job_id: String,
    pub(crate) message: String,
}

impl Events {
    pub(crate) fn new(edge: EdgeId, incarnation: String) -> Self {
        Self {
            edge,
            sequence: AtomicU64::new(0),
            ring: EventRing::new(incarnation, KEPT),
            links: Mutex::default(),
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this control plane is connected now, and when it was last heard since the start.
    pub(crate) fn link_of(&self, name: &str) -> (bool, Option<Wall>) {
        let links = self.links();
        (links.connected.contains_key(name), links.heard.get(name).copied())
    }

    /// It said something. There are as many names as joined control planes: those that are left go.
    pub(crate) fn heard(&self, name: &str) {
        let mut links = self.links();
        links.heard.insert(name.to_owned(), Wall::now());
    }

    /// Forgets what was heard of others than these.
    pub(crate) fn keep_heard(&self, is_joined: impl Fn(&str) -> bool) {
        self.links().heard.retain(|name, _| is_joined(name));
    }

    /// The latest events, for readers that come and go.
    pub(crate) fn ring(&self) -> &Arc<EventRing> {
        &self.ring
    }

    /// A control plane's connection is up.
    pub(crate) fn link(&self, name: &str, connection: Connection) {
        self.heard(name);
        self.links().connected.insert(name.to_owned(), connection);
    }

    /// That connection has ended; a newer one of the same name stays.
    pub(crate) fn unlink(&self, name: &str, connection: &Connection) {
        let mut links = self.links();
        if links.connected.get(name).is_some_and(|link| link.generation() == connection.generation()) {
            links.connected.remove(name);
        }
    }

    /// Tells everyone.
    pub(crate) fn tell(&self, happened: Happened) {
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        let event = EdgeNodeEvent {
            edge_id: self.edge.to_string(),
            sequence,
            at_unix_ms: Wall::now().unix_ms(),
            kind: happened.kind.to_owned(),
            node_id: happened.node_id,
            provider_id: happened.provider_id,
            generation: happened.generation,
            message: happened.message,
            deployment: happened.deployment,
            job_id: happened.job_id,
        };
        tracing::info!(kind = %event.kind, node = %event.node_id, generation = event.generation, "{}", event.message);
        let payload = event.encode_to_vec();
        // Each event has a key of its own: none may stand for another.
        let key = sequence.to_string();
        for link in self.links().connected.values() {
            link.event(event::EDGE_NODE, &key, payload.clone());
        }
        self.ring.publish(EventObject::from_proto(event));
    }

    /// Tells one control plane how one of its commands goes on.
    pub(crate) fn tell_command(&self, name: &str, event: &EdgeCommandEvent) {
        let link = self.links().connected.get(name).cloned();
        if let Some(link) = link {
            // Only the newest step of a command matters: its last one ends it.
            link.event(event::EDGE_COMMAND, &event.command_id, event.encode_to_vec());
        }
    }
}
