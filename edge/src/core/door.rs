//! Who may come in at the nodes' port, and which of two connections with one identity stays.
//!
//! Owns the order of the checks of a hello and what each leaves behind in the registry. Leaves probing, waiting and
//! answering to the shell. Invariant: credential and slot are one step, before a probe and again after it, so that a
//! revocation cannot slip between; a stranger learns nothing but that.

use std::time::Instant;

use umbel_contracts::NODE_PROTOCOL;
use umbel_wire::clock::Wall;
use umbel_wire::peer::PeerCertificate;
use umbel_wire::slots::{Accepted, Knock, Probe, Refusal};
use umbel_wire::{
    Attempt, CloseReason, Code, EdgeId, Error, Generation, InstanceId, NodeId, Rejection, Verdict,
    VersionRange, negotiate,
};

use super::credentials::{self, Good, MINUTES};
use super::registry::{Registry, StaleGeneration};

/// What a newcomer shows, and when and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    /// Whose key it proved to hold.
    pub(crate) certificate: Option<&'a PeerCertificate>,
    pub(crate) instance: InstanceId,
    pub(crate) attempt: Attempt,
    /// This site.
    pub(crate) edge: &'a EdgeId,
    pub(crate) now: Instant,
    pub(crate) wall: Wall,
}

/// Refuses versions that do not meet; says both ranges and what to upgrade.
pub(crate) fn protocol(yours: VersionRange) -> Result<u32, Box<Rejection>> {
    negotiate(NODE_PROTOCOL, yours).map_err(|verdict: Verdict| {
        let message = format!(
            "this edge speaks version {NODE_PROTOCOL} of the node protocol and this agent {yours} ({}): upgrade \
             control planes first, then edges, then nodes",
            verdict.name()
        );
        let error = Error::new(Code::Conflict, "PROTOCOL_VERSION", message);
        Box::new(Rejection { error, verdict: Some(verdict), yours, mine: NODE_PROTOCOL })
    })
}

/// The node whose key it is, if that opens the door now.
pub(crate) fn credential<H: Clone>(
    registry: &Registry<H>,
    shown: Shown<'_>,
) -> Result<(NodeId, Good), Error> {
    let known = shown.certificate.and_then(|certificate| registry.by_key(&certificate.key_hash));
    let row = known.map(|node| (node.id, &node.row));
    if let (Some(certificate), None) = (shown.certificate, known) {
        // Its row is lost, and what people ended stays so.
        registry
            .tombstones
            .check(&certificate.key_hash, None)
            .map_err(|error| error.with_retry_after(MINUTES))?;
    }
    let good = credentials::judge(shown.certificate, row, shown.edge, shown.wall)?;
    // `judge` refuses every key that is not known.
    let id = known.map(|node| node.id).ok_or_else(|| {
        Error::new(Code::Unauthenticated, "CERTIFICATE_UNKNOWN", "this edge does not know this node's key")
    })?;
    Ok((id, good))
}

/// A hello that names `named`: judged and, if nothing stands against it, registered, in one step.
pub(crate) fn knock<H: Clone>(
    registry: &mut Registry<H>,
    shown: Shown<'_>,
    named: &str,
    handle: H,
) -> Result<(NodeId, Knock<H>), Error> {
    let (id, _) = credential(registry, shown)?;
    if named.is_empty() {
        let message = "the hello names no node_id; the agent's state directory is not complete";
        return Err(Error::new(Code::InvalidArgument, "NODE_ID_EMPTY", message));
    }
    if *named != id.to_string() {
        let message = "the hello names another node than its certificate does; enroll this host anew";
        return Err(Error::new(Code::PermissionDenied, "NODE_ID_FOREIGN", message));
    }
    registry.judge_credential(id, shown.wall);
    let knock = registry.slots.knock(shown.now, &id, shown.instance, shown.attempt, handle);
    if let Knock::Accept(accepted) = &knock {
        registry.registered(id, accepted.generation);
    }
    Ok((id, knock))
}

/// The owner was asked for a sign of life: the credential's check and the registration are repeated as one step.
pub(crate) fn probed<H: Clone>(
    registry: &mut Registry<H>,
    shown: Shown<'_>,
    id: NodeId,
    probe: Probe,
    answered: bool,
    handle: H,
) -> Result<Result<Accepted<H>, Refusal>, Error> {
    if let Err(error) = credential(registry, shown) {
        registry.slots.abandon(&id, probe);
        return Err(error);
    }
    let answer = registry.slots.probed(&id, probe, answered, shown.instance, shown.attempt, handle);
    if let Ok(accepted) = &answer {
        registry.registered(id, accepted.generation);
    }
    Ok(answer)
}

/// What becomes of an accepted connection when its time to name its leases is over; `None`: it stays.
pub(crate) fn naming_is_over<H: Clone>(
    registry: &mut Registry<H>,
    id: NodeId,
    generation: Generation,
    named: bool,
) -> Option<CloseReason> {
    if !named {
        return Some(CloseReason::Protocol("the leases were not named within 10 s of WELCOME".to_owned()));
    }
    // It named leases that it has to end and did not come back: they have been reset long ago.
    match registry.complete(id, generation) {
        Ok(()) => None,
        // Replaced by a newer connection of its process: it finishes its streams, and who replaced it closes it.
        Err(StaleGeneration) if registry.slots.owner(&id).is_some() => None,
        Err(StaleGeneration) => Some(CloseReason::Superseded),
    }
}
