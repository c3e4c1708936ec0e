//! Who may come in at the nodes' port, and which of two connections with one identity stays.
//!
//! Owns the order of the checks of a hello, what each leaves behind in the registry, and the answer. Leaves probing, waiting
//! and answering to the shell. Invariant: credential and slot are one step, before a probe and again after it, so that a
//! revocation cannot slip between; a stranger learns nothing but that.

use std::time::{Duration, Instant};

use umbel_contracts::proto::node::{NodeHelloRequest, NodeHelloResponse};
use umbel_contracts::{NODE_PROTOCOL, bounds};
use umbel_store::AuditRecord;
use umbel_wire::clock::Wall;
use umbel_wire::peer::PeerCertificate;
use umbel_wire::slots::{Accepted, Knock, Probe, Refusal};
use umbel_wire::{
    Attempt, CloseReason, Code, EdgeId, Error, Generation, InstanceId, NodeId, Rejection, Verdict,
    VersionRange, negotiate,
};

use super::authority::AuthorityRow;
use super::credentials::{self, Good, MINUTES};
use super::registry::{Registry, reports};
use super::rotation;

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

/// A hello of somebody whose credential is good, read.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) protocol: u32,
    pub(crate) hello: NodeHelloRequest,
    /// Whose row may have to change before it is judged: the shown key may be the pending one.
    pub(crate) named: Option<NodeId>,
}

/// Reads a hello. Who it is comes first: a stranger learns nothing else. `withheld`: what one who is not known is told
/// instead.
pub(crate) fn read(
    credential: Result<(NodeId, Good), Error>,
    withheld: impl FnOnce() -> Option<Error>,
    yours: VersionRange,
    payload: &[u8],
) -> Result<Read, Box<Rejection>> {
    let refuse = |error: Error| Box::new(Rejection { error, verdict: None, yours, mine: NODE_PROTOCOL });
    credential.map_err(|error| refuse(withheld().unwrap_or(error)))?;
    let protocol = protocol(yours)?;
    let hello = bounds::decode::<NodeHelloRequest>(payload).map_err(refuse)?;
    reports::check_hello(&hello).map_err(refuse)?;
    let named = NodeId::parse(&hello.node_id).ok();
    Ok(Read { protocol, hello, named })
}

/// Another process shows the identity of a connected node. The audit's entry, unless it is told already.
pub(crate) fn duplicate<H: Clone>(
    registry: &mut Registry<H>,
    id: NodeId,
    now: Instant,
    wall: Wall,
) -> Option<AuditRecord> {
    let news = registry.duplicate(id, now, wall.unix_ms());
    let record = AuditRecord::new("node.duplicate_refused", id.to_string(), "refused").by("edge");
    news.then(|| record.because("another process shows this node's identity"))
}

/// The answer to a hello that owns its node, but for the bundle of authorities.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) answer: NodeHelloResponse,
    /// It does not trust exactly whom it is to trust. It has the bundle with its answer: it says so when it is asked, and
    /// is not taken for one that lacks it.
    pub(crate) is_told: bool,
}

/// Takes up what an accepted hello says.
///
/// # Errors
/// Superseded, or ended by people, between its registration and here.
pub(crate) fn greeted<H: Clone>(
    registry: &mut Registry<H>,
    shown: Shown<'_>,
    (id, generation, protocol): (NodeId, Generation, u32),
    hello: NodeHelloRequest,
    authority: &AuthorityRow,
) -> Result<Greeted, Error> {
    let trusts = hello.trusted_ca_sha256.clone();
    let answer = registry.greet(id, generation, protocol, hello, shown.now, shown.wall.unix_ms());
    registry.trusts(id, generation, &trusts);
    let Ok(mut answer) = answer else {
        return Err(credential(registry, shown).err().unwrap_or_else(reports::stale_error));
    };
    answer.edge_id = shown.edge.to_string();
    let node = registry.node(&id);
    let rotates = node.is_some_and(|node| rotation::wanted(&node.row, authority, shown.wall).is_some());
    answer.rotate_credential = rotates;
    let is_told = node.is_some_and(|node| authority.tells(&node.report.trusts));
    if is_told {
        registry.given_trust(id, generation);
    }
    Ok(Greeted { answer, is_told })
}

/// What becomes of a connection that a newer one of its node has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// One of the same process finishes its streams.
    Drains,
    /// One of another process is told and closed.
    Closes,
}

/// By the processes that hold the old one and the new one.
pub(crate) fn replaced(old: InstanceId, new: InstanceId) -> Replaced {
    if old == new { Replaced::Drains } else { Replaced::Closes }
}

/// After WELCOME a node has to name its leases within this time, and again until none is left that it has to end.
pub(crate) const NAMING: Duration = Duration::from_secs(10);

/// The last time that a connection named its leases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named {
    pub(crate) at: Instant,
    /// Those that it was told to end.
    pub(crate) left: usize,
}

/// What becomes of an accepted connection when [`NAMING`] is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// It goes.
    Close(CloseReason),
    /// It stays, and nothing more is waited for.
    Done,
    /// It is looked at again after the same time.
    Again,
}

/// The time for naming leases is over. What the node was told to end may still run, and its engine be busy with it: until
/// the node says that nothing is left of it, the node is not complete and none of its slots counts as free.
pub(crate) fn naming_is_over<H: Clone>(
    registry: &mut Registry<H>,
    id: NodeId,
    generation: Generation,
    named: Option<Named>,
    now: Instant,
    wall: Wall,
) -> Over {
    let again = match named {
        None => return Over::Close(unnamed("the leases were not named within 10 s of WELCOME")),
        // Replaced by a newer connection of its process: it finishes its streams, and who replaced it closes it.
        Some(_) if !registry.slots.is_current(&id, generation) => {
            return match registry.slots.owner(&id) {
                Some(_) => Over::Done,
                None => Over::Close(CloseReason::Superseded),
            };
        }
        // Complete since then.
        Some(Named { left: 0, .. }) => return Over::Done,
        Some(again) => again,
    };
    if now.saturating_duration_since(again.at) >= NAMING {
        return Over::Close(unnamed("the leases that it was told to end were not named again within 10 s"));
    }
    registry.carries(id, again.left, now, wall.unix_ms());
    Over::Again
}

fn unnamed(what: &str) -> CloseReason {
    CloseReason::Protocol(what.to_owned())
}
