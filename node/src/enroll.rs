//! Joining an edge with a single-use token.
//!
//! Owns the order: preflight, key on the disk, one exchange, identity on the disk. Leaves the claim to the edge.
//! Invariant: the key is safely stored before it is used, so that a lost answer can be asked for again with it; an
//! identity is never overwritten.

use std::{sync::Arc, time::Duration};

use data_encoding::BASE64;
use prost::Message;
use umbel_contracts::{
    NODE_PROTOCOL, bounds,
    proto::node::{NodeEnrollRequest, NodeEnrollResponse},
};
use umbel_wire::{
    DialError, DialStep, DialTarget, HelloOut, NoHandler, NodeId, Purpose,
    ca::certificate_digest,
    dial_once,
    peer::{PeerCertificate, PeerName},
    tls::{KeyPair, Trust, wire_client},
    token::{EnrollmentToken, TokenKind},
};

use crate::{
    Config, StartError,
    core::identity::{FORMAT, Identity, Joining, is_lost, joining},
    preflight,
    shell::{
        edge::{DECOMMISSIONED, instance, server_name, standing, step},
        gpu::Gpus,
        host, places,
        state::{self, State},
    },
};

/// The exchange as a whole; each step of it has its own limit.
const LIMIT: Duration = Duration::from_secs(60);

/// How often an edge is asked whose answer does not come, and the pause in between.
const TRIES: u32 = 3;
const AGAIN: Duration = Duration::from_millis(500);

/// What enrollment brought.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Enrolled {
    /// The node's UUID.
    pub node_id: String,
    /// The edge it joined.
    pub edge_id: String,
    /// The name that the token gave it.
    pub name: String,
    /// It belonged to that edge before: the token was not needed and not sent.
    pub already: bool,
}

/// Runs the preflight, makes the key and joins the edge that the token names. Builds its own runtime; blocks.
///
/// # Errors
/// Failed preflight, a token that is none, an edge that cannot be reached or that refuses, an identity that is
/// already there for another edge.
pub fn enroll(config: &Config, token: &str) -> Result<Enrolled, StartError> {
    let token = EnrollmentToken::parse(token).map_err(|error| StartError::Usage(error.to_string()))?;
    if token.kind != TokenKind::Node {
        return Err(StartError::Usage(
            "this token lets an edge join a control plane; a node needs one made by `umbel ctl token create`"
                .into(),
        ));
    }
    places::check(config)?;
    let state = State::open(&config.state_dir)?;
    let present = state.identity()?;
    if let Joining::Refused(why) = joining(present.as_ref(), token.edge_id.as_str()) {
        return Err(StartError::Refused(why));
    }
    let runtime = crate::app::runtime()?;
    let result = runtime.block_on(async {
        if let Some(identity) = &present {
            if stands(&state, identity).await? {
                return Ok(told(identity, true));
            }
            forget_rotation(&state, identity)?;
        }
        let gpus = Gpus::start(config.accelerator, config.nvml_library.as_deref());
        preflight::check(config.accelerator, &gpus).await?;
        join(config, &state, &token, present.as_ref()).await
    });
    runtime.shutdown_background();
    result
}

/// Whether a credential that is there is not known to be lost: the one in use, or the one that a rotation brought and the
/// edge may have taken for it.
async fn stands(state: &State, identity: &Identity) -> Result<bool, StartError> {
    if opens(state, identity).await? {
        return Ok(true);
    }
    match state.pending().filter(|pending| state.has_key(&pending.key_file)) {
        Some(pending) => opens(state, &identity.with(&pending)).await,
        None => Ok(false),
    }
}

async fn opens(state: &State, identity: &Identity) -> Result<bool, StartError> {
    let Err(error) = standing::ask(state, identity).await? else { return Ok(true) };
    let lost = match &error.rejection {
        Some(rejection) if rejection.error.reason == DECOMMISSIONED => {
            return Err(StartError::Refused(format!(
                "node {} was decommissioned for good, and its identity stands in this state directory: stop the agent, end the \
                 engines that are left with `umbel node stop-engines`, move the directory aside, then enroll the host as a new \
                 node. The token was not used.",
                identity.node_id
            )));
        }
        Some(rejection) => is_lost(&rejection.error.reason),
        // It missed a change of the edge's authority; the token names the one that is to be trusted.
        None => error.step == DialStep::Tls,
    };
    if lost {
        tracing::warn!("a credential of this node opens its edge no more: {}", error.message);
    }
    Ok(!lost)
}

/// What a rotation of the lost credential left. A spare key that no certificate was kept for stays: it is the one that an
/// earlier try of this enrollment showed.
fn forget_rotation(state: &State, identity: &Identity) -> Result<(), StartError> {
    if state.pending().is_none() {
        return Ok(());
    }
    let failed = |error: std::io::Error| StartError::Failed(format!("the state directory: {error}"));
    state.drop_key(identity.spare_key_file()).map_err(failed)?;
    state.set_pending(None).map_err(failed)
}

async fn join(
    config: &Config,
    state: &State,
    token: &EnrollmentToken,
    lost: Option<&Identity>,
) -> Result<Enrolled, StartError> {
    // The lost one stays until the new one is on the disk.
    let key_file = lost.map_or(state::KEY, Identity::spare_key_file);
    let key = state.key(key_file, true)?;
    let failed = |why: String| StartError::Failed(format!("cannot enroll: {why}"));
    let tls =
        wire_client(Trust::CaDigest(token.ca_digest), None).map_err(|error| failed(error.to_string()))?;
    let target = DialTarget {
        addresses: token.addresses.clone(),
        server_name: server_name(token.edge_id.as_str()),
        tls,
    };
    let request = NodeEnrollRequest {
        token_id: token.token_id.clone(),
        token_secret: token.secret.expose().to_vec(),
        signing_request: key.signing_request().map_err(|error| failed(error.to_string()))?,
        name: if config.name.is_empty() { host::name() } else { config.name.clone() },
        software_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let hello = HelloOut {
        purpose: Purpose::Enroll,
        versions: NODE_PROTOCOL,
        instance: instance(),
        payload: request.encode_to_vec(),
    };
    let payload = tokio::time::timeout(LIMIT, ask(&target, &hello))
        .await
        .map_err(|_| StartError::Unreachable("the edge did not answer within 60 s".into()))?
        .map_err(|error| refused(&error))?;
    let answer: NodeEnrollResponse =
        bounds::decode(&payload).map_err(|error| failed(format!("the edge's answer: {error}")))?;
    let identity =
        accept(token, &key, key_file, answer).map_err(|why| failed(format!("the edge's answer {why}")))?;
    state.set_identity(&identity)?;
    if lost.is_some()
        && let Err(error) = state.drop_key(identity.spare_key_file())
    {
        tracing::warn!(%error, "the lost credential's key cannot be removed; it opens nothing");
    }
    Ok(told(&identity, false))
}

/// Asks until there is an answer, a few times: one that was lost on its way is given again to the same token and key.
async fn ask(target: &DialTarget, hello: &HelloOut) -> Result<bytes::Bytes, DialError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let error = match dial_once(target.clone(), hello.clone(), |_, _| Ok(Arc::new(NoHandler))).await {
            Ok((_, welcome)) => return Ok(welcome.payload),
            Err(error) => error,
        };
        // The edge has said no, or is not there: a person looks at that.
        let cut = error.rejection.is_none() && matches!(error.step, DialStep::Tls | DialStep::Hello);
        if !cut || tries >= TRIES {
            return Err(error);
        }
        tracing::warn!(tries, "the edge's answer was lost, it is asked again: {error}");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Checks that the answer is about this key and that edge.
fn accept(
    token: &EnrollmentToken,
    key: &KeyPair,
    key_file: &str,
    answer: NodeEnrollResponse,
) -> Result<Identity, String> {
    let leaf = answer.certificate_chain.first().ok_or("has no certificate")?;
    let leaf =
        PeerCertificate::parse(leaf).map_err(|error| format!("has a certificate that is none: {error}"))?;
    let node_id = NodeId::parse(&answer.node_id).map_err(|_| "has no node id")?;
    if leaf.key_hash != key.key_hash() {
        return Err("has a certificate for another key".into());
    }
    let expected = PeerName::Node(token.edge_id.clone(), node_id);
    if answer.edge_id != token.edge_id.as_str() || leaf.name.as_ref() != Some(&expected) {
        return Err("is for another edge or node".into());
    }
    if certificate_digest(&answer.ca_certificate) != token.ca_digest {
        return Err("has another CA than the token".into());
    }
    Identity {
        format: FORMAT,
        node_id: node_id.0,
        edge_id: answer.edge_id,
        name: answer.name,
        addresses: token.addresses.clone(),
        certificate_chain: answer.certificate_chain.iter().map(|der| BASE64.encode(der)).collect(),
        ca_certificate: BASE64.encode(&answer.ca_certificate),
        ca_certificates: Vec::new(),
        key_file: key_file.to_owned(),
        not_after_unix_ms: answer.not_after_unix_ms,
    }
    .validated()
}

fn told(identity: &Identity, already: bool) -> Enrolled {
    Enrolled {
        node_id: identity.node_id.to_string(),
        edge_id: identity.edge_id.clone(),
        name: identity.name.clone(),
        already,
    }
}

fn refused(error: &DialError) -> StartError {
    match &error.rejection {
        Some(rejection) => StartError::Rejected {
            code: rejection.error.code,
            message: format!("the edge refused: {} ({})", rejection.error.message, rejection.error.reason),
        },
        None => {
            StartError::Unreachable(format!("the edge cannot be reached ({}): {error}", step(error.step)))
        }
    }
}
