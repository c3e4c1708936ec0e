//! The connection to the edge: dialed for ever, one at a time, with everything the node says on it.
//!
//! Owns hello, leases, heartbeats and events, and what is shown of the connection; leaves dialing and its pauses to
//! `umbel_wire`, streams to `relay`. Invariant: only the newest connection gives work, and an identity is never
//! dropped because an edge cannot be reached or says no.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use prost::Message;
use tokio_util::sync::CancellationToken;
use umbel_contracts::{
    NODE_PROTOCOL, bounds, event, method,
    proto::node::{
        JobLease, NodeHelloResponse, NodeRotate, NodeRotateAck, NodeSettings, NodeSettingsResult, NodeTrust,
        NodeTrustAck,
    },
};
use umbel_wire::{
    Attempt, BoxFuture, CloseReason, Code, Connection, DialError, DialRole, DialStep, DialTarget, Error,
    Generation, Goaway, GoawayReason, Handler, HelloOut, IncomingRequest, IncomingStream, InstanceId,
    Purpose, Welcome, attend, clock::Wall, secret,
};

use crate::{
    core::identity::Identity,
    shell::{
        credential::{self, Credentials},
        engines::Engines,
        jobs::Jobs,
        relay::Relay,
        reports::Reports,
    },
};

/// The edge's word for a node that is gone for good.
pub(crate) const DECOMMISSIONED: &str = "NODE_DECOMMISSIONED";

mod engines;
mod session;
pub(crate) mod standing;

/// What is shown of the connection.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Shown {
    /// `connecting`, `connected` or `draining`.
    pub(crate) state: &'static str,
    /// Number of the connection, while there is one.
    pub(crate) generation: Option<u64>,
    pub(crate) since_unix_ms: i64,
    /// Why the last dial or connection ended.
    pub(crate) last_error: Option<LastError>,
}

/// Why a dial failed or a connection ended. For this host only: it may name what was dialed.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct LastError {
    /// `lookup`, `connect`, `tls`, `hello` or `session`.
    pub(crate) step: &'static str,
    /// A code and a reason, if the edge said why.
    pub(crate) code: Option<&'static str>,
    pub(crate) reason: Option<String>,
    pub(crate) message: String,
    pub(crate) at_unix_ms: i64,
    pub(crate) retry_in_ms: u64,
}

/// What is counted of connections since the start, for metrics.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// When the edge last took the hello or answered a heartbeat.
    pub(crate) heard: Option<(Instant, Wall)>,
    pub(crate) connections: u64,
    /// By the step that a dial or connection had come to: a handful of words.
    pub(crate) failures: BTreeMap<&'static str, u64>,
}

impl Counts {
    fn hear(&mut self) {
        self.heard = Some((Instant::now(), Wall::now()));
    }
}

#[derive(Debug)]
struct Now {
    shown: Shown,
    connection: Option<Connection>,
    counts: Counts,
}

/// The node's side of the boundary.
pub(crate) struct Edge {
    identity: Arc<Identity>,
    credentials: Arc<Credentials>,
    instance: InstanceId,
    relay: Arc<Relay>,
    reports: Arc<Reports>,
    engines: Arc<Engines>,
    jobs: Arc<Jobs>,
    now: Mutex<Now>,
    draining: CancellationToken,
    /// For the handler and the session, which outlive a call.
    own: std::sync::Weak<Edge>,
}

impl Edge {
    /// Puts the boundary together; nothing is dialed yet.
    pub(crate) fn new(
        credentials: Arc<Credentials>,
        identity: Arc<Identity>,
        relay: Arc<Relay>,
        reports: Arc<Reports>,
        engines: Arc<Engines>,
        jobs: Arc<Jobs>,
    ) -> Arc<Self> {
        let shown = Shown {
            state: "connecting",
            generation: None,
            since_unix_ms: Wall::now().unix_ms(),
            last_error: None,
        };
        Arc::new_cyclic(|own| Self {
            identity,
            credentials,
            instance: instance(),
            relay,
            reports,
            engines,
            jobs,
            now: Mutex::new(Now { shown, connection: None, counts: Counts::default() }),
            draining: CancellationToken::new(),
            own: own.clone(),
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn shown(&self) -> Shown {
        self.lock().shown.clone()
    }

    /// What is counted of connections.
    pub(crate) fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    /// The edge is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.lock().connection.is_some()
    }

    /// The edge said something.
    fn heard(&self) {
        self.lock().counts.hear();
    }

    fn current(&self) -> Option<Generation> {
        self.lock().connection.as_ref().map(Connection::generation)
    }

    /// No new streams from now on: the edge is told so, and running ones go on.
    pub(crate) fn drain(&self) {
        tracing::info!("asked to stop: running streams are finished");
        self.draining.cancel();
        self.engines.drain();
        self.jobs.close();
        let mut now = self.lock();
        now.shown.state = "draining";
        if let Some(connection) = &now.connection {
            connection.goaway(GoawayReason::Shutdown, "the node agent stops", None);
        }
    }

    /// Gives the edge its jobs back, where it can be told.
    pub(crate) async fn hand_back(&self, patience: Duration) {
        if self.is_connected() {
            self.jobs.hand_back(patience).await;
        }
    }

    /// The connection ended or could not be made.
    fn failed(&self, error: LastError) {
        if error.reason.as_deref() == Some(DECOMMISSIONED) {
            self.jobs.retire();
        }
        let mut now = self.lock();
        // While a new certificate is shown the connection before goes on.
        if !self.draining.is_cancelled() && now.connection.is_none() {
            now.shown.state = connecting(error.reason.as_deref());
        }
        *now.counts.failures.entry(error.step).or_default() += 1;
        now.shown.last_error = Some(error);
    }
}

/// The word for a node that is not connected: what keeps it out where only people can change that (row 30).
fn connecting(reason: Option<&str>) -> &'static str {
    match reason {
        Some("CERTIFICATE_EXPIRED") => "credential_expired",
        Some("CREDENTIAL_REVOKED") => "credential_revoked",
        Some("CREDENTIAL_REPLACED" | "CREDENTIAL_RETIRED") => "credential_replaced",
        Some("CREDENTIAL_HELD") => "held",
        Some("NODE_DISABLED") => "disabled",
        Some(DECOMMISSIONED) => "decommissioned",
        _ => "connecting",
    }
}

/// Where and how the edge is dialed.
pub(crate) fn target(identity: &Identity, tls: &Arc<rustls::ClientConfig>) -> DialTarget {
    DialTarget {
        addresses: identity.addresses.clone(),
        server_name: server_name(&identity.edge_id),
        tls: Arc::clone(tls),
    }
}

/// The name in an edge's server certificate.
pub(crate) fn server_name(edge_id: &str) -> String {
    format!("{edge_id}.umbel")
}

/// A random name for this start of the process.
pub(crate) fn instance() -> InstanceId {
    let mut bytes = [0; 16];
    secret::random_bytes(&mut bytes);
    InstanceId(bytes)
}

/// The word for a step.
pub(crate) fn step(step: DialStep) -> &'static str {
    match step {
        DialStep::Lookup => "lookup",
        DialStep::Connect => "connect",
        DialStep::Tls => "tls",
        DialStep::Hello => "hello",
    }
}

impl DialRole for Edge {
    fn target(&self) -> DialTarget {
        target(&self.identity, &self.credentials.dial())
    }

    fn wants_anew(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.credentials.wants_anew())
    }

    fn again_at_once(&self, error: &DialError) -> bool {
        self.credentials.failed(error.rejection.is_some())
    }

    fn hello(&self, _attempt: Attempt) -> HelloOut {
        let mut hello = self.reports.hello();
        hello.trusted_ca_sha256 = self.credentials.trusted();
        hello.jobs = self.jobs.names();
        HelloOut {
            purpose: Purpose::Hello,
            versions: NODE_PROTOCOL,
            instance: self.instance,
            payload: hello.encode_to_vec(),
        }
    }

    fn on_welcome(&self, connection: &Connection, welcome: &Welcome) -> Result<Arc<dyn Handler>, Error> {
        let hello: NodeHelloResponse = bounds::decode(&welcome.payload)?;
        if hello.edge_id != self.identity.edge_id {
            return Err(Error::new(
                Code::PermissionDenied,
                "OTHER_EDGE",
                "another edge answers at this address",
            ));
        }
        let own =
            self.own.upgrade().ok_or_else(|| Error::new(Code::Unavailable, "STOPPING", "the agent stops"))?;
        self.reports.raise(hello.inventory_sequence, hello.telemetry_sequence);
        let generation = connection.generation();
        tracing::info!(edge = %hello.edge_id, %generation, protocol = welcome.protocol, "connected to the edge");
        {
            let mut now = self.lock();
            now.shown.state = if self.draining.is_cancelled() { "draining" } else { "connected" };
            now.shown.generation = Some(generation.0);
            now.shown.since_unix_ms = Wall::now().unix_ms();
            now.shown.last_error = None;
            now.connection = Some(connection.clone());
            now.counts.connections += 1;
            now.counts.hear();
        }
        if self.draining.is_cancelled() {
            connection.goaway(GoawayReason::Shutdown, "the node agent stops", None);
        }
        self.credentials.accepted();
        let credentials = Arc::clone(&self.credentials);
        let bundle = hello.ca_certificates;
        attend(
            connection,
            credential::talk(credentials, connection.clone(), bundle, hello.rotate_credential),
        );
        attend(connection, session::talk(Arc::clone(&own), connection.clone(), welcome.intervals));
        Ok(Arc::new(Taker { edge: own, generation }))
    }

    fn on_failure(&self, error: &DialError, retry_in: Duration) {
        let said = error.rejection.as_ref().map(|rejection| &rejection.error);
        let code = said.map(|error| error.code.name());
        tracing::warn!(
            edge = %self.identity.edge_id,
            step = step(error.step),
            code,
            reason = said.map(|error| error.reason.as_ref()),
            retry_in_ms = millis(retry_in),
            "cannot connect to the edge: {}",
            error.message
        );
        self.failed(LastError {
            step: step(error.step),
            code,
            reason: said.map(|error| error.reason.to_string()),
            message: error.message.clone(),
            at_unix_ms: Wall::now().unix_ms(),
            retry_in_ms: millis(retry_in),
        });
    }

    fn on_lost(&self, reason: &CloseReason, retry_in: Duration) {
        tracing::warn!(edge = %self.identity.edge_id, retry_in_ms = millis(retry_in), "connection to the edge ended: {reason}");
        self.failed(LastError {
            step: "session",
            code: None,
            reason: Some(reason.name().to_owned()),
            message: reason.to_string(),
            at_unix_ms: Wall::now().unix_ms(),
            retry_in_ms: millis(retry_in),
        });
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Takes what comes on one connection.
struct Taker {
    edge: Arc<Edge>,
    generation: Generation,
}

impl Handler for Taker {
    fn on_stream(&self, _connection: &Connection, stream: IncomingStream) {
        if stream.method() == method::INFERENCE {
            // Without a connection there is no generation that this one could be.
            let current = self.edge.current().unwrap_or_default();
            self.edge.relay.take(stream, self.generation, current);
        } else {
            stream.fail(
                Error::new(Code::Unimplemented, "UNKNOWN_METHOD", "this node does not know the method"),
                true,
                &[],
            );
        }
    }

    fn on_request(&self, _connection: &Connection, request: IncomingRequest) {
        match request.method {
            method::NODE_ROTATE => {
                let answer = bounds::decode::<NodeRotate>(&request.payload).map(|rotate| {
                    self.edge.credentials.ask(&rotate.cause);
                    NodeRotateAck {}.encode_to_vec()
                });
                request.respond(answer);
            }
            method::NODE_JOB_LEASE => {
                // An older connection's leases are over, or will be.
                if self.edge.current() != Some(self.generation) {
                    let message = "a newer connection has taken over; it gives the jobs";
                    return request.respond(Err(Error::new(Code::Conflict, "STALE_GENERATION", message)));
                }
                let lease = bounds::decode::<JobLease>(&request.payload);
                request.respond(lease.map(|lease| self.edge.jobs.take(lease).encode_to_vec()));
            }
            method::NODE_ENGINE_OUTPUT => engines::output(&self.edge, request),
            method::NODE_ENGINE_CONTROL => engines::control(&self.edge, request),
            method::NODE_SETTINGS => {
                let settings = Arc::clone(self.edge.reports.settings());
                tokio::spawn(async move {
                    let answer = match bounds::decode::<NodeSettings>(&request.payload) {
                        Ok(sent) => settings.take(sent).await,
                        Err(error) => Err(error),
                    };
                    let result = |state| NodeSettingsResult { state: Some(state) }.encode_to_vec();
                    request.respond(answer.map(result));
                });
            }
            method::NODE_TRUST => {
                // What an older connection still carries was overtaken by what the newer one said at its welcome.
                if self.edge.current() != Some(self.generation) {
                    let message = "a newer connection has taken over; it says whom to trust";
                    return request.respond(Err(Error::new(Code::Conflict, "STALE_GENERATION", message)));
                }
                let credentials = Arc::clone(&self.edge.credentials);
                tokio::spawn(async move {
                    let answer = match bounds::decode::<NodeTrust>(&request.payload) {
                        Ok(trust) => credentials.trust(trust.ca_certificates).await,
                        Err(error) => Err(error),
                    };
                    request.respond(
                        answer.map(|trusted_ca_sha256| NodeTrustAck { trusted_ca_sha256 }.encode_to_vec()),
                    );
                });
            }
            _ => request.respond(Err(Error::new(
                Code::Unimplemented,
                "UNKNOWN_METHOD",
                "this node does not know the method",
            ))),
        }
    }

    fn on_ack(&self, _connection: &Connection, number: u32, _key: &str, result: Result<(), Error>) {
        if let Err(error) = result {
            let what = match number {
                event::NODE_INVENTORY => "inventory",
                event::NODE_TELEMETRY => "telemetry",
                _ => "event",
            };
            tracing::warn!(code = error.code.name(), reason = %error.reason, "the edge refused the node's {what}");
        }
    }

    fn on_goaway(&self, _connection: &Connection, goaway: &Goaway) {
        tracing::info!(reason = %goaway.reason, closing = goaway.closing, "the edge says: {}", goaway.message);
    }

    fn on_closed(&self, _connection: &Connection, _reason: &CloseReason) {
        let mut now = self.edge.lock();
        let current = now.connection.as_ref().map(Connection::generation);
        let newer = current.is_some_and(|current| current != self.generation);
        let (relay, own) = (Arc::clone(&self.edge.relay), self.generation);
        // Where none is carried the next connection's first naming says so.
        if newer || relay.carries_of(own) {
            tokio::spawn(async move { relay.orphaned(own).await });
        }
        // A newer connection may have come first: only this one is forgotten.
        if current.is_some() && !newer {
            now.connection = None;
            now.shown.generation = None;
            now.shown.since_unix_ms = Wall::now().unix_ms();
            if !self.edge.draining.is_cancelled() {
                now.shown.state = "connecting";
            }
        }
    }
}
