//! `umbel edge enroll`: joins a control plane with a single-use token.
//!
//! Owns the exchange. Leaves the files under STATE/control-planes to [`crate::shell::control`]. Invariant: an
//! identity is replaced only by one that the same control plane has just given, and the key never leaves this host.

use std::path::Path;
use std::time::Duration;

use prost::Message;
use umbel_contracts::proto::control::{EdgeEnrollRequest, EdgeEnrollResponse};
use umbel_contracts::{CONTROL_PROTOCOL, bounds};
use umbel_wire::ca::certificate_digest;
use umbel_wire::clock::Wall;
use umbel_wire::tls::{self, KeyPair, Trust};
use umbel_wire::token::{EnrollmentToken, TokenKind};
use umbel_wire::{DialError, DialTarget, HelloOut, InstanceId, NoHandler, Purpose, dial_once, files};

use crate::app::CONTROL_PLANES;
use crate::shell::authority::ca_dir;
use crate::shell::control::membership::{self, Joined, Membership};
use crate::{Config, StartError};

/// For the whole exchange.
const TIME: Duration = Duration::from_secs(30);
/// The key of an enrollment that is under way: the same token with the same key gives the same answer, so a lost
/// one can be asked for again.
const PENDING: &str = "pending-key.pem";
/// The control plane's reason for an edge whose credential stands.
const ALREADY_ENROLLED: &str = "EDGE_ALREADY_ENROLLED";

/// What joining a control plane gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrolled {
    /// The control plane's own name, and that of its directory.
    pub control_plane_id: String,
    /// The site, as it is known there.
    pub edge_id: String,
    /// A usable identity for it was there already, and stays.
    pub already: bool,
}

/// Why an exchange gave nothing.
struct Refused {
    /// The control plane's own word, if it said one.
    reason: String,
    error: StartError,
}

impl From<StartError> for Refused {
    fn from(error: StartError) -> Self {
        Self { reason: String::new(), error }
    }
}

fn refused(error: &DialError) -> Refused {
    match &error.rejection {
        Some(rejection) => Refused {
            reason: rejection.error.reason.clone().into_owned(),
            error: StartError::Rejected {
                code: rejection.error.code,
                message: format!("{} ({})", rejection.error.message, rejection.error.reason),
            },
        },
        None => StartError::Unreachable(error.to_string()).into(),
    }
}

fn failed(error: impl std::fmt::Display) -> StartError {
    StartError::Failed(error.to_string())
}

/// Joins the control plane that the token names. Needs `init` before; a running edge takes it up by itself
/// within seconds. Blocks for at most half a minute.
///
/// # Errors
/// What the control plane said, or why it could not be reached; the token is not spent then unless it says so.
pub fn enroll(config: &Config, token: &str) -> Result<Enrolled, StartError> {
    if !ca_dir(config).exists() {
        return Err(StartError::State(format!(
            "{} is not initialised: run `umbel edge init` with the same --config first.",
            config.state_dir.display()
        )));
    }
    let token = EnrollmentToken::parse(token.trim()).map_err(|error| StartError::Usage(error.to_string()))?;
    if token.kind != TokenKind::Edge {
        let message = "this token is for a node: use it with `umbel node enroll` on the GPU host";
        return Err(StartError::Usage(message.to_owned()));
    }
    let directory = config.state_dir.join(CONTROL_PLANES);
    files::private_dir(&directory).map_err(failed)?;
    let known = known(&directory, &token);
    if let Some((spent, known)) = &known
        && *spent == token.token_id
    {
        return Ok(known.clone());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let answer = runtime.block_on(async {
        let late = "the control plane did not answer within 30 s; try again";
        tokio::time::timeout(TIME, exchange(config, &directory, &token))
            .await
            .unwrap_or_else(|_| Err(StartError::Unreachable(late.to_owned()).into()))
    });
    match (answer, known) {
        // It knows this edge and its credential, and has not spent the token.
        (Err(Refused { reason, .. }), Some((_, known))) if reason == ALREADY_ENROLLED => Ok(known),
        (answer, _) => answer.map_err(|refused| refused.error),
    }
}

// An identity of the control plane whose authority the token names, if it can be used, and the token that it came of.
fn known(directory: &Path, token: &EnrollmentToken) -> Option<(String, Enrolled)> {
    membership::all(directory).into_iter().find_map(|(name, found)| {
        let found: Membership = found.ok()?;
        let ours = membership::authority(&found.directory) == Some(token.ca_digest);
        (ours && Wall::now() < found.not_after && !found.is_refused()).then_some((
            found.token_id,
            Enrolled { control_plane_id: name, edge_id: found.edge_id, already: true },
        ))
    })
}

fn pending_key(directory: &Path) -> Result<KeyPair, StartError> {
    let path = directory.join(PENDING);
    if path.exists() {
        let pem = files::read_private(&path).map_err(failed)?;
        return KeyPair::from_pem(&pem).map_err(failed);
    }
    let key = KeyPair::generate().map_err(failed)?;
    files::write_private(&path, key.to_pem().as_bytes()).map_err(failed)?;
    Ok(key)
}

async fn exchange(config: &Config, directory: &Path, token: &EnrollmentToken) -> Result<Enrolled, Refused> {
    let key = pending_key(directory)?;
    let request = EdgeEnrollRequest {
        token_id: token.token_id.clone(),
        token_secret: token.secret.expose().to_vec(),
        edge_id: config.site.to_string(),
        signing_request: key.signing_request().map_err(failed)?,
        display_name: config.name.clone(),
        software_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let target = DialTarget {
        addresses: token.addresses.clone(),
        server_name: "control-plane.umbel".to_owned(),
        tls: tls::wire_client(Trust::CaDigest(token.ca_digest), None).map_err(failed)?,
    };
    let hello = HelloOut {
        purpose: Purpose::Enroll,
        versions: CONTROL_PROTOCOL,
        instance: InstanceId::random(),
        payload: request.encode_to_vec(),
    };
    let (connection, welcome) = dial_once(target, hello, |_, _| Ok(std::sync::Arc::new(NoHandler)))
        .await
        .map_err(|error| refused(&error))?;
    connection.close(umbel_wire::CloseReason::Shutdown);
    let answer =
        bounds::decode::<EdgeEnrollResponse>(&welcome.payload).map_err(|error| failed(error.message))?;
    Ok(take(config, directory, token, &key, answer)?)
}

fn take(
    config: &Config,
    directory: &Path,
    token: &EnrollmentToken,
    key: &KeyPair,
    answer: EdgeEnrollResponse,
) -> Result<Enrolled, StartError> {
    if answer.edge_id != config.site.as_str() {
        return Err(failed(format!("the control plane enrolled {}, not {}", answer.edge_id, config.site)));
    }
    if certificate_digest(&answer.ca_certificate) != token.ca_digest {
        return Err(failed("the authority that the control plane sent is not the token's; nothing was kept"));
    }
    // Its name becomes a directory: only what can be one, and never a path.
    let name = answer.control_plane_id;
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > 63 || name.starts_with('.') || !name.bytes().all(sound) {
        return Err(failed("the control plane's name cannot be the name of a directory; nothing was kept"));
    }
    let place = directory.join(&name);
    if membership::is_complete(&place) && membership::authority(&place) != Some(token.ca_digest) {
        return Err(failed(format!(
            "{} is there already, of another authority: remove it if that control plane is gone",
            place.display()
        )));
    }
    let chain: Vec<_> =
        answer.certificate_chain.into_iter().map(rustls::pki_types::CertificateDer::from).collect();
    let ca = rustls::pki_types::CertificateDer::from(answer.ca_certificate);
    let written = membership::write(
        &place,
        &Joined {
            control_plane_id: &name,
            edge_id: &answer.edge_id,
            addresses: &token.addresses,
            token_id: &token.token_id,
            key_pem: key.to_pem().as_bytes(),
            chain_pem: &tls::to_pem(&chain),
            ca_pem: &tls::to_pem(&[ca]),
        },
    );
    written.map_err(failed)?;
    files::remove(&directory.join(PENDING)).map_err(failed)?;
    Ok(Enrolled { control_plane_id: name, edge_id: answer.edge_id, already: false })
}
