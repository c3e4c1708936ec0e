//! One accepted connection of a node.
//!
//! Owns what its requests and events do. Leaves every decision to the registry and to admission. Invariant:
//! everything it does carries its generation; once another has taken over, nothing it says counts and its close
//! changes nothing (row 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message;
use umbel_contracts::proto::node::{
    NodeDeclared, NodeEngines, NodeHeartbeat, NodeHeartbeatAck, NodeInventory, NodeLeases, NodeLeasesAck,
    NodeTelemetry,
};
use umbel_contracts::{bounds, event, method};
use umbel_wire::{
    CloseReason, Code, Connection, Error, Generation, Goaway, GoawayReason, Handler, IncomingRequest, NodeId,
    UnderWay, clock,
};

use crate::core::door;
use crate::core::registry::{StaleGeneration, reports};
use crate::shell::site::Site;

use super::rotation;

/// Most leases that a node may say it carries: its streams, twice over.
const LEASES_MAX: usize = 2_048;

/// Between two certificates for one connection: each is a signature and a write.
const ASKING: Duration = Duration::from_secs(1);

/// The handler of one generation.
pub(super) struct NodeSession {
    site: Arc<Site>,
    id: NodeId,
    generation: Generation,
    named: AtomicBool,
    asking: Arc<AtomicBool>,
}

impl NodeSession {
    pub(super) fn new(site: Arc<Site>, id: NodeId, generation: Generation) -> Self {
        Self { site, id, generation, named: AtomicBool::new(false), asking: Arc::default() }
    }

    /// The time for naming leases has passed since WELCOME.
    pub(super) fn naming_is_over(&self, site: &Site, connection: &Connection) {
        let named = self.named.load(Ordering::SeqCst);
        let over = |registry: &mut _| door::naming_is_over(registry, self.id, self.generation, named);
        if let Some(reason) = site.change(over) {
            tracing::warn!(node = %self.id, generation = %self.generation, "its naming of leases came to nothing: {reason}");
            return connection.close(reason);
        }
        site.settings.nudge(self.id);
    }

    fn leases(&self, connection: &Connection, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let leases = bounds::decode::<NodeLeases>(payload)?.lease_ids;
        if leases.len() > LEASES_MAX {
            let message = format!("a node carries at most {LEASES_MAX} leases");
            return Err(Error::new(Code::InvalidArgument, "TOO_MANY_LEASES", message));
        }
        let current = self.site.read(|registry| registry.slots.is_current(&self.id, self.generation));
        if !current {
            return Err(self.stale(connection));
        }
        let cancel = self.site.dispatch.carried(self.id, self.generation, &leases);
        self.named.store(true, Ordering::SeqCst);
        // The slots of leases that it must end first are not free yet: it names them again when they are gone.
        if cancel.is_empty() {
            let complete = self.site.change(|registry| registry.complete(self.id, self.generation));
            complete.map_err(|StaleGeneration| self.stale(connection))?;
            self.site.settings.nudge(self.id);
        }
        Ok(NodeLeasesAck { cancel_lease_ids: cancel }.encode_to_vec())
    }

    fn heartbeat(&self, connection: &Connection, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let mut heartbeat = bounds::decode::<NodeHeartbeat>(payload)?;
        if heartbeat.engines.len() > reports::ENGINES_MAX {
            let message = format!("a node has at most {} engines", reports::ENGINES_MAX);
            return Err(Error::new(Code::InvalidArgument, "TOO_MANY_ENGINES", message));
        }
        let wall = self.site.wall().unix_ms();
        let taken = self.site.change(|registry| {
            let settings = heartbeat.settings.take();
            registry.heartbeat(self.id, self.generation, heartbeat, clock::now(), wall)?;
            if let Some(state) = settings {
                registry.settings_said(self.id, self.generation, state)?;
            }
            Ok(registry.desired_settings(&self.id).version)
        });
        let desired_settings_version = taken.map_err(|StaleGeneration| self.stale(connection))?;
        let spread = u32::try_from(self.site.reconnect_spread().as_millis()).unwrap_or(u32::MAX);
        let ack = NodeHeartbeatAck {
            received_at_unix_ms: wall,
            desired_settings_version,
            reconnect_spread_ms: spread,
        };
        Ok(ack.encode_to_vec())
    }

    // One at a time: each is a signature and a write.
    fn credential(&self, request: IncomingRequest) {
        let Some(asking) = UnderWay::take(&self.asking) else {
            let message = "this node's last request for a certificate is not answered yet";
            let error = Error::new(Code::ResourceExhausted, "ASKING_ALREADY", message);
            return request.respond(Err(error.with_retry_after(Duration::from_secs(1))));
        };
        let (site, id, generation) = (Arc::clone(&self.site), self.id, self.generation);
        tokio::spawn(async move {
            site.trip("credential");
            let answer = rotation::give(&site, id, generation, &request.payload).await;
            request.respond(answer);
            tokio::time::sleep(ASKING).await;
            drop(asking);
        });
    }

    // A heartbeat taken from a connection that owns nothing would keep a node visible nowhere (row 4). One that was
    // replaced may still finish its streams; where nobody owns the node it has to dial anew.
    fn stale(&self, connection: &Connection) -> Error {
        let replaced = self.site.read(|registry| registry.slots.owner(&self.id).is_some());
        tracing::info!(node = %self.id, generation = %self.generation, replaced, "an older connection spoke");
        if !replaced {
            connection.close(CloseReason::Superseded);
        }
        reports::stale_error()
    }
}

impl Handler for NodeSession {
    fn on_request(&self, connection: &Connection, request: IncomingRequest) {
        if request.method == method::NODE_CREDENTIAL {
            return self.credential(request);
        }
        let answer = match request.method {
            method::NODE_HEARTBEAT => self.heartbeat(connection, &request.payload),
            method::NODE_LEASES => self.leases(connection, &request.payload),
            _ => Err(Error::new(
                Code::Unimplemented,
                "UNKNOWN_METHOD",
                "this edge does not know the method; it may be older than the agent",
            )),
        };
        request.respond(answer);
    }

    fn on_event(&self, connection: &Connection, event: u32, _key: &str, payload: &[u8]) -> Result<(), Error> {
        let now = clock::now();
        let wall = self.site.wall().unix_ms();
        let (id, generation) = (self.id, self.generation);
        match event {
            event::NODE_INVENTORY => {
                let report = bounds::decode::<NodeInventory>(payload)?;
                self.site.change(|registry| registry.inventory(id, generation, report, now, wall))
            }
            event::NODE_TELEMETRY => {
                let report = bounds::decode::<NodeTelemetry>(payload)?;
                self.site.change(|registry| registry.telemetry(id, generation, report, now, wall))
            }
            event::NODE_ENGINES => {
                let report = bounds::decode::<NodeEngines>(payload)?;
                let taken = self.site.change(|registry| registry.engines(id, generation, report));
                taken.map_err(|StaleGeneration| self.stale(connection))
            }
            event::NODE_DECLARED => {
                let declared = bounds::decode::<NodeDeclared>(payload)?;
                self.site.change(|registry| registry.redeclared(id, generation, declared, wall))
            }
            _ => Err(Error::new(Code::Unimplemented, "UNKNOWN_EVENT", "this edge does not know the event")),
        }
    }

    fn on_goaway(&self, _connection: &Connection, goaway: &Goaway) {
        if !goaway.closing && goaway.reason == GoawayReason::Shutdown.name() {
            self.site.change(|registry| registry.leaving(self.id, self.generation));
        }
    }

    fn on_closed(&self, _connection: &Connection, reason: &CloseReason) {
        let why = reason.name();
        let owner = self.site.change(|registry| registry.closed(self.id, self.generation, why));
        tracing::info!(
            node = %self.id, generation = %self.generation, owned = owner.is_some(), "a node's connection ended: {reason}"
        );
    }
}
