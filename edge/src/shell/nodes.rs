//! The nodes' port: who may come in, and which of two connections with one identity stays.
//!
//! Owns the order of an accepted hello: credential and slot as one step under the registry's lock, the report
//! applied, WELCOME, then the naming of leases ([`session`]) before the node is ready. Leaves what is judged to
//! [`door`] and tokens to [`enrollment`]. Invariant: whatever comes in here is refused with a reason and the remedy, or owned by exactly
//! one generation.

mod enrollment;
mod rotation;
mod session;
mod turns;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use prost::Message;
use umbel_contracts::NODE_PROTOCOL;
use umbel_contracts::proto::node::NodeHelloRequest;
use umbel_wire::clock::Wall;
use umbel_wire::slots::{Knock, Owner, Probe, Refusal};
use umbel_wire::{
    BoxFuture, CloseReason, Connection, Door, Error, Generation, GoawayReason, InstanceId, Intervals,
    KeyHash, Newcomer, NodeId, Purpose, Rejection, WelcomeOut, clock, limits,
};

use crate::core::approval::{self, Past};
use crate::core::door::{self, Replaced, Shown};
use crate::shell::site::Site;

pub(crate) use self::rotation::{Nudge, keep as keep_credentials};
use self::session::NodeSession;
pub(crate) use self::turns::Turns;

/// How long the old connection may take to answer a probe.
const PROBE: Duration = Duration::from_secs(1);
/// Between telemetry events.
const TELEMETRY: Duration = Duration::from_secs(5);
/// Between inventory events when nothing changes.
const INVENTORY: Duration = Duration::from_secs(600);

/// The door of the nodes' port.
pub(crate) struct NodeDoor {
    pub(crate) site: Arc<Site>,
}

impl Door for NodeDoor {
    fn knows(&self, key: &KeyHash) -> bool {
        self.site.read(|registry| registry.by_key(key).is_some() || registry.tombstones.has(key))
    }

    fn may_be_ours(&self, leaf: &[u8]) -> bool {
        self.site.store.restored_at().is_some() && self.site.authorities.held().has_signed(leaf)
    }

    fn knock(&self, newcomer: Newcomer) -> BoxFuture<'static, ()> {
        let site = Arc::clone(&self.site);
        Box::pin(async move {
            match newcomer.hello().purpose {
                Purpose::Hello => hello(&site, newcomer).await,
                Purpose::Enroll => enrollment::enroll(&site, newcomer).await,
            }
        })
    }
}

fn rejection(newcomer: &Newcomer, error: Error) -> Rejection {
    Rejection { error, verdict: None, yours: newcomer.hello().versions, mine: NODE_PROTOCOL }
}

async fn hello(site: &Arc<Site>, newcomer: Newcomer) {
    match judge(site, &newcomer).await {
        Ok(accepted) => accept(site, newcomer, accepted),
        Err(rejection) => {
            let error = &rejection.error;
            if let Some(repeats) = site.refusal_is_news(newcomer.address(), error) {
                tracing::info!(
                    address = %newcomer.address(), reason = %error.reason, code = %error.code, repeats, "a node was refused"
                );
            }
            newcomer.reject(*rejection);
        }
    }
}

struct Judged {
    id: NodeId,
    protocol: u32,
    generation: Generation,
    superseded: Option<Owner<Connection>>,
    hello: NodeHelloRequest,
}

async fn judge(site: &Arc<Site>, newcomer: &Newcomer) -> Result<Judged, Box<Rejection>> {
    let refuse = |error: Error| Box::new(rejection(newcomer, error));
    let credential = site.read(|registry| door::credential(registry, shown(site, newcomer)));
    let said = newcomer.hello();
    let door::Read { protocol, hello, named } =
        door::read(credential, || withheld(site, newcomer), said.versions, &said.payload)?;
    if let (Some(certificate), Some(named)) = (newcomer.certificate(), named) {
        rotation::shown(site, named, &certificate.key_hash).await.map_err(refuse)?;
    }
    let (id, knock) = site
        .change(|registry| {
            door::knock(registry, shown(site, newcomer), &hello.node_id, newcomer.connection())
        })
        .map_err(refuse)?;
    let accepted = match knock {
        Knock::Accept(accepted) => Ok(accepted),
        Knock::Refuse(refusal) => Err(refusal),
        Knock::Probe { probe, old } => {
            let answer = probe_old(site, newcomer, id, probe, &old).await.map_err(refuse)?;
            if matches!(answer, Err(Refusal::Duplicate)) {
                duplicate(site, id);
            }
            answer
        }
    };
    let accepted = accepted.map_err(|refusal| refuse(refusal.error()))?;
    let (generation, superseded) = (accepted.generation, accepted.superseded);
    Ok(Judged { id, protocol, generation, superseded, hello })
}

/// A certificate that this edge gave after the backup that it was restored from: it waits for an operator.
fn withheld(site: &Site, newcomer: &Newcomer) -> Option<Error> {
    let certificate = newcomer.certificate()?;
    let lost = site.store.origin().is_some_and(|origin| origin.rescued.is_some());
    let past = Past { restored: site.store.restored_at().map(Wall), lost };
    let ours = || site.authorities.held().has_signed(newcomer.leaf());
    let (error, record) = site.read(|registry| {
        let mut approvals = site.approvals.lock().unwrap_or_else(PoisonError::into_inner);
        let about = (&site.edge_id, past, site.wall());
        approval::withhold(registry, &mut approvals, certificate, about, ours)
    })?;
    site.audit_soon(record.into_iter().collect());
    Some(error)
}

fn shown<'a>(site: &'a Site, newcomer: &'a Newcomer) -> Shown<'a> {
    let said = newcomer.hello();
    Shown {
        certificate: newcomer.certificate(),
        instance: said.instance,
        attempt: said.attempt,
        edge: &site.edge_id,
        now: clock::now(),
        wall: site.wall(),
    }
}

type Arbitrated = Result<umbel_wire::slots::Accepted<Connection>, Refusal>;

/// Asks the owner for a sign of life, then repeats the credential's check and the registration as one step.
async fn probe_old(
    site: &Arc<Site>,
    newcomer: &Newcomer,
    id: NodeId,
    probe: Probe,
    old: &Owner<Connection>,
) -> Result<Arbitrated, Error> {
    let mut guard = ProbeGuard { site, id, probe: Some(probe) };
    let answered = old.handle.probe(PROBE).await;
    guard.probe = None;
    site.change(|registry| {
        door::probed(registry, shown(site, newcomer), id, probe, answered, newcomer.connection())
    })
}

/// Frees the slot's probe if the newcomer goes away in between.
struct ProbeGuard<'a> {
    site: &'a Arc<Site>,
    id: NodeId,
    probe: Option<Probe>,
}

impl Drop for ProbeGuard<'_> {
    fn drop(&mut self) {
        if let Some(probe) = self.probe.take() {
            self.site.change(|registry| registry.slots.abandon(&self.id, probe));
        }
    }
}

fn duplicate(site: &Site, id: NodeId) {
    let record = site.change(|registry| door::duplicate(registry, id, clock::now(), site.wall()));
    site.audit_soon(record.into_iter().collect());
}

fn accept(site: &Arc<Site>, newcomer: Newcomer, judged: Judged) {
    let Judged { id, protocol, generation, superseded, hello } = judged;
    let address = newcomer.address();
    let held = site.authorities.held();
    let (own, shown) = ((id, generation, protocol), shown(site, &newcomer));
    let greeted = site.change(|registry| door::greeted(registry, shown, own, hello, &held.row));
    let door::Greeted { mut answer, is_told } = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            let rejection = rejection(&newcomer, error);
            return newcomer.reject(rejection);
        }
    };
    answer.ca_certificates = held.bundle();
    if is_told {
        site.rotations.now();
    }
    let welcome = WelcomeOut {
        protocol,
        generation,
        intervals: Intervals { heartbeat: site.heartbeat, telemetry: TELEMETRY, inventory: INVENTORY },
        reconnect_spread: site.reconnect_spread(),
        max_streams: limits::STREAMS_NODE,
        payload: answer.encode_to_vec(),
    };
    let instance = newcomer.hello().instance;
    let session = Arc::new(NodeSession::new(Arc::clone(site), id, generation));
    let connection = newcomer.accept(welcome, session.clone());
    tracing::info!(node = %id, %generation, %address, "a node was accepted");
    if let Some(old) = superseded {
        retire(&connection, old, instance);
    }
    let site = Arc::clone(site);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = connection.closed() => return,
                () = tokio::time::sleep(door::NAMING) => {}
            }
            if !session.naming_is_over(&site, &connection) {
                return;
            }
        }
    });
}

/// An old connection of the same process finishes its streams; one of another process is told and closed.
fn retire(new: &Connection, old: Owner<Connection>, instance: InstanceId) {
    if door::replaced(old.instance, instance) == Replaced::Closes {
        return old.handle.close(CloseReason::Superseded);
    }
    let new = new.clone();
    tokio::spawn(async move {
        let connection = old.handle;
        connection.goaway(GoawayReason::Reconnect, "a newer connection of this node has taken over", None);
        tokio::select! {
            () = connection.drained() => {}
            _ = new.closed() => {}
            () = tokio::time::sleep(limits::DRAIN_STREAMS) => {}
        }
        connection.close(CloseReason::Superseded);
    });
}
