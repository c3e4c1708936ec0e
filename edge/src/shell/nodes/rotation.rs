//! New certificates for nodes, and whom they trust: what a node asks for, and what it is asked to do.
//!
//! Owns signing and storing of a pending credential, retiring the old one at the first hello with it, and the task
//! that asks connected nodes. Leaves the rules to `core/rotation`. Invariant: whatever is given is stored before it
//! is answered; nobody is asked by two rounds at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use prost::Message;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use umbel_contracts::proto::node::{
    NodeCredentialRequest, NodeCredentialResponse, NodeRotate, NodeTrust, NodeTrustAck,
};
use umbel_contracts::{bounds, method};
use umbel_store::CommitError;
use umbel_wire::ca::{self, CLIENT_VALIDITY};
use umbel_wire::{Code, Connection, Error, Generation, KeyHash, NodeId, clock};

use crate::core::registry::node::Credential;
use crate::core::registry::reports;
use crate::core::rotation::{self, Asked, Wish};
use crate::shell::operations::catch_up;
use crate::shell::site::Site;

/// How often a row that changed in the same moment is read again.
const TRIES: usize = 8;
/// Between two looks at everybody; a change of authority and an operator's wish wake the task.
const LOOK: Duration = Duration::from_secs(30);
/// Nodes asked at once.
const AT_ONCE: usize = 64;
/// A round asks this many at most, so that a site does not shake hands anew all at once.
const A_ROUND: usize = 64;
/// Between two rounds while somebody is left to ask.
const PACE: Duration = Duration::from_secs(1);
/// What wakes the task is looked at with what comes in this time.
const GATHER: Duration = Duration::from_millis(100);
/// For one answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Wakes the task that asks nodes.
#[derive(Default)]
pub(crate) struct Nudge(Notify);

impl Nudge {
    /// Something has changed that connected nodes have to be asked about.
    pub(crate) fn now(&self) {
        self.0.notify_one();
    }
}

fn unavailable(error: &CommitError) -> Error {
    tracing::error!(%error, "a node's credential could not be stored");
    let message = "the edge cannot write its store now; try again when its disk has space";
    Error::new(Code::Unavailable, "STORE_READ_ONLY", message).with_retry_after(Duration::from_secs(30))
}

fn contended() -> Error {
    Error::new(Code::Unavailable, "CONTENDED", "the node's row changes all the time; try again")
        .with_retry_after(Duration::from_secs(1))
}

/// A hello shows `key`: if that is the pending one, the one before is retired, on disk, before anything else.
pub(super) async fn shown(site: &Site, id: NodeId, key: &KeyHash) -> Result<(), Error> {
    for _ in 0..TRIES {
        let Some(node) = site.read(|registry| registry.node(&id).cloned()) else { return Ok(()) };
        let Some((row, also)) = rotation::shown(&node, key, site.wall()) else { return Ok(()) };
        match site.store_nodes(vec![(node, row)], also).await {
            Ok(Some(())) => {
                tracing::info!(node = %id, "it shows its new certificate; the one before is retired");
                return Ok(());
            }
            Ok(None) => {}
            Err(error) => return Err(unavailable(&error)),
        }
    }
    Err(contended())
}

/// A node asks for a certificate for a new key.
pub(super) async fn give(
    site: &Site,
    id: NodeId,
    generation: Generation,
    payload: &[u8],
) -> Result<Vec<u8>, Error> {
    let request = bounds::decode::<NodeCredentialRequest>(payload)?;
    let key = ca::request_key_hash(&request.signing_request).map_err(|error| {
        let message = format!("the signing request is not usable: {error}");
        Error::new(Code::InvalidArgument, "SIGNING_REQUEST", message)
    })?;
    for _ in 0..TRIES {
        let (node, holder) = site.read(|registry| {
            let current = registry.slots.is_current(&id, generation);
            let node = registry.node(&id).filter(|_| current).cloned();
            (node, registry.by_key(&key).map(|holder| holder.id))
        });
        // Revoked, replaced or superseded meanwhile: an older connection is given nothing.
        let node = node.ok_or_else(reports::stale_error)?;
        rotation::may_have(&node, &key, holder)?;
        let (held, now) = (site.authorities.held(), site.wall());
        let issued = held
            .signing()
            .sign_node(&request.signing_request, &site.edge_id, id, now, CLIENT_VALIDITY)
            .map_err(|error| Error::new(Code::InvalidArgument, "SIGNING_REQUEST", error.to_string()))?;
        let cause = rotation::wanted(&node.row, &held.row, now);
        let (row, also) = rotation::give(&node, Credential::new(&issued, now), cause, holder.is_some());
        match site.store_nodes(vec![(node, row)], also).await {
            Ok(Some(())) => {
                return Ok(NodeCredentialResponse {
                    certificate_chain: issued.chain,
                    not_after_unix_ms: issued.not_after.unix_ms(),
                    ca_certificates: held.bundle(),
                }
                .encode_to_vec());
            }
            Ok(None) => {}
            Err(error) => return Err(unavailable(&error)),
        }
    }
    Err(contended())
}

struct Due {
    id: NodeId,
    generation: Generation,
    connection: Connection,
    wish: Wish,
}

/// Asks connected nodes what they have to be asked, and judges how long certificates last, until it is cancelled.
pub(crate) async fn keep(site: Arc<Site>, shutdown: CancellationToken) {
    let mut asked = Asked::default();
    loop {
        catch_up(&site).await;
        let wall = site.wall();
        site.change(|registry| registry.judge_credentials(wall));
        let due = due(&site, &mut asked);
        let more = due.len() >= A_ROUND;
        let answers = stream::iter(due).map(|one| ask(&site, one)).buffer_unordered(AT_ONCE);
        let round = answers.for_each(|()| std::future::ready(()));
        if shutdown.run_until_cancelled(round).await.is_none() {
            return;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            // A site that comes up says hello in one storm: they are looked at together.
            () = async { site.rotations.0.notified().await; tokio::time::sleep(GATHER).await }, if !more => {}
            () = tokio::time::sleep(if more { PACE } else { LOOK }) => {}
        }
    }
}

/// Whoever has to be asked now, and notes it.
fn due(site: &Site, asked: &mut Asked) -> Vec<Due> {
    let (held, wall, now) = (site.authorities.held(), site.wall(), clock::now());
    asked.look(&held.row, now);
    site.read(|registry| {
        let mut due = Vec::new();
        for (id, owner) in registry.slots.owners() {
            let Some(node) = registry.node(id).filter(|node| node.session.is_some()) else { continue };
            for wish in rotation::wishes(node, &held.row, wall) {
                if due.len() < A_ROUND && asked.may(*id, owner.generation, wish) {
                    asked.note(*id, owner.generation, wish, now);
                    let (generation, connection) = (owner.generation, owner.handle.clone());
                    due.push(Due { id: *id, generation, connection, wish });
                }
            }
        }
        due
    })
}

async fn ask(site: &Site, due: Due) {
    let Due { id, generation, connection, wish } = due;
    let result = match wish {
        Wish::Rotate(cause) => {
            let message = NodeRotate { cause: cause.name().to_owned() };
            connection.request(method::NODE_ROTATE, message.encode_to_vec(), ANSWER).await.map(drop)
        }
        Wish::Trust => {
            site.change(|registry| registry.given_trust(id, generation));
            let message = NodeTrust { ca_certificates: site.authorities.held().bundle() };
            let answer = connection.request(method::NODE_TRUST, message.encode_to_vec(), ANSWER).await;
            answer.and_then(|answer| bounds::decode::<NodeTrustAck>(&answer)).map(|ack| {
                site.change(|registry| registry.trusts(id, generation, &ack.trusted_ca_sha256));
            })
        }
    };
    if let Err(error) = result {
        tracing::info!(node = %id, ?wish, code = error.code.name(), reason = %error.reason, "a node did not do it");
    }
}
